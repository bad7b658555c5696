//! A file that is only viewed: its blocks are copied on first use.
//!
//! A process that maps a file is killed by `SIGBUS` when another process truncates it. A read
//! beyond the end only returns fewer bytes. So a view has copies and gets an error. Each copy is
//! made at one moment and may be torn by concurrent writes. After `Region::refresh`, all blocks are
//! copied again on their next use. A value that is equal in two consecutive copies existed between
//! them.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use latchwork_machine::{ConstMachine, Integer, Word};

use crate::Error;
use crate::header::BLOCK;

/// Records which blocks of a file are copied.
pub(crate) struct Copied<M: ConstMachine> {
    pub(crate) file: File,
    /// Bytes before the first block that is copied on demand.
    pub(crate) fixed: u64,
    /// A bit for each block.
    here: Box<[M::AtomicU64]>,
    /// Held by the thread that copies.
    copying: Mutex<()>,
}

impl<M: ConstMachine> Copied<M> {
    pub(crate) fn new(file: File, reserved: usize, fixed: u64) -> Self {
        let words = (reserved as u64).div_ceil(BLOCK * 64);
        let here = (0..words).map(|_| M::U64).collect();
        Self { file, fixed, here, copying: Mutex::new(()) }
    }

    /// Copies the missing blocks that contain the bytes from `from` to `to`. The memory from `base`
    /// on may be written.
    pub(crate) fn bring(&self, base: *mut u8, from: u64, to: u64) -> Result<(), Error> {
        for block in from / BLOCK..to.div_ceil(BLOCK) {
            let (word, bit) = (&self.here[(block / 64) as usize], 1 << (block % 64));
            // Acquire: synchronizes with the Release below, so that the copy is seen whole.
            if word.load(Acquire) & bit != 0 {
                continue;
            }
            let _alone = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
            // Relaxed: the thread that set it held the mutex before.
            if word.load(Relaxed) & bit == 0 {
                self.copy(base, block * BLOCK, (block + 1) * BLOCK)?;
                // Release: synchronizes with the Acquire above.
                word.fetch_or(bit, Release);
            }
        }
        Ok(())
    }

    /// Has all blocks copied again when they are next used.
    pub(crate) fn forget(&self) {
        let _alone = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: a thread that still finds the bit sees the previous copy.
        self.here.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// Copies the bytes from `from` to `to` into place.
    pub(crate) fn copy(&self, base: *mut u8, from: u64, to: u64) -> Result<(), Error> {
        let mut at = from;
        while at < to {
            let (place, left) = (base.wrapping_add(at as usize), (to - at) as usize);
            // SAFETY: that much may be written there. Others read it as atomic words for which any
            // bytes are valid, as in memory that other processes write.
            let got = unsafe { libc::pread(self.file.as_raw_fd(), place.cast(), left, at as i64) };
            match got {
                1.. => at += got as u64,
                0 => {
                    let found = self.file.metadata().map_or(at, |data| data.len().min(at));
                    return Err(Error::Truncated { needed: to, found });
                }
                _ => {
                    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
                    if errno != libc::EINTR {
                        return Err(Error::System { call: "pread", errno });
                    }
                }
            }
        }
        Ok(())
    }
}
