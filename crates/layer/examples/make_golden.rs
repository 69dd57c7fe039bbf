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
        for (key, bytes) in support::sample::repository(codec) {
            let path = folder.join(key);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::File::create_new(&path)?.write_all(&bytes)?;
        }
    }
    Ok(())
}
