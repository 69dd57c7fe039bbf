//! What decides, against models that are too simple to be wrong.

use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::retention::{HistoryLine, LastOf, Policy, plan};

use super::input::Input;
use super::support::BLOCK;
use super::support::history::{Finder, Op, PATHS, Round, run_history};
use super::support::keeping::{DAYS, Sketch, going_on, held, kept};

/// Histories of a cluster, by overlay, changeset and merge.
pub fn layers(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut rounds = Vec::new();
    while !input.is_empty() && rounds.len() < 5 {
        let finder = match input.below(4) {
            0 => Finder::Unknown,
            1 => Finder::Lsn,
            2 => Finder::Tracker,
            _ => Finder::Summary,
        };
        let (parent, pages_per_frame) = (input.below(100), 1 + input.below(4));
        let count = input.below(10);
        let ops = (0..count).map(|_| op(&mut input)).collect();
        rounds.push(Round {
            ops,
            finder,
            parent,
            pages_per_frame,
        });
    }
    run_history(&rounds);
}

fn op(input: &mut Input<'_>) -> Op {
    let (kind, file) = (input.below(7), input.below(PATHS.len()));
    let number = input.byte();
    let block = u32::from(number % 12);
    match kind {
        0 => Op::Write { file, block },
        1 => Op::Zero { file, block },
        2 => Op::Extend {
            file,
            count: 1 + block % 4,
        },
        3 => Op::ExtendByBytes {
            file,
            count: 8 + usize::from(number) * (BLOCK - 9) / 255,
        },
        4 => Op::Truncate { file, block },
        5 => Op::Drop { file },
        _ => Op::Recreate {
            file,
            count: block % 6,
        },
    }
}

/// Layers, lines and a policy.
pub fn retention(bytes: &[u8]) {
    let mut input = Input(bytes);
    let count = 1 + input.below(DAYS - 1);
    let sketches: Vec<Sketch> = (0..count)
        .map(|_| {
            let byte = input.byte();
            Sketch {
                back: (byte & 1 == 1).then(|| 1 + usize::from(byte >> 1 & 3) % 3),
                replaced: byte & 0x18 == 0x18,
                broken: byte & 0x60 == 0x60,
                in_use: byte & 0x88 == 0x80,
                pinned: byte & 0xe6 == 0x26,
            }
        })
        .collect();
    let lines: Vec<HistoryLine> = (0..1 + input.below(3))
        .map(|_| {
            let bits = u16::from_le_bytes([input.byte(), input.byte()]);
            HistoryLine {
                layers: (0..count).filter(|at| bits >> at & 1 == 1).collect(),
            }
        })
        .collect();
    let some = |input: &mut Input<'_>, end| input.chance().then(|| 1 + input.below(end));
    let keep_full = some(&mut input, 4);
    let span = |days: usize| SignedDuration::from_hours(24 * i64::try_from(days).unwrap());
    let keep_within = some(&mut input, 12).map(span);
    let limit = some(&mut input, 6);
    let keep_wal = some(&mut input, 12).map(|days| span(days - 1));
    let keep_last_of = LastOf {
        daily: some(&mut input, 6),
        weekly: some(&mut input, 4),
        monthly: some(&mut input, 3),
        yearly: some(&mut input, 2),
    };
    let layers = held(&sketches);
    let policy = Policy {
        keep_full,
        keep_within,
        keep_last_of,
        keep_wal,
        max_chain: None,
    };
    let now: Timestamp = "2026-11-14T12:00:00Z".parse().unwrap();
    let expected = kept(&layers, &lines, &policy, now);
    let made = plan(&layers, &lines, &policy, now);
    let stays: Vec<bool> = made.keep.iter().map(|why| !why.is_empty()).collect();
    assert_eq!(stays, expected);
    assert_eq!(made.goes_on, going_on(&layers, &lines, &policy, now));
    let limited = Policy {
        max_chain: limit,
        ..policy
    };
    if let Some(step) = plan(&layers, &lines, &limited, now).merge {
        assert!(step.length.1 < step.length.0);
    }
}
