//! Lines of the history: the ways from the first timeline to each server that may still go on.
//!
//! When a copy archives beside its source, nobody but their owner knows which of them counts. So both are kept until
//! one is silent for so long that nobody backs it up any more. A timeline that ended where another one began, as after
//! a failover, is no line of its own: all of it lies on the other's.
//!
//! Whoever removes layers looks at the lines: an expiry for its rules, a merge for what a server can still be restored from.

use std::collections::{BTreeSet, HashSet};
use std::iter;

use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::retention::HistoryLine;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::{TimelineHistory, TimelineId};
use pgstrata_store::archive::{Archive, ArchivedWal};
use pgstrata_store::catalog::{self, Catalog, Layer};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Result;

use crate::health;

/// Who stores nothing for so long is given up: a server that is backed up once a month is not, with a week to spare.
pub(crate) const SILENCE: SignedDuration = SignedDuration::from_hours(40 * 24);

/// Where a layer lies in the history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) timeline: TimelineId,
    pub(crate) start: Lsn,
    pub(crate) stop: Lsn,
    pub(crate) finished_at: Timestamp,
    /// Whether a restore can begin with it.
    pub(crate) usable: bool,
}

impl Placed {
    pub(crate) fn of(layer: &Layer, usable: bool) -> Self {
        let manifest = &layer.manifest;
        Self {
            timeline: manifest.timeline,
            start: manifest.start_lsn,
            stop: manifest.stop_lsn,
            finished_at: manifest.finished_at,
            usable,
        }
    }
}

/// The lines that are kept, and those that are not any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    pub(crate) lines: Vec<HistoryLine>,
    /// The last timeline of each line.
    pub(crate) alive: Vec<TimelineId>,
    /// Timelines with backups that are given up, and when something of them was stored last.
    pub(crate) given_up: Vec<(TimelineId, Timestamp)>,
}

/// A timeline and the way to it.
struct LineWay {
    history: TimelineHistory,
    line: HistoryLine,
    last_sign: Timestamp,
}

/// The layers that servers which may go on are restored from, and what else must stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineBases {
    /// The newest of each line that can be restored, with the line's last timeline.
    pub(crate) layers: Vec<(ParentRef, TimelineId)>,
    /// The archive, by which that was found out.
    pub(crate) archived: Option<ArchivedWal>,
    /// Why it is not known which they are.
    pub(crate) notes: Vec<String>,
}

impl LineBases {
    /// Finds them. A layer whose state a merged one has is none: that one is.
    ///
    /// # Errors
    /// When the repository cannot be read.
    pub(crate) async fn find(cluster: &ClusterRepository, now: Timestamp) -> Result<Self> {
        let catalog = catalog::examine_as_verified(cluster).await?;
        let mut notes = Vec::new();
        let archived = archived(cluster, &catalog, &mut notes).await?;
        let whole = health::usable(&catalog, Some(&archived));
        let replaced = whole.iter().flat_map(|layer| &layer.manifest.replaces);
        let replaced: HashSet<&ParentRef> = replaced.collect();
        let whole: HashSet<ParentRef> = whole.iter().map(|layer| layer.reference()).collect();
        let placed = catalog.layers.iter().map(|layer| {
            let own = layer.reference();
            Placed::of(layer, whole.contains(&own) && !replaced.contains(&own))
        });
        let placed: Vec<Placed> = placed.collect();
        let found = lines(&placed, &archived, now, SILENCE);
        let newest = found.lines.iter().zip(&found.alive);
        let newest = newest.filter_map(|(line, timeline)| {
            let at = line.layers.iter().rfind(|at| placed[**at].usable)?;
            Some((catalog.layers.get(*at)?.reference(), *timeline))
        });
        Ok(Self {
            layers: newest.collect(),
            archived: Some(archived),
            notes,
        })
    }
}

impl LineBases {
    /// Of the layers `going` those that tell that WAL may be of two servers, each with why it stays.
    pub(crate) fn witnesses(&self, catalog: &Catalog, going: &[Label]) -> Vec<(Label, String)> {
        let archived = self.archived.as_ref();
        archived.map_or_else(Vec::new, |archived| {
            health::beside::witnesses(catalog, archived, going)
        })
    }
}

/// The archive with its histories. When one cannot be read, or is missing, nobody knows which layers lead where: `notes` say so.
///
/// # Errors
/// When the repository cannot be read.
pub(crate) async fn archived(
    cluster: &ClusterRepository,
    catalog: &Catalog,
    notes: &mut Vec<String>,
) -> Result<ArchivedWal> {
    let archive = Archive::load(cluster).await?;
    let mut archived = archive.list(iter::empty()).await?;
    archive.read_short(&mut archived).await?;
    let unknown = |why: &dyn std::fmt::Display| {
        format!("nothing is removed, because it is not known which timelines begin where: {why}")
    };
    archive.read_histories(&mut archived).await?;
    let unreadable = archived.unreadable_histories().values().next();
    notes.extend(unreadable.map(|error| unknown(error)));
    let lost = health::lost_histories(catalog, &archived, Timestamp::now()).into_iter();
    let missing = lost.filter(|lost| !archived.has_history(lost.timeline));
    notes.extend(missing.map(|lost| unknown(&lost.describe())));
    Ok(archived)
}

/// Finds the lines. `patience` is how long one may be silent. Pure.
pub(crate) fn lines(
    layers: &[Placed],
    archived: &ArchivedWal,
    now: Timestamp,
    patience: SignedDuration,
) -> Lines {
    let of_layers = layers.iter().map(|layer| layer.timeline);
    // One that was just begun has nothing but its history.
    let of_archive = archived.by_timeline().map(|(timeline, _)| timeline);
    let timelines: BTreeSet<TimelineId> = of_archive.chain(of_layers).collect();
    let ways: Vec<LineWay> = timelines
        .into_iter()
        .map(|timeline| way(layers, archived, archived.history(timeline)))
        .collect();
    let leads_on = |way: &&LineWay| {
        let mut others = ways.iter().filter(|other| other.goes_on_from(way));
        let ends = others.any(|other| way.ends_where(other, layers, archived));
        let usable = way.line.layers.iter().any(|at| layers[*at].usable);
        usable && !ends
    };
    let leading: Vec<&LineWay> = ways.iter().filter(leads_on).collect();
    let latest = leading.iter().map(|way| way.last_sign).max();
    let silent = |way: &LineWay| {
        let age = now.duration_since(way.last_sign);
        age > patience && Some(way.last_sign) != latest
    };
    let mut found = Lines::default();
    for way in leading {
        let timeline = way.history.timeline();
        if !silent(way) {
            found.alive.push(timeline);
            found.lines.push(way.line.clone());
        } else if layers.iter().any(|layer| layer.timeline == timeline) {
            found.given_up.push((timeline, way.last_sign));
        }
    }
    found
}

fn way(layers: &[Placed], archived: &ArchivedWal, history: TimelineHistory) -> LineWay {
    let timeline = history.timeline();
    let on = layers
        .iter()
        .enumerate()
        .filter(|(_, layer)| history.contains(layer.timeline, layer.start..layer.stop));
    let line = HistoryLine {
        layers: on.map(|(at, _)| at).collect(),
    };
    let begin = history
        .entry(timeline)
        .map_or(Lsn::INVALID, |own| own.begin);
    let wal = archived.tail(timeline, begin.segment(archived.segment_size()));
    let backups = layers.iter().filter(|layer| layer.timeline == timeline);
    let backups = backups.map(|layer| layer.finished_at);
    let signs = backups
        .chain(wal.map(|wal| wal.newest_at))
        .chain(archived.history_stored_at(timeline));
    LineWay {
        last_sign: signs.max().unwrap_or(Timestamp::MIN),
        history,
        line,
    }
}

impl LineWay {
    /// Whether this way passes through the other's timeline, and leaves it.
    fn goes_on_from(&self, other: &Self) -> bool {
        self.history
            .switch_point(other.history.timeline())
            .is_some()
    }

    /// Whether nothing is there of its timeline beyond the point where the other way leaves it. The segment of that
    /// point may be there when it was stored before the promotion: that is what a failover loses.
    fn ends_where(&self, other: &Self, layers: &[Placed], archived: &ArchivedWal) -> bool {
        let timeline = self.history.timeline();
        let Some(fork) = other.history.switch_point(timeline) else {
            return false;
        };
        if layers
            .iter()
            .any(|layer| layer.timeline == timeline && layer.stop > fork)
        {
            return false;
        }
        let number = fork.segment(archived.segment_size());
        let Some(beyond) = archived.tail(timeline, number) else {
            return true;
        };
        let mut entries = other.history.entries().iter();
        let next = entries.find(|entry| entry.begin == fork && entry.timeline > timeline);
        let promoted = next.and_then(|next| archived.history_stored_at(next.timeline));
        beyond.last == number && promoted.is_some_and(|at| beyond.newest_at < at)
    }
}

#[cfg(test)]
mod tests;
