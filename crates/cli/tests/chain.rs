//! The main job: a full and three incremental backups made under load restore to
//! an exact LSN, equal to the source there. What is large goes past the page cache.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::process::Command;

use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use support::{Stage, Store, number, restore_alone, text};

fn a_chain_made_under_load_restores_to_an_exact_lsn(major: Major, store: Store) {
    let stage = Stage::archiving(Cluster::builder(major), store);
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    let full = stage.backup(&["--type", "full"]);
    assert_eq!(text(&full, "/change_source/used"), "everything");
    let pages = number(&full, "/totals/pages_stored");
    for source in ["lsn", "digest", "lsn"] {
        let load = stage
            .cluster
            .background_pgbench(&["-n", "-c", "2", "-t", "150"])
            .unwrap();
        let layer = stage.backup(&["--type", "incr", "--change-source", source]);
        load.wait().unwrap();
        assert_eq!(text(&layer, "/change_source/used"), source);
        let stored = number(&layer, "/totals/pages_stored");
        assert!(
            0 < stored && stored < pages,
            "{stored} of {pages} pages stored"
        );
    }
    let shown = stage.ok(&["backup", "-D", &stage.pgdata(), "--type", "full"]);
    assert!(!shown.contains("changed"), "{shown}");
    stage
        .cluster
        .pgbench(&["-n", "-c", "2", "-t", "100"])
        .unwrap();
    let shown = stage.ok(&["backup", "-D", &stage.pgdata(), "--change-source", "lsn"]);
    assert!(shown.contains("; lsn says that "), "{shown}");
    let (lsn, before) = stage.moment();

    let restored = stage.start_restored_at("restored", &lsn);
    require_same_dump(&before, &restored.dump().unwrap()).unwrap();
    if major != Major::V16 {
        // The programs of 16 that scripts/setup can get come without contrib.
        restored.amcheck().unwrap();
        restored.check_visibility_maps().unwrap();
    }
}

#[test]
fn a_chain_made_under_load_restores_to_an_exact_lsn_on_15_from_s3() {
    a_chain_made_under_load_restores_to_an_exact_lsn(Major::V15, Store::S3);
}

#[test]
fn a_chain_made_under_load_restores_to_an_exact_lsn_on_16() {
    a_chain_made_under_load_restores_to_an_exact_lsn(Major::V16, Store::Directory);
}

#[test]
fn a_chain_made_under_load_restores_to_an_exact_lsn_on_17() {
    a_chain_made_under_load_restores_to_an_exact_lsn(Major::V17, Store::Directory);
}

#[test]
fn a_chain_made_under_load_restores_to_an_exact_lsn_on_18_from_s3() {
    a_chain_made_under_load_restores_to_an_exact_lsn(Major::V18, Store::S3);
}

#[test]
fn large_new_files_are_restored_past_the_page_cache_and_others_through_it() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    stage.backup(&["--type", "full"]);
    let target = stage.target("restored").display().to_string();
    let restore = restore_alone(&target);
    let report = stage.json(&restore);
    let (direct, written) = (
        number(&report, "/direct_bytes"),
        number(&report, "/written_bytes"),
    );
    let mut kind = Command::new("stat");
    let kind = kind.args(["-f", "-c", "%T", &target]).output().unwrap();
    match String::from_utf8(kind.stdout).unwrap().trim() {
        // The table of accounts alone has 38 MB; the files of the catalogs are small.
        "ext2/ext3" | "xfs" => assert!(
            (35 << 20) < direct && direct < written - (10 << 20),
            "{direct} of {written}"
        ),
        other => assert_eq!(direct, 0, "{other}"),
    }
    let report = stage.json(&[&restore[..], &["--delta"]].concat());
    assert_eq!(number(&report, "/direct_bytes"), 0);
}
