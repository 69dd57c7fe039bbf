//! A comparison in words: what `--dry-run` prints.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::{Comparison, all_arms, keys_seed, loads, orders, pace, reload, resolve, warm_seed};
use crate::measure::arm::ArmSpec;
use crate::measure::pgbench::options::{Options, Script};

/// Every command and statement of a comparison, in order, none executed.
///
/// # Errors
/// Fails when the workload cannot be resolved.
pub fn describe(plan: &Comparison) -> Result<String> {
    let specs = all_arms(plan);
    let directory = tempfile::tempdir().context("could not create a temporary directory")?;
    let text = Text {
        plan,
        loads: loads(plan, &specs)?,
        scripts: resolve(&plan.options, directory.path())?,
        specs,
    };
    let mut lines = Vec::new();
    for spec in &text.specs {
        lines.push(format!("# arm {}: {}", spec.name, spec.describe()));
        if spec.dsn.is_none() {
            lines.extend(text.made(spec)?);
        }
    }
    lines.extend(text.before());
    for (block, order) in orders(plan, text.specs.len()).iter().enumerate() {
        for arm in order {
            lines.extend(text.run(block, *arm));
        }
    }
    let names = text.lent();
    if !names.is_empty() {
        lines.push(format!("# {}: as found", names.join(", ")));
    }
    lines.push(String::new());
    Ok(lines.join("\n"))
}

struct Text<'a> {
    plan: &'a Comparison,
    specs: Vec<ArmSpec>,
    loads: Vec<Options>,
    scripts: Vec<(Script, u32)>,
}

impl Text<'_> {
    /// How a server of the lab's own is made.
    fn made(&self, spec: &ArmSpec) -> Result<Vec<String>> {
        let programs = crate::measure::programs::Programs::find(spec.bindir.as_deref())?;
        let mut lines = vec![
            format!(
                "{}/initdb {}",
                programs.bindir.display(),
                spec.initdb.join(" ")
            ),
            format!(
                "{} --initialize --quiet --scale={}",
                self.plan.pgbench.display(),
                self.plan.options.scale
            ),
        ];
        if let Some(setup) = &spec.setup {
            let sql = std::fs::read_to_string(setup)
                .with_context(|| format!("could not read \"{}\"", setup.display()))?;
            lines.push(sql.trim().to_owned());
        }
        lines.push("VACUUM (FREEZE, ANALYZE)".to_owned());
        lines.push("CHECKPOINT".to_owned());
        Ok(lines)
    }

    /// What runs before the first block.
    fn before(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let arms = || self.specs.iter().zip(&self.loads);
        if pace::is_needed(&self.loads) {
            for (spec, load) in arms() {
                lines.push(format!(
                    "# arm {}, {} times: a rate in per cent below is one of the slowest arm's median",
                    spec.name,
                    pace::PILOTS
                ));
                let block = pace::block_of_pilots(self.plan);
                lines.extend(self.warm_up(&load.closed(), block));
                lines.push(self.command(&load.closed(), None, keys_seed(self.plan, block)));
            }
        }
        for (spec, load) in arms() {
            let warm_up = self.warm_up(load, 0);
            lines.extend(warm_up.map(|line| format!("# arm {}, discarded\n{line}", spec.name)));
        }
        lines
    }

    fn run(&self, block: usize, arm: usize) -> Vec<String> {
        let (spec, load) = (&self.specs[arm], &self.loads[arm]);
        let mut lines = vec![format!(
            "# block {block}, arm {}, state {}",
            spec.name,
            self.plan.state.name()
        )];
        if spec.dsn.is_some() {
            let others = self.lent().into_iter();
            let others = others.filter(|name| !spec.reload.contains_key(*name));
            lines.extend(others.map(|name| format!("# {name}: as found")));
        }
        let named = spec.reload.iter();
        lines.extend(named.map(|(name, value)| reload::statement(name, Some(value))));
        if !spec.reload.is_empty() {
            lines.push("SELECT pg_reload_conf()".to_owned());
        }
        lines.push("CHECKPOINT".to_owned());
        lines.extend(self.plan.proof.clone());
        lines.extend(self.warm_up(load, block));
        lines.push(self.command(load, None, keys_seed(self.plan, block)));
        lines
    }

    /// Settings that arms change on servers of others.
    fn lent(&self) -> Vec<&str> {
        if self.specs.iter().all(|spec| spec.dsn.is_none()) {
            return Vec::new();
        }
        let names = self.specs.iter().flat_map(|spec| spec.reload.keys());
        let names: BTreeSet<&str> = names.map(String::as_str).collect();
        names.into_iter().collect()
    }

    fn warm_up(&self, load: &Options, block: usize) -> Option<String> {
        (load.warmup > 0)
            .then(|| self.command(load, Some(load.warmup), warm_seed(self.plan, block)))
    }

    fn command(&self, load: &Options, seconds: Option<u32>, seed: u64) -> String {
        let words = load.seeded(&self.scripts, seconds, seed);
        format!("{} {}", self.plan.pgbench.display(), words.join(" "))
    }
}
