//! Every short history of a simulated server against the decision itself: a layer is stood upon without comparing pages
//! only when it lies in the directory's past, and every source then sees each page that differs from the layer's.
//!
//! The simulated directory has versions of pages, the list of all changes that ever made it what it is, a control file,
//! summaries of WAL, a page tracker, and the real lineage file. It is worked upon, backed up, copied and brought back.
//! After each event each layer of the repository is taken as a parent of each directory. What decides is the code of
//! the product. Each of its rules is then left out, and a history must be found in which that goes wrong.

mod directory;
mod resets;
mod world;

use world::{AS_IT_IS, Config, Copies, EVENTS, FAR, Happening, LeftOut, World};

/// What a search has seen.
#[derive(Default, Debug)]
struct Seen {
    histories: u64,
    stood: u64,
    compared: u64,
    trail: Vec<Happening>,
}

impl Seen {
    /// Tries every history of at most so many further events. The first that goes wrong ends it.
    fn search(&mut self, world: &World, events: &[Happening], depth: usize) -> Option<String> {
        self.histories += 1;
        for at in 0..world.directories.len() {
            for made in &world.layers {
                for further in [0, FAR] {
                    if !world.stands(at, made, further) {
                        self.compared += 1;
                        continue;
                    }
                    self.stood += 1;
                    if let Some(why) = world.wrong(at, made, further) {
                        let (label, trail) = (made.label(), &self.trail);
                        return Some(format!("{trail:?}: directory {at} on {label}: {why}"));
                    }
                }
            }
        }
        if depth == 0 {
            return None;
        }
        for &event in events {
            let mut next = world.clone();
            if !next.happens(event) {
                continue;
            }
            self.trail.push(event);
            if let Some(found) = self.search(&next, events, depth - 1) {
                return Some(found);
            }
            self.trail.pop();
        }
        None
    }
}

/// The shortest history of at most so many events in which a layer is stood upon wrongly.
fn shortest(config: Config, events: &[Happening], depth: usize) -> Option<String> {
    let world = World::new(config);
    (0..=depth).find_map(|depth| Seen::default().search(&world, events, depth))
}

/// Tries them all, and says how many there were.
fn require_never_wrong(config: Config, events: &[Happening], depth: usize) -> Seen {
    let mut seen = Seen::default();
    let wrong = seen.search(&World::new(config), events, depth);
    assert_eq!(wrong, None, "{config:?}");
    println!(
        "{} histories: stood {} times, compared {} times; {config:?}",
        seen.histories, seen.stood, seen.compared
    );
    assert!(seen.stood > seen.histories / 4, "{seen:?}");
    assert!(seen.compared > seen.histories / 4, "{seen:?}");
    seen
}

const DEPTH: usize = 5;

#[test]
fn no_history_of_a_tracked_server_makes_a_layer_of_another_past_a_parent() {
    require_never_wrong(AS_IT_IS, &EVENTS, DEPTH);
}

#[test]
fn no_history_of_a_server_without_tracker_makes_a_layer_of_another_past_a_parent() {
    for fsync in [true, false] {
        let tracker = false;
        let config = Config {
            tracker,
            fsync,
            ..AS_IT_IS
        };
        require_never_wrong(config, &EVENTS, DEPTH);
    }
}

/// Of two copies one inode may be the same. What tells them is not the tracker: here it believes any map that it finds.
const COPIED: [Happening; 9] = [
    Happening::Work(0),
    Happening::Work(1),
    Happening::Backup,
    Happening::BackupTakenInside,
    Happening::Take,
    Happening::Copy,
    Happening::Standby,
    Happening::Promote,
    Happening::Other,
];

fn credulous(copies: Copies) -> Config {
    Config {
        credulous: true,
        copies,
        ..AS_IT_IS
    }
}

#[test]
fn a_copy_is_told_by_its_inodes_whatever_the_tracker_believes() {
    for copies in [Copies::Apart, Copies::AtOneInode, Copies::OfLinkedFiles] {
        require_never_wrong(credulous(copies), &COPIED, DEPTH);
    }
}

const UNSYNCED: [Happening; 4] = [
    Happening::Work(0),
    Happening::Backup,
    Happening::CrashOs,
    Happening::Restart,
];

fn unsynced() -> Config {
    Config {
        fsync: false,
        ..credulous(Copies::Apart)
    }
}

#[test]
fn what_was_not_synced_is_told_by_the_boot_whatever_the_tracker_believes() {
    require_never_wrong(unsynced(), &UNSYNCED, DEPTH);
}

const RESTORED: [Happening; 5] = [
    Happening::Work(0),
    Happening::Work(1),
    Happening::Backup,
    Happening::Restore,
    Happening::RestoreSameTimeline,
];

#[test]
fn a_restored_directory_has_no_past_whatever_the_tracker_believes() {
    require_never_wrong(credulous(Copies::Apart), &RESTORED, DEPTH);
}

const WRITTEN_PAST: [Happening; 5] = [
    Happening::Work(0),
    Happening::Backup,
    Happening::BackupWrittenPast,
    Happening::WrittenPast,
    Happening::Restart,
];

#[test]
fn what_is_written_past_the_server_is_compared_when_the_tracker_was_told() {
    require_never_wrong(AS_IT_IS, &WRITTEN_PAST, DEPTH);
}

/// A rule without which nothing goes wrong is none, or the search does not see what it is for.
#[test]
fn without_any_one_of_the_rules_a_history_goes_wrong() {
    let untracked = Config {
        tracker: false,
        ..AS_IT_IS
    };
    let rules: [(LeftOut, Config, &[Happening]); 13] = [
        (
            LeftOut::Directory,
            credulous(Copies::OfLinkedFiles),
            &COPIED,
        ),
        (LeftOut::Control, credulous(Copies::AtOneInode), &COPIED),
        (LeftOut::Boot, unsynced(), &UNSYNCED),
        (LeftOut::Run, untracked, &EVENTS),
        (LeftOut::Token, AS_IT_IS, &EVENTS),
        (LeftOut::SecondToken, AS_IT_IS, &EVENTS),
        (LeftOut::List, AS_IT_IS, &EVENTS),
        (LeftOut::Digest, AS_IT_IS, &EVENTS),
        (LeftOut::RestoreRemoves, credulous(Copies::Apart), &RESTORED),
        (LeftOut::Forget, untracked, &EVENTS),
        (LeftOut::Summaries, AS_IT_IS, &EVENTS),
        (LeftOut::Reset, AS_IT_IS, &WRITTEN_PAST),
        (LeftOut::OwnToken, AS_IT_IS, &WRITTEN_PAST),
    ];
    for (left_out, config, events) in rules {
        let config = Config { left_out, ..config };
        let found = shortest(config, events, DEPTH);
        println!("without {left_out:?}: {found:?}");
        assert!(found.is_some(), "nothing goes wrong without {left_out:?}");
    }
}

/// The world after these events; each must be possible.
fn after(config: Config, events: &[Happening]) -> World {
    let mut world = World::new(config);
    for &event in events {
        assert!(world.happens(event), "{event:?} of {events:?}");
    }
    world
}

/// Which layers the first directory's next backup could stand upon without comparing, the oldest first.
fn stood_upon(config: Config, events: &[Happening]) -> Vec<bool> {
    let world = after(config, events);
    let layers = world.layers.iter();
    layers.map(|made| world.stands(0, made, FAR)).collect()
}

#[test]
fn in_plain_histories_every_layer_is_stood_upon() {
    use Happening::{Backup, BackupTakenInside, Merge, Restart, Work};
    let untracked = Config {
        tracker: false,
        ..AS_IT_IS
    };
    let plain: [&[Happening]; 3] = [
        &[Work(0), Backup, Work(1), Backup, Work(0)],
        &[Work(0), BackupTakenInside, Backup, Work(1), Backup],
        &[Backup, Work(0), Backup, Merge, Work(1)],
    ];
    for events in plain {
        for config in [AS_IT_IS, untracked] {
            let stood = stood_upon(config, events);
            assert!(stood.len() > 1);
            assert!(stood.iter().all(|stood| *stood), "{events:?}: {stood:?}");
        }
    }
    for config in [AS_IT_IS, untracked] {
        let world = after(config, &[Work(0), Backup, Work(1)]);
        let mut layers = world.layers.iter();
        assert!(layers.all(|made| world.summaries_doubt(0, made).is_none()));
    }
    let restarted = [Work(0), Backup, Restart, Work(1), Restart];
    assert_eq!(stood_upon(AS_IT_IS, &restarted), [true, true]);
    assert_eq!(stood_upon(untracked, &restarted), [false, false]);
    // One comparison, and the next is fast again.
    let compared = [Work(0), Backup, Restart, Work(1), Backup, Work(0)];
    assert_eq!(stood_upon(untracked, &compared), [false, false, true]);
}

#[test]
fn what_lies_before_a_state_that_came_back_is_still_stood_upon() {
    use Happening::{
        Backup, CloneStorage, Copy, CrashOs, FilesOver, Restore, Revert, RevertMachine, Standby,
        Take, Work,
    };
    let after = |last: &[Happening]| {
        let first = [Work(0), Backup, Take, Work(1), Backup];
        stood_upon(AS_IT_IS, &[&first[..], last].concat())
    };
    assert_eq!(after(&[]), [true, true, true]);
    assert_eq!(after(&[Revert]), [true, true, false]);
    assert_eq!(after(&[RevertMachine]), [true, true, false]);
    assert_eq!(after(&[CrashOs]), [true, true, true]);
    for copied in [Copy, CloneStorage, Standby] {
        assert_eq!(after(&[copied, Work(0)]), [true, true, true], "{copied:?}");
    }
    for gone in [FilesOver, Restore] {
        assert_eq!(after(&[gone]), [false, false, false], "{gone:?}");
    }
}
