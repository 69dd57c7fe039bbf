//! Which directories are one under several names.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Without symbolic links, as far as it exists.
#[must_use]
pub fn resolved(path: &Path) -> PathBuf {
    let found = path
        .ancestors()
        .find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, found)) = found else {
        return path.to_owned();
    };
    match path.strip_prefix(above) {
        Ok(rest) if !rest.as_os_str().is_empty() => found.join(rest),
        _ => found,
    }
}

/// Whether both are one: by another name, or mounted at two places.
#[must_use]
pub fn same_directory(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    match (of(one), of(other)) {
        (Ok(here), Ok(there)) if here == there => true,
        _ => resolved(one) == resolved(other),
    }
}
