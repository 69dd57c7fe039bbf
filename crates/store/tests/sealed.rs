//! Sealed clusters: what was sealed for one place opens at that place alone, and for those alone for whom it was sealed.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;

use bytes::Bytes;
use pgstrata_layer::epoch::KeyRole;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::Manifest;
use pgstrata_layer::seal;
use pgstrata_store::archive::{self, GetOptions, Pushed};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::keys::copies::{self, KeysFound};
use pgstrata_store::keys::{self, Identities, Keys, Recipients, Ring};
use pgstrata_store::repository::Repository;

use support::vault::{Person, Vault, manifest, name, opened_by};
use support::{ALONE, wal};

const LABELS: [&str; 2] = ["20261123-080000F", "20261123-080001F"];

/// An object of a sealed cluster: where it is, whose it is, and what is stored.
struct Stored {
    key: String,
    layer: Option<usize>,
    bytes: Vec<u8>,
}

/// Objects of every kind, of two layers.
async fn all_kinds(writer: &ClusterRepository) -> (Vec<Manifest>, Vec<Stored>) {
    let sealing = writer.sealing().await.unwrap();
    let (mut manifests, mut stored) = (Vec::new(), Vec::new());
    for (at, text) in LABELS.iter().enumerate() {
        let label = Label::parse(text).unwrap();
        let id = [u8::try_from(at).unwrap(); 16];
        let seal = sealing.new_layer(id).unwrap();
        for key in [
            writer.name.pack_key(&label, 0),
            writer.name.pack_key(&label, 1),
            writer.name.index_key(&label, 0),
            writer.name.digest_key(&label, 0),
        ] {
            let raw = format!("contents of {key}").into_bytes();
            let bytes = seal.seal(&writer.name, &key, raw).unwrap();
            stored.push(Stored {
                key,
                layer: Some(at),
                bytes,
            });
        }
        let manifest = manifest(text, id, &seal);
        stored.push(Stored {
            key: writer.name.manifest_key(&label),
            layer: None,
            bytes: sealing.encode(&manifest).unwrap(),
        });
        manifests.push(manifest);
    }
    (manifests, stored)
}

/// What somebody reads at the place of `at` when `bytes` are stored there.
async fn read(
    cluster: &ClusterRepository,
    manifests: &[Manifest],
    at: &Stored,
    bytes: &[u8],
) -> Result<Vec<u8>> {
    let sealing = cluster.sealing().await?;
    match at.layer {
        Some(layer) => {
            let seal = sealing.layer(&manifests[layer])?;
            let opened = seal.open(&cluster.name, &at.key, Bytes::copy_from_slice(bytes))?;
            Ok(opened.to_vec())
        }
        None => {
            let manifest = sealing.manifest(bytes)?;
            match at.key.contains(&manifest.label) {
                true => Ok(manifest.label.into_bytes()),
                // As who reads the catalog does.
                false => Err(Error::new(
                    Kind::Damaged,
                    "manifest is that of another layer",
                )),
            }
        }
    }
}

#[tokio::test]
async fn every_object_opens_at_its_own_place_and_at_no_other() {
    let vault = Vault::new().await;
    let (manifests, stored) = all_kinds(&vault.writer()).await;
    let reader = vault.reader();
    for at in &stored {
        for found in &stored {
            let read = read(&reader, &manifests, at, &found.bytes).await;
            match at.key == found.key {
                true => assert!(!read.unwrap().is_empty(), "{}", at.key),
                false => {
                    let error = read.unwrap_err();
                    let what = format!("{} at {}: {error}", found.key, at.key);
                    assert_eq!(error.kind(), Kind::Damaged, "{what}");
                }
            }
        }
        let cut = read(&reader, &manifests, at, &at.bytes[..at.bytes.len() - 1]).await;
        assert_eq!(cut.unwrap_err().kind(), Kind::Damaged, "{} cut", at.key);
        let clear = read(&reader, &manifests, at, b"PGSTPACK clear").await;
        assert_eq!(clear.unwrap_err().kind(), Kind::Damaged, "{} clear", at.key);
    }
}

#[tokio::test]
async fn a_writer_reads_what_an_increment_needs_and_no_page() {
    let vault = Vault::new().await;
    let (manifests, stored) = all_kinds(&vault.writer()).await;
    // The process that wrote is gone.
    let writer = vault.writer();
    let stranger = opened_by(&vault.repository, &Person::new());
    for at in &stored {
        let own = read(&writer, &manifests, at, &at.bytes).await;
        match at.key.contains("/pack-") {
            true => assert_eq!(own.unwrap_err().kind(), Kind::Refused, "{}", at.key),
            false => assert!(own.is_ok(), "{}", at.key),
        }
        let other = read(&stranger, &manifests, at, &at.bytes).await;
        assert_eq!(other.unwrap_err().kind(), Kind::Refused, "{}", at.key);
        for secret in ["contents of", "secret reason", "secret label"] {
            let text = String::from_utf8_lossy(&at.bytes);
            assert!(!text.contains(secret), "{} tells {secret}", at.key);
        }
    }
}

#[tokio::test]
async fn a_key_box_or_an_epoch_that_somebody_made_without_a_key_is_found() {
    let vault = Vault::new().await;
    let thief = Person::new();
    // He makes an epoch of his own, with boxes for himself and for the writer.
    let plain = ClusterRepository::new(&vault.repository, &name());
    let recipients = Recipients {
        all: vec![
            (KeyRole::Reader, thief.recipient.clone()),
            (KeyRole::Writer, vault.writer.recipient.clone()),
        ],
    };
    let forged = keys::begin(plain.home(), &recipients).await.unwrap();
    let own = vault
        .repository
        .get(&name().epoch_key(&forged, 1))
        .await
        .unwrap();
    let second = name().epoch_key(&vault.seal_id, 2);
    vault.repository.create(&second, own.clone()).await.unwrap();
    // What is sealed in epochs of ours is opened, and nothing is sealed.
    let writer = vault.writer();
    let ring = writer.sealing().await.unwrap().ring().unwrap();
    assert_eq!(ring.current().number, 1);
    let lost = ring.lost(writer.home()).await.unwrap();
    assert_eq!(lost.into_iter().collect::<Vec<_>>(), [2]);
    let error = writer.require_newest_epoch().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
    let says = "is not the record of an epoch that this cluster has begun";
    assert!(error.to_string().contains(says), "{error}");
    vault.repository.delete(&second).await.unwrap();
    assert!(vault.writer().require_newest_epoch().await.is_ok());
    // He replaces the first epoch.
    let first = name().epoch_key(&vault.seal_id, 1);
    let genuine = vault.repository.get(&first).await.unwrap();
    vault.repository.delete(&first).await.unwrap();
    vault.repository.create(&first, own).await.unwrap();
    let error = vault.writer().sealing().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
    vault.repository.delete(&first).await.unwrap();
    let error = vault.writer().sealing().await.unwrap_err();
    assert!(error.to_string().contains("are not there"), "{error}");
    vault.repository.create(&first, genuine).await.unwrap();
    // He replaces the whole cluster: who named the seal id notices.
    vault
        .repository
        .delete(&name().cluster_key())
        .await
        .unwrap();
    vault.put_record(&forged).await;
    let identities = Identities::parse(&vault.writer.identity, "test").unwrap();
    let keys = Keys::new(identities, Some(vault.seal_id.clone()));
    let pinned = ClusterRepository::new(&vault.repository, &name()).with_keys(keys);
    let error = pinned.sealing().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
}

#[tokio::test]
async fn epochs_let_people_in_and_leave_them_out() {
    let vault = Vault::new().await;
    let (manifests, stored) = all_kinds(&vault.writer()).await;
    let pack = &stored[0];
    let late = Person::new();
    let reader = vault.reader();
    let ring = reader.sealing().await.unwrap().ring().unwrap().clone();
    let two = vault.recipients();
    assert_eq!(keys::rotate(reader.home(), &ring, &two).await.unwrap(), 2);
    let writer = vault.writer();
    let of_writer = writer.sealing().await.unwrap().ring().unwrap().clone();
    let refused = keys::rotate(writer.home(), &of_writer, &two)
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), Kind::Refused, "{refused}");

    let reader = vault.reader();
    let ring = reader.sealing().await.unwrap().ring().unwrap().clone();
    keys::add(reader.home(), &ring, KeyRole::Reader, &late.recipient)
        .await
        .unwrap();
    let manifest_of_first = &stored[4];
    assert!(manifest_of_first.key.ends_with("/manifest"));
    let newcomer = opened_by(&vault.repository, &late);
    assert!(
        read(
            &newcomer,
            &manifests,
            manifest_of_first,
            &manifest_of_first.bytes
        )
        .await
        .is_ok()
    );
    let old = read(&newcomer, &manifests, pack, &pack.bytes)
        .await
        .unwrap_err();
    assert_eq!(old.kind(), Kind::Refused, "{old}");
    let (new_manifests, new) = all_kinds(&vault.writer()).await;
    assert!(
        read(&newcomer, &new_manifests, &new[0], &new[0].bytes)
            .await
            .is_ok()
    );

    assert_eq!(
        keys::reseal(reader.home(), &ring, &late.recipient)
            .await
            .unwrap()
            .older,
        1
    );
    let newcomer = opened_by(&vault.repository, &late);
    assert!(read(&newcomer, &manifests, pack, &pack.bytes).await.is_ok());

    // Who begins an epoch sees that he is in, and leaves him out.
    let reader = vault.reader();
    let ring = reader.sealing().await.unwrap().ring().unwrap().clone();
    assert_eq!(keys::rotate(reader.home(), &ring, &two).await.unwrap(), 3);
    let (new_manifests, new) = all_kinds(&vault.writer()).await;
    let gone = opened_by(&vault.repository, &late);
    let error = read(&gone, &new_manifests, &new[0], &new[0].bytes)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    assert!(read(&gone, &manifests, pack, &pack.bytes).await.is_ok());
}

/// A segment of a store that is far away is read before the cluster's record is known. What is supposed until then is no
/// reason to store it open.
#[tokio::test]
async fn wal_that_is_looked_at_before_the_record_is_sealed_all_the_same() {
    let vault = Vault::new().await;
    let pg_wal = tempfile::tempdir().unwrap();
    let path = wal::write(pg_wal.path(), 1, 3, 5);
    let file = path.file_name().unwrap().to_str().unwrap();
    let push = async || {
        let pushed = archive::push_at_once(&vault.writer(), &path, &ALONE).await;
        pushed.unwrap().pushed
    };
    assert!(matches!(push().await, Pushed::Stored { .. }));
    let key = name().wal_key("00000001", file);
    let stored = vault.repository.get(&key).await.unwrap();
    assert!(seal::is_sealed(&stored));
    assert_eq!(push().await, Pushed::Present);

    let got = pg_wal.path().join("got");
    let get =
        async |who: &ClusterRepository| archive::get(who, file, &got, &GetOptions::default()).await;
    assert!(get(&vault.writer()).await.is_err());
    get(&vault.reader()).await.unwrap();
    assert_eq!(fs::read(&got).unwrap(), fs::read(&path).unwrap());
}

/// Another repository with nothing in it, and what is found of the keys there.
async fn found(ring: &Ring, repository: &Repository) -> KeysFound {
    let copy = ClusterRepository::new(repository, &name());
    ring.find_in(copy.home()).await.unwrap()
}

fn readers(of: &[&Person]) -> Recipients {
    let all = of.iter();
    Recipients {
        all: all
            .map(|one| (KeyRole::Reader, one.recipient.clone()))
            .collect(),
    }
}

#[tokio::test]
async fn a_copy_has_boxes_of_its_source_or_its_own_also_when_it_was_stopped() {
    let vault = Vault::new().await;
    let reader = opened_by(&vault.repository, &vault.reader);
    let ring = reader.sealing().await.unwrap().ring().unwrap();
    let here = found(ring, &vault.repository).await;
    assert_eq!((here.boxes.len(), here.epochs.len()), (2, 1));
    let (three, four) = (Person::new(), Person::new());
    let own = readers(&[&three, &four]);

    // Into a new place: all as it is, or for those who are named.
    let nothing = KeysFound::default();
    let same = copies::plan(ring, &here, &nothing, None).unwrap();
    assert_eq!(
        (same.boxes.len(), same.give.len(), same.epochs.len()),
        (2, 0, 1)
    );
    let plan = copies::plan(ring, &here, &nothing, Some(&own)).unwrap();
    assert_eq!(
        (plan.boxes.len(), plan.give.len(), plan.epochs.len()),
        (0, 2, 1)
    );

    // Stopped behind the first box: who says nothing is refused, and who names them goes on.
    let target = Repository::memory();
    let copy = ClusterRepository::new(&target, &name());
    copies::give(copy.home(), ring, &plan.give[..1])
        .await
        .unwrap();
    let half = found(ring, &target).await;
    let error = copies::plan(ring, &here, &half, None).unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    let rest = copies::plan(ring, &here, &half, Some(&own)).unwrap();
    assert_eq!(rest.give, plan.give[1..]);
    assert_eq!(
        copies::give(copy.home(), ring, &plan.give).await.unwrap(),
        1
    );
    let whole = found(ring, &target).await;
    copies::require_unmixed(&here, &nothing, &whole).unwrap();

    // Another copy brings the source's at that moment: one of the two sees it.
    let key = here.boxes.keys().next().unwrap();
    let stranger = here.boxes[key].object.clone();
    target.create(key, stranger).await.unwrap();
    let mixed = found(ring, &target).await;
    for before in [&nothing, &half] {
        let error = copies::require_unmixed(&here, before, &mixed).unwrap_err();
        assert_eq!(error.kind(), Kind::Refused, "{error}");
    }
    copies::require_unmixed(&here, &mixed, &mixed).unwrap();

    // Of the source's own there is no other kind, and nobody needs to be named for what is there.
    for who in [Some(&own), None] {
        let outcome = copies::plan(ring, &here, &here, who);
        assert_eq!(outcome.is_err(), who.is_some());
    }
}
