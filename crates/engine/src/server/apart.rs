//! A repository lies apart from the directories of the cluster that it keeps.
//!
//! Within the data directory or a tablespace it would back itself up and be lost together with the cluster, and a
//! restore onto that directory would remove the objects that it reads from. The other way round the files of a server
//! would lie between objects.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pgstrata_store::blocking::blocking;
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use pgstrata_store::repository::Repository;

use super::control::CONTROL_PATH;
use super::scan::tablespaces;

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

/// Refuses a repository in a directory within any cluster, known by its control file: the backups of that cluster would take
/// it for theirs, and a restore would remove it.
///
/// # Errors
/// `Refused` then.
pub(crate) async fn require_outside(repository: &Repository) -> Result<()> {
    let Some(root) = repository.directory().map(Path::to_owned) else {
        return Ok(());
    };
    blocking(move || {
        let place = real(&root);
        let mut above = place.ancestors();
        let is_cluster = |path: &&Path| path.join(CONTROL_PATH).is_file();
        match above.find(is_cluster) {
            None => Ok(()),
            Some(cluster) => Err(refusal(&root, "lies in", cluster)),
        }
    })
    .await
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
        return Err(refusal(root, where_it_is, directory));
    }
    Ok(())
}

fn refusal(root: &Path, where_it_is: &str, directory: &Path) -> Error {
    Error::new(
        Kind::Refused,
        format!(
            "the repository's directory \"{}\" {where_it_is} \"{}\", a directory of the cluster",
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
            "wal",
            "space/PG_15",
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
            let within = ["data", "data/repository", "linked/data/new/repository"];
            assert_eq!(refused, within.contains(&place), "{place}");
        }
        let memory = Repository::memory();
        require_apart(&memory, &at("data")).await.unwrap();
        require_outside(&memory).await.unwrap();
    }
}
