//! A region of a file, put together in memory from frames of all layers, so that it is written in long runs.
//!
//! What an increment changed lies scattered. Page by page, each write takes the file's lock and leaves the file system
//! an extent to remember, and restoring a chain costs several times what restoring one full backup costs.

use std::ops::Range;

use pgstrata_store::direct::AlignedBytes;
use pgstrata_store::error::{FileContext, Result};

/// Bytes of a file that a worker has at hand, and what it has of those that follow.
pub(super) struct Region {
    gathered: Gathered,
    /// What frames brought along that lies elsewhere, mostly after the region. Frames of a layer ascend, so that it is
    /// less than a frame for each layer.
    elsewhere: Vec<(u64, Box<[u8]>)>,
}

/// The bytes of one region.
pub(super) struct Gathered {
    /// Where the region begins in the file.
    start: u64,
    bytes: AlignedBytes,
    /// Which bytes of the file are in `bytes`, in no order.
    present: Vec<Range<u64>>,
}

/// What a region leaves behind when it goes on.
pub(super) enum Departing<'r> {
    /// What was gathered; to be left empty.
    Region(&'r mut Gathered),
    /// Bytes that lie at this offset of the file, outside of the region.
    Piece(u64, &'r [u8]),
}

impl Region {
    /// The region of this size at the start of a file, empty.
    pub(super) fn new(size_bytes: usize) -> Result<Self> {
        Ok(Self {
            gathered: Gathered::new(size_bytes)?,
            elsewhere: Vec::new(),
        })
    }

    /// Goes on to the region that holds `offset`. What is left behind goes to `write`.
    pub(super) fn move_to(
        &mut self,
        offset: u64,
        mut write: impl FnMut(Departing<'_>) -> Result<()>,
    ) -> Result<()> {
        let size = length_of(&self.gathered.bytes);
        let (old, start) = (self.gathered.start, offset / size * size);
        if start == old {
            return Ok(());
        }
        self.write_gathered(&mut write)?;
        self.gathered.start = start;
        for (offset, bytes) in std::mem::take(&mut self.elsewhere) {
            // Nothing comes back to what lies before, and whoever goes backwards may not come to what lies after.
            if offset < start || (start < old && offset >= start + size) {
                write(Departing::Piece(offset, &bytes))?;
            } else {
                self.place(offset, &bytes);
            }
        }
        Ok(())
    }

    /// Keeps bytes of the file until they are written.
    pub(super) fn place(&mut self, offset: u64, bytes: &[u8]) {
        let fitting = self.gathered.place(offset, bytes);
        let outside = &bytes[fitting..];
        if !outside.is_empty() {
            self.elsewhere
                .push((offset + length_of(&bytes[..fitting]), outside.into()));
        }
    }

    /// Writes all there is; the region is then that at the start of another file.
    pub(super) fn finish(
        &mut self,
        mut write: impl FnMut(Departing<'_>) -> Result<()>,
    ) -> Result<()> {
        self.write_gathered(&mut write)?;
        self.gathered.start = 0;
        for (offset, bytes) in self.elsewhere.drain(..) {
            write(Departing::Piece(offset, &bytes))?;
        }
        Ok(())
    }

    fn write_gathered(
        &mut self,
        write: &mut impl FnMut(Departing<'_>) -> Result<()>,
    ) -> Result<()> {
        match self.gathered.present.is_empty() {
            true => Ok(()),
            false => write(Departing::Region(&mut self.gathered)),
        }
    }
}

impl Gathered {
    /// Nothing yet.
    pub(super) fn new(size_bytes: usize) -> Result<Self> {
        let act = || "could not get memory for a region of a file".to_owned();
        Ok(Self {
            start: 0,
            bytes: AlignedBytes::new(size_bytes).context(act)?,
            present: Vec::new(),
        })
    }

    /// Takes in what of `bytes` lies in the region; returns how many these are, from the first on.
    pub(super) fn place(&mut self, offset: u64, bytes: &[u8]) -> usize {
        let within = offset
            .checked_sub(self.start)
            .and_then(|at| usize::try_from(at).ok())
            .filter(|at| *at < self.bytes.len());
        let Some(at) = within else { return 0 };
        let fitting = bytes.len().min(self.bytes.len() - at);
        self.bytes[at..at + fitting].copy_from_slice(&bytes[..fitting]);
        self.present
            .push(offset..offset + length_of(&bytes[..fitting]));
        fitting
    }

    /// Gives all there is to `write`, in runs with their offsets, and is empty then.
    pub(super) fn write(&mut self, mut write: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        self.present.sort_unstable_by_key(|range| range.start);
        let mut ranges = self.present.drain(..).peekable();
        while let Some(mut run) = ranges.next() {
            while let Some(next) = ranges.next_if(|next| next.start == run.end) {
                run.end = next.end;
            }
            let at = |offset: u64| usize::try_from(offset - self.start).expect("in memory");
            write(run.start, &self.bytes[at(run.start)..at(run.end)])?;
        }
        Ok(())
    }

    /// Forgets what there is.
    pub(super) fn clear(&mut self) {
        self.present.clear();
    }
}

fn length_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).expect("usize has 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places ranges of a file whose bytes are their offsets, each after moving to where it begins, and returns what
    /// was written. `finish` comes last.
    fn written(size: usize, placed: &[Range<u8>]) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        let mut write = |offset: u64, bytes: &[u8]| {
            let end = offset + length_of(bytes);
            let expected: Vec<u8> = (offset..end).map(|at| u8::try_from(at).unwrap()).collect();
            assert_eq!(bytes, expected);
            found.push(offset..end);
            Ok(())
        };
        let mut write = |departing: Departing<'_>| match departing {
            Departing::Region(gathered) => gathered.write(&mut write),
            Departing::Piece(offset, bytes) => write(offset, bytes),
        };
        let mut region = Region::new(size).unwrap();
        for range in placed {
            region.move_to(range.start.into(), &mut write).unwrap();
            let bytes: Vec<u8> = range.clone().collect();
            region.place(range.start.into(), &bytes);
        }
        region.finish(&mut write).unwrap();
        found
    }

    #[test]
    fn pieces_of_several_layers_are_written_as_one_run() {
        // Two scattered pieces of an increment, then what the base has around them.
        assert_eq!(written(16, &[2..4, 8..10, 0..2, 4..8, 10..16]), vec![0..16]);
        assert_eq!(written(16, &[2..4, 12..14]), vec![2..4, 12..14]);
    }

    #[test]
    fn what_reaches_into_the_next_region_waits_for_it() {
        assert_eq!(
            written(16, &[8..20, 0..8, 20..32, 32..40]),
            vec![0..16, 16..32, 32..40]
        );
        // Unless nobody comes there.
        assert_eq!(
            written(8, &[0..12, 20..24, 24..30]),
            vec![0..8, 8..12, 20..24, 24..30]
        );
    }

    #[test]
    fn whoever_goes_backwards_leaves_nothing_behind() {
        assert_eq!(
            written(8, &[24..34, 16..24, 0..4]),
            vec![24..32, 32..34, 16..24, 0..4]
        );
    }
}
