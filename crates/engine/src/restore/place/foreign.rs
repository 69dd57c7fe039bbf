//! What is not the cluster's own though it lies among its files: a repository, or another cluster.
//!
//! A restore in place removes whatever the layer does not have. Of a repository or a cluster that would be all of it, and perhaps
//! the only copy that there is, so such a directory is refused before anything is changed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::iter;
use std::path::{Path, PathBuf};

use pgstrata_layer::cluster;
use pgstrata_store::error::{Error, FileContext, Kind, Result};

use super::layout::MARKER;

/// Refuses when a repository or another cluster lies below `data` or one of `others`, which a restore in place would change. Links
/// are not followed: they are removed, and what they lead to stays.
///
/// # Errors
/// `Refused` then; `File` when a directory cannot be read.
pub(super) fn refuse(data: &Path, others: &[PathBuf]) -> Result<()> {
    let mut tops = iter::once(data).chain(others.iter().map(PathBuf::as_path));
    tops.try_for_each(|top| refuse_below((data, top), top))
}

fn refuse_below((data, top): (&Path, &Path), directory: &Path) -> Result<()> {
    let about = || format!("could not read the directory \"{}\"", directory.display());
    let entries = match fs::read_dir(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        // Who may not read it may not remove what is in it: the list of files says more of it.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        entries => entries.context(about)?,
    };
    for entry in entries {
        let entry = entry.context(about)?;
        let kind = entry.file_type().context(about)?;
        let path = entry.path();
        if kind.is_dir() {
            refuse_below((data, top), &path)?;
        } else if kind.is_file()
            && let Some((place, what)) = sign((data, top), directory, &path)
        {
            return Err(refusal(top, &place, what));
        }
    }
    Ok(())
}

/// What the file `path` in `directory` proves to lie there, and where.
fn sign(
    (data, top): (&Path, &Path),
    directory: &Path,
    path: &Path,
) -> Option<(PathBuf, &'static str)> {
    let above = directory.parent().unwrap_or(directory);
    let is_control = directory.ends_with("global") && above != data;
    // A database has one, too, in a directory that is a number.
    let is_version = directory != data && !is_number(directory);
    let (place, what) = match path.file_name()?.to_str()? {
        "cluster" if is_record(path) => (above, "a repository"),
        "pg_control" if is_control => (above, "another cluster"),
        "PG_VERSION" if is_version => (directory, "another cluster"),
        MARKER if directory != top => (directory, "a restore that has not finished"),
        _ => return None,
    };
    Some((place.to_owned(), what))
}

fn is_number(directory: &Path) -> bool {
    let name = directory.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether it begins as the record of a cluster in a repository does.
fn is_record(path: &Path) -> bool {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(64).read_to_end(&mut bytes));
    read.is_ok() && cluster::is_one(&bytes)
}

fn refusal(top: &Path, place: &Path, what: &str) -> Error {
    let said = format!(
        "\"{}\" holds {what}, and lies in \"{}\", where the restore would remove all that the layer does not have",
        place.display(),
        top.display()
    );
    Error::new(Kind::Refused, said)
        .hint("Move it out of there; a repository is moved as files are, and --repo then names its new place.")
}

#[cfg(test)]
mod tests {
    use pgstrata_layer::cluster::ClusterRecord;

    use super::*;

    fn record() -> Vec<u8> {
        cluster::encode(&ClusterRecord {
            name: "main".to_owned(),
            format: 1,
            system_identifier: 7,
            major: 15,
            catalog_version: 202_209_061,
            block_size: 8192,
            wal_segment_size: 1 << 24,
            created_at: "2026-11-29T00:00:00Z".parse().unwrap(),
            written_by: "pgstrata".to_owned(),
            sealing: None,
            retention: None,
        })
    }

    #[test]
    fn repositories_and_other_clusters_among_the_files_are_found() {
        for (path, contents, words) in [
            (
                "pg_wal/copy/main/cluster",
                record(),
                "/pg_wal/copy\" holds a repository",
            ),
            ("main/cluster", record(), "/data\" holds a repository"),
            (
                "pg_wal/x/global/pg_control",
                vec![1],
                "/pg_wal/x\" holds another",
            ),
            (
                "pg_wal/15/global/pg_control",
                vec![1],
                "/pg_wal/15\" holds another",
            ),
            (
                "old/PG_VERSION",
                b"15\n".into(),
                "/old\" holds another cluster",
            ),
            (
                "x/pgstrata.restore-incomplete",
                vec![],
                "/x\" holds a restore",
            ),
        ] {
            let scratch = tempfile::tempdir().unwrap();
            let data = scratch.path().join("data");
            let put = |path: &str, contents: &[u8]| {
                let path = data.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, contents).unwrap();
            };
            // What is a cluster's own, or is only called so.
            for own in [
                "PG_VERSION",
                "base/5/PG_VERSION",
                "global/pg_control",
                MARKER,
                "x/cluster",
            ] {
                put(own, b"x");
            }
            // What a link leads to stays.
            let beside = scratch.path().join("beside");
            fs::create_dir_all(beside.join("global")).unwrap();
            fs::write(beside.join("global/pg_control"), b"x").unwrap();
            std::os::unix::fs::symlink(&beside, data.join("link")).unwrap();
            refuse(&data, &[scratch.path().join("absent")]).unwrap();
            put(path, &contents);
            let error = refuse(&data, &[]).unwrap_err();
            assert_eq!(error.kind(), Kind::Refused, "{path}: {error}");
            assert!(error.to_string().contains(words), "{path}: {error}");
        }
    }
}
