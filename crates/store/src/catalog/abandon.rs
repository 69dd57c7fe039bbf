//! Giving up an attempt, so that nothing can come of it any more.
//!
//! The manifest's key is decided once. Before anything of an attempt is removed by somebody else than its maker, an
//! abandonment record takes that key: a maker that was stopped for however long, and goes on, cannot create its manifest,
//! and says so.

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::abandoned::{self, AbandonedRecord};
use pgstrata_layer::label::Label;

use super::presence::{WRITTEN_BY, host_name};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};

/// A manifest that comes and goes while we try is somebody else's removal at work.
const ATTEMPTS: u32 = 10;

/// What became of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// No layer of that label will ever be committed.
    Abandoned,
    /// There is a manifest.
    Committed,
}

/// Makes sure that no layer of that label will be committed, unless one is.
pub(super) async fn abandon(cluster: &ClusterRepository, label: &Label) -> Result<Fate> {
    let key = cluster.name.manifest_key(label);
    let record = AbandonedRecord {
        label: label.to_string(),
        host: host_name(),
        pid: std::process::id(),
        abandoned_at: Timestamp::now(),
        written_by: WRITTEN_BY.to_owned(),
    };
    let body = Bytes::from(abandoned::encode(&record));
    let act = |error: Error| error.while_doing(format!("could not give up layer {label}"));
    for _ in 0..ATTEMPTS {
        match cluster.repository.create(&key, body.clone()).await {
            Ok(()) => return Ok(Fate::Abandoned),
            Err(error) if error.kind() == Kind::AlreadyExists => {}
            Err(error) => return Err(act(error)),
        }
        match cluster.repository.get(&key).await {
            Ok(object) if abandoned::is_one(&object) => return Ok(Fate::Abandoned),
            Ok(_) => return Ok(Fate::Committed),
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => return Err(act(error)),
        }
    }
    let what = format!("\"{key}\" is created and deleted all the time");
    Err(act(Error::new(Kind::Busy, what)).hint("run it again"))
}

/// The same for a label of which a layer was committed: when its maker has said that it knows, nobody will create the
/// manifest again, and no record need stay.
pub(super) async fn close(cluster: &ClusterRepository, label: &Label) -> Result<Fate> {
    if cluster
        .repository
        .size(&cluster.name.committed_key(label))
        .await?
        .is_none()
    {
        return abandon(cluster, label).await;
    }
    match cluster
        .repository
        .get(&cluster.name.manifest_key(label))
        .await
    {
        Ok(object) if !abandoned::is_one(&object) => Ok(Fate::Committed),
        Ok(_) => Ok(Fate::Abandoned),
        Err(error) if error.kind() == Kind::NotFound => Ok(Fate::Abandoned),
        Err(error) => Err(error),
    }
}

/// The error of a maker that has found its manifest's place taken, or anything else by which it knows that it was
/// taken for dead.
pub(super) fn given_up(label: &Label, how: &str) -> Error {
    Error::new(
        Kind::Refused,
        format!("layer {label} was given up in the meantime: {how}"),
    )
    .hint(
        "an expiry or merge took this process for dead, because it had stored nothing for long; nothing that is \
         listed was touched: start again",
    )
}

/// What is wrong with the abandonment record in the place of that label's manifest, if anything is.
#[must_use]
pub fn complaint(label: &Label, object: &[u8]) -> Option<Error> {
    match abandoned::decode(object) {
        Ok(record) if record.label == label.as_str() => None,
        Ok(record) => {
            let what = format!("the record in its place is that of {}", record.label);
            Some(Error::new(Kind::Damaged, what))
        }
        Err(error) => Some(error.into()),
    }
}

/// What the object in the manifest's place says, when it is an abandonment record.
pub(super) fn describe(object: &[u8]) -> Option<String> {
    if !abandoned::is_one(object) {
        return None;
    }
    Some(match abandoned::decode(object) {
        Ok(record) => format!(
            "process {} on \"{}\" did so at {}",
            record.pid, record.host, record.abandoned_at
        ),
        Err(error) => error.to_string(),
    })
}
