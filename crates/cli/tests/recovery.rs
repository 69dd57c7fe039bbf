//! Recovery to every kind of target, along timelines, as a standby, and through an outage of the
//! repository.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Cluster, Major, StopMode, require_same_dump};
use support::standby::{follow, restartpoint, switch_wal_all_the_time};
use support::{PATIENCE, Stage, Store, text};

const ROWS: &str = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM numbers";

/// Starts what was restored, waits for its promotion and says which rows there are.
fn rows(stage: &Stage, target: &Path) -> String {
    let restored = stage.start_restored(target);
    restored.sql("postgres", ROWS).unwrap()
}

fn insert(cluster: &Cluster, id: u32) {
    let statement = format!("INSERT INTO numbers VALUES ({id})");
    cluster.sql("postgres", &statement).unwrap();
}

/// Points of the source's life, between which numbers were inserted.
struct Life {
    full: String,
    incremental: String,
    after_one: String,
    transaction_two: String,
    /// Where the commit record of the fifth transaction begins.
    commit_of_five: String,
}

fn live(stage: &Stage) -> Life {
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE numbers (id int)");
    let full = stage.backup(&["--type", "full"]);
    insert(&stage.cluster, 1);
    let after_one = sql("SELECT pg_sleep(0.05)::text || clock_timestamp()");
    sql("SELECT pg_sleep(0.05)");
    let transaction_two =
        sql("BEGIN; INSERT INTO numbers VALUES (2); SELECT pg_current_xact_id(); COMMIT");
    insert(&stage.cluster, 3);
    sql("SELECT pg_create_restore_point('after three')");
    insert(&stage.cluster, 4);
    let commit_of_five =
        sql("BEGIN; INSERT INTO numbers VALUES (5); SELECT pg_current_wal_insert_lsn(); COMMIT");
    let incremental = stage.backup(&["--type", "incr", "--change-source", "lsn"]);
    assert_eq!(text(&incremental, "/change_source/used"), "lsn");
    insert(&stage.cluster, 6);
    insert(&stage.cluster, 7);
    stage.archive_all();
    Life {
        full: text(&full, "/label").to_owned(),
        incremental: text(&incremental, "/label").to_owned(),
        after_one,
        transaction_two,
        commit_of_five,
    }
}

fn recovery_stops_where_it_is_told(major: Major) {
    let builder = Cluster::builder(major).conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    let life = live(&stage);
    let (full, incremental) = (life.full.as_str(), life.incremental.as_str());
    let (five, two) = (life.commit_of_five.as_str(), life.transaction_two.as_str());
    // What is asked for, the layer that must be chosen, the rows that must be there.
    let cases: [(&str, &[&str], &str, &str); 8] = [
        ("time", &["--target", &life.after_one], full, "1"),
        ("xid", &[full, "--target", two], full, "1 2"),
        (
            "xid",
            &[full, "--target", two, "--target-exclusive"],
            full,
            "1",
        ),
        ("name", &[full, "--target", "after three"], full, "1 2 3"),
        ("lsn", &["--target", five], full, "1 2 3 4 5"),
        (
            "lsn",
            &["--target", five, "--target-exclusive"],
            full,
            "1 2 3 4",
        ),
        ("immediate", &[], incremental, "1 2 3 4 5"),
        ("default", &[], incremental, "1 2 3 4 5 6 7"),
    ];
    for (nth, (kind, arguments, layer, expected)) in cases.into_iter().enumerate() {
        let name = format!("restored-{nth}");
        let directory = stage.target(&name).display().to_string();
        let mut all = vec!["restore", "--target-dir", &directory, "--target-type", kind];
        all.extend(["--target-action", "promote"]);
        all.extend(arguments);
        let mut planned = all.clone();
        planned.push("--dry-run");
        let plan = stage.json(&planned);
        assert_eq!(text(&plan, "/label"), layer, "{kind} {arguments:?}");
        assert!(!stage.target(&name).exists(), "a plan wrote something");
        stage.ok(&all);
        let found = rows(&stage, &stage.target(&name));
        assert_eq!(found, expected, "{kind} {arguments:?}");
    }
    the_server_does_at_the_target_what_it_is_told(&stage, &life);
    a_layer_after_the_target_is_refused(&stage, &life);
    without_recovery_the_backup_itself_is_opened(&stage);
}

fn the_server_does_at_the_target_what_it_is_told(stage: &Stage, life: &Life) {
    let target = ["--target-type", "lsn", "--target", &life.commit_of_five];
    let paused = stage.target("paused");
    let directory = paused.display().to_string();
    let restore = [&["restore", "--target-dir", &directory][..], &target].concat();
    let said = stage.ok(&restore);
    assert!(said.contains("pg_wal_replay_resume()"), "{said}");
    let paused = Cluster::adopt(stage.cluster.major(), &paused)
        .conf("archive_mode", "off")
        .start()
        .unwrap();
    paused.wait_paused(PATIENCE).unwrap();
    assert_eq!(paused.sql("postgres", ROWS).unwrap(), "1 2 3 4 5");
    paused
        .sql("postgres", "SELECT pg_wal_replay_resume()")
        .unwrap();
    paused.wait_promoted(PATIENCE).unwrap();

    let stopped = stage.target("stopped");
    let directory = stopped.display().to_string();
    let restore = [&["restore", "--target-dir", &directory][..], &target].concat();
    let said = stage.ok(&[&restore[..], &["--target-action", "shutdown"]].concat());
    assert!(said.contains("will shut down at the target"), "{said}");
    let stopped = Cluster::adopt(stage.cluster.major(), &stopped)
        .prepare()
        .unwrap();
    // Whether that is a failure to start is a matter of opinion among versions.
    let _ = stopped.start();
    let deadline = Instant::now() + PATIENCE;
    while !stopped.log_tail(5).contains("database system is shut down") {
        assert!(Instant::now() < deadline, "{}", stopped.log_tail(5));
        thread::sleep(Duration::from_millis(50));
    }
    let log = fs::read_to_string(stopped.log()).unwrap();
    assert!(log.contains("shutdown at recovery target"), "{log}");
}

fn a_layer_after_the_target_is_refused(stage: &Stage, life: &Life) {
    let directory = stage.target("refused").display().to_string();
    let (code, log) = stage.fails(&[
        "restore",
        &life.incremental,
        "--target-dir",
        &directory,
        "--target-type",
        "lsn",
        "--target",
        &life.commit_of_five,
    ]);
    assert_eq!(code, 19, "{log}");
    assert!(
        log.contains(&life.incremental) && log.contains("Leave the label out"),
        "{log}"
    );
    assert!(!Path::new(&directory).exists());
}

/// `--target-type none`: the WAL of the backup lies in `pg_wal`, the timeline goes on, nothing is archived.
fn without_recovery_the_backup_itself_is_opened(stage: &Stage) {
    let target = stage.restore("alone", &["--target-type", "none", "--same-timeline"]);
    assert!(!target.join("recovery.signal").exists());
    let alone = Cluster::adopt(stage.cluster.major(), &target)
        .start()
        .unwrap();
    assert_eq!(alone.sql("postgres", ROWS).unwrap(), "1 2 3 4 5");
    let facts = "SELECT current_setting('archive_mode'), timeline_id FROM pg_control_checkpoint()";
    assert_eq!(alone.sql("postgres", facts).unwrap(), "off|1");
}

#[test]
fn recovery_stops_where_it_is_told_on_15() {
    recovery_stops_where_it_is_told(Major::V15);
}

#[test]
fn recovery_stops_where_it_is_told_on_18() {
    recovery_stops_where_it_is_told(Major::V18);
}

/// What the source waits for is none of the copy's: a delay of replay, a standby that confirms.
fn a_copy_does_not_wait_as_its_source_does(major: Major) {
    let builder = Cluster::builder(major).conf("recovery_min_apply_delay", "1h");
    let stage = Stage::archiving(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE numbers (id int)");
    let conf = &stage.cluster;
    conf.append_conf("synchronous_standby_names", "*").unwrap();
    conf.reload().unwrap();
    stage.backup(&["--type", "full"]);
    sql("SET synchronous_commit = local; INSERT INTO numbers VALUES (1)");
    stage.archive_all();
    let until = ["--target-action", "promote"];
    let target = stage.restore("copy", &until);
    let copy = Cluster::adopt(major, &target).start().unwrap();
    copy.wait_promoted(PATIENCE).unwrap();
    let began = Instant::now();
    copy.sql(
        "postgres",
        "SET statement_timeout = '60s'; INSERT INTO numbers VALUES (2)",
    )
    .unwrap();
    assert!(began.elapsed() < Duration::from_secs(30), "a commit waits");
    assert_eq!(copy.sql("postgres", ROWS).unwrap(), "1 2");
    let setting = "SELECT current_setting('max_logical_replication_workers')";
    assert_eq!(copy.sql("postgres", setting).unwrap(), "0");
    copy.stop(StopMode::Fast).unwrap();

    let target = stage.restore("alone", &["--target-type", "none", "--same-timeline"]);
    let alone = Cluster::adopt(major, &target).start().unwrap();
    let began = Instant::now();
    alone
        .sql(
            "postgres",
            "SET statement_timeout = '60s'; INSERT INTO numbers VALUES (3)",
        )
        .unwrap();
    assert!(began.elapsed() < Duration::from_secs(30), "a commit waits");
    alone.stop(StopMode::Fast).unwrap();

    // A standby is to be as late as it is told.
    let standby = stage.restore("standby", &["--target-type", "standby"]);
    let standby = Cluster::adopt(major, &standby).start().unwrap();
    let settings = "SELECT current_setting('recovery_min_apply_delay'), current_setting('synchronous_standby_names')";
    assert_eq!(standby.sql("postgres", settings).unwrap(), "1h|*");
}

#[test]
fn a_copy_does_not_wait_as_its_source_does_on_15() {
    a_copy_does_not_wait_as_its_source_does(Major::V15);
}

#[test]
fn a_copy_does_not_wait_as_its_source_does_on_18() {
    a_copy_does_not_wait_as_its_source_does(Major::V18);
}

/// A copy that was promoted goes on beside its source, both into one archive.
#[test]
fn rule_3_recovery_follows_the_timeline_it_is_told() {
    let builder = Cluster::builder(Major::V18)
        .initdb_arg("--wal-segsize=1")
        .conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    stage
        .cluster
        .sql("postgres", "CREATE TABLE numbers (id int)")
        .unwrap();
    let full = stage.backup(&["--type", "full"]);
    let full = text(&full, "/label");
    insert(&stage.cluster, 1);
    let query = "SELECT pg_create_restore_point('fork')";
    let fork = stage.cluster.sql("postgres", query).unwrap();
    insert(&stage.cluster, 2);
    stage.archive_all();
    let at_fork = ["--target-type", "lsn", "--target", &fork];
    let then = ["--target-action", "promote", "--archive-mode", "keep"];
    let copy = stage.restore("copy", &[&at_fork[..], &then].concat());
    let copy = Cluster::adopt(Major::V18, &copy).start().unwrap();
    copy.wait_promoted(PATIENCE).unwrap();
    insert(&copy, 100);
    // The parent's start and stop lie on the history of the new timeline; that of a restored directory is not proved.
    let pgdata = copy.pgdata().display().to_string();
    let conninfo = copy.conninfo("postgres");
    let on_copy = |arguments: &[&str]| {
        let mut all = vec!["backup", "-D", &pgdata, "-d", &conninfo];
        all.extend(arguments);
        stage.json(&all)
    };
    let layer = on_copy(&["--type", "incr", "--change-source", "lsn"]);
    assert_eq!(text(&layer, "/change_source/used"), "digest", "{layer:#}");
    assert_eq!(text(&layer, "/parent"), full);
    assert_eq!(layer["timeline"], 2);
    // From then on page LSNs tell.
    let layer = on_copy(&["--type", "incr", "--change-source", "lsn"]);
    assert_eq!(text(&layer, "/change_source/used"), "lsn", "{layer:#}");
    insert(&copy, 101);
    let switch = "SELECT pg_switch_wal()";
    copy.sql("postgres", switch).unwrap();
    let archived = "SELECT last_archived_wal >= pg_walfile_name(pg_current_wal_lsn() - 1) FROM pg_stat_archiver";
    copy.wait_for("postgres", archived, PATIENCE).unwrap();
    insert(&stage.cluster, 3);
    stage.archive_all();

    // Both went on, and nobody has said which one counts.
    let directory = stage.target("ambiguous").display().to_string();
    let (code, log) = stage.fails(&["restore", "--target-dir", &directory]);
    assert_eq!(code, 19, "{log}");
    let cases: [(&[&str], &str); 4] = [
        (&["--target-timeline", "2"], "1 100 101"),
        (&[full, "--target-timeline", "latest"], "1 100 101"),
        (&[full, "--target-timeline", "current"], "1 2 3"),
        (&["--target-timeline", "1"], "1 2 3"),
    ];
    for (nth, (arguments, expected)) in cases.into_iter().enumerate() {
        let target = stage.restore(&format!("restored-{nth}"), arguments);
        assert_eq!(rows(&stage, &target), expected, "{arguments:?}");
    }
    // The newest layer is none of the old timeline's: what changed since is not told by LSNs.
    let layer = stage.backup(&["--type", "incr", "--change-source", "lsn"]);
    assert_eq!(text(&layer, "/change_source/used"), "digest", "{layer:#}");
    let reason = text(&layer, "/change_source/reason");
    assert!(reason.contains("history"), "{reason}");
    let label = text(&layer, "/label").to_owned();
    let now = ["--target-type", "immediate"];
    let now = [&[label.as_str()][..], &now, &["--target-action", "promote"]].concat();
    assert_eq!(rows(&stage, &stage.restore("diverged", &now)), "1 2 3");

    rule_4_10_another_timeline_of_the_same_number_is_refused(&stage, &fork, full);
}

/// A second copy that saw nothing of the first promotes to the same number.
fn rule_4_10_another_timeline_of_the_same_number_is_refused(stage: &Stage, fork: &str, full: &str) {
    let recovery = [
        full,
        "--target-type",
        "lsn",
        "--target",
        fork,
        "--target-timeline",
        "1",
        "--target-action",
        "pause",
    ];
    let twin = stage.restore("twin", &recovery);
    let twin = Cluster::adopt(Major::V18, &twin)
        .conf("archive_mode", "off")
        .start()
        .unwrap();
    twin.wait_paused(PATIENCE).unwrap();
    // Out of the server's sight, so that it does not find that 2 is taken.
    let repository = Path::new(stage.repository.trim_start_matches("file://"));
    let history = repository.join("main/wal/00000002");
    let hidden = repository.join("hidden");
    fs::rename(&history, &hidden).unwrap();
    twin.sql("postgres", "SELECT pg_promote()").unwrap();
    twin.wait_promoted(PATIENCE).unwrap();
    fs::rename(&hidden, &history).unwrap();
    insert(&twin, 200);
    let timeline = "SELECT timeline_id FROM pg_control_checkpoint()";
    twin.sql("postgres", "CHECKPOINT").unwrap();
    assert_eq!(twin.sql("postgres", timeline).unwrap(), "2");
    let before = stage.layer_counts();
    let pgdata = twin.pgdata().display().to_string();
    let conninfo = twin.conninfo("postgres");
    let (code, log) = stage.fails(&["backup", "-D", &pgdata, "-d", &conninfo]);
    assert_eq!(code, 11, "{log}");
    assert!(log.contains("00000002"), "{log}");
    assert_eq!(stage.layer_counts(), before);
}

/// The repository is not reachable for a while: recovery stops instead of opening early.
#[test]
fn rule_7_an_outage_of_the_repository_stops_recovery_instead_of_ending_it() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage
        .cluster
        .sql("postgres", "CREATE TABLE numbers (id int)")
        .unwrap();
    stage.backup(&["--type", "full"]);
    for id in 1..=4 {
        insert(&stage.cluster, id);
        stage.archive_all();
    }
    stage.cluster.stop(StopMode::Fast).unwrap();
    let target = stage.restore("restored", &["--jobs", "1"]);
    let repository = Path::new(stage.repository.trim_start_matches("file://"));
    let away = repository.with_file_name("away");
    fs::rename(repository, &away).unwrap();
    let error = Cluster::adopt(Major::V15, &target).start();
    let error = format!("{:#}", error.err().unwrap());
    assert!(
        error.contains("could not restore file") && error.contains("exit code 255"),
        "{error}"
    );
    fs::rename(&away, repository).unwrap();
    assert_eq!(rows(&stage, &target), "1 2 3 4");
}

/// A standby follows its source, is itself backed up, and is promoted.
#[test]
fn rule_9_a_standby_follows_is_backed_up_and_promoted() {
    let builder = Cluster::builder(Major::V18)
        .conf("autovacuum", "off")
        .conf("checkpoint_timeout", "1h");
    let stage = Stage::archiving(builder, Store::Directory);
    stage.cluster.pgbench(&["-i", "-q", "-s", "2"]).unwrap();
    stage
        .cluster
        .sql("postgres", "CREATE TABLE numbers (id int)")
        .unwrap();
    stage.backup(&["--type", "full"]);
    let standby = stage.restore("standby", &["--target-type", "standby"]);
    assert!(standby.join("standby.signal").exists());
    let standby = follow(&stage, &standby, &stage.cluster.conninfo("postgres"));
    insert(&stage.cluster, 1);
    let arrived = "SELECT count(*) = 1 FROM numbers";
    standby.wait_for("postgres", arrived, PATIENCE).unwrap();
    backups_of_a_standby(&stage, &standby);
}

fn backups_of_a_standby(stage: &Stage, standby: &Cluster) {
    let pgdata = standby.pgdata().display().to_string();
    let conninfo = standby.conninfo("postgres");
    let arguments = |more: &[&'static str]| {
        let mut all = vec!["backup".to_owned(), "-D".to_owned(), pgdata.clone()];
        all.extend(["-d".to_owned(), conninfo.clone()]);
        all.extend(more.iter().map(|&argument| argument.to_owned()));
        all
    };
    let json = |more: &[&'static str]| {
        let all = arguments(more);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        stage.json(&all)
    };
    let load = stage
        .cluster
        .background_pgbench(&["-n", "-c", "1", "-T", "600"])
        .unwrap();
    let switching = switch_wal_all_the_time(stage);
    let full = json(&["--type", "full", "--wal", "stream"]);
    assert_eq!(full["from_standby"], true);

    // A standby starts at its last restartpoint: the same as its parent, when there was none since.
    let compared = json(&["--type", "incr", "--wal", "stream"]);
    assert_eq!(text(&compared, "/change_source/used"), "digest");
    assert_eq!(compared["parent"], full["label"]);
    restartpoint(stage, standby);
    let layer = json(&[
        "--type",
        "incr",
        "--wal",
        "stream",
        "--change-source",
        "lsn",
    ]);
    assert_eq!(text(&layer, "/change_source/used"), "lsn", "{layer:#}");
    assert_eq!(layer["parent"], compared["label"]);
    drop((load, switching));
    let idle = "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'";
    stage.cluster.wait_for("postgres", idle, PATIENCE).unwrap();
    rule_8_the_layer_of_a_standby_is_consistent(stage, text(&layer, "/label"));
    rule_9_wal_without_full_pages_is_refused(stage, standby, &arguments(&["--wal", "stream"]));
    promotion_voids_the_backup(stage, standby, &arguments(&["--wal", "stream"]));
    let layer = json(&[
        "--type",
        "incr",
        "--wal",
        "stream",
        "--change-source",
        "lsn",
    ]);
    assert_eq!(layer["timeline"], 2);
    assert_eq!(text(&layer, "/change_source/used"), "lsn", "{layer:#}");
}

/// Its control file was read last: recovery goes at least as far as the newest page that was copied.
fn rule_8_the_layer_of_a_standby_is_consistent(stage: &Stage, label: &str) {
    let (moment, before) = stage.moment();
    let recovery = [
        label,
        "--target-type",
        "lsn",
        "--target",
        &moment,
        "--target-action",
        "promote",
    ];
    let restored = stage.start_restored(&stage.restore("of-standby", &recovery));
    require_same_dump(&before, &restored.dump().unwrap()).unwrap();
    restored.amcheck().unwrap();
    restored.check_visibility_maps().unwrap();
}

/// The standby cannot force full pages into its primary's WAL; without them torn reads stay torn.
fn rule_9_wal_without_full_pages_is_refused(
    stage: &Stage,
    standby: &Cluster,
    arguments: &[String],
) {
    let before = stage.layer_counts();
    let set = |value: &str| {
        stage
            .cluster
            .append_conf("full_page_writes", value)
            .unwrap();
        stage.cluster.reload().unwrap();
        let query = format!("SELECT current_setting('full_page_writes') = '{value}'");
        stage
            .cluster
            .wait_for("postgres", &query, PATIENCE)
            .unwrap();
        restartpoint(stage, standby);
    };
    set("off");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (code, log) = stage.fails(&arguments);
    assert_eq!(code, 16, "{log}");
    assert!(log.contains("full_page_writes=off"), "{log}");
    assert_eq!(stage.layer_counts(), before);
    set("on");
}

/// Rule 9: a standby promoted meanwhile makes the backup invalid.
fn promotion_voids_the_backup(stage: &Stage, standby: &Cluster, arguments: &[String]) {
    let before = stage.layer_counts();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut slow = stage.command(&arguments);
    slow.args(["--type", "full", "--max-rate", "16M"]);
    let child = slow.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let started = "SELECT count(*) = 1 FROM pg_stat_activity
        WHERE application_name = 'pgstrata backup' AND state = 'idle' AND query LIKE '%wal_replay_lsn%'";
    standby.wait_for("postgres", started, PATIENCE).unwrap();
    standby.sql("postgres", "SELECT pg_promote()").unwrap();
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        [Some(13), Some(16)].contains(&output.status.code()),
        "{log}"
    );
    assert!(log.contains("promoted"), "{log}");
    assert_eq!(stage.layer_counts(), before);
    standby.wait_promoted(PATIENCE).unwrap();
    standby.sql("postgres", "CHECKPOINT").unwrap();
}
