//! The files of a pool: a table that all processes share.
//!
//! A file has the same number in every process. A process that has never opened a file may have to
//! write one of its pages to evict it, so the table contains the path.
//!
//! Death: an entry becomes valid by the last store, to its kind. Stores that a killed thread made
//! there before are overwritten.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::path::{Path, PathBuf};

use latchwork_disk::{Buffer, Error as DiskError, File, Open};
use latchwork_latch::Exclusive;
use latchwork_machine::{ConstMachine, Word};

use crate::io::way_of;
use crate::layout::{
    FILE_BROKEN, FILE_COUNTS, FILE_FREE, FILE_KIND, FILE_PAGES, FILE_PATH, FILE_PATH_LENGTH,
    FILE_ROOM, FILE_SYNCING, FILES, KIND_AHEAD, KIND_DIRECT, KIND_LEAVING, KIND_SPARSE,
    KIND_TEMPORARY, PATH_MAX, TABLE_LATCH, VALUE, file_at, is_owned, number_of, owned, place_of,
};
use crate::life::fault::sound;
use crate::opened::{FileId, Opened};
use crate::point::point;
use crate::{Error, FileSpec, Handle, Pool};

impl<M: ConstMachine> Pool<M> {
    pub(crate) fn file_word(&self, file: u16, word: u64) -> Result<&M::AtomicU64, Error> {
        Ok(self.inner.head.word(file_at(file, word))?)
    }

    /// Returns the file of this number.
    ///
    /// # Errors
    ///
    /// [`Error::NoFile`], also for a file that was removed or is being removed; [`Error::Corrupt`]
    /// if the table is damaged.
    pub fn file_id(&self, number: u16) -> Result<FileId, Error> {
        let (file, leaves) = self.file_here(number)?;
        if leaves { Err(Error::NoFile(number)) } else { Ok(file) }
    }

    /// Word 0 of the entry of a file that exists and is not being removed.
    pub(crate) fn kind(&self, number: u16) -> Result<u64, Error> {
        // Acquire: synchronizes with the Release in `Handle::file`.
        let kind = self.file_word(number, FILE_KIND)?.load(Acquire);
        let is_there = number_of(place_of(number), kind) == number && kind as u32 != 0;
        if is_there && kind & KIND_LEAVING == 0 { Ok(kind) } else { Err(Error::NoFile(number)) }
    }

    /// A word of a file's entry that contains its owner, and its value.
    pub(crate) fn owned(&self, file: FileId, word: u64) -> Result<(&M::AtomicU64, u64), Error> {
        let word = self.file_word(file.number, word)?;
        // Acquire: for the list of free pages; see `pop_free`.
        Ok((word, self.value(file, word.load(Acquire))?))
    }

    /// The value of such a word, if it belongs to this file.
    pub(crate) fn value(&self, file: FileId, word: u64) -> Result<u64, Error> {
        if is_owned(word, file.number) {
            return Ok(word & VALUE);
        }
        Err(Error::NoFile(file.number))
    }

    /// Raises such a word to at least this value.
    pub(crate) fn raise(&self, file: FileId, word: u64, to: u64) -> Result<(), Error> {
        let (word, mut seen) = self.owned(file, word)?;
        let owned = owned(file.number);
        while seen < to {
            // Relaxed: a count.
            match word.compare_exchange(owned | seen, owned | to, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => seen = self.value(file, now)?,
            }
        }
        Ok(())
    }

    /// [`file_id`](Self::file_id) that also returns a file that is being removed, and whether it
    /// is.
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

    /// Returns the files of the pool with their paths.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`], [`Error::Region`].
    pub fn files(&self) -> Result<Vec<(FileId, PathBuf)>, Error> {
        let mut found = Vec::new();
        for number in self.numbers() {
            match self.file_id(number?) {
                Ok(id) => {
                    let path = self.path_of(id.number);
                    // Otherwise it was removed, and the path may be partly that of another file.
                    if self.kind(id.number).is_ok() {
                        found.push((id, path?));
                    }
                }
                Err(Error::NoFile(_)) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(found)
    }

    /// The numbers of the files that have a place now, and for free places the number of their next
    /// file.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = Result<u16, Error>> + '_ {
        (0..FILES as u16).map(|place| {
            // Relaxed: the caller checks the entry again.
            Ok(number_of(place, self.file_word(place, FILE_KIND)?.load(Relaxed)))
        })
    }

    /// Returns how many pages the file has, including pages that were created and not yet written.
    ///
    /// # Errors
    ///
    /// [`Error::NoFile`]; [`Error::Region`] in the child of a fork.
    pub fn pages(&self, file: FileId) -> Result<u64, Error> {
        self.kind(file.number)?;
        let (_, pages) = self.owned(file, FILE_PAGES)?;
        Ok(pages.min(file.pages_max()))
    }

    /// Returns whether a sync of the file failed. Then no thread may report any of it as durable,
    /// as long as this pool lives.
    ///
    /// # Errors
    ///
    /// The errors of [`pages`](Self::pages).
    pub fn has_failed(&self, file: FileId) -> Result<bool, Error> {
        self.kind(file.number)?;
        // Relaxed: a broken file stays broken.
        let broken = self.file_word(file.number, FILE_BROKEN)?.load(Relaxed);
        Ok(broken == u64::from(file.number) + 1)
    }

    /// Returns whether a sync of the file failed or is in progress. If no living process had the
    /// file open, the thread died in the sync and its result is unknown; the upper layer must then
    /// act as if it had failed.
    ///
    /// # Errors
    ///
    /// The errors of [`pages`](Self::pages).
    pub fn may_have_failed(&self, file: FileId) -> Result<bool, Error> {
        Ok(self.has_failed(file)? || self.is_syncing(file.number)?)
    }

    /// A free place: its next file's number, and its word 0.
    fn free_place(&self) -> Result<Option<(u16, u64)>, Error> {
        for place in 0..FILES as u16 {
            let kind = self.file_word(place, FILE_KIND)?.load(Relaxed);
            if kind as u32 == 0 {
                return Ok(Some((number_of(place, kind), kind)));
            }
        }
        Ok(None)
    }

    /// The file of this path that is being removed, if any.
    pub(crate) fn leaving(&self, path: &Path) -> Result<Option<FileId>, Error> {
        for number in self.numbers() {
            if let Ok((file, true)) = self.file_here(number?)
                && self.path_of(file.number)? == path
            {
                return Ok(Some(file));
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

    /// Whether the file's pages need not survive a crash.
    pub(crate) fn is_temporary(&self, file: u16) -> Result<bool, Error> {
        Ok(self.file_word(file, FILE_KIND)?.load(Relaxed) & KIND_TEMPORARY != 0)
    }

    /// Whether the disk has room for the file's pages before they are created.
    pub(crate) fn is_ahead(&self, file: u16) -> Result<bool, Error> {
        Ok(self.file_word(file, FILE_KIND)?.load(Relaxed) & KIND_AHEAD != 0)
    }
}

impl<M: ConstMachine> Handle<'_, M> {
    /// Opens the file of this path and adds it to the pool if it is new. For a file that the pool
    /// already has, only the path and the page size of `spec` are used.
    ///
    /// If a file of this path is being [removed](Self::remove_file), this call first completes the
    /// removal, so the caller must hold no page.
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
        let _alone = loop {
            let alone = self.table()?;
            // The existing file will be deleted.
            let Some(leaves) = pool.leaving(&spec.path)? else { break alone };
            drop(alone);
            self.finish_removal(leaves)?;
        };
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
        // Before the entry: a file that cannot be opened in this way may be requested in another.
        let opened = pool.inner.disk.open(&spec.path, way_of(spec.direct))?;
        let put = |word, value| -> Result<(), Error> {
            pool.file_word(number, word)?.store(value, Relaxed);
            Ok(())
        };
        put(FILE_PAGES, owned(number) | pages)?;
        put(FILE_ROOM, owned(number) | pages)?;
        put(FILE_FREE, owned(number))?;
        put(FILE_BROKEN, 0)?;
        put(FILE_SYNCING, owned(number))?;
        // The counts of writes continue: a late thread that syncs the place's last file must not
        // report this one as durable.
        (FILE_COUNTS..FILE_COUNTS + 8).try_for_each(|word| put(word, 0))?;
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
        // Release: synchronizes with the Acquire in `file_id`; last, in case of a death before.
        pool.file_word(number, FILE_KIND)?.store(kind | u64::from(size) | marks, Release);
        pool.keep_open(number, Opened::new(kind, opened, false));
        Ok(FileId { number, words: size / 8, sparse: u8::from(spec.sparse) })
    }

    /// Takes the latch of the table of files and of new chunks.
    ///
    /// A thread that dies with it leaves half of an entry that does not count, an unused chunk, or
    /// nothing.
    pub(crate) fn table(&self) -> Result<Exclusive<'_, Self, M>, Error> {
        self.head_latch(TABLE_LATCH)
    }

    /// Creates the file if it does not exist. Returns the bytes of its whole pages, without the
    /// zero pages at its end, which are preallocated room.
    fn lengthen(&self, spec: &FileSpec) -> Result<u64, Error> {
        let disk = &self.pool().inner.disk;
        let how = if spec.create { Open::CREATE } else { Open::WRITE };
        let file = disk.open(&spec.path, how)?;
        if spec.create && !spec.temporary {
            let folder = spec.path.parent().unwrap_or(Path::new("/"));
            match disk.sync_folder(folder) {
                // An existing file may lie in a folder of another user.
                Ok(()) | Err(DiskError::Permission(_)) => {}
                Err(other) => return Err(other.into()),
            }
        }
        let (mut length, size) = (file.length()?, u64::from(spec.page_bytes));
        check_size(&*file, length, spec.page_bytes)?;
        // A full disk or a crash can stop the growth at any byte. Bytes behind the last whole page
        // are room, or a write that was never durable, which the upper layer repeats.
        length -= length % size;
        let mut last = Buffer::new(spec.page_bytes as usize);
        while spec.ahead && length >= size {
            // A written page has a checksum and is not all zero. An unreadable page may have been
            // written; its reader gets the error.
            if file.read(length - size, &mut last).is_err() || last.iter().any(|byte| *byte != 0) {
                break;
            }
            length = without_hole(&*file, length - size, size)?;
        }
        Ok(length)
    }
}

/// The length without the preceding pages in a hole of the file, found in O(log n) calls.
fn without_hole(file: &dyn File, mut length: u64, page: u64) -> Result<u64, Error> {
    let mut step = page;
    while step >= page {
        let from = length.checked_sub(step);
        let data = from.map(|from| file.next_data(from)).transpose()?;
        if data.is_some_and(|data| data.is_none_or(|at| at >= length)) {
            length -= step;
            step *= 2;
        } else {
            step /= 2;
        }
    }
    Ok(length)
}

/// Fails if the first page was written with another page size. A page that is unreadable or invalid
/// in any size is left to its reader.
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
