//! Epochs and key boxes: the same look for who has a key and for who has none.

use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Result};

use super::FindingKind;
use super::finding::Findings;
use super::outage::{as_of_object, kind_of, require_reachable};

/// Each box was made by its epoch and has its own place, and each epoch has one for a reader. Epochs that concern nobody
/// are passed over.
pub(super) async fn check(
    cluster: &ClusterRepository,
    findings: &Findings,
    concerns: impl Fn(u32) -> bool,
) -> Result<()> {
    let Some(ring) = cluster.sealing().await?.ring() else {
        return Ok(());
    };
    let mut wrong = ring.inspect(cluster.home()).await;
    let is_outage = |(_, _, error): &(u32, String, Error)| error.is_outage();
    if wrong.iter().any(is_outage) {
        // It may be over. Boxes that are not given out while the repository answers are the trouble of those boxes.
        require_reachable(cluster).await?;
        wrong = ring.inspect(cluster.home()).await;
    }
    for (epoch, key, error) in wrong {
        if !concerns(epoch) {
            continue;
        }
        let error = as_of_object(error);
        let kind = kind_of(cluster, &error).await?;
        // What is done about objects of layers would be refused where nobody opens the current epoch.
        let hint = error.hint_text().unwrap_or(kind.hint()).to_owned();
        findings.add_hinted(kind, "", (key, error.to_string()), hint);
    }
    Ok(())
}

/// Epochs whose records are lost, each once. To be asked when all objects have been read, which name their epochs.
pub(super) async fn lost(
    cluster: &ClusterRepository,
    findings: &Findings,
    concerns: impl Fn(u32) -> bool,
) -> Result<()> {
    let Some(ring) = cluster.sealing().await?.ring() else {
        return Ok(());
    };
    let lost = ring.lost(cluster.home()).await?;
    for number in lost.into_iter().filter(|number| concerns(*number)) {
        let key = cluster.name.epoch_key(&ring.current().seal_id, number);
        let error = ring.not_there(number);
        findings.add_error(FindingKind::Missing, "", (key, &error));
    }
    Ok(())
}
