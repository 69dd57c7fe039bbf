//! What records of verifications tell: what was found counts until another that began later has looked again.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

mod restore_common;

use std::fs::File;
use std::time::{Duration, SystemTime};

use jiff::{SignedDuration, Timestamp};
use pgstrata_engine::health::AlarmKind;
use pgstrata_engine::info::InfoReport;
use pgstrata_engine::verify::{self, VerifyOptions};
use pgstrata_layer::label::Label;
use pgstrata_layer::retention::Policy;
use pgstrata_layer::verified::VerifiedRecord;
use pgstrata_store::catalog;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::{ObjectInfo, Repository, RepositoryOptions};
use restore_common::{Made, chain_of_three, copy_of, expire_by, generations, history, info, rules};

/// Of a verification of all layers, or of one, which ends now, and has found this one damaged, or nothing.
fn record_of(of: Option<&Label>, hours: i64, found: Option<&Label>) -> VerifiedRecord {
    let finished_at = Timestamp::now();
    VerifiedRecord {
        label: of.map(ToString::to_string),
        deep: false,
        layers: 3,
        newest: None,
        wal_files: 1,
        errors: u64::from(found.is_some()),
        warnings: 0,
        damaged: found.map(ToString::to_string).into_iter().collect(),
        other_errors: found.map(|_| 0),
        host: "elsewhere".to_owned(),
        pid: 1,
        started_at: finished_at - SignedDuration::from_hours(hours),
        finished_at,
        written_by: "a test".to_owned(),
    }
}

async fn note(cluster: &ClusterRepository, of: Option<&Label>, hours: i64, found: Option<&Label>) {
    let record = record_of(of, hours, found);
    catalog::note_verified(cluster, &record).await.unwrap();
}

fn kinds(report: &InfoReport) -> Vec<AlarmKind> {
    report.alarms.iter().map(|alarm| alarm.kind).collect()
}

/// It may have read the layer before that was damaged.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_verification_takes_nothing_back_that_was_found_while_it_ran() {
    let sound = Repository::memory();
    let made = history(&sound, &generations(), &[0, 1, 2], |_, _| {}).await;
    let (older, newest) = (&made.labels[0], &made.labels[2]);
    let keep_full = rules(Policy {
        keep_full: Some(1),
        ..Policy::default()
    });
    for of in [None, Some(newest)] {
        let repository = Repository::with_store(copy_of(&sound, &made).await);
        let cluster = made.within(&repository);
        note(&cluster, Some(newest), 0, Some(newest)).await;
        note(&cluster, of, 2, None).await;
        // Many, so that an expiry forgets what tells nothing.
        for _ in 0..40 {
            note(&cluster, Some(older), 0, None).await;
        }
        for removed in [Vec::from([older.to_string()]), Vec::new()] {
            let done = expire_by(&repository, &made, &keep_full).await.unwrap();
            assert_eq!(done.remove, removed, "{of:?}: {done:?}");
            let told = info(&repository, &made).await;
            assert_eq!(kinds(&told), [AlarmKind::Layer], "{of:?}: {told:?}");
        }
        note(&cluster, of, 0, None).await;
        let told = info(&repository, &made).await;
        assert_eq!(told.alarms, [], "{of:?}");
    }
}

/// A repository in a directory, in which the store's clock says what a test wants.
struct Dated {
    scratch: tempfile::TempDir,
    repository: Repository,
    made: Made,
}

impl Dated {
    async fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let url = format!("file://{}", scratch.path().display());
        let repository = Repository::open(&RepositoryOptions::new(url)).unwrap();
        let made = chain_of_three(&repository).await;
        Self {
            scratch,
            repository,
            made,
        }
    }

    /// Leaves a record that came when the store's clock was so many seconds ahead.
    async fn note(&self, ahead: i64, found: Option<&Label>) {
        let before = self.records().await;
        note(&self.made.within(&self.repository), None, 0, found).await;
        let after = self.records().await;
        let mut new = after
            .iter()
            .filter(|record| before.iter().all(|old| old.key != record.key));
        let file = File::open(self.scratch.path().join(&new.next().unwrap().key)).unwrap();
        let seconds = Duration::from_secs(ahead.unsigned_abs());
        let time = match ahead < 0 {
            true => SystemTime::now() - seconds,
            false => SystemTime::now() + seconds,
        };
        file.set_modified(time).unwrap();
    }

    async fn records(&self) -> Vec<ObjectInfo> {
        let prefix = self.made.cluster.verified_prefix();
        self.repository.list(&prefix).await.unwrap()
    }

    async fn alarms(&self) -> Vec<AlarmKind> {
        kinds(&info(&self.repository, &self.made).await)
    }
}

const YEAR: i64 = 365 * 24 * 3600;

/// The store's clock was a year ahead when all was in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_verification_whose_time_is_to_come_hides_nothing_that_is_found_until_then() {
    let dated = Dated::new().await;
    dated.note(YEAR, None).await;
    // The times of files are coarse: the next one could have the same.
    dated.note(-60, Some(&dated.made.labels[2])).await;
    assert_eq!(dated.alarms().await, [AlarmKind::Layer]);
    dated.note(0, None).await;
    assert_eq!(dated.alarms().await, []);
}

/// It was a year ahead when a layer was found damaged.
#[tokio::test(flavor = "multi_thread")]
async fn damage_whose_time_is_to_come_hides_none_that_is_found_and_goes_with_a_verification_of_all()
{
    let dated = Dated::new().await;
    let (oldest, newest) = (&dated.made.labels[0], &dated.made.labels[2]);
    dated.note(-60, None).await;
    dated.note(YEAR, Some(oldest)).await;
    dated.note(-30, Some(newest)).await;
    let last = catalog::last_verified(&dated.made.within(&dated.repository))
        .await
        .unwrap();
    assert!(
        last.damaged.contains_key(oldest) && last.damaged.contains_key(newest),
        "{last:?}"
    );
    // Any that ended before it may have seen nothing of what it found.
    dated.note(0, None).await;
    assert_eq!(dated.alarms().await, [AlarmKind::Layer]);
    let cluster = dated.made.within(&dated.repository);
    let report = verify::run(&cluster, &VerifyOptions::default(), Progress::default())
        .await
        .unwrap();
    assert!(report.recorded && report.failure().is_none(), "{report:?}");
    assert_eq!(dated.alarms().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_verification_takes_no_damaged_wal_back_that_was_found_while_it_ran() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let cluster = made.within(&repository);
    let of_wal = VerifiedRecord {
        errors: 1,
        other_errors: Some(1),
        ..record_of(None, 0, None)
    };
    catalog::note_verified(&cluster, &of_wal).await.unwrap();
    for (hours, alarms) in [(2, vec![AlarmKind::Verify]), (0, Vec::new())] {
        note(&cluster, None, hours, None).await;
        let told = info(&repository, &made).await;
        assert_eq!(kinds(&told), alarms, "{told:?}");
    }
}
