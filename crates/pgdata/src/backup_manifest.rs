//! Writes PostgreSQL's `backup_manifest`, which `pg_verifybackup` checks a restored directory against.
//!
//! Text goes out as it is made, so that a manifest of ten million files needs no more memory than one of ten. Version 2
//! (PostgreSQL 17 and later) adds the system identifier.

use std::fmt::{self, Write};

use sha2::{Digest, Sha256};

use crate::{FileChecksum, Lsn, Major, TimelineId};

/// One file, as the manifest lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestFile<'a> {
    /// Path relative to the data directory; names that are not UTF-8 are written in hexadecimal.
    pub path: &'a [u8],
    /// Its last modification, in seconds of Unix time.
    pub modified: i64,
    /// CRC32C and size of its contents.
    pub checksum: FileChecksum,
}

/// WAL that a backup needs to become consistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalRange {
    /// The timeline.
    pub timeline: TimelineId,
    /// First position needed.
    pub start: Lsn,
    /// First position not needed.
    pub end: Lsn,
}

/// A manifest being written. Every call appends to a sink of the caller's; only the running SHA-256 is kept.
#[derive(Clone)]
pub struct BackupManifestWriter {
    hash: Sha256,
    files_written: bool,
}

impl BackupManifestWriter {
    /// Writes the beginning.
    ///
    /// # Errors
    ///
    /// When the sink fails.
    pub fn begin(
        major: Major,
        system_identifier: u64,
        sink: &mut impl Write,
    ) -> Result<Self, fmt::Error> {
        let mut writer = Self {
            hash: Sha256::new(),
            files_written: false,
        };
        let head = if major >= Major::V17 {
            format!(
                "{{ \"PostgreSQL-Backup-Manifest-Version\": 2,\n\"System-Identifier\": {system_identifier},\n\"Files\": ["
            )
        } else {
            "{ \"PostgreSQL-Backup-Manifest-Version\": 1,\n\"Files\": [".to_owned()
        };
        writer.emit(&head, sink)?;
        Ok(writer)
    }

    /// Writes one file.
    ///
    /// # Errors
    ///
    /// When the sink fails.
    pub fn file(&mut self, file: &ManifestFile<'_>, sink: &mut impl Write) -> fmt::Result {
        let mut text = String::with_capacity(200);
        text.push_str(if self.files_written { ",\n{ " } else { "\n{ " });
        self.files_written = true;
        match std::str::from_utf8(file.path) {
            Ok(path) => {
                text.push_str("\"Path\": ");
                push_json_string(&mut text, path)?;
            }
            Err(_) => {
                text.push_str("\"Encoded-Path\": \"");
                for byte in file.path {
                    write!(text, "{byte:02x}")?;
                }
                text.push('"');
            }
        }
        write!(
            text,
            ", \"Size\": {}, \"Last-Modified\": \"",
            file.checksum.size_bytes()
        )?;
        push_time(&mut text, file.modified)?;
        write!(
            text,
            "\", \"Checksum-Algorithm\": \"CRC32C\", \"Checksum\": \"{}\" }}",
            file.checksum.to_manifest_hex()
        )?;
        self.emit(&text, sink)
    }

    /// Writes the end: the WAL needed, newest timeline first as the server has it, and the checksum of all before it.
    ///
    /// # Errors
    ///
    /// When the sink fails.
    pub fn finish(mut self, wal_ranges: &[WalRange], sink: &mut impl Write) -> fmt::Result {
        let mut text = String::from("\n],\n\"WAL-Ranges\": [");
        for (index, range) in wal_ranges.iter().enumerate() {
            text.push_str(if index == 0 { "\n" } else { ",\n" });
            write!(
                text,
                "{{ \"Timeline\": {}, \"Start-LSN\": \"{}\", \"End-LSN\": \"{}\" }}",
                range.timeline, range.start, range.end
            )?;
        }
        text.push_str("\n],\n");
        self.emit(&text, sink)?;
        let mut last_line = String::from("\"Manifest-Checksum\": \"");
        for byte in self.hash.finalize() {
            write!(last_line, "{byte:02x}")?;
        }
        last_line.push_str("\"}\n");
        sink.write_str(&last_line)
    }

    fn emit(&mut self, text: &str, sink: &mut impl Write) -> fmt::Result {
        self.hash.update(text.as_bytes());
        sink.write_str(text)
    }
}

/// As the server's `escape_json()`.
fn push_json_string(text: &mut String, value: &str) -> fmt::Result {
    text.push('"');
    for character in value.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\0'..='\u{1f}' => write!(text, "\\u{:04x}", u32::from(character))?,
            _ => text.push(character),
        }
    }
    text.push('"');
    Ok(())
}

/// `2026-11-21 09:33:05 GMT`.
fn push_time(text: &mut String, unix_seconds: i64) -> fmt::Result {
    let (year, month, day) = civil_date(unix_seconds.div_euclid(86_400));
    let second = unix_seconds.rem_euclid(86_400);
    write!(
        text,
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} GMT",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
///
/// Years are counted from March, so that the leap day is the last of its year and months have a regular length.
fn civil_date(days_since_1970: i64) -> (i64, i64, i64) {
    /// Days of 400 years, after which the calendar repeats.
    const ERA: i64 = 146_097;
    let days = days_since_1970 + 719_468;
    let day_of_era = days.rem_euclid(ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + days.div_euclid(ERA) * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(unix_seconds: i64) -> String {
        let mut text = String::new();
        push_time(&mut text, unix_seconds).unwrap();
        text
    }

    #[test]
    fn times_are_in_gmt() {
        assert_eq!(time(0), "1970-01-01 00:00:00 GMT");
        assert_eq!(time(-1), "1969-12-31 23:59:59 GMT");
        assert_eq!(time(951_782_400), "2000-02-29 00:00:00 GMT");
        assert_eq!(time(4_107_542_399), "2100-02-28 23:59:59 GMT");
        assert_eq!(time(4_107_542_400), "2100-03-01 00:00:00 GMT");
        assert_eq!(time(1_795_339_985), "2026-11-22 09:33:05 GMT");
    }

    #[test]
    fn times_beyond_all_calendars_do_not_overflow() {
        assert!(time(i64::MAX).ends_with("GMT"));
        assert!(time(i64::MIN).ends_with("GMT"));
    }
}
