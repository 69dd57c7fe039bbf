//! `archive-push`, `archive-get` and the prefetch that the latter starts.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use pgstrata_engine::archive::{
    self, GetOptions, PrefetchOptions, PushOptions, Pushed, Source, Spool,
};
use pgstrata_engine::catalog::cluster_record;
use pgstrata_engine::cluster::read_control;
use pgstrata_engine::error::{Error, FileContext, Kind, Result};
use serde_json::json;

use super::Context;
use crate::args::{ArchiveGetArgs, ArchivePrefetchArgs, ArchivePushArgs};
use crate::config::absolute;

/// Recovery on a fast disk replays a 16 MiB segment in some 50 ms: eight cover the
/// latency of an object store.
const PREFETCH_SEGMENTS: usize = 8;

pub(super) async fn push(context: &Context, args: &ArchivePushArgs) -> Result<u8> {
    let repository = context.repository()?;
    let name = context.config.cluster()?;
    let record = cluster_record(&repository, &name).await?;
    let settings = &context.config.settings;
    let default = PushOptions::default();
    let options = PushOptions {
        codec: context.codec(args.compress.as_deref())?,
        neighbours: args.ahead.or(settings.ahead).unwrap_or(default.neighbours),
        ..default
    };
    let outcome = archive::push(&repository, &name, &record, &args.path, &options).await?;
    let new = matches!(outcome.pushed, Pushed::Stored { .. });
    tracing::info!(
        "pushed {}{}",
        outcome.file_name,
        if new { "" } else { ", which was there already" }
    );
    let document = json!({ "file": outcome.file_name, "new": new });
    context.report("archive-push/1", &document, String::new);
    Ok(0)
}

pub(super) async fn get(context: &Context, args: &ArchiveGetArgs) -> Result<u8> {
    let repository = context.repository()?;
    let name = context.config.cluster()?;
    let settings = &context.config.settings;
    let count = args
        .prefetch
        .or(settings.prefetch)
        .unwrap_or(PREFETCH_SEGMENTS);
    let directory = args.spool.as_ref().or(settings.spool.as_ref());
    let spool = directory.map_or_else(Spool::in_temporary_directory, Spool::new);
    let options = GetOptions {
        spool: (count > 0).then(|| spool.clone()),
        system_identifier: asking_cluster(),
    };
    let outcome = archive::get(&repository, &name, &args.name, &args.path, &options).await?;
    let from = match outcome.source {
        Source::Spool => "spool",
        Source::Repository => "repository",
    };
    tracing::info!("fetched {} from the {from}", args.name);
    if count > 0 && spool.needs_prefetch(&repository, &name, &args.name, count) {
        // Recovery has its file; that fetching ahead did not start only makes it slower.
        if let Err(error) = start_prefetch(context, &args.name, directory.map(AsRef::as_ref), count)
        {
            tracing::warn!("{error}");
        }
    }
    let document = json!({ "file": args.name, "from": from, "bytes": outcome.raw_bytes });
    context.report("archive-get/1", &document, String::new);
    Ok(0)
}

pub(super) async fn prefetch(context: &Context, args: &ArchivePrefetchArgs) -> Result<u8> {
    let repository = context.repository()?;
    let name = context.config.cluster()?;
    let spool = args
        .spool
        .as_ref()
        .map_or_else(Spool::in_temporary_directory, Spool::new);
    let options = PrefetchOptions {
        spool,
        count: args.count,
        jobs: context.config.jobs()?,
    };
    let outcome = archive::prefetch(&repository, &name, &args.after, &options).await?;
    tracing::info!("fetched {} segments ahead", outcome.fetched.len());
    Ok(0)
}

/// PostgreSQL runs `restore_command` in the data directory; other callers may not.
fn asking_cluster() -> Option<u64> {
    let here = env::current_dir().ok()?;
    Some(read_control(&here).ok()?.control.system_identifier)
}

/// Starts this program once more, on its own, to fetch the segments that come next.
fn start_prefetch(
    context: &Context,
    after: &str,
    spool: Option<&Path>,
    count: usize,
) -> Result<()> {
    let program =
        env::current_exe().context(|| "could not find this program's own path".to_owned())?;
    let mut command = Command::new(program);
    command
        .args(context.config.as_flags()?)
        .args(["archive-prefetch", after]);
    command.args(["--count", &count.to_string()]);
    if let Some(spool) = spool {
        command.arg("--spool").arg(absolute(spool)?);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // A group of its own: stopping the server must not leave half a segment behind.
    command.process_group(0);
    let started = command.spawn();
    started.map(drop).map_err(|error| {
        Error::new(
            Kind::File,
            format!("could not start fetching ahead: {error}"),
        )
    })
}
