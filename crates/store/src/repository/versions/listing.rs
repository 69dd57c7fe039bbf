//! The listing of versions, read.

use jiff::Timestamp;
use object_store::Result;
use serde::Deserialize;

use super::bucket::generic;

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
pub(super) struct Page {
    pub(super) is_truncated: bool,
    pub(super) next_key_marker: Option<String>,
    pub(super) next_version_id_marker: Option<String>,
    #[serde(rename = "$value")]
    entries: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
enum Entry {
    Version(Listed),
    DeleteMarker(Listed),
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    key: String,
    version_id: Option<String>,
    is_latest: bool,
    last_modified: String,
    e_tag: Option<String>,
    size: Option<u64>,
}

impl Page {
    /// Reads an answer, and what it lists, in its order.
    pub(super) fn read(body: &[u8]) -> Result<(Self, Vec<Version>)> {
        let text = std::str::from_utf8(body).map_err(generic)?;
        let mut page: Self = quick_xml::de::from_str(text).map_err(generic)?;
        let mut versions = Vec::with_capacity(page.entries.len());
        for entry in std::mem::take(&mut page.entries) {
            match entry {
                Entry::Version(listed) => {
                    let size = listed.size.unwrap_or_default();
                    versions.push(listed.read(Some(size))?);
                }
                Entry::DeleteMarker(listed) => versions.push(listed.read(None)?),
                Entry::Other => {}
            }
        }
        Ok((page, versions))
    }
}

impl Listed {
    fn read(self, size_bytes: Option<u64>) -> Result<Version> {
        Ok(Version {
            modified: self.last_modified.parse().map_err(generic)?,
            // What was there before the bucket had versions.
            id: self.version_id.unwrap_or_else(|| "null".to_owned()),
            key: self.key,
            size_bytes,
            e_tag: self.e_tag,
            is_latest: self.is_latest,
        })
    }
}
