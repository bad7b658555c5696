//! The files of a pool: a table that all processes share, and what this process has open.
//!
//! A file has the same number in every process. A process that has never opened a file may have to
//! write one of its pages, to evict it: so the table has the path, and a process opens the file
//! when it first needs it.
//!
//! Death: an entry becomes one by the last store, of its kind. What a thread that died before had
//! stored there is stored over.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use latchwork_disk::{Buffer, Error as DiskError, File, Open};
use latchwork_latch::Exclusive;
use latchwork_machine::{ConstMachine, Integer, Word};

use crate::layout::{
    FILE_BROKEN, FILE_KIND, FILE_PAGES, FILE_PATH, FILE_PATH_LENGTH, FILE_ROOM, FILE_SYNCED,
    FILE_WRITES, FILES, KIND_AHEAD, KIND_DIRECT, KIND_LEAVING, KIND_SPARSE, KIND_TEMPORARY,
    PATH_MAX, TABLE_LATCH, file_at, number_of, place_of,
};
use crate::life::fault::sound;
use crate::opened::{FileId, Opened};
use crate::point::point;
use crate::{Error, FileSpec, Handle, Pool};

impl<M: ConstMachine> Pool<M> {
    pub(crate) fn file_word(&self, file: u16, word: u64) -> Result<&M::AtomicU64, Error> {
        Ok(self.inner.head.word(file_at(file, word))?)
    }

    /// The file of this number, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error::NoFile`], also for one that was removed or is being; [`Error::Corrupt`] if what the
    /// table says cannot be.
    pub fn file_id(&self, number: u16) -> Result<FileId, Error> {
        let (file, leaves) = self.file_here(number)?;
        if leaves { Err(Error::NoFile(number)) } else { Ok(file) }
    }

    /// The same, be it that the file is being removed: it says so.
    pub(crate) fn file_here(&self, number: u16) -> Result<(FileId, bool), Error> {
        // Acquire: synchronizes with the Release in `Handle::file`.
        let kind = self.file_word(number, FILE_KIND)?.load(Acquire);
        let bytes = kind as u32;
        match bytes {
            _ if number_of(place_of(number), kind) != number => Err(Error::NoFile(number)),
            0 => Err(Error::NoFile(number)),
            _ if bytes.is_power_of_two() && (512..=self.frame_bytes()).contains(&bytes) => {
                let sparse = u8::from(kind & KIND_SPARSE != 0);
                Ok((FileId { number, words: bytes / 8, sparse }, kind & KIND_LEAVING != 0))
            }
            _ => Err(Error::Corrupt("size of a file's pages")),
        }
    }

    /// The files of the pool, with their paths.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`], [`Error::Region`].
    pub fn files(&self) -> Result<Vec<(FileId, PathBuf)>, Error> {
        let mut found = Vec::new();
        for number in self.numbers() {
            match self.file_id(number?) {
                Ok(id) => found.push((id, self.path_of(id.number)?)),
                Err(Error::NoFile(_)) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(found)
    }

    /// The numbers that the files have which have a place now, and of places without a file the
    /// number that the next one will have.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = Result<u16, Error>> + '_ {
        (0..FILES as u16).map(|place| {
            // Relaxed: the caller looks at the entry again.
            Ok(number_of(place, self.file_word(place, FILE_KIND)?.load(Relaxed)))
        })
    }

    /// How many pages the file has, those counted in that were made and not yet written.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn pages(&self, file: FileId) -> Result<u64, Error> {
        // Relaxed: a page's own words are ordered by its latch.
        Ok(self.file_word(file.number, FILE_PAGES)?.load(Relaxed).min(file.pages_max()))
    }

    /// A place without a file: its next file's number, and its word 0.
    fn free_place(&self) -> Result<Option<(u16, u64)>, Error> {
        for place in 0..FILES as u16 {
            let kind = self.file_word(place, FILE_KIND)?.load(Relaxed);
            if kind as u32 == 0 {
                return Ok(Some((number_of(place, kind), kind)));
            }
        }
        Ok(None)
    }

    pub(crate) fn path_of(&self, file: u16) -> Result<PathBuf, Error> {
        let length = self.file_word(file, FILE_PATH_LENGTH)?.load(Relaxed) as usize;
        if length == 0 || length > PATH_MAX {
            return Err(Error::Corrupt("path of a file"));
        }
        let mut bytes = Vec::with_capacity(length.next_multiple_of(8));
        for word in 0..length.div_ceil(8) as u64 {
            bytes.extend(self.file_word(file, FILE_PATH + word)?.load(Relaxed).to_le_bytes());
        }
        bytes.truncate(length);
        String::from_utf8(bytes).map(PathBuf::from).map_err(|_| Error::Corrupt("path of a file"))
    }

    /// The file, opened by this process now if it was not before.
    pub(crate) fn opened(&self, file: u16) -> Result<Arc<Opened>, Error> {
        let place = &self.inner.opened[usize::from(place_of(file))];
        let fits = |opened: &&Arc<Opened>| opened.number == file;
        let here = place.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = here.as_ref().filter(fits) {
            return Ok(opened.clone());
        }
        drop(here);
        let kind = self.file_word(file, FILE_KIND)?.load(Relaxed);
        let path = self.path_of(file)?;
        let opened = self.inner.disk.open(&path, way(kind & KIND_DIRECT != 0));
        // The path was this file's, if the file is still there.
        self.file_id(file)?;
        Ok(self.keep_open(Opened::new(file, opened?)))
    }

    /// Keeps a file that this process has opened, or has the one that it has open already.
    fn keep_open(&self, opened: Opened) -> Arc<Opened> {
        let place = &self.inner.opened[usize::from(place_of(opened.number))];
        let mut here = place.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(faster) = here.as_ref().filter(|here| here.number == opened.number) {
            return faster.clone();
        }
        here.insert(Arc::new(opened)).clone()
    }

    /// Closes a file that was removed, if this process has it open.
    pub(crate) fn close(&self, file: u16) {
        let place = &self.inner.opened[usize::from(place_of(file))];
        let mut here = place.write().unwrap_or_else(PoisonError::into_inner);
        *here = here.take().filter(|opened| opened.number != file);
    }

    /// Whether the file's pages are nobody's after a crash.
    pub(crate) fn is_temporary(&self, file: u16) -> Result<bool, Error> {
        Ok(self.file_word(file, FILE_KIND)?.load(Relaxed) & KIND_TEMPORARY != 0)
    }

    /// Whether the disk has room for the file's pages before they are made.
    pub(crate) fn is_ahead(&self, file: u16) -> Result<bool, Error> {
        Ok(self.file_word(file, FILE_KIND)?.load(Relaxed) & KIND_AHEAD != 0)
    }

    /// Writes bytes to a file, and counts that for `sync`.
    pub(crate) fn write_bytes(&self, file: u16, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.opened(file)?.file.write(at, bytes)?;
        // Release: synchronizes with the Acquire in `sync_file`. After the write, and before the
        // page counts as clean: so a sync that finds the page clean finds the count, too.
        self.file_word(file, FILE_WRITES)?.fetch_add(1, Release);
        Ok(())
    }

    /// Makes what was written to a file durable. An error is final, for all processes.
    pub(crate) fn sync_file(&self, file: u16) -> Result<(), Error> {
        let broken = self.file_word(file, FILE_BROKEN)?;
        // Relaxed, here and below: it never becomes whole again.
        let mark = u64::from(file) + 1;
        let whole = || match broken.load(Relaxed) {
            seen if seen == mark => Err(Error::SyncFailed { file }),
            _ => Ok(()),
        };
        whole()?;
        if self.is_temporary(file)? {
            return Ok(());
        }
        let (writes, synced) =
            (self.file_word(file, FILE_WRITES)?, self.file_word(file, FILE_SYNCED)?);
        // Acquire: synchronizes with the Release in `write_bytes`.
        let before = writes.load(Acquire);
        // Behind it: else it could count writes to the file that has the place of this one.
        self.file_id(file)?;
        if before == synced.load(Relaxed) {
            return Ok(());
        }
        let opened = self.opened(file)?;
        let _alone = opened.syncs.lock().unwrap_or_else(PoisonError::into_inner);
        whole()?;
        if synced.load(Relaxed) >= before {
            // Another thread's sync began after those writes.
            return Ok(());
        }
        if let Err(error) = opened.file.sync() {
            point("sync.failed");
            broken.store(mark, Relaxed);
            return Err(error.into());
        }
        point("sync.done");
        synced.store(before, Relaxed);
        whole()
    }
}

impl<M: ConstMachine> Handle<'_, M> {
    /// The file of this path, opened and made known to the pool if it was not before. Of a file
    /// that the pool knows, `spec` says the path and the size of pages; the rest holds as it was
    /// first said.
    ///
    /// # Errors
    ///
    /// [`Error::Path`], [`Error::PageSize`], [`Error::Files`], [`Error::Options`]; [`Error::Disk`]
    /// if it cannot be opened; [`Error::View`].
    pub fn file(&self, spec: &FileSpec) -> Result<FileId, Error> {
        let pool = self.pool();
        let path = spec.path.to_str().filter(|path| path.len() <= PATH_MAX).ok_or(Error::Path)?;
        if !spec.path.is_absolute() {
            return Err(Error::Path);
        }
        let size = spec.page_bytes;
        let fits = size.is_power_of_two() && (512..=pool.frame_bytes()).contains(&size);
        if !fits || spec.direct && size < 4096 {
            return Err(Error::Options("bytes of a page"));
        }
        if spec.sparse && spec.ahead {
            return Err(Error::Options("room ahead in a sparse file"));
        }
        self.writes()?;
        self.finish_removals(&spec.path)?;
        let _alone = self.table()?;
        point("table.latched");
        let known = pool.files()?;
        if let Some((id, _)) = known.iter().find(|(_, known)| *known == spec.path) {
            if id.page_bytes() != size {
                return Err(Error::PageSize { found: id.page_bytes(), asked: size });
            }
            pool.opened(id.number)?;
            return Ok(*id);
        }
        let (number, kind) = pool.free_place()?.ok_or(Error::Files(FILES as u32))?;
        if spec.sparse {
            pool.make_table()?;
        }
        let pages = self.lengthen(spec)? / u64::from(size);
        // Before the entry: a file that cannot be opened so may be asked for in another way.
        let opened = pool.inner.disk.open(&spec.path, way(spec.direct))?;
        let put = |word, value| -> Result<(), Error> {
            pool.file_word(number, word)?.store(value, Relaxed);
            Ok(())
        };
        put(FILE_PAGES, pages)?;
        put(FILE_ROOM, pages)?;
        put(FILE_PATH_LENGTH, path.len() as u64)?;
        for (word, bytes) in (0..).zip(path.as_bytes().chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            put(FILE_PATH + word, u64::from_le_bytes(whole))?;
        }
        let direct = if spec.direct { KIND_DIRECT } else { 0 };
        let temporary = if spec.temporary { KIND_TEMPORARY } else { 0 };
        let ahead = if spec.ahead { KIND_AHEAD } else { 0 };
        let sparse = if spec.sparse { KIND_SPARSE } else { 0 };
        let marks = direct | temporary | ahead | sparse;
        // Release: synchronizes with the Acquire in `file_id`; and last, for who dies before.
        pool.file_word(number, FILE_KIND)?.store(kind | u64::from(size) | marks, Release);
        pool.keep_open(Opened::new(number, opened));
        Ok(FileId { number, words: size / 8, sparse: u8::from(spec.sparse) })
    }

    /// The latch of the table of files and of new chunks.
    ///
    /// A thread that dies with it leaves half an entry that is none yet, an unused chunk, or
    /// nothing.
    pub(crate) fn table(&self) -> Result<Exclusive<'_, Self, M>, Error> {
        self.head_latch(TABLE_LATCH)
    }

    /// Makes the file if need be; says how many bytes it has, without pages at its end that were
    /// never written: room was made for them.
    fn lengthen(&self, spec: &FileSpec) -> Result<u64, Error> {
        let disk = &self.pool().inner.disk;
        let how = if spec.create { Open::CREATE } else { Open::WRITE };
        let file = disk.open(&spec.path, how)?;
        if spec.create && !spec.temporary {
            let folder = spec.path.parent().unwrap_or(Path::new("/"));
            match disk.sync_folder(folder) {
                // A file that was there may lie in a folder that is not ours.
                Ok(()) | Err(DiskError::Permission(_)) => {}
                Err(other) => return Err(other.into()),
            }
        }
        let (mut length, size) = (file.length()?, u64::from(spec.page_bytes));
        check_size(&*file, length, spec.page_bytes)?;
        let mut last = Buffer::new(spec.page_bytes as usize);
        while spec.ahead && length >= size && length.is_multiple_of(size) {
            file.read(length - size, &mut last)?;
            // A page that was written has a checksum, and it is not zero everywhere.
            if last.iter().any(|byte| *byte != 0) {
                break;
            }
            length -= size;
        }
        Ok(length)
    }
}

/// How a file that is known to the pool is opened.
fn way(direct: bool) -> Open {
    if direct { Open::WRITE.direct() } else { Open::WRITE }
}

/// Fails if the first page was written as one of another size. A page that cannot be read, or that
/// is no page of any size, is its reader's trouble.
fn check_size(file: &dyn File, length: u64, asked: u32) -> Result<(), Error> {
    let is_page = |size: u32| {
        let mut page = Buffer::new(size as usize);
        u64::from(size) <= length && file.read(0, &mut page).is_ok() && sound(0, &page).is_ok()
    };
    if length == 0 || is_page(asked) {
        return Ok(());
    }
    let sizes = (9..=16).map(|power| 1 << power).filter(|size| *size != asked);
    match sizes.into_iter().find(|size| is_page(*size)) {
        Some(found) => Err(Error::PageSize { found, asked }),
        None => Ok(()),
    }
}
