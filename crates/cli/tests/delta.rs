//! Restores onto a stopped server's own data directory.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use pgstrata_testbed::cluster::{Cluster, Major, StopMode, require_same_dump};
use support::{PATIENCE, Stage, Store, number, text};

/// The source itself goes back to a moment before a load that it would rather not have had.
fn a_server_goes_back_in_place(major: Major, store: Store) {
    let stage = Stage::archiving(Cluster::builder(major), store);
    stage.cluster.pgbench(&["-i", "-q", "-s", "6"]).unwrap();
    stage.backup(&["--type", "full"]);
    stage.cluster.pgbench(&["-n", "-t", "100"]).unwrap();
    stage.backup(&["--type", "incr"]);
    stage.cluster.pgbench(&["-n", "-t", "50"]).unwrap();
    let restore_point = "SELECT pg_create_restore_point('moment')";
    let lsn = stage.cluster.sql("postgres", restore_point).unwrap();
    let before = stage.cluster.dump().unwrap();
    let regret = "DELETE FROM pgbench_tellers; CREATE TABLE stray AS SELECT generate_series(1, 1000); VACUUM; SELECT pg_switch_wal()";
    stage.cluster.pgbench(&["-n", "-t", "100"]).unwrap();
    stage.cluster.sql("postgres", regret).unwrap();

    let pgdata = stage.pgdata();
    let target = [
        "restore",
        "--target-dir",
        &pgdata,
        "--delta",
        "--target-type",
        "lsn",
        "--target",
        &lsn,
        "--target-action",
        "promote",
    ];
    let running = [
        "restore",
        "--target-dir",
        &pgdata,
        "--delta",
        "--target-type",
        "immediate",
    ];
    let (code, why) = stage.fails(&running);
    assert_eq!(code, 13, "{why}");
    assert!(why.contains("runs in"), "{why}");
    stage.cluster.stop(StopMode::Fast).unwrap();
    let report = stage.json(&target);
    assert_eq!(text(&report, "/method"), "delta");
    let (read, written) = (
        number(&report, "/read_bytes"),
        number(&report, "/written_bytes"),
    );
    assert!(read > 80 << 20, "{read}");
    assert!(0 < written && written * 4 < read, "{written} of {read}");
    assert!(number(&report, "/removed") > 0);
    stage.cluster.start().unwrap();
    stage.cluster.wait_promoted(PATIENCE).unwrap();
    require_same_dump(&before, &stage.cluster.dump().unwrap()).unwrap();
    stage.cluster.amcheck().unwrap();
    stage.cluster.check_visibility_maps().unwrap();
}

#[test]
fn a_server_goes_back_in_place_on_15_from_s3() {
    a_server_goes_back_in_place(Major::V15, Store::S3);
}

#[test]
fn a_server_goes_back_in_place_on_18() {
    a_server_goes_back_in_place(Major::V18, Store::Directory);
}

/// A standby that has fallen behind, with a tablespace that went elsewhere, catches up in place; layer over layer
/// gives what the overlay gives.
#[test]
fn a_lagging_standby_is_refreshed_in_place() {
    let stage = Stage::archiving(Cluster::builder(Major::V18), Store::Directory);
    let space = stage.cluster.create_tablespace("away").unwrap();
    stage.cluster.pgbench(&["-i", "-q", "-s", "2"]).unwrap();
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE there TABLESPACE away AS SELECT generate_series(1, 20000) AS id");
    stage.backup(&["--type", "full"]);
    let moved = stage.target("moved-space");
    let map = format!("{}={}", space.display(), moved.display());
    let standby = stage.restore(
        "standby",
        &["--target-type", "standby", "--tablespace-map", &map],
    );
    let start = || {
        let conf = Cluster::adopt(Major::V18, &standby).conf("archive_mode", "off");
        conf.start().unwrap()
    };
    start().stop(StopMode::Fast).unwrap();

    sql("UPDATE there SET id = -id WHERE id % 1000 = 0; CREATE TABLE late AS SELECT 1");
    stage.cluster.pgbench(&["-n", "-t", "100"]).unwrap();
    stage.backup(&["--type", "incr"]);
    let directory = standby.display().to_string();
    let arguments = [
        "restore",
        "--target-dir",
        &directory,
        "--delta",
        "--target-type",
        "standby",
        "--links-are-own",
    ];
    let report = stage.json(&arguments);
    let (read, written) = (
        number(&report, "/read_bytes"),
        number(&report, "/written_bytes"),
    );
    assert!(0 < written && written * 3 < read, "{written} of {read}");
    let refreshed = start();
    let ask =
        "SELECT (SELECT count(*) FROM late), (SELECT sum(id) FROM there), pg_is_in_recovery()";
    refreshed
        .wait_for(
            "postgres",
            "SELECT to_regclass('late') IS NOT NULL",
            PATIENCE,
        )
        .unwrap();
    let expected = sql(&ask.replace("pg_is_in_recovery()", "true"));
    assert_eq!(refreshed.sql("postgres", ask).unwrap(), expected);
}
