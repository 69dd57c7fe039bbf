//! The published experiments on servers of the lab's own, as small as they go.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails says where"
)]

mod support;

use pgstrata_lab::cluster::Major;
use support::Lab;

fn bindir(major: Major) -> String {
    major.bindir().unwrap().display().to_string()
}

#[test]
fn copying_goes_through_a_ring_that_is_used_again() {
    let lab = Lab::new();
    let (experiment, printed) = lab.experiment(&[
        "seed",
        "copy-ring",
        "--preset",
        "tiny",
        "--blocks",
        "1",
        "-t",
        "2",
        "--settle",
        "0s",
        "--bindir",
        &bindir(Major::V18),
    ]);
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
    let lab = Lab::new();
    let (experiment, printed) = lab.experiment(&[
        "seed",
        "tracking",
        "--preset",
        "tiny",
        "--blocks",
        "1",
        "--map-size",
        "0,64",
        "-T",
        "1",
        "--settle",
        "0s",
        "--bindir",
        &bindir(Major::V15),
    ]);
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

#[test]
fn the_tracker_is_switched_inside_one_server() {
    let lab = Lab::new();
    let (experiment, _) = lab.experiment(&[
        "seed",
        "tracking",
        "--toggle",
        "--preset",
        "tiny",
        "--blocks",
        "2",
        "--bindir",
        &bindir(Major::V16),
    ]);
    assert_eq!(experiment.runs.len(), 4);
    assert!(experiment.runs.iter().all(|run| run.values["tps"] > 0.0));
}
