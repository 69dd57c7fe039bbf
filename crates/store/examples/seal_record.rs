//! Seals a record for the golden files: `seal_record REPOSITORY IDENTITY KEY FILE`.
//!
//! The record in `FILE` becomes the object `KEY` of the cluster `main`. Salts are random: no run makes the same bytes again.

#![allow(clippy::unwrap_used, reason = "a tool for who changes the format")]

use std::fs;
use std::path::Path;

use pgstrata_layer::keys::ClusterName;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::keys::{Keys, from_file};
use pgstrata_store::repository::{Repository, RepositoryOptions};

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, identity, key, file] = arguments.as_slice() else {
        panic!("give REPOSITORY IDENTITY KEY FILE");
    };
    let options = RepositoryOptions {
        url: url.clone(),
        ..RepositoryOptions::default()
    };
    let repository = Repository::open(&options).unwrap();
    let keys = Keys::new(from_file(Path::new(identity)).unwrap(), None);
    let name = ClusterName::parse("main").unwrap();
    let cluster = ClusterRepository::new(&repository, &name).with_keys(keys);
    let sealing = cluster.sealing().await.unwrap();
    let object = sealing.seal_record(&name, key, fs::read(file).unwrap());
    repository.create(key, object.unwrap()).await.unwrap();
}
