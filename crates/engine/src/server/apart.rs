//! A repository lies apart from the directories of the cluster that it keeps.
//!
//! Within the data directory or a tablespace it would back itself up and be lost together with the cluster, and a
//! restore onto that directory would remove the objects that it reads from. The other way round the files of a server
//! would lie between objects.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use futures::future::join_all;
use pgstrata_store::blocking::{answer_within, blocking};
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use pgstrata_store::repository::{ANSWERS_WITHIN, Repository, no_answer};

use super::control::CONTROL_PATH;
use super::scan::tablespaces;

/// Its presence says that a restore has not finished.
pub const MARKER: &str = "pgstrata.restore-incomplete";

/// Refuses a repository in a directory that holds, or lies in, `data_directory`, its `pg_wal` or one of its tablespaces.
///
/// # Errors
/// `Refused` then; `File` when links of the data directory cannot be read.
pub(crate) async fn require_apart(repository: &Repository, data_directory: &Path) -> Result<()> {
    if repository.directory().is_none() {
        return Ok(());
    }
    let (repository, data) = (repository.clone(), data_directory.to_owned());
    blocking(move || {
        let directories = directories_of(&data)?;
        require_apart_from(&repository, directories.iter().map(PathBuf::as_path))
    })
    .await
}

/// Refuses a repository among the files of any cluster, known by what PostgreSQL keeps in its directories: the backups of that
/// cluster would take it for theirs, and a restore would remove it.
///
/// # Errors
/// `Refused` then; `Repository` when the directory does not answer.
pub(crate) async fn require_outside(repository: &Repository) -> Result<()> {
    let Some(root) = repository.directory().map(Path::to_owned) else {
        return Ok(());
    };
    let there = root.clone();
    let answer = answer_within(ANSWERS_WITHIN, move || {
        let place = real(&there);
        let known = |path| part_of_cluster(path).or_else(|| place_of_tablespace(path));
        let mut above = place.ancestors();
        match above.find_map(|path| Some((path, known(path)?))) {
            None => Ok(()),
            Some((path, what)) => {
                let what = format!("{what} of a cluster");
                Err(refusal(&there, "lies in", (path, &what)))
            }
        }
    });
    answer.await.unwrap_or_else(|| Err(no_answer(&root)))
}

/// Those of `repositories` whose directories answer, and those that are none. Where another one lies nobody needs to know: it
/// is on a file system of its own, and not among the files of a cluster that can be read.
pub(crate) async fn answering(repositories: &[Repository]) -> Vec<Repository> {
    let asked = repositories.iter().map(async |repository| {
        let Some(root) = repository.directory() else {
            return true;
        };
        let there = root.to_owned();
        let answer = answer_within(ANSWERS_WITHIN, move || (real(&there), identity(&there)));
        let answers = answer.await.is_some();
        if !answers {
            let error = no_answer(root);
            tracing::warn!(
                "where a repository of the configuration file lies is not known: {error}"
            );
        }
        answers
    });
    let answers = join_all(asked).await;
    let those = repositories.iter().zip(answers);
    those
        .filter(|(_, answers)| *answers)
        .map(|(repository, _)| repository.clone())
        .collect()
}

/// The same as [`require_apart`] for directories that are known.
pub(crate) fn require_apart_from<'a>(
    repository: &Repository,
    directories: impl IntoIterator<Item = &'a Path>,
) -> Result<()> {
    let Some(root) = repository.directory() else {
        return Ok(());
    };
    for directory in directories {
        let where_it_is = match (lies_in(root, directory), lies_in(directory, root)) {
            (false, false) => continue,
            (true, _) => "lies in",
            (false, true) => "holds",
        };
        return Err(refusal(
            root,
            where_it_is,
            (directory, "a directory of the cluster"),
        ));
    }
    Ok(())
}

/// What of a cluster's the directory is, if anything: files below it are taken for the cluster's. Links lead to some of them, so
/// that a data directory need not be above.
pub(crate) fn part_of_cluster(directory: &Path) -> Option<&'static str> {
    let has = |name: &str| directory.join(name).exists();
    // A restore in place that was interrupted has taken the control file away, and one into a new directory clears it.
    if has(CONTROL_PATH) || has(MARKER) {
        return Some("the data directory");
    }
    // The server makes it whenever it starts, for every method of archiving.
    if directory.join("archive_status").is_dir() {
        return Some("the WAL directory");
    }
    let name = directory.file_name()?.to_str()?;
    let is_version = is_version_directory(name) && directory.is_dir();
    is_version.then_some("the directory of a tablespace")
}

/// Whether the directory is what a tablespace was given. What else lies there is nothing to the server.
fn place_of_tablespace(directory: &Path) -> Option<&'static str> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let found = names.find(|name| is_version_directory(name) && directory.join(name).is_dir());
    found.map(|_| "the directory of a tablespace")
}

/// Whether a server of some version calls its directory in that of a tablespace so: `PG_15_202209061`.
fn is_version_directory(name: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name
        .strip_prefix("PG_")
        .and_then(|rest| rest.split_once('_'));
    parts.is_some_and(|(major, catalog)| number(major) && number(catalog))
}

fn refusal(root: &Path, where_it_is: &str, (directory, what): (&Path, &str)) -> Error {
    Error::new(
        Kind::Refused,
        format!(
            "the repository's directory \"{}\" {where_it_is} \"{}\", {what}",
            root.display(),
            directory.display()
        ),
    )
    .hint("move one of them: the objects of a repository may be moved as files, and --repo then names their new place")
}

/// The data directory, and where PostgreSQL follows links out of it. Where other links lead is known when files are listed.
fn directories_of(data: &Path) -> Result<Vec<PathBuf>> {
    let mut directories = vec![data.to_owned(), data.join("pg_wal")];
    if data.join("pg_tblspc").is_dir() {
        let placed = tablespaces(data)?.into_iter();
        let links = placed.filter(|tablespace| tablespace.location.is_some());
        directories.extend(links.map(|one| data.join("pg_tblspc").join(one.oid.to_string())));
    }
    let known = directories.into_iter().filter(|path| path.exists());
    let real = known.map(|path| {
        let about = || format!("could not resolve \"{}\"", path.display());
        fs::canonicalize(&path).context(about)
    });
    real.collect()
}

/// Whether `inner` is `outer` or below it, by whatever names: links and mounts lead to the same directories.
fn lies_in(inner: &Path, outer: &Path) -> bool {
    let outer_id = identity(outer);
    let inner = real(inner);
    let mut above = inner.ancestors();
    inner.starts_with(real(outer))
        || (outer_id.is_some() && above.any(|directory| identity(directory) == outer_id))
}

fn identity(directory: &Path) -> Option<(u64, u64)> {
    let status = fs::metadata(directory).ok()?;
    Some((status.dev(), status.ino()))
}

/// The path without links, as far as it exists.
fn real(path: &Path) -> PathBuf {
    for existing in path.ancestors() {
        if let (Ok(resolved), Ok(rest)) = (fs::canonicalize(existing), path.strip_prefix(existing))
        {
            return resolved.join(rest);
        }
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use pgstrata_pgdata::Major;
    use pgstrata_store::repository::RepositoryOptions;

    use super::*;
    use crate::server::scan::scan;

    fn repository(directory: &Path) -> Repository {
        let options = RepositoryOptions::new(format!("file://{}", directory.display()));
        Repository::open(&options).unwrap()
    }

    #[test]
    fn links_of_others_lead_to_directories_of_the_cluster() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |path: &str| scratch.path().join(path);
        for directory in ["data", "other/above/repository", "apart"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        symlink(at("other/above"), at("data/link")).unwrap();
        let linked = scan(&at("data"), Major::V15).unwrap().linked;
        for (place, is_apart) in [
            ("other/above/repository", false),
            ("other/above", false),
            ("other", false),
            ("apart", true),
        ] {
            let linked = linked.iter().map(PathBuf::as_path);
            let required = require_apart_from(&repository(&at(place)), linked);
            assert_eq!(required.is_ok(), is_apart, "{place}: {required:?}");
        }
    }

    #[tokio::test]
    async fn a_repository_among_the_files_of_its_cluster_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |path: &str| scratch.path().join(path);
        for directory in [
            "data/pg_tblspc",
            "data/global",
            "wal/archive_status",
            "space/PG_15_202209061/5",
            "linked",
        ] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        fs::write(at("data/global/pg_control"), b"").unwrap();
        symlink(at("wal"), at("data/pg_wal")).unwrap();
        symlink(at("space"), at("data/pg_tblspc/16390")).unwrap();
        symlink(at("data"), at("linked/data")).unwrap();
        for (place, is_apart) in [
            ("data", false),
            ("data/repository", false),
            ("linked/data/new/repository", false),
            ("wal/repository", false),
            ("space/repository", false),
            ("space/PG_15_202209061/repository", false),
            (".", false),
            ("repository", true),
            ("data2", true),
            ("linked", true),
        ] {
            let refused = require_apart(&repository(&at(place)), &at("data")).await;
            let kind = refused.as_ref().err().map(Error::kind);
            let expected = (!is_apart).then_some(Kind::Refused);
            assert_eq!(kind, expected, "{place}: {refused:?}");
            // Whose cluster it is, nobody needs to say.
            let refused = require_outside(&repository(&at(place))).await.is_err();
            assert_eq!(refused, !is_apart && place != ".", "{place}");
        }
        // A restore that has not finished clears its directory when it is taken up again.
        fs::write(at(MARKER), b"").unwrap();
        let refused = require_outside(&repository(&at("repository"))).await;
        assert_eq!(refused.unwrap_err().kind(), Kind::Refused);
        let memory = Repository::memory();
        require_apart(&memory, &at("data")).await.unwrap();
        require_outside(&memory).await.unwrap();
    }
}
