//! Damaged objects of the archive, and what stands in for them.
//!
//! Nothing is ever overwritten, and whoever pushes need not have the right to delete. A file whose object turns out
//! damaged is therefore stored once more under a key of its own, and readers that find the object damaged read that.
//! An object that is not damaged is never looked past, so a second key says nothing that the first one contradicts.

use bytes::Bytes;
use pgstrata_layer::keys::ClusterName;
use pgstrata_pgdata::{ArchiveFile, TimelineId};

use super::sealed::ObjectReader;
use super::{Archive, timeline_of};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};

/// What does not compress is stored as it is, with some bytes for each frame.
const MOST_MORE: u64 = 1 << 20;

/// Sealing adds 28 bytes to each 16 KiB, a part of 1/585.
const SEALED_PART: u64 = 256;

/// More than this many damaged copies of one file are a store that cannot hold it.
pub(super) const MOST_MENDED: u32 = 16;

/// Whether `error` says that an object is not what was written.
pub(super) fn is_damage(error: &Error) -> bool {
    // A flipped bit in the version makes an object of no version we know.
    matches!(error.kind(), Kind::Damaged | Kind::Unsupported)
}

/// Where the object of one file is, and what stands in for it.
pub(super) struct Places<'a> {
    cluster: &'a ClusterRepository,
    timeline: TimelineId,
    file_name: &'a str,
}

impl Places<'_> {
    /// The key of the object, for 0, or of the `number`th that stands in for it.
    pub(super) fn key(&self, number: u32) -> String {
        let timeline = self.timeline.hex8();
        match number {
            0 => self.cluster.name.wal_key(&timeline, self.file_name),
            _ => {
                let name = &self.cluster.name;
                name.mended_wal_key(&timeline, self.file_name, number)
            }
        }
    }

    /// What `read` makes of the object; when that is damaged, of the first one that stands in for it and is not.
    pub(super) async fn first_good<T>(
        &self,
        mut read: impl AsyncFnMut(String) -> Result<T>,
    ) -> Result<T> {
        let mut first = read(self.key(0)).await;
        if let Err(error) = &first
            && self.cluster.knows_more(error).await?
        {
            first = read(self.key(0)).await;
        }
        match first {
            Err(error) if is_damage(&error) => self.stand_in(error, read).await,
            other => other,
        }
    }

    /// What `read` makes of the first object that stands in for that of the file and is good; `lost`, which says what is the
    /// matter with that one, when there is none.
    async fn stand_in<T>(
        &self,
        lost: Error,
        mut read: impl AsyncFnMut(String) -> Result<T>,
    ) -> Result<T> {
        for number in 1..=MOST_MENDED {
            match read(self.key(number)).await {
                Ok(good) => {
                    let key = self.key(number);
                    tracing::info!(%lost, "reading \"{key}\" instead");
                    return Ok(good);
                }
                Err(error) if error.kind() == Kind::NotFound => break,
                Err(error) if is_damage(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(lost)
    }
}

impl Archive {
    /// What `read` makes of the object of `file`, or of what stands in for it.
    pub(super) async fn first_good<T>(
        &self,
        file: ArchiveFile,
        read: impl AsyncFnMut(String) -> Result<T>,
    ) -> Result<T> {
        let file_name = file.file_name(self.segment_size);
        self.places(file, &file_name).first_good(read).await
    }

    /// The same; also when the object is missing. What was stored once more was archived, and recovery must not end before it.
    pub(super) async fn first_there<T>(
        &self,
        file: ArchiveFile,
        mut read: impl AsyncFnMut(String) -> Result<T>,
    ) -> Result<T> {
        let file_name = file.file_name(self.segment_size);
        let places = self.places(file, &file_name);
        match places.first_good(&mut read).await {
            Err(error) if error.kind() == Kind::NotFound => places.stand_in(error, read).await,
            other => other,
        }
    }

    fn places<'a>(&'a self, file: ArchiveFile, file_name: &'a str) -> Places<'a> {
        Places {
            cluster: &self.cluster,
            timeline: timeline_of(file),
            file_name,
        }
    }

    /// The files of that timeline for which something stands in.
    pub(super) async fn mended_files(&self, timeline: TimelineId) -> Result<Vec<String>> {
        let name = &self.cluster.name;
        let prefix = format!("{}/{}", name.mended_wal_prefix(), timeline.hex8());
        let names = self.cluster.repository.list_names(&prefix).await?;
        let files = names.iter().map(|name| ClusterName::mended_file(name));
        Ok(files.map(str::to_owned).collect())
    }

    /// The key of the object of `file`, for 0, or of the `number`th that stands in for it.
    #[must_use]
    pub fn place(&self, file: ArchiveFile, number: u32) -> String {
        let file_name = file.file_name(self.segment_size);
        self.places(file, &file_name).key(number)
    }

    /// The object of a segment is never longer.
    pub(super) fn most_bytes(&self) -> u64 {
        let segment = self.segment_size.get();
        segment + segment / SEALED_PART + MOST_MORE
    }

    /// The whole object `key` of `file`. Whoever may create objects may put gigabytes there.
    ///
    /// # Errors
    /// As for [`crate::repository::Repository::get`]; `Damaged` when it is longer than that of the file can be.
    pub async fn object(&self, file: ArchiveFile, key: &str) -> Result<Bytes> {
        let repository = &self.cluster.repository;
        match file {
            ArchiveFile::Segment(_) | ArchiveFile::Partial(_) => {
                let most = self.most_bytes();
                repository.get_at_most(key, most, "a segment").await
            }
            _ => repository.get_record(key).await,
        }
    }

    /// The contents of a small archived file; when its object is damaged, of what stands in for it.
    ///
    /// # Errors
    /// `NotFound` when it has no object; `Damaged` and `Unsupported` when it has no good one; `Repository`.
    pub async fn contents(&self, file: ArchiveFile) -> Result<Vec<u8>> {
        let name = file.file_name(self.segment_size);
        let read = async |key: String| {
            let object = self.object(file, &key).await?;
            let doing = |e: Error| e.while_doing(format!("could not read \"{key}\""));
            let mut raw = Vec::new();
            let mut reader = ObjectReader::new(self.sealing().await?, &name, true);
            reader
                .feed(&object, |piece| raw.extend_from_slice(piece))
                .map_err(doing)?;
            self.check_header(file, &reader.finish().map_err(doing)?)?;
            Ok(raw)
        };
        self.first_good(file, read).await
    }
}
