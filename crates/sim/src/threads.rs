//! The simulated threads: their states and positions.

use core::ops::{Deref, DerefMut};
use std::collections::VecDeque;

use corosensei::Yielder;
use latchwork_machine::Chain;

use crate::buffer::Store;

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It runs, or is about to.
    Running,
    /// It waits for a processor.
    Queued,
    /// It waits for a line.
    Missing(usize),
    /// It watches a word until its line changes.
    Watching(usize),
    /// It waits for its stores to become visible.
    Draining,
    /// It sleeps on a word.
    Parked(usize),
    /// It has ended.
    Done,
}

pub(crate) struct Thread {
    pub(crate) yielder: *const Yielder<(), ()>,
    pub(crate) cpu: usize,
    pub(crate) core: usize,
    /// Its clock, in cycles.
    pub(crate) time: u64,
    /// Counts its waits, so that an event for an earlier wait is recognized as stale.
    pub(crate) epoch: u16,
    pub(crate) state: State,
    pub(crate) stores: VecDeque<Store>,
    pub(crate) chain: Chain,
    /// The line that it accessed last.
    pub(crate) recent: (usize, usize),
    /// The line of its last atomic operation, if it has not read that since.
    pub(crate) changed: usize,
    pub(crate) timed_out: bool,
    /// When its timer is due; needed because an epoch wraps.
    pub(crate) due: u64,
    /// How many of its stores are visible.
    pub(crate) seen: u64,
}

impl Thread {
    /// Creates a thread that has not started.
    pub(crate) fn new(cpu: usize, core: usize) -> Self {
        Self {
            yielder: core::ptr::null(),
            cpu,
            core,
            time: 0,
            epoch: 0,
            state: State::Queued,
            stores: VecDeque::new(),
            chain: 0,
            recent: (usize::MAX, 0),
            changed: usize::MAX,
            timed_out: false,
            due: 0,
            seen: 0,
        }
    }
}

/// All threads, by number.
#[derive(Default)]
pub(crate) struct Threads {
    all: Vec<Thread>,
    /// The socket of each thread, contiguous for searching.
    pub(crate) sockets: Vec<u16>,
    /// The running thread.
    pub(crate) current: Option<usize>,
}

impl Threads {
    pub(crate) fn add(&mut self, thread: Thread, socket: usize) {
        self.all.push(thread);
        self.sockets.push(socket as u16);
    }
}

impl Deref for Threads {
    type Target = [Thread];
    #[inline(always)]
    fn deref(&self) -> &[Thread] {
        &self.all
    }
}

impl DerefMut for Threads {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Thread] {
        &mut self.all
    }
}
