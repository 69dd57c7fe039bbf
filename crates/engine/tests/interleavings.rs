//! Backups and expiries at the same time, one operation of the store at a time, in any order, stopped for any time,
//! killed anywhere: every layer that is listed is whole at every moment.
//!
//! The store's clock is a number here, and jumps: safety depends on no clock.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

mod restore_common;
mod steps;

use std::sync::Arc;

use pgstrata_engine::expire::{self, ExpireOptions, ExpireReport};
use pgstrata_engine::mark;
use pgstrata_layer::frame::Codec;
use pgstrata_layer::label::Label;
use pgstrata_layer::mark::Pin;
use pgstrata_layer::retention::Policy;
use pgstrata_store::catalog::Catalog;
use pgstrata_store::error::{Kind, Result};
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use steps::{Actor, MINUTES, Plan, World, alone};

/// Long enough to be taken for dead.
const LONG: i64 = 20 * MINUTES;

async fn expire(
    world: Arc<World>,
    repository: Repository,
    keep_full: usize,
) -> Result<ExpireReport> {
    let options = ExpireOptions {
        policy: Policy {
            keep_full: Some(keep_full),
            ..Policy::default()
        },
        codec: Codec::None,
        jobs: 1,
        ignore_restores: true,
    };
    expire::execute(&world.within(&repository), &options, &Progress::default()).await
}

async fn to_its_end<T: 'static>(world: &World, actor: &mut Actor<T>) {
    while actor.step().await {
        world.require_whole_layers().await;
    }
}

fn backup(world: &Arc<World>, plan: Plan) -> Actor<Label> {
    Actor::start(world, move |world, repository| async move {
        world.backup(&repository, plan).await
    })
}

fn expiry(world: &Arc<World>, keep_full: usize) -> Actor<ExpireReport> {
    Actor::start(world, move |world, repository| {
        expire(world, repository, keep_full)
    })
}

/// A backup is stopped before each of its operations for longer than the lease. An expiry runs meanwhile.
#[test]
fn a_backup_that_was_stopped_too_long_is_not_committed_over_what_was_removed() {
    alone(async {
        let (mut given_up, mut committed) = (0, 0);
        for plan in [Plan::full(), Plan::incremental(), Plan::on_old()] {
            for nth in 0.. {
                let world = World::new().await;
                let mut writer = backup(&world, plan);
                let ended = !writer.steps(nth).await;
                world.pass(LONG);
                let mut remover = expiry(&world, 1);
                to_its_end(&world, &mut remover).await;
                remover.outcome().await.unwrap();
                to_its_end(&world, &mut writer).await;
                match writer.outcome().await {
                    Ok(_) => committed += 1,
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
    let mut last = expiry(world, 1);
    to_its_end(world, &mut last).await;
    assert!(last.outcome().await.unwrap().done, "{moment}");
    world.require_nothing_left_over().await;
}

/// An expiry is stopped before each of its operations for longer than the lease, while another runs, and a backup; then
/// it goes on.
#[test]
fn an_expiry_that_was_stopped_harms_nothing_when_it_goes_on() {
    alone(async {
        for killed in [false, true] {
            for nth in 0.. {
                let world = World::new().await;
                let mut stopped = expiry(&world, 1);
                let ended = !stopped.steps(nth).await;
                if killed {
                    stopped.kill().await;
                }
                world.pass(LONG);
                let mut early = backup(&world, Plan::incremental());
                to_its_end(&world, &mut early).await;
                let mut second = expiry(&world, 2);
                to_its_end(&world, &mut second).await;
                world.pass(LONG);
                let mut third = expiry(&world, 1);
                to_its_end(&world, &mut third).await;
                let mut late = backup(&world, Plan::incremental());
                to_its_end(&world, &mut late).await;
                to_its_end(&world, &mut stopped).await;
                early.outcome().await.unwrap();
                let done = third.outcome().await.unwrap();
                assert!(done.done, "at {nth}: {done:?}");
                late.outcome().await.unwrap();
                // What one left undone is done.
                finish_what_was_left(&world, &format!("at {nth}")).await;
                if ended {
                    break;
                }
            }
        }
    });
}

/// At each moment of an expiry somebody begins and finishes a layer on one that is to go, or whose WAL is to go.
#[test]
fn a_layer_on_what_is_to_go_stops_the_expiry_or_is_refused() {
    alone(async {
        let (mut committed, mut refused, mut withdrew) = (0, 0, 0);
        for plan in [Plan::on_old(), Plan::behind()] {
            for nth in 0.. {
                let world = World::new().await;
                let mut remover = expiry(&world, 1);
                let ended = !remover.steps(nth).await;
                let mut writer = backup(&world, plan);
                to_its_end(&world, &mut writer).await;
                to_its_end(&world, &mut remover).await;
                match writer.outcome().await {
                    Ok(_) => committed += 1,
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

/// Lets three writers and three removers act in random order until all have ended; kills some.
async fn play(
    world: &World,
    random: &mut StdRng,
    writers: &mut [Actor<Label>],
    removers: &mut [Actor<ExpireReport>],
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
        let (mut stale, mut met) = (0, 0);
        for killed_at in (0..).step_by(4) {
            let world = World::new().await;
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
                for outcome in [one.outcome().await, other.outcome().await] {
                    if let Err(error) = outcome {
                        assert_eq!(error.kind(), Kind::Busy, "{killed_at}, {nth}: {error}");
                    }
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

/// Three backups and three expiries, in random order of operations; some are killed.
#[test]
fn in_whatever_order_operations_come_listed_layers_are_whole() {
    alone(async {
        let seed =
            std::env::var("SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
        println!("seed {seed}: SEED={seed} repeats it");
        let mut random = StdRng::seed_from_u64(seed);
        let (mut committed, mut removed, mut refused, mut withdrew) = (0, 0, 0, 0);
        for round in 0..60 {
            let world = World::new().await;
            let plans = [
                Plan::full(),
                Plan::incremental(),
                Plan::on_old(),
                Plan::behind(),
            ];
            let mut writers: Vec<Actor<Label>> = (0..3)
                .map(|_| backup(&world, plans[random.random_range(0..plans.len())]))
                .collect();
            let mut removers: Vec<Actor<ExpireReport>> = (0..3)
                .map(|_| expiry(&world, random.random_range(1..3)))
                .collect();
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
                    Ok(report) if report.done => removed += report.remove.len(),
                    Ok(_) => withdrew += 1,
                    Err(error) => {
                        let kinds = [Kind::Interrupted, Kind::Busy];
                        assert!(kinds.contains(&error.kind()), "round {round}: {error}");
                    }
                }
            }
            finish_what_was_left(&world, &format!("round {round}")).await;
        }
        let told = format!(
            "{committed} committed, {removed} removed, {refused} refused, {withdrew} withdrew"
        );
        println!("{told}");
        assert!(committed > 30 && removed > 10 && withdrew > 10, "{told}");
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
                    let done = expire(Arc::clone(&world), world.repository(), 1).await;
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
