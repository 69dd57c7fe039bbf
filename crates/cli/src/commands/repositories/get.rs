//! `archive-get` out of several repositories: the first that has the file gives it.
//!
//! "Not there" is said only when every one of them says so. One that cannot be asked, be it that it does not answer or that
//! its table has a mistake, may have the file: then recovery stops, and does not end. Nor does it go on from the WAL of one
//! server to that of another.

use std::time::{Duration, Instant};

use pgstrata_store::archive::{self, GetOutcome, Notes};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};

use super::super::Context;
use super::super::archive::{Holes, get_file, say_got};
use super::{ANSWERS_WITHIN, act_in, is_elsewhere, notes, servers};
use crate::args::ArchiveGetArgs;

/// Between two looks whether a hole has been filled.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Fetches the file out of the first that has it.
pub(super) async fn run(several: &[Context], args: &ArchiveGetArgs) -> Result<u8> {
    let holes = Holes::told(&several[0], args)?;
    let at_once = Holes {
        wait: Duration::ZERO,
        are_end: false,
    };
    let started = Instant::now();
    loop {
        let asked = match ask_all(several, args, &at_once).await? {
            Answer::Got => return Ok(0),
            Answer::Nobody(asked) => asked,
        };
        let is_hole = |error: &Error| error.kind() == Kind::WalMissing;
        // What one has that nobody opens may come into another, too.
        let may_come = |error: &Error| is_hole(error) || error.is_lack_of_key();
        let may_come = !asked.opened.is_empty() && asked.failed.iter().all(may_come);
        let Asked { end, failed, .. } = asked;
        // All were asked, and say so.
        if failed.is_empty() {
            return Err(end.unwrap_or_else(|| Error::new(Kind::Repository, "none was asked")));
        }
        let only_holes = failed.iter().all(is_hole);
        if may_come && started.elapsed() < holes.wait {
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

enum Answer<'a> {
    Got,
    Nobody(Asked<'a>),
}

/// What repositories say that do not have the file.
#[derive(Default)]
struct Asked<'a> {
    /// That their archive ends before it; the first that says so.
    end: Option<Error>,
    /// Anything else.
    failed: Vec<Error>,
    /// Those that could be read as far as it took.
    opened: Vec<&'a Context>,
    /// Those that are sealed for others.
    closed: Vec<(&'a Context, Error)>,
}

impl<'a> Asked<'a> {
    /// Opens one. What keeps it from that is the matter with it alone, and nobody knows what it has.
    fn open(&mut self, context: &Context) -> Option<ClusterRepository> {
        match context.cluster() {
            Ok(cluster) => Some(cluster),
            Err(error) => {
                self.failed.push(error.while_doing(act_in(context)));
                None
            }
        }
    }

    /// Notes what a repository said; true when the file is there.
    fn note(
        &mut self,
        context: &'a Context,
        notes: &Notes,
        args: &ArchiveGetArgs,
        got: Result<Result<GetOutcome>>,
    ) -> Result<bool> {
        let name = context.config.name().unwrap_or_default();
        let error = match got {
            Ok(outcome) => {
                let outcome = outcome?;
                for error in &self.failed {
                    tracing::warn!("{} comes from repository {name}: {error}", args.name);
                }
                say_got(context, args, &outcome);
                return Ok(true);
            }
            Err(error) => error,
        };
        match error.kind() {
            _ if error.is_lack_of_key() => {
                notes.add_outage();
                self.closed.push((context, error));
            }
            Kind::NotFound => {
                self.end.get_or_insert(error);
                self.opened.push(context);
            }
            // Its credentials may have gone since it was opened.
            kind if is_elsewhere(kind) || context.is_shut() => {
                match kind {
                    Kind::Repository => notes.add_outage(),
                    Kind::WalMissing => self.opened.push(context),
                    _ => {}
                }
                self.failed.push(error.while_doing(act_in(context)));
            }
            _ => return Err(error),
        }
        Ok(false)
    }

    /// What those say by their names that no identity opens. When none could be read, that is all there is to say.
    async fn ask_names(&mut self, args: &ArchiveGetArgs) -> Result<()> {
        let mut opened = Vec::new();
        for context in &self.opened {
            opened.push(context.cluster()?);
        }
        let mut said = Vec::new();
        for (context, error) in self.closed.drain(..) {
            let act = act_in(context);
            if opened.is_empty() {
                said.push(error.while_doing(act));
                continue;
            }
            let closed = context.cluster()?;
            let along = args.along();
            match archive::names_in_closed(&closed, &args.name, &opened, along).await {
                Ok(None) => {}
                Ok(Some(error)) => said.push(error.while_doing(act)),
                Err(error) => said.push(error.while_doing(act)),
            }
        }
        self.failed.splice(..0, said);
        Ok(())
    }
}

/// Asks one after the other. One that did not answer a moment ago, or that nobody here opens, is asked last, because that
/// takes long. One that says nothing for a while makes room for the others, and is then asked as long as it takes.
async fn ask_all<'a>(
    several: &'a [Context],
    args: &ArchiveGetArgs,
    holes: &Holes,
) -> Result<Answer<'a>> {
    let mut order = Vec::new();
    for context in several {
        let notes = notes(context, args.spool.as_ref())?;
        order.push((notes.had_outage(), context, notes));
    }
    order.sort_by_key(|(had_outage, ..)| *had_outage);
    let mut asked = Asked::default();
    let mut silent = Vec::new();
    for (_, context, notes) in order {
        let Some(cluster) = asked.open(context) else {
            continue;
        };
        let got = tokio::select! {
            got = get_next(several, (context, &cluster), args, holes) => got,
            error = silence(context) => {
                let name = context.config.name().unwrap_or_default();
                tracing::warn!("repository {name} is asked last: {error}");
                notes.add_outage();
                silent.push((context, notes));
                continue;
            }
        };
        if asked.note(context, &notes, args, got)? {
            return Ok(Answer::Got);
        }
    }
    for (context, notes) in silent {
        let Some(cluster) = asked.open(context) else {
            continue;
        };
        let got = get_next(several, (context, &cluster), args, holes).await;
        if asked.note(context, &notes, args, got)? {
            return Ok(Answer::Got);
        }
    }
    asked.ask_names(args).await?;
    Ok(Answer::Nobody(asked))
}

/// Fetches the file out of one of them, unless another server has archived what the one that asks has got so far.
async fn get_next(
    several: &[Context],
    (context, cluster): (&Context, &ClusterRepository),
    args: &ArchiveGetArgs,
    holes: &Holes,
) -> Result<Result<GetOutcome>> {
    let judge = async |outcome: &GetOutcome| {
        servers::require_goes_on(several, (context, cluster), args, outcome).await
    };
    get_file(context, cluster, args, holes, judge).await
}

/// Ends when the repository has stopped answering.
async fn silence(context: &Context) -> Error {
    loop {
        tokio::time::sleep(ANSWERS_WITHIN / 2).await;
        if let Err(error) = context.require_answer(ANSWERS_WITHIN / 2).await {
            return error;
        }
    }
}
