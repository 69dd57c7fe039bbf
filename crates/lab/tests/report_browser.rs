//! The page in a real browser: at two widths, without network and scripts.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails says where"
)]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use pgstrata_lab::format::Unit;
use pgstrata_lab::measure::environment::{Environment, Level, Warning};
use pgstrata_lab::measure::result::{
    Arm, Beside, Claim, Experiment, Mark, Metric, Phase, Plan, Published, Run, Table,
};
use pgstrata_lab::measure::sample::Samples;
use pgstrata_lab::measure::stat::Interval;
use pgstrata_lab::measure::stat::verdict::Better;
use pgstrata_lab::report::analysis::analyse;
use pgstrata_lab::report::conclusion::conclude;
use pgstrata_lab::report::terminal::{self, Style};
use pgstrata_lab::report::{html, markdown, output};
use support::{browser, made};

fn run(block: usize, arm: usize) -> Run {
    let step = f64::from(u32::try_from(block * 2 + arm).unwrap());
    let tps = 1000.0 + 7.0 * step.sin() + if arm == 1 { 60.0 } else { 0.0 };
    let seconds: Vec<f64> = (0..12).map(f64::from).collect();
    let series = [
        "disk.read",
        "disk.write",
        "cpu.user",
        "cpu.system",
        "mem.dirty",
    ];
    Run {
        block,
        position: arm,
        arm,
        started: 1_700_000_000.0 + step * 20.0,
        seconds: 12.0,
        values: BTreeMap::from([
            ("tps".to_owned(), tps),
            ("p99".to_owned(), 4.0 / tps),
            ("cpu_busy".to_owned(), 0.5),
        ]),
        phases: vec![Phase {
            name: "a phase with a rather long name".to_owned(),
            from: 2.0,
            to: 6.0,
        }],
        marks: vec![Mark {
            at: 5.0,
            what: "checkpoint starting".to_owned(),
        }],
        throughput: seconds.iter().map(|s| tps + s.cos()).collect(),
        latency: vec![(0.0, 0.0005), (0.5, 0.001), (0.9, 0.003), (0.99, 0.004)],
        statements: vec![(
            "UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;".to_owned(),
            0.001,
        )],
        waits: BTreeMap::from([
            ("running".to_owned(), 90.0),
            ("IO:WALSync".to_owned(), 10.0),
        ]),
        samples: Some(Samples {
            series: series
                .iter()
                .map(|name| {
                    (
                        (*name).to_owned(),
                        seconds.iter().map(|s| s * 3.0).collect(),
                    )
                })
                .collect(),
            time: seconds,
            own_cost: 0.01,
        }),
        ..Run::default()
    }
}

fn beside(name: &str, published: Option<f64>, ours: Option<f64>) -> Beside {
    Beside {
        name: name.to_owned(),
        published,
        ours,
        interval: Some(Interval {
            low: 0.000_4,
            high: 50.0,
        }),
    }
}

fn experiment() -> Experiment {
    let arm = |name: &str| {
        Arm {
        name: name.to_owned(),
        description: "guc.a_setting_with_a_very_long_name_that_has_no_place_to_break=1234567890123456789012345678901234567890".to_owned(),
        environment: None,
    }
    };
    let made = made::experiment(1.0, 0.01);
    Experiment {
        title: "A comparison with <marks> & long words".to_owned(),
        command: vec![
            "pgstrata".to_owned(),
            "lab".to_owned(),
            format!("--arm={}", "x".repeat(200)),
        ],
        workload: "pgbench".to_owned(),
        metrics: vec![
            Metric::new("tps", "tps", Unit::PerSecond, Better::Higher),
            Metric::new("p99", "p99", Unit::Seconds, Better::Lower),
        ],
        arms: vec![
            arm("base"),
            arm("new"),
            arm("the newest, with a name as long as that of a branch that somebody named well"),
        ],
        runs: (0..10)
            .flat_map(|block| [0, 1, 2].map(|arm| run(block, arm)))
            .collect(),
        tables: vec![Table {
            title: "A wide table".to_owned(),
            head: (0..11).map(|n| format!("column {n}")).collect(),
            rows: vec![(0..11).map(|n| format!("value {n} with words")).collect()],
            note: Some("A note.".to_owned()),
        }],
        published: vec![Published {
            figure: "What took how long".to_owned(),
            unit: Unit::Seconds,
            source: "Published somewhere.".to_owned(),
            rows: vec![
                beside("short", Some(0.000_3), Some(0.000_5)),
                beside(&"a name that goes on, ".repeat(9), Some(2.0), Some(1.0)),
                beside("never published", None, Some(40.0)),
            ],
        }],
        notes: vec!["A sentence.".to_owned()],
        plan: Plan {
            sweep: Some(vec![1.0, 2.0, 4.0]),
            claims: vec![
                Claim::at_least("tps", 2, 0.97).against(1),
                Claim::at_most("p99", 1, 1.15),
            ],
            ..made.plan
        },
        ..made
    }
}

#[test]
fn the_page_fits_a_desktop_and_a_phone_by_day_and_by_night_and_complains_of_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("report.html");
    let experiment = experiment();
    let text = html::render(&experiment, &analyse(&experiment));
    std::fs::write(&page, &text).unwrap();
    assert!(text.len() < 2 << 20);
    let looks = browser::look_at(&page);
    for look in &looks {
        assert!(look.pictures >= 8, "{look:?}");
    }
    // By night everything has another colour.
    assert_ne!(looks[0].screenshot, looks[1].screenshot);
    if let Some(kept) = std::env::var_os("PGSTRATA_LAB_PICTURES") {
        for look in &looks {
            let name = format!("report-{}-{}.png", look.width, look.scheme);
            std::fs::write(Path::new(&kept).join(name), &look.screenshot).unwrap();
        }
    }
}

#[test]
fn tables_say_what_they_are_also_where_they_are_cards() {
    let experiment = experiment();
    let text = html::render(&experiment, &analyse(&experiment));
    let count = |what: &str| text.matches(what).count();
    assert_eq!(count("<table "), count("role=\"table\""));
    assert_eq!(count("<tr"), count("role=\"row\""));
    assert_eq!(count("<th scope=\"col\""), count("role=\"columnheader\""));
    assert_eq!(count("<td"), count("role=\"cell\""));
    // Nothing is fetched and nothing is run.
    for forbidden in ["<script", "http://", "https://", "@import", "src="] {
        assert_eq!(count(forbidden), 0, "{forbidden}");
    }
    assert!(text.contains("&lt;marks&gt; &amp; long words"));
}

/// Falls while it is measured, loses a block, has something to beware of, and arms whose environments differ.
fn troubled() -> Experiment {
    let mut experiment = made::experiment(1.06, 0.001);
    for (run, step) in experiment.runs.iter_mut().zip(0_u32..) {
        let tps = run.values["tps"] * (1.0 - 0.01 * f64::from(step));
        run.values.insert("tps".to_owned(), tps);
        run.dropped = (run.block == 7).then(|| "it was too loud".to_owned());
    }
    experiment.runs[4].throughput = [vec![900.0; 20], vec![500.0; 20]].concat();
    experiment.warnings.push(Warning {
        id: "ENV-MADE-UP".to_owned(),
        level: Level::Info,
        found: "something".to_owned(),
        why: "it matters".to_owned(),
        fix: "mend it".to_owned(),
    });
    for (arm, kind) in experiment.arms.iter_mut().zip(["flash", "tape"]) {
        arm.description = format!("a disk of {kind}");
        let mut environment = Environment::default();
        environment.found("disk.kind", format!("made of {kind}"));
        environment.found("disk.maker", "the same");
        arm.environment = Some(environment);
    }
    experiment
}

#[test]
fn the_conclusion_comes_first_then_what_to_beware_of_then_how_it_was_measured() {
    let mut experiment = troubled();
    experiment.interrupted = Some("there was no room".to_owned());
    let (_, conclusion) = conclude(&experiment, &analyse(&experiment));
    let facts = ["workload none", "How it was measured", "<dt>workload</dt>"];
    for (text, facts) in for_people(&experiment).iter().zip(facts) {
        let mut before = 0;
        for words in [&conclusion, "RUN-INCOMPLETE", facts] {
            let at = place(text, words);
            assert!(at > before, "{words} is too early in {text}");
            before = at;
        }
        assert_eq!(text.matches("there was no room").count(), 1, "{text}");
    }
}

#[test]
fn what_the_conclusion_rests_on_is_the_first_picture() {
    let page = |experiment: &Experiment| html::render(experiment, &analyse(experiment));
    let claimed = experiment();
    let mut open = claimed.clone();
    open.plan.claims.clear();
    assert!(!page(&open).contains("rests on"));
    let page = page(&claimed);
    let picture = place(&page, "<h2 id=\"what-the-conclusion-rests-on\"");
    assert!(page.contains("href=\"#what-the-conclusion-rests-on\""));
    assert!(picture < place(&page, "<h2 id=\"beside-what-was-published\""));
    assert!(picture < place(&page, "<svg"));
    assert!(page.contains("at least 0.97"), "{page}");
}

/// The three reports for people, each in one line and without what keeps words together.
fn for_people(experiment: &Experiment) -> [String; 3] {
    let analysis = analyse(experiment);
    let reports = [
        terminal::render(experiment, &analysis, Style::default()),
        markdown::render(experiment, &analysis),
        html::render(experiment, &analysis),
    ];
    reports.map(|text| {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.join(" ")
    })
}

/// Where `words` first are.
fn place(text: &str, words: &str) -> usize {
    text.find(words)
        .unwrap_or_else(|| panic!("no \"{words}\" in {text}"))
}

#[test]
fn what_to_beware_of_stands_between_the_conclusion_and_the_first_figure() {
    let experiment = troubled();
    let (_, conclusion) = conclude(&experiment, &analyse(&experiment));
    for (text, figures) in for_people(&experiment)
        .iter()
        .zip(["B/A", "| tps |", "class=\"hero\""])
    {
        let mut before = place(text, &conclusion);
        for words in [
            "ENV-MADE-UP",
            "something",
            "Block 8 does not count: it was too loud.",
            "Drift: tps falls by 1",
            figures,
        ] {
            let at = place(text, words);
            assert!(at > before, "{words} is too early in {text}");
            before = at;
        }
        assert_eq!(text.matches("ENV-MADE-UP").count(), 1, "{text}");
        assert!(!text.contains("lock 7 does not"), "{text}");
        assert!(text.contains("block 3 base: throughput drops"), "{text}");
    }
    let page = &for_people(&experiment)[2];
    assert!(page.contains("<h2 id=\"what-to-beware-of\">"), "{page}");
    assert!(page.contains("href=\"#what-to-beware-of\""), "{page}");
    let quiet = for_people(&made::experiment(1.06, 0.001));
    assert!(quiet.iter().all(|text| !text.contains("beware")));
}

#[test]
fn what_differs_between_arms_is_seen_without_a_click() {
    for text in for_people(&troubled()) {
        let seen = text.split("<details").next().unwrap_or_default();
        for words in [
            "What was compared",
            "a disk of flash",
            "a disk of tape",
            "disk.kind",
            "made of flash",
            "made of tape",
        ] {
            assert!(seen.contains(words), "no {words} in {seen}");
        }
        assert!(!seen.contains("disk.maker"), "{seen}");
    }
    let mut one = troubled();
    one.arms[1].environment = None;
    for text in for_people(&one) {
        assert!(text.contains("captured of base only."), "{text}");
        let seen = text.split("<details").next().unwrap_or_default();
        assert!(!seen.contains("iffer"), "{seen}");
    }
}

#[test]
fn the_mark_of_an_unstable_interval_is_explained_once_and_soon() {
    let marked = Table {
        title: "A table with a mark".to_owned(),
        head: vec!["ratio".to_owned(), "interval".to_owned()],
        rows: vec![vec!["0.8".to_owned(), "0.5 … 1.25 ~".to_owned()]],
        note: None,
    };
    let mut experiment = made::experiment(1.06, 0.001);
    let meaning = "~ marks an interval";
    for text in for_people(&experiment) {
        assert!(!text.contains(meaning), "{text}");
    }
    experiment.tables = vec![
        marked.clone(),
        Table {
            title: "Another one".to_owned(),
            ..marked
        },
    ];
    for text in for_people(&experiment) {
        assert_eq!(text.matches(meaning).count(), 1, "{text}");
        let explained = place(&text, meaning);
        assert!(explained > place(&text, "1.25"), "{text}");
        let next = text.rfind("Another one").unwrap();
        assert!(explained < next, "{text}");
    }
}

#[test]
fn the_footer_says_what_was_made_when_and_the_command_to_repeat_is_everywhere() {
    let footer = |experiment: &Experiment| {
        let page = html::render(experiment, &analyse(experiment));
        page.split("<footer>").nth(1).unwrap().to_owned()
    };
    let both = experiment();
    let computed = "are computed again from the raw values";
    let then = "tables and the picture beside what was published were made when it ended.";
    assert!(footer(&both).contains(computed), "{}", footer(&both));
    assert!(footer(&both).contains(then), "{}", footer(&both));
    let none = made::experiment(1.0, 0.01);
    assert!(footer(&none).contains(computed), "{}", footer(&none));
    assert!(!footer(&none).contains("ended"), "{}", footer(&none));
    for text in for_people(&both) {
        assert!(text.contains("pgstrata lab --arm=xxx"), "{text}");
    }
}

#[test]
fn the_hypothesis_of_one_arm_alone_is_shown() {
    let mut alone = made::experiment(1.0, 0.01);
    alone.arms.truncate(1);
    alone.runs.retain(|run| run.arm == 0);
    alone.hypothesis = Some("it is quick enough".to_owned());
    let shown = [
        "hypothesis it is quick enough",
        "hypothesis: it is quick enough",
        "<dt>hypothesis</dt><dd>it is quick enough</dd>",
    ];
    for (text, words) in for_people(&alone).iter().zip(shown) {
        assert!(text.contains(words), "{text}");
        assert!(text.contains("What was measured"), "{text}");
    }
}

#[test]
fn where_nothing_was_measured_there_are_no_tables_without_rows() {
    let nothing = Experiment {
        runs: Vec::new(),
        ..made::experiment(1.0, 0.01)
    };
    for text in for_people(&nothing) {
        assert!(text.contains("Nothing was measured"), "{text}");
        assert!(!text.contains("B/A"), "{text}");
    }
}

#[test]
fn pages_link_to_every_file_of_the_result_and_to_no_other() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("a result");
    std::fs::create_dir_all(out.join("runs")).unwrap();
    std::fs::create_dir_all(scratch.path().join("pages")).unwrap();
    for name in ["plan.toml", "full insert.svg"] {
        std::fs::write(out.join(name), "").unwrap();
    }
    let experiment = experiment();
    output::deliver(&experiment, &out, true).unwrap();
    let elsewhere = scratch.path().join("pages/page.html");
    output::write_page(&experiment, &analyse(&experiment), &out, &elsewhere).unwrap();
    for page in [out.join("report.html"), elsewhere] {
        let text = std::fs::read_to_string(&page).unwrap();
        let hrefs = text.split(" href=\"").skip(1);
        let hrefs = hrefs.map(|rest| rest.split('"').next().unwrap());
        let files: Vec<String> = hrefs
            .filter(|href| !href.starts_with('#') && !href.starts_with("data:"))
            .map(|href| href.replace("%20", " "))
            .collect();
        // No environment was captured, and pgbench did not complain.
        let names = [
            "result.json",
            "runs.csv",
            "plan.toml",
            "runs/",
            "full insert.svg",
        ];
        assert_eq!(files.len(), names.len(), "{files:?}");
        for (file, name) in files.iter().zip(names) {
            assert!(file.ends_with(name), "{files:?}");
            assert!(page.parent().unwrap().join(file).exists(), "{file}");
        }
    }
}

#[test]
fn the_schema_knows_a_result_and_refuses_a_damaged_one() {
    let schema = support::schema::schema();
    let good = serde_json::to_value(experiment()).unwrap();
    assert_eq!(
        support::schema::complaints(&schema, &good),
        Vec::<String>::new()
    );
    let damaged: [(&str, serde_json::Value); 4] = [
        ("/schema", "pgstrata-lab/result/2".into()),
        ("/runs/0/values/tps", "many".into()),
        ("/metrics/0/unit", "furlongs".into()),
        ("/plan/blocks", (-1).into()),
    ];
    for (place, value) in damaged {
        let mut bad = good.clone();
        *bad.pointer_mut(place).unwrap() = value;
        assert!(
            !support::schema::complaints(&schema, &bad).is_empty(),
            "{place}"
        );
    }
    let mut more = good.clone();
    more["plan"]["unknown"] = true.into();
    assert!(!support::schema::complaints(&schema, &more).is_empty());
    let mut less = good;
    less["runs"][0].as_object_mut().unwrap().remove("facts");
    assert!(!support::schema::complaints(&schema, &less).is_empty());
}
