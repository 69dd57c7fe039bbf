//! TLS to the server: each mode of `sslmode` against servers that have it, lack it, and have the wrong certificate.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts by their names, and may fail"
)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pgstrata_engine::server::{ConnectionOptions, Session};
use pgstrata_store::error::{Error, Kind};
use pgstrata_testbed::certificates::{Authority, Identity, Subject};
use pgstrata_testbed::cluster::{Cluster, Major};
use tempfile::TempDir;

/// The supported versions whose programs here are built with TLS.
const MAJORS: [Major; 2] = [Major::V15, Major::V17];

const TRUST: &str = "host all all 127.0.0.1/32 trust";

/// A server on TCP, and where its client keeps files.
struct Scene {
    cluster: Cluster,
    files: TempDir,
}

/// A server that has TLS when there is an identity, and lets those in from TCP who fulfil `rule`.
fn scene(major: Major, identity: Option<&Identity>, rule: &str, ca: Option<&Authority>) -> Scene {
    let cluster = Cluster::builder(major).tcp(true).create().unwrap();
    let pgdata = cluster.pgdata().to_owned();
    if let Some(identity) = identity {
        let [certificate, key] = identity.write(&pgdata, "server").unwrap();
        give_to_server(&pgdata, &[certificate, key]);
        cluster.append_conf("ssl", "on").unwrap();
    }
    if let Some(ca) = ca {
        let file = ca.write(&pgdata).unwrap();
        give_to_server(&pgdata, &[file]);
        cluster.append_conf("ssl_ca_file", "ca.crt").unwrap();
    }
    fs::write(
        pgdata.join("pg_hba.conf"),
        format!("local all all trust\n{rule}\n"),
    )
    .unwrap();
    cluster.start().unwrap();
    Scene {
        cluster,
        files: tempfile::tempdir().unwrap(),
    }
}

fn give_to_server(pgdata: &Path, files: &[PathBuf]) {
    let owner = fs::metadata(pgdata).unwrap();
    for file in files {
        chown(file, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
}

impl Scene {
    fn conninfo(&self, host: &str, more: &str) -> String {
        let port = self.cluster.port();
        format!("host={host} hostaddr=127.0.0.1 port={port} user=postgres dbname=postgres {more}")
    }

    async fn connect_to(&self, host: &str, more: &str) -> Result<Session, Error> {
        let conninfo = self.conninfo(host, more);
        Session::connect(&ConnectionOptions { conninfo }).await
    }

    async fn connect(&self, more: &str) -> Result<Session, Error> {
        self.connect_to("localhost", more).await
    }

    /// Whether the two connections of a session are encrypted.
    async fn encrypts(&self, more: &str) -> bool {
        let ours = "application_name IN ('pgstrata backup', 'pgstrata questions')";
        let none = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE {ours}");
        let earlier = self
            .cluster
            .wait_for("postgres", &none, Duration::from_secs(60));
        earlier.unwrap();
        let session = self.connect(more).await.unwrap();
        let query = format!(
            "SELECT string_agg(ssl::text, ' ') FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE {ours}"
        );
        let found = self.cluster.sql("postgres", &query).unwrap();
        drop(session);
        match found.as_str() {
            "true true" => true,
            "false false" => false,
            other => panic!("{more}: {other}"),
        }
    }
}

fn localhost() -> Subject<'static> {
    Subject {
        common_name: "test server",
        names: &["localhost"],
        is_expired: false,
    }
}

fn assert_refused(outcome: Result<Session, Error>, kind: Kind, words: &str, advice: &str) {
    let error = outcome
        .err()
        .unwrap_or_else(|| panic!("nobody refused: {words}"));
    let hint = error.hint_text().unwrap_or_default();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
    assert!(hint.contains(advice), "{error}: {hint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mode_says_whether_a_connection_is_encrypted() {
    for major in MAJORS {
        let ca = Authority::new("a").unwrap();
        let scene = scene(major, Some(&ca.issue(localhost()).unwrap()), TRUST, None);
        let root = scene.files.path().join("ca.crt");
        ca.write(scene.files.path()).unwrap();
        let verified = |mode| format!("sslmode={mode} sslrootcert={}", root.display());
        assert!(!scene.encrypts("sslmode=disable").await);
        assert!(!scene.encrypts("sslmode=allow").await);
        assert!(scene.encrypts("").await);
        assert!(scene.encrypts("sslmode=prefer").await);
        assert!(scene.encrypts("sslmode=require").await);
        assert!(scene.encrypts(&verified("verify-ca")).await);
        assert!(scene.encrypts(&verified("verify-full")).await);
    }
    let ca = Authority::new("a").unwrap();
    let scene = scene(
        Major::V17,
        Some(&ca.issue(localhost()).unwrap()),
        TRUST,
        None,
    );
    // Only servers since 17 understand this.
    assert!(
        scene
            .encrypts("sslmode=require sslnegotiation=direct")
            .await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_is_refused() {
    let ca = Authority::new("a").unwrap();
    // The same name, another key: only the signature tells them apart.
    let (other, stranger) = (Authority::new("b").unwrap(), Authority::new("a").unwrap());
    let scene = scene(
        Major::V15,
        Some(&ca.issue(localhost()).unwrap()),
        TRUST,
        None,
    );
    for (wrong, words) in [(other, "is not signed by"), (stranger, "not signed by")] {
        let root = wrong.write(scene.files.path()).unwrap();
        for mode in ["require", "verify-ca", "verify-full"] {
            let asked = format!("sslmode={mode} sslrootcert={}", root.display());
            let outcome = scene.connect(&asked).await;
            assert_refused(outcome, Kind::Server, words, "sslrootcert");
        }
    }
    let missing = "sslmode=verify-ca sslrootcert=/nowhere/root.crt";
    let outcome = scene.connect(missing).await;
    assert_refused(
        outcome,
        Kind::Usage,
        "/nowhere/root.crt",
        "sslrootcert=system",
    );
    let system = scene.connect("sslrootcert=system").await;
    assert_refused(
        system,
        Kind::Server,
        "this machine's trusted",
        "sslrootcert",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_host_is_refused_by_verify_full_alone() {
    let ca = Authority::new("a").unwrap();
    let scene = scene(
        Major::V15,
        Some(&ca.issue(localhost()).unwrap()),
        TRUST,
        None,
    );
    let root = ca.write(scene.files.path()).unwrap();
    let asked = |mode| format!("sslmode={mode} sslrootcert={}", root.display());
    scene
        .connect_to("db.example.com", &asked("verify-ca"))
        .await
        .unwrap();
    let outcome = scene
        .connect_to("db.example.com", &asked("verify-full"))
        .await;
    let words = "is for \"localhost\", and not for \"db.example.com\"";
    assert_refused(outcome, Kind::Server, words, "hostaddr");
    let outcome = scene.connect_to("127.0.0.1", &asked("verify-full")).await;
    assert_refused(outcome, Kind::Server, "not for \"127.0.0.1\"", "hostaddr");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_is_refused() {
    let ca = Authority::new("a").unwrap();
    let old = Subject {
        is_expired: true,
        ..localhost()
    };
    let scene = scene(Major::V15, Some(&ca.issue(old).unwrap()), TRUST, None);
    let root = ca.write(scene.files.path()).unwrap();
    let asked = format!("sslmode=verify-ca sslrootcert={}", root.display());
    assert_refused(
        scene.connect(&asked).await,
        Kind::Server,
        "has expired",
        "sslrootcert",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_certificate_is_refused() {
    let (ca, other) = (Authority::new("a").unwrap(), Authority::new("b").unwrap());
    let [server, someone] = [(); 2].map(|()| ca.issue(localhost()).unwrap());
    let scene = scene(Major::V15, Some(&server), TRUST, None);
    let files = scene.files.path();
    let root = ca.write(files).unwrap();
    let lists = files.join("lists");
    fs::create_dir_all(lists.join("below")).unwrap();
    let [with, without, stale, foreign] =
        ["b0.crl", "a0.crl", "stale.crl", "foreign.crl"].map(|name| lists.join(name));
    ca.write_revoked(&with, &[&server], 2200).unwrap();
    ca.write_revoked(&without, &[&someone], 2200).unwrap();
    ca.write_revoked(&stale, &[&someone], 2001).unwrap();
    other.write_revoked(&foreign, &[&server], 2200).unwrap();
    // The name is another matter: it is wrong here, and nobody asks for it.
    let asked = async |mode: &str, lists: &str| {
        let more = format!("sslmode={mode} sslrootcert={} {lists}", root.display());
        scene.connect_to("db.example.com", &more).await
    };
    let file = |path: &Path| format!("sslcrl={}", path.display());
    asked("verify-ca", &file(&without)).await.unwrap();
    for (list, words) in [
        (&with, "was revoked: it is on the list in"),
        (&stale, "is out of date"),
        (&foreign, "has no list of the authority"),
    ] {
        for mode in ["require", "verify-ca"] {
            let outcome = asked(mode, &file(list)).await;
            assert_refused(outcome, Kind::Server, words, "sslcrl");
        }
    }
    // Of two lists of an authority each counts, whichever is read first.
    let directory = format!("sslcrldir={}", lists.display());
    fs::remove_file(&stale).unwrap();
    let outcome = asked("verify-ca", &directory).await;
    assert_refused(outcome, Kind::Server, "was revoked", "sslcrl");
    fs::remove_file(&with).unwrap();
    asked("verify-ca", &directory).await.unwrap();

    // What was asked for and cannot be done is said, before anything is connected.
    for (more, words) in [
        ("sslcrl=/nowhere/root.crl".to_owned(), "/nowhere/root.crl"),
        ("sslcrldir=/nowhere".to_owned(), "/nowhere"),
        (file(&root), "holds no revocation list"),
        (
            format!("sslcrldir={}", lists.join("below").display()),
            "holds no revocation list",
        ),
    ] {
        let error = asked("verify-ca", &more).await.err().unwrap();
        assert!(error.to_string().contains(words), "{error}");
    }
    let unverified = format!("sslmode=require {}", file(&without));
    let outcome = scene.connect(&unverified).await;
    assert_refused(outcome, Kind::Usage, "is not verified", "sslrootcert");
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_as_postgresqls_manual_makes_them_are_verified() {
    // Signed by itself, and the host's name only in the common name.
    let named = Subject {
        common_name: "localhost",
        ..Subject::default()
    };
    let own = Identity::self_signed(named).unwrap();
    let scene = scene(Major::V15, Some(&own), TRUST, None);
    let [root, _] = own.write(scene.files.path(), "root").unwrap();
    let asked = format!("sslmode=verify-full sslrootcert={}", root.display());
    scene.connect(&asked).await.unwrap();
    let list = scene.files.path().join("root.crl");
    let someone = Authority::new("a").unwrap();
    someone.write_revoked(&list, &[], 2200).unwrap();
    let listed = format!("{asked} sslcrl={}", list.display());
    let outcome = scene.connect(&listed).await;
    assert_refused(outcome, Kind::Server, "signed itself", "sslcrl");
    let outcome = scene.connect_to("elsewhere", &asked).await;
    assert_refused(outcome, Kind::Server, "is for \"localhost\"", "hostaddr");
    let other = Identity::self_signed(named).unwrap();
    other.write(scene.files.path(), "root").unwrap();
    assert_refused(
        scene.connect(&asked).await,
        Kind::Server,
        "certificate",
        "sslrootcert",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_refused_when_tls_is_asked_for() {
    let scene = scene(Major::V15, None, TRUST, None);
    let words = "does not support TLS";
    for mode in ["sslmode=require", "sslrootcert=system"] {
        assert_refused(scene.connect(mode).await, Kind::Server, words, "ssl = on");
    }
    for mode in ["", "sslmode=prefer", "sslmode=allow", "sslmode=disable"] {
        scene.connect(mode).await.unwrap();
    }
    // As in libpq, the mode says nothing about sockets.
    let socket = scene.cluster.conninfo("postgres");
    let conninfo = format!("{socket} sslmode=verify-full sslrootcert=/nowhere");
    Session::connect(&ConnectionOptions { conninfo })
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn scram_binds_the_channel() {
    for major in MAJORS {
        let ca = Authority::new("a").unwrap();
        let rule = "host all all 127.0.0.1/32 scram-sha-256";
        let scene = scene(major, Some(&ca.issue(localhost()).unwrap()), rule, None);
        let role =
            "SET password_encryption = 'scram-sha-256'; ALTER ROLE postgres PASSWORD 'secret'";
        scene.cluster.sql("postgres", role).unwrap();
        let asked = |mode| format!("password=secret channel_binding=require sslmode={mode}");
        scene.connect(&asked("require")).await.unwrap();
        let outcome = scene.connect(&asked("disable")).await;
        assert_refused(outcome, Kind::Server, "channel binding", "sslmode=require");
    }
    let trusting = scene(Major::V15, None, TRUST, None);
    let outcome = trusting.connect("channel_binding=require").await;
    assert_refused(outcome, Kind::Server, "channel binding", "scram-sha-256");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_is_shown_to_the_server() {
    for major in MAJORS {
        let ca = Authority::new("a").unwrap();
        let rule = "hostssl all all 127.0.0.1/32 cert";
        let server = ca.issue(localhost()).unwrap();
        let scene = scene(major, Some(&server), rule, Some(&ca));
        let own = Subject {
            common_name: "postgres",
            ..Subject::default()
        };
        let own = ca.issue(own).unwrap();
        let [certificate, key] = own.write(scene.files.path(), "own").unwrap();
        let asked = format!(
            "sslmode=require sslcert={} sslkey={}",
            certificate.display(),
            key.display()
        );
        scene.connect(&asked).await.unwrap();
        let outcome = scene.connect("sslmode=require").await;
        assert_refused(outcome, Kind::Server, "client certificate", "pg_hba.conf");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        assert_refused(
            scene.connect(&asked).await,
            Kind::Refused,
            "used by others",
            "chmod",
        );
        let foreign = Authority::new("b").unwrap().issue(Subject {
            common_name: "postgres",
            ..Subject::default()
        });
        foreign.unwrap().write(scene.files.path(), "own").unwrap();
        assert_refused(
            scene.connect(&asked).await,
            Kind::Server,
            "alert",
            "ssl_ca_file",
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_server_wants_the_other_kind_of_connection_it_gets_it() {
    let ca = Authority::new("a").unwrap();
    let identity = ca.issue(localhost()).unwrap();
    let plain = scene(
        Major::V15,
        Some(&identity),
        "hostnossl all all 127.0.0.1/32 trust",
        None,
    );
    assert!(!plain.encrypts("sslmode=prefer").await);
    let outcome = plain.connect("sslmode=require").await;
    assert_refused(outcome, Kind::Server, "pg_hba.conf", "pg_hba.conf");
    let encrypted = scene(
        Major::V15,
        Some(&identity),
        "hostssl all all 127.0.0.1/32 trust",
        None,
    );
    assert!(encrypted.encrypts("sslmode=allow").await);
    let outcome = encrypted.connect("sslmode=disable").await;
    assert_refused(outcome, Kind::Server, "pg_hba.conf", "pg_hba.conf");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_cancel_goes_over_tls() {
    let ca = Authority::new("a").unwrap();
    let scene = scene(
        Major::V15,
        Some(&ca.issue(localhost()).unwrap()),
        TRUST,
        None,
    );
    // Dirty pages that a spread checkpoint writes over minutes.
    let dirty = "CREATE TABLE t AS SELECT repeat('x', 900) FROM generate_series(1, 5000)";
    scene.cluster.sql("postgres", dirty).unwrap();
    let session = scene.connect("sslmode=require").await.unwrap();
    let starting = session.start("pgstrata", false);
    let cancelling = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        session.cancel().await;
    };
    let both = async { tokio::join!(starting, cancelling) };
    let (started, ()) = tokio::time::timeout(Duration::from_secs(60), both)
        .await
        .unwrap();
    let error = started.unwrap_err();
    assert!(error.to_string().contains("canceling statement"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_mode_is_refused_before_anything_is_connected() {
    let conninfo = "host=db.invalid sslmode=verify".to_owned();
    let outcome = Session::connect(&ConnectionOptions { conninfo }).await;
    assert_refused(outcome, Kind::Usage, "sslmode is \"verify\"", "verify-full");
}
