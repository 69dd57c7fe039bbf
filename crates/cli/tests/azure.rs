//! A repository in a container of Azure Blob Storage: everything that a repository is for.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use pgstrata_testbed::azure::AzureServer;
use pgstrata_testbed::cluster::{Builder, Cluster, Major, require_same_dump};
use pgstrata_testbed::proxy::Proxy;
use pgstrata_testbed::s3::S3Server;
use serde_json::Value;
use support::process::ended;
use support::vault::Vault;
use support::{Stage, Store, azure_keys, credentials_file, files, schema, text, to_lsn};

const USAGE: i32 = 2;
const WARNINGS: i32 = 3;
const REFUSED: i32 = 13;
const UNREACHABLE: i32 = 15;
const UNSUPPORTED: i32 = 21;
const LATER: &str = "2099-01-01T00:00:00Z";

fn builder() -> Builder {
    let builder = Cluster::builder(Major::V15).conf("archive_mode", "on");
    builder.conf("archive_command", "false")
}

fn labels(stage: &Stage) -> Vec<String> {
    let info = stage.json(&["info"]);
    let layers = info["layers"].as_array().unwrap();
    layers
        .iter()
        .map(|layer| text(layer, "/label").to_owned())
        .collect()
}

/// Restores from that repository to the moment, and compares.
fn require_restorable(stage: &Stage, name: &str, repository: &str, moment: &(String, String)) {
    let until = ["--target-type", "lsn", "--target", &moment.0];
    let then = ["--target-action", "promote", "--repo", repository];
    let target = stage.restore(name, &[&until[..], &then].concat());
    let restored = stage.start_restored(&target);
    require_same_dump(&moment.1, &restored.dump().unwrap()).unwrap();
}

#[test]
fn a_chain_in_a_container_restores_merges_expires_and_is_copied() {
    let stage = Stage::silent(builder(), Store::Azure);
    stage.begin_archiving();
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    stage.backup(&["--type", "full"]);
    stage.cluster.pgbench(&["-n", "-t", "100"]).unwrap();
    stage.backup(&["--type", "incr"]);
    let moment = stage.moment();
    let container = stage.repository.clone();
    require_restorable(&stage, "restored", &container, &moment);
    stage.ok(&["verify", "--deep"]);

    // Into a directory, and out of it into another container's place.
    let directory = stage.cluster.create_dir("copy").unwrap();
    let directory = format!("file://{}", directory.display());
    stage.ok(&["copy", "--to", &directory]);
    let other = format!("az://{}/other", stage.azure().container());
    let from_directory = ["--repo", &directory, "copy", "--to", &other];
    let mut copy = stage.command(&from_directory);
    copy.env_remove("PGSTRATA_CREDENTIALS");
    let copied = copy
        .args(["--to-credentials", stage.credentials()])
        .output()
        .unwrap();
    assert!(copied.status.success(), "{}", log(&copied));
    require_restorable(&stage, "copied", &other, &moment);

    let now = ["--remove-inputs", "--ignore-restores"];
    let merged = stage.json(&[&["merge", &labels(&stage)[1]][..], &now].concat());
    assert_eq!(labels(&stage), [text(&merged, "/label")]);
    stage.ok(&["verify", "--deep"]);
    require_restorable(&stage, "merged", &container, &moment);
    let newest = stage.backup(&["--type", "full"]);
    stage.ok(&["expire", "--keep-full", "1", "--ignore-restores"]);
    assert_eq!(labels(&stage), [text(&newest, "/label")]);
    stage.ok(&["verify"]);
}

/// A signature with the letters that SECURITY.md gives to a role.
fn signature(stage: &Stage, role: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manual = fs::read_to_string(root.join("docs/SECURITY.md")).unwrap();
    let (_, table) = manual.split_once("| role | `sp` |").unwrap();
    let (_, row) = table.split_once(&format!("| {role}: ")).unwrap();
    let (_, letters) = row.split_once("| `").unwrap();
    let (letters, _) = letters.split_once('`').unwrap();
    stage.azure().shared_access(letters, LATER)
}

/// The credentials of a role.
fn credentials(stage: &Stage, role: &str) -> String {
    let (azure, signature) = (stage.azure(), signature(stage, role));
    let (account, endpoint) = (azure.account(), azure.endpoint());
    format!("account_name = '{account}'\nendpoint = '{endpoint}'\nsas_key = '{signature}'\n")
}

/// Nobody's signature but the owner's key replaces what is there, or creates it as a reader; a keeper alone deletes.
#[test]
fn the_signatures_of_the_roles_replace_nothing() {
    let stage = Stage::silent(builder(), Store::Azure);
    let azure = stage.azure();
    let there = format!("/{}/there", azure.container());
    let put = azure.request("PUT", &there).unwrap();
    assert_eq!(put.status, 201, "{}", put.body);
    for (role, creates, deletes) in [
        ("reader", 403, 403),
        ("writer", 201, 403),
        ("keeper", 201, 202),
    ] {
        let signature = signature(&stage, role);
        let act = |method: &str, place: &str| {
            let answer = azure.request_as(&signature, method, place).unwrap();
            answer.status
        };
        assert_eq!(act("PUT", &there), 403, "{role} overwrites");
        let new = format!("/{}/of-{role}", azure.container());
        assert_eq!(act("PUT", &new), creates, "{role} creates");
        assert_eq!(act("DELETE", &there), deletes, "{role} deletes");
    }
}

/// Rights to read, list and create, without those to delete and to overwrite, are enough for the host of a database.
#[test]
fn a_signature_without_deletion_is_enough_for_the_host_of_the_database() {
    let stage = Stage::silent(builder(), Store::Azure);
    fs::write(stage.credentials(), credentials(&stage, "writer")).unwrap();
    stage.begin_archiving();
    stage.cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    stage.backup(&["--type", "full"]);
    stage.cluster.pgbench(&["-n", "-t", "50"]).unwrap();
    stage.backup(&["--type", "incr"]);
    let moment = stage.moment();
    require_restorable(&stage, "restored", &stage.repository, &moment);
    stage.backup(&["--type", "full"]);
    let expire = ["expire", "--keep-full", "1", "--ignore-restores"];
    let (_, said) = stage.fails(&expire);
    assert!(said.contains("access denied"), "{said}");
    assert!(!said.contains("sig="), "{said}");
    assert_eq!(labels(&stage).len(), 3, "nothing was removed");
}

#[test]
fn the_signatures_of_keeper_and_reader_are_enough_for_their_commands() {
    let stage = Stage::silent(builder(), Store::Azure);
    fs::write(stage.credentials(), credentials(&stage, "writer")).unwrap();
    let ends_as = |role: &str, words: &[&str], code: i32| {
        let file = credentials_file(&stage.cluster, role, &credentials(&stage, role));
        let mut command = stage.command(words);
        command.env("PGSTRATA_CREDENTIALS", file);
        ended(
            command.output().unwrap(),
            &format!("{role} {words:?}"),
            code,
        )
    };
    stage.begin_archiving();
    stage.cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    for kind in ["full", "incr", "incr"] {
        stage.cluster.pgbench(&["-n", "-t", "50"]).unwrap();
        stage.backup(&["--type", kind]);
    }
    let (lsn, dump) = stage.moment();
    let restores_as_reader = |name: &str| {
        let target = stage.target(name);
        let into = target.display().to_string();
        let until = ["--target-type", "lsn", "--target", &lsn];
        let words = [&["restore", "--target-dir", &into][..], &until].concat();
        ends_as(
            "reader",
            &[&words[..], &["--target-action", "promote"]].concat(),
            0,
        );
        let restored = stage.start_restored(&target);
        require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
    };
    let made = labels(&stage);
    let merge = ["merge", &made[2], "--remove-inputs"];
    let expire = ["expire", "--keep-full", "1"];
    restores_as_reader("of-chain");
    ends_as("reader", &["verify", "--deep"], 0);
    for words in [&merge[..], &expire, &["pin", "latest"]] {
        let plan = [words, &["--dry-run"]].concat();
        if words[0] != "pin" {
            ends_as("reader", &plan, 0);
        }
        let (_, said) = ends_as("reader", words, UNREACHABLE);
        assert!(said.contains("access denied"), "{said}");
        assert!(!said.contains("sig="), "{said}");
    }
    assert_eq!(labels(&stage), made, "nothing was changed");
    ends_as("keeper", &merge, 0);
    assert_eq!(labels(&stage).len(), 1);
    restores_as_reader("of-merged");
    let newest = stage.backup(&["--type", "full"]);
    ends_as("keeper", &expire, 0);
    assert_eq!(labels(&stage), [text(&newest, "/label")]);
    ends_as("reader", &["verify", "--deep"], 0);
}

#[test]
fn what_pgstrata_cannot_see_or_do_in_a_container_is_said() {
    let stage = Stage::silent(builder(), Store::Azure);
    let pgdata = stage.pgdata();
    let checked = stage.run(&["check", "--pgdata", &pgdata, "--wal", "stream"]);
    let checked = String::from_utf8(checked.stdout).unwrap();
    let line = checked.lines().find(|line| line.contains("protection"));
    assert!(line.unwrap().contains("read on S3 alone"), "{checked}");

    let moment = "2026-01-01T00:00:00Z";
    let into = stage.target("nowhere").display().to_string();
    let as_of = ["--repository-as-of", moment];
    for arguments in [
        &["rescue", "--since", moment][..],
        &[&["info"][..], &as_of].concat(),
        &[&["verify"][..], &as_of].concat(),
        &[&["restore", "--target-dir", &into][..], &as_of].concat(),
    ] {
        let (code, said) = stage.fails(arguments);
        assert_eq!(code, UNSUPPORTED, "{arguments:?}: {said}");
        assert!(
            said.contains("versions of objects are read on S3 alone"),
            "{said}"
        );
        assert!(said.contains("hint"), "{said}");
    }
    let place = format!("az://{}/locked", stage.azure().container());
    let locking = [
        "init", "--pgdata", &pgdata, "--retain", "30d", "--repo", &place,
    ];
    let (code, said) = stage.fails(&locking);
    assert_eq!(code, UNSUPPORTED, "{said}");
    assert!(said.contains("objects are locked on S3 alone"), "{said}");
    let (_, said) = stage.fails(&["info", "--repo", &place]);
    assert!(said.contains("is not in the repository"), "{said}");
}

#[test]
fn a_backup_goes_into_a_directory_a_bucket_and_a_container_at_once() {
    let stage = Stage::silent(builder(), Store::Directory);
    let (s3, azure) = (S3Server::start().unwrap(), AzureServer::start().unwrap());
    let config = three_tables(&stage, "cluster = 'main'", (&s3, s3.endpoint()), &azure);
    let run = |arguments: &[&str]| -> Output {
        let mut command = stage.command(arguments);
        command
            .env_remove("PGSTRATA_REPO")
            .env_remove("PGSTRATA_CLUSTER");
        command.env("PGSTRATA_CONFIG", &config).output().unwrap()
    };
    let done = |arguments: &[&str]| -> Output {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", log(&output));
        output
    };
    for name in ["bucket", "container"] {
        done(&["--repo", "near", "copy", "--to", name]);
    }
    let program = stage.program.display();
    let command = format!("{program} --config {} archive-push %p", config.display());
    stage
        .cluster
        .append_conf("archive_command", &command)
        .unwrap();
    stage.cluster.reload().unwrap();
    stage.cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    let pgdata = stage.pgdata();
    for kind in ["full", "incr"] {
        let made = done(&["--output", "json", "backup", "-D", &pgdata, "--type", kind]);
        let made = schema::document(&String::from_utf8(made.stdout).unwrap());
        let states = made["repositories"].as_array().unwrap().iter();
        let states: Vec<&Value> = states.map(|one| &one["state"]).collect();
        assert_eq!(states, ["stored", "copied", "copied"], "{made:#}");
    }
    let (lsn, dump) = stage.moment();
    done(&["verify", "--deep"]);

    // The container alone is left.
    drop(s3);
    let near = PathBuf::from(stage.repository.trim_start_matches("file://"));
    fs::rename(&near, near.with_extension("lost")).unwrap();
    let target = stage.target("restored");
    let into = target.display().to_string();
    let until = to_lsn(&lsn);
    let from = ["--repo", "container", "restore", "--target-dir", &into];
    done(&[&from[..], &until].concat());
    let restored = stage.start_restored(&target);
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
}

/// A configuration that begins so, with a directory, a bucket behind `endpoint` and a container.
fn three_tables(
    stage: &Stage,
    head: &str,
    (s3, endpoint): (&S3Server, &str),
    azure: &AzureServer,
) -> PathBuf {
    let keys = format!(
        "access_key_id = '{}'\nsecret_access_key = '{}'\n",
        s3.access_key(),
        s3.secret()
    );
    let of_bucket = credentials_file(&stage.cluster, "bucket", &keys);
    let of_container = credentials_file(&stage.cluster, "container", &azure_keys(azure));
    let spool = stage.cluster.create_dir("spool").unwrap();
    fs::set_permissions(&spool, fs::Permissions::from_mode(0o700)).unwrap();
    let text = format!(
        "{head}\nspool = '{}'\n[repositories.near]\nrepo = '{}'\n\
         [repositories.bucket]\nrepo = 's3://{}/far'\ns3-endpoint = '{endpoint}'\ns3-path-style = true\ncredentials = '{}'\n\
         [repositories.bucket.storage]\nallow_http = 'true'\nretry_seconds = '2'\n\
         [repositories.container]\nrepo = 'az://{}/far'\ncredentials = '{}'\n",
        spool.display(),
        stage.repository,
        s3.bucket(),
        of_bucket.display(),
        azure.container(),
        of_container.display()
    );
    let config = stage.cluster.create_dir("etc").unwrap();
    let config = config.join("pgstrata.toml");
    fs::write(&config, text).unwrap();
    stage.cluster.own(&config).unwrap();
    config
}

fn log(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    format!("{text}{}", String::from_utf8_lossy(&output.stdout))
}

/// A sealed cluster in a directory, a bucket behind a network that can break, and a container that is for reader "three"
/// alone.
struct Sealed {
    vault: Vault,
    config: PathBuf,
    network: Proxy,
    s3: S3Server,
    _azure: AzureServer,
}

impl Sealed {
    fn start() -> Self {
        let vault = Vault::on(builder(), Store::Directory);
        let (s3, azure) = (S3Server::start().unwrap(), AzureServer::start().unwrap());
        let network = Proxy::before(s3.endpoint()).unwrap();
        let identity = vault.identity("writer");
        let head = format!("cluster = 'vault'\nidentity = '{identity}'");
        let config = three_tables(&vault.stage, &head, (&s3, network.endpoint()), &azure);
        let sealed = Self {
            vault,
            config,
            network,
            s3,
            _azure: azure,
        };
        let (three, writer) = (
            sealed.vault.generate("three"),
            sealed.vault.recipient("writer"),
        );
        let copy = ["--repo", "near", "copy", "--to"];
        sealed.ends("writer", &[&copy[..], &["bucket"]].concat(), 0);
        let for_three = ["container", "--recipient", &three, "--writer", &writer];
        sealed.ends("one", &[&copy[..], &for_three].concat(), 0);
        let stage = &sealed.vault.stage;
        let (program, config) = (stage.program.display(), sealed.config.display());
        let archive = format!("{program} --config {config} archive-push %p");
        let set = stage.cluster.append_conf("archive_command", &archive);
        set.unwrap();
        stage.cluster.reload().unwrap();
        sealed
    }

    /// Runs a command of somebody that ends with that code; answers standard output and standard error.
    fn ends(&self, who: &str, words: &[&str], code: i32) -> (String, String) {
        let mut command = self.vault.command(who, words);
        command.env_remove("PGSTRATA_REPO");
        command.env("PGSTRATA_CONFIG", &self.config);
        ended(command.output().unwrap(), &format!("{who} {words:?}"), code)
    }

    /// Takes a backup; answers its label, and what became of it in each repository.
    fn backup(&self, kind: &str, code: i32) -> (String, Vec<String>) {
        let pgdata = self.vault.stage.pgdata();
        let words = ["--output", "json", "backup", "-D", &pgdata, "--type", kind];
        let stream = ["--wal", "stream"];
        let (made, _) = self.ends("writer", &[&words[..], &stream].concat(), code);
        let made = schema::document(&made);
        let states = made["repositories"].as_array().unwrap().iter();
        let states = states.map(|one| text(one, "/state").to_owned());
        (text(&made, "/label").to_owned(), states.collect())
    }

    /// The directory with the objects of the cluster in a directory or in the bucket.
    fn objects(&self, name: &str) -> PathBuf {
        match name {
            "bucket" => self.s3.bucket_dir().join("far/vault"),
            _ => self.vault.stage.objects().join("vault"),
        }
    }

    /// Restores from whichever repository has all of it, and compares; answers what was said.
    fn restores(&self, who: &str, (lsn, dump): &(String, String)) -> String {
        let stage = &self.vault.stage;
        let target = stage.target(&format!("by-{who}"));
        let into = target.display().to_string();
        let words = ["restore", "--target-dir", &into, "--target-type", "lsn"];
        let until = ["--target", lsn, "--target-action", "promote"];
        let (_, log) = self.ends(who, &[&words[..], &until].concat(), 0);
        let restored = stage.start_restored(&target);
        require_same_dump(dump, &restored.dump().unwrap()).unwrap();
        log
    }
}

#[test]
fn a_sealed_cluster_in_three_stores_outlives_what_befalls_two_of_them() {
    let sealed = Sealed::start();
    let stage = &sealed.vault.stage;
    let (_, states) = sealed.backup("full", 0);
    assert_eq!(states, ["stored", "copied", "copied"]);
    let table = "CREATE TABLE more AS SELECT g, repeat(md5(random()::text), 60) AS s FROM generate_series(1, 20000) g";
    stage.cluster.sql("postgres", table).unwrap();
    sealed.network.cut_after(1_000_000);
    let (late, states) = sealed.backup("incr", WARNINGS);
    assert_eq!(states, ["stored", "failed", "copied"]);
    let manifest = format!("layer/{late}/manifest");
    assert!(!sealed.objects("bucket").join(&manifest).exists());
    sealed.network.clear();
    stage.archive_all();
    let change = "UPDATE more SET g = g + 1 WHERE g % 10 = 0";
    stage.cluster.sql("postgres", change).unwrap();
    let (newest, states) = sealed.backup("incr", 0);
    assert_eq!(states, ["stored", "copied", "copied"]);
    assert!(sealed.objects("bucket").join(&manifest).exists());
    let moment = stage.moment();
    two_of_three_are_a_quorum(&sealed);

    // The first loses a layer. Recovery asks all three where the archive ends, so who restores opens all three.
    for entry in fs::read_dir(sealed.objects("near").join(format!("layer/{newest}"))).unwrap() {
        let path = entry.unwrap().path();
        if path.display().to_string().contains("/pack-") {
            files::flip(&path, |length| length / 2);
        }
    }
    let both = ["one", "three"].map(|who| fs::read_to_string(sealed.vault.identity(who)).unwrap());
    let file = PathBuf::from(sealed.vault.identity("both"));
    fs::write(&file, both.concat()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    stage.cluster.own(&file).unwrap();
    let log = sealed.restores("both", &moment);
    let says = "repository near cannot be restored from";
    assert!(log.contains(says), "{log}");
    let second = "restoring out of repository bucket";
    assert!(
        log.contains(second) && !log.contains("repository container"),
        "{log}"
    );
    let deep = ["--repo", "container", "verify", "--deep"];
    sealed.ends("three", &deep, 0);
    sealed.ends("one", &deep, REFUSED);
}

/// A segment counts as archived when two have it, if that is asked for; the third gets it with the next copy.
fn two_of_three_are_a_quorum(sealed: &Sealed) {
    let stage = &sealed.vault.stage;
    let last = "SELECT last_archived_wal FROM pg_stat_archiver";
    let name = stage.cluster.sql("postgres", last).unwrap();
    let file = stage.target(&name).display().to_string();
    let get = ["archive-get", "--fetch-ahead", "0", &name, &file];
    sealed.ends("one", &get, 0);
    let [near, bucket] = ["near", "bucket"].map(|at| {
        let object = sealed.objects(at).join(format!("wal/00000001/{name}"));
        fs::remove_file(&object).unwrap();
        object
    });
    sealed.network.cut_after(1);
    let push = ["archive-push", "--push-ahead", "0", &file];
    let by = |quorum| [&push[..], &["--quorum", quorum]].concat();
    sealed.ends("writer", &push, UNREACHABLE);
    sealed.ends("writer", &by("3"), UNREACHABLE);
    fs::remove_file(&near).unwrap();
    sealed.ends("writer", &by("2"), 0);
    assert!(near.exists() && !bucket.exists());
    sealed.ends("writer", &by("4"), USAGE);
    sealed.network.clear();
    sealed.ends("writer", &["--repo", "near", "copy", "--to", "bucket"], 0);
    assert!(bucket.exists());
}
