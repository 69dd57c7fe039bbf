//! The WAL object: one file of the WAL archive, framed and checksummed.
//!
//! Its header alone says what the file contains, so that a file pushed twice is
//! compared without fetching it.

use crate::bytes::{Cursor, to_hex, to_u64};
use crate::digest::{ContentHasher, checksum, contents};
use crate::error::{Error, Result};
use crate::frame::{
    Codec, FrameDecoder, FrameEncoder, FrameHeader, HEADER_BYTES as FRAME_HEADER_BYTES,
    split_checked,
};
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

/// The least that the object of a file of that length has, whatever compresses it.
#[must_use]
pub fn least_bytes(raw_length: u64) -> u64 {
    let frames = raw_length.div_ceil(to_u64(FRAME_RAW_BYTES));
    to_u64(HEADER_BYTES) + to_u64(TRAILER_BYTES) + frames * to_u64(FRAME_HEADER_BYTES)
}

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
    let description = WalDescription {
        file_name: file_name.to_owned(),
        system_identifier,
        raw_length: to_u64(raw.len()),
        raw_digest: contents(raw),
    };
    let mut writer = WalWriter::new(&description, codec)?;
    writer.append(raw)?;
    writer.finish()
}

/// What is known of an archived file before it is encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalDescription {
    /// The file's name in the archive.
    pub file_name: String,
    /// The cluster the file belongs to.
    pub system_identifier: u64,
    /// Length of the file in bytes.
    pub raw_length: u64,
    /// BLAKE3 of the file.
    pub raw_digest: [u8; 32],
}

/// Encodes a file that comes in pieces; holds the object, or of it what was not taken yet, never the whole file.
pub struct WalWriter {
    encoder: FrameEncoder,
    description: WalDescription,
    /// What does not fill a frame yet.
    piece: Vec<u8>,
    checksums: Vec<u8>,
    raw_left: u64,
    out: Vec<u8>,
}

impl WalWriter {
    /// Begins the object of the file that `description` describes.
    ///
    /// # Errors
    /// When the name or the file is too long to be a file of the archive.
    pub fn new(description: &WalDescription, codec: Codec) -> Result<Self> {
        let out = header_of(description)?;
        Ok(Self {
            encoder: FrameEncoder::new(codec)?,
            description: description.clone(),
            piece: Vec::new(),
            checksums: Vec::new(),
            raw_left: description.raw_length,
            out,
        })
    }

    /// Appends the next bytes of the file.
    ///
    /// # Errors
    /// When they are more than the file was said to have.
    pub fn append(&mut self, mut raw: &[u8]) -> Result<()> {
        self.raw_left = self
            .raw_left
            .checked_sub(to_u64(raw.len()))
            .ok_or_else(|| Error::invalid("file grew while it was encoded"))?;
        if !self.piece.is_empty() {
            let taken = raw.len().min(FRAME_RAW_BYTES - self.piece.len());
            self.piece.extend_from_slice(&raw[..taken]);
            raw = &raw[taken..];
            if self.piece.len() == FRAME_RAW_BYTES {
                let piece = std::mem::take(&mut self.piece);
                self.frame(&piece)?;
            }
        }
        let whole = raw.chunks_exact(FRAME_RAW_BYTES);
        self.piece.extend_from_slice(whole.remainder());
        for piece in whole {
            self.frame(piece)?;
        }
        Ok(())
    }

    fn frame(&mut self, piece: &[u8]) -> Result<()> {
        let frame = self.encoder.encode(piece, &mut self.out)?;
        self.checksums
            .extend_from_slice(&frame.checksum.to_le_bytes());
        Ok(())
    }

    /// The bytes of the object that are known by now, after those that were taken before.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// As [`Self::finish`], of a file whose digest was not known before it was read, and of whose object nothing was taken.
    ///
    /// # Errors
    /// As for [`Self::finish`]; when something was taken.
    pub fn finish_as(mut self, raw_digest: [u8; 32]) -> Result<Vec<u8>> {
        if !self.out.starts_with(&header_of(&self.description)?) {
            return Err(Error::invalid("the object's header was taken already"));
        }
        self.description.raw_digest = raw_digest;
        self.out[..HEADER_BYTES].copy_from_slice(&header_of(&self.description)?);
        self.finish()
    }

    /// The object, without what was taken.
    ///
    /// # Errors
    /// When less came than the file was said to have.
    pub fn finish(mut self) -> Result<Vec<u8>> {
        if self.raw_left > 0 {
            return Err(Error::invalid("file shrank while it was encoded"));
        }
        if !self.piece.is_empty() {
            let piece = std::mem::take(&mut self.piece);
            self.frame(&piece)?;
        }
        let header = header_of(&self.description)?;
        let sum = checksum(&[&header, &self.checksums]);
        self.out.extend_from_slice(&TRAILER_MAGIC);
        self.out.extend_from_slice(&sum.to_le_bytes());
        Ok(self.out)
    }
}

/// The header of the object of such a file.
fn header_of(description: &WalDescription) -> Result<Vec<u8>> {
    let (name, raw_length) = (&description.file_name, description.raw_length);
    check_name(name)?;
    if raw_length > MAX_RAW_BYTES {
        return Err(Error::invalid(format!(
            "file {name:?} is {raw_length} bytes long, more than any WAL segment"
        )));
    }
    let raw_bytes = usize::try_from(raw_length).expect("1 GiB fits");
    let frame_count =
        u32::try_from(raw_bytes.div_ceil(FRAME_RAW_BYTES)).expect("1 GiB has few frames");
    let mut out = Vec::with_capacity(HEADER_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&frame_count.to_le_bytes());
    out.extend_from_slice(&description.system_identifier.to_le_bytes());
    out.extend_from_slice(&raw_length.to_le_bytes());
    out.extend_from_slice(&description.raw_digest);
    out.extend_from_slice(name.as_bytes());
    out.resize(CHECKED_HEADER_BYTES, 0);
    let header_checksum = checksum(&[&out]);
    out.extend_from_slice(&header_checksum.to_le_bytes());
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
    let mut raw = Vec::new();
    let mut reader = WalReader::new(file_name);
    reader.feed(bytes, |piece| raw.extend_from_slice(piece))?;
    reader.finish()?;
    Ok(raw)
}

/// Decodes an object that comes in pieces; holds a frame, never the whole file.
///
/// What it hands out is checked frame by frame; that it is the whole file, and
/// the right one, is known only when [`WalReader::finish`] succeeds.
pub struct WalReader {
    file_name: String,
    state: ReaderState,
    /// Bytes that came and are not a whole header or frame yet.
    pending: Vec<u8>,
}

#[derive(Default)]
struct ReaderState {
    header: Option<WalHeader>,
    header_bytes: Vec<u8>,
    decoder: Option<FrameDecoder>,
    piece: Vec<u8>,
    checksums: Vec<u8>,
    hasher: ContentHasher,
    frame_count: u32,
    raw_length: u64,
}

impl WalReader {
    /// A reader of the object of the file `file_name`.
    #[must_use]
    pub fn new(file_name: &str) -> Self {
        Self {
            file_name: file_name.to_owned(),
            state: ReaderState::default(),
            pending: Vec::new(),
        }
    }

    /// The header, once enough came to know it.
    #[must_use]
    pub fn header(&self) -> Option<&WalHeader> {
        self.state.header.as_ref()
    }

    /// Takes the next bytes of the object, and hands out the bytes of the file they complete.
    ///
    /// # Errors
    /// When the object is damaged, of another version, or that of another file.
    pub fn feed(&mut self, bytes: &[u8], sink: impl FnMut(&[u8])) -> Result<()> {
        let fed = if self.pending.is_empty() {
            let read = self.state.read(&self.file_name, bytes, sink);
            read.map(|rest| self.pending.extend_from_slice(rest))
        } else {
            let mut pending = std::mem::take(&mut self.pending);
            pending.extend_from_slice(bytes);
            let read = self.state.read(&self.file_name, &pending, sink);
            read.map(|rest| self.pending = rest.to_vec())
        };
        fed.map_err(|e| self.within(e))
    }

    /// Checks that the object ended where it should, and that the file is the one described.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn finish(self) -> Result<WalHeader> {
        match self.state.finish(&self.pending) {
            Ok(header) => Ok(header),
            Err(e) => Err(e.within(format_args!("WAL object {:?}", self.file_name))),
        }
    }

    fn within(&self, error: Error) -> Error {
        error.within(format_args!("WAL object {:?}", self.file_name))
    }
}

impl ReaderState {
    /// Reads the header and whole frames off `bytes`; answers what is left.
    fn read<'a>(
        &mut self,
        file_name: &str,
        bytes: &'a [u8],
        mut sink: impl FnMut(&[u8]),
    ) -> Result<&'a [u8]> {
        let mut rest = bytes;
        if self.header.is_none() {
            let Some((head, after)) = rest.split_at_checked(HEADER_BYTES) else {
                return Ok(rest);
            };
            let header = header(head)?;
            if header.file_name != file_name {
                let held = header.file_name;
                return Err(Error::damaged(format!("holds the file {held:?}")));
            }
            self.header_bytes = head.to_vec();
            self.header = Some(header);
            rest = after;
        }
        let header = self.header.as_ref().expect("it was just read");
        while self.frame_count < header.frame_count && rest.len() >= FRAME_HEADER_BYTES {
            if rest.len() < FrameHeader::parse(rest)?.length() {
                break;
            }
            let (frame, stored, after) = split_checked(rest)?;
            self.raw_length += u64::from(frame.raw_length);
            if self.raw_length > header.raw_length {
                return Err(Error::damaged("holds more than its header says"));
            }
            let decoder = match &mut self.decoder {
                Some(decoder) => decoder,
                none => none.insert(FrameDecoder::new()?),
            };
            decoder.decode(stored, None, &mut self.piece)?;
            self.hasher.update(&self.piece);
            self.checksums
                .extend_from_slice(&frame.checksum.to_le_bytes());
            self.frame_count += 1;
            sink(&self.piece);
            rest = after;
        }
        Ok(rest)
    }

    fn finish(self, trailer: &[u8]) -> Result<WalHeader> {
        let header = self
            .header
            .ok_or_else(|| Error::damaged("ends too early"))?;
        if self.frame_count < header.frame_count || trailer.len() < TRAILER_BYTES {
            return Err(Error::damaged("ends too early"));
        }
        let mut cursor = Cursor::new(trailer);
        let magic: [u8; 8] = cursor.array()?;
        let expected = cursor.long()?;
        let found = checksum(&[&self.header_bytes, &self.checksums]);
        if magic != TRAILER_MAGIC || found != expected || trailer.len() != TRAILER_BYTES {
            return Err(Error::damaged(format!(
                "ends with checksum {found:016x}, expected {expected:016x} and no more"
            )));
        }
        let digest = self.hasher.finish();
        if self.raw_length != header.raw_length || digest != header.raw_digest {
            return Err(Error::damaged(format!(
                "decodes to {} bytes with digest {}, expected {} with {}",
                self.raw_length,
                to_hex(&digest),
                header.raw_length,
                to_hex(&header.raw_digest)
            )));
        }
        Ok(header)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "000000010000000000000001";

    fn raw(length: usize) -> Vec<u8> {
        (0..length)
            .map(|n| u8::try_from((n * n / 64) % 251).unwrap())
            .collect()
    }

    #[test]
    fn pieces_of_any_size_make_the_same_object_and_file() {
        for length in [0, 1, FRAME_RAW_BYTES, 3 * FRAME_RAW_BYTES + 17] {
            let raw = raw(length);
            let whole = encode(NAME, &raw, 42, Codec::default()).unwrap();
            assert_eq!(decode(NAME, &whole).unwrap(), raw);
            for step in [1000, FRAME_RAW_BYTES - 1, FRAME_RAW_BYTES + 1] {
                let description = WalDescription {
                    file_name: NAME.to_owned(),
                    system_identifier: 42,
                    raw_length: to_u64(length),
                    raw_digest: contents(&raw),
                };
                let mut writer = WalWriter::new(&description, Codec::default()).unwrap();
                for piece in raw.chunks(step) {
                    writer.append(piece).unwrap();
                }
                assert_eq!(writer.finish().unwrap(), whole, "{length} bytes by {step}");
                let mut reader = WalReader::new(NAME);
                let mut read = Vec::new();
                for piece in whole.chunks(step) {
                    let sink = |piece: &[u8]| read.extend_from_slice(piece);
                    reader.feed(piece, sink).unwrap();
                }
                assert_eq!(reader.finish().unwrap().system_identifier, 42);
                assert_eq!(read, raw, "{length} bytes by {step}");
            }
        }
    }

    #[test]
    fn a_digest_that_is_known_late_makes_the_same_object() {
        let raw = raw(2 * FRAME_RAW_BYTES + 5);
        let unread = WalDescription {
            file_name: NAME.to_owned(),
            system_identifier: 42,
            raw_length: to_u64(raw.len()),
            raw_digest: [0; 32],
        };
        let mut writer = WalWriter::new(&unread, Codec::default()).unwrap();
        writer.append(&raw).unwrap();
        let late = writer.finish_as(contents(&raw)).unwrap();
        assert_eq!(late, encode(NAME, &raw, 42, Codec::default()).unwrap());
        let mut writer = WalWriter::new(&unread, Codec::default()).unwrap();
        writer.take();
        writer.append(&raw).unwrap();
        assert!(writer.finish_as(contents(&raw)).is_err());
    }

    #[test]
    fn a_file_that_changes_its_length_is_not_encoded() {
        let description = WalDescription {
            file_name: NAME.to_owned(),
            system_identifier: 42,
            raw_length: 10,
            raw_digest: contents(&raw(10)),
        };
        let mut writer = WalWriter::new(&description, Codec::None).unwrap();
        assert!(writer.append(&raw(11)).is_err());
        let mut writer = WalWriter::new(&description, Codec::None).unwrap();
        writer.append(&raw(9)).unwrap();
        assert!(writer.finish().is_err());
    }

    #[test]
    fn every_flip_and_every_truncation_is_damage() {
        let object = encode(NAME, &raw(600), 42, Codec::default()).unwrap();
        for at in 0..object.len() {
            let mut flipped = object.clone();
            flipped[at] ^= 1;
            assert!(decode(NAME, &flipped).is_err(), "flip at {at}");
            assert!(decode(NAME, &object[..at]).is_err(), "cut at {at}");
        }
        let mut longer = object;
        longer.push(0);
        assert!(decode(NAME, &longer).is_err());
    }
}
