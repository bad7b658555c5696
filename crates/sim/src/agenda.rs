//! The agenda: scheduled events, and the current time.

use crate::events::Events;

/// The last cycle: some weeks after the start, when deadlines of threads that never stop pass.
pub(crate) const TIME_MAX: u64 = (1 << 52) - 1;

/// The largest number of a thread, a processor or a line.
const ID_MAX: usize = (1 << 24) - 1;

/// A scheduled event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A thread continues.
    Resume(usize),
    /// A line can serve its next requester.
    Serve(usize),
    /// A thread's oldest buffered store has its line.
    Commit(usize),
    /// A processor's thread has used its time slice.
    Slice(usize),
    /// A thread's sleep or watch ends.
    Timer(usize),
}

/// The scheduled events and the current time.
pub(crate) struct Agenda {
    /// The time of the last event.
    pub(crate) now: u64,
    events: Events<u64>,
}

impl Agenda {
    pub(crate) fn new() -> Self {
        Self { now: 0, events: Events::new() }
    }

    /// Adds an event. For a thread's event, `epoch` shows later whether it is out of date.
    #[inline]
    pub(crate) fn push(&mut self, at: u64, event: Event, epoch: u16) {
        let (kind, id) = match event {
            Event::Resume(t) => (0, t),
            Event::Serve(line) => (1, line),
            Event::Commit(t) => (2, t),
            Event::Slice(cpu) => (3, cpu),
            Event::Timer(t) => (4, t),
        };
        assert!(id <= ID_MAX, "more lines than a simulation holds");
        let packed = kind << 56 | (id as u64) << 16 | u64::from(epoch);
        self.events.push(at.min(TIME_MAX), packed);
    }

    /// Removes and returns the next event with its epoch, and advances the time to it.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Event, u16)> {
        let (at, packed) = self.events.pop()?;
        self.now = at;
        let id = (packed >> 16) as usize & ID_MAX;
        let event = match packed >> 56 {
            0 => Event::Resume(id),
            1 => Event::Serve(id),
            2 => Event::Commit(id),
            3 => Event::Slice(id),
            _ => Event::Timer(id),
        };
        Some((event, packed as u16))
    }

    /// Returns the time of the next event.
    #[inline]
    pub(crate) fn horizon(&self) -> u64 {
        self.events.next()
    }
}
