//! Who waits for the exit code, and what it must be then.
//!
//! PostgreSQL takes every code from 1 to 125 of `restore_command` for the end of the archive, and opens the server. It takes
//! 0 of `archive_command` for "archived", and removes the file. Both commands are typed by people. So who runs this program
//! is looked for in the arguments before they are understood: a misspelt option, or a word too many, must not lose rows.

use std::ffi::{OsStr, OsString};

use pgstrata_store::error::Kind;

use crate::exit;

/// Names under which recovery asks, in arguments as `%p`.
const RECOVERED: [&str; 2] = ["RECOVERYXLOG", "RECOVERYHISTORY"];

/// Who runs this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// `restore_command`.
    Recovery,
    /// `archive_command`.
    Archiver,
    /// Somebody who reads what it prints.
    Person,
}

impl Caller {
    /// The caller, by `arguments`, the first of which is the program.
    pub(crate) fn of(arguments: &[OsString]) -> Self {
        let words = || arguments.iter().skip(1);
        let pushes = words().any(|word| word == "archive-push" || word == "wal-push");
        let asked = words().any(|word| RECOVERED.iter().any(|name| file_name(word) == *name));
        // %f is a name, %p of archive_command a path.
        let named = words().any(|word| is_wal(word));
        let pathed = words().any(|word| is_wal(file_name(word)));
        if asked || named && !pushes || pathed && gets(arguments) {
            Self::Recovery
        } else if pathed {
            Self::Archiver
        } else {
            // Without a file, for who wants to know.
            Self::Person
        }
    }

    /// The exit code of a failure; `gets` when it is `archive-get`'s own.
    pub(crate) fn failure(self, kind: Kind, gets: bool) -> u8 {
        match kind {
            Kind::NotFound if gets => exit::NOT_IN_ARCHIVE,
            _ if gets || self == Self::Recovery => exit::STOP_RECOVERY,
            kind => exit::code(kind),
        }
    }

    /// The exit code of a success with `code`; `serves` when it is of the command that the caller is meant to run.
    pub(crate) fn success(self, code: u8, serves: bool) -> u8 {
        match self {
            Self::Recovery if !serves => exit::STOP_RECOVERY,
            Self::Archiver if !serves && code == 0 => exit::USAGE,
            _ => code,
        }
    }

    /// The exit code of arguments that are not understood; `gets` when `archive-get` is among them.
    pub(crate) fn usage(self, code: u8, gets: bool) -> u8 {
        match self {
            Self::Recovery => exit::STOP_RECOVERY,
            // Its help was asked for.
            _ if gets && code != 0 => exit::STOP_RECOVERY,
            _ => self.success(code, false),
        }
    }

    /// The exit code of a mistake of ours; `gets` as for [`Caller::usage`].
    pub(crate) fn panic(self, gets: bool) -> u8 {
        match self {
            Self::Recovery => exit::STOP_RECOVERY,
            _ if gets => exit::STOP_RECOVERY,
            _ => exit::PANIC,
        }
    }
}

/// Whether `archive-get` is among the words.
pub(crate) fn gets(arguments: &[OsString]) -> bool {
    let mut words = arguments.iter().skip(1);
    words.any(|word| word == "archive-get" || word == "wal-fetch")
}

/// The last component of a path.
fn file_name(word: &OsStr) -> &OsStr {
    std::path::Path::new(word).file_name().unwrap_or_default()
}

/// Whether `name` is that of a file that PostgreSQL archives, for any size of segments.
fn is_wal(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    let hexadecimal = |count: usize| {
        let digits = bytes.get(..count)?;
        let fits = |b: &u8| b.is_ascii_digit() || (b'A'..=b'F').contains(b);
        digits.iter().all(fits).then(|| &bytes[count..])
    };
    let segment = hexadecimal(24)
        .is_some_and(|rest| rest.is_empty() || rest == b".partial" || rest.ends_with(b".backup"));
    segment || hexadecimal(8) == Some(b".history")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(line: &str) -> Caller {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        Caller::of(&words)
    }

    #[test]
    fn the_caller_is_known_however_the_command_is_misspelt() {
        for line in [
            "pgstrata archive-get 000000010000000000000001 pg_wal/RECOVERYXLOG",
            "pgstrata --repo x wal-fetch 00000002.history pg_wal/RECOVERYHISTORY",
            "pgstrata archvie-get 000000010000000000000001 pg_wal/RECOVERYXLOG",
            "pgstrata --help archive-get 000000010000000000000001 x",
            "pgstrata 000000010000000000000001",
            "pgstrata archive-push pg_wal/RECOVERYXLOG",
            "pgstrata archive-get pg_wal/000000010000000000000001 x",
        ] {
            assert_eq!(caller(line), Caller::Recovery, "{line}");
        }
        for line in [
            "pgstrata archive-push pg_wal/000000010000000000000001",
            "pgstrata archive-push --help pg_wal/000000010000000000000001.partial",
            "pgstrata archivepush pg_wal/00000002.history",
            "pgstrata archive-push 000000010000000000000001",
        ] {
            assert_eq!(caller(line), Caller::Archiver, "{line}");
        }
        for line in [
            "pgstrata",
            "pgstrata archive-get --help",
            "pgstrata info 20261121-093305F",
            "pgstrata man archive-push",
        ] {
            assert_eq!(caller(line), Caller::Person, "{line}");
        }
    }

    #[test]
    fn recovery_is_told_1_only_for_the_end_of_the_archive() {
        let recovery = Caller::Recovery;
        assert_eq!(recovery.failure(Kind::NotFound, true), 1);
        assert_eq!(Caller::Person.failure(Kind::NotFound, true), 1);
        for kind in [
            Kind::Repository,
            Kind::Damaged,
            Kind::Usage,
            Kind::File,
            Kind::Refused,
            Kind::Interrupted,
            Kind::WalMissing,
        ] {
            assert_eq!(recovery.failure(kind, true), 255);
            assert_eq!(recovery.failure(kind, false), 255);
            assert_eq!(Caller::Person.failure(kind, true), 255);
        }
        assert_eq!(recovery.failure(Kind::NotFound, false), 255);
        assert_eq!(recovery.success(0, true), 0);
        assert_eq!(recovery.success(0, false), 255);
        assert_eq!(recovery.usage(2, true), 255);
        assert_eq!(recovery.usage(0, true), 255);
        assert_eq!(Caller::Person.usage(2, true), 255);
        assert_eq!(Caller::Person.usage(0, true), 0);
        assert_eq!(recovery.panic(false), 255);
        assert_eq!(Caller::Person.panic(true), 255);
    }

    #[test]
    fn the_archiver_is_never_told_0_for_nothing() {
        let archiver = Caller::Archiver;
        assert_eq!(archiver.success(0, true), 0);
        assert_eq!(archiver.usage(0, false), 2);
        assert_eq!(archiver.failure(Kind::NotFound, false), 10);
        assert_eq!(archiver.panic(false), 101);
    }
}
