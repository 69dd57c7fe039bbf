//! What a backup of a standby needs from its primary.

use std::path::Path;

use pgstrata_testbed::cluster::{Background, Cluster};

use super::{PATIENCE, Stage};

/// A standby's segments are finished by its primary: it finishes one after the other, until the
/// value is dropped.
pub fn switch_wal_all_the_time(stage: &Stage) -> Background {
    let mut shell = stage.cluster.command_as_server_user(Path::new("/bin/sh"));
    let script = r#"while "$0" -XAtq -c 'SELECT pg_switch_wal()' >/dev/null; do sleep 0.3; done"#;
    shell
        .args(["-c", script])
        .arg(stage.cluster.bindir().join("psql"));
    stage.cluster.background(shell).unwrap()
}

/// Makes the standby's last restartpoint one of now.
pub fn restartpoint(stage: &Stage, standby: &Cluster) {
    stage.cluster.sql("postgres", "CHECKPOINT").unwrap();
    let query = "SELECT redo_lsn FROM pg_control_checkpoint()";
    let redo = stage.cluster.sql("postgres", query).unwrap();
    let query = "SELECT checkpoint_lsn FROM pg_control_checkpoint()";
    let checkpoint = stage.cluster.sql("postgres", query).unwrap();
    let replayed = format!("SELECT pg_last_wal_replay_lsn() > '{checkpoint}'::pg_lsn");
    standby.wait_for("postgres", &replayed, PATIENCE).unwrap();
    standby.sql("postgres", "CHECKPOINT").unwrap();
    let taken = format!("SELECT redo_lsn >= '{redo}'::pg_lsn FROM pg_control_checkpoint()");
    standby.wait_for("postgres", &taken, PATIENCE).unwrap();
}

/// A standby of the stage's server, made from a new full backup, that follows it by `conninfo`.
pub fn standby_of(stage: &Stage, conninfo: &str) -> Cluster {
    stage.backup(&["--type", "full"]);
    let directory = stage.restore("standby", &["--target-type", "standby"]);
    let standby = follow(stage, &directory, conninfo);
    stage.archive_all();
    catch_up(stage, &standby);
    standby
}

/// Starts what was restored as a standby of the stage's server, which it follows by `conninfo`.
pub fn follow(stage: &Stage, directory: &Path, conninfo: &str) -> Cluster {
    Cluster::adopt(stage.cluster.major(), directory)
        .conf("primary_conninfo", conninfo)
        .start()
        .unwrap()
}

/// Waits until the standby has replayed all that the primary has written.
pub fn catch_up(stage: &Stage, standby: &Cluster) {
    let query = "SELECT pg_current_wal_lsn()";
    let end = stage.cluster.sql("postgres", query).unwrap();
    let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn");
    standby.wait_for("postgres", &replayed, PATIENCE).unwrap();
}

/// The words that back up a standby.
pub fn backup_of(standby: &Cluster, more: &[&str]) -> Vec<String> {
    let (pgdata, conninfo) = (
        standby.pgdata().display().to_string(),
        standby.conninfo("postgres"),
    );
    let mut all = vec!["backup".to_owned(), "-D".to_owned(), pgdata];
    all.extend(["-d".to_owned(), conninfo]);
    all.extend(more.iter().map(|&word| word.to_owned()));
    all
}
