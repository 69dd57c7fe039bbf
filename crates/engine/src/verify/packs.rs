//! Packs, and the frames that the index says they hold.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use pgstrata_layer::entry::{EntryKind, FileEntry, FrameRef};
use pgstrata_layer::frame::{FrameDecoder, split_checked};
use pgstrata_layer::pack::{self, verify_pack};
use pgstrata_store::blocking::blocking;
use pgstrata_store::courtesy;
use pgstrata_store::error::{Error, Kind, Result};

use super::layer::LayerCheck;
use super::outage::outlast;
use super::pages::PageRules;
use super::{FindingKind, Verifier};

/// Frames gathered from the index before their packs are read: a few dozen packs, so
/// that few are read twice, in about 20 MB.
pub(super) const BATCH_FRAMES: usize = 65_536;

/// Files of a damaged pack that are named.
const MOST_NAMES: usize = 5;

/// Complaints of one pack that are listed; the others are counted.
const MOST_COMPLAINTS: usize = 20;

/// A frame that the index says is in a pack.
pub(super) struct ExpectedFrame {
    pub(super) entry: Arc<FileEntry>,
    position: usize,
    /// Digests of its pages, when they are to be compared.
    pub(super) digests: Option<Vec<u64>>,
}

impl ExpectedFrame {
    pub(super) fn new(entry: &Arc<FileEntry>, position: usize, digests: Option<Vec<u64>>) -> Self {
        Self {
            entry: Arc::clone(entry),
            position,
            digests,
        }
    }

    pub(super) fn frame(&self) -> &FrameRef {
        &self.entry.frames[self.position]
    }
}

/// Frames by pack, and files to read as a whole.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) frames: usize,
    packs: BTreeMap<u32, Vec<ExpectedFrame>>,
    pub(super) files: Vec<Arc<FileEntry>>,
}

impl Batch {
    pub(super) fn push(&mut self, wanted: ExpectedFrame) {
        self.frames += 1;
        let pack = wanted.frame().pack;
        self.packs.entry(pack).or_default().push(wanted);
    }

    /// A plain file whose digest needs all of its frames, in order.
    pub(super) fn push_file(&mut self, entry: &Arc<FileEntry>) {
        let whole = entry.kind == EntryKind::Plain && entry.inherit_limit == 0;
        if whole {
            self.files.push(Arc::clone(entry));
        }
    }

    pub(super) fn append(&mut self, other: Self) {
        self.frames += other.frames;
        for (pack, mut wanted) in other.packs {
            self.packs.entry(pack).or_default().append(&mut wanted);
        }
        self.files.extend(other.files);
    }
}

/// What was found in one pack.
#[derive(Default)]
struct PackOutcome {
    bytes: u64,
    frames: u64,
    pages: u64,
    complaints: Vec<(FindingKind, String)>,
}

impl Verifier {
    /// Reads the packs of a batch, several at once, then its files.
    pub(super) async fn batch(&self, reading: &mut LayerCheck, batch: Batch) -> Result<()> {
        let rules = Arc::new(PageRules::new(&reading.layer.manifest, self.deep));
        let this = &*reading;
        let mut outcomes = futures::stream::iter(batch.packs)
            .map(|(number, wanted)| self.pack(this, number, wanted, Arc::clone(&rules)))
            .buffer_unordered(self.jobs);
        let mut done = Vec::new();
        while let Some(outcome) = outcomes.next().await {
            self.check_interrupted()?;
            done.push(outcome?);
        }
        drop(outcomes);
        for (number, outcome) in done {
            let first = reading.packs.insert(number);
            reading.verified.frames += outcome.frames;
            reading.verified.pages += outcome.pages;
            if first && outcome.bytes > 0 {
                reading.verified.objects += 1;
                reading.verified.bytes += outcome.bytes;
                reading.pack_bytes += outcome.bytes;
                self.progress.add_done(outcome.bytes);
            }
        }
        self.files(reading, batch.files).await
    }

    /// Packs of which no readable entry names a frame, and the number of bytes of all.
    pub(super) async fn other_packs(&self, reading: &mut LayerCheck) -> Result<()> {
        let missed = (0..reading.layer.manifest.pack_count)
            .filter(|number| !reading.packs.contains(number))
            .map(|number| (number, Vec::new()));
        let batch = Batch {
            packs: missed.collect(),
            ..Batch::default()
        };
        self.batch(reading, batch).await
    }

    async fn pack(
        &self,
        reading: &LayerCheck,
        number: u32,
        wanted: Vec<ExpectedFrame>,
        rules: Arc<PageRules>,
    ) -> Result<(u32, PackOutcome)> {
        let label = &reading.layer.label;
        let key = self.cluster.name.pack_key(label, number);
        if number >= reading.layer.manifest.pack_count {
            let count = reading.layer.manifest.pack_count;
            let message = format!("is named by the index, the manifest knows {count} packs");
            self.findings.add(FindingKind::Damaged, label, key, message);
            return Ok((number, PackOutcome::default()));
        }
        // The index names other frames of it elsewhere.
        if self.is_withheld(&key) {
            return Ok((number, PackOutcome::default()));
        }
        let seal = self
            .cluster
            .sealing()
            .await?
            .layer(&reading.layer.manifest)?;
        let got = outlast(&self.cluster, || self.fetch_pack(&key)).await;
        let got = got.map_err(|error| error.followed_by(names(&wanted)));
        let Some(bytes) = self.found(label, &key, got).await? else {
            return Ok((number, PackOutcome::default()));
        };
        let size = u64::try_from(bytes.len()).expect("usize has 64 bits");
        self.progress.add_stored(size);
        if !seal.opens_data() {
            self.note_closed();
            let checked = seal.check(&key, &bytes);
            let outcome = PackOutcome {
                bytes: size,
                ..PackOutcome::default()
            };
            let _ = self.found(label, &key, checked).await?;
            return Ok((number, outcome));
        }
        let opened = seal.open(&self.cluster.name, &key, bytes);
        let Some(bytes) = self.found(label, &key, opened).await? else {
            return Ok((number, PackOutcome::default()));
        };
        let layer_id = reading.layer_id;
        let mut outcome =
            blocking(move || check_pack(&bytes, layer_id, number, wanted, &rules)).await?;
        outcome.bytes = size;
        self.progress.add_pages(outcome.pages);
        for (kind, message) in worst(std::mem::take(&mut outcome.complaints)) {
            self.findings.add(kind, label, key.clone(), message);
        }
        Ok((number, outcome))
    }

    async fn fetch_pack(&self, key: &str) -> Result<Bytes> {
        let repository = &self.cluster.repository;
        repository
            .get_at_most(key, pack::MOST_BYTES, "a pack")
            .await
    }
}

/// The complaints that are listed, the worst first, and one that counts the others and is as grave as the gravest of them.
fn worst(mut complaints: Vec<(FindingKind, String)>) -> Vec<(FindingKind, String)> {
    complaints.sort_by_key(|(kind, _)| Reverse(kind.severity()));
    let others = complaints.split_off(complaints.len().min(MOST_COMPLAINTS));
    if let Some((gravest, _)) = others.first() {
        let what = format!("{} more of the same pack", others.len());
        complaints.push((*gravest, what));
    }
    complaints
}

/// The pack by itself, then every frame that is wanted of it.
fn check_pack(
    bytes: &[u8],
    layer_id: [u8; 16],
    number: u32,
    mut wanted: Vec<ExpectedFrame>,
    rules: &PageRules,
) -> Result<PackOutcome> {
    let mut outcome = PackOutcome {
        bytes: u64::try_from(bytes.len()).expect("usize has 64 bits"),
        ..PackOutcome::default()
    };
    let mut decoder = FrameDecoder::new()?;
    let mut raw = Vec::new();
    wanted.sort_unstable_by_key(|wanted| wanted.frame().offset);
    let mut broken: Vec<ExpectedFrame> = Vec::new();
    for wanted in wanted {
        courtesy::rest();
        let frame = wanted.frame();
        match read_frame(
            bytes,
            frame,
            rules.deep().then_some((&mut decoder, &mut raw)),
        ) {
            Ok(()) => outcome.frames += 1,
            Err(error) => {
                let kind = FindingKind::of(&error).unwrap_or(FindingKind::Damaged);
                outcome.complaints.push((kind, complaint(&wanted, &error)));
                broken.push(wanted);
                continue;
            }
        }
        if rules.deep() {
            outcome.pages += rules.check_frame(&wanted, &raw, &mut outcome.complaints);
        }
    }
    let whole = verify_pack(bytes, layer_id, number, |_, _| Ok(()));
    if let Err(error) = whole {
        let names = names(&broken);
        let message = format!("{error}{names}");
        let kind = FindingKind::of(&error.into()).unwrap_or(FindingKind::Damaged);
        outcome.complaints.insert(0, (kind, message));
    }
    Ok(outcome)
}

/// The frame where the index says it is; decoded when a decoder is given.
fn read_frame(
    bytes: &[u8],
    frame: &FrameRef,
    decode: Option<(&mut FrameDecoder, &mut Vec<u8>)>,
) -> Result<()> {
    let damaged = |what: String| Error::new(Kind::Damaged, what);
    let start = usize::try_from(frame.offset).ok();
    let end = usize::try_from(frame.offset + u64::from(frame.length)).ok();
    let stored = start
        .zip(end)
        .and_then(|(start, end)| bytes.get(start..end))
        .ok_or_else(|| damaged("lies beyond the end of the pack".to_owned()))?;
    if let Some((decoder, raw)) = decode {
        return Ok(decoder.decode(stored, Some(frame.checksum), raw)?);
    }
    let (header, _, rest) = split_checked(stored)?;
    if header.checksum != frame.checksum || !rest.is_empty() {
        return Err(damaged(format!(
            "is not the frame that the index names: it has checksum {:016x}, expected {:016x}",
            header.checksum, frame.checksum
        )));
    }
    Ok(())
}

fn complaint(wanted: &ExpectedFrame, error: &Error) -> String {
    let frame = wanted.frame();
    let blocks = frame.runs.first().zip(frame.runs.last());
    let blocks = blocks.map_or_else(String::new, |(first, last)| {
        format!(", blocks {} to {}", first.start, last.end() - 1)
    });
    format!(
        "the frame at {} of \"{}\"{blocks}: {error}",
        frame.offset, wanted.entry.path
    )
}

/// The first few files that need these frames.
fn names(wanted: &[ExpectedFrame]) -> String {
    let mut paths: Vec<&str> = wanted.iter().map(|w| w.entry.path.as_str()).collect();
    paths.sort_unstable();
    paths.dedup();
    let more = paths.len().saturating_sub(MOST_NAMES);
    if paths.is_empty() {
        return String::new();
    }
    paths.truncate(MOST_NAMES);
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more files"),
    };
    format!("; it holds pages of \"{}\"{more}", paths.join("\", \""))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Corrupt pages are warnings. What is wrong with the pack itself may come behind any number of them.
    #[test]
    fn no_damage_is_counted_away_among_corrupt_pages() {
        let corrupt = |number: usize| (FindingKind::CorruptPages, format!("page {number}"));
        let damage = (FindingKind::Damaged, "another digest".to_owned());
        let most = MOST_COMPLAINTS;
        for before in [0, 1, most - 1, most, 3 * most] {
            let mut found: Vec<_> = (0..before).map(corrupt).collect();
            found.push(damage.clone());
            found.extend((before..before + most).map(corrupt));
            let listed = worst(found);
            assert_eq!(listed.len(), most + 1, "{before}");
            assert_eq!(listed[0], damage, "{before}");
            let others = format!("{} more of the same pack", before + 1);
            let others = (FindingKind::CorruptPages, others);
            assert_eq!(listed.last(), Some(&others), "{before}");
        }
        let damaged = |number: usize| (FindingKind::Damaged, format!("frame {number}"));
        let found = (0..9).map(corrupt);
        let listed = worst(found.chain((0..30).map(damaged)).collect());
        let others = (FindingKind::Damaged, "19 more of the same pack".to_owned());
        assert_eq!(listed.last(), Some(&others));
    }
}
