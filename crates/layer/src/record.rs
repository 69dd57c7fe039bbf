//! Text objects: one line that says what follows and its digest, then JSON.
//!
//! `pgstrata <kind> 1 <length> <BLAKE3>` and a newline, then exactly `length` bytes.
//! People can read them; a flip of any bit is found before JSON is parsed.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::digest::contents_hex;
use crate::error::{Error, Result};

/// The version that most records have.
pub(crate) const VERSION: u32 = 1;

/// Longest first line a reader looks at.
const MAX_LINE_BYTES: usize = 200;

/// The object's bytes.
pub(crate) fn encode(kind: &str, value: &impl Serialize) -> Vec<u8> {
    encode_version(kind, VERSION, value)
}

/// The object's bytes, in a version of its kind.
pub(crate) fn encode_version(kind: &str, version: u32, value: &impl Serialize) -> Vec<u8> {
    let mut body = serde_json::to_vec_pretty(value).expect("records hold only what JSON can hold");
    body.push(b'\n');
    let mut object = first_line(kind, version, &body).into_bytes();
    object.append(&mut body);
    object
}

/// Reads an object of this kind.
pub(crate) fn decode<T: DeserializeOwned>(kind: &str, bytes: &[u8]) -> Result<T> {
    decode_versions(kind, VERSION, bytes).map(|(_, value)| value)
}

/// Whether an object says that it is of this kind, in whatever version.
pub(crate) fn is_of(kind: &str, bytes: &[u8]) -> bool {
    let begin = format!("pgstrata {kind} ");
    bytes.starts_with(begin.as_bytes())
}

/// Reads an object of this kind, whose contents must pass `check`.
pub(crate) fn decode_checked<T: DeserializeOwned>(
    kind: &str,
    bytes: &[u8],
    check: impl FnOnce(&T) -> Result<()>,
) -> Result<T> {
    let value = decode(kind, bytes)?;
    check(&value).map_err(|error| error.into_damage().within(kind))?;
    Ok(value)
}

/// Reads an object of this kind in any version up to `newest`, and says which it is.
pub(crate) fn decode_versions<T: DeserializeOwned>(
    kind: &str,
    newest: u32,
    bytes: &[u8],
) -> Result<(u32, T)> {
    let damaged = |what: String| Error::damaged(format!("{kind} {what}"));
    let line_end = bytes
        .iter()
        .take(MAX_LINE_BYTES)
        .position(|&byte| byte == b'\n')
        .ok_or_else(|| damaged("does not begin with a line that says what it is".to_owned()))?;
    let (line, body) = bytes.split_at(line_end + 1);
    let version = version_of(kind, newest, line)?;
    let expected = first_line(kind, version, body);
    if line != expected.as_bytes() {
        return Err(damaged(format!(
            "begins with {:?}, but its contents ask for {:?}",
            String::from_utf8_lossy(line).trim_end(),
            expected.trim_end()
        )));
    }
    let value = serde_json::from_slice(body)
        .map_err(|e| damaged(format!("does not have the fields it must have: {e}")))?;
    Ok((version, value))
}

/// A newer version is told from damage, so that the message can say which it is.
fn version_of(kind: &str, newest: u32, line: &[u8]) -> Result<u32> {
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let ours = words.next() == Some("pgstrata") && words.next() == Some(kind);
    let version = words.next().and_then(|word| word.parse::<u32>().ok());
    match version {
        Some(version) if ours && version > newest => Err(Error::unsupported(format!(
            "{kind} has version {version}, which this version does not know"
        ))),
        Some(version) if ours && version >= VERSION => Ok(version),
        _ => Ok(VERSION),
    }
}

fn first_line(kind: &str, version: u32, body: &[u8]) -> String {
    format!(
        "pgstrata {kind} {version} {} {}\n",
        body.len(),
        contents_hex(body)
    )
}

#[cfg(test)]
pub(crate) mod testing {
    use crate::error::Result;

    /// Every byte cut off, one bit and all bits of each byte flipped, and a byte too many are found.
    pub(crate) fn require_damage_found<T>(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<T>) {
        assert!(decode(bytes).is_ok());
        for at in 0..bytes.len() {
            assert!(decode(&bytes[..at]).is_err(), "cut to {at} bytes");
            for flip in [1 << (at % 8), 0xFF] {
                let mut flipped = bytes.to_vec();
                flipped[at] ^= flip;
                assert!(decode(&flipped).is_err(), "byte {at} flipped by {flip:#x}");
            }
        }
        assert!(decode(&[bytes, b"\n"].concat()).is_err());
    }
}
