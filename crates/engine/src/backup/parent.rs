//! The parent's state, file by file in order of path: what is in its chain's indexes, and page digests.

use std::iter::Peekable;
use std::sync::Arc;

use pgstrata_layer::entry::{BLOCK_BYTES, BlockRun, FileEntry};
use pgstrata_layer::frame::FrameDecoder;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::overlay::{Merge, chain_of, plan_file};
use tokio::runtime::Handle;

use super::job::ParentDigests;
use crate::catalog::{ChainDigests, ChainEntries, Layer, missing_is_damage};
use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// Entries of one path in each layer of the chain, newest first.
pub(super) type Entries = Vec<Option<FileEntry>>;

/// A chain as seen from its newest layer. For a thread outside of the runtime.
pub(super) struct Parent {
    repository: Repository,
    cluster: ClusterName,
    runtime: Handle,
    chain: Vec<Arc<Layer>>,
    merge: Peekable<Merge<ChainEntries>>,
    digests: ChainDigests,
}

impl Parent {
    /// `from`: the first path that will be asked for, or one before it.
    pub(super) fn new(
        from: &str,
        repository: &Repository,
        cluster: &ClusterName,
        chain: Vec<Arc<Layer>>,
        runtime: &Handle,
    ) -> Self {
        let entries = ChainEntries::starting_at(from, repository, cluster, &chain, runtime);
        Self {
            repository: repository.clone(),
            cluster: cluster.clone(),
            runtime: runtime.clone(),
            merge: Merge::new(entries).peekable(),
            digests: ChainDigests::new(repository, cluster, chain.clone(), runtime),
            chain,
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

    /// The page at `block`, as the parent has it.
    pub(super) fn page(&mut self, entries: &Entries, block: u32) -> Result<Vec<u8>> {
        let plan = plan_file(&chain_of(entries))?;
        let holds = |run: &BlockRun| run.start <= block && u64::from(block) < run.end();
        if plan.zero_runs.iter().any(holds) {
            return Ok(vec![0; usize::try_from(BLOCK_BYTES).expect("8192 fits")]);
        }
        let found = plan.pieces.iter().find_map(|piece| {
            let take = piece.take.iter().find(|take| holds(&take.run))?;
            Some((piece, take.frame_page + (block - take.run.start)))
        });
        let missing = || {
            let what = format!("block {block} of \"{}\" is in no frame", plan.path);
            Error::new(Kind::Damaged, what)
        };
        let (piece, page) = found.ok_or_else(missing)?;
        let layer = self.chain.get(piece.layer).ok_or_else(missing)?;
        let key = self.cluster.pack_key(&layer.label, piece.frame.pack);
        let offset = piece.frame.offset;
        let range = offset..offset + u64::from(piece.frame.length);
        let stored = self
            .runtime
            .block_on(self.repository.get_range(&key, range))
            .map_err(missing_is_damage)?;
        let mut raw = Vec::new();
        FrameDecoder::new()?.decode(&stored, Some(piece.frame.checksum), &mut raw)?;
        let size = usize::try_from(BLOCK_BYTES).expect("8192 fits");
        let start = usize::try_from(page).expect("usize has 64 bits") * size;
        raw.get(start..start + size)
            .map(<[u8]>::to_vec)
            .ok_or_else(missing)
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
