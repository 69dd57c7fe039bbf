//! What is chosen, and what is refused.

use std::ops::RangeInclusive;

use pgstrata_pgdata::wal::WalSegmentSize;

use super::*;

const SEGMENT: u64 = 16 << 20;

fn lsn(segment: u64, offset: u64) -> Lsn {
    Lsn::new(segment * SEGMENT + offset)
}

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn layer(label: &str, timeline: u32, segment: u64, finished: i64) -> Candidate {
    Candidate {
        label: Label::parse(label).unwrap(),
        start: lsn(segment, 40),
        stop: lsn(segment, 1000),
        timeline: TimelineId::new(timeline),
        finished_at: second(finished),
        stamp: label.rsplit('_').next().unwrap()[..15].to_owned(),
        beside: None,
        from_standby: false,
    }
}

const A: &str = "20261121-090000F";
const B: &str = "20261121-090000F_20261121-100000I";
const C: &str = "20261121-090000F_20261121-110000I";

fn three() -> Vec<Candidate> {
    vec![
        layer(A, 1, 10, 10),
        layer(B, 1, 20, 20),
        layer(C, 1, 30, 30),
    ]
}

/// Segment n of the archive was stored at second n.
fn archive(parts: &[(u32, RangeInclusive<u64>)], histories: &[(u32, &str)]) -> ArchivedWal {
    let mut archive = ArchivedWal::new(WalSegmentSize::DEFAULT);
    for (timeline, numbers) in parts {
        for number in numbers.clone() {
            let timeline = TimelineId::new(*timeline);
            let time = second(i64::try_from(number).unwrap());
            archive.add_segment(WalSegment { timeline, number }, time);
        }
    }
    for (timeline, text) in histories {
        let history = TimelineHistory::parse(TimelineId::new(*timeline), text).unwrap();
        archive.add_history(history, second(i64::from(*timeline) * 100));
    }
    archive
}

struct Ask<'a> {
    target: Target,
    timeline: Option<TimelineChoice>,
    label: Option<&'a str>,
    lost: &'a [Lost],
    skip_damaged: bool,
    told: Told,
}

fn ask(target: Target) -> Ask<'static> {
    Ask {
        target,
        timeline: None,
        label: None,
        lost: &[],
        skip_damaged: false,
        told: Told::default(),
    }
}

fn choose(layers: &[Candidate], ask: &Ask<'_>, archive: &ArchivedWal) -> Result<Selection> {
    let label = ask.label.map(|label| Label::parse(label).unwrap());
    let request = Request {
        target: &ask.target,
        timeline: ask.timeline,
        label: label.as_ref(),
        lost: ask.lost,
        skip_damaged: ask.skip_damaged,
        told: &ask.told,
    };
    select(layers, &request, archive)
}

fn refused(layers: &[Candidate], ask: &Ask<'_>, archive: &ArchivedWal, kind: Kind, words: &str) {
    let error = choose(layers, ask, archive).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn the_newest_layer_whose_stop_is_before_the_target_is_chosen() {
    let archive = archive(&[(1, 10..=40)], &[]);
    for (target, expected) in [
        (Target::Default, C),
        (Target::Immediate, C),
        (Target::Standby, C),
        (Target::None, C),
        (Target::Xid(700), C),
        (Target::Lsn(lsn(30, 1000)), C),
        // The start of C is before this, its stop is not.
        (Target::Lsn(lsn(30, 999)), B),
        (Target::Lsn(lsn(10, 1000)), A),
        (Target::Time(second(31)), C),
        (Target::Time(second(30)), B),
    ] {
        let selection = choose(&three(), &ask(target.clone()), &archive).unwrap();
        assert_eq!(
            three()[selection.candidate].label.as_str(),
            expected,
            "{target}"
        );
    }
}

#[test]
fn a_clock_that_was_ahead_does_not_make_an_older_layer_the_newest() {
    let archive = archive(&[(1, 10..=40)], &[]);
    let mut layers = three();
    // Set right after the first backup; labels go on from the latest one all the same.
    layers[0].finished_at = second(500);
    for target in [Target::Default, Target::Immediate, Target::Standby] {
        let selection = choose(&layers, &ask(target.clone()), &archive).unwrap();
        assert_eq!(layers[selection.candidate].label.as_str(), C, "{target}");
    }
}

#[test]
fn a_target_before_the_first_backup_is_refused() {
    let archive = archive(&[(1, 10..=40)], &[]);
    let words = "before the first backup";
    refused(
        &three(),
        &ask(Target::Lsn(lsn(10, 999))),
        &archive,
        Kind::Target,
        words,
    );
    refused(
        &three(),
        &ask(Target::Time(second(9))),
        &archive,
        Kind::Target,
        words,
    );
}

#[test]
fn a_target_beyond_the_archive_is_refused() {
    let archive = archive(&[(1, 10..=40)], &[]);
    refused(
        &three(),
        &ask(Target::Lsn(lsn(41, 0))),
        &archive,
        Kind::Target,
        "beyond what is archived",
    );
    // When a segment was stored says nothing of what is in it.
    for at in [39, 41, 1001] {
        let time = ask(Target::Time(second(at)));
        assert!(choose(&three(), &time, &archive).is_ok());
    }
}

#[test]
fn a_partial_segment_at_the_end_is_named() {
    let mut archive = archive(&[(1, 10..=40)], &[]);
    let timeline = TimelineId::FIRST;
    let named = |archive: &ArchivedWal| {
        let selection = choose(&three(), &ask(Target::Default), archive).unwrap();
        let notes = selection.notes.into_iter();
        notes.filter(|note| note.contains(".partial")).count()
    };
    for (number, expected) in [(42, 0), (41, 1)] {
        archive.add_partial(WalSegment { timeline, number });
        assert_eq!(named(&archive), expected, "{number}");
    }
}

/// What the WAL says counts for more than what manifests say.
#[test]
fn what_the_wal_says_of_layers_decides() {
    let archive = archive(&[(1, 10..=40)], &[]);
    let chosen = |target: &Target, told: &Told| {
        let asked = Ask {
            told: told.clone(),
            ..ask(target.clone())
        };
        let selection = choose(&three(), &asked, &archive);
        selection.map(|selection| three()[selection.candidate].label.to_string())
    };
    let label = |text: &str| Label::parse(text).unwrap();
    let time = Target::Time(second(30));
    let found = Told {
        in_time: vec![label(C)],
        ..Told::default()
    };
    assert_eq!(chosen(&time, &Told::default()).unwrap(), B);
    assert_eq!(chosen(&time, &found).unwrap(), C);
    let found = Told {
        too_late: vec![label(B)],
        ..Told::default()
    };
    assert_eq!(chosen(&time, &found).unwrap(), A);
    for target in [Target::Xid(700), Target::Name("there".to_owned())] {
        for (stop, expected) in [
            (lsn(35, 0), C),
            (lsn(30, 1000), C),
            (lsn(30, 999), B),
            (lsn(10, 1000), A),
        ] {
            let found = Told {
                stop: Some(stop),
                ..Told::default()
            };
            assert_eq!(
                chosen(&target, &found).unwrap(),
                expected,
                "{target} {stop}"
            );
        }
        let before = Told {
            stop: Some(lsn(10, 999)),
            ..Told::default()
        };
        let error = chosen(&target, &before).unwrap_err().to_string();
        assert!(error.contains("before the first backup"), "{error}");
        let twice = Told {
            stop: Some(lsn(35, 0)),
            too_late: vec![label(C)],
            ..Told::default()
        };
        assert_eq!(chosen(&target, &twice).unwrap(), B, "{target}");
    }
}

#[test]
fn a_place_behind_a_gap_is_refused() {
    let gap = archive(&[(1, 10..=34), (1, 36..=40)], &[]);
    for (stop, reached) in [(lsn(34, 9), true), (lsn(36, 9), false)] {
        let asked = Ask {
            told: Told {
                stop: Some(stop),
                ..Told::default()
            },
            ..ask(Target::Xid(700))
        };
        let selection = choose(&three(), &asked, &gap);
        assert_eq!(selection.is_ok(), reached, "{stop}");
        let kinds = selection.err().map(|error| error.kind());
        assert!(matches!(kinds, None | Some(Kind::WalMissing)), "{kinds:?}");
    }
}

#[test]
fn a_gap_between_layer_and_target_is_refused() {
    let gap = archive(&[(1, 10..=34), (1, 36..=40)], &[]);
    let words = "000000010000000000000023 is missing";
    refused(
        &three(),
        &ask(Target::Default),
        &gap,
        Kind::WalMissing,
        words,
    );
    refused(
        &three(),
        &ask(Target::Lsn(lsn(36, 0))),
        &gap,
        Kind::WalMissing,
        words,
    );
    assert!(choose(&three(), &ask(Target::Lsn(lsn(34, 9))), &gap).is_ok());
    assert!(choose(&three(), &ask(Target::Time(second(33))), &gap).is_ok());
    assert!(choose(&three(), &ask(Target::Immediate), &gap).is_ok());
    let notes = choose(&three(), &ask(Target::Xid(700)), &gap)
        .unwrap()
        .notes;
    assert!(notes.iter().any(|note| note.contains(words)), "{notes:?}");
}

#[test]
fn a_layer_without_its_own_wal_is_refused() {
    let archive = archive(&[(1, 10..=29), (1, 31..=40)], &[]);
    refused(
        &three(),
        &ask(Target::Immediate),
        &archive,
        Kind::WalMissing,
        "cannot become consistent",
    );
}

#[test]
fn only_layers_that_the_target_timeline_passes_are_chosen() {
    // Timeline 2 leaves timeline 1 between B and C.
    let history = format!("1\t{}\twhy\n", lsn(25, 500));
    let archive = archive(&[(1, 10..=40), (2, 25..=50)], &[(2, &history)]);
    let mut layers = three();
    let latest = Ask {
        timeline: Some(TimelineChoice::Latest),
        ..ask(Target::Default)
    };
    let latest = choose(&layers, &latest, &archive).unwrap();
    assert_eq!(layers[latest.candidate].label.as_str(), B);
    assert_eq!(latest.history.timeline().get(), 2);

    let current = Ask {
        timeline: Some(TimelineChoice::Current),
        ..ask(Target::Default)
    };
    let stayed = choose(&layers, &current, &archive).unwrap();
    assert_eq!(layers[stayed.candidate].label.as_str(), C);

    let named = Ask {
        label: Some(C),
        ..ask(Target::Default)
    };
    refused(
        &layers,
        &named,
        &archive,
        Kind::Target,
        "which timeline 2 does not pass",
    );

    layers.push(layer("20261121-120000F", 2, 45, 45));
    let one = TimelineChoice::Number(TimelineId::FIRST);
    let old = Ask {
        timeline: Some(one),
        ..ask(Target::Default)
    };
    let chosen = choose(&layers, &old, &archive).unwrap();
    assert_eq!(layers[chosen.candidate].label.as_str(), C);

    let nine = TimelineChoice::Number(TimelineId::new(9));
    let unknown = Ask {
        timeline: Some(nine),
        ..ask(Target::Default)
    };
    refused(
        &layers,
        &unknown,
        &archive,
        Kind::Target,
        "00000009.history is not in the archive",
    );
}

#[test]
fn a_named_layer_must_exist_and_end_before_the_target() {
    let archive = archive(&[(1, 10..=40)], &[]);
    let late = Ask {
        label: Some(C),
        ..ask(Target::Lsn(lsn(30, 999)))
    };
    refused(
        &three(),
        &late,
        &archive,
        Kind::Target,
        "before the end of layer",
    );
    let absent = Ask {
        label: Some("20200101-000000F"),
        ..ask(Target::Default)
    };
    refused(
        &three(),
        &absent,
        &archive,
        Kind::NotFound,
        "there is no layer",
    );
    refused(
        &[],
        &ask(Target::Default),
        &archive,
        Kind::NotFound,
        "no complete layer",
    );
}

/// Archives in which segments have times of their own, as `(timeline, number, second)`.
fn timed(
    segments: &[(u32, u64, i64)],
    histories: &[(u32, &str, i64)],
    layers: &[Candidate],
) -> ArchivedWal {
    let mut archive = ArchivedWal::new(WalSegmentSize::DEFAULT);
    archive.watch(layers.iter().map(|layer| WalSegment {
        timeline: layer.timeline,
        number: layer.start.segment(WalSegmentSize::DEFAULT),
    }));
    for &(timeline, number, stored_at) in segments {
        let timeline = TimelineId::new(timeline);
        archive.add_segment(WalSegment { timeline, number }, second(stored_at));
    }
    for &(timeline, text, stored_at) in histories {
        let history = TimelineHistory::parse(TimelineId::new(timeline), text).unwrap();
        archive.add_history(history, second(stored_at));
    }
    archive
}

const D: &str = "20261121-120000F";

/// One segment a second on each timeline from its first to its last.
fn life(parts: &[(u32, RangeInclusive<u64>, i64)]) -> Vec<(u32, u64, i64)> {
    let mut all = Vec::new();
    for (timeline, numbers, begin) in parts {
        for (nth, number) in (0..).zip(numbers.clone()) {
            all.push((*timeline, number, begin + nth));
        }
    }
    all
}

fn restores(
    layers: &[Candidate],
    ask: &Ask<'_>,
    archive: &ArchivedWal,
) -> (String, u32, Vec<String>) {
    let selection = choose(layers, ask, archive).unwrap();
    let label = layers[selection.candidate].label.to_string();
    (label, selection.history.timeline().get(), selection.notes)
}

fn on(timeline: u32, target: Target) -> Ask<'static> {
    Ask {
        timeline: Some(TimelineChoice::Number(TimelineId::new(timeline))),
        ..ask(target)
    }
}

#[test]
fn a_chain_of_failovers_is_followed_without_a_word() {
    let layers = [layer(A, 1, 10, 10)];
    let two = format!("1\t{}\twhy\n", lsn(20, 500));
    let three = format!("{two}2\t{}\twhy\n", lsn(30, 500));
    let wal = life(&[(1, 10..=19, 10), (2, 20..=29, 30), (3, 30..=35, 50)]);
    let archive = timed(&wal, &[(2, &two, 29), (3, &three, 49)], &layers);
    for target in [
        Target::Default,
        Target::Standby,
        Target::Lsn(lsn(34, 0)),
        Target::Time(second(52)),
        Target::Immediate,
    ] {
        let immediate = target == Target::Immediate;
        let (label, timeline, notes) = restores(&layers, &ask(target), &archive);
        assert_eq!(
            (label.as_str(), timeline),
            (A, if immediate { 1 } else { 3 })
        );
        assert_eq!(notes, Vec::<String>::new());
    }
}

#[test]
fn a_primary_that_finished_its_segment_before_the_promotion_is_no_branch() {
    let layers = [layer(A, 1, 10, 10)];
    let two = format!("1\t{}\twhy\n", lsn(20, 500));
    // Segment 20 of timeline 1 holds what came after the fork, too.
    let wal = life(&[(1, 10..=20, 10), (2, 20..=29, 30)]);
    let before = timed(&wal, &[(2, &two, 29)], &layers);
    let (label, timeline, notes) = restores(&layers, &ask(Target::Default), &before);
    assert_eq!((label.as_str(), timeline), (A, 2));
    let words = "timeline 1 goes on beyond 0/140001F4";
    assert!(notes.iter().any(|note| note.contains(words)), "{notes:?}");
    // Stored after the promotion it may as well be of a server that lives on.
    let after = timed(&wal, &[(2, &two, 15)], &layers);
    refused(
        &layers,
        &ask(Target::Default),
        &after,
        Kind::Target,
        "history of this cluster branches",
    );
}

#[test]
fn more_wal_beyond_the_fork_is_a_question_until_the_new_timeline_was_backed_up() {
    let two = format!("1\t{}\twhy\n", lsn(20, 500));
    let wal = life(&[(1, 10..=22, 10), (2, 20..=40, 30)]);
    let mut layers = vec![layer(A, 1, 10, 10)];
    let archive = timed(&wal, &[(2, &two, 29)], &layers);
    refused(
        &layers,
        &ask(Target::Default),
        &archive,
        Kind::Target,
        "timeline 1 goes on beyond",
    );
    layers.push(layer(D, 2, 30, 40));
    let archive = timed(&wal, &[(2, &two, 29)], &layers);
    let (label, timeline, notes) = restores(&layers, &ask(Target::Default), &archive);
    assert_eq!((label.as_str(), timeline), (D, 2));
    assert!(
        notes
            .iter()
            .any(|note| note.contains("--target-timeline 1")),
        "{notes:?}"
    );
    // The old timeline was seen after that layer had begun.
    let wal = life(&[(1, 10..=21, 10), (1, 22..=22, 41), (2, 20..=40, 30)]);
    let archive = timed(&wal, &[(2, &two, 29)], &layers);
    refused(
        &layers,
        &ask(Target::Default),
        &archive,
        Kind::Target,
        "timeline 1 goes on beyond",
    );
}

#[test]
fn a_promoted_copy_is_not_followed_by_itself() {
    let layers = [layer(A, 1, 10, 10)];
    // A copy was opened at segment 20; its source went on, and so did the copy.
    let two = format!("1\t{}\twhy\n", lsn(20, 500));
    let wal = life(&[(1, 10..=40, 10), (2, 20..=25, 35)]);
    let archive = timed(&wal, &[(2, &two, 34)], &layers);
    for target in [
        Target::Default,
        Target::Standby,
        Target::Lsn(lsn(24, 0)),
        Target::Time(second(38)),
        Target::Xid(800),
        Target::Name("x".to_owned()),
    ] {
        // A standby is to follow the next promotion, too.
        let words = match target {
            Target::Standby => "--target-timeline latest (6 WAL segments",
            _ => "--target-timeline 2 (6 WAL segments",
        };
        let error = choose(&layers, &ask(target), &archive).unwrap_err();
        assert_eq!(error.kind(), Kind::Target);
        let hint = error.hint_text().unwrap();
        assert!(
            hint.contains(words) && hint.contains("--target-timeline 1 (21 WAL"),
            "{hint}"
        );
    }
    // Before the fork there is nothing to choose, and a layer is what it is.
    for target in [Target::Lsn(lsn(20, 500)), Target::Immediate, Target::None] {
        choose(&layers, &ask(target), &archive).unwrap();
    }
    for timeline in [1, 2] {
        let (label, followed, notes) = restores(&layers, &on(timeline, Target::Default), &archive);
        assert_eq!((label.as_str(), followed), (A, timeline));
        assert!(
            notes.iter().any(|note| note.contains("as told")),
            "{notes:?}"
        );
    }
    let current = Ask {
        timeline: Some(TimelineChoice::Current),
        ..ask(Target::Default)
    };
    let (_, followed, notes) = restores(&layers, &current, &archive);
    assert_eq!(followed, 1);
    let words = "as told: timeline 2 went another way";
    assert!(notes.iter().any(|note| note.contains(words)), "{notes:?}");
    let named = Ask {
        label: Some(A),
        ..ask(Target::Default)
    };
    refused(&layers, &named, &archive, Kind::Target, "branches");
}

#[test]
fn of_many_branches_the_newest_are_explained() {
    let layers = [layer(A, 1, 10, 10)];
    let left = format!("1\t{}\twhy\n", lsn(20, 500));
    let wal: Vec<_> = (2..=9)
        .map(|line| (line, 20..=25, 30 + i64::from(line)))
        .collect();
    let wal = life(&[&[(1, 10..=40, 10)][..], &wal].concat());
    let histories: Vec<(u32, &str, i64)> = (2..=9).map(|line| (line, left.as_str(), 30)).collect();
    let archive = timed(&wal, &histories, &layers);
    let (_, _, notes) = restores(&layers, &on(1, Target::Default), &archive);
    let told = notes.iter().filter(|note| note.contains("as told")).count();
    assert_eq!(told, 5, "{notes:?}");
    let newest = notes.iter().position(|note| note.contains("timeline 9 "));
    assert_eq!(
        newest,
        notes.iter().position(|note| note.contains("as told"))
    );
    let rest = "3 other timelines, older ones, are not restored either: 2, 3, 4";
    assert!(notes.iter().any(|note| note == rest), "{notes:?}");
}

#[test]
fn a_copy_that_was_backed_up_does_not_stand_for_its_source() {
    let two = format!("1\t{}\twhy\n", lsn(20, 500));
    let wal = life(&[(1, 10..=40, 10), (2, 20..=25, 35)]);
    // The newest layer is the copy's, by mistake.
    let layers = [
        layer(A, 1, 10, 10),
        layer(B, 1, 15, 15),
        layer(D, 2, 22, 37),
    ];
    let archive = timed(&wal, &[(2, &two, 34)], &layers);
    for target in [Target::Default, Target::Immediate, Target::None] {
        refused(
            &layers,
            &ask(target.clone()),
            &archive,
            Kind::Target,
            "timeline 1 goes on beyond",
        );
        let (label, ..) = restores(&layers, &on(1, target), &archive);
        assert_eq!(label, B);
    }
    // With a newer layer of the source the backup itself is no question: the copy has ended.
    let layers = [
        layers[0].clone(),
        layers[2].clone(),
        layer("20261121-130000F", 1, 39, 42),
    ];
    let wal = life(&[(1, 10..=38, 10), (1, 39..=41, 42), (2, 20..=25, 35)]);
    let archive = timed(&wal, &[(2, &two, 34)], &layers);
    let (label, timeline, _) = restores(&layers, &ask(Target::Immediate), &archive);
    assert_eq!((label.as_str(), timeline), ("20261121-130000F", 1));
    refused(
        &layers,
        &ask(Target::Default),
        &archive,
        Kind::Target,
        "timeline 1 goes on",
    );
}

#[test]
fn a_time_before_the_fork_is_on_every_branch() {
    let layers = [layer(A, 1, 10, 10), layer(B, 1, 18, 18)];
    let two = format!("1\t{}\twhy\n", lsn(20, 500));
    let wal = life(&[(1, 10..=40, 10), (2, 20..=25, 35)]);
    let archive = timed(&wal, &[(2, &two, 34)], &layers);
    let before = Ask {
        told: Told {
            in_time: vec![layers[0].label.clone()],
            too_late: vec![layers[1].label.clone()],
            ..Told::default()
        },
        ..ask(Target::Time(second(15)))
    };
    let (label, ..) = restores(&layers, &before, &archive);
    assert_eq!(label, A);
    refused(
        &layers,
        &ask(Target::Time(second(19))),
        &archive,
        Kind::Target,
        "branches",
    );
}

#[test]
fn attempts_that_were_given_up_are_named() {
    // Timelines 2 and 3 both leave 1; 3 is the one that was backed up since.
    let two = format!("1\t{}\twhy\n", lsn(20, 500));
    let three = format!("1\t{}\twhy\n", lsn(22, 500));
    let layers = [layer(A, 1, 10, 10), layer(D, 3, 30, 60)];
    let wal = life(&[(1, 10..=23, 10), (2, 20..=24, 30), (3, 22..=35, 50)]);
    let archive = timed(&wal, &[(2, &two, 29), (3, &three, 49)], &layers);
    let (label, timeline, notes) = restores(&layers, &ask(Target::Default), &archive);
    assert_eq!((label.as_str(), timeline), (D, 3));
    for words in [
        "timeline 1 goes on beyond",
        "timeline 2 went another way at 0/140001F4",
    ] {
        assert!(notes.iter().any(|note| note.contains(words)), "{notes:?}");
    }
}

fn lost(label: &str, known: Option<Candidate>) -> Lost {
    Lost {
        label: Label::parse(label).unwrap(),
        kind: Kind::Damaged,
        why: "checksum".to_owned(),
        known,
    }
}

#[test]
fn rule_13_7_an_older_layer_is_no_silent_second_best() {
    let archive = archive(&[(1, 10..=40)], &[]);
    let layers = [layer(A, 1, 10, 10), layer(B, 1, 20, 20)];
    for known in [None, Some(layer(C, 1, 30, 30))] {
        let lost = [lost(C, known)];
        for target in [Target::Default, Target::Immediate, Target::Lsn(lsn(35, 0))] {
            let damaged = Ask {
                lost: &lost,
                ..ask(target)
            };
            let words = "could not use layer 20261121-090000F_20261121-110000I";
            refused(&layers, &damaged, &archive, Kind::Damaged, words);
            let skipping = Ask {
                skip_damaged: true,
                ..damaged
            };
            let (label, _, notes) = restores(&layers, &skipping, &archive);
            assert_eq!(label, B);
            assert!(notes[0].contains("was passed over"), "{notes:?}");
            let lost = skipping.target == Target::Immediate;
            assert_eq!(notes[1].contains("after that is lost"), lost, "{notes:?}");
        }
    }
}

#[test]
fn a_damaged_layer_that_could_not_be_the_one_is_no_matter() {
    let archive = archive(&[(1, 10..=40)], &[]);
    let newest = [layer(A, 1, 10, 10), layer(C, 1, 30, 30)];
    let older = [lost(B, None)];
    let ask_older = Ask {
        lost: &older,
        ..ask(Target::Default)
    };
    assert!(choose(&newest, &ask_older, &archive).is_ok());
    // It began after one that is too late, or is known to be too late.
    let later = [lost(D, None), lost(C, Some(layer(C, 1, 30, 30)))];
    for target in [Target::Time(second(15)), Target::Lsn(lsn(12, 0))] {
        let ask_later = Ask {
            lost: &later,
            ..ask(target)
        };
        let layers = [layer(A, 1, 10, 10), layer(B, 1, 20, 20)];
        let (label, ..) = restores(&layers, &ask_later, &archive);
        assert_eq!(label, A);
    }
    let named = Ask {
        label: Some(A),
        lost: &later,
        ..ask(Target::Immediate)
    };
    assert!(choose(&newest, &named, &archive).is_ok());
}

#[test]
fn the_end_of_a_layer_of_a_standby_is_reached_with_the_segment_behind_it() {
    let at_boundary = Candidate {
        stop: lsn(11, 0),
        from_standby: true,
        ..layer(A, 1, 10, 10)
    };
    let (short, long) = (archive(&[(1, 10..=10)], &[]), archive(&[(1, 10..=11)], &[]));
    let layers = [at_boundary.clone()];
    let words = "ends where a segment does";
    refused(
        &layers,
        &ask(Target::Immediate),
        &short,
        Kind::Target,
        words,
    );
    assert!(choose(&layers, &ask(Target::Default), &short).is_ok());
    assert!(choose(&layers, &ask(Target::Immediate), &long).is_ok());
    for other in [
        Candidate {
            from_standby: false,
            ..at_boundary.clone()
        },
        Candidate {
            stop: lsn(10, 1000),
            ..at_boundary
        },
    ] {
        assert!(choose(&[other], &ask(Target::Immediate), &short).is_ok());
    }
}
