//! What tells that there were layers, when there is none: no expiry and no merge takes the last one.
//!
//! A cluster that was just made known, or archives before its first backup, has left no such trace; nor have backups of other
//! tools whose WAL is archived here.

use std::cmp::Reverse;

use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_layer::label::Label;
use pgstrata_pgdata::ArchiveFile;
use pgstrata_store::archive::{Archive, ArchivedWal};
use pgstrata_store::catalog::mark::AllMarks;
use pgstrata_store::catalog::{Catalog, LastVerified, PendingRemoval};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Result;

/// Notes of backups that are read, the newest first: other tools may have left one a day.
const MOST_NOTES: usize = 32;

/// What a backup of ours is called in the server's note of it, before its label.
const CALLED: &str = "pgstrata ";

/// What the repository has beside layers.
pub(super) struct Traces<'a> {
    pub(super) catalog: &'a Catalog,
    pub(super) verified: &'a LastVerified,
    pub(super) marks: &'a AllMarks,
    pub(super) removals: &'a [PendingRemoval],
    pub(super) archived: Option<&'a ArchivedWal>,
}

impl Traces<'_> {
    /// The first thing that proves a layer, in words; `None` when nothing does, and when there is a layer, or a damaged one,
    /// which has an alarm of its own.
    ///
    /// # Errors
    /// `Repository` when the archive cannot be listed.
    pub(super) async fn find(
        &self,
        cluster: &ClusterRepository,
        record: Option<&ClusterRecord>,
    ) -> Result<Option<String>> {
        if !self.catalog.layers.is_empty() || !self.catalog.damaged.is_empty() {
            return Ok(None);
        }
        if let Some(at) = self.verified.of_layers {
            return Ok(Some(format!("somebody verified layers at {at}")));
        }
        let mut marked = self.marks.labels().filter(|label| self.is_gone(label));
        if let Some(label) = marked.next() {
            return Ok(Some(format!("there are marks on layer {label}")));
        }
        let mut removed = self.removals.iter().flat_map(PendingRemoval::labels);
        if let Some(label) = removed.next() {
            return Ok(Some(format!("{label} was removed beside other layers")));
        }
        if let Some(from) = self.archived.and_then(ArchivedWal::promised_from) {
            return Ok(Some(format!(
                "an expiry has given up WAL between layers before {from}"
            )));
        }
        match record {
            Some(record) => self.noted(&Archive::new(cluster, record.clone())?).await,
            None => Ok(None),
        }
    }

    /// Of an attempt that was interrupted, or is at work, nobody misses the layer.
    fn is_gone(&self, label: &Label) -> bool {
        let mut unfinished = self.catalog.unfinished.iter();
        !unfinished.any(|left| left.label == *label) && !self.catalog.abandoned.contains(label)
    }

    /// The newest note that the server made of the end of a backup of ours.
    async fn noted(&self, archive: &Archive) -> Result<Option<String>> {
        let mut notes = archive.files().await?;
        notes.retain(|(file, _)| matches!(file, ArchiveFile::BackupLabel { .. }));
        notes.sort_by_key(|(_, object)| Reverse(object.modified));
        for (file, object) in notes.into_iter().take(MOST_NOTES) {
            // One that cannot be read proves nothing.
            let Ok(note) = archive.contents(file).await else {
                continue;
            };
            let label = label_in(&String::from_utf8_lossy(&note));
            if let Some(label) = label.filter(|label| self.is_gone(label)) {
                return Ok(Some(format!(
                    "\"{}\" notes that the server ended backup {label}",
                    object.key
                )));
            }
        }
        Ok(None)
    }
}

/// The label of a backup of ours, as the server's note of its end says it.
fn label_in(note: &str) -> Option<Label> {
    let mut lines = note.lines();
    let called = lines.find_map(|line| line.strip_prefix("LABEL: "))?;
    Label::parse(called.strip_prefix(CALLED)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_another_tool_tells_of_no_layer_of_ours() {
        let note =
            |called: &str| format!("START TIME: 2026-11-21\nLABEL: {called}\nSTOP TIME: x\n");
        let ours = note("pgstrata 20261121-093305F");
        assert_eq!(label_in(&ours), Label::parse("20261121-093305F"));
        for other in ["pg_basebackup base backup", "pgstrata", "pgstrata nightly"] {
            assert_eq!(label_in(&note(other)), None, "{other}");
        }
        assert_eq!(label_in(""), None);
    }
}
