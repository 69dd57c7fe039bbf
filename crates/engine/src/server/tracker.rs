//! The page tracker of a server, as a client of its SQL functions.
//!
//! Its extension lives in one database of the cluster, whichever that is, and knows
//! the pages of all. What it answers is a superset of the pages that changed, or an
//! error; what it does not say in a form we know is an error too, never "unchanged".
//! `docs/TRACKER.md` is the contract.

use std::pin::pin;
use std::sync::Arc;

use futures::TryStreamExt;
use pgstrata_layer::changeset::ChangedBlocks;
use pgstrata_store::error::{Error, Kind, Result};
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, Row};

use super::conninfo::ConnectionOptions;
use super::session::{Session, ping, prepare, rows_of, server_error};
use super::tracker_rows::Columns;

/// Databases we look into for the extension, beside our own: each costs a connection.
const MOST_DATABASES: usize = 64;

/// Generations are renumbered every 30,000 tokens or so: twice within one answer does not happen.
const ATTEMPTS: u32 = 3;

/// The tracker of one server: it is loaded, and its functions can be called.
pub struct Tracker {
    client: Arc<Client>,
    database: String,
    /// Keeps a connection of its own in use; the session keeps its own ones.
    pinger: Option<JoinHandle<()>>,
}

impl Drop for Tracker {
    fn drop(&mut self) {
        if let Some(pinger) = &self.pinger {
            pinger.abort();
        }
    }
}

/// Why a server has no tracker that we can ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoTracker {
    /// For people.
    pub reason: String,
    /// What to do about it.
    pub hint: String,
}

/// `pgstrata.state()`, and the version of the library.
#[derive(Clone, Debug, Serialize)]
pub struct TrackerState {
    /// Version of the loaded library.
    pub version: String,
    /// Whether changes are tracked.
    pub tracking: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Since when all changes are known.
    pub history_since: Option<String>,
    /// Where the WAL was then.
    pub history_lsn: Option<String>,
    /// Why not from before.
    pub history_reason: Option<String>,
    /// Tokens that changes are known from.
    pub tokens: i32,
    /// `pgstrata.map_size` in bytes.
    pub map_capacity_bytes: i64,
    /// How much of it is in use.
    pub map_used_bytes: i64,
    /// The map was full: changes are unknown.
    pub overflow: bool,
    /// Flushes of the map since the start.
    pub flushes: i64,
    /// How long the last one took.
    pub flush_last_ms: f64,
    /// How long the longest took.
    pub flush_max_ms: f64,
    /// Flushes that failed.
    pub flush_failures: i64,
}

impl Tracker {
    /// Finds the extension in the session's database or another one of the cluster.
    ///
    /// # Errors
    /// Why there is none, and what to do.
    pub async fn find(
        session: &Session,
        options: &ConnectionOptions,
    ) -> std::result::Result<Self, NoTracker> {
        if !is_loaded(session.client()).await? {
            return Err(NoTracker {
                reason: "the server runs without the pgstrata library".to_owned(),
                hint: "install it (\"pgstrata tracker install-check\" says how), add 'pgstrata' to shared_preload_libraries, restart the server, and run CREATE EXTENSION pgstrata in one database".to_owned(),
            });
        }
        let client = Arc::clone(session.client());
        if has_extension(&client).await? {
            let database = database_name(&client).await?;
            return Ok(Self {
                client,
                database,
                pinger: None,
            });
        }
        let databases = other_databases(&client).await?;
        let left_out = databases.len().saturating_sub(MOST_DATABASES);
        for database in databases.into_iter().take(MOST_DATABASES) {
            let found = connect(options, &database).await;
            // A database that lets nobody in cannot be the one meant for us.
            if let Ok(client) = found
                && has_extension(&client).await?
            {
                let client = Arc::new(client);
                let pinger = tokio::spawn(ping([Arc::clone(&client)]));
                return Ok(Self {
                    client,
                    database,
                    pinger: Some(pinger),
                });
            }
        }
        Err(no_extension(left_out))
    }

    /// The database with the extension.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The version of the functions that the database has; the library may be a newer one.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn functions_version(&self) -> Result<String> {
        let act = "could not ask for the version of the tracker's functions";
        let query = "SELECT extversion FROM pg_extension WHERE extname = 'pgstrata'";
        let row = self.client.query_one(query, &[]).await;
        get(&row.map_err(|error| server_error(act, &error))?, 0, act)
    }

    /// What of the schema our role may not use, as the statements that change it.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn missing_grants(&self) -> Result<Vec<String>> {
        let act = "could not ask for rights on the tracker's functions";
        let query = "
            SELECT format('GRANT USAGE ON SCHEMA pgstrata TO %I', current_user)
             WHERE NOT has_schema_privilege('pgstrata', 'USAGE')
            UNION ALL
            SELECT format('GRANT EXECUTE ON FUNCTION pgstrata.%I(%s) TO %I', proname,
                          pg_get_function_identity_arguments(oid), current_user)
              FROM pg_proc
             WHERE pronamespace = 'pgstrata'::regnamespace
               AND proname IN ('bump', 'changes', 'state', 'token_status', 'version')
               AND NOT has_function_privilege(oid, 'EXECUTE')";
        let rows = rows_of(&self.client, act, query).await?;
        rows.iter().map(|row| get(row, 0, act)).collect()
    }

    /// How the tracker is.
    ///
    /// # Errors
    /// When our role may not ask, or the server does not answer.
    pub async fn state(&self) -> Result<TrackerState> {
        let act = "could not ask for the state of the tracker";
        let query = "SELECT pgstrata.version(), tracking, reason, history_since::text,
                history_lsn::text, history_reason, tokens, map_capacity_bytes, map_used_bytes,
                overflow, flushes, flush_last_ms, flush_max_ms, flush_failures
            FROM pgstrata.state()";
        let row = self.client.query_one(query, &[]).await;
        let row = row.map_err(|error| server_error(act, &error))?;
        Ok(TrackerState {
            version: get(&row, 0, act)?,
            tracking: get(&row, 1, act)?,
            reason: get(&row, 2, act)?,
            history_since: get(&row, 3, act)?,
            history_lsn: get(&row, 4, act)?,
            history_reason: get(&row, 5, act)?,
            tokens: get::<Option<i32>>(&row, 6, act)?.unwrap_or_default(),
            map_capacity_bytes: get::<Option<i64>>(&row, 7, act)?.unwrap_or_default(),
            map_used_bytes: get::<Option<i64>>(&row, 8, act)?.unwrap_or_default(),
            overflow: get::<Option<bool>>(&row, 9, act)?.unwrap_or_default(),
            flushes: get::<Option<i64>>(&row, 10, act)?.unwrap_or_default(),
            flush_last_ms: get::<Option<f64>>(&row, 11, act)?.unwrap_or_default(),
            flush_max_ms: get::<Option<f64>>(&row, 12, act)?.unwrap_or_default(),
            flush_failures: get::<Option<i64>>(&row, 13, act)?.unwrap_or_default(),
        })
    }

    /// Makes a token: to be called before the backup starts.
    ///
    /// # Errors
    /// When changes are not tracked, and why.
    pub async fn bump(&self) -> Result<String> {
        let act = "could not make a token of the page tracker";
        let row = self.client.query_one("SELECT pgstrata.bump()", &[]).await;
        get(&row.map_err(|error| server_error(act, &error))?, 0, act)
    }

    /// Why changes since `token` are not known; `None` when they are.
    ///
    /// # Errors
    /// When our role may not ask, or the server does not answer.
    pub async fn doubt(&self, token: &str) -> Result<Option<String>> {
        let act = "could not ask the page tracker about a token";
        let query = "SELECT known, reason FROM pgstrata.token_status($1)";
        let row = self.client.query_one(query, &[&token]).await;
        let row = row.map_err(|error| server_error(act, &error))?;
        let (known, reason): (bool, Option<String>) = (get(&row, 0, act)?, get(&row, 1, act)?);
        Ok((!known).then(|| reason.unwrap_or_else(|| "the tracker does not say why".to_owned())))
    }

    /// What may have changed since `token`: to be asked after the backup started.
    ///
    /// # Errors
    /// When that is not known.
    pub async fn changes(&self, token: &str) -> Result<ChangedBlocks> {
        let act = "could not read the changes from the page tracker";
        for _ in 1..ATTEMPTS {
            match self.read_changes(token).await {
                Err(Failure::Server(error))
                    if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => {}
                outcome => return outcome.map_err(|failure| failure.named(act)),
            }
        }
        let last = self.read_changes(token).await;
        last.map_err(|failure| failure.named(act))
    }

    async fn read_changes(&self, token: &str) -> std::result::Result<ChangedBlocks, Failure> {
        // In the target list the rows come as they are made; in FROM the server collects them first.
        let query = "SELECT (c).* FROM (SELECT pgstrata.changes($1) AS c OFFSET 0) AS streamed";
        let mut changes = ChangedBlocks {
            covers_all_forks: true,
            ..ChangedBlocks::default()
        };
        let rows = self.client.query_raw(query, [token]).await?;
        let mut rows = pin!(rows);
        while let Some(row) = rows.try_next().await? {
            let columns = Columns {
                path: row.try_get(0)?,
                fork: row.try_get(1)?,
                segment: row.try_get(2)?,
                whole: row.try_get(3)?,
                blocks: row.try_get(4)?,
            };
            if columns.add_to(&mut changes).is_none() {
                return Err(Failure::Unknown(format!("{columns:?}")));
            }
        }
        Ok(changes)
    }
}

/// Why an answer is none.
enum Failure {
    Server(tokio_postgres::Error),
    Unknown(String),
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Server(error)
    }
}

impl Failure {
    fn named(self, act: &str) -> Error {
        match self {
            Self::Server(error) => server_error(act, &error),
            Self::Unknown(row) => Error::new(
                Kind::Server,
                format!("{act}: a row has a meaning that this version does not know: {row}"),
            )
            .hint("update pgstrata on this host to the version of the server's library"),
        }
    }
}

/// A library that is not loaded at the start of the server has no settings here.
async fn is_loaded(client: &Client) -> std::result::Result<bool, NoTracker> {
    ask(
        client,
        "SELECT EXISTS (SELECT FROM pg_settings WHERE name = 'pgstrata.map_size')",
    )
    .await
}

async fn has_extension(client: &Client) -> std::result::Result<bool, NoTracker> {
    ask(
        client,
        "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pgstrata')",
    )
    .await
}

async fn database_name(client: &Client) -> std::result::Result<String, NoTracker> {
    ask(client, "SELECT current_database()::text").await
}

async fn ask<T: for<'a> FromSql<'a>>(
    client: &Client,
    query: &str,
) -> std::result::Result<T, NoTracker> {
    let row = client.query_one(query, &[]).await.map_err(no_answer)?;
    row.try_get(0).map_err(no_answer)
}

/// `left_out` databases were not looked into.
fn no_extension(left_out: usize) -> NoTracker {
    if left_out == 0 {
        return NoTracker {
            reason: "the library is loaded, but no database has the extension".to_owned(),
            hint: "run CREATE EXTENSION pgstrata in one database, and grant its functions to the role that takes backups".to_owned(),
        };
    }
    NoTracker {
        reason: format!("the library is loaded, but the extension is neither in the database of the connection nor in any of {MOST_DATABASES} others; only so many are looked into, and the cluster has {left_out} more"),
        hint: "let the connection name the database that has the extension (dbname=…); if none has it, run CREATE EXTENSION pgstrata in the connection's, and grant its functions to the role that takes backups".to_owned(),
    }
}

async fn other_databases(client: &Client) -> std::result::Result<Vec<String>, NoTracker> {
    let query = "SELECT datname::text FROM pg_database
        WHERE datallowconn AND datname <> current_database() AND has_database_privilege(oid, 'CONNECT')
        ORDER BY datname <> 'postgres', datistemplate, datname";
    let rows = client.query(query, &[]).await;
    let names = rows.map_err(no_answer)?;
    let names = names.iter().map(|row| row.try_get(0));
    names
        .collect::<std::result::Result<_, _>>()
        .map_err(no_answer)
}

fn no_answer(error: tokio_postgres::Error) -> NoTracker {
    let error = server_error("could not look for the page tracker", &error);
    NoTracker {
        reason: error.to_string(),
        hint: "look into the server's log".to_owned(),
    }
}

/// A second connection, for the database of the extension.
async fn connect(options: &ConnectionOptions, database: &str) -> Result<Client> {
    let mut target = options.target()?;
    let config = &mut target.config;
    config.dbname(database).application_name("pgstrata tracker");
    let act = format!("could not connect to database \"{database}\"");
    let opening = async {
        let connected = target.connect().await;
        let (client, connection) = connected.map_err(|error| server_error(&act, &error))?;
        // Its end is known from the next question.
        tokio::spawn(async move { connection.await.ok() });
        prepare(&client).await?;
        Ok(client)
    };
    target.within(&act, opening).await
}

fn get<T: for<'a> FromSql<'a>>(row: &Row, column: usize, act: &str) -> Result<T> {
    row.try_get(column)
        .map_err(|error| server_error(act, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looked_into_a_part_of_the_databases_does_not_speak_of_all() {
        let all = no_extension(0);
        assert!(all.reason.contains("no database has"), "{}", all.reason);
        let part = no_extension(3);
        assert!(!part.reason.contains("no database"), "{}", part.reason);
        assert!(part.reason.contains("64 others"), "{}", part.reason);
        assert!(part.reason.contains("3 more"), "{}", part.reason);
        assert!(part.hint.contains("dbname="), "{}", part.hint);
    }
}
