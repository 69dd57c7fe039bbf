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
    /// `max_wal_size`: so large may `pg_wal` become while nothing else holds WAL.
    pub(crate) max_wal_bytes: u64,
    /// `min_wal_size`: so much is kept to be written anew.
    pub(crate) min_wal_bytes: u64,
    /// `wal_keep_size`: so much is kept for standbys.
    pub(crate) kept_bytes: u64,
    /// Length of a segment.
    pub(crate) segment_bytes: u64,
    /// Whether a slot of any name that nobody uses holds WAL: it holds all that comes, too.
    pub(crate) has_idle_slot: bool,
}

impl Session {
    /// What slots and settings hold, and how large `pg_wal` may become.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(crate) async fn held_wal(&self) -> Result<HeldWal> {
        let slots = "SELECT slot_name::text, active, coalesce(wal_status, 'reserved'),
                greatest(0, coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                    ELSE pg_current_wal_lsn() END, restart_lsn), 0))::int8
              FROM pg_replication_slots WHERE slot_name NOT LIKE 'pgstrata\\_%' ORDER BY slot_name";
        // By pg_settings these are in MiB and a segment in bytes.
        let limits = "SELECT
                (SELECT setting::int8 * 1048576 FROM pg_settings WHERE name = 'max_wal_size'),
                (SELECT setting::int8 * 1048576 FROM pg_settings WHERE name = 'min_wal_size'),
                (SELECT setting::int8 * 1048576 FROM pg_settings WHERE name = 'wal_keep_size'),
                (SELECT setting::int8 FROM pg_settings WHERE name = 'wal_segment_size'),
                EXISTS (SELECT FROM pg_replication_slots WHERE NOT active AND restart_lsn IS NOT NULL)";
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
            let limits = self.client().query_one(limits, &[]).await?;
            let bytes = |at: usize| limits.try_get(at).map(i64::unsigned_abs);
            Ok::<_, tokio_postgres::Error>(HeldWal {
                slots: rows
                    .iter()
                    .map(slot)
                    .collect::<std::result::Result<_, _>>()?,
                max_wal_bytes: bytes(0)?,
                min_wal_bytes: bytes(1)?,
                kept_bytes: bytes(2)?,
                segment_bytes: bytes(3)?,
                has_idle_slot: limits.try_get(4)?,
            })
        };
        asked
            .await
            .map_err(|error| server_error("could not ask what keeps WAL in pg_wal", &error))
    }
}
