//! A file that is only looked at: its blocks are copied when somebody looks there.
//!
//! Who maps a file dies of `SIGBUS` when a peer truncates it. A read of what is not there returns
//! fewer bytes, and no more happens: so who only looks has copies, and gets an error. A copy is of
//! a moment, and torn where others write meanwhile; `Region::refresh` has all of them made anew
//! when they are wanted next. Two readings in a row that agree were true between them.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use latchwork_machine::{ConstMachine, Integer, Word};

use crate::Error;
use crate::header::BLOCK;

/// Which blocks of a file are here.
pub(crate) struct Copied<M: ConstMachine> {
    pub(crate) file: File,
    /// Bytes before the first block that is copied when it is wanted.
    pub(crate) fixed: u64,
    /// A bit for each block.
    here: Box<[M::AtomicU64]>,
    /// Held by who copies.
    copying: Mutex<()>,
}

impl<M: ConstMachine> Copied<M> {
    pub(crate) fn new(file: File, reserved: usize, fixed: u64) -> Self {
        let words = (reserved as u64).div_ceil(BLOCK * 64);
        let here = (0..words).map(|_| M::U64).collect();
        Self { file, fixed, here, copying: Mutex::new(()) }
    }

    /// Has the blocks copied in which the bytes from `from` to `to` lie, unless they are here. They
    /// may be written to, from `base` on.
    pub(crate) fn bring(&self, base: *mut u8, from: u64, to: u64) -> Result<(), Error> {
        for block in from / BLOCK..to.div_ceil(BLOCK) {
            let (word, bit) = (&self.here[(block / 64) as usize], 1 << (block % 64));
            // Acquire: synchronizes with the Release below, so that the copy is seen whole.
            if word.load(Acquire) & bit != 0 {
                continue;
            }
            let _alone = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
            // Relaxed: who set it had the mutex before.
            if word.load(Relaxed) & bit == 0 {
                self.copy(base, block * BLOCK, (block + 1) * BLOCK)?;
                // Release: synchronizes with the Acquire above.
                word.fetch_or(bit, Release);
            }
        }
        Ok(())
    }

    /// Has all blocks copied anew when they are wanted next.
    pub(crate) fn forget(&self) {
        let _alone = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: who still finds the bit sees the copy that was there.
        self.here.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// Copies the bytes from `from` to `to` to where they belong.
    pub(crate) fn copy(&self, base: *mut u8, from: u64, to: u64) -> Result<(), Error> {
        let mut at = from;
        while at < to {
            let (place, left) = (base.wrapping_add(at as usize), (to - at) as usize);
            // SAFETY: so much may be written to there; others read it as atomic words, of which any
            // bytes are a value, as they do in memory that other processes write to.
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
