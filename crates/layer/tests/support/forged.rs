//! What a host can forge that may only create objects. Tests of other crates take it from here.

use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::removal::{self, RemovalRecord, VerdictRecord, WalKept};
use pgstrata_pgdata::Lsn;

/// A removal of these layers, newest first, and of WAL. Keys below the cluster, with what is there: the record that
/// announces it, and the verdict.
pub(crate) fn removal(
    layers: &[ParentRef],
    wal: Option<(Lsn, Vec<WalKept>)>,
) -> [(&'static str, Vec<u8>); 2] {
    let now = "2026-11-22T12:00:00Z".parse().unwrap();
    let announced = RemovalRecord {
        layers: layers.to_vec(),
        host: "stolen".to_owned(),
        pid: 4711,
        started_at: now,
        written_by: "a test".to_owned(),
    };
    let (wal_before, wal_kept) = wal.unzip();
    let verdict = VerdictRecord {
        layers: layers.to_vec(),
        wal_before,
        wal_kept: wal_kept.unwrap_or_default(),
        host: "stolen".to_owned(),
        pid: 4711,
        decided_at: now,
        written_by: "a test".to_owned(),
    };
    [
        ("removal/f0f0/wanted", removal::encode(&announced)),
        ("removal/f0f0/verdict", removal::encode_verdict(&verdict)),
    ]
}
