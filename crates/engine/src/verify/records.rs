//! The records beside layers and WAL: the same look for who has a key and for who has none.
//!
//! No restore needs them, so one that cannot be read is a warning. Each says what is believed instead.

use pgstrata_layer::keys::ClusterName;
use pgstrata_store::catalog;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Result;

use super::FindingKind;
use super::finding::Findings;

/// Names each record that cannot be read.
pub(super) async fn check(cluster: &ClusterRepository, findings: &Findings) -> Result<()> {
    for (key, error) in catalog::unreadable_records(cluster).await? {
        let hint = hint(&cluster.name, &key);
        findings.add_hinted(FindingKind::Record, "", (key, error.to_string()), hint);
    }
    Ok(())
}

/// What such a record means, and what to do.
fn hint(name: &ClusterName, key: &str) -> &'static str {
    match name.within(key).split('/').next().unwrap_or_default() {
        "mark" => {
            "the layer counts as pinned until \"pgstrata pin\" or \"pgstrata unpin\" says what is meant"
        }
        "removal" => {
            "nothing can be removed meanwhile; when no expiry and no merge runs anywhere, this object can be deleted"
        }
        "restore" => {
            "nothing can be removed for a week; when no restore and no copy is going on, this object can be deleted"
        }
        "wal-released" => {
            "WAL that is reported as missing may have been given up on purpose; the next \"pgstrata expire\" with --keep-wal \
             writes down what is given up, and this object can be deleted"
        }
        "verified" => "harmless: that verification does not count",
        "distrust" => "harmless: that the audit has failed counts all the same",
        _ => FindingKind::Record.hint(),
    }
}
