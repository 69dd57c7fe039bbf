//! A pack: an object holding frames of many files, back to back.
//!
//! The index says where each frame lies; header and trailer are there so that a
//! pack can be checked, end to end, without the index.

use crate::bytes::to_u64;
use crate::digest::checksum;
use crate::error::{Error, Result};
use crate::frame::{FrameEncoder, split_checked};
use crate::object::{self, ObjectHeader};

/// Bytes before the first frame.
pub const HEADER_BYTES: usize = object::HEADER_BYTES;

/// Bytes after the last frame.
pub const TRAILER_BYTES: usize = object::TRAILER_BYTES;

/// A pack is cut before it grows beyond this: a writer holds it in memory.
pub const TARGET_BYTES: usize = 16 << 20;

/// What is longer is no pack, so that nobody reads it whole: far more than [`TARGET_BYTES`], for writers to come.
pub const MOST_BYTES: u64 = 1 << 30;

pub(crate) const MAGIC: [u8; 8] = *b"PGSTPACK";
const TRAILER_MAGIC: [u8; 8] = *b"PGSPEND1";

/// Where [`PackBuilder::append`] put a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedFrame {
    /// Offset of the frame's header within the pack.
    pub offset: u64,
    /// Bytes of the frame with its header.
    pub length: u32,
    /// The frame's checksum.
    pub checksum: u64,
}

/// A pack under construction, in memory.
pub struct PackBuilder {
    bytes: Vec<u8>,
    number: u32,
    frame_count: u32,
    checksums: Vec<u8>,
}

impl PackBuilder {
    /// Starts pack `number`; `capacity` bytes are set aside at once.
    #[must_use]
    pub fn new(layer_id: [u8; 16], number: u32, capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        ObjectHeader {
            magic: MAGIC,
            number,
            layer_id,
        }
        .append_to(&mut bytes);
        Self {
            bytes,
            number,
            frame_count: 0,
            checksums: Vec::new(),
        }
    }

    /// Compresses `raw` into a frame at the end of the pack.
    ///
    /// # Errors
    /// When `raw` is empty or longer than a frame may be.
    pub fn append(&mut self, encoder: &mut FrameEncoder, raw: &[u8]) -> Result<PlacedFrame> {
        let offset = to_u64(self.bytes.len());
        let frame = encoder.encode(raw, &mut self.bytes)?;
        self.frame_count += 1;
        self.checksums
            .extend_from_slice(&frame.checksum.to_le_bytes());
        Ok(PlacedFrame {
            offset,
            length: frame.length,
            checksum: frame.checksum,
        })
    }

    /// Puts a frame that is stored elsewhere at the end of the pack, as it is.
    ///
    /// # Errors
    /// When `stored` is not one whole frame with the checksum it should have.
    pub fn append_stored(&mut self, stored: &[u8]) -> Result<PlacedFrame> {
        let (header, frame, rest) = split_checked(stored)?;
        if !rest.is_empty() {
            return Err(Error::damaged("a frame is followed by other bytes"));
        }
        let offset = to_u64(self.bytes.len());
        self.bytes.extend_from_slice(frame);
        self.frame_count += 1;
        self.checksums
            .extend_from_slice(&header.checksum.to_le_bytes());
        Ok(PlacedFrame {
            offset,
            length: u32::try_from(frame.len()).expect("at most 1 MiB and a header"),
            checksum: header.checksum,
        })
    }

    /// The pack's number within its layer.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Bytes so far, the trailer included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() + TRAILER_BYTES
    }

    /// Whether it holds no frame yet. An empty pack is not worth storing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frame_count == 0
    }

    /// The object's bytes.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        let sum = checksum(&[&self.bytes[..HEADER_BYTES], &self.checksums]);
        object::append_trailer(&mut self.bytes, TRAILER_MAGIC, self.frame_count, sum);
        self.bytes
    }
}

/// What a whole, sound pack holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackSummary {
    /// Number of frames.
    pub frame_count: u32,
    /// Bytes of the pages in them.
    pub raw_bytes: u64,
    /// Bytes of the pack object.
    pub pack_bytes: u64,
}

/// Checks the first [`HEADER_BYTES`] of a pack.
///
/// # Errors
/// When they do not begin pack `number` of that layer.
pub fn check_pack_header(bytes: &[u8], layer_id: [u8; 16], number: u32) -> Result<()> {
    ObjectHeader {
        magic: MAGIC,
        number,
        layer_id,
    }
    .check(bytes, "pack")
}

/// Checks a whole pack: header, trailer, every frame's checksum. `on_frame` gets
/// the offset and the stored bytes of each frame and may decode it.
///
/// # Errors
/// When anything is damaged, or `on_frame` says so.
pub fn verify_pack(
    bytes: &[u8],
    layer_id: [u8; 16],
    number: u32,
    mut on_frame: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<PackSummary> {
    check_pack_header(bytes, layer_id, number)?;
    let trailer = object::split_trailer(bytes, TRAILER_MAGIC, "pack")?;
    let mut summary = PackSummary {
        pack_bytes: to_u64(bytes.len()),
        ..PackSummary::default()
    };
    let mut checksums = Vec::new();
    let mut rest = trailer.body;
    while !rest.is_empty() {
        let offset = to_u64(HEADER_BYTES + trailer.body.len() - rest.len());
        let within = |e: Error| e.within(format_args!("frame at {offset} of pack {number}"));
        let (header, frame, after) = split_checked(rest).map_err(within)?;
        on_frame(offset, frame).map_err(within)?;
        checksums.extend_from_slice(&header.checksum.to_le_bytes());
        summary.frame_count += 1;
        summary.raw_bytes += u64::from(header.raw_length);
        rest = after;
    }
    let header = &bytes[..HEADER_BYTES];
    trailer.check(summary.frame_count, checksum(&[header, &checksums]), "pack")?;
    Ok(summary)
}

/// The offset just after the last frame, for a pack of `pack_bytes`.
#[must_use]
pub fn frames_end(pack_bytes: u64) -> u64 {
    pack_bytes.saturating_sub(to_u64(TRAILER_BYTES))
}
