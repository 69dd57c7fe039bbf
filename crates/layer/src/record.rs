//! Text objects: one line that says what follows and its digest, then JSON.
//!
//! `pgstrata <kind> 1 <length> <BLAKE3>` and a newline, then exactly `length` bytes.
//! People can read them; a flip of any bit is found before JSON is parsed.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::digest::contents_hex;
use crate::error::{Error, Result};

const VERSION: u32 = 1;

/// Longest first line a reader looks at.
const MAX_LINE_BYTES: usize = 200;

/// The object's bytes.
pub(crate) fn encode(kind: &str, value: &impl Serialize) -> Vec<u8> {
    let mut body = serde_json::to_vec_pretty(value).expect("records hold only what JSON can hold");
    body.push(b'\n');
    let mut object = first_line(kind, &body).into_bytes();
    object.append(&mut body);
    object
}

/// Reads an object of this kind.
pub(crate) fn decode<T: DeserializeOwned>(kind: &str, bytes: &[u8]) -> Result<T> {
    let damaged = |what: String| Error::damaged(format!("{kind} {what}"));
    let line_end = bytes
        .iter()
        .take(MAX_LINE_BYTES)
        .position(|&byte| byte == b'\n')
        .ok_or_else(|| damaged("does not begin with a line that says what it is".to_owned()))?;
    let (line, body) = bytes.split_at(line_end + 1);
    check_version(kind, line)?;
    let expected = first_line(kind, body);
    if line != expected.as_bytes() {
        return Err(damaged(format!(
            "begins with {:?}, but its contents ask for {:?}",
            String::from_utf8_lossy(line).trim_end(),
            expected.trim_end()
        )));
    }
    serde_json::from_slice(body)
        .map_err(|e| damaged(format!("does not have the fields it must have: {e}")))
}

/// A newer version is told from damage, so that the message can say which it is.
fn check_version(kind: &str, line: &[u8]) -> Result<()> {
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let ours = words.next() == Some("pgstrata") && words.next() == Some(kind);
    let version = words.next().and_then(|word| word.parse::<u32>().ok());
    match version {
        Some(version) if ours && version > VERSION => Err(Error::unsupported(format!(
            "{kind} has version {version}, which this version does not know"
        ))),
        _ => Ok(()),
    }
}

fn first_line(kind: &str, body: &[u8]) -> String {
    format!(
        "pgstrata {kind} {VERSION} {} {}\n",
        body.len(),
        contents_hex(body)
    )
}
