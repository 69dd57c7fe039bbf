//! Copies of layers between repositories: whatever fails, and whatever goes on beside them, a layer that is listed is whole.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

mod backup_support;
mod restore_common;
mod steps;

use std::sync::Arc;

use backup_support::{Scene, record};
use bytes::Bytes;
use object_store::memory::InMemory;
use pgstrata_engine::backup::{self, BackupOptions, BackupType};
use pgstrata_engine::mirror::{self, MirrorOptions, MirrorReport};
use pgstrata_engine::verify::{self, Scope, VerifyOptions};
use pgstrata_layer::frame::Codec;
use pgstrata_layer::mark::{Annotation, Mark};
use pgstrata_pgdata::{ArchiveFile, TimelineId, WalSegment};
use pgstrata_store::archive::Archive;
use pgstrata_store::catalog::{Catalog, mark};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use pgstrata_testbed::cluster::Major;
use restore_common::{Made, chain_of_three, copy_of, generations, history, info};
use steps::actors::{Whole, copying, expiry_to_one, made_elsewhere};
use steps::{MINUTES, VERY_LONG, World, alone, to_its_end};

/// Long enough to be taken for dead, and not to be given up.
const LONG: i64 = 20 * MINUTES;

/// How long what others have completed keeps copies away, and some minutes.
const A_DAY: i64 = (24 * 60 + 5) * MINUTES;

async fn copy(from: &Repository, to: &Repository, made: &Made) -> Result<MirrorReport> {
    let options = MirrorOptions {
        labels: Vec::new(),
        jobs: 2,
        recipients: None,
        data_directory: None,
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
            ..VerifyOptions::default()
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
                    let made = made_elsewhere(&world).await.unwrap();
                    let mut first = copying(&world, &made);
                    let ended = !first.steps(nth).await;
                    if killed {
                        first.kill().await;
                    }
                    world.pass(pause);
                    let mut remover = expiry_to_one(&world, ignore);
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
                    let mut again = copying(&world, &made);
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
            let made = made_elsewhere(&world).await.unwrap();
            let mut remover = expiry_to_one(&world, false);
            let ended = !remover.steps(nth).await;
            let mut copy = copying(&world, &made);
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
            let made = made_elsewhere(&world).await.unwrap();
            let mut one = copying(&world, &made);
            let ended = !one.steps(nth).await;
            let mut other = copying(&world, &made);
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

/// Two copies of one layer go on together, one some operations behind the other: from the claim on there is a record that keeps
/// the attempt, should both be killed.
#[test]
fn two_copies_that_begin_at_once_leave_a_record_of_what_they_need() {
    alone(async {
        for behind in (0..8).flat_map(|behind| [behind; 4]) {
            let world = World::new().await;
            let made = made_elsewhere(&world).await.unwrap();
            let mut copies = [copying(&world, &made), copying(&world, &made)];
            copies[0].steps(behind).await;
            let label = &made.0.label;
            let repository = world.repository();
            let there = async |key: String| repository.size(&key).await.unwrap().is_some();
            let mut at = 0;
            loop {
                let [one, other] = &mut copies;
                if !(one.step().await && other.step().await) {
                    break;
                }
                let is_there = there(world.cluster().manifest_key(label)).await;
                if !is_there && there(world.cluster().claim_key(label)).await {
                    let records = repository.list(&world.cluster().restores_prefix()).await;
                    let moment = format!("{behind} behind, after {at}");
                    assert!(!records.unwrap().is_empty(), "{moment}");
                }
                at += 1;
            }
            assert!(at > 5, "{at}");
        }
    });
}

/// The object of a segment was damaged in the target, and is lost; what stood in for it is damaged by now.
#[tokio::test(flavor = "multi_thread")]
async fn wal_of_which_only_a_damaged_stand_in_is_left_in_the_target_is_copied() {
    let (source, target) = (Repository::memory(), Repository::memory());
    let made = chain_of_three(&source).await;
    copy(&source, &target, &made).await.unwrap();
    let archive = Archive::load(&made.within(&source)).await.unwrap();
    let segment = WalSegment {
        timeline: TimelineId::FIRST,
        number: 45,
    };
    let file = ArchiveFile::Segment(segment);
    let [key, stand_in] = [0, 1].map(|number| archive.place(file, number));
    let object = target.get(&key).await.unwrap();
    target.delete(&key).await.unwrap();
    target.create(&stand_in, object.clone()).await.unwrap();
    let report = copy(&source, &target, &made).await.unwrap();
    assert_eq!(report.wal_files, 0, "{report:?}");
    target.delete(&stand_in).await.unwrap();
    let cut = object.slice(..object.len() - 3);
    target.create(&stand_in, cut).await.unwrap();
    let report = copy(&source, &target, &made).await.unwrap();
    assert_eq!(report.wal_files, 1, "{report:?}");
    assert!(target.get(&key).await.unwrap() == object);
}

/// The object of a segment is damaged in the target, and so is what stands in for it: the next place takes the segment.
#[tokio::test(flavor = "multi_thread")]
async fn wal_that_is_damaged_twice_in_the_target_comes_a_third_time() {
    let (source, target) = (Repository::memory(), Repository::memory());
    let made = chain_of_three(&source).await;
    copy(&source, &target, &made).await.unwrap();
    let newest = made.labels.last().unwrap();
    let catalog = Catalog::load(&made.within(&source)).await.unwrap();
    let manifest = &catalog.layer(newest).unwrap().manifest;
    let archive = Archive::load(&made.within(&source)).await.unwrap();
    let (range, size) = (
        manifest.start_lsn..manifest.stop_lsn,
        archive.segment_size(),
    );
    let mut segments = WalSegment::covering(manifest.timeline, range, size);
    let file = ArchiveFile::Segment(segments.next().unwrap());
    let places = [0, 1, 2].map(|number| archive.place(file, number));
    // As after a copy that was killed before it came to the manifest.
    for key in [&places[0], &made.cluster.manifest_key(newest)] {
        target.delete(key).await.unwrap();
    }
    for place in &places[..2] {
        let damaged = Bytes::from_static(b"damaged");
        target.create(place, damaged).await.unwrap();
    }
    let report = copy(&source, &target, &made).await.unwrap();
    assert!(report.left_out.is_empty(), "{report:?}");
    assert_eq!(report.layers.len(), 1, "{report:?}");
    let whole = source.get(&places[0]).await.unwrap();
    assert!(target.get(&places[2]).await.unwrap() == whole);
    // It is found there.
    target
        .delete(&made.cluster.manifest_key(newest))
        .await
        .unwrap();
    copy(&source, &target, &made).await.unwrap();
    let fourth = archive.place(file, 3);
    assert_eq!(target.size(&fourth).await.unwrap(), None);
}

/// The store fails for good from one of the last operations of a backup on. When its manifest is there, and nobody could say
/// so, a copy finds in the sibling what that got; otherwise nothing of it is left.
#[test]
fn what_a_sibling_got_of_a_layer_that_may_exist_stays_for_a_copy() {
    let scene = Scene::new(Major::V15);
    let (name, runtime) = (&scene.name, &scene.runtime);
    let trial = |fails_from: u64| {
        let (memory, beside) = (Arc::new(InMemory::new()), Repository::memory());
        let sound = Repository::with_store(memory.clone());
        for repository in [&sound, &beside] {
            runtime.block_on(record(repository, name, scene.cluster.pgdata()));
        }
        let store = FaultStore::new(memory);
        store.fail(fails_from..u64::MAX, Fault::After);
        let within = |repository: &Repository| ClusterRepository::new(repository, name);
        let (sound, beside) = (within(&sound), within(&beside));
        let options = BackupOptions {
            backup_type: BackupType::Full,
            codec: Codec::None,
            jobs: 1,
            siblings: vec![beside.clone()],
            ..scene.options()
        };
        let failing = within(&Repository::with_store(store.clone()));
        let outcome = runtime.block_on(backup::run(&failing, &options, Progress::default()));
        let count = runtime
            .block_on(Catalog::load(&sound))
            .unwrap()
            .layers
            .len();
        (store.operation_count(), outcome, count, sound, beside)
    };
    let (operations, outcome, ..) = trial(u64::MAX);
    outcome.unwrap();
    let mut unknown = 0;
    for fails_from in operations.saturating_sub(14)..operations {
        let (_, outcome, count, sound, beside) = trial(fails_from);
        let prefix = name.layers_prefix();
        let left = beside.repository.list(&prefix);
        let left = runtime.block_on(left).unwrap();
        match (outcome, count) {
            (Ok(_), 1) => {}
            (Err(error), 1) => {
                unknown += 1;
                assert!(
                    left.iter().any(|object| object.key.contains("/pack-")),
                    "{error}: {left:?}"
                );
                let (options, progress) = (MirrorOptions::default(), Progress::default());
                let copied = mirror::execute(&sound, &beside, &options, &progress);
                let copied = runtime.block_on(copied).unwrap();
                assert_eq!((copied.layers.len(), copied.left_out.len()), (1, 0));
            }
            (Err(error), 0) => assert!(left.is_empty(), "{error}: {left:?}"),
            (outcome, count) => panic!("{outcome:?}, {count} layers"),
        }
    }
    assert!(unknown > 0);
}

/// Whether a copy may end so beside an expiry.
fn gives_way(error: &Error) -> bool {
    [Kind::Busy, Kind::Refused, Kind::NotFound].contains(&error.kind())
}

/// A copy is stopped at every moment; another one makes the layer, and an expiry removes it, before the first goes on.
#[test]
fn a_copy_of_what_was_copied_and_expired_meanwhile_leaves_no_manifest_alone() {
    alone(async {
        let (mut made, mut refused) = (0, 0);
        for nth in 0.. {
            let world = World::new().await;
            let gone = gone_full(&world).await;
            let mut one = copying(&world, &gone);
            let ended = !one.steps(nth).await;
            let mut other = copying(&world, &gone);
            to_its_end(&world, &mut other).await;
            other.outcome().await.unwrap();
            let mut remover = expiry_to_one(&world, true);
            to_its_end(&world, &mut remover).await;
            assert!(remover.outcome().await.unwrap().done, "at {nth}");
            // What it takes back may be there for a moment.
            while one.step().await {}
            let outcome = one.outcome().await;
            world.require_whole_layers().await;
            match outcome {
                // Before it goes on, or all of it after the expiry.
                Ok(_) => made += 1,
                Err(error) => {
                    assert!(gives_way(&error), "at {nth}: {error}");
                    let catalog = Catalog::load(&world.within(&world.repository())).await;
                    assert!(catalog.unwrap().layer(&gone.0.label).is_err(), "at {nth}");
                    refused += 1;
                }
            }
            if ended {
                break;
            }
        }
        let told = format!("{made} made, {refused} refused");
        println!("{told}");
        assert!(made > 0 && refused > 0, "{told}");
    });
}

/// At each moment of the removal of a layer another copy of it creates its manifest, late.
#[test]
fn a_manifest_that_comes_while_its_layer_is_removed_goes_with_it() {
    alone(async {
        for nth in 0.. {
            let world = World::new().await;
            let made = gone_full(&world).await;
            let (layer, _, object) = &made;
            let mut copy = copying(&world, &made);
            to_its_end(&world, &mut copy).await;
            copy.outcome().await.unwrap();
            let repository = world.repository();
            let key = world.cluster().manifest_key(&layer.label);
            let mut remover = expiry_to_one(&world, true);
            while repository.size(&key).await.unwrap().is_some() {
                assert!(remover.step().await, "at {nth}");
            }
            remover.steps(nth).await;
            let claim = world.cluster().claim_key(&layer.label);
            // Later the copy finds itself what is gone.
            if repository.size(&claim).await.unwrap().is_none() {
                break;
            }
            repository.create(&key, object.clone()).await.unwrap();
            while remover.step().await {}
            assert!(remover.outcome().await.unwrap().done, "at {nth}");
            world.require_whole_layers().await;
            assert_eq!(repository.size(&key).await.unwrap(), None, "at {nth}");
        }
    });
}

/// The old full layer, which an expiry has removed: a copy may bring it back.
async fn gone_full(world: &Arc<World>) -> Whole {
    let full = old_layers(world).await.swap_remove(0);
    let mut remover = expiry_to_one(world, true);
    to_its_end(world, &mut remover).await;
    assert!(remover.outcome().await.unwrap().done);
    full
}

/// The old full layer and the increment on it, which go when one full layer is kept. They may come back: their makers knew that
/// they were committed.
async fn old_layers(world: &World) -> Vec<Whole> {
    let repository = world.repository();
    let catalog = Catalog::load(&world.within(&repository)).await.unwrap();
    let mut old = Vec::new();
    for layer in &catalog.layers[..2] {
        let committed = world.cluster().committed_key(&layer.label);
        if repository.size(&committed).await.unwrap().is_none() {
            let note = Bytes::new();
            repository.create(&committed, note).await.unwrap();
        }
        let chain = catalog.chain(&layer.label).unwrap().into_iter();
        let chain = chain.skip(1).map(|layer| Arc::new(layer.clone()));
        let key = world.cluster().manifest_key(&layer.label);
        let object = repository.get(&key).await.unwrap();
        old.push((layer.clone(), chain.collect(), object));
    }
    old
}

/// Copies them into the world again; false when that is refused.
async fn copied_back(world: &Arc<World>, old: &[Whole]) -> bool {
    let mut all = true;
    for made in old {
        let mut copy = copying(world, made);
        to_its_end(world, &mut copy).await;
        if let Err(error) = copy.outcome().await {
            assert_eq!(error.kind(), Kind::Refused, "{error}");
            all = false;
        }
    }
    all
}

async fn require_there(world: &World, old: &[Whole], moment: &str) {
    world.require_whole_layers().await;
    let catalog = Catalog::load(&world.within(&world.repository())).await;
    let catalog = catalog.unwrap();
    for (layer, ..) in old {
        let chain = catalog.chain(&layer.label);
        assert!(chain.is_ok(), "{moment}: {chain:?}");
    }
}

/// Whether an expiry has decided what goes, and is not yet forgotten.
async fn has_decided(world: &World) -> bool {
    let prefix = world.cluster().removals_prefix();
    let objects = world.repository().list(&prefix).await.unwrap();
    objects
        .iter()
        .any(|object| object.key.ends_with("/verdict"))
}

/// An expiry is stopped at every moment, and another does its work; what has gone is copied back, and then the first goes on.
#[test]
fn what_a_stopped_expiry_was_to_remove_comes_back_whole_or_not_yet() {
    alone(async {
        let (mut back, mut refused) = (0, 0);
        for nth in 0.. {
            let world = World::new().await;
            let old = old_layers(&world).await;
            let mut stopped = expiry_to_one(&world, true);
            let ended = !stopped.steps(nth).await;
            let decided = has_decided(&world).await;
            world.pass(LONG);
            let mut other = expiry_to_one(&world, true);
            to_its_end(&world, &mut other).await;
            assert!(other.outcome().await.unwrap().done, "at {nth}");
            let are_back = copied_back(&world, &old).await;
            to_its_end(&world, &mut stopped).await;
            if let Err(error) = stopped.outcome().await {
                assert!(gives_way(&error), "at {nth}: {error}");
            }
            match are_back {
                true => back += 1,
                false => refused += 1,
            }
            // One that had not decided may decide on what has come back.
            if are_back && (decided || ended) {
                require_there(&world, &old, &format!("at {nth}")).await;
            }
            if ended {
                break;
            }
        }
        let told = format!("{back} back, {refused} refused");
        println!("{told}");
        assert!(back > 5 && refused > 10, "{told}");
    });
}

/// It was stopped for a day before it removes a layer, or WAL. All of it has come back meanwhile.
#[test]
fn an_expiry_that_others_have_completed_removes_nothing_more() {
    alone(async {
        for before_wal in [false, true] {
            let world = World::new().await;
            let old = old_layers(&world).await;
            let claim = world.cluster().claim_key(&old[0].0.label);
            let repository = world.repository();
            let mut stopped = expiry_to_one(&world, true);
            loop {
                let layers_left = repository.size(&claim).await.unwrap().is_some();
                if has_decided(&world).await && !(before_wal && layers_left) {
                    break;
                }
                assert!(stopped.step().await, "{before_wal}");
            }
            for pause in [LONG, A_DAY] {
                world.pass(pause);
                let mut other = expiry_to_one(&world, true);
                to_its_end(&world, &mut other).await;
                assert!(other.outcome().await.unwrap().done, "{before_wal}");
            }
            assert!(!has_decided(&world).await, "{before_wal}");
            assert!(copied_back(&world, &old).await, "{before_wal}");
            to_its_end(&world, &mut stopped).await;
            let error = stopped.outcome().await.unwrap_err();
            assert_eq!(error.kind(), Kind::Busy, "{error}");
            let said = "has completed this removal";
            assert!(error.to_string().contains(said), "{error}");
            require_there(&world, &old, &format!("{before_wal}")).await;
        }
    });
}

/// Recovery stops at the end of a standby's layer at the first record behind it, which may be in the next segment. Nobody has
/// promised what comes behind that.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_layers_of_a_standby_brings_the_segment_behind_each_and_misses_no_other() {
    for from_standby in [false, true] {
        let (source, target) = (Repository::memory(), Repository::memory());
        let made = history(&source, &generations(), &[0, 1, 2], |_, manifest| {
            manifest.from_standby = from_standby;
        })
        .await;
        let (from, to) = (made.within(&source), made.within(&target));
        let copied = &made.labels[..2];
        let options = MirrorOptions {
            labels: copied.to_vec(),
            jobs: 2,
            recipients: None,
            data_directory: None,
        };
        mirror::execute(&from, &to, &options, &Progress::default())
            .await
            .unwrap();
        let catalog = Catalog::load(&to).await.unwrap();
        let archive = Archive::load(&to).await.unwrap();
        let size = archive.segment_size();
        let held = archive.list(std::iter::empty()).await.unwrap();
        for label in copied {
            let last = catalog.layer(label).unwrap().own_wal(size).1;
            assert!(held.holds(last), "{label}");
            assert_eq!(held.holds(last.next()), from_standby, "{label}");
        }
        assert_eq!(info(&target, &made).await.alarms, []);
    }
}

fn annotation(key: &str) -> Mark {
    Mark::Annotate(Annotation {
        key: key.to_owned(),
        value: Some("x".to_owned()),
    })
}

/// Somebody marks a layer in the target at any moment of a copy that brings a mark of it: both are there, and all else comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_mark_that_is_made_in_the_target_at_any_moment_ends_no_copy() {
    let (source, mirror) = (Repository::memory(), Repository::memory());
    let made = chain_of_three(&source).await;
    copy(&source, &mirror, &made).await.unwrap();
    let archive = Archive::load(&made.within(&mirror)).await.unwrap();
    let (_, lacking) = archive.files().await.unwrap().pop().unwrap();
    mirror.delete(&lacking.key).await.unwrap();
    let from = made.within(&source);
    let catalog = Catalog::load(&from).await.unwrap();
    let layer = catalog.layer(&made.labels[2]).unwrap();
    mark::add(&from, layer, annotation("near")).await.unwrap();
    let mut moments = 0;
    for nth in 0.. {
        let memory = copy_of(&mirror, &made).await;
        let sound = Repository::with_store(memory.clone());
        let store = FaultStore::holding_up(nth, memory);
        let held_up = Repository::with_store(store.clone());
        let mut copying = Box::pin(copy(&source, &held_up, &made));
        tokio::select! {
            _ = &mut copying => break,
            () = store.reached() => {}
        }
        let to = made.within(&sound);
        mark::add(&to, layer, annotation("far")).await.unwrap();
        store.go_on();
        let report = copying.await.unwrap();
        assert!(report.left_out.is_empty(), "at {nth}: {report:?}");
        let said = mark::load(&to).await.unwrap().of(layer);
        let keys: Vec<&String> = said.annotations.keys().collect();
        assert_eq!(keys, ["far", "near"], "at {nth}");
        let there = sound.size(&lacking.key).await.unwrap();
        assert!(there.is_some(), "at {nth}");
        moments += 1;
    }
    assert!(moments > 10, "{moments}");
}
