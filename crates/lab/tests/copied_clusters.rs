//! Arms that are copies of somebody's stopped cluster: whatever its files say, it stays as it was.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails says where"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use pgstrata_lab::measure::result::Experiment;
use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use support::{Lab, said, text};

const PATIENCE: Duration = Duration::from_secs(60);

/// One short run on a copy.
fn measure(lab: &Lab, pgdata: &Path) -> Output {
    let bindir = Major::V15.bindir().unwrap();
    let (bindir, pgdata) = (bindir.display(), pgdata.display());
    let arm = format!("one:bindir={bindir},pgdata={pgdata}");
    let out = lab.out();
    let mut words = vec!["run", "--arm", &arm, "--repeat", "1", "--state", "restore"];
    words.extend(["-T", "1", "--warmup", "0", "--settle", "0s", "-s", "1"]);
    words.extend(["--out", out.to_str().unwrap()]);
    lab.run(&words)
}

fn require_measured(lab: &Lab, pgdata: &Path) {
    let output = measure(lab, pgdata);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

fn require_refused(lab: &Lab, pgdata: &Path, reason: &str) {
    let output = measure(lab, pgdata);
    assert_ne!(output.status.code(), Some(0), "{}", said(&output));
    let told = text(&output.stderr);
    assert!(told.contains(reason), "{told}");
}

/// What lies below a directory, also behind links.
fn contents_of(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut contents = BTreeMap::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            pending.extend(entries.map(|entry| entry.unwrap().path()));
        } else {
            let bytes = fs::read(&path).unwrap();
            contents.insert(path, bytes);
        }
    }
    contents
}

/// Meanwhile no file of the cluster comes, goes or changes.
fn require_untouched(cluster: &Cluster, act: impl FnOnce()) {
    let before = contents_of(cluster.pgdata());
    act();
    let after = contents_of(cluster.pgdata());
    let paths = before.keys().chain(after.keys());
    let touched: BTreeSet<&PathBuf> = paths
        .filter(|path| before.get(*path) != after.get(*path))
        .collect();
    assert!(touched.is_empty(), "{touched:?}");
}

#[test]
fn a_copy_of_a_cluster_is_not_the_cluster() {
    let lab = Lab::new();
    let archived = lab.scratch.path().join("archived");
    let archive = format!("touch {}", archived.display());
    fs::set_permissions(lab.scratch.path(), Permissions::from_mode(0o777)).unwrap();
    let cluster = Cluster::builder(Major::V15)
        .conf("archive_mode", "on")
        .start()
        .unwrap();
    let setting = format!("ALTER SYSTEM SET archive_command = '{archive}'");
    cluster.sql("postgres", &setting).unwrap();
    cluster.stop(StopMode::Fast).unwrap();
    let link = lab.scratch.path().join("link");
    symlink(cluster.pgdata(), &link).unwrap();
    let _ = fs::remove_file(&archived);
    require_untouched(&cluster, || require_measured(&lab, &link));
    assert!(!archived.exists());
}

#[test]
fn a_cluster_with_a_link_in_it_is_not_copied() {
    let lab = Lab::new();
    let cluster = Cluster::builder(Major::V15).create().unwrap();
    let elsewhere = cluster.socket_dir().join("elsewhere");
    for name in [
        "pg_wal",
        "postgresql.conf",
        "postgresql.auto.conf",
        "base",
        "base/1",
    ] {
        let path = cluster.pgdata().join(name);
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        let reason = format!("{name}\" is a symbolic link");
        require_untouched(&cluster, || {
            require_refused(&lab, cluster.pgdata(), &reason);
        });
        fs::remove_file(&path).unwrap();
        fs::rename(&elsewhere, &path).unwrap();
    }
}

#[test]
fn a_cluster_in_recovery_is_not_copied() {
    let lab = Lab::new();
    let cluster = Cluster::builder(Major::V15).create().unwrap();
    for name in ["standby.signal", "recovery.signal", "tablespace_map"] {
        let path = cluster.pgdata().join(name);
        fs::write(&path, "").unwrap();
        require_refused(&lab, cluster.pgdata(), &format!("it has a {name}"));
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_copy_of_a_subscriber_takes_nothing_from_its_publisher() {
    let lab = Lab::new();
    let publisher = Cluster::builder(Major::V15)
        .conf("wal_level", "logical")
        .start()
        .unwrap();
    let subscriber = Cluster::builder(Major::V15).start().unwrap();
    for server in [&publisher, &subscriber] {
        let table = "CREATE TABLE news (id int PRIMARY KEY)";
        server.sql("postgres", table).unwrap();
    }
    let publish = "CREATE PUBLICATION paper FOR TABLE news";
    publisher.sql("postgres", publish).unwrap();
    let subscribe = format!(
        "CREATE SUBSCRIPTION reader CONNECTION '{}' PUBLICATION paper",
        publisher.conninfo("postgres")
    );
    subscriber.sql("postgres", &subscribe).unwrap();
    let follows = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel";
    subscriber.wait_for("postgres", follows, PATIENCE).unwrap();
    subscriber.stop(StopMode::Fast).unwrap();

    let insert = "INSERT INTO news VALUES (1)";
    publisher.sql("postgres", insert).unwrap();
    require_measured(&lab, subscriber.pgdata());
    subscriber.start().unwrap();
    let arrived = "SELECT count(*) = 1 FROM news";
    subscriber.wait_for("postgres", arrived, PATIENCE).unwrap();
}

#[test]
fn no_setting_of_a_cluster_leads_its_copy_to_the_original() {
    let lab = Lab::new();
    let pid_file = lab.scratch.path().join("pid");
    fs::write(&pid_file, "somebody's").unwrap();
    for (path, mode) in [(lab.scratch.path(), 0o777), (pid_file.as_path(), 0o666)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let cluster = Cluster::builder(Major::V15).create().unwrap();
    for (name, value) in [
        ("data_directory", cluster.pgdata().to_str().unwrap()),
        ("external_pid_file", pid_file.to_str().unwrap()),
        ("synchronous_standby_names", "nobody"),
        // So that a copy would end that waits for a standby.
        ("synchronous_commit", "local"),
    ] {
        cluster.append_conf(name, value).unwrap();
    }
    require_untouched(&cluster, || require_measured(&lab, cluster.pgdata()));
    assert_eq!(fs::read_to_string(&pid_file).unwrap(), "somebody's");
    let experiment = Experiment::load(&lab.out()).unwrap();
    let environment = experiment.arms[0].environment.as_ref().unwrap();
    let of_the_copy = |name: &str| environment.settings[name].value.as_str();
    assert_eq!(of_the_copy("synchronous_standby_names"), "");
    assert_eq!(of_the_copy("synchronous_commit"), "local");
}
