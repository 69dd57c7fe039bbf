//! Entries in order of path into index parts in the repository, each stored while the next is made.

use bytes::Bytes;
use pgstrata_layer::entry::FileEntry;
use pgstrata_layer::index::{FinishedPart, IndexWriter};
use pgstrata_layer::manifest::IndexPartRef;
use tokio::task::JoinHandle;

use super::packer::Destination;
use crate::error::Result;

/// Whose index it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The layer's.
    Layer,
    /// That of a share, by number and attempt, out of which the layer's will be made.
    Share((u32, u32)),
}

/// An index that is being stored.
pub(super) struct IndexStore {
    writer: IndexWriter,
    parts: Parts,
}

struct Parts {
    destination: Destination,
    place: Place,
    storing: Vec<JoinHandle<Result<()>>>,
    stored: Vec<IndexPartRef>,
}

impl IndexStore {
    pub(super) fn new(destination: Destination, place: Place) -> Result<Self> {
        Ok(Self {
            writer: IndexWriter::new(destination.layer_id)?,
            parts: Parts {
                destination,
                place,
                storing: Vec::new(),
                stored: Vec::new(),
            },
        })
    }

    /// Adds the next entry with the digests of its stored pages.
    pub(super) fn push(&mut self, entry: FileEntry, digests: &[u64]) -> Result<()> {
        match self.writer.push(entry, digests)? {
            Some(part) => self.parts.store(part),
            None => Ok(()),
        }
    }

    /// All parts, when all are durable.
    pub(super) fn finish(mut self) -> Result<Vec<IndexPartRef>> {
        if let Some(part) = self.writer.finish()? {
            self.parts.store(part)?;
        }
        self.parts.wait()?;
        Ok(self.parts.stored)
    }
}

impl Parts {
    /// Begins to store a part; waits for the one before.
    fn store(&mut self, part: FinishedPart) -> Result<()> {
        self.wait()?;
        let (cluster, label) = (&self.destination.cluster, &self.destination.label);
        let (index, digest) = match self.place {
            Place::Layer => (
                cluster.index_key(label, part.number),
                cluster.digest_key(label, part.number),
            ),
            Place::Share(share) => (
                cluster.share_index_key(label, share, part.number),
                cluster.share_digest_key(label, share, part.number),
            ),
        };
        for (key, body) in [(index, part.index), (digest, part.digest)] {
            self.storing
                .push(self.destination.store(key, Bytes::from(body)));
        }
        self.stored.push(part.reference);
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        for storing in self.storing.drain(..) {
            self.destination.finish(storing)?;
        }
        Ok(())
    }
}
