//! The WAL object: one file of the WAL archive, framed and checksummed.
//!
//! Its header alone says what the file contains, so that a file pushed twice is
//! compared without fetching it.

use crate::bytes::{Cursor, to_hex, to_u64};
use crate::digest::{checksum, contents};
use crate::error::{Error, Result};
use crate::frame::{Codec, FrameDecoder, FrameEncoder, split_checked};
use crate::object::VERSION;

/// Bytes before the first frame.
pub const HEADER_BYTES: usize = 128;

/// Bytes after the last frame.
pub const TRAILER_BYTES: usize = 16;

/// Longest file name: that of a backup label.
pub const MAX_NAME_BYTES: usize = 48;

/// The largest WAL segment there is.
pub const MAX_RAW_BYTES: u64 = 1 << 30;

/// A WAL segment is cut into frames of this size.
const FRAME_RAW_BYTES: usize = 256 << 10;

const MAGIC: [u8; 8] = *b"PGSTWAL1";
const TRAILER_MAGIC: [u8; 8] = *b"PGSWEND1";
const CHECKED_HEADER_BYTES: usize = HEADER_BYTES - 8;

/// What the header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalHeader {
    /// The cluster the file belongs to.
    pub system_identifier: u64,
    /// The file's name in the archive.
    pub file_name: String,
    /// Length of the file in bytes.
    pub raw_length: u64,
    /// BLAKE3 of the file.
    pub raw_digest: [u8; 32],
    frame_count: u32,
}

/// The object for the archived file `file_name` with contents `raw`.
///
/// # Errors
/// When the name or the file is too long to be a file of the archive.
pub fn encode(
    file_name: &str,
    raw: &[u8],
    system_identifier: u64,
    codec: Codec,
) -> Result<Vec<u8>> {
    check_name(file_name)?;
    if to_u64(raw.len()) > MAX_RAW_BYTES {
        return Err(Error::invalid(format!(
            "file {file_name:?} is {} bytes long, more than any WAL segment",
            raw.len()
        )));
    }
    let frame_count =
        u32::try_from(raw.len().div_ceil(FRAME_RAW_BYTES)).expect("1 GiB has few frames");
    let mut out = Vec::with_capacity(HEADER_BYTES + raw.len() / 2);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&frame_count.to_le_bytes());
    out.extend_from_slice(&system_identifier.to_le_bytes());
    out.extend_from_slice(&to_u64(raw.len()).to_le_bytes());
    out.extend_from_slice(&contents(raw));
    out.extend_from_slice(file_name.as_bytes());
    out.resize(CHECKED_HEADER_BYTES, 0);
    let header_checksum = checksum(&[&out]);
    out.extend_from_slice(&header_checksum.to_le_bytes());

    let mut encoder = FrameEncoder::new(codec)?;
    let mut checksums = Vec::new();
    for piece in raw.chunks(FRAME_RAW_BYTES) {
        let frame = encoder.encode(piece, &mut out)?;
        checksums.extend_from_slice(&frame.checksum.to_le_bytes());
    }
    let sum = checksum(&[&out[..HEADER_BYTES], &checksums]);
    out.extend_from_slice(&TRAILER_MAGIC);
    out.extend_from_slice(&sum.to_le_bytes());
    Ok(out)
}

/// Reads the header at the front of an object.
///
/// # Errors
/// When it is damaged or of another version.
pub fn header(bytes: &[u8]) -> Result<WalHeader> {
    parse_header(bytes).map_err(|e| e.within("header of a WAL object"))
}

fn parse_header(bytes: &[u8]) -> Result<WalHeader> {
    let mut cursor = Cursor::new(bytes);
    if cursor.array()? != MAGIC {
        return Err(Error::damaged("does not begin as a WAL object does"));
    }
    let version = cursor.word()?;
    if version != VERSION {
        return Err(Error::unsupported(format!(
            "has version {version}, which this version does not know"
        )));
    }
    let frame_count = cursor.word()?;
    let system_identifier = cursor.long()?;
    let raw_length = cursor.long()?;
    let raw_digest = cursor.array()?;
    let name: [u8; MAX_NAME_BYTES] = cursor.array()?;
    let reserved = cursor.long()?;
    let expected = cursor.long()?;
    let found = checksum(&[&bytes[..CHECKED_HEADER_BYTES]]);
    if found != expected {
        return Err(Error::damaged(format!(
            "has checksum {found:016x}, expected {expected:016x}"
        )));
    }
    let name_length = name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(MAX_NAME_BYTES);
    let (name, padding) = name.split_at(name_length);
    let file_name = String::from_utf8_lossy(name).into_owned();
    check_name(&file_name).map_err(Error::into_damage)?;
    let padded = padding.iter().all(|&byte| byte == 0);
    if !padded || reserved != 0 || raw_length > MAX_RAW_BYTES {
        return Err(Error::damaged("makes no sense"));
    }
    Ok(WalHeader {
        system_identifier,
        file_name,
        raw_length,
        raw_digest,
        frame_count,
    })
}

/// The archived file, checked in every way the object allows.
///
/// # Errors
/// When it is damaged, of another version, or the object of another file.
pub fn decode(file_name: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let within = |e: Error| e.within(format_args!("WAL object {file_name:?}"));
    let header = header(bytes).map_err(within)?;
    if header.file_name != file_name {
        return Err(within(Error::damaged(format!(
            "holds the file {:?}",
            header.file_name
        ))));
    }
    decode_body(&header, bytes).map_err(within)
}

fn decode_body(header: &WalHeader, bytes: &[u8]) -> Result<Vec<u8>> {
    let (head, body) = bytes.split_at(HEADER_BYTES);
    let trailer_at = body
        .len()
        .checked_sub(TRAILER_BYTES)
        .ok_or_else(|| Error::damaged("ends too early"))?;
    let (body, trailer) = body.split_at(trailer_at);
    let mut decoder = FrameDecoder::new()?;
    let (mut raw, mut piece, mut checksums) = (Vec::new(), Vec::new(), Vec::new());
    let mut frame_count = 0;
    let mut rest = body;
    while !rest.is_empty() {
        let (frame, stored, after) = split_checked(rest)?;
        if to_u64(raw.len()) + u64::from(frame.raw_length) > header.raw_length {
            return Err(Error::damaged("holds more than its header says"));
        }
        decoder.decode(stored, None, &mut piece)?;
        raw.extend_from_slice(&piece);
        checksums.extend_from_slice(&frame.checksum.to_le_bytes());
        frame_count += 1;
        rest = after;
    }
    let mut cursor = Cursor::new(trailer);
    let magic: [u8; 8] = cursor.array()?;
    let expected = cursor.long()?;
    let found = checksum(&[head, &checksums]);
    if magic != TRAILER_MAGIC || found != expected || frame_count != header.frame_count {
        return Err(Error::damaged(format!(
            "holds {frame_count} frames with checksum {found:016x}, expected {} with {expected:016x}",
            header.frame_count
        )));
    }
    let digest = contents(&raw);
    if to_u64(raw.len()) != header.raw_length || digest != header.raw_digest {
        return Err(Error::damaged(format!(
            "decodes to {} bytes with digest {}, expected {} with {}",
            raw.len(),
            to_hex(&digest),
            header.raw_length,
            to_hex(&header.raw_digest)
        )));
    }
    Ok(raw)
}

/// Names of archive files are letters, digits and dots.
fn check_name(file_name: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.';
    if (1..=MAX_NAME_BYTES).contains(&file_name.len()) && file_name.bytes().all(fits) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{file_name:?} is not the name of a file of the WAL archive"
    )))
}
