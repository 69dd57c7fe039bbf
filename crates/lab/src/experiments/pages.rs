//! Pages of a data directory, read as they are on disk.

use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result};

/// Bytes of a page.
pub(super) const PAGE: usize = 8192;

/// Pages of relations, and how many of them have an LSN at or beyond a point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// All pages.
    pub(super) pages: u64,
    /// Those changed since.
    pub(super) changed: u64,
}

/// `16/B374D848` as a number.
pub(super) fn lsn(text: &str) -> Result<u64> {
    let (high, low) = text
        .trim()
        .split_once('/')
        .with_context(|| format!("could not parse \"{text}\" as an LSN"))?;
    let part = |digits: &str| {
        u64::from_str_radix(digits, 16)
            .with_context(|| format!("could not parse \"{text}\" as an LSN"))
    };
    Ok((part(high)? << 32) | part(low)?)
}

/// Looks at every page of every relation below `base` and `global`.
pub(super) fn changed_since(data: &Path, since: u64) -> Result<Changed> {
    let mut total = Changed::default();
    let mut pending = vec![data.join("base"), data.join("global")];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory)
            .with_context(|| format!("could not list \"{}\"", directory.display()))?
        {
            let entry =
                entry.with_context(|| format!("could not list \"{}\"", directory.display()))?;
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() {
                pending.push(path);
            } else if is_main_fork(&name.to_string_lossy()) {
                count(&path, since, &mut total)
                    .with_context(|| format!("could not read \"{}\"", path.display()))?;
            }
        }
    }
    Ok(total)
}

/// `16384` and `16384.1`; other forks have no LSN to trust.
pub(super) fn is_main_fork(name: &str) -> bool {
    let mut parts = name.split('.');
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    parts.next().is_some_and(digits) && parts.next().is_none_or(digits) && parts.next().is_none()
}

fn count(path: &Path, since: u64, total: &mut Changed) -> Result<()> {
    let mut reader = BufReader::with_capacity(PAGE * 64, File::open(path)?);
    let mut page = vec![0; PAGE];
    while reader.read_exact(&mut page).is_ok() {
        total.pages += 1;
        let word = |at: usize| {
            u64::from(u32::from_le_bytes([
                page[at],
                page[at + 1],
                page[at + 2],
                page[at + 3],
            ]))
        };
        let lsn = (word(0) << 32) | word(4);
        total.changed += u64::from(lsn >= since);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Changed, PAGE, changed_since, is_main_fork, lsn};

    #[test]
    fn pages_at_or_beyond_the_point_count() {
        let data = tempfile::tempdir().unwrap();
        for directory in ["base/5", "global"] {
            std::fs::create_dir_all(data.path().join(directory)).unwrap();
        }
        let mut file = vec![0; 3 * PAGE];
        file[4] = 7;
        file[PAGE] = 1;
        std::fs::write(data.path().join("base/5/100"), &file).unwrap();
        std::fs::write(data.path().join("base/5/100_vm"), &file).unwrap();
        std::fs::write(data.path().join("global/200.1"), &file[..PAGE]).unwrap();
        let at = |since| changed_since(data.path(), since).unwrap();
        assert_eq!(
            at(7),
            Changed {
                pages: 4,
                changed: 3
            }
        );
        assert_eq!(
            at(8),
            Changed {
                pages: 4,
                changed: 1
            }
        );
        assert_eq!(
            at(lsn("1/0").unwrap()),
            Changed {
                pages: 4,
                changed: 1
            }
        );
        assert_eq!(at(lsn("1/1").unwrap()).changed, 0);
        assert!(!is_main_fork("pg_internal.init") && !is_main_fork("12_fsm"));
    }
}
