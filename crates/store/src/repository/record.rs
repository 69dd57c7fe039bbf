//! Records: objects that are small, whoever has put them there.

use bytes::Bytes;

use super::Repository;
use crate::error::{Error, Kind, Result};

/// The longest record that is read. Those that we make have some hundreds of bytes.
const MOST_BYTES: u64 = 1 << 20;

impl Repository {
    /// The whole record `key`. One of gigabytes would take that much memory from every command.
    ///
    /// # Errors
    /// As for [`Repository::get`]; `Damaged` when it is longer than a record can be.
    pub async fn get_record(&self, key: &str) -> Result<Bytes> {
        let (start, size) = self.get_start(key, MOST_BYTES).await?;
        match size > MOST_BYTES {
            false => Ok(start),
            true => Err(Error::new(
                Kind::Damaged,
                format!(
                    "\"{key}\" has {size} bytes, and a record has at most {MOST_BYTES}: pgstrata has not made it"
                ),
            )),
        }
    }
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
