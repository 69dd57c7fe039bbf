//! Files of the archive that are copied into that of another repository, as their objects are.
//!
//! An object is read to its end and checked before it is stored there, so a damaged one is never copied; what stands in
//! for it here takes its place there. A file that is there already is the same file, or an error.

use bytes::Bytes;
use pgstrata_layer::wal::WalHeader;
use pgstrata_pgdata::ArchiveFile;

use super::mended::is_damage;
use super::sealed::ObjectReader;
use super::{Archive, objects};
use crate::blocking::blocking;
use crate::error::{Error, Kind, Result};
use crate::repository::ObjectInfo;

impl Archive {
    /// The files of the archive with their objects, in order of their keys; other objects are passed over.
    ///
    /// # Errors
    /// `Repository` when it cannot be listed.
    pub async fn files(&self) -> Result<Vec<(ArchiveFile, ObjectInfo)>> {
        let listed = objects(&self.cluster).await?.into_iter();
        let files = listed.filter_map(|object| {
            let name = object.key.rsplit('/').next()?;
            let file = self.parse(name).ok()?;
            (self.key(file) == object.key).then_some((file, object))
        });
        Ok(files.collect())
    }

    /// Copies `file` into `target`, unless it is there; answers the bytes that were stored.
    ///
    /// # Errors
    /// `NotFound` when it is not here; `Damaged` when it is not here whole; `AlreadyExists` when another file of that
    /// name is there; when a repository cannot be read or written.
    pub async fn copy_to(&self, target: &Archive, file: ArchiveFile) -> Result<Option<u64>> {
        let place = match target.header_of(&target.key(file)).await {
            Ok(None) => 0,
            Ok(Some(there)) => return self.require_same(target, file, &there).await.map(|()| None),
            Err(error) if is_damage(&error) => match target.present(file).await {
                Ok(Some(there)) => {
                    return self.require_same(target, file, &there).await.map(|()| None);
                }
                _ => 1,
            },
            Err(error) => return Err(error),
        };
        let object = self.whole_object(file).await?;
        let size = u64::try_from(object.len()).unwrap_or(u64::MAX);
        let key = target.place(file, place);
        match target.cluster.repository.create(&key, object).await {
            Ok(()) => Ok(Some(size)),
            Err(error) if error.kind() == Kind::AlreadyExists && place == 0 => {
                // Somebody has pushed it meanwhile.
                match target.present(file).await? {
                    Some(there) => self.require_same(target, file, &there).await.map(|()| None),
                    None => Err(error),
                }
            }
            Err(error) => Err(error),
        }
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
        self.first_good(file, read).await
    }

    /// Refuses when the file in `target` is another one than that here.
    async fn require_same(
        &self,
        target: &Archive,
        file: ArchiveFile,
        there: &WalHeader,
    ) -> Result<()> {
        let here = self.present(file).await?;
        let same = here.is_none_or(|here| {
            here.system_identifier == there.system_identifier
                && here.raw_length == there.raw_length
                && here.raw_digest == there.raw_digest
        });
        if same {
            return Ok(());
        }
        let name = file.file_name(self.segment_size);
        let (from, to) = (
            self.cluster.repository.url(),
            target.cluster.repository.url(),
        );
        Err(Error::new(
            Kind::AlreadyExists,
            format!("the archives in {from} and in {to} hold different files of the name {name}"),
        )
        .hint("two servers have archived under this cluster's name: find out which of them is the one to keep, and copy into a repository of its own"))
    }
}
