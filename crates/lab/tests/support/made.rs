//! Results made up, with a known effect.

use std::collections::BTreeMap;

use pgstrata_lab::format::Unit;
use pgstrata_lab::measure::result::{Arm, Experiment, FOREIGN, Metric, Plan, Run, SCHEMA};
use pgstrata_lab::measure::stat::verdict::Better;

/// Ten blocks of a base of 1000 tps and an arm with `effect` times that; single
/// runs scatter by `noise`.
pub(crate) fn experiment(effect: f64, noise: f64) -> Experiment {
    let arm = |name: &str| Arm {
        name: name.to_owned(),
        description: "as found".to_owned(),
        environment: None,
    };
    let run = |block: usize, arm: usize| {
        let step = f64::from(u32::try_from(block * 2 + arm).unwrap());
        let scatter = 1.0 + noise * (step * 12.9898).sin();
        let tps = 1000.0 * scatter * if arm == 1 { effect } else { 1.0 };
        Run {
            block,
            position: arm,
            arm,
            started: 1_700_000_000.0 + step * 20.0,
            seconds: 10.0,
            values: BTreeMap::from([("tps".to_owned(), tps), (FOREIGN.to_owned(), 0.0)]),
            ..Run::default()
        }
    };
    Experiment {
        schema: SCHEMA.to_owned(),
        lab_version: "0".to_owned(),
        kind: "ab".to_owned(),
        title: "made up".to_owned(),
        created: "2026-11-21T00:00:00Z".to_owned(),
        command: vec!["pgstrata".to_owned(), "lab".to_owned()],
        hypothesis: Some("it is known".to_owned()),
        workload: "none".to_owned(),
        plan: Plan {
            blocks: 10,
            seconds: Some(10.0),
            seed: 1,
            state: "restore".to_owned(),
            margin: 0.01,
            interleaved: true,
            same_again: false,
            allowed: Vec::new(),
            foreign_limit: 0.05,
            sweep: None,
            claims: Vec::new(),
        },
        metrics: vec![Metric::new("tps", "tps", Unit::PerSecond, Better::Higher)],
        arms: vec![arm("base"), arm("new")],
        runs: (0..10).flat_map(|b| [run(b, 0), run(b, 1)]).collect(),
        ..Experiment::default()
    }
}
