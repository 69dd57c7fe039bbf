//! Connections to servers.

use anyhow::{Context, Result};
use postgres::{Client, Config, NoTls};

use crate::interrupt;
use crate::measure::environment::mask::mask;

/// The name by which the lab's own sessions are known and left out of counts.
pub const APPLICATION: &str = "pgstrata-lab";

/// Connects to a server.
///
/// # Errors
/// Fails when the string is not a connection string, or the server says no.
pub fn connect(dsn: &str) -> Result<Client> {
    let client = undisturbed(dsn)?;
    interrupt::cancels(client.cancel_token());
    Ok(client)
}

/// Connects to a server for what has to be done even after Ctrl-C.
///
/// # Errors
/// As [`connect`].
pub fn undisturbed(dsn: &str) -> Result<Client> {
    let mut config: Config = dsn
        .parse()
        .with_context(|| format!("could not understand connection string \"{}\"", mask(dsn)))?;
    config.application_name(APPLICATION);
    if config.get_password().is_none()
        && let Ok(password) = std::env::var("PGPASSWORD")
    {
        config.password(password);
    }
    config
        .connect(NoTls)
        .with_context(|| format!("could not connect to \"{}\"", mask(dsn)))
}

/// One value of one row as text.
///
/// # Errors
/// Fails when the server refuses the query or gives no row.
pub fn text(client: &mut Client, query: &str) -> Result<String> {
    let row = client
        .query_one(query, &[])
        .map_err(|error| in_words(query, &error))?;
    let value: Option<String> = row
        .try_get(0)
        .with_context(|| format!("could not read the result of \"{query}\""))?;
    Ok(value.unwrap_or_default())
}

/// Runs statements that return nothing wanted.
///
/// # Errors
/// Fails with the server's words.
pub fn run(client: &mut Client, statements: &str) -> Result<()> {
    client
        .batch_execute(statements)
        .map_err(|error| in_words(statements, &error))
}

/// The server's words about a statement.
#[must_use]
pub fn in_words(statement: &str, error: &postgres::Error) -> anyhow::Error {
    let words = error
        .as_db_error()
        .map_or_else(|| error.to_string(), |e| e.message().to_owned());
    let shown: String = statement.chars().take(200).collect();
    anyhow::anyhow!("could not run \"{}\": {words}", mask(&shown))
}
