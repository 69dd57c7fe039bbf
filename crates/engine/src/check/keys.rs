//! Who opens a sealed cluster: whether this host can, and whether one loss would lose everything.

use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::keys::KeySummary;

use super::CheckReport;

pub(super) const NAME: &str = "keys";

/// Says nothing of a cluster that is not sealed. Without a key of the current epoch nothing can be backed up.
pub(super) async fn check(
    report: &mut CheckReport,
    cluster: &ClusterRepository,
    record: &ClusterRecord,
) {
    if record.sealing.is_none() {
        return;
    }
    let (summary, lost, forged) = match summary(cluster).await {
        Ok(found) => found,
        Err(error) => {
            report.note(NAME, Err::<(), _>(error), |()| String::new());
            return;
        }
    };
    let detail = format!(
        "epoch {} is current: {}, {}, {}; {}",
        summary.current,
        count(summary.readers, "reader"),
        count(summary.writers, "writer"),
        count(summary.keepers, "keeper"),
        summary.own_text()
    );
    let unread = summary.unread_error();
    match summary.is_shut_out() && unread.is_none() {
        true => {
            let error = Error::new(Kind::Refused, detail).hint(
                "give this host an identity with --identity, PGSTRATA_IDENTITY or in the configuration file; a reader lets it in with \"pgstrata key add --writer age1...\"",
            );
            report.note(NAME, Err::<(), _>(error), |()| String::new());
        }
        false => report.remark(NAME, detail, None),
    }
    // What every backup would say.
    if lost.is_none()
        && let Err(error) = cluster.require_newest_epoch().await
        && !forged
            .iter()
            .any(|one| one.to_string() == error.to_string())
    {
        report.note(NAME, Err::<(), _>(error), |()| String::new());
    }
    if let Some(error) = lost {
        report.note(NAME, Err::<(), _>(error), |()| String::new());
    }
    for error in unread.into_iter().chain(forged) {
        report.note(NAME, Err::<(), _>(error), |()| String::new());
    }
    for (what, to_do) in summary.warnings() {
        report.warn(NAME, what, to_do);
    }
    let gone = deleted(cluster).await;
    if let Some(first) = gone.first() {
        let what = format!(
            "{} objects of the keys were deleted, which nobody of us does, \"{first}\" among them",
            gone.len()
        );
        report.warn(NAME, what, DELETED);
    }
    if let Some(doubt) = cluster.doubt(record) {
        let advice = doubt.hint_text().unwrap_or_default();
        report.warn(NAME, doubt.to_string(), advice);
    }
    report.keys = Some(summary);
}

/// What to do about keys that were deleted.
const DELETED: &str = "whose key box is gone opens nothing more: take the rights to delete away, and bring the objects back with \
    \"pgstrata rescue --since TIME\"";

/// Records and key boxes that somebody has deleted, as far as the store remembers and the credentials allow to see that.
async fn deleted(cluster: &ClusterRepository) -> Vec<String> {
    let looking = async {
        match cluster.sealing().await?.ring() {
            Some(ring) => ring.deleted(cluster.home()).await,
            None => Ok(Vec::new()),
        }
    };
    looking.await.unwrap_or_else(|error| {
        tracing::debug!(%error, "whether keys were deleted is not known");
        Vec::new()
    })
}

/// Who opens the epochs, one that is lost, and what is wrong with key boxes that are none.
async fn summary(cluster: &ClusterRepository) -> Result<(KeySummary, Option<Error>, Vec<Error>)> {
    let sealing = cluster.sealing().await?;
    let ring = sealing.ring().ok_or_else(|| {
        let what = "the cluster was sealed a moment ago, and is not now";
        Error::new(Kind::Damaged, what)
    })?;
    let lost = ring.lost(cluster.home()).await?;
    let lost = lost.last().map(|number| ring.not_there(*number));
    let (epochs, forged) = ring.survey_all(cluster.home()).await?;
    Ok((KeySummary::of(&epochs), lost, forged))
}

fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}
