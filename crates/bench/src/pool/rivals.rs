//! Berkeley DB's pool, a mapping, `pread` and words in memory.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_disk::Buffer;
use latchwork_rivals::BdbPool;
use rustix::fs::OFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::fault::Fault;
use super::keeper::{Keeper, Operation, Scene, Uses, Work};
use super::outcome::Outcome;
use super::pages::{KEYS, KEYS_AT, find, key, value};
use super::plan::Subject;

const PAGE: usize = 8192;

fn check(subject: Subject, page: u32, found: u64) -> Result<(), Fault> {
    if found >> 32 == u64::from(page) { Ok(()) } else { Err(Fault::Wrong { subject, page, found }) }
}

/// An operation that the plan gives to other pools.
fn never(subject: Subject) -> Fault {
    Fault::Refused { subject, why: "it does not do this".to_owned() }
}

/// Berkeley DB's pool.
pub(super) struct Theirs {
    pool: BdbPool,
    pages: u32,
}

impl Keeper for Theirs {
    fn open(scene: &Scene<'_>) -> Result<Self, String> {
        let cache = u64::from(scene.frames) * PAGE as u64;
        let pool = BdbPool::open(scene.shared, scene.file, cache, PAGE as u32);
        let pool = pool.map_err(|error| error.to_string())?;
        for page in 0..if scene.make { scene.pages } else { 0 } {
            pool.make(page, value(page)).map_err(|error| error.to_string())?;
        }
        Ok(Self { pool, pages: scene.pages })
    }

    fn with(&self, scan: u32, _: bool, work: Work<'_>) -> Result<Outcome, Fault> {
        work(&mut TheirUser { pool: &self.pool, pages: self.pages, next: scan })
    }
}

struct TheirUser<'p> {
    pool: &'p BdbPool,
    pages: u32,
    /// The next page of the scan.
    next: u32,
}

impl Uses for TheirUser<'_> {
    fn batch(&mut self, operations: &[Operation]) -> Result<(), Fault> {
        let refused = |error: latchwork_rivals::BdbError| Fault::Refused {
            subject: Subject::BerkeleyDb,
            why: error.to_string(),
        };
        for operation in operations {
            let page = match *operation {
                Operation::Read(page) => page,
                // Pages are not latched for the caller. Of two concurrent additions to a page one
                // may be lost; nothing checks this here.
                Operation::Add(page) => {
                    self.pool.add(page).map_err(refused)?;
                    continue;
                }
                Operation::Scan => {
                    let page = self.next;
                    self.next = (page + 1) % self.pages;
                    page
                }
                Operation::Search(..) => return Err(never(Subject::BerkeleyDb)),
            };
            check(Subject::BerkeleyDb, page, self.pool.read(page).map_err(refused)?)?;
        }
        Ok(())
    }
}

/// Writes the page file that the mapping and `pread` read.
fn plain(scene: &Scene<'_>) -> std::io::Result<File> {
    let file =
        File::options().create(true).truncate(true).read(true).write(true).open(scene.file)?;
    for page in 0..scene.pages {
        let mut whole = [0; PAGE];
        whole[16..24].copy_from_slice(&value(page).to_ne_bytes());
        file.write_all_at(&whole, u64::from(page) * PAGE as u64)?;
    }
    Ok(file)
}

/// A mapping of the whole file.
pub(super) struct Mapped {
    at: NonNull<AtomicU64>,
    bytes: usize,
    _file: File,
}

// SAFETY: the mapping is read as atomic words and unmapped after its last user.
unsafe impl Send for Mapped {}
// SAFETY: the same as for `Send`.
unsafe impl Sync for Mapped {}

impl Keeper for Mapped {
    fn open(scene: &Scene<'_>) -> Result<Self, String> {
        let file = plain(scene).map_err(|error| error.to_string())?;
        let bytes = scene.pages as usize * PAGE;
        // SAFETY: a new mapping at any free address.
        let at = unsafe {
            mmap(core::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, &file, 0)
        };
        let at = at.map_err(|error| error.to_string())?;
        let at = NonNull::new(at.cast()).ok_or("a mapping at zero")?;
        Ok(Self { at, bytes, _file: file })
    }

    fn with(&self, _: u32, _: bool, work: Work<'_>) -> Result<Outcome, Fault> {
        work(&mut &*self)
    }
}

impl Uses for &Mapped {
    fn batch(&mut self, operations: &[Operation]) -> Result<(), Fault> {
        for operation in operations {
            let Operation::Read(page) = *operation else { return Err(never(Subject::Mmap)) };
            let at = page as usize * PAGE + 16;
            if at + 8 > self.bytes {
                return Err(Fault::Wrong { subject: Subject::Mmap, page, found: 0 });
            }
            let word = self.at.as_ptr().wrapping_byte_add(at);
            // SAFETY: checked to be within the mapping, aligned, and read as an atomic word.
            check(Subject::Mmap, page, unsafe { &*word }.load(Relaxed))?;
        }
        Ok(())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `open` with this length; no user is left.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// A file read by `pread`.
pub(super) struct Called(File);

impl Keeper for Called {
    fn open(scene: &Scene<'_>) -> Result<Self, String> {
        let open = || {
            let made = plain(scene)?;
            if !scene.direct {
                return Ok(made);
            }
            // Otherwise the first reads would pay for the write-back.
            made.sync_all()?;
            let flags = OFlags::DIRECT.bits() as i32;
            File::options().read(true).custom_flags(flags).open(scene.file)
        };
        open().map(Self).map_err(|error: std::io::Error| error.to_string())
    }

    fn with(&self, _: u32, _: bool, work: Work<'_>) -> Result<Outcome, Fault> {
        work(&mut Caller { file: &self.0, buffer: Buffer::new(PAGE) })
    }
}

struct Caller<'f> {
    file: &'f File,
    /// Aligned for direct I/O.
    buffer: Buffer,
}

impl Uses for Caller<'_> {
    fn batch(&mut self, operations: &[Operation]) -> Result<(), Fault> {
        for operation in operations {
            let Operation::Read(page) = *operation else { return Err(never(Subject::Pread)) };
            let at = u64::from(page) * PAGE as u64;
            self.file.read_exact_at(&mut self.buffer, at)?;
            let mut word = [0; 8];
            word.copy_from_slice(&self.buffer[16..24]);
            check(Subject::Pread, page, u64::from_ne_bytes(word))?;
        }
        Ok(())
    }
}

/// Words in memory in the layout of pages.
pub(super) struct Words(Vec<u64>);

impl Keeper for Words {
    fn open(scene: &Scene<'_>) -> Result<Self, String> {
        let mut words = vec![0; scene.pages as usize * PAGE / 8];
        for (page, words) in (0..).zip(words.chunks_mut(PAGE / 8)) {
            words[2] = value(page);
            for number in 0..KEYS {
                let at = KEYS_AT + 2 * number as usize;
                words[at..at + 2].copy_from_slice(&key(page, number));
            }
        }
        Ok(Self(words))
    }

    fn with(&self, _: u32, _: bool, work: Work<'_>) -> Result<Outcome, Fault> {
        work(&mut &self.0[..])
    }
}

impl Uses for &[u64] {
    fn batch(&mut self, operations: &[Operation]) -> Result<(), Fault> {
        for operation in operations {
            let Operation::Search(page, number) = *operation else {
                return Err(never(Subject::Slice));
            };
            search(self, page, number)?;
        }
        Ok(())
    }
}

#[inline(never)]
fn search(words: &[u64], page: u32, number: u32) -> Result<(), Fault> {
    let at = page as usize * PAGE / 8;
    let words = words.get(at..at + PAGE / 8).unwrap_or(&[]);
    let at = find(key(page, number), |index| words.get(index).copied());
    let found = words.get(2).copied().filter(|_| at == Some(number));
    check(Subject::Slice, page, found.unwrap_or(u64::MAX))
}
