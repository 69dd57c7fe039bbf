//! Copies of layers between repositories: whatever fails, and whatever goes on beside them, a layer that is listed is whole.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

mod restore_common;
mod steps;

use std::sync::Arc;

use object_store::memory::InMemory;
use pgstrata_engine::expire::{self, ExpireOptions, ExpireReport};
use pgstrata_engine::mirror::{self, MirrorOptions, MirrorReport};
use pgstrata_engine::verify::{self, Scope, VerifyOptions};
use pgstrata_layer::frame::Codec;
use pgstrata_layer::label::Label;
use pgstrata_layer::retention::Policy;
use pgstrata_store::catalog::{Catalog, CopiedLayer, Layer};
use pgstrata_store::error::{Kind, Result};
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use restore_common::{Made, chain_of_three};
use steps::{Actor, MINUTES, Plan, World, alone};

/// Long enough to be taken for dead, and not to be given up.
const LONG: i64 = 20 * MINUTES;

/// Long enough for a copy to be given up.
const VERY_LONG: i64 = 8 * 24 * 60 * MINUTES;

async fn copy(from: &Repository, to: &Repository, made: &Made) -> Result<MirrorReport> {
    let options = MirrorOptions {
        labels: Vec::new(),
        jobs: 2,
        recipients: None,
    };
    let (from, to) = (made.within(from), made.within(to));
    mirror::execute(&from, &to, &options, &Progress::default()).await
}

/// Whether every layer that is listed is whole, to its last page; how many there are.
async fn whole_layers(repository: &Repository, made: &Made) -> usize {
    let cluster = made.within(repository);
    let catalog = Catalog::examine(&cluster).await.unwrap();
    for layer in &catalog.layers {
        let options = VerifyOptions {
            scope: Scope::Chain(layer.label.clone()),
            deep: true,
            jobs: 2,
        };
        let report = verify::run(&cluster, &options, Progress::default());
        let report = report.await.unwrap();
        assert!(report.failure().is_none(), "{:?}", report.findings);
    }
    catalog.layers.len()
}

/// After each failure every listed layer is whole, and a copy that runs again completes.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_fails_anywhere_lists_whole_layers_and_can_be_repeated() {
    let source = Repository::memory();
    let made = chain_of_three(&source).await;
    for fault in [Fault::Before, Fault::After] {
        let mut failures = 0;
        for nth in (0..).step_by(4) {
            let memory = Arc::new(InMemory::new());
            let store = FaultStore::failing_at(nth, fault, memory.clone());
            let outcome = copy(&source, &Repository::with_store(store.clone()), &made).await;
            let sound = Repository::with_store(memory);
            let _ = whole_layers(&sound, &made).await;
            if store.operation_count() <= nth {
                assert!(outcome.unwrap().left_out.is_empty());
                break;
            }
            failures += u32::from(outcome.is_err());
            let report = copy(&source, &sound, &made).await.unwrap();
            assert!(report.left_out.is_empty(), "{fault:?} {nth}: {report:?}");
            assert_eq!(whole_layers(&sound, &made).await, 3, "{fault:?} {nth}");
        }
        assert!(failures > 10, "{failures}");
    }
}

/// An actor that copies `layer` onto `chain`.
fn copying(
    world: &Arc<World>,
    layer: &Layer,
    chain: &[Arc<Layer>],
    object: &bytes::Bytes,
) -> Actor<Label> {
    let (layer, chain, object) = (layer.clone(), chain.to_vec(), object.clone());
    Actor::start(world, move |world, repository| async move {
        let cluster = world.within(&repository);
        let copy = CopiedLayer::begin(&cluster, &layer, &chain, "elsewhere").await?;
        world.store_copy(&repository, &layer).await?;
        copy.check()?;
        let done = copy.commit(&chain, object).await;
        copy.end(done.is_ok()).await;
        done.map(|()| layer.label.clone())
    })
}

fn expiry(world: &Arc<World>, ignore_restores: bool) -> Actor<ExpireReport> {
    Actor::start(world, move |world, repository| async move {
        let options = ExpireOptions {
            policy: Policy {
                keep_full: Some(1),
                ..Policy::default()
            },
            codec: Codec::None,
            jobs: 1,
            ignore_restores,
        };
        expire::execute(&world.within(&repository), &options, &Progress::default()).await
    })
}

async fn to_its_end<T: 'static>(world: &World, actor: &mut Actor<T>) {
    while actor.step().await {
        world.require_whole_layers().await;
    }
}

/// A layer made in a copy of the world, on an old chain there, with its manifest.
async fn made_elsewhere(world: &World) -> (Layer, Vec<Arc<Layer>>, bytes::Bytes) {
    let other = world.copy();
    let repository = other.repository();
    let label = other.backup(&repository, Plan::on_old()).await.unwrap();
    let catalog = Catalog::load(&other.within(&repository)).await.unwrap();
    let chain = catalog.chain(&label).unwrap().into_iter();
    let chain: Vec<Arc<Layer>> = chain.skip(1).map(|layer| Arc::new(layer.clone())).collect();
    let key = other.cluster().manifest_key(&label);
    let object = repository.get(&key).await.unwrap();
    (catalog.layer(&label).unwrap().clone(), chain, object)
}

/// A copy is stopped before each of its operations, for longer than a writer may be, while an expiry runs that wants what it
/// is to stand on; then it goes on, and then somebody copies again.
#[test]
fn a_copy_that_was_stopped_stands_on_what_is_there_or_is_refused() {
    alone(async {
        let (mut committed, mut refused, mut resumed) = (0, 0, 0);
        for (pause, ignore) in [(LONG, false), (LONG, true), (VERY_LONG, false)] {
            for killed in [false, true] {
                for nth in 0.. {
                    let world = World::new().await;
                    let (layer, chain, object) = made_elsewhere(&world).await;
                    let mut first = copying(&world, &layer, &chain, &object);
                    let ended = !first.steps(nth).await;
                    if killed {
                        first.kill().await;
                    }
                    world.pass(pause);
                    let mut remover = expiry(&world, ignore);
                    to_its_end(&world, &mut remover).await;
                    remover.outcome().await.unwrap();
                    to_its_end(&world, &mut first).await;
                    match first.outcome().await {
                        Ok(_) => committed += 1,
                        Err(error) if error.kind() == Kind::Interrupted => {}
                        Err(error) => {
                            assert_eq!(error.kind(), Kind::Refused, "at {nth}: {error}");
                            refused += 1;
                        }
                    }
                    let mut again = copying(&world, &layer, &chain, &object);
                    to_its_end(&world, &mut again).await;
                    resumed += u32::from(again.outcome().await.is_ok());
                    world.require_whole_layers().await;
                    if ended {
                        break;
                    }
                }
            }
        }
        let told = format!("{committed} committed, {refused} refused, {resumed} resumed");
        println!("{told}");
        assert!(committed > 10 && refused > 10 && resumed > 20, "{told}");
    });
}

/// At each moment of an expiry somebody copies a layer onto what is to go, from beginning to end.
#[test]
fn a_copy_onto_what_is_to_go_stops_the_expiry_or_is_refused() {
    alone(async {
        let (mut committed, mut refused) = (0, 0);
        for nth in 0.. {
            let world = World::new().await;
            let (layer, chain, object) = made_elsewhere(&world).await;
            let mut remover = expiry(&world, false);
            let ended = !remover.steps(nth).await;
            let mut copy = copying(&world, &layer, &chain, &object);
            to_its_end(&world, &mut copy).await;
            to_its_end(&world, &mut remover).await;
            match copy.outcome().await {
                Ok(_) => committed += 1,
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Refused, "at {nth}: {error}");
                    refused += 1;
                }
            }
            let _ = remover.outcome().await;
            world.require_whole_layers().await;
            if ended {
                break;
            }
        }
        assert!(committed > 5 && refused > 5, "{committed}, {refused}");
    });
}

/// Two copies of one layer, each stopped at every moment while the other runs to its end.
#[test]
fn two_copies_of_one_layer_make_one() {
    alone(async {
        for nth in 0.. {
            let world = World::new().await;
            let (layer, chain, object) = made_elsewhere(&world).await;
            let mut one = copying(&world, &layer, &chain, &object);
            let ended = !one.steps(nth).await;
            let mut other = copying(&world, &layer, &chain, &object);
            to_its_end(&world, &mut other).await;
            to_its_end(&world, &mut one).await;
            other.outcome().await.unwrap();
            one.outcome().await.unwrap();
            world.require_whole_layers().await;
            if ended {
                break;
            }
        }
    });
}
