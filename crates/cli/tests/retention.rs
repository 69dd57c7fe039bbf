//! What docs/OPERATIONS.md says about which backups stay, against a real server: its commands work, a plan of one process is
//! what another one does, and WAL that was given up is told from WAL that was lost.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pgstrata_testbed::cluster::{Cluster, Major};
use serde_json::Value;
use support::{Stage, Store, files, namespace, number, process, text, to_lsn};

/// The commands under "Which backups stay", as words.
fn commands() -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/OPERATIONS.md");
    let text = fs::read_to_string(path).unwrap();
    let blocks = text.split("```retention\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap().lines());
    lines.map(words).collect()
}

/// As a shell splits them: at blanks, but for those between quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, part) in line.split('\'').enumerate() {
        match number % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    assert_eq!(words.remove(0), "pgstrata", "{line}");
    words
}

#[test]
fn the_commands_of_the_manual_work() {
    let stage = Stage::archiving(Cluster::builder(Major::V18), Store::Directory);
    stage.backup(&["--type", "full"]);
    stage.backup(&[]);
    let commands = commands();
    assert!(commands.len() >= 7, "{commands:?}");
    for command in commands {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let shown = stage.ok(&words);
        match words[..] {
            ["pin", ..] => assert!(shown.contains("before the move"), "{shown}"),
            ["info", "latest"] => {
                for part in ["pinned", "before the move", "ticket=DB-1042"] {
                    assert!(shown.contains(part), "{part}: {shown}");
                }
            }
            ["info", "--costs", ..] => {
                for part in ["--keep-within", "--keep-monthly", "--keep-wal"] {
                    assert!(shown.contains(part), "{part}: {shown}");
                }
            }
            _ => {}
        }
    }
}

fn labels(report: &Value, list: &str) -> Vec<String> {
    let list = report[list].as_array().unwrap().iter();
    let label = |one: &Value| one.as_str().or(one["label"].as_str()).unwrap().to_owned();
    list.map(label).collect()
}

/// The LSN and the time of now. A transaction follows, and segments that belong to no layer.
fn moment(stage: &Stage) -> (String, String) {
    let sql = |query| stage.cluster.sql("postgres", query).unwrap();
    stage.archive_all();
    let lsn = sql("SELECT pg_create_restore_point('here')");
    let time = sql("SELECT clock_timestamp()");
    sql("INSERT INTO later VALUES (1)");
    stage.archive_all();
    sql("INSERT INTO later VALUES (2)");
    stage.archive_all();
    (lsn, time)
}

/// Every object of the repository.
fn objects(stage: &Stage) -> BTreeSet<String> {
    fn walk(directory: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            match path.is_dir() {
                true => walk(&path, found),
                false if name.starts_with('.') => {}
                false => drop(found.insert(path.display().to_string())),
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(&stage.objects(), &mut found);
    found
}

/// Three full layers with WAL between them; the rules come from a configuration file.
#[test]
fn older_layers_restore_to_their_own_end_and_no_moment_between() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let mut ends = Vec::new();
    stage
        .cluster
        .sql(
            "postgres",
            "CREATE TABLE t (n int); CREATE TABLE later (n int)",
        )
        .unwrap();
    for number in 0..3 {
        stage.backup(&["--type", "full"]);
        let insert = format!("INSERT INTO t VALUES ({number})");
        stage.cluster.sql("postgres", &insert).unwrap();
        ends.push(moment(&stage));
    }
    expire_by_rules(&stage);
    let info = stage.json(&["info"]);
    assert_eq!(info["status"], "ok", "{info:#}");
    stage.ok(&["verify"]);
    let all = labels(&info, "layers");

    // Each layer to its own end; the moments after the newest one; none between.
    for (number, label) in all.iter().enumerate() {
        let name = format!("own-{number}");
        let target = stage.restore(
            &name,
            &[
                label,
                "--target-type",
                "immediate",
                "--target-action",
                "promote",
            ],
        );
        let restored = stage.start_restored(&target);
        let count = restored.sql("postgres", "SELECT count(*) FROM t").unwrap();
        assert_eq!(count, number.to_string(), "{label}");
    }
    nothing_between(&stage, &all, &ends);
    let target = stage.restore("after", &to_lsn(&ends[2].0));
    let restored = stage.start_restored(&target);
    let count = restored.sql("postgres", "SELECT count(*) FROM t").unwrap();
    assert_eq!(count, "3");
}

fn nothing_between(stage: &Stage, all: &[String], ends: &[(String, String)]) {
    let refused = stage.target("between").display().to_string();
    for (kind, target) in [("lsn", &ends[0].0), ("time", &ends[0].1)] {
        let wanted = [
            "restore",
            "--target-dir",
            &refused,
            "--target-type",
            kind,
            "--target",
            target,
        ];
        let (code, log) = stage.fails(&wanted);
        assert_eq!(code, 18, "{log}");
        assert!(
            log.contains("an expiry has given up") && log.contains("immediate"),
            "{log}"
        );
    }
    let wanted = ["restore", &all[0], "--target-dir", &refused];
    let (code, log) = stage.fails(&wanted);
    assert_eq!(code, 18, "{log}");
    assert!(log.contains("an expiry has given up"), "{log}");
    assert!(!Path::new(&refused).exists());
}

/// The rules of a configuration file: what is shown first is what is done.
fn expire_by_rules(stage: &Stage) {
    let rules = stage
        .cluster
        .create_dir("rules")
        .unwrap()
        .join("rules.toml");
    fs::write(
        &rules,
        "keep-full = 3\nkeep-wal = '0d'\n[clusters.other]\nkeep-full = 1\n",
    )
    .unwrap();
    let with_rules = |more: &[&'static str]| {
        let file = format!("--config={}", rules.display());
        let mut words = vec![file, "expire".to_owned()];
        words.extend(more.iter().map(|word| (*word).to_owned()));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        stage.json(&words)
    };
    // An option overrides the key of its name, and no other.
    let planned = with_rules(&["--dry-run", "--keep-full", "1"]);
    assert_eq!(labels(&planned, "remove").len(), 2, "{planned:#}");
    let before = objects(stage);
    let planned = with_rules(&["--dry-run"]);
    assert_eq!(objects(stage), before);
    let done = with_rules(&[]);
    for same in [
        "remove",
        "keep",
        "wal",
        "wal_files",
        "wal_bytes",
        "wal_from",
    ] {
        assert_eq!(planned[same], done[same], "{same}");
    }
    let files = planned["wal_files"].as_u64().unwrap();
    assert!(files >= 2, "{planned:#}");
    let after = objects(stage);
    let gone: Vec<&String> = before.difference(&after).collect();
    assert_eq!(gone.len(), usize::try_from(files).unwrap(), "{gone:#?}");
    let runs = planned["wal"].as_array().unwrap();
    for key in gone {
        let name = &key.rsplit('/').next().unwrap()[..24];
        let within = |run: &&Value| text(run, "/first") <= name && name <= text(run, "/last");
        assert!(runs.iter().any(|run| within(&run)), "{key}: {runs:#?}");
    }
}

/// Runs the words after `$2` as the owner of the directory `$2`, on a host of the name that stands in the file `$1`.
const ON_ANOTHER_HOST: &str = r#"
name=$1 owner=$2; shift 2
mount --make-private /proc 2>/dev/null || :
mount --bind "$name" /proc/sys/kernel/hostname
user=$(stat -c %u "$owner") group=$(stat -c %g "$owner")
test "$user" = "$(id -u)" || set -- setpriv --reuid "$user" --regid "$group" --clear-groups "$@"
exec "$@"
"#;

/// A document of a command that runs on another host.
fn on_another_host(stage: &Stage, words: &[&str]) -> Value {
    let name = stage.target("name");
    fs::write(&name, "another-host\n").unwrap();
    let repository = stage.objects();
    let own = [&name, &repository, &stage.program].map(|path| path.display().to_string());
    let url = format!("--repo={}", stage.repository);
    let more = [&url, "--cluster=main", "--output=json"];
    let all: Vec<&str> = own.iter().map(String::as_str).chain(more).collect();
    let mut command = namespace::with_own_mounts(ON_ANOTHER_HOST, &[&all[..], words].concat());
    let output = command.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// All but the records of the WAL that was given up: one comes with each expiry of WAL.
fn without_records(keys: &BTreeSet<String>) -> BTreeSet<String> {
    let keys = keys.iter().filter(|key| !key.contains("/wal-released/"));
    keys.cloned().collect()
}

/// What stays when exactly that goes which the plan shows.
fn left_by(plan: &Value, before: &BTreeSet<String>) -> BTreeSet<String> {
    let removed = labels(plan, "remove");
    let runs = plan["wal"].as_array().unwrap();
    let goes = |key: &String| {
        // Notes of the archiver have more in their names.
        let name = key.rsplit('/').next().unwrap();
        let name = name.get(..24).unwrap_or(name);
        let within = |run: &Value| text(run, "/first") <= name && name <= text(run, "/last");
        let of_wal = key.contains("/wal/") && runs.iter().any(within);
        let of = |label: &String| key.contains(&format!("/layer/{label}/"));
        of_wal || removed.iter().any(of)
    };
    let mut left = without_records(before);
    left.retain(|key| !goes(key));
    left
}

#[test]
fn what_one_host_plans_is_what_another_does() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    for kind in ["full", "incr", "full", "full", "incr"] {
        stage.backup(&["--type", kind]);
        moment_without_table(&stage);
    }
    let all = labels(&stage.json(&["info"]), "layers");
    // What another host restores stays, whoever expires.
    let target = stage.target("elsewhere").display().to_string();
    on_another_host(&stage, &["restore", &all[1], "--target-dir", &target]);
    let periods = [
        "--keep-daily",
        "--keep-weekly",
        "--keep-monthly",
        "--keep-yearly",
    ];
    let last_of_all: Vec<&str> = periods.iter().flat_map(|rule| [*rule, "1"]).collect();
    let without_wal = ["--keep-wal", "0d", "--ignore-restores"];
    let mut went = Vec::new();
    for rules in [
        &["--keep-within", "1d", "--keep-wal", "0d"][..],
        &["--keep-full", "2", "--keep-wal", "0d"],
        &["--keep-full", "1"],
        &[&last_of_all[..], &without_wal].concat(),
    ] {
        let planned = stage.json(&[&["expire", "--dry-run"], rules].concat());
        let before = objects(&stage);
        let done = on_another_host(&stage, &[&["expire"], rules].concat());
        for same in ["remove", "keep", "wal", "wal_files", "remarks"] {
            assert_eq!(planned[same], done[same], "{same} by {rules:?}");
        }
        let left = left_by(&planned, &before);
        let after = without_records(&objects(&stage));
        let odd: Vec<&String> = after.symmetric_difference(&left).collect();
        assert!(odd.is_empty(), "{rules:?}: {odd:#?}");
        went.push(without_records(&before).len() - left.len());
    }
    // What the second rule does not want another host restores.
    assert!(
        went[0] > 0 && went[1] == 0 && went[2] > 5 && went[3] > 10,
        "{went:?}"
    );
    let left = labels(&stage.json(&["info"]), "layers");
    assert_eq!(left, all[3..], "the newest full layer and its increment");
    stage.ok(&["verify", "--deep"]);
}

fn moment_without_table(stage: &Stage) {
    stage.archive_all();
    stage
        .cluster
        .sql("postgres", "CREATE TABLE IF NOT EXISTS later (n int)")
        .unwrap();
    moment(stage);
}

/// Whichever of two is quicker: what the rules keep stays, with the WAL that makes it consistent.
#[test]
fn two_expiries_at_once_leave_what_the_rules_keep() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    for round in 0..3_u64 {
        for kind in ["full", "incr", "full"] {
            stage.backup(&["--type", kind]);
            moment_without_table(&stage);
        }
        let rules = ["expire", "--keep-full", "2", "--keep-wal", "0d"];
        let first = process::spawn(&stage, &rules);
        thread::sleep(Duration::from_millis(round * 15));
        let second = process::spawn(&stage, &rules);
        for child in [first, second] {
            let output = child.wait_with_output().unwrap();
            let log = String::from_utf8_lossy(&output.stderr);
            let code = output.status.code();
            // One that found that the other had changed what it looked at says so.
            assert!(matches!(code, Some(0 | 3 | 12)), "{code:?}: {log}");
        }
        stage.ok(&rules);
        let info = stage.json(&["info"]);
        assert_eq!(info["status"], "ok", "{info:#}");
        let left = labels(&info, "layers");
        assert_eq!(left.len(), 3, "two full layers and an increment: {info:#}");
        stage.ok(&["verify", "--deep"]);
    }
    let left = labels(&stage.json(&["info"]), "layers");
    let own = ["--target-type", "immediate", "--target-action", "promote"];
    for (number, label) in left.iter().enumerate() {
        let words = [&[label.as_str()], &own[..]].concat();
        let target = stage.restore(&format!("own-{number}"), &words);
        stage.start_restored(&target);
    }
}

/// Bytes of the files below a directory, and how many they are. Hidden ones are no objects.
fn stored(directory: &Path) -> (u64, u64) {
    let (mut bytes, mut count) = (0, 0);
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with('.') {
            continue;
        }
        let (of, more) = match path.is_dir() {
            true => stored(&path),
            false => (fs::metadata(&path).unwrap().len(), 1),
        };
        bytes += of;
        count += more;
    }
    (bytes, count)
}

fn list<'v>(report: &'v Value, name: &str) -> &'v [Value] {
    report[name].as_array().unwrap()
}

fn of_rule<'v>(costs: &'v Value, name: &str) -> &'v Value {
    let mut rules = list(costs, "rules").iter();
    rules.find(|rule| rule["rule"] == name).unwrap()
}

#[test]
fn costs_add_up_to_what_is_stored_and_a_rule_costs_what_goes_without_it() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let create = "CREATE TABLE t (n int); CREATE TABLE later (n int)";
    stage.cluster.sql("postgres", create).unwrap();
    for number in 0..3 {
        stage.backup(&["--type", "full"]);
        let insert = format!("INSERT INTO t SELECT generate_series(1, 10000 * ({number} + 1))");
        stage.cluster.sql("postgres", &insert).unwrap();
        moment(&stage);
    }
    let main = stage.objects().join("main");
    let today = Timestamp::now();
    let days = [72, 0].map(|hours| {
        let day = today - SignedDuration::from_hours(hours);
        day.strftime("%F").to_string()
    });
    let (wal_bytes, wal_files) = stored(&main.join("wal"));
    files::age(&main.join("wal"), "3 days ago");
    moment(&stage);
    let rules = ["--keep-full", "3", "--keep-daily", "1"];
    let costs = stage.json(&[&["info", "--costs"][..], &rules].concat());

    // What there is.
    let (all, _) = stored(&main);
    assert_eq!(number(&costs, "/stored_bytes"), all, "{costs:#}");
    let layers = list(&costs, "layers");
    assert_eq!(layers.len(), 3, "{costs:#}");
    let mut sum = number(&costs, "/other_bytes");
    for layer in layers {
        let (bytes, _) = stored(&main.join("layer").join(text(layer, "/label")));
        assert_eq!(number(layer, "/stored_bytes"), bytes, "{layer:#}");
        assert!(layer["why"].is_string(), "{layer:#}");
        sum += bytes;
    }
    let (all_wal, all_files) = stored(&main.join("wal"));
    let wal = list(&costs, "wal");
    let expected = [
        (&days[0], wal_files, wal_bytes),
        (&days[1], all_files - wal_files, all_wal - wal_bytes),
    ];
    assert_eq!(wal.len(), expected.len(), "{costs:#}");
    for (found, (day, files, bytes)) in wal.iter().zip(expected) {
        assert_eq!(text(found, "/day"), day, "{costs:#}");
        assert_eq!(number(found, "/files"), files, "{costs:#}");
        assert_eq!(number(found, "/stored_bytes"), bytes, "{costs:#}");
        sum += bytes;
    }
    assert_eq!(sum, all, "{costs:#}");
    rules_cost_what_goes(&stage, &costs, &rules);
}

/// What each rule costs is what an expiry takes that is not given the rule.
fn rules_cost_what_goes(stage: &Stage, costs: &Value, rules: &[&str]) {
    let expire = |more: &[&str]| stage.json(&[&["expire"][..], more].concat());
    let plan = expire(&[rules, &["--dry-run"]].concat());
    assert_eq!(labels(&plan, "remove").len(), 0, "{plan:#}");
    // What goes whatever the rules are: WAL from before the first layer.
    let anyway = number(&plan, "/wal_bytes");
    let daily = of_rule(costs, "--keep-daily");
    assert_eq!(number(daily, "/layer_bytes"), 0, "{daily:#}");
    assert_eq!(number(daily, "/wal_bytes"), 0, "{daily:#}");
    let between = of_rule(costs, "WAL between layers");
    let plan = expire(&[rules, &["--keep-wal", "0d", "--dry-run"]].concat());
    let more = number(&plan, "/wal_bytes") - anyway;
    assert!(more > 0, "{plan:#}");
    assert_eq!(number(between, "/wal_bytes"), more, "{between:#}");
    assert_eq!(number(between, "/layer_bytes"), 0, "{between:#}");

    let full = of_rule(costs, "--keep-full");
    let plan = expire(&["--keep-daily", "1", "--dry-run"]);
    let mut goes = labels(&plan, "remove");
    goes.reverse();
    assert_eq!(goes.len(), 2, "{plan:#}");
    assert_eq!(labels(full, "layers"), goes);
    let main = stage.objects().join("main");
    let layers_then = stored(&main.join("layer")).0;
    let wal_then = stored(&main.join("wal")).0;
    let done = expire(&["--keep-daily", "1"]);
    assert_eq!(done["done"], true, "{done:#}");
    let freed = layers_then - stored(&main.join("layer")).0;
    assert_eq!(number(full, "/layer_bytes"), freed, "{full:#}");
    let freed = wal_then - stored(&main.join("wal")).0;
    assert!(freed > anyway, "{done:#}");
    assert_eq!(number(full, "/wal_bytes"), freed - anyway, "{full:#}");
}
