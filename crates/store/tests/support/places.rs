//! A sealed cluster with objects of every kind, and who reads each of them how.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use pgstrata_layer::distrust::{self, DistrustRecord};
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{ChangeSource, Manifest, ParentRef};
use pgstrata_layer::restoring::RestoreRecord;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_store::archive::{self, Archive, GetOptions};
use pgstrata_store::catalog::{Catalog, Restoring, StoreTime, in_use};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Kind, Result};
use pgstrata_store::keys;

use super::vault::{Vault, manifest, name};
use super::{ALONE, wal};

/// Labels of the layers of the first epoch, and of the second.
pub(crate) const LABELS: [&[&str]; 2] = [
    &["20261123-080000F", "20261123-080001F"],
    &["20261123-080002F"],
];

/// Files of the archive of the first epoch, and of the second.
pub(crate) const FILES: [&[&str]; 2] = [
    &[
        "000000010000000000000003",
        "000000010000000000000004",
        "00000002.history",
        "000000010000000000000003.00000028.backup",
    ],
    &["000000010000000000000005", "00000003.history"],
];

/// Who reads the object at a place, and how.
#[derive(Debug)]
pub(crate) enum Reading {
    /// Everything begins with it: the cluster's record, an epoch.
    Beginning,
    /// Whoever lists who opens the cluster.
    KeyBox,
    Catalog(Label),
    /// Of the layer with that number.
    Layer(usize),
    Archive(&'static str),
    Restores,
    Distrust,
}

/// A place, and what was stored there.
pub(crate) struct Place {
    pub(crate) key: String,
    pub(crate) reading: Reading,
    pub(crate) genuine: Vec<u8>,
}

/// A cluster with objects of every kind that is sealed, of two epochs.
pub(crate) struct Scene {
    pub(crate) vault: Vault,
    pub(crate) manifests: Vec<Manifest>,
    pub(crate) places: Vec<Place>,
    pub(crate) scratch: tempfile::TempDir,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        let mut scene = Self {
            vault: Vault::new().await,
            manifests: Vec::new(),
            places: Vec::new(),
            scratch: tempfile::tempdir().unwrap(),
        };
        for round in 0..2 {
            if round == 1 {
                let reader = scene.vault.reader();
                let ring = reader.sealing().await.unwrap().ring().unwrap().clone();
                let all = scene.vault.recipients();
                keys::rotate(reader.home(), &ring, &all).await.unwrap();
            }
            for label in LABELS[round] {
                scene.add_layer(label).await;
            }
            for file in FILES[round] {
                scene.add_file(file).await;
            }
            scene.add_restore().await;
            scene.add_distrust(LABELS[round][0]).await;
        }
        scene.add_keys().await;
        scene.add(name().cluster_key(), Reading::Beginning).await;
        scene
    }

    pub(crate) async fn add(&mut self, key: String, reading: Reading) {
        let genuine = self.vault.repository.get(&key).await.unwrap().to_vec();
        self.places.push(Place {
            key,
            reading,
            genuine,
        });
    }

    pub(crate) async fn add_layer(&mut self, text: &str) {
        let writer = self.vault.writer();
        let sealing = writer.sealing().await.unwrap();
        let (label, at) = (Label::parse(text).unwrap(), self.manifests.len());
        let id = [u8::try_from(at).unwrap(); 16];
        let seal = sealing.new_layer(id).unwrap();
        let own = manifest(text, id, &seal);
        for key in [
            name().pack_key(&label, 0),
            name().pack_key(&label, 1),
            name().index_key(&label, 0),
            name().digest_key(&label, 0),
        ] {
            let raw = format!("contents of {key}").repeat(1000).into_bytes();
            let body = seal.seal(&name(), &key, raw).unwrap();
            writer.repository.create(&key, body.into()).await.unwrap();
            self.add(key, Reading::Layer(at)).await;
        }
        let key = name().manifest_key(&label);
        let body = sealing.encode(&own).unwrap();
        writer.repository.create(&key, body.into()).await.unwrap();
        self.manifests.push(own);
        self.add(key, Reading::Catalog(label)).await;
    }

    pub(crate) async fn add_file(&mut self, file: &'static str) {
        push(&self.vault.writer(), self.scratch.path(), file).await;
        let key = name().wal_key(&file[..8], file);
        self.add(key, Reading::Archive(file)).await;
    }

    pub(crate) async fn add_restore(&mut self) {
        let before = self.vault.repository.list(&name().restores_prefix()).await;
        let before: Vec<String> = before.unwrap().into_iter().map(|found| found.key).collect();
        let record = RestoreRecord {
            layers: vec![ParentRef {
                label: LABELS[0][0].to_owned(),
                manifest_digest: "0f".repeat(32),
            }],
            start_lsn: Lsn::new(1),
            timeline: 1,
            host: "db1".to_owned(),
            pid: 4711,
            directory: "/restored".to_owned(),
            started_at: Timestamp::now(),
            written_by: "test".to_owned(),
        };
        let begun = Restoring::begin(&self.vault.writer(), &record).await;
        begun.unwrap().copied().await;
        let after = self.vault.repository.list(&name().restores_prefix()).await;
        let mut after = after.unwrap().into_iter().map(|found| found.key);
        let key = after.find(|key| key.ends_with("/needs") && !before.contains(key));
        self.add(key.unwrap(), Reading::Restores).await;
    }

    pub(crate) async fn add_distrust(&mut self, label: &str) {
        let record = DistrustRecord {
            label: label.to_owned(),
            parent: LABELS[0][0].to_owned(),
            found_at: Timestamp::now(),
            source: ChangeSource::Everything,
            path: "base/5/16384".to_owned(),
            block: 7,
            pages_missed: 1,
            pages_audited: 100,
            seed: 1,
            written_by: "test".to_owned(),
        };
        let key = name().distrust_key(&Label::parse(label).unwrap());
        let writer = self.vault.writer();
        let sealing = writer.sealing().await.unwrap();
        let body = sealing.seal_record(&name(), &key, distrust::encode(&record));
        writer.repository.create(&key, body.unwrap()).await.unwrap();
        self.add(key, Reading::Distrust).await;
    }

    pub(crate) async fn add_keys(&mut self) {
        let prefix = name().seals_prefix(&self.vault.seal_id);
        for object in self.vault.repository.list(&prefix).await.unwrap() {
            let reading = match object.key.ends_with("/epoch") {
                true => Reading::Beginning,
                false => Reading::KeyBox,
            };
            self.add(object.key, reading).await;
        }
    }

    /// What a reader makes of the object at a place, as commands read it.
    pub(crate) async fn read(&self, at: &Place) -> Result<()> {
        let reader = self.vault.reader();
        let sealing = reader.sealing().await?;
        match &at.reading {
            // Who only reads goes on beside it.
            Reading::Beginning => reader.require_newest_epoch().await,
            Reading::KeyBox => {
                let ring = sealing.ring().unwrap();
                ring.survey(reader.home()).await.map(|_| ())
            }
            Reading::Catalog(label) => {
                let catalog = Catalog::load(&reader).await?;
                catalog.layer(label).map(|_| ())
            }
            Reading::Layer(number) => {
                let own = &self.manifests[*number];
                let part = reader.get_range_of(own, &at.key, 5..9).await;
                let whole = reader.get_of(own, &at.key).await;
                // A part that is read alone is right or an error, too.
                assert!(part.is_ok() || whole.is_err(), "{}", at.key);
                assert!(part.is_err() || part.unwrap() == "nts ", "{}", at.key);
                whole.map(|_| ())
            }
            Reading::Archive(file) => {
                let to = self.scratch.path().join("got");
                let _ = fs::remove_file(&to);
                let got = archive::get(&reader, file, &to, &GetOptions::default()).await;
                assert_eq!(to.exists(), got.is_ok(), "{file}");
                got.map(|_| ())
            }
            Reading::Restores => {
                let now = StoreTime::by_this_host();
                in_use(&reader, now).await.map(|_| ())
            }
            Reading::Distrust => {
                let object = reader.repository.get(&at.key).await?;
                let object = sealing.open_record(&name(), &at.key, object)?;
                Ok(distrust::decode(&object).map(|_| ())?)
            }
        }
    }

    /// What who pushes the file makes of the place: he reads the sealed header alone.
    pub(crate) async fn is_held(&self, file: &str) -> Result<bool> {
        let archive = Archive::load(&self.vault.writer()).await?;
        archive.holds(file).await
    }

    /// What a reader makes of the place when `bytes` are stored there.
    pub(crate) async fn read_instead(&self, at: &Place, bytes: &[u8]) -> Result<()> {
        self.vault.put(&at.key, bytes).await;
        let read = self.read(at).await;
        self.vault.put(&at.key, &at.genuine).await;
        read
    }

    pub(crate) async fn require_damage(&self, at: &Place, bytes: &[u8], what: &str) {
        let outcome = self.read_instead(at, bytes).await;
        assert!(outcome.is_err(), "{what} at {} was read", at.key);
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), Kind::Damaged, "{what} at {}: {error}", at.key);
    }
}

/// Archives a file with that name.
pub(crate) async fn push(cluster: &ClusterRepository, scratch: &Path, file: &str) {
    let path = scratch.join(file);
    match u64::from_str_radix(&file[8..], 16) {
        Ok(number) => drop(wal::write(scratch, 1, number, 5)),
        Err(_) => fs::write(&path, "1\t0/300000\tno reason\n").unwrap(),
    }
    let pushed = archive::push_at_once(cluster, &path, &ALONE).await;
    pushed.unwrap();
}
