//! The parent's state, file by file in order of path: what is in its chain's indexes, and page digests.

use std::collections::BTreeMap;
use std::iter::Peekable;

use pgstrata_layer::block_set::BlockSet;
use pgstrata_layer::entry::FileEntry;
use pgstrata_layer::overlay::PathMerge;
use pgstrata_pgdata::relation::BLOCKS_PER_SEGMENT;
use pgstrata_store::catalog::{ChainDigests, ChainEntries};
use pgstrata_store::error::{Error, Kind, Result};

use super::job::ParentDigests;
use crate::frames::{Chain, Entries};

/// A chain as seen from its newest layer. For a thread outside of the runtime.
pub(crate) struct Parent {
    merge: Peekable<PathMerge<ChainEntries>>,
    digests: ChainDigests,
    /// Blocks that were corrupt in any layer of the chain, by path: layers of earlier versions do not list what they inherit.
    corrupt: BTreeMap<String, BlockSet>,
}

impl Parent {
    pub(crate) fn new(chain: &Chain) -> Self {
        let mut corrupt: BTreeMap<String, BlockSet> = BTreeMap::new();
        let layers = chain.layers.iter();
        for page in layers.flat_map(|layer| &layer.manifest.corrupt_pages) {
            let blocks = corrupt.entry(page.path.clone()).or_default();
            // A manifest is a stranger's: no file has such a block.
            if page.block < BLOCKS_PER_SEGMENT {
                blocks.insert(page.block);
            }
        }
        Self {
            merge: PathMerge::new(chain.entries()).peekable(),
            digests: chain.digests(),
            corrupt,
        }
    }

    /// Blocks of `path` that were corrupt; they are read again, to be listed again or stored as they were repaired.
    pub(crate) fn corrupt(&self, path: &str) -> Option<&BlockSet> {
        self.corrupt.get(path)
    }

    /// The parent's entries of `path`. Paths must be asked for in byte order.
    pub(crate) fn find(&mut self, path: &str) -> Result<Option<Entries>> {
        loop {
            let order = match self.merge.peek() {
                None => return Ok(None),
                Some(Err(_)) => std::cmp::Ordering::Less,
                Some(Ok(entries)) => newest(entries)?.path.as_str().cmp(path),
            };
            match order {
                std::cmp::Ordering::Less => drop(self.merge.next().transpose()?),
                std::cmp::Ordering::Equal => return self.merge.next().transpose(),
                std::cmp::Ordering::Greater => return Ok(None),
            }
        }
    }

    /// See [`ChainDigests::digests`].
    pub(crate) fn digests(&mut self, entries: &Entries, limit: u32) -> Result<ParentDigests> {
        Ok(self.digests.digests(entries, limit)?.into())
    }
}

fn newest(entries: &Entries) -> Result<&FileEntry> {
    let newest = entries.first().and_then(Option::as_ref);
    newest.ok_or_else(|| {
        Error::new(
            Kind::Damaged,
            "the newest layer of a chain has no entry for its own path",
        )
    })
}
