//! Reading pages, and latching them to change them.
//!
//! A read of a cached page loads: the handle's hint, or the file's chunk, a chunk and an entry; the
//! frame's latch and tag; the page; the latch again. It stores nothing that another thread loads.
//! One read in 32 reads the frame's reference mark and sets it if it is not set.

use core::sync::atomic::Ordering::Relaxed;

use latchwork_latch::{Exclusive, HolderDied};
use latchwork_machine::{ConstMachine, Word};

use crate::hints::Spot;
use crate::layout::{DIRTY, Desc, PAGE_BITS, TAG_POISONED, kind, tag};
use crate::life::free::is_free;
use crate::page::PageMut;
use crate::point::point;
use crate::view::{PageView, Snapshot};
use crate::{Error, FileId, Handle};

/// How often a read tries before it shares the page's latch.
pub const ATTEMPTS: u32 = 8;

/// How often a read-only handle tries to read a page that a writer holds.
const LOOKS: u32 = 10_000;

/// How often a thread finds an inconsistency that another thread is about to resolve before it
/// counts as damage.
const STRANGE: u32 = 1 << 18;

/// One in so many reads examines the reference mark.
const SAMPLE: u32 = 32;

/// After so many reads a handle stores its counts in its own thread slot.
const STORE: u32 = 1 << 14;

impl<'t, M: ConstMachine> Handle<'t, M> {
    /// Begins to read a page: returns a version that must be validated after reading.
    ///
    /// Stores nothing if the page is cached and no thread changes it. Otherwise it reads the page
    /// from disk, or waits for the thread that changes it.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`], [`Error::Freed`]; errors of reading from disk ([`Error::Disk`],
    /// [`Error::Checksum`], [`Error::Misdirected`]); [`Error::Poisoned`], [`Error::Rebuild`];
    /// [`Error::Full`]; [`Error::View`] if the pool is a view and the page is not cached.
    #[inline]
    pub fn optimistic(&self, file: FileId, page: u64) -> Result<Snapshot<'_, M>, Error> {
        match self.try_optimistic(file, page) {
            Some(snapshot) => Ok(snapshot),
            None => self.optimistic_slow(file, page),
        }
    }

    /// Begins to read a page if it is cached and no thread changes it; otherwise returns none.
    /// Never waits.
    #[inline(always)]
    pub fn try_optimistic(&self, file: FileId, page: u64) -> Option<Snapshot<'_, M>> {
        let snapshot = match self.peek(file, page) {
            Some(snapshot) => snapshot,
            None => self.peek_again(file, page)?,
        };
        self.note(file, snapshot.frame);
        Some(snapshot)
    }

    /// Returns the page, if it is where this thread last found it and no thread changes it.
    #[inline(always)]
    fn peek(&self, file: FileId, page: u64) -> Option<Snapshot<'_, M>> {
        if page >> PAGE_BITS != 0 || !self.pool().inner.frames.is_mapped() {
            return None;
        }
        // SAFETY: hints come from this handle's pool, whose areas unmap nothing as long as it
        // lives, which is as long as the handle; the exception is the child of a fork, and
        // `is_mapped` excludes that.
        let spot = match unsafe { self.hints.get(file.number, page) } {
            Some(spot) => spot,
            None => {
                core::hint::cold_path();
                self.spot_of(file, page)?
            }
        };
        Self::peek_in(spot, file, page)
    }

    /// Returns the page, if it is cached and no thread changes it.
    #[inline(never)]
    fn peek_again(&self, file: FileId, page: u64) -> Option<Snapshot<'_, M>> {
        Self::peek_in(self.spot_of(file, page)?, file, page)
    }

    /// Finds the page by the translation and records it as the thread's hint.
    #[inline(always)]
    fn spot_of(&self, file: FileId, page: u64) -> Option<Spot<'_, M>> {
        let (pool, config) = (self.pool(), self.pool().inner.config);
        let entry = pool.translated(file, |table| table.glimpse(page))?.wrapping_sub(1);
        if entry >= u64::from(config.frames_max) {
            return None;
        }
        let frame = entry as u32;
        let words = pool.words(frame, config.frame_words() as u32).ok()?;
        let spot = Spot { desc: pool.desc(frame).ok()?, words, frame };
        self.hints.put(file.number, page, &spot);
        Some(spot)
    }

    /// Returns the page, if it is in this frame and no thread changes it.
    #[inline(always)]
    fn peek_in<'h>(spot: Spot<'h, M>, file: FileId, page: u64) -> Option<Snapshot<'h, M>> {
        let Spot { desc, words, frame } = spot;
        let version = desc.latch.try_read()?;
        // Relaxed: the caller validates the latch's version, and with it the tag.
        if desc.tag.load(Relaxed) != tag(file.number, page) {
            return None;
        }
        let words = words.get(..file.words as usize)?;
        Some(Snapshot { words, desc, version, file, page, frame })
    }

    /// Counts a read, and marks its frame periodically.
    #[inline(always)]
    fn note(&self, file: FileId, frame: u32) {
        let ticks = self.ticks.get().wrapping_add(1);
        self.ticks.set(ticks);
        if ticks.is_multiple_of(SAMPLE) {
            self.sample(file, frame);
        }
    }

    #[cold]
    #[inline(never)]
    fn sample(&self, file: FileId, frame: u32) {
        self.meter.of_file(file, |done| done.reads += u64::from(SAMPLE));
        self.counts.reads.set(self.counts.reads.get() + u64::from(SAMPLE));
        if self.ticks.get().is_multiple_of(STORE) {
            self.store_counts();
        }
        if self.scanning.get() || self.thread.is_none() {
            return;
        }
        if let Ok(mark) = self.pool().mark(frame)
            // Relaxed, both: a hint.
            && mark.load(Relaxed) == 0
        {
            mark.store(1, Relaxed);
            self.count(|counts| &counts.marked);
        }
    }

    #[cold]
    #[inline(never)]
    fn optimistic_slow(&self, file: FileId, page: u64) -> Result<Snapshot<'_, M>, Error> {
        if self.thread.is_none() {
            return self.look(file, page);
        }
        self.count(|counts| &counts.slow);
        self.settle(file, page, |desc, _| {
            let read = match desc.latch.try_read() {
                Some(version) => Ok(version),
                None => self.waited(file, || desc.latch.read(self)),
            };
            Ok(read.map(|version| (version, desc.tag.load(Relaxed))))
        })
        .map(|(frame, desc, version)| {
            let words = self.pool().words(frame, file.words)?;
            Ok(Snapshot { words, desc, version, file, page, frame })
        })?
    }

    /// Reads the page for a read-only handle, which retries while a writer holds it.
    fn look(&self, file: FileId, page: u64) -> Result<Snapshot<'_, M>, Error> {
        for _ in 0..LOOKS {
            if let Some(snapshot) = self.peek_again(file, page) {
                return Ok(snapshot);
            }
            match self.pool().entry(file, page)? {
                0 => break,
                free if is_free(free) => return Err(Error::Freed { file: file.number, page }),
                _ => M::yield_now(),
            }
        }
        Err(Error::View)
    }

    /// Brings a page into the pool and takes its latch by `take`, which also returns the tag found
    /// then, until it has the page.
    fn settle<'h, G>(
        &'h self,
        file: FileId,
        page: u64,
        take: impl Fn(&'h Desc<M>, u32) -> Result<Result<(G, u64), HolderDied>, Error>,
    ) -> Result<(u32, &'h Desc<M>, G), Error> {
        let wanted = tag(file.number, page);
        let mut strange = 0;
        loop {
            self.pool().kind(file.number)?;
            let entry = self.pool().entry(file, page)?;
            if entry == 0 {
                self.writes()?;
                self.fault(file, page)?;
                continue;
            }
            if is_free(entry) {
                return Err(Error::Freed { file: file.number, page });
            }
            if entry > u64::from(self.pool().inner.config.frames_max) {
                return Err(Error::Corrupt("entry of the translation"));
            }
            let frame = entry as u32 - 1;
            let desc = self.pool().desc(frame)?;
            let (guard, found) = match take(desc, frame)? {
                Ok(taken) => taken,
                Err(died) => {
                    self.meet_frame(frame, died)?;
                    continue;
                }
            };
            if found == wanted {
                return Ok((frame, desc, guard));
            }
            drop(guard);
            if found == wanted | TAG_POISONED {
                self.revive(frame, file, page)?;
                continue;
            }
            // It was evicted since, or the table leads to another page's frame.
            self.wonder(&mut strange, "entry of the translation")?;
        }
    }

    /// Yields while a state that should soon resolve persists. Returns an error after many
    /// attempts, because shared memory may be damaged.
    pub(crate) fn wonder(&self, times: &mut u32, what: &'static str) -> Result<(), Error> {
        *times += 1;
        if *times > STRANGE {
            return Err(Error::Corrupt(what));
        }
        M::yield_now();
        Ok(())
    }

    /// Reads a page: runs `read` on it until the result belongs to one state of the page.
    ///
    /// `read` may see torn words. It must terminate in any case, and may return none to be run
    /// again at once. After [`ATTEMPTS`] failures it runs with the page's latch shared, so that no
    /// writer can disturb it; if it returns none then, the call fails with [`Error::Malformed`].
    ///
    /// # Errors
    ///
    /// The errors of [`optimistic`](Self::optimistic); [`Error::Malformed`].
    #[inline]
    pub fn read<R>(
        &self,
        file: FileId,
        page: u64,
        mut read: impl FnMut(&PageView<'_, M>) -> Option<R>,
    ) -> Result<R, Error> {
        // The common case, without the code for all others.
        if let Some(snapshot) = self.peek(file, page)
            && let Some(result) = read(&snapshot.view())
            && snapshot.validate()
        {
            self.note(file, snapshot.frame);
            return Ok(result);
        }
        core::hint::cold_path();
        self.read_again(file, page, &mut read)
    }

    #[inline(never)]
    fn read_again<R>(
        &self,
        file: FileId,
        page: u64,
        read: &mut impl FnMut(&PageView<'_, M>) -> Option<R>,
    ) -> Result<R, Error> {
        self.read_known(file, page, read).map(|(result, _)| result)
    }

    /// [`read`](Self::read) that also returns a token to check later whether the page is unchanged.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    pub fn read_known<R>(
        &self,
        file: FileId,
        page: u64,
        mut read: impl FnMut(&PageView<'_, M>) -> Option<R>,
    ) -> Result<(R, Snapshot<'_, M>), Error> {
        for _ in 0..ATTEMPTS {
            let snapshot = self.optimistic(file, page)?;
            let result = read(&snapshot.view());
            if snapshot.validate() {
                return match result {
                    Some(result) => Ok((result, snapshot)),
                    None => Err(Error::Malformed { file: file.number, page }),
                };
            }
            self.count(|counts| &counts.restarts);
        }
        self.read_shared(file, page, &mut read)
    }

    #[cold]
    #[inline(never)]
    fn read_shared<R>(
        &self,
        file: FileId,
        page: u64,
        read: &mut dyn FnMut(&PageView<'_, M>) -> Option<R>,
    ) -> Result<(R, Snapshot<'_, M>), Error> {
        self.writes()?;
        self.count(|counts| &counts.fallbacks);
        loop {
            let (frame, desc, share) =
                self.settle(file, page, |desc, _| match desc.latch.share(self) {
                    Ok(share) => Ok(Ok((share, desc.tag.load(Relaxed)))),
                    Err(died) => Ok(Err(died)),
                })?;
            let words = self.pool().words(frame, file.words)?;
            let result = read(&PageView { words });
            // A waiter that was stopped may mistake this share for that of the slot's last, dead
            // owner; a writer then came in between.
            if desc.latch.validate(share.version()) {
                let result = result.ok_or(Error::Malformed { file: file.number, page })?;
                let version = share.version();
                return Ok((result, Snapshot { words, desc, version, file, page, frame }));
            }
        }
    }

    /// Latches a page to change it. Waits for the thread that has it.
    ///
    /// A thread that already holds pages must wait for others in an order that all threads keep:
    /// the pool detects no deadlock.
    ///
    /// # Errors
    ///
    /// The errors of [`optimistic`](Self::optimistic).
    ///
    /// # Panics
    ///
    /// If this thread already holds the page.
    pub fn write(&self, file: FileId, page: u64) -> Result<PageMut<'_, 't, M>, Error> {
        self.writes()?;
        let (frame, desc, guard) = self.settle(file, page, |desc, _| {
            let guard = match desc.latch.try_lock(self) {
                Some(guard) => Ok(guard),
                None => self.waited(file, || desc.latch.lock(self)),
            };
            Ok(guard.map(|guard| (Taken(Some(guard)), desc.tag.load(Relaxed))))
        })?;
        self.page_mut(frame, desc, guard, file, page)
    }

    /// Latches the page of a snapshot to change it, if it is unchanged: none if it changed, or
    /// another thread has it. Does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::View`].
    pub fn upgrade<'h>(
        &'h self,
        snapshot: &Snapshot<'h, M>,
    ) -> Result<Option<PageMut<'h, 't, M>>, Error> {
        self.writes()?;
        point("page.wanted");
        let Snapshot { desc, version, file, page, frame, .. } = *snapshot;
        let Some(guard) = desc.latch.try_upgrade(version, self) else { return Ok(None) };
        let guard = Taken(Some(guard));
        // Relaxed: this thread holds the latch. The version identifies the page; but shared memory
        // is not trusted.
        if desc.tag.load(Relaxed) != tag(file.number, page) {
            return Ok(None);
        }
        self.page_mut(frame, desc, guard, file, page).map(Some)
    }

    fn page_mut<'h>(
        &'h self,
        frame: u32,
        desc: &'h Desc<M>,
        mut guard: Taken<'h, 't, M>,
        file: FileId,
        page: u64,
    ) -> Result<PageMut<'h, 't, M>, Error> {
        let words = self.pool().words(frame, file.words)?;
        if !self.scanning.get() {
            // Relaxed: a hint.
            self.pool().mark(frame)?.store(1, Relaxed);
        }
        // Relaxed: the latch is held. No thread may commit over a page whose change was begun and
        // not completed: the thread that releases it poisons it.
        if desc.state.load(Relaxed) & !DIRTY != kind::VALID {
            return Err(Error::Corrupt("state of a frame"));
        }
        let guard = guard.0.take();
        Ok(PageMut {
            handle: self,
            guard,
            desc,
            words,
            file,
            page,
            frame,
            fresh: false,
            wipe: false,
            begun: None,
            intended: false,
            changed: false,
        })
    }
}

/// A latch that is released unchanged unless it is moved out of here.
pub(crate) struct Taken<'h, 't, M: ConstMachine>(
    pub(crate) Option<Exclusive<'h, Handle<'t, M>, M>>,
);

impl<M: ConstMachine> Drop for Taken<'_, '_, M> {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            guard.unchanged();
        }
    }
}
