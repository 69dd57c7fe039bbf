//! What stands under a name that was to be created.
//!
//! A create whose answer was lost meets its own object when it is repeated. So whoever is told that a name is taken compares
//! what is there. Nothing is held in memory for that but one part of it: an object may be as large as a WAL segment.

use std::time::Duration;

use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::Repository;
use super::reason::Reason;
use super::retries::Retries;
use crate::error::Result;

/// 8 MiB: 128 requests for the largest WAL segment, which matter to a slow line only, and little beside the 512 MiB that
/// are to be enough for every command.
const PART_BYTES: usize = 8 << 20;

/// How long an object may show its beginning only, or be refused and not be there. Stores that do so at all copy it within
/// the machine, or refuse two creates at once and keep neither.
pub(super) const SETTLES: Duration = Duration::from_secs(10);

/// What stands under a name that was to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum There {
    /// Exactly what was to be written: an earlier try has done it.
    Same,
    /// So many bytes, with which what was to be written begins; there are more of those.
    Beginning(u64),
    Other,
    Nothing,
}

impl Repository {
    /// Whether a create that brought no answer left something, or met it. A store may refuse a taken name before it has read
    /// the bytes, and close: then its refusal is lost however often they are sent. When this cannot be known, they are sent
    /// again.
    pub(super) async fn is_taken(&self, path: &Path) -> bool {
        let _permit = self.permit(1).await;
        self.0.store.head(path).await.is_ok()
    }

    /// What a create that was refused has met. A store that shows an object while its bytes still come has some seconds to
    /// take them all.
    pub(super) async fn what_is_there(
        &self,
        key: &str,
        path: &Path,
        body: &Bytes,
    ) -> Result<There> {
        let mut settling = Retries::new(self.0.patience.later.min(SETTLES));
        loop {
            let there = self.compare(key, path, body).await?;
            let may_grow = matches!(there, There::Beginning(_));
            if !may_grow || !settling.wait().await {
                return Ok(there);
            }
        }
    }

    async fn compare(&self, key: &str, path: &Path, body: &Bytes) -> Result<There> {
        let Some(size) = self.size(key).await? else {
            return Ok(There::Nothing);
        };
        let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
        // A file has its name only when it is whole.
        let may_be_part = size < length && self.0.local.is_none();
        if size != length && !may_be_part {
            return Ok(There::Other);
        }
        let expected = usize::try_from(size).ok().and_then(|size| body.get(..size));
        let (mut from, expected) = (0, expected.unwrap_or_default());
        for part in expected.chunks(PART_BYTES) {
            let until = from + u64::try_from(part.len()).unwrap_or(u64::MAX);
            let read = self.retrying(|| self.0.store.get_range(path, from..until));
            match read.await {
                Ok(stored) if stored == part => from = until,
                Ok(_) => return Ok(There::Other),
                Err(error) if Reason::of(&error).object_is_absent => return Ok(There::Nothing),
                Err(error) => return Err(self.error("could not read", key, &error)),
            }
        }
        match may_be_part {
            true => Ok(There::Beginning(size)),
            false => Ok(There::Same),
        }
    }
}
