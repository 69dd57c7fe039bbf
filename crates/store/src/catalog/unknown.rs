//! What is not known of layers, so that none is removed.

use jiff::Timestamp;

use super::Catalog;
use super::mark::AllMarks;

/// Why nothing can be removed: what a damaged manifest stands on is not known, nor what a pinned layer does whose parent is
/// not there, or which is not there itself. What is left of its chain may yet be whole again.
pub fn not_known(catalog: &Catalog, marks: &AllMarks, now: Timestamp) -> Vec<String> {
    if !catalog.damaged.is_empty() {
        let damaged = catalog.damaged.iter();
        let notes = damaged.map(|(label, error)| {
            format!(
                "nothing is removed, because it is not known what layer {label} stands on: {error}"
            )
        });
        return notes.collect();
    }
    let broken = catalog.layers.iter().filter_map(|layer| {
        let error = catalog.chain_length(&layer.label).err()?;
        let pin = marks.pinned(catalog, layer, now)?.describe();
        Some(format!(
            "nothing is removed, because {error}, and {pin}; bring back what is lost from a copy of the repository, or take the \
             pin back with \"pgstrata unpin {}\"",
            layer.label
        ))
    });
    let gone = marks.pins_of_gone(catalog, now).map(|label| {
        let mut unfinished = catalog.unfinished.iter();
        let left = match unfinished.any(|left| left.label == *label) {
            true => " (some of its objects are)",
            false => "",
        };
        let unread = marks.unreadable(label);
        let unread = unread.map(|error| format!(" ({error}, which counts as a pin)"));
        let unread = unread.unwrap_or_default();
        format!(
            "nothing is removed, because layer {label} is pinned and not there any more{left}{unread}, though no expiry has \
             removed it: what it stood on, and its WAL, are needed when it comes back; bring it back with \"pgstrata rescue\" \
             or from a copy of the repository, or take its pin back with \"pgstrata unpin {label}\""
        )
    });
    broken.chain(gone).collect()
}
