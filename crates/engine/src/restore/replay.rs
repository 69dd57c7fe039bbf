//! What recovery is about to do to directories that are not its own.
//!
//! Recovery that replays `CREATE TABLESPACE` uses the directory that the statement named, with whatever is there
//! (`create_tablespace_directories`, src/backend/commands/tablespace.c). On the host of the server that made it, a copy links
//! itself to that server's files, and writes old pages over them; in place, newer files of the same names stay what they are,
//! as their pages look replayed. So the segment with such a record is withheld from recovery while the directory holds files
//! of a tablespace that are not this recovery's own.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use pgstrata_pgdata::label::BackupLabel;
use pgstrata_pgdata::wal_records::Meaning;
use pgstrata_pgdata::{
    ArchiveFile, ControlFile, Lsn, Major, RecordReader, WalRecord, WalSegment, WalSegmentSize,
};
use pgstrata_store::archive::{self, GetOptions};
use pgstrata_store::blocking::blocking;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, FileContext, Kind, Result};

/// The file of a backup that says where its recovery begins.
const BACKUP_LABEL: &str = "backup_label";

/// Bytes of a segment that are read at once.
const PIECE: usize = 1 << 20;

/// A tablespace that recovery is to make.
struct NewTablespace {
    at: Lsn,
    oid: u32,
    location: PathBuf,
}

/// Requires that recovery in `data_directory`, which has that control file, may replay the file `file_name`, which was fetched
/// to `path`. Anything but a segment may. What lies before the place where the recovery begins is not replayed: a backup of a
/// standby begins in the middle of a segment.
///
/// # Errors
/// `Refused` when the segment makes a tablespace in a directory that has one; when it makes one, and where the recovery begins
/// cannot be read; when its last record goes on in the next segment, and that cannot be asked for now.
pub async fn require_own_tablespaces(
    cluster: &ClusterRepository,
    (data_directory, control): (&Path, ControlFile),
    (file_name, path): (&str, &Path),
) -> Result<()> {
    let size = control.wal_segment_size;
    let Ok(ArchiveFile::Segment(segment)) = ArchiveFile::parse(file_name, size) else {
        return Ok(());
    };
    let reader = RecordReader::new(control.major, segment, size);
    let file = path.to_owned();
    let (reader, mut made) = blocking(move || scan(reader, &file)).await?;
    // One that was killed has left it.
    let mut beside = path.as_os_str().to_owned();
    beside.push(".pgstrata-next");
    let beside = PathBuf::from(beside);
    let _ = fs::remove_file(&beside);
    if reader.may_go_on_to_create_tablespace() {
        let more = goes_on(cluster, (reader, size), (segment, &beside)).await;
        let _ = fs::remove_file(&beside);
        made.extend(more?);
    }
    if made.is_empty() {
        return Ok(());
    }
    let data = data_directory.to_owned();
    blocking(move || {
        let start_lsn = replayed_from(&data, &control)?;
        let mut replayed = made.iter().filter(|made| made.at >= start_lsn);
        replayed.try_for_each(|made| require_own(&data, control.major, made))
    })
    .await
}

/// The tablespaces that records make which begin in `segment`, of which `reader` has come to the end, and go on in the next one.
/// That is fetched to `beside`.
async fn goes_on(
    cluster: &ClusterRepository,
    (mut reader, size): (RecordReader, WalSegmentSize),
    (segment, beside): (WalSegment, &Path),
) -> Result<Vec<NewTablespace>> {
    let next = segment.next();
    let got = archive::get(
        cluster,
        &next.file_name(size),
        beside,
        &GetOptions::default(),
    )
    .await;
    match got {
        Ok(_) => {}
        // Without the rest recovery does not replay the record either, as long as that is so.
        Err(error) if is_lasting(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    if reader.follow(next).is_err() {
        return Ok(Vec::new());
    }
    let file = beside.to_owned();
    let end = segment.end_lsn(size);
    let (_, mut more) = blocking(move || scan(reader, &file)).await?;
    more.retain(|made| made.at < end);
    Ok(more)
}

/// Whether recovery cannot have the file either: damage behind a target stops none.
fn is_lasting(error: &Error) -> bool {
    let is_absent = matches!(error.kind(), Kind::NotFound | Kind::WalMissing);
    is_absent || error.is_of_one_object() || error.is_lack_of_key()
}

/// Where recovery in `data` begins: what `backup_label` says, until the server has made that the checkpoint of `pg_control`.
fn replayed_from(data: &Path, control: &ControlFile) -> Result<Lsn> {
    let path = data.join(BACKUP_LABEL);
    let about = || format!("could not read \"{}\"", path.display());
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(control.redo_lsn),
        read => read.context(about)?,
    };
    let label = BackupLabel::parse(&text).map_err(|error| {
        Error::from(error).while_doing(about()).hint(
            "the file says where recovery begins, and no server starts without that: restore the directory once more",
        )
    })?;
    Ok(label.start_lsn)
}

/// WAL that lies in `pg_wal` before a server has seen it, and from where on it is replayed.
pub(crate) struct WalInPlace<'a> {
    pub(crate) major: Major,
    pub(crate) size: WalSegmentSize,
    pub(crate) segments: &'a [WalSegment],
    pub(crate) start_lsn: Lsn,
}

impl WalInPlace<'_> {
    /// Requires that recovery in `data_directory` may replay it: nobody is asked for these segments later.
    ///
    /// # Errors
    /// `Refused` when it makes a tablespace in a directory that has one, or one that lies elsewhere now; when a segment cannot
    /// be read.
    pub(crate) fn require_own_tablespaces(&self, data_directory: &Path) -> Result<()> {
        for segment in self.segments {
            for made in self.made_in(data_directory, *segment)? {
                require_not_mapped(data_directory, &made)?;
                require_own(data_directory, self.major, &made)?;
            }
        }
        Ok(())
    }

    /// The tablespaces of records that begin in that segment.
    fn made_in(&self, data_directory: &Path, segment: WalSegment) -> Result<Vec<NewTablespace>> {
        let size = self.size;
        let file = |segment: WalSegment| {
            let name = segment.file_name(size);
            data_directory.join("pg_wal").join(name)
        };
        let reader = RecordReader::new(self.major, segment, size);
        let (mut reader, mut made) = scan(reader, &file(segment))?;
        let next = segment.next();
        let goes_on = reader.may_go_on_to_create_tablespace() && self.segments.contains(&next);
        if goes_on && reader.follow(next).is_ok() {
            let (_, more) = scan(reader, &file(next))?;
            let end = segment.end_lsn(size);
            made.extend(more.into_iter().filter(|made| made.at < end));
        }
        made.retain(|made| made.at >= self.start_lsn);
        Ok(made)
    }
}

/// Recovery leads the link of the tablespace back to where the server had it.
fn require_not_mapped(data_directory: &Path, made: &NewTablespace) -> Result<()> {
    let NewTablespace { at, oid, location } = made;
    let link = data_directory.join(format!("pg_tblspc/{oid}"));
    match fs::read_link(link) {
        Ok(target) if target != *location => {
            let what = format!(
                "recovery creates tablespace {oid} at {at}, in \"{}\", and would no longer find it in \"{}\": the \
                 statement ran while the backup started",
                location.display(),
                target.display()
            );
            Err(Error::new(Kind::Refused, what).hint(
                "--tablespace-map can move this tablespace only out of a later backup: restore such a one, or restore where the \
                 tablespace may lie in its own directory",
            ))
        }
        _ => Ok(()),
    }
}

/// The tablespaces that a segment makes, as far as it can be read: what recovery cannot read it does not replay.
fn scan(mut reader: RecordReader, file: &Path) -> Result<(RecordReader, Vec<NewTablespace>)> {
    let about = || format!("could not read \"{}\"", file.display());
    let mut opened = File::open(file).context(about)?;
    let mut made = Vec::new();
    let mut sink = |record: WalRecord| {
        if let Meaning::TablespaceCreated { oid, location } = record.meaning {
            made.push(NewTablespace {
                at: record.start,
                oid,
                location: OsStr::from_bytes(&location).into(),
            });
        }
    };
    let mut piece = vec![0; PIECE];
    loop {
        let length = opened.read(&mut piece).context(about)?;
        if length == 0 {
            break;
        }
        if let Err(error) = reader.feed(&piece[..length], &mut sink) {
            tracing::debug!("the rest of the segment is not looked at: {error}");
            break;
        }
    }
    Ok((reader, made))
}

fn require_own(data_directory: &Path, major: Major, made: &NewTablespace) -> Result<()> {
    let NewTablespace { at, oid, location } = made;
    // One inside the data directory, or one that this recovery has made before it was interrupted.
    if location.as_os_str().is_empty() || leads_there(data_directory, location)? {
        return Ok(());
    }
    let files = location.join(major.tablespace_directory());
    let about = || format!("could not list \"{}\"", files.display());
    match fs::read_dir(&files) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        listed => {
            if listed.context(about)?.next().is_none() {
                return Ok(());
            }
        }
    }
    let what = format!(
        "recovery creates tablespace {oid} at {at}, in \"{}\", where there are files of a tablespace: it would write into \
         them, and those of a server on this host would be lost",
        location.display()
    );
    Err(Error::new(Kind::Refused, what).hint(format!(
        "restore to a target before {at} (--target-lsn), restore where that directory does not exist, or take a backup and \
         restore that one with --tablespace-map; move the directory away if no server needs it"
    )))
}

/// Whether a tablespace of the data directory is there already.
fn leads_there(data_directory: &Path, location: &Path) -> Result<bool> {
    let links = data_directory.join("pg_tblspc");
    let about = || format!("could not list \"{}\"", links.display());
    for entry in fs::read_dir(&links).context(about)? {
        let link = entry.context(about)?.path();
        if fs::read_link(&link).is_ok_and(|target| target == location) {
            return Ok(true);
        }
    }
    Ok(false)
}
