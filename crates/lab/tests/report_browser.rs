//! The page in a real browser: at two widths, without network and scripts.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that fails says where"
)]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use pgstrata_lab::analysis::analyse;
use pgstrata_lab::format::Unit;
use pgstrata_lab::report::html;
use pgstrata_lab::result::{Arm, Experiment, Mark, Metric, Phase, Plan, Run, SCHEMA, Table};
use pgstrata_lab::sample::Samples;
use pgstrata_lab::stat::verdict::Better;

/// A desktop and a phone.
const WIDTHS: [u32; 2] = [1280, 390];

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

fn experiment() -> Experiment {
    let arm = |name: &str| {
        Arm {
        name: name.to_owned(),
        description: "guc.a_setting_with_a_very_long_name_that_has_no_place_to_break=1234567890123456789012345678901234567890".to_owned(),
        environment: None,
    }
    };
    Experiment {
        schema: SCHEMA.to_owned(),
        lab_version: "0".to_owned(),
        kind: "ab".to_owned(),
        title: "A comparison with <marks> & long words".to_owned(),
        created: "2026-11-21T00:00:00Z".to_owned(),
        command: vec![
            "pgstrata".to_owned(),
            "lab".to_owned(),
            format!("--arm={}", "x".repeat(200)),
        ],
        hypothesis: Some("it helps".to_owned()),
        workload: "pgbench".to_owned(),
        plan: Plan {
            blocks: 8,
            seconds: Some(12.0),
            seed: 1,
            state: "restore".to_owned(),
            margin: 0.01,
            interleaved: true,
            same_again: false,
            allowed: Vec::new(),
            foreign_limit: 0.05,
            sweep: None,
        },
        metrics: vec![
            Metric::new("tps", "tps", Unit::PerSecond, Better::Higher),
            Metric::new("p99", "p99", Unit::Seconds, Better::Lower),
        ],
        arms: vec![arm("base"), arm("new")],
        runs: (0..8)
            .flat_map(|block| [run(block, 0), run(block, 1)])
            .collect(),
        tables: vec![Table {
            title: "A wide table".to_owned(),
            head: (0..11).map(|n| format!("column {n}")).collect(),
            rows: vec![(0..11).map(|n| format!("value {n} with words")).collect()],
            note: Some("A note.".to_owned()),
        }],
        notes: vec!["A sentence.".to_owned()],
        warnings: Vec::new(),
        interrupted: None,
    }
}

fn chromium(arguments: &[String]) -> (String, String) {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ])
        .args([
            "--enable-logging=stderr",
            "--host-resolver-rules=MAP * ~NOTFOUND",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(arguments)
        .output()
        .expect("chromium is installed by scripts/setup");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Looks at the page from a page around it: its own policy forbids scripts.
fn measured(page: &Path, width: u32) -> (u32, u32) {
    let around = page.with_file_name(format!("around-{width}.html"));
    let name = page.file_name().unwrap().to_str().unwrap();
    let text = format!(
        "<body><iframe id=f src='{name}' style='width:{width}px;height:900px;border:0'></iframe><script>\
         onload=()=>{{const d=document.getElementById('f').contentDocument;\
         document.body.innerHTML='<p>wide='+d.documentElement.scrollWidth+' svgs='+[...d.querySelectorAll('svg')].filter(s=>s.getBoundingClientRect().width>0).length+'</p>'}}</script>"
    );
    std::fs::write(&around, text).unwrap();
    let (dom, _) = chromium(&[
        "--allow-file-access-from-files".to_owned(),
        "--dump-dom".to_owned(),
        format!("file://{}", around.display()),
    ]);
    let number = |key: &str| -> u32 {
        let rest = dom
            .split(key)
            .nth(1)
            .unwrap_or_else(|| panic!("no {key} in {dom}"));
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    };
    (number("wide="), number("svgs="))
}

#[test]
fn the_page_fits_a_desktop_and_a_phone_and_complains_of_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("report.html");
    let experiment = experiment();
    let text = html::render(&experiment, &analyse(&experiment));
    std::fs::write(&page, &text).unwrap();
    assert!(text.len() < 2 << 20);
    for width in WIDTHS {
        let (wide, svgs) = measured(&page, width);
        assert_eq!(wide, width, "the page scrolls sideways");
        assert!(svgs >= 6, "only {svgs} pictures are shown at {width}");
        let picture = directory.path().join(format!("{width}.png"));
        let (_, errors) = chromium(&[
            format!("--window-size={width},2400"),
            format!("--screenshot={}", picture.display()),
            format!("file://{}", page.display()),
        ]);
        assert!(!errors.contains("CONSOLE"), "{errors}");
        assert!(std::fs::metadata(&picture).unwrap().len() > 20_000);
        if let Some(kept) = std::env::var_os("PGSTRATA_LAB_PICTURES") {
            std::fs::copy(
                &picture,
                Path::new(&kept).join(format!("report-{width}.png")),
            )
            .unwrap();
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
