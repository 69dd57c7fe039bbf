//! What configuration files set, as their server reads them: `postgresql.conf` with all that it includes, then
//! `postgresql.auto.conf`. Of several lines about one setting the last one counts, however its name is spelt.
//!
//! A file that cannot be read sets nothing here; it is named.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use pgstrata_pgdata::conf::{self, Mention};

use super::outside::{DEEPEST, is_read_in_directory, read, resolve};

/// A line of a configuration file that sets something, if only to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrittenLine {
    /// What it sets, in lower case.
    pub(crate) name: String,
    pub(crate) line: Vec<u8>,
    pub(crate) file: PathBuf,
}

impl WrittenLine {
    /// What it is set to; nothing where that is empty.
    pub(crate) fn value(&self) -> Option<String> {
        let setting = conf::settings(&self.line).pop()?;
        Some(String::from_utf8_lossy(&setting.value).into_owned())
    }
}

/// The lines about some settings, in the server's order.
#[derive(Debug, Default)]
pub(crate) struct WrittenSettings {
    pub(crate) lines: Vec<WrittenLine>,
    /// Files and directories that could not be read, though the server needs them.
    pub(crate) unread: Vec<(PathBuf, io::Error)>,
}

impl WrittenSettings {
    /// Reads the lines about the settings that are asked for, by names in lower case.
    pub(crate) fn read(config_file: &Path, data: &Path, is_asked: &dyn Fn(&str) -> bool) -> Self {
        let mut found = Self::default();
        found.file(config_file, is_asked, 0);
        let auto_conf = data.join("postgresql.auto.conf");
        if is_there(&auto_conf) {
            found.file(&auto_conf, is_asked, 0);
        }
        found
    }

    fn file(&mut self, file: &Path, is_asked: &dyn Fn(&str) -> bool, depth: u32) {
        let text = match read(file) {
            Ok((_, text)) => text,
            Err(error) => return self.unread.push((file.to_owned(), error)),
        };
        for line in text.split(|&byte| byte == b'\n') {
            let Some(name) = conf::spelling(line).map(|name| name.to_ascii_lowercase()) else {
                continue;
            };
            if is_asked(&name) {
                self.lines.push(WrittenLine {
                    name,
                    line: line.to_vec(),
                    file: file.to_owned(),
                });
            } else if let Some(mention) = Mention::of_word(&name)
                && depth < DEEPEST
                && let Some(named) = conf::settings(line).pop()
            {
                for file in self.named(file, mention, &named.value) {
                    self.file(&file, is_asked, depth + 1);
                }
            }
        }
    }

    /// The files that an include of the file `by` means, in the server's order.
    fn named(&mut self, by: &Path, mention: Mention, named: &[u8]) -> Vec<PathBuf> {
        let above = by.parent().unwrap_or(Path::new("/"));
        let path = resolve(above, Path::new(OsStr::from_bytes(named)));
        match mention {
            Mention::FileIfExists if !is_there(&path) => Vec::new(),
            Mention::Directory => self.directory(path),
            _ => vec![path],
        }
    }

    fn directory(&mut self, path: PathBuf) -> Vec<PathBuf> {
        let entries = match fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
            Ok(entries) => entries,
            Err(error) => {
                self.unread.push((path, error));
                return Vec::new();
            }
        };
        let names = entries.into_iter().map(|entry| entry.file_name());
        let is_read = |name: &OsStr| is_read_in_directory(&name.to_string_lossy());
        let files = names.filter(|name| is_read(name));
        let files = files.map(|name| path.join(name));
        // The server passes over directories, too.
        let mut files: Vec<PathBuf> = files.filter(|file| !file.is_dir()).collect();
        files.sort_unstable();
        files
    }
}

/// What cannot be looked at may be there.
fn is_there(path: &Path) -> bool {
    !matches!(fs::metadata(path), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_the_servers_order_and_what_is_missing_is_named() {
        let data = tempfile::tempdir().unwrap();
        let data = data.path();
        let put = |file: &str, text: &str| fs::write(data.join(file), text).unwrap();
        fs::create_dir_all(data.join("conf.d/none.conf")).unwrap();
        put(
            "main.conf",
            "Asked = 1\nother = 2\nINCLUDE_DIR = 'conf.d'\ninclude_if_exists 'gone'\n",
        );
        put("conf.d/b.conf", "ASKED 'b'\n");
        put("conf.d/a.conf", "asked=a\r\ninclude '../more'");
        put("more", "asked = ''");
        let config_file = data.join("main.conf");
        let read = || WrittenSettings::read(&config_file, data, &|name| name == "asked");
        let found = read();
        let values: Vec<_> = found.lines.iter().map(WrittenLine::value).collect();
        let some = |value: &str| Some(value.to_owned());
        assert_eq!(values, [some("1"), some("a"), None, some("b")]);
        assert!(found.unread.is_empty(), "{:?}", found.unread);

        put("postgresql.auto.conf", "Asked = 'auto'\n");
        fs::remove_file(data.join("more")).unwrap();
        let found = read();
        assert_eq!(found.lines.last().unwrap().value(), some("auto"));
        assert_eq!(found.unread.len(), 1);
        assert_eq!(found.unread[0].0, data.join("more"));
    }
}
