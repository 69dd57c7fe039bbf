//! Whether segments of the WAL follow one another: recovery goes from one into the next only when they do.
//!
//! Each record points back to the one before it, and each page says how much it has of a record that began earlier. Two
//! segments of the same name that two servers wrote after they had parted differ in that, unless all their records were of
//! the same lengths. The server's own reader (`xlogreader.c`) takes such a place for the end of the WAL.

use crate::wal_records::SegmentEnds;
use crate::{Error, Lsn, Result};

/// What the next segment has to go on with.
#[derive(Clone, Copy, Debug, Default)]
struct Seam {
    /// Bytes that are left of a record.
    left: u64,
    /// Where that record begins, when that is known.
    open: Option<Lsn>,
    /// Where the last record begins that is whole, when that is known.
    whole: Option<Lsn>,
}

/// Takes segments in their order, and finds the first that does not go on where the one before it ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct WalContinuity {
    before: Option<Seam>,
}

impl WalContinuity {
    /// The next segment. The first one, and the first one after a gap ([`WalContinuity::interrupt`]), follows anything.
    ///
    /// # Errors
    /// `Damaged` when it does not go on where the one before it ends. The next call goes on behind it.
    pub fn follow(&mut self, next: &SegmentEnds) -> Result<()> {
        let before = self.before.unwrap_or(Seam {
            left: next.entrance.left,
            ..Seam::default()
        });
        let is_given_up = next.entrance.overwrites && next.entrance.left == 0;
        let expected = match before.left > 0 && !is_given_up {
            true => before.open,
            false => before.whole,
        };
        self.before = Some(match (next.left, next.open) {
            // All of it belongs to a record that began earlier.
            (left @ 1.., None) => Seam { left, ..before },
            (left, open) => Seam {
                left,
                open,
                whole: next.last_whole.or(next.points_back).or(expected),
            },
        });
        if next.entrance.left != before.left && !is_given_up {
            return Err(Error::damaged(format!(
                "it goes on with {} bytes of a record of which {} are missing",
                next.entrance.left, before.left
            )));
        }
        match (expected, next.points_back) {
            (Some(expected), Some(found)) if expected != found => Err(Error::damaged(format!(
                "its first record says that the one before it is at {found}, and it is at {expected}"
            ))),
            _ => Ok(()),
        }
    }

    /// Nothing is known of what comes before the next segment.
    pub fn interrupt(&mut self) {
        self.before = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal_records::Entrance;

    fn ends(left_before: u64, points_back: u64, last: u64) -> SegmentEnds {
        SegmentEnds {
            entrance: Entrance {
                left: left_before,
                overwrites: false,
            },
            points_back: Some(Lsn::new(points_back)),
            last_whole: Some(Lsn::new(last)),
            left: 0,
            open: None,
        }
    }

    fn with_rest(ends: SegmentEnds, left: u64, open: u64) -> SegmentEnds {
        SegmentEnds {
            left,
            open: Some(Lsn::new(open)),
            ..ends
        }
    }

    fn follow(segments: &[SegmentEnds]) -> Vec<bool> {
        let mut continuity = WalContinuity::default();
        let each = segments.iter().map(|next| continuity.follow(next).is_ok());
        each.collect()
    }

    #[test]
    fn a_segment_follows_when_its_first_record_points_to_the_last_one() {
        let (first, second) = (ends(0, 1, 90), ends(0, 90, 190));
        assert_eq!(follow(&[first, second, ends(0, 190, 290)]), [true; 3]);
        assert_eq!(follow(&[first, ends(0, 88, 190)]), [true, false]);
        // One finding for one seam.
        let other = ends(0, 88, 180);
        assert_eq!(
            follow(&[first, other, ends(0, 180, 290)]),
            [true, false, true]
        );
    }

    #[test]
    fn a_record_that_goes_on_has_as_much_left_as_the_next_page_says() {
        let first = with_rest(ends(0, 1, 80), 50, 90);
        assert_eq!(follow(&[first, ends(50, 90, 190)]), [true; 2]);
        assert_eq!(follow(&[first, ends(42, 90, 190)]), [true, false]);
        assert_eq!(follow(&[first, ends(0, 90, 190)]), [true, false]);
        assert_eq!(follow(&[first, ends(50, 80, 190)]), [true, false]);
    }

    #[test]
    fn a_record_may_be_longer_than_a_segment() {
        let first = with_rest(ends(0, 1, 80), 250, 90);
        let inner = SegmentEnds {
            entrance: Entrance {
                left: 250,
                overwrites: false,
            },
            points_back: None,
            last_whole: None,
            left: 150,
            open: None,
        };
        assert_eq!(follow(&[first, inner, ends(150, 90, 290)]), [true; 3]);
        assert_eq!(
            follow(&[first, inner, ends(150, 80, 290)]),
            [true, true, false]
        );
    }

    /// `XLOG_OVERWRITE_CONTRECORD`: a server that crashed goes on behind the record that it never finished.
    #[test]
    fn a_record_that_was_given_up_is_followed_by_one_that_points_to_the_last_whole_one() {
        let first = with_rest(ends(0, 1, 80), 50, 90);
        let mut next = ends(0, 80, 190);
        next.entrance.overwrites = true;
        assert_eq!(follow(&[first, next]), [true; 2]);
        next.points_back = Some(Lsn::new(90));
        assert_eq!(follow(&[first, next]), [true, false]);
    }

    #[test]
    fn after_a_gap_anything_follows() {
        let mut continuity = WalContinuity::default();
        continuity.follow(&ends(0, 1, 90)).unwrap();
        continuity.interrupt();
        continuity.follow(&ends(7, 290, 390)).unwrap();
        assert!(continuity.follow(&ends(0, 380, 490)).is_err());
    }
}
