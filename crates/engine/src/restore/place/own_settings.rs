//! What the configuration in a data directory sets, as its server reads it.
//!
//! A file that cannot be read sets nothing here; the log names it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use pgstrata_pgdata::conf;

use crate::restore::settings::{APPLY_DELAY, KeptLine, STANDBY_SETTINGS};
use crate::server::recovery_left::names_target;
use crate::server::written::{WrittenLine, WrittenSettings};

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

/// What the configuration says of archiving, by the names of the settings.
pub(crate) fn archiving(config: &Path, data: &Path) -> BTreeMap<String, Option<String>> {
    const NAMES: [&str; 3] = ["archive_mode", "archive_command", "archive_library"];
    let lines = written(config, data, |name| NAMES.contains(&name));
    // Of several lines the last one counts.
    let last = lines.iter().map(|line| (line.name.clone(), line.value()));
    last.collect()
}

/// How the configuration spells parameters that name a target, where that is not in lower case.
pub(crate) fn spellings_of_targets(config: &Path, data: &Path) -> BTreeSet<String> {
    let lines = written(config, data, names_target);
    let spellings = lines.iter().filter_map(|one| conf::spelling(&one.line));
    spellings.filter(|name| !names_target(name)).collect()
}

/// All lines about the setting, in the order in which a server reads them whose `postgresql.conf` is in `config`.
fn lines_about(name: &str, config: &Path, data: &Path) -> Vec<Vec<u8>> {
    let lines = written(config, data, |other| other == name).into_iter();
    lines.map(|one| one.line).collect()
}

fn written(config: &Path, data: &Path, is_asked: impl Fn(&str) -> bool) -> Vec<WrittenLine> {
    let config_file = config.join("postgresql.conf");
    let found = WrittenSettings::read(&config_file, data, &is_asked);
    for (path, error) in found.unread {
        if error.kind() != io::ErrorKind::NotFound {
            let path = path.display();
            tracing::warn!(
                "could not read \"{path}\": what it sets of a standby is not kept: {error}"
            );
        }
    }
    found.lines
}

#[cfg(test)]
mod tests {
    use std::fs;

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

    #[test]
    fn of_archiving_the_last_line_counts() {
        let data = tempfile::tempdir().unwrap();
        let data = data.path();
        let put = |file: &str, text: &str| fs::write(data.join(file), text).unwrap();
        put(
            "postgresql.conf",
            "archive_mode = on\nArchive_Command = 'one'\nport = 1\n",
        );
        put("postgresql.auto.conf", "archive_command = 'two'\n");
        let expected = [("archive_command", "two"), ("archive_mode", "on")];
        let expected = expected.map(|(name, value)| (name.to_owned(), Some(value.to_owned())));
        assert_eq!(archiving(data, data), BTreeMap::from(expected));
    }

    #[test]
    fn names_of_targets_in_capitals_are_found_in_all_files() {
        let data = tempfile::tempdir().unwrap();
        let data = data.path();
        let put = |file: &str, text: &str| fs::write(data.join(file), text).unwrap();
        put(
            "postgresql.conf",
            "recovery_target_time = 'x'\nRecovery_Target_Action = 'pause'\nInclude 'a.conf'\n# RECOVERY_TARGET = 'x'\n",
        );
        assert!(spellings_of_targets(data, data).is_empty());
        put("a.conf", "Recovery_Target_Time = 'x'\nRECOVERY_TARGET''\n");
        let found = spellings_of_targets(data, data);
        assert!(found.iter().eq(["RECOVERY_TARGET", "Recovery_Target_Time"]));
    }
}
