//! The cluster in the target: made like the one in the source, or found to be the same.

use std::fs;

use pgstrata_layer::cluster::{self, ClusterRecord};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use pgstrata_store::keys::Recipients;

use super::{MirrorReport, NotCopied, keys, place};
use crate::server::apart::require_outside;

/// Whether the cluster is new in the target.
///
/// # Errors
/// `Refused` when the target is of another cluster, or sealed in another way, or lies among the files of one.
pub(super) async fn compare(
    source: &ClusterRepository,
    target: &ClusterRepository,
    record: &ClusterRecord,
) -> Result<bool> {
    let (here, there) = (source.repository.directory(), target.repository.directory());
    if let Some(there) = there {
        place::check(here, there).await?;
        require_outside(&target.repository).await?;
        // It is made like that of "init".
        if !there.exists() {
            return Ok(true);
        }
    }
    match target.record().await {
        Ok(found) => require_same(record, &found, target).map(|()| false),
        Err(error) if error.kind() == Kind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Refuses a target that is the source itself, behind another name or another address of the store. Who may not write there
/// is told so by the names alone.
///
/// # Errors
/// `Usage` then; when a repository cannot be read, or the target not written.
pub(super) async fn require_second(
    source: &ClusterRepository,
    target: &ClusterRepository,
    may_write: bool,
) -> Result<()> {
    let url = target.repository.url();
    let is_source = target.may_be(source).await?
        && match may_write {
            true => target.is(source).await?,
            false => source.repository.url() == url,
        };
    match is_source {
        false => Ok(()),
        true => Err(Error::new(
            Kind::Usage,
            format!("{url} is the repository out of which to copy"),
        )
        .hint("name another repository with --to")),
    }
}

fn require_same(
    record: &ClusterRecord,
    found: &ClusterRecord,
    target: &ClusterRepository,
) -> Result<()> {
    let url = target.repository.url();
    let name = target.name.as_str();
    let same = record.system_identifier == found.system_identifier
        && record.major == found.major
        && record.block_size == found.block_size
        && record.wal_segment_size == found.wal_segment_size;
    if !same {
        let what = format!(
            "cluster \"{name}\" in {url} is another one: it has system identifier {} and major version {}, that of the source {} and {}",
            found.system_identifier, found.major, record.system_identifier, record.major
        );
        return Err(Error::new(Kind::Refused, what)
            .hint("copy into another repository, or another prefix of this one"));
    }
    if record.sealing == found.sealing {
        return Ok(());
    }
    let describe = |record: &ClusterRecord| match &record.sealing {
        Some(sealing) => format!("sealed with id {}", sealing.seal_id),
        None => "not sealed".to_owned(),
    };
    let what = format!(
        "cluster \"{name}\" is {} in the source, and {} in {url}: objects are copied as they are",
        describe(record),
        describe(found)
    );
    Err(Error::new(Kind::Unsupported, what).hint(match record.sealing {
        None => keys::TO_SEAL,
        Some(_) => "copy into a repository or prefix without this cluster: it gets the epochs of the source, for the recipients of --recipient, --writer and --keeper if they are given",
    }))
}

/// Makes the cluster in the target, with its keys, unless it is there; answers whether it was made, and how many key boxes
/// were made for recipients of its own. Keys that came since are copied too.
///
/// # Errors
/// As for [`compare`] and [`keys::plan`]; `Refused` when the store cannot be trusted; when a repository cannot be read or written.
pub(super) async fn make(
    source: &ClusterRepository,
    target: &ClusterRepository,
    record: &ClusterRecord,
    recipients: Option<&Recipients>,
) -> Result<(bool, u64)> {
    let is_new = compare(source, target, record).await?;
    if !is_new {
        require_second(source, target, true).await?;
    }
    // Nothing is written for who could not go on.
    let plan = keys::plan(source, target, record, recipients).await?;
    let home = target.name.as_str();
    if is_new {
        target.require_lock(record).await?;
        make_home(source, target).await?;
        target.repository.probe(home).await?;
    }
    let keys = keys::bring(source, target, plan).await?;
    if !is_new {
        return Ok((false, keys));
    }
    // Byte for byte: a data directory remembers its layers by this record.
    let is_new = match copy_object(source, target, &source.name.cluster_key()).await {
        Ok(_) => true,
        Err(error) if error.kind() == Kind::AlreadyExists => {
            compare(source, target, record).await?
        }
        Err(error) => return Err(error),
    };
    Ok((is_new, keys))
}

/// In a directory what is made belongs to the owner of the source's directory; out of an object store, to who copies.
async fn make_home(source: &ClusterRepository, target: &ClusterRepository) -> Result<()> {
    let Some(directory) = target.repository.directory() else {
        return Ok(());
    };
    let like = match source.repository.directory() {
        Some(directory) => directory.join(source.name.as_str()),
        None => {
            let mut existing = directory;
            while !existing.exists() {
                match existing.parent() {
                    Some(parent) => existing = parent,
                    None => break,
                }
            }
            existing.to_owned()
        }
    };
    let like =
        fs::metadata(&like).context(|| format!("could not look up \"{}\"", like.display()))?;
    target
        .repository
        .make_home(target.name.as_str(), &like)
        .await
}

/// Copies a small object as it is; answers whether it was not there.
pub(super) async fn copy_object(
    source: &ClusterRepository,
    target: &ClusterRepository,
    key: &str,
) -> Result<bool> {
    let object = source.repository.get(key).await?;
    if key == source.name.cluster_key() {
        cluster::decode(&object)?;
    }
    if target.repository.size(key).await? == u64::try_from(object.len()).ok() {
        let found = target.repository.get(key).await?;
        if found == object {
            // A copy that was killed may not have come to that.
            target.repository.make_durable(key).await?;
            return Ok(false);
        }
    }
    target.repository.create(key, object).await.map(|()| true)
}

/// The records of audits that found a change source wrong.
pub(super) async fn copy_distrust(
    source: &ClusterRepository,
    target: &ClusterRepository,
    report: &mut MirrorReport,
) -> Result<()> {
    let prefix = source.name.distrust_prefix();
    let there = target.repository.list(&prefix).await?;
    if let Some(object) = there.first() {
        target.repository.make_durable(&object.key).await?;
    }
    for object in source.repository.list(&prefix).await? {
        if there.iter().any(|there| there.key == object.key) {
            continue;
        }
        match copy_object(source, target, &object.key).await {
            Ok(new) => report.records += u64::from(new),
            // Somebody has removed it, or made it, meanwhile.
            Err(error) if matches!(error.kind(), Kind::NotFound | Kind::AlreadyExists) => {}
            Err(error) if error.is_of_one_object() => {
                report.left_out.push(NotCopied::broken(object.key, &error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
