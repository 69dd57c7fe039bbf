//! The page tracker's answer as the engine reads it: rows of a stranger's server.

use pgstrata_layer::changeset::{ChangedBlocks, Changes, ParentFile, PresentFile, plan_file};
use pgstrata_layer::entry::EntryKind;
use pgstrata_pgdata::relation::ForkKind;

use super::input::Input;

/// The engine needs much that a fuzzer does not; this file of it needs nothing.
#[path = "../../crates/engine/src/server/tracker_rows.rs"]
mod tracker_rows;

use tracker_rows::Columns;

const FORKS: [&str; 6] = ["main", "fsm", "vm", "init", "", "other"];

pub fn rows(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut changes = ChangedBlocks {
        covers_all_forks: true,
        ..ChangedBlocks::default()
    };
    let mut rows = 0;
    while !input.is_empty() && rows < 64 {
        rows += 1;
        let given = input.byte();
        let is = |bit: u8| given >> bit & 1 == 1;
        let length = input.below(32);
        let path = String::from_utf8_lossy(input.take(length)).into_owned();
        let fork = FORKS[input.below(FORKS.len())];
        let segment = input.word().cast_signed();
        let length = input.below(64);
        let blocks = input.take(length).repeat(if is(5) { 300 } else { 1 });
        let columns = Columns {
            path: is(0).then_some(path.as_str()),
            fork: is(1).then_some(fork),
            segment: is(2).then_some(segment),
            whole: (!is(6)).then_some(is(3)),
            blocks: is(4).then_some(&blocks),
        };
        let before = changes.clone();
        if columns.add_to(&mut changes).is_none() {
            assert_eq!(changes, before, "what is not understood changes nothing");
            continue;
        }
        // Every block that the row names is named.
        if let (Some(path), Some(blocks), 0) = (columns.path, columns.blocks, segment)
            && fork == "main"
        {
            for (byte, bits) in (0_u32..).zip(blocks) {
                for bit in (0..8).filter(|bit| bits >> bit & 1 == 1) {
                    assert!(changes.may_have_changed(path, ForkKind::Main, byte * 8 + bit));
                }
            }
        }
    }
    let exact = Changes::Exact(changes);
    let present = PresentFile {
        path: "base/5/1".to_owned(),
        kind: EntryKind::Relation,
        fork: Some(ForkKind::Main),
        size_bytes: 8192 * u64::from(input.word()),
        identity: 1,
    };
    let parent = ParentFile {
        kind: EntryKind::Relation,
        size_bytes: 8192 * u64::from(input.byte()),
        identity: 1,
        content_digest: None,
    };
    let _ = plan_file(&present, Some(&parent), &exact);
}
