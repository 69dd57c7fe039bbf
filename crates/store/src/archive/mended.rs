//! Damaged objects of the archive, and what stands in for them.
//!
//! Nothing is ever overwritten, and whoever pushes need not have the right to delete. A file whose object turns out
//! damaged is therefore stored once more under a key of its own, and readers that find the object damaged read that.
//! An object that is not damaged is never looked past, so a second key says nothing that the first one contradicts.
//! When the damaged object is lost later, the file was archived all the same: it is listed, and read, as what stands in.

use bytes::Bytes;
use pgstrata_layer::keys::ClusterName;
use pgstrata_pgdata::{ArchiveFile, TimelineId};

use super::sealed::ObjectReader;
use super::{Archive, timeline_of};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};
use crate::repository::ObjectInfo;

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

    /// What `read` makes of the object; when that is damaged or missing, of the first one that stands in for it and is good.
    pub(super) async fn first_there<T>(
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
            Err(error) if is_damage(&error) || error.kind() == Kind::NotFound => {
                self.stand_in(error, read).await
            }
            other => other,
        }
    }

    /// What `read` makes of the first object that stands in for that of the file and is good; when there is none, what is the
    /// matter: `lost`, which says it of the object of the file, unless that is missing and something stands in that is damaged.
    async fn stand_in<T>(
        &self,
        mut lost: Error,
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
                // It was archived: nobody may take it for the end of the archive.
                Err(error) if is_damage(&error) && lost.kind() == Kind::NotFound => lost = error,
                Err(error) if is_damage(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(lost)
    }
}

/// The place of the object for which the first one stands in that has this key; nothing when it is not the key of such a one.
/// Others stand in after the first alone: without it nobody reads them.
fn stood_for(name: &ClusterName, key: &str) -> Option<String> {
    let below = key.strip_prefix(&name.mended_wal_prefix())?;
    let place = below.strip_suffix("-1")?;
    Some(format!("{}{place}", name.wal_prefix()))
}

/// The key under which an object of the archive is the one of its file: its own, or that of the one for which it stands in.
pub(super) fn place_of(name: &ClusterName, object: &ObjectInfo) -> String {
    let key = &object.key;
    stood_for(name, key).unwrap_or_else(|| key.clone())
}

/// Adds to the objects of an archive those of `mended` that stand in for objects which are not among them; in the order of
/// their places.
pub(super) fn add_stand_ins(
    name: &ClusterName,
    objects: &mut Vec<ObjectInfo>,
    mended: Vec<ObjectInfo>,
) {
    let is_there = |place: &String| {
        let found = objects.binary_search_by(|object| object.key.cmp(place));
        found.is_ok()
    };
    let is_lost = |object: &ObjectInfo| {
        let place = stood_for(name, &object.key);
        place.is_some_and(|place| !is_there(&place))
    };
    let lost: Vec<ObjectInfo> = mended.into_iter().filter(is_lost).collect();
    if !lost.is_empty() {
        objects.extend(lost);
        objects.sort_by_cached_key(|object| place_of(name, object));
    }
}

impl Archive {
    /// What `read` makes of the object of `file`, or of what stands in for it when that is damaged or missing.
    pub(super) async fn first_there<T>(
        &self,
        file: ArchiveFile,
        read: impl AsyncFnMut(String) -> Result<T>,
    ) -> Result<T> {
        let file_name = file.file_name(self.segment_size);
        self.places(file, &file_name).first_there(read).await
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

    /// The contents of a small archived file; when its object is damaged or lost, of what stands in for it.
    ///
    /// # Errors
    /// `NotFound` when it has no object, and nothing stands in; `Damaged` and `Unsupported` when it has no good one; `Repository`.
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
        self.first_there(file, read).await
    }
}
