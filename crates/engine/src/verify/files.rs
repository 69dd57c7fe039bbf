//! Plain files as a whole, against their digests.

use std::sync::Arc;

use futures::StreamExt;
use pgstrata_layer::entry::FileEntry;
use pgstrata_store::error::Result;

use super::Verifier;
use super::layer::LayerCheck;
use super::outage::outlast;
use crate::frames::check_plain_file;

impl Verifier {
    /// Decodes each of `files` and compares it with the digest in its entry.
    pub(super) async fn files(
        &self,
        reading: &mut LayerCheck,
        files: Vec<Arc<FileEntry>>,
    ) -> Result<()> {
        let this = &*reading;
        let mut outcomes = futures::stream::iter(files)
            .map(|entry| async move {
                let (name, label) = (&self.cluster.name, &this.layer.label);
                let packs = entry.frames.iter();
                let mut packs = packs.map(|frame| name.pack_key(label, frame.pack));
                // What is wrong with the pack as such was said when it was read.
                if packs.any(|pack| self.is_withheld(&pack)) {
                    return Ok(None);
                }
                let read = || check_plain_file(&self.cluster, &this.layer, &entry);
                let outcome = outlast(&self.cluster, read).await;
                let key = match entry.frames.first() {
                    Some(frame) => name.pack_key(label, frame.pack),
                    None => name.manifest_key(label),
                };
                self.found(label, &key, outcome).await
            })
            .buffer_unordered(self.jobs);
        let mut right = 0;
        while let Some(outcome) = outcomes.next().await {
            self.check_interrupted()?;
            right += u64::from(outcome?.is_some());
        }
        drop(outcomes);
        reading.verified.files += right;
        Ok(())
    }
}
