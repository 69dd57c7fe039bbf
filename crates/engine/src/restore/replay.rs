//! What recovery is about to do to directories that are not its own, and what is in its way.
//!
//! Recovery that replays `CREATE TABLESPACE` uses the directory that the statement named, with whatever is there
//! (`create_tablespace_directories`, src/backend/commands/tablespace.c). On the host of the server that made it, a copy links
//! itself to that server's files, and writes old pages over them; in place, newer files of the same names stay what they are,
//! as their pages look replayed. So the segment with such a record is withheld from recovery while the directory holds files
//! of a tablespace that are not this recovery's own.
//!
//! At its beginning recovery removes the main forks of unlogged relations, which it knows by their init forks; at its end it makes
//! them of these, and fails when one is there (`ResetUnloggedRelations`, src/backend/storage/file/reinit.c). A relation that is
//! being made gets its init fork last, an index when it was built. So a backup taken in between has a main fork that recovery
//! does not know to be one of those, until it replays the record of the init fork. Its files go before that.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use pgstrata_pgdata::label::BackupLabel;
use pgstrata_pgdata::wal_records::Meaning;
use pgstrata_pgdata::{
    ArchiveFile, ControlFile, ForkKind, Lsn, Major, RecordReader, RelSegment, RelationFork,
    WalRecord, WalSegment, WalSegmentSize,
};
use pgstrata_store::archive::{self, GetOptions};
use pgstrata_store::blocking::blocking;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use tracing::info;

/// The file of a backup that says where its recovery begins.
const BACKUP_LABEL: &str = "backup_label";

/// Bytes of a segment that are read at once.
const PIECE: usize = 1 << 20;

/// What recovery is to make, with the place of the record.
#[derive(Default)]
struct ToCome {
    tablespaces: Vec<NewTablespace>,
    init_forks: Vec<(Lsn, RelationFork)>,
}

impl ToCome {
    /// Without records for which this does not hold.
    fn retain(&mut self, is_wanted: impl Fn(Lsn) -> bool) {
        self.tablespaces.retain(|made| is_wanted(made.at));
        self.init_forks.retain(|(at, _)| is_wanted(*at));
    }

    fn extend(&mut self, more: Self) {
        self.tablespaces.extend(more.tablespaces);
        self.init_forks.extend(more.init_forks);
    }

    fn is_empty(&self) -> bool {
        self.tablespaces.is_empty() && self.init_forks.is_empty()
    }
}

/// A tablespace that recovery is to make.
struct NewTablespace {
    at: Lsn,
    oid: u32,
    location: PathBuf,
}

/// Requires that recovery in `data_directory`, which has that control file, may replay the file `file_name`, which was fetched
/// to `path`, and removes what would be in its way. Anything but a segment may be replayed. What lies before the place where the
/// recovery begins is not: a backup of a standby begins in the middle of a segment.
///
/// # Errors
/// `Refused` when the segment makes a tablespace in a directory that has one; when it makes one, and where the recovery begins
/// cannot be read; when its last record goes on in the next segment, and that cannot be asked for now; when a file cannot be
/// removed.
pub async fn make_way(
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
    if reader.may_go_on_to_create() {
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
        made.retain(|at| at >= start_lsn);
        let mut tablespaces = made.tablespaces.iter();
        tablespaces.try_for_each(|made| require_own(&data, control.major, made))?;
        remove_main_forks(&data, control.major, &made.init_forks)
    })
    .await
}

/// What records make which begin in `segment`, of which `reader` has come to the end, and go on in the next one.
/// That is fetched to `beside`.
async fn goes_on(
    cluster: &ClusterRepository,
    (mut reader, size): (RecordReader, WalSegmentSize),
    (segment, beside): (WalSegment, &Path),
) -> Result<ToCome> {
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
        Err(error) if is_lasting(&error) => return Ok(ToCome::default()),
        Err(error) => return Err(error),
    }
    if reader.follow(next).is_err() {
        return Ok(ToCome::default());
    }
    let file = beside.to_owned();
    let end = segment.end_lsn(size);
    let (_, mut more) = blocking(move || scan(reader, &file)).await?;
    more.retain(|at| at < end);
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
    /// Requires that recovery in `data_directory` may replay it, and removes what would be in its way: nobody is asked for these
    /// segments later.
    ///
    /// # Errors
    /// `Refused` when it makes a tablespace in a directory that has one, or one that lies elsewhere now; when a segment cannot
    /// be read, or a file not be removed.
    pub(crate) fn make_way(&self, data_directory: &Path) -> Result<()> {
        for segment in self.segments {
            let made = self.made_in(data_directory, *segment)?;
            for made in &made.tablespaces {
                require_not_mapped(data_directory, made)?;
                require_own(data_directory, self.major, made)?;
            }
            remove_main_forks(data_directory, self.major, &made.init_forks)?;
        }
        Ok(())
    }

    /// What records make that begin in that segment.
    fn made_in(&self, data_directory: &Path, segment: WalSegment) -> Result<ToCome> {
        let size = self.size;
        let file = |segment: WalSegment| {
            let name = segment.file_name(size);
            data_directory.join("pg_wal").join(name)
        };
        let reader = RecordReader::new(self.major, segment, size);
        let (mut reader, mut made) = scan(reader, &file(segment))?;
        let next = segment.next();
        let goes_on = reader.may_go_on_to_create() && self.segments.contains(&next);
        if goes_on && reader.follow(next).is_ok() {
            let (_, mut more) = scan(reader, &file(next))?;
            let end = segment.end_lsn(size);
            more.retain(|at| at < end);
            made.extend(more);
        }
        made.retain(|at| at >= self.start_lsn);
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

/// What a segment makes, as far as it can be read: what recovery cannot read it does not replay.
fn scan(mut reader: RecordReader, file: &Path) -> Result<(RecordReader, ToCome)> {
    let about = || format!("could not read \"{}\"", file.display());
    let mut opened = File::open(file).context(about)?;
    let mut made = ToCome::default();
    let mut sink = |record: WalRecord| match record.meaning {
        Meaning::TablespaceCreated { oid, location } => made.tablespaces.push(NewTablespace {
            at: record.start,
            oid,
            location: OsStr::from_bytes(&location).into(),
        }),
        Meaning::InitForkMade(fork) => made.init_forks.push((record.start, fork)),
        _ => {}
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

/// Removes what a backup has of relations that turn out to be unlogged. One whose init fork is there was known when recovery
/// began, or recovery has made it by now.
fn remove_main_forks(
    data_directory: &Path,
    major: Major,
    init_forks: &[(Lsn, RelationFork)],
) -> Result<()> {
    for (at, fork) in init_forks {
        let file = |fork: RelationFork, number: u32| {
            let segment = RelSegment {
                relation_fork: fork,
                number,
            };
            data_directory.join(segment.path(major))
        };
        if file(*fork, 0).exists() {
            continue;
        }
        for kind in [ForkKind::Main, ForkKind::Fsm, ForkKind::Vm] {
            let of_kind = RelationFork {
                fork: kind,
                ..*fork
            };
            let files = (0..).map(|number| file(of_kind, number));
            for path in files.take_while(|path| path.is_file()) {
                fs::remove_file(&path).context(|| {
                    format!(
                        "could not remove \"{}\", which is of an unlogged relation, and would be in the way when recovery ends",
                        path.display()
                    )
                })?;
                info!(
                    "removed \"{}\": WAL at {at} says that the relation is unlogged, and the server makes it anew",
                    path.display()
                );
            }
        }
    }
    Ok(())
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
        "restore to a target before {at} (--target-type lsn --target LSN), restore where that directory does not exist, or take a backup and \
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
