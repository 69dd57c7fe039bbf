//! Records: objects that are small, whoever has put them there.

use bytes::Bytes;

use super::Repository;
use crate::error::{Error, Kind, Result};

/// The longest record that is read, or made. Most of ours have some hundreds of bytes; a removal of ten thousand layers has
/// 2 MiB, and the manifest of a layer with 100 000 corrupt pages 10 MiB.
const MOST_BYTES: u64 = 64 << 20;

impl Repository {
    /// The whole record `key`, or why nobody can read it; nothing when it is not there.
    ///
    /// # Errors
    /// When the repository cannot be read, whatever the object.
    pub async fn find_record(&self, key: &str) -> Result<Option<Result<Bytes>>> {
        match self.get_record(key).await {
            Ok(record) => Ok(Some(Ok(record))),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) if error.is_of_one_object() => Ok(Some(Err(error))),
            Err(error) => Err(error),
        }
    }

    /// The whole record `key`. One of gigabytes would take that much memory from every command.
    ///
    /// # Errors
    /// As for [`Repository::get`]; `Damaged` when it is longer than a record can be.
    pub async fn get_record(&self, key: &str) -> Result<Bytes> {
        let (start, size) = self.get_start(key, MOST_BYTES).await?;
        require_short(key, size)?;
        Ok(start)
    }

    /// The whole object `key`, of which it is known how many bytes it has at most. `what` it is is part of the complaint.
    ///
    /// # Errors
    /// As for [`Repository::get`]; `Damaged` when it is longer.
    pub async fn get_at_most(&self, key: &str, most: u64, what: &str) -> Result<Bytes> {
        let (start, size) = self.get_start(key, most).await?;
        require_at_most(key, (size, most), what).map(|()| start)
    }
}

/// Refuses an object of so many bytes when more than the second number are none of `what`.
///
/// # Errors
/// `Damaged` then.
pub(crate) fn require_at_most(key: &str, (size, most): (u64, u64), what: &str) -> Result<()> {
    match size > most {
        false => Ok(()),
        true => Err(Error::new(
            Kind::Damaged,
            format!("\"{key}\" has {size} bytes, and {what} takes at most {most}"),
        )),
    }
}

/// So many numbered things may have been lost one after another.
const FARTHEST: u32 = 1000;

/// Whether nothing of ours can have that number when `known` is the last one that is known, or the next one. Who puts something
/// in such a place would have all numbers used up.
pub(crate) fn is_far(number: u32, known: u32) -> bool {
    number.saturating_sub(known) > FARTHEST
}

/// Whether a record can have that many bytes.
pub(crate) fn is_short(size_bytes: u64) -> bool {
    size_bytes <= MOST_BYTES
}

/// Refuses a record that nobody reads, so that nobody makes one either.
///
/// # Errors
/// `Damaged` then.
pub(crate) fn require_short(key: &str, size_bytes: u64) -> Result<()> {
    if is_short(size_bytes) {
        return Ok(());
    }
    let what = format!("\"{key}\" has {size_bytes} bytes, and a record has at most {MOST_BYTES}");
    Err(Error::new(Kind::Damaged, what))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_record_is_whole_or_refused() {
        let repository = Repository::memory();
        let most = usize::try_from(MOST_BYTES).unwrap();
        for (key, length, fits) in [
            ("a", 0, true),
            ("b", 7, true),
            ("c", most, true),
            ("d", most + 1, false),
        ] {
            let body = Bytes::from(vec![7; length]);
            repository.create(key, body.clone()).await.unwrap();
            match repository.get_record(key).await {
                Ok(read) => assert!(fits && read == body, "{length}"),
                Err(error) => assert!(!fits && error.kind() == Kind::Damaged, "{length}: {error}"),
            }
        }
        let error = repository.get_record("e").await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
    }
}
