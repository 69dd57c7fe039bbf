//! What was there at a moment, and what has become of it. Nothing here touches a store.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::listing::{BEFORE_VERSIONS, Version, made};

/// What became of a repository since a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Since {
    /// Objects that were there and are hidden by a marker now: the version that was there, in order of key.
    pub hidden: Vec<Version>,
    /// Objects that are there with other contents now: the version that was there, in order of key.
    pub replaced: Vec<Version>,
    /// Keys of objects that were not there, and are.
    pub added: Vec<String>,
    /// Keys of objects that were made since, and are gone.
    pub gone: Vec<String>,
}

/// The versions of each object, the newest first.
pub(super) fn by_key(versions: Vec<Version>) -> BTreeMap<String, Vec<Version>> {
    let mut keys: BTreeMap<String, Vec<Version>> = BTreeMap::new();
    for version in versions {
        keys.entry(version.key.clone()).or_default().push(version);
    }
    for versions in keys.values_mut() {
        forget_lost_times(versions);
        // Some stores list markers apart from versions. The sort is stable: of what has the same time the order of the
        // listing counts.
        versions.sort_by_key(|version| (!version.is_latest, Reverse(version.modified)));
    }
    keys
}

/// Stores whose ids are times list an older version with the moment at which it became one. The id of what was there before
/// the bucket had versions is no time, so when it was made is not known: it may have been there at every moment.
fn forget_lost_times(versions: &mut [Version]) {
    if !versions.iter().any(|version| made(&version.id).is_some()) {
        return;
    }
    for version in versions {
        if version.id == BEFORE_VERSIONS && !version.is_latest {
            version.modified = Timestamp::MIN;
        }
    }
}

/// Of the versions of one object, newest first, the one that was there at `moment`.
pub(super) fn at(versions: &[Version], moment: Timestamp) -> Option<&Version> {
    let newest = versions.iter().find(|version| version.modified <= moment);
    newest.filter(|version| !version.is_marker())
}

/// What became of the objects of these versions since `moment`. Those of `back` were put on top with what was there; where
/// versioning is suspended all that is put on top has the same id, which tells nothing.
pub(super) fn since(versions: Vec<Version>, moment: Timestamp, back: &BTreeSet<String>) -> Since {
    let mut since = Since::default();
    for (key, versions) in by_key(versions) {
        let now = versions.iter().find(|version| version.is_latest);
        let now = now.filter(|version| !version.is_marker());
        let is_back = |now: &Version| now.id != BEFORE_VERSIONS && back.contains(&now.id);
        match (at(&versions, moment), now) {
            (Some(then), None) => since.hidden.push(then.clone()),
            (Some(then), Some(now)) if !same(then, now) && !is_back(now) => {
                since.replaced.push(then.clone());
            }
            (Some(_), Some(_)) => {}
            (None, Some(_)) => since.added.push(key),
            (None, None) => {
                if versions
                    .iter()
                    .any(|version| version.modified > moment && !version.is_marker())
                {
                    since.gone.push(key);
                }
            }
        }
    }
    since
}

/// Whether both have the same contents, as far as the store tells.
pub(super) fn same(one: &Version, other: &Version) -> bool {
    let tags = one.e_tag.is_some() && one.e_tag == other.e_tag;
    one.id == other.id || (tags && one.size_bytes == other.size_bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use super::super::listing::VersionPage;
    use super::*;

    /// `number` is the version; an empty tag makes a marker.
    fn version(key: &str, second: i64, tag: &str, is_latest: bool) -> Version {
        Version {
            key: key.to_owned(),
            id: format!("{key}-{second}"),
            modified: Timestamp::from_second(second).unwrap(),
            size_bytes: (!tag.is_empty()).then_some(1),
            e_tag: (!tag.is_empty()).then(|| tag.to_owned()),
            is_latest,
        }
    }

    fn moment(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn what_was_hidden_replaced_added_and_lost_since_a_moment_is_told_apart() {
        let versions = vec![
            version("a", 30, "", true),
            version("a", 10, "one", false),
            version("b", 30, "evil", true),
            version("b", 10, "one", false),
            version("c", 10, "one", true),
            version("d", 30, "new", true),
            version("e", 40, "", true),
            version("e", 30, "new", false),
            // Copied on top by an earlier rescue.
            version("f", 40, "one", true),
            version("f", 30, "evil", false),
            version("f", 10, "one", false),
            // Removed on purpose before the moment.
            version("g", 15, "", true),
            version("g", 10, "one", false),
        ];
        let since = since(versions, moment(20), &BTreeSet::new());
        let keys = |versions: &[Version]| -> Vec<String> {
            versions.iter().map(|version| version.id.clone()).collect()
        };
        assert_eq!(keys(&since.hidden), ["a-10"]);
        assert_eq!(keys(&since.replaced), ["b-10"]);
        assert_eq!(since.added, ["d"]);
        assert_eq!(since.gone, ["e"]);
    }

    #[test]
    fn what_was_brought_back_is_known_by_an_id_of_its_own() {
        let replaced = |id: &str| {
            let mut newest = version("a", 30, "another tag", true);
            id.clone_into(&mut newest.id);
            let versions = vec![newest, version("a", 10, "one", false)];
            let back = BTreeSet::from([id.to_owned()]);
            since(versions, moment(20), &back).replaced.len()
        };
        assert_eq!(replaced("of the copy"), 0);
        assert_eq!(replaced(BEFORE_VERSIONS), 1);
    }

    #[test]
    fn a_moment_sees_what_was_newest_then() {
        let of = |second| {
            let versions = vec![
                version("a", 40, "third", true),
                version("a", 20, "", false),
                version("a", 30, "second", false),
                version("a", 10, "first", false),
            ];
            let keys = by_key(versions);
            at(&keys["a"], moment(second)).map(|found| found.modified.as_second())
        };
        assert_eq!(of(9), None);
        assert_eq!(of(10), Some(10));
        assert_eq!(of(25), None);
        assert_eq!(of(30), Some(30));
        assert_eq!(of(90), Some(40));
    }

    #[test]
    fn listings_of_every_order_are_read() {
        let text = r#"<?xml version="1.0" encoding="UTF-8"?><ListVersionsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
            <DeleteMarker><IsLatest>true</IsLatest><Key>p/a</Key><LastModified>2026-11-23T12:31:13.765650557Z</LastModified><VersionId>2</VersionId><Owner><ID>x</ID></Owner></DeleteMarker>
            <IsTruncated>true</IsTruncated><KeyMarker></KeyMarker><NextKeyMarker>p/a</NextKeyMarker><NextVersionIdMarker>1</NextVersionIdMarker>
            <Version><LastModified>2026-11-23T12:31:12Z</LastModified><ETag>&#34;e4&#34;</ETag><IsLatest>false</IsLatest><Key>p/a</Key><Size>7</Size><VersionId>1</VersionId></Version>
            <DeleteMarker><IsLatest>true</IsLatest><Key>p/b</Key><LastModified>2026-11-23T12:31:13Z</LastModified><VersionId>3</VersionId></DeleteMarker>
            <CommonPrefixes><Prefix>x</Prefix></CommonPrefixes></ListVersionsResult>"#;
        let (page, versions) = VersionPage::read(text.as_bytes()).unwrap();
        assert_eq!(page.next(), Some(("p/a".to_owned(), "1".to_owned())));
        let ids: Vec<&str> = versions.iter().map(|version| version.id.as_str()).collect();
        assert_eq!(ids, ["2", "1", "3"]);
        assert_eq!(versions[1].size_bytes, Some(7));
        assert_eq!(versions[1].e_tag.as_deref(), Some("\"e4\""));
        assert!(versions[0].is_marker());
        assert!(VersionPage::read(b"<html>").is_err());
    }
}
