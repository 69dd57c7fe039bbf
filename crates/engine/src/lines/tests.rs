//! Servers that come from each other, as a simulation that knows which layers lie in whose past.

use std::collections::{BTreeMap, BTreeSet};

use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_layer::retention::{self, Held, Policy};
use pgstrata_pgdata::wal::{WalSegment, WalSegmentSize};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::*;

const SIZE: u64 = 16 << 20;

const DAY: i64 = 24 * 3600;

/// A server and what of it is in the repository.
#[derive(Clone, Debug)]
struct Server {
    timeline: u32,
    /// The timelines it comes from, and where each was left.
    switches: Vec<(u32, u64)>,
    lsn: u64,
    /// Whether its WAL is archived, or only that of its backups.
    archives: bool,
    /// The layers in its past.
    past: Vec<usize>,
    /// When something of its timeline was stored last.
    stored: i64,
    /// When another timeline went on from this one.
    left: i64,
}

/// What servers have done, and when, in seconds.
#[derive(Debug)]
struct World {
    now: i64,
    servers: Vec<Server>,
    layers: Vec<Placed>,
    parents: Vec<Option<usize>>,
    segments: BTreeMap<(u32, u64), i64>,
    histories: Vec<(u32, String, i64)>,
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

impl World {
    fn new() -> Self {
        Self {
            now: 1_795_305_600,
            servers: vec![Server {
                timeline: 1,
                switches: Vec::new(),
                lsn: 3 * SIZE,
                archives: true,
                past: Vec::new(),
                stored: 0,
                left: 0,
            }],
            layers: Vec::new(),
            parents: Vec::new(),
            segments: BTreeMap::new(),
            histories: Vec::new(),
        }
    }

    fn days(&mut self, days: i64) {
        self.now += days * DAY;
    }

    fn store(&mut self, server: usize, segments: std::ops::Range<u64>) {
        self.now += 1;
        let server = &mut self.servers[server];
        for number in segments {
            self.segments.insert((server.timeline, number), self.now);
            server.stored = self.now;
        }
    }

    fn write(&mut self, server: usize, segments: u64) {
        let first = self.servers[server].lsn / SIZE;
        self.servers[server].lsn += segments * SIZE + 100;
        if self.servers[server].archives {
            self.store(server, first..self.servers[server].lsn / SIZE);
        }
    }

    fn backup(&mut self, server: usize, full: bool) {
        let start = self.servers[server].lsn;
        let segment = start / SIZE;
        self.store(server, segment..segment + 1);
        let server = &mut self.servers[server];
        let parent = server.past.last().copied().filter(|_| !full);
        server.lsn = (segment + 1) * SIZE;
        server.past.push(self.layers.len());
        self.parents.push(parent);
        self.layers.push(Placed {
            timeline: TimelineId::new(server.timeline),
            start: Lsn::new(start),
            stop: Lsn::new(start + 50),
            finished_at: at(self.now),
            usable: true,
        });
    }

    /// A new server goes on from there.
    fn fork(&mut self, from: usize, lsn: u64, archives: bool) -> usize {
        self.now += 1;
        let timeline = u32::try_from(self.servers.len()).unwrap() + 1;
        let parent = &mut self.servers[from];
        parent.left = self.now;
        let mut switches = parent.switches.clone();
        switches.push((parent.timeline, lsn));
        let own = TimelineId::new(parent.timeline);
        let past = parent.past.iter().copied().filter(|at| {
            let layer = &self.layers[*at];
            layer.timeline != own || layer.stop <= Lsn::new(lsn)
        });
        let text = switches
            .iter()
            .map(|(timeline, lsn)| format!("{timeline}\t{}\ttest\n", Lsn::new(*lsn)));
        self.histories.push((timeline, text.collect(), self.now));
        let server = Server {
            timeline,
            past: past.collect(),
            switches,
            lsn,
            archives,
            stored: self.now,
            left: 0,
        };
        self.servers.push(server);
        self.servers.len() - 1
    }

    fn archived(&self) -> ArchivedWal {
        let mut archived = ArchivedWal::new(WalSegmentSize::try_from(SIZE).unwrap());
        for (timeline, text, stored) in &self.histories {
            let history = TimelineHistory::parse(TimelineId::new(*timeline), text).unwrap();
            archived.add_history(history, at(*stored));
        }
        for ((timeline, number), stored) in &self.segments {
            let timeline = TimelineId::new(*timeline);
            let number = *number;
            archived.add_segment(WalSegment { timeline, number }, at(*stored));
        }
        archived
    }

    fn lines(&self) -> Lines {
        lines(&self.layers, &self.archived(), at(self.now), SILENCE)
    }

    fn alive(&self) -> Vec<u32> {
        let alive = self.lines().alive;
        alive.iter().map(|timeline| timeline.get()).collect()
    }

    fn held(&self) -> Vec<Held> {
        let mut held: Vec<Held> = Vec::new();
        for (layer, parent) in self.layers.iter().zip(&self.parents) {
            let time = layer.finished_at.to_zoned(jiff::tz::TimeZone::UTC);
            let time = time.datetime();
            held.push(Held {
                label: match parent {
                    Some(parent) => held[*parent].label.successor(LayerKind::Incremental, time),
                    None => Label::full(time),
                },
                parent: *parent,
                finished_at: layer.finished_at,
                replaced: false,
                merged: false,
                in_use: false,
                broken: false,
                hold: None,
                goes_on: false,
            });
        }
        held
    }

    fn kept(&self, policy: &Policy) -> Vec<bool> {
        let held = self.held();
        let plan = retention::plan(&held, &self.lines().lines, policy, at(self.now));
        plan.keep.iter().map(|why| !why.is_empty()).collect()
    }
}

fn keep_full(count: usize) -> Policy {
    Policy {
        keep_full: Some(count),
        ..Policy::default()
    }
}

/// The fault: the copy's backups took the place of the source's only one.
#[test]
fn a_source_keeps_its_only_base_while_a_copy_is_backed_up() {
    for archives in [true, false] {
        let mut world = World::new();
        world.servers[0].archives = archives;
        world.backup(0, true);
        world.write(0, 3);
        let copy = world.fork(0, world.servers[0].lsn, true);
        for _ in 0..3 {
            world.days(1);
            world.write(copy, 2);
            world.backup(copy, true);
        }
        world.write(0, 2);
        world.backup(0, false);
        assert_eq!(world.alive(), [1, 2]);
        let kept = world.kept(&keep_full(1));
        assert_eq!(kept, [true, false, false, true, true]);
        // The copy is thrown away, and its source goes on.
        world.days(41);
        world.write(0, 1);
        world.backup(0, true);
        let lines = world.lines();
        assert_eq!(world.alive(), [1]);
        assert_eq!(lines.given_up[0].0, TimelineId::new(2));
        let kept = world.kept(&keep_full(1));
        assert_eq!(kept, [false, false, false, false, false, true]);
    }
}

#[test]
fn a_timeline_that_ended_in_a_failover_is_no_line() {
    // All of its WAL was archived, and the last segment was not full.
    let mut world = World::new();
    world.backup(0, true);
    world.write(0, 3);
    let successor = world.fork(0, world.servers[0].lsn, true);
    world.write(successor, 1);
    assert_eq!(world.alive(), [2]);
    // The segment of the fork had been archived before.
    let mut world = World::new();
    world.backup(0, true);
    world.write(0, 3);
    let successor = world.fork(0, world.servers[0].lsn - SIZE / 2, true);
    assert_eq!(world.alive(), [2]);
    world.write(successor, 1);
    world.backup(successor, true);
    assert_eq!(world.kept(&keep_full(1)), [false, true]);
    // It archives one more: it lives.
    world.write(0, 1);
    assert_eq!(world.alive(), [1, 2]);
    assert_eq!(world.kept(&keep_full(1)), [true, true]);
}

#[test]
fn a_server_that_was_promoted_and_has_stored_nothing_keeps_what_it_came_from() {
    let mut world = World::new();
    world.backup(0, true);
    let base = world.layers[0].stop.get();
    world.write(0, 3);
    world.backup(0, true);
    world.fork(0, base + 10, true);
    world.backup(0, true);
    assert_eq!(world.kept(&keep_full(1)), [true, false, true]);
}

#[test]
fn the_last_line_is_never_given_up() {
    let mut world = World::new();
    world.backup(0, true);
    world.days(400);
    assert_eq!(world.alive(), [1]);
    let copy = world.fork(0, world.servers[0].lsn, true);
    world.write(copy, 1);
    world.write(0, 1);
    world.days(400);
    assert_eq!(world.alive(), [1]);
}

fn act(world: &mut World, random: &mut StdRng) {
    let server = random.random_range(0..world.servers.len());
    match random.random_range(0..20) {
        0..6 => world.write(server, random.random_range(1..4)),
        6..13 => world.backup(server, random.random_bool(0.5)),
        13..15 if world.servers.len() < 6 => {
            // Where it is now, or where it was after a backup.
            let own = TimelineId::new(world.servers[server].timeline);
            let past = world.servers[server].past.iter();
            let stops = past.map(|at| world.layers[*at]);
            let stops = stops.filter(|layer| layer.timeline == own);
            let mut points: Vec<u64> = stops.map(|layer| layer.stop.get() + 10).collect();
            points.push(world.servers[server].lsn);
            let lsn = points[random.random_range(0..points.len())];
            world.fork(server, lsn, random.random_bool(0.7));
        }
        15..18 => world.days(random.random_range(0..4)),
        18 => world.days(random.random_range(0..50)),
        _ => world.servers[server].archives = random.random_bool(0.7),
    }
}

/// What a rule promises to one server, by the layers that are truly in its past.
fn promised(world: &World, server: &Server, policy: &Policy) -> BTreeSet<usize> {
    let past = &server.past;
    let mut promised: BTreeSet<usize> = past.last().copied().into_iter().collect();
    if let Some(count) = policy.keep_full {
        let mut full = past.iter().rev().filter(|at| world.parents[**at].is_none());
        let since = full.nth(count - 1).copied().unwrap_or(0);
        promised.extend(past.iter().filter(|at| **at >= since));
    }
    if let Some(within) = policy.keep_within {
        let cut = at(world.now - within.as_secs());
        let finished = |at: &&usize| world.layers[**at].finished_at;
        promised.extend(past.iter().filter(|at| finished(at) >= cut));
        promised.extend(past.iter().rfind(|at| finished(at) < cut));
    }
    for at in (0..world.layers.len()).rev() {
        if promised.contains(&at) {
            promised.extend(world.parents[at]);
        }
    }
    promised
}

/// Whatever servers come from each other, in whatever order they are backed up, archive, are silent.
#[test]
fn every_server_that_goes_on_keeps_what_the_rules_promise() {
    let seed = std::env::var("SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("seed {seed}: SEED={seed} repeats it");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut several, mut removed, mut given_up) = (0, 0, 0);
    for round in 0..3000 {
        let mut world = World::new();
        for _ in 0..random.random_range(5..40) {
            act(&mut world, &mut random);
        }
        let policy = match random.random_range(0..3) {
            0 => keep_full(random.random_range(1..4)),
            rule => Policy {
                keep_within: Some(SignedDuration::from_secs(random.random_range(1..60) * DAY)),
                keep_full: (rule == 1).then(|| random.random_range(1..4)),
                ..Policy::default()
            },
        };
        let kept = world.kept(&policy);
        // Of one whose timeline another has left, and which has stored nothing since, nobody can know that it goes on.
        let seen = |server: &&Server| {
            let age = world.now - server.stored;
            server.stored > server.left && age <= SILENCE.as_secs()
        };
        for server in world.servers.iter().filter(seen) {
            for at in promised(&world, server, &policy) {
                let timeline = server.timeline;
                assert!(
                    kept[at],
                    "round {round}: layer {at} of timeline {timeline}: {policy:?} {world:#?}"
                );
            }
        }
        let lines = world.lines();
        several += usize::from(lines.alive.len() > 1);
        given_up += lines.given_up.len();
        removed += kept.iter().filter(|kept| !**kept).count();
        if !kept.is_empty() {
            assert!(kept.contains(&true), "round {round}: {world:#?}");
        }
    }
    println!("{several} with several lines, {given_up} given up, {removed} layers removed");
    assert!(several > 100 && given_up > 100 && removed > 1000);
}
