//! Backups of real, running servers, rebuilt with the plain reader and started.

#![allow(missing_docs, reason = "tests state facts by their names")]

mod backup_support;

use backup_support::{MAJORS, Scene};
use pgstrata_engine::backup::BackupType;
use pgstrata_layer::manifest::ChangeSource;
use pgstrata_testbed::cluster::require_same_dump;

#[test]
fn a_full_backup_of_a_running_server_starts_and_equals_it() {
    for major in MAJORS {
        let scene = Scene::new(major);
        scene.sql("CREATE TABLE t AS SELECT g AS id, repeat('x', g % 300) AS pad FROM generate_series(1, 50000) g; CREATE INDEX ON t (id);");
        let report = scene.backup(BackupType::Auto);
        assert_eq!(report.change_source.used, ChangeSource::Everything);
        assert!(
            report.corrupt_pages.is_empty(),
            "{:?}",
            report.corrupt_pages
        );
        assert_eq!(
            report.totals.relation_blocks,
            report.totals.pages_stored + report.totals.pages_zero
        );
        let (_rebuilt, copy) = scene.start_rebuilt(&report.label);
        require_same_dump(&scene.cluster.dump().unwrap(), &copy.dump().unwrap()).unwrap();
    }
}

#[test]
fn a_chain_by_lsn_and_by_digest_starts_and_equals_the_server() {
    for major in MAJORS {
        let scene = Scene::new(major);
        scene.sql("CREATE TABLE t AS SELECT g AS id, 0 AS n, repeat('x', 200) AS pad FROM generate_series(1, 100000) g; CREATE INDEX ON t (id);");
        let full = scene.backup(BackupType::Full);
        scene.sql("UPDATE t SET n = 1 WHERE id % 1000 = 7; CREATE TABLE u AS SELECT generate_series(1, 5000) AS id;");
        let by_lsn = scene.backup(BackupType::Auto);
        assert_eq!(by_lsn.parent.as_ref(), Some(&full.label));
        assert_eq!(
            by_lsn.change_source.used,
            ChangeSource::Lsn,
            "{}",
            by_lsn.change_source.reason
        );
        scene.sql("DELETE FROM t WHERE id % 3 = 0; VACUUM t; DROP TABLE u; CREATE DATABASE other STRATEGY file_copy;");
        let mut options = scene.options();
        options.change_source = pgstrata_engine::backup::ChangeSourceChoice::Digest;
        let by_digest = scene.try_backup(&options).unwrap();
        assert_eq!(by_digest.parent.as_ref(), Some(&by_lsn.label));
        assert_eq!(by_digest.change_source.used, ChangeSource::Digest);
        assert!(
            by_lsn.totals.pages_stored < full.totals.pages_stored / 2,
            "{:?}",
            by_lsn.totals
        );
        for report in [&full, &by_lsn, &by_digest] {
            assert!(
                report.corrupt_pages.is_empty(),
                "{:?}",
                report.corrupt_pages
            );
        }
        let (_rebuilt, copy) = scene.start_rebuilt(&by_digest.label);
        require_same_dump(&scene.cluster.dump().unwrap(), &copy.dump().unwrap()).unwrap();
    }
}
