//! A server that `pg_rewind` has put onto the history of its promoted standby: no server wrote what it copied, so the next
//! backup compares pages, and the one after it is fast again. Both restore to what the server holds.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use pgstrata_testbed::cluster::{Adoption, Builder, Cluster, Major, StopMode};
use serde_json::Value;
use support::past::{
    backup, branch, go_past, label, require_restores, require_source, sql, stage, summarizing,
    tracked,
};
use support::standby::{backup_of, catch_up};
use support::{ANOTHER_SERVER, PATIENCE, Stage, text};

const ON_ANOTHER_TIMELINE: &str = "is not part of the history of timeline 2";

/// `pg_rewind` reads the WAL since the fork.
fn keeping(builder: Builder) -> Builder {
    builder.conf("wal_keep_size", "1GB")
}

/// The same for a server that has the tracker.
fn tracked_and_keeping(scene: impl FnOnce(&Stage)) {
    tracked(|stage| {
        stage.cluster.append_conf("wal_keep_size", "1GB").unwrap();
        stage.cluster.reload().unwrap();
        scene(stage);
    });
}

/// A copy of the stage's server that follows it, with all files that are in the directory.
fn copy_that_follows(stage: &Stage) -> Adoption {
    let target = stage.target("standby");
    let directory = target.display().to_string();
    let copy = ["-D", &directory, "-R", "-c", "fast", "--no-sync"];
    stage.cluster.run("pg_basebackup", &copy).unwrap();
    Cluster::adopt(stage.cluster.major(), &target).bindir(stage.cluster.bindir())
}

/// Changes pages of its own, and pages that the branch changes, too.
fn promote_and_work(other: &Cluster) {
    other.promote().unwrap();
    // `pg_rewind` of 15 finds the new timeline by the checkpoint.
    let work =
        "CHECKPOINT; UPDATE old SET state = 2 WHERE id % 5 = 0; INSERT INTO new VALUES (1, 'kept')";
    other.sql("postgres", work).unwrap();
}

/// Puts the stage's server onto the other's history, and starts it.
fn rewind(stage: &Stage, other: &Cluster, options: &[&str]) {
    stage.cluster.stop(StopMode::Fast).unwrap();
    let (pgdata, source) = (stage.pgdata(), other.conninfo("postgres"));
    let from = ["--target-pgdata", &pgdata, "--source-server", &source];
    let rewind = [&from[..], &["--no-sync"], options].concat();
    stage.cluster.run("pg_rewind", &rewind).unwrap();
    stage.cluster.start().unwrap();
}

/// The next backup compares, and says why, once; answers what it said.
fn require_compared_because(stage: &Stage, parent: &str, why: &str) -> Value {
    let (layer, log) = backup(stage, &[]);
    assert_eq!(text(&layer, "/parent"), parent);
    require_source(&layer, "digest");
    let reason = text(&layer, "/change_source/reason");
    assert!(reason.contains(why), "{reason}");
    let said = |line: &&str| line.contains("WARN") && line.contains("found by digest: ");
    assert_eq!(log.lines().filter(said).count(), 1, "{log}");
    require_restores(stage, "rewound");
    layer
}

/// The next backup is fast again, and restores.
fn require_fast_again(stage: &Stage, source: &str) {
    sql(stage, "UPDATE old SET state = 4 WHERE id % 11 = 0");
    go_past(stage);
    require_source(&backup(stage, &[]).0, source);
    require_restores(stage, "at-last");
}

/// A chain that ends on the branch that is rewound; answers its full layer, and the other server.
fn fork(stage: &Stage, source: &str) -> (String, Cluster) {
    let full = label(&stage.backup(&["--type", "full"]));
    sql(stage, "UPDATE old SET state = 9 WHERE id % 7 = 0");
    let (before, _) = backup(stage, &["--type", "incr"]);
    require_source(&before, source);
    let other = copy_that_follows(stage).start().unwrap();
    promote_and_work(&other);
    branch(stage);
    (full, other)
}

/// The old primary follows its standby, and is promoted after that.
fn what_pg_rewind_copied_is_not_missed(stage: &Stage, source: &str) {
    let (full, other) = fork(stage, source);
    let (lost, _) = backup(stage, &["--type", "incr"]);
    require_source(&lost, source);
    rewind(stage, &other, &["--write-recovery-conf"]);
    let end = other
        .sql("postgres", "SELECT pg_current_wal_lsn()")
        .unwrap();
    let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn");
    stage
        .cluster
        .wait_for("postgres", &replayed, PATIENCE)
        .unwrap();
    // The lineage file came back from the copy, with the layers from before it.
    let plan = stage.backup(&["--dry-run", "--type", "diff"]);
    assert_eq!(text(&plan, "/parent"), full);
    require_source(&plan, "digest");
    let reason = text(&plan, "/change_source/reason");
    assert!(reason.contains("the server was started since"), "{reason}");
    require_compared_because(stage, &label(&lost), ON_ANOTHER_TIMELINE);
    other.stop(StopMode::Fast).unwrap();
    stage.cluster.promote().unwrap();
    require_fast_again(stage, source);
}

#[test]
fn what_pg_rewind_copied_is_not_missed_by_lsns() {
    let stage = stage(keeping(Cluster::builder(Major::V15)));
    what_pg_rewind_copied_is_not_missed(&stage, "lsn");
}

#[test]
fn what_pg_rewind_copied_is_not_missed_by_the_tracker() {
    tracked_and_keeping(|stage| what_pg_rewind_copied_is_not_missed(stage, "tracker"));
}

/// The new primary has been backed up since, and the old one goes on with its timeline instead of following it.
#[test]
fn a_layer_of_the_new_primary_is_compared_by_the_old_one() {
    let stage = stage(keeping(summarizing(Major::V18)));
    let (_, other) = fork(&stage, "summary");
    let all = backup_of(&other, &[]);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let newest = stage.json(&all);
    assert_eq!(newest["timeline"], 2);
    rewind(&stage, &other, &[]);
    stage.cluster.wait_promoted(PATIENCE).unwrap();
    let why = "the data directory is a copy";
    let layer = require_compared_because(&stage, &label(&newest), why);
    let warning = text(&layer, "/warnings/0");
    assert!(warning.contains(ANOTHER_SERVER), "{warning}");
    require_fast_again(&stage, "summary");
}

/// The standby has no tracker, so the copy of the old primary's map stays as it was, and comes back together with a
/// control file that names a checkpoint on the map's record. It is void because `pg_rewind` removes `postmaster.opts`.
#[test]
fn a_map_that_pg_rewind_brought_back_is_not_believed() {
    tracked_and_keeping(|stage| {
        let full = label(&stage.backup(&["--type", "full", "--require-tracker"]));
        // So that the copy's checkpoint syncs files, and is on the map's record at once.
        sql(stage, "UPDATE old SET state = 9 WHERE id > 19000");
        let other = copy_that_follows(stage)
            .conf("shared_preload_libraries", "")
            // Its last restartpoint stays the one with which it began, and its next checkpoint takes half a minute.
            .conf("checkpoint_timeout", "1h")
            .conf("bgwriter_lru_maxpages", "0")
            .start()
            .unwrap();
        sql(
            stage,
            "UPDATE old SET state = 1 WHERE id < 5000; CHECKPOINT",
        );
        sql(stage, "INSERT INTO new VALUES (2, 'both')");
        catch_up(stage, &other);
        other.promote().unwrap();
        let kept = "INSERT INTO new VALUES (1, 'kept')";
        other.sql("postgres", kept).unwrap();
        sql(stage, "INSERT INTO new VALUES (3, 'lost')");
        let checkpoint = "SELECT timeline_id FROM pg_control_checkpoint()";
        assert_eq!(other.sql("postgres", checkpoint).unwrap(), "1");
        rewind(stage, &other, &[]);
        let why = "because the server ran without pgstrata, or the data directory was copied";
        require_compared_because(stage, &full, why);
        require_fast_again(stage, "tracker");
    });
}

/// `pg_rewind` writes a `backup_label` of its own, which has less in it than a backup's.
#[test]
fn a_rewound_server_recovers_with_what_archive_get_gives_it() {
    let builder = keeping(Cluster::builder(Major::V15)).conf("archive_mode", "on");
    let stage = stage(builder);
    stage.begin_archiving();
    let get = format!(
        "{} --repo {} --cluster main archive-get %f %p",
        stage.program.display(),
        stage.repository
    );
    stage.cluster.append_conf("restore_command", &get).unwrap();
    let other = copy_that_follows(&stage).start().unwrap();
    sql(&stage, "SELECT pg_switch_wal()");
    // The last checkpoint that both have, from which the rewound server recovers.
    sql(&stage, "CHECKPOINT");
    sql(&stage, "CREATE UNLOGGED TABLE scratch (i int)");
    catch_up(&stage, &other);
    promote_and_work(&other);
    let on_other = |query: &str| other.sql("postgres", query).unwrap();
    let end = on_other("SELECT pg_switch_wal()");
    let archived = format!(
        "SELECT coalesce(last_archived_wal >= pg_walfile_name('{end}'::pg_lsn - 1), false) FROM pg_stat_archiver"
    );
    other.wait_for("postgres", &archived, PATIENCE).unwrap();
    branch(&stage);
    rewind(&stage, &other, &["--write-recovery-conf"]);
    let log = stage.cluster.log_tail(100);
    assert!(log.contains("restored log file \"0000000200000"), "{log}");
    other.stop(StopMode::Fast).unwrap();
    stage.cluster.promote().unwrap();
    sql(&stage, "INSERT INTO scratch VALUES (7)");
    assert_eq!(sql(&stage, "SELECT i FROM scratch"), "7");
    assert_eq!(sql(&stage, "SELECT pad FROM new WHERE id = 1"), "kept");
}
