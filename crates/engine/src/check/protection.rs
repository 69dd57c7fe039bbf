//! What keeps backups from somebody who has the credentials: nothing, versions, or locks.

use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_store::catalog::{self, Catalog};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::repository::versions::Versioning;

use super::CheckReport;

const NAME: &str = "protection";

/// What to do about layers without a lock.
const UNLOCKED: &str = "a rescue brings objects back without a lock, and the next layer that stands on them locks them again; \
    if nobody rescued, somebody has overwritten them: \"pgstrata rescue\" tells. Take a full backup now";

/// Says plainly what is not protected. A cluster that is to be locked and is not is a failure.
pub(super) async fn check(
    report: &mut CheckReport,
    cluster: &ClusterRepository,
    record: &ClusterRecord,
) {
    match (record.retention, cluster.repository.directory()) {
        (Some(retention), _) => {
            let days = retention.days;
            match protected(cluster, days).await {
                Ok((_, unlocked)) if !unlocked.is_empty() => {
                    let what = format!(
                        "layers are to be locked for {days} days, and of those made since, {} are not: {}",
                        unlocked.len(),
                        unlocked.join(", ")
                    );
                    report.warn(NAME, what, UNLOCKED);
                }
                seen => {
                    report.note(NAME, seen, |(until, _)| {
                        format!(
                            "every layer is locked for {days} days after it was made, with all it stands on; the cluster's \
                             record until {until}"
                        )
                    });
                }
            }
        }
        (None, Some(_)) => {
            let what = "none: whoever can write to the directory can overwrite and delete backups";
            report.remark(NAME, what.to_owned(), None);
        }
        (None, None) => report.remark(NAME, of_store(cluster).await, None),
    }
}

/// Until when the record is locked, in a bucket that locks.
async fn locked(cluster: &ClusterRepository) -> Result<Timestamp> {
    cluster.repository.require_lock().await?;
    let until = cluster
        .repository
        .locked_until(&cluster.name.cluster_key())
        .await?;
    until.filter(|until| *until > Timestamp::now()).ok_or_else(|| {
        let what = "the cluster is to be locked, and its record is not: somebody has overwritten it, or no layer was made for long";
        Error::new(Kind::Refused, what)
            .hint("\"pgstrata rescue\" brings back what was overwritten; the next backup locks the record again")
    })
}

/// Until when the cluster's record is locked, and which young layers are not.
async fn protected(cluster: &ClusterRepository, days: u32) -> Result<(Timestamp, Vec<String>)> {
    Ok((locked(cluster).await?, unlocked(cluster, days).await?))
}

/// The layers made in the last `days` days whose manifest is not locked.
async fn unlocked(cluster: &ClusterRepository, days: u32) -> Result<Vec<String>> {
    let catalog = Catalog::load(cluster).await?;
    let since = Timestamp::now() - SignedDuration::from_hours(24 * i64::from(days));
    let locked = catalog::locked_layers(cluster, &catalog).await?;
    let young = catalog.layers.iter();
    let young = young.filter(|layer| layer.manifest.finished_at >= since);
    let unlocked = young.filter(|layer| !locked.contains_key(&layer.reference()));
    Ok(unlocked.map(|layer| layer.label.to_string()).collect())
}

async fn of_store(cluster: &ClusterRepository) -> String {
    let loss = "whoever can write to the bucket can overwrite and delete backups";
    match cluster.repository.versioning().await {
        Ok(Versioning::Enabled) => {
            "the bucket keeps versions: what is overwritten or deleted can come back, until somebody deletes versions; nothing is locked".to_owned()
        }
        Ok(Versioning::Suspended) => format!("none any more, because versions are suspended: {loss}"),
        Ok(Versioning::None) => format!("none, because the bucket keeps no versions: {loss}"),
        Err(error) if error.kind() == Kind::Unsupported => format!(
            "none that can be seen, because versions and locks are read on S3 alone: {loss}, unless the store is set up to keep them"
        ),
        Err(error) => format!("not known: {error}"),
    }
}
