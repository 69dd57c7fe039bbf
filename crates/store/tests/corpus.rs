//! The inputs that fuzzing starts from, and those that it has found: each goes through its target, and so does what is
//! left of it when it is cut, and what becomes of it when a byte is changed.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/targets/mod.rs"]
mod targets;

/// So many cuts, and so many changed bytes, of each input: a second for all of them.
const CHANGES: usize = 12;

#[test]
fn every_input_of_the_corpus_goes_through_its_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let known = targets::TARGETS.map(|(name, _)| name.to_owned());
    let mut there = fs::read_dir(&corpus)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect::<Vec<_>>();
    there.sort_unstable();
    let mut expected = known.to_vec();
    expected.sort_unstable();
    assert_eq!(there, expected, "targets, and what they start from");
    for (name, target) in targets::TARGETS {
        let mut inputs = 0;
        for entry in fs::read_dir(corpus.join(name)).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            let bytes = fs::read(path).unwrap();
            target(&bytes);
            for nth in 0..CHANGES {
                let at = bytes.len() * nth / CHANGES;
                target(&bytes[..at]);
                let mut changed = bytes.clone();
                if let Some(byte) = changed.get_mut(at) {
                    *byte ^= 1 << (nth % 8);
                }
                target(&changed);
            }
            inputs += 1;
        }
        assert!(inputs > 0, "{name} has nothing to start from");
    }
}
