//! What shows in a data directory whether runs begin from the same state.

use std::os::unix::fs::FileExt;
use std::path::Path;

use sha2::{Digest, Sha256};

/// Segments in `pg_wal`.
pub(super) fn wal_segments(data: &Path) -> usize {
    std::fs::read_dir(data.join("pg_wal")).map_or(0, |entries| {
        entries
            .flatten()
            .filter(|entry| entry.file_name().len() == 24)
            .count()
    })
}

/// Every so many pages one goes into the fingerprint: a cluster of 15 GB then
/// costs a tenth of a second, and a load that writes does not stay unseen.
const FINGERPRINT_EVERY: u64 = 64;
const PAGE: usize = 8192;

/// Names, sizes and a sample of the pages of all files below `base`: the same
/// copy, the same print.
pub(super) fn fingerprint(data: &Path) -> String {
    let mut files = Vec::new();
    let base = data.join("base");
    let mut pending = vec![base.clone()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                pending.push(path);
            } else if let Ok(metadata) = entry.metadata() {
                // The relation map's cache is written at the first connection.
                if !path.to_string_lossy().ends_with("pg_internal.init") {
                    files.push((path, metadata.len()));
                }
            }
        }
    }
    files.sort();
    let mut digest = Sha256::new();
    for (path, size) in files {
        let name = path.strip_prefix(&base).unwrap_or(&path).to_owned();
        digest.update(format!("{name:?} {size}"));
        sample(&path, size, &mut digest);
    }
    let digest = digest.finalize();
    digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn sample(path: &Path, size: u64, digest: &mut Sha256) {
    let Ok(file) = std::fs::File::open(path) else {
        return;
    };
    let mut page = [0; PAGE];
    let mut at = 0;
    while at < size {
        // A file that shrinks meanwhile gives another print, as it should.
        let read = file.read_at(&mut page, at).unwrap_or(0);
        digest.update(&page[..read]);
        at += FINGERPRINT_EVERY * 8192;
    }
}
