//! The objects of one layer: fetched, checked, stored.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use pgstrata_layer::index::{IndexReader, digests_of};
use pgstrata_layer::manifest::{IndexPartRef, Manifest};
use pgstrata_layer::pack::{self, verify_pack};
use pgstrata_store::blocking::blocking;
use pgstrata_store::catalog::{CopiedLayer, Layer};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::keys::LayerSeal;

use super::{Mirror, MirroredLayer};

/// Objects that are checked together.
#[derive(Clone, Copy)]
enum Unit {
    /// An index part, and the digest part whose checksums it has.
    Part(u32),
    Pack(u32),
}

impl Unit {
    fn all(manifest: &Manifest) -> Vec<Self> {
        let parts = u32::try_from(manifest.index.len()).unwrap_or(u32::MAX);
        let packs = (0..manifest.pack_count).map(Self::Pack);
        (0..parts).map(Self::Part).chain(packs).collect()
    }

    fn keys(self, cluster: &ClusterRepository, layer: &Layer) -> Vec<String> {
        let (name, label) = (&cluster.name, &layer.label);
        match self {
            Self::Part(number) => vec![
                name.index_key(label, number),
                name.digest_key(label, number),
            ],
            Self::Pack(number) => vec![name.pack_key(label, number)],
        }
    }

    /// The most bytes that each of them has in the repository, as far as the manifest tells. Whoever may create objects may
    /// put gigabytes there.
    fn most_bytes(self, seal: &LayerSeal, manifest: &Manifest) -> Vec<u64> {
        match self {
            Self::Part(number) => {
                let position = usize::try_from(number).unwrap_or(usize::MAX);
                let part = &manifest.index[position];
                let raw = [part.index_bytes, part.digest_bytes];
                raw.map(|bytes| seal.stored_bytes(bytes)).to_vec()
            }
            Self::Pack(_) => vec![manifest.pack_bytes.min(pack::MOST_BYTES)],
        }
    }
}

/// Sizes of the layer's objects by their keys.
async fn sizes(cluster: &ClusterRepository, layer: &Layer) -> Result<HashMap<String, u64>> {
    let prefix = cluster.name.layer_prefix(&layer.label);
    let listed = cluster.repository.list(&prefix).await?.into_iter();
    Ok(listed
        .map(|object| (object.key, object.size_bytes))
        .collect())
}

/// What a copy would store of the layer; all of it when there is no target yet.
pub(super) async fn missing(
    source: &ClusterRepository,
    target: Option<&ClusterRepository>,
    layer: &Layer,
) -> Result<MirroredLayer> {
    let here = sizes(source, layer).await?;
    let there = match target {
        Some(target) => sizes(target, layer).await?,
        None => HashMap::new(),
    };
    let units = Unit::all(&layer.manifest).into_iter();
    let keys = units.flat_map(|unit| unit.keys(source, layer));
    let keys = keys.chain([source.name.manifest_key(&layer.label)]);
    let keys: Vec<String> = keys.filter(|key| !there.contains_key(key)).collect();
    let bytes = keys.iter().filter_map(|key| here.get(key)).sum();
    Ok(MirroredLayer {
        label: layer.label.to_string(),
        objects: u64::try_from(keys.len()).unwrap_or(u64::MAX),
        bytes,
    })
}

/// Copies the objects of the layer that are not in the target.
pub(super) async fn copy(
    mirror: &Mirror<'_>,
    layer: &Arc<Layer>,
    copy: &CopiedLayer,
) -> Result<MirroredLayer> {
    let here = sizes(mirror.source, layer).await?;
    let there = sizes(mirror.target, layer).await?;
    let mut done = MirroredLayer {
        label: layer.label.to_string(),
        objects: 0,
        bytes: 0,
    };
    let mut missing = Vec::new();
    for unit in Unit::all(&layer.manifest) {
        let keys = unit.keys(mirror.source, layer);
        let is_there = |key: &String| {
            there
                .get(key)
                .is_some_and(|size| here.get(key) == Some(size))
        };
        match keys.iter().all(is_there) {
            true => note_done(
                mirror,
                unit,
                keys.iter().filter_map(|key| here.get(key)).sum(),
            ),
            false => missing.push(unit),
        }
    }
    let copying = missing
        .into_iter()
        .map(|unit| copy_unit(mirror, layer, unit));
    let mut copying = futures::stream::iter(copying).buffer_unordered(mirror.jobs);
    while let Some(stored) = copying.next().await {
        mirror.check_interrupted()?;
        copy.check()?;
        let (objects, bytes) = stored?;
        done.objects += objects;
        done.bytes += bytes;
    }
    Ok(done)
}

/// Counts a pack; what there is to do is counted in packs.
fn note_done(mirror: &Mirror<'_>, unit: Unit, bytes: u64) {
    if matches!(unit, Unit::Pack(_)) {
        mirror.progress.add_done(bytes);
    }
}

async fn copy_unit(mirror: &Mirror<'_>, layer: &Arc<Layer>, unit: Unit) -> Result<(u64, u64)> {
    mirror.check_interrupted()?;
    let keys = unit.keys(mirror.source, layer);
    let seal = mirror.source.sealing().await?.layer(&layer.manifest)?;
    let most = unit.most_bytes(&seal, &layer.manifest);
    let mut objects = Vec::with_capacity(keys.len());
    for (key, most) in keys.iter().zip(most) {
        let repository = &mirror.source.repository;
        let object = repository
            .get_at_most(key, most, "by its manifest it")
            .await;
        objects.push(object.map_err(|error| match error.kind() {
            Kind::NotFound => Error::new(Kind::Damaged, error.to_string()),
            _ => error,
        })?);
    }
    check(mirror.source, layer, unit, &keys, &objects).await?;
    let (mut count, mut total) = (0, 0);
    for (key, object) in keys.iter().zip(objects) {
        let size = u64::try_from(object.len()).unwrap_or(u64::MAX);
        store(mirror.target, key, object).await?;
        mirror.progress.add_stored(size);
        note_done(mirror, unit, size);
        count += 1;
        total += size;
    }
    Ok((count, total))
}

async fn store(target: &ClusterRepository, key: &str, object: Bytes) -> Result<()> {
    let stored = target.repository.create(key, object).await;
    stored.map_err(|error| match error.kind() {
        // The label is this layer's, there too.
        Kind::AlreadyExists => Error::new(Kind::Damaged, error.to_string()).hint(
            "nothing is ever overwritten: if that object is damaged, delete it by hand while nothing else runs, and copy again",
        ),
        _ => error,
    })
}

/// Whether the objects are what the layer's maker has stored.
async fn check(
    source: &ClusterRepository,
    layer: &Arc<Layer>,
    unit: Unit,
    keys: &[String],
    objects: &[Bytes],
) -> Result<()> {
    let seal = source.sealing().await?.layer(&layer.manifest)?;
    let (name, layer) = (source.name.clone(), Arc::clone(layer));
    let (keys, objects) = (keys.to_vec(), objects.to_vec());
    blocking(move || {
        let id = layer.manifest.layer_id_bytes()?;
        for (key, object) in keys.iter().zip(&objects) {
            seal.check(key, object)?;
        }
        let checked = match unit {
            // Without the key of its pages a sealed pack is known by the checksums of what is stored.
            Unit::Pack(number) if seal.is_clear() => {
                let whole = verify_pack(&objects[0], id, number, |_, _| Ok(()));
                whole.map(|_| ()).map_err(Error::from)
            }
            Unit::Pack(_) => Ok(()),
            Unit::Part(number) => {
                let mut opened = Vec::with_capacity(objects.len());
                for (key, object) in keys.iter().zip(objects) {
                    opened.push(seal.open(&name, key, object)?);
                }
                let position = usize::try_from(number).unwrap_or(usize::MAX);
                check_part(id, number, &layer.manifest.index[position], &opened)
            }
        };
        checked.map_err(|error| error.while_doing(format!("could not copy \"{}\"", keys[0])))
    })
    .await
}

/// An index part by its digest, and the digests of all its entries by theirs.
fn check_part(id: [u8; 16], number: u32, reference: &IndexPartRef, opened: &[Bytes]) -> Result<()> {
    let [index, digests] = opened else {
        return Err(Error::new(Kind::Damaged, "a part has two objects"));
    };
    let expected = reference.digest_bytes;
    if u64::try_from(digests.len()).ok() != Some(expected) {
        let found = digests.len();
        let what = format!("its digest part has {found} bytes, expected {expected}");
        return Err(Error::new(Kind::Damaged, what));
    }
    for entry in IndexReader::new(index.clone(), id, number, reference)? {
        digests_of(digests, id, number, &entry?.page_digests)?;
    }
    Ok(())
}
