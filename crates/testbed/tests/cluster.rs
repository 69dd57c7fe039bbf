//! The throwaway clusters, against real servers of the oldest and the newest
//! major version.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Cluster, Major, StopMode, require_same_dump};

const PATIENCE: Duration = Duration::from_secs(60);

fn oldest_and_newest() -> [Major; 2] {
    [Major::V15, Major::V18]
}

#[test]
fn every_major_version_starts_and_says_which_it_is() {
    for major in Major::ALL {
        let cluster = Cluster::builder(major).start().unwrap();
        let version = cluster.sql("postgres", "SHOW server_version_num").unwrap();
        assert_eq!(version.get(..2), Some(major.to_string().as_str()));
    }
}

#[test]
fn settings_and_initdb_arguments_arrive() {
    for major in oldest_and_newest() {
        let cluster = Cluster::builder(major)
            .initdb_arg("--wal-segsize=1")
            .conf("application_name", "it's")
            .checksums(false)
            .start()
            .unwrap();
        let shown = |name: &str| cluster.sql("postgres", &format!("SHOW {name}")).unwrap();
        assert_eq!(shown("wal_segment_size"), "1MB");
        assert_eq!(shown("data_checksums"), "off");
        assert_eq!(shown("fsync"), "off");
        assert_eq!(shown("listen_addresses"), "");
        // psql names itself, so the default is looked up.
        let query = "SELECT reset_val FROM pg_settings WHERE name = 'application_name'";
        let from_file = "SELECT setting FROM pg_file_settings WHERE name = 'application_name'";
        assert_eq!(cluster.sql("postgres", query).unwrap(), "psql");
        assert_eq!(cluster.sql("postgres", from_file).unwrap(), "it's");
    }
}

#[test]
fn a_failing_statement_fails_the_script_and_names_the_error() {
    let cluster = Cluster::builder(Major::V18).start().unwrap();
    let outcome = cluster.sql("postgres", "SELECT 1; SELECT 1/0; SELECT 2");
    let error = format!("{:#}", outcome.unwrap_err());
    assert!(error.contains("division by zero"), "{error}");
}

#[test]
fn what_was_committed_survives_kill9_and_a_stop() {
    for major in oldest_and_newest() {
        let cluster = Cluster::builder(major).start().unwrap();
        cluster
            .sql("postgres", "CREATE TABLE t AS SELECT 1 AS a")
            .unwrap();
        cluster.kill9().unwrap();
        assert!(cluster.sql("postgres", "SELECT 1").is_err());
        cluster.start().unwrap();
        assert_eq!(cluster.sql("postgres", "TABLE t").unwrap(), "1");
        assert!(
            cluster
                .log_tail(50)
                .contains("automatic recovery in progress")
        );
        cluster.stop(StopMode::Immediate).unwrap();
        cluster.start().unwrap();
        cluster.restart().unwrap();
        assert_eq!(cluster.sql("postgres", "TABLE t").unwrap(), "1");
    }
}

#[test]
fn a_base_backup_is_adopted_promoted_and_equal() {
    for major in oldest_and_newest() {
        let cluster = Cluster::builder(major).start().unwrap();
        cluster.create_tablespace("elsewhere").unwrap();
        cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
        cluster
            .sql(
                "postgres",
                "CREATE TABLE t TABLESPACE elsewhere AS SELECT 1 AS a; CREATE DATABASE other",
            )
            .unwrap();
        let copies = cluster.create_dir("copies").unwrap();
        let target = copies.join("data").display().to_string();
        let tablespace = cluster.socket_dir().join("tablespace-elsewhere");
        let map = format!("{}={}/elsewhere", tablespace.display(), copies.display());
        cluster
            .run(
                "pg_basebackup",
                &["-D", &target, "-T", &map, "-c", "fast", "-R"],
            )
            .unwrap();
        let copy = Cluster::adopt(major, target.as_ref()).start().unwrap();
        copy.sql("postgres", "SELECT pg_promote(wait => false)")
            .unwrap();
        copy.wait_promoted(PATIENCE).unwrap();
        require_same_dump(&cluster.dump().unwrap(), &copy.dump().unwrap()).unwrap();
        copy.amcheck().unwrap();
        copy.check_visibility_maps().unwrap();
        copy.sql("postgres", "INSERT INTO t VALUES (2)").unwrap();
        assert!(require_same_dump(&cluster.dump().unwrap(), &copy.dump().unwrap()).is_err());
        drop(copy);
        assert!(copies.join("data/PG_VERSION").exists());
    }
}

#[test]
fn damage_is_found_by_the_checks() {
    for major in oldest_and_newest() {
        let cluster = Cluster::builder(major).checksums(false).start().unwrap();
        let script = "CREATE TABLE t AS SELECT generate_series(1, 1000) AS a;
            VACUUM (FREEZE) t; CREATE INDEX ON t (a); CHECKPOINT;
            SELECT pg_relation_filepath('t')";
        let path = cluster.sql("postgres", script).unwrap();
        cluster.amcheck().unwrap();
        cluster.check_visibility_maps().unwrap();
        cluster
            .sql("postgres", "DELETE FROM t WHERE a = 1; CHECKPOINT")
            .unwrap();
        let map = cluster.pgdata().join(format!("{path}_vm"));
        cluster.stop(StopMode::Fast).unwrap();
        let mut bytes = fs::read(&map).unwrap();
        // The first byte after the page header holds the bits of four pages.
        bytes[24] |= 3;
        fs::write(&map, bytes).unwrap();
        cluster.start().unwrap();
        let error = cluster.check_visibility_maps().unwrap_err().to_string();
        assert!(error.contains("visibility maps"), "{error}");
    }
}

/// Rows that came while nobody told the index.
#[test]
fn an_index_that_does_not_know_all_rows_is_found() {
    for major in oldest_and_newest() {
        let cluster = Cluster::builder(major).start().unwrap();
        for kind in [
            "hash (v)",
            "brin (id)",
            "gin (to_tsvector('simple', pad))",
            "spgist (pad)",
        ] {
            let sql = |script: &str| cluster.sql("postgres", script).unwrap();
            let rows = |from: u32| {
                format!(
                    "INSERT INTO t SELECT g, g % 7, md5(g::text) FROM generate_series({from}, {}) g",
                    from + 999
                )
            };
            sql("CREATE TABLE t (id bigint PRIMARY KEY, v bigint, pad text)");
            sql(&rows(1));
            sql(&format!("CREATE INDEX i ON t USING {kind}"));
            cluster.search_indexes().unwrap();
            sql("UPDATE pg_index SET indisready = false WHERE indexrelid = 'i'::regclass");
            sql(&rows(1001));
            sql("UPDATE pg_index SET indisready = true WHERE indexrelid = 'i'::regclass");
            let error = format!("{:#}", cluster.search_indexes().expect_err(kind));
            assert!(error.contains("index i finds"), "{kind}: {error}");
            sql("DROP TABLE t");
        }
    }
}

#[test]
fn the_server_runs_a_program_that_was_installed_for_it() {
    let cluster = Cluster::builder(Major::V15)
        .conf("archive_mode", "on")
        .start()
        .unwrap();
    let archive = cluster.create_dir("archive").unwrap();
    let copy = cluster.installed_binary("/bin/cp".as_ref()).unwrap();
    let command = format!("{} %p {}/%f", copy.display(), archive.display());
    cluster.append_conf("archive_command", &command).unwrap();
    cluster.reload().unwrap();
    cluster
        .sql(
            "postgres",
            "CREATE TABLE t AS SELECT 1 AS a; SELECT pg_switch_wal()",
        )
        .unwrap();
    let archived = "SELECT archived_count > 0 FROM pg_stat_archiver";
    cluster.wait_for("postgres", archived, PATIENCE).unwrap();
    assert!(fs::read_dir(archive).unwrap().next().is_some());
}

#[test]
fn pgbench_runs_beside_the_test() {
    let cluster = Cluster::builder(Major::V18).start().unwrap();
    cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    let mut endless = cluster
        .background_pgbench(&["-n", "-c", "2", "-T", "600"])
        .unwrap();
    let busy = "SELECT count(*) > 10 FROM pgbench_history";
    cluster.wait_for("postgres", busy, PATIENCE).unwrap();
    assert!(endless.is_running().unwrap());
    endless.kill().unwrap();
    let short = cluster.background_pgbench(&["-n", "-t", "10"]).unwrap();
    let report = short.wait().unwrap();
    assert!(report.contains("processed: 10/10"), "{report}");
}

#[test]
fn a_cluster_ends_with_its_value() {
    let cluster = Cluster::builder(Major::V18).start().unwrap();
    let directory = cluster.socket_dir().to_owned();
    assert!(directory.join("data/postmaster.pid").exists());
    drop(cluster);
    assert!(!directory.exists());
}

/// Runs itself as a child that never drops its cluster, and kills the child.
#[test]
fn a_cluster_ends_with_its_killed_program() {
    const ASKED: &str = "PGSTRATA_LAB_TELL";
    if let Some(path) = std::env::var_os(ASKED) {
        let cluster = Cluster::builder(Major::V18).start().unwrap();
        let unfinished = PathBuf::from(&path).with_extension("unfinished");
        fs::write(&unfinished, cluster.socket_dir().to_str().unwrap()).unwrap();
        fs::rename(unfinished, path).unwrap();
        std::thread::sleep(PATIENCE);
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let told = directory.path().join("told");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_cluster_ends_with_its_killed_program"])
        .env(ASKED, &told)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + PATIENCE;
    while !told.exists() {
        assert!(Instant::now() < end, "the child did not start its cluster");
        std::thread::sleep(Duration::from_millis(50));
    }
    let clusters = PathBuf::from(fs::read_to_string(&told).unwrap());
    assert!(clusters.join("data/postmaster.pid").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    while clusters.exists() {
        assert!(Instant::now() < end, "the cluster outlived its program");
        std::thread::sleep(Duration::from_millis(50));
    }
}
