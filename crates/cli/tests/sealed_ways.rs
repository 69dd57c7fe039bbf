//! What was first built for clear clusters, on sealed ones: restores in place, timelines, standbys, retention of WAL, large
//! segments, and keys that change in the middle of a chain.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::path::{Path, PathBuf};

use pgstrata_testbed::cluster::{Cluster, Major, StopMode, require_same_dump};
use serde_json::Value;
use support::judged::kinds;
use support::standby::{catch_up, switch_wal_all_the_time};
use support::vault::Vault;
use support::{PATIENCE, Store, files, number, schema, text, to_lsn};

const REFUSED: i32 = 13;
const DAMAGED: i32 = 14;
const WAL_MISSING: i32 = 18;

#[test]
fn a_sealed_cluster_goes_back_in_place_and_on_along_a_second_timeline() {
    let vault = Vault::new(Major::V15);
    let stage = &vault.stage;
    let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    vault.backup(&["--type", "full"]);
    stage.cluster.pgbench(&["-n", "-t", "100"]).unwrap();
    vault.backup(&["--type", "incr"]);
    let (lsn, before) = stage.moment();
    sql("DELETE FROM pgbench_tellers; CREATE TABLE stray AS SELECT generate_series(1, 1000)");
    stage.cluster.stop(StopMode::Fast).unwrap();
    let pgdata = stage.pgdata();
    let until = to_lsn(&lsn);
    let back = [
        "--output",
        "json",
        "restore",
        "--target-dir",
        &pgdata,
        "--delta",
        "--archive-mode",
        "keep",
    ];
    vault.fails("writer", &[&back[..], &until].concat(), REFUSED);
    let report = schema::document(&vault.ok("one", &[&back[..], &until].concat()));
    assert_eq!(text(&report, "/method"), "delta");
    let (read, written) = (
        number(&report, "/read_bytes"),
        number(&report, "/written_bytes"),
    );
    assert!(0 < written && written * 4 < read, "{written} of {read}");
    stage.cluster.start().unwrap();
    stage.cluster.wait_promoted(PATIENCE).unwrap();
    require_same_dump(&before, &stage.cluster.dump().unwrap()).unwrap();

    // Its WAL is archived under a second timeline, with a history that is sealed too.
    sql("CREATE TABLE second AS SELECT generate_series(1, 1000) AS n");
    let (lsn, dump) = stage.moment();
    let history = stage.objects().join("vault/wal");
    let names: Vec<String> = walk(&history);
    assert!(
        names.iter().any(|name| name.contains("00000002.history")),
        "{names:?}"
    );
    let restored = along_two(&vault, "two", "on-two", &lsn);
    let own = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";
    assert_eq!(restored.sql("postgres", own).unwrap(), "00000003");
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
    drop(restored);

    // The chain goes on, also over a change of keys in its middle.
    vault.backup(&["--type", "incr"]);
    vault.ok("one", &["key", "rotate"]);
    sql("INSERT INTO second SELECT generate_series(1001, 2000)");
    let child = vault.backup(&["--type", "incr"]);
    assert!(text(&child, "/label").ends_with('I'), "{child:#}");
    vault.ok("two", &["verify", "--deep"]);
    vault.ok("one", &["key", "remove", &vault.recipient("two")]);
    vault.backup(&["--type", "incr"]);
    vault.ok("one", &["verify", "--deep"]);
    vault.fails("two", &["verify", "--deep"], REFUSED);
    sql("DROP TABLE afterwards");
    let (lsn, dump) = stage.moment();
    let restored = along_two(&vault, "one", "over-epochs", &lsn);
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
}

/// Restores to a moment of the second timeline, and starts it.
fn along_two(vault: &Vault, who: &str, name: &str, lsn: &str) -> Cluster {
    let target = vault.stage.target(name);
    let to = [
        "restore",
        "--target-dir",
        target.to_str().unwrap(),
        "--target-timeline",
        "2",
    ];
    let until = to_lsn(lsn);
    vault.ok(who, &[&to[..], &until].concat());
    vault.stage.start_restored(&target)
}

fn walk(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(walk(&path)),
            false => found.push(path.display().to_string()),
        }
    }
    found
}

#[test]
fn a_sealed_archive_of_large_segments_is_expired_between_layers_by_a_keeper() {
    let builder = Cluster::builder(Major::V15)
        .initdb_arg("--wal-segsize=64")
        .conf("min_wal_size", "128MB");
    let vault = Vault::archiving(builder);
    let stage = &vault.stage;
    let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
    sql("CREATE TABLE t (n int)");
    let mut ends = Vec::new();
    for round in 0..2 {
        vault.backup(&["--type", "full"]);
        sql(&format!("INSERT INTO t VALUES ({round})"));
        ends.push(stage.moment());
        sql("DROP TABLE afterwards");
    }
    let rules = [
        "--output",
        "json",
        "expire",
        "--keep-full",
        "2",
        "--keep-wal",
        "0d",
    ];
    let planned = schema::document(&vault.ok("keeper", &[&rules[..], &["--dry-run"]].concat()));
    assert!(number(&planned, "/wal_files") >= 1, "{planned:#}");
    let done = schema::document(&vault.ok("keeper", &rules));
    assert_eq!(planned["wal"], done["wal"]);
    vault.ok("one", &["verify", "--deep"]);
    let info = schema::document(&vault.ok("keeper", &["--output", "json", "info"]));
    assert_eq!(info["status"], "ok", "{info:#}");
    let between = stage.target("between").display().to_string();
    let until = ["--target-type", "lsn", "--target", &ends[0].0];
    let words = [&["restore", "--target-dir", &between][..], &until].concat();
    let log = vault.fails("one", &words, WAL_MISSING);
    assert!(log.contains("an expiry has given up"), "{log}");
    let restored = stage.start_restored(Path::new(&vault.restore("one", "after", &ends[1].0)));
    require_same_dump(&ends[1].1, &restored.dump().unwrap()).unwrap();
    drop(restored);
    let first = info["layers"][0]["label"].as_str().unwrap();
    let target = stage.target("own-end");
    let words = ["restore", first, "--target-dir", target.to_str().unwrap()];
    let until = ["--target-type", "immediate", "--target-action", "promote"];
    vault.ok("two", &[&words[..], &until].concat());
    let restored = stage.start_restored(&target);
    assert_eq!(
        restored.sql("postgres", "SELECT count(*) FROM t").unwrap(),
        "0"
    );
}

#[test]
fn a_standby_is_backed_up_into_a_sealed_cluster() {
    let vault = Vault::new(Major::V15);
    let stage = &vault.stage;
    let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
    sql("CREATE TABLE numbers AS SELECT g, repeat('x', 200) AS t FROM generate_series(1, 20000) g");
    vault.backup(&["--type", "full"]);
    let directory = stage.target("standby");
    let words = [
        "restore",
        "--target-dir",
        directory.to_str().unwrap(),
        "--target-type",
        "standby",
    ];
    vault.ok("one", &words);
    let standby = Cluster::adopt(Major::V15, &directory)
        .conf("primary_conninfo", &stage.cluster.conninfo("postgres"))
        .start()
        .unwrap();
    stage.archive_all();
    sql("UPDATE numbers SET t = 'since' WHERE g % 1000 = 0");
    catch_up(stage, &standby);
    let dump = standby.dump().unwrap();
    let switching = switch_wal_all_the_time(stage);
    let pgdata = standby.pgdata().display().to_string();
    let conninfo = standby.conninfo("postgres");
    for kind in ["incr", "full"] {
        let words = [
            "--output", "json", "backup", "-D", &pgdata, "-d", &conninfo, "--type", kind,
        ];
        let report = schema::document(&vault.ok("writer", &words));
        assert_eq!(report["from_standby"], true, "{report:#}");
    }
    drop(switching);
    vault.ok("one", &["verify", "--deep"]);
    let target = stage.target("restored");
    let words = ["restore", "--target-dir", target.to_str().unwrap()];
    let until = ["--target-type", "immediate", "--target-action", "promote"];
    vault.ok("two", &[&words[..], &until].concat());
    let restored = stage.start_restored(&target);
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
}

/// Only a reader compares a merged layer with what it replaces: a keeper leaves that, and expires all else.
#[test]
fn a_keeper_expires_what_no_merge_touches_and_plans_what_he_does() {
    let vault = Vault::on(Cluster::builder(Major::V15), Store::Directory);
    let stage = &vault.stage;
    let backup = |kind| {
        let report = vault.backup(&["--type", kind, "--wal", "stream"]);
        text(&report, "/label").to_owned()
    };
    let old = [backup("full"), backup("incr")];
    let inputs = [backup("full"), backup("incr")];
    vault.ok("one", &["merge", "latest"]);
    let json = |words: &[&str]| {
        let all = [&["--output", "json"], words].concat();
        schema::document(&vault.ok("keeper", &all))
    };
    let expire = ["expire", "--keep-full", "1"];
    let planned = json(&[&expire[..], &["--dry-run"]].concat());
    let done = json(&expire);
    for same in ["remove", "keep", "wal", "wal_files", "remarks", "notes"] {
        assert_eq!(planned[same], done[same], "{same}");
    }
    assert_eq!(done["remove"], serde_json::json!([old[1], old[0]]));
    let keep = done["keep"].to_string();
    assert!(keep.contains("a reader's identity is needed"), "{keep}");
    // What nobody merges for him is no failure, and is said.
    backup("incr");
    let chain = ["expire", "--max-chain", "1"];
    for words in [&[&chain[..], &["--dry-run"]].concat()[..], &chain] {
        let report = json(words);
        assert_eq!(report["merge"], Value::Null);
        let remarks = report["remarks"].to_string();
        assert!(remarks.contains("no identity at hand opens"), "{remarks}");
    }
    let before = stage.layer_counts();
    for words in [&["merge", "latest", "--dry-run"][..], &["merge", "latest"]] {
        let log = vault.fails("keeper", words, REFUSED);
        assert!(log.contains("pages and WAL"), "{log}");
        assert!(!log.contains("merged 2 layers"), "{log}");
    }
    assert_eq!(stage.layer_counts(), before);
    // A reader brings both to their end.
    let done = vault.ok("one", &expire);
    for input in &inputs {
        assert!(done.contains(&format!("remove   {input}")), "{done}");
    }
    assert_eq!(vault.verify("one", &["--deep"]), (0, Vec::new()));
    // What cannot be read by who removes is told by who plans.
    let wanted = stage.objects().join("vault/removal/f0f0/wanted");
    std::fs::create_dir_all(wanted.parent().unwrap()).unwrap();
    std::fs::write(&wanted, "junk").unwrap();
    for words in [&[&expire[..], &["--dry-run"]].concat()[..], &expire] {
        let log = vault.fails("keeper", words, DAMAGED);
        assert!(log.contains("removal/f0f0/wanted"), "{log}");
        assert!(log.contains("this object can be deleted"), "{log}");
    }
}

/// A command's exit code and document.
fn document(vault: &Vault, who: &str, words: &[&str]) -> (i32, Value) {
    let output = vault.run(who, &[&["--output", "json"], words].concat());
    let document = schema::document(&String::from_utf8(output.stdout).unwrap());
    (output.status.code().unwrap(), document)
}

/// Whoever opens no page sees rot, and not what a reader sees.
#[test]
fn who_opens_no_pages_takes_nothing_back_that_a_reader_has_found() {
    let vault = Vault::on(Cluster::builder(Major::V15), Store::Directory);
    let packs: [PathBuf; 2] = [(); 2].map(|()| {
        let layer = vault.backup(&["--type", "full", "--wal", "stream"]);
        let pack = format!("vault/layer/{}/pack-000000", text(&layer, "/label"));
        vault.stage.objects().join(pack)
    });
    let verified = |who: &str| {
        let (code, report) = document(&vault, who, &["verify"]);
        (code, report["recorded"].as_bool().unwrap())
    };
    let info = || document(&vault, "keeper", &["info", "--max-verify-age", "1h"]).1;
    let damaged = |at: usize| {
        let whole = std::fs::read(&packs[at]).unwrap();
        files::flip(&packs[at], |length| length / 2);
        whole
    };
    let whole = damaged(0);
    assert_eq!(verified("one"), (DAMAGED, true));
    std::fs::write(&packs[0], whole).unwrap();
    for who in ["writer", "keeper", ""] {
        assert_eq!(verified(who), (0, false), "{who}");
        assert_eq!(kinds(&info()), ["layer"], "{who}");
    }
    // What he finds stays beside that.
    let whole = damaged(1);
    assert_eq!(verified("writer"), (DAMAGED, true));
    assert_eq!(kinds(&info()), ["layer", "layer"]);
    std::fs::write(&packs[1], whole).unwrap();
    assert_eq!(verified("writer"), (0, false));
    assert_eq!(verified("one"), (0, true));
    assert_eq!(kinds(&info()), [""; 0]);
    let log = vault.run("writer", &["verify"]).stderr;
    let log = String::from_utf8(log).unwrap();
    assert!(log.contains("a reader's identity is needed"), "{log}");
}
