//! Configuration from outside the data directory: under which paths a layer lists it.
//!
//! The entries are ordinary plain files and directories below [`TOP`]. Their paths say what each is for, and where
//! it was: `pgstrata.config/config_file/etc/postgresql/15/main/postgresql.conf`. A reader that knows nothing of them
//! restores them as files there, where no server looks.

/// The directory in the data directory below which the entries are.
pub const TOP: &str = "pgstrata.config";

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The server's `config_file`.
    ConfigFile,
    /// Its `hba_file`.
    HbaFile,
    /// Its `ident_file`.
    IdentFile,
    /// Another one of these files names it.
    Included,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::ConfigFile,
        Self::HbaFile,
        Self::IdentFile,
        Self::Included,
    ];

    /// Its directory below [`TOP`]; of the first three the setting that names the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ConfigFile => "config_file",
            Self::HbaFile => "hba_file",
            Self::IdentFile => "ident_file",
            Self::Included => "included",
        }
    }

    /// What the file is called where the server looks when no setting names it.
    #[must_use]
    pub const fn usual_name(self) -> Option<&'static str> {
        match self {
            Self::ConfigFile => Some("postgresql.conf"),
            Self::HbaFile => Some("pg_hba.conf"),
            Self::IdentFile => Some("pg_ident.conf"),
            Self::Included => None,
        }
    }
}

/// The path of the entry for what was at `place`, an absolute path without `.` and `..`.
#[must_use]
pub fn entry_path(role: Role, place: &str) -> String {
    format!("{TOP}/{}{place}", role.name())
}

/// What an entry is for, and where it was; `None` for any other entry, the directories above included.
#[must_use]
pub fn parse(path: &str) -> Option<(Role, &str)> {
    let below = path.strip_prefix(TOP)?.strip_prefix('/')?;
    let role = |role: &Role| Some((*role, below.strip_prefix(role.name())?));
    let (role, place) = Role::ALL.iter().find_map(role)?;
    (place.starts_with('/') && place.len() > 1).then_some((role, place))
}

/// Whether the entry is [`TOP`] or below it.
#[must_use]
pub fn is_outside(path: &str) -> bool {
    path.strip_prefix(TOP)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_as_the_format_has_them() {
        let golden = [
            (
                Role::ConfigFile,
                "pgstrata.config/config_file/etc/postgresql/15/main/postgresql.conf",
            ),
            (
                Role::HbaFile,
                "pgstrata.config/hba_file/srv/hba/pg_hba.conf",
            ),
            (Role::IdentFile, "pgstrata.config/ident_file/x"),
            (
                Role::Included,
                "pgstrata.config/included/etc/postgresql-common/site.conf",
            ),
        ];
        for (role, path) in golden {
            let (found, place) = parse(path).unwrap();
            assert_eq!(found, role);
            assert_eq!(entry_path(role, place), path);
            assert!(is_outside(path));
        }
        for path in [
            "pgstrata.config",
            "pgstrata.config/hba_file",
            "pgstrata.config/hba_file/",
            "pgstrata.config/hba_files/x",
            "pgstrata.configs/hba_file/x",
            "postgresql.conf",
        ] {
            assert_eq!(parse(path), None, "{path}");
        }
        assert!(is_outside(TOP));
        assert!(!is_outside("pgstrata.configs"));
    }
}
