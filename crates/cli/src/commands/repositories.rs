//! Commands on several repositories of the configuration file.
//!
//! What only looks is done to each. What the server asks for is answered by the first repository that can; "not there" is
//! said only when every one of them says so; one that the identity at hand does not open says it by the names in it. What removes or changes asks for one of them: rules of retention belong to a
//! repository, and a command that ends half way through several would leave nobody knowing which it has changed.

mod get;
mod push;
mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::join_all;
use pgstrata_engine::restore::{Target, TimelineChoice, require_one_way_among, require_way_known};
use pgstrata_layer::label::Label;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_store::archive::{Archive, Notes, Spool, archived_timelines};
use pgstrata_store::catalog::Catalog;
use pgstrata_store::error::{Error, Kind, Result};
pub(super) use pgstrata_store::repository::ANSWERS_WITHIN;
use serde_json::{Value, json};

use super::{Context, archive, backup, label_or_latest, restore, run_one};
use crate::args::{AsOfArgs, BackupArgs, Command, KeyCommand, Output, RestoreArgs};
use crate::exit;
use crate::output;

/// Runs a command on several repositories; returns its exit code.
pub(super) async fn run(context: &Context, several: &[Context], command: Command) -> Result<u8> {
    if past_of(&command).is_some_and(|past| past.repository_as_of.is_some()) {
        return Err(one_alone(context));
    }
    // What fetches does well with one twice, and what the server waits for looks when it has stored the file.
    if let Command::Backup(_) | Command::Info(_) | Command::Check(_) | Command::Verify(_) = &command
    {
        require_apart(context, several).await?;
    }
    match command {
        Command::Backup(args) => backup(several, args).await,
        Command::ArchivePush(args) => push::run(several, args).await,
        Command::ArchiveGet(args) => get::run(several, &args).await,
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

/// Refuses one directory under the names of two of these.
async fn require_apart(
    context: &Context,
    several: impl IntoIterator<Item = &Context>,
) -> Result<()> {
    let names = several.into_iter().filter_map(|one| one.config.name());
    let names: Vec<&str> = names.collect();
    context.config.require_apart(&names).await
}

fn act_in(context: &Context) -> String {
    format!("repository {}", context.config.name().unwrap_or_default())
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

/// Shows all. The exit code is the worst: that of an error before that of warnings. A mistake in what the configuration says
/// of one repository is the matter with that one; a mistake in the command ends it.
async fn each(several: &[Context], run: impl AsyncFn(&Context) -> Result<u8>) -> Result<u8> {
    several[0].config.cluster()?;
    let mut shown = Vec::new();
    let mut codes = Vec::new();
    let mut looked_at = Vec::new();
    for (context, silence) in several.iter().zip(silent_directories(several).await) {
        let name = context.config.name().unwrap_or_default();
        let url = context.config.url()?;
        let documents = Arc::new(Mutex::new(Vec::new()));
        let mut one = context.with(&context.config);
        one.documents = Some(Arc::clone(&documents));
        if context.output == Output::Text {
            output::print(&format!("repository {name}, {url}\n"))?;
        }
        let done = match silence {
            Some(error) => Err(error),
            None => run(&one).await,
        };
        let (code, error) = match done {
            Ok(code) => {
                looked_at.push(context);
                (code, None)
            }
            Err(error) if error.kind() == Kind::Interrupted => return Err(error),
            Err(error) if error.kind() == Kind::Usage && !context.is_shut() => return Err(error),
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
    let notes = behind(looked_at).await;
    for what in &notes {
        tracing::warn!("{what}");
    }
    if !notes.is_empty() {
        codes.push(exit::WARNINGS);
    }
    if several[0].output == Output::Json {
        output::print_json(
            "repositories/1",
            &json!({ "repositories": Value::from(shown), "notes": notes }),
        )?;
    }
    let mut failed = codes.iter().filter(|code| **code != exit::WARNINGS);
    let failed = failed.find(|code| **code != 0);
    Ok(failed.or(codes.iter().max()).copied().unwrap_or(0))
}

/// For each that is a directory, and does not answer, an error that says so: who looks into it waits for ever. A store that
/// stalls is given up by itself, and then it is known why.
async fn silent_directories(several: &[Context]) -> Vec<Option<Error>> {
    let asked = several.iter().map(async |context| {
        let url = context.config.url().ok()?;
        let error = match url.starts_with("file:") {
            true => context.require_answer(ANSWERS_WITHIN).await.err()?,
            false => return None,
        };
        // What else is the matter with it is found out when it is its turn.
        (error.kind() == Kind::Repository).then_some(error)
    });
    join_all(asked).await
}

/// What is to be said of repositories that have missed a backup or a promotion, each of which looks well alone.
async fn behind(looked_at: Vec<&Context>) -> Vec<String> {
    let rivals = servers::rivals(&looked_at, None).await;
    let asked = join_all(looked_at.into_iter().map(Known::of)).await;
    // One that cannot be asked any more has been shown all the same.
    let known: Vec<Known<'_>> = asked.into_iter().flatten().collect();
    let doubts = known.iter().flat_map(|one| one.doubts(&known));
    rivals.into_iter().chain(doubts).collect()
}

async fn backup(several: &[Context], args: BackupArgs) -> Result<u8> {
    if args.dry_run.dry_run {
        return run_one(&several[0], Command::Backup(args)).await;
    }
    backup::run_in_several(several, &args).await
}

/// What this host notes of a repository.
fn notes(context: &Context, spool: Option<&PathBuf>) -> Result<Notes> {
    let root = spool.or(context.config.settings.spool.as_ref()).cloned();
    let root = root.unwrap_or_else(Spool::default_root);
    let place = archive::noted_as(context, context.config.url()?);
    let cluster = context.config.cluster()?;
    Ok(Notes::new(root, &place, cluster.as_str()))
}

/// Whether another repository may have what this one does not give: it is lost, damaged or cannot be asked here.
fn is_elsewhere(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Repository | Kind::Damaged | Kind::Unsupported | Kind::WalMissing | Kind::Refused
    )
}

/// Restores out of the first that can, and says what kept the others from it.
async fn restore(several: &[Context], args: &RestoreArgs) -> Result<u8> {
    several[0].config.cluster()?;
    let mut notes = Vec::new();
    let (answering, silent) = answering(several, &mut notes).await;
    let (usable, mut failed) = usable(answering, &mut notes).await?;
    let mut known = opened(in_order(usable, &mut notes).await?, &mut notes).await?;
    let (target, timeline) = restore::target_of(args)?;
    require_one_way(&known, (&target, timeline)).await?;
    require_one_way_of_all(&known, (&target, timeline), args).await?;
    let all: Vec<&Context> = known.iter().map(|one| one.context).collect();
    servers::require_one(&all, timeline).await?;
    // They may answer by then.
    known.extend(silent);
    let last = last_timeline(&known);
    // What is not there along the last timeline is not looked for along another one that nobody has named.
    let is_latest = matches!(timeline, None | Some(TimelineChoice::Latest));
    let mut stays = false;
    for (at, one) in known.iter().enumerate() {
        let name = one.name();
        if stays && one.timeline != last {
            continue;
        }
        tracing::info!("restoring out of repository {name}");
        let mut said = notes.clone();
        if let Some(what) = one.is_older_than(newest(&known), &known[..at]) {
            say(&mut said, what);
        }
        let error = match restore::run(one.context, args, &said).await {
            Ok(code) => return Ok(code),
            Err(error) => error,
        };
        let others = [Kind::NotFound, Kind::Busy, Kind::Target];
        let elsewhere = match error.kind() {
            // Else it is the target that is refused.
            Kind::Refused => error.is_lack_of_key() || error.is_of_other_cluster(),
            Kind::Usage | Kind::File => one.context.is_shut(),
            kind => is_elsewhere(kind) || others.contains(&kind),
        };
        if !elsewhere {
            return Err(error);
        }
        let is_missing = matches!(error.kind(), Kind::WalMissing | Kind::Target);
        stays |= is_missing && is_latest && one.timeline.is_some() && one.timeline == last;
        let what = format!("repository {name} cannot be restored from: {error}");
        say(&mut notes, what);
        failed.push(error.while_doing(format!("repository {name}")));
    }
    let first = failed.into_iter().next();
    let first = first.unwrap_or_else(|| Error::new(Kind::Repository, "none could be asked"));
    Err(match first.kind() {
        Kind::WalMissing => to_bring_together(first, &known).await,
        _ => first,
    })
}

/// Refuses what one repository alone refuses, too: recovery asks all of them for each history, and ends at one that no other
/// has as it should be.
async fn require_one_way(
    known: &[Known<'_>],
    (target, timeline): (&Target, Option<TimelineChoice>),
) -> Result<()> {
    let (mut good, mut bare) = (BTreeSet::from([TimelineId::FIRST]), BTreeSet::new());
    let mut unreadable = BTreeMap::new();
    for one in known {
        let cluster = one.context.cluster()?;
        // What else is the matter with it is found out when it is its turn.
        let Ok(archive) = Archive::load(&cluster).await else {
            continue;
        };
        for (timeline, read) in archive.histories().await.unwrap_or_default() {
            match read {
                Ok(_) => drop(good.insert(timeline)),
                Err(error) if error.kind() == Kind::NotFound => drop(bare.insert(timeline)),
                Err(error) => {
                    let act = format!("repository {}", one.name());
                    let error = error.while_doing(act);
                    unreadable.entry(timeline).or_insert(error);
                }
            }
        }
    }
    unreadable.retain(|timeline, _| !good.contains(timeline));
    require_way_known(target, timeline, &unreadable)?;
    let last = good.last().copied().unwrap_or(TimelineId::FIRST);
    let lost = bare.into_iter().find(|timeline| *timeline > last);
    match lost.filter(|_| target.follows_latest(timeline)) {
        Some(lost) => Err(Error::new(
            Kind::WalMissing,
            format!(
                "\"{}\" is in no repository, though files of timeline {lost} are: a server that looks for the newest timeline \
                 gives up there",
                lost.history_file_name()
            ),
        )
        .hint(format!(
            "store it with \"pgstrata archive-push\", or name the timeline that you mean: --target-timeline {last}"
        ))),
        None => Ok(()),
    }
}

/// The same of branches: recovery asks all of them for each segment.
async fn require_one_way_of_all(
    known: &[Known<'_>],
    way: (&Target, Option<TimelineChoice>),
    args: &RestoreArgs,
) -> Result<()> {
    let label = label_or_latest(&args.label)?;
    let clusters = known.iter().filter_map(|one| one.context.cluster().ok());
    let clusters: Vec<_> = clusters.collect();
    match require_one_way_among(&clusters, way, label.as_ref()).await {
        Err(error) if error.kind() == Kind::WalMissing => {
            Err(to_bring_together(error, known).await)
        }
        checked => checked,
    }
}

/// Says what the user should know of the repositories, and keeps it for the plan and the report.
fn say(notes: &mut Vec<String>, what: String) {
    tracing::warn!("{what}");
    notes.push(what);
}

/// Each repository may have WAL that the others lack, as after pushes with a smaller quorum: copies bring it together, where
/// they can.
async fn to_bring_together(error: Error, known: &[Known<'_>]) -> Error {
    let mut alike: Vec<&str> = Vec::new();
    let mut sealing = None;
    for one in known {
        let Ok(cluster) = one.context.cluster() else {
            continue;
        };
        let Ok(record) = cluster.record().await else {
            continue;
        };
        if *sealing.get_or_insert_with(|| record.sealing.clone()) == record.sealing {
            alike.push(one.name());
        }
    }
    let [first, others @ ..] = &alike[..] else {
        return error;
    };
    if others.is_empty() {
        return error;
    }
    let copy = |from: &str, to: &str| format!("\"pgstrata --repo {from} copy --to {to}\"");
    let to_first = others.iter().map(|other| copy(other, first));
    let back = others.iter().map(|other| copy(first, other));
    let copies: Vec<String> = to_first.chain(back).collect();
    let own = error.hint_text().map(|own| format!(" {own}"));
    let hint = format!(
        "First bring the WAL of the repositories together, one may have what another lacks: {}.{}",
        copies.join(", then "),
        own.unwrap_or_default()
    );
    error.hint(hint)
}

/// Those that answer, and those that do not: these are asked when no other is left.
async fn answering<'a>(
    several: &'a [Context],
    notes: &mut Vec<String>,
) -> (Vec<&'a Context>, Vec<Known<'a>>) {
    let (mut answering, mut silent) = (Vec::new(), Vec::new());
    let asked = several
        .iter()
        .map(|context| context.require_answer(ANSWERS_WITHIN));
    for (context, asked) in several.iter().zip(join_all(asked).await) {
        // What else is the matter with it is found out when it is looked at.
        let Some(error) = asked.err().filter(|error| error.kind() == Kind::Repository) else {
            answering.push(context);
            continue;
        };
        say(notes, cannot_be_asked(context, &error));
        silent.push(Known::silent(context));
    }
    (answering, silent)
}

fn cannot_be_asked(context: &Context, error: &Error) -> String {
    let name = context.config.name().unwrap_or_default();
    format!("repository {name} cannot be asked, and what it alone has is not restored: {error}")
}

/// Those that are of the kind that was expected: with an identity that can be read, and sealed as was said; and why the
/// others are not.
async fn usable<'a>(
    several: Vec<&'a Context>,
    notes: &mut Vec<String>,
) -> Result<(Vec<&'a Context>, Vec<Error>)> {
    let (mut usable, mut failed) = (Vec::new(), Vec::new());
    for context in several {
        let asked = match context.cluster() {
            // What else is the matter with it is found out when it is its turn.
            Ok(cluster) => match cluster.sealing().await {
                Err(error) if error.kind() == Kind::Refused && !error.is_lack_of_key() => {
                    Err(error)
                }
                _ => Ok(()),
            },
            Err(error) => Err(error),
        };
        let Err(error) = asked else {
            usable.push(context);
            continue;
        };
        let name = context.config.name().unwrap_or_default();
        say(
            notes,
            format!(
                "repository {name} cannot be restored from, and recovery stops at the first file that no other has: {error}"
            ),
        );
        failed.push(error.while_doing(format!("repository {name}")));
    }
    Ok((usable, failed))
}

/// Without those that are sealed, and of which the identity at hand reads no page; it is said which they are. When that is
/// all of them, all of them.
async fn opened<'a>(several: Vec<Known<'a>>, notes: &mut Vec<String>) -> Result<Vec<Known<'a>>> {
    let mut opened = Vec::new();
    let mut closed = Vec::new();
    for one in several {
        let cluster = one.context.cluster()?;
        // What else is the matter with it is found out when it is its turn.
        let is_closed = match cluster.sealing().await {
            Ok(sealing) => sealing.ring().is_some_and(|ring| ring.opens_no_data()),
            Err(_) => false,
        };
        let to = if is_closed { &mut closed } else { &mut opened };
        to.push(one);
    }
    if opened.is_empty() {
        return Ok(closed);
    }
    for one in closed {
        let name = one.name();
        say(
            notes,
            format!(
                "repository {name} is sealed, and the identity at hand does not open it: what it alone has is not restored, \
                 and recovery stops at a file that it alone has"
            ),
        );
    }
    Ok(opened)
}

/// A repository that may be restored from, and how far it goes.
struct Known<'a> {
    context: &'a Context,
    /// Its last timeline.
    timeline: Option<TimelineId>,
    /// The seal id and the last epoch of a sealed cluster: copies have the same id.
    epoch: Option<([u8; 16], u32)>,
    /// Whether its layers could be looked at.
    is_read: bool,
    newest: Option<Newest>,
}

/// The newest layer of a repository. Layers that were merged out of others are as new as the state that they hold.
struct Newest {
    stamp: String,
    /// Where it ends; nothing when that cannot be read.
    stop: Option<Lsn>,
    label: Label,
}

impl<'a> Known<'a> {
    /// One that does not answer.
    const fn silent(context: &'a Context) -> Self {
        Self {
            context,
            timeline: None,
            epoch: None,
            is_read: false,
            newest: None,
        }
    }

    async fn of(context: &'a Context) -> Result<Self> {
        let cluster = context.cluster()?;
        let timelines = archived_timelines(&cluster).await?;
        let mut known = Self {
            timeline: timelines.last().copied(),
            ..Self::silent(context)
        };
        if let Ok(sealing) = cluster.sealing().await {
            let ring = sealing.ring();
            known.epoch = ring.map(|ring| (ring.seal_id(), ring.current().number));
        }
        match Catalog::load(&cluster).await {
            Ok(catalog) => {
                known.is_read = true;
                known.newest = Newest::among(&catalog);
            }
            Err(error) if error.kind() == Kind::Repository => return Err(error),
            // It is found out when it is its turn.
            Err(_) => {}
        }
        Ok(known)
    }

    fn name(&self) -> &'a str {
        self.context.config.name().unwrap_or_default()
    }

    /// How new its newest layer is.
    fn rank(&self) -> Option<(&str, Option<Lsn>)> {
        self.newest.as_ref().map(Newest::rank)
    }

    /// What is to be said when it does not have the newest layer.
    fn lacks(&self, newest: Option<&Self>) -> Option<String> {
        let holder = newest?;
        let newest = holder.newest.as_ref()?;
        if !self.is_read || self.rank() >= holder.rank() {
            return None;
        }
        let has = self.newest.as_ref().map(|own| own.stamp == newest.stamp);
        Some(format!(
            "layer {}, the newest one, is in repository {}, and {} repository {}, which is used last",
            newest.label,
            holder.name(),
            if has == Some(true) {
                "cannot be read in"
            } else {
                "not in"
            },
            self.name()
        ))
    }

    /// What it has missed that others have.
    fn doubts(&self, all: &[Self]) -> Vec<String> {
        let name = self.name();
        let missed = (self.timeline != last_timeline(all)).then(|| {
            format!("repository {name} does not know the last timeline, and is used last")
        });
        let missed = missed.into_iter().chain(self.lacks_epoch(all));
        missed.chain(self.lacks(newest(all))).collect()
    }

    /// What is to be said when another one has begun an epoch that it does not know.
    fn lacks_epoch(&self, all: &[Self]) -> Option<String> {
        let (seal_id, own) = self.epoch?;
        let others = all.iter().filter_map(|other| Some((other, other.epoch?)));
        let others = others.filter(|(_, (id, number))| *id == seal_id && *number > own);
        let (holder, (_, newest)) = others.max_by_key(|(_, (_, number))| *number)?;
        let (name, holder) = (self.name(), holder.name());
        Some(format!(
            "repository {name} does not know epoch {newest}, which has begun in repository {holder}: what is stored in it is sealed for \
             the recipients of epoch {own}, also for who was taken out since; \"pgstrata --repo {holder} copy --to {name}\" brings it"
        ))
    }

    /// What is to be said when it is restored from after those that were tried, and another has a newer layer.
    fn is_older_than(&self, newest: Option<&Self>, tried: &[Self]) -> Option<String> {
        let holder = newest?;
        let (newest, own) = (holder.newest.as_ref()?, self.newest.as_ref()?);
        let why = match tried.iter().any(|one| one.name() == holder.name()) {
            true => "cannot be restored from",
            false => "does not know the last timeline",
        };
        (self.rank() < holder.rank()).then(|| {
            format!(
                "the newest layer of repository {} is {}; layer {}, which is newer, is in repository {}, which {why}",
                self.name(),
                own.label,
                newest.label,
                holder.name()
            )
        })
    }
}

fn last_timeline(known: &[Known<'_>]) -> Option<TimelineId> {
    known.iter().filter_map(|one| one.timeline).max()
}

/// The first of those that have the newest layer.
fn newest<'k, 'a>(known: &'k [Known<'a>]) -> Option<&'k Known<'a>> {
    let with_layer = known.iter().filter(|one| one.newest.is_some());
    with_layer.rev().max_by_key(|one| one.rank())
}

impl Newest {
    fn among(catalog: &Catalog) -> Option<Self> {
        let layer = catalog.layers.last().map(|layer| Self {
            stamp: layer.manifest.state_stamp(),
            stop: Some(layer.manifest.stop_lsn),
            label: layer.label.clone(),
        });
        let damaged = catalog.damaged.iter().map(|(label, _)| Self {
            stamp: label.own_stamp().to_owned(),
            stop: None,
            label: label.clone(),
        });
        damaged
            .chain(layer)
            .max_by(|one, other| one.rank().cmp(&other.rank()))
    }

    fn rank(&self) -> (&str, Option<Lsn>) {
        (&self.stamp, self.stop)
    }
}

/// Those first that know the last timeline, and of these those that have the newest layer: who has missed a promotion would
/// lead recovery to the end of the old one, and who has missed a backup would restore an older one.
async fn in_order<'a>(
    several: Vec<&'a Context>,
    notes: &mut Vec<String>,
) -> Result<Vec<Known<'a>>> {
    let (mut known, mut silent) = (Vec::new(), Vec::new());
    let asked = join_all(several.iter().map(|context| Known::of(context))).await;
    for (context, asked) in several.into_iter().zip(asked) {
        match asked {
            Ok(one) => known.push(one),
            Err(error) => {
                say(notes, cannot_be_asked(context, &error));
                silent.push(Known::silent(context));
            }
        }
    }
    let last = last_timeline(&known);
    for what in known.iter().flat_map(|one| one.doubts(&known)) {
        say(notes, what);
    }
    known.sort_by(|one, other| {
        let by_timeline = (other.timeline == last).cmp(&(one.timeline == last));
        by_timeline.then_with(|| other.rank().cmp(&one.rank()))
    });
    known.extend(silent);
    // It may answer by then.
    Ok(known)
}
