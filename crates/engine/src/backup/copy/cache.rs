//! Reading that leaves the kernel's page cache as it was found.
//!
//! A full backup reads every page of the cluster once. Where the cluster is larger than memory, the pages would
//! drive out those that the server needs. Linux 6.14 and later reads so that what was not cached before is not cached
//! afterwards, and what was stays (preadv2(2), `RWF_DONTCACHE`), for file systems that take part, such as ext4 and XFS.
//! Elsewhere files are read as always: to drop pages from outside would drop those of the server too.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, ReadWriteFlags, preadv2};
use tracing::debug;

use super::read::fill;

/// `RWF_DONTCACHE` (include/uapi/linux/fs.h).
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// How files are read. Shared by all workers.
#[derive(Debug)]
pub(crate) struct PageCache {
    leaves: AtomicBool,
}

impl PageCache {
    /// `leaves`: whether to leave it as it is, where the kernel can.
    pub(crate) fn new(leaves: bool) -> Self {
        Self {
            leaves: AtomicBool::new(leaves),
        }
    }

    /// Reads until `buffer` is full or the file ends.
    pub(crate) fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        fill(buffer, offset, |rest, position| {
            if self.leaves.load(Ordering::Relaxed) {
                match preadv2(file, &mut [IoSliceMut::new(rest)], position, DONTCACHE) {
                    Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                        debug!("the kernel or the file system cannot read past the page cache");
                        self.leaves.store(false, Ordering::Relaxed);
                    }
                    read => return Ok(read?),
                }
            }
            file.read_at(rest, position)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::PageCache;
    use std::fs::{self, File};

    #[test]
    fn both_ways_of_reading_give_the_same_bytes() {
        // The second one is often in memory, where the kernel refuses the flag.
        for directory in [std::env::temp_dir(), "/dev/shm".into()] {
            let directory = tempfile::tempdir_in(directory).unwrap();
            let path = directory.path().join("file");
            let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
            fs::write(&path, &content).unwrap();
            let file = File::open(&path).unwrap();
            for leaves in [true, false] {
                let cache = PageCache::new(leaves);
                let mut buffer = vec![0; 300_000];
                assert_eq!(cache.read_at(&file, &mut buffer, 8192).unwrap(), 300_000);
                assert_eq!(buffer, content[8192..308_192]);
                // Beyond the end, and what is left before it.
                assert_eq!(cache.read_at(&file, &mut buffer, 400_000).unwrap(), 0);
                assert_eq!(cache.read_at(&file, &mut buffer, 399_000).unwrap(), 1000);
                assert_eq!(buffer[..1000], content[399_000..]);
            }
        }
    }
}
