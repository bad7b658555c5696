//! Berkeley DB's pool, a mapping, and a system call.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_rivals::BdbPool;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::subject::{Done, Fault, Keeper, Subject, Uses, value};
use super::work::Operation;

const PAGE: usize = 8192;

fn check(subject: Subject, page: u32, found: u64) -> Result<(), Fault> {
    if found >> 32 == u64::from(page) { Ok(()) } else { Err(Fault::Wrong { subject, page, found }) }
}

impl Keeper for BdbPool {
    fn open(path: &Path, frames: u32, pages: u32) -> Result<Self, String> {
        let cache = u64::from(frames) * PAGE as u64;
        let pool = Self::open(path, cache, PAGE as u32).map_err(|error| error.to_string())?;
        for page in 0..pages {
            pool.make(page, value(page)).map_err(|error| error.to_string())?;
        }
        Ok(pool)
    }

    fn with(
        &self,
        work: &mut dyn FnMut(&mut dyn Uses) -> Result<Done, Fault>,
    ) -> Result<Done, Fault> {
        work(&mut &*self)
    }
}

impl Uses for &BdbPool {
    fn batch(&mut self, operations: &[Operation]) -> Result<(), Fault> {
        let refused = |error: latchwork_rivals::BdbError| Fault::Refused {
            subject: Subject::BerkeleyDb,
            why: error.to_string(),
        };
        for operation in operations {
            match *operation {
                Operation::Read(page) => {
                    check(Subject::BerkeleyDb, page, self.read(page).map_err(refused)?)?;
                }
                // Pages are not latched for the caller: two that add to one page may lose one of
                // the two, as nobody checks here.
                Operation::Add(page) => self.add(page).map_err(refused)?,
            }
        }
        Ok(())
    }
}

/// Writes the file of pages that a mapping and `pread` read.
fn plain(path: &Path, pages: u32) -> Result<File, String> {
    let file = File::options().create(true).truncate(true).read(true).write(true).open(path);
    let file = file.map_err(|error| error.to_string())?;
    file.set_len(u64::from(pages) * PAGE as u64).map_err(|error| error.to_string())?;
    for page in 0..pages {
        let at = u64::from(page) * PAGE as u64 + 16;
        file.write_all_at(&value(page).to_ne_bytes(), at).map_err(|error| error.to_string())?;
    }
    Ok(file)
}

/// A mapping of the whole file.
pub(super) struct Mapped {
    at: NonNull<AtomicU64>,
    bytes: usize,
    _file: File,
}

// SAFETY: a mapping that is read as atomic words, and unmapped when nobody has it any more.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Keeper for Mapped {
    fn open(path: &Path, _: u32, pages: u32) -> Result<Self, String> {
        let file = plain(path, pages)?;
        let bytes = pages as usize * PAGE;
        // SAFETY: a new mapping, wherever there is room.
        let at = unsafe {
            mmap(core::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, &file, 0)
        };
        let at = at.map_err(|error| error.to_string())?;
        let at = NonNull::new(at.cast()).ok_or("a mapping at zero")?;
        Ok(Self { at, bytes, _file: file })
    }

    fn with(
        &self,
        work: &mut dyn FnMut(&mut dyn Uses) -> Result<Done, Fault>,
    ) -> Result<Done, Fault> {
        work(&mut &*self)
    }
}

impl Uses for &Mapped {
    fn batch(&mut self, operations: &[Operation]) -> Result<(), Fault> {
        for operation in operations {
            let (Operation::Read(page) | Operation::Add(page)) = *operation;
            let at = page as usize * PAGE + 16;
            if at + 8 > self.bytes {
                return Err(Fault::Wrong { subject: Subject::Mmap, page, found: 0 });
            }
            let word = self.at.as_ptr().wrapping_byte_add(at);
            // SAFETY: within the mapping by the check above, aligned, and read as an atomic word.
            check(Subject::Mmap, page, unsafe { &*word }.load(Relaxed))?;
        }
        Ok(())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `open` with this length, and used by nobody any more.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// A file that is read by a call.
pub(super) struct Called(File);

impl Keeper for Called {
    fn open(path: &Path, _: u32, pages: u32) -> Result<Self, String> {
        plain(path, pages).map(Self)
    }

    fn with(
        &self,
        work: &mut dyn FnMut(&mut dyn Uses) -> Result<Done, Fault>,
    ) -> Result<Done, Fault> {
        work(&mut Caller { file: &self.0, buffer: vec![0; PAGE] })
    }
}

struct Caller<'f> {
    file: &'f File,
    buffer: Vec<u8>,
}

impl Uses for Caller<'_> {
    fn batch(&mut self, operations: &[Operation]) -> Result<(), Fault> {
        for operation in operations {
            let (Operation::Read(page) | Operation::Add(page)) = *operation;
            let at = u64::from(page) * PAGE as u64;
            self.file.read_exact_at(&mut self.buffer, at).map_err(Fault::File)?;
            let mut word = [0; 8];
            word.copy_from_slice(&self.buffer[16..24]);
            check(Subject::Pread, page, u64::from_ne_bytes(word))?;
        }
        Ok(())
    }
}
