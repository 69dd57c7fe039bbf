//! Copies of database directories that recovery will repeat: each must find its source whole.
//!
//! The WAL of the backup names every copy and its source. A source that the same WAL makes is as good as that is; any other
//! must have come into the layer whole (`server/databases.rs`). What is not known counts as not whole.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;

use pgstrata_pgdata::wal_records::Meaning;
use pgstrata_pgdata::{
    ArchiveFile, DatabaseDirectory, Lsn, Major, RecordReader, TimelineId, WalRecord, WalSegment,
};
use pgstrata_store::archive::Archive;
use pgstrata_store::blocking::blocking;
use pgstrata_store::error::{Error, FileContext, Kind, Result};

use super::wal::ServerArchive;
use crate::server::databases::DatabasesSeen;

/// Bytes of a segment that are read at once.
const PIECE_BYTES: usize = 1 << 20;

/// What to do when one of them was not whole.
const AGAIN: &str = "start the backup again, when no ALTER DATABASE ... SET TABLESPACE or CREATE DATABASE ... STRATEGY = file_copy runs";

/// The WAL of a backup, which is in the archive.
pub(super) struct SecuredWal<'a> {
    pub(super) archive: &'a ServerArchive,
    pub(super) major: Major,
    pub(super) timeline: TimelineId,
    pub(super) range: Range<Lsn>,
}

impl SecuredWal<'_> {
    /// Requires that recovery finds whole whatever directory it copies.
    ///
    /// # Errors
    /// `Refused` when it would not, or when that cannot be known.
    pub(super) async fn require_whole_sources(&self, seen: &DatabasesSeen) -> Result<()> {
        if !seen.came {
            return Ok(());
        }
        match self.acts().await {
            Ok(acts) => judge(&acts, seen, self.major),
            // As on a host that cannot read what it has sealed.
            Err(error) if !seen.went && !seen.lost => {
                tracing::debug!("no directory of a database was removed, and {error}");
                Ok(())
            }
            Err(error) => Err(untold(seen, &error)),
        }
    }

    /// What the WAL says of databases, in order.
    async fn acts(&self) -> Result<Vec<Meaning>> {
        let ServerArchive {
            cluster,
            record,
            segment_size,
            wal_directory,
            ..
        } = self.archive;
        let held = Archive::new(cluster, record.clone())?;
        let size = *segment_size;
        let mut reading: Option<WalReading> = None;
        for segment in WalSegment::covering(self.timeline, self.range.clone(), size) {
            let next = match reading {
                None => WalReading {
                    reader: RecordReader::new(self.major, segment, size),
                    range: self.range.clone(),
                    is_done: false,
                    acts: Vec::new(),
                },
                Some(mut reading) => {
                    reading.reader.follow(segment)?;
                    reading
                }
            };
            // Nearer than the archive, and readable to whoever may not read what is sealed.
            let path = wal_directory.join(segment.file_name(size));
            let begun = next.clone();
            let read = match blocking(move || begun.of_file(&path)).await {
                Ok(read) => read,
                Err(_) => {
                    let file = ArchiveFile::Segment(segment);
                    held.walk(file, &next, WalReading::take).await?
                }
            };
            reading = Some(read);
        }
        Ok(reading.map(|reading| reading.acts).unwrap_or_default())
    }
}

/// WAL on its way through.
#[derive(Clone)]
struct WalReading {
    reader: RecordReader,
    range: Range<Lsn>,
    /// Behind the range there need not be anything.
    is_done: bool,
    acts: Vec<Meaning>,
}

impl WalReading {
    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let Self {
            reader,
            range,
            is_done,
            acts,
        } = self;
        if *is_done {
            return Ok(());
        }
        let note = |record: WalRecord| {
            *is_done |= record.end >= range.end;
            let is_act = matches!(
                record.meaning,
                Meaning::DatabaseMade { .. } | Meaning::DatabaseDropped(_)
            );
            if is_act && range.contains(&record.start) {
                acts.push(record.meaning);
            }
        };
        match reader.feed(bytes, note) {
            Err(error) if !*is_done => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Reads a whole segment out of a file.
    fn of_file(mut self, path: &Path) -> Result<Self> {
        let about = || format!("could not read \"{}\"", path.display());
        let mut file = File::open(path).context(about)?;
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match file.read(&mut piece).context(about)? {
                0 if self.is_done || self.reader.ends().is_some() => return Ok(self),
                0 => return Err(Error::new(Kind::File, about())),
                length => self.take(&piece[..length])?,
            }
        }
    }
}

fn judge(acts: &[Meaning], seen: &DatabasesSeen, major: Major) -> Result<()> {
    let mut made = BTreeSet::new();
    for (nth, act) in acts.iter().enumerate() {
        match act {
            Meaning::DatabaseMade { directory, copy_of } => {
                if let Some(source) = copy_of
                    && !made.contains(source)
                    && !(seen.whole.contains(source) && stays(source, &acts[nth..]))
                {
                    return Err(refuse(directory, source, major));
                }
                made.insert(*directory);
            }
            Meaning::DatabaseDropped(dropped) => dropped.iter().for_each(|directory| {
                made.remove(directory);
            }),
            _ => {}
        }
    }
    Ok(())
}

/// Whether it is not dropped by any of `acts`.
fn stays(directory: &DatabaseDirectory, acts: &[Meaning]) -> bool {
    let drops = |act: &Meaning| matches!(act, Meaning::DatabaseDropped(dropped) if dropped.contains(directory));
    !acts.iter().any(drops)
}

/// What the WAL would have to tell, which cannot be read.
fn untold(seen: &DatabasesSeen, error: &Error) -> Error {
    let other = match seen.went {
        true => "one was removed or moved",
        false => "one lost a file of which the new one has the like",
    };
    Error::new(
        Kind::Refused,
        format!(
            "a database was made and {other} while the backup ran, and the WAL that tells whether one is a copy of the other \
             cannot be read: {error}"
        ),
    )
    .hint(AGAIN)
}

fn refuse(directory: &DatabaseDirectory, source: &DatabaseDirectory, major: Major) -> Error {
    let (from, to) = (source.path(major), directory.path(major));
    let (database, copied) = (directory.database, source.database);
    let what = match database == copied {
        true => format!("database {database} was moved from \"{from}\" to \"{to}\""),
        false => format!(
            "database {database} was copied file by file, and database {copied}, of which it is a copy, did not stay as it was"
        ),
    };
    Error::new(
        Kind::Refused,
        format!(
            "{what} while it was being backed up: recovery would repeat that from a directory which this backup has not \
             seen whole, and leave the database empty, or without some of its files"
        ),
    )
    .hint(AGAIN)
}

#[cfg(test)]
mod tests {
    use pgstrata_pgdata::Oid;

    use super::*;

    fn directory(database: u32) -> DatabaseDirectory {
        DatabaseDirectory {
            tablespace: Oid::DEFAULT_TABLESPACE,
            database: Oid(database),
        }
    }

    fn copy(database: u32, source: u32) -> Meaning {
        Meaning::DatabaseMade {
            directory: directory(database),
            copy_of: Some(directory(source)),
        }
    }

    fn drop(database: u32) -> Meaning {
        Meaning::DatabaseDropped(vec![directory(database)])
    }

    fn judged(acts: &[Meaning], whole: &[u32]) -> Option<String> {
        let seen = DatabasesSeen {
            came: true,
            went: true,
            lost: false,
            whole: whole.iter().map(|number| directory(*number)).collect(),
        };
        let judged = judge(acts, &seen, Major::V15);
        judged.err().map(|error| error.to_string())
    }

    #[test]
    fn a_copy_of_what_the_backup_has_not_seen_whole_is_refused() {
        assert_eq!(judged(&[copy(8, 5)], &[5]), None);
        let refused = judged(&[copy(8, 5)], &[1, 8]).unwrap();
        assert!(
            refused.contains("database 8 was copied file by file"),
            "{refused}"
        );
        // Dropped behind the copy, whatever has its name then.
        assert!(judged(&[copy(8, 5), drop(5)], &[5]).is_some());
        assert!(judged(&[copy(8, 5), drop(5), copy(5, 8)], &[5]).is_some());
        assert!(judged(&[copy(8, 5), drop(7)], &[5, 7]).is_none());
    }

    #[test]
    fn what_the_wal_itself_makes_is_a_good_source() {
        let logged = Meaning::DatabaseMade {
            directory: directory(7),
            copy_of: None,
        };
        assert_eq!(judged(&[logged.clone(), copy(8, 7), drop(7)], &[]), None);
        assert_eq!(judged(&[copy(7, 1), copy(8, 7), drop(7)], &[1]), None);
        assert!(judged(&[logged, drop(7), copy(8, 7)], &[]).is_some());
        assert!(judged(&[copy(7, 1), copy(8, 7)], &[]).is_some());
    }
}
