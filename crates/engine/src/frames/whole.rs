//! A plain file, put together from its frames and compared with its digest.

use pgstrata_layer::digest::ContentHasher;
use pgstrata_layer::entry::{FileEntry, FrameRef};
use pgstrata_layer::frame::FrameDecoder;
use pgstrata_pgdata::relation::BLOCK_SIZE;
use pgstrata_store::catalog::{Layer, hex};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};

use super::fetch::fetch_frame;

/// Decodes the file of `entry`, which inherits nothing, and compares it with the digest in the entry.
///
/// # Errors
/// `Damaged` when it is another; when it cannot be read.
pub(crate) async fn check_plain_file(
    cluster: &ClusterRepository,
    layer: &Layer,
    entry: &FileEntry,
) -> Result<()> {
    let mut whole = Whole {
        hasher: ContentHasher::new(),
        decoder: FrameDecoder::new()?,
        raw: Vec::new(),
        done_bytes: 0,
    };
    let doing = |error: Error| error.while_doing(format!("file \"{}\"", entry.path));
    for frame in &entry.frames {
        let stored = fetch_frame(cluster, layer, frame).await;
        let stored = stored.map_err(doing)?;
        whole.take(entry, frame, &stored).map_err(doing)?;
    }
    whole.finish(entry).map_err(doing)
}

/// A file being put together from its frames, in order of block.
struct Whole {
    hasher: ContentHasher,
    decoder: FrameDecoder,
    raw: Vec<u8>,
    done_bytes: u64,
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
