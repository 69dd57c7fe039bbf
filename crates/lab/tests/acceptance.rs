//! The stories that take minutes: `make lab-acceptance`.
//!
//! They want a machine on which nothing else runs, since they look at times.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails says where"
)]

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pgstrata_lab::measure::result::Experiment;
use pgstrata_lab::measure::sample::{Sampler, Watch, Window};
use pgstrata_lab::measure::stat::verdict::Verdict;
use pgstrata_lab::report::analysis::analyse;
use pgstrata_testbed::cluster::{Cluster, Major};
use rustix::process::{Pid, Signal, kill_process};
use support::{Lab, browser, schema};

/// Every experiment as its users type it.
const EXPERIMENTS: [&str; 11] = [
    "seed tracking",
    "seed backup-speedup",
    "seed reverse-delta",
    "seed block-io",
    "seed copy-ring",
    "impact",
    "bench speed",
    "bench speed --workload w2",
    "bench archive",
    "bench s3",
    "bench growth",
];
/// What an experiment of preset tiny may take.
const LONGEST: Duration = Duration::from_secs(120);

/// `pgstrata lab …`, which must be built beside the lab.
fn command(lab: &Lab, words: &str, out: &Path) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_pgstrata-lab")).with_file_name("pgstrata");
    assert!(
        program.is_file(),
        "build pgstrata first: make lab-acceptance does"
    );
    let mut command = Command::new(program);
    command
        .arg("lab")
        .args(words.split(' '))
        .args(["--preset", "tiny", "--out"])
        .arg(out)
        .current_dir(lab.scratch.path())
        .env("PGSTRATA_LAB_LOCK", lab.scratch.path().join("lock"));
    command
}

/// Directories that labs make beside the results: clusters, templates, S3 servers.
fn made() -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("pgs-") && !name.starts_with("pgs-lab-")
        })
        .collect()
}

/// A leash removes what a program left within a moment of its end.
fn require_nothing_left(before: &BTreeSet<PathBuf>) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let left: Vec<PathBuf> = made().difference(before).cloned().collect();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "left behind: {left:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn valid(out: &Path) -> Experiment {
    let text = std::fs::read_to_string(out.join("result.json")).unwrap();
    let document = serde_json::from_str(&text).unwrap();
    assert_eq!(
        schema::complaints(&schema::schema(), &document),
        Vec::<String>::new()
    );
    Experiment::load(out).unwrap()
}

#[test]
#[ignore = "ten minutes on a quiet machine: make lab-acceptance"]
fn every_experiment_is_one_command_and_two_minutes() {
    let mut late = Vec::new();
    // Somebody else's server, which nobody here has to do with.
    let other = Cluster::builder(Major::V15).start().unwrap();
    let look = "SELECT pg_postmaster_start_time(), (SELECT count(*) FROM pg_database), (SELECT count(*) FROM pg_class)";
    let left_alone = other.sql("postgres", look).unwrap();
    for words in EXPERIMENTS {
        let lab = Lab::new();
        let out = lab.out();
        let before = made();
        let began = Instant::now();
        let output = command(&lab, words, &out).output().unwrap();
        let took = began.elapsed();
        println!("{words}: {:.0} s", took.as_secs_f64());
        assert_eq!(output.status.code(), Some(0), "{}", support::said(&output));
        late.extend((took > LONGEST).then(|| format!("{words}: {took:?}")));
        assert!(!valid(&out).runs.is_empty());
        require_nothing_left(&before);
        for look in browser::look_at(&out.join("report.html")) {
            assert!(look.pictures > 0, "{words}: {look:?}");
        }
    }
    assert_eq!(other.sql("postgres", look).unwrap(), left_alone);
    assert!(late.is_empty(), "longer than two minutes: {late:?}");
}

/// Ends an experiment as Ctrl-C does, once it has measured something.
fn interrupt_after_first_run(mut child: Child) -> (Option<i32>, String) {
    let pid = Pid::from_child(&child);
    let mut told = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        told.push_str(&line);
        told.push('\n');
        if line.starts_with("block 1") {
            kill_process(pid, Signal::INT).unwrap();
        }
    }
    (child.wait().unwrap().code(), told)
}

#[test]
#[ignore = "minutes: make lab-acceptance"]
fn an_interrupted_experiment_cleans_up_and_keeps_what_it_measured() {
    for words in [
        "seed tracking",
        "seed backup-speedup",
        "seed reverse-delta",
        "seed copy-ring",
        "impact",
    ] {
        let lab = Lab::new();
        let out = lab.out();
        let before = made();
        let child = command(&lab, words, &out)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (code, told) = interrupt_after_first_run(child);
        assert_eq!(code, Some(130), "{words}: {told}");
        require_nothing_left(&before);
        let experiment = valid(&out);
        assert!(!experiment.runs.is_empty(), "{words}");
        assert_eq!(
            experiment.interrupted.as_deref(),
            Some("interrupted by the user")
        );
        let report = lab.run(&["report", out.to_str().unwrap()]);
        assert_eq!(report.status.code(), Some(0), "{}", support::said(&report));
    }
}

/// A server compared with itself once for each seed; those with which it is called different.
fn called_different(seeds: std::ops::RangeInclusive<u32>, disturbed: bool) -> Vec<u32> {
    let cluster = Cluster::builder(Major::V15).start().unwrap();
    cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    let arm = format!("server:dsn={}", cluster.conninfo("postgres"));
    seeds
        .filter(|seed| {
            let lab = Lab::new();
            let hog = disturbed.then(Hog::in_the_second_half);
            let seed = seed.to_string();
            let (experiment, _) = lab.experiment(&[
                "ab", "--base", &arm, "--aa", "--blocks", "6", "-T", "1", "--warmup", "0",
                "--settle", "0s", "--seed", &seed,
            ]);
            drop(hog);
            let analysis = analyse(&experiment);
            let compared = analysis.row("tps").unwrap().comparisons[1].as_ref();
            matches!(compared.unwrap().verdict, Verdict::Better | Verdict::Worse)
        })
        .collect()
}

/// A program of others that wants a whole core.
struct Hog(Child);

impl Hog {
    /// Twelve runs of a second, and some more: it sleeps through the first six.
    fn in_the_second_half() -> Self {
        let words = ["-c", "sleep 8; exec timeout 60 sh -c 'while :; do :; done'"];
        Self(Command::new("sh").args(words).spawn().unwrap())
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        // timeout passes the signal on.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "seven minutes: make lab-acceptance"]
fn a_server_compared_with_itself_is_rarely_called_different() {
    let claims = called_different(1..=20, false);
    println!("called different with seeds {claims:?}");
    // Of 20 at 5 %, more than three come up in 16 of 1000 such tests.
    assert!(claims.len() <= 3, "{claims:?}");
}

#[test]
#[ignore = "four minutes: make lab-acceptance"]
fn drift_in_the_middle_of_an_experiment_does_not_look_like_an_effect() {
    let claims = called_different(1..=10, true);
    println!("called different with seeds {claims:?}");
    // Of 10 at 5 %, more than two come up in 12 of 1000 such tests.
    assert!(claims.len() <= 2, "{claims:?}");
}

#[test]
#[ignore = "needs a quiet machine: make lab-acceptance"]
fn a_program_of_others_is_seen_as_the_share_of_the_processor_it_takes() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let share = 1.0 / f64::from(u32::try_from(cores).unwrap());
    let measured = || {
        let window = Window::open(None);
        std::thread::sleep(Duration::from_secs(3));
        window.close().foreign
    };
    let quiet = measured();
    assert!(quiet < 0.03, "{quiet} of the processor is in use already");
    // Not a child of this process, but of one that ended.
    let started = Command::new("sh")
        .args([
            "-c",
            "timeout 30 sh -c 'while :; do :; done' >/dev/null 2>&1 & echo $!",
        ])
        .output()
        .unwrap();
    let id: i32 = String::from_utf8(started.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let busy = measured();
    let _ = kill_process(Pid::from_raw(id).unwrap(), Signal::TERM);
    assert!((busy - share).abs() < 0.05, "{busy}, expected {share}");
}

#[test]
#[ignore = "writes half a gigabyte: make lab-acceptance"]
fn what_is_written_to_the_disk_appears_in_its_picture() {
    let directory = tempfile::tempdir().unwrap();
    let sampler = Sampler::start(Watch {
        data: Some(directory.path().to_owned()),
        process: None,
        period: Some(Duration::from_millis(200)),
    });
    let mut file = std::fs::File::create(directory.path().join("data")).unwrap();
    let megabyte = vec![7; 1 << 20];
    let began = Instant::now();
    for written in 1..=500_u32 {
        file.write_all(&megabyte).unwrap();
        file.sync_data().unwrap();
        // A hundred a second, so that it takes five.
        let due = Duration::from_millis(u64::from(written) * 10);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
    let samples = sampler.finish();
    let rates = &samples.series["disk.write"];
    let times: Vec<f64> = std::iter::once(0.0)
        .chain(samples.time.iter().copied())
        .collect();
    let total: f64 = rates
        .iter()
        .zip(times.windows(2))
        .map(|(rate, t)| rate * (t[1] - t[0]))
        .sum();
    assert!(
        (450.0..600.0).contains(&total),
        "{total} MiB of 500 were seen"
    );
    assert!(
        samples.series["mem.dirty"]
            .iter()
            .any(|kilobytes| *kilobytes > 0.0)
    );
}
