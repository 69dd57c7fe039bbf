//! `archive-push` into several repositories: done as soon as enough of them have the file.
//!
//! All are given the file at once. When the quorum has it, the others have a grace; whoever has not taken it by then is given
//! up for this file, with a warning, and is noted for a while: the files behind it wait less for that repository. So a store that stalls
//! does not hold up the server's WAL. What is given up ends with this process.

use std::sync::Arc;
use std::time::Duration;

use pgstrata_store::archive::{Notes, PushOutcome};
use pgstrata_store::error::{Error, Kind, Result};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::super::Context;
use super::super::archive::{push_file, quorum, say_pushed};
use super::{notes, require_apart};
use crate::args::ArchivePushArgs;

/// What a repository may take for a file after the quorum has it: 16 MiB at 50 Mbit/s.
const GRACE: Duration = Duration::from_secs(3);

/// The same for one that was given up a moment ago: enough for one that answers again to be taken back.
const SHORT_GRACE: Duration = Duration::from_millis(300);

/// How long those that have the file may go on with its neighbours, which spares later pushes.
const NEIGHBOURS_WITHIN: Duration = Duration::from_secs(10);

/// Stores the file in all; enough must have it.
pub(super) async fn run(several: &[Context], args: ArchivePushArgs) -> Result<u8> {
    let quorum = quorum(&several[0], &args, several.len())?;
    let mut vote = Vote::among(several)?;
    let mut pushing = Pushing::begin(several, args);
    vote.hold(&mut pushing, quorum).await;
    // Not before: one that does not answer would hold up all. Those that have the file have just answered.
    require_apart(&several[0], vote.stored().map(|(voter, _)| voter.context)).await?;
    vote.judge(quorum)
}

/// The pushes that go on, and what is heard of them. What is dropped is given up.
struct Pushing {
    heard: UnboundedReceiver<(usize, Heard)>,
    _tasks: JoinSet<()>,
}

enum Heard {
    /// The file itself is there.
    Stored(PushOutcome),
    /// Neighbours too.
    Ended(Result<PushOutcome>),
}

impl Pushing {
    fn begin(several: &[Context], args: ArchivePushArgs) -> Self {
        let args = Arc::new(args);
        let (tell, heard) = unbounded_channel();
        let mut tasks = JoinSet::new();
        for (at, context) in several.iter().enumerate() {
            let (context, args) = (context.with(&context.config), Arc::clone(&args));
            tasks.spawn(push(at, context, args, tell.clone()));
        }
        Self {
            heard,
            _tasks: tasks,
        }
    }
}

async fn push(
    at: usize,
    context: Context,
    args: Arc<ArchivePushArgs>,
    tell: UnboundedSender<(usize, Heard)>,
) {
    let (told, mut stored) = unbounded_channel();
    let pushing = push_file(&context, &args, Some(told));
    let telling = async {
        if let Some(outcome) = stored.recv().await {
            // Nobody listens any more when the command ends.
            let _ = tell.send((at, Heard::Stored(outcome)));
        }
    };
    let (ended, ()) = futures::join!(pushing, telling);
    let _ = tell.send((at, Heard::Ended(ended)));
}

/// One repository.
struct Voter<'a> {
    context: &'a Context,
    notes: Notes,
    /// Whether it was given up a moment ago.
    was_late: bool,
    state: State,
}

enum State {
    Asked,
    Stored(PushOutcome),
    Ended(PushOutcome),
    Failed(Error),
}

impl<'a> Voter<'a> {
    fn name(&self) -> &'a str {
        self.context.config.name().unwrap_or_default()
    }

    /// How long it is waited for after the quorum has the file; nothing when it need not be.
    fn grace(&self) -> Option<Duration> {
        match &self.state {
            State::Asked if self.was_late => Some(SHORT_GRACE),
            State::Asked => Some(GRACE),
            State::Stored(_) => Some(NEIGHBOURS_WITHIN),
            State::Ended(_) | State::Failed(_) => None,
        }
    }

    fn outcome(&self) -> Option<&PushOutcome> {
        match &self.state {
            State::Stored(outcome) | State::Ended(outcome) => Some(outcome),
            State::Asked | State::Failed(_) => None,
        }
    }

    fn hear(&mut self, heard: Heard) {
        self.state = match heard {
            Heard::Stored(outcome) => State::Stored(outcome),
            Heard::Ended(Ok(outcome)) => State::Ended(outcome),
            Heard::Ended(Err(error)) => {
                State::Failed(error.while_doing(format!("repository {}", self.name())))
            }
        };
        if self.was_late && self.outcome().is_some() {
            self.was_late = false;
            self.notes.end_outage();
        }
    }

    /// Gives it up for this file.
    fn give_up(&mut self, waited: Duration) {
        if !matches!(self.state, State::Asked) {
            return;
        }
        // Else one that comes back slowly would never get its whole grace again.
        if !self.was_late {
            self.notes.add_outage();
        }
        let what = format!(
            "repository {} has not taken it within {:.1} s after the quorum had it",
            self.name(),
            waited.as_secs_f64()
        );
        self.state = State::Failed(Error::new(Kind::Repository, what));
    }
}

struct Vote<'a>(Vec<Voter<'a>>);

impl<'a> Vote<'a> {
    fn among(several: &'a [Context]) -> Result<Self> {
        let mut voters = Vec::new();
        for context in several {
            let notes = notes(context, None)?;
            voters.push(Voter {
                context,
                was_late: notes.had_outage(),
                notes,
                state: State::Asked,
            });
        }
        Ok(Self(voters))
    }

    fn stored(&self) -> impl Iterator<Item = (&Voter<'a>, &PushOutcome)> {
        let voters = self.0.iter();
        voters.filter_map(|voter| Some((voter, voter.outcome()?)))
    }

    /// Listens until all have said what they have to say, or enough have, and the others have had their time.
    async fn hold(&mut self, pushing: &mut Pushing, quorum: usize) {
        let mut reached = None;
        loop {
            if reached.is_none() && self.stored().count() >= quorum {
                reached = Some(Instant::now());
            }
            let Some(longest) = self.0.iter().filter_map(Voter::grace).max() else {
                return;
            };
            // A quorum that is not reached waits for all of them: they may be all that will get the file for long.
            let heard = match reached {
                None => pushing.heard.recv().await,
                Some(since) => tokio::select! {
                    heard = pushing.heard.recv() => heard,
                    () = sleep_until(since + longest) => None,
                },
            };
            match heard {
                Some((at, heard)) => self.0[at].hear(heard),
                None => {
                    self.0.iter_mut().for_each(|voter| voter.give_up(longest));
                    return;
                }
            }
        }
    }

    /// The exit code, or the error.
    fn judge(mut self, quorum: usize) -> Result<u8> {
        // Whatever keeps a repository from taking it may be outvoted: gone, not mounted, damaged, sealed for others. Another
        // file of that name, or another cluster, is a mistake that somebody must see.
        let mut failed = Vec::new();
        for voter in &mut self.0 {
            let state = std::mem::replace(&mut voter.state, State::Asked);
            match state {
                State::Failed(error) => failed.push((voter.name(), error)),
                other => voter.state = other,
            }
        }
        let is_grave =
            |error: &Error| error.kind() == Kind::AlreadyExists || error.is_of_other_cluster();
        if let Some(at) = failed.iter().position(|(_, error)| is_grave(error)) {
            return Err(failed.swap_remove(at).1);
        }
        let stored: Vec<_> = self.stored().collect();
        let Some((first, outcome)) = stored.first().filter(|_| stored.len() >= quorum) else {
            let first = failed.into_iter().next().map(|(_, error)| error);
            return Err(
                first.unwrap_or_else(|| Error::new(Kind::Repository, "no repository has it"))
            );
        };
        for (name, error) in &failed {
            // A copy would make the repository anew, also below a mount point.
            let hint = error.hint_text().filter(|_| error.kind() == Kind::NotFound);
            let first_do = hint.map(|hint| format!("; {hint}"));
            tracing::warn!(
                "the file is in {} of {} repositories, which is enough; \"pgstrata --repo {} copy --to {name}\" brings it to \
                 the other later: {error}{}",
                stored.len(),
                self.0.len(),
                first.name(),
                first_do.unwrap_or_default(),
            );
        }
        say_pushed(first.context, outcome);
        Ok(0)
    }
}
