//! Objects that a manifest names and a listing does not have, or has in another length.
//!
//! Names and sizes are looked at, which costs one listing; contents are for who reads them. A manifest gives the size of
//! each index and digest part, and that of all packs together.

use std::collections::BTreeMap;

use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::Manifest;
use pgstrata_layer::seal;

use super::Layer;
use crate::cluster::ClusterRepository;
use crate::error::Result;
use crate::repository::ObjectInfo;

/// What of a layer is not there as its manifest says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Packs and index parts, in words: no restore can rely on the layer without them.
    content: Vec<String>,
    /// Digest parts, in words: who compares pages needs them.
    digests: Vec<String>,
    /// Bytes of each pack that is there.
    packs: BTreeMap<u32, u64>,
}

impl Loss {
    /// Compares the manifest of `label` with the sizes of objects by their keys. Pure.
    pub(super) fn of(
        cluster: &ClusterName,
        label: &Label,
        manifest: &Manifest,
        sizes: &BTreeMap<&str, u64>,
    ) -> Option<Self> {
        let mut loss = Self::default();
        for number in 0..manifest.pack_count {
            let key = cluster.pack_key(label, number);
            match sizes.get(key.as_str()) {
                Some(&size) => {
                    loss.packs.insert(number, size);
                }
                None => loss.content.push(absent(&key)),
            }
        }
        let pack_bytes: u64 = loss.packs.values().sum();
        if loss.content.is_empty() && pack_bytes != manifest.pack_bytes {
            loss.content.push(format!(
                "the packs of {label} have {pack_bytes} bytes together, expected {}",
                manifest.pack_bytes
            ));
        }
        let complaint = |key: String, expected: u64| match sizes.get(key.as_str()) {
            Some(&size) if size == expected => None,
            Some(size) => Some(format!("\"{key}\" has {size} bytes, expected {expected}")),
            None => Some(absent(&key)),
        };
        for (number, part) in (0..).zip(&manifest.index) {
            let stored = |raw: u64| match manifest.encryption {
                None => raw,
                Some(_) => seal::stored_bytes(raw),
            };
            let index = complaint(cluster.index_key(label, number), stored(part.index_bytes));
            let digest = complaint(cluster.digest_key(label, number), stored(part.digest_bytes));
            loss.content.extend(index);
            loss.digests.extend(digest);
        }
        let nothing = loss.content.is_empty() && loss.digests.is_empty();
        (!nothing).then_some(loss)
    }

    /// Whether no restore can rely on the layer.
    #[must_use]
    pub fn stops_restores(&self) -> bool {
        !self.content.is_empty()
    }

    /// The first of what is lost, and how much more is.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut all = self.content.iter().chain(&self.digests);
        let first = all.next().map_or("", String::as_str);
        match all.count() {
            0 => first.to_owned(),
            more => format!("{first}, and {more} more objects are lost"),
        }
    }

    /// The first of the digest parts that are lost, in words.
    #[must_use]
    pub fn lost_digests(&self) -> Option<&str> {
        self.digests.first().map(String::as_str)
    }

    /// Whether that pack is there, up to that byte.
    #[must_use]
    pub fn has_pack(&self, number: u32, end: u64) -> bool {
        self.packs.get(&number).is_some_and(|size| end <= *size)
    }
}

fn absent(key: &str) -> String {
    format!("\"{key}\" is not there")
}

/// The objects of all layers, listed now.
pub(super) async fn list(cluster: &ClusterRepository) -> Result<Vec<ObjectInfo>> {
    let prefix = cluster.name.layers_prefix();
    cluster.repository.list(&prefix).await
}

/// What of `layers` is not in that listing. Pure.
pub(super) fn among(
    cluster: &ClusterRepository,
    layers: &[Layer],
    objects: &[ObjectInfo],
) -> BTreeMap<Label, Loss> {
    let sizes: BTreeMap<&str, u64> = objects
        .iter()
        .map(|object| (object.key.as_str(), object.size_bytes))
        .collect();
    let losses = layers.iter().filter_map(|layer| {
        let loss = Loss::of(&cluster.name, &layer.label, &layer.manifest, &sizes)?;
        Some((layer.label.clone(), loss))
    });
    losses.collect()
}
