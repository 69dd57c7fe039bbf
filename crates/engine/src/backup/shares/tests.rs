//! Leader and helpers without a server, on a store that fails.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use pgstrata_layer::changeset::Changes;
use pgstrata_layer::frame::FrameDecoder;
use pgstrata_layer::index::{IndexReader, digests_of};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::pack::verify_pack;
use pgstrata_pgdata::{Lsn, Major, TimelineId};
use tokio::runtime::{Handle, Runtime};

use super::*;
use crate::backup::abort::Abort;
use crate::backup::pipeline::Stored;
use crate::cluster::ScannedFile;
use crate::cluster::scan::scan;
use crate::progress::Progress;
use crate::repository::Repository;
use crate::repository::fault::{Fault, FaultStore};
use crate::shares::SharedOptions;

const LAYER_ID: [u8; 16] = [7; 16];
const BLOCK: usize = 8192;

/// A few relations, of pages that do not compress.
fn data_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("base/5")).unwrap();
    for relation in 0..9_usize {
        let contents: Vec<u8> = (0..relation * 3 * BLOCK)
            .map(|at| blake3::hash(&(at / 32 + relation).to_le_bytes()).as_bytes()[at % 32])
            .collect();
        let path = format!("base/5/{}", 16_384 + relation);
        fs::write(directory.path().join(path), contents).unwrap();
    }
    fs::write(directory.path().join("PG_VERSION"), "15\n").unwrap();
    directory
}

fn files_of(directory: &Path) -> Vec<ScannedFile> {
    scan(directory, Major::V15).unwrap().files
}

fn desk(repository: &Repository, runtime: &Handle, pid: u32) -> Desk {
    let mut desk = Desk::new(Destination {
        repository: repository.clone(),
        cluster: ClusterName::parse("main").unwrap(),
        label: Label::parse("20261121-093305F").unwrap(),
        layer_id: LAYER_ID,
        progress: Progress::default(),
        runtime: runtime.clone(),
    });
    desk.us.pid = pid;
    desk
}

fn maker(desk: Desk, directory: &Path) -> Maker {
    let directory = directory.to_owned();
    Maker::new(desk, Vec::new(), directory, (1, None), Abort::new())
}

fn lead(desk: Desk, directory: &Path) -> Lead {
    let template = Share {
        label: desk.us.label.clone(),
        layer_id: desk.us.layer_id.clone(),
        number: 0,
        count: 0,
        parent: None,
        system_identifier: 1,
        start_lsn: Lsn::new(1),
        timeline: TimelineId::FIRST,
        from_standby: false,
        version_identity: 0,
        checksums: false,
        check_page_headers: false,
        codec: "none".to_owned(),
        audit: None,
        changes: Changes::Unknown {
            reason: "a full backup".to_owned(),
        },
        files: Vec::new(),
    };
    let options = SharedOptions {
        count: 4,
        timeout: std::time::Duration::ZERO,
    };
    Lead::new(maker(desk, directory), options, template)
}

/// Every file is in the index, every page where the index says, every pack whole, and nothing else is there.
fn require_whole(desk: &Desk, stored: &Stored, directory: &Path) {
    let Destination {
        repository,
        cluster,
        label,
        ..
    } = &desk.destination;
    let get = |key: &str| desk.wait(repository.get(key)).unwrap();
    let mut bytes = 0;
    for number in 0..stored.pack_count {
        let pack = get(&cluster.pack_key(label, number));
        verify_pack(&pack, LAYER_ID, number, |_, _| Ok(())).unwrap();
        bytes += u64::try_from(pack.len()).unwrap();
    }
    assert_eq!(bytes, stored.pack_bytes);
    let mut paths = Vec::new();
    for (number, part) in (0..).zip(&stored.assembled.parts) {
        let index = get(&cluster.index_key(label, number));
        let digests = get(&cluster.digest_key(label, number));
        for entry in IndexReader::new(index, LAYER_ID, number, part).unwrap() {
            let entry = entry.unwrap();
            digests_of(&digests, LAYER_ID, number, &entry.page_digests).unwrap();
            let expected = fs::read(directory.join(&entry.path)).unwrap_or_default();
            let mut found = Vec::new();
            for frame in &entry.frames {
                let pack = get(&cluster.pack_key(label, frame.pack));
                let from = usize::try_from(frame.offset).unwrap();
                let frame_bytes = &pack[from..from + usize::try_from(frame.length).unwrap()];
                let mut raw = Vec::new();
                let mut decoder = FrameDecoder::new().unwrap();
                decoder
                    .decode(frame_bytes, Some(frame.checksum), &mut raw)
                    .unwrap();
                found.extend(raw);
            }
            assert_eq!(found, expected, "{}", entry.path);
            paths.push(entry.path);
        }
    }
    let listed: Vec<String> = files_of(directory).into_iter().map(|f| f.path).collect();
    assert_eq!(paths, listed);
    let left = desk.wait(repository.list(&cluster.shares_prefix(label)));
    assert!(left.unwrap().is_empty());
}

#[test]
fn whatever_operation_fails_the_layer_is_whole_or_the_backup_has_failed() {
    let (runtime, directory) = (Runtime::new().unwrap(), data_directory());
    let mut failed = 0;
    for nth in 0.. {
        let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let store = FaultStore::failing_at(nth, Fault::Before, Arc::clone(&memory));
        let repository = Repository::with_store(store.clone());
        let led = lead(desk(&repository, runtime.handle(), 1), directory.path())
            .run(files_of(directory.path()));
        match led {
            Ok(stored) if store.operation_count() <= nth => {
                let sound = desk(&Repository::with_store(memory), runtime.handle(), 1);
                require_whole(&sound, &stored, directory.path());
                break;
            }
            // What is left below "share" could not be removed, and that was said.
            Ok(_) => {}
            Err(_) => failed += 1,
        }
    }
    assert!(failed > 20, "{failed}");
}

#[test]
fn a_helper_that_comes_too_late_changes_nothing() {
    let (runtime, directory) = (Runtime::new().unwrap(), data_directory());
    let repository = Repository::memory();
    let (leader, helper) = (
        desk(&repository, runtime.handle(), 1),
        desk(&repository, runtime.handle(), 2),
    );
    let (cluster, label) = (
        helper.destination.cluster.clone(),
        helper.destination.label.clone(),
    );
    // It has claimed a share, and numbers for its packs, and then stops.
    assert!(
        helper
            .claim(&cluster.share_claim_key(&label, (2, 0)))
            .unwrap()
    );
    assert!(helper.claim(&cluster.share_packs_key(&label, 0)).unwrap());
    let led = lead(leader.clone(), directory.path());
    let stored = led.run(files_of(directory.path())).unwrap();
    let makers: Vec<u32> = stored.shares.iter().map(|share| share.pid).collect();
    assert_eq!(makers, [1, 1, 1, 1]);
    require_whole(&leader, &stored, directory.path());

    // It goes on: it finds out, and its numbers are taken.
    assert!(helper.share(2).unwrap().is_none());
    assert_eq!(helper.check_wanted().unwrap_err().kind(), Kind::Refused);
    let late = pgstrata_layer::pack::PackBuilder::new(LAYER_ID, 3, 100);
    let mut late = late.finish();
    late.push(0);
    let taken = helper.create(&cluster.pack_key(&label, 3), Bytes::from(late));
    assert!(!taken.unwrap());
    require_whole(&leader, &stored, directory.path());
}

#[test]
fn a_share_that_two_have_made_counts_once() {
    let (runtime, directory) = (Runtime::new().unwrap(), data_directory());
    let repository = Repository::memory();
    let helper = desk(&repository, runtime.handle(), 2);
    let (cluster, label) = (
        helper.destination.cluster.clone(),
        helper.destination.label.clone(),
    );
    // The share before the leader has cut it: as it will be, and made by the helper.
    let files = files_of(directory.path());
    let leader = desk(&repository, runtime.handle(), 1);
    let led = lead(leader.clone(), directory.path()).cut(files);
    led.publish().unwrap();
    assert!(
        helper
            .claim(&cluster.share_claim_key(&label, (1, 0)))
            .unwrap()
    );
    let share = helper.share(1).unwrap().unwrap();
    let maker = maker(helper, directory.path());
    assert!(maker.make(&share, 0).unwrap());
    assert!(!maker.make(&share, 1).unwrap(), "one outcome counts");
    let stored = led.make_all().unwrap();
    let makers: Vec<u32> = stored.shares.iter().map(|share| share.pid).collect();
    assert_eq!(makers, [1, 2, 1, 1]);
    require_whole(&leader, &stored, directory.path());
}
