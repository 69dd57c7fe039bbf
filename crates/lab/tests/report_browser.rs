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
use pgstrata_lab::measure::result::{
    Arm, Beside, Experiment, Mark, Metric, Phase, Plan, Published, Run, Table,
};
use pgstrata_lab::measure::sample::Samples;
use pgstrata_lab::measure::stat::Interval;
use pgstrata_lab::measure::stat::verdict::Better;
use pgstrata_lab::report::analysis::analyse;
use pgstrata_lab::report::html;
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
