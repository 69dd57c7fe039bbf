//! Where programs are: those that `scripts/setup` installed, and those on `PATH`.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The folder that `scripts/setup` fills: `PGSTRATA_DEPS`, or `.deps` of the
/// checkout that this crate was built from.
fn deps() -> PathBuf {
    env::var_os("PGSTRATA_DEPS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.deps"),
        PathBuf::from,
    )
}

/// The path of something below `.deps`, with every link followed: the user that
/// runs servers may be able to reach only where a link leads to.
pub(crate) fn installed(name: &str) -> Result<PathBuf> {
    let path = deps().join(name);
    path.canonicalize()
        .with_context(|| format!("could not find \"{}\": run scripts/setup", path.display()))
}

/// The first file of this name in the directories of `PATH`.
#[must_use]
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}
