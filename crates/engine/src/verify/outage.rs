//! Outages: of the whole repository, or of one object alone.
//!
//! A store that has lost some of its disks, or a file system over a network, may answer for most objects and say of one, for
//! ever, that it is to be asked again later: a server error, a time-out. That is the trouble of this object.

use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};

use super::FindingKind;

/// What `read` says of an object. After an outage it is asked once more, because that may be over. What is not given out even
/// then, though the repository answers, is the trouble of that object, and no outage any more.
///
/// # Errors
/// Those of `read`; an outage when it is one of the whole repository.
pub(super) async fn outlast<T, F, Fut>(cluster: &ClusterRepository, mut read: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let first = read().await;
    if !first.as_ref().is_err_and(Error::is_outage) {
        return first;
    }
    require_reachable(cluster).await?;
    read().await.map_err(as_of_object)
}

/// The same error, of an object that is not given out while others are.
pub(super) fn as_of_object(error: Error) -> Error {
    match error.is_outage() {
        true => Error::new(error.kind(), error.to_string()),
        false => error,
    }
}

/// What kind of finding an error is.
///
/// # Errors
/// The error itself when it is none; one of the whole repository when the object is not given out because nothing is.
pub(super) async fn kind_of(cluster: &ClusterRepository, error: &Error) -> Result<FindingKind> {
    let kind = FindingKind::of(error).ok_or_else(|| error.clone())?;
    if kind == FindingKind::Unreadable {
        require_reachable(cluster).await?;
    }
    Ok(kind)
}

/// After an object that is not given out: that object, or the whole repository? The latter says so here, and ends it.
pub(super) async fn require_reachable(cluster: &ClusterRepository) -> Result<()> {
    let record = cluster.name.cluster_key();
    match cluster.repository.get(&record).await {
        Err(error) if error.kind() == Kind::Repository => Err(error),
        _ => Ok(()),
    }
}
