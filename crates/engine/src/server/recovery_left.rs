//! What a primary still has of a recovery in its configuration files: how to reach a target, and which.
//!
//! The server shows what it started with. What the files have had since then is in `pg_file_settings`, which a superuser may
//! see, and in the files themselves, which the user that takes backups may read. The server names the settings that wait for a
//! restart, but not what to. What cannot be known is named.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pgstrata_store::blocking::blocking;
use pgstrata_store::error::Result;
use tokio_postgres::Row;

use super::Session;
use super::session::{get, rows_of};
use super::written::{WrittenLine, WrittenSettings};

/// What a server does at its target.
pub(crate) const TARGET_ACTION: &str = "recovery_target_action";

/// Which timeline a server follows.
pub(crate) const TARGET_TIMELINE: &str = "recovery_target_timeline";

/// Whether a parameter, in lower case, says where recovery stops.
pub(crate) fn names_target(parameter: &str) -> bool {
    let of_the_stop = [TARGET_ACTION, TARGET_TIMELINE, "recovery_target_inclusive"];
    parameter.starts_with("recovery_target") && !of_the_stop.contains(&parameter)
}

/// A setting of recovery that a configuration file makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecoverySetting {
    pub(crate) name: String,
    /// Its value; `None` when it differs from the usual one, and our role may not see it before a restart.
    pub(crate) value: Option<String>,
    /// The file; `None` when our role may not see that.
    pub(crate) file: Option<String>,
}

/// What is left of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecoveryLeft {
    pub(crate) settings: Vec<RecoverySetting>,
    /// Names of settings that were changed since the start of the server, nobody knows to what.
    pub(crate) unknown: Vec<String>,
}

/// A setting as the server shows it.
#[derive(Clone, Debug)]
struct ShownSetting {
    value: String,
    file: Option<String>,
    /// Whether a configuration file made it so.
    is_from_file: bool,
    /// Whether it has the value that it has without any configuration.
    is_usual: bool,
    /// Whether the files have another value.
    waits: bool,
}

/// What the files have.
#[derive(Clone, Debug, Default)]
struct InFiles {
    /// By name: the last value, which may be empty, and the file.
    last: BTreeMap<String, (String, String)>,
    /// Whether nothing of them is hidden from us.
    is_all: bool,
}

/// What a primary has left; nothing of a standby, which needs it. `data_directory` is the server's, when it is known.
///
/// # Errors
/// When the server does not answer.
pub(crate) async fn recovery_left(
    session: &Session,
    data_directory: Option<&Path>,
) -> Result<RecoveryLeft> {
    if session.facts().in_recovery {
        return Ok(RecoveryLeft::default());
    }
    let shown = session.shown_of_recovery().await?;
    let in_files = match (session.file_settings().await, data_directory) {
        (Ok(Some(told)), _) => told,
        (_, Some(data)) => read(session, data).await?,
        (_, None) => InFiles::default(),
    };
    Ok(left(&shown, &in_files))
}

/// What the server shows and what the files have, together. What was taken out of a file is there until the server has read it
/// again.
fn left(shown: &BTreeMap<String, ShownSetting>, in_files: &InFiles) -> RecoveryLeft {
    let mut left = RecoveryLeft::default();
    let names = shown.keys().chain(in_files.last.keys());
    for name in BTreeSet::from_iter(names) {
        let written = in_files.last.get(name).filter(|last| !last.0.is_empty());
        let (value, file) = match (written, shown.get(name)) {
            (Some((value, file)), _) => (Some(value.clone()), Some(file.clone())),
            (None, Some(shown)) if shown.waits && shown.is_usual => (None, None),
            (None, Some(shown)) if shown.waits && !in_files.is_all => {
                left.unknown.push(name.clone());
                continue;
            }
            (None, Some(shown)) if !shown.waits && shown.is_from_file => {
                (Some(shown.value.clone()), shown.file.clone())
            }
            _ => continue,
        };
        if value.as_deref() != Some("") {
            let name = name.clone();
            left.settings.push(RecoverySetting { name, value, file });
        }
    }
    left
}

/// Whether a setting, by its name in lower case, is about recovery.
fn is_asked(name: &str) -> bool {
    name.starts_with("recovery_target") || name == "restore_command"
}

/// What the files have, by reading them.
async fn read(session: &Session, data_directory: &Path) -> Result<InFiles> {
    let told = session.config_files().await?.config_file;
    let data = data_directory.to_owned();
    blocking(move || {
        let is_told = told.is_some();
        let config_file = told.map_or_else(|| data.join("postgresql.conf"), Into::into);
        let found = WrittenSettings::read(&config_file, &data, &is_asked);
        for (path, error) in &found.unread {
            let path = path.display();
            tracing::debug!("what \"{path}\" sets of recovery is not known: {error}");
        }
        let is_all = is_told && found.unread.is_empty();
        let line = |line: WrittenLine| {
            let value = line.value().unwrap_or_default();
            (line.name, (value, line.file.display().to_string()))
        };
        let last = found.lines.into_iter().map(line).collect();
        Ok(InFiles { last, is_all })
    })
    .await
}

impl Session {
    /// The settings that a configuration file makes, or that wait for a restart.
    async fn shown_of_recovery(&self) -> Result<BTreeMap<String, ShownSetting>> {
        let act = "could not ask for the settings of recovery";
        let query = "SELECT name, setting, sourcefile, source = 'configuration file',
                            setting IS NOT DISTINCT FROM boot_val, pending_restart
                       FROM pg_settings
                      WHERE (name LIKE 'recovery\\_target%' OR name = 'restore_command')
                        AND (source = 'configuration file' OR pending_restart)";
        let setting = |row: &Row| {
            let setting = ShownSetting {
                value: get(row, 1, act)?,
                file: get(row, 2, act)?,
                is_from_file: get(row, 3, act)?,
                is_usual: get(row, 4, act)?,
                waits: get(row, 5, act)?,
            };
            Ok((get(row, 0, act)?, setting))
        };
        let rows = rows_of(self.client(), act, query).await?;
        rows.iter().map(setting).collect()
    }

    /// What `pg_file_settings` has, applied or not; `None` when our role may not see it. The server does not judge names by
    /// capitals, and that view has them as they are spelt.
    async fn file_settings(&self) -> Result<Option<InFiles>> {
        let act = "could not ask what the configuration files set";
        let query = "SELECT has_table_privilege('pg_catalog.pg_file_settings', 'SELECT')
                        AND has_function_privilege('pg_catalog.pg_show_all_file_settings()', 'EXECUTE')";
        let rows = rows_of(self.client(), act, query).await?;
        let may_see = rows.first().map(|row| get(row, 0, act)).transpose()?;
        if may_see != Some(true) {
            return Ok(None);
        }
        // A line without a name is one behind which the server reads no more.
        let query =
            "SELECT lower(name COLLATE \"C\"), coalesce(setting, ''), coalesce(sourcefile, '')
                       FROM pg_catalog.pg_file_settings
                      WHERE name IS NULL OR lower(name COLLATE \"C\") LIKE 'recovery\\_target%'
                         OR lower(name COLLATE \"C\") = 'restore_command'
                      ORDER BY seqno";
        let mut found = InFiles {
            is_all: true,
            ..InFiles::default()
        };
        for row in rows_of(self.client(), act, query).await? {
            match get::<Option<String>>(&row, 0, act)? {
                Some(name) => {
                    let last = (get(&row, 1, act)?, get(&row, 2, act)?);
                    found.last.insert(name, last);
                }
                None => found.is_all = false,
            }
        }
        Ok(Some(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: &str = "recovery_target_time";

    fn shown(value: &str, waits: bool) -> ShownSetting {
        ShownSetting {
            value: value.to_owned(),
            file: Some("/data/postgresql.conf".to_owned()),
            is_from_file: true,
            is_usual: value.is_empty(),
            waits,
        }
    }

    /// What is found, and what is not known, of one setting.
    fn found(
        shown: Option<ShownSetting>,
        written: Option<&str>,
        is_all: bool,
    ) -> (Option<Option<String>>, bool) {
        let shown = shown.map(|shown| (TIME.to_owned(), shown));
        let last = written.map(|value| {
            let last = (value.to_owned(), "/data/a.conf".to_owned());
            (TIME.to_owned(), last)
        });
        let last = last.into_iter().collect();
        let mut left = left(&shown.into_iter().collect(), &InFiles { last, is_all });
        assert!(left.settings.iter().all(|one| one.name == TIME));
        let value = left.settings.pop().map(|one| one.value);
        (value, !left.unknown.is_empty())
    }

    #[test]
    fn a_target_counts_whether_the_server_has_taken_it_or_not() {
        let value = |value: &str| (Some(Some(value.to_owned())), false);
        let nothing = (None, false);
        for is_all in [true, false] {
            // Nobody has made the server read its files again.
            assert_eq!(found(None, Some("new"), is_all), value("new"));
            assert_eq!(found(Some(shown("old", false)), None, is_all), value("old"));
            // It has read them, and waits for a restart.
            let waits = found(Some(shown("", true)), Some("new"), is_all);
            assert_eq!(waits, value("new"));
            assert_eq!(
                found(Some(shown("", true)), None, is_all),
                (Some(None), false)
            );
            let waits = found(Some(shown("old", true)), Some("new"), is_all);
            assert_eq!(waits, value("new"));
            // An empty line behind it hides it.
            assert_eq!(found(None, Some(""), is_all), nothing);
            assert_eq!(found(Some(shown("", false)), Some(""), is_all), nothing);
            assert_eq!(found(None, None, is_all), nothing);
        }
        // It was taken out, or is another one.
        assert_eq!(found(Some(shown("old", true)), None, true), nothing);
        assert_eq!(found(Some(shown("old", true)), None, false), (None, true));
    }
}
