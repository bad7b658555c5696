//! Recording an owner's waits: counters, durations, events. A request that is granted immediately
//! touches none of it.

use latchwork_machine::ConstMachine;

use crate::Reason;
use crate::memory::cells::{RequestAt, get};
use crate::memory::handle::Owner;
use crate::meter::outcome::Outcome;
use crate::mode::Mode;

impl<M: ConstMachine> Owner<'_, M> {
    /// Records what a wait is for. Called with the latch held.
    pub(crate) fn note_wait(&self, at: RequestAt<M>, want: Mode) {
        self.watch.want.set(want.0);
        #[cfg(feature = "tracing")]
        self.watch.traced.note(|| {
            let object = get(&self.memory.request(at).ok()?.object);
            self.memory.name_of(object).ok()
        });
        let _ = at;
    }

    /// Emits the event of a wait's beginning, once. Called without a latch.
    #[inline(always)]
    pub(crate) fn wait_seen(&self) {
        #[cfg(feature = "tracing")]
        self.watch.traced.begun(self.id(), self.memory.modes(), self.wanted());
    }

    /// Records the end of a wait. Called without a latch.
    pub(crate) fn wait_ended(&self, outcome: Outcome) {
        self.wait_seen();
        let ns = self.memory.now().saturating_sub(get(&self.cell.since));
        self.memory.waits.borrow_mut().add(self.wanted(), ns);
        let counters = &self.memory.counters;
        match outcome {
            Outcome::Granted => {}
            Outcome::Refused(Reason::Deadlock) => counters.victim(),
            Outcome::Refused(Reason::Wounded | Reason::Killed) => counters.aborted(),
            Outcome::TimedOut => counters.timed_out(),
            Outcome::Withdrawn => counters.withdrawn(),
        }
        #[cfg(feature = "tracing")]
        self.watch.traced.ended(self.id(), self.memory.modes(), self.wanted(), ns, outcome);
    }

    fn wanted(&self) -> Mode {
        Mode(self.watch.want.get())
    }
}
