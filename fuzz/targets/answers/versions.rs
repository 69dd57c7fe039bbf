//! Listings of versions.

#[path = "../../../crates/store/src/repository/versions/listing.rs"]
mod listing;

use listing::VersionPage;

/// What the listing takes from what sends requests.
mod bucket {
    pub fn generic(
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> object_store::Error {
        let source = error.into();
        object_store::Error::Generic {
            store: "S3",
            source,
        }
    }
}

/// What a page lists stands in it.
pub fn page(bytes: &[u8]) {
    let Ok((page, versions)) = VersionPage::read(bytes) else {
        return;
    };
    let text = std::str::from_utf8(bytes).unwrap();
    // Where nothing is written in another way.
    let is_literal = !text.contains(['&', '\r']) && !text.contains("<!") && !text.contains("<?");
    for version in &versions {
        let stands = |word: &str| !is_literal || text.contains(word);
        assert!(stands(&version.key), "{version:?} of {text:?}");
        assert!(stands(&version.id) || version.id == listing::BEFORE_VERSIONS);
        assert_eq!(version.is_marker(), version.size_bytes.is_none());
    }
    let ends_before = page.ends_before_versions(&versions);
    let next = page.next();
    assert!(next.as_ref().is_none_or(|(key, _)| !key.is_empty()));
    assert!(!ends_before || next.is_some());
}
