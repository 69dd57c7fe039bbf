//! Restores onto what is there, and what is there afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use pgstrata_engine::restore::{Method, RestoreOptions};
use pgstrata_store::progress::Progress;

use super::options;

/// What changes the cluster in that directory.
pub(crate) fn in_place(directory: &Path) -> RestoreOptions {
    RestoreOptions {
        method: Method::Delta,
        ..options(directory)
    }
}

/// Of a restore that ends as soon as it has taken the directory apart.
pub(crate) fn cancelled() -> Progress {
    let progress = Progress::default();
    progress.cancel();
    progress
}

/// Every file, link and directory below, with its contents.
pub(crate) fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    fn walk(root: &Path, directory: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if path.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                found.insert(name, target.display().to_string().into_bytes());
            } else if path.is_dir() {
                found.insert(name, b"directory".to_vec());
                walk(root, &path, found);
            } else {
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(root, root, &mut found);
    // It says when files of the restore's own making were written.
    found.remove("backup_manifest");
    // It says which directory it is of.
    found.remove("pgstrata.lineage");
    found
}
