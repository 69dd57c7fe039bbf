//! The listing of versions, read.

use jiff::Timestamp;
use object_store::Result;
use serde::Deserialize;

use super::super::page::{VERSIONS, is_last, require_end, require_root};
use super::bucket::generic;

/// The id of what was there before the bucket had versions.
pub(super) const BEFORE_VERSIONS: &str = "null";

/// One version of an object, or a marker that it was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The object's key; relative to the repository's root, as far as callers see it.
    pub key: String,
    /// By which the store knows the version.
    pub id: String,
    /// When it was made, by the store's clock. Stores note whole seconds.
    pub modified: Timestamp,
    /// Its length; nothing for a marker.
    pub size_bytes: Option<u64>,
    /// What tells one content from another, when the store says it.
    pub e_tag: Option<String>,
    /// Whether it is what a reader gets who asks for no version.
    pub is_latest: bool,
}

impl Version {
    /// Whether it says that there is no object.
    #[must_use]
    pub fn is_marker(&self) -> bool {
        self.size_bytes.is_none()
    }
}

/// One answer of the store.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct VersionPage {
    is_truncated: Option<String>,
    next_key_marker: Option<String>,
    next_version_id_marker: Option<String>,
    #[serde(rename = "$value")]
    entries: Vec<VersionEntry>,
}

#[derive(Debug, Deserialize)]
enum VersionEntry {
    Version(VersionFields),
    DeleteMarker(VersionFields),
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct VersionFields {
    key: String,
    version_id: Option<String>,
    is_latest: bool,
    last_modified: String,
    e_tag: Option<String>,
    size: Option<u64>,
}

impl VersionPage {
    /// Reads an answer, and what it lists, in its order.
    pub(super) fn read(body: &[u8]) -> Result<(Self, Vec<Version>)> {
        let text = std::str::from_utf8(body).map_err(generic)?;
        require_root(text, VERSIONS).map_err(generic)?;
        let mut page: Self = quick_xml::de::from_str(text).map_err(generic)?;
        require_end(page.is_truncated.as_deref(), page.next().is_some()).map_err(generic)?;
        let mut versions = Vec::with_capacity(page.entries.len());
        for entry in std::mem::take(&mut page.entries) {
            match entry {
                VersionEntry::Version(listed) => {
                    let size = listed.size.unwrap_or_default();
                    versions.push(listed.read(Some(size))?);
                }
                VersionEntry::DeleteMarker(listed) => versions.push(listed.read(None)?),
                VersionEntry::Other => {}
            }
        }
        Ok((page, versions))
    }

    /// Where the next page begins, if this is not the last one: behind this key and id.
    pub(super) fn next(&self) -> Option<(String, String)> {
        let key = self.next_key_marker.clone().unwrap_or_default();
        let id = self.next_version_id_marker.clone();
        let goes_on = !is_last(self.is_truncated.as_deref()) && !key.is_empty();
        goes_on.then(|| (key, id.unwrap_or_default()))
    }

    /// Whether the page, which listed these, ends with a version from before the bucket had versions, on which something
    /// newer lies.
    pub(super) fn ends_before_versions(&self, versions: &[Version]) -> bool {
        let Some((key, id)) = self.next() else {
            return false;
        };
        let newest =
            |version: &Version| version.key == key && version.id == id && version.is_latest;
        id == BEFORE_VERSIONS && !versions.iter().any(newest)
    }
}

impl VersionFields {
    fn read(self, size_bytes: Option<u64>) -> Result<Version> {
        let listed: Timestamp = self.last_modified.parse().map_err(generic)?;
        let id = self.version_id;
        let id = id.unwrap_or_else(|| BEFORE_VERSIONS.to_owned());
        let modified = match (made(&id), size_bytes) {
            (None, _) => listed,
            (Some(made), Some(_)) => made.min(listed),
            // The listing has the time of what the marker hides, or that at which something came on top of it.
            (Some(made), None) => made,
        };
        Ok(Version {
            modified,
            id,
            key: self.key,
            size_bytes,
            e_tag: self.e_tag,
            is_latest: self.is_latest,
        })
    }
}

/// Some stores list an older version with the moment at which it became one, and a marker with the time of the object that
/// it hides. Their ids are ULIDs, which begin with the milliseconds at which the version was made.
pub(super) fn made(id: &str) -> Option<Timestamp> {
    const DIGITS: &str = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    if id.len() != 26 {
        return None;
    }
    let digits = id.chars().map(|digit| DIGITS.find(digit));
    let digits: Vec<usize> = digits.collect::<Option<_>>()?;
    let milliseconds = digits.iter().take(10).try_fold(0_i64, |sum, digit| {
        sum.checked_mul(32)?
            .checked_add(i64::try_from(*digit).ok()?)
    })?;
    Timestamp::from_millisecond(milliseconds).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_as_old_as_its_id_says_where_that_is_a_time() {
        let made_at = made("01M8480EA0TKFPEQDHNJ30BQPZ").unwrap();
        assert_eq!(made_at.to_string(), "2026-11-23T13:02:30.72Z");
        for id in [
            "null",
            "",
            "3sL4kqtJlcpXroDTDmJ+rmSpXd3dIbrHY+MTRCxf3vjVBH40Nr8X8gdRQBpUMLUo",
            "01M8480EA0TKFPEQDHNJ30BQPU",
        ] {
            assert_eq!(made(id), None, "{id}");
        }
    }

    /// As versitygw lists an object that was made at :40, deleted at :42 and at :44, made again at :46 and deleted at :48.
    #[test]
    fn a_marker_is_as_old_as_its_id_and_not_as_what_it_hides() {
        let entry = |kind: &str, listed: &str, id: &str| {
            let size = if kind == "Version" {
                "<Size>3</Size>"
            } else {
                ""
            };
            format!(
                "<{kind}><IsLatest>false</IsLatest><Key>a</Key><LastModified>2026-11-23T13:02:{listed}Z</LastModified>\
                 {size}<VersionId>{id}</VersionId></{kind}>"
            )
        };
        let ids = [40, 42, 44, 46, 48].map(id_of_second);
        let entries = [
            entry("DeleteMarker", "46.4751388", &ids[4]),
            entry("DeleteMarker", "46.4751388", &ids[2]),
            entry("DeleteMarker", "44.471138728", &ids[1]),
            entry("Version", "48", &ids[3]),
            entry("Version", "42", &ids[0]),
        ];
        let text = format!(
            "<ListVersionsResult><IsTruncated>false</IsTruncated>{}</ListVersionsResult>",
            entries.concat()
        );
        let (_, versions) = VersionPage::read(text.as_bytes()).unwrap();
        let seconds = versions.iter().map(|version| version.modified.to_string());
        let expected = [48, 44, 42, 46, 40].map(|second| format!("2026-11-23T13:02:{second}Z"));
        assert_eq!(seconds.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_page_that_is_none_or_leads_to_no_end_is_refused() {
        let page = |inner: &str| format!("<ListVersionsResult>{inner}</ListVersionsResult>");
        let more = "<IsTruncated>true</IsTruncated>";
        for (text, said) in [
            (
                "<Error><Code>Busy</Code></Error>".to_owned(),
                "<Error> (Busy) instead",
            ),
            ("<html></html>".to_owned(), "<html> instead"),
            (String::new(), "cannot be read"),
            (page(""), "whether more follows"),
            (page(more), "and not where"),
            (page(&format!("{more}<NextKeyMarker/>")), "and not where"),
        ] {
            let refused = VersionPage::read(text.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(said), "{text}: {refused}");
        }
        let (last, _) =
            VersionPage::read(page("<IsTruncated>false</IsTruncated>").as_bytes()).unwrap();
        assert_eq!(last.next(), None);
    }

    fn id_of_second(second: u32) -> String {
        let text = format!("2026-11-23T13:02:{second}Z");
        let milliseconds = text.parse::<Timestamp>().unwrap().as_millisecond();
        let digits = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
        let digit = |place: u32| {
            let value = usize::try_from((milliseconds >> (5 * place)) & 31).unwrap();
            char::from(digits[value])
        };
        let time: String = (0..10).rev().map(digit).collect();
        format!("{time}TKFPEQDHNJ30BQPZ")
    }
}
