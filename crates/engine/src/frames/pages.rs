//! Which bytes of a decoded frame go where in a file.

use pgstrata_layer::entry::{BLOCK_BYTES, bytes_of_block};
use pgstrata_layer::overlay::Take;

/// Where `take` goes in a file of `size_bytes`, and its bytes within the frame. The last block may be partial.
pub(crate) fn pages_of<'r>(take: &Take, raw: &'r [u8], size_bytes: u64) -> Option<(u64, &'r [u8])> {
    let block = u64::from(BLOCK_BYTES);
    let offset = u64::from(take.run.start) * block;
    let start = usize::try_from(u64::from(take.frame_page) * block).ok()?;
    let length = usize::try_from(bytes_of(take, size_bytes)).ok()?;
    let bytes = raw.get(start..)?.get(..length).filter(|b| !b.is_empty())?;
    Some((offset, bytes))
}

/// Bytes of a file of `size_bytes` that a take has; none of one without blocks.
pub(crate) fn bytes_of(take: &Take, size_bytes: u64) -> u64 {
    let last = take.run.count.checked_sub(1).map(|more| {
        let last = take.run.start.saturating_add(more);
        u64::from(more) * u64::from(BLOCK_BYTES) + bytes_of_block(size_bytes, last)
    });
    last.unwrap_or(0)
}
