//! Objects whose names are none of ours.
//!
//! Whoever may create objects in a store can give one a name that no path has: a line end in it, or nothing between two slashes.
//! The `object_store` crate then refuses the whole listing. Such an object is passed over, with a word, before it sees it.

use std::ops::Range;
use std::sync::Once;

use bytes::Bytes;
use object_store::path::Path;
use pgstrata_layer::plain::{is_plain, plain};
use quick_xml::Reader;
use quick_xml::events::Event;
use serde::Deserialize;

/// U+FEFF in UTF-8, with which Azure begins its listings.
const ENCODING: &[u8] = b"\xEF\xBB\xBF";

/// What stands for one object in a listing, or for those behind a slash: of S3 and Google Cloud Storage, and of Azure.
const ENTRIES: [&[u8]; 4] = [b"Contents", b"CommonPrefixes", b"Blob", b"BlobPrefix"];

/// Its name, as the `object_store` crate reads it.
#[derive(Deserialize)]
#[serde(rename_all_fields = "PascalCase")]
enum ListEntry {
    Contents { key: String },
    CommonPrefixes { prefix: String },
    Blob { name: String },
    BlobPrefix { name: String },
}

impl ListEntry {
    fn has_path(&self) -> bool {
        match self {
            Self::Contents { key: name } | Self::Blob { name } => has_path(name),
            // It ends with that slash.
            Self::CommonPrefixes { prefix: name } | Self::BlobPrefix { name } => {
                has_path(name.strip_suffix('/').unwrap_or(name))
            }
        }
    }
}

/// The listing without objects that have no path. One that cannot be read stays as it is: who reads it says why.
/// So does one without them, but for the mark of its encoding: a reader that counts bytes does not count that.
pub(super) fn without_strangers(mut listing: Bytes) -> Bytes {
    if listing.starts_with(ENCODING) {
        listing = listing.slice(ENCODING.len()..);
    }
    let Some(text) = std::str::from_utf8(&listing).ok() else {
        return listing;
    };
    let Some(strange) = strangers(text).filter(|strange| !strange.is_empty()) else {
        return listing;
    };
    let (mut kept, mut from) = (Vec::with_capacity(text.len()), 0);
    for entry in strange {
        kept.extend_from_slice(&listing[from..entry.start]);
        from = entry.end;
    }
    kept.extend_from_slice(&listing[from..]);
    kept.into()
}

/// Whether an object of that name, below the repository's root, is none of ours: no name that we make has such a character.
/// Says that it is passed over.
pub(super) fn is_strange(name: &str) -> bool {
    let is_strange = !name.chars().all(is_plain);
    if is_strange {
        pass_over(name);
    }
    is_strange
}

/// Whether the name is a path of an object; says that it is passed over when it is none. That of a folder, which consoles make,
/// is not worth a word.
pub(super) fn has_path(name: &str) -> bool {
    let is_path = Path::parse(name).is_ok_and(|path| path.as_ref() == name);
    if !is_path && !name.ends_with('/') {
        pass_over(name);
    }
    is_path
}

/// Says once that there is such an object: there may be thousands.
fn pass_over(name: &str) {
    static SAID: Once = Once::new();
    let name = plain(name);
    if SAID.is_completed() {
        tracing::debug!("passed over an object with the name \"{name}\"");
    }
    SAID.call_once(|| {
        tracing::warn!(
            "passed over an object with the name \"{name}\": pgstrata has not made it, and does nothing with it. Find out who can \
             write there, and delete it with the tools of the store; --log-level debug names all such objects"
        );
    });
}

/// Where the entries lie whose names are no paths, in their order. What follows the listing is not looked at, as nobody reads it.
fn strangers(listing: &str) -> Option<Vec<Range<usize>>> {
    let mut reader = Reader::from_str(listing);
    let mut found = Vec::new();
    let mut depth = 0_usize;
    loop {
        let start = usize::try_from(reader.buffer_position()).ok()?;
        let tag = match reader.read_event().ok()? {
            Event::Start(tag) => tag,
            Event::End(_) => {
                depth = depth.checked_sub(1)?;
                match depth {
                    0 => return Some(found),
                    _ => continue,
                }
            }
            Event::Eof => return Some(found),
            _ => continue,
        };
        if !ENTRIES.contains(&tag.local_name().as_ref()) {
            depth += 1;
            continue;
        }
        reader.read_to_end(tag.name()).ok()?;
        let end = usize::try_from(reader.buffer_position()).ok()?;
        let entry: ListEntry = quick_xml::de::from_str(&listing[start..end]).ok()?;
        if !entry.has_path() {
            found.push(start..end);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use super::*;

    fn kept(listing: &str) -> String {
        let kept = without_strangers(Bytes::from(listing.to_owned()));
        String::from_utf8(kept.to_vec()).unwrap()
    }

    #[test]
    fn what_has_no_path_is_cut_out_of_a_listing_and_nothing_else_is_touched() {
        let object = |key: &str| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
        let blob = |name: &str| format!("<Blob><Name>{name}</Name><Properties/></Blob>");
        let both = |entry: &dyn Fn(&str) -> String, names: &[&str]| -> String {
            names.iter().map(|name| entry(name)).collect()
        };
        let strange = [
            "a/b&#xA;c",
            "a/b\rc",
            "a//b",
            "a/../b",
            "a/",
            "/a",
            "a&#1;",
            ".",
            "<![CDATA[/a]]>",
            "a/<!-- -->/b",
        ];
        for strange in strange {
            let kinds: [&dyn Fn(&str) -> String; 2] = [&object, &blob];
            for entry in kinds {
                let head =
                    "<?xml version=\"1.0\"?>\n<R><Name>the/ bucket\n</Name><Prefix>a//</Prefix>";
                let all = both(entry, &["x&amp;y/z", strange, "ü ~/%0A", strange, "zz"]);
                let good = both(entry, &["x&amp;y/z", "ü ~/%0A", "zz"]);
                let whole = |entries: &str| format!("{head}<L>{entries}</L>\n<Token>t</Token></R>");
                assert_eq!(kept(&whole(&all)), whole(&good), "{strange}");
                let marked = |entries: &str| format!("\u{FEFF}{}", whole(entries));
                assert_eq!(kept(&marked(&all)), whole(&good), "{strange}");
                assert_eq!(kept(&marked(&good)), whole(&good));
            }
        }
        let prefixes = |names: &[&str]| {
            let all = names.iter();
            let all =
                all.map(|name| format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"));
            format!("<R>{}</R>", all.collect::<String>())
        };
        let all = prefixes(&["a/b/", "a/b&#xA;/", "a//", "c/"]);
        assert_eq!(kept(&all), prefixes(&["a/b/", "c/"]));
        let own =
            "<R><s:Contents><Owner><Name>n</Name></Owner><s:Key>a//b</s:Key></s:Contents></R>";
        assert_eq!(kept(own), "<R></R>");
        let followed = format!("{own}\"UTF-8\"?>\n<R x=>");
        assert_eq!(kept(&followed), followed.replace(own, "<R></R>"));
        for broken in [
            "",
            "<R",
            "<R><Contents></R>",
            "<R><Contents><Size>1</Size></Contents></R>",
        ] {
            assert_eq!(kept(broken), broken);
        }
    }
}
