//! Stores the sample repository under `crates/layer/tests/golden`, once.
//!
//! A file that is there is never written again: a format that changed gets new
//! files under a new name, and readers go on reading the old ones.

#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::io::{Result, Write};
use std::path::Path;

use pgstrata_layer::frame::Codec;

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd(1)] {
        let folder = root.join(codec.to_string().replace(':', ""));
        store(&folder, support::sample::repository(codec))?;
    }
    store(&root.join("merged"), support::sample::merged_repository())?;
    store(&root.join("beside"), support::sample::beside_repository())?;
    store(&root.join("work"), support::sample::work())?;
    store(&root.join("kept"), support::sample::kept())?;
    store(&root.join("released"), support::sample::released())?;
    store(&root.join("verified"), support::sample::verified())?;
    store(
        &root.join("found-damaged"),
        support::sample::found_damaged(),
    )?;
    store(&root.join("found-more"), support::sample::found_more())?;
    store(&root.join("retained"), support::sample::retained())?;
    store(&root.join("data"), support::sample::data_directory())?;
    store(
        &root.join("data-of-run"),
        support::sample::data_directory_of_run(),
    )
}

/// Stores a repository unless it is there.
fn store(folder: &Path, objects: support::sample::Objects) -> Result<()> {
    if folder.exists() {
        return Ok(());
    }
    for (key, bytes) in objects {
        let path = folder.join(key);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::File::create_new(&path)?.write_all(&bytes)?;
    }
    Ok(())
}
