//! A repository in a container of Azure Blob Storage: everything that a repository is for.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use pgstrata_testbed::azure::AzureServer;
use pgstrata_testbed::cluster::{Builder, Cluster, Major, require_same_dump};
use pgstrata_testbed::s3::S3Server;
use serde_json::Value;
use support::{Stage, Store, azure_keys, credentials_file, schema, text};

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

/// Rights to read, list and create, without those to delete and to overwrite, are enough for the host of a database.
#[test]
fn a_signature_without_deletion_is_enough_for_the_host_of_the_database() {
    let stage = Stage::silent(builder(), Store::Azure);
    let azure = stage.azure();
    let writer = format!(
        "account_name = '{}'\nendpoint = '{}'\nsas_key = '{}'\n",
        azure.account(),
        azure.endpoint(),
        azure.shared_access("rcl", LATER)
    );
    fs::write(stage.credentials(), &writer).unwrap();
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
    let config = three_tables(&stage, &s3, &azure);
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
    let until = [
        "--target-type",
        "lsn",
        "--target",
        &lsn,
        "--target-action",
        "promote",
    ];
    let from = ["--repo", "container", "restore", "--target-dir", &into];
    done(&[&from[..], &until].concat());
    let restored = stage.start_restored(&target);
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
}

/// A configuration with a directory, a bucket and a container.
fn three_tables(stage: &Stage, s3: &S3Server, azure: &AzureServer) -> PathBuf {
    let keys = format!(
        "access_key_id = '{}'\nsecret_access_key = '{}'\n",
        s3.access_key(),
        s3.secret()
    );
    let of_bucket = credentials_file(&stage.cluster, "bucket", &keys);
    let of_container = credentials_file(&stage.cluster, "container", &azure_keys(azure));
    let spool = stage.cluster.create_dir("spool").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(&spool, mode).unwrap();
    let text = format!(
        "cluster = 'main'\nspool = '{}'\n[repositories.near]\nrepo = '{}'\n\
         [repositories.bucket]\nrepo = 's3://{}/far'\ns3-endpoint = '{}'\ns3-path-style = true\ncredentials = '{}'\n\
         [repositories.container]\nrepo = 'az://{}/far'\ncredentials = '{}'\n",
        spool.display(),
        stage.repository,
        s3.bucket(),
        s3.endpoint(),
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
