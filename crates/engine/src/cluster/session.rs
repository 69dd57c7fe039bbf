//! The one session that starts and stops a backup.
//!
//! PostgreSQL ends a backup with the session that started it. So the session is
//! ours alone, no timeout of the server may end it, it is pinged, and its loss
//! is known at once ([`Session::lost`]). Killing this program closes it, which
//! releases the lock, the replication slot and the server's backup mode.

use std::sync::Arc;
use std::time::Duration;

use pgstrata_pgdata::Lsn;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls, Row};

use super::conninfo::{ConnectionOptions, describe};
use super::facts::ServerFacts;
use crate::error::{Error, Kind, Result};

/// Name of the session in `pg_stat_activity`.
pub const APPLICATION_NAME: &str = "pgstrata backup";

/// Both halves of the advisory lock's key: "pgst", "bkup".
const LOCK_KEY: (i32, i32) = (0x7067_7374, 0x626B_7570);

/// Firewalls and poolers drop idle connections after minutes; half a minute is below all their defaults.
const PING_EVERY: Duration = Duration::from_secs(30);

/// What `pg_backup_stop` returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Where the backup ends.
    pub lsn: Lsn,
    /// `backup_label`, to the byte.
    pub backup_label: String,
    /// `tablespace_map`, to the byte; `None` when empty.
    pub tablespace_map: Option<String>,
}

/// What `pg_stat_archiver` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archiver {
    /// The file archived last, and when.
    pub archived: Option<(String, String)>,
    /// The file that last failed, and when.
    pub failed: Option<(String, String)>,
    /// Whether the last attempt failed.
    pub is_failing: bool,
}

/// A replication slot with a name of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnSlot {
    /// Its name.
    pub name: String,
    /// Whether it ends with its session.
    pub temporary: bool,
    /// The server process that uses it.
    pub process: Option<i32>,
}

/// Whether the server runs the tracker's library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackerLibrary {
    /// It does.
    pub is_loaded: bool,
    /// `shared_preload_libraries`; `None` when our role may not see it.
    pub preloaded: Option<String>,
}

/// A connection for one backup.
pub struct Session {
    client: Arc<Client>,
    facts: ServerFacts,
    lost: watch::Receiver<Option<String>>,
    pinger: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.pinger.abort();
    }
}

impl Session {
    /// Connects, prepares the session and asks for the server's facts.
    ///
    /// # Errors
    /// `Kind::Server` when the server cannot be reached or refuses us.
    pub async fn connect(options: &ConnectionOptions) -> Result<Self> {
        let mut config = options.config()?;
        config.application_name(APPLICATION_NAME);
        let place = describe(&config);
        let (client, connection) = config.connect(NoTls).await.map_err(|error| {
            server_error(
                &format!("could not connect to the server at {place}"),
                &error,
            )
            .hint(connect_hint(&error))
        })?;
        let (announce, lost) = watch::channel(None);
        tokio::spawn(async move {
            let end = match connection.await {
                Ok(()) => "the server closed the connection".to_owned(),
                Err(error) => cause(&error),
            };
            // Nobody listening means the session was dropped: its end is no news.
            announce.send(Some(end)).ok();
        });
        prepare(&client).await?;
        let facts = ServerFacts::read(&client).await?;
        let client = Arc::new(client);
        let pinger = tokio::spawn(ping(Arc::clone(&client)));
        Ok(Self {
            client,
            facts,
            lost,
            pinger,
        })
    }

    /// What the server said when we connected.
    #[must_use]
    pub fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    /// The connection, for questions that do not touch the backup.
    pub(super) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Version of the tracker's extension among the server's files.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn tracker_files(&self) -> Result<Option<String>> {
        let act = "could not look for the extension's files";
        let query = "SELECT (SELECT default_version::text FROM pg_available_extensions WHERE name = 'pgstrata')";
        get(&self.row(act, query, &[]).await?, 0, act)
    }

    /// What the server was told to load.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn tracker_library(&self) -> Result<TrackerLibrary> {
        let act = "could not ask for the server's libraries";
        let query = "SELECT EXISTS (SELECT FROM pg_settings WHERE name = 'pgstrata.map_size'),
            (SELECT setting FROM pg_settings WHERE name = 'shared_preload_libraries')";
        let row = self.row(act, query, &[]).await?;
        Ok(TrackerLibrary {
            is_loaded: get(&row, 0, act)?,
            preloaded: get(&row, 1, act)?,
        })
    }

    /// Resolves when the connection has ended, with the error to give.
    pub fn lost(&self) -> impl Future<Output = Error> + Send + use<> {
        let mut lost = self.lost.clone();
        async move {
            let reason = match lost.wait_for(Option::is_some).await {
                Ok(reason) => reason.clone().unwrap_or_default(),
                Err(_) => "the connection ended".to_owned(),
            };
            Error::new(
                Kind::Server,
                format!("lost the connection that holds the backup: {reason}"),
            )
            .hint("the server has left backup mode; start the backup again")
        }
    }

    /// Takes the lock that keeps backups of one server apart. It ends with the session.
    ///
    /// # Errors
    /// `Kind::Busy` when another backup holds it.
    pub async fn lock(&self) -> Result<()> {
        let act = "could not lock the cluster against other backups";
        // Advisory locks belong to a database, backups to the cluster: look into all of them.
        let row = self
            .row(
                act,
                "SELECT pg_try_advisory_lock($1::int4, $2::int4),
                        (SELECT min(pid) FROM pg_locks
                          WHERE locktype = 'advisory' AND classid::int8 = $1::int4 AND objid::int8 = $2::int4
                            AND objsubid = 2 AND granted AND pid <> pg_backend_pid())",
                &[&LOCK_KEY.0, &LOCK_KEY.1],
            )
            .await?;
        let (taken, other): (bool, Option<i32>) = (get(&row, 0, act)?, get(&row, 1, act)?);
        match other {
            None if taken => Ok(()),
            other => {
                let holder =
                    other.map_or_else(String::new, |pid| format!(" (server process {pid})"));
                Err(Error::new(
                    Kind::Busy,
                    format!("another backup of this cluster is running{holder}"),
                )
                .hint("wait until it has ended"))
            }
        }
    }

    /// Starts the backup; returns its redo location when the checkpoint is done.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn start(&self, label: &str, fast: bool) -> Result<Lsn> {
        let act = "could not start the backup";
        let row = self
            .row(
                act,
                "SELECT pg_backup_start($1, $2)::text",
                &[&label, &fast],
            )
            .await?;
        lsn(&row, 0, act)
    }

    /// Stops the backup, without waiting for the server's archiver.
    ///
    /// # Errors
    /// When the server refuses: the backup is void.
    pub async fn stop(&self) -> Result<Stopped> {
        let act = "could not stop the backup";
        let row = self
            .row(
                act,
                "SELECT lsn::text, labelfile, spcmapfile FROM pg_backup_stop(false)",
                &[],
            )
            .await?;
        let map: Option<String> = get(&row, 2, act)?;
        Ok(Stopped {
            lsn: lsn(&row, 0, act)?,
            backup_label: get(&row, 1, act)?,
            tablespace_map: map.filter(|text| !text.is_empty()),
        })
    }

    /// Whether the server replays WAL now.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn is_in_recovery(&self) -> Result<bool> {
        let act = "could not ask whether the server is a standby";
        get(
            &self.row(act, "SELECT pg_is_in_recovery()", &[]).await?,
            0,
            act,
        )
    }

    /// How far the WAL in `pg_wal` is complete: flushed by a primary, replayed by a standby.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn wal_end(&self) -> Result<Lsn> {
        let act = "could not ask for the end of the WAL";
        let query = if self.facts.in_recovery {
            "SELECT pg_last_wal_replay_lsn()::text"
        } else {
            "SELECT pg_current_wal_flush_lsn()::text"
        };
        lsn(&self.row(act, query, &[]).await?, 0, act)
    }

    /// Creates a replication slot that keeps all WAL from now on in `pg_wal` and ends with the session.
    ///
    /// # Errors
    /// When our role may not, or all slots are taken.
    pub async fn hold_wal(&self, slot: &str) -> Result<Lsn> {
        let act = "could not create a temporary replication slot to keep the WAL of the backup";
        let query = "SELECT lsn::text FROM pg_create_physical_replication_slot($1, true, true)";
        match self.row(act, query, &[&slot]).await {
            Ok(row) => lsn(&row, 0, act),
            Err(error) if !self.facts.may_replicate => Err(error.hint(format!(
                "ALTER ROLE \"{}\" REPLICATION, or let the server archive to the repository",
                self.facts.role
            ))),
            Err(error) => Err(error
                .hint("raise max_replication_slots, or let the server archive to the repository")),
        }
    }

    /// Lets go of the WAL before `keep_from`.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn release_wal(&self, slot: &str, keep_from: Lsn) -> Result<()> {
        let act = "could not advance the replication slot of the backup";
        let position = keep_from.to_string();
        let query = "SELECT end_lsn::text FROM pg_replication_slot_advance($1, $2::text::pg_lsn)";
        self.row(act, query, &[&slot, &position]).await.map(|_| ())
    }

    /// What the server's archiver did last.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn archiver(&self) -> Result<Archiver> {
        let act = "could not ask for the state of the archiver";
        let query = "SELECT last_archived_wal, last_archived_time::text, last_failed_wal,
                            last_failed_time::text,
                            coalesce(last_failed_time > last_archived_time, last_failed_time IS NOT NULL)
                       FROM pg_stat_archiver";
        let row = self.row(act, query, &[]).await?;
        let event = |name: usize| -> Result<Option<(String, String)>> {
            let file: Option<String> = get(&row, name, act)?;
            let time: Option<String> = get(&row, name + 1, act)?;
            Ok(file.zip(time))
        };
        Ok(Archiver {
            archived: event(0)?,
            failed: event(2)?,
            is_failing: get(&row, 4, act)?,
        })
    }

    /// Replication slots with a name of ours.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn own_slots(&self) -> Result<Vec<OwnSlot>> {
        let act = "could not list the replication slots";
        let query = "SELECT slot_name::text, temporary, active_pid FROM pg_replication_slots
                      WHERE slot_name LIKE 'pgstrata\\_%' AND active_pid IS DISTINCT FROM pg_backend_pid()
                      ORDER BY slot_name";
        let rows = self.client.query(query, &[]).await;
        let rows = rows.map_err(|error| server_error(act, &error))?;
        let slot = |row: &Row| {
            Ok(OwnSlot {
                name: get(row, 0, act)?,
                temporary: get(row, 1, act)?,
                process: get(row, 2, act)?,
            })
        };
        rows.iter().map(slot).collect()
    }

    /// Writes a record and switches to a new WAL segment; returns the end of the old one's records.
    ///
    /// # Errors
    /// When our role may not.
    pub async fn switch_wal_with_record(&self) -> Result<Lsn> {
        let act = "could not switch to a new WAL segment";
        // An empty segment is not switched. The commit of a transaction number is the least there is to write.
        self.row(act, "SELECT pg_current_xact_id()::text", &[])
            .await?;
        lsn(
            &self.row(act, "SELECT pg_switch_wal()::text", &[]).await?,
            0,
            act,
        )
    }

    async fn row(
        &self,
        act: &str,
        query: &str,
        parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Result<Row> {
        self.client
            .query_one(query, parameters)
            .await
            .map_err(|error| server_error(act, &error))
    }
}

/// Nothing of the server's configuration may end or divert the session.
pub(super) async fn prepare(client: &Client) -> Result<()> {
    // transaction_timeout came with version 17.
    let settings = "SET search_path = pg_catalog; SET client_encoding = 'UTF8';
        SET statement_timeout = 0; SET lock_timeout = 0; SET idle_session_timeout = 0;
        SET idle_in_transaction_session_timeout = 0;
        SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout';";
    client
        .batch_execute(settings)
        .await
        .map_err(|error| server_error("could not prepare the session", &error))
}

async fn ping(client: Arc<Client>) {
    loop {
        tokio::time::sleep(PING_EVERY).await;
        if client.simple_query("").await.is_err() {
            // The connection's own task tells why.
            return;
        }
    }
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: usize,
    act: &str,
) -> Result<T> {
    row.try_get(column)
        .map_err(|error| server_error(act, &error))
}

fn lsn(row: &Row, column: usize, act: &str) -> Result<Lsn> {
    let text: Option<String> = get(row, column, act)?;
    text.as_deref()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| {
            Error::new(
                Kind::Server,
                format!("{act}: the server returned {text:?} for an LSN"),
            )
        })
}

/// A failure of the server or of the way to it, in the server's words.
pub(super) fn server_error(act: &str, error: &tokio_postgres::Error) -> Error {
    let hint = error
        .as_db_error()
        .and_then(tokio_postgres::error::DbError::hint)
        .map(str::to_owned);
    let error = Error::new(Kind::Server, format!("{act}: {}", cause(error)));
    match hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

fn cause(error: &tokio_postgres::Error) -> String {
    if let Some(server) = error.as_db_error() {
        return server.message().to_owned();
    }
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn connect_hint(error: &tokio_postgres::Error) -> &'static str {
    if error.as_db_error().is_some() {
        "look at pg_hba.conf, the role and the database; PGUSER, PGDATABASE and PGPASSWORD are honoured"
    } else if error.to_string().contains("TLS") {
        "TLS is not built in: connect over the server's unix socket, host=/run/postgresql"
    } else {
        "is the server running, and does it listen there? PGHOST and PGPORT are honoured"
    }
}
