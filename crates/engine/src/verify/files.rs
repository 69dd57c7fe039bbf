//! Plain files as a whole, against their digests.

use std::sync::Arc;

use futures::StreamExt;
use pgstrata_layer::digest::ContentHasher;
use pgstrata_layer::entry::{FileEntry, FrameRef};
use pgstrata_layer::frame::FrameDecoder;
use pgstrata_pgdata::relation::BLOCK_SIZE;
use pgstrata_store::catalog::hex;
use pgstrata_store::error::{Error, Kind, Result};

use super::Verifier;
use super::layer::LayerCheck;
use crate::frames::fetch_frame;

/// A file being put together from its frames, in order of block.
struct Whole {
    hasher: ContentHasher,
    decoder: FrameDecoder,
    raw: Vec<u8>,
    done_bytes: u64,
}

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
                let outcome = self.file(this, &entry).await;
                let key = match entry.frames.first() {
                    Some(frame) => self.cluster.name.pack_key(&this.layer.label, frame.pack),
                    None => self.cluster.name.manifest_key(&this.layer.label),
                };
                self.found(&this.layer.label, &key, outcome).await
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

    async fn file(&self, reading: &LayerCheck, entry: &Arc<FileEntry>) -> Result<()> {
        let mut whole = Whole {
            hasher: ContentHasher::new(),
            decoder: FrameDecoder::new()?,
            raw: Vec::new(),
            done_bytes: 0,
        };
        let doing = |error: Error| error.while_doing(format!("file \"{}\"", entry.path));
        for frame in &entry.frames {
            // What is wrong with the pack as such was said when it was read.
            let stored = fetch_frame(&self.cluster, &reading.layer, frame).await;
            let stored = stored.map_err(doing)?;
            whole.take(entry, frame, &stored).map_err(doing)?;
        }
        whole.finish(entry).map_err(doing)
    }
}

impl Whole {
    /// Adds the pages of `frame`, and the zeros before each of its runs.
    fn take(&mut self, entry: &FileEntry, frame: &FrameRef, stored: &[u8]) -> Result<()> {
        let mut raw = std::mem::take(&mut self.raw);
        self.decoder
            .decode(stored, Some(frame.checksum), &mut raw)?;
        let mut pages = raw.chunks(BLOCK_SIZE);
        for run in &frame.runs {
            let size = u64::try_from(BLOCK_SIZE).expect("8192");
            self.zeros_until(u64::from(run.start) * size);
            for block in 0..run.count {
                let expected = entry.bytes_of_block(run.start + block);
                let page = pages
                    .next()
                    .filter(|page| u64::try_from(page.len()).ok() == Some(expected))
                    .ok_or_else(|| {
                        let what = format!("the frame at {} has other pages", frame.offset);
                        Error::new(Kind::Damaged, what)
                    })?;
                self.hasher.update(page);
                self.done_bytes += expected;
            }
        }
        drop(pages);
        self.raw = raw;
        Ok(())
    }

    fn zeros_until(&mut self, end: u64) {
        let zeros = [0; BLOCK_SIZE];
        while self.done_bytes < end {
            let left = usize::try_from(end - self.done_bytes).unwrap_or(BLOCK_SIZE);
            let count = left.min(BLOCK_SIZE);
            self.hasher.update(&zeros[..count]);
            self.done_bytes += u64::try_from(count).expect("at most 8192");
        }
    }

    fn finish(mut self, entry: &FileEntry) -> Result<()> {
        self.zeros_until(entry.size_bytes);
        let found = self.hasher.finish();
        match entry.content_digest {
            Some(expected) if expected == found => Ok(()),
            Some(expected) => Err(Error::new(
                Kind::Damaged,
                format!("has digest {}, expected {}", hex(&found), hex(&expected)),
            )),
            None => Err(Error::new(Kind::Damaged, "has no digest")),
        }
    }
}
