//! What is said of epochs of which no reader has a key box.

use crate::error::{Error, Kind};

/// What to do when no reader has a key box.
pub(super) const BRING_BACK: &str = "bring the epoch's key boxes back from a copy of the repository or from an older version of these objects; without them no identity opens it. Failing that, begin another cluster with \"pgstrata init --encrypt\"";

/// What is wrong with epochs that have no reader.
pub(super) fn nobody_opens(epochs: &[u32]) -> String {
    let numbers: Vec<String> = epochs.iter().map(ToString::to_string).collect();
    let word = match epochs.len() {
        1 => "epoch",
        _ => "epochs",
    };
    format!(
        "nobody can open what was sealed in {word} {}: no key box of a reader is there",
        numbers.join(", ")
    )
}

/// The error of epochs that have no reader, if there are such.
pub(super) fn unread_error(epochs: &[u32]) -> Option<Error> {
    match epochs.is_empty() {
        true => None,
        false => Some(Error::new(Kind::Damaged, nobody_opens(epochs)).hint(BRING_BACK)),
    }
}
