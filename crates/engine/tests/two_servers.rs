//! Two servers on one timeline, or two histories of one: what layers made by hand and their archive tell of it, and when a
//! restore asks. The layers start in the segments 20, 30 and 40, and end in the next ones; the archive ends with 50.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

mod restore_common;

use std::cell::RefCell;
use std::fs;
use std::time::{Duration, SystemTime};

use jiff::SignedDuration;
use pgstrata_engine::health::{Alarm, AlarmKind};
use pgstrata_engine::info::{self, InfoOptions};
use pgstrata_engine::mark;
use pgstrata_engine::restore::{self, RestoreOptions, Target};
use pgstrata_engine::verify::{self, VerifyOptions};
use pgstrata_layer::manifest::{self, Beside, Manifest, ParentRef};
use pgstrata_layer::mark::Pin;
use pgstrata_layer::retention::{LastOf, Policy};
use pgstrata_pgdata::{Lsn, TimelineId};
use pgstrata_store::error::Kind;
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::{Repository, RepositoryOptions};
use restore_common::{
    Made, branch_off, expire_by, generations, history, labels, merge_from, options, rules,
    wal_segment_size,
};

const NOT_LISTED: &str = "its lineage file does not list it, as after a restore";
const COPY: &str = "the data directory is a copy: its lineage file is that of \"/data\"";

/// Why each of three layers does not seem to come after the one before it.
type Reasons = [Option<&'static str>; 3];

/// Three full layers, each of which does not seem to come after the one before it when that has a reason.
async fn layers(
    repository: &Repository,
    reasons: Reasons,
    change: impl Fn(usize, &mut Manifest),
) -> Made {
    chains(repository, &[0, 1, 2], reasons, change).await
}

/// The same where those numbers are full, and others stand on the one before.
async fn chains(
    repository: &Repository,
    full: &[usize],
    reasons: Reasons,
    change: impl Fn(usize, &mut Manifest),
) -> Made {
    let before: RefCell<Option<ParentRef>> = RefCell::new(None);
    let change = |number: usize, manifest: &mut Manifest| {
        let layer = before.borrow_mut().take();
        manifest.beside = reasons[number].map(|reason| Beside {
            layer: layer.unwrap(),
            reason: reason.to_owned(),
        });
        change(number, manifest);
        *before.borrow_mut() = Some(ParentRef {
            label: manifest.label.clone(),
            manifest_digest: manifest::digest(&manifest::encode(manifest)),
        });
    };
    history(repository, &generations(), full, change).await
}

/// What the archiver of a server leaves of a backup that started in each of these segments.
async fn note(repository: &Repository, made: &Made, starts: &[u64]) {
    for start in starts {
        let note = format!("00000001{start:016X}.00000028.backup");
        let key = made.cluster.wal_key("00000001", &note);
        repository.create(&key, "of a backup".into()).await.unwrap();
    }
}

async fn forget(repository: &Repository, made: &Made, segments: std::ops::RangeInclusive<u64>) {
    for number in segments {
        let key = made
            .cluster
            .wal_key("00000001", &format!("00000001{number:016X}"));
        repository.delete(&key).await.unwrap();
    }
}

/// The alarms about servers.
async fn alarms(repository: &Repository, made: &Made) -> Vec<Alarm> {
    let cluster = made.within(repository);
    let report = info::collect(&cluster, &InfoOptions::default()).await;
    let alarms = report.unwrap().alarms.into_iter();
    let is_about_servers = |alarm: &Alarm| alarm.reason.contains("two servers");
    alarms.filter(is_about_servers).collect()
}

/// The label that a restore to that byte of a segment begins with, and its notes about servers; or why there is none.
async fn planned(
    repository: &Repository,
    made: &Made,
    (segment, offset): (u64, u64),
    named: Option<usize>,
) -> Result<(String, Vec<String>), (Kind, String)> {
    let scratch = tempfile::tempdir().unwrap();
    let wanted = RestoreOptions {
        target: Target::Lsn(Lsn::new(segment * wal_segment_size() + offset)),
        label: named.map(|at| made.labels[at].clone()),
        ..options(&scratch.path().join("data"))
    };
    match restore::plan(&made.within(repository), wanted).await {
        Ok(plan) => {
            let notes = plan.notes.iter();
            let notes = notes
                .filter(|note| note.contains("of another server") || note.contains("into that"));
            Ok((plan.label.clone(), notes.cloned().collect()))
        }
        Err(error) => Err((
            error.kind(),
            format!("{error}: {}", error.hint_text().unwrap_or_default()),
        )),
    }
}

/// The first server archived the segments to 29; storage was set back, and the backup of what the server made of that stored
/// its own WAL from 30 on.
#[tokio::test(flavor = "multi_thread")]
async fn wal_of_two_servers_one_behind_the_other_is_an_alarm_and_a_restore_along_it_asks() {
    for reason in [NOT_LISTED, COPY] {
        let repository = Repository::memory();
        let made = layers(&repository, [None, Some(reason), None], |_, _| ()).await;
        note(&repository, &made, &[20]).await;
        let found = alarms(&repository, &made).await;
        assert_eq!(found.len(), 1, "{found:?}");
        let (alarm, second) = (&found[0], made.labels[1].as_str());
        assert_eq!(alarm.kind, AlarmKind::Timelines);
        for words in [
            second,
            made.labels[0].as_str(),
            reason,
            "one behind the other",
        ] {
            assert!(alarm.reason.contains(words), "{alarm:?}");
        }
        let lost = alarm.lost.as_ref().unwrap();
        assert!(lost.contains("no moment behind"), "{lost}");

        // The second layer ends in segment 31, so the first is the one to begin with.
        let (kind, said) = planned(&repository, &made, (30, 50), None)
            .await
            .unwrap_err();
        assert_eq!(kind, Kind::Target, "{said}");
        for words in [
            second,
            reason,
            "WAL of one server into that of another",
            "names the layer",
        ] {
            assert!(said.contains(words), "{said}");
        }
        let before = planned(&repository, &made, (29, 40), None).await.unwrap();
        assert_eq!(before, (made.labels[0].to_string(), Vec::new()));
        let (label, notes) = planned(&repository, &made, (30, 50), Some(0))
            .await
            .unwrap();
        assert_eq!(label, made.labels[0].as_str());
        assert!(
            notes[0].contains("WAL of one server into that"),
            "{notes:?}"
        );
        let (label, notes) = planned(&repository, &made, (35, 50), None).await.unwrap();
        assert_eq!(label, second);
        assert!(notes[0].contains("may be of another server"), "{notes:?}");
    }
}

/// What the operator does about it, and what does not settle it.
#[tokio::test(flavor = "multi_thread")]
async fn the_alarm_about_wal_of_two_servers_ends_when_no_restore_leads_along_it() {
    let repository = Repository::memory();
    let reasons = [None, None, Some(NOT_LISTED)];
    let made = layers(&repository, reasons, |_, _| ()).await;
    assert_eq!(alarms(&repository, &made).await.len(), 1);
    // The layer beside it has gone, and an older one is there.
    let manifest = |at: usize| made.cluster.manifest_key(&made.labels[at]);
    repository.delete(&manifest(1)).await.unwrap();
    assert_eq!(alarms(&repository, &made).await.len(), 1);
    let asked = planned(&repository, &made, (40, 50), None).await;
    assert_eq!(asked.unwrap_err().0, Kind::Target);
    // A note that the backup has stored for an archiver which went no further.
    note(&repository, &made, &[40]).await;
    forget(&repository, &made, 42..=50).await;
    assert_eq!(alarms(&repository, &made).await.len(), 1);
    // The WAL between them is given up, or the older layers.
    let hole = Repository::memory();
    let with_hole = layers(&hole, reasons, |_, _| ()).await;
    forget(&hole, &with_hole, 35..=36).await;
    assert_eq!(alarms(&hole, &with_hole).await, []);
    repository.delete(&manifest(0)).await.unwrap();
    assert_eq!(alarms(&repository, &made).await, []);
}

/// The first layer and the last are the last ones of their days, and the one between them tells of two servers.
async fn on_two_days(repository: &Repository) -> Made {
    const DAYS: [&str; 3] = ["01T12:00:00Z", "02T11:00:00Z", "02T12:00:00Z"];
    layers(
        repository,
        [None, Some(NOT_LISTED), None],
        |number, layer| {
            layer.finished_at = format!("2026-11-{}", DAYS[number]).parse().unwrap();
        },
    )
    .await
}

/// A rule by periods does not want the layer that tells; without it a restore from the first would ask nobody.
#[tokio::test(flavor = "multi_thread")]
async fn what_tells_of_two_servers_does_not_expire_before_what_leads_to_it() {
    let two_days = rules(Policy {
        keep_last_of: LastOf {
            daily: Some(2),
            ..LastOf::default()
        },
        ..Policy::default()
    });
    let repository = Repository::memory();
    let made = on_two_days(&repository).await;
    let expired = expire_by(&repository, &made, &two_days).await.unwrap();
    assert!(expired.done && expired.remove.is_empty(), "{expired:?}");
    let why = &expired.keep[1].why;
    assert!(why.contains("may be of another server"), "{why}");
    assert!(why.contains(made.labels[0].as_str()), "{why}");
    let asked = planned(&repository, &made, (30, 50), None).await;
    assert_eq!(asked.unwrap_err().0, Kind::Target);
    // What is missing between them may still come.
    forget(&repository, &made, 25..=26).await;
    let expired = expire_by(&repository, &made, &two_days).await.unwrap();
    assert!(expired.done && expired.remove.is_empty(), "{expired:?}");
    // It is proved to come after the first.
    let proved = Repository::memory();
    let made = on_two_days(&proved).await;
    note(&proved, &made, &[30]).await;
    let expired = expire_by(&proved, &made, &two_days).await.unwrap();
    assert_eq!(expired.remove, [made.labels[1].as_str()]);
}

/// The WAL between them is given up, and then there is nothing to ask about.
#[tokio::test(flavor = "multi_thread")]
async fn what_tells_of_two_servers_goes_when_the_wal_before_it_has_gone() {
    let two_days = Policy {
        keep_last_of: LastOf {
            daily: Some(2),
            ..LastOf::default()
        },
        keep_wal: Some(SignedDuration::ZERO),
        ..Policy::default()
    };
    let repository = Repository::memory();
    let made = on_two_days(&repository).await;
    let given_up = expire_by(&repository, &made, &rules(two_days))
        .await
        .unwrap();
    assert!(
        given_up.done && given_up.remove.is_empty() && given_up.wal_files > 0,
        "{given_up:?}"
    );
    let expired = expire_by(&repository, &made, &rules(two_days))
        .await
        .unwrap();
    assert_eq!(expired.remove, [made.labels[1].as_str()]);
}

/// An archiver has brought its WAL, and what proves that stays when the WAL between layers is given up.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_proved_of_a_layer_beside_another_stays_proved() {
    let repository = Repository::memory();
    // No WAL lies between the first two.
    let touching = |number: usize, layer: &mut Manifest| {
        if number == 0 {
            layer.start_lsn = Lsn::new(28 * wal_segment_size() + 40);
            layer.stop_lsn = Lsn::new(30 * wal_segment_size());
        }
    };
    let made = layers(&repository, [None, Some(NOT_LISTED), None], touching).await;
    note(&repository, &made, &[28, 30]).await;
    assert_eq!(alarms(&repository, &made).await, []);
    let rules = rules(Policy {
        keep_full: Some(3),
        keep_wal: Some(SignedDuration::ZERO),
        ..Policy::default()
    });
    let expired = expire_by(&repository, &made, &rules).await.unwrap();
    assert!(
        expired.wal_files > 0 && expired.remove.is_empty(),
        "{expired:?}"
    );
    assert_eq!(alarms(&repository, &made).await, []);
}

/// The same of a merge: the merged layer tells what its newest input did.
#[tokio::test(flavor = "multi_thread")]
async fn what_tells_of_two_servers_is_not_merged_away() {
    let repository = Repository::memory();
    let reasons = [None, Some(NOT_LISTED), None];
    let made = chains(&repository, &[0, 1], reasons, |_, _| ()).await;
    let merged = merge_from(&repository, &made, 2, true).await;
    assert_eq!(merged.removed, [made.labels[2].as_str()], "{merged:?}");
    let why = format!(
        "layer {} stays: it may be of another server",
        made.labels[1]
    );
    assert!(
        merged.notes.iter().any(|note| note.starts_with(&why)),
        "{merged:?}"
    );
    let asked = planned(&repository, &made, (30, 50), None).await;
    assert_eq!(asked.unwrap_err().0, Kind::Target);

    let repository = Repository::memory();
    let reasons = [None, None, Some(COPY)];
    let made = chains(&repository, &[0, 1], reasons, |_, _| ()).await;
    let merged = merge_from(&repository, &made, 2, true).await;
    assert_eq!(merged.removed.len(), 2, "{merged:?}");
    assert_eq!(alarms(&repository, &made).await.len(), 1);
}

/// Nor is it where the merge was to take what leads to it as well, and somebody else holds that.
#[tokio::test(flavor = "multi_thread")]
async fn what_tells_of_two_servers_is_not_merged_away_when_what_leads_to_it_is_held() {
    let repository = Repository::memory();
    let reasons = [None, Some(NOT_LISTED), None];
    let made = chains(&repository, &[0], reasons, |_, _| ()).await;
    let cluster = made.within(&repository);
    mark::pin(&cluster, &made.labels[0], Pin::default())
        .await
        .unwrap();
    let merged = merge_from(&repository, &made, 2, true).await;
    assert_eq!(merged.removed, [made.labels[2].as_str()], "{merged:?}");
    for (held, why) in [(0, "it is pinned"), (1, "it may be of another server")] {
        let why = format!("layer {} stays: {why}", made.labels[held]);
        let mut notes = merged.notes.iter();
        assert!(notes.any(|note| note.starts_with(&why)), "{merged:?}");
    }
    let asked = planned(&repository, &made, (30, 50), None).await;
    assert_eq!(asked.unwrap_err().0, Kind::Target);
    // When nobody holds it any more, the expiry that goes on removes both.
    mark::unpin(&cluster, &made.labels[0]).await.unwrap();
    let newest = rules(Policy {
        keep_full: Some(1),
        ..Policy::default()
    });
    let expired = expire_by(&repository, &made, &newest).await.unwrap();
    assert_eq!(expired.remove.len(), 2, "{expired:?}");
}

/// A chain that is too long is merged, but for what tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_limit_leaves_what_tells_of_two_servers() {
    let repository = Repository::memory();
    let reasons = [None, Some(NOT_LISTED), None];
    let made = chains(&repository, &[0, 1], reasons, |_, _| ()).await;
    let short = rules(Policy {
        max_chain: Some(1),
        ..Policy::default()
    });
    for _ in 0..2 {
        let expired = expire_by(&repository, &made, &short).await.unwrap();
        assert!(expired.done, "{expired:?}");
        let left = labels(&repository, &made).await;
        assert_eq!(left.len(), 3, "{left:?}");
        assert_eq!(left[..2], made.labels[..2]);
    }
}

/// A copy archives before its original: all WAL is the copy's.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_whose_archiver_works_is_an_alarm_until_it_is_said_which_server_counts() {
    let reasons = [None, Some(COPY), None];
    let repository = Repository::memory();
    let made = layers(&repository, reasons, |_, _| ()).await;
    note(&repository, &made, &[20, 30, 40]).await;
    let found = alarms(&repository, &made).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].reason.contains("may go on along timeline 1"));
    // All WAL is of one server, whichever that is.
    let (label, _) = planned(&repository, &made, (30, 50), None).await.unwrap();
    assert_eq!(label, made.labels[0].as_str());
    // The layers of one side are gone.
    let first = made.cluster.manifest_key(&made.labels[0]);
    repository.delete(&first).await.unwrap();
    assert_eq!(alarms(&repository, &made).await, []);

    // The server was promoted, and backed up.
    let repository = Repository::memory();
    let promoted = |number: usize, manifest: &mut Manifest| {
        if number == 2 {
            manifest.timeline = TimelineId::new(2);
        }
    };
    let made = layers(&repository, reasons, promoted).await;
    note(&repository, &made, &[20, 30]).await;
    branch_off(&repository, &made, 1, 15).await;
    assert_eq!(alarms(&repository, &made).await, []);
}

/// Whoever looks for WAL that is missing may find that of the other server.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_to_look_for_missing_wal_is_warned_of_the_other_history() {
    let scratch = tempfile::tempdir().unwrap();
    let url = format!("file://{}", scratch.path().display());
    let repository = Repository::open(&RepositoryOptions::new(url)).unwrap();
    let made = layers(&repository, [None, Some(COPY), None], |_, _| ()).await;
    note(&repository, &made, &[20, 30, 40]).await;
    forget(&repository, &made, 45..=46).await;
    // What was stored just now may be on its way, and is waited for.
    let archived = scratch.path().join("main/wal/00000001");
    for file in fs::read_dir(archived).unwrap() {
        let file = fs::File::open(file.unwrap().path()).unwrap();
        let hour = Duration::from_secs(3600);
        file.set_modified(SystemTime::now() - hour).unwrap();
    }
    let cluster = made.within(&repository);
    let report = info::collect(&cluster, &InfoOptions::default()).await;
    let report = report.unwrap();
    let mut holes = report.alarms.iter();
    let hole = holes
        .find(|alarm| alarm.kind == AlarmKind::WalHole)
        .unwrap();
    assert!(hole.to_do.contains("of another history"), "{hole:?}");
    let verified = verify::run(&cluster, &VerifyOptions::default(), Progress::default()).await;
    let findings = verified.unwrap().findings;
    let warns = |found: &verify::Finding| found.message.contains("of another history");
    assert!(findings.iter().any(warns), "{findings:?}");
}

/// What a server of its own goes through. A manifest says nothing (`beside`) where the lineage file lists the newest layer of the
/// timeline, where there is none on it yet, where the file is missing or of an older pgstrata, and of standbys.
#[tokio::test(flavor = "multi_thread")]
async fn what_happens_to_one_server_neither_asks_nor_alarms() {
    let unwritten = [None, Some(NOT_LISTED), Some(NOT_LISTED)];
    let replaced = Some("global/pg_control was replaced since the lineage file was written");
    let situations: [(&str, Reasons, &[u64]); 5] = [
        (
            "no archiver, or one that failed from the start",
            [None; 3],
            &[],
        ),
        (
            "an archiver that failed after the first backup",
            [None; 3],
            &[20],
        ),
        (
            "the first backup after an upgrade of pgstrata",
            [None; 3],
            &[20, 30, 40],
        ),
        (
            "a lineage file that cannot be written",
            unwritten,
            &[20, 30, 40],
        ),
        (
            "pg_rewind without a promotion",
            [None, replaced, None],
            &[20, 30, 40],
        ),
    ];
    for (what, reasons, notes) in situations {
        let repository = Repository::memory();
        let made = layers(&repository, reasons, |_, _| ()).await;
        note(&repository, &made, notes).await;
        assert_eq!(alarms(&repository, &made).await, [], "{what}");
        for at in [(25, 50), (30, 50), (40, 50), (45, 50)] {
            let planned = planned(&repository, &made, at, None).await;
            planned.unwrap_or_else(|error| panic!("{what}: {at:?}: {error:?}"));
        }
    }
    // A restore in place, a promotion, a rewind to a standby that was promoted: each has begun a timeline.
    let repository = Repository::memory();
    let later = |number: usize, manifest: &mut Manifest| {
        if number == 2 {
            manifest.timeline = TimelineId::new(2);
        }
    };
    let made = layers(&repository, [None; 3], later).await;
    branch_off(&repository, &made, 1, 15).await;
    assert_eq!(alarms(&repository, &made).await, []);
}
