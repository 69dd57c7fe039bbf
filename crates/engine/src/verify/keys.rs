//! Epochs and key boxes: the same look for who has a key and for who has none.

use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Result;

use super::FindingKind;
use super::finding::Findings;

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
    for (epoch, key, error) in ring.inspect(cluster.home()).await {
        if !concerns(epoch) {
            continue;
        }
        let Some(kind) = FindingKind::of(&error) else {
            return Err(error);
        };
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
