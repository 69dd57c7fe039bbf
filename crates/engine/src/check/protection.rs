//! What keeps backups from somebody who has the credentials: nothing, versions, or locks.

use jiff::Timestamp;
use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_store::catalog::{self, Catalog, LockReport};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::repository::versions::Versioning;

use super::CheckReport;

const NAME: &str = "protection";

/// What to do about objects that are not locked.
const UNLOCKED: &str = "a rescue brings objects back without a lock, and the next layer that stands on them locks them again; \
    if nobody rescued, somebody has overwritten them: \"pgstrata rescue\" tells. Take a full backup now";

/// What to do about objects that are not what was stored.
const REPLACED: &str = "objects are created once, so somebody who should not can write there: take his rights away, and let \
    \"pgstrata rescue --since TIME --dry-run\" tell what was replaced since a moment; without --dry-run it brings that back";

/// So many names tell what it is about.
const MOST_NAMES: usize = 5;

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
                Ok((until, seen)) => tell(report, &seen, days, until),
                Err(error) => {
                    report.note::<()>(NAME, Err(error), |()| String::new());
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

/// Until when the cluster's record is locked, and how that is which layers need whose days are not over.
async fn protected(cluster: &ClusterRepository, days: u32) -> Result<(Timestamp, LockReport)> {
    let until = locked(cluster).await?;
    let catalog = Catalog::load(cluster).await?;
    let seen = catalog::look_at_locks(cluster, &catalog, days).await?;
    Ok((until, seen))
}

fn tell(report: &mut CheckReport, seen: &LockReport, days: u32, until: Timestamp) {
    let LockReport {
        objects,
        looked_at,
        short,
        replaced,
    } = seen;
    if !replaced.is_empty() {
        let what = format!(
            "of {objects} objects that layers of the last {days} days need, {} are not what was stored: {}",
            replaced.len(),
            some_of(replaced)
        );
        report.warn(NAME, what, REPLACED);
    }
    if !short.is_empty() {
        let what = format!(
            "layers are to be locked for {days} days with all they stand on, and of {looked_at} objects {} are not: {}",
            short.len(),
            some_of(short)
        );
        report.warn(NAME, what, UNLOCKED);
    }
    if short.is_empty() && replaced.is_empty() {
        let looked = match looked_at == objects {
            true => String::new(),
            false => format!(" (as {looked_at} of {objects} objects show, chosen by chance)"),
        };
        let what = format!(
            "every layer is locked for {days} days after it was made, with all it stands on{looked}; the cluster's record \
             until {until}"
        );
        report.remark(NAME, what, None);
    }
}

fn some_of(keys: &[String]) -> String {
    let some = keys.iter().take(MOST_NAMES);
    let mut names: Vec<String> = some.map(|key| format!("\"{key}\"")).collect();
    if keys.len() > MOST_NAMES {
        names.push("…".to_owned());
    }
    names.join(", ")
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
