//! `archive-push` and `archive-get`, which the server runs.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::time::Duration;

use pgstrata_engine::restore::make_way;
use pgstrata_engine::server::{CONTROL_PATH, read_control};
use pgstrata_store::archive::{
    self, Ahead, GetOptions, GetOutcome, Notes, PushOptions, PushOutcome, Pushed, Source, Spool,
};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::Context;
use crate::args::{ArchiveGetArgs, ArchivePushArgs, OnHole};
use crate::config::{choose, from_file};
use crate::value::parse_duration;

/// Recovery on a fast disk replays a 16 MiB segment in some 50 ms: eight cover the
/// latency of an object store.
const SEGMENTS_AHEAD: usize = 8;

/// Of two hosts that store WAL, one may be behind the other for a moment.
const HOLE_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) async fn push(context: &Context, args: &ArchivePushArgs) -> Result<u8> {
    quorum(context, args, 1)?;
    let outcome = push_file(context, args, None).await?;
    say_pushed(context, &outcome);
    Ok(0)
}

/// How many of `count` repositories must have a file. More than there are cannot be met: a table that was taken out of the
/// file must not make one copy out of two.
pub(super) fn quorum(context: &Context, args: &ArchivePushArgs, count: usize) -> Result<usize> {
    let told = args.quorum.or(context.config.settings.quorum);
    let quorum = told.unwrap_or(count);
    if (1..=count).contains(&quorum) {
        return Ok(quorum);
    }
    let there_are = match count {
        1 => "there is 1 repository".to_owned(),
        more => format!("there are {more} repositories"),
    };
    let what = format!("the quorum is {quorum}, and {there_are}");
    Err(Error::new(Kind::Usage, what).hint("give at least 1, and at most all of them"))
}

/// Stores the file in one repository; who is `told` hears of it before neighbours are pushed.
pub(super) async fn push_file(
    context: &Context,
    args: &ArchivePushArgs,
    told: Option<UnboundedSender<PushOutcome>>,
) -> Result<PushOutcome> {
    let cluster = context.cluster()?;
    let settings = &context.config.settings;
    let default = PushOptions::default();
    let root = settings.spool.clone().unwrap_or_else(Spool::default_root);
    let place = noted_as(context, cluster.repository.url());
    let options = PushOptions {
        codec: context.codec(&args.compress)?,
        neighbours: args
            .push_ahead
            .or(settings.push_ahead)
            .unwrap_or(default.neighbours),
        notes: Some(Notes::new(root, &place, cluster.name.as_str())),
        told,
        ..default
    };
    archive::push_at_once(&cluster, &args.path, &options).await
}

/// How this host's notes call the repository with that URL: two of the configuration file may have one, at two endpoints.
pub(super) fn noted_as(context: &Context, url: &str) -> String {
    match context.config.name() {
        Some(name) => format!("{url} {name}"),
        None => url.to_owned(),
    }
}

pub(super) fn say_pushed(context: &Context, outcome: &PushOutcome) {
    let (new, what) = match outcome.pushed {
        Pushed::Stored { .. } => (true, ""),
        Pushed::Present => (false, ", which was there already"),
        Pushed::Mended => (true, ", which was there and damaged"),
        Pushed::LeftOut => (false, ""),
    };
    if outcome.pushed != Pushed::LeftOut {
        tracing::info!("pushed {}{what}", outcome.file_name);
    }
    let document = json!({
        "file": outcome.file_name,
        "new": new,
        "mended": outcome.pushed == Pushed::Mended,
    });
    tell(context, "archive-push/1", &document);
}

pub(super) async fn get(context: &Context, args: &ArchiveGetArgs) -> Result<u8> {
    let holes = Holes::told(context, args)?;
    let cluster = context.cluster_as_of(&args.as_of).await?;
    let outcome = get_file(context, &cluster, args, &holes, async |_| Ok(())).await??;
    say_got(context, args, &outcome);
    Ok(0)
}

/// What is done about a file that is missing though the archive goes on behind it.
pub(super) struct Holes {
    /// How long it is waited for.
    pub(super) wait: Duration,
    /// Whether it is answered as the end then.
    pub(super) are_end: bool,
}

impl Holes {
    pub(super) fn told(context: &Context, args: &ArchiveGetArgs) -> Result<Self> {
        Self::chosen(context, args.hole_timeout, args.on_hole)
    }

    /// What the configuration file says: who prepares a recovery is told of a mistake there, and not the recovery.
    pub(super) fn of_file(context: &Context) -> Result<Self> {
        Self::chosen(context, None, None)
    }

    fn chosen(
        context: &Context,
        hole_timeout: Option<Duration>,
        on_hole: Option<OnHole>,
    ) -> Result<Self> {
        let settings = &context.config.settings;
        let told = settings.hole_timeout.as_deref();
        let wait = from_file(hole_timeout, told, "hole-timeout", parse_duration)?;
        let on_hole = choose(on_hole, settings.on_hole.as_deref(), "on-hole")?;
        Ok(Self {
            wait: wait.unwrap_or(HOLE_TIMEOUT),
            are_end: on_hole == Some(OnHole::End),
        })
    }
}

/// Fetches the file out of one repository, and lets `judge` say whether recovery may go on with it before anything is done
/// about that. The inner error is of what recovery would do with it, wherever it comes from.
pub(super) async fn get_file(
    context: &Context,
    cluster: &ClusterRepository,
    args: &ArchiveGetArgs,
    holes: &Holes,
    judge: impl AsyncFnOnce(&GetOutcome) -> Result<()>,
) -> Result<Result<GetOutcome>> {
    let settings = &context.config.settings;
    let count = args
        .fetch_ahead
        .or(settings.fetch_ahead)
        .unwrap_or(SEGMENTS_AHEAD);
    let root = args.spool.clone().or(settings.spool.clone());
    let root = root.unwrap_or_else(Spool::default_root);
    // PostgreSQL runs this in the data directory; other callers may not.
    let here = env::current_dir().unwrap_or_default();
    let control = match here.join(CONTROL_PATH).try_exists() {
        Ok(false) => None,
        // Who names the file from elsewhere, as pg_rewind does, may be where he cannot look around. A server never is.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && args.path.is_absolute() => {
            None
        }
        // Without it nobody would look whose segment it is, nor where it makes a tablespace.
        Ok(true) | Err(_) => Some(read_control(&here)?.control),
    };
    // Two servers that recover on one host must not throw out each other's segments.
    let spool = Spool::new(root, here.clone());
    let options = GetOptions {
        ahead: (count > 0).then_some(Ahead { spool, count }),
        system_identifier: control.as_ref().map(|control| control.system_identifier),
        hole_wait: holes.wait,
        hole_is_end: holes.are_end,
        along: args.along(),
    };
    let outcome = archive::get(cluster, &args.name, &args.path, &options).await?;
    // Nobody may take it for fetched then.
    let take_back = || {
        let _ = fs::remove_file(&args.path);
    };
    judge(&outcome).await.inspect_err(|_| take_back())?;
    if let Some(control) = control {
        let fetched = (&*args.name, &*args.path);
        if let Err(error) = make_way(cluster, (&here, control), fetched).await {
            take_back();
            return match error.kind() {
                Kind::Refused => Ok(Err(error)),
                _ => Err(error),
            };
        }
    }
    Ok(Ok(outcome))
}

pub(super) fn say_got(context: &Context, args: &ArchiveGetArgs, outcome: &GetOutcome) {
    let from = match outcome.source {
        Source::Spool => "spool",
        Source::Repository => "repository",
    };
    let along = outcome.ahead.len();
    tracing::info!("fetched {} from the {from}, and {along} ahead", args.name);
    let document = json!({
        "file": args.name,
        "from": from,
        "bytes": outcome.raw_bytes,
        "ahead": outcome.ahead,
    });
    tell(context, "archive-get/1", &document);
}

/// The server asks whether the file is where it belongs. A standard output that is full changes nothing about that.
fn tell(context: &Context, schema: &str, document: &Value) {
    if let Err(error) = context.report(schema, document, String::new) {
        tracing::warn!("{error}");
    }
}
