//! Marks on a layer: that it is pinned, or not any more, and what people have written about it.
//!
//! The marks of a layer are a list that only grows: each is an object with the next number, created once. So nothing is
//! overwritten, two who mark at the same time come one after the other, and whoever may create objects may take a pin
//! back without the right to delete any. What the list says is what is left when it is read in order.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::manifest::ParentRef;
use crate::record;

const KIND: &str = "mark";

/// A note or a value has at most so many bytes: it is for people, and every listing reads it.
pub const LONGEST_TEXT: usize = 1000;

/// A key of an annotation has at most so many bytes.
const LONGEST_KEY: usize = 63;

/// One mark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MarkRecord {
    /// The layer.
    pub layer: ParentRef,
    /// Its number among those of the label, from 0.
    pub number: u32,
    /// What it says.
    pub says: Mark,
    /// Host name of who made it.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// When.
    pub marked_at: Timestamp,
    /// Program and version.
    pub written_by: String,
}

/// What a mark says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// Whatever the rules are, the layer stays.
    Pin(Pin),
    /// The rules decide again.
    Unpin(Unpin),
    /// Something for people.
    Annotate(Annotation),
}

/// A pin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// It holds up to this moment, which is part of that time; for ever without.
    pub until: Option<Timestamp>,
    /// Why; for people.
    pub note: Option<String>,
}

/// The end of a pin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unpin {}

/// A key with a value, or without one from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Annotation {
    /// Lower-case letters, digits, `.`, `_` and `-`.
    pub key: String,
    /// One line; nothing takes the key away.
    pub value: Option<String>,
}

/// What the marks of a layer say together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The pin, in force or not.
    pub pin: Option<Pin>,
    /// The annotations.
    pub annotations: BTreeMap<String, String>,
}

impl Marks {
    /// What marks say in the order of their numbers.
    #[must_use]
    pub fn of(marks: impl IntoIterator<Item = Mark>) -> Self {
        let mut all = Self::default();
        for mark in marks {
            match mark {
                Mark::Pin(pin) => all.pin = Some(pin),
                Mark::Unpin(_) => all.pin = None,
                Mark::Annotate(Annotation { key, value }) => match value {
                    Some(value) => drop(all.annotations.insert(key, value)),
                    None => drop(all.annotations.remove(&key)),
                },
            }
        }
        all
    }

    /// Whether the layer is pinned at that time.
    #[must_use]
    pub fn is_pinned(&self, now: Timestamp) -> bool {
        let pin = self.pin.as_ref();
        pin.is_some_and(|pin| pin.until.is_none_or(|until| now <= until))
    }
}

/// Why a mark cannot be made: a text that is too long or of several lines, a key that is none.
#[must_use]
pub fn complaint(mark: &Mark) -> Option<String> {
    let text = |name: &str, text: &Option<String>| {
        let text = text.as_ref()?;
        let long = text.len() > LONGEST_TEXT;
        let lines = text.chars().any(char::is_control);
        (long || lines).then(|| format!("{name} must be one line of at most {LONGEST_TEXT} bytes"))
    };
    match mark {
        Mark::Pin(pin) => text("a note", &pin.note),
        Mark::Unpin(_) => None,
        Mark::Annotate(annotation) => {
            let key = &annotation.key;
            let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"._-".contains(&c);
            if key.is_empty() || key.len() > LONGEST_KEY || !key.bytes().all(fits) {
                return Some(format!(
                    "\"{key}\" is not a key: use up to {LONGEST_KEY} of: lower-case letters, digits, \".\", \"_\", \"-\""
                ));
            }
            text("a value", &annotation.value)
        }
    }
}

/// The object's bytes.
#[must_use]
pub fn encode(record: &MarkRecord) -> Vec<u8> {
    record::encode(KIND, record)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged or of another version.
pub fn decode(bytes: &[u8]) -> Result<MarkRecord> {
    record::decode_checked(KIND, bytes, |found: &MarkRecord| {
        ParentRef::check([&found.layer])?;
        match complaint(&found.says) {
            None => Ok(()),
            Some(complaint) => Err(Error::damaged(complaint)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::require_damage_found;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap_or_default()
    }

    fn annotate(key: &str, value: Option<&str>) -> Mark {
        Mark::Annotate(Annotation {
            key: key.to_owned(),
            value: value.map(str::to_owned),
        })
    }

    fn pin(until: Option<i64>) -> Mark {
        Mark::Pin(Pin {
            until: until.map(time),
            note: Some("before the move".to_owned()),
        })
    }

    fn record(says: Mark) -> MarkRecord {
        MarkRecord {
            layer: ParentRef {
                label: "20261121-093305F".to_owned(),
                manifest_digest: "0f".repeat(32),
            },
            number: 3,
            says,
            host: "db1".to_owned(),
            pid: 4711,
            marked_at: Timestamp::UNIX_EPOCH,
            written_by: "a test".to_owned(),
        }
    }

    #[test]
    fn each_reads_back_and_survives_no_flip() {
        for says in [
            pin(Some(1000)),
            pin(None),
            Mark::Unpin(Unpin {}),
            annotate("ticket", Some("DB-1")),
            annotate("ticket", None),
        ] {
            let record = record(says);
            let bytes = encode(&record);
            assert_eq!(decode(&bytes).ok(), Some(record));
            require_damage_found(&bytes, decode);
        }
        for says in [
            annotate("", Some("x")),
            annotate("A b", Some("x")),
            annotate("x", Some("two\nlines")),
            annotate("x", Some(&"x".repeat(LONGEST_TEXT + 1))),
        ] {
            assert!(complaint(&says).is_some());
            assert!(decode(&encode(&record(says))).is_err());
        }
    }

    #[test]
    fn the_last_word_counts() {
        let all = |marks: &[Mark]| Marks::of(marks.iter().cloned());
        assert!(all(&[pin(None)]).is_pinned(time(1 << 33)));
        assert!(!all(&[pin(None), Mark::Unpin(Unpin {})]).is_pinned(time(0)));
        let again = all(&[pin(Some(10)), Mark::Unpin(Unpin {}), pin(Some(20))]);
        assert!(again.is_pinned(time(20)) && !again.is_pinned(time(21)));
        let notes = all(&[
            annotate("a", Some("1")),
            annotate("b", Some("2")),
            annotate("a", Some("3")),
            annotate("b", None),
        ]);
        let expected = BTreeMap::from([("a".to_owned(), "3".to_owned())]);
        assert_eq!((notes.annotations, notes.pin), (expected, None));
    }
}
