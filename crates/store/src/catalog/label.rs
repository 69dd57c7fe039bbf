//! Choosing a label: later than all there are, and claimed before anything else is written.

use bytes::Bytes;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::label::{Label, LayerKind};

use super::Catalog;
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// Backups that started in the same second each move one second on.
const ATTEMPTS: u32 = 30;

/// So many labels are passed over because the store hides what has their names: each costs some seconds, and a store that
/// hides all would otherwise hold up a backup for minutes.
const MOST_HIDDEN: usize = 5;

/// How far ahead of a right clock labels may be dated: so many that each took less than a second are not made in a row.
const DATED_AHEAD: SignedDuration = SignedDuration::from_mins(1);

impl Catalog {
    /// The next free time for a label: now, or the second after the latest label,
    /// that of a failed audit included: it must not cast doubt on a newer layer.
    fn next_time(&self, now: Timestamp, distrusted: Option<&Label>) -> Result<DateTime> {
        let finished = self.layers.iter().map(|layer| &layer.label);
        let unfinished = self.unfinished.iter().map(|unfinished| &unfinished.label);
        let damaged = self.damaged.iter().map(|(label, _)| label);
        let merged: Vec<Label> = self.merged_labels().filter_map(Label::parse).collect();
        let others = unfinished
            .chain(damaged)
            .chain(&self.abandoned)
            .chain(distrusted);
        let labels = finished.chain(others).chain(&merged);
        let latest = labels.map(Label::own_stamp).max();
        let now = now.to_zoned(TimeZone::UTC).datetime();
        let latest = latest.and_then(|stamp| DateTime::strptime("%Y%m%d-%H%M%S", stamp).ok());
        let Some(latest) = latest else { return Ok(now) };
        if clock_is_behind(latest, now) {
            tracing::warn!(%latest, %now, "the clock is behind the latest layer: the new one is dated after it");
        }
        Ok(second_after(latest)?.max(now))
    }
}

/// What a new layer is to be.
#[derive(Clone, Copy, Debug)]
pub struct LayerPlan<'a> {
    /// What it holds.
    pub kind: LayerKind,
    /// The newest layer that it stands on.
    pub parent: Option<&'a Label>,
}

/// Claims a label for a new layer. The claim's label is filled in here.
///
/// # Errors
/// When the repository cannot be written.
pub async fn claim(
    cluster: &ClusterRepository,
    catalog: &Catalog,
    plan: LayerPlan<'_>,
    mut record: ClaimRecord,
) -> Result<Label> {
    let distrusted = last_distrusted(cluster).await?;
    let mut time = catalog.next_time(record.started_at, distrusted.as_ref())?;
    let mut hidden = Vec::new();
    for _ in 0..ATTEMPTS {
        let label = match plan.parent {
            Some(parent) => parent.successor(plan.kind, time),
            None => Label::full(time),
        };
        label.as_str().clone_into(&mut record.label);
        let body = Bytes::from(claim::encode(&record));
        let key = cluster.name.claim_key(&label);
        match claim_one(cluster, &label, body.clone()).await {
            Ok(LabelClaim::Ours) => return Ok(label),
            Ok(LabelClaim::GivenUp) => take_back(&cluster.repository, &key, &body).await,
            Ok(LabelClaim::Hidden(error)) => {
                tracing::warn!(%label, %error, "a label is passed over");
                take_back(&cluster.repository, &key, &body).await;
                hidden.push(error);
                if hidden.len() == MOST_HIDDEN {
                    break;
                }
            }
            Err(error) if error.kind() == Kind::AlreadyExists => {}
            Err(error) => {
                take_back(&cluster.repository, &key, &body).await;
                return Err(error.while_doing(format!("could not claim layer {label}")));
            }
        }
        time = second_after(time)?;
    }
    let act = "could not claim a label for a new layer";
    Err(match hidden.pop() {
        Some(error) => error.while_doing(act),
        None => {
            let what = format!("{act}: {ATTEMPTS} in a row were taken by others");
            Error::new(Kind::Busy, what)
        }
    })
}

/// What came of an attempt to take a label.
enum LabelClaim {
    Ours,
    /// It was given up since the catalog was loaded: the claim has gone then, the record of it has not, and what its maker
    /// still sends would meet what we store.
    GivenUp,
    /// The name is taken by what the store does not show. Some refuse a name in a bucket with versions whose object was deleted,
    /// as the claim is of a backup that failed in this second.
    Hidden(Error),
}

async fn claim_one(cluster: &ClusterRepository, label: &Label, body: Bytes) -> Result<LabelClaim> {
    let (repository, name) = (&cluster.repository, &cluster.name);
    match repository.create(&name.claim_key(label), body).await {
        Err(error) if error.kind() == Kind::Repository && error.is_of_one_object() => {
            return Ok(LabelClaim::Hidden(error));
        }
        created => created?,
    }
    let record = repository.size(&name.manifest_key(label)).await?;
    Ok(match record {
        None => LabelClaim::Ours,
        Some(_) => LabelClaim::GivenUp,
    })
}

/// A claim that stays would look like somebody at work: one of a label that we do not take, or one that was created although
/// we were told otherwise.
async fn take_back(repository: &Repository, key: &str, body: &Bytes) {
    let ours = repository.get(key).await;
    if ours.is_ok_and(|found| found == *body)
        && let Err(error) = repository.delete(key).await
        && !repository.note_left(&error)
    {
        tracing::warn!(key, %error, "could not take back a claim: it is harmless, and listed by info");
    }
}

/// The label of the last backup whose audit failed, if one did.
///
/// # Errors
/// When the repository cannot be listed.
pub async fn last_distrusted(cluster: &ClusterRepository) -> Result<Option<Label>> {
    let names = cluster
        .repository
        .list_names(&cluster.name.distrust_prefix())
        .await?;
    Ok(names
        .iter()
        .filter_map(|name| Label::parse(name))
        .max_by(|a, b| a.own_stamp().cmp(b.own_stamp())))
}

/// Backups and merges that begin in one second are dated a second apart, so the latest label may be ahead of any clock.
fn clock_is_behind(latest: DateTime, now: DateTime) -> bool {
    latest.duration_since(now) > DATED_AHEAD
}

fn second_after(time: DateTime) -> Result<DateTime> {
    time.checked_add(SignedDuration::from_secs(1))
        .map_err(|error| {
            Error::new(
                Kind::Refused,
                format!("could not date a new layer after {time}: {error}"),
            )
            .hint("a layer, a claim or the record of an audit has that date in its name, which no clock has shown: if somebody has added it, delete it; \"pgstrata rescue --since TIME --dry-run\" lists what was added since a moment")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_are_dated_a_second_apart_cast_no_doubt_on_the_clock() {
        let now = jiff::civil::date(2026, 11, 22).at(9, 0, 5, 950_000_000);
        let stamp = |seconds: i64| {
            let time = now + SignedDuration::from_secs(seconds);
            let label = Label::full(time);
            DateTime::strptime("%Y%m%d-%H%M%S", label.own_stamp()).unwrap_or(now)
        };
        assert!(!clock_is_behind(stamp(-1), now));
        assert!(!clock_is_behind(stamp(0), now));
        // What the third of three quick backups finds.
        assert!(!clock_is_behind(stamp(1), now));
        assert!(!clock_is_behind(stamp(2), now));
        assert!(clock_is_behind(stamp(120), now));
    }
}
