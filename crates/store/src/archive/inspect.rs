//! Reading an archived file to its end: to know that it can be read, or for what is in it.

use pgstrata_layer::wal::WalHeader;
use pgstrata_pgdata::ArchiveFile;

use super::sealed::ObjectReader;
use super::{Archive, PIECE_BYTES};
use crate::blocking::blocking;
use crate::error::{Error, Result};

impl Archive {
    /// Whether `file_name` is in the archive, going by the header of its object, or of what stands in for that.
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
    /// to check; when it is damaged or lost, what stands in for it.
    ///
    /// # Errors
    /// `NotFound` when it is not there; `Damaged` when it is not the file, whole; `Repository`.
    pub async fn inspect(&self, file: ArchiveFile) -> Result<WalHeader> {
        let read = async |key: String| self.inspect_object(file, &key).await;
        self.first_there(file, read).await
    }

    /// Reads the object `key` of `file` to its end.
    pub(super) async fn inspect_object(&self, file: ArchiveFile, key: &str) -> Result<WalHeader> {
        let (header, ()) = self.walk_object(file, key, None, ()).await?;
        Ok(header)
    }

    /// As [`Archive::inspect`], but hands the contents to `take` as they come, piece by piece. It begins anew, with
    /// another `state` like the first, when an object turns out damaged or lost and another stands in for it. What `take` makes
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
            let walked = self
                .walk_object(file, &key, Some(take), state.clone())
                .await;
            walked.map(|(_, state)| state)
        };
        self.first_there(file, read).await
    }

    /// As [`Archive::walk`], of the object `key` alone.
    pub(super) async fn walk_object<S: Send + 'static>(
        &self,
        file: ArchiveFile,
        key: &str,
        take: Option<TakePiece<S>>,
        state: S,
    ) -> Result<(WalHeader, S)> {
        let name = file.file_name(self.segment_size);
        let reader = ObjectReader::new(self.sealing().await?, &name, take.is_some());
        let walk = || {
            Ok(ObjectWalk {
                key: key.to_owned(),
                reader,
                state,
                take,
            })
        };
        let walk = self.in_pieces(key, walk, ObjectWalk::feed).await?;
        let header = walk
            .reader
            .finish()
            .map_err(|error| in_object(key, error))?;
        self.check_header(file, &header)?;
        Ok((header, walk.state))
    }
}

impl Archive {
    /// Hands the object `key` piece by piece to `feed`, off the threads that wait for the repository. `begin` is asked for
    /// what is fed when the object is known to be there.
    pub(super) async fn in_pieces<S: Send + 'static>(
        &self,
        key: &str,
        begin: impl FnOnce() -> Result<S>,
        feed: fn(S, &[u8]) -> Result<S>,
    ) -> Result<S> {
        let repository = &self.cluster.repository;
        let (mut piece, size) = repository.get_start(key, PIECE_BYTES).await?;
        let mut fed = begin()?;
        let mut start = 0;
        loop {
            start += u64::try_from(piece.len()).unwrap_or(u64::MAX);
            fed = blocking(move || feed(fed, &piece)).await?;
            if start >= size {
                return Ok(fed);
            }
            let end = (start + PIECE_BYTES).min(size);
            piece = repository.get_range(key, start..end).await?;
        }
    }
}

/// Takes the next bytes of a file.
type TakePiece<S> = fn(&mut S, &[u8]) -> Result<()>;

/// A file on its way through the hands of `take`.
struct ObjectWalk<S> {
    key: String,
    reader: ObjectReader,
    state: S,
    take: Option<TakePiece<S>>,
}

impl<S> ObjectWalk<S> {
    fn feed(mut self, piece: &[u8]) -> Result<Self> {
        let mut taken = Ok(());
        let fed = self.reader.feed(piece, |raw| {
            if let (Ok(()), Some(take)) = (&taken, self.take) {
                taken = take(&mut self.state, raw);
            }
        });
        fed.map_err(|error| in_object(&self.key, error))?;
        taken?;
        Ok(self)
    }
}

fn in_object(key: &str, error: Error) -> Error {
    error.while_doing(format!("could not read \"{key}\""))
}
