//! Which source tells what changed since the parent: the best that can answer.
//!
//! A source that cannot answer is passed over, and the layer's record says why. The
//! last ones, page LSNs and digests, read every page and always answer.

use std::result::Result as Answer;

use pgstrata_layer::changeset::{ChangedBlocks, Changes};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::manifest::{ChangeSource, ChangeSourceRecord, Manifest};

use super::audit;
use super::choose::{
    SourceChoice, Standpoint, check_order, choose_source, digest_source, doubt, full_source,
};
use super::options::ChangeSourceChoice;
use super::prepare::Ready;
use crate::catalog::Layer;
use crate::cluster::summary::{Stretch, Summaries};
use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// What a source is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Whether it would answer: nothing has started.
    Would,
    /// What changed: the backup has started.
    What,
}

/// Who asks, and since when.
#[derive(Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) ready: &'a Ready,
    pub(super) repository: &'a Repository,
    pub(super) cluster: &'a ClusterName,
    pub(super) wanted: ChangeSourceChoice,
    pub(super) parent: Option<&'a Layer>,
}

/// Finds the changes since the parent with the best source that knows them.
pub(super) async fn find(
    search: Search<'_>,
    now: &Standpoint,
    question: Question,
) -> Result<SourceChoice> {
    let Search { ready, wanted, .. } = search;
    let Some(layer) = search.parent else {
        return Ok(full_source());
    };
    let parent = &layer.manifest;
    check_order(parent, now)?;
    if wanted != ChangeSourceChoice::Digest
        && let Some(why) = audit::distrust(search.repository, search.cluster, parent).await?
    {
        if question == Question::What {
            tracing::warn!("changed pages will be found by digest: {why}");
        }
        return Ok(digest_source(why));
    }
    let mut passed_over = Vec::new();
    if matches!(
        wanted,
        ChangeSourceChoice::Auto | ChangeSourceChoice::Tracker
    ) {
        match by_tracker(ready, parent, question).await? {
            Ok(choice) => return Ok(choice),
            Err(why) => passed_over.push(format!("not by tracker: {why}")),
        }
    }
    if wanted != ChangeSourceChoice::Lsn && wanted != ChangeSourceChoice::Digest {
        match by_summary(ready, parent, now, question).await? {
            Ok(choice) => return Ok(choice.despite(&passed_over, wanted, parent, question)),
            Err(why) => passed_over.push(format!("not by summary: {why}")),
        }
    }
    let choice = choose_source(wanted, parent, now);
    Ok(choice.despite(&passed_over, wanted, parent, question))
}

impl SourceChoice {
    /// Notes which better sources could not answer, aloud when somebody counts on them.
    fn despite(
        mut self,
        passed_over: &[String],
        wanted: ChangeSourceChoice,
        parent: &Manifest,
        question: Question,
    ) -> Self {
        if !passed_over.is_empty() {
            let (why, used) = (passed_over.join("; "), self.record.used.as_str());
            if question == Question::What && is_news(wanted, parent) {
                tracing::warn!("changed pages will be found by {used}, {why}");
            }
            self.record.reason = format!("{}; {why}", self.record.reason);
        }
        self
    }
}

/// Whether somebody counts on a better source than those that read every page.
fn is_news(wanted: ChangeSourceChoice, parent: &Manifest) -> bool {
    wanted != ChangeSourceChoice::Auto
        || parent.tracker_token.is_some()
        || parent.change_source.used == ChangeSource::Summary
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
fn stretches(parent: &Manifest, now: &Standpoint) -> Answer<Vec<Stretch>, String> {
    if let Some(doubt) = doubt(parent, now) {
        return Err(doubt);
    }
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
/// backup starts, so that no write falls between them. `None` when there is no tracker.
pub(super) async fn make_token(ready: &Ready) -> Option<String> {
    let tracker = ready.tracker.as_ref().ok()?;
    match tracker.bump().await {
        Ok(token) => Some(token),
        Err(error) => {
            tracing::warn!("the next backup cannot use the tracker: {error}");
            None
        }
    }
}

/// Refuses what `--require-tracker` does not want: a layer that was not made with the
/// tracker, or that the next one could not be made on with it.
pub(super) async fn require_tracker(search: Search<'_>, token: Option<&String>) -> Result<()> {
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
    if token.is_none() {
        return refuse(
            "it made no token",
            "\"pgstrata tracker status\" says why; leave out --require-tracker to compare pages",
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
    let distrust = audit::distrust(search.repository, search.cluster, parent).await?;
    match distrust.or(tracker.doubt(token).await?) {
        Some(why) => refuse(&why, instead),
        None => Ok(()),
    }
}
