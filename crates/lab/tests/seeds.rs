//! The experiments on servers of the lab's own, as small as they go.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails says where"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pgstrata_lab::contenders::pgbackrest::PgBackRest;
use pgstrata_lab::measure::result::Experiment;
use pgstrata_testbed::cluster::Major;
use support::Lab;

fn bindir(major: Major) -> String {
    major.bindir().unwrap().display().to_string()
}

/// Runs an experiment on a server of this version, with our program where it takes backups.
fn measured(words: &str, major: Major) -> (Experiment, String) {
    let (_, experiment, printed) = kept(words, major);
    (experiment, printed)
}

/// The same, with the lab that has its files.
fn kept(words: &str, major: Major) -> (Lab, Experiment, String) {
    let (program, bindir) = (pgstrata(), bindir(major));
    let mut all: Vec<&str> = words.split(' ').collect();
    all.extend(["--bindir", &bindir]);
    if takes_backups(words) {
        all.extend(["--pgstrata", &program]);
    }
    if !words.contains("--settle") {
        // What is measured here is compared with nothing: a busy machine may stay so.
        all.extend(["--settle", "0s"]);
    }
    let lab = Lab::new();
    let (experiment, printed) = lab.experiment(&all);
    // What it expects is written down before the first measurement.
    let plan = std::fs::read_to_string(lab.out().join("plan.toml")).unwrap();
    for words in experiment.hypothesis.iter() {
        assert!(plan.contains(words.as_str()), "{plan}");
    }
    assert_eq!(
        plan.matches("[[plan.claims]]").count(),
        experiment.plan.claims.len(),
        "{plan}"
    );
    // Either there are figures of others, or it is said that there are none.
    let is_told = |note: &String| note.starts_with("Nobody has published figures");
    assert_eq!(
        experiment.notes.iter().any(is_told),
        experiment.published.is_empty()
    );
    // Arms are told apart by what is said of them, and what is known of their server is known of all.
    let described: std::collections::BTreeSet<&str> = experiment
        .arms
        .iter()
        .map(|arm| arm.description.as_str())
        .collect();
    assert_eq!(described.len(), experiment.arms.len(), "{described:?}");
    assert!(
        !printed.contains("An environment was captured"),
        "{printed}"
    );
    for run in &experiment.runs {
        assert!(
            run.values.contains_key("cpu_foreign"),
            "arm {}: {:?}",
            run.arm,
            run.values
        );
    }
    (lab, experiment, printed)
}

/// Uses a processor until it is dropped.
struct Spinner(Arc<AtomicBool>);

impl Spinner {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        std::thread::spawn(move || while !seen.load(Ordering::Relaxed) {});
        Self(stop)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn takes_backups(words: &str) -> bool {
    !words.contains("tracking") && !words.contains("copy-ring")
}

#[test]
fn copying_goes_through_a_ring_that_is_used_again() {
    let spinner = Spinner::start();
    let (experiment, printed) = measured(
        "seed copy-ring --preset tiny --blocks 1 -t 2 --settle 0s",
        Major::V18,
    );
    drop(spinner);
    assert!(printed.contains("ENV-FOREIGN-CPU"), "{printed}");
    assert_eq!(experiment.runs.len(), 2);
    for run in &experiment.runs {
        assert!(
            run.values["pg_stat_io.bulkwrite.reuses"] > 0.0,
            "{:?}",
            run.values
        );
        assert!((run.values["transactions"] - 2.0).abs() < 1e-9);
    }
    assert!(printed.contains("std. deviation"), "{printed}");
}

#[test]
fn what_copying_is_judged_by_is_what_can_be_claimed_of_it() {
    for (claim, code) in [("latency_mean >= 1", 0), ("tps >= 1", 2)] {
        let lab = Lab::new();
        let words = [
            "seed",
            "copy-ring",
            "--dry-run",
            "--hypothesis",
            "it is slower",
        ];
        let output = lab.run(&[&words[..], &["--claim", claim]].concat());
        assert_eq!(
            output.status.code(),
            Some(code),
            "{}",
            support::said(&output)
        );
    }
}

#[test]
fn a_copy_smaller_than_its_ring_proves_nothing() {
    let lab = Lab::new();
    let out = lab.out();
    let output = lab.run(&[
        "seed",
        "copy-ring",
        "--preset",
        "tiny",
        "--rows",
        "1000",
        "--blocks",
        "1",
        "-t",
        "1",
        "--settle",
        "0s",
        "--bindir",
        &bindir(Major::V17),
        "--out",
        out.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(4), "{}", support::said(&output));
    assert!(support::text(&output.stdout).contains("HYPOTHESIS-NOT-EXERCISED"));
}

#[test]
fn the_tracker_is_on_where_it_should_be_and_off_elsewhere() {
    let (experiment, printed) = measured(
        "seed tracking --preset tiny --blocks 1 --map-size 0,64 -T 1 --settle 0s",
        Major::V15,
    );
    for run in &experiment.runs {
        let on = run.facts["proof"].starts_with('t');
        assert_eq!(
            on,
            experiment.arms[run.arm].name == "64 MB",
            "{:?}",
            run.facts
        );
        assert!(run.values["tps"] > 0.0);
    }
    assert!(printed.contains("16855"), "{printed}");
}

/// The backup program, which the tests of this crate do not build by themselves.
fn pgstrata() -> String {
    let beside =
        std::path::Path::new(env!("CARGO_BIN_EXE_pgstrata-lab")).with_file_name("pgstrata");
    if !beside.exists() {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
        let built = std::process::Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--package",
                "pgstrata",
                "--manifest-path",
                manifest,
            ])
            .status()
            .unwrap();
        assert!(built.success());
    }
    beside.display().to_string()
}

#[test]
fn an_increment_stores_what_changed_and_restores_to_the_source() {
    let (experiment, printed) = measured(
        "seed backup-speedup --preset tiny --rows 50000 --blocks 1 --change-source tracker,lsn,digest",
        Major::V15,
    );
    let value = |arm: &str, name: &str| {
        let arm = experiment.arms.iter().position(|a| a.name == arm).unwrap();
        let run = experiment.runs.iter().find(|run| run.arm == arm).unwrap();
        run.values[name]
    };
    for scene in ["frozen.checksums", "unvacuumed.checksums"] {
        let full = value("pgstrata full", &format!("stored.{scene}"));
        let changed = value("pgstrata full", &format!("changed.{scene}"));
        for source in ["tracker", "lsn", "digest"] {
            let arm = format!("pgstrata {source} incr");
            assert!(value(&arm, &format!("stored.{scene}")) < full);
            assert!(value(&arm, &format!("verified.{scene}")) > 0.0);
            // Hardly a page more or less than had changed; connections touch a few of the catalog's.
            let pages = value(&arm, &format!("backed_up.{scene}"));
            assert!(
                pages > changed - 20.0,
                "{arm} {scene}: {pages} of {changed}"
            );
            assert!(
                pages < changed * 1.05 + 50.0,
                "{arm} {scene}: {pages} of {changed}"
            );
        }
        assert!(changed > 0.0);
    }
    // Hint bits: without a vacuum the same update changes every page of its table.
    let frozen = value("pgstrata full", "changed.frozen.checksums");
    assert!(value("pgstrata full", "changed.unvacuumed.checksums") > 2.0 * frozen);
    let words: Vec<&str> = printed.split_ascii_whitespace().collect();
    let words = words.join(" ");
    assert!(words.contains("sets hint bits"), "{printed}");
    let served = "served all arms, frozen, checksums on.";
    assert!(words.contains(served), "{printed}");
    assert!(words.contains("servers of the scenes"), "{printed}");
}

#[test]
fn tools_that_know_the_version_take_part_and_the_others_are_no_error() {
    for major in [Major::V15, Major::V17] {
        let (experiment, _) = measured(
            "seed backup-speedup --preset small --rows 30000 --blocks 1 --vacuumed --checksums on --change-source lsn",
            major,
        );
        let mut expected = vec!["pgstrata full", "pgstrata lsn incr"];
        if major >= Major::V17 {
            expected.extend(["native full", "native incr"]);
        }
        if PgBackRest::installed().iter().any(|it| it.knows(major)) {
            expected.extend(["pgbackrest full", "pgbackrest zst incr"]);
        }
        let names: Vec<&str> = experiment.arms.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(names, expected);
        for run in &experiment.runs {
            let key = |name: &str| format!("{name}.frozen.checksums");
            assert!(run.values[&key("stored")] > 0.0, "{:?}", run.values);
            // Restored, opened and compared with the source.
            let restored = run.values.contains_key(&key("verified"));
            assert_eq!(restored, names[run.arm].ends_with("incr"));
        }
    }
}

#[test]
fn all_orders_restore_the_same_files_and_one_writes_less() {
    restored_in_all_orders("directory");
}

#[test]
fn an_object_store_serves_all_orders() {
    restored_in_all_orders("s3");
}

fn restored_in_all_orders(storage: &str) {
    let (experiment, printed) = measured(
        &format!("seed reverse-delta --preset tiny -s 1 --blocks 1 --storage {storage}"),
        Major::V15,
    );
    let written = |arm: usize| {
        let run = experiment.runs.iter().find(|run| run.arm == arm).unwrap();
        run.values["written"]
    };
    assert!(
        written(0) > 1.5 * written(1),
        "{} {}",
        written(0),
        written(1)
    );
    assert_eq!(experiment.runs.len(), 3);
    assert!(printed.contains("delta 5"), "{printed}");
}

#[test]
fn what_users_feel_is_measured_while_backups_run_and_while_none_does() {
    let (lab, experiment, printed) = kept(
        "impact --preset tiny -s 1 -R 600 --blocks 1 --change-source summary --upkeep",
        Major::V17,
    );
    let names: Vec<&str> = experiment.arms.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "quiet",
            "pgstrata full",
            "pgstrata summary incr",
            "pgstrata verify",
            "pgstrata merge"
        ]
    );
    for run in &experiment.runs {
        // Two seconds at this rate, or a little longer until the last backup ended.
        assert!(run.values["transactions"] > 600.0, "{:?}", run.values);
        assert!(run.values["p50"] > 0.0);
        let works = run.arm > 0;
        assert_eq!(run.values.contains_key("backups"), works);
        assert_eq!(run.values.contains_key("added_waiting"), works);
        assert_eq!(run.phases.is_empty(), !works);
    }
    let words: Vec<&str> = printed.split_ascii_whitespace().collect();
    assert!(words.join(" ").contains("each takes"), "{printed}");
    // What the figures were made of is there, and the page leads to it.
    let page = std::fs::read_to_string(lab.out().join("report.html")).unwrap();
    for name in ["transactions.log.zst", "slices.csv"] {
        assert!(lab.out().join(name).exists(), "{name}");
        assert!(page.contains(&format!("href=\"{name}\"")), "{name}");
    }
}

#[test]
fn every_tool_and_every_limit_is_measured_in_every_block() {
    let (experiment, printed) = measured(
        "bench speed --workload w2 --preset tiny --blocks 1 --change-source tracker,lsn",
        Major::V17,
    );
    let names: Vec<&str> = experiment.arms.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(
        names[..3],
        ["pgstrata zstd tracker", "pgstrata zstd lsn", "cat"]
    );
    assert_eq!(experiment.runs.len(), names.len());
    for run in &experiment.runs {
        let acts: &[&str] = match names[run.arm] {
            tool if tool.starts_with("pgstrata") => {
                assert!(!run.phases.is_empty());
                assert!(run.values["incremental.5.stored"] > 0.0);
                &["full", "incremental", "restore", "restore of one"]
            }
            "cp -r + sync" => &["restore"],
            _ => &["full"],
        };
        for act in acts {
            assert!(run.values[*act] > 0.0, "{act}: {:?}", run.values);
        }
    }
    for table in [
        "full backup, against tar",
        "Where the time of a backup goes",
    ] {
        assert!(printed.contains(table), "{printed}");
    }
}

#[test]
fn segments_come_back_from_a_slow_archive_as_they_were_pushed() {
    let (experiment, printed) = measured(
        "bench archive --preset tiny --segments 3 --replay 10",
        Major::V17,
    );
    assert_eq!(experiment.runs.len(), experiment.arms.len());
    for run in &experiment.runs {
        let local = experiment.arms[run.arm].name.starts_with("cp");
        // Three at the least, but what is fetched ahead is not asked for again.
        assert_eq!(run.values["requests"] < 1.0, local, "{:?}", run.values);
        assert!(run.values["each"] > 0.0);
    }
    assert!(printed.contains("What recovery waits"), "{printed}");
}

#[test]
fn a_chain_is_restored_from_a_slow_server_and_from_files() {
    let (experiment, printed) = measured("bench s3 --preset tiny -s 1", Major::V17);
    assert_eq!(experiment.runs.len(), 5);
    for run in &experiment.runs {
        let slow = experiment.arms[run.arm].name.ends_with("with latency");
        assert_eq!(run.values["requests"] > 0.0, slow, "{:?}", run.values);
        assert!(run.values["time"] > 0.0);
    }
    assert!(printed.contains("restore/this"), "{printed}");
}

#[test]
fn the_same_change_in_clusters_of_two_sizes() {
    let (experiment, printed) = measured("bench growth --preset tiny", Major::V17);
    let value = |arm: usize, name: &str| {
        let run = experiment.runs.iter().find(|run| run.arm == arm).unwrap();
        run.values[name]
    };
    assert!(value(1, "index_full") > value(0, "index_full"));
    for name in ["tracker", "summary", "lsn", "plan", "restore", "memory"] {
        assert!(value(0, name) > 0.0);
    }
    assert!(printed.contains("size MB"), "{printed}");
    // It is what is measured, and nothing to beware of.
    assert!(!printed.contains("ENV-ARMS-SIZE"), "{printed}");
}

#[test]
fn a_plan_is_printed_and_nothing_done() {
    for (experiment, expected) in [
        ("seed tracking", "pgbench"),
        ("seed backup-speedup", "UPDATE large_test2"),
        ("seed reverse-delta", "--initialize"),
        ("seed copy-ring", "COPY lab_source TO"),
        ("impact", "--rate=RATE"),
        ("bench speed", "UPDATE large_test2"),
        ("bench archive", "eight at once"),
        ("bench s3", "cp -r + sync"),
        ("bench growth", "by each change source"),
    ] {
        let lab = Lab::new();
        let pgstrata = pgstrata();
        for preset in ["tiny", "large"] {
            let mut words: Vec<&str> = experiment.split(' ').collect();
            words.extend(["--preset", preset, "--dry-run"]);
            if takes_backups(experiment) {
                words.extend(["--pgstrata", &pgstrata]);
            }
            let output = lab.run(&words);
            assert_eq!(output.status.code(), Some(0), "{}", support::said(&output));
            assert!(
                support::text(&output.stdout).contains(expected),
                "{experiment}"
            );
        }
        let left: Vec<_> = std::fs::read_dir(lab.scratch.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
