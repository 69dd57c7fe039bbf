//! Objects that nobody can delete for a while: Object Lock of S3.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, checksum};
use http::Method;
use jiff::{SignedDuration, Timestamp};
use object_store::path::Path;
use object_store::{Error as StoreError, Result as StoreResult};
use pgstrata_layer::cluster::{LockMode, RetentionRecord};
use pgstrata_layer::keys::is_lasting;

use super::bucket::{Ask, Bucket, generic};
use super::{KeptObject, Version};
use crate::error::{Error, Kind, Result};
use crate::repository::Repository;
use crate::repository::reason::Reason;

const DAY: SignedDuration = SignedDuration::from_hours(24);

/// Requests that ask for locks and extend them take their time: until all are made.
const SLACK: SignedDuration = SignedDuration::from_hours(1);

/// For how long objects are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    mode: LockMode,
    days: u32,
}

impl From<RetentionRecord> for Retention {
    fn from(record: RetentionRecord) -> Self {
        Self {
            mode: record.mode,
            days: record.days,
        }
    }
}

impl Retention {
    /// Until when a manifest is locked that is created now: the layer stays as long.
    fn of_manifest(self, now: Timestamp) -> Timestamp {
        later(now, DAY * i32::try_from(self.days).unwrap_or(i32::MAX))
    }

    /// Until when everything else is: a layer's objects are made before its manifest, and what is extended once need not
    /// be with the next layer.
    pub(crate) fn with_margin(self, now: Timestamp) -> Timestamp {
        let margin = (self.days / 4).max(1);
        later(
            self.of_manifest(now),
            DAY * i32::try_from(margin).unwrap_or(i32::MAX),
        )
    }

    /// Until when that must be locked on which a layer stands that is made now.
    pub(crate) fn needed(self, now: Timestamp) -> Timestamp {
        later(self.of_manifest(now), SLACK)
    }

    /// In the words of S3.
    fn word(self) -> &'static str {
        match self.mode {
            LockMode::Compliance => "COMPLIANCE",
            LockMode::Governance => "GOVERNANCE",
        }
    }
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// A whole second.
pub(super) fn written(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A request about the lock of one version: without its id the store would take the newest one, which somebody may have put
/// on top.
fn about_lock(id: &str) -> Ask<'static> {
    let mut ask = Ask::about("retention");
    ask.query.push(("versionId", id.to_owned()));
    ask
}

impl Bucket {
    /// Creates an object, if it is absent, that is locked.
    async fn create_locked(
        &self,
        path: &Path,
        body: &Bytes,
        (retention, until): (Retention, Timestamp),
    ) -> StoreResult<()> {
        // The store asks for a checksum of what it is to lock.
        let sum = checksum(CrcAlgorithm::Crc64Nvme, body).to_be_bytes();
        let mut headers = vec![
            ("if-none-match", "*".to_owned()),
            ("x-amz-checksum-crc64nvme", BASE64_STANDARD.encode(sum)),
            ("x-amz-object-lock-mode", retention.word().to_owned()),
            ("x-amz-object-lock-retain-until-date", written(until)),
        ];
        headers.extend_from_slice(self.server_side.headers());
        let ask = Ask {
            headers,
            body: body.clone(),
            ..Ask::default()
        };
        let created = self.ask(Method::PUT, path, ask).await;
        created.map(|_| ()).map_err(|error| {
            let text = error.to_string();
            let refused = ["status code: 412", "status code: 409"];
            match refused.iter().any(|status| text.contains(status)) {
                true => StoreError::AlreadyExists {
                    path: path.to_string(),
                    source: text.into(),
                },
                false => error,
            }
        })
    }

    async fn has_lock(&self) -> StoreResult<bool> {
        let (whole, ask) = (Path::default(), Ask::about("object-lock"));
        match self.ask(Method::GET, &whole, ask).await {
            Ok(body) => {
                let text = String::from_utf8_lossy(&body).into_owned();
                Ok(text.contains("<ObjectLockEnabled>Enabled<"))
            }
            Err(error)
                if error
                    .to_string()
                    .contains("ObjectLockConfigurationNotFound") =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn locked_until(&self, path: &Path, id: &str) -> StoreResult<Option<Timestamp>> {
        let none = [
            "<Code>NoSuchObjectLockConfiguration<",
            "Bucket is missing Object Lock",
        ];
        match self.ask(Method::GET, path, about_lock(id)).await {
            Ok(body) => {
                let text = String::from_utf8_lossy(&body).into_owned();
                let date = text.split("<RetainUntilDate>").nth(1);
                let date = date.and_then(|rest| rest.split('<').next());
                date.map(|date| date.parse().map_err(generic)).transpose()
            }
            Err(error) if none.iter().any(|words| error.to_string().contains(words)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn lock(
        &self,
        (path, id): (&Path, &str),
        retention: Retention,
        until: Timestamp,
    ) -> StoreResult<()> {
        let (mode, until) = (retention.word(), written(until));
        let body = format!(
            "<Retention xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Mode>{mode}</Mode><RetainUntilDate>{until}</RetainUntilDate></Retention>"
        );
        let sum = checksum(CrcAlgorithm::Crc32IsoHdlc, body.as_bytes());
        let sum = u32::try_from(sum).map_err(generic)?.to_be_bytes();
        let ask = Ask {
            headers: vec![("x-amz-checksum-crc32", BASE64_STANDARD.encode(sum))],
            body: body.into(),
            ..about_lock(id)
        };
        self.ask(Method::PUT, path, ask).await.map(|_| ())
    }
}

impl Repository {
    /// Locks from now on what is created, as far as it is made to last.
    pub fn retain(&self, retention: Retention) {
        if self.0.bucket.is_some() {
            // The first word counts: it is that of a record, which never changes.
            self.0.retention.get_or_init(|| retention);
        }
    }

    /// For how long what is created is locked.
    pub(crate) fn retention(&self) -> Option<Retention> {
        self.0.retention.get().copied()
    }

    /// Whether an object that lasts and was created at that time is still locked.
    #[must_use]
    pub fn still_locks(&self, created: Timestamp) -> bool {
        let retention = self.retention();
        retention.is_some_and(|retention| retention.with_margin(created) > Timestamp::now())
    }

    /// Refuses a store that cannot lock objects, or not as it is to encrypt them.
    ///
    /// # Errors
    /// `Unsupported` then; `Repository` when that cannot be known.
    pub async fn require_lock(&self) -> Result<()> {
        let Some(bucket) = &self.0.bucket else {
            let url = self.url();
            let what = match self.0.local {
                Some(_) => format!("{url} is a directory, which cannot lock its objects"),
                None => format!("objects are locked on S3 alone, and not at {url}"),
            };
            return Err(Error::new(Kind::Unsupported, what).hint(
                "leave out --retain, and let the store keep what is deleted by rules of its own, or use a bucket of S3 with Object Lock",
            ));
        };
        bucket.server_side.require_key_of_store("locked")?;
        let asked = self.retrying(|| bucket.has_lock()).await;
        match asked
            .map_err(|error| self.error("could not ask for the Object Lock of", "", &error))?
        {
            true => Ok(()),
            false => {
                let what = format!("the bucket of {} has no Object Lock", self.url());
                Err(Error::new(Kind::Unsupported, what).hint(
                    "turn on versions and Object Lock of the bucket, or make a bucket with them; or leave out --retain",
                ))
            }
        }
    }

    /// Until when the object `key` is locked, which is the version that was created first; nothing when it is not, or is
    /// not there.
    ///
    /// # Errors
    /// `Repository` when that cannot be known.
    pub async fn locked_until(&self, key: &str) -> Result<Option<Timestamp>> {
        match self.kept(key).await? {
            Some(kept) => self.version_locked_until(kept.first()).await,
            None => Ok(None),
        }
    }

    /// Until when that version is locked.
    ///
    /// # Errors
    /// `Repository` when that cannot be known.
    pub async fn version_locked_until(&self, version: &Version) -> Result<Option<Timestamp>> {
        let (bucket, path) = (self.bucket()?, self.path(&version.key)?);
        let asked = self.retrying(|| bucket.locked_until(&path, &version.id));
        let asked = match asked.await {
            Err(error) if Reason::of(&error).object_is_absent => Ok(None),
            asked => asked,
        };
        asked.map_err(|error| self.error("could not ask for the lock of", &version.key, &error))
    }

    /// Makes sure that all versions of an object are locked until `needed`, and then until `until`. A lock is never shortened.
    pub(crate) async fn extend_lock(
        &self,
        kept: &KeptObject,
        (needed, until): (Timestamp, Timestamp),
    ) -> Result<()> {
        let Some(retention) = self.retention() else {
            return Ok(());
        };
        let (bucket, path) = (self.bucket()?, self.path(&kept.key)?);
        for version in kept.versions() {
            let locked = self.version_locked_until(version).await?;
            if locked.is_some_and(|locked| locked >= needed) {
                continue;
            }
            let place = (&path, version.id.as_str());
            let done = self.retrying(|| bucket.lock(place, retention, until)).await;
            done.map_err(|error| self.error("could not extend the lock of", &kept.key, &error))?;
        }
        Ok(())
    }

    /// Whether the store can lock objects, as far as it says.
    pub(crate) async fn may_lock(&self) -> bool {
        let Some(bucket) = &self.0.bucket else {
            return false;
        };
        let asked = self.retrying(|| bucket.has_lock()).await;
        asked.unwrap_or_else(|error| {
            tracing::debug!(error = %self.why(&error), "whether objects can be locked is not known");
            false
        })
    }

    /// Refuses to create in a locked cluster what cannot be locked.
    ///
    /// # Errors
    /// `Unsupported` then.
    pub(in crate::repository) fn require_lockable(&self) -> Result<()> {
        match (&self.0.bucket, self.retention()) {
            (Some(bucket), Some(_)) => bucket.server_side.require_key_of_store("locked"),
            _ => Ok(()),
        }
    }

    /// Creates an object that is to be locked; `None` when it is not.
    pub(in crate::repository) async fn create_locked(
        &self,
        path: &Path,
        body: &Bytes,
    ) -> Option<StoreResult<()>> {
        let (retention, bucket) = (self.retention()?, self.0.bucket.as_ref()?);
        let key: Path = path.prefix_match(&self.0.root)?.collect();
        if !is_lasting(key.as_ref()) {
            return None;
        }
        let now = Timestamp::now();
        let until = match key.as_ref().ends_with("/manifest") {
            true => retention.of_manifest(now),
            false => retention.with_margin(now),
        };
        Some(bucket.create_locked(path, body, (retention, until)).await)
    }
}
