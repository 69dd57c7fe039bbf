//! The parent's state, file by file in order of path: what is in its chain's indexes, and page digests.

use std::iter::Peekable;
use std::sync::Arc;

use pgstrata_layer::entry::FileEntry;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::overlay::Merge;
use tokio::runtime::Handle;

use super::job::ParentDigests;
use crate::catalog::{ChainDigests, ChainEntries, Layer};
use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// Entries of one path in each layer of the chain, newest first.
pub(super) type Entries = Vec<Option<FileEntry>>;

/// A chain as seen from its newest layer. For a thread outside of the runtime.
pub(super) struct Parent {
    merge: Peekable<Merge<ChainEntries>>,
    digests: ChainDigests,
}

impl Parent {
    pub(super) fn new(
        repository: &Repository,
        cluster: &ClusterName,
        chain: Vec<Arc<Layer>>,
        runtime: &Handle,
    ) -> Self {
        let entries = ChainEntries::new(repository, cluster, &chain, runtime);
        Self {
            merge: Merge::new(entries).peekable(),
            digests: ChainDigests::new(repository, cluster, chain, runtime),
        }
    }

    /// The parent's entries of `path`. Paths must be asked for in byte order.
    pub(super) fn find(&mut self, path: &str) -> Result<Option<Entries>> {
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
    pub(super) fn digests(&mut self, entries: &Entries, limit: u32) -> Result<ParentDigests> {
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
