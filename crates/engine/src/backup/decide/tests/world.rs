//! A simulated server, its repository, and what can happen to both. What decides is the code of the product.
//!
//! A directory has versions of pages, the list of all changes that ever made it what it is, a control file, summaries of
//! WAL, a page tracker, and the real lineage file.

use std::collections::BTreeSet;
use std::rc::Rc;

use futures::FutureExt as _;
use pgstrata_layer::changeset::page_selected;
use pgstrata_layer::label::Label;
use pgstrata_layer::lineage::{Lineage, Place};
use pgstrata_layer::manifest::ParentRef;
use pgstrata_pgdata::Lsn;
use pgstrata_store::catalog::Layer;

use super::super::backup_type;
use super::super::past::{
    ThisRun, believed, judge, lines_with, summaries_from_with, told_of_reset,
};
use super::super::source::stretches;
use super::directory::{
    Change, Control, Directory, Map, PAGES, PageState, SYSTEM, manifest, place,
};
use crate::server::lineage::Circumstances;

const LINE: &str = "the digest of a cluster record";

/// Of pages that nobody has changed.
const FIRST_LSN: u64 = 9_000;

/// Further than any history of a few events gets: WAL that changes no page.
pub(super) const FAR: u64 = 100_000;

/// What can happen. The directory that is worked with is the first one, or the second after `Other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happening {
    Work(usize),
    Backup,
    /// The first directory's state is taken between the backup's token and its copy of the pages.
    BackupTakenInside,
    /// Between its copy of the pages and its end a page is written past the server.
    BackupWrittenPast,
    /// An older copy of a page is put in its place, past the server, and `pgstrata.reset()` tells of it.
    WrittenPast,
    /// The state of the first directory is kept: by its storage, or as a copy of its files.
    Take,
    /// The storage is set back: all files are as they were, inodes too.
    Revert,
    /// The whole machine is set back, the running server with it.
    RevertMachine,
    /// After a crash of the server the kept files are copied over those that are there; newer files stay.
    FilesOver,
    /// The same by a tool that renames what it has written into place.
    FilesOverRenamed,
    /// A copy of files is opened, and goes on: other inodes. Where a state was kept, it is that with the
    /// newest of our own files, as when a copy takes long.
    Copy,
    /// A clone of the storage is opened, and goes on: the same inodes.
    CloneStorage,
    /// A copy follows the first directory.
    Standby,
    Promote,
    /// The oldest layer is restored in place; recovery ends on a new timeline.
    Restore,
    RestoreSameTimeline,
    Restart,
    RestartWithoutTracker,
    /// The operating system stops and starts.
    CrashOs,
    /// The newest layer expires.
    Expire,
    /// The newest two layers are merged.
    Merge,
    Other,
}

pub(super) const EVENTS: [Happening; 21] = [
    Happening::Work(0),
    Happening::Work(1),
    Happening::Backup,
    Happening::BackupTakenInside,
    Happening::Take,
    Happening::Revert,
    Happening::RevertMachine,
    Happening::FilesOver,
    Happening::FilesOverRenamed,
    Happening::Copy,
    Happening::CloneStorage,
    Happening::Standby,
    Happening::Promote,
    Happening::Restore,
    Happening::RestoreSameTimeline,
    Happening::Restart,
    Happening::RestartWithoutTracker,
    Happening::CrashOs,
    Happening::Expire,
    Happening::Merge,
    Happening::Other,
];

/// Which inodes a copy of files shares with the directory that it was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copies {
    Apart,
    /// Each lies at the top of a file system of its own, which does not know when files were made.
    AtOneInode,
    /// Files are linked, not copied.
    OfLinkedFiles,
}

/// A rule that is left out, so that a history must be found that needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftOut {
    Nothing,
    /// Which directory the file was written in.
    Directory,
    /// Which control file lay there.
    Control,
    /// In which boot of the operating system, while `fsync` is off.
    Boot,
    /// In which run of the server: it is believed whatever was started since.
    Run,
    /// Whether the tracker knows the token, after a restart.
    Token,
    /// The token from after the end: the layer's own is written.
    SecondToken,
    /// Whether the layer is listed.
    List,
    /// By contents, not by label alone.
    Digest,
    /// A restore removes the file.
    RestoreRemoves,
    /// What was listed before is forgotten when it is doubted.
    Forget,
    /// Summaries are believed that this run of the server has not written.
    Summaries,
    /// Whether it was a reset by which the tracker lost a token.
    Reset,
    /// Whether the tracker was reset since the layer's own token.
    OwnToken,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) tracker: bool,
    pub(super) fsync: bool,
    pub(super) copies: Copies,
    /// The tracker believes any map that it finds, and tracks without `fsync`: what else proves the past must do.
    pub(super) credulous: bool,
    pub(super) left_out: LeftOut,
}

pub(super) const AS_IT_IS: Config = Config {
    tracker: true,
    fsync: true,
    copies: Copies::Apart,
    credulous: false,
    left_out: LeftOut::Nothing,
};

/// A layer, and what it holds.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) layer: Layer,
    pub(super) pages: [PageState; PAGES],
    pub(super) past: Vec<u32>,
    pub(super) switches: String,
}

#[derive(Clone)]
pub(super) struct World {
    pub(super) config: Config,
    pub(super) directories: Vec<Directory>,
    /// What each directory comes back as when the operating system stops while `fsync` is off.
    pub(super) durable: Vec<Rc<Directory>>,
    pub(super) active: usize,
    pub(super) kept: Option<Rc<Directory>>,
    pub(super) layers: Vec<Rc<Made>>,
    pub(super) changes: Vec<Change>,
    pub(super) next: u32,
}

impl World {
    /// A server that runs, and has one full backup.
    pub(super) fn new(config: Config) -> Self {
        let directory = Directory {
            place: Rc::new(place(2, 3)),
            lineage: None,
            map: None,
            control: Control {
                redo: 10_000,
                clean: None,
            },
            pages: [PageState {
                version: 0,
                lsn: FIRST_LSN,
            }; PAGES],
            past: Vec::new(),
            lsn: 10_000,
            timeline: 1,
            switches: String::new(),
            summaries: BTreeSet::new(),
            summarized: Vec::new(),
            run: 0,
            boot: 0,
            tracks: config.tracker,
            follows: false,
        };
        let mut world = Self {
            config,
            durable: vec![Rc::new(directory.clone())],
            directories: vec![directory],
            active: 0,
            kept: None,
            layers: Vec::new(),
            changes: Vec::new(),
            next: 100,
        };
        world.start(0);
        world.durable[0] = Rc::new(world.directories[0].clone());
        world.back_up(0, Happening::Backup);
        world
    }

    pub(super) fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(super) fn here(&mut self) -> &mut Directory {
        &mut self.directories[self.active]
    }

    /// A server is started in a directory: it loads the map, or begins another one.
    pub(super) fn start(&mut self, at: usize) {
        let run = self.fresh();
        let (credulous, fsync) = (self.config.credulous, self.config.fsync);
        let directory = &mut self.directories[at];
        directory.run = run;
        let control = directory.control;
        directory.control.clean = None;
        if !directory.tracks {
            return;
        }
        let map = directory.map.take();
        let believed = map.filter(|map| {
            let bound = match map.clean {
                Some(stop) => control.clean == Some(stop),
                None => control.clean.is_none() && map.redo.contains(&control.redo),
            };
            credulous || fsync && bound
        });
        directory.map = Some(Map {
            clean: None,
            redo: [control.redo; 2],
            reset: believed.as_ref().is_some_and(|map| map.reset),
            tokens: believed.map_or_else(Vec::new, |map| map.tokens),
        });
    }

    /// It is stopped as it should be.
    pub(super) fn stop(&mut self, at: usize) {
        let stop = self.fresh();
        self.checkpoint(at);
        let directory = &mut self.directories[at];
        directory.control.clean = Some(stop);
        if directory.tracks
            && let Some(map) = &mut directory.map
        {
            map.clean = Some(stop);
        }
    }

    /// What follows this directory makes a restartpoint of it. A standby makes none itself.
    pub(super) fn checkpoint(&mut self, at: usize) {
        if self.directories[at].follows {
            return;
        }
        self.directories[at].lsn += 10;
        let redo = self.directories[at].lsn;
        for directory in &mut self.directories[at..] {
            if directory.lsn != redo && !(directory.follows && directory.lsn + 10 == redo) {
                continue;
            }
            directory.lsn = redo;
            if directory.tracks
                && let Some(map) = &mut directory.map
            {
                map.redo = [redo, directory.control.redo];
            }
            directory.control.redo = redo;
        }
    }

    pub(super) fn work(&mut self, at: usize, page: usize) {
        let number = self.fresh();
        let directory = &mut self.directories[at];
        directory.lsn += 10;
        let change = Change {
            number,
            page,
            timeline: directory.timeline,
            lsn: directory.lsn,
        };
        directory.apply(change);
        self.changes.push(change);
        self.replay();
    }

    /// The standby comes to where its primary is, while that has its past.
    pub(super) fn replay(&mut self) {
        let [primary, standby] = &mut self.directories[..] else {
            return;
        };
        let same = primary.past.starts_with(&standby.past) && primary.timeline == standby.timeline;
        if !standby.follows || !same {
            return;
        }
        let missing = primary.past[standby.past.len()..].to_vec();
        for number in missing {
            let change = self.changes.iter().find(|change| change.number == number);
            standby.apply(*change.unwrap());
        }
        standby.lsn = standby.lsn.max(primary.lsn);
    }

    pub(super) fn circumstances(&self, at: usize) -> Circumstances {
        let directory = &self.directories[at];
        Circumstances {
            system_identifier: SYSTEM,
            fsync: self.config.fsync,
            boot_id: Some(directory.boot.to_string()),
            server_run: Some(directory.run.to_string()),
        }
    }

    pub(super) fn make_token(&mut self, at: usize) -> Option<String> {
        let may = self.config.fsync || self.config.credulous;
        let token = self.fresh();
        let directory = &mut self.directories[at];
        let map = directory.map.as_mut();
        let map = map.filter(|_| directory.tracks && may)?;
        map.tokens.push((token, [false; PAGES]));
        Some(token.to_string())
    }

    /// An older copy of a page comes with its older LSN.
    pub(super) fn write_past(&mut self, at: usize) -> bool {
        let version = self.fresh();
        let directory = &mut self.directories[at];
        let map = directory.map.as_mut();
        let Some(map) = map.filter(|_| directory.tracks) else {
            return false;
        };
        map.tokens.clear();
        map.reset = true;
        directory.pages[0] = PageState {
            version,
            lsn: FIRST_LSN,
        };
        true
    }

    pub(super) fn back_up(&mut self, at: usize, event: Happening) {
        let token = self.make_token(at);
        let summaries_from = self.directories[at].summaries_written();
        self.checkpoint(at);
        let start = self.directories[at].control.redo;
        if event == Happening::BackupTakenInside {
            self.kept = Some(Rc::new(self.directories[0].clone()));
            self.work(at, 0);
        }
        let pages = self.directories[at].pages;
        if event == Happening::BackupWrittenPast {
            self.write_past(at);
        }
        if !self.directories[at].follows {
            self.directories[at].lsn += 10;
            self.replay();
        }
        let directory = &mut self.directories[at];
        directory.summarize();
        let mut labels = (0..).map(|second| format!("20261121-0933{second:02}F"));
        let label = labels.find(|label| !self.layers.iter().any(|made| made.label() == label));
        let label = label.unwrap();
        let digest = format!("{:064x}", self.fresh());
        let directory = &self.directories[at];
        let manifest = manifest(directory, &label, start, token.clone());
        let layer = Layer {
            label: Label::parse(&label).unwrap(),
            manifest,
            manifest_digest: digest,
        };
        let made = Made {
            pages,
            past: directory.past.clone(),
            switches: directory.switches.clone(),
            layer,
        };
        self.remember(at, made.layer.reference(), (token, summaries_from));
        self.layers.push(Rc::new(made));
    }

    /// With a token from before the start, and from where on summaries were written since then.
    pub(super) fn remember(
        &mut self,
        at: usize,
        layer: ParentRef,
        (first, summaries_from): (Option<String>, Option<Lsn>),
    ) {
        let known = match self.config.left_out {
            LeftOut::Forget => self.directories[at]
                .lineage
                .as_deref()
                .cloned()
                .ok_or_else(String::new),
            _ => self.known(at),
        };
        let now = self.circumstances(at);
        let summaries_from_lsn = summaries_from_with(&known, &now, summaries_from);
        let lines = lines_with(known, &now, LINE, layer);
        let second = self.make_token(at);
        let token = match self.config.left_out {
            LeftOut::SecondToken => first,
            _ => second,
        };
        let directory = &mut self.directories[at];
        let place = (*directory.place).clone();
        directory.lineage = Some(Rc::new(Lineage {
            summaries_from_lsn,
            ..now.lineage(place, lines, token)
        }));
    }

    /// What the product finds, with one rule left out.
    fn found(&self, at: usize) -> (Option<(Lineage, Place)>, Circumstances) {
        let directory = &self.directories[at];
        let mut now = self.circumstances(at);
        let found = directory.lineage.as_deref().map(|lineage| {
            let mut place = (*directory.place).clone();
            match self.config.left_out {
                LeftOut::Directory => place.directory = lineage.place.directory.clone(),
                LeftOut::Control => place.control = lineage.place.control,
                LeftOut::Boot => now.boot_id.clone_from(&lineage.boot_id),
                LeftOut::Run => now.server_run.clone_from(&lineage.server_run),
                _ => {}
            }
            (lineage.clone(), place)
        });
        (found, now)
    }

    /// Why summaries since the layer are not believed.
    pub(super) fn summaries_doubt(&self, at: usize, made: &Made) -> Option<String> {
        if self.config.left_out == LeftOut::Summaries {
            return None;
        }
        let (found, now) = self.found(at);
        ThisRun::of(found, &now).summaries_doubt(made.layer.manifest.start_lsn)
    }

    /// What the tracker answers about a token.
    fn answer(&self, at: usize, token: &str) -> Option<String> {
        let (directory, left_out) = (&self.directories[at], self.config.left_out);
        if left_out == LeftOut::Token || directory.knows(token) {
            return None;
        }
        let reset = directory.map.as_ref().is_some_and(|map| map.reset);
        let why = match reset && left_out != LeftOut::Reset {
            true => "unknown because it was reset by role \"dba\"",
            false => "unknown",
        };
        Some(why.to_owned())
    }

    /// What the product knows of a directory's past.
    pub(super) fn known(&self, at: usize) -> Result<Lineage, String> {
        let (found, now) = self.found(at);
        let tracks = self.directories[at].tracks;
        let ask = tracks.then_some(async |token: &str| Ok(self.answer(at, token)));
        believed(found, &now, ask).now_or_never().unwrap()
    }

    /// Whether the tracker was reset since the layer was begun, as far as its own token tells.
    fn is_reset_since(&self, at: usize, made: &Made) -> bool {
        let Some(token) = made.layer.manifest.tracker_token.as_deref() else {
            return false;
        };
        let answer = match self.directories[at].tracks {
            true => Ok(self.answer(at, token)),
            false => Err("it is off".to_owned()),
        };
        self.config.left_out != LeftOut::OwnToken && told_of_reset(answer).is_some()
    }

    /// Another directory, made of the first one's files.
    pub(super) fn open_copy(&mut self, of: Directory, place: Rc<Place>) -> bool {
        if self.directories.len() > 1 {
            return false;
        }
        let copy = Directory {
            place,
            follows: false,
            ..of
        };
        self.durable.push(Rc::new(copy.clone()));
        self.directories.push(copy);
        self.start(1);
        true
    }

    pub(super) fn place_of_copy(&mut self) -> Rc<Place> {
        let old = Rc::clone(&self.directories[0].place);
        let (top, file) = (self.fresh(), self.fresh());
        let mut new = place(u64::from(top), u64::from(file));
        match self.config.copies {
            Copies::Apart => {}
            Copies::AtOneInode => new.directory = old.directory.clone(),
            Copies::OfLinkedFiles => new.control = old.control,
        }
        Rc::new(new)
    }

    /// Whether it can happen now, and then that it has.
    pub(super) fn happens(&mut self, event: Happening) -> bool {
        let at = self.active;
        match event {
            Happening::Work(_) | Happening::BackupTakenInside if self.here().follows => {
                return false;
            }
            Happening::Work(page) => self.work(at, page),
            Happening::Backup | Happening::BackupTakenInside | Happening::BackupWrittenPast => {
                self.back_up(at, event);
            }
            Happening::WrittenPast => return self.write_past(at),
            Happening::Take => self.kept = Some(Rc::new(self.directories[0].clone())),
            Happening::Revert
            | Happening::RevertMachine
            | Happening::FilesOver
            | Happening::FilesOverRenamed => {
                return self.bring_back(event);
            }
            Happening::Copy => {
                let now = self.directories[0].clone();
                let place = self.place_of_copy();
                let kept = self.kept.as_deref().cloned();
                let of = kept.map_or_else(
                    || now.clone(),
                    |kept| Directory {
                        lineage: now.lineage.clone(),
                        map: now.map.clone(),
                        ..kept
                    },
                );
                return self.open_copy(of, place);
            }
            Happening::CloneStorage => {
                let of = self.directories[0].clone();
                let place = Rc::clone(&of.place);
                return self.open_copy(of, place);
            }
            Happening::Standby => {
                let of = self.directories[0].clone();
                let place = self.place_of_copy();
                let opened = !of.follows && self.open_copy(of, place);
                if opened {
                    self.directories[1].follows = true;
                }
                return opened;
            }
            Happening::Promote if !self.here().follows => return false,
            Happening::Promote => self.here().switch(),
            Happening::Restore | Happening::RestoreSameTimeline => return self.restore(event),
            Happening::Restart | Happening::RestartWithoutTracker => {
                self.stop(at);
                self.here().tracks = event == Happening::Restart;
                self.start(at);
            }
            Happening::CrashOs => self.crash_os(at),
            Happening::Expire => return self.layers.pop().is_some(),
            Happening::Merge => return self.merge(),
            Happening::Other if self.directories.len() < 2 => return false,
            Happening::Other => self.active = 1 - at,
        }
        true
    }

    /// An earlier state of the first directory comes back.
    pub(super) fn bring_back(&mut self, event: Happening) -> bool {
        let Some(kept) = self.kept.clone() else {
            return false;
        };
        let now = self.directories[0].clone();
        let mut back = (*kept).clone();
        if event == Happening::RevertMachine {
            self.directories[0] = back;
            return true;
        }
        (back.boot, back.tracks) = (now.boot, now.tracks);
        match event {
            Happening::FilesOver => {
                back.place = Rc::clone(&now.place);
                back.lineage = now.lineage.clone().or(back.lineage);
                back.map = back.map.or(now.map);
                // PostgreSQL takes newer summaries for those of the WAL that is yet to come.
                back.summaries.extend(&now.summaries);
                back.summarized.extend(&now.summarized);
            }
            Happening::FilesOverRenamed => {
                let file = u64::from(self.fresh());
                let mut place = (*now.place).clone();
                place.control = super::directory::place(0, file).control;
                back.place = Rc::new(place);
                back.lineage = back.lineage.or(now.lineage);
                back.map = back.map.or(now.map);
            }
            _ => {}
        }
        self.directories[0] = back;
        self.start(0);
        true
    }

    pub(super) fn restore(&mut self, event: Happening) -> bool {
        let Some(oldest) = self.layers.first().cloned() else {
            return false;
        };
        let at = self.active;
        let file = u64::from(self.fresh());
        let mut place = (*self.directories[at].place).clone();
        place.control = super::directory::place(0, file).control;
        let mut now = self.circumstances(at);
        now.server_run = None;
        let manifest = &oldest.layer.manifest;
        let directory = &mut self.directories[at];
        if self.config.left_out == LeftOut::RestoreRemoves {
            // Not even seen to be another one's.
            place = (*directory.place).clone();
        } else {
            let lineage = now.lineage(place.clone(), Vec::new(), None);
            directory.lineage = Some(Rc::new(lineage));
            directory.map = None;
        }
        directory.place = Rc::new(place);
        directory.control = Control {
            redo: manifest.start_lsn.get(),
            clean: None,
        };
        directory.pages = oldest.pages;
        directory.past.clone_from(&oldest.past);
        directory.lsn = manifest.stop_lsn.get();
        directory.timeline = manifest.timeline.get();
        directory.switches.clone_from(&oldest.switches);
        directory.summaries.clear();
        directory.summarized.clear();
        directory.follows = false;
        for number in &directory.past {
            let change = self.changes.iter().find(|change| change.number == *number);
            let change = change.unwrap();
            directory.pages[change.page] = PageState {
                version: change.number,
                lsn: change.lsn,
            };
        }
        if event == Happening::Restore {
            directory.switch();
        }
        self.start(at);
        true
    }

    pub(super) fn crash_os(&mut self, at: usize) {
        let boot = self.fresh();
        let directory = &mut self.directories[at];
        if !self.config.fsync {
            let lost = directory.clone();
            *directory = (*self.durable[at]).clone();
            // We sync our own, and a tracker that tracks all the same would, too.
            directory.lineage = lost.lineage;
            directory.map = lost.map;
            directory.tracks = lost.tracks;
        }
        directory.boot = boot;
        self.start(at);
        self.durable[at] = Rc::new(self.directories[at].clone());
    }

    pub(super) fn merge(&mut self) -> bool {
        let count = self.layers.len();
        let Some([_, newest]) = self.layers.get(count.wrapping_sub(2)..) else {
            return false;
        };
        let mut manifest = newest.layer.manifest.clone();
        manifest.label = format!("20261122-0933{:02}F", count);
        manifest.replaces.insert(0, newest.layer.reference());
        let merged = Made {
            layer: Layer {
                label: Label::parse(&manifest.label).unwrap(),
                manifest,
                manifest_digest: format!("{:064x}", self.next + 1),
            },
            pages: newest.pages,
            past: newest.past.clone(),
            switches: newest.switches.clone(),
        };
        self.fresh();
        self.layers.truncate(count - 2);
        self.layers.push(Rc::new(merged));
        true
    }

    /// Whether a backup of that directory that starts so far on stands upon the layer without comparing.
    pub(super) fn stands(&self, at: usize, made: &Made, further: u64) -> bool {
        let now = self.directories[at].standpoint(further);
        if backup_type::doubt(&made.layer.manifest, &now).is_some() {
            return false;
        }
        let mut parent = made.layer.clone();
        let known = self.known(at);
        match (self.config.left_out, &known) {
            (LeftOut::List, Ok(_)) => return true,
            (LeftOut::Digest, Ok(lineage)) => {
                let mut listed = lineage.layers();
                if let Some(listed) = listed.find(|listed| listed.label == parent.label.as_str()) {
                    parent.manifest_digest.clone_from(&listed.manifest_digest);
                }
            }
            _ => {}
        }
        judge(known, &parent).is_none() && !self.is_reset_since(at, made)
    }

    /// What is wrong with standing upon the layer; `None` when nothing is.
    pub(super) fn wrong(&self, at: usize, made: &Made, further: u64) -> Option<String> {
        let directory = &self.directories[at];
        let manifest = &made.layer.manifest;
        if !directory.past.starts_with(&made.past) {
            return Some("the parent is not in the past".to_owned());
        }
        let stretches = stretches(manifest, &directory.standpoint(further));
        for (page, then) in made.pages.iter().enumerate() {
            let now = directory.pages[page];
            if now.version == then.version {
                continue;
            }
            let mut unseen = Vec::new();
            if !page_selected(Lsn::new(now.lsn), manifest.start_lsn) {
                unseen.push("lsn");
            }
            let summarized = |&(timeline, lsn, changed): &(u32, u64, usize)| {
                let mut stretches = stretches.iter().flatten();
                changed == page
                    && stretches.any(|part| {
                        part.timeline.get() == timeline && part.range.contains(&Lsn::new(lsn))
                    })
            };
            // A standby's changes after its last restartpoint come out of the WAL of the backup.
            let replayed = now.lsn >= directory.standpoint(further).start_lsn.get();
            let believed = || self.summaries_doubt(at, made).is_none();
            if !replayed && !directory.summaries.iter().any(summarized) && believed() {
                unseen.push("summary");
            }
            let token = manifest.tracker_token.as_deref();
            if let Some(token) = token.filter(|token| directory.knows(token))
                && directory.marks(token).is_none_or(|marks| !marks[page])
            {
                unseen.push("tracker");
            }
            if !unseen.is_empty() {
                return Some(format!("{unseen:?} does not see page {page}"));
            }
        }
        None
    }
}

impl Made {
    pub(super) fn label(&self) -> &str {
        self.layer.label.as_str()
    }
}
