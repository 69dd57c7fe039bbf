//! Who acts on a world.

use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use pgstrata_engine::expire::{self, ExpireOptions, ExpireReport};
use pgstrata_engine::merge::{self, MergeOptions};
use pgstrata_engine::restore::{self, RestoreOptions};
use pgstrata_engine::verify::{self, FindingKind, Scope, Severity, VerifyOptions};
use pgstrata_layer::frame::Codec;
use pgstrata_layer::label::Label;
use pgstrata_layer::retention::Policy;
use pgstrata_store::catalog::{Catalog, CopiedLayer, Layer};
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;

use super::super::restore_common::options;
use super::{Actor, Plan, World};

pub fn keep_full(count: usize) -> Policy {
    Policy {
        keep_full: Some(count),
        ..Policy::default()
    }
}

/// An expiry by these rules.
pub fn by(policy: Policy) -> ExpireOptions {
    ExpireOptions {
        policy,
        codec: Codec::None,
        jobs: 1,
        ignore_restores: false,
    }
}

pub async fn expire(
    world: Arc<World>,
    repository: Repository,
    policy: Policy,
) -> Result<ExpireReport> {
    expire::execute(
        &world.within(&repository),
        &by(policy),
        &Progress::default(),
    )
    .await
}

pub fn backup(world: &Arc<World>, plan: Plan) -> Actor<Label> {
    Actor::start(world, move |world, repository| async move {
        world.backup(&repository, plan).await
    })
}

pub fn expiry(world: &Arc<World>, full: usize) -> Actor<ExpireReport> {
    Actor::start(world, move |world, repository| {
        expire(world, repository, keep_full(full))
    })
}

/// What one full layer does not need goes, also when a restore may be reading it and restores are ignored.
pub fn expiry_to_one(world: &Arc<World>, ignore_restores: bool) -> Actor<ExpireReport> {
    Actor::start(world, move |world, repository| async move {
        let options = ExpireOptions {
            ignore_restores,
            ..by(keep_full(1))
        };
        expire::execute(&world.within(&repository), &options, &Progress::default()).await
    })
}

/// What a remover has done: whether it has come to its end, and how many layers have gone.
pub type Cleared = (bool, usize);

/// The same by any rules.
pub fn clearing(world: &Arc<World>, policy: Policy) -> Actor<Cleared> {
    Actor::start(world, move |world, repository| async move {
        let report = expire(world, repository, policy).await?;
        Ok((report.done, report.remove.len()))
    })
}

/// Merges the layer that was the second at the beginning, or the last, with what it stands on, and removes them.
async fn merge_one(world: Arc<World>, repository: Repository, last: bool) -> Result<Cleared> {
    let options = MergeOptions {
        label: world.incremental(last),
        into: None,
        codec: Codec::None,
        jobs: 1,
        remove: true,
        ignore_restores: false,
    };
    let progress = Progress::default();
    let report = merge::execute(&world.within(&repository), &options, &progress).await?;
    Ok((report.notes.is_empty(), report.removed.len()))
}

pub fn merging(world: &Arc<World>, last: bool) -> Actor<Cleared> {
    Actor::start(world, move |world, repository| {
        merge_one(world, repository, last)
    })
}

/// Whether a remover may end so beside others: refused by who keeps more than another has decided to remove, taken for dead, or
/// too late for what it was to merge.
pub fn gives_way(error: &Error) -> bool {
    let kinds = [Kind::Interrupted, Kind::Busy, Kind::Refused, Kind::NotFound];
    kinds.contains(&error.kind())
}

/// Restores the layer that a merge or an expiry takes away. What was restored is what the layer held; what was not cannot be started.
async fn restore_old(world: Arc<World>, repository: Repository) -> Result<()> {
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    let options = RestoreOptions {
        label: Some(world.incremental(false)),
        ..options(&target)
    };
    let plan = restore::plan(&world.within(&repository), options).await?;
    let restored = restore::execute(&plan, &Progress::default()).await;
    let startable = target.join("global/pg_control").exists();
    let marked = target.join("pgstrata.restore-incomplete").exists();
    match &restored {
        Ok(_) => assert!(startable && !marked),
        Err(_) => assert!(!startable || marked),
    }
    for (path, contents) in &world.contents[1] {
        if let (Some(contents), Ok(_)) = (contents, &restored) {
            let found = fs::read(target.join(path)).unwrap();
            assert!(found == *contents, "{path} differs");
        }
    }
    restored.map(drop)
}

/// Verifies the layer that a merge or an expiry takes away, each page. Nothing is found to be wrong but what the store did not give out.
pub async fn verify_old(world: Arc<World>, repository: Repository) -> Result<()> {
    let options = VerifyOptions {
        scope: Scope::Chain(world.incremental(false)),
        deep: true,
        jobs: 1,
        ..VerifyOptions::default()
    };
    let cluster = world.within(&repository);
    let report = verify::run(&cluster, &options, Progress::default()).await?;
    for finding in report.findings {
        if finding.kind == FindingKind::Unreadable {
            return Err(Error::new(Kind::Repository, finding.message));
        }
        assert!(finding.severity == Severity::Warning, "{finding:?}");
    }
    Ok(())
}

/// A layer, what it stands on, and its manifest.
pub type Whole = (Layer, Vec<Arc<Layer>>, Bytes);

/// A layer made in a copy of the world, on an old chain there, with its manifest.
pub async fn made_elsewhere(world: &World) -> Result<Whole> {
    let other = world.copy();
    let repository = other.repository();
    let label = other.backup(&repository, Plan::on_old()).await?;
    let catalog = Catalog::load(&other.within(&repository)).await?;
    let chain = catalog.chain(&label)?.into_iter();
    let chain = chain.skip(1).map(|layer| Arc::new(layer.clone()));
    let key = other.cluster().manifest_key(&label);
    let object = repository.get(&key).await?;
    Ok((catalog.layer(&label)?.clone(), chain.collect(), object))
}

/// What a copy of one layer does to the repository.
async fn copy_one(world: Arc<World>, repository: Repository, made: Whole) -> Result<Label> {
    let (layer, chain, object) = made;
    let cluster = world.within(&repository);
    let copy = CopiedLayer::begin(&cluster, &layer, &chain, "elsewhere").await?;
    world.store_copy(&repository, &layer).await?;
    copy.check()?;
    let done = copy.commit(&chain, object).await;
    copy.end(done.is_ok()).await;
    done.map(|()| layer.label.clone())
}

pub fn copying(world: &Arc<World>, made: &Whole) -> Actor<Label> {
    let made = made.clone();
    Actor::start(world, |world, repository| copy_one(world, repository, made))
}

/// Who acts beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Full,
    OnOld,
    Expiry,
    Merge,
    Copy,
    Verification,
    Restore,
}

impl Who {
    /// Those that store and remove layers.
    pub const CHANGING: [Self; 5] = [
        Self::Full,
        Self::OnOld,
        Self::Expiry,
        Self::Merge,
        Self::Copy,
    ];

    /// Those that read them.
    pub const READING: [Self; 2] = [Self::Verification, Self::Restore];

    /// It begins, on a host whose clock is so many seconds ahead. Ends with the layer that nothing has a reason to remove.
    pub fn begin(self, world: &Arc<World>, ahead: i64) -> Actor<Option<Label>> {
        Actor::start(world, move |world, repository| async move {
            match self {
                Self::Full => {
                    let plan = Plan::full().ahead(ahead);
                    return world.backup(&repository, plan).await.map(Some);
                }
                Self::OnOld => {
                    let plan = Plan::on_old().ahead(ahead);
                    world.backup(&repository, plan).await.map(drop)
                }
                Self::Expiry => expire(world, repository, keep_full(1)).await.map(drop),
                Self::Merge => merge_one(world, repository, false).await.map(drop),
                Self::Copy => {
                    let made = made_elsewhere(&world).await?;
                    copy_one(world, repository, made).await.map(drop)
                }
                Self::Verification => verify_old(world, repository).await,
                Self::Restore => restore_old(world, repository).await,
            }
            .map(|()| None)
        })
    }
}
