//! Gates, exports and reports: from results made up, with a known effect.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails says where"
)]

mod support;

use std::process::Output;

use pgstrata_lab::format::Unit;
use pgstrata_lab::measure::environment::warning::warning;
use pgstrata_lab::measure::result::{Experiment, Metric, Run, UNSUSTAINED, WITHHELD};
use pgstrata_lab::measure::stat::verdict::Better;
use pgstrata_lab::report::analysis::analyse;
use quick_junit::Report;
use support::{Lab, made, said, text};

fn saved(effect: f64, noise: f64) -> Lab {
    let lab = Lab::new();
    std::fs::create_dir(lab.out()).unwrap();
    made::experiment(effect, noise).save(&lab.out()).unwrap();
    lab
}

fn ask(lab: &Lab, words: &[&str]) -> Output {
    let out = lab.out();
    let mut all = vec![words[0], out.to_str().unwrap()];
    all.extend(&words[1..]);
    lab.run(&all)
}

#[test]
fn a_gate_passes_fails_or_says_that_it_cannot_tell() {
    for (effect, noise, code) in [(1.06, 0.005, 0), (0.9, 0.005, 1), (0.985, 0.2, 3)] {
        let lab = saved(effect, noise);
        let junit = lab.scratch.path().join("junit.xml");
        let output = ask(
            &lab,
            &[
                "gate",
                "--fail-if",
                "tps < 0.98",
                "--junit",
                junit.to_str().unwrap(),
            ],
        );
        assert_eq!(
            output.status.code(),
            Some(code),
            "{effect} {}",
            said(&output)
        );
        let xml = std::fs::read_to_string(&junit).unwrap();
        let report = Report::deserialize_from_str(&xml).unwrap();
        let counts = [report.tests, report.failures, report.errors];
        assert_eq!(
            counts,
            [1, usize::from(code == 1), usize::from(code == 3)],
            "{xml}"
        );
        assert_eq!(report.test_suites[0].test_cases.len(), 1, "{xml}");
    }
}

#[test]
fn a_gate_says_what_the_mark_of_an_unstable_interval_means() {
    for is_unstable in [true, false] {
        let lab = saved(1.0, 0.01);
        let mut experiment = made::experiment(1.0, 0.01);
        // One block far off widens the interval, and leaves the bootstrap of the median as it is.
        for run in experiment.runs.iter_mut().filter(|run| run.arm == 1) {
            let step = f64::from(u32::try_from(run.block).unwrap());
            let far = if is_unstable && run.block > 6 {
                1.9
            } else {
                1.0
            };
            run.values.insert("tps".to_owned(), far * (1000.0 + step));
        }
        experiment.save(&lab.out()).unwrap();
        let junit = lab.scratch.path().join("junit.xml");
        let gate = ["gate", "--fail-if", "tps < 1.5", "--junit"];
        let output = ask(&lab, &[&gate[..], &[junit.to_str().unwrap()]].concat());
        let xml = std::fs::read_to_string(&junit).unwrap();
        for said in [text(&output.stdout), xml] {
            assert_eq!(said.contains(" ~"), is_unstable, "{said}");
            assert_eq!(said.contains("~ marks an interval"), is_unstable, "{said}");
        }
    }
}

#[test]
fn a_gate_proves_nothing_that_the_report_does_not() {
    let cannot_tell = |change: &dyn Fn(&mut Experiment)| {
        let lab = saved(0.9, 0.005);
        let mut experiment = made::experiment(0.9, 0.005);
        change(&mut experiment);
        experiment.save(&lab.out()).unwrap();
        let output = ask(&lab, &["gate", "--fail-if", "tps < 0.98"]);
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        text(&output.stdout)
    };
    let printed = cannot_tell(&|experiment| experiment.plan.interleaved = false);
    assert!(printed.contains("possible"), "{printed}");
    let printed = cannot_tell(&|experiment| experiment.runs.retain(|run| run.block < 5));
    assert!(printed.contains("at least 6 blocks"), "{printed}");
}

/// A result without effect, in which some runs have this fact instead of a p99.
fn without_p99(fact: (&str, &str), of: impl Fn(&Run) -> bool) -> Lab {
    let lab = saved(1.0, 0.01);
    let mut experiment = made::experiment(1.0, 0.01);
    let p99 = Metric::new("p99", "p99", Unit::Seconds, Better::Lower);
    experiment.metrics.push(p99);
    for run in &mut experiment.runs {
        if of(run) {
            run.facts.insert(fact.0.to_owned(), fact.1.to_owned());
        } else {
            let p99 = run.values["tps"] / 100_000.0;
            run.values.insert("p99".to_owned(), p99);
        }
    }
    experiment.save(&lab.out()).unwrap();
    lab
}

#[test]
fn percentiles_of_those_blocks_alone_that_went_well_have_no_verdict() {
    let lab = without_p99(("rate", UNSUSTAINED), |run| run.arm == 1 && run.block < 4);
    let output = ask(&lab, &["gate", "--fail-if", "p99 > 1.05"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let report = text(&ask(&lab, &["report"]).stdout);
    assert!(report.contains("STAT-PARTIAL"), "{report}");
    assert!(
        report.contains("no value of an arm in 4 blocks"),
        "{report}"
    );
    // The rest is compared as ever.
    let output = ask(&lab, &["gate", "--fail-if", "tps < 0.9"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

#[test]
fn blocks_in_which_both_arms_left_too_much_undone_to_tell_are_missing() {
    let lab = without_p99(("p99", WITHHELD), |run| run.block < 4);
    let output = ask(&lab, &["gate", "--fail-if", "p99 > 1.05"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
}

#[test]
fn a_result_without_an_arm_to_judge_cannot_pass() {
    let lab = saved(1.0, 0.01);
    let mut again = made::experiment(0.5, 0.01);
    again.plan.same_again = true;
    let mut alone = made::experiment(1.0, 0.01);
    alone.arms.truncate(1);
    alone.runs.retain(|run| run.arm == 0);
    for experiment in [again, alone] {
        experiment.save(&lab.out()).unwrap();
        let output = ask(&lab, &["gate", "--fail-if", "tps < 0.98"]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(
            text(&output.stderr).contains("no arm beside the base"),
            "{}",
            said(&output)
        );
    }
}

#[test]
fn a_condition_nobody_understands_is_a_mistake_of_the_caller() {
    let lab = saved(1.0, 0.01);
    let output = ask(&lab, &["gate", "--fail-if", "speed good"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}

#[test]
fn a_result_is_analysed_again_to_the_same_numbers() {
    let lab = saved(1.06, 0.01);
    let first = ask(&lab, &["report", "--json"]);
    let second = ask(&lab, &["report", "--json"]);
    assert_eq!(first.status.code(), Some(0), "{}", said(&first));
    assert_eq!(first.stdout, second.stdout);
    let page = |name: &str| {
        let path = lab.scratch.path().join(name);
        let output = ask(&lab, &["report", "--html", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        std::fs::read(path).unwrap()
    };
    assert_eq!(page("one.html"), page("two.html"));
}

#[test]
fn arms_that_ran_one_after_another_carry_a_warning() {
    for interleaved in [true, false] {
        let lab = saved(1.06, 0.01);
        let mut experiment = made::experiment(1.06, 0.01);
        experiment.plan.interleaved = interleaved;
        experiment.save(&lab.out()).unwrap();
        let report = text(&ask(&lab, &["report"]).stdout);
        assert_eq!(report.contains("STAT-SEQUENTIAL"), !interleaved, "{report}");
    }
}

#[test]
fn a_sweep_of_numbers_is_drawn_along_them() {
    let drawn = |sweep: Vec<f64>| {
        let lab = saved(1.06, 0.01);
        let mut experiment = made::experiment(1.06, 0.01);
        let mut third = experiment.arms[1].clone();
        third.name = "third".to_owned();
        experiment.arms.push(third);
        let mut more: Vec<_> = experiment
            .runs
            .iter()
            .filter(|r| r.arm == 1)
            .cloned()
            .collect();
        for run in &mut more {
            run.arm = 2;
        }
        experiment.runs.extend(more);
        experiment.plan.sweep = (!sweep.is_empty()).then_some(sweep);
        experiment.save(&lab.out()).unwrap();
        let page = lab.scratch.path().join("page.html");
        ask(&lab, &["report", "--html", page.to_str().unwrap()]);
        std::fs::read_to_string(page).unwrap()
    };
    assert!(drawn(vec![1.0, 8.0, 2.0]).contains("Along the sweep"));
    assert!(!drawn(Vec::new()).contains("Along the sweep"));
}

#[test]
fn few_blocks_prove_no_trend() {
    for (blocks, is_told) in [(5, false), (10, true)] {
        let mut experiment = made::experiment(0.9, 0.005);
        experiment.runs.retain(|run| run.block < blocks);
        experiment.plan.sweep = Some(vec![1.0, 8.0]);
        assert_eq!(analyse(&experiment).page.is_some(), is_told);
    }
}

#[test]
fn a_direction_is_said_in_words_and_signs_beside_colours() {
    for (effect, word) in [(1.06, "▲ better"), (0.94, "▼ worse")] {
        let lab = saved(effect, 0.005);
        let page = lab.scratch.path().join("page.html");
        let output = ask(&lab, &["report", "--html", page.to_str().unwrap()]);
        let printed = text(&output.stdout);
        assert!(printed.contains(word), "{printed}");
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains(word), "{word} is not on the page");
        let plain = text(&ask(&lab, &["report", "--ascii"]).stdout);
        assert!(plain.is_ascii(), "{plain}");
    }
}

#[test]
fn exports_hold_every_run_and_every_arm() {
    let lab = saved(1.06, 0.01);
    let csv = text(&ask(&lab, &["report", "--csv"]).stdout);
    // A head and one line for each value of each of twenty runs.
    assert!(csv.lines().count() >= 21, "{csv}");
    let bencher: serde_json::Value =
        serde_json::from_slice(&ask(&lab, &["report", "--bencher"]).stdout).unwrap();
    for arm in ["ab base", "ab new"] {
        let measure = &bencher[arm]["tps"];
        let value = measure["value"].as_f64().unwrap();
        assert!(measure["lower_value"].as_f64().unwrap() <= value);
        assert!(measure["upper_value"].as_f64().unwrap() >= value);
    }
    let otava = text(&ask(&lab, &["report", "--otava"]).stdout);
    let (head, line) = otava.trim_end().split_once('\n').unwrap();
    let value = bencher["ab new"]["tps"]["value"].to_string();
    let named = head.split(',').zip(line.split(','));
    let found: std::collections::BTreeMap<_, _> = named.collect();
    assert_eq!(found["tps new"], value, "{otava}");
    assert!(found["time"].starts_with("20"), "{otava}");
    assert_eq!(head.matches(',').count(), line.matches(',').count());
}

#[test]
fn a_document_gets_tables_whose_rows_have_as_many_cells_as_their_head() {
    let lab = saved(1.06, 0.01);
    let document = text(&ask(&lab, &["report", "--md"]).stdout);
    assert!(document.starts_with("## made up\n"), "{document}");
    let tables: Vec<&str> = document.lines().filter(|l| l.starts_with('|')).collect();
    assert_eq!(tables.len(), 3, "{document}");
    for line in &tables {
        assert_eq!(line.matches('|').count(), 7, "{line}");
    }
    assert!(tables[2].contains("1.06"), "{document}");
    assert!(tables[2].contains("better"), "{document}");
}

#[test]
fn results_of_two_sessions_are_at_most_possibly_different() {
    let (one, other) = (saved(1.0, 0.01), saved(1.0, 0.01));
    let mut slower = made::experiment(1.0, 0.01);
    for run in &mut slower.runs {
        run.values.insert("tps".to_owned(), run.values["tps"] * 0.5);
    }
    slower.save(&other.out()).unwrap();
    let output = one.run(&[
        "compare",
        one.out().to_str().unwrap(),
        other.out().to_str().unwrap(),
    ]);
    let said = said(&output);
    assert!(said.contains("STAT-UNPAIRED"), "{said}");
    assert!(said.contains("possibl"), "{said}");
}

#[test]
fn a_comparison_of_results_names_its_own_command_and_the_files_of_both() {
    let (one, other) = (saved(1.0, 0.01), saved(1.0, 0.01));
    let mut first = made::experiment(1.0, 0.01);
    first.command.push("--of-the-first".to_owned());
    first.save(&one.out()).unwrap();
    let page = one.scratch.path().join("page.html");
    let (first, second) = (one.out(), other.out());
    let words = ["compare", first.to_str().unwrap(), second.to_str().unwrap()];
    let output = one.run(&[&words[..], &["--html", page.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let printed = text(&output.stdout);
    let repeat = printed.lines().find(|line| line.starts_with("repeat"));
    let repeat = repeat.unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(repeat[1..6], [&["pgstrata", "lab"], &words[..]].concat());
    let page = std::fs::read_to_string(page).unwrap();
    assert!(!page.contains("--of-the-first"), "{page}");
    assert!(!page.contains("The seed"), "{page}");
    for name in ["base 1: result.json", "base 2: result.json"] {
        assert!(page.contains(name), "no {name} in {page}");
    }
    assert!(page.contains("href=\"out/result.json\""), "{page}");
}

#[test]
fn what_is_run_again_is_told_as_a_shell_takes_it() {
    let lab = saved(1.0, 0.01);
    let mut experiment = made::experiment(1.0, 0.01);
    let words = ["pgstrata", "lab", "workloads", "show", "it's none"];
    experiment.command = words.map(str::to_owned).into();
    experiment.save(&lab.out()).unwrap();
    let output = ask(&lab, &["rerun"]);
    let told = text(&output.stderr);
    let typed = r"pgstrata lab workloads show 'it'\''s none' --out=";
    assert!(told.starts_with(typed), "{told}");
}

#[test]
fn one_arm_alone_has_no_ratio_that_could_be_claimed() {
    let lab = Lab::new();
    let claim = ["--hypothesis", "it is quick", "--claim", "tps >= 1"];
    let output = lab.run(&[&["run", "--dry-run"], &claim[..]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(text(&output.stderr).contains("one arm alone"));
}

#[test]
fn what_disturbed_one_session_does_not_spoil_the_other() {
    let (one, other) = (saved(1.0, 0.01), saved(1.0, 0.01));
    let mut noisy = made::experiment(1.0, 0.01);
    for run in noisy.runs.iter_mut().filter(|run| run.block < 4) {
        run.values.insert("cpu_foreign".to_owned(), 0.5);
    }
    noisy.save(&one.out()).unwrap();
    let compare = || {
        let (first, second) = (one.out(), other.out());
        let words = [first.to_str().unwrap(), second.to_str().unwrap()];
        one.run(&["compare", words[0], words[1]])
    };
    let output = compare();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let printed = text(&output.stdout);
    // Six of the first day and ten of the second.
    assert!(printed.contains("16 counted"), "{printed}");
    assert!(printed.contains("ENV-FOREIGN-CPU  base 1: "), "{printed}");

    let mut invalid = made::experiment(1.0, 0.01);
    let changed = warning("ENV-EXE-CHANGED", "another program");
    invalid.warnings.push(changed);
    invalid.save(&other.out()).unwrap();
    let output = compare();
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let printed = text(&output.stdout);
    assert!(printed.contains("base 2: another program"), "{printed}");
}

#[test]
fn a_plan_says_how_many_blocks_an_effect_needs() {
    let lab = saved(1.0, 0.02);
    let out = lab.out();
    let output = lab.run(&[
        "plan",
        "--pilot",
        out.to_str().unwrap(),
        "--min-effect",
        "2%",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(text(&output.stdout).contains("blocks"), "{}", said(&output));
}
