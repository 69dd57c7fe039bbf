//! What the page tracker answers, row by row: bytes in, changed blocks out.

use pgstrata_layer::block_set::BlockSet;
use pgstrata_layer::changeset::ChangedBlocks;
use pgstrata_pgdata::relation::{BLOCKS_PER_SEGMENT, ForkKind};

/// One row of `changes()`.
#[derive(Debug)]
pub(crate) struct Columns<'a> {
    pub(crate) path: Option<&'a str>,
    pub(crate) fork: Option<&'a str>,
    pub(crate) segment: Option<i32>,
    pub(crate) whole: Option<bool>,
    pub(crate) blocks: Option<&'a [u8]>,
}

impl Columns<'_> {
    /// Adds what the row says; `None` when it is of no kind we know.
    pub(crate) fn add_to(&self, changes: &mut ChangedBlocks) -> Option<()> {
        let fork = match self.fork {
            None => None,
            Some("main") => Some(ForkKind::Main),
            Some("fsm") => Some(ForkKind::Fsm),
            Some("vm") => Some(ForkKind::Vm),
            Some("init") => Some(ForkKind::Init),
            Some(_) => return None,
        };
        match (self.path, fork, self.segment, self.whole?, self.blocks) {
            (None, Some(fork), None, true, None) => {
                changes.unknown_forks.insert(fork);
            }
            (Some(path), None, None, true, None) => {
                changes.directories.insert(path.to_owned());
            }
            (Some(path), Some(fork), None, true, None) => {
                let path = format!("{path}{}", fork.suffix());
                changes.whole_forks.insert(path);
            }
            (Some(path), Some(fork), Some(segment), false, Some(blocks))
                if blocks.len() * 8 <= usize::try_from(BLOCKS_PER_SEGMENT).ok()? =>
            {
                let suffix = fork.suffix();
                let path = match u32::try_from(segment).ok()? {
                    0 => format!("{path}{suffix}"),
                    segment => format!("{path}{suffix}.{segment}"),
                };
                let file = changes.files.entry(path).or_default();
                file.blocks.unite(&BlockSet::from_bits(blocks.to_vec()));
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgstrata_layer::entry::BlockRun;

    fn row<'a>(
        path: Option<&'a str>,
        fork: Option<&'a str>,
        segment: Option<i32>,
        whole: bool,
        blocks: Option<&'a [u8]>,
    ) -> Columns<'a> {
        Columns {
            path,
            fork,
            segment,
            whole: Some(whole),
            blocks,
        }
    }

    #[test]
    fn every_kind_of_row_is_understood() {
        let mut changes = ChangedBlocks::default();
        for row in [
            row(None, Some("fsm"), None, true, None),
            row(Some("base/5"), None, None, true, None),
            row(Some("base/7/16384"), Some("vm"), None, true, None),
            row(
                Some("base/7/16385"),
                Some("main"),
                Some(0),
                false,
                Some(&[2]),
            ),
            row(
                Some("base/7/16385"),
                Some("fsm"),
                Some(1),
                false,
                Some(&[0, 1]),
            ),
        ] {
            assert!(row.add_to(&mut changes).is_some(), "{row:?}");
        }
        assert!(changes.unknown_forks.contains(&ForkKind::Fsm));
        assert!(changes.directories.contains("base/5"));
        assert!(changes.whole_forks.contains("base/7/16384_vm"));
        let runs = |path: &str| changes.files[path].blocks.runs_below(u32::MAX);
        assert_eq!(runs("base/7/16385"), [BlockRun { start: 1, count: 1 }]);
        assert_eq!(
            runs("base/7/16385_fsm.1"),
            [BlockRun { start: 8, count: 1 }]
        );
    }

    #[test]
    fn a_row_of_no_known_kind_is_refused() {
        let too_many = vec![1; 16385];
        for row in [
            row(None, None, None, true, None),
            row(None, Some("main"), Some(0), false, Some(&[1])),
            row(Some("base/5"), None, Some(0), false, Some(&[1])),
            row(Some("base/5/1"), Some("main"), None, false, Some(&[1])),
            row(Some("base/5/1"), Some("main"), Some(-1), false, Some(&[1])),
            row(Some("base/5/1"), Some("main"), Some(0), false, None),
            row(
                Some("base/5/1"),
                Some("main"),
                Some(0),
                false,
                Some(&too_many),
            ),
            row(Some("base/5/1"), Some("other"), None, true, None),
            Columns {
                whole: None,
                ..row(Some("base/5"), None, None, true, None)
            },
        ] {
            let mut changes = ChangedBlocks::default();
            assert!(row.add_to(&mut changes).is_none(), "{row:?}");
            assert_eq!(changes, ChangedBlocks::default());
        }
    }
}
