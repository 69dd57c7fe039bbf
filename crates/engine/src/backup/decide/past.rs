//! Whether the parent lies in this server's past, by the lineage file of its data directory.
//!
//! LSNs order one history only. A data directory that was restored in place, or whose storage
//! was set back to a snapshot, comes by the same LSNs again with other contents, and nothing that
//! the server says shows it. So a parent is stood upon without comparing pages only when the file
//! lists it. The file is written when a backup has stopped, and before its layer exists: the
//! directory's state is then later than all that the layer holds. Whoever brings back an
//! earlier state of the directory brings back the file as it was then, or none; or copies older
//! files over newer ones, and leaves the newer file. So the file counts while the server goes on
//! running that it was written beside, and after that only when the page tracker knows the token
//! in it: the tracker's map is bound to the control file.
//!
//! Single files may be written past a server that runs. Who does so calls `pgstrata.reset()`, and the tracker remembers that.
//! It is asked about two tokens: that in the file, and the parent's own, which is older. A reset between the two came while
//! the parent was made, which may hold what was on disk before.
//!
//! Of the run that lasts the file tells more ([`ThisRun`]): which layers were made in it, so that the settings which a
//! server has for a run were in force since then, and from where on all WAL summaries were written in it.

use std::fs::File;
use std::result::Result as Answer;
use std::time::Duration;

use pgstrata_layer::lineage::{Line, Lineage, Place, line_name, with_layer};
use pgstrata_layer::manifest::{Beside, Manifest, ParentRef};
use pgstrata_pgdata::{Lsn, TimelineId};
use pgstrata_store::blocking::blocking;
use pgstrata_store::catalog::{Catalog, Layer};
use pgstrata_store::error::{Error, FileContext, Result};

use super::prepare::Ready;
use super::source;
use crate::server::lineage::{self, Circumstances};
use crate::server::{NoTracker, TrackerState};

/// Longer than a busy disk takes for one small file. The backup is done but for that, which spares the next one some work.
const REMEMBER_WITHIN: Duration = Duration::from_mins(1);

const NOT_LISTED: &str =
    "its lineage file does not list it, as after a restore or when storage was set back";

/// In whichever repository it was: a layer that a backup has stored in several is the same in each.
fn lists(lineage: &Lineage, layer: &Layer) -> bool {
    let is_it = |listed| layer.manifest.stands_for(&layer.manifest_digest, listed);
    lineage.layers().any(is_it)
}

/// Why `parent` is not known to lie in the past of the server's data directory; `None` when it does.
pub(crate) async fn doubt(ready: &Ready, parent: &Layer) -> Option<String> {
    let known = known(ready, ready.session.facts().fsync).await;
    judge(known, parent)
}

/// The same, by what is known of the directory's past: its lineage, or why that says nothing.
pub(super) fn judge(known: Answer<Lineage, String>, parent: &Layer) -> Option<String> {
    let why = match known {
        Err(why) => why,
        Ok(lineage) if lists(&lineage, parent) => return None,
        Ok(_) => NOT_LISTED.to_owned(),
    };
    Some(format!(
        "the parent {} is not proved to lie in the past of the data directory: {why}",
        parent.label
    ))
}

/// The newest layer of `timeline` that was made from a primary, when the data directory does not seem to come after it.
/// Its own WAL then has the names of this server's. Only what the lineage file says counts here: where there is none, as
/// when it cannot be written, nothing is known.
pub(crate) async fn beside(
    ready: &Ready,
    catalog: &Catalog,
    timeline: TimelineId,
) -> Option<Beside> {
    if ready.session.facts().in_recovery {
        return None;
    }
    let of_primary =
        |layer: &&Layer| layer.manifest.timeline == timeline && !layer.manifest.from_standby;
    let newest = catalog.layers.iter().rfind(of_primary)?;
    let (found, place) = found(ready).await.ok()??;
    let reason = match lineage::of_another(&found, &place, ready.control.system_identifier) {
        Some(why) => why,
        None if lists(&found, newest) => return None,
        None => NOT_LISTED.to_owned(),
    };
    Some(Beside {
        layer: newest.reference(),
        reason,
    })
}

/// What is known to have happened in this run of the server.
#[derive(Debug)]
pub(crate) struct ThisRun(Option<Lineage>);

impl ThisRun {
    /// By the lineage file of the server's data directory.
    pub(crate) async fn look(ready: &Ready) -> Self {
        let now = circumstances(ready, ready.session.facts().fsync);
        Self::of(found(ready).await.ok().flatten(), &now)
    }

    /// By the lineage that was found in a directory, which is the one that is given with it.
    pub(super) fn of(found: Option<(Lineage, Place)>, now: &Circumstances) -> Self {
        let is_of_it = |(lineage, place): &(Lineage, Place)| {
            lineage::doubt(lineage, place, now).is_none() && is_of_run(lineage, now)
        };
        Self(found.filter(is_of_it).map(|(lineage, _)| lineage))
    }

    /// Whether the backup of that layer began in it.
    pub(crate) fn made(&self, layer: &Layer) -> bool {
        let is_it = |listed| layer.manifest.stands_for(&layer.manifest_digest, listed);
        let lineage = self.0.iter();
        lineage.flat_map(Lineage::layers_of_run).any(is_it)
    }

    /// Why summaries of the WAL from `start` on may not be those of this history; `None` when they are.
    pub(crate) fn summaries_doubt(&self, start: Lsn) -> Option<String> {
        let Some(lineage) = &self.0 else {
            return Some(
                "the server was started since the parent, and WAL summaries from before may be of a history that is lost".to_owned(),
            );
        };
        match lineage.summaries_from_lsn {
            Some(from) if from <= start => None,
            Some(from) => Some(format!(
                "WAL summaries from before {from}, where the WAL was when a backup first looked in this run of the server, may be of a history that is lost"
            )),
            None => Some(
                "when the parent began, WAL summaries were there of WAL that was yet to be written, so of a history that is lost: should \
                 this be said again, stop the server, remove the files in pg_wal/summaries, and start it"
                    .to_owned(),
            ),
        }
    }
}

/// Adds a layer to those that lie in the past of the data directory: when its backup has stopped, and before it exists.
/// Summaries of the WAL from `summaries_from` on were written since then.
pub(crate) async fn remember(ready: &Ready, layer: ParentRef, summaries_from: Option<Lsn>) {
    let adding = add(ready, layer, summaries_from);
    let why = match tokio::time::timeout(REMEMBER_WITHIN, adding).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!(
            "its lineage file was not written within {} seconds",
            REMEMBER_WITHIN.as_secs()
        ),
    };
    tracing::warn!("the next backup will compare every page: {why}");
}

async fn add(ready: &Ready, layer: ParentRef, summaries_from: Option<Lsn>) -> Result<()> {
    // Off at either time: what was written in between may not outlive a crash of the operating system.
    let fsync = ready.session.facts().fsync && ready.session.fsync().await?;
    let known = known(ready, fsync).await;
    let now = circumstances(ready, fsync);
    let summaries_from_lsn = summaries_from_with(&known, &now, summaries_from);
    let lines = lines_with(known, &now, &line_name(&ready.record), layer);
    let token = source::make_token(ready).await.and_then(Answer::ok);
    let data = ready.data_directory.clone();
    blocking(move || {
        let about = || format!("could not open the directory \"{}\"", data.display());
        let directory = File::open(&data).context(about)?;
        let lineage = Lineage {
            summaries_from_lsn,
            ..now.lineage(lineage::place(&data)?, lines, token)
        };
        lineage::write(&directory, &data, &lineage)
    })
    .await
}

/// What lies in the directory's past when `layer` does, too.
pub(super) fn lines_with(
    known: Answer<Lineage, String>,
    now: &Circumstances,
    line: &str,
    layer: ParentRef,
) -> Vec<Line> {
    let lines = known.map(|lineage| lineage.lines_in(now.server_run.as_deref()));
    with_layer(lines.unwrap_or_default(), line, layer)
}

/// From where on all WAL summaries are of this run: what the first backup in it that could tell has found, else what
/// this one has.
pub(super) fn summaries_from_with(
    known: &Answer<Lineage, String>,
    now: &Circumstances,
    found: Option<Lsn>,
) -> Option<Lsn> {
    let known = known.as_ref().ok();
    let of_run = known.filter(|lineage| is_of_run(lineage, now));
    of_run
        .and_then(|lineage| lineage.summaries_from_lsn)
        .or(found)
}

/// Whether it was written in the run of the server that lasts.
fn is_of_run(lineage: &Lineage, now: &Circumstances) -> bool {
    now.server_run.is_some() && lineage.server_run == now.server_run
}

fn circumstances(ready: &Ready, fsync: bool) -> Circumstances {
    let run = ready.session.server_run().to_owned();
    Circumstances::now(ready.control.system_identifier, fsync, Some(run))
}

/// The lineage of the data directory, or why it says nothing.
async fn known(ready: &Ready, fsync: bool) -> Answer<Lineage, String> {
    let found = found(ready).await.map_err(|error| error.to_string())?;
    let ask = ready.tracker.as_ref().ok();
    let ask = ask.map(|tracker| async |token: &str| tracker.doubt(token).await);
    believed(found, &circumstances(ready, fsync), ask).await
}

/// The lineage file of the data directory, if there is one, and which directory that is now.
async fn found(ready: &Ready) -> Result<Option<(Lineage, Place)>> {
    let data = ready.data_directory.clone();
    let found = move || match lineage::read(&data)? {
        None => Ok(None),
        Some(lineage) => Ok(Some((lineage, lineage::place(&data)?))),
    };
    blocking(found).await
}

/// The lineage that was found in a directory, which that is, or why it says nothing. `ask` asks the page tracker, if
/// there is one, why it does not know a token.
pub(super) async fn believed(
    found: Option<(Lineage, Place)>,
    now: &Circumstances,
    ask: Option<impl AsyncFnOnce(&str) -> Result<Option<String>>>,
) -> Answer<Lineage, String> {
    let Some((lineage, place)) = found else {
        return Err("it has no lineage file".to_owned());
    };
    if let Some(why) = lineage::doubt(&lineage, &place, now) {
        return Err(why);
    }
    match not_set_back(&lineage, now, ask).await {
        None => Ok(lineage),
        Some(why) => Err(why),
    }
}

/// What to do about a tracker that gives our role no answer.
const RIGHTS: &str = "\"pgstrata tracker install-check\" names the rights that the role lacks";

/// How the tracker says that somebody has called `pgstrata.reset()` (ext/history.c).
const WAS_RESET: &str = "because it was reset by role";

/// What an administrator says who has written to files of the running server.
async fn was_reset(
    lineage: &Lineage,
    ask: Option<impl AsyncFnOnce(&str) -> Result<Option<String>>>,
) -> Option<String> {
    let token = lineage.tracker_token.as_ref()?;
    let answer = match ask {
        Some(ask) => ask(token).await.map_err(|error| error.to_string()),
        None => Err("it is not found".to_owned()),
    };
    let why = told_of_reset(answer)?;
    Some(format!(
        "files of the server may have been written past it since its lineage file was: {why}"
    ))
}

/// What the tracker's answer about a token tells of a reset since the token was made, or leaves open.
pub(super) fn told_of_reset(answer: Answer<Option<String>, String>) -> Option<String> {
    match answer {
        Ok(why) => why.filter(|why| why.contains(WAS_RESET)),
        Err(error) => Some(format!(
            "the page tracker, which would know, cannot be asked: {error}"
        )),
    }
}

/// What the tracker's state tells of a reset after the WAL was at `start`.
pub(super) fn reset_after(state: &TrackerState, start: Lsn) -> Option<String> {
    let at = state.history_lsn.as_deref()?;
    let why = state.history_reason.as_deref()?;
    let lsn = at.parse::<Lsn>().ok().filter(|lsn| lsn.is_valid());
    let told = format!("its history began at {at} because {why}");
    let is_later = lsn.is_none_or(|lsn| lsn > start);
    (is_later && told.contains(WAS_RESET)).then_some(told)
}

/// What the page tracker tells of a reset since the backup of `parent` began, or leaves open.
pub(super) async fn reset_since(ready: &Ready, parent: &Manifest) -> Option<String> {
    let Some(token) = &parent.tracker_token else {
        let told = match &ready.tracker {
            Ok(tracker) => tracker.state().await.map_err(|error| unanswered(&error)),
            Err(none) => Err(none.clone()),
        };
        return reset_without_token(&told, parent.start_lsn);
    };
    told_of_reset(match &ready.tracker {
        Ok(tracker) => {
            let answer = tracker.doubt(token).await;
            answer.map_err(|error| error.to_string())
        }
        Err(none) => Err(none.reason.clone()),
    })
}

/// The same of a parent that was made without a token: it began somewhere in the WAL all the same. While nobody can be asked, no
/// layer has a token, and each one is in doubt, so what to do is said with it. Where the library is not loaded, or no database has
/// the extension, nobody calls `pgstrata.reset()`.
pub(super) fn reset_without_token(
    told: &Answer<TrackerState, NoTracker>,
    start: Lsn,
) -> Option<String> {
    match told {
        Ok(state) => reset_after(state, start),
        Err(none) if none.may_be_there => {
            let (reason, hint) = (&none.reason, &none.hint);
            told_of_reset(Err(format!(
                "{reason}; each backup compares every page until it can be: {hint}"
            )))
        }
        Err(_) => None,
    }
}

/// A tracker that is there, and does not tell how it is.
fn unanswered(error: &Error) -> NoTracker {
    let hint = error.hint_text().unwrap_or(RIGHTS);
    NoTracker {
        reason: error.to_string(),
        hint: hint.to_owned(),
        may_be_there: true,
    }
}

/// Why older files may have been copied over the directory since its lineage file was written; `None` when that
/// cannot be.
async fn not_set_back(
    lineage: &Lineage,
    now: &Circumstances,
    ask: Option<impl AsyncFnOnce(&str) -> Result<Option<String>>>,
) -> Option<String> {
    if is_of_run(lineage, now) {
        return was_reset(lineage, ask).await;
    }
    let restarted = "the server was started since its lineage file was written";
    let (Some(ask), Some(token)) = (ask, &lineage.tracker_token) else {
        return Some(format!(
            "{restarted}, and only the page tracker can tell that no older state was put back before"
        ));
    };
    match ask(token).await {
        Ok(None) => None,
        Ok(Some(why)) => Some(format!(
            "{restarted}, and the page tracker does not know its token: {why}"
        )),
        Err(error) => Some(format!("{restarted}, and {error}")),
    }
}
