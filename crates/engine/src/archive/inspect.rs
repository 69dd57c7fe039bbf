//! Reading an archived file to its end, to know that it can be read.

use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::wal::{WalHeader, WalReader};
use pgstrata_pgdata::ArchiveFile;

use super::{Archive, PIECE_BYTES};
use crate::blocking::blocking;
use crate::error::Result;
use crate::repository::Repository;

/// The archive of one cluster, for looking at file after file.
#[derive(Clone, Debug)]
pub struct Inspector(Archive);

impl Inspector {
    /// An inspector of the archive of `cluster`.
    ///
    /// # Errors
    /// When the cluster's record cannot be read.
    pub async fn new(repository: &Repository, cluster: &ClusterName) -> Result<Self> {
        Archive::load(repository, cluster).await.map(Self)
    }

    /// Name of the object that holds `file`.
    #[must_use]
    pub fn key(&self, file: ArchiveFile) -> String {
        self.0.key(file)
    }

    /// Whether `file_name` is in the archive, going by the header of its object.
    ///
    /// # Errors
    /// `Damaged` when what is there is not that file of this cluster; `Repository`.
    pub async fn holds(&self, file_name: &str) -> Result<bool> {
        let file = self.0.parse(file_name)?;
        match self.0.present(file).await? {
            Some(header) => self.0.check_header(file, &header).map(|()| true),
            None => Ok(false),
        }
    }

    /// Fetches and decodes the object of `file` piece by piece and checks everything there is
    /// to check. Returns its header.
    ///
    /// # Errors
    /// `NotFound` when it is not there; `Damaged` when it is not the file, whole; `Repository`.
    pub async fn inspect(&self, file: ArchiveFile) -> Result<WalHeader> {
        let key = self.0.key(file);
        let Some(size) = self.0.repository.size(&key).await? else {
            // Says that it is not there, or what else is the matter.
            let object = self.0.repository.get(&key).await?;
            return self.0.decode_whole(file, &object);
        };
        let mut reader = WalReader::new(&file.file_name(self.0.segment_size));
        let mut start = 0;
        while start < size {
            let end = (start + PIECE_BYTES).min(size);
            let piece = self.0.repository.get_range(&key, start..end).await?;
            reader = blocking(move || {
                reader.feed(&piece, |_| {})?;
                Ok(reader)
            })
            .await?;
            start = end;
        }
        let header = reader.finish()?;
        self.0.check_header(file, &header)?;
        Ok(header)
    }
}

impl Archive {
    fn decode_whole(&self, file: ArchiveFile, object: &[u8]) -> Result<WalHeader> {
        let mut reader = WalReader::new(&file.file_name(self.segment_size));
        reader.feed(object, |_| {})?;
        let header = reader.finish()?;
        self.check_header(file, &header)?;
        Ok(header)
    }
}
