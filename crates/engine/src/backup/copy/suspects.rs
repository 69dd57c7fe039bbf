//! Pages that the source of changes calls unchanged, and whose digest is not the parent's all the same.

use pgstrata_pgdata::relation::ForkKind;

/// A page whose digest is not the parent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) path: String,
    pub(crate) fork: ForkKind,
    pub(crate) block: u32,
    pub(crate) page: Vec<u8>,
}

/// What the workers saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Audited {
    pub(crate) pages: u64,
    pub(crate) suspects: Vec<Suspect>,
    /// Suspects beyond those that are kept.
    pub(crate) more_suspects: u64,
}

/// Suspects kept, 8 KiB each: a source that misses more is wrong whatever the rest is.
pub(crate) const MOST_SUSPECTS: usize = 1000;

impl Audited {
    pub(crate) fn add(&mut self, pages: u64, suspects: Vec<Suspect>) {
        self.pages += pages;
        for suspect in suspects {
            if self.suspects.len() < MOST_SUSPECTS {
                self.suspects.push(suspect);
            } else {
                self.more_suspects += 1;
            }
        }
    }
}
