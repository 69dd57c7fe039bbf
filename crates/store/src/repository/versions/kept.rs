//! All that a store keeps of objects: what was created first, and what somebody has put on top.
//!
//! Objects are created once, so the version that was created first is the object. A later one is the work of a rescue, which
//! puts the same contents on top, or of somebody who should not have been there.

use jiff::Timestamp;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore};

use super::listing::Version;
use super::lock::written;
use super::moment;
use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// The versions of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptObject {
    /// The object's key.
    pub key: String,
    /// The newest first, without markers.
    versions: Vec<Version>,
}

impl KeptObject {
    /// Nothing when only markers are left.
    pub(super) fn of(key: String, mut versions: Vec<Version>) -> Option<Self> {
        versions.retain(|version| !version.is_marker());
        match versions.is_empty() {
            true => None,
            false => Some(Self { key, versions }),
        }
    }

    /// The object: what was created first.
    #[must_use]
    pub fn first(&self) -> &Version {
        self.versions.last().expect("there is one")
    }

    /// All of them, the newest first.
    #[must_use]
    pub fn versions(&self) -> &[Version] {
        &self.versions
    }

    /// What has the contents of the first one, as far as the store tells.
    pub fn genuine(&self) -> impl Iterator<Item = &Version> {
        let first = self.first();
        let all = self.versions.iter();
        all.filter(move |version| moment::same(version, first))
    }

    /// Whether a reader who asks for no version gets nothing, because somebody has deleted the object.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        !self.versions.iter().any(|version| version.is_latest)
    }

    /// What a reader gets who asks for no version, when it has other contents than the first one, as far as the store tells.
    #[must_use]
    pub fn replacement(&self) -> Option<&Version> {
        let newest = self.versions.first()?;
        let is_shown = newest.is_latest && !moment::same(newest, self.first());
        is_shown.then_some(newest)
    }
}

impl Repository {
    /// What the store keeps of every object below `prefix` (a whole key component), in order of key.
    ///
    /// # Errors
    /// `Unsupported` on a store that is not S3; `Repository` when versions cannot be listed.
    pub async fn kept_below(&self, prefix: &str) -> Result<Vec<KeptObject>> {
        self.kept_beginning(prefix, "/").await
    }

    /// What the store keeps of the object `key`; nothing when it was never there.
    ///
    /// # Errors
    /// As for [`Repository::kept_below`].
    pub async fn kept(&self, key: &str) -> Result<Option<KeptObject>> {
        let found = self.kept_beginning(key, "").await?.into_iter();
        Ok({ found }.find(|kept| kept.key == key))
    }

    async fn kept_beginning(&self, prefix: &str, more: &str) -> Result<Vec<KeptObject>> {
        self.bucket()?;
        let versions = self.versions_beginning(prefix, more).await?;
        let versions = versions.map_err(|error| self.no_versions(prefix, &error))?;
        Ok(all_of(versions))
    }

    /// Refuses an object that was replaced since it was created. Where the store has no versions, or the credentials do
    /// not allow to see them, nothing is known about that.
    ///
    /// # Errors
    /// `Damaged` when it was replaced; `Repository` when the store does not answer.
    pub async fn require_first(&self, key: &str) -> Result<()> {
        let Some(kept) = self.replaced(key).await? else {
            return Ok(());
        };
        let Some(replacement) = kept.replacement() else {
            return Ok(());
        };
        // A store that encrypts gives the same contents another tag each time.
        let same = self.contents(&kept.key, kept.first()).await?
            == self.contents(&kept.key, replacement).await?;
        match same {
            true => Ok(()),
            false => Err(self.replaced_by(&kept, replacement)),
        }
    }

    /// What the store keeps of an object that was replaced since it was created, as far as length and tag tell, which may
    /// differ where the contents do not. Nothing where it has no versions, or the credentials do not allow to see them.
    ///
    /// # Errors
    /// `Repository` when the store does not answer.
    pub(crate) async fn replaced(&self, key: &str) -> Result<Option<KeptObject>> {
        if self.0.bucket.is_none() {
            return Ok(None);
        }
        let versions = match self.versions_beginning(key, "").await? {
            Ok(versions) => versions,
            Err(error) if self.may_pass(&error) => return Err(self.no_versions(key, &error)),
            Err(error) => {
                tracing::debug!(key, error = %self.why(&error), "whether an object was replaced is not known");
                return Ok(None);
            }
        };
        let found = all_of(versions).into_iter();
        let found = { found }.find(|kept| kept.key == key);
        Ok(found.filter(|kept| kept.replacement().is_some()))
    }

    /// What is to be said of an object that was replaced.
    pub(crate) fn replacement_error(&self, kept: &KeptObject) -> Option<Error> {
        let replacement = kept.replacement()?;
        Some(self.replaced_by(kept, replacement))
    }

    /// What a version of an object holds.
    pub(crate) async fn contents(&self, key: &str, version: &Version) -> Result<bytes::Bytes> {
        let path = self.path(key)?;
        let read = self.retrying(|| self.version_of(&path, &version.id)).await;
        read.map_err(|error| {
            let error = self.error("could not read a version of", key, &error);
            error.hint("the credentials must allow s3:GetObjectVersion: the object was overwritten since it was created, and \
                 must be compared with what it was")
        })
    }

    async fn version_of(&self, path: &Path, id: &str) -> object_store::Result<bytes::Bytes> {
        let options = GetOptions::default().with_version(Some(id.to_owned()));
        self.0.store.get_opts(path, options).await?.bytes().await
    }

    fn replaced_by(&self, kept: &KeptObject, replacement: &Version) -> Error {
        let (object, at) = (self.object(&kept.key), replacement.modified);
        let what = format!("{object} was replaced at {}", written(at));
        let before = written(kept.before_it_was_replaced());
        Error::new(Kind::Damaged, what).hint(format!(
            "objects are created once, so somebody who should not can write there: take his rights away, and look at what \"pgstrata \
             rescue --since {before} --dry-run\" names; without --dry-run it brings it back. --repository-as-of {before} reads \
             the repository as it was"
        ))
    }
}

fn all_of(versions: Vec<Version>) -> Vec<KeptObject> {
    let keys = moment::by_key(versions).into_iter();
    let kept = keys.filter_map(|(key, versions)| KeptObject::of(key, versions));
    kept.collect()
}

impl KeptObject {
    /// The last second in which it was what it should be.
    fn before_it_was_replaced(&self) -> Timestamp {
        let first = self.first();
        let others = self.versions.iter().rev();
        let replaced = { others }.find(|version| !moment::same(version, first));
        let replaced = replaced.map_or(first.modified, |version| version.modified);
        let before = replaced.as_second().saturating_sub(1);
        // A version that was replaced in the very second of its creation.
        let before = before.max(first.modified.as_second());
        Timestamp::from_second(before).unwrap_or(replaced)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use super::*;

    fn kept(all: &[(i64, &str)]) -> Option<KeptObject> {
        let newest = all.len().saturating_sub(1);
        let versions = all.iter().enumerate().rev();
        let versions = versions.map(|(at, (second, tag))| Version {
            key: "a".to_owned(),
            id: second.to_string(),
            modified: Timestamp::from_second(*second).unwrap(),
            size_bytes: (!tag.is_empty()).then_some(1),
            e_tag: (!tag.is_empty()).then(|| (*tag).to_owned()),
            is_latest: at == newest,
        });
        KeptObject::of("a".to_owned(), versions.collect())
    }

    #[test]
    fn an_object_is_what_was_created_first_whatever_lies_on_top_of_it() {
        for (all, replaced, genuine) in [
            (&[(10, "good")][..], false, 1),
            (&[(10, "good"), (20, "evil")], true, 1),
            (&[(10, "good"), (20, ""), (30, "evil")], true, 1),
            // Brought back.
            (&[(10, "good"), (20, "evil"), (30, "good")], false, 2),
            // Hidden, which a listing tells.
            (&[(10, "good"), (20, "evil"), (30, "")], false, 1),
        ] {
            let kept = kept(all).unwrap();
            assert_eq!(kept.first().id, "10", "{all:?}");
            assert_eq!(kept.replacement().is_some(), replaced, "{all:?}");
            assert_eq!(kept.genuine().count(), genuine, "{all:?}");
            let is_marker = all.last().unwrap().1.is_empty();
            assert_eq!(kept.is_hidden(), is_marker, "{all:?}");
        }
        assert_eq!(kept(&[(10, "")]), None);
    }

    #[test]
    fn the_moment_before_a_replacement_is_not_before_the_object() {
        let before = |all: &[(i64, &str)]| kept(all).unwrap().before_it_was_replaced().as_second();
        assert_eq!(before(&[(10, "good"), (20, "evil"), (30, "worse")]), 19);
        assert_eq!(before(&[(10, "good"), (10, "evil")]), 10);
    }
}
