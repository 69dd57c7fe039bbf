//! What the archive has under the name of a file that is pushed, and what is made of that.
//!
//! A file was archived when its object is there, and also when that went and something stands in for it: recovery reads that
//! one then. Another file under the name would come before it, so it is refused.

use futures::future;
use pgstrata_layer::wal::{WalDescription, WalHeader};
use pgstrata_pgdata::ArchiveFile;

use super::super::Archive;
use super::super::contents::Encoded;
use super::super::mended::{MOST_MENDED, is_damage};
use super::Pushed;
use crate::catalog::hex;
use crate::error::{Error, Kind, Result};

/// What a look at the archive has found.
pub(super) enum InArchive {
    Nothing,
    Header(WalHeader),
    Damage,
    /// The object went. Something stands in for it, or this host has stored it a moment ago.
    Gone,
}

impl Archive {
    /// What the archive has of `file`, going by headers. Whether something stands in for the object is asked at the same time as
    /// for the object itself, for another round would keep every push waiting. Of a file that `is_noted`, which this host has
    /// stored a moment ago, the object alone is asked for: it is there nearly always.
    pub(super) async fn found(&self, file: ArchiveFile, is_noted: bool) -> Result<InArchive> {
        let (own, other) = (self.key(file), self.place(file, 1));
        let stands_in = async {
            match is_noted {
                true => Ok(None),
                false => self.header_of(&other).await,
            }
        };
        let (own, stands_in) = futures::join!(self.header_of(&own), stands_in);
        match seen(own)? {
            InArchive::Nothing => match seen(stands_in)? {
                InArchive::Nothing if !is_noted => Ok(InArchive::Nothing),
                _ => Ok(InArchive::Gone),
            },
            found => Ok(found),
        }
    }

    pub(super) async fn settle_encoded(
        &self,
        file: ArchiveFile,
        object: Encoded,
    ) -> Result<Pushed> {
        let description = object.contents.description.clone();
        self.settle(file, &description, future::ready(Ok(object)))
            .await
    }

    /// Reads what is there under the name of `file`, or what stands in for that. Only when all of it is damaged, or there is
    /// nothing, stores the file.
    pub(super) async fn settle(
        &self,
        file: ArchiveFile,
        description: &WalDescription,
        encoding: impl Future<Output = Result<Encoded>>,
    ) -> Result<Pushed> {
        let (mut damage, mut gone) = (None, None);
        for number in 0..=MOST_MENDED {
            let key = self.place(file, number);
            match self.inspect_object(file, &key).await {
                Ok(header) => return self.present_as(&key, description, &header).await,
                Err(error) if is_damage(&error) => {
                    self.check_remains(description, &key).await?;
                    damage.get_or_insert(error);
                }
                Err(error) if error.kind() == Kind::NotFound && number == 0 => gone = Some(key),
                Err(error) if error.kind() == Kind::NotFound => {
                    let key = gone.unwrap_or(key);
                    return self.mend(file, &key, encoding.await?, damage).await;
                }
                Err(error) => return Err(error),
            }
        }
        let damage = damage.map_or(String::new(), |error| format!(": {error}"));
        Err(Error::new(
            Kind::Damaged,
            format!("the archive has nothing but damaged copies of the file{damage}"),
        )
        .hint("look at the store: it does not keep what it is given"))
    }

    /// The good object `key` with that header stands for the file, if it is of that.
    async fn present_as(
        &self,
        key: &str,
        description: &WalDescription,
        header: &WalHeader,
    ) -> Result<Pushed> {
        self.check_same(description, header)?;
        self.cluster.repository.make_durable(key).await?;
        Ok(Pushed::Present)
    }

    /// Stores `object` of `file` as `key`, in place of what is damaged, if anything is.
    async fn mend(
        &self,
        file: ArchiveFile,
        key: &str,
        object: Encoded,
        damage: Option<Error>,
    ) -> Result<Pushed> {
        let raw_bytes = object.contents.description.raw_length;
        let stored_bytes = match self.put(key, &object).await {
            // Another push was quicker; it may have compressed or sealed in another way.
            Err(error) if error.kind() == Kind::AlreadyExists => {
                let header = self.inspect_object(file, key).await?;
                let description = &object.contents.description;
                return self.present_as(key, description, &header).await;
            }
            put => put?,
        };
        let Some(damage) = damage else {
            // It was deleted since it was seen.
            return Ok(Pushed::Stored {
                raw_bytes,
                stored_bytes,
            });
        };
        tracing::warn!("stored the file as \"{key}\", because {damage}");
        Ok(Pushed::Mended)
    }

    /// What is left of a damaged object may still say that it was of other contents than the file.
    async fn check_remains(&self, description: &WalDescription, key: &str) -> Result<()> {
        match self.header_of(key).await {
            Ok(Some(header)) if header.file_name == description.file_name => {
                self.check_same(description, &header)
            }
            // Nothing is known of it, or it is no object of this file at all.
            Ok(_) => Ok(()),
            Err(error) if is_damage(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the object with that header is of the file that is pushed.
    pub(super) fn check_same(
        &self,
        description: &WalDescription,
        present: &WalHeader,
    ) -> Result<()> {
        // An object of another file under this name is damage, which reading it tells.
        let same = present.file_name != description.file_name
            || present.system_identifier == description.system_identifier
                && present.raw_length == description.raw_length
                && present.raw_digest == description.raw_digest;
        if same {
            return Ok(());
        }
        let url = self.cluster.repository.url();
        let (found, expected) = (
            hex(&present.raw_digest[..8]),
            hex(&description.raw_digest[..8]),
        );
        Err(Error::new(
            Kind::AlreadyExists,
            format!(
                "the archive in {url} holds a file of that name with other contents \
                 ({} bytes, digest {found}; the file has {} bytes, digest {expected})",
                present.raw_length, description.raw_length
            ),
        )
        .hint(if description.file_name.ends_with(".partial") {
            "two servers were promoted out of one segment, and no recovery reads files of this kind: keep a copy, if it may matter \
             what was written last on the timeline that was left, and rename its mark in archive_status from .ready to .done: the \
             archiver then goes on"
        } else {
            "another server, such as a restored copy, archives under this cluster's name, or this one was set back to an \
             earlier state: give this server or the other one a name of its own (pgstrata init --cluster NAME, the same \
             NAME in its archive_command and in its configuration file, a full backup); what waits for its archiver is then stored under that name. A new \
             timeline does not help: the file would be refused again"
        }))
    }
}

fn seen(header: Result<Option<WalHeader>>) -> Result<InArchive> {
    match header {
        Ok(None) => Ok(InArchive::Nothing),
        Ok(Some(header)) => Ok(InArchive::Header(header)),
        Err(error) if is_damage(&error) => Ok(InArchive::Damage),
        Err(error) => Err(error),
    }
}
