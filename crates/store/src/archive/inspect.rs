//! Reading an archived file to its end: to know that it can be read, or for what is in it.

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
        let (header, ()) = self.walk_object(file, key, (), |(), _| Ok(())).await?;
        Ok(header)
    }

    /// As [`Archive::inspect`], but hands the contents to `take` as they come, piece by piece. It begins anew, with
    /// another `state` like the first, when an object turns out damaged and another stands in for it. What `take` makes
    /// of it counts only when all was read.
    ///
    /// # Errors
    /// As [`Archive::inspect`]; that of `take`.
    pub async fn walk<S: Clone + Send + 'static>(
        &self,
        file: ArchiveFile,
        state: &S,
        take: fn(&mut S, &[u8]) -> Result<()>,
    ) -> Result<S> {
        let read = async |key: String| {
            let walked = self.walk_object(file, &key, state.clone(), take).await;
            walked.map(|(_, state)| state)
        };
        self.first_good(file, read).await
    }

    async fn walk_object<S: Send + 'static>(
        &self,
        file: ArchiveFile,
        key: &str,
        state: S,
        take: fn(&mut S, &[u8]) -> Result<()>,
    ) -> Result<(WalHeader, S)> {
        let reader = WalReader::new(&file.file_name(self.segment_size));
        let mut walk = ObjectWalk {
            reader,
            state,
            take,
        };
        match self.cluster.repository.size(key).await? {
            Some(size) => {
                let mut start = 0;
                while start < size {
                    let end = (start + PIECE_BYTES).min(size);
                    let piece = self.cluster.repository.get_range(key, start..end).await?;
                    walk = blocking(move || walk.feed(&piece)).await?;
                    start = end;
                }
            }
            None => {
                // Says that it is not there, or what else is the matter.
                let object = self.cluster.repository.get(key).await?;
                walk = blocking(move || walk.feed(&object)).await?;
            }
        }
        let header = walk.reader.finish()?;
        self.check_header(file, &header)?;
        Ok((header, walk.state))
    }
}

/// A file on its way through the hands of `take`.
struct ObjectWalk<S> {
    reader: WalReader,
    state: S,
    take: fn(&mut S, &[u8]) -> Result<()>,
}

impl<S> ObjectWalk<S> {
    fn feed(mut self, piece: &[u8]) -> Result<Self> {
        let mut taken = Ok(());
        self.reader.feed(piece, |raw| {
            if taken.is_ok() {
                taken = (self.take)(&mut self.state, raw);
            }
        })?;
        taken?;
        Ok(self)
    }
}
