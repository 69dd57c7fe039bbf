//! What packs, index parts and digest parts have in common: a header that says
//! whose they are, and a trailer that says they are whole.

use crate::bytes::{Cursor, to_hex};
use crate::error::{Error, Result};

/// Version of every binary object.
pub(crate) const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 32;
pub(crate) const TRAILER_BYTES: usize = 24;

/// The first 32 bytes of an object that belongs to a layer.
pub(crate) struct ObjectHeader {
    pub(crate) magic: [u8; 8],
    pub(crate) number: u32,
    pub(crate) layer_id: [u8; 16],
}

impl ObjectHeader {
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.magic);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.layer_id);
    }

    /// Refuses bytes that do not begin with exactly this header.
    pub(crate) fn check(&self, bytes: &[u8], what: &str) -> Result<()> {
        let number = self.number;
        let mut cursor = Cursor::new(bytes);
        let mut fields = || -> Result<([u8; 8], u32, u32, [u8; 16])> {
            Ok((
                cursor.array()?,
                cursor.word()?,
                cursor.word()?,
                cursor.array()?,
            ))
        };
        let (magic, version, found_number, layer_id) =
            fields().map_err(|e| e.within(format_args!("{what} {number}")))?;
        if magic != self.magic {
            return Err(Error::damaged(format!(
                "{what} {number} does not begin as a {what} does"
            )));
        }
        if version != VERSION {
            return Err(Error::unsupported(format!(
                "{what} {number} has version {version}, which this version does not know"
            )));
        }
        if found_number != number {
            return Err(Error::damaged(format!(
                "{what} {number} says it is number {found_number}"
            )));
        }
        if layer_id != self.layer_id {
            return Err(Error::damaged(format!(
                "{what} {number} belongs to layer {}, expected {}",
                to_hex(&layer_id),
                to_hex(&self.layer_id)
            )));
        }
        Ok(())
    }
}

pub(crate) fn append_trailer(out: &mut Vec<u8>, magic: [u8; 8], frame_count: u32, checksum: u64) {
    out.extend_from_slice(&magic);
    out.extend_from_slice(&frame_count.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&checksum.to_le_bytes());
}

/// A trailer, and what lies between it and the header.
pub(crate) struct Trailer<'a> {
    pub(crate) body: &'a [u8],
    frame_count: u32,
    checksum: u64,
}

impl Trailer<'_> {
    pub(crate) fn check(&self, frame_count: u32, checksum: u64, what: &str) -> Result<()> {
        if frame_count != self.frame_count {
            return Err(Error::damaged(format!(
                "{what} holds {frame_count} frames, its trailer says {}",
                self.frame_count
            )));
        }
        if checksum != self.checksum {
            return Err(Error::damaged(format!(
                "{what} has checksum {checksum:016x}, expected {:016x}",
                self.checksum
            )));
        }
        Ok(())
    }
}

/// Splits the last 24 bytes off `bytes`, whose header was checked.
pub(crate) fn split_trailer<'a>(
    bytes: &'a [u8],
    magic: [u8; 8],
    what: &str,
) -> Result<Trailer<'a>> {
    let short = || Error::damaged(format!("{what} ends too early"));
    let body = bytes.get(HEADER_BYTES..).ok_or_else(short)?;
    let at = body.len().checked_sub(TRAILER_BYTES).ok_or_else(short)?;
    let (body, trailer) = body.split_at(at);
    let mut cursor = Cursor::new(trailer);
    let found: [u8; 8] = cursor.array()?;
    let frame_count = cursor.word()?;
    let reserved = cursor.word()?;
    let checksum = cursor.long()?;
    if found != magic || reserved != 0 {
        return Err(Error::damaged(format!(
            "{what} does not end as a {what} does"
        )));
    }
    Ok(Trailer {
        body,
        frame_count,
        checksum,
    })
}
