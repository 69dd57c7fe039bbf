//! Start and stop: one session, the right storage, and nothing listed before the checkpoint.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use pgstrata_testbed::cluster::{Background, Cluster, Major};

use crate::support::{PATIENCE, Stage, Store, process, text};

const REFUSED: i32 = 13;

/// The storage that is read shows the checkpoint with which the backup began.
#[test]
fn rule_1_a_copy_of_the_data_directory_is_not_taken_for_the_servers_storage() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let copy = stage.target("copy").display().to_string();
    let mut cp = stage
        .cluster
        .command_as_server_user(std::path::Path::new("/bin/cp"));
    cp.args(["-a", &stage.pgdata(), &copy]);
    assert!(cp.status().unwrap().success());
    let conninfo = stage.cluster.conninfo("postgres");
    let (code, log) = stage.fails(&["backup", "-D", &copy, "-d", &conninfo]);
    assert_eq!(code, REFUSED, "{log}");
    assert!(log.contains(&copy) && log.contains("a copy"), "{log}");
    assert_eq!(stage.layer_counts(), (0, 0));
    stage.wait_out_of_backup_mode();
    a_link_to_the_repository_is_refused(&stage);
    rule_1_files_are_listed_after_the_start_has_returned(&stage);
}

/// Its own objects would be in every backup.
fn a_link_to_the_repository_is_refused(stage: &Stage) {
    let pgdata = stage.pgdata();
    let link = stage.cluster.pgdata().join("objects");
    symlink(stage.objects(), &link).unwrap();
    for more in [&["--dry-run"][..], &[]] {
        let (code, log) = stage.fails(&[&["backup", "-D", &pgdata], more].concat());
        assert_eq!(code, REFUSED, "{log}");
        assert!(log.contains("a directory of the cluster"), "{log}");
    }
    let checked = stage.run(&["check", "-D", &pgdata]);
    let found = String::from_utf8_lossy(&checked.stdout);
    assert_eq!(checked.status.code(), Some(REFUSED), "{found}");
    assert!(found.contains("a directory of the cluster"), "{found}");
    assert_eq!(stage.layer_counts(), (0, 0));
    fs::remove_file(link).unwrap();
}

/// One that is spread takes nine minutes, unless somebody hurries.
fn make_checkpoints_slow(stage: &Stage) {
    for (name, value) in [
        ("checkpoint_timeout", "10min"),
        ("checkpoint_completion_target", "0.9"),
    ] {
        stage.cluster.append_conf(name, value).unwrap();
    }
    stage.cluster.reload().unwrap();
}

fn wait_for_checkpoint_of_backup(stage: &Stage) {
    let waits =
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'pgstrata backup'
        AND state = 'active' AND wait_event = 'CheckpointDone'";
    stage.cluster.wait_for("postgres", waits, PATIENCE).unwrap();
}

/// Somebody who writes a thousand times a second, as soon as this returns.
fn writer(stage: &Stage) -> Background {
    let mut psql = stage.cluster.command("psql");
    let writes = "DO $$ BEGIN LOOP PERFORM pg_current_xact_id(); COMMIT; PERFORM pg_sleep(0.001); END LOOP; END $$";
    psql.args(["-X", "-c", writes]);
    let writer = stage.cluster.background(psql).unwrap();
    let is_there =
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active')";
    stage
        .cluster
        .wait_for("postgres", is_there, PATIENCE)
        .unwrap();
    writer
}

/// Users wait for the disk behind one that is made at once, so it is spread as long as there are any, and much is to be written.
#[test]
fn the_checkpoint_of_a_start_is_spread_where_users_would_feel_it() {
    let builder = Cluster::builder(Major::V15).conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    make_checkpoints_slow(&stage);
    let pgdata = stage.pgdata();
    let usual = |impact, wal| ["backup", "-D", &pgdata, "--impact", impact, "--wal", wal];
    let how = |(impact, wal), more: &[&str]| {
        let report = stage.json(&[&usual(impact, wal)[..], more].concat());
        text(&report, "/checkpoint").to_owned()
    };
    let auto = ("auto", "archive");
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    let much = "DROP TABLE IF EXISTS much; CREATE TABLE much AS SELECT repeat('x', 1000) FROM generate_series(1, 100000)";
    sql("CHECKPOINT");
    let little = "fast: only 0 MiB of WAL since the last checkpoint";
    assert_eq!(how(auto, &[]), little);
    sql(much);
    assert_eq!(how(auto, &[]), "fast: nobody writes at the moment");

    sql(much);
    let writer = writer(&stage);
    let planned = |impact, wal| how((impact, wal), &["--dry-run"]);
    let asked = "as --checkpoint or --impact says";
    assert_eq!(planned("low", "stream"), format!("spread: {asked}"));
    assert_eq!(planned("none", "archive"), format!("fast: {asked}"));
    let own = planned("auto", "stream");
    assert!(own.starts_with("fast: the backup stores its own"), "{own}");
    let others = "spread: others write, ";
    let chosen = planned("auto", "archive");
    assert!(chosen.starts_with(others), "{chosen}");
    let backup = process::spawn(
        &stage,
        &[&["--output", "json"], &usual("auto", "archive")[..]].concat(),
    );
    wait_for_checkpoint_of_backup(&stage);
    // The one under way is hurried on.
    sql("CHECKPOINT");
    let (printed, log) = process::ended(backup.wait_with_output().unwrap(), "backup", 0);
    let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let made = text(&report, "/checkpoint");
    assert!(made.starts_with(others), "{made}");
    assert!(log.contains("is spread"), "{log}");

    sql(much);
    let fast = how(auto, &["--checkpoint", "fast"]);
    assert_eq!(fast, format!("fast: {asked}"));
    drop(writer);
    stage.ok(&["verify", "--deep"]);
}

/// A table that is made while the server still writes its checkpoint is in the list.
fn rule_1_files_are_listed_after_the_start_has_returned(stage: &Stage) {
    make_checkpoints_slow(stage);
    stage.cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    let pgdata = stage.pgdata();
    let mut patient = stage.command(&["--output", "json", "backup", "-D", &pgdata]);
    let child = patient
        .args(["--checkpoint", "spread"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_checkpoint_of_backup(stage);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE made_meanwhile AS SELECT generate_series(1, 1000) AS id");
    let path = sql("SELECT pg_relation_filepath('made_meanwhile')");
    // The one under way is hurried on.
    sql("CHECKPOINT");
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let label = text(&report, "/label");
    let restored = stage.restore("restored", &[label, "--target-type", "immediate"]);
    assert!(restored.join(&path).exists(), "{path} was not listed");
}
