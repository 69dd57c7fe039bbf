//! What a change source must not miss.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use pgstrata_testbed::cluster::{Builder, Cluster, Major, StopMode, require_same_dump};
use serde_json::Value;

use crate::support::files::require_same_files;
use crate::support::{Stage, Store, number, text};

/// Rows by the visibility map and by the heap.
const COUNTS: &str = "
    SET max_parallel_workers_per_gather = 0; SET enable_bitmapscan = off;
    SET enable_seqscan = off; SELECT count(*) FROM t WHERE id > 0;
    SET enable_seqscan = on; SET enable_indexscan = off; SET enable_indexonlyscan = off;
    SELECT count(*) FROM t WHERE id > 0;";

/// A heap is truncated and grows again: the bits of its visibility map are cleared without a
/// record of their pages. PostgreSQL 18.6's own incremental backups return wrong rows here.
fn rule_4_2_a_truncated_visibility_map_does_not_come_back(major: Major, source: &str) {
    let builder = Cluster::builder(major)
        .checksums(false)
        .conf("wal_log_hints", "off")
        .conf("autovacuum", "off")
        .conf("summarize_wal", "on");
    let builder = if major >= Major::V17 {
        builder
    } else {
        Cluster::builder(major)
            .checksums(false)
            .conf("wal_log_hints", "off")
            .conf("autovacuum", "off")
    };
    let stage = Stage::archiving(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE t (id int PRIMARY KEY, pad text);
         INSERT INTO t SELECT g, repeat('x', 400) FROM generate_series(1, 20000) g;
         VACUUM (FREEZE, ANALYZE) t;");
    stage.backup(&["--type", "full"]);
    sql("DELETE FROM t WHERE id >= 5000; VACUUM t;
         INSERT INTO t SELECT g, repeat('y', 400) FROM generate_series(20001, 30000) g;
         DELETE FROM t WHERE id > 20000;");
    let layer = stage.backup(&["--type", "incr", "--change-source", source]);
    // Here page LSNs do not tell of every bit.
    let used = if source == "lsn" { "digest" } else { source };
    assert_eq!(text(&layer, "/change_source/used"), used, "{layer:#}");
    let stored = number(&layer, "/totals/pages_stored");
    assert!(0 < stored && stored < number(&layer, "/totals/relation_blocks"));
    let arguments = ["--target-type", "immediate", "--target-action", "promote"];
    let restored = stage.start_restored(&stage.restore("restored", &arguments));
    let counts = restored.sql("postgres", COUNTS).unwrap();
    assert_eq!(counts, "4999\n4999", "by the visibility map, by the heap");
    restored.check_visibility_maps().unwrap();
    restored.amcheck().unwrap();
}

#[test]
fn rule_4_2_a_truncated_visibility_map_does_not_come_back_on_15() {
    rule_4_2_a_truncated_visibility_map_does_not_come_back(Major::V15, "lsn");
}

#[test]
fn rule_4_2_a_truncated_visibility_map_does_not_come_back_on_18() {
    for source in ["lsn", "digest", "summary"] {
        rule_4_2_a_truncated_visibility_map_does_not_come_back(Major::V18, source);
    }
}

struct Scene(Stage);

impl Scene {
    fn start(builder: Builder) -> Self {
        Self(Stage::silent(
            builder.conf("autovacuum", "off"),
            Store::Directory,
        ))
    }

    fn sql(&self, script: &str) -> String {
        self.0.cluster.sql("postgres", script).unwrap()
    }

    /// Stops the server for an act that needs that.
    fn offline(&self, act: impl FnOnce(&Cluster)) {
        self.0.cluster.stop(StopMode::Fast).unwrap();
        act(&self.0.cluster);
        self.0.cluster.start().unwrap();
    }

    fn incremental(&self, used: &str) -> Value {
        let layer = self.0.backup(&["--type", "incr", "--change-source", "lsn"]);
        assert_eq!(text(&layer, "/change_source/used"), used, "{layer:#}");
        layer
    }

    /// The newest layer equals the source, byte for byte, once nothing happens any more.
    fn require_bytes(&self, name: &str, used: &str) -> Value {
        self.0
            .cluster
            .run("vacuumdb", &["--all", "--quiet"])
            .unwrap();
        self.0.cluster.dump().unwrap();
        self.sql("CHECKPOINT");
        let layer = self.incremental(used);
        self.0.cluster.stop(StopMode::Fast).unwrap();
        let restored = self
            .0
            .restore(name, &["--target-type", "none", "--same-timeline"]);
        require_same_files(self.0.cluster.pgdata(), &restored);
        self.0.cluster.start().unwrap();
        // The first one after a start; what comes next is told by LSNs again.
        self.incremental("digest");
        layer
    }
}

/// A relation's file number is used again by another relation, whose unwritten pages must not
/// show the old one's.
#[test]
fn rule_4_5_a_file_of_the_same_name_is_not_the_same_file() {
    let scene = Scene::start(Cluster::builder(Major::V15));
    scene.sql(
        "CREATE TABLE old AS SELECT g AS id, repeat('old', 100) AS pad FROM generate_series(1, 5000) g;
         CREATE TABLE odd AS SELECT generate_series(1, 1000) AS id; CHECKPOINT",
    );
    let path = scene.sql("SELECT pg_relation_filepath('old')");
    let oid = scene.sql("SELECT 'old'::regclass::oid");
    let blocks = |report: &Value| number(report, "/totals/pages_stored");
    let full = scene.0.backup(&["--type", "full"]);
    let layer = scene.incremental("lsn");
    assert!(blocks(&layer) < blocks(&full) / 10, "{layer:#}");
    // The rows of a table that was dropped keep its number taken as long as they are there.
    scene.sql("DROP TABLE old; VACUUM pg_class; CHECKPOINT");
    let pgdata = scene.0.pgdata();
    scene.offline(|cluster| {
        cluster
            .run("pg_resetwal", &["-o", &oid, "-D", &pgdata])
            .unwrap();
    });
    scene.sql("CREATE TABLE young (id int); INSERT INTO young SELECT generate_series(1, 100000)");
    assert_eq!(scene.sql("SELECT pg_relation_filepath('young')"), path);
    // Pages that the server has added and not written yet.
    let file = scene.0.cluster.pgdata().join(&path);
    let pages = fs::metadata(&file).unwrap().len();
    let mut append = OpenOptions::new().append(true).open(&file).unwrap();
    append.write_all(&[0; 20 * 8192]).unwrap();
    assert!(fs::metadata(&file).unwrap().len() > pages);
    let layer = scene.require_bytes("young", "digest");
    assert!(blocks(&layer) < blocks(&full), "{layer:#}");
    rule_4_6_a_file_of_an_odd_size_is_kept_to_the_byte(&scene);
    rule_4_8_what_wal_level_minimal_does_not_log_is_not_missed(&scene);
    rule_4_7_an_older_copy_of_the_cluster_is_not_told_by_lsns(&scene);
}

/// A relation grows beyond its first file, and shrinks again: the second stays, and is empty.
#[test]
fn rule_4_5_a_second_segment_comes_and_goes() {
    let scene = Scene::start(Cluster::builder(Major::V15));
    scene.sql(
        "CREATE TABLE big (id int, pad text); INSERT INTO big VALUES (0, 'first'); CHECKPOINT",
    );
    let path = scene.sql("SELECT pg_relation_filepath('big')");
    let (first, second) = (path.clone(), format!("{path}.1"));
    scene.0.backup(&["--type", "full"]);
    // Pages that were added and never written, up to the last one.
    scene.offline(|cluster| {
        let file = cluster.pgdata().join(&first);
        let file = OpenOptions::new().write(true).open(file).unwrap();
        file.set_len(1 << 30).unwrap();
    });
    scene.sql(
        "INSERT INTO big SELECT g, repeat('x', 500) FROM generate_series(1, 3000) g; CHECKPOINT",
    );
    assert!(scene.0.cluster.pgdata().join(&second).exists());
    let stored = |layer: &Value| number(layer, "/totals/pages_stored");
    let idle = 1000;
    let grown = stored(&scene.incremental("digest"));
    assert!((200..idle).contains(&grown), "{grown}");
    scene.sql("UPDATE big SET pad = 'y' WHERE id % 100 = 1; CHECKPOINT");
    scene.incremental("lsn");
    scene.0.cluster.stop(StopMode::Fast).unwrap();
    let restored = scene.0.restore(
        "two-segments",
        &["--target-type", "none", "--same-timeline"],
    );
    for segment in [&first, &second] {
        let mut cmp = Command::new("cmp");
        cmp.args([
            scene.0.cluster.pgdata().join(segment),
            restored.join(segment),
        ]);
        assert!(cmp.status().unwrap().success(), "{segment} differs");
    }
    let on_disk = fs::metadata(restored.join(&first)).unwrap().blocks() * 512;
    assert!(on_disk < 1 << 20, "zeros take {on_disk} bytes on disk");
    scene.0.cluster.start().unwrap();
    scene.incremental("digest");
    scene.sql("DELETE FROM big WHERE id > 0; VACUUM big; CHECKPOINT");
    scene.require_bytes("one-segment", "lsn");
    let size = |root: &Path| fs::metadata(root.join(&second)).unwrap().len();
    let restored = scene.0.target("one-segment");
    assert_eq!((size(scene.0.cluster.pgdata()), size(&restored)), (0, 0));
}

/// Files without page LSNs, and databases without block references.
#[test]
fn rule_4_3_files_without_page_lsns_are_not_told_by_their_times() {
    let scene = Scene::start(Cluster::builder(Major::V18));
    scene.sql("CREATE DATABASE origin");
    let filled = "CREATE TABLE t AS SELECT generate_series(1, 50000) AS id";
    scene.0.cluster.sql("origin", filled).unwrap();
    scene.sql("CHECKPOINT");
    scene.0.backup(&["--type", "full"]);
    let map = scene.sql("SELECT format('base/%s/pg_filenode.map', oid) FROM pg_database WHERE datname = current_database()");
    let map = scene.0.cluster.pgdata().join(map);
    let (before, time) = (fs::read(&map).unwrap(), modified(&map));
    scene.sql("VACUUM FULL pg_class; CHECKPOINT");
    let after = fs::read(&map).unwrap();
    assert!(after != before && after.len() == before.len());
    OpenOptions::new()
        .write(true)
        .open(&map)
        .and_then(|file| file.set_modified(time))
        .unwrap();
    rule_4_4_a_database_copied_as_files_is_new_as_a_whole(&scene);
}

fn modified(path: &Path) -> SystemTime {
    fs::metadata(path).unwrap().modified().unwrap()
}

/// Its pages carry the LSNs of the original, older than the parent.
fn rule_4_4_a_database_copied_as_files_is_new_as_a_whole(scene: &Scene) {
    scene.sql("CREATE DATABASE copied TEMPLATE origin STRATEGY file_copy");
    let pages = "SELECT (sum(pg_relation_size(oid)) / 8192)::bigint FROM pg_class WHERE relkind IN ('r', 'i', 't')";
    let pages = scene.0.cluster.sql("copied", pages).unwrap();
    let layer = scene.incremental("lsn");
    let stored = number(&layer, "/totals/pages_stored");
    assert!(stored > pages.parse().unwrap(), "{layer:#}");
    let dump = scene.0.cluster.dump().unwrap();
    let restored = scene
        .0
        .restore("copied", &["--target-type", "none", "--same-timeline"]);
    let restored = scene.0.start_restored(&restored);
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
    restored.amcheck().unwrap();
}

/// A reader sets hint bits, and VACUUM the bit "all visible": without checksums that writes the page with the LSN it had.
/// The visibility map must not come without the bits that it stands for.
fn rule_4_9_bits_without_wal_are_not_missed(major: Major) {
    let builder = Cluster::builder(major).checksums(false);
    let scene = Scene::start(builder.conf("wal_log_hints", "off"));
    scene.sql(
        "CREATE TABLE t (id int PRIMARY KEY, pad text);
         INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 5000) g; CHECKPOINT",
    );
    scene.0.backup(&["--type", "full"]);
    let file = scene.sql("SELECT pg_relation_filepath('t')");
    let file = scene.0.cluster.pgdata().join(file);
    let before = fs::read(&file).unwrap();
    scene.sql("SELECT count(*) FROM t; VACUUM t; CHECKPOINT");
    let after = fs::read(&file).unwrap();
    assert_ne!(before, after, "no bit was set");
    for (before, after) in before.chunks(8192).zip(after.chunks(8192)) {
        assert_eq!(before[..8], after[..8], "the LSN of a page has changed");
    }
    let layer = scene.incremental("digest");
    let reason = text(&layer, "/change_source/reason");
    assert!(
        reason.contains("not by lsn") && reason.contains("wal_log_hints"),
        "{reason}"
    );
    let arguments = ["--target-type", "none", "--same-timeline"];
    let restored = scene
        .0
        .start_restored(&scene.0.restore("restored", &arguments));
    restored.check_visibility_maps().unwrap();
    restored
        .sql("postgres", "DELETE FROM t WHERE id <= 2000")
        .unwrap();
    let counts = restored.sql("postgres", COUNTS).unwrap();
    assert_eq!(counts, "3000\n3000", "by the visibility map, by the heap");
    // Where the bits have LSNs, page LSNs are enough.
    scene.offline(|cluster| cluster.append_conf("wal_log_hints", "on").unwrap());
    scene.incremental("digest");
    scene.incremental("lsn");
}

#[test]
fn rule_4_9_bits_without_wal_are_not_missed_on_15() {
    rule_4_9_bits_without_wal_are_not_missed(Major::V15);
}

#[test]
fn rule_4_9_bits_without_wal_are_not_missed_on_18() {
    rule_4_9_bits_without_wal_are_not_missed(Major::V18);
}

fn rule_4_6_a_file_of_an_odd_size_is_kept_to_the_byte(scene: &Scene) {
    let path = scene.sql("SELECT pg_relation_filepath('odd')");
    let file = scene.0.cluster.pgdata().join(&path);
    let mut append = OpenOptions::new().append(true).open(&file).unwrap();
    append
        .write_all(b"half a page, as a crash may leave it")
        .unwrap();
    scene.require_bytes("odd", "lsn");
    // And back to whole pages.
    scene.sql("VACUUM FULL odd; UPDATE odd SET id = id + 1 WHERE id < 10");
    scene.require_bytes("even", "lsn");
}

fn rule_4_8_what_wal_level_minimal_does_not_log_is_not_missed(scene: &Scene) {
    let set = |cluster: &Cluster, level: &str, senders: &str| {
        cluster.append_conf("wal_level", level).unwrap();
        cluster.append_conf("max_wal_senders", senders).unwrap();
    };
    scene.offline(|cluster| set(cluster, "minimal", "0"));
    scene.sql(
        "BEGIN; CREATE TABLE unlogged_load (id int); INSERT INTO unlogged_load SELECT generate_series(1, 50000);
         TRUNCATE odd; INSERT INTO odd SELECT generate_series(1, 20000); COMMIT; CREATE INDEX ON unlogged_load (id)",
    );
    scene.offline(|cluster| set(cluster, "replica", "10"));
    scene.require_bytes("minimal", "digest");
}

/// The files are put back to an earlier state: the WAL goes another way from there, and neither
/// page LSNs nor the WAL of the same name may be believed.
fn rule_4_7_an_older_copy_of_the_cluster_is_not_told_by_lsns(scene: &Scene) {
    let pgdata = scene.0.cluster.pgdata().to_owned();
    let older = scene.0.target("older");
    let copy = |from: &Path, to: &Path| {
        let mut cp = scene.0.cluster.command_as_server_user(Path::new("/bin/cp"));
        assert!(cp.arg("-a").arg(from).arg(to).status().unwrap().success());
    };
    scene.offline(|_| copy(&pgdata, &older));
    scene.sql("CREATE TABLE will_be_forgotten AS SELECT generate_series(1, 100000) AS id");
    scene.incremental("digest");
    let layers = scene.0.layer_counts().0;
    scene.offline(|_| {
        fs::remove_dir_all(&pgdata).unwrap();
        copy(&older, &pgdata);
    });
    let before = scene.0.cluster.dump().unwrap();
    // Its WAL has the names of WAL that is there with other contents: nothing may be overwritten.
    let server = scene.0.pgdata();
    let (code, log) = scene.0.fails(&["backup", "-D", &server, "--type", "incr"]);
    assert_eq!(code, 11, "{log}");
    assert!(log.contains("it is of another history"), "{log}");
    assert_eq!(scene.0.layer_counts().0, layers);
    // Past the WAL that is there, digests are compared.
    for _ in 0..12 {
        scene.sql("CREATE TABLE forth AS SELECT 1; DROP TABLE forth; SELECT pg_switch_wal()");
    }
    let layer = scene
        .0
        .backup(&["--type", "incr", "--change-source", "digest"]);
    assert_eq!(text(&layer, "/change_source/used"), "digest");
    let restored = scene
        .0
        .restore("forgotten", &["--target-type", "none", "--same-timeline"]);
    let restored = scene.0.start_restored(&restored);
    require_same_dump(&before, &restored.dump().unwrap()).unwrap();
}
