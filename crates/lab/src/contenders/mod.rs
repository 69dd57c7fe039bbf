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

/// What a server lets other tools do.
#[derive(Debug, Clone, Copy)]
pub struct Peers {
    /// Its major version, which each of them must know.
    pub major: Major,
    /// Whether it is patched for ptrack and has its extension.
    pub ptrack: bool,
}

impl Peers {
    /// Backup tools other than ours that are installed and can take part, in every configuration worth comparing;
    /// the first of a tool is the one that stands for it.
    #[must_use]
    pub fn installed(self) -> Vec<Box<dyn Contender>> {
        let mut peers: Vec<Box<dyn Contender>> = Vec::new();
        // Its increments came with 17.
        if self.major >= Major::V17 {
            peers.push(Box::new(Native));
        }
        for pgbackrest in PgBackRest::installed() {
            if pgbackrest.knows(self.major) {
                peers.push(Box::new(pgbackrest));
            }
        }
        for walg in WalG::installed() {
            peers.push(Box::new(walg));
        }
        for probackup in PgProbackup::installed(self) {
            peers.push(Box::new(probackup));
        }
        peers
    }
}
