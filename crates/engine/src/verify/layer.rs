//! One layer: its claim, its index with digest parts, and through the index its packs.

use std::collections::BTreeSet;
use std::iter;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use pgstrata_layer::claim;
use pgstrata_layer::entry::FileEntry;
use pgstrata_layer::index::{IndexReader, digests_of};
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::IndexPartRef;
use pgstrata_store::blocking::blocking;
use pgstrata_store::catalog::Layer;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};

use super::finding::Findings;
use super::outage::{outlast, require_reachable};
use super::packs::{BATCH_FRAMES, Batch, ExpectedFrame};
use super::{FindingKind, VerifiedLayer, Verifier, strays};

/// Index and digest parts fetched ahead, at most 9 MiB each.
const PARTS_AHEAD: usize = 2;

/// What is known of a layer while its objects are read.
pub(super) struct LayerCheck {
    pub(super) layer: Arc<Layer>,
    pub(super) layer_id: [u8; 16],
    pub(super) verified: VerifiedLayer,
    /// Packs that were looked at, by number.
    pub(super) packs: BTreeSet<u32>,
    pub(super) pack_bytes: u64,
}

/// One index part and its digest part, as fetched.
struct FetchedPart {
    number: u32,
    index: Option<Bytes>,
    digest: Option<Bytes>,
}

/// What decoding a part gave.
struct DecodedPart {
    batch: Batch,
    complaints: Vec<(PartObject, Error)>,
}

#[derive(Clone, Copy)]
enum PartObject {
    Index,
    Digest,
}

impl Verifier {
    /// Every object of `layer`.
    pub(super) async fn layer(&self, layer: &Arc<Layer>) -> Result<VerifiedLayer> {
        let mut reading = LayerCheck {
            layer: Arc::clone(layer),
            layer_id: layer.manifest.layer_id_bytes()?,
            verified: VerifiedLayer::default(),
            packs: BTreeSet::new(),
            pack_bytes: 0,
        };
        self.claim(layer).await?;
        self.note_corrupt_pages(layer);
        let (name, label) = (&self.cluster.name, &layer.label);
        let prefix = name.layer_prefix(label);
        let objects = self.cluster.repository.list(&prefix).await?;
        let parts = layer.manifest.index.len();
        let counts = (parts, layer.manifest.pack_count);
        strays::of_layer((name, label), counts, &objects, &self.findings);
        let numbers = 0..u32::try_from(parts).expect("a manifest is small");
        let mut fetched = futures::stream::iter(numbers)
            .map(|number| self.fetch_part(layer, number))
            .buffered(PARTS_AHEAD);
        let mut batch = Batch::default();
        while let Some(part) = fetched.next().await {
            self.check_interrupted()?;
            let decoded = self.decode_part(&mut reading, part?).await?;
            batch.append(decoded);
            if batch.frames >= BATCH_FRAMES {
                self.batch(&mut reading, std::mem::take(&mut batch)).await?;
            }
        }
        self.batch(&mut reading, batch).await?;
        self.other_packs(&mut reading).await?;
        Ok(reading.verified)
    }

    async fn claim(&self, layer: &Layer) -> Result<()> {
        let found = claims(&self.cluster, &layer.label).await?;
        check_claims(
            &self.findings,
            (&layer.label, &layer.manifest.layer_id),
            found,
        )
    }

    fn note_corrupt_pages(&self, layer: &Layer) {
        let pages = &layer.manifest.corrupt_pages;
        let Some(first) = pages.first() else { return };
        let message = format!(
            "{} pages were corrupt in the cluster when they were backed up, the first is block {} of \"{}\": {}",
            pages.len(),
            first.block,
            first.path,
            first.reason
        );
        let key = self.cluster.name.manifest_key(&layer.label);
        self.findings
            .add(FindingKind::CorruptPages, &layer.label, key, message);
    }

    async fn fetch_part(&self, layer: &Layer, number: u32) -> Result<FetchedPart> {
        let label = &layer.label;
        let index_key = self.cluster.name.index_key(label, number);
        let digest_key = self.cluster.name.digest_key(label, number);
        let (cluster, manifest) = (&self.cluster, &layer.manifest);
        let (index, digest) = futures::join!(
            outlast(cluster, || cluster.get_of(manifest, &index_key)),
            outlast(cluster, || cluster.get_of(manifest, &digest_key))
        );
        Ok(FetchedPart {
            number,
            index: self.found(label, &index_key, index).await?,
            digest: self.found(label, &digest_key, digest).await?,
        })
    }

    async fn decode_part(&self, reading: &mut LayerCheck, part: FetchedPart) -> Result<Batch> {
        let number = part.number;
        for object in [&part.index, &part.digest].into_iter().flatten() {
            let size = u64::try_from(object.len()).expect("usize has 64 bits");
            reading.verified.objects += 1;
            reading.verified.bytes += size;
            self.progress.add_done(size);
            self.progress.add_stored(size);
        }
        let position = usize::try_from(number).expect("usize has 64 bits");
        let reference = reading.layer.manifest.index[position].clone();
        let (layer_id, deep) = (reading.layer_id, self.deep);
        let decoded = blocking(move || Ok(decode(&part, layer_id, &reference, deep))).await?;
        let label = &reading.layer.label;
        for (object, error) in decoded.complaints {
            let key = match object {
                PartObject::Index => self.cluster.name.index_key(label, number),
                PartObject::Digest => self.cluster.name.digest_key(label, number),
            };
            self.found::<()>(label, &key, Err(error)).await?;
        }
        Ok(decoded.batch)
    }
}

fn decode(
    part: &FetchedPart,
    layer_id: [u8; 16],
    reference: &IndexPartRef,
    deep: bool,
) -> DecodedPart {
    let mut decoded = DecodedPart {
        batch: Batch::default(),
        complaints: Vec::new(),
    };
    let digest = match check_digest_length(part, reference) {
        Ok(digest) => digest,
        Err(error) => {
            decoded.complaints.push((PartObject::Digest, error));
            None
        }
    };
    let Some(index) = part.index.clone() else {
        return decoded;
    };
    let entries = match IndexReader::new(index, layer_id, part.number, reference) {
        Ok(entries) => entries,
        Err(error) => {
            decoded.complaints.push((PartObject::Index, error.into()));
            return decoded;
        }
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                decoded.complaints.push((PartObject::Index, error.into()));
                break;
            }
        };
        let digests = digest.map(|bytes| {
            digests_of(bytes, layer_id, part.number, &entry.page_digests).map_err(|error| {
                Error::from(error).while_doing(format!("digests of \"{}\"", entry.path))
            })
        });
        let digests = match digests {
            Some(Ok(digests)) => Some(digests),
            Some(Err(error)) => {
                decoded.complaints.push((PartObject::Digest, error));
                None
            }
            None => None,
        };
        add_entry(&mut decoded.batch, entry, digests, deep);
    }
    decoded
}

/// The digest part, when its length is right.
fn check_digest_length<'a>(
    part: &'a FetchedPart,
    reference: &IndexPartRef,
) -> Result<Option<&'a [u8]>> {
    let Some(digest) = &part.digest else {
        return Ok(None);
    };
    let (found, expected) = (digest.len(), reference.digest_bytes);
    if u64::try_from(found).ok() != Some(expected) {
        return Err(Error::new(
            Kind::Damaged,
            format!("has {found} bytes, expected {expected}"),
        ));
    }
    Ok(Some(digest))
}

/// What must be in packs for `entry`.
fn add_entry(batch: &mut Batch, entry: FileEntry, digests: Option<Vec<u64>>, deep: bool) {
    let entry = Arc::new(entry);
    let mut digests = digests.filter(|_| deep).map(Vec::into_iter);
    for position in 0..entry.frames.len() {
        let pages = entry.frames[position].page_count();
        let pages = usize::try_from(pages).expect("at most 1 MiB");
        let own = digests
            .as_mut()
            .map(|all| all.by_ref().take(pages).collect());
        batch.push(ExpectedFrame::new(&entry, position, own));
    }
    if deep {
        batch.push_file(&entry);
    }
}

/// The claim of a layer, and the same where its writer has noted that the layer is finished, if he came to that; each with its key.
///
/// # Errors
/// When one of them is not given out, because nothing is.
pub(super) async fn claims(
    cluster: &ClusterRepository,
    label: &Label,
) -> Result<Vec<(String, Result<Bytes>)>> {
    let (claim, committed) = (
        cluster.name.claim_key(label),
        cluster.name.committed_key(label),
    );
    let repository = &cluster.repository;
    let (first, again) = futures::join!(
        outlast(cluster, || repository.get_record(&claim)),
        outlast(cluster, || repository.get_record(&committed))
    );
    let failed =
        |got: &Result<Bytes>| matches!(got, Err(error) if error.kind() == Kind::Repository);
    if failed(&first) || failed(&again) {
        require_reachable(cluster).await?;
    }
    let noted = !matches!(&again, Err(error) if error.kind() == Kind::NotFound);
    let again = noted.then_some((committed, again));
    Ok(iter::once((claim, first)).chain(again).collect())
}

/// The claim decides who owns a label. A finished layer is restored without it.
pub(super) fn check_claims(
    findings: &Findings,
    layer: (&Label, &str),
    found: Vec<(String, Result<Bytes>)>,
) -> Result<()> {
    let mut all = found.into_iter();
    all.try_for_each(|(key, got)| check_claim(findings, layer, &key, got))
}

fn check_claim(
    findings: &Findings,
    (label, layer_id): (&Label, &str),
    key: &str,
    got: Result<Bytes>,
) -> Result<()> {
    let read = got.and_then(|bytes| Ok(claim::decode(&bytes)?));
    let (kind, complaint) = match read {
        Err(error) => match FindingKind::of(&error) {
            Some(kind) => (kind, error.to_string()),
            None => return Err(error),
        },
        Ok(claim) if claim.label != label.as_str() => {
            let what = format!("claims the label {}", claim.label);
            (FindingKind::Damaged, what)
        }
        Ok(claim) if claim.layer_id != layer_id => {
            let what = format!("is of layer {}, the manifest of {layer_id}", claim.layer_id);
            (FindingKind::Damaged, what)
        }
        Ok(_) => return Ok(()),
    };
    findings.add_claim(kind, label, key, complaint);
    Ok(())
}
