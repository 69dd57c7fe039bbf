//! What a backup must know of the server before it starts.

use pgstrata_pgdata::Major;
use pgstrata_store::error::{Error, Kind, Result};
use tokio_postgres::Client;

use super::session::server_error;

/// One reading of the server's settings and of our role's rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// From `pg_control_system()`.
    pub system_identifier: u64,
    /// Major version.
    pub major: Major,
    /// `SHOW server_version`.
    pub version: String,
    /// A standby, or a server that replays an archive.
    pub in_recovery: bool,
    /// `wal_level`.
    pub wal_level: String,
    /// `archive_mode`: `off`, `on` or `always`.
    pub archive_mode: String,
    /// `archive_command`; empty when unset, or when there is an `archive_library`.
    pub archive_command: String,
    /// `archive_library`, empty when unset.
    pub archive_library: String,
    /// `fsync`.
    pub fsync: bool,
    /// `wal_log_hints` of this very server, for as long as it runs. The control file of a standby has its primary's.
    pub wal_log_hints: bool,
    /// `data_directory`; `None` when our role may not see it.
    pub data_directory: Option<String>,
    /// `port`.
    pub port: u16,
    /// `max_replication_slots`.
    pub max_replication_slots: i32,
    /// Our role.
    pub role: String,
    /// Whether it may call `pg_backup_start`.
    pub may_start: bool,
    /// Whether it may call `pg_backup_stop`.
    pub may_stop: bool,
    /// Whether it may create replication slots.
    pub may_replicate: bool,
    /// Whether it may call `pg_switch_wal`.
    pub may_switch_wal: bool,
}

// Settings a role may not see have no row in pg_settings; current_setting() would fail.
const QUERY: &str = "
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       current_setting('server_version_num')::int4 / 10000,
       current_setting('server_version'),
       pg_is_in_recovery(),
       current_setting('wal_level'),
       current_setting('archive_mode'),
       coalesce((SELECT setting FROM pg_settings WHERE name = 'archive_command'), ''),
       coalesce((SELECT setting FROM pg_settings WHERE name = 'archive_library'), ''),
       (SELECT setting FROM pg_settings WHERE name = 'data_directory'),
       current_setting('port')::int4,
       current_setting('max_replication_slots')::int4,
       current_user::text,
       has_function_privilege('pg_backup_start(text, boolean)', 'EXECUTE'),
       has_function_privilege('pg_backup_stop(boolean)', 'EXECUTE'),
       has_function_privilege('pg_switch_wal()', 'EXECUTE'),
       (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user),
       current_setting('fsync')::bool,
       current_setting('wal_log_hints')::bool";

impl ServerFacts {
    /// Asks the server. Works in every version 15 to 18 and for every role that may connect.
    ///
    /// # Errors
    /// When the query fails or the version is not supported.
    pub(super) async fn read(client: &Client) -> Result<Self> {
        let version: i32 = client
            .query_one(
                "SELECT current_setting('server_version_num')::int4 / 10000",
                &[],
            )
            .await
            .and_then(|row| row.try_get(0))
            .map_err(|error| server_error("could not ask the server for its version", &error))?;
        let major = u32::try_from(version)
            .ok()
            .and_then(|number| Major::try_from(number).ok())
            .ok_or_else(|| {
                Error::new(
                    Kind::Unsupported,
                    format!("PostgreSQL {version} is not supported: versions 15 to 18 are"),
                )
            })?;
        let row = client
            .query_one(QUERY, &[])
            .await
            .map_err(|error| server_error("could not ask the server for its settings", &error))?;
        Self::from_row(major, &row)
            .map_err(|error| server_error("could not understand the server's settings", &error))
    }

    fn from_row(
        major: Major,
        row: &tokio_postgres::Row,
    ) -> std::result::Result<Self, tokio_postgres::Error> {
        let identifier: String = row.try_get(0)?;
        let port: i32 = row.try_get(9)?;
        let archive_library: String = row.try_get(7)?;
        // `LoadArchiveLibrary` (postmaster/pgarch.c) runs the command only without a library.
        let archive_command = match archive_library.as_str() {
            "" => shown(row.try_get(6)?),
            _ => String::new(),
        };
        Ok(Self {
            // The server prints the unsigned number as a signed one.
            system_identifier: identifier.parse().map_or(0, i64::cast_unsigned),
            major,
            version: row.try_get(2)?,
            in_recovery: row.try_get(3)?,
            wal_level: row.try_get(4)?,
            archive_mode: row.try_get(5)?,
            archive_command,
            archive_library,
            data_directory: row.try_get(8)?,
            port: u16::try_from(port).unwrap_or_default(),
            max_replication_slots: row.try_get(10)?,
            role: row.try_get(11)?,
            may_start: row.try_get(12)?,
            may_stop: row.try_get(13)?,
            may_switch_wal: row.try_get(14)?,
            may_replicate: row.try_get(15)?,
            fsync: row.try_get(16)?,
            wal_log_hints: row.try_get(17)?,
        })
    }

    /// Whether the server hands its WAL to an archiver in its present role.
    #[must_use]
    pub fn archives(&self) -> bool {
        let does = match self.archive_mode.as_str() {
            "always" => true,
            "on" => !self.in_recovery,
            _ => false,
        };
        does && !(self.archive_command.is_empty() && self.archive_library.is_empty())
    }

    /// Refuses what no backup can be taken from, with the statement that helps.
    ///
    /// # Errors
    /// `Kind::Refused` or `Kind::Server`.
    pub fn check_fitness(&self) -> Result<()> {
        let grants = [
            (self.may_start, "pg_backup_start(text, boolean)"),
            (self.may_stop, "pg_backup_stop(boolean)"),
        ];
        for (may, function) in grants {
            if !may {
                return Err(Error::new(
                    Kind::Server,
                    format!("role \"{}\" may not call {function}", self.role),
                )
                .hint(format!(
                    "GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO \"{}\"",
                    self.role
                )));
            }
        }
        if self.wal_level == "minimal" {
            return Err(Error::new(
                Kind::Refused,
                "could not back up the server: its wal_level is \"minimal\"",
            )
            .hint("set wal_level = replica and restart the server"));
        }
        Ok(())
    }
}

/// `archive_command` shows `(disabled)` while archiving is off.
fn shown(command: String) -> String {
    if command == "(disabled)" {
        String::new()
    } else {
        command
    }
}
