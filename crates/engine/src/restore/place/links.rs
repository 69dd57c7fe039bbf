//! Links of a data directory that is changed in place: which are its own.
//!
//! A copy of a data directory has copies of the links in it, and they lead to the tablespaces of the original. What a
//! restore in place does there it does to the original, so a link is followed only when the lineage file says that this
//! very directory had this very link when it was backed up or restored, or when somebody vouches for it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pgstrata_layer::manifest::Tablespace;
use pgstrata_store::error::{Error, FileContext, Kind, Result};

use super::layout::{TablespaceMapping, marker_of_parts, resolve};
use crate::restore::{RestoreOptions, Vouched};
use crate::server::lineage;

/// The links of a data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Links {
    /// Whether the directory is known to be the one that was backed up or restored, and no copy.
    pub(crate) directory_known: bool,
    /// Links, relative to the data directory, that lead where they led then, with the directories that were looked at.
    own: BTreeMap<String, PathBuf>,
    /// Why others are not known.
    why: String,
}

/// Where a link of the data directory leads, as an absolute path; `None` when it is not there or not a link, or leads to nothing
/// that could be a directory.
pub(crate) fn link_target(link: &Path) -> Option<PathBuf> {
    followed(link).ok()
}

/// The same, or why it cannot be followed.
fn followed(link: &Path) -> Result<PathBuf> {
    let about = || format!("could not read \"{}\"", link.display());
    let target = fs::read_link(link).context(about)?;
    // As the server follows it, over `..` and other links.
    match fs::canonicalize(link) {
        Ok(real) if real.is_dir() => Ok(real),
        // What is not there may be a disk that is lost.
        _ => resolve(&link.parent().unwrap_or(Path::new("/")).join(target)),
    }
}

impl Links {
    /// Looks at the links of `data`.
    pub(crate) fn of(data: &Path, vouched: Vouched) -> Result<Self> {
        let links = all_links(data)?;
        let mut found = Self::known(data, &links)?;
        if vouched.links_are_own {
            found.own.extend(leading(data, &links));
        }
        Ok(found)
    }

    fn known(data: &Path, links: &[String]) -> Result<Self> {
        let unknown = |why: String| Self {
            why,
            ..Self::default()
        };
        if !data.exists() {
            return Ok(Self::default());
        }
        let here = lineage::located(data)?;
        // An earlier attempt has looked before it took the lineage file away.
        if let Some(marker) = marker_of_parts(data)?
            && let Some(found) = marker.in_place
            && found.directory.as_ref() == Some(&here)
        {
            let mut own = leading(data, links);
            own.retain(|link, to| {
                marker.directories.contains(to) || found.own_links.get(link) == Some(to)
            });
            return Ok(Self {
                directory_known: found.directory_known,
                own,
                why: "the restore that was interrupted did not know it".to_owned(),
            });
        }
        let lineage = match lineage::read(data) {
            Ok(Some(lineage)) => lineage,
            Ok(None) => {
                return Ok(unknown(
                    "no backup or restore has left its lineage file in it".to_owned(),
                ));
            }
            Err(error) => return Ok(unknown(error.to_string())),
        };
        let was = &lineage.place.directory;
        if was.path.is_none() || *was != here {
            let of = was.path.as_deref().unwrap_or("another directory");
            return Ok(unknown(format!(
                "it is a copy: its lineage file is that of \"{of}\""
            )));
        }
        let mut own = leading(data, links);
        own.retain(|link, to| {
            let now = lineage::located(to).ok();
            let mut then = lineage.place.links.iter();
            then.any(|then| then.link == *link && now.as_ref() == Some(&then.leads_to))
        });
        Ok(Self {
            directory_known: true,
            own,
            why: "no backup has found it so".to_owned(),
        })
    }

    /// Whether `link`, relative to the data directory, is known to lead to a directory of this cluster alone.
    pub(crate) fn is_own(&self, link: &str) -> bool {
        self.own.contains_key(link)
    }

    /// Where such a link led when it was looked at: it may have been put elsewhere since.
    pub(crate) fn led_to(&self, link: &str) -> Option<&Path> {
        self.own.get(link).map(PathBuf::as_path)
    }

    /// Every directory to which a link leads that is known to be this cluster's alone.
    pub(crate) fn own_directories(&self) -> impl Iterator<Item = &Path> {
        self.own.values().map(PathBuf::as_path)
    }

    /// Where such links of tablespaces lead.
    pub(crate) fn of_tablespaces(&self) -> impl Iterator<Item = &Path> {
        let own = self.own.iter();
        let own = own.filter(|(link, _)| link.starts_with("pg_tblspc/"));
        own.map(|(_, to)| to.as_path())
    }

    /// Those that a marker can name.
    pub(crate) fn lasting(&self) -> BTreeMap<String, PathBuf> {
        let mut lasting = self.own.clone();
        lasting.retain(|_, to| to.to_str().is_some());
        lasting
    }

    /// Options as they are for this data directory: tablespaces and WAL stay where its own links lead, unless told
    /// otherwise.
    pub(crate) fn follow(
        &self,
        options: &mut RestoreOptions,
        tablespaces: &[Tablespace],
    ) -> Result<()> {
        for link in all_links(&options.directory)? {
            let oid = link.strip_prefix("pg_tblspc/");
            let told = match oid {
                None => options.wal_directory.is_some(),
                Some(oid) => options
                    .tablespaces
                    .iter()
                    .any(|mapping| names(mapping, oid, tablespaces)),
            };
            if told {
                continue;
            }
            let to = followed(&options.directory.join(&link))
                .map_err(|error| unfollowed(&options.directory, &link, &error))?;
            if !self.is_own(&link) {
                return Err(self.refusal(&options.directory, &link, &to));
            }
            match oid {
                None => options.wal_directory = Some(to),
                Some(oid) if tablespaces.iter().any(|one| one.oid.to_string() == oid) => {
                    let from = oid.to_owned();
                    options.tablespaces.push(TablespaceMapping { from, to });
                }
                // Made since; the link goes, and what the tablespace holds.
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn refusal(&self, data: &Path, link: &str, to: &Path) -> Error {
        let elsewhere = elsewhere(link);
        Error::new(
            Kind::Refused,
            format!(
                "the link \"{link}\" of \"{}\" leads to \"{}\", and it is not known whether that is this directory's \
                 alone or its original's, too: {}",
                data.display(),
                to.display(),
                self.why
            ),
        )
        .hint(format!(
            "Give it an empty directory with {elsewhere}; or remove the link, if this is a copy and the layer has no such \
             tablespace; or, if no other cluster uses what the links lead to, say so with --links-are-own."
        ))
    }
}

/// How another directory is given in the place of that to which the link leads.
fn elsewhere(link: &str) -> String {
    match link.strip_prefix("pg_tblspc/") {
        Some(oid) => format!("--tablespace-map={oid}=DIRECTORY"),
        None => "--wal-dir=DIRECTORY".to_owned(),
    }
}

/// A directory in the place of the link would lie on another disk, and what the link led to would be forgotten.
fn unfollowed(data: &Path, link: &str, error: &Error) -> Error {
    let what = format!(
        "the link \"{link}\" of \"{}\" cannot be followed: {error}",
        data.display()
    );
    Error::new(Kind::Refused, what).hint(format!(
        "Let it lead to a directory, or give the restore one with {}; or remove the link.",
        elsewhere(link)
    ))
}

/// Those of `links` that lead anywhere, and where.
fn leading(data: &Path, links: &[String]) -> BTreeMap<String, PathBuf> {
    let target = |link: &String| Some((link.clone(), link_target(&data.join(link))?));
    links.iter().filter_map(target).collect()
}

/// Whether `mapping` is about the tablespace `oid`.
fn names(mapping: &TablespaceMapping, oid: &str, tablespaces: &[Tablespace]) -> bool {
    let location = tablespaces
        .iter()
        .find(|tablespace| tablespace.oid.to_string() == oid)
        .and_then(|tablespace| tablespace.location.as_deref());
    mapping.from == oid
        || location.is_some_and(|location| {
            let from = Path::new(&mapping.from).components();
            from.eq(Path::new(location).components())
        })
}

/// Links that lead out of the data directory and that PostgreSQL follows: `pg_wal`, and those below `pg_tblspc`.
pub(super) fn all_links(data: &Path) -> Result<Vec<String>> {
    let mut links = Vec::new();
    if data.join("pg_wal").is_symlink() {
        links.push("pg_wal".to_owned());
    }
    let spaces = data.join("pg_tblspc");
    let about = || format!("could not read the directory \"{}\"", spaces.display());
    let entries = match fs::read_dir(&spaces) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(links),
        entries => entries.context(about)?,
    };
    for entry in entries {
        let entry = entry.context(about)?;
        if entry.path().is_symlink() {
            links.push(format!("pg_tblspc/{}", entry.file_name().display()));
        }
    }
    links.sort_unstable();
    Ok(links)
}
