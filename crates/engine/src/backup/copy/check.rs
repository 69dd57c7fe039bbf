//! Page checksums while reading a running cluster.
//!
//! A page that is being written can be read torn. It is then either new to this
//! backup's WAL (its LSN is at or after the start, replay restores it whole), or
//! right when read again. What is still wrong is corrupt on disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use pgstrata_layer::manifest::CorruptPage;
use pgstrata_pgdata::Lsn;
use pgstrata_pgdata::page::{self, PageHeader, PageVerdict};
use pgstrata_pgdata::relation::{BLOCK_SIZE, RelSegment};

/// Outlasts a `write()` of 8 KiB whose process lost its turn.
const BEFORE_READING_AGAIN: Duration = Duration::from_millis(10);

/// Many corrupt pages are damage, not torn reads: after so many nobody waits any more.
const PATIENT_READINGS: u32 = 100;

/// Complaints kept; a cluster with more is beyond listing.
const MOST_COMPLAINTS: usize = 10_000;

/// What to check, for one backup.
#[derive(Debug)]
pub(crate) struct PageCheck {
    checksums: bool,
    headers: bool,
    start_lsn: Lsn,
    readings: AtomicU32,
}

impl PageCheck {
    pub(crate) fn new(checksums: bool, headers: bool, start_lsn: Lsn) -> Self {
        Self {
            checksums,
            headers,
            start_lsn,
            readings: AtomicU32::new(0),
        }
    }

    /// Checks block `block` of a segment file; reads it again into `page` when it is wrong.
    pub(crate) fn check(
        &self,
        file: &File,
        segment: RelSegment,
        block: u32,
        page: &mut [u8],
    ) -> Option<Complaint> {
        let first = self.complaint(segment, block, page)?;
        if first.lsn >= self.start_lsn {
            return Some(first);
        }
        if self.readings.fetch_add(1, Ordering::Relaxed) < PATIENT_READINGS {
            thread::sleep(BEFORE_READING_AGAIN);
        }
        let mut again = [0; BLOCK_SIZE];
        let size = u64::try_from(BLOCK_SIZE).expect("8192 fits 64 bits");
        match file.read_exact_at(&mut again, u64::from(block) * size) {
            Ok(()) => {}
            // The file was cut short meanwhile: replay cuts it as well.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return None,
            // What was read first is wrong, and there is nothing better.
            Err(error) => {
                let reason = format!("{}; it could not be read again: {error}", first.reason);
                return Some(Complaint { reason, ..first });
            }
        }
        page.copy_from_slice(&again);
        self.complaint(segment, block, page)
    }

    fn complaint(&self, segment: RelSegment, block: u32, page: &[u8]) -> Option<Complaint> {
        let verdict = match segment.block(block) {
            Some(number) if self.checksums => page::verify(page, number),
            _ => page::check_header(page),
        };
        let reason = match verdict {
            PageVerdict::BadChecksum { expected, found } => {
                format!("checksum is {found:04x}, expected {expected:04x}")
            }
            PageVerdict::BadHeader if self.headers => "page header makes no sense".to_owned(),
            PageVerdict::BadHeader | PageVerdict::Ok | PageVerdict::New => return None,
        };
        let lsn = PageHeader::new(page)
            .map(|header| header.lsn())
            .unwrap_or_default();
        Some(Complaint { lsn, reason })
    }

    /// Whether a complaint stands before the end of the backup is known.
    pub(crate) fn is_certain(&self, complaint: &Complaint) -> bool {
        complaint.lsn < self.start_lsn
    }

    /// Whether a complaint stands. A page with an LSN within the backup may have
    /// been torn, and replay restores it; no page has one beyond the end.
    pub(crate) fn stands(&self, complaint: &Complaint, stop_lsn: Lsn) -> bool {
        complaint.lsn < self.start_lsn || complaint.lsn > stop_lsn
    }
}

/// A page that is not right, or was not while it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    /// The page's LSN.
    pub(crate) lsn: Lsn,
    /// What is wrong, for people.
    pub(crate) reason: String,
}

/// The complaints of one backup, as far as they are kept: those first that stand for certain, then those with the highest LSNs,
/// of which the end of the backup is to decide.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    certain: Vec<CorruptPage>,
    doubtful: BTreeMap<(Lsn, String, u32), Complaint>,
}

impl Complaints {
    pub(crate) fn add(&mut self, check: &PageCheck, (path, block): (&str, u32), of: Complaint) {
        if !check.is_certain(&of) {
            self.doubtful.insert((of.lsn, path.to_owned(), block), of);
            if self.doubtful.len() > MOST_COMPLAINTS {
                self.doubtful.pop_first();
            }
        } else if self.certain.len() < MOST_COMPLAINTS {
            self.certain.push(corrupt(path, block, of));
        }
    }

    /// The pages of which a complaint stands, in order.
    pub(crate) fn standing(self, check: &PageCheck, stop_lsn: Lsn) -> Vec<CorruptPage> {
        let doubtful = self.doubtful.into_iter().rev();
        let doubtful = doubtful.filter(|(_, complaint)| check.stands(complaint, stop_lsn));
        let doubtful = doubtful.map(|((_, path, block), of)| corrupt(&path, block, of));
        let pages = self.certain.into_iter().chain(doubtful);
        let mut pages: Vec<CorruptPage> = pages.take(MOST_COMPLAINTS).collect();
        pages.sort_by(|a, b| (&a.path, a.block).cmp(&(&b.path, b.block)));
        pages
    }
}

fn corrupt(path: &str, block: u32, complaint: Complaint) -> CorruptPage {
    CorruptPage {
        path: path.to_owned(),
        block,
        reason: complaint.reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgstrata_pgdata::relation::{ForkKind, Oid, RelationFork};
    use std::io::Write;

    fn segment() -> RelSegment {
        let relation_fork = RelationFork {
            tablespace: Oid::DEFAULT_TABLESPACE,
            database: Oid(5),
            relation: Oid(16384),
            fork: ForkKind::Main,
        };
        RelSegment {
            relation_fork,
            number: 0,
        }
    }

    /// A page with this LSN and the right checksum for block 0.
    fn good_page(lsn: u32) -> Vec<u8> {
        let mut page = vec![0; BLOCK_SIZE];
        page[4..8].copy_from_slice(&lsn.to_le_bytes());
        page[12..14].copy_from_slice(&24_u16.to_le_bytes());
        page[14..16].copy_from_slice(&8192_u16.to_le_bytes());
        page[16..18].copy_from_slice(&8192_u16.to_le_bytes());
        page[18..20].copy_from_slice(&(8192_u16 | 4).to_le_bytes());
        let checksum = page::page_checksum(&page, segment().block(0).unwrap());
        page[8..10].copy_from_slice(&checksum.to_le_bytes());
        page
    }

    fn file_with(page: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(page).unwrap();
        file
    }

    #[test]
    fn a_page_that_is_right_when_read_again_is_not_corrupt() {
        let check = PageCheck::new(true, true, Lsn::new(1000));
        let good = good_page(500);
        let mut torn = good.clone();
        torn[5000] ^= 1;
        assert_eq!(
            check.check(&file_with(&good), segment(), 0, &mut torn),
            None
        );
        assert_eq!(torn, good);
    }

    #[test]
    fn a_page_that_cannot_be_read_again_is_corrupt_and_one_that_is_gone_is_not() {
        let check = PageCheck::new(true, true, Lsn::new(1000));
        let mut bad = good_page(500);
        bad[5000] ^= 1;
        let scratch = tempfile::NamedTempFile::new().unwrap();
        let unreadable = File::options().write(true).open(scratch.path()).unwrap();
        let complaint = check.check(&unreadable, segment(), 0, &mut bad).unwrap();
        assert!(check.is_certain(&complaint));
        let reason = &complaint.reason;
        assert!(reason.contains("checksum is"), "{reason}");
        assert!(reason.contains("could not be read again"), "{reason}");
        let cut = scratch.reopen().unwrap();
        assert_eq!(check.check(&cut, segment(), 0, &mut bad), None);
    }

    #[test]
    fn a_page_that_stays_wrong_is_corrupt_unless_its_lsn_is_after_the_start() {
        let check = PageCheck::new(true, true, Lsn::new(1000));
        for (lsn, corrupt) in [(500, true), (999, true), (1000, false), (2000, false)] {
            let mut bad = good_page(lsn);
            bad[5000] ^= 1;
            let file = file_with(&bad);
            let complaint = check.check(&file, segment(), 0, &mut bad).unwrap();
            assert_eq!(check.is_certain(&complaint), corrupt, "LSN {lsn}");
            assert_eq!(
                check.stands(&complaint, Lsn::new(1999)),
                corrupt || lsn == 2000,
                "LSN {lsn}"
            );
        }
    }

    #[test]
    fn what_was_torn_takes_no_place_from_what_is_corrupt() {
        let check = PageCheck::new(true, true, Lsn::new(1000));
        let mut complaints = Complaints::default();
        let mut add = |block: u32, lsn: u64| {
            let reason = "checksum".to_owned();
            let lsn = Lsn::new(lsn);
            complaints.add(&check, ("base/5/1", block), Complaint { lsn, reason });
        };
        let most = u32::try_from(MOST_COMPLAINTS).unwrap();
        (0..most).for_each(|block| add(block, 1500));
        add(most, 3000);
        (0..most).for_each(|block| add(block, 1500));
        add(most + 1, 500);
        let standing = complaints.standing(&check, Lsn::new(2000));
        let blocks: Vec<u32> = standing.iter().map(|page| page.block).collect();
        assert_eq!(blocks, [most, most + 1]);
    }

    #[test]
    fn new_pages_are_not_corrupt_and_a_page_in_the_wrong_place_is() {
        let check = PageCheck::new(true, true, Lsn::new(1000));
        let mut new = vec![0; BLOCK_SIZE];
        assert_eq!(check.check(&file_with(&new), segment(), 0, &mut new), None);
        let good = good_page(500);
        let file = file_with(&[good.clone(), good.clone()].concat());
        assert!(
            check
                .check(&file, segment(), 1, &mut good.clone())
                .is_some()
        );
    }

    #[test]
    fn a_bad_header_is_corrupt_unless_headers_are_not_checked() {
        let mut bad = good_page(500);
        bad[14..16].fill(0);
        let file = file_with(&bad);
        let strict = PageCheck::new(false, true, Lsn::new(1000));
        assert!(
            strict
                .check(&file, segment(), 0, &mut bad.clone())
                .is_some()
        );
        let lenient = PageCheck::new(false, false, Lsn::new(1000));
        assert_eq!(lenient.check(&file, segment(), 0, &mut bad), None);
    }
}
