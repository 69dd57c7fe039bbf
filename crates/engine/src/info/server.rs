//! What a running server tells of the health of backups: the collector of its facts. Judged by [`crate::health`].
//!
//! Slots are asked for by SQL, which every role may; the rest is looked at in the data directory, which a backup reads too.
//! Nothing is changed. A server that is not there, or does not answer, is no alarm: what was not looked at is named.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pgstrata_pgdata::TimelineId;
use pgstrata_store::archive::Archive;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use serde::Serialize;
use tokio::time::timeout;

use crate::health::server::{self as judgement, ServerState, ServerVerdict};
use crate::health::{Alarm, AlarmKind};
use crate::server::archiver::Archiving;
use crate::server::control::control_of_server;
use crate::server::outside::outside;
use crate::server::recovery_left::recovery_left;
use crate::server::{ConnectionOptions, Session, pg_wal};

/// Who wants to see the repository does not wait longer for the server.
const PATIENCE: Duration = Duration::from_secs(20);

/// What only a server can tell, in the order in which it is shown.
const ALL: [AlarmKind; 5] = [
    AlarmKind::Archiver,
    AlarmKind::Configuration,
    AlarmKind::Slots,
    AlarmKind::Backlog,
    AlarmKind::Room,
];

/// Which server to ask.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// How to reach it.
    pub connection: ConnectionOptions,
    /// Its data directory; `None`: ask the server.
    pub data_directory: Option<PathBuf>,
    /// The time that WAL may take into the repository.
    pub patience: Duration,
}

/// An alarm that could not be raised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotLookedAt {
    /// What it would have been about.
    pub kind: AlarmKind,
    /// Why nobody looked.
    pub reason: String,
}

/// What a server told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerHealth {
    /// What is wrong.
    pub alarms: Vec<Alarm>,
    /// What it did not tell.
    pub not_looked_at: Vec<NotLookedAt>,
    /// The timeline that it writes, of a primary.
    pub timeline: Option<TimelineId>,
    /// Whether it was asked and did not answer.
    pub is_silent: bool,
}

/// Asks the server, if there is one to ask.
pub async fn look(cluster: &ClusterRepository, options: Option<&ServerOptions>) -> ServerHealth {
    let Some(options) = options else {
        return ServerHealth::nothing("no server is named");
    };
    match timeout(PATIENCE, verdicts(cluster, options)).await {
        Ok(Ok((verdicts, timeline))) => ServerHealth {
            timeline,
            ..ServerHealth::of(verdicts)
        },
        Ok(Err(error)) if error.kind() == Kind::Server => ServerHealth::silent(&error.to_string()),
        Ok(Err(error)) => ServerHealth::nothing(&error.to_string()),
        Err(_) => ServerHealth::silent(&format!(
            "the server did not answer within {} s",
            PATIENCE.as_secs()
        )),
    }
}

impl ServerHealth {
    fn silent(reason: &str) -> Self {
        Self {
            is_silent: true,
            ..Self::nothing(reason)
        }
    }

    fn nothing(reason: &str) -> Self {
        let reason = reason.to_owned();
        let not_looked_at = ALL.map(|kind| NotLookedAt {
            kind,
            reason: reason.clone(),
        });
        Self {
            not_looked_at: not_looked_at.into(),
            ..Self::default()
        }
    }

    fn of(verdicts: Vec<ServerVerdict>) -> Self {
        let mut health = Self::default();
        for verdict in verdicts {
            match verdict {
                ServerVerdict::Fine { .. } => {}
                ServerVerdict::Unseen { kind, why } => {
                    health.not_looked_at.push(NotLookedAt { kind, reason: why })
                }
                ServerVerdict::Wrong(alarm) => health.alarms.push(alarm),
            }
        }
        health
            .alarms
            .sort_by_key(|alarm| std::cmp::Reverse(alarm.severity));
        health
    }
}

async fn verdicts(
    cluster: &ClusterRepository,
    options: &ServerOptions,
) -> Result<(Vec<ServerVerdict>, Option<TimelineId>)> {
    let record = cluster.record().await?;
    let session = Session::connect(&options.connection).await?;
    let (ours, theirs) = (record.system_identifier, session.facts().system_identifier);
    if ours != theirs {
        return Err(Error::new(
            Kind::Refused,
            format!(
                "the server that was asked is another cluster: its system identifier is {theirs}, not {ours}"
            ),
        ));
    }
    let archive = Archive::new(cluster, record)?;
    let directory = data_directory(&session, options).await;
    let known = directory.as_deref().ok();
    let wal_directory = known.map(|directory| directory.join("pg_wal"));
    let pg_wal = wal_directory.as_deref();
    let asking = Archiving::ask(&session, pg_wal, cluster, &archive, options.patience);
    let archiving = asking.await;
    let mut verdicts = vec![match archiving {
        Ok(archiving) => of_this_repository(&archiving, judgement::archiver(&archiving)),
        Err(error) => ServerVerdict::unseen(AlarmKind::Archiver, error),
    }];
    match &directory {
        Ok(directory) => {
            let found = outside(&session, directory).await;
            verdicts.extend(judgement::configuration(found.map(|found| found.warnings)));
        }
        Err(error) => {
            let of_files = [
                AlarmKind::Configuration,
                AlarmKind::Backlog,
                AlarmKind::Room,
            ];
            verdicts.extend(of_files.map(|kind| ServerVerdict::unseen(kind, error)));
        }
    }
    verdicts.extend(judgement::judge(
        &state(&session, known, options.patience).await,
    ));
    Ok((verdicts, session.own_timeline().await.ok().flatten()))
}

/// Who looks at a copy, while the server archives elsewhere and well, has no reason to worry: nothing is known of this one,
/// unless the server's command names it.
fn of_this_repository(archiving: &Archiving, verdict: ServerVerdict) -> ServerVerdict {
    let works = archiving.archives && archiving.is_ours() && archiving.trouble().is_none();
    match verdict {
        ServerVerdict::Wrong(alarm) if works && !archiving.names_this => {
            ServerVerdict::unseen(alarm.kind, alarm.reason)
        }
        verdict => verdict,
    }
}

/// The data directory, when it is this host's and the server's.
async fn data_directory(session: &Session, options: &ServerOptions) -> Result<PathBuf> {
    let facts = session.facts();
    let told = options.data_directory.clone();
    let directory = told.or_else(|| facts.data_directory.as_ref().map(PathBuf::from));
    let directory = directory.ok_or_else(|| {
        let what = format!(
            "role \"{}\" may not see where the data directory is",
            facts.role
        );
        Error::new(Kind::Usage, what)
    })?;
    control_of_server(session, &directory).await?;
    Ok(directory)
}

/// Asks the server, and looks into its data directory, if that is known. `patience` is the time that WAL may take into the
/// repository.
pub(crate) async fn state(
    session: &Session,
    directory: Option<&Path>,
    patience: Duration,
) -> ServerState {
    ServerState {
        own_slots: session.own_slots().await,
        held: session.held_wal().await,
        recovery: recovery_left(session, directory).await,
        pg_wal: directory.map(|directory| pg_wal::look(&directory.join("pg_wal"))),
        patience,
    }
}
