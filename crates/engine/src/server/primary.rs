//! The primary of a standby: it alone finishes a WAL segment before the segment is full.
//!
//! It is reached as the user says, or at the place that the standby follows: there as the role that backs up, which is the
//! same role on both servers, and else as the role that the standby itself uses.

use pgstrata_pgdata::{Lsn, WalSegment, WalSegmentSize};
use pgstrata_store::error::{Error, Kind, Result};
use tokio::sync::watch;
use tokio_postgres::Client;

use super::conninfo::{ConnectionOptions, describe};
use super::parameters;
use super::session::{Session, get, lsn, open, row_of};
use super::target::TLS_PARAMETERS;

/// Name of the session on the primary, in `pg_stat_activity`.
const PRIMARY_NAME: &str = "pgstrata primary";

/// A primary that has been reached, and that takes our request.
#[derive(Clone, Debug)]
pub struct Primary {
    connection: ConnectionOptions,
    place: String,
    /// Of the cluster of the standby.
    system_identifier: u64,
}

impl std::fmt::Display for Primary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.place)
    }
}

impl Primary {
    /// The primary that `told` leads to, or else the one that the standby of `session`, reached with `own`, follows.
    ///
    /// # Errors
    /// Why nothing can be asked of it, in one line.
    pub async fn find(
        session: &Session,
        own: &ConnectionOptions,
        told: Option<&ConnectionOptions>,
    ) -> Result<Self> {
        let ways = match told {
            Some(told) => vec![told.clone()],
            None => ways_of_the_standby(session, own).await?,
        };
        let mut first = None;
        for connection in ways {
            match Self::reach(session, connection).await {
                Ok(primary) => return Ok(primary),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| {
            Error::new(
                Kind::Server,
                "the primary_conninfo of the standby names no host",
            )
        }))
    }

    async fn reach(session: &Session, connection: ConnectionOptions) -> Result<Self> {
        let place = describe(&connection.target()?.config);
        let (unheard, _) = watch::channel(None);
        let client = open(&mut connection.target()?, PRIMARY_NAME, unheard).await?;
        let primary = Self {
            connection,
            place,
            system_identifier: session.facts().system_identifier,
        };
        primary.require(&client).await?;
        Ok(primary)
    }

    /// Requires that a connection has reached a primary of the cluster that takes our request.
    async fn require(&self, client: &Client) -> Result<()> {
        let place = &self.place;
        let act = format!("could not ask the server at {place} what it is");
        let query =
            "SELECT pg_is_in_recovery(), has_function_privilege('pg_switch_wal()', 'EXECUTE'),
            current_user::text, (SELECT system_identifier::text FROM pg_control_system())";
        let row = row_of(client, &act, query, &[]).await?;
        let refuse = |what: String| Err(Error::new(Kind::Server, what));
        let identifier: String = get(&row, 3, &act)?;
        if identifier.parse().map_or(0, i64::cast_unsigned) != self.system_identifier {
            return refuse(format!("the server at {place} is of another cluster"));
        }
        if get(&row, 0, &act)? {
            return refuse(format!("the server at {place} is a standby itself"));
        }
        if !get::<bool>(&row, 1, &act)? {
            let role: String = get(&row, 2, &act)?;
            return refuse(format!(
                "role \"{role}\" may not call pg_switch_wal() on the primary at {place}"
            ));
        }
        Ok(())
    }

    /// Has the primary finish `segment` with at least one record in it, unless it has gone on to a later one.
    ///
    /// # Errors
    /// When the primary does not answer, or has not come to that segment.
    pub async fn finish(&self, segment: WalSegment, size: WalSegmentSize) -> Result<()> {
        let (unheard, _) = watch::channel(None);
        let client = open(&mut self.connection.target()?, PRIMARY_NAME, unheard).await?;
        // Hours later, another server may answer at that place.
        self.require(&client).await?;
        let act = format!(
            "could not have the primary at {} switch to a new WAL segment",
            self.place
        );
        let query = "SELECT pg_current_wal_insert_lsn()::text";
        let end: Lsn = lsn(&row_of(&client, &act, query, &[]).await?, 0, &act)?;
        if end >= segment.end_lsn(size) {
            return Ok(());
        }
        if end < segment.start_lsn(size) {
            let what = format!("{act}: it is at {end}, before the segment");
            return Err(Error::new(Kind::Server, what));
        }
        // An empty segment is not switched.
        let query = "SELECT pg_current_xact_id()::text";
        row_of(&client, &act, query, &[]).await?;
        let query = "SELECT pg_switch_wal()::text";
        row_of(&client, &act, query, &[]).await.map(|_| ())
    }
}

/// The connections to try to the server that the standby follows, the best first.
async fn ways_of_the_standby(
    session: &Session,
    own: &ConnectionOptions,
) -> Result<Vec<ConnectionOptions>> {
    let refuse = |what: String| Err(Error::new(Kind::Server, what));
    let conninfo = match session.primary_conninfo().await? {
        Some(text) if text.trim().is_empty() => {
            return refuse(
                "the standby has no primary_conninfo: it follows the archive".to_owned(),
            );
        }
        Some(text) => text,
        None => {
            let role = &session.facts().role;
            return refuse(format!(
                "role \"{role}\" may not see the primary_conninfo of the standby"
            ));
        }
    };
    let Some(follows) = parameters::words(&conninfo) else {
        return refuse(
            "the primary_conninfo of the standby is no list of keywords and values".to_owned(),
        );
    };
    let value = |name: &str| {
        let found = follows.iter().rev().find(|(keyword, _)| keyword == name);
        found.map(|(_, value)| value.as_str())
    };
    let tls = TLS_PARAMETERS.map(|(name, _)| name);
    let place: Vec<(&str, &str)> = ["host", "hostaddr", "port"]
        .into_iter()
        .chain(tls)
        .filter_map(|name| Some((name, value(name)?)))
        .collect();
    if !place.iter().any(|(name, _)| name.starts_with("host")) {
        return Ok(Vec::new());
    }
    let own = own.target()?.config;
    let database = own.get_dbname().unwrap_or("postgres");
    let password = own.get_password().map(String::from_utf8_lossy);
    let as_ourselves = [
        ("user", own.get_user()),
        ("password", password.as_deref()),
        ("dbname", Some(database)),
        ("passfile", None),
    ];
    let as_the_standby = [
        ("user", value("user")),
        ("password", value("password")),
        ("dbname", Some(database)),
        ("passfile", value("passfile")),
    ];
    let way = |who: [(&'static str, Option<&str>); 4]| {
        let who = who
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        ConnectionOptions {
            conninfo: parameters::written(place.iter().copied().chain(who)),
        }
    };
    Ok(vec![way(as_ourselves), way(as_the_standby)])
}
