//! What an index says about one file of the cluster.
//!
//! Every layer, incremental ones too, lists every file and directory of the
//! cluster as it was when the backup ran, in byte order of the path. A block of
//! a file comes from this layer (a frame or a run of zeros) or, when its number
//! is below [`FileEntry::inherit_limit`], from the parent's state of the same
//! path. A block with neither is damage.

/// A run of consecutive blocks of one file: `[start, start + count)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockRun {
    /// First block, counted from the start of this file (not of the relation).
    pub start: u32,
    /// Number of blocks, at least 1.
    pub count: u32,
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
    /// Identity of the file at the source (inode and birth time hashed), 0 when
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
