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
use super::session::{RUN, Session, connect_hint, ping, prepare, rows_of, run_of, server_error};
use super::tracker_rows::Columns;

/// Databases we look into for the extension, beside our own: each costs a connection.
const MOST_DATABASES: usize = 64;

/// Generations are renumbered every 30,000 tokens or so: twice within one answer does not happen.
const ATTEMPTS: u32 = 3;

/// The tracker of one server: it is loaded, and its functions can be called.
pub struct Tracker {
    client: Arc<Client>,
    database: String,
    /// Of the server that is backed up.
    run: String,
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
    /// Whether there may be one all the same: nobody could look everywhere.
    pub may_be_there: bool,
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
        let client = Arc::clone(session.client());
        if !is_loaded(&client).await.map_err(no_answer)? {
            return Err(NoTracker {
                reason: "the server runs without the pgstrata library".to_owned(),
                hint: "install it (\"pgstrata tracker install-check\" says how), add 'pgstrata' to shared_preload_libraries, restart the server, and run CREATE EXTENSION pgstrata in one database".to_owned(),
                may_be_there: false,
            });
        }
        let run = session.server_run().to_owned();
        if has_extension(&client).await.map_err(no_answer)? {
            let database = database_name(&client).await.map_err(no_answer)?;
            return Ok(Self {
                client,
                database,
                run,
                pinger: None,
            });
        }
        let (databases, mut closed) = other_databases(&client).await.map_err(no_answer)?;
        let left_out = databases.len().saturating_sub(MOST_DATABASES);
        for database in databases.into_iter().take(MOST_DATABASES) {
            match look_into(options, &database, &run).await {
                Ok(Some(client)) => {
                    let client = Arc::new(client);
                    let pinger = tokio::spawn(ping([Arc::clone(&client)]));
                    return Ok(Self {
                        client,
                        database,
                        run,
                        pinger: Some(pinger),
                    });
                }
                Ok(None) => {}
                Err(error) => closed.push(error),
            }
        }
        Err(no_extension(left_out, &closed))
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
        // In one statement: a token of another server would be known there, and say nothing about this one.
        let query = format!("SELECT pgstrata.bump(), {RUN}");
        let row = self.client.query_one(&query, &[]).await;
        let row = row.map_err(|error| server_error(act, &error))?;
        require_run(&get::<String>(&row, 1, act)?, &self.run)
            .map_err(|error| error.while_doing(act))?;
        get(&row, 0, act)
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
async fn is_loaded(client: &Client) -> Result<bool> {
    let query = "SELECT EXISTS (SELECT FROM pg_settings WHERE name = 'pgstrata.map_size')";
    ask(client, query).await
}

async fn has_extension(client: &Client) -> Result<bool> {
    let query = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pgstrata')";
    ask(client, query).await
}

async fn database_name(client: &Client) -> Result<String> {
    ask(client, "SELECT current_database()::text").await
}

/// What an error of a question about the tracker begins with.
const LOOKING: &str = "could not look for the page tracker";

async fn ask<T: for<'a> FromSql<'a>>(client: &Client, query: &str) -> Result<T> {
    let row = client.query_one(query, &[]).await;
    get(
        &row.map_err(|error| server_error(LOOKING, &error))?,
        0,
        LOOKING,
    )
}

/// `left_out` databases were not looked into, and those that are `closed` could not be.
fn no_extension(left_out: usize, closed: &[Error]) -> NoTracker {
    let Some(first) = closed.first() else {
        return not_in_what_was_seen(left_out);
    };
    let others = match closed.len() - 1 {
        0 => String::new(),
        count => format!("; nor could {count} more"),
    };
    let left_out = match left_out {
        0 => String::new(),
        count => format!("; the cluster has {count} more than are looked into"),
    };
    let hint = first.hint_text().unwrap_or("look into the server's log");
    NoTracker {
        reason: format!(
            "the library is loaded, but none of the databases that could be looked into has the extension: {first}{others}{left_out}"
        ),
        hint: format!(
            "{hint}; or let the connection name the database that has the extension (dbname=…): that takes one connection less, and the role needs its rights on functions there; if none has it, run CREATE EXTENSION pgstrata in the connection's"
        ),
        may_be_there: true,
    }
}

fn not_in_what_was_seen(left_out: usize) -> NoTracker {
    if left_out == 0 {
        return NoTracker {
            reason: "the library is loaded, but no database has the extension".to_owned(),
            hint: "run CREATE EXTENSION pgstrata in one database, and grant its functions to the role that takes backups".to_owned(),
            may_be_there: false,
        };
    }
    NoTracker {
        reason: format!("the library is loaded, but the extension is neither in the database of the connection nor in any of {MOST_DATABASES} others; only so many are looked into, and the cluster has {left_out} more"),
        hint: "let the connection name the database that has the extension (dbname=…); if none has it, run CREATE EXTENSION pgstrata in the connection's, and grant its functions to the role that takes backups".to_owned(),
        may_be_there: true,
    }
}

/// The databases that our role may connect to, and why not to the others.
async fn other_databases(client: &Client) -> Result<(Vec<String>, Vec<Error>)> {
    let query = "SELECT datname::text, has_database_privilege(oid, 'CONNECT'),
               format('GRANT CONNECT ON DATABASE %I TO %I', datname, current_user)
          FROM pg_database WHERE datallowconn AND datname <> current_database()
         ORDER BY datname <> 'postgres', datistemplate, datname";
    let (mut open, mut closed) = (Vec::new(), Vec::new());
    for row in rows_of(client, LOOKING, query).await? {
        let database: String = get(&row, 0, LOOKING)?;
        if get(&row, 1, LOOKING)? {
            open.push(database);
        } else {
            let grant: String = get(&row, 2, LOOKING)?;
            let what = format!("{}: the role may not connect to it", not_seen(&database));
            closed.push(Error::new(Kind::Server, what).hint(grant));
        }
    }
    Ok((open, closed))
}

fn not_seen(database: &str) -> String {
    format!("database \"{database}\" could not be looked into")
}

fn no_answer(error: Error) -> NoTracker {
    NoTracker {
        reason: error.to_string(),
        hint: "look into the server's log".to_owned(),
        may_be_there: true,
    }
}

/// A connection to a database of the server whose run this is, if it has the extension.
async fn look_into(
    options: &ConnectionOptions,
    database: &str,
    run: &str,
) -> Result<Option<Client>> {
    let looking = async {
        let mut target = options.target()?;
        let config = &mut target.config;
        config.dbname(database).application_name("pgstrata tracker");
        let opening = async {
            let connected = target.connect().await;
            let (client, connection) = connected.map_err(|error| {
                server_error("could not connect", &error).hint(connect_hint(&error))
            })?;
            // Its end is known from the next question.
            tokio::spawn(async move { connection.await.ok() });
            prepare(&client).await?;
            require_run(&run_of(&client).await?, run)?;
            Ok(has_extension(&client).await?.then_some(client))
        };
        target.within("could not connect", opening).await
    };
    looking
        .await
        .map_err(|error| error.while_doing(not_seen(database)))
}

/// A connection may reach another server than those before it: with several hosts or addresses, and through poolers.
/// What its tracker says is true of its own files.
fn require_run(reached: &str, run: &str) -> Result<()> {
    if reached == run {
        return Ok(());
    }
    Err(Error::new(
        Kind::Refused,
        "the connection reached another server than the one that is backed up",
    )
    .hint(
        "connect to one host and port that nothing else answers; a server that is full, or whose role has a CONNECTION LIMIT, \
         leaves further connections to the next host",
    ))
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
        let all = no_extension(0, &[]);
        assert!(all.reason.contains("no database has"), "{}", all.reason);
        let part = no_extension(3, &[]);
        assert!(!part.reason.contains("no database"), "{}", part.reason);
        assert!(part.reason.contains("64 others"), "{}", part.reason);
        assert!(part.reason.contains("3 more"), "{}", part.reason);
        assert!(part.hint.contains("dbname="), "{}", part.hint);
    }

    #[test]
    fn who_was_kept_out_of_a_database_does_not_say_that_it_has_no_extension() {
        let shut = |name: &str| Error::new(Kind::Server, format!("database {name} is shut"));
        let one = no_extension(0, &[shut("a").hint("open it")]);
        assert!(one.may_be_there && one.reason.ends_with(": database a is shut"));
        assert!(one.hint.starts_with("open it; or"), "{}", one.hint);
        let more = no_extension(2, &[shut("a"), shut("b"), shut("c")]);
        assert!(
            more.reason
                .contains("a is shut; nor could 2 more; the cluster has 2 more")
        );
        assert!(!no_extension(0, &[]).may_be_there);
    }

    #[test]
    fn another_server_has_no_say() {
        require_run("now 1 5432", "now 1 5432").unwrap();
        let error = require_run("now 1 5433", "now 1 5432").unwrap_err();
        assert_eq!(error.kind(), Kind::Refused);
    }
}
