//! Detects living processes by locks that the kernel drops at death.
//!
//! A process that has a region open holds an open-file-description lock (Linux 3.15) on one byte of
//! the region's file, far behind its end: the byte of its process slot. Unlike a pid, the lock is
//! never reused and means the same in every pid namespace, and `SIGKILL` drops it. Unlike POSIX's
//! record locks, it belongs to the open file and not to the process: a process that opens a region
//! twice has two locks, and closing one file does not drop the other.
//!
//! A child of a fork shares its parent's open files and would keep the parent "alive". So the child
//! closes them at once (`pthread_atfork`), and `O_CLOEXEC` does so at an `exec`. A child made by a
//! bare `clone` system call runs no such handler: its parent's slots count as alive until both have
//! exited. That errs on the safe side: the parent's locks stay held.

use core::ops::Deref;
use core::sync::atomic::AtomicI32;
use core::sync::atomic::Ordering::Relaxed;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::sync::Once;

use crate::Error;

/// How many such files one process may have open at a time.
const OPEN_MAX: usize = 1024;

/// Descriptors to close in a child, plus one; zero is none.
static OPEN: [AtomicI32; OPEN_MAX] = [const { AtomicI32::new(0) }; OPEN_MAX];

/// The byte of process slot 0, beyond the largest file.
const LOCKS_AT: i64 = 1 << 60;

extern "C" fn close_in_child() {
    for entry in &OPEN {
        // Relaxed: the child has one thread.
        let fd = entry.swap(0, Relaxed) - 1;
        if fd >= 0 {
            // SAFETY: `close` may be called after a fork. The descriptor is the parent's copy,
            // owned by an `Unforked`, which knows that it does not belong to this process.
            unsafe { libc::close(fd) };
        }
    }
}

/// An open file that the child of a fork closes at once, so that what the kernel keeps with an open
/// file, such as its locks, ends with this process. The child must not use it.
#[derive(Debug)]
pub struct Unforked {
    file: ManuallyDrop<File>,
    entry: usize,
    process: u32,
}

impl Unforked {
    /// Registers `file` to be closed after a fork. A child that is forked after the file was opened
    /// and before this call keeps it open.
    ///
    /// # Errors
    ///
    /// [`Error::Regions`] if this process has too many.
    pub fn new(file: File) -> Result<Self, Error> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handler does only what may be done after a fork, and stays.
            unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
        });
        let mark = file.as_raw_fd() + 1;
        // Relaxed: only this process's numbers are kept here.
        let entry = OPEN.iter().position(|e| e.compare_exchange(0, mark, Relaxed, Relaxed).is_ok());
        let entry = entry.ok_or(Error::Regions(OPEN_MAX as u32))?;
        Ok(Self { file: ManuallyDrop::new(file), entry, process: std::process::id() })
    }
}

impl Deref for Unforked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Unforked {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // It is closed, and another file of this child may have its number and its entry.
            return;
        }
        // Relaxed: as in `new`.
        OPEN[self.entry].store(0, Relaxed);
        // SAFETY: it is not used again.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

/// A region's file and the locks on it.
pub(crate) struct Tokens {
    file: Unforked,
}

impl Tokens {
    /// Takes ownership of `file`.
    pub(crate) fn new(file: File) -> Result<Self, Error> {
        Ok(Self { file: Unforked::new(file)? })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Takes the lock of a process slot; false if a living process has it.
    pub(crate) fn take(&self, slot: u32) -> Result<bool, Error> {
        let mut lock = whole(slot);
        // SAFETY: a lock description that outlives the call.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &mut lock) } {
            0 => Ok(true),
            _ => match errno() {
                libc::EAGAIN | libc::EACCES => Ok(false),
                libc::EINVAL | libc::ENOLCK | libc::EOPNOTSUPP => Err(Error::NoLocks),
                errno => Err(Error::System { call: "fcntl", errno }),
            },
        }
    }
}

/// Whether another process has the lock of a process slot. If the system gives no answer, it counts
/// as taken, so that no living process is declared dead.
pub(crate) fn taken(file: &File, slot: u32) -> bool {
    let mut lock = whole(slot);
    // SAFETY: a lock description that outlives the call.
    let said = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    said != 0 || lock.l_type != libc::F_UNLCK as i16
}

/// A write lock on the byte of a slot.
fn whole(slot: u32) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: LOCKS_AT + i64::from(slot),
        l_len: 1,
        l_pid: 0,
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// This process: pid, start time, pid namespace. Zero for what is unknown.
pub(crate) fn identity() -> (u32, u64, u64) {
    let pid = std::process::id();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may contain anything; field 3 follows its end.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let start = after.split_whitespace().nth(19).and_then(|n| n.parse().ok()).unwrap_or(0);
    let namespace = rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino);
    (pid, start, namespace)
}
