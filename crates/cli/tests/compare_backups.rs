//! What PostgreSQL's own test 002_compare_backups demands of incremental backups: tables that
//! change, grow, shrink, are vacuumed, dropped and rewritten, databases that come and go, and
//! tablespaces. A restore from the full backup and one from the chain, both replayed to one LSN,
//! are equal to the source there and to one another; the chain by itself gives the files of the
//! source, byte for byte.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::path::{Path, PathBuf};

use pgstrata_testbed::cluster::{Cluster, Major, StopMode, require_same_dump};
use support::files::require_same_files;
use support::{Stage, Store, number, text, to_lsn};

/// Every kind of relation, and a tablespace of both kinds.
const BEFORE: &str = "
    SET allow_in_place_tablespaces = on;
    CREATE TABLESPACE in_place LOCATION '';
    CREATE TABLE will_change (a int, b text) TABLESPACE one;
    INSERT INTO will_change SELECT g, 'initial ' || g FROM generate_series(1, 20000) g;
    CREATE TABLE will_grow (a int, b text) TABLESPACE in_place;
    INSERT INTO will_grow SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g;
    CREATE TABLE will_shrink (a int, b text) TABLESPACE one;
    INSERT INTO will_shrink SELECT g, repeat('y', 500) FROM generate_series(1, 10000) g;
    CREATE TABLE will_get_vacuumed (a int, b text);
    INSERT INTO will_get_vacuumed SELECT g, repeat('z', 100) FROM generate_series(1, 10000) g;
    CREATE TABLE will_get_dropped AS SELECT g AS a FROM generate_series(1, 1000) g;
    CREATE TABLE will_get_rewritten AS SELECT g AS a, 'r' || g AS b FROM generate_series(1, 5000) g;
    CREATE TABLE will_get_truncated AS SELECT g AS a FROM generate_series(1, 5000) g;
    CREATE TABLE will_move AS SELECT g AS a FROM generate_series(1, 5000) g;
    CREATE TABLE stays AS SELECT g AS a, repeat('s', 200) AS b FROM generate_series(1, 20000) g;
    CREATE INDEX ON will_change (a); CREATE INDEX ON will_change USING hash (b);
    CREATE INDEX ON will_grow USING brin (a);
    CREATE TABLE documents (id serial PRIMARY KEY, body text, words tsvector, box box);
    INSERT INTO documents (body, words, box)
      SELECT repeat(md5(g::text), 200), to_tsvector('simple', md5(g::text)), box(point(g, g), point(g + 1, g + 1))
        FROM generate_series(1, 500) g;
    CREATE INDEX ON documents USING gin (words); CREATE INDEX ON documents USING gist (box);
    CREATE INDEX ON documents USING spgist (box);
    CREATE MATERIALIZED VIEW summary AS SELECT count(*) FROM documents;
    CREATE UNLOGGED TABLE scratch AS SELECT g AS a FROM generate_series(1, 1000) g;
    CREATE INDEX ON scratch (a);
    SELECT lo_from_bytea(424242, decode(repeat('ab', 10000), 'hex'));
    CREATE DATABASE will_go; CREATE DATABASE travels;";

/// The first round of changes.
const ROUND_ONE: &str = "
    UPDATE will_change SET b = 'changed ' || a WHERE a % 50 = 0;
    INSERT INTO will_grow SELECT g, repeat('g', 100) FROM generate_series(1, 20000) g;
    DELETE FROM will_shrink WHERE a > 500; VACUUM will_shrink;
    DELETE FROM will_get_vacuumed WHERE a % 3 = 0; VACUUM will_get_vacuumed;
    DROP TABLE will_get_dropped;
    CREATE TABLE newly_created AS SELECT g AS a FROM generate_series(1, 2000) g;
    CREATE DATABASE logged STRATEGY wal_log;
    CREATE DATABASE copied STRATEGY file_copy;
    DROP DATABASE will_go;";

/// The second: what moves pages without writing them, and files that are born again.
const ROUND_TWO: &str = "
    VACUUM FULL will_get_rewritten; VACUUM FULL pg_class; REINDEX TABLE pg_class;
    ALTER TABLE will_get_rewritten ALTER b TYPE varchar(50) USING b || '!';
    TRUNCATE will_get_truncated; INSERT INTO will_get_truncated VALUES (1);
    ALTER TABLE will_move SET TABLESPACE one;
    ALTER DATABASE travels SET TABLESPACE one;
    INSERT INTO will_shrink SELECT g, repeat('n', 500) FROM generate_series(1, 300) g;
    CREATE TABLE will_get_dropped AS SELECT g AS a FROM generate_series(1, 50) g;
    UPDATE documents SET body = repeat(md5(body), 150) WHERE id % 10 = 0;
    DELETE FROM documents WHERE id % 7 = 0; VACUUM (INDEX_CLEANUP on) documents;
    REFRESH MATERIALIZED VIEW summary;
    SELECT lo_put(424242, 5000, 'changed');
    INSERT INTO scratch VALUES (-1);
    CLUSTER will_change USING will_change_a_idx;
    SELECT setval('documents_id_seq', 7777);";

struct Comparison {
    stage: Stage,
    tablespace: PathBuf,
}

impl Comparison {
    fn start(major: Major) -> Self {
        let builder = Cluster::builder(major)
            .conf("autovacuum", "off")
            .conf("wal_compression", "on");
        let stage = Stage::archiving(builder, Store::Directory);
        let tablespace = stage.cluster.create_tablespace("one").unwrap();
        stage.cluster.sql("postgres", BEFORE).unwrap();
        Self { stage, tablespace }
    }

    fn sql(&self, script: &str) -> String {
        self.stage.cluster.sql("postgres", script).unwrap()
    }

    fn backup(&self, kind: &str, source: &str) -> serde_json::Value {
        let report = self
            .stage
            .backup(&["--type", kind, "--change-source", source]);
        assert_eq!(text(&report, "/change_source/used"), source, "{report:#}");
        let stored = number(&report, "/totals/pages_stored");
        let all = number(&report, "/totals/relation_blocks");
        assert!(0 < stored && stored < all / 2, "{stored} of {all} pages");
        report
    }

    /// Restores into a directory of that name, with the tablespace beside it.
    fn restore(&self, name: &str, label: &str, recovery: &[&str]) -> PathBuf {
        let beside = self.stage.target(&format!("{name}-one"));
        let map = format!("{}={}", self.tablespace.display(), beside.display());
        let mut arguments = vec![label, "--tablespace-map", &map];
        arguments.extend(recovery);
        let restored = self.stage.restore(name, &arguments);
        self.verify_by_server(&restored);
        restored
    }

    /// The server's own check of a base backup, WAL included.
    fn verify_by_server(&self, restored: &Path) {
        let directory = restored.display().to_string();
        let said = self.stage.cluster.run("pg_verifybackup", &[&directory]);
        assert!(said.unwrap().contains("successfully verified"));
    }
}

fn full_and_chain_give_equal_clusters(major: Major) {
    let scene = Comparison::start(major);
    let full = scene.stage.backup(&["--type", "full"]);
    assert_eq!(text(&full, "/change_source/used"), "everything");
    let full = text(&full, "/label").to_owned();
    scene.sql(ROUND_ONE);
    scene.backup("incr", "lsn");
    scene.sql("UPDATE stays SET a = a WHERE a = 1; INSERT INTO newly_created VALUES (0)");
    scene.sql(ROUND_TWO);
    let chain = scene.backup("incr", "digest");
    let chain = text(&chain, "/label").to_owned();
    scene.sql("INSERT INTO will_grow SELECT g, 'after' FROM generate_series(1, 100) g");

    let (moment, before) = scene.stage.moment();
    let recovery = to_lsn(&moment);
    for (name, label) in [("of-full", &full), ("of-chain", &chain)] {
        let restored = scene.restore(name, label, &recovery);
        let restored = scene.stage.start_restored(&restored);
        require_same_dump(&before, &restored.dump().unwrap()).unwrap();
        restored.amcheck().unwrap();
        restored.check_visibility_maps().unwrap();
        let rows = restored.sql("postgres", "SELECT count(*) FROM scratch");
        assert_eq!(rows.unwrap(), "0", "an unlogged table must be empty");
    }
    the_chain_gives_the_bytes_of_the_source(&scene);
}

/// A backup of a server in which nothing happens any more: the files of the restored chain are
/// those that a clean shutdown leaves, before any replay.
fn the_chain_gives_the_bytes_of_the_source(scene: &Comparison) {
    scene.sql("DROP TABLE afterwards; DELETE FROM stays WHERE a > 15000; DROP DATABASE copied");
    // Every hint bit is set and every page written before the backup, so that none is later.
    scene
        .stage
        .cluster
        .run("vacuumdb", &["--all", "--quiet"])
        .unwrap();
    let before = scene.stage.cluster.dump().unwrap();
    scene.sql("CHECKPOINT");
    let layer = scene.backup("incr", "lsn");
    scene.stage.cluster.stop(StopMode::Fast).unwrap();
    let restored = scene.restore(
        "to-the-byte",
        text(&layer, "/label"),
        &["--target-type", "immediate", "--target-action", "promote"],
    );
    let compared = require_same_files(scene.stage.cluster.pgdata(), &restored);
    assert!(
        compared > 20 << 20,
        "{compared} bytes are not all of the cluster"
    );
    let restored = scene.stage.start_restored(&restored);
    require_same_dump(&before, &restored.dump().unwrap()).unwrap();
}

#[test]
fn full_and_chain_give_equal_clusters_on_15() {
    full_and_chain_give_equal_clusters(Major::V15);
}

#[test]
fn full_and_chain_give_equal_clusters_on_17() {
    full_and_chain_give_equal_clusters(Major::V17);
}

#[test]
fn full_and_chain_give_equal_clusters_on_18() {
    full_and_chain_give_equal_clusters(Major::V18);
}
