//! WAL objects as they are stored: clear, or sealed.
//!
//! In a sealed cluster the WAL object is what is sealed, with a data key of its own that readers open. Its header is
//! sealed once more with the catalog key, in front, so that who pushes a file again can compare it. Histories of timelines
//! are sealed with the catalog key alone, because retention must read them.

use pgstrata_layer::frame::Codec;
use pgstrata_layer::seal::{
    Class, HEADER_BYTES, Header, MAX_PREFACE_BYTES, ObjectKey, Opener, SealedPlace, Sealer,
};
use pgstrata_layer::wal::{self, WalDescription, WalHeader, WalReader, WalWriter};

use super::{Archive, preface};
use crate::error::{Error, Kind, Result};
use crate::keys::{Ring, Sealing};

/// As much of an object as holds its header, sealed or not.
pub(super) const HEAD_BYTES: usize = HEADER_BYTES + MAX_PREFACE_BYTES;

impl Archive {
    /// How the objects of the archive are.
    pub(super) async fn sealing(&self) -> Result<&Sealing> {
        let sealing = self.cluster.sealing_with(&self.record).await?;
        // Found out with another record, it would store in the clear what is to be sealed.
        match (&self.record.sealing, sealing) {
            (Some(_), Sealing::Sealed(_)) | (None, Sealing::Clear) => Ok(sealing),
            _ => Err(Error::new(
                Kind::Refused,
                format!(
                    "cluster \"{}\" was replaced by another while this command ran",
                    self.record.name
                ),
            )),
        }
    }
}

/// What the keys of a file's object depend on. What stands in for a damaged object has the same.
fn place_of(file_name: &str) -> String {
    let timeline = file_name.get(..8).unwrap_or(file_name);
    format!("wal/{timeline}/{file_name}")
}

fn class_of(file_name: &str) -> Class {
    match file_name.ends_with(".history") {
        true => Class::Catalog,
        false => Class::Data,
    }
}

fn header_key(ring: &Ring, header: &Header, file_name: &str) -> Result<ObjectKey> {
    let catalog = ring.catalog_key(header.epoch)?;
    let name = format!("{} header", place_of(file_name));
    let place = SealedPlace {
        seal_id: ring.seal_id(),
        name: &name,
    };
    Ok(ObjectKey::derive(
        catalog,
        Class::Catalog,
        &header.salt,
        place,
    ))
}

/// Encodes a file that comes in pieces, and seals it when the cluster is sealed.
pub(super) struct ObjectWriter {
    wal: WalWriter,
    sealer: Option<Sealer>,
}

impl ObjectWriter {
    pub(super) fn new(sealing: &Sealing, described: &WalDescription, codec: Codec) -> Result<Self> {
        let mut wal = WalWriter::new(described, codec)?;
        let Sealing::Sealed(ring) = sealing else {
            return Ok(Self { wal, sealer: None });
        };
        let raw_header = wal.take();
        let mut sealer = begin(ring, &described.file_name, &raw_header)?;
        sealer.append(&raw_header);
        Ok(Self {
            wal,
            sealer: Some(sealer),
        })
    }

    pub(super) fn append(&mut self, raw: &[u8]) -> Result<()> {
        Ok(self.wal.append(raw)?)
    }

    /// What is known of the object by now, after what was taken before.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let taken = self.wal.take();
        match &mut self.sealer {
            None => taken,
            Some(sealer) => {
                sealer.append(&taken);
                sealer.take()
            }
        }
    }

    pub(super) fn finish(self) -> Result<Vec<u8>> {
        let last = self.wal.finish()?;
        Ok(match self.sealer {
            None => last,
            Some(mut sealer) => {
                sealer.append(&last);
                sealer.finish()
            }
        })
    }
}

/// Draws the keys of an object; each attempt to make one has others.
fn begin(ring: &Ring, file_name: &str, raw_header: &[u8]) -> Result<Sealer> {
    let header = Header {
        class: class_of(file_name),
        epoch: ring.current().number,
        salt: rand::random(),
    };
    let (key, sealed_key) = match header.class {
        Class::Data => {
            // The server drops what it could not archive for too long, and key boxes can be brought back.
            ring.warn_unless_read();
            ring.new_data_key()?
        }
        Class::Catalog => (ring.catalog_key(header.epoch)?.clone(), Vec::new()),
    };
    let sealed_header = header_key(ring, &header, file_name)?.seal_small(raw_header);
    let preface = preface::join(&sealed_key, &sealed_header);
    let place = SealedPlace {
        seal_id: ring.seal_id(),
        name: &place_of(file_name),
    };
    let own = ObjectKey::derive(&key, header.class, &header.salt, place);
    Ok(Sealer::new(own, &header, &preface))
}

fn damaged(file_name: &str, what: &str) -> Error {
    Error::new(Kind::Damaged, format!("WAL object {file_name:?}: {what}"))
}

/// The header of the object whose first bytes these are.
pub(super) fn header(sealing: &Sealing, file_name: &str, head: &[u8]) -> Result<WalHeader> {
    let Sealing::Sealed(ring) = sealing else {
        return Ok(wal::header(head)?);
    };
    let doing = |error: pgstrata_layer::Error| {
        Error::from(error).while_doing(format!("header of WAL object {file_name:?}"))
    };
    let split = Header::split(head).map_err(doing)?;
    let (sealed, preface, _) = split.ok_or_else(|| damaged(file_name, "ends too early"))?;
    open_header(ring, &sealed, preface, file_name)
}

fn open_header(ring: &Ring, sealed: &Header, preface: &[u8], file_name: &str) -> Result<WalHeader> {
    let doing = |error: pgstrata_layer::Error| {
        Error::from(error).while_doing(format!("header of WAL object {file_name:?}"))
    };
    if sealed.class != class_of(file_name) {
        return Err(damaged(
            file_name,
            "is sealed for others than its name says",
        ));
    }
    let parts = preface::split(preface);
    let (key, small) = parts.ok_or_else(|| damaged(file_name, "has no sealed header"))?;
    if sealed.class == Class::Catalog && !key.is_empty() {
        return Err(damaged(file_name, "has a key that its kind does not have"));
    }
    let raw = header_key(ring, sealed, file_name)?
        .open_small(small)
        .map_err(doing)?;
    wal::header(&raw).map_err(doing)
}

/// Reads an object that comes in pieces.
pub(super) struct ObjectReader {
    sealing: Sealing,
    file_name: String,
    /// Whether the file itself is wanted; else the object may be checked without the key.
    is_wanted: bool,
    wal: WalReader,
    stage: Stage,
}

enum Stage {
    Clear,
    Head(Vec<u8>),
    Chunks {
        opener: Opener,
        is_opened: bool,
        header: WalHeader,
    },
}

impl ObjectReader {
    /// A reader of the object of a file.
    pub(super) fn new(sealing: &Sealing, file_name: &str, is_wanted: bool) -> Self {
        let stage = match sealing {
            Sealing::Clear => Stage::Clear,
            Sealing::Sealed(_) => Stage::Head(Vec::new()),
        };
        Self {
            sealing: sealing.clone(),
            file_name: file_name.to_owned(),
            is_wanted,
            wal: WalReader::new(file_name),
            stage,
        }
    }

    /// Takes the next bytes of the object, and hands out those of the file.
    pub(super) fn feed(&mut self, bytes: &[u8], mut sink: impl FnMut(&[u8])) -> Result<()> {
        let within = |error: pgstrata_layer::Error, file_name: &str| {
            Error::from(error).while_doing(format!("WAL object {file_name:?}"))
        };
        match &mut self.stage {
            Stage::Clear => Ok(self.wal.feed(bytes, sink)?),
            Stage::Head(head) => {
                let mut head = std::mem::take(head);
                head.extend_from_slice(bytes);
                let split = Header::split(&head).map_err(|error| within(error, &self.file_name))?;
                let Some((header, preface, rest)) = split else {
                    self.stage = Stage::Head(head);
                    return Ok(());
                };
                self.stage = self.open(&header, preface)?;
                self.feed_chunks(rest, &mut sink)
            }
            Stage::Chunks { .. } => self.feed_chunks(bytes, &mut sink),
        }
    }

    fn feed_chunks(&mut self, bytes: &[u8], sink: &mut impl FnMut(&[u8])) -> Result<()> {
        let Stage::Chunks { opener, .. } = &mut self.stage else {
            return Ok(());
        };
        let wal = &mut self.wal;
        let fed = opener.feed(bytes, |raw| wal.feed(raw, &mut *sink));
        let name = &self.file_name;
        fed.map_err(|error| Error::from(error).while_doing(format!("WAL object {name:?}")))
    }

    fn open(&self, sealed: &Header, preface: &[u8]) -> Result<Stage> {
        let name = self.file_name.as_str();
        let Sealing::Sealed(ring) = &self.sealing else {
            return Ok(Stage::Clear);
        };
        let header = open_header(ring, sealed, preface, name)?;
        let parts = preface::split(preface);
        let (sealed_key, _) = parts.ok_or_else(|| damaged(name, "has no sealed key"))?;
        let is_opened =
            sealed.class == Class::Catalog || self.is_wanted || ring.opens_data(sealed.epoch);
        let place = SealedPlace {
            seal_id: ring.seal_id(),
            name: &place_of(name),
        };
        let key = match (sealed.class, is_opened) {
            (_, false) => None,
            (Class::Catalog, true) => Some(ring.catalog_key(sealed.epoch)?.clone()),
            (Class::Data, true) => Some(ring.unseal_data_key(sealed.epoch, sealed_key)?),
        };
        let key = key.map(|key| ObjectKey::derive(&key, sealed.class, &sealed.salt, place));
        Ok(Stage::Chunks {
            opener: Opener::new(key),
            is_opened,
            header,
        })
    }

    /// Checks that the object ended where it should.
    pub(super) fn finish(self) -> Result<WalHeader> {
        let name = self.file_name;
        match self.stage {
            Stage::Clear => Ok(self.wal.finish()?),
            Stage::Head(_) => Err(damaged(&name, "ends too early")),
            Stage::Chunks {
                opener,
                is_opened,
                header,
            } => {
                let whole = opener.finish();
                whole.map_err(|error| {
                    Error::from(error).while_doing(format!("WAL object {name:?}"))
                })?;
                if is_opened && self.wal.finish()? != header {
                    return Err(damaged(
                        &name,
                        "has another header than what is sealed in it",
                    ));
                }
                Ok(header)
            }
        }
    }
}
