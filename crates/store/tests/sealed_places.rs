//! Objects of a sealed cluster at the places of others: swapped, cut, brought back, called by another name, or made by
//! somebody who has no key. Nobody takes them for what was there.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::abandoned::{self, AbandonedRecord};
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::digest::contents;
use pgstrata_layer::frame::Codec;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{Encryption, ParentRef};
use pgstrata_layer::mark::{self, Mark, MarkRecord, Pin};
use pgstrata_layer::released::{self, ReleasedRecord};
use pgstrata_layer::removal::{self, RemovalRecord, VerdictRecord};
use pgstrata_layer::seal::{Class, Header, Key, ObjectKey, SealedPlace, Sealer};
use pgstrata_layer::sealed::{self, SCHEME};
use pgstrata_layer::verified::{self, VerifiedRecord};
use pgstrata_layer::wal::{HEADER_BYTES, WalDescription, WalWriter, encode};
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_store::archive::{self, GetOptions};
use pgstrata_store::catalog::{Catalog, unreadable_records};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};

use support::places::{LABELS, Place, Reading, Scene, push};
use support::vault::{Vault, manifest, name};
use support::wal;

#[tokio::test]
async fn no_object_is_taken_for_another_of_any_kind_layer_or_epoch() {
    let scene = Scene::new().await;
    assert_eq!(scene.places.len(), 15 + 6 + 2 + 2 + 6 + 1);
    for at in &scene.places {
        scene.read(at).await.unwrap();
        for found in scene.places.iter().filter(|found| found.key != at.key) {
            scene.require_damage(at, &found.genuine, &found.key).await;
            if let Reading::Archive(file) = at.reading {
                scene.vault.put(&at.key, &found.genuine).await;
                let error = scene.is_held(file).await.unwrap_err();
                assert_eq!(error.kind(), Kind::Damaged, "{} at {}", found.key, at.key);
                scene.vault.put(&at.key, &at.genuine).await;
            }
        }
        scene.read(at).await.unwrap();
    }
}

#[tokio::test]
async fn an_object_that_was_cut_or_lengthened_is_damage() {
    let scene = Scene::new().await;
    for at in &scene.places {
        let length = at.genuine.len();
        for cut in [0, 1, 40, length / 2, length - 1] {
            let what = format!("{cut} bytes of {length}");
            scene.require_damage(at, &at.genuine[..cut], &what).await;
        }
        let longer = [&at.genuine[..], b"\n"].concat();
        scene.require_damage(at, &longer, "a byte more").await;
        let twice = [&at.genuine[..], &at.genuine[..]].concat();
        scene.require_damage(at, &twice, "all of it twice").await;
    }
}

/// What stands in for a damaged file of the archive is looked at as closely as the file itself.
#[tokio::test]
async fn nothing_else_stands_in_for_a_damaged_file() {
    let scene = Scene::new().await;
    let archived = scene.places.iter();
    let archived = archived.filter(|at| matches!(at.reading, Reading::Archive(_)));
    for at in archived {
        let Reading::Archive(file) = at.reading else {
            continue;
        };
        scene.vault.put(&at.key, b"rot").await;
        let mended = name().mended_wal_key(&file[..8], file, 1);
        let stands_in = async |bytes: &[u8]| {
            scene.vault.put(&mended, bytes).await;
            scene.read(at).await
        };
        stands_in(&at.genuine).await.unwrap();
        for found in scene.places.iter().filter(|found| found.key != at.key) {
            let error = stands_in(&found.genuine).await.unwrap_err();
            assert_eq!(
                error.kind(),
                Kind::Damaged,
                "{} at {mended}: {error}",
                found.key
            );
        }
        for cut in [0, 1, 40, at.genuine.len() - 1] {
            let error = stands_in(&at.genuine[..cut]).await.unwrap_err();
            assert_eq!(
                error.kind(),
                Kind::Damaged,
                "{cut} bytes at {mended}: {error}"
            );
        }
        scene.vault.repository.delete(&mended).await.unwrap();
        scene.vault.put(&at.key, &at.genuine).await;
        scene.read(at).await.unwrap();
    }
}

/// What is not sealed makes no layer, and takes none away that was finished.
#[tokio::test]
async fn a_record_at_the_place_of_a_manifest_is_damage() {
    let scene = Scene::new().await;
    let abandoned = |label: &str| {
        let record = AbandonedRecord {
            label: label.to_owned(),
            host: "db1".to_owned(),
            pid: 1,
            abandoned_at: Timestamp::UNIX_EPOCH,
            written_by: "test".to_owned(),
        };
        abandoned::encode(&record)
    };
    let claim = |label: &str, id: &str| {
        let record = ClaimRecord {
            label: label.to_owned(),
            layer_id: id.to_owned(),
            host: "db1".to_owned(),
            pid: 1,
            started_at: Timestamp::UNIX_EPOCH,
            written_by: "test".to_owned(),
        };
        claim::encode(&record)
    };
    let mut count = 0;
    for at in &scene.places {
        let Reading::Catalog(label) = &at.reading else {
            continue;
        };
        let mut manifests = scene.manifests.iter();
        let own = manifests.find(|own| own.label == label.as_str()).unwrap();
        let claimed = claim(&own.label, &own.layer_id);
        let committed = name().committed_key(label);
        scene.vault.put(&committed, &claimed).await;
        scene.read(at).await.unwrap();
        let records = clear_records(&scene).into_iter();
        let records = records.map(|(_, record)| record);
        let others = [
            claimed,
            abandoned("20261123-080009F"),
            abandoned(label.as_str()),
        ];
        for record in records.chain(others) {
            let what = String::from_utf8_lossy(&record).into_owned();
            scene.require_damage(at, &record, &what).await;
            count += 1;
        }
    }
    assert_eq!(count, 3 * (8 + 3));
}

/// The records that are not sealed, by their keys: two marks of one layer and one of another, WAL given up up to two places, a
/// removal with its verdict, a verification.
fn clear_records(scene: &Scene) -> Vec<(String, Vec<u8>)> {
    let layer = |at: usize| ParentRef {
        label: LABELS[0][at].to_owned(),
        manifest_digest: "0f".repeat(32),
    };
    let (host, written_by) = ("db1".to_owned(), "test".to_owned());
    let mut records = Vec::new();
    for (at, number) in [(0, 0), (0, 1), (1, 0)] {
        let key = name().mark_key(&Label::parse(LABELS[0][at]).unwrap(), number);
        let record = MarkRecord {
            layer: layer(at),
            number,
            says: Mark::Pin(Pin::default()),
            host: host.clone(),
            pid: 1,
            marked_at: Timestamp::UNIX_EPOCH,
            written_by: written_by.clone(),
        };
        records.push((key, mark::encode(&record)));
    }
    for wal_before in [Lsn::new(1), Lsn::new(2)] {
        let record = ReleasedRecord {
            wal_before,
            timelines: Vec::new(),
            host: host.clone(),
            pid: 1,
            released_at: Timestamp::UNIX_EPOCH,
            written_by: written_by.clone(),
        };
        records.push((name().released_key(wal_before), released::encode(&record)));
    }
    let removal = RemovalRecord {
        layers: vec![layer(0)],
        host: host.clone(),
        pid: 1,
        started_at: Timestamp::UNIX_EPOCH,
        written_by: written_by.clone(),
    };
    records.push((name().removal_key("0a"), removal::encode(&removal)));
    let verdict = VerdictRecord {
        layers: vec![layer(0)],
        wal_before: None,
        wal_kept: Vec::new(),
        host: host.clone(),
        pid: 1,
        decided_at: Timestamp::UNIX_EPOCH,
        written_by: written_by.clone(),
    };
    records.push((name().verdict_key("0a"), removal::encode_verdict(&verdict)));
    let verified = VerifiedRecord {
        label: None,
        deep: true,
        layers: u64::try_from(scene.manifests.len()).unwrap(),
        newest: None,
        wal_files: 1,
        errors: 0,
        warnings: 0,
        damaged: Vec::new(),
        other_errors: None,
        host,
        pid: 1,
        started_at: Timestamp::UNIX_EPOCH,
        finished_at: Timestamp::UNIX_EPOCH,
        written_by,
    };
    records.push((name().verified_key("0b"), verified::encode(&verified)));
    records
}

/// Nothing hides in them and no key protects them: each says itself where it belongs, and whoever looks finds what does not.
#[tokio::test]
async fn no_record_is_taken_for_one_of_another_kind_or_place() {
    let scene = Scene::new().await;
    let records = clear_records(&scene);
    for (key, genuine) in &records {
        scene.vault.put(key, genuine).await;
    }
    let reader = scene.vault.reader();
    let nobody = ClusterRepository::new(&scene.vault.repository, &name());
    let wrong = async || {
        let [with_key, without] = [&reader, &nobody].map(unreadable_records);
        let found = with_key.await.unwrap();
        let keys = |found: &[(String, Error)]| -> Vec<String> {
            found.iter().map(|(key, _)| key.clone()).collect()
        };
        assert_eq!(keys(&found), keys(&without.await.unwrap()));
        found
    };
    assert!(wrong().await.is_empty());
    let sealed = scene.places.iter();
    let others: Vec<(&String, &Vec<u8>)> = sealed.map(|at| (&at.key, &at.genuine)).collect();
    for (key, genuine) in &records {
        let cut = |length: usize| (key, genuine[..length].to_vec());
        let own = [
            cut(0),
            cut(1),
            cut(genuine.len() / 2),
            cut(genuine.len() - 1),
        ];
        let swapped = records.iter().map(|(key, genuine)| (key, genuine));
        let swapped = swapped.chain(others.iter().copied());
        let swapped = swapped.filter(|(other, _)| *other != key);
        let swapped = swapped.map(|(other, body)| (other, body.clone()));
        for (other, body) in own.into_iter().chain(swapped) {
            scene.vault.put(key, &body).await;
            let found = wrong().await;
            scene.vault.put(key, genuine).await;
            assert_eq!(found.len(), 1, "{} bytes of {other} at {key}", body.len());
            assert_eq!(&found[0].0, key, "{other}");
            assert_eq!(found[0].1.kind(), Kind::Damaged, "{other} at {key}");
        }
    }
    assert!(wrong().await.is_empty());
}

/// Every place of a cluster with the same name, layers, files and people, that was begun another time.
#[tokio::test]
async fn an_object_of_another_cluster_with_the_same_names_is_damage() {
    let (scene, other) = (Scene::new().await, Scene::new().await);
    let mut count = 0;
    for at in &scene.places {
        let mut same = other.places.iter();
        let Some(found) = same.find(|found| found.key == at.key) else {
            continue;
        };
        scene.require_damage(at, &found.genuine, "another's").await;
        count += 1;
    }
    // All but epochs and boxes, whose names tell, and restores, whose names are drawn.
    assert_eq!(count, 15 + 6 + 2 + 1);
}

/// What an interrupted attempt left under the label that the layer has.
#[tokio::test]
async fn an_object_of_another_attempt_at_the_same_label_is_damage() {
    let scene = Scene::new().await;
    let writer = scene.vault.writer();
    let attempt = writer.sealing().await.unwrap().new_layer([77; 16]).unwrap();
    for at in &scene.places {
        if let Reading::Layer(_) = at.reading {
            let left = attempt.seal(&name(), &at.key, b"left".repeat(9)).unwrap();
            scene.require_damage(at, &left, "what was left").await;
        }
    }
}

/// The same object under a header that says something else, with a checksum that is right.
fn relabelled(stored: &[u8], change: impl Fn(&mut Header)) -> Vec<u8> {
    let (mut header, preface, chunks) = Header::split(stored).unwrap().unwrap();
    change(&mut header);
    [front(&header, preface), chunks.to_vec()].concat()
}

fn front(header: &Header, preface: &[u8]) -> Vec<u8> {
    let place = SealedPlace {
        seal_id: [0; 16],
        name: "",
    };
    // No chunk is sealed with it.
    let key = ObjectKey::derive(&Key::new([0; 32]), header.class, &header.salt, place);
    Sealer::new(key, header, preface).take()
}

#[tokio::test]
async fn an_object_that_says_another_epoch_class_or_salt_is_damage() {
    let scene = Scene::new().await;
    let sealed = |at: &&Place| Header::split(&at.genuine).is_ok_and(|split| split.is_some());
    let mut count = 0;
    for at in scene.places.iter().filter(sealed) {
        for epoch in [1, 2, 3] {
            let (own, ..) = Header::split(&at.genuine).unwrap().unwrap();
            if own.epoch != epoch {
                let moved = relabelled(&at.genuine, |header| header.epoch = epoch);
                scene.require_damage(at, &moved, "another epoch").await;
            }
        }
        let other = relabelled(&at.genuine, |header| {
            header.class = match header.class {
                Class::Data => Class::Catalog,
                Class::Catalog => Class::Data,
            };
        });
        scene.require_damage(at, &other, "another class").await;
        let other = relabelled(&at.genuine, |header| header.salt[3] ^= 1);
        scene.require_damage(at, &other, "another salt").await;
        count += 1;
    }
    assert_eq!(count, 12 + 6 + 2 + 2);
}

/// Data key and header in the preface of a WAL object.
fn parts(preface: &[u8]) -> [Vec<u8>; 2] {
    let (length, rest) = preface.split_first_chunk::<4>().unwrap();
    let (key, rest) = rest.split_at(usize::try_from(u32::from_le_bytes(*length)).unwrap());
    [key.to_vec(), rest[4..].to_vec()]
}

fn preface_of(parts: &[Vec<u8>; 2]) -> Vec<u8> {
    let parts = parts.iter().flat_map(|part| {
        let length = u32::try_from(part.len()).unwrap();
        [length.to_le_bytes().to_vec(), part.clone()].concat()
    });
    parts.collect()
}

#[tokio::test]
async fn a_wal_object_with_the_key_or_the_header_of_another_is_damage() {
    let scene = Scene::new().await;
    let is_wal = |at: &&Place| matches!(at.reading, Reading::Archive(_));
    for at in scene.places.iter().filter(is_wal) {
        for found in scene.places.iter().filter(is_wal) {
            for which in 0..2 {
                mix(&scene, at, found, which).await;
            }
        }
    }
}

/// Puts one part of the preface of `found` into the object at a place.
async fn mix(scene: &Scene, at: &Place, found: &Place, which: usize) {
    let Reading::Archive(file) = at.reading else {
        return;
    };
    let (own, preface, chunks) = Header::split(&at.genuine).unwrap().unwrap();
    let (_, other, _) = Header::split(&found.genuine).unwrap().unwrap();
    let (mut mixed, other) = (parts(preface), parts(other));
    // Histories have no key of their own.
    if mixed[which] == other[which] {
        return;
    }
    mixed[which].clone_from(&other[which]);
    let what = format!("part {which} of {}", found.key);
    let forged = [front(&own, &preface_of(&mixed)), chunks.to_vec()].concat();
    scene.require_damage(at, &forged, &what).await;
    scene.vault.put(&at.key, &forged).await;
    let is_seen = which == 1 || file.ends_with(".history");
    assert_eq!(scene.is_held(file).await.is_err(), is_seen, "{what}");
    scene.vault.put(&at.key, &at.genuine).await;
}

/// A cluster with one segment, and somebody who may write to the store. What he knows: all that is stored, and with
/// `contents` what is in the segment. He can seal to the epoch's recipient, as everybody can.
struct Theft {
    vault: Vault,
    scratch: tempfile::TempDir,
    key: String,
    genuine: Bytes,
    contents: Vec<u8>,
    recipient: String,
    seal_id: [u8; 16],
}

const SEGMENT: &str = "000000010000000000000003";

impl Theft {
    async fn new() -> Self {
        let vault = Vault::new().await;
        let scratch = tempfile::tempdir().unwrap();
        push(&vault.writer(), scratch.path(), SEGMENT).await;
        let key = name().wal_key(&SEGMENT[..8], SEGMENT);
        let plain = vault.writer();
        let ring = plain.sealing().await.unwrap().ring().unwrap().clone();
        Self {
            genuine: vault.repository.get(&key).await.unwrap(),
            contents: fs::read(scratch.path().join(SEGMENT)).unwrap(),
            recipient: ring.current().recipient.clone(),
            seal_id: ring.seal_id(),
            vault,
            scratch,
            key,
        }
    }

    fn own_key(&self) -> (Key, Vec<u8>) {
        let bits = [9; 32];
        let recipient: age::x25519::Recipient = self.recipient.parse().unwrap();
        (Key::new(bits), age::encrypt(&recipient, &bits).unwrap())
    }

    fn derive(&self, shared: &Key, header: &Header, name: &str) -> ObjectKey {
        let seal_id = self.seal_id;
        ObjectKey::derive(
            shared,
            header.class,
            &header.salt,
            SealedPlace { seal_id, name },
        )
    }

    /// The object of a file, sealed with a key of his own, behind a header that somebody sealed.
    fn object(&self, header: &Header, sealed_header: Vec<u8>, object: &[u8]) -> Vec<u8> {
        let (key, sealed_key) = self.own_key();
        let name = format!("wal/{}/{SEGMENT}", &SEGMENT[..8]);
        let preface = preface_of(&[sealed_key, sealed_header]);
        let mut sealer = Sealer::new(self.derive(&key, header, &name), header, &preface);
        sealer.append(object);
        sealer.finish()
    }

    /// His header of a file, sealed with a catalog key.
    fn header(&self, catalog: &Key, header: &Header, object: &[u8]) -> Vec<u8> {
        let name = format!("wal/{}/{SEGMENT} header", &SEGMENT[..8]);
        let catalog_header = Header {
            class: Class::Catalog,
            ..*header
        };
        let own = self.derive(catalog, &catalog_header, &name);
        own.seal_small(&object[..HEADER_BYTES])
    }

    /// What a reader gets when that is stored in place of the segment.
    async fn get(&self, forged: &[u8]) -> Result<Vec<u8>> {
        self.vault.put(&self.key, forged).await;
        let to = self.scratch.path().join("got");
        let reader = self.vault.reader();
        let got = archive::get(&reader, SEGMENT, &to, &GetOptions::default()).await;
        assert_eq!(to.exists(), got.is_ok());
        got.map(|_| fs::read(&to).unwrap())
    }
}

fn described(raw: &[u8]) -> WalDescription {
    WalDescription {
        file_name: SEGMENT.to_owned(),
        system_identifier: wal::SYSTEM,
        raw_length: u64::try_from(raw.len()).unwrap(),
        raw_digest: contents(raw),
    }
}

#[tokio::test]
async fn wal_that_a_thief_sealed_to_the_public_recipient_is_refused() {
    let theft = Theft::new().await;
    let (header, preface, _) = Header::split(&theft.genuine).unwrap().unwrap();
    let [_, genuine_header] = parts(preface);
    let mut evil = theft.contents.clone();
    evil[4000] ^= 1;
    let forged = encode(SEGMENT, &evil, wal::SYSTEM, Codec::None).unwrap();
    let refused = async |object: Vec<u8>, says: &str| {
        let got = theft.get(&object).await.map(|got| got.len());
        let error = got.unwrap_err();
        assert_eq!(error.kind(), Kind::Damaged, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    };

    // With the header that the writer sealed: the digest in it is that of the writer's file.
    let object = theft.object(&header, genuine_header.clone(), &forged);
    refused(object, "has another header than what is sealed in it").await;
    // He knows the file, and puts its header in front of what he made of it.
    let known = encode(SEGMENT, &theft.contents, wal::SYSTEM, Codec::None).unwrap();
    let mut both = WalWriter::new(&described(&theft.contents), Codec::None).unwrap();
    both.append(&evil).unwrap();
    let both = both.finish().unwrap();
    assert_eq!(both[..HEADER_BYTES], known[..HEADER_BYTES]);
    let object = theft.object(&header, genuine_header.clone(), &both);
    refused(object, "digest").await;
    // With a header that he sealed with what he has.
    let invented = theft.header(&Key::new([8; 32]), &header, &forged);
    refused(theft.object(&header, invented, &forged), "altered").await;
    // With none.
    refused(theft.object(&header, Vec::new(), &forged), "header").await;

    // What he made was good: it is the catalog key that he lacks. A writer has it.
    let own = theft.object(&header, genuine_header, &known);
    assert_eq!(theft.get(&own).await.unwrap(), theft.contents);
    let writer = theft.vault.writer();
    let ring = writer.sealing().await.unwrap().ring().unwrap();
    let of_writer = theft.header(ring.catalog_key(1).unwrap(), &header, &forged);
    let object = theft.object(&header, of_writer, &forged);
    assert_eq!(theft.get(&object).await.unwrap(), evil);
}

#[tokio::test]
async fn a_layer_that_a_thief_sealed_to_the_public_recipient_is_refused() {
    let theft = Theft::new().await;
    let label = Label::parse(LABELS[0][0]).unwrap();
    let place = name().manifest_key(&label);
    let (_, data_key) = theft.own_key();
    let writer = theft.vault.writer();
    let sealing = writer.sealing().await.unwrap();
    let mut made = manifest(
        label.as_str(),
        [3; 16],
        &sealing.new_layer([3; 16]).unwrap(),
    );
    made.encryption = Some(Encryption::new(SCHEME, 1, &data_key, [5; 16]));
    let read = async |catalog: &Key| {
        let body = sealed::encode(&made, catalog, theft.seal_id).unwrap();
        theft
            .vault
            .repository
            .create(&place, body.into())
            .await
            .unwrap();
        let catalog = Catalog::load(&theft.vault.reader()).await.unwrap();
        let found = catalog.layer(&label).map(|_| ());
        theft.vault.repository.delete(&place).await.unwrap();
        found
    };
    let error: Error = read(&Key::new([8; 32])).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
    assert!(error.to_string().contains("altered"), "{error}");
    // A writer can make it.
    let ring = sealing.ring().unwrap();
    read(ring.catalog_key(1).unwrap()).await.unwrap();
}
