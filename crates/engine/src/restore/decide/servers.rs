//! Whether the WAL on the way is of one server.
//!
//! Two servers of one timeline have no WAL that is told apart by names, as branches have, and mostly both are the same one,
//! moved: so a layer that may be of another server is a note. But recovery from a layer before it, along WAL that its backup
//! alone has stored, would go on from the WAL of the one with that of the other. Whoever wants that has to say so.

use std::collections::BTreeSet;

use pgstrata_pgdata::{Lsn, WalSegment};
use pgstrata_store::archive::ArchivedWal;
use pgstrata_store::error::{Error, Kind, Result};

use super::select::{BesideLayer, Candidate, Request, Selection};
use crate::health::beside;
use crate::restore::target::Target;

/// The selection with notes about layers on the way that may be of another server than one before them.
///
/// # Errors
/// `Target` when recovery may go from the WAL of one server into that of another, and nobody has named the layer.
pub(super) fn one_server(
    mut selection: Selection,
    request: &Request<'_>,
    archive: &ArchivedWal,
    candidates: &[Candidate],
) -> Result<Selection> {
    let lost = request.lost.iter().filter_map(|lost| lost.known.as_ref());
    let known: Vec<&Candidate> = candidates.iter().chain(lost).collect();
    let size = archive.segment_size();
    let begins = known
        .iter()
        .map(|layer| WalSegment::containing(layer.timeline, layer.start, size));
    let begins: BTreeSet<WalSegment> = begins.collect();
    let chosen = &candidates[selection.candidate];
    let until = until(&selection, request, chosen);
    // Who names a layer means the server of that one.
    let meant = |layer: &Candidate| request.label.is_some() && layer.stop <= chosen.stop;
    for layer in known {
        let range = layer.start..layer.stop;
        let first = WalSegment::containing(layer.timeline, layer.start, size);
        let Some(other) = layer.beside.as_ref().filter(|_| {
            let passed = selection.history.contains(layer.timeline, range.clone());
            passed && first.start_lsn(size) < until && !meant(layer)
        }) else {
            continue;
        };
        let is_behind = chosen.start < layer.start
            && beside::leads_to(archive, (chosen.timeline, chosen.start), first);
        if is_behind && !beside::was_archived((layer.timeline, range), archive, &begins) {
            let mixed = mixed((layer, other), chosen, first.start_lsn(size));
            if request.label.is_none() {
                return Err(mixed);
            }
            selection.notes.push(mixed.to_string());
        } else if other.is_there {
            selection.notes.push(may_be_of_another(layer, other));
        }
    }
    Ok(selection)
}

/// The position behind which nothing is replayed.
fn until(selection: &Selection, request: &Request<'_>, chosen: &Candidate) -> Lsn {
    match (selection.stops_at, request.target) {
        (Some(at), _) => at,
        (None, Target::Lsn(lsn)) => *lsn,
        (None, Target::Immediate | Target::None) => chosen.stop,
        (None, _) => Lsn::new(u64::MAX),
    }
}

fn mixed((layer, other): (&Candidate, &BesideLayer), chosen: &Candidate, from: Lsn) -> Error {
    let (label, timeline) = (&layer.label, layer.timeline);
    let BesideLayer {
        label: of, reason, ..
    } = other;
    let older = &chosen.label;
    Error::new(
        Kind::Target,
        format!(
            "recovery from layer {older} may go from the WAL of one server into that of another: layer {label} is not known to come \
             after {of}, which is of the same timeline {timeline} ({reason}), and its backup has stored WAL from {from} on that no archiver \
             is known to have brought"
        ),
    )
    .hint(format!(
        "Say what is meant. The server of {of}: a target before {from}, where all WAL is of one server, or its newest layer by name \
         with --target-type immediate. The server of {label}: that layer, or one behind it, by name. Who knows that both are one \
         server names the layer to begin with: {older}."
    ))
}

fn may_be_of_another(layer: &Candidate, other: &BesideLayer) -> String {
    let (label, timeline) = (&layer.label, layer.timeline);
    let BesideLayer {
        label: other,
        reason,
        ..
    } = other;
    format!(
        "layer {label} may be of another server than layer {other}, which is of the same timeline {timeline}: the data \
         directory of {label} is not known to come after {other} ({reason}). Of two such servers the archive holds \
         the WAL of one. If the other is meant, restore its newest layer by name with --target-type immediate"
    )
}
