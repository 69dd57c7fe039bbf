//! Files of the archive that are copied into that of another repository, as their objects are.
//!
//! An object is read to its end and checked before it is stored there, so a damaged one is never copied; what stands in
//! for it here takes its place there. A file that is there already is the same file, or an error.

use std::collections::{BTreeSet, HashSet};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use pgstrata_layer::wal::WalHeader;
use pgstrata_pgdata::ArchiveFile;
use tokio::runtime::Handle;

use super::mended::{MOST_MENDED, is_damage, place_of};
use super::rivals::is_same;
use super::sealed::ObjectReader;
use super::{Archive, ListedFiles, PIECE_BYTES, WHOLE_BYTES, objects};
use crate::blocking::blocking;
use crate::courtesy;
use crate::error::{Error, FileContext, Kind, Result};
use crate::repository::record::require_at_most;
use crate::repository::{ObjectInfo, Repository};

/// As much is checked and written at once.
const WRITE_BYTES: usize = 256 << 10;

impl Archive {
    /// The files of the archive with their objects, in order; other objects are passed over. Of a file whose object is lost the
    /// object is the one that stands in for it.
    ///
    /// # Errors
    /// `Repository` when it cannot be listed.
    pub async fn files(&self) -> Result<Vec<(ArchiveFile, ObjectInfo)>> {
        let listed = objects(&self.cluster).await?.into_iter();
        let files = listed.filter_map(|object| {
            let place = place_of(&self.cluster.name, &object);
            let file = self.parse(place.rsplit('/').next()?).ok()?;
            (self.key(file) == place).then_some((file, object))
        });
        Ok(files.collect())
    }

    /// Those of the listed files of which nothing is left but damaged copies: the object is lost, and nothing good stands in for it.
    ///
    /// # Errors
    /// When the repository cannot be read.
    pub async fn broken_stand_ins(&self, files: &ListedFiles) -> Result<BTreeSet<ArchiveFile>> {
        let mut broken = BTreeSet::new();
        for (file, object) in files {
            if self.key(*file) == object.key {
                continue;
            }
            match self.inspect(*file).await {
                Ok(_) => {}
                // It was there when it was listed, and may be whole: that no key opens it here says nothing of it.
                Err(error) if error.is_lack_of_key() => {}
                Err(error) if error.kind() == Kind::NotFound || error.is_of_one_object() => {
                    broken.insert(*file);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(broken)
    }

    /// Copies `file` into `target`, unless it is there; answers the bytes that were stored. What is there is durable then, too:
    /// a copy that was killed may not have come to that. What is damaged there is passed over, as by a push.
    ///
    /// # Errors
    /// `NotFound` when it is not here; `Damaged` when it is not here whole, or the target has nothing but damaged copies of it;
    /// `AlreadyExists` when another file of that name is there; when a repository cannot be read or written.
    pub async fn copy_to(&self, target: &Archive, file: ArchiveFile) -> Result<Option<u64>> {
        let mut damage = None;
        for number in 0..=MOST_MENDED {
            let key = target.place(file, number);
            let there = match target.header_at(&key).await {
                Ok(Some(there)) => Ok(there),
                Ok(None) => match self
                    .copy_object(file, (&target.cluster.repository, &key))
                    .await
                {
                    // Somebody has stored it meanwhile.
                    Err(error) if error.kind() == Kind::AlreadyExists => {
                        let found = target.header_at(&key).await;
                        found.and_then(|there| there.ok_or(error))
                    }
                    copied => return copied.map(Some),
                },
                Err(error) => Err(error),
            };
            match there {
                Ok(there) => return self.settle_on(target, file, (key, there)).await,
                Err(error) if is_damage(&error) => {
                    damage.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        let damage = damage.map_or(String::new(), |error| format!(": {error}"));
        let what = format!("there is nothing but damaged copies of the file in the target{damage}");
        Err(Error::new(Kind::Damaged, what))
    }

    /// The header of the object `key`, whose epoch may have begun since the keys were read; `None` when there is none.
    async fn header_at(&self, key: &str) -> Result<Option<WalHeader>> {
        match self.header_of(key).await {
            Err(error) if self.cluster.knows_more(&error).await? => self.header_of(key).await,
            found => found,
        }
    }

    /// Takes what is in `target` for copied.
    async fn settle_on(
        &self,
        target: &Archive,
        file: ArchiveFile,
        (key, there): (String, WalHeader),
    ) -> Result<Option<u64>> {
        let here = self.present(file).await?;
        if here.is_some_and(|here| !is_same(&here, &there)) {
            return Err(self.rivalry(target, file));
        }
        target.cluster.repository.make_durable(&key).await?;
        Ok(None)
    }

    /// Makes the names of files durable that were listed here, and that who created them may not have come to.
    ///
    /// # Errors
    /// `Repository` when it cannot be done.
    pub async fn make_durable(&self, files: &ListedFiles) -> Result<()> {
        let mut done = HashSet::new();
        for (_, object) in files {
            let directory = object.key.rsplit_once('/').map(|(directory, _)| directory);
            if done.insert(directory) {
                self.cluster.repository.make_durable(&object.key).await?;
            }
        }
        Ok(())
    }

    /// Copies the object of `file`, or what stands in for it, to that key; answers its length.
    async fn copy_object(&self, file: ArchiveFile, to: (&Repository, &str)) -> Result<u64> {
        let is_segment = matches!(file, ArchiveFile::Segment(_) | ArchiveFile::Partial(_));
        if is_segment && self.segment_size.get() > WHOLE_BYTES {
            let copy = async |from: String| self.copy_in_pieces(file, from, to).await;
            return self.first_there(file, copy).await;
        }
        let object = self.whole_object(file).await?;
        let size = u64::try_from(object.len()).unwrap_or(u64::MAX);
        let (target, key) = to;
        target.create(key, object).await.map(|()| size)
    }

    /// The same of the object `from`, which is not held in memory. It gets its name when all of it was written and is good.
    async fn copy_in_pieces(
        &self,
        file: ArchiveFile,
        from: String,
        (target, key): (&Repository, &str),
    ) -> Result<u64> {
        let (archive, runtime) = (self.clone(), Handle::current());
        let length = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&length);
        let write = move |out: &mut dyn Write| {
            let written = runtime.block_on(archive.write_object(file, &from, out))?;
            counted.store(written, Ordering::Relaxed);
            Ok(())
        };
        target.create_written(key, write).await?;
        Ok(length.load(Ordering::Relaxed))
    }

    /// Writes the object `key` of `file`, checked as it comes; answers its length. Without an error it is good.
    async fn write_object(&self, file: ArchiveFile, key: &str, out: &mut dyn Write) -> Result<u64> {
        let doing = |e: Error| e.while_doing(format!("could not read \"{key}\""));
        let repository = &self.cluster.repository;
        let name = file.file_name(self.segment_size);
        let mut reader = ObjectReader::new(self.sealing().await?, &name, false);
        let (mut piece, size) = repository.get_start(key, PIECE_BYTES).await?;
        require_at_most(key, (size, self.most_bytes()), "a segment")?;
        let mut start = 0;
        loop {
            for part in piece.chunks(WRITE_BYTES) {
                reader.feed(part, |_| {}).map_err(doing)?;
                let about = || "could not write the object".to_owned();
                out.write_all(part).context(about)?;
                courtesy::rest();
            }
            start += u64::try_from(piece.len()).unwrap_or(u64::MAX);
            if start >= size {
                break;
            }
            let end = (start + PIECE_BYTES).min(size);
            piece = repository.get_range(key, start..end).await?;
        }
        let header = reader.finish().map_err(doing)?;
        self.check_header(file, &header)?;
        Ok(size)
    }

    /// The object of `file`, or what stands in for it: read to its end, and checked.
    async fn whole_object(&self, file: ArchiveFile) -> Result<Bytes> {
        let sealing = self.sealing().await?;
        let name = file.file_name(self.segment_size);
        let read = async |key: String| {
            let object = self.object(file, &key).await?;
            let mut reader = ObjectReader::new(sealing, &name, false);
            let checked = blocking(move || {
                reader.feed(&object, |_| {})?;
                Ok((reader.finish()?, object))
            });
            let doing = |e: Error| e.while_doing(format!("could not read \"{key}\""));
            let (header, object) = checked.await.map_err(doing)?;
            self.check_header(file, &header)?;
            Ok(object)
        };
        self.first_there(file, read).await
    }
}
