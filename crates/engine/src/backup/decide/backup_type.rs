//! The decisions of a backup, before anything is written: which layer to make, on
//! which parent, and how to find what changed. Pure functions.

use pgstrata_layer::changeset::Changes;
use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_layer::manifest::{ChangeSource, ChangeSourceRecord, Manifest};
use pgstrata_pgdata::{Lsn, TimelineHistory, TimelineId};
use pgstrata_store::catalog::{Catalog, Layer};
use pgstrata_store::error::{Error, Kind, Result};

use crate::backup::options::{BackupType, ChangeSourceChoice};
use crate::health;

/// Which layer to make.
#[derive(Clone, Debug)]
pub(crate) struct TypeChoice<'a> {
    pub(crate) kind: LayerKind,
    /// The chain of the parent, newest first; empty for a full layer.
    pub(crate) chain: Vec<&'a Layer>,
    /// One line, for people.
    pub(crate) reason: String,
}

/// Chooses kind and parent.
pub(crate) fn choose_type<'a>(
    catalog: &'a Catalog,
    wanted: BackupType,
    parent: Option<&Label>,
) -> Result<TypeChoice<'a>> {
    let full = |reason: &str| TypeChoice {
        kind: LayerKind::Full,
        chain: Vec::new(),
        reason: reason.to_owned(),
    };
    if wanted == BackupType::Full {
        return match parent {
            None => Ok(full("asked for")),
            Some(parent) => Err(Error::new(
                Kind::Usage,
                format!("a full backup does not stand on {parent}"),
            )
            .hint("leave out the parent, or ask for an incremental backup")),
        };
    }
    let (chain, passed_over) = match parent {
        Some(label) => (Some(fit_chain(catalog, label)?), None),
        None => newest_usable(catalog),
    };
    let because = passed_over.map_or_else(String::new, |why| format!("; passed over: {why}"));
    let Some(chain) = chain else {
        return match wanted {
            BackupType::Auto if catalog.layers.is_empty() => {
                Ok(full(&format!("there is no layer to stand on{because}")))
            }
            BackupType::Auto => Ok(full(&format!("no layer is fit to stand on{because}"))),
            _ => Err(Error::new(
                Kind::NotFound,
                format!("there is no layer to stand on{because}"),
            )
            .hint("take a full backup first, or use --type auto")),
        };
    };
    let newest = &chain[0].label;
    if wanted == BackupType::Differential {
        let root = chain.len() - 1;
        return Ok(TypeChoice {
            kind: LayerKind::Differential,
            chain: chain[root..].to_vec(),
            reason: format!("asked for{because}"),
        });
    }
    let reason = match wanted {
        BackupType::Auto => format!("{newest} is fit to stand on{because}"),
        _ => format!("asked for{because}"),
    };
    Ok(TypeChoice {
        kind: LayerKind::Incremental,
        chain,
        reason,
    })
}

/// The newest layer whose chain is whole, and why newer ones are not.
fn newest_usable(catalog: &Catalog) -> (Option<Vec<&Layer>>, Option<String>) {
    let mut passed_over = catalog
        .damaged
        .last()
        .map(|(label, error)| format!("{label}: {error}"));
    for layer in catalog.layers.iter().rev() {
        match fit_chain(catalog, &layer.label) {
            Ok(chain) => return (Some(chain), passed_over),
            Err(error) => passed_over = passed_over.or_else(|| Some(error.to_string())),
        }
    }
    (None, passed_over)
}

/// The chain of `label`, when a child can stand on it: its pages are compared with digests.
fn fit_chain<'a>(catalog: &'a Catalog, label: &Label) -> Result<Vec<&'a Layer>> {
    let chain = catalog.chain(label)?;
    if let Some(found) = health::found_damaged(catalog, label) {
        let what = format!("nothing is to stand on layer {label}: {found}");
        return Err(Error::new(Kind::Damaged, what)
            .hint("take a full backup, or run \"pgstrata verify\" when it is in order again"));
    }
    let mut losses = chain.iter().filter_map(|layer| {
        let loss = catalog.losses.get(&layer.label)?;
        Some((&layer.label, loss.describe()))
    });
    match losses.next() {
        None => Ok(chain),
        Some((layer, loss)) => Err(Error::new(
            Kind::Damaged,
            format!("layer {layer} has lost digests of its pages: {loss}"),
        )
        .hint("take a full backup")),
    }
}

/// Where the new backup stands.
#[derive(Clone, Debug)]
pub(crate) struct Standpoint {
    pub(crate) start_lsn: Lsn,
    pub(crate) timeline: TimelineId,
    pub(crate) data_checksum_version: u32,
    pub(crate) from_standby: bool,
    /// The history of `timeline`, or why it is not known.
    pub(crate) history: std::result::Result<TimelineHistory, String>,
}

/// How changed pages will be found.
#[derive(Clone, Debug)]
pub(crate) struct SourceChoice {
    pub(crate) record: ChangeSourceRecord,
    pub(crate) changes: Changes,
}

/// What a layer without a parent is made of.
pub(crate) fn full_source() -> SourceChoice {
    SourceChoice {
        record: ChangeSourceRecord {
            used: ChangeSource::Everything,
            reason: "a full backup stores everything".to_owned(),
        },
        changes: Changes::Unknown {
            reason: "there is no parent".to_owned(),
        },
    }
}

/// Compares every page.
pub(crate) fn digest_source(reason: String) -> SourceChoice {
    SourceChoice {
        record: ChangeSourceRecord {
            used: ChangeSource::Digest,
            reason: reason.clone(),
        },
        changes: Changes::Unknown { reason },
    }
}

/// Finds changes by page LSNs, for a layer on a `parent` that is beyond doubt.
pub(crate) fn lsn_source(wanted: ChangeSourceChoice, parent: &Manifest) -> SourceChoice {
    let reason = match wanted {
        ChangeSourceChoice::Lsn => "asked for".to_owned(),
        _ => format!("the parent started at {} on this history", parent.start_lsn),
    };
    SourceChoice {
        record: ChangeSourceRecord {
            used: ChangeSource::Lsn,
            reason,
        },
        changes: Changes::Lsn {
            threshold: parent.start_lsn,
        },
    }
}

/// Why no source but digests may tell what changed since the parent, if so, by what the server says of
/// itself.
pub(crate) fn doubt(parent: &Manifest, now: &Standpoint) -> Option<String> {
    if parent.cluster.data_checksum_version != now.data_checksum_version {
        return Some("data checksums were switched on or off since the parent".to_owned());
    }
    if now.timeline == parent.timeline {
        // On a standby the backup starts at the last restartpoint. The parent's pages may be younger: they
        // count as unchanged only when they are equal.
        let starts = match now.from_standby {
            true => "the standby's last restartpoint is",
            false => "the WAL is",
        };
        return (now.start_lsn < parent.stop_lsn).then(|| {
            format!(
                "{starts} at {}, before the end of the parent at {}",
                now.start_lsn, parent.stop_lsn
            )
        });
    }
    match &now.history {
        Err(why) => Some(format!(
            "the history of timeline {} is not known: {why}",
            now.timeline
        )),
        Ok(history) if history.contains(parent.timeline, parent.start_lsn..parent.stop_lsn) => None,
        Ok(_) => Some(format!(
            "the parent's WAL from {} to {} on timeline {} is not part of the history of timeline {}",
            parent.start_lsn, parent.stop_lsn, parent.timeline, now.timeline
        )),
    }
}
