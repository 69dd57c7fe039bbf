//! What keeps WAL in `pg_wal`, as the server says.

use pgstrata_store::error::Result;

use super::Session;
use super::session::server_error;

/// A replication slot that somebody else than a backup has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForeignSlot {
    pub(crate) name: String,
    /// Whether somebody uses it now.
    pub(crate) active: bool,
    /// `reserved`: within `max_wal_size`; `extended`: beyond; `unreserved` and `lost`: what it needs goes, or is gone.
    pub(crate) wal_status: String,
    /// Bytes of WAL since what it holds.
    pub(crate) held_bytes: u64,
}

/// What a session of any role may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldWal {
    pub(crate) slots: Vec<ForeignSlot>,
    /// So large may `pg_wal` become while nothing else holds WAL.
    pub(crate) max_wal_bytes: u64,
}

impl Session {
    /// What slots hold, and how large `pg_wal` may become.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(crate) async fn held_wal(&self) -> Result<HeldWal> {
        let slots = "SELECT slot_name::text, active, coalesce(wal_status, 'reserved'),
                greatest(0, coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                    ELSE pg_current_wal_lsn() END, restart_lsn), 0))::int8
              FROM pg_replication_slots WHERE slot_name NOT LIKE 'pgstrata\\_%' ORDER BY slot_name";
        let limit = "SELECT setting::int8 * 1048576 FROM pg_settings WHERE name = 'max_wal_size'";
        let asked = async {
            let rows = self.client().query(slots, &[]).await?;
            let slot = |row: &tokio_postgres::Row| {
                let held: i64 = row.try_get(3)?;
                Ok::<_, tokio_postgres::Error>(ForeignSlot {
                    name: row.try_get(0)?,
                    active: row.try_get(1)?,
                    wal_status: row.try_get(2)?,
                    held_bytes: held.unsigned_abs(),
                })
            };
            let limit: i64 = self.client().query_one(limit, &[]).await?.try_get(0)?;
            Ok::<_, tokio_postgres::Error>(HeldWal {
                slots: rows
                    .iter()
                    .map(slot)
                    .collect::<std::result::Result<_, _>>()?,
                max_wal_bytes: limit.unsigned_abs(),
            })
        };
        asked
            .await
            .map_err(|error| server_error("could not ask what keeps WAL in pg_wal", &error))
    }
}
