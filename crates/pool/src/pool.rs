//! A pool as one process has it: its areas, its files, and access to frames.

use core::fmt;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Arc, Weak};

use latchwork_disk::Disk;
use latchwork_latch::{HolderNumber, OptLatch};
use latchwork_machine::{ConstMachine, Native, Word};
use latchwork_region::{Area, AreaOptions, Error as RegionError, Region, Repair};

use crate::layout::{
    ACTIVE, CONFIG, Config, Desc, FRAMES_MIN, HEAD_FIRST, HEAD_LIMIT, LOGGED, Latch, Marks, TARGET,
    WANTED, lines,
};
use crate::opened::{OpenedFiles, opened_none};
use crate::{Error, Options};

/// A pool of pages, private or shared by processes. Clones are the same pool.
///
/// Threads use it through a [`Handle`](crate::Handle).
pub struct Pool<M: ConstMachine = Native> {
    pub(crate) inner: Arc<Inner<M>>,
}

impl<M: ConstMachine> Clone for Pool<M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

pub(crate) struct Inner<M: ConstMachine> {
    pub(crate) region: Region<M>,
    pub(crate) head: Area<M>,
    pub(crate) xlat: Area<M>,
    pub(crate) descs: Area<M>,
    pub(crate) frames: Area<M>,
    pub(crate) config: Config,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) options: Options,
    /// The files that this process has opened.
    pub(crate) opened: OpenedFiles,
    /// Whether the pool is a view.
    pub(crate) view: bool,
    /// One after this process found no memory for more frames: it tries no more.
    pub(crate) stopped: M::AtomicU32,
    /// The repair that the region's sweeps call, as long as this lives.
    pub(crate) repair: Arc<dyn Repair<M>>,
}

/// The pool's repair in a sweep of the region: `life/sweep.rs`.
pub(crate) struct PoolRepair<M: ConstMachine> {
    pub(crate) pool: Weak<Inner<M>>,
}

impl<M: ConstMachine> Pool<M> {
    /// Opens the pool next to `region`, or creates it if none exists.
    ///
    /// An existing pool keeps its number of frames; `options.frames` is not used. Through a view of
    /// a region ([`Region::view`]) the pool is a view: its memory is mapped read-only, and anything
    /// but reading fails with [`Error::View`].
    ///
    /// # Errors
    ///
    /// [`Error::Options`]; [`Error::Different`] if its frames have another size; [`Error::Holder`]
    /// if the region has more thread slots than latches can name; [`Error::Region`] for errors of
    /// an area.
    pub fn open(region: &Region<M>, disk: Arc<dyn Disk>, options: &Options) -> Result<Self, Error> {
        const { lines::<M>() };
        options.check()?;
        // Each thread of the region may have to repair the pool, and sweepers have the last slots.
        if region.thread_slots() > HolderNumber::MAX {
            return Err(Error::Holder(region.thread_slots() - 1));
        }
        let view = region.process().is_err();
        let words = |name, first: u64, limit: u64, huge| {
            region.area(name, &AreaOptions { first: first * 8, limit: limit * 8, huge })
        };
        let head = words("pool-head", HEAD_FIRST, HEAD_LIMIT, false)?;
        let word = head.word(CONFIG)?;
        if !view {
            let mine = Config { frame_bytes: options.frame_bytes, frames_max: options.frames_max };
            // Relaxed, both: a number that does not change once it is set.
            if word.load(Relaxed) == 0 {
                // Otherwise the pool would have a configuration for good that this process cannot
                // open.
                region.has_addresses(mine.bytes_max())?;
            }
            let _ = word.compare_exchange(0, mine.pack(), Relaxed, Relaxed);
        }
        let config = Config::unpack(word.load(Relaxed))
            .ok_or(Error::Corrupt("configuration, or another version's"))?;
        if config.frame_bytes != options.frame_bytes || config.frames_max < options.frames {
            let Config { frame_bytes, frames_max } = config;
            return Err(Error::Different { frame_bytes, frames: frames_max });
        }
        let first = options.frames.min(config.frames_max);
        let xlat = words("pool-xlat", 1, config.xlat_limit(), false)?;
        let (now, most) = (config.desc_at(first), config.desc_at(config.frames_max));
        let descs = words("pool-desc", now, most, options.huge)?;
        let frame_words = config.frame_words();
        let frames = words(
            "pool-frames",
            u64::from(first) * frame_words,
            u64::from(config.frames_max) * frame_words,
            options.huge,
        )?;
        let inner = Arc::new_cyclic(|pool| Inner {
            repair: Arc::new(PoolRepair { pool: pool.clone() }),
            region: region.clone(),
            head,
            xlat,
            descs,
            frames,
            config,
            disk,
            options: options.clone(),
            opened: opened_none(),
            view,
            stopped: M::U32,
        });
        let pool = Self { inner };
        if !view {
            region.register(&pool.inner.repair)?;
            pool.begin(first)?;
        }
        Ok(pool)
    }

    /// Opens the existing pool next to `region`, whatever the size of its frames, for tools. None
    /// if no pool exists.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open).
    pub fn look(region: &Region<M>, disk: Arc<dyn Disk>) -> Result<Option<Self>, Error> {
        let sizes = AreaOptions { first: HEAD_FIRST * 8, limit: HEAD_LIMIT * 8, huge: false };
        let word = match region.area("pool-head", &sizes) {
            Ok(head) => head.word(CONFIG)?.load(Relaxed),
            Err(RegionError::NotFound) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if word == 0 {
            // No process had the addresses for one.
            return Ok(None);
        }
        let Config { frame_bytes, frames_max } =
            Config::unpack(word).ok_or(Error::Corrupt("configuration, or another version's"))?;
        let options = Options { frames: FRAMES_MIN, frames_max, frame_bytes, ..Options::default() };
        Self::open(region, disk, &options).map(Some)
    }

    /// Allocates memory for the first frames and records them.
    fn begin(&self, first: u32) -> Result<(), Error> {
        let Inner { head, config, options, .. } = &*self.inner;
        let active = head.word(ACTIVE)?;
        // Relaxed: as below.
        if active.load(Relaxed) == 0 {
            self.reach(first)?;
            // AcqRel: synchronizes with the Acquire in `active`; the memory was allocated before.
            let _ = active.compare_exchange(0, u64::from(first), AcqRel, Acquire);
        }
        let target = head.word(TARGET)?;
        // Relaxed: as above.
        if target.load(Relaxed) == 0 {
            let now = u64::from(self.active()?);
            // AcqRel: as above.
            let _ = target.compare_exchange(0, now, AcqRel, Acquire);
        }
        let (wanted, asked) = (head.word(WANTED)?, options.frames_wanted.min(config.frames_max));
        // Relaxed, both: the largest number is used.
        let mut seen = wanted.load(Relaxed);
        while seen < u64::from(asked) {
            match wanted.compare_exchange(seen, u64::from(asked), Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        if self.active()? > config.frames_max {
            return Err(Error::Corrupt("number of frames"));
        }
        if options.write_ahead.is_some() {
            // Relaxed: pages with LSNs come later, under latches.
            head.word(LOGGED)?.store(1, Relaxed);
        }
        Ok(())
    }

    /// Allocates memory for so many frames.
    pub(crate) fn reach(&self, frames: u32) -> Result<(), Error> {
        let Inner { descs, config, frames: area, .. } = &*self.inner;
        descs.grow(config.desc_at(frames))?;
        area.grow(u64::from(frames) * config.frame_words())?;
        Ok(())
    }

    /// Returns how many frames the pool uses.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn active(&self) -> Result<u32, Error> {
        // Acquire: synchronizes with the AcqRel in `begin` and in `resize`.
        let active = self.inner.head.word(ACTIVE)?.load(Acquire);
        Ok(active.min(u64::from(self.inner.config.frames_max)) as u32)
    }

    /// Returns how many frames the pool has, or may grow to by itself if that is more.
    ///
    /// # Errors
    ///
    /// [`Error::Region`] in the child of a fork.
    pub fn wanted(&self) -> Result<u32, Error> {
        let asked = self.asked()?.min(u64::from(self.inner.config.frames_max));
        Ok((asked as u32).max(self.active()?))
    }

    /// Returns the largest [`Options::frames_wanted`](crate::Options) of any process; 0 for none.
    pub(crate) fn asked(&self) -> Result<u64, Error> {
        // Relaxed: a number that publishes nothing.
        Ok(self.inner.head.word(WANTED)?.load(Relaxed))
    }

    /// Returns the bytes of a frame.
    pub fn frame_bytes(&self) -> u32 {
        self.inner.config.frame_bytes
    }

    /// Returns the region that the pool belongs to.
    pub fn region(&self) -> &Region<M> {
        &self.inner.region
    }

    /// Returns a frame's descriptor.
    #[inline(always)]
    pub(crate) fn desc(&self, frame: u32) -> Result<&Desc<M>, Error> {
        let at = self.inner.config.desc_at(frame);
        // SAFETY: all words of a descriptor have 8 bytes in every use.
        Ok(unsafe { self.inner.descs.resolve::<Desc<M>>(at) }?)
    }

    /// [`desc`](Self::desc) for a walk through all frames: none if the frame was never used, like
    /// all after it.
    pub(crate) fn reached(&self, frame: u32) -> Result<Option<&Desc<M>>, Error> {
        match self.desc(frame) {
            Err(Error::Region(RegionError::OutOfArea(_))) => Ok(None),
            desc => desc.map(Some),
        }
    }

    /// Returns the first `count` words of a frame.
    #[inline(always)]
    pub(crate) fn words(&self, frame: u32, count: u32) -> Result<&[M::AtomicU64], Error> {
        let at = u64::from(frame) * self.inner.config.frame_words();
        Ok(self.inner.frames.slice(at, u64::from(count))?)
    }

    /// Returns the latch at this word of the pool's head.
    pub(crate) fn head_latch(&self, at: u64) -> Result<&OptLatch<M>, Error> {
        // SAFETY: the words of the head's latches are latches in every use.
        Ok(unsafe { &self.inner.head.resolve::<Latch<M>>(at)?.0 })
    }

    /// Returns the reference mark of a frame.
    pub(crate) fn mark(&self, frame: u32) -> Result<&M::AtomicU8, Error> {
        // SAFETY: the marks lie before the descriptors, and are bytes in every use.
        let line = unsafe { self.inner.descs.resolve::<Marks<M>>(u64::from(frame) / 64 * 8) }?;
        Ok(&line.0[frame as usize % 64])
    }
}

impl<M: ConstMachine> fmt::Debug for Pool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("frames", &self.active().ok())
            .field("frames_max", &self.inner.config.frames_max)
            .field("frame_bytes", &self.inner.config.frame_bytes)
            .field("view", &self.inner.view)
            .finish()
    }
}
