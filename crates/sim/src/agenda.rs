//! What is to happen, and the time.

use crate::events::Events;

/// The last cycle there is: after some weeks, and when the deadlines of those come who never stop.
pub(crate) const TIME_MAX: u64 = (1 << 52) - 1;

/// The largest number of a thread, a processor or a line.
const ID_MAX: usize = (1 << 24) - 1;

/// What happens next at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A thread goes on.
    Resume(usize),
    /// A line can serve its next requester.
    Serve(usize),
    /// A thread's oldest buffered store has its line.
    Commit(usize),
    /// A processor's thread has had its turn.
    Slice(usize),
    /// A thread's sleep or look ends.
    Timer(usize),
}

/// What is to happen, and what time it is.
pub(crate) struct Agenda {
    /// The time of the last event.
    pub(crate) now: u64,
    events: Events<u64>,
}

impl Agenda {
    pub(crate) fn new() -> Self {
        Self { now: 0, events: Events::new() }
    }

    /// Notes an event. Of a thread's it is told later whether it is of this `epoch`.
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

    /// The next event, with its epoch; it is its time now.
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

    /// When the next event is due.
    #[inline]
    pub(crate) fn horizon(&self) -> u64 {
        self.events.next()
    }
}
