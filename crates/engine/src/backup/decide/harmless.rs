//! Suspects of an audit that lose nothing: what no recovery repeats, and no reader misses.
//!
//! The settings that decide what may change so are those of all the time since the parent. A page that became all-visible is harmless only while the visibility map does
//! not say so: a restore would have the map's bit without the page's, and the next
//! change of the page would leave the map wrong.

use std::fs::File;
use std::path::{Path, PathBuf};

use pgstrata_layer::manifest::Manifest;
use pgstrata_pgdata::relation::{BLOCK_SIZE, ForkKind, PathKind, RelSegment, RelationFork};
use pgstrata_pgdata::unlogged::{Excuses, Harmless, HintLogging, MapPlace, excuse};
use pgstrata_pgdata::{ControlFile, Major};
use pgstrata_store::catalog::Layer;
use pgstrata_store::error::{FileContext, Result};

use super::past::ThisRun;
use super::prepare::Ready;
use crate::backup::copy::parent::Parent;
use crate::backup::copy::read::read_at;
use crate::backup::copy::suspects::Suspect;
use crate::frames::Chain;

/// Pages that differ harmlessly, by what differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HarmlessPages {
    /// In hint bits that are not logged.
    pub hint_bits: u64,
    /// In hint bits that were logged without the page, and in the LSN of that.
    pub logged_hint_bits: u64,
    /// In being all-visible, which the visibility map does not know.
    pub all_visible: u64,
    /// In what an SP-GiST index remembers of the pages used last.
    pub last_used_pages: u64,
    /// Of zeros in the parent, empty heap pages now.
    pub empty_pages: u64,
}

impl HarmlessPages {
    pub(crate) fn add(&mut self, more: Self) {
        self.hint_bits += more.hint_bits;
        self.logged_hint_bits += more.logged_hint_bits;
        self.all_visible += more.all_visible;
        self.last_used_pages += more.last_used_pages;
        self.empty_pages += more.empty_pages;
    }

    /// Of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.hint_bits
            + self.logged_hint_bits
            + self.all_visible
            + self.last_used_pages
            + self.empty_pages
    }

    fn count(&mut self, found: Harmless) {
        let count = match found {
            Harmless::HintBits => &mut self.hint_bits,
            Harmless::LoggedHintBits => &mut self.logged_hint_bits,
            Harmless::AllVisible => &mut self.all_visible,
            Harmless::LastUsedPages => &mut self.last_used_pages,
            Harmless::EmptyPage => &mut self.empty_pages,
        };
        *count += 1;
    }
}

/// Looks at suspects, for a thread outside of the runtime.
pub(crate) struct Examiner {
    /// The parent's.
    pub(crate) chain: Chain,
    pub(crate) data_directory: PathBuf,
    pub(crate) major: Major,
    pub(crate) excuses: Excuses,
}

impl Examiner {
    /// The suspects without excuse, and what the others had.
    pub(crate) fn examine(self, suspects: Vec<Suspect>) -> Result<(Vec<Suspect>, HarmlessPages)> {
        let mut parent = Parent::new(&self.chain);
        let (mut left, mut harmless) = (Vec::new(), HarmlessPages::default());
        let mut path = String::new();
        let mut entries = None;
        for suspect in suspects {
            if path != suspect.path {
                entries = parent.find(&suspect.path)?;
                path.clone_from(&suspect.path);
            }
            let before = match &entries {
                Some(entries) => self.chain.page(entries, suspect.block)?,
                None => Vec::new(),
            };
            // One that was read again may be as it was.
            if before == suspect.page {
                continue;
            }
            match self.excuse(&before, &suspect)? {
                Some(found) => harmless.count(found),
                None => left.push(suspect),
            }
        }
        Ok((left, harmless))
    }

    fn excuse(&self, before: &[u8], suspect: &Suspect) -> Result<Option<Harmless>> {
        if suspect.fork != ForkKind::Main {
            return Ok(None);
        }
        let found = excuse(before, &suspect.page, self.excuses);
        if found == Some(Harmless::AllVisible) && self.map_says_all_visible(suspect)? {
            return Ok(None);
        }
        Ok(found)
    }

    /// As the map is on disk. What it learnt before the start is there since the
    /// checkpoint; what it learnt later replay tells the page as well.
    fn map_says_all_visible(&self, suspect: &Suspect) -> Result<bool> {
        let PathKind::RelSegment(segment) = PathKind::of(&suspect.path) else {
            return Ok(true);
        };
        let Some(block) = segment.block(suspect.block) else {
            return Ok(true);
        };
        let place = MapPlace::of(block);
        let map = RelSegment {
            relation_fork: RelationFork {
                fork: ForkKind::Vm,
                ..segment.relation_fork
            },
            number: place.block.rel_segment_number(),
        };
        let path = self.data_directory.join(map.path(self.major));
        let page = map_page(&path, place.block.offset_in_rel_segment())?;
        Ok(place.is_all_visible(&page))
    }
}

/// One page of a visibility map; empty when there is none.
fn map_page(path: &Path, block: u32) -> Result<Vec<u8>> {
    let act = || format!("could not read \"{}\"", path.display());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context(act),
    };
    let mut page = vec![0; BLOCK_SIZE];
    let read = read_at(
        &file,
        &mut page,
        u64::from(block) * crate::backup::copy::job::block_bytes(),
    )
    .context(act)?;
    page.truncate(read);
    Ok(page)
}

/// What may have changed without WAL since `parent`. A control file of the parent that
/// cannot be read says nothing.
pub(crate) fn excuses(parent: &Manifest, now: &ControlFile, logging: HintLogging) -> Excuses {
    let then = control_of(parent).is_none_or(|then| then.full_page_writes);
    Excuses::of(logging, then && now.full_page_writes)
}

/// How hint bits were logged since `parent`, which had data checksums as the server has now. The server's own setting
/// lasts as long as its run: it was another one, perhaps, before the last start.
pub(crate) fn hint_logging(ready: &Ready, parent: &Layer, run: &ThisRun) -> HintLogging {
    match (ready.session.facts().wal_log_hints, run.made(parent)) {
        _ if ready.control.has_checksums() => HintLogging::Always,
        (true, true) => HintLogging::Always,
        (false, true) => HintLogging::Never,
        (_, false) => HintLogging::Unknown,
    }
}

/// The control file of a layer, if it can be read.
fn control_of(layer: &Manifest) -> Option<ControlFile> {
    let bytes = layer.pg_control_bytes().ok()?;
    ControlFile::parse(&bytes).ok()
}
