//! What is said of epochs of which no reader has a key box.

use crate::error::{Error, Kind};

/// What to do when no reader has a key box.
pub(super) const BRING_BACK: &str = "bring the epoch's key boxes back from a copy of the repository or from an older version of these objects; without them no identity opens it. Failing that, begin another cluster with \"pgstrata init --encrypt\"";

/// What to do about something in the place of a key box that is none.
pub(super) const NO_BOX: &str = "bring it back from a copy of the repository or from an older version of it; when somebody has added it, delete it: \"pgstrata rescue --since TIME --dry-run\" lists what was added since a moment. Whose box it was comes back with \"pgstrata key add\"";

/// What is said of something in the place of an epoch's record that is none.
pub(super) fn no_record(key: &str, why: Error) -> Error {
    let what =
        format!("\"{key}\" is not the record of an epoch that this cluster has begun: {why}");
    Error::new(Kind::Damaged, what)
        .hint("what is sealed in other epochs is read all the same. If you have begun that epoch, bring the record back from a copy of the repository or from an older version of it; if somebody has added it, delete it: \"pgstrata rescue --since TIME --dry-run\" lists what was added since a moment. \"pgstrata key rotate\" begins a new epoch beside it, and backups go on: take out again with \"key remove\" who was taken out in an epoch that is lost")
        .for_lost_epoch()
}

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
