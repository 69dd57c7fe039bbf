//! Real backups of a real server into a store whose operations fail, one after the other, and beside commands that remove
//! layers at that moment: whatever is listed is whole, the server is let go, and the next backup is a fast one.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests may fail like tests"
)]

mod backup_support;
mod seed;

use std::sync::Arc;
use std::time::{Duration, Instant};

use backup_support::{Scene, rebuild, record, server};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use pgstrata_engine::backup::{self, BackupOptions, BackupReport, BackupType};
use pgstrata_engine::expire::{self, ExpireOptions};
use pgstrata_engine::merge::{self, MergeOptions};
use pgstrata_engine::verify::{self, VerifyOptions};
use pgstrata_layer::frame::Codec;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::ChangeSource;
use pgstrata_layer::retention::Policy;
use pgstrata_store::catalog::{Catalog, Layer};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use pgstrata_testbed::cluster::{Major, require_same_dump};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use seed::seed;

/// One operation of so many is tried, from a random one on.
const STEP: usize = 3;

/// A running server, whose table changes.
fn scene(major: Major) -> Scene {
    let scene = Scene::of(server(major).start().unwrap(), Repository::memory());
    scene.sql(
        "CREATE TABLE t AS SELECT g AS id, 0 AS n, repeat('x', 200) AS pad FROM generate_series(1, 3000) g;
         CREATE INDEX ON t (id)",
    );
    scene
}

/// A repository of the server's, of which each trial has a copy of its own.
struct Beginning<'a> {
    scene: &'a Scene,
    memory: Arc<InMemory>,
}

impl<'a> Beginning<'a> {
    /// With these layers.
    fn with(scene: &'a Scene, types: &[BackupType]) -> Self {
        let memory = Arc::new(InMemory::new());
        let repository = Repository::with_store(memory.clone());
        let recording = record(&repository, &scene.name, scene.cluster.pgdata());
        scene.runtime.block_on(recording);
        let beginning = Self { scene, memory };
        for &backup_type in types {
            let trial = Trial {
                memory: Arc::clone(&beginning.memory),
                ..beginning.trial("the beginning".to_owned())
            };
            trial.backup(&trial.options(backup_type)).unwrap();
        }
        beginning
    }

    fn trial(&self, moment: String) -> Trial<'a> {
        // A few pages change.
        self.scene.sql("UPDATE t SET n = n + 1 WHERE id % 500 = 7");
        Trial {
            scene: self.scene,
            memory: Arc::new(self.memory.fork()),
            moment,
        }
    }
}

/// A copy of the repository in which something goes wrong.
struct Trial<'a> {
    scene: &'a Scene,
    memory: Arc<InMemory>,
    moment: String,
}

impl Trial<'_> {
    fn options(&self, backup_type: BackupType) -> BackupOptions {
        BackupOptions {
            backup_type,
            jobs: 1,
            codec: Codec::None,
            ..self.scene.options()
        }
    }

    /// The copy, where nothing fails.
    fn cluster(&self) -> ClusterRepository {
        self.by_way_of(self.memory.clone())
    }

    /// The same by way of a store that fails.
    fn by_way_of(&self, store: Arc<dyn ObjectStore>) -> ClusterRepository {
        let repository = Repository::with_store(store);
        ClusterRepository::new(&repository, &self.scene.name)
    }

    fn failing_at(&self, nth: usize, fault: Fault) -> Arc<FaultStore> {
        let nth = u64::try_from(nth).unwrap();
        FaultStore::failing_at(nth, fault, self.memory.clone())
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.scene.runtime.block_on(future)
    }

    fn backup(&self, options: &BackupOptions) -> Result<BackupReport> {
        self.run(backup::run(&self.cluster(), options, Progress::default()))
    }

    /// By the state that they hold, the oldest first; whether the layer was merged.
    fn layers(&self) -> Vec<(Label, bool)> {
        let catalog = self.run(Catalog::load(&self.cluster())).unwrap();
        assert!(catalog.damaged.is_empty(), "{:?}", catalog.damaged);
        let mut layers: Vec<&Layer> = catalog.layers.iter().collect();
        layers.sort_by_key(|layer| layer.manifest.state_stamp());
        let layers = layers.into_iter();
        layers
            .map(|layer| (layer.label.clone(), !layer.manifest.replaces.is_empty()))
            .collect()
    }

    /// The backup's layer is there when it said so, and there is no new one otherwise; no session of it is left, and
    /// with it no backup mode; every object of every layer is there; and the next backup, on the newest layer, asks pages alone.
    fn require_sound(&self, outcome: &Result<BackupReport>, before: &[(Label, bool)]) {
        let moment = &self.moment;
        self.require_let_go();
        let now = self.layers();
        let there = |label: &Label| now.iter().any(|(there, _)| there == label);
        match outcome {
            Ok(report) => assert!(there(&report.label), "{moment}: {now:?}"),
            Err(error) => {
                let new = |layer: &&(Label, bool)| !layer.1 && !before.contains(layer);
                assert_eq!(now.iter().find(new), None, "{moment}: {error}");
            }
        }
        let verifying = VerifyOptions {
            jobs: 1,
            ..VerifyOptions::default()
        };
        let verifying = self.run(verify::run(
            &self.cluster(),
            &verifying,
            Progress::default(),
        ));
        let report = verifying.unwrap();
        assert_eq!(report.failure(), None, "{moment}: {:?}", report.findings);
        let next = self.backup(&self.options(BackupType::Incremental));
        let next = next.unwrap_or_else(|error| panic!("{moment}: {error}"));
        let newest = now.last().map(|(label, _)| label);
        assert_eq!(next.parent.as_ref(), newest, "{moment}");
        let source = &next.change_source;
        assert_eq!(
            source.used,
            ChangeSource::Lsn,
            "{moment}: {}",
            source.reason
        );
    }

    fn require_let_go(&self) {
        let began = Instant::now();
        loop {
            let sessions =
                "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgstrata%'";
            if self.scene.sql(sessions).trim() == "0" {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(10), "{}", self.moment);
            std::thread::sleep(Duration::from_millis(5));
        }
        let slots = self.scene.sql("SELECT count(*) FROM pg_replication_slots");
        assert_eq!(slots.trim(), "0", "{}", self.moment);
    }

    /// The newest layer starts, and holds what the server does.
    fn require_restores(&self) {
        let (newest, _) = self.layers().pop().unwrap();
        let rebuilt = rebuild(&self.cluster(), &newest, &self.scene.runtime);
        let (_rebuilt, copy) = rebuilt.start(self.scene.cluster.major());
        let server = self.scene.cluster.dump().unwrap();
        require_same_dump(&server, &copy.dump().unwrap()).unwrap();
    }
}

#[test]
fn each_operation_of_a_backup_of_15_may_fail() {
    each_operation_of_a_backup_may_fail(Major::V15);
}

#[test]
fn each_operation_of_a_backup_of_18_may_fail() {
    each_operation_of_a_backup_may_fail(Major::V18);
}

/// Not done, or done and not heard; for good, or not.
fn each_operation_of_a_backup_may_fail(major: Major) {
    let scene = scene(major);
    let first = usize::try_from(seed()).unwrap() % STEP;
    for backup_type in [BackupType::Full, BackupType::Incremental] {
        for fault in [Fault::Before, Fault::After, Fault::LostAnswer] {
            let beginning = Beginning::with(&scene, &[BackupType::Full]);
            let (mut failed, mut survived) = (0, 0);
            for nth in (first..).step_by(STEP) {
                let trial = beginning.trial(format!("{backup_type}, {fault:?} at {nth}"));
                let before = trial.layers();
                let store = trial.failing_at(nth, fault);
                let options = trial.options(backup_type);
                let outcome = trial.run(backup::run(
                    &trial.by_way_of(store.clone()),
                    &options,
                    Progress::default(),
                ));
                trial.require_sound(&outcome, &before);
                match outcome {
                    Ok(_) => survived += 1,
                    Err(error) => {
                        println!("{}: {error}", trial.moment);
                        failed += 1
                    }
                }
                if store.operation_count() <= u64::try_from(nth).unwrap() {
                    trial.require_restores();
                    break;
                }
            }
            println!("{backup_type}, {fault:?}: {failed} failed, {survived} survived");
            assert!(failed + survived > 6, "{failed} {survived}");
            assert_eq!(failed == 0, fault == Fault::LostAnswer, "{fault:?}");
        }
    }
}

/// What removes layers.
#[derive(Clone, Copy, Debug)]
enum Remover {
    /// The chain that the backup stands on goes.
    Expiry,
    /// It becomes one layer.
    Merge,
}

impl Remover {
    /// Whether it came to its end.
    async fn run(self, cluster: &ClusterRepository, label: &Label) -> Result<bool> {
        let (codec, progress) = (Codec::None, Progress::default());
        match self {
            Self::Expiry => {
                let policy = Policy {
                    keep_full: Some(1),
                    ..Policy::default()
                };
                let options = ExpireOptions {
                    policy,
                    codec,
                    jobs: 1,
                    ignore_restores: false,
                };
                let report = expire::execute(cluster, &options, &progress).await?;
                Ok(report.done)
            }
            Self::Merge => {
                let options = MergeOptions {
                    label: label.clone(),
                    into: None,
                    codec,
                    jobs: 1,
                    remove: true,
                    ignore_restores: false,
                };
                let report = merge::execute(cluster, &options, &progress).await?;
                Ok(!report.removed.is_empty())
            }
        }
    }
}

fn gives_way(error: &Error) -> bool {
    [Kind::Busy, Kind::Refused, Kind::NotFound].contains(&error.kind())
}

/// How often what came out of it.
#[derive(Debug, Default)]
struct Tally {
    committed: u32,
    refused: u32,
    removed: u32,
    withdrew: u32,
    failed: u32,
}

#[test]
fn a_backup_beside_what_removes_its_parents_stands_on_what_stays() {
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let scene = scene(if seed & 1 == 0 {
        Major::V15
    } else {
        Major::V18
    });
    let first = usize::try_from(seed).unwrap() % STEP;
    let mut tally = Tally::default();
    for remover in [Remover::Expiry, Remover::Merge] {
        let types = [BackupType::Full, BackupType::Incremental, BackupType::Full];
        let beginning = Beginning::with(&scene, &types);
        for nth in (first..).step_by(STEP) {
            let fails = (nth / STEP % 2 == 1).then(|| random.random_range(0..20));
            let trial = beginning.trial(format!(
                "beside {remover:?} at {nth}, which fails at {fails:?}"
            ));
            let operations = beside(&trial, nth, (remover, fails), &mut tally);
            if operations <= u64::try_from(nth).unwrap() {
                break;
            }
        }
    }
    println!("{tally:?}");
    let ways = [
        tally.committed,
        tally.refused,
        tally.removed,
        tally.withdrew,
        tally.failed,
    ];
    assert!(ways.iter().all(|&ways| ways > 0), "{tally:?}");
}

/// An increment on the second layer waits at that operation while the other runs. Answers its operations.
fn beside(
    trial: &Trial<'_>,
    nth: usize,
    other: (Remover, Option<usize>),
    tally: &mut Tally,
) -> u64 {
    let moment = &trial.moment;
    let (remover, fails) = other;
    let before = trial.layers();
    let parent = &before[1].0;
    let held_up = u64::try_from(nth).unwrap();
    let store = FaultStore::holding_up(held_up, trial.memory.clone());
    let options = BackupOptions {
        parent: Some(parent.clone()),
        ..trial.options(BackupType::Incremental)
    };
    let faulty = match fails {
        Some(nth) => trial.failing_at(nth, Fault::Before),
        None => FaultStore::new(trial.memory.clone()),
    };
    let (cluster, elsewhere) = (trial.by_way_of(store.clone()), trial.by_way_of(faulty));
    let (outcome, removal) = trial.run(async {
        let mut backing = Box::pin(backup::run(&cluster, &options, Progress::default()));
        let ended = tokio::select! {
            outcome = &mut backing => Some(outcome),
            () = store.reached() => None,
        };
        let removal = remover.run(&elsewhere, parent).await;
        store.go_on();
        match ended {
            Some(outcome) => (outcome, removal),
            None => (backing.await, removal),
        }
    });
    match &outcome {
        Ok(report) => {
            tally.committed += 1;
            assert_eq!(report.parent.as_ref(), Some(parent), "{moment}");
            let source = &report.change_source;
            assert_eq!(
                source.used,
                ChangeSource::Lsn,
                "{moment}: {}",
                source.reason
            );
        }
        Err(error) => {
            tally.refused += 1;
            assert!(gives_way(error), "{moment}: {error}");
        }
    }
    match removal {
        Ok(true) => tally.removed += 1,
        Ok(false) => tally.withdrew += 1,
        Err(error) if fails.is_none() => {
            assert!(gives_way(&error), "{moment}: {error}");
            tally.withdrew += 1;
        }
        Err(_) => tally.failed += 1,
    }
    trial.require_sound(&outcome, &before);
    if nth.is_multiple_of(4) {
        trial.require_restores();
    }
    store.operation_count()
}
