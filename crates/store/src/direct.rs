//! Writing past the page cache (open(2), `O_DIRECT`).
//!
//! A buffered write copies each byte into a page that the kernel has to find, and to write back later; and what is stored
//! drives out what others on the machine have cached. A direct write returns when the disk has the bytes.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use memmap2::{Advice, MmapMut};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstatfs};
use tracing::info;

use crate::courtesy;

/// What direct writes must be multiples of, in the file and in memory: no disk has larger sectors.
pub const ALIGNMENT_BYTES: usize = 4096;

/// What tells ext2, ext3 and ext4 from other file systems (statfs(2)).
pub const EXT: u64 = 0xEF53;

/// The same of XFS.
pub const XFS: u64 = 0x5846_5342;

/// What is smaller goes through the cache: it is written back in one piece, together with what belongs to it.
const SMALLEST_BYTES: usize = 1 << 20;

/// What is written at once. More is not faster, and others would wait for the disk.
const PIECE_BYTES: usize = courtesy::PIECE_BYTES;

/// Of x86-64 and of others with pages of 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// For fewer a huge page would be wasted.
const MANY_BYTES: usize = 256 << 10;

/// Whether `at` lies on a file system of one of these kinds.
///
/// # Errors
/// When the system does not tell (fstatfs(2)).
pub fn is_on(at: impl AsFd, kinds: &[u64]) -> io::Result<bool> {
    let kind = u64::try_from(fstatfs(at)?.f_type);
    Ok(kind.is_ok_and(|kind| kinds.contains(&kind)))
}

/// Whether what is written past the page cache to a file of the file system on which `at` lies is as it would be otherwise. So it is
/// with ext4 and XFS. Btrfs, as a counterexample, would not compress it.
pub fn is_known(at: impl AsFd) -> bool {
    is_on(at, &[EXT, XFS]).unwrap_or(false)
}

/// Zeros that begin where direct writes may.
///
/// Many of them lie in huge pages, where the system has some left (`/sys/kernel/mm/transparent_hugepage/enabled`). A disk is told of
/// each page of a direct write that does not lie behind the one before it in memory, and a virtual one may need longer
/// for that than for the bytes: such writes were half as fast again with huge pages, and slower than the page cache without.
pub struct AlignedBytes {
    memory: MmapMut,
    start: usize,
    length: usize,
}

impl AlignedBytes {
    /// So many.
    ///
    /// # Errors
    /// When there is no memory for them (mmap(2)).
    pub fn new(length: usize) -> io::Result<Self> {
        let whole = length.next_multiple_of(HUGE_PAGE_BYTES);
        // What nobody touches takes no memory.
        let memory = MmapMut::map_anon(whole + HUGE_PAGE_BYTES)?;
        let start = memory.as_ptr().align_offset(HUGE_PAGE_BYTES);
        if length >= MANY_BYTES {
            // Where there are none, small ones do.
            let _ = memory.advise_range(Advice::HugePage, start, whole);
        }
        Ok(Self {
            memory,
            start,
            length,
        })
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

/// Writes all of `bytes` at the end of `file`, which is where it stands; much of it past the page cache, where that is known to
/// be the same. Returns how many bytes went past it.
pub(crate) fn write(file: &File, bytes: &[u8]) -> io::Result<usize> {
    let (mut rest, mut past) = (bytes, 0);
    if bytes.len() >= SMALLEST_BYTES {
        match is_known(file) {
            true => (rest, past) = write_past_cache(file, bytes)?,
            false => say_why_not(),
        }
    }
    courtesy::write(file, rest)?;
    Ok(past)
}

/// Writes the first of these bytes at the end of `file`, which is written as others are afterwards: all but less than a sector, or
/// fewer when the kernel refuses them. Returns those that are left, and how many went past the cache.
fn write_past_cache<'b>(mut file: &File, bytes: &'b [u8]) -> io::Result<(&'b [u8], usize)> {
    let (mut rest, mut past) = (bytes, 0);
    // The page cache takes them where there is no memory for this.
    let Some(mut piece) = piece_buffer() else {
        return Ok((rest, past));
    };
    let flags = fcntl_getfl(file)?;
    let mut end = file.stream_position()?;
    if fcntl_setfl(file, flags | OFlags::DIRECT).is_err() {
        return Ok((rest, past));
    }
    let (sectors, _) = bytes.as_chunks::<ALIGNMENT_BYTES>();
    let mut written = Ok(true);
    for part in sectors.as_flattened().chunks(PIECE_BYTES) {
        let moved = &mut piece[..part.len()];
        moved.copy_from_slice(part);
        written = write_all_at(file, moved, end);
        let Ok(went_past) = written else { break };
        end += u64::try_from(part.len()).expect("usize has 64 bits");
        rest = &rest[part.len()..];
        if !went_past {
            break;
        }
        past += part.len();
        courtesy::rest();
    }
    spare().push(piece);
    // Also after an error: who writes to it next writes as to any file.
    fcntl_setfl(file, flags)?;
    file.seek(SeekFrom::Start(end))?;
    written.map(|_| (rest, past))
}

/// Buffers for one piece each that nobody uses: a new one costs the server's machine a huge page to be made zeros. There are as many
/// as files were written at once.
fn spare() -> MutexGuard<'static, Vec<AlignedBytes>> {
    static SPARE: Mutex<Vec<AlignedBytes>> = Mutex::new(Vec::new());
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer for one piece; `None` when there is no memory for it.
fn piece_buffer() -> Option<AlignedBytes> {
    let spare = spare().pop();
    spare.or_else(|| AlignedBytes::new(PIECE_BYTES).ok())
}

/// Writes all of `bytes` at `offset` of a file that was opened for direct writes. When the kernel refuses how they lie, they and
/// what follows them are written through the cache. Returns whether they went past it.
///
/// # Errors
/// Those of writing (pwrite(2)).
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<bool> {
    let is_aligned = bytes.as_ptr().align_offset(ALIGNMENT_BYTES) == 0;
    let written = match is_aligned {
        true => file.write_all_at(bytes, offset),
        false => match AlignedBytes::new(bytes.len()) {
            Ok(mut moved) => {
                moved.copy_from_slice(bytes);
                file.write_all_at(&moved, offset)
            }
            // There is no memory to lay them otherwise.
            Err(_) => Err(io::ErrorKind::InvalidInput.into()),
        },
    };
    match written {
        // Half of them may be there: at a position they are written again as a whole.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            fcntl_setfl(file, fcntl_getfl(file)? - OFlags::DIRECT)?;
            file.write_all_at(bytes, offset).map(|()| false)
        }
        written => written.map(|()| true),
    }
}

fn say_why_not() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        info!("the repository is written through the page cache: its file system is neither ext4 nor XFS");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::{Read as _, Write as _};

    #[test]
    fn what_is_written_past_the_page_cache_is_what_was_to_be_written() {
        let some = |length: usize| -> Vec<u8> { (0_u8..251).cycle().take(length).collect() };
        // Others may want the processors meanwhile, as one of the tests of courtesy makes it appear.
        for directory in [std::env::temp_dir(), "/dev/shm".into()] {
            let mut file = tempfile::tempfile_in(directory).unwrap();
            let takes = is_known(&file);
            let mut expected = Vec::new();
            // Some begin where the one before has ended within a sector, and are refused.
            for length in [0, 1, ALIGNMENT_BYTES - 1, SMALLEST_BYTES - 1, 1] {
                assert_eq!(write(&file, &some(length)).unwrap(), 0);
                expected.extend(some(length));
            }
            for (extra, past) in [(0, true), (1, true), (ALIGNMENT_BYTES, false)] {
                let length = 3 * SMALLEST_BYTES + extra;
                let begins_a_sector = expected.len() % ALIGNMENT_BYTES == 0;
                assert_eq!(begins_a_sector, past);
                let direct = match takes && past {
                    true => length / ALIGNMENT_BYTES * ALIGNMENT_BYTES,
                    false => 0,
                };
                assert_eq!(write(&file, &some(length)).unwrap(), direct);
                expected.extend(some(length));
            }
            (&file).write_all(b"the end").unwrap();
            expected.extend(b"the end");
            let mut found = Vec::new();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_end(&mut found).unwrap();
            assert!(found == expected, "{} bytes", found.len());
        }
    }
}
