//! Seals a repository of golden files: `seal_golden SOURCE TARGET`.
//!
//! The golden files of this crate were made so, once, out of the uncompressed ones of the layer crate. Keys are random:
//! no run makes the same bytes again.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a tool for who changes the format"
)]

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pgstrata_layer::cluster::{self, SEALED_FORMAT, SealRecord as Record};
use pgstrata_layer::epoch::KeyRole;
use pgstrata_layer::frame::Codec;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::{manifest, wal};
use pgstrata_store::archive::{self, PushOptions};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::keys::{self, Keys, Recipients};
use pgstrata_store::repository::{Repository, RepositoryOptions};

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (source, target) = (arguments.next().unwrap(), arguments.next().unwrap());
    let name = ClusterName::parse("main").unwrap();
    fs::create_dir_all(&target).unwrap();
    let options = RepositoryOptions {
        url: format!("file://{}", fs::canonicalize(&target).unwrap().display()),
        ..RepositoryOptions::default()
    };
    let repository = Repository::open(&options).unwrap();
    let plain = ClusterRepository::new(&repository, &name);
    let all = [(KeyRole::Reader, "reader"), (KeyRole::Writer, "writer")];
    let all = all.map(|(role, who)| (role, keys::generate(&target.join(who)).unwrap()));
    let recipients = Recipients { all: all.to_vec() };
    let seal_id = keys::begin(plain.home(), &recipients).await.unwrap();
    let mut record = cluster::decode(&fs::read(source.join("main/cluster")).unwrap()).unwrap();
    record.format = SEALED_FORMAT;
    record.sealing = Some(Record {
        version: 1,
        seal_id,
    });
    let body = Bytes::from(cluster::encode(&record));
    repository.create(&name.cluster_key(), body).await.unwrap();
    let reader = keys::from_file(&target.join("reader")).unwrap();
    let cluster = ClusterRepository::new(&repository, &name).with_keys(Keys::new(reader, None));
    layers(&cluster, &source).await;
    let scratch = target.join("scratch");
    fs::create_dir_all(&scratch).unwrap();
    let object = fs::read(source.join("main/wal/00000002/00000002.history")).unwrap();
    let history = wal::decode("00000002.history", &object).unwrap();
    // The second reader knows no Zstandard.
    let options = PushOptions {
        codec: Codec::None,
        ..PushOptions::default()
    };
    let label = b"START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\n".to_vec();
    for (file, raw) in [
        ("00000002.history", history),
        ("000000010000000000000002.00000028.backup", label),
    ] {
        let path = scratch.join(file);
        fs::write(&path, raw).unwrap();
        archive::push(&cluster, &record, &path, &options)
            .await
            .unwrap();
    }
    fs::remove_dir_all(&scratch).unwrap();
    println!("sealed {} into {}", source.display(), target.display());
}

async fn layers(cluster: &ClusterRepository, source: &Path) {
    let folder = source.join("main/layer");
    let listed = fs::read_dir(&folder).unwrap();
    let mut labels: Vec<String> = listed
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    labels.sort();
    let sealing = cluster.sealing().await.unwrap();
    let mut digests = Vec::new();
    for text in labels {
        let label = Label::parse(&text).unwrap();
        let read = |object: &str| fs::read(folder.join(&text).join(object)).unwrap();
        let mut manifest = manifest::decode(&read("manifest")).unwrap();
        let seal = sealing
            .new_layer(manifest.layer_id_bytes().unwrap())
            .unwrap();
        let name = &cluster.name;
        let mut keys = Vec::new();
        for number in 0..manifest.pack_count {
            keys.push((name.pack_key(&label, number), format!("pack-{number:06}")));
        }
        for (number, _) in (0..).zip(&manifest.index) {
            keys.push((name.index_key(&label, number), format!("index-{number:06}")));
            keys.push((
                name.digest_key(&label, number),
                format!("digest-{number:06}"),
            ));
        }
        manifest.pack_bytes = 0;
        for (key, object) in keys {
            let stored = seal.seal(name, &key, read(&object)).unwrap();
            if object.starts_with("pack-") {
                manifest.pack_bytes += u64::try_from(stored.len()).unwrap();
            }
            cluster
                .repository
                .create(&key, Bytes::from(stored))
                .await
                .unwrap();
        }
        if let Some(parent) = &mut manifest.parent {
            let found = digests.iter().find(|(label, _)| *label == parent.label);
            let (_, digest): &(String, String) = found.unwrap();
            parent.manifest_digest.clone_from(digest);
        }
        manifest.encryption = seal.encryption();
        let object = sealing.encode(&manifest).unwrap();
        digests.push((text.clone(), manifest::digest(&object)));
        let key = name.manifest_key(&label);
        cluster
            .repository
            .create(&key, Bytes::from(object))
            .await
            .unwrap();
    }
}
