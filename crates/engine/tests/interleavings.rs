//! Backups, merges and expiries at the same time, one operation of the store at a time, in any order, stopped for any time,
//! killed anywhere: every layer that is listed is whole at every moment.
//!
//! The store's clock is a number here, and jumps; hosts have clocks of their own. Safety depends on none of them.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests state facts about small numbers"
)]

mod restore_common;
mod seed;
mod steps;

use std::sync::Arc;

use bytes::Bytes;
use jiff::SignedDuration;
use pgstrata_engine::mark;
use pgstrata_layer::abandoned::{self, AbandonedRecord};
use pgstrata_layer::label::Label;
use pgstrata_layer::mark::Pin;
use pgstrata_layer::retention::Policy;
use pgstrata_store::catalog::Catalog;
use pgstrata_store::error::Kind;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use seed::seed;
use steps::actors::{
    Cleared, Who, backup, clearing, expire, expiry, expiry_to_one, gives_way, keep_full, merging,
    verify_old,
};
use steps::{Actor, HOURS, MINUTES, Mishap, Plan, VERY_LONG, World, alone, to_its_end};

/// Long enough to be taken for dead.
const LONG: i64 = 20 * MINUTES;

/// So far the clocks of hosts are off.
const OFF: i64 = 5 * HOURS;

/// How many seconds the clocks of those who make layers, and of this process, are ahead of the store's.
const CLOCKS: [(i64, i64); 4] = [(OFF, -OFF), (-OFF, OFF), (OFF, OFF), (-OFF, -OFF)];

/// The clock of who makes layers, and a world. They differ from one number to the next.
async fn clocks(seed: u64, nth: u64) -> (i64, Arc<World>) {
    let at = seed.wrapping_add(nth) % CLOCKS.len() as u64;
    let (writers, process) = CLOCKS[at as usize];
    (writers, World::with_process_ahead(process).await)
}

/// A backup is stopped before each of its operations for longer than the lease. An expiry runs meanwhile.
#[test]
fn a_backup_that_was_stopped_too_long_is_not_committed_over_what_was_removed() {
    alone(async {
        let seed = seed();
        let (mut given_up, mut committed) = (0, 0);
        for plan in [Plan::full(), Plan::incremental(), Plan::on_old()] {
            for nth in 0.. {
                let (ahead, world) = clocks(seed, nth).await;
                let mut writer = backup(&world, plan.ahead(ahead));
                let ended = !writer.steps(nth).await;
                world.pass(LONG);
                let mut remover = expiry(&world, 1);
                to_its_end(&world, &mut remover).await;
                remover.outcome().await.unwrap();
                to_its_end(&world, &mut writer).await;
                match writer.outcome().await {
                    Ok(label) => {
                        committed += 1;
                        world.require_listed(&label, &format!("at {nth}")).await;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::Refused, "at {nth}: {error}");
                        given_up += 1;
                    }
                }
                if ended {
                    break;
                }
            }
        }
        assert!(given_up > 10 && committed > 4, "{given_up}, {committed}");
    });
}

/// Long after all that happened, one more expiry leaves nothing to do.
async fn finish_what_was_left(world: &Arc<World>, moment: &str) {
    world.pass(LONG);
    // Also of the records of restores that were lost on their way.
    let ignore_restores = true;
    let mut last = expiry_to_one(world, ignore_restores);
    to_its_end(world, &mut last).await;
    let done = last.outcome().await.unwrap();
    assert!(done.done, "{moment}: {done:?}");
    world.require_nothing_left_over().await;
}

/// An expiry is stopped before each of its operations for longer than the lease, while another runs, and a backup; then
/// it goes on.
#[test]
fn an_expiry_that_was_stopped_harms_nothing_when_it_goes_on() {
    alone(async {
        let seed = seed();
        for killed in [false, true] {
            for nth in 0.. {
                let (ahead, world) = clocks(seed, nth).await;
                let mut stopped = expiry(&world, 1);
                let ended = !stopped.steps(nth).await;
                if killed {
                    stopped.kill().await;
                }
                world.pass(LONG);
                let mut early = backup(&world, Plan::incremental().ahead(ahead));
                to_its_end(&world, &mut early).await;
                let mut second = expiry(&world, 2);
                to_its_end(&world, &mut second).await;
                world.pass(LONG);
                let mut third = expiry(&world, 1);
                to_its_end(&world, &mut third).await;
                let mut late = backup(&world, Plan::incremental().ahead(-ahead));
                to_its_end(&world, &mut late).await;
                to_its_end(&world, &mut stopped).await;
                early.outcome().await.unwrap();
                let done = third.outcome().await.unwrap();
                assert!(done.done, "at {nth}: {done:?}");
                let late = late.outcome().await.unwrap();
                world.require_listed(&late, &format!("at {nth}")).await;
                // What one left undone is done.
                finish_what_was_left(&world, &format!("at {nth}")).await;
                if ended {
                    break;
                }
            }
        }
    });
}

/// The claims that there are.
async fn claims(world: &World) -> Vec<String> {
    let prefix = world.cluster().layers_prefix();
    let objects = world.repository().list(&prefix).await.unwrap();
    let keys = objects.into_iter().map(|object| object.key);
    keys.filter(|key| key.ends_with("/claim")).collect()
}

/// An expiry is stopped before each of its operations for longer than the lease, also while it merges, which takes that long.
/// A backup claims its label then, and goes on when the expiry has ended: it was young, whatever the expiry had asked before.
#[test]
fn a_backup_that_begins_while_an_expiry_is_stopped_is_not_taken_for_dead() {
    alone(async {
        let seed = seed();
        let merging = Policy {
            max_chain: Some(1),
            ..Policy::default()
        };
        // The second one finds nothing to remove, and so does not look again.
        for policy in [keep_full(1), keep_full(9), merging] {
            let mut withdrew = 0;
            for nth in 0.. {
                let moment = format!("{policy:?} at {nth}");
                let (ahead, world) = clocks(seed, nth).await;
                let mut remover = clearing(&world, policy);
                let ended = !remover.steps(nth).await;
                world.pass(LONG);
                let before = claims(&world).await;
                let mut writer = backup(&world, Plan::full().ahead(ahead));
                while claims(&world).await == before {
                    assert!(writer.step().await, "{moment}: it has claimed nothing");
                }
                to_its_end(&world, &mut remover).await;
                to_its_end(&world, &mut writer).await;
                let made = writer.outcome().await;
                assert!(made.is_ok(), "{moment}: {made:?}");
                world.require_listed(&made.unwrap(), &moment).await;
                match remover.outcome().await {
                    Ok((done, _)) => withdrew += u32::from(!done),
                    Err(error) => assert!(gives_way(&error), "{moment}: {error}"),
                }
                if ended {
                    break;
                }
            }
            assert!(withdrew > 3, "{policy:?}: {withdrew} withdrew");
        }
    });
}

/// At each moment of an expiry somebody begins and finishes a layer on one that is to go, or whose WAL is to go.
#[test]
fn a_layer_on_what_is_to_go_stops_the_expiry_or_is_refused() {
    alone(async {
        let seed = seed();
        let (mut committed, mut refused, mut withdrew) = (0, 0, 0);
        for plan in [Plan::on_old(), Plan::behind()] {
            for nth in 0.. {
                let (ahead, world) = clocks(seed, nth).await;
                let mut remover = expiry(&world, 1);
                let ended = !remover.steps(nth).await;
                let mut writer = backup(&world, plan.ahead(ahead));
                to_its_end(&world, &mut writer).await;
                to_its_end(&world, &mut remover).await;
                match writer.outcome().await {
                    Ok(label) => {
                        committed += 1;
                        world.require_listed(&label, &format!("at {nth}")).await;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::Refused, "at {nth}: {error}");
                        refused += 1;
                    }
                }
                withdrew += u32::from(!remover.outcome().await.is_ok_and(|report| report.done));
                if ended {
                    break;
                }
            }
        }
        let told = format!("{committed} committed, {refused} refused, {withdrew} withdrew");
        println!("{told}");
        assert!(committed > 10 && refused > 10 && withdrew > 5, "{told}");
    });
}

/// Its maker did not hear that the manifest was created, and was stopped; the layer has expired when it tries again.
#[test]
fn a_manifest_that_expired_does_not_come_back() {
    alone(async {
        let world = World::new().await;
        let repository = world.repository();
        let catalog = Catalog::load(&world.within(&repository)).await.unwrap();
        let layer = &catalog.layers[0];
        let noted = world.cluster().committed_key(&layer.label);
        assert_eq!(repository.size(&noted).await.unwrap(), None);
        let key = world.cluster().manifest_key(&layer.label);
        let manifest = repository.get(&key).await.unwrap();
        let mut remover = expiry(&world, 1);
        to_its_end(&world, &mut remover).await;
        let report = remover.outcome().await.unwrap();
        assert!(
            report.remove.contains(&layer.label.to_string()),
            "{report:?}"
        );
        let error = repository.create(&key, manifest).await.unwrap_err();
        assert_eq!(error.kind(), Kind::AlreadyExists, "{error}");
        world.require_whole_layers().await;
        // What its maker knew to be committed leaves nothing.
        let gone = world.cluster().layer_prefix(&catalog.layers[1].label);
        assert!(repository.list(&gone).await.unwrap().is_empty());
    });
}

/// Its maker heard that the manifest was created, and was stopped before it noted that; the layer has expired when it does.
#[test]
fn a_note_that_comes_after_its_layer_has_expired_is_no_sign_of_a_loss() {
    alone(async {
        let world = World::new().await;
        let repository = world.repository();
        let catalog = Catalog::load(&world.within(&repository)).await.unwrap();
        let layer = &catalog.layers[0];
        let mut remover = expiry(&world, 1);
        to_its_end(&world, &mut remover).await;
        assert!(remover.outcome().await.unwrap().done);
        let noted = world.cluster().committed_key(&layer.label);
        repository.create(&noted, Bytes::new()).await.unwrap();
        world.require_whole_layers().await;
        finish_what_was_left(&world, "afterwards").await;
        assert_eq!(repository.size(&noted).await.unwrap(), None);
    });
}

/// A record that is put in the place of a manifest hides no loss.
#[test]
fn a_manifest_that_was_replaced_by_a_record_is_lost() {
    alone(async {
        let world = World::new().await;
        let repository = world.repository();
        let catalog = Catalog::load(&world.within(&repository)).await.unwrap();
        let layer = catalog.layers.last().unwrap();
        let record = AbandonedRecord {
            label: layer.label.to_string(),
            host: "a host".to_owned(),
            pid: 1,
            abandoned_at: layer.manifest.finished_at,
            written_by: "a test".to_owned(),
        };
        let key = world.cluster().manifest_key(&layer.label);
        let mut replaces = Actor::start(&world, |_, repository| async move {
            repository.delete(&key).await?;
            repository
                .create(&key, abandoned::encode(&record).into())
                .await
        });
        while replaces.step().await {}
        replaces.outcome().await.unwrap();
        let catalog = Catalog::load(&world.within(&repository)).await.unwrap();
        let damaged: Vec<&Label> = catalog.damaged.iter().map(|(label, _)| label).collect();
        assert_eq!(damaged, [&layer.label]);
    });
}

/// Lets three writers and three removers act in random order until all have ended; kills some.
async fn play(
    world: &World,
    random: &mut StdRng,
    writers: &mut [Actor<Label>],
    removers: &mut [Actor<Cleared>],
) {
    let mut alive = [true; 6];
    let mut alone = None;
    while alive.contains(&true) {
        // After a long time, one goes on before all others.
        let (at, steps) = match alone.take() {
            Some(at) => (at, random.random_range(1..80)),
            None => (random.random_range(0..6), random.random_range(1..8)),
        };
        for _ in 0..steps {
            alive[at] = match at {
                0..3 => writers[at].step().await,
                _ => removers[at - 3].step().await,
            };
            world.require_whole_layers().await;
        }
        match random.random_range(0..150) {
            0..12 => {
                world.pass(LONG);
                alone = Some(random.random_range(0..6));
            }
            12 if at < 3 => writers[at].kill().await,
            13 if at >= 3 => removers[at - 3].kill().await,
            _ => {}
        }
    }
}

/// What is announced and not decided on.
async fn announced(world: &World) -> Vec<String> {
    let prefix = world.cluster().removals_prefix();
    let objects = world.repository().list(&prefix).await.unwrap();
    let keys: Vec<String> = objects.into_iter().map(|object| object.key).collect();
    let open = |key: &&String| {
        let verdict = key.replace("/wanted", "/verdict");
        key.ends_with("/wanted") && !keys.contains(&verdict)
    };
    keys.iter().filter(open).cloned().collect()
}

/// Two expiries find what a third has left that was killed, before or after its verdict. At every moment of the one the
/// other runs to its end: both may tidy up what was left, and neither takes away the fresh record of the other.
#[test]
fn two_expiries_that_find_a_stale_removal_leave_each_others_alone() {
    alone(async {
        let seed = seed();
        let (mut stale, mut met) = (0, 0);
        for killed_at in (0..).step_by(4) {
            let (_, world) = clocks(seed, killed_at).await;
            let mut killed = expiry(&world, 1);
            let ended = !killed.steps(killed_at).await;
            killed.kill().await;
            let prefix = world.cluster().removals_prefix();
            let left = world.repository().list(&prefix).await.unwrap();
            if ended {
                break;
            }
            if left.is_empty() {
                continue;
            }
            stale += 1;
            for nth in (0..).step_by(5) {
                let world = world.copy();
                world.pass(LONG);
                let mut one = expiry(&world, 1);
                let ended = !one.steps(nth).await;
                let fresh = announced(&world).await;
                let fresh = fresh
                    .into_iter()
                    .filter(|key| !left.iter().any(|l| l.key == *key));
                let fresh: Vec<String> = fresh.collect();
                let mut other = expiry(&world, 2);
                to_its_end(&world, &mut other).await;
                let after = announced(&world).await;
                for key in &fresh {
                    assert!(after.contains(key), "{killed_at}, {nth}: {key} is gone");
                    met += 1;
                }
                to_its_end(&world, &mut one).await;
                if let Err(error) = one.outcome().await {
                    assert_eq!(error.kind(), Kind::Busy, "{killed_at}, {nth}: {error}");
                }
                // Its rules keep what the others had decided to remove.
                if let Err(error) = other.outcome().await {
                    let kinds = [Kind::Busy, Kind::Refused];
                    assert!(kinds.contains(&error.kind()), "{killed_at}, {nth}: {error}");
                }
                finish_what_was_left(&world, &format!("at {nth}")).await;
                if ended {
                    break;
                }
            }
        }
        assert!(stale > 3 && met > 3, "{stale} stale, {met} met");
    });
}

/// A backup whose list of layers is so old that it does not know of a label which was claimed and given up since takes
/// another: the first maker may go on, and store its own objects under the first.
#[test]
fn a_label_that_was_given_up_in_the_meantime_is_not_taken_again() {
    alone(async {
        let mut given_up = 0;
        for nth in 0.. {
            let world = World::new().await;
            let mut late = backup(&world, Plan::full().ahead(-OFF));
            late.steps(nth).await;
            let repository = world.repository();
            let catalog = Catalog::load(&world.within(&repository)).await.unwrap();
            let has_claimed = !catalog.unfinished.is_empty();
            let mut first = backup(&world, Plan::full().ahead(-OFF));
            first.steps(10).await;
            world.pass(LONG);
            let mut remover = expiry(&world, 9);
            to_its_end(&world, &mut remover).await;
            remover.outcome().await.unwrap();
            let ended = !late.steps(2).await;
            first.steps(2).await;
            to_its_end(&world, &mut late).await;
            // It was given up, too, when it had claimed before.
            if let Err(error) = late.outcome().await {
                assert!(has_claimed, "at {nth}: {error}");
                assert_eq!(error.kind(), Kind::Refused, "at {nth}: {error}");
            }
            to_its_end(&world, &mut first).await;
            given_up += u64::from(first.outcome().await.is_err());
            if ended {
                break;
            }
        }
        assert!(given_up > 3, "{given_up} given up");
    });
}

/// A backup as any host makes it.
fn any_backup(world: &Arc<World>, random: &mut StdRng) -> Actor<Label> {
    let plans = [
        Plan::full(),
        Plan::incremental(),
        Plan::on_old(),
        Plan::behind(),
    ];
    let plan = plans[random.random_range(0..plans.len())];
    let ahead = [OFF, 0, -OFF][random.random_range(0..3)];
    backup(world, plan.ahead(ahead))
}

/// An expiry by one rule or another, or a merge.
fn any_remover(world: &Arc<World>, random: &mut StdRng) -> Actor<Cleared> {
    let policy = match random.random_range(0..8) {
        0..5 => keep_full(random.random_range(1..3)),
        5 => Policy {
            max_chain: Some(1),
            ..Policy::default()
        },
        6 => Policy {
            keep_within: Some(SignedDuration::from_hours(random.random_range(1..8))),
            ..Policy::default()
        },
        _ => return merging(world, random.random()),
    };
    clearing(world, policy)
}

/// Three backups and three expiries or merges, in random order of operations; some are killed.
#[test]
fn in_whatever_order_operations_come_listed_layers_are_whole() {
    alone(async {
        let seed = seed();
        let mut random = StdRng::seed_from_u64(seed);
        let (mut committed, mut removed, mut refused, mut withdrew) = (0, 0, 0, 0);
        for round in 0..40 {
            let (_, world) = clocks(seed, round).await;
            let mut writers: Vec<Actor<Label>> =
                (0..3).map(|_| any_backup(&world, &mut random)).collect();
            let mut removers: Vec<Actor<Cleared>> =
                (0..3).map(|_| any_remover(&world, &mut random)).collect();
            play(&world, &mut random, &mut writers, &mut removers).await;
            for writer in writers {
                match writer.outcome().await {
                    Ok(_) => committed += 1,
                    Err(error) if error.kind() == Kind::Interrupted => {}
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::Refused, "round {round}: {error}");
                        refused += 1;
                    }
                }
            }
            for remover in removers {
                match remover.outcome().await {
                    Ok((true, count)) => removed += count,
                    Ok(_) => withdrew += 1,
                    Err(error) => assert!(gives_way(&error), "round {round}: {error}"),
                }
            }
            finish_what_was_left(&world, &format!("round {round}")).await;
        }
        let told = format!(
            "{committed} committed, {removed} removed, {refused} refused, {withdrew} withdrew"
        );
        println!("{told}");
        assert!(committed > 20 && removed > 7 && withdrew > 7, "{told}");
    });
}

/// At each moment of a merge that removes its inputs an expiry or a backup runs to its end, and the merge goes on late.
#[test]
fn a_merge_that_was_stopped_harms_nothing_when_it_goes_on() {
    alone(async {
        let seed = seed();
        let (mut merged, mut removed, mut gave_way) = (0, 0, 0);
        // An expiry that has begun earlier may have decided before the merge is seen.
        for (early, beside, pause) in [
            (0, false, LONG),
            (0, true, LONG),
            (30, true, 0),
            (40, true, 0),
            (50, true, 0),
        ] {
            for nth in (0..).step_by(5) {
                let (ahead, world) = clocks(seed, nth / 5).await;
                let moment = format!("at {nth}, {early}, {beside}, {pause}");
                let mut remover = expiry(&world, 1);
                remover.steps(early).await;
                let mut merge = merging(&world, nth % 10 == 5);
                let ended = !merge.steps(nth).await;
                world.pass(pause);
                let mut writer = backup(&world, Plan::on_old().ahead(ahead));
                if beside {
                    to_its_end(&world, &mut remover).await;
                }
                to_its_end(&world, &mut writer).await;
                to_its_end(&world, &mut merge).await;
                to_its_end(&world, &mut remover).await;
                match merge.outcome().await {
                    Ok((_, count)) => {
                        merged += 1;
                        removed += count;
                    }
                    Err(error) => {
                        assert!(gives_way(&error), "{moment}: {error}");
                        gave_way += 1;
                    }
                }
                for error in [writer.outcome().await.err(), remover.outcome().await.err()] {
                    let fits = error.as_ref().is_none_or(gives_way);
                    assert!(fits, "{moment}: {error:?}");
                }
                finish_what_was_left(&world, &moment).await;
                if ended {
                    break;
                }
            }
        }
        let told = format!("{merged} merged, {removed} removed, {gave_way} gave way");
        println!("{told}");
        assert!(merged > 10 && removed > 10 && gave_way > 5, "{told}");
    });
}

/// How those ended whose operations failed, and those beside them.
#[derive(Debug)]
struct Ended {
    seed: u64,
    failures: u32,
    gave_way: u32,
    well: u32,
}

impl Ended {
    fn new() -> Self {
        Self {
            seed: seed(),
            failures: 0,
            gave_way: 0,
            well: 0,
        }
    }

    /// The `nth` operation of the first fails, done or not, while the second is half way; that one then goes on to its end, and the
    /// first to its own. Tells whether the first had ended before.
    async fn fail(&mut self, [first, second]: [Who; 2], mishap: Mishap, nth: u64) -> bool {
        let seed = self.seed;
        let (ahead, world) = clocks(seed, nth).await;
        let moment = format!("{first:?} beside {second:?}, {mishap:?} at {nth}");
        // Elsewhere each time, so that in the end every pair of moments is met; whether the seed is odd has decided the other.
        let half_way = (seed / 2).wrapping_mul(31).wrapping_add(nth * 7) % 60;
        let mut beside = second.begin(&world, -ahead);
        for _ in 0..half_way {
            beside.step().await;
        }
        let mut failing = first.begin(&world, ahead);
        let mut ended = false;
        for _ in 0..nth {
            ended = !failing.step().await;
        }
        failing.fail(mishap);
        failing.step().await;
        while beside.step().await {
            world.require_whole_layers().await;
        }
        while failing.step().await {
            world.require_whole_layers().await;
        }
        let failing = failing.outcome().await;
        self.failures += u32::from(failing.is_err());
        let beside = beside.outcome().await;
        let stays = [&failing, &beside].into_iter().flatten().flatten();
        for label in stays {
            world.require_listed(label, &moment).await;
        }
        match beside {
            Ok(_) => self.well += 1,
            Err(error) => {
                assert!(gives_way(&error), "{moment}: {error}");
                self.gave_way += 1;
            }
        }
        if [first, second].contains(&Who::Verification) {
            // The store did not give it a layer out; nothing is removed until another verification finds that it does.
            let again = verify_old(Arc::clone(&world), world.repository()).await;
            let ended_well = again.as_ref().err().is_none_or(gives_way);
            assert!(ended_well, "{moment}: {again:?}");
        }
        if [first, second].contains(&Who::Copy) {
            world.pass(VERY_LONG);
        }
        finish_what_was_left(&world, &moment).await;
        ended
    }

    /// Every so many operations of each first one, with each second one.
    async fn all_pairs(&mut self, pairs: impl Iterator<Item = [Who; 2]>, apart: u64) {
        for (pair, is_done) in pairs.flat_map(|pair| [(pair, false), (pair, true)]) {
            // The others at another time.
            for nth in (self.seed % apart..).step_by(usize::try_from(apart).unwrap()) {
                let mishap = match (is_done, (self.seed / apart + nth / apart) % 2) {
                    (false, _) => Mishap::NotDone,
                    (true, 0) => Mishap::AnswerLost,
                    (true, _) => Mishap::TriedAgain,
                };
                if self.fail(pair, mishap, nth).await {
                    break;
                }
            }
        }
        println!("{self:?}");
    }

    /// Each operation of the first ones fails, beside each who changes something.
    async fn beside_changes(&mut self, first: &[Who]) {
        let pairs = first.iter();
        let pairs = pairs.flat_map(|first| Who::CHANGING.map(|second| [*first, second]));
        self.all_pairs(pairs, 1).await;
        assert!(self.failures > 400 && self.well > 400, "{self:?}");
    }
}

/// Each operation of a backup and of a copy fails, done or not, while another command is half way.
#[test]
fn an_operation_that_fails_of_who_stores_harms_nothing() {
    alone(async {
        let storing = [Who::Full, Who::OnOld, Who::Copy];
        Ended::new().beside_changes(&storing).await;
    });
}

/// The same of an expiry and of a merge.
#[test]
fn an_operation_that_fails_of_who_removes_harms_nothing() {
    alone(async {
        Ended::new()
            .beside_changes(&[Who::Expiry, Who::Merge])
            .await;
    });
}

/// The same of a verification and a restore, and beside them: none says that a sound layer is not, nor that it has restored
/// what it has not.
#[test]
fn an_operation_that_fails_of_a_reader_or_beside_one_harms_nothing() {
    alone(async {
        let reading = Who::READING.into_iter();
        let pairs = reading.flat_map(|reader| {
            let pairs = Who::CHANGING.map(|other| [[reader, other], [other, reader]]);
            pairs.into_iter().flatten()
        });
        let mut ended = Ended::new();
        ended.all_pairs(pairs, 3).await;
        assert!(
            ended.failures > 150 && ended.gave_way > 1 && ended.well > 150,
            "{ended:?}"
        );
    });
}

/// A pin at every moment of an expiry, and an expiry at every moment of a pin: what was said to be pinned stays.
#[test]
fn a_pin_that_was_said_to_be_made_holds_beside_an_expiry() {
    alone(async {
        let first = World::new().await;
        let catalog = Catalog::load(&first.within(&first.repository())).await;
        // The increment on the older full layer, which goes when one full layer is kept.
        let label = catalog.unwrap().layers[1].label.clone();
        let (mut held, mut refused, mut withdrawn) = (0, 0, 0);
        for pin_first in [false, true] {
            for nth in 0.. {
                let world = first.copy();
                let mut remover = expiry(&world, 1);
                let pinned = label.clone();
                let mut pin = Actor::start(&world, move |world, repository| async move {
                    let cluster = world.within(&repository);
                    mark::pin(&cluster, &pinned, Pin::default()).await
                });
                let ended = match pin_first {
                    true => !pin.steps(nth).await,
                    false => !remover.steps(nth).await,
                };
                if pin_first {
                    to_its_end(&world, &mut remover).await;
                    to_its_end(&world, &mut pin).await;
                } else {
                    to_its_end(&world, &mut pin).await;
                    to_its_end(&world, &mut remover).await;
                }
                let outcome = pin.outcome().await;
                let removed = remover.outcome().await;
                let catalog = Catalog::load(&world.within(&world.repository())).await;
                let there = catalog.unwrap().chain(&label).is_ok();
                match outcome {
                    Ok(_) => {
                        held += 1;
                        assert!(there, "{pin_first} {nth}: {removed:?}");
                        withdrawn += u32::from(!removed.is_ok_and(|report| report.done));
                    }
                    Err(error) => {
                        refused += 1;
                        let kinds = [
                            Kind::Refused,
                            Kind::NotFound,
                            Kind::Damaged,
                            Kind::WalMissing,
                        ];
                        assert!(kinds.contains(&error.kind()), "{pin_first} {nth}: {error}");
                    }
                }
                // Nothing of a pin that failed keeps the layer.
                if !there {
                    let done = expire(Arc::clone(&world), world.repository(), keep_full(1)).await;
                    assert!(done.unwrap().done);
                }
                if ended {
                    break;
                }
            }
        }
        let told = format!("{held} held, {refused} refused, {withdrawn} withdrawn");
        assert!(held > 10 && refused > 10 && withdrawn > 0, "{told}");
    });
}
