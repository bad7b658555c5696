//! The simulated threads: what each is doing, and where it is.

use core::ops::{Deref, DerefMut};
use std::collections::VecDeque;

use corosensei::Yielder;
use latchwork_machine::Chain;

use crate::buffer::Store;

/// What a thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It runs, or is about to.
    Running,
    /// It waits for a processor.
    Queued,
    /// It waits for a line.
    Missing(usize),
    /// It looks at a word and waits for its line to change.
    Watching(usize),
    /// It waits for its stores to be seen.
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
    /// Counts what it waited for, so that an event for an earlier wait is known as stale.
    pub(crate) epoch: u16,
    pub(crate) state: State,
    pub(crate) stores: VecDeque<Store>,
    pub(crate) chain: Chain,
    /// The line it touched last.
    pub(crate) recent: (usize, usize),
    /// The line of its last atomic operation, if it has read none of it since.
    pub(crate) changed: usize,
    pub(crate) timed_out: bool,
    /// When its timer is due: an epoch comes round again.
    pub(crate) due: u64,
    /// How many of its stores have been seen.
    pub(crate) seen: u64,
}

impl Thread {
    /// One that has not begun.
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
    /// The socket of each, side by side, to look for one of a socket.
    pub(crate) sockets: Vec<u16>,
    /// The one that runs.
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
