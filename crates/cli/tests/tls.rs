//! Backups over TLS, to the server and to S3, with credentials that expire on the way.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::certificates::{Authority, Subject};
use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use pgstrata_testbed::proxy::Proxy;
use pgstrata_testbed::s3::S3Server;
use support::past::require_source;
use support::process::log_of;
use support::{PATIENCE, Stage, Store, credentials_file, to_lsn};

const STORE: i32 = 15;

/// Hands the file to the server's user.
fn give(stage: &Stage, file: &Path) {
    let owner = fs::metadata(stage.pgdata()).unwrap();
    chown(file, Some(owner.uid()), Some(owner.gid())).unwrap();
}

/// Lets the stage's server speak TLS, as `localhost`, and nothing else over TCP, to who has a password; returns the
/// authority's file. Beside it lies a list, `revoked.crl`, that has the server's certificate.
fn speak_tls(stage: &Stage) -> PathBuf {
    let authority = Authority::new("of the house").unwrap();
    let subject = Subject {
        common_name: "db",
        names: &["localhost"],
        is_expired: false,
    };
    let pgdata = PathBuf::from(stage.pgdata());
    let files = authority.issue(subject).unwrap();
    for file in files.write(&pgdata, "server").unwrap() {
        give(stage, &file);
    }
    let hba = "local all all trust\nhostssl postgres all 127.0.0.1/32 scram-sha-256\n";
    fs::write(pgdata.join("pg_hba.conf"), hba).unwrap();
    stage.cluster.append_conf("ssl", "on").unwrap();
    stage.cluster.reload().unwrap();
    let secret = "SET password_encryption = 'scram-sha-256'; ALTER ROLE postgres PASSWORD 'secret'";
    stage.cluster.sql("postgres", secret).unwrap();
    let directory = stage.cluster.create_dir("authority").unwrap();
    let list = directory.join("revoked.crl");
    authority.write_revoked(&list, &[&files], 2200).unwrap();
    authority.write(&directory).unwrap()
}

#[test]
fn a_backup_over_verified_tls_restores() {
    let builder = Cluster::builder(Major::V17).tcp(true);
    let stage = Stage::archiving(builder, Store::Directory);
    let authority = speak_tls(&stage);
    let address = format!(
        "host=localhost hostaddr=127.0.0.1 port={} user=postgres dbname=postgres password=secret channel_binding=require",
        stage.cluster.port()
    );
    let verified = format!(
        "{address} sslmode=verify-full sslrootcert={}",
        authority.display()
    );
    let pgdata = stage.pgdata();
    stage.ok(&["check", "-D", &pgdata, "-d", &verified]);
    stage.json(&["backup", "-D", &pgdata, "-d", &verified]);

    // The machine's own authorities, of which there is one.
    let system = format!("{address} sslrootcert=system");
    let arguments = ["backup", "--dry-run", "-D", &pgdata, "-d", &system];
    let mut command = stage.command(&arguments);
    let output = command.env("SSL_CERT_FILE", &authority).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let (_, log) = stage.fails(&arguments);
    assert!(log.contains("this machine's trusted certificates"), "{log}");

    // The files that libpq looks for.
    let home = stage.cluster.create_dir("home").unwrap();
    let files = home.join(".postgresql");
    fs::create_dir(&files).unwrap();
    let in_home = |what: &str| {
        let asked = format!("{address} sslmode={what}");
        let mut command = stage.command(&["backup", "--dry-run", "-D", &pgdata, "-d", &asked]);
        let output = command.env("HOME", &home).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), log)
    };
    let list = files.join("root.crl");
    fs::copy(authority.with_file_name("revoked.crl"), &list).unwrap();
    let unverified = in_home("require");
    assert!(unverified.0, "{unverified:?}");
    fs::copy(&authority, files.join("root.crt")).unwrap();
    let (accepted, log) = in_home("require");
    assert!(!accepted && log.contains("was revoked"), "{log}");
    fs::remove_file(&list).unwrap();
    let verified = in_home("verify-full");
    assert!(verified.0, "{verified:?}");

    // Variables of libpq.
    let plain = format!("{address} sslmode=");
    let mut command = stage.command(&["backup", "--dry-run", "-D", &pgdata, "-d", &plain]);
    let output = command.env("PGSSLMODE", "verify-ca").output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{log}");
    assert!(
        log.contains("sslmode is verify-ca, and there is no file"),
        "{log}"
    );

    let (lsn, before) = stage.moment();
    let restored = stage.start_restored_at("restored", &lsn);
    require_same_dump(&before, &restored.dump().unwrap()).unwrap();
}

#[test]
fn credentials_that_expire_under_a_backup_are_renewed() {
    let builder = Cluster::builder(Major::V18).conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::S3);
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    let proxy = Proxy::before(stage.s3_endpoint()).unwrap();
    let file = stage.cluster.create_dir("tokens").unwrap().join("s3.toml");
    let write = |access_key: &str, secret: &str| {
        let text = format!("access_key_id = \"{access_key}\"\nsecret_access_key = \"{secret}\"\n");
        let whole = file.with_extension("new");
        fs::write(&whole, text).unwrap();
        fs::set_permissions(&whole, fs::Permissions::from_mode(0o600)).unwrap();
        give(&stage, &whole);
        fs::rename(&whole, &file).unwrap();
    };
    let s3 = stage.s3();
    write(s3.access_key(), s3.secret());
    let credentials = file.display().to_string();
    let through = [
        "--s3-endpoint",
        proxy.endpoint(),
        "--credentials",
        &credentials,
    ];
    let backup = stage.begin_backup(&through);
    proxy.expire_key(s3.access_key());
    let end = Instant::now() + PATIENCE;
    while proxy.refused() < 3 {
        assert!(Instant::now() < end, "nothing was refused");
        thread::sleep(Duration::from_millis(20));
    }
    write(s3.second_access_key(), s3.second_secret());
    let log = log_of(backup);
    assert_eq!(stage.layer_counts(), (1, 0), "{log}");
    stage.ok(&["verify", "--deep"]);
}

/// An S3 server whose certificate an authority of the house has signed, and what commands say to reach it; the last two words
/// name the authority's file.
fn s3_of_the_house(stage: &Stage) -> (S3Server, Vec<String>) {
    let authority = Authority::new("of the house").unwrap();
    let subject = Subject {
        common_name: "s3",
        names: &["localhost"],
        is_expired: false,
    };
    let s3 = S3Server::start_with_tls(&authority.issue(subject).unwrap()).unwrap();
    let keys = format!(
        "access_key_id = '{}'\nsecret_access_key = '{}'\n",
        s3.access_key(),
        s3.secret()
    );
    let keys = credentials_file(&stage.cluster, "house", &keys);
    let directory = stage.cluster.create_dir("authority").unwrap();
    let authority = authority.write(&directory).unwrap();
    let repository = format!("s3://{}/house", s3.bucket());
    let endpoint = s3.endpoint().replace("127.0.0.1", "localhost");
    let words = [
        ["--repo", &repository],
        ["--s3-endpoint", &endpoint],
        ["--credentials", &keys.display().to_string()],
        ["--s3-ca-file", &authority.display().to_string()],
    ];
    let words = words.concat().into_iter().map(str::to_owned).collect();
    (s3, words)
}

/// Each of the commands is refused without the authority, and with another one.
fn require_no_trust(stage: &Stage, reach: &[&str], commands: &[&[&str]]) {
    let other = Authority::new("of another house").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let other = other.write(directory.path()).unwrap();
    stage.cluster.own(directory.path()).unwrap();
    let other = ["--s3-ca-file", &other.display().to_string()];
    for command in commands {
        for authority in [&[][..], &other] {
            let (code, log) = stage.fails(&[reach, authority, command].concat());
            assert_eq!(code, STORE, "{command:?}: {log}");
            let why = "the endpoint's certificate is refused: its authority is not trusted";
            assert!(log.contains(why), "{command:?}: {log}");
            assert!(log.contains("--s3-ca-file"), "{command:?}: {log}");
            let is_error = |line: &&str| line.to_lowercase().contains("error");
            assert_eq!(
                log.lines().filter(is_error).count(),
                1,
                "{command:?}: {log}"
            );
        }
    }
}

#[test]
fn a_chain_in_s3_behind_an_authority_of_the_house_restores() {
    let builder = Cluster::builder(Major::V15)
        .conf("archive_mode", "on")
        .conf("archive_command", "false");
    let stage = Stage::silent(builder, Store::Directory);
    let (_s3, words) = s3_of_the_house(&stage);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let pgdata = stage.pgdata();
    let init = ["init", "-D", &pgdata];
    let backup = ["backup", "-D", &pgdata];
    let run = |command: &[&str]| stage.json(&[&words[..], command].concat());
    let (reach, _) = words.split_at(words.len() - 2);
    require_no_trust(&stage, reach, &[&init]);
    run(&init);

    let archive = format!(
        "{} {} archive-push --cluster main %p",
        stage.program.display(),
        words.join(" ")
    );
    stage.set_archive_command(&archive);
    run(&backup);
    stage.cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    require_source(&run(&[&backup[..], &["--type", "incr"]].concat()), "lsn");
    stage.cluster.pgbench(&["-n", "-t", "50"]).unwrap();
    let (lsn, before) = stage.moment();
    run(&["verify", "--deep"]);

    let target = stage.target("restored");
    let directory = target.display().to_string();
    let restore = ["restore", "--target-dir", &directory];
    let restore = [&restore[..], &to_lsn(&lsn)].concat();
    require_no_trust(&stage, reach, &[&["info"], &backup, &restore]);
    run(&restore);
    // The server fetches the WAL after the backup by itself.
    let restored = stage.start_restored(&target);
    require_same_dump(&before, &restored.dump().unwrap()).unwrap();
}
