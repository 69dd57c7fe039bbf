//! `seed block-io` over connections that may do little.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails says where"
)]

mod support;

use pgstrata_lab::measure::result::Experiment;
use pgstrata_testbed::cluster::{Cluster, Major};
use support::{Lab, said, text};

const STEPS: [&str; 9] = [
    "create_table",
    "vacuum",
    "query1",
    "query2",
    "query3",
    "create_index",
    "cluster",
    "query4",
    "query5",
];

fn cluster() -> Cluster {
    let cluster = Cluster::builder(Major::V15)
        .conf("log_statement", "all")
        .conf("log_line_prefix", "%a|")
        .start()
        .unwrap();
    cluster
        .sql(
            "postgres",
            "CREATE ROLE plain LOGIN; CREATE ROLE nobody_here LOGIN; CREATE DATABASE fast; CREATE DATABASE bare;
             CREATE SCHEMA work; GRANT CREATE, USAGE ON SCHEMA work TO plain;
             REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        )
        .unwrap();
    cluster
}

fn tables(cluster: &Cluster) -> String {
    cluster
        .sql(
            "postgres",
            "SELECT oid::regclass FROM pg_class WHERE relname ~ 'settings' AND relkind = 'r' \
             UNION ALL SELECT oid::regnamespace::text::regclass FROM pg_namespace WHERE false",
        )
        .unwrap()
        + &cluster
            .sql(
                "postgres",
                "SELECT nspname FROM pg_namespace WHERE nspname ~ 'pgstrata'",
            )
            .unwrap()
}

#[test]
fn one_server_reached_in_two_ways_is_measured_by_both() {
    let cluster = cluster();
    let lab = Lab::new();
    let dsn = cluster.conninfo("postgres");
    let other = format!("{dsn} application_name=other");
    let (experiment, _) = lab.experiment(&[
        "seed", "block-io", "--preset", "tiny", "--repeat", "1", "--dsn", &dsn, "--dsn", &other,
    ]);
    assert_eq!(experiment.runs.len(), 2);
    assert_eq!(tables(&cluster), "");
}

#[test]
fn a_plain_role_measures_twice_and_leaves_nothing() {
    let cluster = cluster();
    let lab = Lab::new();
    let dsn = cluster.conninfo_as("plain", "postgres");
    for _ in 0..2 {
        let (experiment, printed) = lab.experiment(&[
            "seed", "block-io", "--preset", "tiny", "--repeat", "2", "--dsn", &dsn,
        ]);
        assert_eq!(experiment.runs.len(), 2);
        for run in &experiment.runs {
            for step in STEPS {
                assert!(run.values[step] > 0.0, "{step}");
            }
            let rate = run.values["table_bytes"] / run.values["create_table"];
            assert!((run.values["create_table_rate"] / rate - 1.0).abs() < 0.01);
        }
        let note = "track_io_timing needs superuser: I/O times not shown";
        assert_eq!(printed.matches(note).count(), 1, "{printed}");
        assert_eq!(tables(&cluster), "");
    }
}

#[test]
fn a_role_that_may_not_create_is_told_so_in_one_sentence() {
    let cluster = cluster();
    let lab = Lab::new();
    let dsn = cluster.conninfo_as("nobody_here", "bare");
    let output = lab.run(&["seed", "block-io", "--preset", "tiny", "--dsn", &dsn]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert_eq!(text(&output.stdout), "");
    assert_eq!(
        text(&output.stderr),
        "error: could not find a place for tables: role nobody_here has privilege CREATE neither on database bare nor on a schema in it\n"
    );
}

#[test]
fn sizes_make_the_same_columns_and_the_rows_they_promise() {
    let cluster = cluster();
    let lab = Lab::new();
    let dsn = cluster.conninfo("fast");
    for (size, copies) in [("0.0101", 127), ("0.02", 251)] {
        let (experiment, _) = lab.experiment(&[
            "seed", "block-io", "--size", size, "--repeat", "1", "--keep", "--dsn", &dsn,
        ]);
        let table = cluster
            .sql(
                "fast",
                "SELECT oid::regclass FROM pg_class WHERE relname = 'settings_loop'",
            )
            .unwrap();
        let kind = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attname = 'seq' AND attrelid =";
        let kind = cluster
            .sql("fast", &format!("{kind} '{table}'::regclass"))
            .unwrap();
        assert_eq!(kind, "integer");
        let settings: u32 = cluster
            .sql(
                "fast",
                &format!("SELECT count(*) FROM {table} WHERE seq = 0"),
            )
            .unwrap()
            .parse()
            .unwrap();
        let rows = experiment.runs[0].values["rows"];
        assert!((rows - f64::from(copies * settings)).abs() < 0.5);
        let schema = table.split('.').next().unwrap();
        cluster
            .sql("fast", &format!("DROP SCHEMA {schema} CASCADE"))
            .unwrap();
    }
}

#[test]
fn a_dry_run_prints_every_statement_and_executes_none() {
    let cluster = cluster();
    let lab = Lab::new();
    let dsn = cluster.conninfo_as("postgres", "postgres");
    let words = [
        "seed", "block-io", "--preset", "tiny", "--repeat", "1", "--dsn", &dsn,
    ];
    let logged = |cluster: &Cluster| -> Vec<String> {
        let text = cluster.log_tail(10_000);
        let ours = text
            .lines()
            .filter_map(|line| line.strip_prefix("pgstrata-lab|LOG:"));
        ours.map(|line| line.trim().to_owned()).collect()
    };
    let planned = text(&lab.run(&[&words[..], &["--dry-run"]].concat()).stdout);
    assert_eq!(logged(&cluster), Vec::<String>::new());
    lab.experiment(&words);
    let log = logged(&cluster).join("\n");
    let mut at = 0;
    for line in planned.lines().filter(|line| !line.starts_with("--")) {
        let statement = line.trim_end_matches(';');
        let tail = statement.rsplit("TAG").next().unwrap();
        let head = statement.split("TAG").next().unwrap();
        let found = log[at..]
            .find(head)
            .unwrap_or_else(|| panic!("\"{head}\" was planned and not executed in its place"));
        at += found;
        assert!(log[at..].contains(tail), "{tail}");
    }
}

#[test]
fn an_interrupted_experiment_drops_its_tables_and_keeps_its_runs() {
    let cluster = cluster();
    let lab = Lab::new();
    let dsn = cluster.conninfo("postgres");
    let out = lab.out();
    let mut child = lab
        .command(&[
            "seed", "block-io", "--size", "0.02", "--repeat", "10000", "--dsn", &dsn, "--out",
        ])
        .arg(&out)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let saved = || std::fs::read_to_string(out.join("result.json")).is_ok();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !saved() {
        assert!(std::time::Instant::now() < end, "no run was kept");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let id = rustix::process::Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert_eq!(tables(&cluster), "");
    let report = lab.run(&["report", out.to_str().unwrap()]);
    assert_eq!(report.status.code(), Some(0), "{}", said(&report));
    assert!(text(&report.stdout).contains("interrupted by the user"));
}

#[test]
fn what_cannot_be_removed_is_said_and_what_was_measured_is_kept() {
    let cluster = cluster();
    let refuse = "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'it stays'; END $$;
        CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('DROP SCHEMA') EXECUTE FUNCTION refuse()";
    cluster.sql("postgres", refuse).unwrap();
    let lab = Lab::new();
    let (out, dsn) = (lab.out(), cluster.conninfo("postgres"));
    let words = [
        "seed", "block-io", "--preset", "tiny", "--repeat", "1", "--dsn", &dsn, "--out",
    ];
    let output = lab.run(&[&words[..], &[out.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    let told = text(&output.stderr);
    assert!(
        told.contains("could not clean up") && told.contains("it stays"),
        "{told}"
    );
    let experiment = Experiment::load(&out).unwrap();
    assert_eq!(experiment.runs.len(), 1);
    assert!(!experiment.tables.is_empty());
}

#[test]
fn what_it_would_not_do_for_an_arm_is_refused() {
    let lab = Lab::new();
    for key in ["reload.work_mem=1MB", "load.client=2"] {
        let arm = format!("x:{key}");
        let output = lab.run(&["seed", "block-io", "--dry-run", "--arm", &arm]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    }
}

#[test]
fn several_servers_work_on_the_same_rows() {
    let lab = Lab::new();
    let fifteen = cluster();
    let eighteen = Cluster::builder(Major::V18).checksums(false);
    let eighteen = eighteen.start().unwrap();
    let (experiment, printed) = lab.experiment(&[
        "seed",
        "block-io",
        "--preset",
        "tiny",
        "--order",
        "cbc",
        "--repeat",
        "6",
        "--dsn",
        &fifteen.conninfo("postgres"),
        "--dsn",
        &eighteen.conninfo("postgres"),
    ]);
    let rows: Vec<f64> = experiment
        .runs
        .iter()
        .map(|run| run.values["rows"])
        .collect();
    assert!(rows.iter().all(|r| (r - rows[0]).abs() < 0.5), "{rows:?}");
    assert_eq!(rows.len(), 12);
    assert!(printed.contains("95 % CI"), "{printed}");
    // Processes of others' servers are not known, and only 15 has checksums here.
    for id in ["ENV-FOREIGN-UNKNOWN", "ENV-ARMS-CHECKSUMS"] {
        assert!(printed.contains(id), "no {id} in {printed}");
    }
    let words: Vec<&str> = printed.split_whitespace().collect();
    let words = words.join(" ");
    assert!(words.contains("times the published 30.0 ms"), "{printed}");
    assert!(words.contains("and was to be at most 1"), "{printed}");
    assert_eq!(tables(&fifteen) + &tables(&eighteen), "");
}
