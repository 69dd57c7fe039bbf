//! Commands on several repositories of the configuration file.
//!
//! What only looks is done to each. What the server asks for is answered by the first repository that can; "not there" is
//! said only when every one of them says so. What removes or changes asks for one of them: rules of retention belong to a
//! repository, and a command that ends half way through several would leave nobody knowing which it has changed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use pgstrata_store::archive::{Notes, Spool};
use pgstrata_store::error::{Error, Kind, Result};
use serde_json::{Value, json};

use super::archive::{Holes, get_file, push_file, say_got, say_pushed};
use super::{Context, backup, restore, run_one};
use crate::args::{
    ArchiveGetArgs, ArchivePushArgs, AsOfArgs, BackupArgs, Command, KeyCommand, Output, RestoreArgs,
};
use crate::exit;
use crate::output;

/// Between two looks whether a hole has been filled.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Runs a command on several repositories; returns its exit code.
pub(super) async fn run(context: &Context, several: &[Context], command: Command) -> Result<u8> {
    if past_of(&command).is_some_and(|past| past.repository_as_of.is_some()) {
        return Err(one_alone(context));
    }
    match command {
        Command::Backup(args) => backup(several, args).await,
        Command::ArchivePush(args) => push(several, &args).await,
        Command::ArchiveGet(args) => get(several, &args).await,
        Command::Restore(args) => restore(several, &args).await,
        Command::Info(args) => {
            each(several, async |one: &Context| {
                super::info::run(one, &args).await
            })
            .await
        }
        Command::Check(args) => {
            each(several, async |one: &Context| {
                super::check::run(one, &args).await
            })
            .await
        }
        Command::Verify(args) => {
            each(several, async |one: &Context| {
                super::verify::run(one, &args).await
            })
            .await
        }
        // They use none.
        Command::Tracker { .. }
        | Command::Key {
            command: KeyCommand::Generate { .. },
        } => run_one(&several[0], command).await,
        _ => Err(one_alone(context)),
    }
}

fn one_alone(context: &Context) -> Error {
    Error::new(
        Kind::Usage,
        "the command acts on one repository, and the configuration file names several",
    )
    .hint(format!(
        "name one of them with --repo: {}",
        context.config.names()
    ))
}

/// The moment of which a repository is looked at: each has a past of its own.
fn past_of(command: &Command) -> Option<&AsOfArgs> {
    match command {
        Command::ArchiveGet(args) => Some(&args.as_of),
        Command::Restore(args) => Some(&args.as_of),
        Command::Info(args) => Some(&args.as_of),
        Command::Verify(args) => Some(&args.as_of),
        _ => None,
    }
}

/// Shows all. The exit code is the worst: that of an error before that of warnings.
async fn each(several: &[Context], run: impl AsyncFn(&Context) -> Result<u8>) -> Result<u8> {
    let mut shown = Vec::new();
    let mut codes = Vec::new();
    for context in several {
        let name = context.config.name().unwrap_or_default();
        let url = context.config.repository()?.url;
        let documents = Arc::new(Mutex::new(Vec::new()));
        let mut one = context.with(&context.config);
        one.documents = Some(Arc::clone(&documents));
        if context.output == Output::Text {
            output::print(&format!("repository {name}, {url}\n"))?;
        }
        let (code, error) = match run(&one).await {
            Ok(code) => (code, None),
            Err(error) if error.kind() == Kind::Usage => return Err(error),
            Err(error) => (exit::code(error.kind()), Some(error)),
        };
        if let Some(error) = error.as_ref().filter(|_| context.output == Output::Text) {
            output::print_error(error, Output::Text, code);
        }
        codes.push(code);
        let mut documents = documents.lock().unwrap_or_else(PoisonError::into_inner);
        shown.push(json!({
            "name": name,
            "url": url,
            "exit_code": code,
            "document": documents.pop(),
            "error": error.map(|error| json!({
                "kind": exit::name(error.kind()),
                "message": error.to_string(),
                "hint": error.hint_text(),
            })),
        }));
    }
    if several[0].output == Output::Json {
        output::print_json(
            "repositories/1",
            &json!({ "repositories": Value::from(shown) }),
        )?;
    }
    let failed = codes.iter().find(|code| **code > exit::WARNINGS);
    Ok(failed.or(codes.iter().max()).copied().unwrap_or(0))
}

async fn backup(several: &[Context], args: BackupArgs) -> Result<u8> {
    if args.dry_run.dry_run {
        return run_one(&several[0], Command::Backup(args)).await;
    }
    backup::run_in_several(several, &args).await
}

/// Stores the file in all; enough must have it.
async fn push(several: &[Context], args: &ArchivePushArgs) -> Result<u8> {
    let told = args.quorum.or(several[0].config.settings.quorum);
    let quorum = told.unwrap_or(several.len());
    if quorum == 0 || quorum > several.len() {
        let what = format!(
            "the quorum is {quorum}, and there are {} repositories",
            several.len()
        );
        return Err(Error::new(Kind::Usage, what).hint("give at least 1, and at most all of them"));
    }
    let outcomes = join_all(several.iter().map(|one| push_file(one, args))).await;
    let (mut stored, mut failed) = (Vec::new(), Vec::new());
    for (context, outcome) in several.iter().zip(outcomes) {
        let name = context.config.name().unwrap_or_default();
        match outcome {
            Ok(outcome) => stored.push((context, outcome)),
            Err(error) => failed.push(error.while_doing(format!("repository {name}"))),
        }
    }
    // Only an outage may be outvoted: another file of that name, or another cluster, is a mistake that somebody must see.
    let grave = failed
        .iter()
        .position(|error| error.kind() != Kind::Repository);
    if let Some(at) = grave {
        return Err(failed.swap_remove(at));
    }
    if stored.len() < quorum {
        let first = failed.into_iter().next();
        return Err(first.unwrap_or_else(|| Error::new(Kind::Repository, "no repository has it")));
    }
    for error in &failed {
        tracing::warn!(
            "the file is in {} of {} repositories, which is enough; \"pgstrata copy\" brings it to the others later: {error}",
            stored.len(),
            several.len()
        );
    }
    if let Some((context, outcome)) = stored.first() {
        say_pushed(context, outcome);
    }
    Ok(0)
}

/// Fetches the file out of the first that has it.
async fn get(several: &[Context], args: &ArchiveGetArgs) -> Result<u8> {
    let holes = Holes::told(&several[0], args)?;
    let at_once = Holes {
        wait: Duration::ZERO,
        are_end: false,
    };
    let started = Instant::now();
    loop {
        let Asked { end, failed } = match ask_all(several, args, &at_once).await? {
            Answer::Got => return Ok(0),
            Answer::Nobody(asked) => asked,
        };
        // All were asked, and say so.
        if failed.is_empty() {
            return Err(end.unwrap_or_else(|| Error::new(Kind::Repository, "none was asked")));
        }
        let only_holes = failed.iter().all(|error| error.kind() == Kind::WalMissing);
        if only_holes && started.elapsed() < holes.wait {
            tokio::time::sleep(LOOK_AGAIN).await;
            continue;
        }
        for error in failed.iter().skip(1) {
            tracing::warn!("{error}");
        }
        let first = failed.into_iter().next();
        let first = first.unwrap_or_else(|| Error::new(Kind::Repository, "none has answered"));
        return Err(match only_holes && holes.are_end {
            true => {
                tracing::warn!("{first}; it is answered as the end");
                Error::new(Kind::NotFound, first.to_string())
            }
            false => first,
        });
    }
}

enum Answer {
    Got,
    Nobody(Asked),
}

/// What repositories say that do not have the file.
#[derive(Default)]
struct Asked {
    /// That their archive ends before it; the first that says so.
    end: Option<Error>,
    /// Anything else.
    failed: Vec<Error>,
}

/// Asks one after the other. One that did not answer a moment ago is asked last, because that takes long.
async fn ask_all(several: &[Context], args: &ArchiveGetArgs, holes: &Holes) -> Result<Answer> {
    let mut order = Vec::new();
    for context in several {
        let notes = notes(context, args)?;
        order.push((notes.had_outage(), context, notes));
    }
    order.sort_by_key(|(had_outage, ..)| *had_outage);
    let mut asked = Asked::default();
    for (_, context, notes) in &order {
        let name = context.config.name().unwrap_or_default();
        let error = match get_file(context, args, holes).await {
            Ok(outcome) => {
                for error in &asked.failed {
                    tracing::warn!("{} comes from repository {name}: {error}", args.name);
                }
                say_got(context, args, &outcome);
                return Ok(Answer::Got);
            }
            Err(error) => error,
        };
        match error.kind() {
            Kind::NotFound => {
                asked.end.get_or_insert(error);
            }
            kind if is_elsewhere(kind) => {
                if kind == Kind::Repository {
                    notes.add_outage();
                }
                let act = format!("repository {name}");
                asked.failed.push(error.while_doing(act));
            }
            _ => return Err(error),
        }
    }
    Ok(Answer::Nobody(asked))
}

/// What this host notes of a repository.
fn notes(context: &Context, args: &ArchiveGetArgs) -> Result<Notes> {
    let root = args.spool.clone().or(context.config.settings.spool.clone());
    let root = root.unwrap_or_else(Spool::default_root);
    let url = context.config.repository()?.url;
    let name = context.config.name().unwrap_or_default();
    let cluster = context.config.cluster()?;
    Ok(Notes::new(root, &format!("{url} {name}"), cluster.as_str()))
}

/// Whether another repository may have what this one does not give: it is lost, damaged or cannot be asked here.
fn is_elsewhere(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Repository | Kind::Damaged | Kind::Unsupported | Kind::WalMissing
    )
}

/// Restores out of the first that can, and says what kept the others from it.
async fn restore(several: &[Context], args: &RestoreArgs) -> Result<u8> {
    let mut failed: Vec<Error> = Vec::new();
    for context in in_order(several).await? {
        let name = context.config.name().unwrap_or_default();
        tracing::info!("restoring out of repository {name}");
        let error = match restore::run(context, args).await {
            Ok(code) => return Ok(code),
            Err(error) => error,
        };
        let others = [Kind::NotFound, Kind::Busy, Kind::Target];
        if !is_elsewhere(error.kind()) && !others.contains(&error.kind()) {
            return Err(error);
        }
        tracing::warn!("repository {name} cannot be restored from: {error}");
        failed.push(error.while_doing(format!("repository {name}")));
    }
    let first = failed.into_iter().next();
    Err(first.unwrap_or_else(|| Error::new(Kind::Repository, "none could be asked")))
}

/// Those first that know the last timeline: who has missed a promotion would lead recovery to the end of the old one.
async fn in_order(several: &[Context]) -> Result<Vec<&Context>> {
    let (mut known, mut silent) = (Vec::new(), Vec::new());
    for context in several {
        let name = context.config.name().unwrap_or_default();
        let cluster = context.cluster()?;
        let prefix = cluster.name.wal_prefix();
        let timeline = match cluster.repository.list_names(&prefix).await {
            Ok(names) => names.last().cloned(),
            Err(error) => {
                tracing::warn!(
                    "repository {name} cannot be asked, and what it alone has is not restored: {error}"
                );
                silent.push(context);
                continue;
            }
        };
        known.push((timeline, context));
    }
    let newest = known
        .iter()
        .filter_map(|(timeline, _)| timeline.clone())
        .max();
    let (with, without): (Vec<_>, Vec<_>) = known
        .into_iter()
        .partition(|(timeline, _)| *timeline == newest);
    for (_, context) in &without {
        let name = context.config.name().unwrap_or_default();
        tracing::warn!("repository {name} does not know the last timeline, and is used last");
    }
    let all = with.into_iter().chain(without);
    // It may answer by then.
    Ok(all.map(|(_, context)| context).chain(silent).collect())
}
