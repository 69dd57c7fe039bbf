//! Configuration files outside the data directory, where Debian's packages put them.
//!
//! The server says where its three files are. Which others they include is read in the files themselves: the server would
//! tell it to superusers alone, and of empty directories not at all. What cannot be read is named, and left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use pgstrata_layer::entry::EntryKind;
use pgstrata_layer::outside::{Role, TOP, entry_path, parse};
use pgstrata_pgdata::conf::{Mention, settings, tokens};
use pgstrata_store::blocking::blocking;
use pgstrata_store::error::Result;

use super::scan::{ScannedFile, identity};
use super::session::Session;

/// No configuration is larger; what is, is something else.
const LARGEST_BYTES: u64 = 16 << 20;

/// The server itself gives up at this depth (`CONF_FILE_MAX_DEPTH`).
pub(crate) const DEEPEST: u32 = 10;

/// What the server says of its configuration files; `None` when our role may not see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfigFiles {
    pub(crate) config_file: Option<String>,
    pub(crate) hba_file: Option<String>,
    pub(crate) ident_file: Option<String>,
}

/// What there is outside.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    pub(crate) files: Vec<ScannedFile>,
    pub(crate) warnings: Vec<String>,
}

/// Where the file of an entry is.
pub(crate) fn source_of(data_directory: &Path, path: &str) -> PathBuf {
    match parse(path) {
        Some((_, place)) => PathBuf::from(place),
        None => data_directory.join(path),
    }
}

/// `path` as seen from `directory`, without `.` and `..`, as the server makes it.
pub(crate) fn resolve(directory: &Path, path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in directory.join(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                resolved.pop();
            }
            part => resolved.push(part),
        }
    }
    resolved
}

/// Whether `include_dir` reads a file of that name.
pub(crate) fn is_read_in_directory(name: &str) -> bool {
    !name.starts_with('.') && name.len() > 5 && name.ends_with(".conf")
}

/// How a file names others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Syntax {
    /// `postgresql.conf`.
    Settings,
    /// `pg_hba.conf` and `pg_ident.conf`.
    Tokens,
}

impl Syntax {
    /// Of the file with that role.
    pub(crate) fn of(role: Role) -> Self {
        match role {
            Role::ConfigFile => Self::Settings,
            _ => Self::Tokens,
        }
    }

    /// The files that `text` names.
    fn mentions(self, text: &[u8]) -> Vec<(Mention, Vec<u8>)> {
        match self {
            Self::Settings => settings(text)
                .into_iter()
                .filter_map(|one| Some((Mention::of_word(&one.name)?, one.value)))
                .collect(),
            Self::Tokens => tokens(text)
                .into_iter()
                .map(|one| (one.mention, one.path))
                .collect(),
        }
    }
}

/// The configuration of the server outside its data directory.
pub(crate) async fn outside(session: &Session, data_directory: &Path) -> Result<Outside> {
    let named = session.config_files().await?;
    let (directory, role) = (data_directory.to_owned(), session.facts().role.clone());
    blocking(move || Ok(find(&directory, &named, &role))).await
}

fn find(data_directory: &Path, named: &ConfigFiles, role: &str) -> Outside {
    let data = fs::canonicalize(data_directory).unwrap_or_else(|_| data_directory.to_owned());
    let mut search = ConfigSearch {
        data,
        seen: BTreeSet::new(),
        stored: BTreeMap::new(),
        warnings: Vec::new(),
    };
    let named = [
        (Role::ConfigFile, &named.config_file),
        (Role::HbaFile, &named.hba_file),
        (Role::IdentFile, &named.ident_file),
    ];
    for (what, place) in named {
        let usual = what.usual_name().unwrap_or_default();
        let Some(place) = place else {
            if !search.data.join(usual).exists() {
                search.warn(format!(
                    "the server's {} is not in the data directory, and role \"{role}\" may not see where it is, so it is not in the backup: GRANT pg_read_all_settings TO \"{role}\"",
                    what.name()
                ));
            }
            continue;
        };
        let place = resolve(Path::new("/"), Path::new(place));
        let is_usual = search.is_inside(&place)
            && place.file_name().is_some_and(|name| name == usual)
            && place.parent().is_some_and(|above| search.is_data(above));
        let step = Step {
            syntax: Syntax::of(what),
            stored: !is_usual,
            depth: 0,
        };
        search.file(what, &place, step);
    }
    search.listed()
}

/// How a file was come to.
#[derive(Clone, Copy)]
struct Step {
    syntax: Syntax,
    /// Whether it is to be listed: it does not come with the data directory.
    stored: bool,
    depth: u32,
}

/// A walk from file to file.
struct ConfigSearch {
    data: PathBuf,
    /// With whether it was listed: what a listed file includes must be listed as well.
    seen: BTreeSet<(PathBuf, Syntax, bool)>,
    /// By the path of the entry.
    stored: BTreeMap<String, Metadata>,
    warnings: Vec<String>,
}

impl ConfigSearch {
    fn warn(&mut self, warning: String) {
        tracing::warn!("{warning}");
        self.warnings.push(warning);
    }

    fn is_data(&self, directory: &Path) -> bool {
        directory == self.data || fs::canonicalize(directory).is_ok_and(|found| found == self.data)
    }

    fn is_inside(&self, path: &Path) -> bool {
        let is_below = |path: &Path| path.starts_with(&self.data);
        is_below(path) || fs::canonicalize(path).is_ok_and(|found| is_below(&found)) || {
            let above = path.parent().and_then(|above| fs::canonicalize(above).ok());
            above.is_some_and(|above| is_below(&above))
        }
    }

    /// Lists the file, when it is to be stored, and looks into it.
    fn file(&mut self, role: Role, place: &Path, step: Step) {
        let text = match read(place) {
            Ok((metadata, text)) => {
                if step.stored && !self.store(role, place, metadata) {
                    return;
                }
                text
            }
            Err(error) => {
                return self.warn(format!(
                    "could not read \"{}\", which belongs to the server's configuration, so it is not in the backup: {error}",
                    place.display()
                ));
            }
        };
        let key = (place.to_owned(), step.syntax, step.stored);
        if step.depth >= DEEPEST || !self.seen.insert(key) {
            return;
        }
        for (mention, path) in step.syntax.mentions(&text) {
            let step = Step {
                depth: step.depth + 1,
                ..step
            };
            self.mention(place, mention, &path, step);
        }
    }

    fn mention(&mut self, by: &Path, mention: Mention, path: &[u8], step: Step) {
        let Ok(path) = str::from_utf8(path).map(Path::new) else {
            return self.warn(format!(
                "a file that \"{}\" includes is not in the backup: its name is not UTF-8",
                by.display()
            ));
        };
        let place = resolve(by.parent().unwrap_or(Path::new("/")), path);
        // What files of the data directory name by a relative path comes with them.
        let comes = !path.is_absolute() && !step.stored && self.is_inside(&place);
        let step = Step {
            stored: !comes,
            ..step
        };
        match mention {
            Mention::FileIfExists if !place.exists() => {}
            Mention::File | Mention::FileIfExists | Mention::List => {
                self.file(Role::Included, &place, step);
            }
            Mention::Directory => self.directory(&place, step),
        }
    }

    fn directory(&mut self, place: &Path, step: Step) {
        let listing = fs::metadata(place).and_then(|metadata| Ok((metadata, fs::read_dir(place)?)));
        let (metadata, entries) = match listing {
            Ok(found) => found,
            Err(error) => {
                return self.warn(format!(
                    "could not read the directory \"{}\", which the server's configuration includes, so its files are not in the backup: {error}",
                    place.display()
                ));
            }
        };
        if step.stored && !self.store(Role::Included, place, metadata) {
            return;
        }
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
        names.sort_unstable();
        for name in names.iter().filter(|name| is_read_in_directory(name)) {
            let file = place.join(name);
            if !file.is_dir() {
                self.file(Role::Included, &file, step);
            }
        }
    }

    /// Whether the path can be an entry's.
    fn store(&mut self, role: Role, place: &Path, metadata: Metadata) -> bool {
        let Some(text) = place.to_str() else {
            self.warn(format!(
                "{place:?} is not in the backup: its name is not UTF-8"
            ));
            return false;
        };
        self.stored.insert(entry_path(role, text), metadata);
        true
    }

    /// The files with all directories above them.
    fn listed(mut self) -> Outside {
        let mut files = BTreeMap::new();
        for (path, metadata) in std::mem::take(&mut self.stored) {
            for (end, _) in path.match_indices('/') {
                let above = &path[..end];
                let real = parse(above).map_or(self.data.clone(), |(_, place)| place.into());
                if let Ok(metadata) = fs::metadata(real) {
                    let entry = scanned(above.to_owned(), &metadata);
                    files.entry(above.to_owned()).or_insert(entry);
                }
            }
            let entry = scanned(path.clone(), &metadata);
            files.insert(path, entry);
        }
        Outside {
            files: files.into_values().collect(),
            warnings: self.warnings,
        }
    }
}

/// A file of configuration, and what is known of it.
pub(crate) fn read(place: &Path) -> io::Result<(Metadata, Vec<u8>)> {
    let metadata = fs::metadata(place)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    if metadata.len() > LARGEST_BYTES {
        let bytes = metadata.len();
        return Err(io::Error::other(format!("it has {bytes} bytes")));
    }
    Ok((metadata, fs::read(place)?))
}

fn scanned(path: String, metadata: &Metadata) -> ScannedFile {
    let is_directory = metadata.is_dir();
    ScannedFile {
        kind: match is_directory {
            true => EntryKind::Directory,
            false => EntryKind::Plain,
        },
        segment: None,
        mode: match path.as_str() {
            TOP => 0o700,
            _ => metadata.mode() & 0o7777,
        },
        modified: metadata.mtime(),
        size_bytes: if is_directory { 0 } else { metadata.len() },
        identity: if is_directory { 0 } else { identity(metadata) },
        place: (metadata.dev(), metadata.ino()),
        is_linked: true,
        path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(found: &Outside, etc: &Path) -> Vec<String> {
        let etc = etc.display().to_string();
        let files = found.files.iter();
        let files = files.filter(|file| file.path.contains(&etc));
        files.map(|file| file.path.replace(&etc, "/E")).collect()
    }

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn what_is_included_is_found_from_file_to_file() {
        let scratch = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(scratch.path()).unwrap();
        let (data, etc) = (root.join("data"), root.join("etc"));
        write(&data.join("postgresql.conf"), "# stale");
        write(&data.join("own.conf"), "include 'deeper/own.conf'");
        write(&data.join("deeper/own.conf"), "");
        let conf = format!(
            "include_dir 'conf.d'\ninclude_dir = 'empty.d'\ninclude_if_exists 'gone'\ninclude '../common/all.conf'\n\
             include 'missing.conf'\ninclude '{}'\ninclude 'postgresql.conf'",
            data.join("own.conf").display()
        );
        write(&etc.join("main/postgresql.conf"), &conf);
        write(&etc.join("main/conf.d/a.conf"), "x = 1");
        write(&etc.join("main/conf.d/.hidden.conf"), "x = 1");
        write(&etc.join("main/conf.d/b.conf.bak"), "x = 1");
        fs::create_dir(etc.join("main/empty.d")).unwrap();
        write(&etc.join("common/all.conf"), "");
        write(&etc.join("main/pg_hba.conf"), "local all @admins peer\n");
        write(&etc.join("main/admins"), "carol");
        write(&data.join("pg_ident.conf"), "");
        let text = |path: PathBuf| Some(path.display().to_string());
        let named = ConfigFiles {
            config_file: text(etc.join("main/postgresql.conf")),
            hba_file: text(etc.join("main/pg_hba.conf")),
            ident_file: text(data.join("pg_ident.conf")),
        };
        let found = find(&data, &named, "backup");
        let top = "pgstrata.config";
        assert_eq!(
            paths(&found, &etc),
            [
                format!("{top}/config_file/E"),
                format!("{top}/config_file/E/main"),
                format!("{top}/config_file/E/main/postgresql.conf"),
                format!("{top}/hba_file/E"),
                format!("{top}/hba_file/E/main"),
                format!("{top}/hba_file/E/main/pg_hba.conf"),
                format!("{top}/included/E"),
                format!("{top}/included/E/common"),
                format!("{top}/included/E/common/all.conf"),
                format!("{top}/included/E/main"),
                format!("{top}/included/E/main/admins"),
                format!("{top}/included/E/main/conf.d"),
                format!("{top}/included/E/main/conf.d/a.conf"),
                format!("{top}/included/E/main/empty.d"),
                format!("{top}/included/E/main/postgresql.conf"),
            ]
        );
        for name in ["own.conf", "deeper/own.conf"] {
            let own = format!("{top}/included{}", data.join(name).display());
            assert!(found.files.iter().any(|file| file.path == own), "{found:?}");
        }
        assert!(found.files.is_sorted_by(|a, b| a.path < b.path));
        assert_eq!(found.warnings.len(), 1, "{:?}", found.warnings);
        assert!(found.warnings[0].contains("missing.conf"));
    }

    #[test]
    fn a_cluster_with_its_configuration_inside_has_none_outside() {
        let scratch = tempfile::tempdir().unwrap();
        let data = fs::canonicalize(scratch.path()).unwrap();
        for name in ["postgresql.conf", "pg_hba.conf", "pg_ident.conf"] {
            write(&data.join(name), "include_if_exists 'more.conf'\n");
        }
        write(&data.join("more.conf"), "");
        let place = |name: &str| Some(data.join(name).display().to_string());
        let named = ConfigFiles {
            config_file: place("postgresql.conf"),
            hba_file: place("pg_hba.conf"),
            ident_file: None,
        };
        let found = find(&data, &named, "backup");
        assert!(found.files.is_empty(), "{:?}", found.files);
        assert!(found.warnings.is_empty(), "{:?}", found.warnings);
        let elsewhere = ConfigFiles::default();
        fs::remove_file(data.join("pg_hba.conf")).unwrap();
        let found = find(&data, &elsewhere, "backup");
        assert_eq!(found.warnings.len(), 1, "{:?}", found.warnings);
        assert!(found.warnings[0].contains("GRANT pg_read_all_settings"));
    }
}
