//! A store as one process has it: region, log, pool, locks, and the repairs that it registers.

use std::sync::Arc;

use latchwork_lockmgr::Manager;
use latchwork_log::{Log, Mode};
use latchwork_machine::ConstMachine;
use latchwork_pool::{FileId, Pool};
use latchwork_region::Repair;

use crate::Error;
use crate::files::shared::Shared;

/// How a store's parts are made. What exists keeps its sizes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of pages that are kept in memory: 1 MiB at least.
    pub cache: u64,
    /// Bytes of a page of a store that is made anew: 4,096 to 65,536, a power of two.
    pub page: u32,
    /// Bytes of the log's buffer: 1 MiB at least, a power of two.
    pub log_buffer: u64,
    /// Bytes of a segment of the log, not less than its buffer.
    pub log_segment: u64,
    /// A checkpoint is made when so many bytes were logged.
    pub log_budget: u64,
    /// How many threads of all processes may use the store at a time.
    pub threads: u32,
    /// When commits return that do not say otherwise.
    pub mode: Mode,
}

impl Default for Sizes {
    /// 64 MiB of pages of 8 KiB, a log buffer of 16 MiB, segments of 64 MiB, a checkpoint each
    /// 256 MiB, 512 threads, and commits that return when they are durable.
    fn default() -> Self {
        Self {
            cache: 64 << 20,
            page: 8192,
            log_buffer: 16 << 20,
            log_segment: 64 << 20,
            log_budget: 256 << 20,
            threads: 512,
            mode: Mode::Full,
        }
    }
}

impl Sizes {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |what| Err(Error::Options(what));
        if !self.page.is_power_of_two() || !(4096..=65_536).contains(&self.page) {
            return wrong("page: a power of two from 4,096 to 65,536");
        }
        if self.cache < 1 << 20 || self.cache / u64::from(self.page) > 1 << 30 {
            return wrong("cache: 1 MiB at least");
        }
        if !self.log_buffer.is_power_of_two() || !(1 << 20..=1 << 34).contains(&self.log_buffer) {
            return wrong("log_buffer: a power of two, 1 MiB at least");
        }
        if self.log_buffer < 32 * u64::from(self.page) {
            return wrong("log_buffer: 32 pages at least");
        }
        if self.log_segment < self.log_buffer || !self.log_segment.is_multiple_of(4096) {
            return wrong("log_segment: a multiple of 4,096, not less than log_buffer");
        }
        if !(1..=16_000).contains(&self.threads) {
            return wrong("threads: 1 to 16,000");
        }
        Ok(())
    }

    /// How the region is made.
    pub(crate) fn region(&self) -> latchwork_region::Options {
        latchwork_region::Options {
            threads: self.threads,
            waiters: self.threads.max(64),
            ..latchwork_region::Options::default()
        }
    }

    /// Bytes of memory that processes share, about.
    pub(crate) fn memory(&self) -> u64 {
        self.cache + self.cache / 64 + self.log_buffer + (16 << 20)
    }

    pub(crate) fn frames(&self) -> u32 {
        (self.cache / u64::from(self.page)).max(64) as u32
    }
}

/// The parts.
pub(crate) struct Home<M: ConstMachine> {
    pub(crate) manager: Manager<M>,
    pub(crate) log: Log<M>,
    pub(crate) pool: Pool<M>,
    pub(crate) shared: Shared<M>,
    pub(crate) file: FileId,
    pub(crate) sizes: Sizes,
    /// Registered with the region for as long as this lives.
    pub(crate) _undo: Arc<dyn Repair<M>>,
}
