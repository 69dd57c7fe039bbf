//! What processes agree on, and who comes too late.

use std::sync::Barrier;

use super::super::destination::Layout;
use super::lead::directories_of;
use super::*;
use pgstrata_layer::restore_share::RestoredFile;

/// A data directory and a tablespace, as a leader has made them.
struct Scene {
    _scratch: tempfile::TempDir,
    roots: Vec<PathBuf>,
    work: RestoreWork,
}

fn root(path: &Path) -> Root {
    let (path, dir) = (path.to_owned(), File::open(path).unwrap());
    Root { path, dir }
}

fn desk(places: Vec<Root>, work: &RestoreWork, pid: u32) -> Desk {
    Desk {
        places,
        restore_id: work.restore_id.clone(),
        us: ClaimRecord {
            host: "db1".to_owned(),
            pid,
            ..our_claim(&work.label, &"0f".repeat(16), Timestamp::UNIX_EPOCH)
        },
    }
}

impl Scene {
    fn new() -> (Self, Desk) {
        let scratch = tempfile::tempdir().unwrap();
        let above = scratch.path().canonicalize().unwrap();
        let roots: Vec<PathBuf> = ["data", "tablespace"].map(|name| above.join(name)).to_vec();
        for root in &roots {
            fs::create_dir(root).unwrap();
        }
        let layout = Layout {
            data: roots[0].clone(),
            tablespaces: [(16_384, roots[1].clone())].into_iter().collect(),
            wal: None,
        };
        let work = RestoreWork {
            restore_id: "0e".repeat(16),
            cluster: "main".to_owned(),
            label: "20261121-093305F".to_owned(),
            manifest_digest: "0f".repeat(32),
            first_paths: vec!["PG_VERSION".to_owned()],
            ..directories_of(&layout).unwrap()
        };
        let places = roots.iter().map(|path| make_directory(&root(path), SHARES));
        let leader = desk(places.map(Result::unwrap).collect(), &work, 1);
        leader.publish(&work).unwrap();
        let scene = Self {
            _scratch: scratch,
            roots,
            work,
        };
        (scene, leader)
    }

    fn helper(&self, pid: u32) -> Desk {
        let (places, work) = help::find_work(&self.roots[0]).unwrap().unwrap();
        assert_eq!(work, self.work);
        desk(places, &work, pid)
    }

    fn done(&self, attempt: u32, pid: u32) -> RestoreShareDone {
        RestoreShareDone {
            restore_id: self.work.restore_id.clone(),
            number: 0,
            attempt,
            host: "db1".to_owned(),
            pid,
            pages: 0,
            written_bytes: 0,
            fetched_bytes: 0,
            frames: 0,
            files: vec![RestoredFile {
                path: "PG_VERSION".to_owned(),
                modified: 0,
                size_bytes: 3,
                crc: 7,
            }],
        }
    }
}

#[test]
fn one_of_many_gets_a_share() {
    let (scene, _leader) = Scene::new();
    let barrier = Barrier::new(8);
    let claimed: usize = thread::scope(|scope| {
        let all: Vec<_> = (0..8)
            .map(|pid| {
                let (desk, barrier) = (scene.helper(pid), &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    usize::from(desk.claim(0).unwrap())
                })
            })
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(claimed, 1);
    let left: Vec<_> = fs::read_dir(scene.roots[0].join(SHARES)).unwrap().collect();
    assert_eq!(
        left.len(),
        2,
        "what the shares are, and one claim: {left:?}"
    );
}

#[test]
fn one_outcome_of_a_share_counts() {
    let (scene, leader) = Scene::new();
    let helper = scene.helper(2);
    assert!(helper.claim(0).unwrap());
    assert!(!leader.claim(0).unwrap());
    helper.stage(0, 0).unwrap();
    leader.stage(0, 1).unwrap();
    assert!(leader.outcome(0).unwrap().is_none());
    assert!(leader.finish(&scene.done(1, 1)).unwrap());
    assert!(!helper.finish(&scene.done(0, 2)).unwrap());
    assert_eq!(leader.outcome(0).unwrap(), Some(scene.done(1, 1)));
}

#[test]
fn a_beat_is_seen() {
    let (scene, leader) = Scene::new();
    let helper = scene.helper(2);
    assert_eq!(leader.last_beat(0), None);
    assert!(helper.claim(0).unwrap());
    let first = leader.last_beat(0).unwrap();
    thread::sleep(Duration::from_millis(50));
    helper.beat(0).unwrap();
    assert!(leader.last_beat(0).unwrap() > first);
}

/// The crux: when its places are gone, nothing that a helper does reaches the directories of the restore,
/// not even when another restore has made places of the same names.
#[test]
fn who_comes_too_late_has_no_place_to_write() {
    let (scene, leader) = Scene::new();
    let helper = scene.helper(2);
    assert!(helper.claim(0).unwrap());
    let staging = helper.stage(0, 0).unwrap();
    for root in &scene.roots {
        remove(root).unwrap();
        assert_eq!(fs::read_dir(root).unwrap().count(), 0);
    }
    for again in [false, true] {
        if again {
            for path in &scene.roots {
                make_directory(&root(path), SHARES).unwrap();
            }
        }
        assert!(!helper.is_wanted().unwrap());
        assert_eq!(helper.check_wanted().unwrap_err().kind(), Kind::Refused);
        let flags = OFlags::CREATE | OFlags::WRONLY;
        for place in &staging {
            assert!(openat(&place.dir, "16384", flags, Mode::RUSR).is_err());
            assert!(mkdirat(&place.dir, "base", Mode::RWXU).is_err());
        }
        helper.stage(0, 1).unwrap_err();
        helper.claim(1).unwrap_err();
        helper.finish(&scene.done(0, 2)).unwrap_err();
        helper.beat(0).unwrap_err();
    }
    for root in &scene.roots {
        let left: Vec<_> = fs::read_dir(root).unwrap().flatten().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(fs::read_dir(left[0].path()).unwrap().count(), 0);
    }
    drop(leader);
}

#[test]
fn another_directory_of_a_tablespace_is_refused() {
    let (scene, _leader) = Scene::new();
    let place = scene.roots[1].join(SHARES);
    let other = RestoreWork {
        restore_id: "0d".repeat(16),
        ..scene.work.clone()
    };
    fs::write(place.join(WORK), restore_share::encode(&other)).unwrap();
    let refused = help::find_work(&scene.roots[0]).unwrap_err();
    assert_eq!(refused.kind(), Kind::Refused, "{refused}");
    fs::remove_dir_all(place).unwrap();
    let refused = help::find_work(&scene.roots[0]).unwrap_err();
    assert_eq!(refused.kind(), Kind::Refused, "{refused}");
}

#[test]
fn damaged_records_are_damage() {
    let (scene, leader) = Scene::new();
    let place = scene.roots[0].join(SHARES);
    fs::write(place.join(done_name(0)), b"done").unwrap();
    assert_eq!(leader.outcome(0).unwrap_err().kind(), Kind::Damaged);
    let other = RestoreShareDone {
        restore_id: "0d".repeat(16),
        ..scene.done(0, 2)
    };
    fs::write(place.join(done_name(0)), encode_done(&other)).unwrap();
    assert_eq!(leader.outcome(0).unwrap_err().kind(), Kind::Damaged);
    fs::write(place.join(WORK), b"work").unwrap();
    let damaged = help::find_work(&scene.roots[0]).unwrap_err();
    assert_eq!(damaged.kind(), Kind::Damaged);
}
