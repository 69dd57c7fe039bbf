//! Which source tells what changed since the parent: the best that can answer.
//!
//! A parent that is not proved to lie in this server's past is compared by digest, whoever
//! else may say that he knows the changes. Otherwise a source that cannot answer is passed over,
//! and the layer's record says why. Page LSNs read every page, and answer when each
//! change of a page gives it a new LSN. Digests, the last one, always answer. They are also for
//! files that somebody has written past the server: he tells the tracker alone.

use std::result::Result as Answer;

use pgstrata_layer::changeset::{ChangedBlocks, Changes};
use pgstrata_layer::manifest::{ChangeSource, ChangeSourceRecord, Manifest};
use pgstrata_pgdata::unlogged::HintLogging;
use pgstrata_store::catalog::Layer;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};

use super::audit;
use super::backup_type::{SourceChoice, Standpoint, digest_source, doubt, full_source, lsn_source};
use super::harmless::hint_logging;
use super::past::{self, ThisRun};
use super::prepare::Ready;
use crate::backup::options::ChangeSourceChoice;
use crate::server::Tracker;
use crate::server::summary::{Stretch, Summaries};

/// How a reason begins that says why the tracker did not answer.
const NOT_BY_TRACKER: &str = "not by tracker";

/// What a source is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Whether it would answer: nothing has started.
    Would,
    /// What changed: the backup has started.
    What,
}

/// Who asks, and since when.
#[derive(Clone, Copy)]
pub(crate) struct Search<'a> {
    pub(crate) ready: &'a Ready,
    pub(crate) cluster: &'a ClusterRepository,
    pub(crate) wanted: ChangeSourceChoice,
    pub(crate) parent: Option<&'a Layer>,
}

/// Finds the changes since the parent with the best source that knows them.
pub(crate) async fn find(
    search: Search<'_>,
    now: &Standpoint,
    question: Question,
) -> Result<SourceChoice> {
    let Search { ready, wanted, .. } = search;
    let Some(layer) = search.parent else {
        return Ok(full_source());
    };
    let parent = &layer.manifest;
    if wanted == ChangeSourceChoice::Digest {
        return Ok(digest_source("asked for".to_owned()));
    }
    if let Some(why) = in_doubt(search, layer, now).await? {
        return Ok(doubted(why, question));
    }
    let mut passed_over = Vec::new();
    if matches!(
        wanted,
        ChangeSourceChoice::Auto | ChangeSourceChoice::Tracker
    ) {
        match by_tracker(ready, parent, question).await? {
            Ok(choice) => return Ok(choice),
            Err(why) => passed_over.push(format!("{NOT_BY_TRACKER}: {why}")),
        }
        // Somebody may have reset it since the doubts were looked for: then no other source knows, either.
        if let Some(why) = reset_doubt(ready, parent).await {
            return Ok(doubted(why, question));
        }
    }
    let run = ThisRun::look(ready).await;
    if wanted != ChangeSourceChoice::Lsn {
        match by_summary(ready, &run, parent, now, question).await? {
            Ok(choice) => return Ok(choice.despite(&passed_over, search, parent, question)),
            Err(why) => passed_over.push(format!("not by summary: {why}")),
        }
    }
    let last = match lsn_doubt(ready, layer, &run) {
        Some(why) => {
            passed_over.push(format!("not by lsn: {why}"));
            digest_source("the parent is compared page by page".to_owned())
        }
        None => lsn_source(wanted, parent),
    };
    Ok(last.despite(&passed_over, search, parent, question))
}

/// Compares every page, and says why.
fn doubted(why: String, question: Question) -> SourceChoice {
    if question == Question::What {
        tracing::warn!("changed pages will be found by digest: {why}");
    }
    digest_source(why)
}

/// Why page LSNs do not tell what changed since `parent`, if so. Without logged hints `VACUUM` sets the bit "all visible"
/// of a heap page under the LSN that the page had (`visibilitymap_set` in PostgreSQL). The visibility map, which is
/// compared by digest, would come without the heap's bit; later changes of the page would then leave the map as it is,
/// and queries that look at the map alone would see rows that are gone. A standby that replays the record of such a `VACUUM`
/// goes by its own setting, and has its primary's in the control file.
fn lsn_doubt(ready: &Ready, parent: &Layer, run: &ThisRun) -> Option<String> {
    let facts = ready.session.facts();
    if hint_logging(ready, parent, run) == HintLogging::Always {
        return None;
    }
    if facts.wal_log_hints {
        return Some(
            "pages may have changed under the LSN that they had: data checksums are off, the server was started since the parent, and \
             wal_log_hints may have been off before"
                .to_owned(),
        );
    }
    let here = match facts.in_recovery {
        true => " on this standby, whatever its primary has",
        false => "",
    };
    Some(format!(
        "pages change under the LSN that they had, because neither data checksums nor wal_log_hints are on{here}"
    ))
}

/// Why no source may be believed that tells what changed since `parent`, if so.
async fn in_doubt(search: Search<'_>, parent: &Layer, now: &Standpoint) -> Result<Option<String>> {
    let Search { ready, wanted, .. } = search;
    let manifest = &parent.manifest;
    if let Some(why) = audit::distrust(search.cluster, manifest).await? {
        return Ok(Some(why));
    }
    if let Some(why) = doubt(manifest, now) {
        return Ok(Some(why));
    }
    let Some(why) = past::doubt(ready, parent).await else {
        return Ok(reset_doubt(ready, manifest).await);
    };
    // Said with it: whether the tracker could have answered.
    let tracker = match (&ready.tracker, &manifest.tracker_token) {
        _ if wanted == ChangeSourceChoice::Lsn => None,
        (Ok(tracker), Some(token)) => {
            let answer = tracker.doubt(token).await;
            answer.unwrap_or_else(|error| Some(error.to_string()))
        }
        (Err(none), Some(_)) => Some(none.reason.clone()),
        _ => None,
    };
    Ok(Some(match tracker {
        Some(also) => format!("{why}; {NOT_BY_TRACKER}: {also}"),
        None => why,
    }))
}

/// Why files of the server may have been written past it since the backup of `parent` began, if so.
async fn reset_doubt(ready: &Ready, parent: &Manifest) -> Option<String> {
    let why = past::reset_since(ready, parent).await?;
    let label = &parent.label;
    Some(format!(
        "files of the server may have been written past it since the parent {label} began; {NOT_BY_TRACKER}: {why}"
    ))
}

impl SourceChoice {
    /// Notes which better sources could not answer, aloud when somebody counts on them.
    fn despite(
        mut self,
        passed_over: &[String],
        search: Search<'_>,
        parent: &Manifest,
        question: Question,
    ) -> Self {
        if !passed_over.is_empty() {
            let (why, used) = (passed_over.join("; "), self.record.used);
            if question == Question::What && is_news(search, parent, used) {
                let used = used.as_str();
                tracing::warn!("changed pages will be found by {used}, {why}");
            }
            self.record.reason = format!("{}; {why}", self.record.reason);
        }
        self
    }
}

/// Whether somebody counts on a better source than the one that is used.
fn is_news(search: Search<'_>, parent: &Manifest, used: ChangeSource) -> bool {
    let was_by_summary = parent.change_source.used == ChangeSource::Summary;
    // Of this server or of its primary, which is not enough.
    let set_for_lsns = search.ready.control.wal_log_hints && used == ChangeSource::Digest;
    search.wanted != ChangeSourceChoice::Auto
        || set_for_lsns
        || parent.tracker_token.is_some()
        || was_by_summary && used != ChangeSource::Summary
}

/// The changes by the tracker, or why it does not know them.
async fn by_tracker(
    ready: &Ready,
    parent: &Manifest,
    question: Question,
) -> Result<Answer<SourceChoice, String>> {
    let tracker = match &ready.tracker {
        Ok(tracker) => tracker,
        Err(none) => return Ok(Err(none.reason.clone())),
    };
    let Some(token) = &parent.tracker_token else {
        return Ok(Err(format!(
            "the parent {} was made without it",
            parent.label
        )));
    };
    // Asked first, so that an error of the answer itself is an error.
    match tracker.doubt(token).await {
        Ok(None) => {}
        Ok(Some(why)) => return Ok(Err(why)),
        Err(error) => return Ok(Err(error.to_string())),
    }
    let blocks = match question {
        Question::Would => ChangedBlocks::default(),
        Question::What => match tracker.changes(token).await {
            Ok(blocks) => blocks,
            Err(error) => return Ok(Err(error.to_string())),
        },
    };
    Ok(Ok(SourceChoice {
        record: ChangeSourceRecord {
            used: ChangeSource::Tracker,
            reason: format!("the server knows what changed since token {token}"),
        },
        changes: Changes::Exact(blocks),
    }))
}

/// The changes by WAL summaries, or why they do not tell.
async fn by_summary(
    ready: &Ready,
    run: &ThisRun,
    parent: &Manifest,
    now: &Standpoint,
    question: Question,
) -> Result<Answer<SourceChoice, String>> {
    let summaries = match Summaries::of(&ready.session).await? {
        Ok(summaries) => summaries,
        Err(why) => return Ok(Err(why)),
    };
    let stretches = match stretches(parent, now) {
        Ok(stretches) => stretches,
        Err(why) => return Ok(Err(why)),
    };
    let doubt = match summaries.available().await {
        Ok(_) => run.summaries_doubt(parent.start_lsn),
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = doubt {
        return Ok(Err(why));
    }
    let answer = match question {
        Question::Would => summaries.doubt(&stretches).await.map(|doubt| match doubt {
            None => Ok(ChangedBlocks::default()),
            Some(why) => Err(why),
        }),
        Question::What => summaries.changes(&stretches).await,
    };
    let blocks = match answer {
        Ok(Ok(blocks)) => blocks,
        Ok(Err(why)) => return Ok(Err(why)),
        Err(error) => return Ok(Err(error.to_string())),
    };
    Ok(Ok(SourceChoice {
        record: ChangeSourceRecord {
            used: ChangeSource::Summary,
            reason: format!(
                "WAL from {} to {} is summarized",
                parent.start_lsn, now.start_lsn
            ),
        },
        changes: Changes::Exact(blocks),
    }))
}

/// The WAL from the parent's start to ours, timeline by timeline, or why it is not known
/// which WAL that is.
pub(super) fn stretches(parent: &Manifest, now: &Standpoint) -> Answer<Vec<Stretch>, String> {
    if parent.timeline == now.timeline {
        return Ok(vec![Stretch {
            timeline: now.timeline,
            range: parent.start_lsn..now.start_lsn,
        }]);
    }
    let history = now.history.as_ref().map_err(Clone::clone)?;
    let entries = history.entries().iter();
    let stretches = entries.filter_map(|entry| {
        let start = entry.begin.max(parent.start_lsn);
        let end = entry
            .end
            .map_or(now.start_lsn, |end| end.min(now.start_lsn));
        (entry.timeline >= parent.timeline && start < end).then_some(Stretch {
            timeline: entry.timeline,
            range: start..end,
        })
    });
    Ok(stretches.collect())
}

/// Makes the token that the layer's children will ask the tracker for: before the
/// backup starts, so that no write falls between them. `None` when there is no tracker, for all that can be known.
pub(crate) async fn make_token(ready: &Ready) -> Option<Answer<String, String>> {
    match &ready.tracker {
        Ok(tracker) => {
            let made = token_to_ask_for(tracker).await;
            Some(made.map_err(|error| error.to_string()))
        }
        Err(none) => none.may_be_there.then(|| Err(none.reason.clone())),
    }
}

/// A token that we may ask about: any other one would put the next backup in doubt, and so each one after it.
async fn token_to_ask_for(tracker: &Tracker) -> Result<String> {
    let token = tracker.bump().await?;
    tracker.doubt(&token).await?;
    Ok(token)
}

/// The token, if there is one. Why there is none is said, unless `source` was passed over for it, aloud.
pub(crate) fn token_or_say(
    token: Option<Answer<String, String>>,
    source: &SourceChoice,
    parent: Option<&Manifest>,
) -> Option<String> {
    match token? {
        Ok(token) => Some(token),
        Err(why) => {
            let asked = parent.is_some_and(|parent| parent.tracker_token.is_some());
            if !(asked && source.record.reason.contains(NOT_BY_TRACKER)) {
                tracing::warn!("the next backup cannot use the tracker: {why}");
            }
            None
        }
    }
}

/// Refuses what `--require-tracker` does not want when the tracker answered before the backup, and not in it.
pub(crate) fn require_used(choice: &SourceChoice) -> Result<()> {
    let record = &choice.record;
    match record.used {
        ChangeSource::Tracker => Ok(()),
        used => Err(Error::new(
            Kind::Refused,
            format!(
                "the page tracker is required, and changes would be found by {}: {}",
                used.as_str(),
                record.reason
            ),
        )
        .hint("\"pgstrata tracker install-check\" says what is left to do; leave out --require-tracker to compare pages once")),
    }
}

/// Refuses what `--require-tracker` does not want: a layer that was not made with the
/// tracker, or that the next one could not be made on with it.
pub(crate) async fn require_tracker(
    search: Search<'_>,
    token: Option<&Answer<String, String>>,
) -> Result<()> {
    let refuse = |why: &str, hint: &str| {
        Err(Error::new(
            Kind::Refused,
            format!("the page tracker is required, and cannot be used: {why}"),
        )
        .hint(hint))
    };
    let tracker = match &search.ready.tracker {
        Ok(tracker) => tracker,
        Err(none) => return refuse(&none.reason, &none.hint),
    };
    let made = token.map_or(Err("it was not asked"), |made| {
        made.as_ref().map_err(String::as_str)
    });
    if let Err(why) = made {
        return refuse(
            why,
            "\"pgstrata tracker status\" says more; leave out --require-tracker to compare pages",
        );
    }
    let Some(layer) = search.parent else {
        return Ok(());
    };
    let parent = &layer.manifest;
    let instead = "leave out --require-tracker to compare pages once: the next backup can use the tracker again";
    let Some(token) = &parent.tracker_token else {
        return refuse(
            &format!("the parent {} was made without it", parent.label),
            instead,
        );
    };
    // Where a backup of a standby starts is not known before the restartpoint with which it does.
    let doubt = match search.ready.session.facts().in_recovery {
        true => None,
        false => {
            let start_lsn = search.ready.would_start().await?;
            let now = search.ready.standpoint(&search.ready.control, start_lsn);
            in_doubt(search, layer, &now).await?
        }
    };
    match doubt.or(tracker.doubt(token).await?) {
        Some(why) => refuse(&why, instead),
        None => Ok(()),
    }
}
