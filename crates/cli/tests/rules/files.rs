//! Section 13, 2 and 3: files that change while they are read, and how many are open.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pgstrata_testbed::cluster::{Cluster, Major};
use serde_json::Value;

use crate::support::process::log_of;
use crate::support::{Stage, Store, number, restore_alone};

/// Something to read for seconds at the rate of `begin_backup`, before the files in question.
const BULK: &str = "CREATE TABLE bulk AS
    SELECT repeat(md5(g::text), 30) AS t FROM generate_series(1, 60000) g";

/// Replication origins `first` to `last` with a position each, which a checkpoint writes.
fn origins(stage: &Stage, first: u32, last: u32) {
    let sql = format!(
        "SELECT pg_replication_origin_create('origin' || g) FROM generate_series({first}, {last}) g;
         SELECT pg_replication_origin_advance('origin' || g, '0/1000')
         FROM generate_series({first}, {last}) g;"
    );
    stage.cluster.sql("postgres", &sql).unwrap();
    stage.cluster.sql("postgres", "CHECKPOINT").unwrap();
}

fn append(path: &Path, text: &str) {
    let file = OpenOptions::new().append(true).open(path);
    file.unwrap().write_all(text.as_bytes()).unwrap();
}

fn rule_13_2_files_that_grow_after_the_list_are_stored_whole(major: Major) {
    let limit = match major {
        Major::V18 => "max_active_replication_origins",
        _ => "max_replication_slots",
    };
    let builder = Cluster::builder(major).conf(limit, "60");
    let stage = Stage::archiving(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql(BULK);
    origins(&stage, 1, 2);
    let child = stage.begin_backup(&["--type", "full"]);
    origins(&stage, 3, 50);
    for (name, value) in [
        ("work_mem", "'5MB'"),
        (
            "log_line_prefix",
            "'a prefix that is long enough to be seen: %m %p '",
        ),
        ("maintenance_work_mem", "'17MB'"),
    ] {
        sql(&format!("ALTER SYSTEM SET {name} = {value}"));
    }
    let hba = stage.cluster.pgdata().join("pg_hba.conf");
    append(&hba, &"# a comment\n".repeat(2000));
    append(&hba, "local all nobody reject\n");
    let log = log_of(child);
    assert!(!log.contains("error"), "{log}");

    let target = stage.restore(
        "restored",
        &["--target-type", "immediate", "--target-action", "promote"],
    );
    let origin = "pg_logical/replorigin_checkpoint";
    for path in [origin, "pg_hba.conf"] {
        let bytes = |root: &Path| fs::read(root.join(path)).unwrap();
        assert!(bytes(&target) == bytes(stage.cluster.pgdata()), "{path}");
    }
    let restored = stage.start_restored(&target);
    let there = |query: &str| restored.sql("postgres", query).unwrap();
    assert_eq!(
        there("SELECT count(*) FROM pg_replication_origin_status"),
        "50"
    );
    assert_eq!(there("SHOW maintenance_work_mem"), "17MB");
    stage.ok(&["verify", "--deep"]);
}

#[test]
fn rule_13_2_files_that_grow_after_the_list_are_stored_whole_on_15() {
    rule_13_2_files_that_grow_after_the_list_are_stored_whole(Major::V15);
}

#[test]
fn rule_13_2_files_that_grow_after_the_list_are_stored_whole_on_18() {
    rule_13_2_files_that_grow_after_the_list_are_stored_whole(Major::V18);
}

/// A file of one letter, which a thread changes by renames; the other letter never mixes with it.
const LETTERS: [&str; 2] = ["a", "b"];
const LETTERS_BYTES: usize = 700_000;

/// Writes to files of the data directory until `stop`: one replaced by rename, one with
/// lines appended, a log that grows by 20 MB a second, and one written in place.
fn never_rest(pgdata: &Path, stop: &AtomicBool) {
    let (replaced, new) = (pgdata.join("letters.conf"), pgdata.join("letters.new"));
    let (hba, log) = (pgdata.join("pg_hba.conf"), pgdata.join("log/noise.log"));
    let in_place = pgdata.join("in_place");
    for turn in 0_usize.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let letter = LETTERS[turn % 2];
        fs::write(&new, letter.repeat(LETTERS_BYTES)).unwrap();
        fs::rename(&new, &replaced).unwrap();
        append(&hba, &format!("# {} line {turn}\n", letter.repeat(100)));
        append(&log, &letter.repeat(200_000));
        fs::write(&in_place, letter.repeat(300_000)).unwrap();
        thread::sleep(Duration::from_millis(10));
    }
}

/// A backup that may have warned that the file at `path`, and no other, is of several versions.
fn may_be_torn(backup: &Output, path: &str) {
    let report: Value = serde_json::from_slice(&backup.stdout).unwrap();
    let warnings = report["warnings"].as_array().unwrap();
    let torn = format!("\"{path}\" was written whenever it was read");
    let only_torn = warnings
        .iter()
        .all(|one| one.as_str().unwrap().starts_with(&torn));
    let code = if warnings.is_empty() { 0 } else { 3 };
    assert!(
        only_torn && backup.status.code() == Some(code),
        "{} {report:#}",
        backup.status
    );
}

#[test]
fn rule_13_2_a_backup_ends_beside_files_that_never_rest() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let pgdata = stage.cluster.pgdata();
    fs::create_dir_all(pgdata.join("log")).unwrap();
    for path in ["log/noise.log", "letters.conf", "in_place"] {
        fs::write(pgdata.join(path), "a").unwrap();
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| never_rest(pgdata, &stop));
        let backups = ["full", "incr", "incr"].map(|kind| {
            let pgdata = stage.pgdata();
            stage.run(&[
                "--output", "json", "backup", "--pgdata", &pgdata, "--type", kind,
            ])
        });
        stop.store(true, Ordering::Relaxed);
        for backup in &backups {
            may_be_torn(backup, "in_place");
        }
    });
    stage.ok(&["verify", "--deep"]);
    let target = stage.restore(
        "restored",
        &["--target-type", "immediate", "--target-action", "promote"],
    );
    let read = |path: &str| fs::read_to_string(target.join(path)).unwrap();
    let letters = read("letters.conf");
    let whole = LETTERS
        .iter()
        .any(|one| letters == one.repeat(LETTERS_BYTES));
    assert!(whole, "{} bytes of both letters", letters.len());
    assert!(read("pg_hba.conf").ends_with('\n'));
    assert!(read("log/noise.log").len() > 1);
    stage.start_restored(&target);
}

/// The program under a limit of open files that it cannot raise.
fn limited(stage: &Stage, limit: u32, arguments: &[&str]) -> Output {
    let plain = stage.command(arguments);
    let mut command = stage.cluster.command_as_server_user(Path::new("bash"));
    command
        .arg("-c")
        .arg(format!("ulimit -n {limit} && exec \"$0\" \"$@\""));
    command.arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.output().unwrap()
}

/// Every command that reads or writes many files, with as many workers as one may ask for.
fn rule_13_3_open_files_are_few(store: Store, tables: u32, limit: u32) {
    let builder = Cluster::builder(Major::V15).conf("max_locks_per_transaction", "1024");
    let stage = Stage::archiving(builder, store);
    let create = format!(
        "DO $$ BEGIN FOR n IN 1..{tables} LOOP
             EXECUTE format('CREATE TABLE many%s (g) AS SELECT 1', n);
             IF n % 1000 = 0 THEN COMMIT; END IF;
         END LOOP; END $$"
    );
    stage.cluster.sql("postgres", &create).unwrap();
    let pgdata = stage.pgdata();
    let target = stage.target("restored").display().to_string();
    let run = |arguments: &[&str]| {
        let output = limited(&stage, limit, &[&["--jobs", "16"], arguments].concat());
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {log}");
    };
    run(&["backup", "--pgdata", &pgdata, "--type", "full"]);
    let touch = format!(
        "DO $$ BEGIN FOR n IN 1..{tables} LOOP
             EXECUTE format('INSERT INTO many%s VALUES (2)', n);
         END LOOP; END $$"
    );
    stage.cluster.sql("postgres", &touch).unwrap();
    for source in ["digest", "lsn"] {
        run(&[
            "backup",
            "--pgdata",
            &pgdata,
            "--type",
            "incr",
            "--change-source",
            source,
        ]);
    }
    run(&["verify", "--deep"]);
    run(&["info"]);
    let layers = stage.json(&["info"]);
    let newest = layers["layers"].as_array().unwrap().last().unwrap();
    let label = newest["label"].as_str().unwrap();
    run(&["merge", label]);
    let promote = ["--target-action", "promote"];
    let restore = [&restore_alone(&target)[..], &promote].concat();
    run(&restore);
    run(&[&restore[..], &["--delta"]].concat());
    run(&["check", "--pgdata", &pgdata]);
    let restored = stage.start_restored(Path::new(&target));
    let rows = restored.sql("postgres", &format!("SELECT sum(g) FROM many{tables}"));
    assert_eq!(rows.unwrap(), "3");
    let layers = stage.json(&["info"]);
    assert!(layers["layers"].as_array().unwrap().len() >= 3);
    assert!(number(&layers, "/layers/0/totals/files") > u64::from(tables));
}

#[test]
fn rule_13_3_open_files_are_few_in_a_directory() {
    // As many files for each descriptor as 20 000 tables have with the usual limit.
    rule_13_3_open_files_are_few(Store::Directory, 3000, 150);
}

#[test]
fn rule_13_3_open_files_are_few_on_s3() {
    rule_13_3_open_files_are_few(Store::S3, 1500, 96);
}

/// By hand: `cargo nextest run -p pgstrata --test rules --run-ignored only 20_000`. `make limits CASES=tables` runs the same
/// commands, and measures them.
#[test]
#[ignore = "makes 20 000 tables, which takes minutes"]
fn rule_13_3_open_files_are_few_with_20_000_tables() {
    rule_13_3_open_files_are_few(Store::Directory, 20_000, 1024);
}
