//! What an index says about one file of the cluster.
//!
//! Every layer, incremental ones too, lists every file and directory of the
//! cluster as it was when the backup ran, in byte order of the path. A block of
//! a file comes from this layer (a frame or a run of zeros) or, when its number
//! is below [`FileEntry::inherit_limit`], from the parent's state of the same
//! path. A block with neither is damage.

use crate::bytes::{to_u64, to_usize};
use crate::error::{Error, Result};
use crate::frame;

/// Bytes of a block. Clusters with another block size are not supported by version 1.
pub const BLOCK_BYTES: u32 = 8192;

/// Longest path an index may hold; PostgreSQL's own limit is 1024.
pub const MAX_PATH_BYTES: usize = 4096;

/// A run of consecutive blocks of one file: `[start, start + count)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockRun {
    /// First block, counted from the start of this file (not of the relation).
    pub start: u32,
    /// Number of blocks, at least 1.
    pub count: u32,
}

impl BlockRun {
    /// The block after the last. Blocks are below 2^32, so this may be 2^32.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.count)
    }

    /// The run `[start, end)`, when it is not empty.
    #[must_use]
    pub fn between(start: u32, end: u32) -> Option<Self> {
        let count = end.checked_sub(start).filter(|&count| count > 0)?;
        Some(Self { start, count })
    }

    /// Adds `[start, start + count)` to runs that ascend, joining it with the last where they meet.
    pub fn append(runs: &mut Vec<Self>, run: Self) {
        match runs.last_mut() {
            Some(last) if last.end() == u64::from(run.start) => last.count += run.count,
            _ => runs.push(run),
        }
    }
}

/// Where a frame lies and which blocks its pages are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameRef {
    /// Number of the pack within the layer, from 0.
    pub pack: u32,
    /// Offset in bytes of the frame's header within the pack object.
    pub offset: u64,
    /// Length in bytes of the frame with its header.
    pub length: u32,
    /// The frame's checksum, as in its header.
    pub checksum: u64,
    /// The blocks whose pages the frame holds, ascending, concatenated.
    pub runs: Vec<BlockRun>,
}

/// Where the page digests of a file's stored pages lie in the digest part that
/// belongs to the index part holding the entry. One 8-byte digest per page, in
/// the order of the entry's frames and their runs; pages of zeros have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DigestRef {
    /// Offset in bytes within the digest part's payload.
    pub offset: u64,
    /// Number of digests; 0 for plain files.
    pub count: u32,
    /// XXH3-64 of the `8 * count` bytes.
    pub checksum: u64,
}

/// What kind of thing a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A directory. Size 0, no frames.
    Directory,
    /// A relation segment: pages with digests each.
    Relation,
    /// Any other file: one digest of the whole ([`FileEntry::content_digest`]).
    Plain,
}

/// From here on an identity is of an inode alone.
const INODES_ALONE: u64 = 0xFFFF_FFFF_0000_0000;

/// Identity of a file by its inode and, where the file system knows it, its birth in
/// nanoseconds since 1970-01-01 UTC: an inode is used again after a file is dropped,
/// its birth time is not. Never 0.
#[must_use]
pub fn file_identity(inode: u64, born_ns: Option<u128>) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&inode.to_le_bytes());
    if let Some(born_ns) = born_ns {
        hasher.update(&born_ns.to_le_bytes());
    }
    let hash = hasher.finalize();
    let first = hash.as_bytes().first_chunk().expect("a hash has 32 bytes");
    let hash = u64::from_le_bytes(*first);
    match born_ns {
        Some(_) if hash >= INODES_ALONE => hash - INODES_ALONE + 1,
        Some(_) => hash.max(1),
        None => hash | INODES_ALONE,
    }
}

/// Whether files with this identity are the same file. Otherwise only other
/// identities tell something: files that have them are others.
#[must_use]
pub fn proves_sameness(identity: u64) -> bool {
    (1..INODES_ALONE).contains(&identity)
}

/// One file or directory of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Relative to the data directory, `/` between components, no `.`, no `..`,
    /// not absolute. Tablespaces appear as `pg_tblspc/<oid>/...`.
    pub path: String,
    /// Directory, relation segment, or plain file.
    pub kind: EntryKind,
    /// Permission bits (`0o7777` mask).
    pub mode: u32,
    /// Modification time at the source, seconds since the Unix epoch.
    pub modified: i64,
    /// Exact size in bytes; the last block of a plain file may be partial.
    pub size_bytes: u64,
    /// Identity of the file at the source, as [`file_identity`] makes it, 0 when
    /// unknown. A file whose identity differs from the parent's was re-created.
    pub identity: u64,
    /// Blocks below this number that the layer does not hold come from the parent.
    pub inherit_limit: u32,
    /// BLAKE3 of the whole contents, for plain files.
    pub content_digest: Option<[u8; 32]>,
    /// Frames with pages of this file, in ascending order of their first block.
    pub frames: Vec<FrameRef>,
    /// Blocks that are all zeros, ascending.
    pub zero_runs: Vec<BlockRun>,
    /// Digests of the pages in `frames`.
    pub page_digests: DigestRef,
}

impl FrameRef {
    /// Number of pages in the frame.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.count)).sum()
    }

    /// The lowest block in the frame; 0 when it has no pages.
    #[must_use]
    pub fn first_block(&self) -> u32 {
        self.runs.first().map_or(0, |run| run.start)
    }
}

impl FileEntry {
    /// Blocks of the file, a partial last one included.
    #[must_use]
    pub fn block_count(&self) -> u64 {
        self.size_bytes.div_ceil(u64::from(BLOCK_BYTES))
    }

    /// Bytes the file has of a block: fewer than [`BLOCK_BYTES`] only in a partial last one.
    #[must_use]
    pub fn bytes_of_block(&self, block: u32) -> u64 {
        bytes_of_block(self.size_bytes, block)
    }

    /// Pages in the frames.
    #[must_use]
    pub fn pages_stored(&self) -> u64 {
        self.frames.iter().map(FrameRef::page_count).sum()
    }

    /// Refuses an entry that breaks a rule of the format. `docs/FORMAT.md`, section "Rules for entries".
    pub(crate) fn check(&self) -> Result<()> {
        check_path(&self.path)?;
        self.check_fields()
            .map_err(|e| e.within(format_args!("entry of {:?}", self.path)))
    }

    fn check_fields(&self) -> Result<()> {
        let blocks = self.block_count();
        if self.mode > 0o7777 {
            return Err(Error::invalid(format!(
                "mode {:o} has other than permission bits",
                self.mode
            )));
        }
        if blocks > u64::from(u32::MAX) {
            return Err(Error::invalid(format!(
                "size {} is too large",
                self.size_bytes
            )));
        }
        if u64::from(self.inherit_limit) > blocks {
            return Err(Error::invalid(format!(
                "inherits blocks below {} but has {blocks}",
                self.inherit_limit
            )));
        }
        let bare = self.size_bytes == 0 && self.frames.is_empty() && self.zero_runs.is_empty();
        if self.kind == EntryKind::Directory && !bare {
            return Err(Error::invalid("is a directory with contents"));
        }
        if (self.kind == EntryKind::Plain) != self.content_digest.is_some() {
            return Err(Error::invalid(
                "has a digest of the whole only if it is a plain file",
            ));
        }
        self.check_frames(blocks)?;
        self.check_zero_runs(blocks)
    }

    fn check_frames(&self, blocks: u64) -> Result<()> {
        let mut end = 0;
        for frame in &self.frames {
            let bad = |what: &str| {
                Error::invalid(format!(
                    "frame at {} of pack {} {what}",
                    frame.offset, frame.pack
                ))
            };
            let mut raw_bytes = 0;
            for run in &frame.runs {
                if run.count == 0 || u64::from(run.start) < end {
                    return Err(bad("has blocks that do not ascend"));
                }
                end = run.end();
                if end > blocks {
                    return Err(bad("has blocks beyond the end of the file"));
                }
                raw_bytes += end.saturating_mul(BLOCK_BYTES.into()).min(self.size_bytes)
                    - u64::from(run.start) * u64::from(BLOCK_BYTES);
            }
            let limit = to_u64(frame::HEADER_BYTES) + raw_bytes;
            if raw_bytes == 0 || raw_bytes > to_u64(frame::MAX_RAW_BYTES) {
                return Err(bad("has no blocks or too many"));
            }
            if to_usize(frame.length) <= frame::HEADER_BYTES || u64::from(frame.length) > limit {
                return Err(bad("has an impossible length"));
            }
            if frame.offset.checked_add(frame.length.into()).is_none() {
                return Err(bad("ends beyond any pack"));
            }
        }
        Ok(())
    }

    fn check_zero_runs(&self, blocks: u64) -> Result<()> {
        let mut stored = self.frames.iter().flat_map(|frame| &frame.runs).peekable();
        let mut end = 0;
        for zeros in &self.zero_runs {
            if zeros.count == 0 || u64::from(zeros.start) < end || zeros.end() > blocks {
                return Err(Error::invalid(
                    "has runs of zeros that do not ascend or do not fit",
                ));
            }
            end = zeros.end();
            while stored
                .next_if(|run| run.end() <= u64::from(zeros.start))
                .is_some()
            {}
            if stored.peek().is_some_and(|run| u64::from(run.start) < end) {
                return Err(Error::invalid("has a block that is both stored and zeros"));
            }
        }
        Ok(())
    }
}

/// Bytes that a file of `size_bytes` has of a block.
#[must_use]
pub fn bytes_of_block(size_bytes: u64, block: u32) -> u64 {
    let start = u64::from(block) * u64::from(BLOCK_BYTES);
    size_bytes.saturating_sub(start).min(BLOCK_BYTES.into())
}

/// Refuses a path that is not plainly relative: a restore joins it to its target directory.
///
/// # Errors
/// When it is empty, absolute, too long, or has an empty, `.` or `..` component or a NUL.
pub fn check_path(path: &str) -> Result<()> {
    let plain = |component: &str| !matches!(component, "" | "." | "..");
    let fits = path.len() <= MAX_PATH_BYTES && !path.contains('\0');
    if fits && path.split('/').all(plain) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "path {path:?} is not a plain relative path"
    )))
}
