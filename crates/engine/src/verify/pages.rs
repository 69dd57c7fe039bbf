//! Pages: against the digest taken when they were read, and against their own checksum.

use std::collections::HashSet;

use pgstrata_layer::digest;
use pgstrata_layer::entry::EntryKind;
use pgstrata_layer::manifest::Manifest;
use pgstrata_pgdata::Lsn;
use pgstrata_pgdata::page::{self, PageHeader, PageVerdict};
use pgstrata_pgdata::relation::{BLOCK_SIZE, PathKind, RelSegment};

use super::FindingKind;
use super::packs::ExpectedFrame;

/// What is right for the pages of one layer.
pub(super) struct PageRules {
    deep: bool,
    /// Whether the cluster's pages carry checksums.
    checksums: bool,
    start_lsn: Lsn,
    stop_lsn: Lsn,
    /// Known to be corrupt at the source.
    corrupt: HashSet<(String, u32)>,
}

impl PageRules {
    pub(super) fn new(manifest: &Manifest, deep: bool) -> Self {
        let corrupt = manifest.corrupt_pages.iter();
        Self {
            deep,
            checksums: manifest.cluster.data_checksum_version > 0,
            start_lsn: manifest.start_lsn,
            stop_lsn: manifest.stop_lsn,
            corrupt: corrupt.map(|p| (p.path.clone(), p.block)).collect(),
        }
    }

    pub(super) fn deep(&self) -> bool {
        self.deep
    }

    /// Checks the pages of a decoded frame; returns how many there are.
    pub(super) fn check_frame(
        &self,
        wanted: &ExpectedFrame,
        raw: &[u8],
        complaints: &mut Vec<(FindingKind, String)>,
    ) -> u64 {
        let (entry, frame) = (&wanted.entry, wanted.frame());
        let blocks: Vec<u32> = frame
            .runs
            .iter()
            .flat_map(|run| (0..run.count).map(|n| run.start + n))
            .collect();
        let length: u64 = blocks
            .iter()
            .map(|&block| entry.bytes_of_block(block))
            .sum();
        if u64::try_from(raw.len()).ok() != Some(length) {
            let message = format!(
                "the frame at {} of \"{}\" decodes to {} bytes, its pages have {length}",
                frame.offset,
                entry.path,
                raw.len()
            );
            complaints.push((FindingKind::Damaged, message));
            return 0;
        }
        if entry.kind != EntryKind::Relation {
            return 0;
        }
        let segment = match PathKind::of(&entry.path) {
            PathKind::RelSegment(segment) => Some(segment),
            _ => None,
        };
        let mut checked = 0;
        for (position, (page, &block)) in raw.chunks(BLOCK_SIZE).zip(&blocks).enumerate() {
            checked += 1;
            let digest = wanted.digests.as_ref().and_then(|all| all.get(position));
            let found = digest::page(page);
            if let Some(expected) = digest.filter(|expected| **expected != found) {
                let message = format!(
                    "block {block} of \"{}\" has digest {found:016x}, expected {expected:016x}",
                    entry.path
                );
                complaints.push((FindingKind::Damaged, message));
            }
            let segment = segment.filter(|_| self.checksums && page.len() == BLOCK_SIZE);
            if let Some(reason) = segment.and_then(|segment| self.complaint(segment, block, page))
                && !self.corrupt.contains(&(entry.path.clone(), block))
            {
                let message = format!("block {block} of \"{}\": {reason}", entry.path);
                complaints.push((FindingKind::CorruptPages, message));
            }
        }
        checked
    }

    /// A page with an LSN within the backup may have been torn when it was read; replay restores it whole.
    fn complaint(&self, segment: RelSegment, block: u32, page: &[u8]) -> Option<String> {
        let PageVerdict::BadChecksum { expected, found } =
            page::verify(page, segment.block(block)?)
        else {
            return None;
        };
        let lsn = PageHeader::new(page).ok()?.lsn();
        let replayed = self.start_lsn <= lsn && lsn <= self.stop_lsn;
        (!replayed).then(|| format!("checksum is {found:04x}, expected {expected:04x}"))
    }
}
