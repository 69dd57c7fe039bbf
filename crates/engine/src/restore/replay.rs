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
//!
//! Files of relations are numbered anew on each history: what a record of another one calls unlogged may be a table here. So
//! they are removed only when the server asks for the segment, and only for what its recovery can come to.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use pgstrata_pgdata::label::RecoveryStart;
use pgstrata_pgdata::wal_records::Meaning;
use pgstrata_pgdata::{
    ArchiveFile, ControlFile, DatabaseDirectory, ForkKind, Lsn, Major, RecordReader, RelSegment,
    RelationFork, TimelineHistory, TimelineId, WalRecord, WalSegment, WalSegmentSize,
};
use pgstrata_store::archive::{self, Archive, GetOptions};
use pgstrata_store::blocking::blocking;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use tracing::info;

use super::place::beneath;
use super::place::layout::resolve;
use super::place::links::link_target;
use super::settings::SignalFile;

/// The file of a backup that says where its recovery begins.
const BACKUP_LABEL: &str = "backup_label";

/// The directory of WAL.
const PG_WAL: &str = "pg_wal";

/// What a server calls a segment that it asks for, in that directory (`XLogFileRead`,
/// src/backend/access/transam/xlogrecovery.c).
const ASKED_FOR: &str = "RECOVERYXLOG";

/// Bytes of a segment that are read at once.
const PIECE: usize = 1 << 20;

/// What recovery is to make, with the place of the record.
#[derive(Clone, Debug, Default)]
pub(crate) struct ToCome {
    tablespaces: Vec<NewTablespace>,
    init_forks: Vec<(Lsn, RelationFork)>,
}

impl ToCome {
    /// What any of these make at `start` or behind it.
    pub(crate) fn of_all(all: impl IntoIterator<Item = Self>, start: Lsn) -> Self {
        let mut made = Self::default();
        for one in all {
            made.tablespaces.extend(one.tablespaces);
            made.init_forks.extend(one.init_forks);
        }
        made.retain(|at| at >= start);
        made
    }

    /// Without records for which this does not hold.
    fn retain(&mut self, is_wanted: impl Fn(Lsn) -> bool) {
        self.tablespaces.retain(|made| is_wanted(made.at));
        self.init_forks.retain(|(at, _)| is_wanted(*at));
    }

    fn is_empty(&self) -> bool {
        self.tablespaces.is_empty() && self.init_forks.is_empty()
    }

    /// Requires that recovery may make the tablespaces in a cluster whose own lie in `tablespaces`, by their OIDs. Directories
    /// that a restore has `emptied` hold nothing when it recovers.
    ///
    /// # Errors
    /// `Refused` when it makes a tablespace in a directory that has one, or one that lies elsewhere now.
    pub(crate) fn require_fit(
        &self,
        major: Major,
        tablespaces: &BTreeMap<u32, PathBuf>,
        emptied: &[PathBuf],
    ) -> Result<()> {
        for made in &self.tablespaces {
            made.require_not_mapped(tablespaces)?;
            made.require_own(major, tablespaces.values().chain(emptied))?;
        }
        Ok(())
    }

    /// Requires that recovery in `data` may make the tablespaces. It may have made some before it was interrupted.
    fn require_own(&self, data: &Path, major: Major) -> Result<()> {
        if self.tablespaces.is_empty() {
            return Ok(());
        }
        let links = data.join("pg_tblspc");
        let about = || format!("could not list \"{}\"", links.display());
        let mut own = Vec::new();
        for entry in fs::read_dir(&links).context(about)? {
            own.extend(link_target(&entry.context(about)?.path()));
        }
        let mut made = self.tablespaces.iter();
        made.try_for_each(|made| made.require_own(major, own.iter()))
    }

    /// Removes what a cluster has of relations that turn out to be unlogged, and answers the paths. One whose init fork is there
    /// was known when recovery began, or recovery has made it by now. `open` opens a directory of the cluster.
    ///
    /// # Errors
    /// When a directory cannot be opened, or a file not be removed.
    pub(crate) fn remove_main_forks(
        &self,
        major: Major,
        open: impl Fn(&str) -> io::Result<File>,
    ) -> Result<BTreeSet<String>> {
        let mut removed = BTreeSet::new();
        for (at, fork) in &self.init_forks {
            let path = DatabaseDirectory {
                tablespace: fork.tablespace,
                database: fork.database,
            }
            .path(major);
            let about = || format!("could not look into \"{path}\" of the cluster");
            let directory = match open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.context(about)?,
            };
            for file in in_the_way(&directory, *fork, major).context(about)? {
                beneath::remove_file(&directory, name_of(&file)).context(|| {
                    format!(
                        "could not remove \"{file}\" of the cluster, which is of an unlogged relation, and would be in the way when \
                         recovery ends"
                    )
                })?;
                info!(
                    "removed \"{file}\": WAL at {at} says that the relation is unlogged, and the server makes it anew"
                );
                removed.insert(file);
            }
        }
        Ok(removed)
    }
}

/// The files of the relation with that init fork, when that is not there, in the order in which they go. A fork's first file goes
/// last, so that a removal that was killed is taken up again: a server that comes to the end of the first file goes on in the
/// next one, whatever that holds.
fn in_the_way(directory: &File, init: RelationFork, major: Major) -> io::Result<Vec<String>> {
    let path = |fork: ForkKind, number: u32| {
        let relation_fork = RelationFork { fork, ..init };
        RelSegment {
            relation_fork,
            number,
        }
        .path(major)
    };
    let is_there = |path: &str| beneath::exists(directory, name_of(path));
    let mut found = Vec::new();
    if is_there(&path(ForkKind::Init, 0))? {
        return Ok(found);
    }
    for fork in [ForkKind::Main, ForkKind::Fsm, ForkKind::Vm] {
        for number in 0.. {
            let file = path(fork, number);
            match is_there(&file)? {
                true => found.push(file),
                // It may be gone without the others.
                false if number == 0 => {}
                false => break,
            }
        }
    }
    found.reverse();
    Ok(found)
}

/// The name at the end of a path.
fn name_of(path: &str) -> &Path {
    Path::new(path.rsplit_once('/').map_or(path, |(_, name)| name))
}

/// A tablespace that recovery is to make.
#[derive(Clone, Debug)]
struct NewTablespace {
    at: Lsn,
    /// Where the segment begins in which the record does.
    segment_at: Lsn,
    oid: u32,
    /// Empty for one inside the data directory.
    location: PathBuf,
}

impl NewTablespace {
    /// Recovery leads the link of the tablespace back to where the server had it.
    fn require_not_mapped(&self, tablespaces: &BTreeMap<u32, PathBuf>) -> Result<()> {
        let Self {
            at, oid, location, ..
        } = self;
        let target = match tablespaces.get(oid) {
            Some(target) if !is_same(target, location) => target,
            _ => return Ok(()),
        };
        let what = format!(
            "recovery creates tablespace {oid} at {at}, in \"{}\", and would no longer find it in \"{}\": the statement ran \
             while the backup started",
            location.display(),
            target.display()
        );
        Err(Error::new(Kind::Refused, what).hint(
            "--tablespace-map can move this tablespace only out of a later backup: restore such a one, or restore where the \
             tablespace may lie in its own directory",
        ))
    }

    /// Requires that its directory has no files of a tablespace, or is one of the cluster's `own`.
    fn require_own<'p>(
        &self,
        major: Major,
        mut own: impl Iterator<Item = &'p PathBuf>,
    ) -> Result<()> {
        let location = &self.location;
        if location.as_os_str().is_empty() || own.any(|own| is_same(own, location)) {
            return Ok(());
        }
        let files = location.join(major.tablespace_directory());
        let about = || format!("could not list \"{}\"", files.display());
        match fs::read_dir(&files) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            listed => match listed.context(about)?.next() {
                None => Ok(()),
                Some(_) => Err(self.refusal()),
            },
        }
    }

    fn refusal(&self) -> Error {
        let Self {
            at,
            segment_at,
            oid,
            location,
        } = self;
        let what = format!(
            "recovery creates tablespace {oid} at {at}, in \"{}\", where there are files of a tablespace: it would write into \
             them, and those of a server on this host would be lost",
            location.display()
        );
        Error::new(Kind::Refused, what).hint(format!(
            "restore to a target before {segment_at} (--target-type lsn --target LSN), where the segment of that record begins, which \
             recovery does not get at all; restore where that directory does not exist; or take a backup and restore that one with \
             --tablespace-map; move the directory away if no server needs it"
        ))
    }
}

/// Whether both paths lead to one directory, over whatever links.
fn is_same(one: &Path, other: &Path) -> bool {
    match (resolve(one), resolve(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

/// Requires that recovery in `data_directory`, which has that control file, may replay the file `file_name`, which was fetched
/// to `path`, and removes what would be in its way when the server itself has asked. Anything but a segment may be replayed, and who
/// wants one while the server there does not recover may have it. What lies before the place where the recovery begins is not replayed: a backup of a standby begins in
/// the middle of a segment. Nor is what its history does not come to.
///
/// # Errors
/// `Refused` when the segment makes a tablespace in a directory that has one; when it makes one, and where the recovery begins
/// cannot be read; when its last record goes on in the next segment, or another history is to be looked at, and those cannot be
/// asked for now; when a file cannot be removed.
pub async fn make_way(
    cluster: &ClusterRepository,
    (data_directory, control): (&Path, ControlFile),
    (file_name, path): (&str, &Path),
) -> Result<()> {
    let (major, size) = (control.major, control.wal_segment_size);
    let Ok(ArchiveFile::Segment(segment)) = ArchiveFile::parse(file_name, size) else {
        return Ok(());
    };
    if !recovers(data_directory) {
        return Ok(());
    }
    let (file, begun) = (path.to_owned(), Foresight::new(major, segment, size));
    let mut read = blocking(move || begun.read(&file)).await?;
    // One that was killed has left it.
    let mut beside = path.as_os_str().to_owned();
    beside.push(".pgstrata-next");
    let beside = PathBuf::from(beside);
    let _ = fs::remove_file(&beside);
    if read.goes_on() {
        let more = read_on(cluster, (read, size), (segment, &beside)).await;
        let _ = fs::remove_file(&beside);
        read = more?;
    }
    let mut made = read.made_before(segment.end_lsn(size));
    if made.is_empty() {
        return Ok(());
    }
    let start = recovery_start(data_directory, &control)?;
    made.retain(|at| at >= start.redo_lsn);
    let mut held = vec![(start.timeline, start.checkpoint_lsn)];
    // The last byte that it has replayed.
    let replayed = control.min_recovery_lsn.zip(control.min_recovery_timeline);
    held.extend(replayed.map(|(end, of)| (of, Lsn::new(end.get().saturating_sub(1)))));
    if !made.is_empty() {
        let of_segment = (segment.timeline, &mut made);
        keep_on_way(cluster, data_directory, &held, of_segment).await?;
    }
    let (data, path) = (data_directory.to_owned(), path.to_owned());
    blocking(move || {
        made.require_own(&data, major)?;
        if !is_asked_for(&data, &path) {
            return Ok(());
        }
        let open = |directory: &str| File::open(data.join(directory));
        made.remove_main_forks(major, open).map(drop)
    })
    .await
}

/// Whether the server in `data` recovers, once it runs.
fn recovers(data: &Path) -> bool {
    let mut signals = [SignalFile::Recovery, SignalFile::Standby].into_iter();
    signals.any(|signal| data.join(signal.name()).exists())
}

/// Whether that server itself asks for a segment that is to go to `path`: a person may want one, too, of whatever timeline.
fn is_asked_for(data: &Path, path: &Path) -> bool {
    let above = path.parent().unwrap_or(Path::new(""));
    let real = |directory: &Path| fs::canonicalize(data.join(directory)).ok();
    path.file_name() == Some(OsStr::new(ASKED_FOR))
        && real(above).is_some_and(|above| real(Path::new(PG_WAL)) == Some(above))
}

/// Lets what was read of `segment` go on in the next one, which is fetched to `beside`.
async fn read_on(
    cluster: &ClusterRepository,
    (read, size): (Foresight, WalSegmentSize),
    (segment, beside): (WalSegment, &Path),
) -> Result<Foresight> {
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
        Err(error) if is_lasting(&error) => return Ok(read),
        Err(error) => return Err(error),
    }
    let file = beside.to_owned();
    blocking(move || read.follow(next).read(&file)).await
}

/// Whether recovery cannot have the file either: damage behind a target stops none.
fn is_lasting(error: &Error) -> bool {
    let is_absent = matches!(error.kind(), Kind::NotFound | Kind::WalMissing);
    is_absent || error.is_of_one_object() || error.is_lack_of_key()
}

/// Where recovery in `data` begins: what `backup_label` says, until the server has made that the checkpoint of `pg_control`.
fn recovery_start(data: &Path, control: &ControlFile) -> Result<RecoveryStart> {
    let path = data.join(BACKUP_LABEL);
    let about = || format!("could not read \"{}\"", path.display());
    let contents = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(RecoveryStart {
                redo_lsn: control.redo_lsn,
                checkpoint_lsn: control.checkpoint_lsn,
                timeline: control.timeline,
            });
        }
        read => read.context(about)?,
    };
    RecoveryStart::of_label(&contents).map_err(|error| {
        Error::from(error).while_doing(about()).hint(
            "the file says where recovery begins, and no server starts without that: restore the directory once more",
        )
    })
}

/// Keeps of what a segment of `timeline` has `made` what a recovery can come to that begins with what is `held`: positions, each on
/// its timeline. A server that is told to follow a timeline asks for a segment of it before it finds out that its own checkpoint
/// is not in the past of that (`InitWalRecovery`, src/backend/access/transam/xlogrecovery.c).
async fn keep_on_way(
    cluster: &ClusterRepository,
    data: &Path,
    held: &[(TimelineId, Lsn)],
    (timeline, made): (TimelineId, &mut ToCome),
) -> Result<()> {
    if held.iter().all(|(of, _)| *of == timeline) {
        if !is_archived_history(cluster, data, timeline).await? {
            made.init_forks.clear();
        }
        return Ok(());
    }
    let timelines = held.iter().map(|(of, _)| *of);
    let newest = timelines.fold(timeline, TimelineId::max);
    let history = history_of(cluster, data, newest).await?;
    made.retain(|at| {
        let mut all = held.iter().copied().chain([(timeline, at)]);
        let history = history.as_ref();
        history.is_some_and(|history| all.all(|(of, at)| is_on(history, of, at)))
    });
    Ok(())
}

/// Whether the archive means the same by `timeline` as the server in `data`: two copies that were promoted give theirs one number.
/// One that has no history of it yet has come to it from the archive.
async fn is_archived_history(
    cluster: &ClusterRepository,
    data: &Path,
    timeline: TimelineId,
) -> Result<bool> {
    match own_history(data, timeline) {
        Some(own) => Ok(archived_history(cluster, timeline).await? == Some(own)),
        None => Ok(true),
    }
}

/// Whether the history goes through that timeline, and leaves it behind `at`.
fn is_on(history: &TimelineHistory, timeline: TimelineId, at: Lsn) -> bool {
    let entry = history.entry(timeline);
    entry.is_some_and(|entry| entry.end.is_none_or(|end| at < end))
}

/// The history of `timeline`, as the server in `data` finds it: in the archive, else in `pg_wal`. Without one it cannot get there.
async fn history_of(
    cluster: &ClusterRepository,
    data: &Path,
    timeline: TimelineId,
) -> Result<Option<TimelineHistory>> {
    let archived = archived_history(cluster, timeline).await?;
    Ok(archived.or_else(|| own_history(data, timeline)))
}

/// The history of `timeline` in the archive, when recovery can have it.
async fn archived_history(
    cluster: &ClusterRepository,
    timeline: TimelineId,
) -> Result<Option<TimelineHistory>> {
    match Archive::load(cluster).await?.history(timeline).await {
        Ok(history) => Ok(Some(history)),
        Err(error) if is_lasting(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The history of `timeline` that the server in `data` has, when it has one.
fn own_history(data: &Path, timeline: TimelineId) -> Option<TimelineHistory> {
    let contents = fs::read(data.join(PG_WAL).join(timeline.history_file_name()));
    TimelineHistory::read(timeline, &contents.ok()?).ok()
}

/// WAL that lies in `pg_wal` before a server has seen it, and from where on it is replayed. Nobody is asked for it later.
pub(crate) struct WalInPlace<'a> {
    pub(crate) major: Major,
    pub(crate) size: WalSegmentSize,
    pub(crate) segments: &'a [WalSegment],
    pub(crate) start_lsn: Lsn,
}

impl WalInPlace<'_> {
    /// What recovery in `data_directory` makes out of it.
    ///
    /// # Errors
    /// When a segment cannot be read.
    pub(crate) fn to_come(&self, data_directory: &Path) -> Result<ToCome> {
        let segments = self.segments.iter();
        let made = segments.map(|segment| self.made_in(data_directory, *segment));
        let made: Vec<ToCome> = made.collect::<Result<_>>()?;
        Ok(ToCome::of_all(made, self.start_lsn))
    }

    /// What records make that begin in that segment.
    fn made_in(&self, data_directory: &Path, segment: WalSegment) -> Result<ToCome> {
        let file = |segment: WalSegment| {
            let name = segment.file_name(self.size);
            data_directory.join(PG_WAL).join(name)
        };
        let read = Foresight::new(self.major, segment, self.size).read(&file(segment))?;
        let next = segment.next();
        let read = match read.goes_on() && self.segments.contains(&next) {
            true => read.follow(next).read(&file(next))?,
            false => read,
        };
        Ok(read.made_before(segment.end_lsn(self.size)))
    }
}

/// A segment that is being read, perhaps into the next one, and what its records make.
#[derive(Clone, Debug)]
pub(crate) struct Foresight {
    reader: RecordReader,
    size: WalSegmentSize,
    made: ToCome,
    /// Whether nothing more can be read: what recovery cannot read it does not replay.
    is_over: bool,
}

impl Foresight {
    pub(crate) fn new(major: Major, segment: WalSegment, size: WalSegmentSize) -> Self {
        Self {
            reader: RecordReader::new(major, segment, size),
            size,
            made: ToCome::default(),
            is_over: false,
        }
    }

    /// Takes the next bytes.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        if self.is_over {
            return;
        }
        let (made, size) = (&mut self.made, self.size.get());
        let sink = |record: WalRecord| match record.meaning {
            Meaning::TablespaceCreated { oid, location } => made.tablespaces.push(NewTablespace {
                at: record.start,
                segment_at: Lsn::new(record.start.get() - record.start.get() % size),
                oid,
                location: OsStr::from_bytes(&location).into(),
            }),
            Meaning::InitForkMade(fork) => made.init_forks.push((record.start, fork)),
            _ => {}
        };
        if let Err(error) = self.reader.feed(bytes, sink) {
            tracing::debug!("the rest of the segment is not looked at: {error}");
            self.is_over = true;
        }
    }

    /// Takes all of a file.
    fn read(mut self, file: &Path) -> Result<Self> {
        let about = || format!("could not read \"{}\"", file.display());
        let mut opened = File::open(file).context(about)?;
        let mut piece = vec![0; PIECE];
        while !self.is_over {
            let length = opened.read(&mut piece).context(about)?;
            if length == 0 {
                break;
            }
            self.take(&piece[..length]);
        }
        Ok(self)
    }

    /// Whether a record goes on behind what was read that may make something.
    pub(crate) fn goes_on(&self) -> bool {
        !self.is_over && self.reader.may_go_on_to_create()
    }

    /// Goes on in the segment that comes next.
    #[must_use]
    pub(crate) fn follow(mut self, next: WalSegment) -> Self {
        self.is_over |= self.reader.follow(next).is_err();
        self
    }

    /// What records make that begin before `end`.
    pub(crate) fn made_before(self, end: Lsn) -> ToCome {
        let mut made = self.made;
        made.retain(|at| at < end);
        made
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use jiff::Timestamp;
    use pgstrata_layer::cluster::{self, ClusterRecord};
    use pgstrata_layer::frame::Codec;
    use pgstrata_layer::keys::ClusterName;
    use pgstrata_layer::wal;
    use pgstrata_pgdata::Oid;
    use pgstrata_store::repository::Repository;

    const MAJOR: Major = Major::V15;

    /// An archive with that history of timeline 2.
    async fn with_history(text: &str) -> ClusterRepository {
        let name = ClusterName::parse("main").unwrap();
        let archive = ClusterRepository::new(&Repository::memory(), &name);
        let record = ClusterRecord {
            name: name.as_str().to_owned(),
            format: cluster::FORMAT,
            system_identifier: 1,
            major: 15,
            catalog_version: 202_209_061,
            block_size: 8192,
            wal_segment_size: 16 << 20,
            created_at: Timestamp::UNIX_EPOCH,
            written_by: "a test".to_owned(),
            sealing: None,
            retention: None,
        };
        let history = TimelineId::new(2).history_file_name();
        let file = wal::encode(&history, text.as_bytes(), 1, Codec::default()).unwrap();
        let objects = [
            (name.cluster_key(), cluster::encode(&record)),
            (name.wal_key(&history[..8], &history), file),
        ];
        for (key, object) in objects {
            let created = archive.repository.create(&key, object.into());
            created.await.unwrap();
        }
        archive
    }

    /// Two copies of a server that were promoted each began a timeline 2.
    #[tokio::test]
    async fn a_timeline_of_the_same_number_may_be_that_of_another_server() {
        let scratch = tempfile::tempdir().unwrap();
        let data = scratch.path();
        let (ours, theirs) = ("1\t0/3000000\tours\n", "1\t0/5000000\ttheirs\n");
        let two = TimelineId::new(2);
        fs::create_dir(data.join(PG_WAL)).unwrap();
        let held = [(two, Lsn::new(0x0600_0000))];
        for (own, archived, counts) in [
            (Some(ours), ours, true),
            (Some(ours), theirs, false),
            (None, theirs, true),
        ] {
            let file = data.join(PG_WAL).join(two.history_file_name());
            match own {
                Some(own) => fs::write(&file, own).unwrap(),
                None => fs::remove_file(&file).unwrap(),
            }
            let cluster = with_history(archived).await;
            let mut made = unlogged(7);
            keep_on_way(&cluster, data, &held, (two, &mut made))
                .await
                .unwrap();
            assert_eq!(!made.is_empty(), counts, "{own:?}, {archived}");
        }
    }

    /// Of a relation with that number.
    fn unlogged(relation: u32) -> ToCome {
        let init = RelationFork {
            tablespace: Oid::DEFAULT_TABLESPACE,
            database: Oid(5),
            relation: Oid(relation),
            fork: ForkKind::Init,
        };
        ToCome {
            init_forks: vec![(Lsn::new(9), init)],
            ..ToCome::default()
        }
    }

    /// A cluster that has these files in `base/5`.
    fn with_files(data: &Path, files: &[&str]) {
        fs::create_dir_all(data.join("base/5")).unwrap();
        for file in files {
            fs::write(data.join("base/5").join(file), b"x").unwrap();
        }
    }

    fn files(data: &Path) -> BTreeSet<String> {
        let files = fs::read_dir(data.join("base/5")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    /// What is removed when the record of relation 7's init fork comes.
    fn removed(data: &Path) -> BTreeSet<String> {
        let open = |directory: &str| File::open(data.join(directory));
        unlogged(7).remove_main_forks(MAJOR, open).unwrap()
    }

    #[test]
    fn a_removal_that_was_ended_in_its_middle_is_taken_up_again() {
        let data = tempfile::tempdir().unwrap();
        let data = data.path();
        assert!(removed(data).is_empty());
        let others = ["70", "8", "8.1"];
        with_files(data, &others);
        with_files(data, &["7", "7.1", "7.2", "7_fsm", "7_vm"]);
        let directory = File::open(data.join("base/5")).unwrap();
        let (_, init) = unlogged(7).init_forks[0];
        let order = in_the_way(&directory, init, MAJOR).unwrap();
        let expected = ["7_vm", "7_fsm", "7.2", "7.1", "7"].map(|name| format!("base/5/{name}"));
        assert_eq!(order, expected);
        fs::remove_file(data.join("base/5/7")).unwrap();
        assert_eq!(removed(data).len(), 4);
        assert!(files(data).iter().eq(&others));
        // It was known to be unlogged.
        with_files(data, &["7", "7.1", "7_init"]);
        assert!(removed(data).is_empty());
        assert_eq!(files(data).len(), 6);
    }

    #[test]
    fn rule_13_10_no_link_leads_a_removal_elsewhere() {
        let scratch = tempfile::tempdir().unwrap();
        let (data, outside) = (scratch.path().join("data"), scratch.path().join("outside"));
        fs::create_dir(&data).unwrap();
        with_files(&outside, &["7", "7.1"]);
        symlink(outside.join("base"), data.join("base")).unwrap();
        let root = File::open(&data).unwrap();
        let open = |directory: &str| beneath::directory(&root, Path::new(directory));
        assert!(unlogged(7).remove_main_forks(MAJOR, open).is_err());
        assert_eq!(files(&outside).len(), 2);
    }

    #[test]
    fn only_a_server_that_recovers_asks_for_a_segment() {
        let scratch = tempfile::tempdir().unwrap();
        let (data, away) = (scratch.path().join("data"), scratch.path().join("wal"));
        fs::create_dir(&data).unwrap();
        fs::create_dir(&away).unwrap();
        symlink(&away, data.join("pg_wal")).unwrap();
        assert!(is_asked_for(&data, Path::new("pg_wal/RECOVERYXLOG")));
        assert!(is_asked_for(&data, &away.join("RECOVERYXLOG")));
        for other in ["RECOVERYXLOG", "pg_wal/43", "pg_wal/none/RECOVERYXLOG"] {
            assert!(!is_asked_for(&data, Path::new(other)), "{other}");
        }
        assert!(!recovers(&data));
        for signal in ["recovery.signal", "standby.signal"] {
            fs::write(data.join(signal), b"").unwrap();
            assert!(recovers(&data));
            fs::remove_file(data.join(signal)).unwrap();
        }
    }

    #[test]
    fn a_history_goes_through_what_is_before_its_forks() {
        let text = "1\t0/3000000\tone\n3\t0/5000000\tother\n";
        let history = TimelineHistory::parse(TimelineId::new(4), text).unwrap();
        let is_on =
            |timeline: u32, at: u64| is_on(&history, TimelineId::new(timeline), Lsn::new(at));
        // The first segment of a timeline begins with WAL of the one before.
        for (timeline, at) in [(1, 0x2FF_FFFF), (3, 0x4FF_FFFF), (4, 1), (4, u64::MAX)] {
            assert!(is_on(timeline, at), "{timeline}: {at:X}");
        }
        for (timeline, at) in [(1, 0x300_0000), (3, 0x500_0000), (2, 1), (5, 1)] {
            assert!(!is_on(timeline, at), "{timeline}: {at:X}");
        }
    }

    #[test]
    fn a_tablespace_is_the_clusters_own_whatever_path_leads_there() {
        let scratch = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(scratch.path()).unwrap().join("real");
        let link = scratch.path().join("link");
        let files = real.join("ts").join(MAJOR.tablespace_directory());
        fs::create_dir_all(files.join("5")).unwrap();
        symlink(&real, &link).unwrap();
        let made = ToCome {
            tablespaces: vec![NewTablespace {
                at: Lsn::new(0x400_0028),
                segment_at: Lsn::new(0x400_0000),
                oid: 16400,
                location: link.join("ts"),
            }],
            ..ToCome::default()
        };
        let own = BTreeMap::from([(16400, real.join("ts"))]);
        made.require_fit(MAJOR, &own, &[]).unwrap();
        let refused = |own: BTreeMap<u32, PathBuf>| made.require_fit(MAJOR, &own, &[]).unwrap_err();
        let moved = refused(BTreeMap::from([(16400, real.join("moved"))]));
        assert!(moved.to_string().contains("no longer find it"));
        let of_others = refused(BTreeMap::new());
        let hint = of_others.hint_text().unwrap();
        assert!(hint.contains("a target before 0/4000000 "), "{hint}");
        made.require_fit(MAJOR, &BTreeMap::new(), &[real.join("ts")])
            .unwrap();
    }
}
