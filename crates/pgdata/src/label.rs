//! `backup_label` and `tablespace_map`, as `pg_backup_stop()` returns them.
//!
//! Both are stored and restored byte for byte; what is parsed here is for checking and planning. Only a remapped
//! tablespace makes us write a map of our own.

use crate::bytes::name_word;
use crate::{Error, Lsn, Oid, Result, TimelineId};

/// Where the backup came from, as its label says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupFrom {
    /// A primary.
    Primary,
    /// A standby.
    Standby,
}

/// What makes a label one of PostgreSQL's own incremental backups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncrementalFrom {
    /// Start of the backup it builds on.
    pub lsn: Lsn,
    /// The timeline of that position.
    pub timeline: TimelineId,
}

/// The fields of `backup_label`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupLabel {
    /// Where recovery begins.
    pub start_lsn: Lsn,
    /// Name of the WAL segment of that position.
    pub start_wal_file: String,
    /// Where the record of the checkpoint is.
    pub checkpoint_lsn: Lsn,
    /// `streamed`.
    pub backup_method: String,
    /// The kind of server.
    pub backup_from: BackupFrom,
    /// When the backup began: text in the server's `log_timezone`.
    pub start_time: String,
    /// What the caller of `pg_backup_start()` called it. May hold any character, line ends too.
    pub label: String,
    /// The timeline of `start_lsn`.
    pub start_timeline: TimelineId,
    /// Set on an increment of PostgreSQL's own, which no server starts from.
    pub incremental_from: Option<IncrementalFrom>,
}

impl BackupLabel {
    /// Reads the text of a `backup_label`.
    ///
    /// # Errors
    ///
    /// When a field is missing, out of order or not what the server writes.
    pub fn parse(text: &str) -> Result<Self> {
        let mut rest = text;
        let (start_lsn, start_wal_file) = start_location(&mut rest)?;
        let checkpoint_lsn = checkpoint_location(&mut rest)?;
        let backup_method = field(&mut rest, "BACKUP METHOD")?.to_owned();
        let backup_from = match field(&mut rest, "BACKUP FROM")? {
            "primary" => BackupFrom::Primary,
            "standby" => BackupFrom::Standby,
            other => return Err(invalid("BACKUP FROM", other)),
        };
        let start_time = field(&mut rest, "START TIME")?.to_owned();
        let label = label_text(&mut rest)?.to_owned();
        let start_timeline = number("START TIMELINE", field(&mut rest, "START TIMELINE")?)?;
        let incremental_from = incremental_from(&mut rest)?;
        if !rest.is_empty() {
            return Err(Error::malformed(format!(
                "invalid backup_label: unexpected {rest:?} at its end"
            )));
        }
        Ok(Self {
            start_lsn,
            start_wal_file: start_wal_file.to_owned(),
            checkpoint_lsn,
            backup_method,
            backup_from,
            start_time,
            label,
            start_timeline,
            incremental_from,
        })
    }
}

/// Where recovery of a data directory begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryStart {
    /// The first record that it may replay.
    pub redo_lsn: Lsn,
    /// Where the record of its checkpoint is.
    pub checkpoint_lsn: Lsn,
    /// The timeline of both.
    pub timeline: TimelineId,
}

impl RecoveryStart {
    /// Reads the lines of a `backup_label` without which no server starts (`read_backup_label`,
    /// src/backend/access/transam/xlogrecovery.c). Of the others `pg_rewind` writes only some, and the text that a caller chose
    /// may be in any encoding.
    ///
    /// # Errors
    ///
    /// When they are missing, or not what the server writes.
    pub fn of_label(contents: &[u8]) -> Result<Self> {
        let text = String::from_utf8_lossy(contents);
        let mut rest = &*text;
        let (redo_lsn, wal_file) = start_location(&mut rest)?;
        let checkpoint_lsn = checkpoint_location(&mut rest)?;
        let timeline = wal_file.get(..8).and_then(name_word);
        let timeline = timeline.filter(|&number| number > 0);
        Ok(Self {
            redo_lsn,
            checkpoint_lsn,
            timeline: timeline
                .map(TimelineId::new)
                .ok_or_else(|| invalid("START WAL LOCATION", wal_file))?,
        })
    }
}

/// Takes the first line off the front: a position, and the name of the segment that holds it.
fn start_location<'a>(rest: &mut &'a str) -> Result<(Lsn, &'a str)> {
    let start = field(rest, "START WAL LOCATION")?;
    let (lsn, wal_file) = start
        .strip_suffix(')')
        .and_then(|start| start.split_once(" (file "))
        .ok_or_else(|| invalid("START WAL LOCATION", start))?;
    Ok((number("START WAL LOCATION", lsn)?, wal_file))
}

/// Takes the second line off the front.
fn checkpoint_location(rest: &mut &str) -> Result<Lsn> {
    number("CHECKPOINT LOCATION", field(rest, "CHECKPOINT LOCATION")?)
}

fn incremental_from(rest: &mut &str) -> Result<Option<IncrementalFrom>> {
    if rest.is_empty() {
        return Ok(None);
    }
    let lsn = number("INCREMENTAL FROM LSN", field(rest, "INCREMENTAL FROM LSN")?)?;
    let timeline = number("INCREMENTAL FROM TLI", field(rest, "INCREMENTAL FROM TLI")?)?;
    Ok(Some(IncrementalFrom { lsn, timeline }))
}

/// Takes one `NAME: value` line off the front.
fn field<'a>(rest: &mut &'a str, name: &str) -> Result<&'a str> {
    let missing = || {
        Error::malformed(format!(
            "invalid backup_label: expected {name:?}, found {rest:?}"
        ))
    };
    let after = rest
        .strip_prefix(name)
        .and_then(|after| after.strip_prefix(": "))
        .ok_or_else(missing)?;
    let (value, next) = after.split_once('\n').ok_or_else(missing)?;
    *rest = next;
    Ok(value)
}

/// Takes the label off the front. The caller chose its text, so it ends where the *last* line that can follow it begins.
fn label_text<'a>(rest: &mut &'a str) -> Result<&'a str> {
    let after = rest.strip_prefix("LABEL: ").ok_or_else(|| {
        Error::malformed(format!(
            "invalid backup_label: expected \"LABEL\", found {rest:?}"
        ))
    })?;
    let end = after
        .rfind("\nSTART TIMELINE: ")
        .ok_or_else(|| Error::malformed("invalid backup_label: \"START TIMELINE\" is missing"))?;
    let (label, next) = after.split_at(end);
    *rest = &next[1..];
    Ok(label)
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| invalid(name, text))
}

fn invalid(name: &str, value: &str) -> Error {
    Error::malformed(format!("invalid backup_label: {name} is {value:?}"))
}

/// One tablespace and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablespaceLocation {
    /// The tablespace: the name of its link in `pg_tblspc`.
    pub oid: Oid,
    /// The absolute path of its directory.
    pub path: String,
}

/// The contents of `tablespace_map`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TablespaceMap {
    /// The tablespaces, in the order of the file.
    pub locations: Vec<TablespaceLocation>,
}

impl TablespaceMap {
    /// Reads the text of a `tablespace_map`; empty text is a map of no tablespaces.
    ///
    /// # Errors
    ///
    /// When a line is not a tablespace's OID and a path, or the last is not ended.
    pub fn parse(text: &str) -> Result<Self> {
        let mut locations = Vec::new();
        let mut line = String::new();
        let mut escaped = false;
        for character in text.chars() {
            match character {
                '\n' | '\r' if !escaped => {
                    if !line.is_empty() {
                        locations.push(parse_location(&line)?);
                        line.clear();
                    }
                }
                '\\' if !escaped => escaped = true,
                _ => {
                    line.push(character);
                    escaped = false;
                }
            }
        }
        if escaped || !line.is_empty() {
            return Err(Error::malformed(format!(
                "invalid tablespace_map: line {line:?} has no end"
            )));
        }
        Ok(Self { locations })
    }

    /// The text the server writes, and reads at the start of recovery.
    #[must_use]
    pub fn format(&self) -> String {
        let mut text = String::new();
        for location in &self.locations {
            text.push_str(&location.oid.to_string());
            text.push(' ');
            for character in location.path.chars() {
                if matches!(character, '\n' | '\r' | '\\') {
                    text.push('\\');
                }
                text.push(character);
            }
            text.push('\n');
        }
        text
    }

    /// Moves to `to` the tablespace that `from` names, by OID or by its present path. Tells whether there was one.
    #[must_use]
    pub fn remap(&mut self, from: &str, to: &str) -> bool {
        let found = self
            .locations
            .iter_mut()
            .find(|location| location.path == from || location.oid.to_string() == from);
        match found {
            Some(location) => {
                to.clone_into(&mut location.path);
                true
            }
            None => false,
        }
    }
}

fn parse_location(line: &str) -> Result<TablespaceLocation> {
    let invalid = || {
        Error::malformed(format!(
            "invalid tablespace_map: line {line:?} is not an OID and a path"
        ))
    };
    let (oid, path) = line.split_once(' ').ok_or_else(invalid)?;
    let oid = crate::bytes::oid_name(oid.as_bytes()).ok_or_else(invalid)?;
    if path.is_empty() {
        return Err(invalid());
    }
    Ok(TablespaceLocation {
        oid: Oid(oid),
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: &str = "START WAL LOCATION: 0/A00028 (file 00000001000000000000000A)\n\
        CHECKPOINT LOCATION: 0/A00060\nBACKUP METHOD: streamed\nBACKUP FROM: standby\n\
        START TIME: 2026-11-21 12:02:29 UTC\nLABEL: nightly\nSTART TIMELINE: 3\n";

    #[test]
    fn incremental_labels_are_recognised() {
        let text = format!("{LABEL}INCREMENTAL FROM LSN: 0/900028\nINCREMENTAL FROM TLI: 2\n");
        let label = BackupLabel::parse(&text).unwrap();
        let lsn = Lsn::new(0x90_0028);
        assert_eq!(
            label.incremental_from,
            Some(IncrementalFrom {
                lsn,
                timeline: TimelineId::new(2)
            })
        );
        assert_eq!(label.backup_from, BackupFrom::Standby);
    }

    #[test]
    fn rule_2_an_edited_label_is_refused() {
        assert!(BackupLabel::parse(LABEL).is_ok());
        for (what, text) in [
            ("empty", String::new()),
            ("line ends of another system", LABEL.replace('\n', "\r\n")),
            ("no last line end", LABEL.trim_end().to_owned()),
            ("a line more", format!("{LABEL}\n")),
            ("without timeline", LABEL.replace("START TIMELINE: 3\n", "")),
            (
                "without checkpoint",
                LABEL.replace("CHECKPOINT LOCATION: 0/A00060\n", ""),
            ),
            (
                "half an increment",
                format!("{LABEL}INCREMENTAL FROM LSN: 0/900028\n"),
            ),
            ("timeline 0", LABEL.replace("TIMELINE: 3", "TIMELINE: 0")),
            ("unknown origin", LABEL.replace("standby", "nowhere")),
        ] {
            assert!(BackupLabel::parse(&text).is_err(), "{what} was read");
        }
    }

    #[test]
    fn of_a_label_that_others_wrote_the_server_needs_two_lines() {
        let start = RecoveryStart {
            redo_lsn: Lsn::new(0xA0_0028),
            checkpoint_lsn: Lsn::new(0xA0_0060),
            timeline: TimelineId::new(1),
        };
        let read = |label: &[u8]| RecoveryStart::of_label(label);
        assert_eq!(read(LABEL.as_bytes()), Ok(start));
        // As `createBackupLabel` of pg_rewind has it.
        let (rewound, _) = LABEL.split_once("LABEL: ").unwrap();
        assert!(BackupLabel::parse(rewound).is_err());
        assert_eq!(read(rewound.as_bytes()), Ok(start));
        let (before, behind) = LABEL.split_once("nightly").unwrap();
        let latin1 = [before.as_bytes(), b"n\xE4chtlich", behind.as_bytes()].concat();
        assert_eq!(read(&latin1), Ok(start));
        for wrong in [
            String::new(),
            LABEL.replace("file 00000001", "file 00000000"),
            LABEL.replace("file 00000001", "file 0000000x"),
            LABEL.replace("CHECKPOINT LOCATION: 0/A00060\n", ""),
            LABEL.replace('\n', "\r\n"),
        ] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong} was read");
        }
    }

    #[test]
    fn a_remapped_tablespace_goes_where_it_is_told() {
        let mut map = TablespaceMap::parse("16400 /a\\\\b\n16401 /c d\n").unwrap();
        assert_eq!(map.locations[0].path, "/a\\b");
        assert!(map.remap("16401", "/new\\place\n"));
        assert!(map.remap("/a\\b", "/e"));
        assert!(!map.remap("/nowhere", "/f"));
        assert_eq!(map.format(), "16400 /e\n16401 /new\\\\place\\\n\n");
        assert_eq!(TablespaceMap::parse(&map.format()).unwrap(), map);
    }

    #[test]
    fn damaged_tablespace_maps_are_refused() {
        assert_eq!(TablespaceMap::parse("").unwrap().locations, []);
        for text in [
            "16400",
            "16400 /a",
            "16400 /a\\",
            "16400 /a\\\n",
            "16400\n",
            "16400 \n",
            "x /a\n",
            "0 /a\n",
            " /a\n",
            "-1 /a\n",
        ] {
            assert!(TablespaceMap::parse(text).is_err(), "{text:?} was read");
        }
    }
}
