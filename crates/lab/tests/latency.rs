//! Latencies: from logs with known values, and from servers that stall.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails says where"
)]

mod support;

use std::thread;
use std::time::Duration;

use pgstrata_lab::measure::latency::Latencies;
use pgstrata_lab::measure::pgbench::log::{Columns, Merged};
use pgstrata_lab::measure::result::UNSUSTAINED;
use pgstrata_testbed::cluster::{Cluster, Major};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use support::Lab;

const CLOSED: Columns = Columns {
    lag: false,
    retries: false,
};

/// The value at a quantile of all values, found by sorting them.
fn exactly(values: &[u64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let count = f64::from(u32::try_from(sorted.len()).unwrap());
    let at = sorted
        .iter()
        .enumerate()
        .find(|(index, _)| f64::from(u32::try_from(index + 1).unwrap()) >= q * count)
        .unwrap();
    f64::from(u32::try_from(*at.1).unwrap()) / 1e6
}

#[test]
fn percentiles_of_a_log_are_the_exact_ones() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = rand_pcg::Pcg64::seed_from_u64(seed);
    let mut values: Vec<u64> = (0..20_000)
        .map(|_| 50 + random.random_range(0..=1_000_u64).pow(3) / 5_000)
        .collect();
    values.shuffle(&mut random);
    // Two threads, each with a log of its own.
    let mut merged = Merged::default();
    for half in values.chunks(10_000) {
        let log: String = half
            .iter()
            .enumerate()
            .map(|(n, us)| format!("0 {n} {us} 0 1700000000 5\n"))
            .collect();
        merged.add(log.as_bytes(), CLOSED, 1_700_000_000).unwrap();
    }
    assert_eq!(merged.succeeded(), 20_000);
    for q in [0.5, 0.9, 0.95, 0.99, 0.999] {
        let (found, expected) = (merged.response.quantile(q).unwrap(), exactly(&values, q));
        assert!(
            (found / expected - 1.0).abs() <= 0.001,
            "{q}: {found} {expected}"
        );
    }
}

#[test]
fn a_percentile_needs_ten_transactions_beyond_it() {
    let mut latencies = Latencies::default();
    for microseconds in 1..=3_000 {
        latencies.record(microseconds);
    }
    assert!(latencies.quantile(0.99).is_some());
    assert_eq!(latencies.quantile(0.999), None);
}

#[test]
fn words_retries_and_lags_of_a_log_are_counted() {
    let mut merged = Merged::default();
    let columns = Columns {
        lag: true,
        retries: true,
    };
    let log = "0 1 900 0 100 1 400 0\n0 2 skipped 0 100 2 90000 0\n1 1 failed 0 101 3 0 0\n\
               1 2 serialization 1 101 4 0 3\n1 3 deadlock 1 101 5 0 1\n0 3 1000 1 102 6 100 2\n";
    merged.add(log.as_bytes(), columns, 100).unwrap();
    assert_eq!(merged.succeeded(), 2);
    assert_eq!(merged.skipped, 1);
    assert_eq!(merged.failures(), 3);
    assert_eq!(merged.failed["serialization"], 1);
    assert_eq!((merged.retried, merged.retries), (3, 6));
    assert_eq!(merged.scripts[&1].count(), 1);
    // Service time is what remains without the wait in the queue.
    assert!((merged.service.longest().unwrap() - 900e-6).abs() < 2e-6);
    assert!((merged.response.longest().unwrap() - 1000e-6).abs() < 2e-6);
    assert_eq!(merged.throughput, [1.0, 0.0, 1.0]);
    // The run began in the middle of the first one.
    assert_eq!(merged.whole_seconds(3.4), [0.0, 1.0]);
    assert!(merged.whole_seconds(0.5).is_empty());
    for damaged in ["0 1 900 0 100 1\n", "0 1 soon 0 100 1 400 0\n", "0 1\n"] {
        assert!(
            Merged::default()
                .add(damaged.as_bytes(), columns, 100)
                .is_err()
        );
    }
}

/// Nobody reads the accounts for a second, a second from now.
fn stall(cluster: &Cluster) -> thread::JoinHandle<()> {
    let mut client =
        postgres::Client::connect(&cluster.conninfo("postgres"), postgres::NoTls).unwrap();
    thread::spawn(move || {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        let busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench' AND backend_start < now() - interval '1 s'";
        while client.query_one(busy, &[]).unwrap().get::<_, i64>(0) == 0 {
            assert!(
                std::time::Instant::now() < deadline,
                "pgbench did not start"
            );
            thread::sleep(Duration::from_millis(50));
        }
        client
            .batch_execute("BEGIN; LOCK TABLE pgbench_accounts IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(1); COMMIT")
            .unwrap();
    })
}

#[test]
fn a_stall_hides_in_a_closed_loop_and_shows_in_an_open_one() {
    let cluster = Cluster::builder(Major::V15).start().unwrap();
    cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    let arm = format!("server:dsn={}", cluster.conninfo("postgres"));
    let measure = |seconds: &str, more: &[&str]| {
        let lab = Lab::new();
        let mut words = vec![
            "run", "--arm", &arm, "--repeat", "1", "-T", seconds, "--warmup", "0", "--settle", "0s",
        ];
        words.extend(more);
        lab.experiment(&words)
    };
    let stalled = stall(&cluster);
    let (closed, _) = measure("4", &[]);
    stalled.join().unwrap();
    assert!(closed.runs[0].values["latency_max"] > 0.9);
    assert!(
        closed.runs[0].values["p99"] < 0.2,
        "{:?}",
        closed.runs[0].values
    );
    assert!(closed.warnings.iter().any(|w| w.id == "LOAD-CLOSED-LOOP"));

    let stalled = stall(&cluster);
    // Far below what a busy machine does too, with time to catch up: else the rate was not sustained, and there are no
    // percentiles.
    let (open, _) = measure("10", &["-R", "200"]);
    stalled.join().unwrap();
    assert!(
        open.runs[0].values["p99"] >= 0.2,
        "{:?}",
        open.runs[0].values
    );

    let (flooded, printed) = measure("4", &["-R", "10000000"]);
    assert_eq!(flooded.runs[0].facts["rate"], "not sustained");
    assert!(!flooded.runs[0].values.contains_key("p99"));
    assert!(printed.contains("LOAD-RATE-NOT-SUSTAINED"), "{printed}");

    // pgbench's own summary and its log agree on what was skipped, late and tried again.
    let (limited, _) = measure("4", &["-R", "500", "-L", "100", "--max-tries", "3"]);
    let values = &limited.runs[0].values;
    assert!(values.contains_key("late_share"), "{values:?}");
    assert!(
        (values["failed"] + values["retries"]).abs() < 0.5,
        "{values:?}"
    );
}

#[test]
fn who_leaves_users_unserved_does_not_keep_the_rate() {
    let cluster = Cluster::builder(Major::V15).start().unwrap();
    let lab = Lab::new();
    let script = lab.scratch.path().join("slow.sql");
    std::fs::write(&script, "SELECT pg_sleep(0.02);\n").unwrap();
    let arm = format!("server:dsn={}", cluster.conninfo("postgres"));
    // Two clients serve a hundred of five hundred users a second; the others have waited longer than the limit by then.
    let (experiment, printed) = lab.experiment(&[
        "run",
        "--arm",
        &arm,
        "-w",
        script.to_str().unwrap(),
        "--repeat",
        "1",
        "-T",
        "2",
        "-R",
        "500",
        "-L",
        "30",
        "--warmup",
        "0",
        "--settle",
        "0s",
    ]);
    let run = &experiment.runs[0];
    assert_eq!(run.facts["rate"], UNSUSTAINED);
    assert!(!run.values.contains_key("p50"), "{:?}", run.values);
    assert!(run.values["late_share"] > 0.5, "{:?}", run.values);
    assert!(experiment.metrics.iter().any(|m| m.name == "late_share"));
    assert!(printed.contains("came too late to be begun"), "{printed}");
}

#[test]
fn a_checkpoint_is_marked_when_it_happened() {
    let lab = Lab::new();
    let script = lab.scratch.path().join("checkpoint.sql");
    std::fs::write(
        &script,
        "SELECT pg_sleep(1);\nCHECKPOINT;\nSELECT pg_sleep(5);\n",
    )
    .unwrap();
    let bindir = Major::V18.bindir().unwrap();
    let (experiment, _) = lab.experiment(&[
        "run",
        "--arm",
        &format!("server:bindir={}", bindir.display()),
        "-w",
        script.to_str().unwrap(),
        "-c",
        "1",
        "-s",
        "1",
        "-T",
        "3",
        "--repeat",
        "1",
        "--warmup",
        "0",
        "--settle",
        "0s",
    ]);
    let marks = &experiment.runs[0].marks;
    let begun = marks
        .iter()
        .find(|m| m.what == "checkpoint starting")
        .unwrap();
    assert!((0.5..2.5).contains(&begun.at), "{marks:?}");
}
