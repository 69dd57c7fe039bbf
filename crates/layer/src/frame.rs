//! A frame: a run of pages compressed together, the unit of reading, checksum and (later) encryption.
//!
//! Packs, index parts and WAL objects are made of frames, so one decoder guards
//! all of them. The checksum covers the header and the stored payload; it is
//! checked before the payload is decompressed.

use std::fmt;
use std::str::FromStr;

use zstd::zstd_safe::{self, CCtx, CParameter, DCtx};

use crate::bytes::{Cursor, to_usize};
use crate::digest::checksum;
use crate::error::{Error, Result};

/// Bytes before a frame's payload.
pub const HEADER_BYTES: usize = 24;

/// No frame holds more than this, so a reader's buffers are bounded whatever it reads.
pub const MAX_RAW_BYTES: usize = 1 << 20;

/// Pages in the frames a backup writes (`docs/adr/0001-frame-size.md`).
pub const PAGES: usize = 16;

const MAGIC: [u8; 4] = *b"PGSF";
const CHECKED_HEADER_BYTES: usize = 16;
const CODEC_NONE: u8 = 0;
const CODEC_LZ4: u8 = 1;
const CODEC_ZSTD: u8 = 2;

/// How frames are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Stored as they are.
    None,
    /// One LZ4 block.
    Lz4,
    /// One Zstandard frame, compressed at this level.
    Zstd(i32),
}

impl Default for Codec {
    fn default() -> Self {
        Self::Zstd(1)
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

impl FromStr for Codec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let level = |digits: &str| {
            let level = digits.parse().ok()?;
            (1..=22).contains(&level).then_some(Self::Zstd(level))
        };
        let codec = match text.split_once(':') {
            None if text == "none" => Some(Self::None),
            None if text == "lz4" => Some(Self::Lz4),
            None if text == "zstd" => Some(Self::default()),
            Some(("zstd", digits)) => level(digits),
            _ => None,
        };
        codec.ok_or_else(|| {
            Error::invalid(format!(
                "invalid compression {text:?}: expected none, lz4, zstd or zstd:LEVEL with a level from 1 to 22"
            ))
        })
    }
}

/// What the encoder says of the frame it appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedFrame {
    /// Bytes of the frame with its header.
    pub length: u32,
    /// Its checksum, as in its header.
    pub checksum: u64,
}

/// Compresses frames; reuses its context and buffers from frame to frame.
pub struct FrameEncoder {
    codec: Codec,
    compressor: Option<CCtx<'static>>,
    /// What a payload is compressed into, as long as the longest yet may become. To make zeros of so much room behind every
    /// frame took a twentieth of the time of compressing it.
    compressed: Vec<u8>,
}

impl FrameEncoder {
    /// An encoder for one thread.
    ///
    /// # Errors
    /// When the compression library refuses the level, or has no memory for its context.
    pub fn new(codec: Codec) -> Result<Self> {
        let compressor = match codec {
            Codec::Zstd(level) => {
                let mut context =
                    CCtx::try_create().ok_or_else(|| Error::no_memory("to compress"))?;
                context
                    .set_parameter(CParameter::CompressionLevel(level))
                    .map_err(|code| {
                        let reason = zstd_safe::get_error_name(code);
                        Error::invalid(format!("could not set up compression {codec}: {reason}"))
                    })?;
                Some(context)
            }
            Codec::None | Codec::Lz4 => None,
        };
        Ok(Self {
            codec,
            compressor,
            compressed: Vec::new(),
        })
    }

    /// Appends a frame holding `raw` to `out`. What does not shrink is stored as it is.
    ///
    /// # Errors
    /// When `raw` is empty or longer than [`MAX_RAW_BYTES`], or there is no memory.
    pub fn encode(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<EncodedFrame> {
        let raw_length = u32::try_from(raw.len())
            .ok()
            .filter(|&length| length > 0 && to_usize(length) <= MAX_RAW_BYTES)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "a frame holds 1 to {MAX_RAW_BYTES} bytes, not {}",
                    raw.len()
                ))
            })?;
        let start = out.len();
        let payload_start = start + HEADER_BYTES;
        out.resize(payload_start, 0);
        let codec = self.append_payload(raw, out)?;
        let payload_length =
            u32::try_from(out.len() - payload_start).expect("no longer than the raw bytes");

        let (_, frame) = out.split_at_mut(start);
        let (header, payload) = frame.split_at_mut(HEADER_BYTES);
        header[0..4].copy_from_slice(&MAGIC);
        header[4] = codec;
        header[8..12].copy_from_slice(&raw_length.to_le_bytes());
        header[12..16].copy_from_slice(&payload_length.to_le_bytes());
        let checksum = checksum(&[&header[..CHECKED_HEADER_BYTES], payload]);
        header[16..24].copy_from_slice(&checksum.to_le_bytes());
        let length = u32::try_from(frame.len()).expect("at most 1 MiB and a header");
        Ok(EncodedFrame { length, checksum })
    }

    /// Appends the payload; returns the codec byte.
    fn append_payload(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<u8> {
        let bound = match self.codec {
            Codec::Zstd(_) => zstd_safe::compress_bound(raw.len()),
            Codec::Lz4 => lz4_flex::block::get_maximum_output_size(raw.len()),
            Codec::None => {
                out.extend_from_slice(raw);
                return Ok(CODEC_NONE);
            }
        };
        if self.compressed.len() < bound {
            self.compressed.resize(bound, 0);
        }
        let (codec, length) = match &mut self.compressor {
            Some(compressor) => {
                // Nothing else can fail with room for the worst case: the context grows with the first frame.
                let length = compressor
                    .compress2(self.compressed.as_mut_slice(), raw)
                    .map_err(|code| {
                        let reason = zstd_safe::get_error_name(code);
                        Error::no_memory(format!("to compress: {reason}"))
                    })?;
                (CODEC_ZSTD, length)
            }
            None => {
                let length = lz4_flex::block::compress_into(raw, &mut self.compressed)
                    .map_err(|e| Error::invalid(format!("could not compress a frame: {e}")))?;
                (CODEC_LZ4, length)
            }
        };
        if length < raw.len() {
            out.extend_from_slice(&self.compressed[..length]);
            return Ok(codec);
        }
        out.extend_from_slice(raw);
        Ok(CODEC_NONE)
    }
}

/// The fields of a frame's header, checked for sense but not yet for their checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    codec: u8,
    /// Bytes the frame holds, 1 to [`MAX_RAW_BYTES`].
    pub raw_length: u32,
    /// Bytes after the header.
    pub payload_length: u32,
    /// The checksum it should have.
    pub checksum: u64,
}

impl FrameHeader {
    /// Reads the header at the front of `stored`.
    ///
    /// # Errors
    /// When it is not a frame's header, or of a kind that this version does not know.
    pub fn parse(stored: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(stored);
        if cursor.array()? != MAGIC {
            return Err(Error::damaged("does not begin with a frame"));
        }
        let codec = cursor.byte()?;
        let cipher = cursor.byte()?;
        let reserved = cursor.half()?;
        let header = Self {
            codec,
            raw_length: cursor.word()?,
            payload_length: cursor.word()?,
            checksum: cursor.long()?,
        };
        if cipher != 0 {
            return Err(Error::unsupported(format!(
                "frame has cipher {cipher}, which this version does not know"
            )));
        }
        if codec > CODEC_ZSTD {
            return Err(Error::unsupported(format!(
                "frame has codec {codec}, which this version does not know"
            )));
        }
        let (raw, payload) = (header.raw_length, header.payload_length);
        let sizes = raw > 0
            && to_usize(raw) <= MAX_RAW_BYTES
            && payload > 0
            && if codec == CODEC_NONE {
                payload == raw
            } else {
                payload < raw
            };
        if reserved != 0 || !sizes {
            return Err(Error::damaged("frame header makes no sense"));
        }
        Ok(header)
    }

    /// Bytes of the frame with its header.
    #[must_use]
    pub fn length(&self) -> usize {
        HEADER_BYTES + to_usize(self.payload_length)
    }
}

/// Splits the frame at the front off `stored` and checks its checksum, without decompressing it.
///
/// # Errors
/// When there is no whole frame, or its checksum does not match.
pub fn split_checked(stored: &[u8]) -> Result<(FrameHeader, &[u8], &[u8])> {
    let header = FrameHeader::parse(stored)?;
    let (frame, rest) = stored
        .split_at_checked(header.length())
        .ok_or_else(|| Error::damaged("frame ends too early"))?;
    let found = checksum(&[&frame[..CHECKED_HEADER_BYTES], &frame[HEADER_BYTES..]]);
    if found != header.checksum {
        return Err(Error::damaged(format!(
            "frame has checksum {found:016x}, expected {:016x}",
            header.checksum
        )));
    }
    Ok((header, frame, rest))
}

/// Decodes frames; reuses its context from frame to frame.
pub struct FrameDecoder {
    decompressor: DCtx<'static>,
}

impl FrameDecoder {
    /// A decoder for one thread.
    ///
    /// # Errors
    /// When the compression library has no memory for its context.
    pub fn new() -> Result<Self> {
        let decompressor = DCtx::try_create().ok_or_else(|| Error::no_memory("to decompress"))?;
        Ok(Self { decompressor })
    }

    /// Decodes the frame that is all of `stored`, in place of what `out` holds. After an error it holds nothing.
    /// `expected_checksum` is what the index says the frame has.
    ///
    /// # Errors
    /// When `stored` is not exactly one frame, or not the expected one, or is damaged.
    pub fn decode(
        &mut self,
        stored: &[u8],
        expected_checksum: Option<u64>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let decoded = Self::split_expected(stored, expected_checksum)
            .and_then(|(header, payload)| self.decompress(&header, payload, out));
        if decoded.is_err() {
            out.clear();
        }
        decoded
    }

    /// Header and payload of the frame that is all of `stored`.
    fn split_expected(
        stored: &[u8],
        expected_checksum: Option<u64>,
    ) -> Result<(FrameHeader, &[u8])> {
        let (header, frame, rest) = split_checked(stored)?;
        if !rest.is_empty() {
            return Err(Error::damaged(format!(
                "frame is {} bytes long, expected {}",
                frame.len(),
                stored.len()
            )));
        }
        if let Some(expected) = expected_checksum.filter(|&expected| expected != header.checksum) {
            return Err(Error::damaged(format!(
                "frame has checksum {:016x}, expected {expected:016x}",
                header.checksum
            )));
        }
        Ok((header, &frame[HEADER_BYTES..]))
    }

    /// The bytes of a frame whose checksum was checked.
    fn decompress(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let damaged =
            |e: &dyn fmt::Display| Error::damaged(format!("frame cannot be decoded: {e}"));
        if header.codec == CODEC_NONE {
            out.clear();
            out.extend_from_slice(payload);
            return Ok(());
        }
        let raw_length = to_usize(header.raw_length);
        // What a frame before has left is written over, and not made zeros first.
        out.resize(raw_length, 0);
        let decoded = if header.codec == CODEC_LZ4 {
            lz4_flex::block::decompress_into(payload, out).map_err(|e| damaged(&e))
        } else {
            self.decompressor
                .decompress(out.as_mut_slice(), payload)
                .map_err(|code| damaged(&zstd_safe::get_error_name(code)))
        };
        match decoded? {
            length if length == raw_length => Ok(()),
            length => Err(Error::damaged(format!(
                "frame decodes to {length} bytes, expected {raw_length}"
            ))),
        }
    }
}
