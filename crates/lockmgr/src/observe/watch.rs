//! What an owner's wait leaves for those who look: a count, a length, an event. Nothing here is
//! touched by a request that is granted at once.

use core::cell::Cell;

use latchwork_machine::ConstMachine;

use crate::Reason;
use crate::memory::cells::get;
use crate::mode::Mode;
#[cfg(feature = "tracing")]
use crate::observe::events;
use crate::owner::handle::Owner;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    Refused(Reason),
    TimedOut,
    Withdrawn,
}

/// What an owner remembers of its wait.
#[derive(Default)]
pub(crate) struct Watch {
    want: Cell<u8>,
    #[cfg(feature = "tracing")]
    traced: events::Traced,
}

impl<M: ConstMachine> Owner<'_, M> {
    /// A wait begins, with the latch held: notes what it is for.
    pub(crate) fn note_wait(&self, at: u32, want: Mode) {
        self.watch.want.set(want.0);
        #[cfg(feature = "tracing")]
        self.watch.traced.note(|| {
            let object = get(&self.session.request(at).ok()?.object);
            self.session.name_of(object).ok()
        });
        let _ = at;
    }

    /// The wait is looked at for the first time, with no latch held.
    #[inline(always)]
    pub(crate) fn wait_seen(&self) {
        #[cfg(feature = "tracing")]
        self.watch.traced.begun(self.id(), self.session.modes(), self.wanted());
    }

    /// The wait is over; no latch is held.
    pub(crate) fn wait_ended(&self, outcome: Outcome) {
        self.wait_seen();
        let ns = self.session.now().saturating_sub(get(&self.cell.since));
        self.session.waits.borrow_mut().add(self.wanted(), ns);
        let counters = &self.session.counters;
        match outcome {
            Outcome::Granted => {}
            Outcome::Refused(Reason::Deadlock) => counters.victim(),
            Outcome::Refused(Reason::Wounded | Reason::Killed) => counters.doomed(),
            Outcome::TimedOut => counters.timed_out(),
            Outcome::Withdrawn => counters.withdrawn(),
        }
        #[cfg(feature = "tracing")]
        self.watch.traced.ended(self.id(), self.session.modes(), self.wanted(), ns, outcome);
    }

    fn wanted(&self) -> Mode {
        Mode(self.watch.want.get())
    }
}
