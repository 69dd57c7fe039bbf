//! The blocks: a full backup, changes each followed by an incremental one, a restore.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use super::limits::Limit;
use super::profile::{Profile, profile};
use super::table::{FULL, INCREMENTAL, RESTORE, RESTORE_OF_ONE};
use super::workload::Workload;
use crate::contenders::contender::{Arena, Contender, empty_page_cache, read_tree, tree_bytes};
use crate::experiments::stage::Stage;
use crate::experiments::strata;
use crate::format::{self, Unit};
use crate::interrupt;
use crate::measure::cost::{self, Cost};
use crate::measure::result::Phase;
use crate::measure::settle::settle;
use crate::measure::stat::median;
use crate::number::real_u64;

/// What an act cost and left.
struct Done {
    cost: Cost,
    /// Bytes the act added to the repository, or a limit to its directory; for a restore the size of the restored cluster.
    stored_bytes: u64,
    phases: Vec<(String, f64)>,
}

/// What is done in a step of a block: by everybody, in random order.
#[derive(Clone, Copy)]
struct Step {
    block: usize,
    act: &'static str,
    /// Number of the increment; 0 elsewhere.
    nth: usize,
}

/// All blocks on one server.
#[derive(Debug)]
pub(super) struct Rounds<'a> {
    /// Where.
    pub(super) arena: &'a Arena,
    /// On which data.
    pub(super) workload: Workload,
    /// Who; the limits take part too.
    pub(super) contenders: &'a [Box<dyn Contender + 'a>],
    /// Empties the page cache before each act (root only).
    pub(super) cold: bool,
    /// Longest wait for a quiet machine before each act.
    pub(super) settle: Duration,
}

impl Rounds<'_> {
    /// Measures all blocks.
    pub(super) fn measure(&self, stage: &mut Stage) -> Result<()> {
        strata::note_releases(stage, self.arena, self.contenders);
        strata::capture(stage, self.arena, strata::ALL_ARMS)?;
        let mut random = Pcg64::seed_from_u64(stage.experiment.plan.seed);
        for block in 0..stage.experiment.plan.blocks {
            self.block(stage, block, &mut random)?;
        }
        Ok(())
    }

    fn block(&self, stage: &mut Stage, block: usize, random: &mut Pcg64) -> Result<()> {
        for contender in self.contenders {
            self.arena.start_over(contender.as_ref())?;
        }
        let increments = self.workload.increments();
        for nth in 0..=increments {
            if nth > 0 {
                // Nobody archives what happens between the backups.
                self.arena.select(None)?;
                self.workload.change(&self.arena.cluster)?;
            }
            self.arena.cluster.sql("postgres", "CHECKPOINT")?;
            let act = if nth == 0 { FULL } else { INCREMENTAL };
            let step = Step { block, act, nth };
            self.step(stage, step, random, |contender| self.backup(contender, nth))?;
        }
        self.arena.select(None)?;
        let expected = self.workload.answer(&self.arena.cluster)?;
        let mut restores = vec![RESTORE];
        restores.extend((increments > 1).then_some(RESTORE_OF_ONE));
        for act in restores {
            let step = Step { block, act, nth: 0 };
            self.step(stage, step, random, |contender| {
                if act == RESTORE_OF_ONE {
                    // Of the state that the chain ends in, for comparison with the chain.
                    self.arena.select(Some(contender))?;
                    cost::run(&mut contender.full(self.arena))?;
                    self.arena.select(None)?;
                }
                self.restore(contender, &expected)
            })?;
        }
        Workload::tidy(&self.arena.cluster)
    }

    /// One step of a block, by all who take part in it.
    fn step(
        &self,
        stage: &mut Stage,
        step: Step,
        random: &mut Pcg64,
        act: impl Fn(&dyn Contender) -> Result<Done>,
    ) -> Result<()> {
        let count = self.contenders.len();
        let takes_part = |arm: &usize| match self.contenders.get(*arm) {
            Some(contender) => step.act != RESTORE_OF_ONE || contender.takes_another_full(),
            None => Limit::ALL[*arm - count].act() == step.act,
        };
        let mut order: Vec<usize> = (0..count + Limit::ALL.len()).filter(takes_part).collect();
        order.shuffle(random);
        for (position, arm) in order.into_iter().enumerate() {
            interrupt::check()?;
            let done = match self.contenders.get(arm) {
                Some(contender) => act(contender.as_ref())?,
                None => self.limit(Limit::ALL[arm - count])?,
            };
            Self::keep(stage, step, (position, arm), done)?;
        }
        Ok(())
    }

    /// What was measured goes to the block's run of this arm.
    fn keep(
        stage: &mut Stage,
        step: Step,
        (position, arm): (usize, usize),
        done: Done,
    ) -> Result<()> {
        let Step { block, act, nth } = step;
        let cost = done.cost;
        let time = format::value(cost.wall_seconds, Unit::Seconds);
        stage.progress((block, arm), &format!("{act} {time}"));
        let run = stage.run((block, position, arm));
        for (figure, value) in [
            ("time", cost.wall_seconds),
            ("cpu", cost.cpu_seconds + cost.server_cpu_seconds),
            ("read", real_u64(cost.read_bytes)),
            ("written", real_u64(cost.written_bytes)),
            ("stored", real_u64(done.stored_bytes)),
            ("memory", real_u64(cost.peak_bytes)),
        ] {
            run.values.insert(format!("{act}.{nth}.{figure}"), value);
        }
        // The increments of a block together are one value of it.
        let all: Vec<f64> = super::table::figures(&run.values, act, "time").collect();
        run.values.insert(act.to_owned(), median(&all));
        let mut from = run.seconds;
        for (name, seconds) in done.phases {
            let name = format!("{act}: {name}");
            let to = from + seconds;
            run.phases.push(Phase { name, from, to });
            from = to;
        }
        run.seconds += cost.wall_seconds;
        run.note_foreign(cost.foreign_share);
        stage.save()
    }

    fn limit(&self, limit: Limit) -> Result<Done> {
        self.settle(limit == Limit::Copy)?;
        let (cost, _) = self.arena.measured(&mut limit.command(self.arena))?;
        let directory = Limit::directory(self.arena);
        let stored_bytes = tree_bytes(&directory)?;
        self.arena.take_away(&directory)?;
        Ok(Done {
            cost,
            stored_bytes,
            phases: Vec::new(),
        })
    }

    fn backup(&self, contender: &dyn Contender, nth: usize) -> Result<Done> {
        self.arena.select(Some(contender))?;
        let before = tree_bytes(&contender.repository(self.arena))?;
        self.settle(false)?;
        let mut command = match nth {
            0 => contender.full(self.arena),
            _ => contender.incremental(self.arena, nth),
        };
        let (cost, printed) = self.arena.measured(&mut command)?;
        Ok(Done {
            cost,
            stored_bytes: tree_bytes(&contender.repository(self.arena))? - before,
            phases: contender.phases(&printed),
        })
    }

    fn restore(&self, contender: &dyn Contender, expected: &str) -> Result<Done> {
        let target = self.arena.restore_target()?;
        self.settle(true)?;
        if !self.cold {
            // Some tools leave in the page cache what they stored, and others do not.
            read_tree(&contender.repository(self.arena))?;
        }
        let increments = self.workload.increments();
        let (cost, _) = self
            .arena
            .measured(&mut contender.restore(self.arena, increments, &target))?;
        let stored_bytes = tree_bytes(&target)?;
        let found = self.workload.answer(&self.arena.open(&target, &[])?)?;
        ensure!(
            found == expected,
            "{}: the restored cluster answers {found}, the source {expected}",
            contender.name()
        );
        self.arena.take_away(&target)?;
        Ok(Done {
            cost,
            stored_bytes,
            phases: Vec::new(),
        })
    }

    /// Leaves nothing for an act to write that others have made dirty, and waits until the server has done what the last
    /// change left to it, as its WAL summarizer and archiver; empties the page cache if asked for. When the act writes a copy of
    /// the cluster, there is memory for it.
    fn settle(&self, copies: bool) -> Result<()> {
        // A machine that stays busy is told by the counters of the whole run.
        settle(self.settle)?;
        if self.cold {
            empty_page_cache()?;
        }
        match copies {
            true => cost::claim_memory(&self.arena.cluster),
            false => Ok(()),
        }
    }

    /// One more round of one contender, into flame graphs in `directory`.
    pub(super) fn profiled(
        &self,
        contender: &dyn Contender,
        directory: &Path,
    ) -> Result<Vec<Profile>> {
        let mut profiles = Vec::new();
        let mut note = |act: &str, command: &mut Command| -> Result<()> {
            interrupt::check()?;
            self.settle(act == RESTORE)?;
            let name = format!("{}-{act}", self.workload.name());
            profiles.push(profile(command, directory, &name)?);
            Ok(())
        };
        self.arena.start_over(contender)?;
        self.arena.cluster.sql("postgres", "CHECKPOINT")?;
        note(FULL, &mut contender.full(self.arena))?;
        let increments = self.workload.increments();
        for nth in 1..=increments {
            self.workload.change(&self.arena.cluster)?;
            self.arena.cluster.sql("postgres", "CHECKPOINT")?;
            let act = format!("{INCREMENTAL}-{nth}");
            note(&act, &mut contender.incremental(self.arena, nth))?;
        }
        let target = self.arena.restore_target()?;
        let mut restore = contender.restore(self.arena, increments, &target);
        note(RESTORE, &mut restore)?;
        self.arena.take_away(&target)?;
        Ok(profiles)
    }
}
