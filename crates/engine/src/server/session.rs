//! The one session that starts and stops a backup, and another one for questions.
//!
//! PostgreSQL ends a backup with the session that started it. So the session is
//! ours alone, no timeout of the server may end it, it is pinged, and its loss
//! is known at once ([`Session::lost`]). Killing this program closes it, which
//! releases the lock, the replication slot and the server's backup mode.
//!
//! Any error of a statement drops the temporary slots of its session. So the session that
//! holds the backup runs no statement whose failure the backup could outlive: all that is
//! asked of tracker, summaries and archiver is asked in the second session.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pgstrata_pgdata::{Lsn, TimelineId};
use pgstrata_store::error::{Error, Kind, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use super::conninfo::{ConnectionOptions, describe};
use super::facts::ServerFacts;
use super::outside::ConfigFiles;
use super::storage::Sight;
use super::target::{ServerAddress, is_of_tls, is_without_tls};
use super::tls::Connector;

/// Name of the session that holds the backup, in `pg_stat_activity`.
pub const APPLICATION_NAME: &str = "pgstrata backup";

/// Name of the session for questions.
const QUESTIONS_NAME: &str = "pgstrata questions";

/// Both halves of the advisory lock's key: "pgst", "bkup".
const LOCK_KEY: (i32, i32) = (0x7067_7374, 0x626B_7570);

/// Firewalls and poolers drop idle connections after minutes; half a minute is below all their defaults.
const PING_EVERY: Duration = Duration::from_secs(30);

/// A server that takes longer to take a request to cancel has other troubles.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);

/// A server that takes longer lets go of the lock when it sees that the session has ended.
const UNLOCK_WITHIN: Duration = Duration::from_secs(1);

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

/// The connections for one backup.
pub struct Session {
    /// Holds lock, slot and backup.
    holder: Arc<Client>,
    /// Asks what may fail.
    asker: Arc<Client>,
    facts: ServerFacts,
    /// Of the server.
    run: String,
    lost: watch::Receiver<Option<String>>,
    pinger: JoinHandle<()>,
    /// How a request to cancel reaches the server.
    connector: Connector,
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
    /// `Kind::Server` when the server cannot be reached, refuses us, or does not answer within its `connect_timeout`.
    pub async fn connect(options: &ConnectionOptions) -> Result<Self> {
        let mut target = options.target()?;
        let (announce, lost) = watch::channel(None);
        let holder = open(&mut target, APPLICATION_NAME, announce).await?;
        let act = format!(
            "could not ask the server at {} what it is",
            describe(&target.config)
        );
        let facts = target.within(&act, ServerFacts::read(&holder)).await?;
        // Its end is known from the next question.
        let (unheard, _) = watch::channel(None);
        let asker = open(&mut target, QUESTIONS_NAME, unheard).await;
        let asker = asker.map_err(|error| {
            let hint = error.hint_text().map(str::to_owned);
            error
                .while_doing("could not open a second connection, for questions beside the backup")
                .hint(hint.unwrap_or_else(|| {
                    "a backup takes two connections, and a third one when another database has the page tracker: look at the role's CONNECTION LIMIT and max_connections".to_owned()
                }))
        })?;
        let runs = futures::future::try_join(run_of(&holder), run_of(&asker));
        let (run, other) = target.within(&act, runs).await?;
        if run != other {
            return Err(Error::new(
                Kind::Refused,
                "two connections with the same settings reached two servers",
            )
            .hint("connect to the server itself: to its socket, or to one host and port that nothing else answers"));
        }
        let (holder, asker) = (Arc::new(holder), Arc::new(asker));
        let pinger = tokio::spawn(ping([Arc::clone(&holder), Arc::clone(&asker)]));
        Ok(Self {
            holder,
            asker,
            facts,
            run,
            lost,
            pinger,
            connector: target.connector(),
        })
    }

    /// What the server said when we connected.
    #[must_use]
    pub fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    /// What tells this run of the server from all others, of this and of other servers.
    #[must_use]
    pub fn server_run(&self) -> &str {
        &self.run
    }

    /// The connection for questions, which may fail.
    pub(super) fn client(&self) -> &Arc<Client> {
        &self.asker
    }

    /// Whether `fsync` is on.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn fsync(&self) -> Result<bool> {
        let act = "could not ask whether fsync is on";
        let query = "SELECT current_setting('fsync')::bool";
        get(&self.ask(act, query, &[]).await?, 0, act)
    }

    /// Version of the tracker's extension among the server's files.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn tracker_files(&self) -> Result<Option<String>> {
        let act = "could not look for the extension's files";
        let query = "SELECT (SELECT default_version::text FROM pg_available_extensions WHERE name = 'pgstrata')";
        get(&self.ask(act, query, &[]).await?, 0, act)
    }

    /// What the server was told to load.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn tracker_library(&self) -> Result<TrackerLibrary> {
        let act = "could not ask for the server's libraries";
        let query = "SELECT EXISTS (SELECT FROM pg_settings WHERE name = 'pgstrata.map_size'),
            (SELECT setting FROM pg_settings WHERE name = 'shared_preload_libraries')";
        let row = self.ask(act, query, &[]).await?;
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
            .hint(format!(
                "the server has left backup mode; start the backup again ({ENDED})"
            ))
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

    /// Lets go of the lock. The end of the session does so too, but a busy server may see that later than the next backup
    /// asks for it.
    pub async fn unlock(&self) {
        let act = "could not let go of the lock against other backups";
        let query = "SELECT pg_advisory_unlock($1::int4, $2::int4)";
        let unlocking = self.row(act, query, &[&LOCK_KEY.0, &LOCK_KEY.1]);
        match tokio::time::timeout(UNLOCK_WITHIN, unlocking).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!("{error}"),
            Err(_) => tracing::debug!("{act}: the server does not answer"),
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

    /// Ends what the session that holds the backup waits for: a server does not see by itself that its client is gone.
    pub async fn cancel(&self) {
        let cancelling = self.holder.cancel_token();
        let cancelling = cancelling.cancel_query(self.connector.clone());
        let reason = match tokio::time::timeout(CANCEL_WITHIN, cancelling).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => cause(&error),
            Err(_) => "it does not answer".to_owned(),
        };
        tracing::warn!(
            "could not ask the server to end the backup's start, so lock and slot stay until its checkpoint is done: {reason}"
        );
    }

    /// The timeline that a primary writes; `None` of a standby.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn timeline(&self, lsn: Lsn) -> Result<Option<TimelineId>> {
        if self.facts.in_recovery {
            return Ok(None);
        }
        let act = "could not ask for the server's timeline";
        let query = "SELECT pg_walfile_name($1::text::pg_lsn)";
        let name: String = get(&self.ask(act, query, &[&lsn.to_string()]).await?, 0, act)?;
        let number = name.get(..8).map(|hex| u32::from_str_radix(hex, 16));
        match number {
            Some(Ok(number)) if number > 0 => Ok(Some(TimelineId::new(number))),
            _ => Err(Error::new(
                Kind::Server,
                format!("{act}: \"{name}\" is no name of a WAL segment"),
            )),
        }
    }

    /// The timeline that a primary writes now; `None` of a standby.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn own_timeline(&self) -> Result<Option<TimelineId>> {
        match self.facts.in_recovery {
            true => Ok(None),
            false => self.timeline(self.insert_position().await?).await,
        }
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
        let query = "SELECT pg_is_in_recovery()";
        get(&self.ask(act, query, &[]).await?, 0, act)
    }

    /// How far the WAL in `pg_wal` is complete: flushed by a primary; replayed by a standby, and flushed by its receiver. A
    /// standby replays the record of a switch before it has the rest of that segment, in whose place the file still has
    /// what it held when it had another name; and it may have followed its primary to another timeline. So of a standby this
    /// does not tell that a file is whole.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn wal_end(&self) -> Result<Lsn> {
        let act = "could not ask for the end of the WAL";
        let query = if self.facts.in_recovery {
            "SELECT CASE WHEN EXISTS (SELECT FROM pg_stat_wal_receiver)
                    THEN least(pg_last_wal_replay_lsn(), pg_last_wal_receive_lsn())
                    ELSE pg_last_wal_replay_lsn() END::text"
        } else {
            "SELECT pg_current_wal_flush_lsn()::text"
        };
        lsn(&self.row(act, query, &[]).await?, 0, act)
    }

    /// How far the WAL in `pg_wal` may be complete: as [`Self::wal_end`]; of a standby also what it has received and not
    /// replayed, and what it has replayed out of an archive. What is in a standby's file has to tell.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn wal_reached(&self) -> Result<Lsn> {
        if !self.facts.in_recovery {
            return self.wal_end().await;
        }
        let act = "could not ask how far the standby has come";
        let query = "SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())::text";
        lsn(&self.row(act, query, &[]).await?, 0, act)
    }

    /// Where a primary inserts its next record: it may have finished a segment, and its archiver brought it, before
    /// [`Self::wal_end`] tells (xlog.c, `XLogWrite`: the archiver is told first).
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn insert_position(&self) -> Result<Lsn> {
        let act = "could not ask where the server inserts WAL";
        let query = "SELECT pg_current_wal_insert_lsn()::text";
        lsn(&self.ask(act, query, &[]).await?, 0, act)
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

    /// Shows that the slot is in use. A server of 18 counts one of which nobody asks anything as idle, and ends the session that
    /// made it after `idle_replication_slot_timeout`.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn touch_slot(&self, slot: &str) -> Result<()> {
        let act = "could not keep the replication slot of the backup in use";
        // To where it is: whoever asks for less is refused, and loses the slot with the error.
        let query = "SELECT count(pg_replication_slot_advance(slot_name, restart_lsn))
                       FROM pg_replication_slots WHERE slot_name = $1";
        self.row(act, query, &[&slot]).await.map(|_| ())
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
        let row = self.ask(act, query, &[]).await?;
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

    /// The standby's `primary_conninfo`; `None` when our role may not see it.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn primary_conninfo(&self) -> Result<Option<String>> {
        let act = "could not ask which server the standby follows";
        let query = "SELECT (SELECT setting FROM pg_settings WHERE name = 'primary_conninfo')";
        get(&self.ask(act, query, &[]).await?, 0, act)
    }

    /// Where the server's configuration files are.
    pub(super) async fn config_files(&self) -> Result<ConfigFiles> {
        let act = "could not ask where the configuration files are";
        let query = "SELECT (SELECT setting FROM pg_settings WHERE name = 'config_file'),
            (SELECT setting FROM pg_settings WHERE name = 'hba_file'),
            (SELECT setting FROM pg_settings WHERE name = 'ident_file')";
        let row = self.ask(act, query, &[]).await?;
        Ok(ConfigFiles {
            config_file: get(&row, 0, act)?,
            hba_file: get(&row, 1, act)?,
            ident_file: get(&row, 2, act)?,
        })
    }

    /// The databases that are there: the OID of each, and that of its own tablespace. One that is being made is not, and one
    /// that is being moved is still where it was.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(super) async fn databases(&self) -> Result<BTreeSet<(u32, u32)>> {
        let act = "could not list the databases";
        let query = "SELECT oid, dattablespace FROM pg_database";
        let rows = rows_of(&self.asker, act, query).await?;
        let database = |row: &Row| Ok((get(row, 0, act)?, get(row, 1, act)?));
        rows.iter().map(database).collect()
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
        let rows = rows_of(&self.asker, act, query).await?;
        let slot = |row: &Row| {
            Ok(OwnSlot {
                name: get(row, 0, act)?,
                temporary: get(row, 1, act)?,
                process: get(row, 2, act)?,
            })
        };
        rows.iter().map(slot).collect()
    }

    /// What the server sees in the directory that holds the directories of databases in a tablespace.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(super) async fn sight(&self, tablespace: u32, path: &str) -> Result<Sight> {
        let act = "could not ask what the server has in a tablespace";
        let query = "SELECT ARRAY(SELECT * FROM pg_tablespace_databases($1)),
                            has_function_privilege('pg_catalog.pg_stat_file(text, boolean)', 'EXECUTE')";
        let row = self.ask(act, query, &[&tablespace]).await?;
        let databases: Vec<u32> = get(&row, 0, act)?;
        let times = if get(&row, 1, act)? {
            let query =
                "SELECT extract(epoch FROM modification)::int8, extract(epoch FROM change)::int8
                           FROM pg_stat_file($1, true)";
            let row = self.ask(act, query, &[&path]).await?;
            let times: (Option<i64>, Option<i64>) = (get(&row, 0, act)?, get(&row, 1, act)?);
            times.0.zip(times.1)
        } else {
            None
        };
        Ok(Sight {
            databases: databases.into_iter().collect(),
            times,
        })
    }

    /// Writes a record and switches to a new WAL segment; returns the end of the old one's records.
    ///
    /// # Errors
    /// When our role may not.
    pub async fn switch_wal_with_record(&self) -> Result<Lsn> {
        let act = "could not switch to a new WAL segment";
        // An empty segment is not switched. The commit of a transaction number is the least there is to write.
        self.ask(act, "SELECT pg_current_xact_id()::text", &[])
            .await?;
        lsn(
            &self.ask(act, "SELECT pg_switch_wal()::text", &[]).await?,
            0,
            act,
        )
    }

    /// A row that the session which holds the backup is told: never what may fail and leave the backup alive.
    async fn row(&self, act: &str, query: &str, parameters: &[Parameter<'_>]) -> Result<Row> {
        row_of(&self.holder, act, query, parameters).await
    }

    /// A row that the session for questions is told.
    async fn ask(&self, act: &str, query: &str, parameters: &[Parameter<'_>]) -> Result<Row> {
        row_of(&self.asker, act, query, parameters).await
    }
}

/// What a statement is given.
pub(super) type Parameter<'a> = &'a (dyn tokio_postgres::types::ToSql + Sync);

pub(super) async fn row_of(
    client: &Client,
    act: &str,
    query: &str,
    parameters: &[Parameter<'_>],
) -> Result<Row> {
    let row = client.query_one(query, parameters).await;
    row.map_err(|error| server_error(act, &error))
}

pub(super) async fn rows_of(client: &Client, act: &str, query: &str) -> Result<Vec<Row>> {
    let rows = client.query(query, &[]).await;
    rows.map_err(|error| server_error(act, &error))
}

/// Connects under `name` and prepares the session; `announce` learns why it ended.
pub(super) async fn open(
    target: &mut ServerAddress,
    name: &str,
    announce: watch::Sender<Option<String>>,
) -> Result<Client> {
    target.config.application_name(name);
    // A ping waits behind a statement, such as the one that waits for a checkpoint; this goes on.
    if target.config.get_keepalives_idle() > PING_EVERY {
        target.config.keepalives_idle(PING_EVERY);
    }
    let act = format!(
        "could not connect to the server at {}",
        describe(&target.config)
    );
    let opening = async {
        let connected = target.connect().await;
        let (client, connection) =
            connected.map_err(|error| server_error(&act, &error).hint(connect_hint(&error)))?;
        tokio::spawn(async move {
            let end = match connection.await {
                Ok(()) => "the server closed the connection".to_owned(),
                Err(error) => cause(&error),
            };
            // Nobody listening means the session was dropped: its end is no news.
            announce.send(Some(end)).ok();
        });
        prepare(&client).await?;
        Ok(client)
    };
    target.within(&act, opening).await
}

/// What no two servers have in common, even when one is a copy of the other: to be selected in a session that is [prepared](prepare).
pub(super) const RUN: &str = "pg_postmaster_start_time()::timestamptz(6) AT TIME ZONE 'UTC' || ' '
    || (SELECT system_identifier FROM pg_control_system()) || ' ' || current_setting('port')";

/// Which run of which server a connection has reached.
pub(super) async fn run_of(client: &Client) -> Result<String> {
    let act = "could not ask when the server was started";
    get(
        &row_of(client, act, &format!("SELECT {RUN}"), &[]).await?,
        0,
        act,
    )
}

/// Nothing of the server's configuration may end or divert the session.
pub(super) async fn prepare(client: &Client) -> Result<()> {
    // transaction_timeout came with version 17.
    // Databases may have a DateStyle each; a time must read the same in all of them.
    let settings =
        "SET search_path = pg_catalog; SET client_encoding = 'UTF8'; SET datestyle = 'ISO';
        SET statement_timeout = 0; SET lock_timeout = 0; SET idle_session_timeout = 0;
        SET idle_in_transaction_session_timeout = 0;
        SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout';";
    // By itself and first: a standby refuses the snapshot of a transaction that is serializable.
    let isolation = client.batch_execute("SET default_transaction_isolation = 'read committed'");
    let prepared = futures::future::try_join(isolation, client.batch_execute(settings));
    let (prepared, _) = futures::future::join(prepared, notice_our_end(client)).await;
    let prepared = prepared.map(|((), ())| ());
    prepared.map_err(|error| server_error("could not prepare the session", &error))
}

/// Has the server look every few seconds, while it works for us, whether we are still there. Without that a start that waits for
/// its checkpoint keeps the lock, the slot and backup mode for minutes after we were killed. By itself, because not every
/// system can tell: a server on such a one refuses it, and works as well without.
async fn notice_our_end(client: &Client) {
    let asked = client.batch_execute("SET client_connection_check_interval = '5s'");
    if let Err(error) = asked.await {
        tracing::debug!("the server will not notice at once when this command is killed: {error}");
    }
}

/// Keeps these connections in use, until it is aborted. One that waits, as for a checkpoint, does not keep the others silent.
pub(super) async fn ping<const COUNT: usize>(clients: [Arc<Client>; COUNT]) {
    let each = clients.iter().map(async |client| {
        loop {
            tokio::time::sleep(PING_EVERY).await;
            // That a connection has ended is told by its own task, or by the next question.
            client.simple_query("").await.ok();
        }
    });
    futures::future::join_all(each).await;
}

pub(super) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: usize,
    act: &str,
) -> Result<T> {
    row.try_get(column)
        .map_err(|error| server_error(act, &error))
}

pub(super) fn lsn(row: &Row, column: usize, act: &str) -> Result<Lsn> {
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

/// Why a server ends a connection. It terminates who holds a slot that keeps more than it may, or that looks idle
/// (`InvalidatePossiblyObsoleteSlot` in PostgreSQL's `slot.c`).
const ENDED: &str = "the server was stopped, or somebody ended this connection, or the WAL that the backup's slot keeps came to more than \
     max_slot_wal_keep_size, or the slot was not used for idle_replication_slot_timeout (since 18): the server's log says which";

/// A failure of the server or of the way to it, in the server's words.
pub(super) fn server_error(act: &str, error: &tokio_postgres::Error) -> Error {
    // Who asks a moment later learns no more than that the connection is gone.
    let is_over = error.is_closed() || error.code() == Some(&SqlState::ADMIN_SHUTDOWN);
    let ended = is_over.then_some(ENDED);
    let hint = error
        .as_db_error()
        .and_then(tokio_postgres::error::DbError::hint)
        .or(ended)
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

pub(super) fn connect_hint(error: &tokio_postgres::Error) -> &'static str {
    let cause = cause(error);
    if error.code() == Some(&SqlState::CANNOT_CONNECT_NOW) {
        "wait until the server takes connections: it starts, recovers without hot_standby, or stops; its log says which"
    } else if error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS) {
        "end sessions, or raise max_connections or the role's connection limit: a backup takes two connections, and a third one when another database has the page tracker"
    } else if error.as_db_error().is_some() {
        "look at pg_hba.conf, the role and the database; PGUSER, PGDATABASE and PGPASSWORD are honoured"
    } else if is_without_tls(error) {
        "set ssl = on there, connect over the server's unix socket, or ask for less with sslmode"
    } else if cause.contains("certificate is for") {
        "connect to a name that the certificate has (host=NAME hostaddr=ADDRESS), or have one made for this name"
    } else if is_of_tls(error) {
        "sslrootcert names the file of the certificate authority, sslcrl its revocation list, and sslmode says what is verified"
    } else if cause.contains("channel binding") {
        "channel binding needs TLS and a password of type scram-sha-256; sslmode=require asks for TLS"
    } else if cause.contains("fatal alert") {
        "look at the client certificate: sslcert and sslkey name its files, and the server's ssl_ca_file who may sign it"
    } else {
        "is the server running, and does it listen there? PGHOST and PGPORT are honoured"
    }
}
