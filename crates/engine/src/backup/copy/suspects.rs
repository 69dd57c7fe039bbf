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
    /// Where those are whose pages are not kept.
    pub(crate) others: Vec<Others>,
}

/// Suspects of one file, without their pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Others {
    pub(crate) path: String,
    pub(crate) fork: ForkKind,
    pub(crate) blocks: Vec<u32>,
}

/// Pages kept, 8 KiB each. Under load nearly all suspects were written while the backup ran, which needs no page to tell;
/// the others are read again.
pub(crate) const PAGES_KEPT: usize = 1000;

impl Audited {
    pub(crate) fn add(&mut self, pages: u64, suspects: Vec<Suspect>) {
        self.pages += pages;
        for suspect in suspects {
            if self.suspects.len() < PAGES_KEPT {
                self.suspects.push(suspect);
                continue;
            }
            match self.others.last_mut() {
                Some(last) if last.path == suspect.path => last.blocks.push(suspect.block),
                _ => self.others.push(Others {
                    path: suspect.path,
                    fork: suspect.fork,
                    blocks: vec![suspect.block],
                }),
            }
        }
    }
}
