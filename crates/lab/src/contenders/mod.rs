//! Backup tools: ours and its peers, each with the commands that run it.

pub mod contender;
pub mod native;
pub mod pg_probackup;
pub mod pgbackrest;
pub mod pgstrata;
pub mod walg;

use contender::Contender;
use native::Native;
use pg_probackup::PgProbackup;
use pgbackrest::PgBackRest;
use pgstrata_testbed::cluster::Major;
use walg::WalG;

/// Backup tools other than ours that are installed and know this major version, in every configuration worth comparing;
/// the first of a tool is the one that stands for it.
#[must_use]
pub fn peers(major: Major) -> Vec<Box<dyn Contender>> {
    let mut peers: Vec<Box<dyn Contender>> = Vec::new();
    // Its increments came with 17.
    if major >= Major::V17 {
        peers.push(Box::new(Native));
    }
    if PgBackRest::knows(major) {
        for compress in ["zst", "lz4"] {
            peers.push(Box::new(PgBackRest { compress }));
        }
    }
    for walg in WalG::installed() {
        peers.push(Box::new(walg));
    }
    if let Some(probackup) = PgProbackup::installed(major) {
        peers.push(Box::new(probackup));
    }
    peers
}
