//! What the configuration in a data directory sets, as its server reads it: `postgresql.conf` with all that it includes, then
//! `postgresql.auto.conf`. Of several lines about one setting the last one counts.
//!
//! A file that cannot be read sets nothing here; the log names it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use pgstrata_pgdata::conf::{self, Mention};

use crate::restore::settings::{APPLY_DELAY, KeptLine, STANDBY_SETTINGS, lines, setting_name};
use crate::server::outside::{DEEPEST, is_read_in_directory, read, resolve};

/// The lines that a standby keeps of its configuration when it is refreshed.
pub(crate) fn kept_settings(data: &Path) -> Vec<KeptLine> {
    let last = |name: &&str| lines_about(name, data, data).pop();
    let kept = STANDBY_SETTINGS.iter().filter_map(last);
    kept.map(|line| KeptLine::new(&line)).collect()
}

/// Whether the last line about a setting makes it something else than nothing.
pub(crate) fn is_set(name: &str, config: &Path, data: &Path) -> bool {
    let last = lines_about(name, config, data).pop();
    last.is_some_and(|line| !conf::settings(&line).is_empty())
}

/// Whether any line has a standby wait before it replays.
pub(crate) fn has_delay(config: &Path, data: &Path) -> bool {
    let lines = lines_about(APPLY_DELAY, config, data);
    let mut settings = lines.iter().flat_map(|line| conf::settings(line));
    settings.any(|setting| setting.value != b"0")
}

/// All lines about the setting, in the order in which a server reads them whose `postgresql.conf` is in `config`.
fn lines_about(name: &str, config: &Path, data: &Path) -> Vec<Vec<u8>> {
    let mut found = ConfigLines {
        name,
        lines: Vec::new(),
    };
    found.read(&config.join("postgresql.conf"), 0);
    found.read(&data.join("postgresql.auto.conf"), 0);
    found.lines
}

/// Lines about one setting.
struct ConfigLines<'a> {
    name: &'a str,
    lines: Vec<Vec<u8>>,
}

impl ConfigLines<'_> {
    fn read(&mut self, file: &Path, depth: u32) {
        let text = match read(file) {
            Ok((_, text)) => text,
            Err(error) => return unread(file, &error),
        };
        for line in lines(&text) {
            let Some(name) = setting_name(line) else {
                continue;
            };
            if name == self.name {
                self.lines.push(line.to_vec());
            } else if let Some(mention) = Mention::of_word(&name)
                && depth < DEEPEST
                && let Some(named) = conf::settings(line).pop()
            {
                for file in files_of(file, mention, &named.value) {
                    self.read(&file, depth + 1);
                }
            }
        }
    }
}

/// The files that an include of the file `by` means, in the server's order.
fn files_of(by: &Path, mention: Mention, named: &[u8]) -> Vec<PathBuf> {
    let above = by.parent().unwrap_or(Path::new("/"));
    let path = resolve(above, Path::new(OsStr::from_bytes(named)));
    if mention != Mention::Directory {
        return vec![path];
    }
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) => {
            unread(&path, &error);
            return Vec::new();
        }
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    let is_read = |name: &OsStr| is_read_in_directory(&name.to_string_lossy());
    let files = names.filter(|name| is_read(name));
    let mut files: Vec<PathBuf> = files.map(|name| path.join(name)).collect();
    files.sort_unstable();
    files
}

fn unread(path: &Path, error: &io::Error) {
    if error.kind() != io::ErrorKind::NotFound {
        let path = path.display();
        tracing::warn!("could not read \"{path}\": what it sets of a standby is not kept: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts_wherever_it_stands() {
        let data = tempfile::tempdir().unwrap();
        let data = data.path();
        let put = |file: &str, text: &str| fs::write(data.join(file), text).unwrap();
        let kept = || -> Vec<String> {
            let kept = kept_settings(data).into_iter();
            kept.map(|line| String::from_utf8(line.as_bytes().to_vec()).unwrap())
                .collect()
        };
        assert_eq!(kept(), [""; 0]);
        fs::create_dir(data.join("conf.d")).unwrap();
        put(
            "postgresql.conf",
            "primary_slot_name = 'main'\ninclude_dir 'conf.d'\ninclude_if_exists = 'none.conf'\n",
        );
        assert_eq!(kept(), ["primary_slot_name = 'main'"]);
        put("conf.d/2.conf", "Primary_conninfo = 'host=two' # why\n");
        put("conf.d/1.conf", "primary_conninfo = 'host=one'\n");
        put("conf.d/3.conf.old", "primary_conninfo = 'host=three'\n");
        // A circle, which no server starts with.
        put(
            "conf.d/4.conf",
            "include '4.conf'\n# primary_conninfo = 'x'\n",
        );
        let of_both = [
            "Primary_conninfo = 'host=two' # why",
            "primary_slot_name = 'main'",
        ];
        assert_eq!(kept(), of_both);
        assert!(is_set("primary_slot_name", data, data));
        put("postgresql.auto.conf", "primary_slot_name = ''\n");
        assert_eq!(kept()[1], "primary_slot_name = ''");
        assert!(!is_set("primary_slot_name", data, data));
        assert_eq!(lines_about("primary_conninfo", data, data).len(), 2);

        put("conf.d/5.conf", "recovery_min_apply_delay = 0\n");
        assert!(!has_delay(data, data));
        // It is hidden now, and shows when an earlier recovery's line is taken out.
        put("conf.d/5.conf", "recovery_min_apply_delay = '2h'\n");
        put("postgresql.auto.conf", "recovery_min_apply_delay = '0'\n");
        assert!(has_delay(data, data));
    }
}
