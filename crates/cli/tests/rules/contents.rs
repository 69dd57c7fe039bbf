//! What belongs into a backup, what does not, and what must be kept to the byte.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use serde_json::Value;

use crate::support::{Stage, Store, text};

const WARNINGS: i32 = 3;

/// Files that describe one run of the server, or belong to somebody else.
const LEFT_OUT: [&str; 16] = [
    "backup_manifest",
    "backup_manifest.tmp",
    "standby.signal",
    "postgresql.auto.conf.tmp",
    "current_logfiles.tmp",
    ".DS_Store",
    "global/pg_internal.init.999",
    "base/1/pg_internal.init.77",
    "base/1/t3_16500",
    "base/1/t3_16500_fsm",
    "base/1/t3_16500.1",
    "base/pgsql_tmp/pgsql_tmp1.0",
    "pg_stat_tmp/global.stat",
    "pg_snapshots/00000003-00000001-1",
    "pg_serial/0001",
    "pg_notify/00FF",
];

/// Files whose names only look like those.
const KEPT: [&str; 5] = [
    "log/pg_wal",
    "log/postmaster.pid",
    "pg_log/backup_label",
    "base/1/PG_VERSION",
    "empty_file",
];

struct Scene {
    stage: Stage,
    outside: PathBuf,
    inside: PathBuf,
}

impl Scene {
    fn start(major: Major) -> Self {
        let builder = Cluster::builder(major)
            .initdb_arg("--allow-group-access")
            .conf("max_prepared_transactions", "5")
            .conf("autovacuum", "off");
        let stage = Stage::archiving(builder, Store::Directory);
        let outside = stage.cluster.create_tablespace("outside").unwrap();
        let inside = stage.cluster.pgdata().join("inside");
        let scene = Self {
            stage,
            outside,
            inside,
        };
        scene.directory(&scene.inside);
        let statements = format!(
            "SET client_min_messages = error; CREATE TABLESPACE inside LOCATION '{}';
             CREATE TABLE of_inside TABLESPACE inside AS SELECT generate_series(1, 1000) AS id;
             CREATE TABLE of_outside TABLESPACE outside AS SELECT generate_series(1, 1000) AS id;
             CREATE UNLOGGED TABLE unlogged AS SELECT generate_series(1, 1000) AS id;
             CREATE INDEX ON unlogged (id); VACUUM unlogged; CHECKPOINT;
             SELECT pg_create_physical_replication_slot('kept_here', true);
             BEGIN; CREATE TABLE prepared AS SELECT 42 AS id; PREPARE TRANSACTION 'comes along';",
            scene.inside.display()
        );
        scene.sql(&statements);
        scene
    }

    fn sql(&self, script: &str) -> String {
        self.stage.cluster.sql("postgres", script).unwrap()
    }

    fn oid(&self, tablespace: &str) -> String {
        self.sql(&format!(
            "SELECT oid FROM pg_tablespace WHERE spcname = '{tablespace}'"
        ))
    }

    /// Made by the server's user, whoever runs this test.
    fn directory(&self, path: &Path) {
        let mut mkdir = self
            .stage
            .cluster
            .command_as_server_user(Path::new("/bin/mkdir"));
        assert!(mkdir.arg("-p").arg(path).status().unwrap().success());
    }

    fn file(&self, path: &str) {
        let full = self.stage.cluster.pgdata().join(path);
        self.directory(full.parent().unwrap());
        if !full.exists() {
            fs::write(&full, path.trim_start_matches("empty_file")).unwrap();
        }
    }

    fn litter(&self) {
        for path in LEFT_OUT.iter().chain(&KEPT) {
            self.file(path);
        }
        let pgdata = self.stage.cluster.pgdata();
        fs::write(
            pgdata.join("backup_label"),
            "START WAL LOCATION: nonsense\n",
        )
        .unwrap();
        fs::write(pgdata.join("tablespace_map"), "1 /nowhere\n").unwrap();
        self.directory(&pgdata.join("empty_directory"));
        self.directory(&self.outside.join("PG_14_202107181/1"));
        fs::write(self.outside.join("PG_14_202107181/1/1259"), "of version 14").unwrap();
        let elsewhere = self.stage.cluster.create_dir("elsewhere").unwrap();
        fs::write(elsewhere.join("extra.conf"), "# linked\n").unwrap();
        symlink(&elsewhere, pgdata.join("conf.d")).unwrap();
        let pipe = pgdata.join("pipe");
        assert!(
            Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    }

    /// What a restart of the source would stumble over.
    fn sweep(&self) {
        let pgdata = self.stage.cluster.pgdata();
        for path in LEFT_OUT
            .iter()
            .chain(&["backup_label", "tablespace_map", "pipe"])
        {
            fs::remove_file(pgdata.join(path)).unwrap();
        }
    }

    /// A backup that warns; returns its report.
    fn backup(&self) -> Value {
        let pgdata = self.stage.pgdata();
        let output = self
            .stage
            .run(&["--output", "json", "backup", "--pgdata", &pgdata]);
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(WARNINGS), "{log}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn restore(&self, name: &str, label: &str) -> PathBuf {
        let map = |tablespace: &str, to: &str| {
            format!(
                "{}={}",
                self.oid(tablespace),
                self.stage.target(to).display()
            )
        };
        let wal = self
            .stage
            .target(&format!("{name}-wal"))
            .display()
            .to_string();
        let outside = map("outside", &format!("{name}-outside"));
        let inside = map("inside", &format!("{name}-inside"));
        let arguments = [
            label,
            "--tablespace-map",
            &outside,
            "--tablespace-map",
            &inside,
            "--wal-dir",
            &wal,
            "--target-type",
            "immediate",
            "--target-action",
            "promote",
        ];
        self.stage.restore(name, &arguments)
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn rule_6_what_belongs_to_one_run_stays_and_permissions_come_along(major: Major) {
    let scene = Scene::start(major);
    scene.litter();
    let report = scene.backup();
    let warnings = report["warnings"].to_string();
    for word in ["conf.d", "pipe"] {
        assert!(warnings.contains(word), "{word} is not in {warnings}");
    }
    let label = text(&report, "/label").to_owned();
    let restored = scene.restore("restored", &label);
    rule_2_label_and_map_are_the_servers_to_the_byte(&scene, &label, &restored);
    for path in LEFT_OUT.iter().filter(|path| **path != "backup_manifest") {
        assert!(!restored.join(path).exists(), "{path} was restored");
    }
    for path in [
        "postmaster.pid",
        "postmaster.opts",
        "pipe",
        "global/pg_internal.init",
    ] {
        assert!(!restored.join(path).exists(), "{path} was restored");
    }
    for path in KEPT.iter().chain(&["conf.d/extra.conf", "pg_hba.conf"]) {
        let source = fs::read(scene.stage.cluster.pgdata().join(path)).unwrap();
        assert_eq!(fs::read(restored.join(path)).unwrap(), source, "{path}");
    }
    assert!(
        fs::symlink_metadata(restored.join("conf.d"))
            .unwrap()
            .is_dir()
    );
    for path in [
        "empty_directory",
        "pg_commit_ts",
        "pg_replslot",
        "pg_notify",
    ] {
        let entries = fs::read_dir(restored.join(path)).unwrap().count();
        assert_eq!(entries, 0, "{path} is not empty");
    }
    assert!(restored.join("pg_wal/archive_status").is_dir());
    assert_eq!(
        restored.join("pg_wal/summaries").is_dir(),
        major >= Major::V17
    );
    assert_eq!(mode(&restored), 0o750);
    assert_eq!(mode(&restored.join("base/1")), 0o750);
    assert_eq!(mode(&restored.join("PG_VERSION")), 0o640);
    assert_eq!(mode(&restored.join("global/pg_control")), 0o640);
    the_group_may_read_all_files_of(&restored.join("pg_wal"));
    the_group_may_read_all_files_of(&restored.join("pg_wal/archive_status"));
    rule_6_unlogged_relations_keep_their_init_fork_alone(&scene, &restored);
    rule_6_tablespaces_are_copied_once(&scene, &restored);
    let before = scene.stage.cluster.dump().unwrap();
    scene.sweep();
    let copy = scene.stage.start_restored(&restored);
    require_same_dump(&before, &copy.dump().unwrap()).unwrap();
    assert_eq!(
        copy.sql("postgres", "SELECT count(*) FROM unlogged")
            .unwrap(),
        "0"
    );
    let prepared = "COMMIT PREPARED 'comes along'; SELECT id FROM prepared";
    assert_eq!(copy.sql("postgres", prepared).unwrap(), "42");
    a_cluster_whose_pg_wal_is_a_link_is_backed_up(&scene, &copy);
}

fn the_group_may_read_all_files_of(directory: &Path) {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let files: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    assert!(!files.is_empty());
    for file in files {
        assert_eq!(mode(&file), 0o640, "{}", file.display());
    }
}

fn rule_2_label_and_map_are_the_servers_to_the_byte(scene: &Scene, label: &str, restored: &Path) {
    let manifest = &scene.stage.manifest(label);
    let written = fs::read_to_string(restored.join("backup_label")).unwrap();
    assert_eq!(text(manifest, "/backup_label"), written);
    assert!(written.starts_with("START WAL LOCATION: 0/"), "{written}");
    assert!(
        written.contains(&format!("\nLABEL: pgstrata {label}\n")),
        "{written}"
    );
    assert!(written.ends_with("START TIMELINE: 1\n"), "{written}");
    let map = text(manifest, "/tablespace_map");
    assert!(
        map.contains(&format!(
            "{} {}\n",
            scene.oid("outside"),
            scene.outside.display()
        )),
        "{map}"
    );
    let moved = fs::read_to_string(restored.join("tablespace_map")).unwrap();
    let target = scene.stage.target("restored-outside");
    assert!(
        moved.contains(&format!("{} {}\n", scene.oid("outside"), target.display())),
        "{moved}"
    );
    assert_eq!(moved.lines().count(), map.lines().count());
}

fn rule_6_unlogged_relations_keep_their_init_fork_alone(scene: &Scene, restored: &Path) {
    for relation in ["unlogged", "unlogged_id_idx"] {
        let path = scene.sql(&format!("SELECT pg_relation_filepath('{relation}')"));
        assert!(scene.stage.cluster.pgdata().join(&path).exists());
        assert!(!restored.join(&path).exists(), "{relation} was stored");
        assert!(restored.join(format!("{path}_init")).exists(), "{relation}");
        for fork in ["_fsm", "_vm"] {
            assert!(
                !restored.join(format!("{path}{fork}")).exists(),
                "{relation}{fork}"
            );
        }
    }
}

fn rule_6_tablespaces_are_copied_once(scene: &Scene, restored: &Path) {
    // The directory in the data directory is there, and empty: its contents are the tablespace's.
    assert_eq!(fs::read_dir(restored.join("inside")).unwrap().count(), 0);
    let outside = scene.stage.target("restored-outside");
    let names: Vec<_> = fs::read_dir(&outside)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(!names[0].starts_with("PG_14"), "{names:?}");
    let path = scene.sql("SELECT pg_relation_filepath('of_inside')");
    let contents = fs::read(scene.stage.cluster.pgdata().join(&path)).unwrap();
    assert_eq!(fs::read(restored.join(&path)).unwrap(), contents);
}

/// The restored cluster has its WAL elsewhere: such a cluster is itself a source.
fn a_cluster_whose_pg_wal_is_a_link_is_backed_up(scene: &Scene, copy: &Cluster) {
    let wal = copy.pgdata().join("pg_wal");
    assert!(fs::symlink_metadata(&wal).unwrap().is_symlink());
    let pgdata = copy.pgdata().display().to_string();
    let conninfo = copy.conninfo("postgres");
    // The link to conf.d and the pipe were left behind: there is nothing to warn of.
    let report = scene.stage.json(&[
        "backup",
        "-D",
        &pgdata,
        "-d",
        &conninfo,
        "--wal",
        "stream",
        "--change-source",
        "lsn",
    ]);
    assert_eq!(text(&report, "/change_source/used"), "digest");
    let restored = scene.restore("again", text(&report, "/label"));
    let again = scene.stage.start_restored(&restored);
    require_same_dump(&copy.dump().unwrap(), &again.dump().unwrap()).unwrap();
}

#[test]
fn rule_6_what_belongs_to_one_run_stays_and_permissions_come_along_on_15() {
    rule_6_what_belongs_to_one_run_stays_and_permissions_come_along(Major::V15);
}

#[test]
fn rule_6_what_belongs_to_one_run_stays_and_permissions_come_along_on_18() {
    rule_6_what_belongs_to_one_run_stays_and_permissions_come_along(Major::V18);
}
