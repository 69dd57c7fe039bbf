//! Comparisons of real servers: same state, honest verdicts, what spoils them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails says where"
)]

mod support;

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pgstrata_lab::measure::environment::Environment;
use pgstrata_lab::measure::stat::verdict::Verdict;
use pgstrata_testbed::cluster::{Cluster, Major};
use rustix::process::Signal;
use support::{Lab, said, text};

fn arm(name: &str, major: Major, more: &str) -> String {
    format!("{name}:bindir={}{more}", major.bindir().unwrap().display())
}

const QUICK: [&str; 8] = ["-T", "1", "--warmup", "0", "--settle", "0s", "-s", "1"];

fn ab<'a>(base: &'a str, arm: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["ab", "--base", base, "--arm", arm];
    words.extend(QUICK);
    words.extend(more);
    words
}

#[test]
fn two_versions_are_compared_from_the_same_state_and_told_apart() {
    let lab = Lab::new();
    let (old, new) = (
        arm("17", Major::V17, ""),
        arm("18", Major::V18, ",initdb=--no-data-checksums"),
    );
    let (experiment, printed) =
        lab.experiment(&ab(&old, &new, &["-w", "simple-update", "--blocks", "2"]));
    for index in 0..2 {
        let states: BTreeSet<(&String, &String)> = experiment
            .runs
            .iter()
            .filter(|run| run.arm == index)
            .map(|run| (&run.facts["data"], &run.facts["wal_segments"]))
            .collect();
        assert_eq!(states.len(), 1, "{states:?}");
    }
    assert!(experiment.runs.iter().all(|run| run.values["tps"] > 0.0));
    let warned = |id: &str| experiment.warnings.iter().any(|w| w.id == id);
    assert!(warned("ENV-ARMS-CHECKSUMS"));
    assert!(warned("HYPOTHESIS-NONE"));
    assert!(printed.contains("needs at least 6"), "{printed}");
    assert!(printed.contains("none stated"), "{printed}");
    let page = std::fs::read_to_string(lab.out().join("report.html")).unwrap();
    assert!(page.contains("server.version_num"));
}

#[test]
fn a_workload_that_misses_the_hypothesis_withholds_the_verdict() {
    let lab = Lab::new();
    let (one, other) = (
        arm("small", Major::V17, ""),
        arm("large", Major::V17, ",guc.shared_buffers=64MB"),
    );
    let out = lab.out();
    let words = ab(
        &one,
        &other,
        &[
            "--blocks",
            "1",
            "--hypothesis",
            "a larger ring makes COPY faster",
            "--expect",
            "pg_stat_io.bulkwrite.writes > 0",
            "--out",
            out.to_str().unwrap(),
        ],
    );
    let output = lab.run(&words);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let printed = text(&output.stdout);
    assert!(
        printed.contains("the workload did not exercise"),
        "{printed}"
    );
}

#[test]
fn a_sweep_is_one_server_under_several_loads_with_plan_and_environment_on_record() {
    let lab = Lab::new();
    let base = arm("server", Major::V18, "");
    let mut words = vec!["ab", "--base", &base, "--sweep", "client=1,3"];
    words.extend(QUICK);
    words.extend(["--blocks", "1"]);
    let (experiment, _) = lab.experiment(&words);
    assert_eq!(experiment.plan.sweep, Some(vec![1.0, 3.0]));
    let mut processes = BTreeSet::new();
    for (index, count) in [1, 3].into_iter().enumerate() {
        assert_eq!(experiment.arms[index].name, format!("client {count}"));
        let run = lab.out().join(format!("runs/000-client-{count}"));
        let said = std::fs::read_to_string(run.join("pgbench.out")).unwrap();
        let clients = format!("number of clients: {count}\n");
        assert!(said.contains(&clients), "{said}");
        let environment = experiment.arms[index].environment.as_ref().unwrap();
        processes.insert(environment.get("server.pid").unwrap().to_owned());
    }
    // A load that only reads leaves the server running.
    assert_eq!(processes.len(), 1, "{processes:?}");

    let file = |name: &str| std::fs::read_to_string(lab.out().join(name)).unwrap();
    let plan: toml::Table = file("plan.toml").parse().unwrap();
    assert_eq!(plan["plan"]["sweep"].as_array().unwrap().len(), 2);
    assert_eq!(plan["arms"][1]["name"].as_str(), Some("client 3"));
    let described = plan["arms"][1]["description"].as_str().unwrap();
    assert!(described.ends_with("load.client=3"), "{described}");
    let environment: Environment = serde_json::from_str(&file("env.json")).unwrap();
    assert_eq!(Some(&environment), experiment.arms[0].environment.as_ref());
}

#[test]
fn a_rate_may_be_a_share_of_what_a_closed_loop_does() {
    let lab = Lab::new();
    let arm = arm("server", Major::V15, "");
    let mut words = vec!["run", "--arm", &arm, "--repeat", "1", "-R", "25%"];
    words.extend(QUICK);
    let planned = lab.run(&[&words[..], &["--dry-run"]].concat());
    let planned = text(&planned.stdout);
    let closed = |line: &&str| line.contains("--time=") && !line.contains("--rate=");
    assert_eq!(planned.lines().filter(closed).count(), 1, "{planned}");
    let (experiment, _) = lab.experiment(&words);
    let note = &experiment.notes[0];
    let capacity = note.split(' ').find_map(|word| word.parse::<f64>().ok());
    let load = experiment.workload.rsplit_once("open loop at ").unwrap().1;
    let rate: f64 = load.strip_suffix("/s").unwrap().parse().unwrap();
    // The note is rounded.
    assert!(
        (capacity.unwrap() / 4.0 - rate).abs() <= 1.25,
        "{note} {load}"
    );
    let said = lab.out().join("runs/000-server/pgbench.out");
    let said = std::fs::read_to_string(said).unwrap();
    assert!(
        rate > 0.0 && said.contains("rate limit schedule lag"),
        "{said}"
    );
}

#[test]
fn no_password_is_written_anywhere() {
    let cluster = Cluster::builder(Major::V15).start().unwrap();
    cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    let lab = Lab::new();
    let server = format!(
        "server:dsn={} password=hunter2",
        cluster.conninfo("postgres")
    );
    let mut words = vec!["run", "--arm", &server, "--repeat", "1"];
    words.extend(QUICK);
    let (_, printed) = lab.experiment(&words);
    assert!(!printed.contains("hunter2"), "{printed}");
    let mut directories = vec![lab.out()];
    let mut count = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let text = text(&std::fs::read(&path).unwrap());
            assert!(!text.contains("hunter2"), "{}", path.display());
            count += 1;
        }
    }
    // The result, the plan, the environment, the page, the values and what pgbench said.
    assert!(count >= 6, "{count} files");
}

#[test]
fn a_known_effect_is_found_with_an_interval_that_holds_it() {
    let lab = Lab::new();
    let script = lab.scratch.path().join("pause.sql");
    std::fs::write(
        &script,
        "SELECT pg_sleep(current_setting('lab.pause')::float);\n",
    )
    .unwrap();
    let (one, other) = (
        arm("short", Major::V18, ",guc.lab.pause=0.030"),
        arm("long", Major::V18, ",guc.lab.pause=0.090"),
    );
    let (experiment, _) = lab.experiment(&ab(
        &one,
        &other,
        &[
            "-w",
            script.to_str().unwrap(),
            "--state",
            "reuse",
            "--blocks",
            "6",
        ],
    ));
    let analysis = pgstrata_lab::report::analysis::analyse(&experiment);
    let compared = analysis.row("tps").unwrap().comparisons[1].clone().unwrap();
    assert_eq!(compared.verdict, Verdict::Worse);
    let interval = compared.interval.unwrap();
    // A third, but for what a query takes beside its pause. How wide it is, is the machine's affair.
    assert!(interval.low < 0.5, "{interval:?}");
    assert!(interval.high > 0.3, "{interval:?}");
}

#[test]
fn a_block_with_a_failed_transaction_does_not_count() {
    let lab = Lab::new();
    let path = |name: &str, sql: &str| {
        let path = lab.scratch.path().join(name);
        std::fs::write(&path, sql).unwrap();
        path.display().to_string()
    };
    let setup = path("setup.sql", "CREATE SEQUENCE lab_count");
    let script = path(
        "fails-once.sql",
        "DO $$ BEGIN IF nextval('lab_count') = 40 THEN RAISE SQLSTATE '40001'; END IF; PERFORM pg_sleep(0.01); END $$;\n",
    );
    let (one, other) = (
        arm("one", Major::V18, &format!(",setup={setup}")),
        arm(
            "other",
            Major::V18,
            &format!(",setup={setup},guc.work_mem=8MB"),
        ),
    );
    let (experiment, printed) = lab.experiment(&ab(
        &one,
        &other,
        &["-w", &script, "--state", "reuse", "--blocks", "3"],
    ));
    let failed: Vec<usize> = experiment
        .runs
        .iter()
        .filter(|run| run.values["failed"] > 0.0)
        .map(|run| run.block)
        .collect();
    // Each of the two servers fails one transaction, in its first block.
    assert_eq!(failed, [0, 0]);
    assert_eq!(experiment.complete_blocks(), [1, 2]);
    assert!(printed.contains("RUN-FAILED-TRANSACTIONS"), "{printed}");
    assert!(printed.contains("1 dropped"), "{printed}");
}

#[test]
fn a_server_of_others_has_for_each_arm_what_the_arm_says_and_in_the_end_what_it_had() {
    let cluster = Cluster::builder(Major::V15).start().unwrap();
    cluster.pgbench(&["-i", "-q", "-s", "2"]).unwrap();
    for statement in [
        "ALTER SYSTEM SET work_mem = '5MB'",
        "CREATE TABLE seen (at float8, work text, cost text)",
    ] {
        cluster.sql("postgres", statement).unwrap();
    }
    cluster.reload().unwrap();
    let lab = Lab::new();
    let script = lab.scratch.path().join("look.sql");
    let look = "INSERT INTO seen VALUES (extract(epoch FROM clock_timestamp()), current_setting('work_mem'), \
                current_setting('random_page_cost'));\nSELECT pg_sleep(0.05);\n";
    std::fs::write(&script, look).unwrap();
    let dsn = cluster.conninfo("postgres");
    let base = format!("base:dsn={dsn}");
    let arm = format!("arm:reload.Work_Mem=9MB,reload.random_page_cost=2,dsn={dsn}");
    let mut words = vec!["ab", "--base", &base, "--arm", &arm, "--blocks", "2"];
    words.extend(["-w", script.to_str().unwrap()]);
    // The scale is the server's, whatever it is said to be.
    words.extend(QUICK);
    let (experiment, _) = lab.experiment(&words);
    assert!(
        experiment.workload.contains("scale 2"),
        "{}",
        experiment.workload
    );
    for run in &experiment.runs {
        let during = format!(
            "SELECT string_agg(DISTINCT work || ' ' || cost, ', ') FROM seen WHERE at BETWEEN {} AND {}",
            run.started,
            run.started + run.seconds
        );
        let expected = ["5MB 4", "9MB 2"][run.arm];
        assert_eq!(cluster.sql("postgres", &during).unwrap(), expected);
    }
    let written = "SELECT string_agg(name || '=' || setting, ', ') FROM pg_file_settings WHERE sourcefile ~ 'auto.conf$'";
    assert_eq!(cluster.sql("postgres", written).unwrap(), "work_mem=5MB");

    // A server that takes it at its start alone would be compared with itself.
    let arm = format!("arm:reload.shared_buffers=64MB,dsn={dsn}");
    let mut words = vec!["ab", "--base", &base, "--arm", &arm];
    words.extend(QUICK);
    let output = lab.run(&words);
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    assert!(
        text(&output.stderr).contains("at its start alone"),
        "{}",
        said(&output)
    );
    assert_eq!(cluster.sql("postgres", written).unwrap(), "work_mem=5MB");
}

#[test]
fn an_interrupted_comparison_puts_back_what_it_changed() {
    for signal in [Signal::INT, Signal::HUP] {
        check_what_is_put_back_after(signal);
    }
}

fn check_what_is_put_back_after(signal: Signal) {
    let cluster = Cluster::builder(Major::V15).start().unwrap();
    let lab = Lab::new();
    let script = lab.scratch.path().join("wait.sql");
    std::fs::write(&script, "SELECT pg_sleep(0.01);\n").unwrap();
    let dsn = cluster.conninfo("postgres");
    let base = format!("base:reload.work_mem=8MB,dsn={dsn}");
    let arm = format!("arm:reload.work_mem=9MB,dsn={dsn}");
    let out = lab.out();
    let more = ["--blocks", "500", "-w", script.to_str().unwrap(), "--out"];
    let mut child = lab
        .command(&ab(&base, &arm, &more))
        .arg(&out)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
    let is_begun = |line: std::io::Result<String>| line.unwrap().starts_with("block 1/500");
    assert!(told.any(is_begun));
    let written = "SELECT count(*) FROM pg_file_settings WHERE sourcefile ~ 'auto.conf$'";
    assert_eq!(cluster.sql("postgres", written).unwrap(), "1");
    let id = rustix::process::Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    rustix::process::kill_process(id, signal).unwrap();
    let rest: Vec<String> = told.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert_eq!(cluster.sql("postgres", written).unwrap(), "0");
}

#[test]
fn servers_that_take_turns_all_begin_alike() {
    let lab = Lab::new();
    let started = lab.scratch.path().join("started");
    std::fs::write(&started, "").unwrap();
    for path in [lab.scratch.path(), started.as_path()] {
        std::fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    }
    let script = lab.scratch.path().join("note.sql");
    let note = format!(
        "COPY (SELECT pg_postmaster_start_time()) TO PROGRAM 'cat >>{}';\n",
        started.display()
    );
    std::fs::write(&script, note).unwrap();
    let (base, more) = (
        arm("base", Major::V15, ""),
        arm("more", Major::V15, ",guc.work_mem=8MB"),
    );
    let script = script.to_str().unwrap();
    let more = ab(
        &base,
        &more,
        &["--aa", "--state", "reuse", "--blocks", "2", "-w", script],
    );
    let (experiment, _) = lab.experiment(&more);
    let text = std::fs::read_to_string(started).unwrap();
    let starts: BTreeSet<&str> = text.lines().collect();
    assert_eq!(experiment.runs.len(), 6);
    assert_eq!(starts.len(), experiment.runs.len(), "{starts:?}");
}

#[test]
fn what_an_interrupted_run_has_logged_is_not_of_the_next() {
    let lab = Lab::new();
    let run = lab.out().join("runs/000-one");
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(run.join("log.1"), "0 1 2").unwrap();
    let one = arm("one", Major::V15, "");
    let mut words = vec!["run", "--arm", &one, "--repeat", "1"];
    words.extend(QUICK);
    let (experiment, _) = lab.experiment(&words);
    assert!(experiment.runs[0].values["tps"] > 0.0);
}

#[test]
fn settings_that_could_not_be_put_back_are_warned_of() {
    let cluster = Cluster::builder(Major::V15).start().unwrap();
    let role = "CREATE ROLE lent SUPERUSER LOGIN";
    cluster.sql("postgres", role).unwrap();
    let lab = Lab::new();
    // Who changes the settings loses the right to do so while the server is measured.
    let script = lab.scratch.path().join("lose.sql");
    std::fs::write(&script, "ALTER ROLE lent NOSUPERUSER;\n").unwrap();
    let dsn = cluster.conninfo_as("lent", "postgres");
    let base = format!("base:reload.work_mem=8MB,dsn={dsn}");
    let arm = format!("arm:reload.work_mem=9MB,dsn={dsn}");
    let out = lab.out();
    let more = ["--blocks", "1", "-w", script.to_str().unwrap(), "--out"];
    let output = lab.run(&[&ab(&base, &arm, &more)[..], &[out.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    let report = lab.run(&["report", out.to_str().unwrap()]);
    let printed = text(&report.stdout);
    let warned = "! ENV-SETTINGS-LEFT  could not put back the settings of";
    assert!(printed.contains(warned), "{printed}");
    assert!(printed.contains("ALTER SYSTEM RESET work_mem"), "{printed}");
}

#[test]
fn an_arm_that_changes_settings_by_reload_has_a_server_of_its_own() {
    let lab = Lab::new();
    let (base, other) = (
        arm("base", Major::V17, ""),
        arm("other", Major::V17, ",reload.work_mem=9MB"),
    );
    let (experiment, _) = lab.experiment(&ab(&base, &other, &["--blocks", "1"]));
    let of = |arm: usize| experiment.arms[arm].environment.as_ref().unwrap();
    assert_ne!(of(0).get("server.pid"), of(1).get("server.pid"));
    let memory = |arm: usize| of(arm).settings["work_mem"].value.as_str();
    assert_eq!((memory(0), memory(1)), ("4096", "9216"));
}

#[test]
fn nothing_that_is_measured_was_sent_to_warm_up() {
    let lab = Lab::new();
    let (base, other) = (arm("base", Major::V18, ""), arm("other", Major::V18, ""));
    let words = [
        "ab",
        "--base",
        &base,
        "--arm",
        &other,
        "--blocks",
        "3",
        "-R",
        "50%",
        "-T",
        "7",
        "--warmup",
        "3",
        "--seed",
        "5",
        "--dry-run",
    ];
    let output = lab.run(&words);
    let planned = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let seeds = |wanted: &dyn Fn(&str) -> bool| -> Vec<&str> {
        let lines = planned.lines().filter(|line| wanted(line));
        lines
            .map(|line| line.rsplit_once("--random-seed=").unwrap().1)
            .collect()
    };
    let is_paced = |line: &str| line.contains("--rate=");
    let measured = seeds(&|line| line.contains("--time=7") && is_paced(line));
    let sent =
        seeds(&|line| line.contains("--time=3") || line.contains("--time=7") && !is_paced(line));
    // Two arms: in three blocks; before them a pilot and its warm-up each, and one more warm-up.
    assert_eq!((measured.len(), sent.len()), (6, 12), "{planned}");
    assert!(
        sent.iter().all(|seed| !measured.contains(seed)),
        "{planned}"
    );
    let distinct: BTreeSet<&&str> = measured.iter().collect();
    assert_eq!(distinct.len(), 3, "{planned}");
}

#[test]
fn a_program_replaced_between_runs_ends_all_trust() {
    let lab = Lab::new();
    // The installation of 17 holds all it needs, and finds it from anywhere.
    let copy = lab.scratch.path().join("installation");
    let copied = Command::new("cp")
        .args(["-r", "--reflink=auto"])
        .arg(Major::V17.bindir().unwrap().parent().unwrap())
        .arg(&copy)
        .status()
        .unwrap();
    assert!(copied.success());
    let bindir = copy.join("bin");
    // The server's user must reach it.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(lab.scratch.path(), open).unwrap();
    let base = format!("server:bindir={}", bindir.display());
    let out = lab.out();
    let mut words = vec![
        "ab",
        "--base",
        &base,
        "--aa",
        "--blocks",
        "3",
        "-w",
        "simple-update",
    ];
    words.extend(QUICK);
    words.extend(["--out", out.to_str().unwrap()]);
    let mut told = String::new();
    let mut child = lab
        .command(&words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        told.push_str(&format!("{line}\n"));
        if line.starts_with("block 1/3") {
            let replaced = bindir.join("postgres.new");
            std::fs::copy(bindir.join("postgres"), &replaced).unwrap();
            // A byte behind its end is another program, and runs the same.
            let mut file = std::fs::OpenOptions::new()
                .append(true)
                .open(&replaced)
                .unwrap();
            file.write_all(b"\n").unwrap();
            drop(file);
            std::fs::rename(&replaced, bindir.join("postgres")).unwrap();
        }
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(
        text(&output.stdout).contains("ENV-EXE-CHANGED"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_budget_ends_an_experiment_before_its_plan() {
    let lab = Lab::new();
    let base = arm("server", Major::V18, "");
    let out = lab.out();
    let mut words = vec![
        "ab", "--base", &base, "--aa", "--budget", "12s", "--blocks", "500",
    ];
    words.extend(QUICK);
    words.extend(["--out", out.to_str().unwrap()]);
    let began = Instant::now();
    let output = lab.run(&words);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    // The budget, one run beyond it, and what it takes to end.
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn two_labs_do_not_measure_each_other() {
    let lab = Lab::new();
    let mut held = std::fs::File::create(lab.scratch.path().join("lock")).unwrap();
    held.write_all(b"process 4711 since 2026-11-21T09:31:00Z\n")
        .unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let out = lab.out();
    let mut child = lab
        .command(&[
            "seed", "block-io", "--size", "0.01", "--repeat", "1", "--out",
        ])
        .arg(&out)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
    assert_eq!(
        told.next().unwrap().unwrap(),
        "waiting for another lab on this machine: process 4711 since 2026-11-21T09:31:00Z"
    );
    assert!(!out.exists(), "it did not wait");
    drop(held);
    let rest: Vec<String> = told.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest:?}");
    assert!(out.join("result.json").exists());
}
