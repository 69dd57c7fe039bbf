//! Pages of the WAL: which of them are of a timeline.

use crate::bytes::Fields;
use crate::lsn::Lsn;
use crate::timeline::TimelineId;

/// `XLOG_BLCKSZ` of the builds that are supported.
pub const WAL_PAGE_BYTES: u64 = 8192;

/// Bytes of a page that say which one it is (`XLogPageHeaderData`, `src/include/access/xlog_internal.h`).
const HEAD_BYTES: usize = 16;

/// Where a timeline begins in a segment that comes piece by piece.
#[derive(Clone, Debug)]
pub struct TimelinePages {
    timeline: TimelineId,
    /// Where the next byte belongs.
    at: u64,
    /// The beginning of the page, as far as it came.
    head: Vec<u8>,
    first: Option<Lsn>,
    last_other: Option<Lsn>,
}

impl TimelinePages {
    /// Looks for `timeline` from the page at `start` on.
    #[must_use]
    pub fn of(timeline: TimelineId, start: Lsn) -> Self {
        Self {
            timeline,
            at: start.get(),
            head: Vec::with_capacity(HEAD_BYTES),
            first: None,
            last_other: None,
        }
    }

    /// Takes the next bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let lacking = HEAD_BYTES - self.head.len();
            let left = usize::try_from(WAL_PAGE_BYTES - self.at % WAL_PAGE_BYTES).unwrap_or(1);
            let wanted = if lacking > 0 { lacking } else { left };
            let (taken, behind) = rest.split_at(wanted.min(rest.len()));
            if lacking > 0 {
                self.head.extend_from_slice(taken);
                self.look();
            }
            // Behind the last page of all WAL there is no place.
            let taken = u64::try_from(taken.len()).unwrap_or(0);
            self.at = self.at.wrapping_add(taken);
            if self.at.is_multiple_of(WAL_PAGE_BYTES) {
                self.head.clear();
            }
            rest = behind;
        }
    }

    /// Where the first page of the timeline begins.
    #[must_use]
    pub fn first(&self) -> Option<Lsn> {
        self.first
    }

    /// Where the last page of another timeline begins.
    #[must_use]
    pub fn last_other(&self) -> Option<Lsn> {
        self.last_other
    }

    /// A page that nobody has written has another address, or none.
    fn look(&mut self) {
        let page = Fields(&self.head);
        let begin = self.at - self.at % WAL_PAGE_BYTES;
        let Some(timeline) = page.word(4).filter(|_| page.long(8) == Some(begin)) else {
            return;
        };
        if timeline == self.timeline.get() {
            self.first.get_or_insert(Lsn::new(begin));
        } else {
            self.last_other = Some(Lsn::new(begin));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of these timelines from `start` on; one of timeline 0 was never written.
    fn pages(start: u64, timelines: &[u32]) -> Vec<u8> {
        let mut all = Vec::new();
        for (address, timeline) in (start..).step_by(8192).zip(timelines) {
            let mut page = vec![7; 8192];
            page[4..8].copy_from_slice(&timeline.to_le_bytes());
            let address = if *timeline == 0 { 0 } else { address };
            page[8..16].copy_from_slice(&address.to_le_bytes());
            all.extend(page);
        }
        all
    }

    #[test]
    fn where_a_timeline_begins_is_found_however_its_pages_come() {
        let start = 5 << 24;
        for (timelines, first, other) in [
            (&[2, 2][..], Some(0), None),
            (&[1, 2, 2], Some(1), Some(0)),
            (&[1, 0, 1, 2], Some(3), Some(2)),
            (&[1, 1, 3, 0], None, Some(2)),
            (&[0, 0], None, None),
        ] {
            let bytes = pages(start, timelines);
            for piece in [1, 3, 15, 16, 17, 8191, 8192, 8193, 40000] {
                let mut seen = TimelinePages::of(TimelineId::new(2), Lsn::new(start));
                for piece in bytes.chunks(piece) {
                    seen.feed(piece);
                }
                let at = |page: Option<u64>| page.map(|page| Lsn::new(start + page * 8192));
                let found = (seen.first(), seen.last_other());
                assert_eq!(found, (at(first), at(other)), "{timelines:?} {piece}");
            }
        }
    }
}
