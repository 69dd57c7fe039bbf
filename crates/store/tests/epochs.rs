//! Keys that two change at once: nobody who was let in is left out of the next epoch, and who was taken out stays out.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use pgstrata_layer::epoch::{KeyRole, decode_epoch, fingerprint};
use pgstrata_store::archive::{self, GetOptions};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Kind;
use pgstrata_store::keys::{self, Recipients, Ring};
use pgstrata_store::repository::Repository;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use pgstrata_testbed::s3::{Bucket, S3Server};

use support::places;
use support::vault::{Person, Vault, name, opened_by};

/// The keys as somebody reads them now.
async fn ring(cluster: &ClusterRepository) -> Arc<Ring> {
    Arc::clone(cluster.sealing().await.unwrap().ring().unwrap())
}

/// What somebody is in each epoch.
async fn roles(repository: &Repository, who: &Person) -> Vec<Vec<KeyRole>> {
    let cluster = opened_by(repository, who);
    let seen = ring(&cluster).await.survey(cluster.home()).await.unwrap();
    seen.into_iter().map(|epoch| epoch.own).collect()
}

#[tokio::test]
async fn who_is_let_in_while_an_epoch_begins_opens_that_too() {
    use KeyRole::{Keeper, Reader, Writer};
    let vault = Vault::new().await;
    let (early, late, again) = (Person::new(), Person::new(), Person::new());
    let recipients = vault.recipients();
    let (one, two) = (vault.reader(), vault.reader());
    let (home, other) = (one.home(), two.home());

    // The box comes after the other has looked who is in, and before the epoch.
    let before = ring(&one).await;
    let all = [(Reader, &early), (Writer, &again)];
    for (role, who) in all {
        let now = keys::add(other, &before, role, &who.recipient).await;
        assert_eq!(now.unwrap().current, 1);
    }
    assert_eq!(keys::rotate(home, &before, &recipients).await.unwrap(), 2);
    let repository = &vault.repository;
    assert_eq!(roles(repository, &early).await, [[Reader], [Reader]]);
    assert_eq!(roles(repository, &again).await, [[Writer], [Writer]]);

    // It comes after the epoch, of which who lets in has seen nothing; of the one after neither.
    let now = ring(&vault.reader()).await;
    assert_eq!(keys::rotate(home, &now, &recipients).await.unwrap(), 3);
    let now = keys::add(other, &before, Reader, &late.recipient).await;
    assert_eq!(now.unwrap().current, 3);
    let of_late = roles(repository, &late).await;
    assert_eq!(of_late, [[Reader], [Reader], [Reader]]);
    let third = Person::new();
    let two = ring_up_to_two(&vault).await;
    let now = keys::add(other, &two, Reader, &third.recipient).await;
    assert_eq!(now.unwrap().current, 3);
    let of_third = roles(repository, &third).await;
    assert_eq!(of_third, [[Keeper], [Reader], [Reader]]);
}

/// A copy of the vault: as it is, and as a reader sees it who is held up at one operation.
struct HeldUp {
    direct: Repository,
    seen: Arc<Ring>,
    store: Arc<FaultStore>,
    through: ClusterRepository,
}

impl HeldUp {
    async fn at(nth: u64, vault: &Vault) -> Self {
        let memory = stored(vault).await;
        let direct = Repository::with_store(Arc::clone(&memory));
        let seen = ring(&opened_by(&direct, &vault.reader)).await;
        let slow = Fault::Delayed(Duration::from_millis(80));
        let store = FaultStore::failing_at(nth, slow, memory);
        let through = opened_by(&Repository::with_store(store.clone()), &vault.reader);
        Self {
            direct,
            seen,
            store,
            through,
        }
    }
}

/// Somebody begins an epoch, and is held up at one operation after the other while another takes his for lost.
#[tokio::test]
async fn an_epoch_that_a_later_one_has_passed_over_is_not_begun_with_success() {
    let vault = Vault::new().await;
    let later = format!(
        "{}/writer-of-another",
        name().epoch_prefix(&vault.seal_id, 3)
    );
    let own = name().epoch_key(&vault.seal_id, 2);
    let mut refused = 0;
    for nth in 0.. {
        let held = HeldUp::at(nth, &vault).await;
        let (direct, store, through) = (&held.direct, &held.store, &held.through);
        let recipients = vault.recipients();
        let rotating = keys::rotate(through.home(), &held.seen, &recipients);
        let meanwhile = async {
            tokio::time::sleep(Duration::from_millis(40)).await;
            let is_begun = direct.get(&own).await.is_ok();
            direct.create(&later, "x".into()).await.unwrap();
            is_begun
        };
        let (rotated, was_begun) = futures::join!(rotating, meanwhile);
        if store.operation_count() <= nth {
            break;
        }
        match rotated {
            Ok(number) => assert!(number > 3 || was_begun, "held up at {nth}: {number}"),
            Err(error) => {
                assert!(error.to_string().contains("epoch 3"), "{nth}: {error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
}

/// Somebody begins an epoch, and is held up at one operation after the other while another begins one, too.
#[tokio::test]
async fn an_epoch_on_which_another_goes_on_at_once_is_begun_with_success() {
    let vault = Vault::new().await;
    let mut overtaken = 0;
    for nth in 0.. {
        let held = HeldUp::at(nth, &vault).await;
        let (direct, store, through) = (&held.direct, &held.store, &held.through);
        let (first, second) = (vault.recipients(), vault.recipients());
        let rotating = keys::rotate(through.home(), &held.seen, &first);
        let meanwhile = async {
            tokio::time::sleep(Duration::from_millis(40)).await;
            let other = opened_by(direct, &vault.reader);
            let now = ring(&other).await;
            if now.current().number == 1 {
                return false;
            }
            let begun = keys::rotate(other.home(), &now, &second).await;
            assert_eq!(begun.unwrap(), 3);
            true
        };
        let (rotated, goes_on) = futures::join!(rotating, meanwhile);
        assert_eq!(rotated.unwrap(), 2, "held up at {nth}");
        let now = ring(&opened_by(direct, &vault.reader)).await;
        let expected = if goes_on { 3 } else { 2 };
        assert_eq!(now.current().number, expected, "held up at {nth}");
        now.require_newest(through.home()).await.unwrap();
        if store.operation_count() <= nth {
            break;
        }
        overtaken += u32::from(goes_on);
    }
    assert!(overtaken > 0);
}

/// Whoever may create objects would have all numbers used up otherwise, also when what he has made is deleted.
#[tokio::test]
async fn something_in_the_place_of_an_epoch_far_ahead_is_passed_over() {
    let vault = Vault::new().await;
    for (number, body) in [(u32::MAX, "x"), (u32::MAX - 1, "x"), (5000, "x")] {
        let key = name().epoch_key(&vault.seal_id, number);
        vault.repository.create(&key, body.into()).await.unwrap();
    }
    for expected in 2..4 {
        let reader = vault.reader();
        let now = ring(&reader).await;
        now.require_newest(reader.home()).await.unwrap();
        assert!(now.lost(reader.home()).await.unwrap().is_empty());
        let begun = keys::rotate(reader.home(), &now, &vault.recipients()).await;
        assert_eq!(begun.unwrap(), expected);
    }
    // What is in the place of one of the next numbers may have been ours.
    let key = name().epoch_key(&vault.seal_id, 4);
    let huge = vec![b'x'; 65 << 20];
    vault.repository.create(&key, huge.into()).await.unwrap();
    let reader = vault.reader();
    let error = ring(&reader).await.require_newest(reader.home()).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
    assert!(
        error.to_string().contains("a record has at most"),
        "{error}"
    );
}

/// The keys as they were before the third epoch.
async fn ring_up_to_two(vault: &Vault) -> Arc<Ring> {
    let third = name().epoch_key(&vault.seal_id, 3);
    let record = vault.repository.get(&third).await.unwrap();
    vault.repository.delete(&third).await.unwrap();
    let read = ring(&vault.reader()).await;
    vault.repository.create(&third, record).await.unwrap();
    read
}

#[tokio::test]
async fn who_is_taken_out_stays_out_whoever_else_is_let_in_at_the_same_time() {
    use KeyRole::Reader;
    let vault = Vault::new().await;
    let (gone, late, last) = (Person::new(), Person::new(), Person::new());
    let reader = vault.reader();
    let first = ring(&reader).await;
    let home = reader.home();
    keys::add(home, &first, Reader, &gone.recipient)
        .await
        .unwrap();
    let before = ring(&vault.reader()).await;
    // Another is let in, and the one who goes gets a box of another kind.
    keys::add(home, &before, Reader, &late.recipient)
        .await
        .unwrap();
    keys::add(home, &before, KeyRole::Writer, &gone.recipient)
        .await
        .unwrap();
    let all = vault.recipients();
    assert_eq!(keys::rotate(home, &before, &all).await.unwrap(), 2);
    let of_gone = roles(&vault.repository, &gone).await;
    assert_eq!(of_gone, [vec![Reader, KeyRole::Writer], vec![]]);
    // Who has read the keys before lets another in, and the one who is gone again, who was in.
    keys::add(home, &before, Reader, &last.recipient)
        .await
        .unwrap();
    let again = keys::reseal(home, &before, &gone.recipient).await.unwrap();
    assert_eq!(again.older, 0);
    assert_eq!(roles(&vault.repository, &gone).await, of_gone);
    for who in [&late, &last] {
        assert_eq!(roles(&vault.repository, who).await, [[Reader], [Reader]]);
    }
}

/// A cluster in that store, copied out of the vault.
async fn stored(vault: &Vault) -> Arc<dyn ObjectStore> {
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let into = Repository::with_store(Arc::clone(&memory));
    for object in vault.repository.list("").await.unwrap() {
        let body = vault.repository.get(&object.key).await.unwrap();
        into.create(&object.key, body).await.unwrap();
    }
    memory
}

/// Either of the two waits at each of its operations while the other one does all of its own.
#[tokio::test]
async fn in_every_interleaving_of_an_addition_and_a_new_epoch_the_newcomer_opens_it() {
    let vault = Vault::new().await;
    for adds_late in [true, false] {
        for nth in 0.. {
            let memory = stored(&vault).await;
            let pause = Fault::Delayed(Duration::from_millis(40));
            let slow = FaultStore::failing_at(nth, pause, Arc::clone(&memory));
            let (through, direct) = (
                Repository::with_store(slow.clone()),
                Repository::with_store(Arc::clone(&memory)),
            );
            let (adding, beginning) = match adds_late {
                true => (&through, &direct),
                false => (&direct, &through),
            };
            let late = Person::new();
            let add = async {
                let cluster = opened_by(adding, &vault.reader);
                let ring = ring(&cluster).await;
                keys::add(cluster.home(), &ring, KeyRole::Reader, &late.recipient).await
            };
            let rotate = async {
                let cluster = opened_by(beginning, &vault.reader);
                let ring = ring(&cluster).await;
                let seen = ring.survey(cluster.home()).await?;
                let boxes = seen[0].boxes.iter();
                let all = boxes.map(|own| (own.role, own.recipient.clone())).collect();
                keys::rotate(cluster.home(), &ring, &Recipients { all }).await
            };
            let (added, begun) = futures::join!(add, rotate);
            let moment = format!("at {nth}, adds late: {adds_late}");
            added.unwrap();
            assert_eq!(begun.unwrap(), 2, "{moment}");
            let of_late = roles(&direct, &late).await;
            assert_eq!(of_late.len(), 2, "{moment}");
            assert_eq!(of_late[1], [KeyRole::Reader], "{moment}");
            if slow.operation_count() <= nth {
                assert!(nth > 4, "{moment}: nothing was slow");
                break;
            }
        }
    }
}

/// An archiver that fails rings alarms, and has backups store WAL of their own.
#[tokio::test]
async fn a_push_succeeds_at_every_moment_at_which_an_epoch_begins() {
    let vault = Vault::new().await;
    let scratch = tempfile::tempdir().unwrap();
    let (mut before, mut after) = (0, 0);
    for nth in 0.. {
        let held = HeldUp::at(nth, &vault).await;
        let recipients = vault.recipients();
        let rotating = keys::rotate(held.through.home(), &held.seen, &recipients);
        let pushing = async {
            tokio::time::sleep(Duration::from_millis(40)).await;
            let writer = opened_by(&held.direct, &vault.writer);
            places::push(&writer, scratch.path(), "00000002.history").await;
            ring(&writer).await.current().number
        };
        let (rotated, first_read) = futures::join!(rotating, pushing);
        assert_eq!(rotated.unwrap(), 2, "held up at {nth}");
        match first_read {
            1 => before += 1,
            _ => after += 1,
        }
        let got = scratch.path().join("got");
        let reader = opened_by(&held.direct, &vault.reader);
        let options = GetOptions::default();
        archive::get(&reader, "00000002.history", &got, &options)
            .await
            .unwrap();
        if held.store.operation_count() <= nth {
            break;
        }
    }
    assert!(before > 2 && after > 0, "{before} {after}");
}

/// PostgreSQL takes "not there" for the end of the archive, and opens for writes.
#[tokio::test]
async fn an_object_of_the_keys_that_is_listed_and_not_found_is_not_the_end_of_the_archive() {
    let vault = Vault::new().await;
    let scratch = tempfile::tempdir().unwrap();
    let (segment, to) = ("000000010000000000000010", scratch.path().join("got"));
    places::push(&vault.writer(), scratch.path(), segment).await;
    let mut failed = 0;
    for nth in 0.. {
        let store = FaultStore::failing_at(nth, Fault::Absent, stored(&vault).await);
        let reader = opened_by(&Repository::with_store(store.clone()), &vault.reader);
        let got = archive::get(&reader, segment, &to, &GetOptions::default()).await;
        if store.operation_count() <= nth {
            got.unwrap();
            break;
        }
        if let Err(error) = got {
            assert_ne!(error.kind(), Kind::NotFound, "at {nth}: {error}");
            failed += 1;
        }
    }
    assert!(failed > 0);
}

#[tokio::test]
async fn an_epoch_without_a_reader_is_damaged_for_who_seals_and_who_reads() {
    let vault = Vault::new().await;
    let prefix = name().epoch_prefix(&vault.seal_id, 1);
    for object in vault.repository.list(&prefix).await.unwrap() {
        if object.key.contains("/reader-") {
            vault.repository.delete(&object.key).await.unwrap();
        }
    }
    let writer = vault.writer();
    let sealing = writer.sealing().await.unwrap();
    let error = sealing.new_layer([0; 16]).unwrap_err();
    let says = "nobody can open what was sealed in epoch 1";
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
    assert!(error.to_string().contains(says), "{error}");
    let reader = vault.reader();
    let error = reader.sealing().await.unwrap().require_catalog();
    let error = error.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
    assert!(error.to_string().contains(says), "{error}");
    let wrong = ring(&writer).await.inspect(writer.home()).await;
    assert_eq!(wrong.len(), 1);
    assert_eq!((wrong[0].0, wrong[0].1.as_str()), (1, prefix.as_str()));
}

/// Somebody is taken out, and makes another epoch 2 out of a copy from before that; answers its objects, the record last.
async fn other_second(vault: &Vault, gone: &Person) -> Vec<(String, Bytes)> {
    let reader = vault.reader();
    let home = reader.home();
    let first = ring(&reader).await;
    keys::add(home, &first, KeyRole::Reader, &gone.recipient)
        .await
        .unwrap();
    let copy = Repository::with_store(stored(vault).await);
    let now = ring(&vault.reader()).await;
    let begun = keys::rotate(home, &now, &vault.recipients()).await;
    assert_eq!(begun.unwrap(), 2);

    let own = opened_by(&copy, gone);
    let mut all = vault.recipients();
    all.all.push((KeyRole::Reader, gone.recipient.clone()));
    let now = ring(&own).await;
    assert_eq!(keys::rotate(own.home(), &now, &all).await.unwrap(), 2);
    let prefix = name().epoch_prefix(&vault.seal_id, 2);
    let mut objects = Vec::new();
    for object in copy.list(&prefix).await.unwrap() {
        objects.push((object.key.clone(), copy.get(&object.key).await.unwrap()));
    }
    let record = name().epoch_key(&vault.seal_id, 2);
    objects.sort_by_key(|(key, _)| *key == record);
    assert_eq!(objects.last().unwrap().0, record);
    objects
}

/// He need not delete anything, and may begin as many epochs as he likes.
#[tokio::test]
async fn who_was_taken_out_is_let_in_by_no_epoch_in_the_place_of_the_true_one() {
    let vault = Vault::new().await;
    let gone = Person::new();
    let objects = other_second(&vault, &gone).await;
    vault.writer().require_newest_epoch().await.unwrap();
    for (key, body) in &objects {
        vault.put(key, body).await;
    }
    let own = opened_by(&vault.repository, &gone);
    let refused = async |who: &ClusterRepository| {
        let error = who.require_newest_epoch().await.unwrap_err();
        let says = "is a key box of another epoch 2 than the one whose record is there";
        assert_eq!(error.kind(), Kind::Damaged, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(
            error.hint_text().unwrap().contains("took him out"),
            "{error}"
        );
        let now = ring(who).await;
        let (_, forged) = now.survey_all(who.home()).await.unwrap();
        assert_eq!(forged.len(), 1, "{forged:?}");
        assert!(now.survey(who.home()).await.is_err());
        let wrong = now.inspect(who.home()).await;
        assert!(wrong[0].2.to_string().contains(says), "{wrong:?}");
    };
    refused(&vault.writer()).await;
    let mut all = vault.recipients();
    all.all.push((KeyRole::Reader, gone.recipient.clone()));
    let now = ring(&own).await;
    let begun = keys::rotate(own.home(), &now, &all).await;
    assert_eq!(begun.unwrap(), 3);
    refused(&vault.writer()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_with_versions_tells_the_epoch_that_was_begun_from_one_in_its_place() {
    let server = S3Server::start_with(Bucket::Versioned).unwrap();
    let repository = Repository::open(&support::options(&server, "p")).unwrap();
    let vault = Vault::within(repository).await;
    let gone = Person::new();
    let objects = other_second(&vault, &gone).await;
    let (key, other) = objects.last().unwrap();
    let genuine = vault.repository.get(key).await.unwrap();
    let genuine = decode_epoch(&genuine).unwrap();
    vault.writer().require_newest_epoch().await.unwrap();
    for body in [std::str::from_utf8(other).unwrap(), "junk"] {
        let put = server.request(None, "PUT", &format!("/p/{key}"), body);
        assert_eq!(put.unwrap().status, 200);
        assert_eq!(vault.repository.get(key).await.unwrap(), body.as_bytes());
        let writer = vault.writer();
        assert_eq!(*ring(&writer).await.current(), genuine);
        let error = writer.require_newest_epoch().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Damaged, "{error}");
        assert!(error.to_string().contains("was replaced at"), "{error}");
        let own = opened_by(&vault.repository, &gone);
        let (seen, _) = ring(&own).await.survey_all(own.home()).await.unwrap();
        assert!(seen[1].own.is_empty(), "{seen:?}");
    }
}

/// Both choose the same number. Key boxes of the one that was not begun would look like those of one that was replaced.
#[tokio::test]
async fn of_two_epochs_that_begin_at_once_nothing_is_left_of_the_one_that_does_not() {
    let vault = Vault::new().await;
    let mut late = 0;
    for nth in 0.. {
        let held = HeldUp::at(nth, &vault).await;
        let (first, second) = (vault.recipients(), vault.recipients());
        let rotating = keys::rotate(held.through.home(), &held.seen, &first);
        let other = opened_by(&held.direct, &vault.reader);
        let meanwhile = async {
            tokio::time::sleep(Duration::from_millis(40)).await;
            keys::rotate(other.home(), &held.seen, &second).await
        };
        let (one, two) = futures::join!(rotating, meanwhile);
        assert!(one.is_ok() || two.is_ok(), "{nth}: {one:?} {two:?}");
        let errors = [one, two].into_iter().filter_map(Result::err);
        late += errors
            .filter(|error| error.kind() == Kind::AlreadyExists)
            .count();
        let reader = opened_by(&held.direct, &vault.reader);
        let doubts = ring(&reader).await.doubts(reader.home()).await.unwrap();
        assert!(doubts.is_empty(), "held up at {nth}: {doubts:?}");
        if held.store.operation_count() <= nth {
            break;
        }
    }
    assert!(late > 0);
}

/// The founders are gone, and who is left was never a reader of the first epoch.
#[tokio::test]
async fn who_came_later_lets_others_in_when_the_founders_are_gone() {
    use KeyRole::{Keeper, Reader, Writer};
    let vault = Vault::new().await;
    let (later, host, person, last) = (Person::new(), Person::new(), Person::new(), Person::new());
    let reader = vault.reader();
    let now = ring(&reader).await;
    let begun = keys::rotate(reader.home(), &now, &vault.recipients()).await;
    assert_eq!(begun.unwrap(), 2);
    let reader = vault.reader();
    let now = ring(&reader).await;
    let let_in = keys::add(reader.home(), &now, Reader, &later.recipient).await;
    assert_eq!(let_in.unwrap().current, 2);
    let own = opened_by(&vault.repository, &later);
    let all = vec![
        (Reader, later.recipient.clone()),
        (Writer, vault.writer.recipient.clone()),
    ];
    let now = ring(&own).await;
    let begun = keys::rotate(own.home(), &now, &Recipients { all }).await;
    assert_eq!(begun.unwrap(), 3);

    let own = opened_by(&vault.repository, &later);
    let (home, now) = (own.home(), ring(&own).await);
    assert!(!now.opens_data(1));
    for (role, who) in [(Writer, &host), (Reader, &person)] {
        let let_in = keys::add(home, &now, role, &who.recipient).await.unwrap();
        assert_eq!((let_in.current, let_in.older), (3, 2), "{role:?}");
        assert!(let_in.closed.is_empty(), "{role:?}");
    }
    let of_host = roles(&vault.repository, &host).await;
    assert_eq!(of_host, [[Writer], [Writer], [Writer]]);
    let writer = opened_by(&vault.repository, &host);
    let of_writer = ring(&writer).await;
    assert!((1..=3).all(|epoch| of_writer.opens_catalog(epoch)));
    assert!(of_writer.inspect(writer.home()).await.is_empty());
    writer.require_newest_epoch().await.unwrap();
    // Their boxes are part of a copy.
    let found = now.find_in(home).await.unwrap();
    let late = found.boxes.values().filter(|one| one.epoch == 1);
    assert_eq!(
        late.filter(|one| one.recipient == host.recipient).count(),
        1
    );

    let resealed = keys::reseal(home, &now, &person.recipient).await.unwrap();
    assert_eq!((resealed.older, resealed.closed), (1, vec![1]));
    let of_person = roles(&vault.repository, &person).await;
    assert_eq!(
        of_person,
        [vec![Keeper], vec![Reader, Keeper], vec![Reader]]
    );

    // Without a catalog of his own nobody gives it on.
    let print = fingerprint(&later.recipient);
    let prefix = name().epoch_prefix(&vault.seal_id, 1);
    for object in vault.repository.list(&prefix).await.unwrap() {
        if object.key.contains(&print) {
            vault.repository.delete(&object.key).await.unwrap();
        }
    }
    let own = opened_by(&vault.repository, &later);
    let now = ring(&own).await;
    let let_in = keys::add(own.home(), &now, Writer, &last.recipient).await;
    assert_eq!(let_in.unwrap().closed, [1]);
    let of_last = roles(&vault.repository, &last).await;
    assert_eq!(of_last, [vec![], vec![Writer], vec![Writer]]);
}
