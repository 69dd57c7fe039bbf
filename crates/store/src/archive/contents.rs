//! A file of the server on its way into the archive: read, checked against the cluster's record, digested, encoded.

use std::fs::{self, File, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pgstrata_layer::digest::ContentHasher;
use pgstrata_layer::frame::Codec;
use pgstrata_layer::wal::{WalDescription, WalWriter};
use pgstrata_pgdata::{ArchiveFile, TimelineHistory, TimelineId, WalPageHeader, WalSegment};

use super::sealed::ObjectWriter;
use super::{Archive, WHOLE_BYTES};
use crate::courtesy;
use crate::error::{Error, FileContext, Kind, Result};
use crate::input;
use crate::keys::Sealing;

/// Files are read in pieces of this size.
const READ_BYTES: usize = 1 << 20;

/// As much is encoded at once of a file that is in memory.
const ENCODE_BYTES: usize = 256 << 10;

/// A history is a line per timeline, a backup label a dozen lines; larger ones are neither.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// A file that was read, checked and digested.
#[derive(Clone)]
pub(super) struct Contents {
    path: PathBuf,
    /// The file, unless it is too large to be kept.
    raw: Option<Vec<u8>>,
    pub(super) description: WalDescription,
    /// How its object will be.
    sealing: Sealing,
}

/// An object ready to be stored.
pub(super) struct Encoded {
    /// `None` of a file too large to be kept: it is encoded while it is stored.
    pub(super) body: Option<Bytes>,
    pub(super) contents: Contents,
    pub(super) codec: Codec,
}

impl Contents {
    pub(super) fn read(
        archive: &Archive,
        path: &Path,
        file: ArchiveFile,
        sealing: Sealing,
    ) -> Result<Self> {
        let opened = open(path)?;
        let length = length_of(archive, path, file, &opened)?;
        let keep = length <= WHOLE_BYTES;
        let capacity = if keep {
            usize::try_from(length).unwrap_or(0)
        } else {
            0
        };
        let mut raw = Vec::with_capacity(capacity);
        let digested = Digested::read(path, &opened, |piece| {
            if keep {
                raw.extend_from_slice(piece);
            }
            Ok(())
        })?;
        archive.check_length(file, digested.length)?;
        archive.check_contents(file, &digested.head, &raw)?;
        Ok(Self {
            path: path.to_owned(),
            raw: keep.then_some(raw),
            description: WalDescription {
                raw_length: digested.length,
                raw_digest: digested.digest,
                ..describe(archive, file)
            },
            sealing,
        })
    }

    /// As [`Self::read`] and [`Self::encode`] at once, so that the file is never whole in memory; to have it there took a quarter of a
    /// push's processor time. `None` where it takes both: keys know the digest before they seal, and a text is looked through.
    pub(super) fn read_encoded(
        archive: &Archive,
        path: &Path,
        file: ArchiveFile,
        sealing: &Sealing,
        codec: Codec,
    ) -> Result<Option<Encoded>> {
        let is_segment = matches!(file, ArchiveFile::Segment(_));
        if !is_segment || !matches!(sealing, Sealing::Clear) {
            return Ok(None);
        }
        let opened = open(path)?;
        let length = length_of(archive, path, file, &opened)?;
        if length > WHOLE_BYTES {
            return Ok(None);
        }
        let mut description = WalDescription {
            raw_length: length,
            ..describe(archive, file)
        };
        let mut writer = WalWriter::new(&description, codec)?;
        let mut left = length;
        let digested = Digested::read(path, &opened, |piece| {
            let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
            match left.checked_sub(length) {
                Some(rest) => {
                    left = rest;
                    Ok(writer.append(piece)?)
                }
                // It grew, which its length tells in the end.
                None => Ok(()),
            }
        })?;
        archive.check_length(file, digested.length)?;
        archive.check_contents(file, &digested.head, &[])?;
        description.raw_digest = digested.digest;
        Ok(Some(Encoded {
            body: Some(writer.finish_as(digested.digest)?.into()),
            contents: Self {
                path: path.to_owned(),
                raw: None,
                description,
                sealing: sealing.clone(),
            },
            codec,
        }))
    }

    /// The history of `timeline` that it is.
    pub(super) fn history(&self, timeline: TimelineId) -> Result<TimelineHistory> {
        let raw = self.raw.as_deref().unwrap_or_default();
        TimelineHistory::read(timeline, raw).map_err(refused)
    }

    pub(super) fn encode(mut self, codec: Codec) -> Result<Encoded> {
        let body = match self.raw.take() {
            Some(raw) => {
                let mut writer = ObjectWriter::new(&self.sealing, &self.description, codec)?;
                for piece in raw.chunks(ENCODE_BYTES) {
                    writer.append(piece)?;
                    courtesy::rest();
                }
                Some(writer.finish()?.into())
            }
            None => None,
        };
        Ok(Encoded {
            body,
            contents: self,
            codec,
        })
    }

    /// Reads the file a second time, and writes its object; answers the object's length. The file must not have changed.
    pub(super) fn write(&self, codec: Codec, out: &mut dyn Write) -> Result<u64> {
        let path = &self.path;
        let opened = open(path)?;
        let mut writer = ObjectWriter::new(&self.sealing, &self.description, codec)?;
        let mut hasher = ContentHasher::new();
        let mut length = 0;
        let mut pass_on = |bytes: Vec<u8>| {
            length += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            out.write_all(&bytes)
                .context(|| "could not write the object".to_owned())
        };
        pieces(path, &opened, |piece| {
            hasher.update(piece);
            writer.append(piece)?;
            pass_on(writer.take())
        })?;
        if hasher.finish() != self.description.raw_digest {
            let path = path.display();
            return Err(Error::new(
                Kind::Refused,
                format!("\"{path}\" changed while it was read"),
            ));
        }
        pass_on(writer.finish()?)?;
        Ok(length)
    }
}

/// What is learned of a file while it is read.
struct Digested {
    /// The first page's header.
    head: Vec<u8>,
    length: u64,
    digest: [u8; 32],
}

impl Digested {
    fn read(path: &Path, opened: &File, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<Self> {
        let mut head = Vec::new();
        let mut hasher = ContentHasher::new();
        let length = pieces(path, opened, |piece| {
            if head.is_empty() {
                head = piece[..piece.len().min(WalPageHeader::SIZE_BYTES)].to_vec();
            }
            hasher.update(piece);
            take(piece)
        })?;
        require_still_there(path, opened)?;
        Ok(Self {
            head,
            length,
            digest: hasher.finish(),
        })
    }
}

/// The length of a file that is open, which a `file` may have.
fn length_of(archive: &Archive, path: &Path, file: ArchiveFile, opened: &File) -> Result<u64> {
    let length = opened.metadata().context(|| reading(path))?.len();
    archive.check_length(file, length)?;
    Ok(length)
}

/// What is known of a file before it is read.
fn describe(archive: &Archive, file: ArchiveFile) -> WalDescription {
    WalDescription {
        file_name: file.file_name(archive.segment_size),
        system_identifier: archive.record.system_identifier,
        raw_length: 0,
        raw_digest: [0; 32],
    }
}

pub(super) fn reading(path: &Path) -> String {
    format!("could not read \"{}\"", path.display())
}

/// Opens a file, and nothing that would keep us waiting.
pub(super) fn open(path: &Path) -> Result<File> {
    input::require_file(path, || reading(path))?;
    File::open(path).context(|| reading(path))
}

/// The header of the first page of the segment at `path`, if there is one.
pub(super) fn first_page(path: &Path) -> Option<WalPageHeader> {
    let mut page = [0; WalPageHeader::SIZE_BYTES];
    open(path).ok()?.read_exact(&mut page).ok()?;
    WalPageHeader::parse(&page).ok()
}

/// Hands the file out in pieces; answers its length.
pub(super) fn pieces(
    path: &Path,
    mut file: &File,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<u64> {
    let mut buffer = vec![0; READ_BYTES];
    let mut length = 0;
    loop {
        let read = match file.read(&mut buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read.context(|| reading(path))?,
        };
        if read == 0 {
            return Ok(length);
        }
        length += u64::try_from(read).unwrap_or(u64::MAX);
        take(&buffer[..read])?;
        courtesy::rest();
    }
}

/// Refuses what was read of `opened` when `path` is no longer its name. The server gives a segment that it needs no more the
/// name of a later one and writes that into it (`InstallXLogFileSegment` in PostgreSQL's `xlog.c`): whoever has it open
/// reads the beginning of one segment and the end of another.
fn require_still_there(path: &Path, opened: &File) -> Result<()> {
    let act = || reading(path);
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    let read = identity(opened.metadata().context(act)?);
    match identity(fs::metadata(path).context(act)?) == read {
        true => Ok(()),
        false => Err(Error::new(
            Kind::File,
            format!("{}: another file took its place meanwhile", act()),
        )),
    }
}

impl Archive {
    fn check_length(&self, file: ArchiveFile, length: u64) -> Result<()> {
        let whole = self.segment_size.get();
        let refused = |what: String| Err(Error::new(Kind::Refused, what));
        match file {
            ArchiveFile::Segment(_) if length != whole => refused(format!(
                "the file is {length} bytes long, a complete segment of this cluster has {whole}"
            )),
            ArchiveFile::Partial(_) if length > whole => refused(format!(
                "the file is {length} bytes long, a segment of this cluster has {whole}"
            )),
            ArchiveFile::History(_) | ArchiveFile::BackupLabel { .. }
                if length > MAX_TEXT_BYTES =>
            {
                refused(format!(
                    "the file is {length} bytes long, too many for a text"
                ))
            }
            _ => Ok(()),
        }
    }

    fn check_contents(&self, file: ArchiveFile, head: &[u8], raw: &[u8]) -> Result<()> {
        match file {
            ArchiveFile::History(_) if is_blank(raw) => {
                Err(refused("the file is empty").hint(LOST_HISTORY))
            }
            ArchiveFile::Segment(named) | ArchiveFile::Partial(named) => {
                self.check_segment(named, head)
            }
            ArchiveFile::History(timeline) => TimelineHistory::read(timeline, raw)
                .map(|_| ())
                .map_err(refused),
            ArchiveFile::BackupLabel { .. } => Ok(()),
        }
    }

    /// What the first page of a segment says must fit its name and the cluster's record.
    fn check_segment(&self, named: WalSegment, head: &[u8]) -> Result<()> {
        let page = WalPageHeader::parse(head).map_err(refused)?;
        let (found, expected) = (page.system_identifier, self.record.system_identifier);
        if found != expected {
            return Err(refused(format!(
                "the segment is of the cluster with system identifier {found}, \
                 this is the archive of {expected}"
            ))
            .hint("use the name this cluster was given by init, or init a new name for it")
            .for_other_cluster());
        }
        if page.segment_size != self.segment_size {
            return Err(refused(format!(
                "the segment says that segments have {} bytes, the archive's have {}",
                page.segment_size, self.segment_size
            )));
        }
        if page.page_address != named.start_lsn(self.segment_size) {
            return Err(refused(format!(
                "the segment begins at {}, its name says {}",
                page.page_address,
                named.start_lsn(self.segment_size)
            )));
        }
        // The first segment of a timeline begins with the page of the timeline before it.
        if page.timeline > named.timeline {
            return Err(refused(format!(
                "the segment is of timeline {}, its name says {}",
                page.timeline, named.timeline
            )));
        }
        if page.major.get() != u32::from(self.record.major) {
            return Err(refused(format!(
                "the segment was written by PostgreSQL {}, this is the archive of PostgreSQL {}",
                page.major.get(),
                self.record.major
            )));
        }
        Ok(())
    }
}

/// What to do about a history that a crash of the file system has emptied. It says where its timeline began: without it
/// every restore would begin at the wrong place, and the right one would be refused as other contents.
const LOST_HISTORY: &str = "the file system may have lost it in a crash: copy the file from the pg_wal of another server on \
    this timeline, or of the one that was promoted, over it; when no server has been on this timeline, write a comment into \
    it, such as: # nobody";

/// Whether there is nothing in a text. A crash may leave zeros of the length that it had.
fn is_blank(raw: &[u8]) -> bool {
    raw.iter()
        .all(|byte| byte.is_ascii_whitespace() || *byte == 0)
}

fn refused(what: impl std::fmt::Display) -> Error {
    Error::new(Kind::Refused, what.to_string())
}
