//! Files that are not what their names say: segments that no server has finished, and destinations that are no files.
//!
//! A standby whose primary was promoted within a segment has a file that ends there, under the name of a whole segment.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_pgdata::{Lsn, Major, RecordReader, WalPageHeader, WalSegment};
use pgstrata_store::archive::{
    self, FileRecords, Forks, GetOptions, PushOptions, PushOutcome, Pushed,
};
use pgstrata_store::error::{Error, Kind};
use pgstrata_store::repository::Repository;
use support::{ALONE, wal};

/// A segment of a real server, which ends with a switch.
struct Scene {
    repository: Repository,
    record: ClusterRecord,
    segment: WalSegment,
    whole: Vec<u8>,
    /// Where a record begins in its middle.
    fork: Lsn,
    pg_wal: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Self {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pgdata/tests/golden/15");
        let mut whole = fs::read(golden.join("wal_records")).unwrap();
        // Without what is behind the switch.
        whole.resize(1 << 20, 0);
        let name = fs::read_to_string(golden.join("wal_records_name")).unwrap();
        let segment = WalSegment::parse(name.trim_end(), wal::size()).unwrap();
        let mut starts = Vec::new();
        RecordReader::new(Major::V15, segment, wal::size())
            .feed(&whole, |record| starts.push(record.start))
            .unwrap();
        let page = WalPageHeader::parse(&whole).unwrap();
        let record = wal::record_of(page.system_identifier, wal::MIB);
        let repository = Repository::memory();
        wal::init_as(&repository, &record).await;
        let scene = Self {
            repository,
            record,
            segment,
            whole,
            fork: starts[starts.len() / 2],
            pg_wal: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(scene.pg_wal.path().join("archive_status")).unwrap();
        scene.add_history(scene.fork);
        scene
    }

    fn name(&self) -> String {
        self.segment.file_name(wal::size())
    }

    fn path(&self) -> PathBuf {
        self.pg_wal.path().join(self.name())
    }

    fn add_history(&self, fork: Lsn) {
        let history = format!("{}\t{fork}\tno reason\n", self.segment.timeline);
        let path = self.pg_wal.path().join("00000009.history");
        fs::write(path, history).unwrap();
    }

    fn mark(&self, kind: &str) {
        let mark = format!("archive_status/{}.{kind}", self.name());
        fs::write(self.pg_wal.path().join(mark), b"").unwrap();
    }

    /// The segment up to the fork, in new files and in one that held other WAL before.
    fn unfinished(&self) -> [Vec<u8>; 2] {
        let start = self.segment.start_lsn(wal::size()).get();
        let kept = usize::try_from(self.fork.get() - start).unwrap();
        let in_new = [&self.whole[..kept], &vec![0; self.whole.len() - kept]].concat();
        let other = wal::contents(self.segment, wal::size(), 1);
        [in_new, [&self.whole[..kept], &other[kept..]].concat()]
    }

    async fn push(&self, path: &Path, options: &PushOptions) -> Result<PushOutcome, Error> {
        let cluster = wal::cluster_in(&self.repository);
        archive::push(&cluster, &self.record, path, options).await
    }

    async fn names(&self) -> Vec<String> {
        wal::names(&self.repository).await
    }
}

#[tokio::test]
async fn a_file_that_ends_where_its_timeline_was_left_is_not_stored() {
    let scene = Scene::new().await;
    for unfinished in scene.unfinished() {
        fs::write(scene.path(), unfinished).unwrap();
        // The server asks for it, and would ask for ever.
        scene.mark("ready");
        let outcome = scene.push(&scene.path(), &ALONE).await.unwrap();
        assert_eq!(outcome.pushed, Pushed::LeftOut);
        fs::remove_file(
            scene
                .pg_wal
                .path()
                .join(format!("archive_status/{}.ready", scene.name())),
        )
        .unwrap();
        scene.mark("done");
        let error = scene.push(&scene.path(), &ALONE).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Refused, "{error}");
        let said = error.to_string();
        assert!(said.contains("where timeline 9 leaves timeline"), "{said}");
        // As copied away by somebody.
        let copy = tempfile::tempdir().unwrap();
        for name in [scene.name(), "00000009.history".to_owned()] {
            fs::copy(scene.pg_wal.path().join(&name), copy.path().join(&name)).unwrap();
        }
        let copied = copy.path().join(scene.name());
        let error = scene.push(&copied, &ALONE).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Refused, "{error}");
        assert_eq!(scene.names().await, [""; 0]);
    }
}

#[tokio::test]
async fn nor_is_it_pushed_along_with_the_segment_before_it() {
    let scene = Scene::new().await;
    let [unfinished, _] = scene.unfinished();
    fs::write(scene.path(), unfinished).unwrap();
    scene.mark("ready");
    let (timeline, before) = (scene.segment.timeline.get(), scene.segment.number - 1);
    let path = wal::write(scene.pg_wal.path(), timeline, before, 1);
    let mut bytes = fs::read(&path).unwrap();
    bytes[24..32].copy_from_slice(&scene.whole[24..32]);
    fs::write(&path, bytes).unwrap();
    let options = PushOptions {
        neighbours: 4,
        ..ALONE
    };
    let outcome = scene.push(&path, &options).await.unwrap();
    assert!(outcome.neighbours.is_empty(), "{outcome:?}");
    assert_eq!(scene.names().await, [wal::file_name(timeline, before)]);
}

#[tokio::test]
async fn a_segment_that_goes_on_behind_the_fork_of_others_is_stored() {
    let scene = Scene::new().await;
    fs::write(scene.path(), &scene.whole).unwrap();
    scene.mark("ready");
    let outcome = scene.push(&scene.path(), &ALONE).await.unwrap();
    assert!(matches!(outcome.pushed, Pushed::Stored { .. }));
}

/// A fork behind which no record is whole: the last one may go on in the next segment, and be there in part.
#[tokio::test]
async fn what_cannot_be_told_is_refused_until_the_next_segment_has_begun() {
    let scene = Scene::new().await;
    fs::write(scene.path(), &scene.whole).unwrap();
    scene.mark("ready");
    let end = scene.segment.end_lsn(wal::size());
    scene.add_history(Lsn::new(end.get() - 8));
    let error = scene.push(&scene.path(), &ALONE).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    assert!(error.hint_text().unwrap().contains("has begun"), "{error}");
    let next = scene.segment.next();
    wal::write(scene.pg_wal.path(), next.timeline.get(), next.number, 1);
    let outcome = scene.push(&scene.path(), &ALONE).await.unwrap();
    assert!(matches!(outcome.pushed, Pushed::Stored { .. }));
}

/// A standby replays a switch before it has what is behind it.
#[tokio::test]
async fn a_file_is_no_whole_segment_before_what_is_behind_a_switch_has_come() {
    let scene = Scene::new().await;
    let forks = Forks::beside(scene.pg_wal.path()).unwrap();
    let fork = forks.before_end(scene.segment, wal::size());
    let is_whole = |bytes: &[u8]| {
        fs::write(scene.path(), bytes).unwrap();
        let read = FileRecords::read(&scene.path(), scene.segment, wal::size(), Major::V15);
        read.unwrap().are_whole(fork)
    };
    assert!(fork.is_some());
    assert!(is_whole(&scene.whole));
    let mut reused = scene.whole.clone();
    *reused.last_mut().unwrap() = 1;
    assert!(!is_whole(&reused));
    assert!(!is_whole(&scene.whole[..scene.whole.len() - 8192]));
    for unfinished in scene.unfinished() {
        assert!(!is_whole(&unfinished));
    }
}

/// A file would take the place of a device of the whole machine, for who may write there.
#[tokio::test]
async fn what_is_no_file_at_the_destination_stays_and_is_named() {
    let repository = wal::repository().await;
    let scratch = tempfile::tempdir().unwrap();
    wal::push(&repository, &wal::write(scratch.path(), 1, 1, 1))
        .await
        .unwrap();
    let at = |name: &str| scratch.path().join(name);
    fs::write(at("kept"), b"kept").unwrap();
    fs::create_dir(at("directory")).unwrap();
    std::os::unix::fs::symlink(at("kept"), at("link")).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), kind, mode, 0).unwrap();
    for (name, what) in [
        ("directory", "a directory"),
        ("link", "a link"),
        ("pipe", "a named pipe"),
    ] {
        let is = || fs::symlink_metadata(at(name)).unwrap().file_type();
        let was = is();
        for number in [1, 2] {
            let (file, options) = (wal::file_name(1, number), GetOptions::default());
            let cluster = wal::cluster_in(&repository);
            let got = archive::get(&cluster, &file, &at(name), &options).await;
            let error = got.unwrap_err();
            assert_eq!(error.kind(), Kind::File, "{error}");
            assert!(error.to_string().contains(what), "{error}");
        }
        assert_eq!(is(), was);
    }
    assert_eq!(fs::read(at("kept")).unwrap(), b"kept");
}
