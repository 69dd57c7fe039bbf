//! Reading an archived file to its end, to know that it can be read.

use pgstrata_layer::wal::{WalHeader, WalReader};
use pgstrata_pgdata::ArchiveFile;

use super::{Archive, PIECE_BYTES};
use crate::blocking::blocking;
use crate::error::Result;

impl Archive {
    /// Whether `file_name` is in the archive, going by the header of its object.
    ///
    /// # Errors
    /// `Damaged` when what is there is not that file of this cluster; `Repository`.
    pub async fn holds(&self, file_name: &str) -> Result<bool> {
        let file = self.parse(file_name)?;
        match self.present(file).await? {
            Some(header) => self.check_header(file, &header).map(|()| true),
            None => Ok(false),
        }
    }

    /// Fetches and decodes the object of `file` piece by piece and checks everything there is
    /// to check; when it is damaged, what stands in for it.
    ///
    /// # Errors
    /// `NotFound` when it is not there; `Damaged` when it is not the file, whole; `Repository`.
    pub async fn inspect(&self, file: ArchiveFile) -> Result<WalHeader> {
        let read = async |key: String| self.inspect_object(file, &key).await;
        self.first_good(file, read).await
    }

    /// Reads the object `key` of `file` to its end.
    pub(super) async fn inspect_object(&self, file: ArchiveFile, key: &str) -> Result<WalHeader> {
        let Some(size) = self.cluster.repository.size(key).await? else {
            // Says that it is not there, or what else is the matter.
            let object = self.cluster.repository.get(key).await?;
            return self.decode_whole(file, &object);
        };
        let mut reader = WalReader::new(&file.file_name(self.segment_size));
        let mut start = 0;
        while start < size {
            let end = (start + PIECE_BYTES).min(size);
            let piece = self.cluster.repository.get_range(key, start..end).await?;
            reader = blocking(move || {
                reader.feed(&piece, |_| {})?;
                Ok(reader)
            })
            .await?;
            start = end;
        }
        let header = reader.finish()?;
        self.check_header(file, &header)?;
        Ok(header)
    }

    fn decode_whole(&self, file: ArchiveFile, object: &[u8]) -> Result<WalHeader> {
        let mut reader = WalReader::new(&file.file_name(self.segment_size));
        reader.feed(object, |_| {})?;
        let header = reader.finish()?;
        self.check_header(file, &header)?;
        Ok(header)
    }
}
