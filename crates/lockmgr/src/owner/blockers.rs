//! The owners that block a request, for error messages: collected when a wait times out.

use latchwork_machine::ConstMachine;
use latchwork_region::ProcessInfo;

use crate::Error;
use crate::ids::OwnerId;
use crate::memory::Memory;
use crate::memory::cells::get;
use crate::memory::handle::Owner;

/// An owner that blocks a request: see [`Owner::blockers`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocker {
    /// The owner.
    pub owner: OwnerId,
    /// Its label.
    pub label: String,
    /// Whether it holds a conflicting lock. If not, it waits before the request.
    pub holds: bool,
    /// Its thread slot, or `None` if its thread is dead and the owner is an orphan.
    pub thread: Option<u32>,
    /// The process of that slot.
    pub process: Option<ProcessInfo>,
}

impl<M: ConstMachine> Owner<'_, M> {
    /// Returns the owners that block the waiting request. If no request waits, returns the owners
    /// that blocked the last wait when it timed out. Takes one latch. The cost is proportional to
    /// the queue, the thread slots and the processes.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn blockers(&self) -> Result<Vec<Blocker>, Error> {
        self.memory.region().check()?;
        if !self.pending.get().is_null() {
            self.note_blockers()?;
        }
        let found = self.watch.blockers.borrow().clone();
        found.into_iter().map(|(owner, holds)| self.memory.blocker(owner, holds)).collect()
    }

    /// Returns the owners that hold locks conflicting with the waiting request, and their thread
    /// slots. Takes one latch. The cost is proportional to the queue.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn holders(&self) -> Result<Vec<(OwnerId, u32)>, Error> {
        self.memory.region().check()?;
        self.note_blockers()?;
        let (mut found, blockers) = (Vec::new(), self.watch.blockers.borrow());
        for (owner, _) in blockers.iter().filter(|(_, holds)| *holds) {
            let Some(page) = self.memory.page(owner.number().page())? else { continue };
            let state = get(&page.owners[owner.number().at()].state);
            found.extend(state.thread(get(&page.thread)).map(|thread| (*owner, thread)));
        }
        Ok(found)
    }

    /// Returns the information that [`blockers`](Self::blockers) gives, for any owner.
    ///
    /// # Errors
    ///
    /// [`Error::Region`]; [`Error::Foreign`] if no such owner ever existed.
    pub fn describe(&self, owner: OwnerId) -> Result<Blocker, Error> {
        self.memory.region().check()?;
        self.memory.blocker(owner, true)
    }

    /// Records the owners that block the waiting request.
    #[cold]
    pub(crate) fn note_blockers(&self) -> Result<(), Error> {
        let (at, memory) = (self.pending.get(), self.memory);
        self.watch.blockers.borrow_mut().clear();
        if at.is_null() {
            return Ok(());
        }
        let request = memory.request(at)?;
        let latched = memory.latch(get(&request.partition))?;
        let state = get(&request.state);
        if state.waits() {
            let object = memory.object(get(&request.object))?;
            for found in latched.blockers(object, at, self.index, state)? {
                let Some(cell) = memory.owner_cell(found.owner)? else { continue };
                let id = found.owner.id(get(&cell.generation));
                self.watch.blockers.borrow_mut().push((id, found.hard));
            }
        }
        drop(latched);
        memory.wake_all()
    }
}

impl<M: ConstMachine> Memory<M> {
    fn blocker(&self, owner: OwnerId, holds: bool) -> Result<Blocker, Error> {
        let none = Blocker { owner, label: String::new(), holds, thread: None, process: None };
        let page = self.page(owner.number().page())?.ok_or(Error::Foreign)?;
        let cell = &page.owners[owner.number().at()];
        if get(&cell.generation) != owner.generation {
            // It has ended in the meantime.
            return Ok(none);
        }
        let label: Vec<u8> = cell.label.iter().flat_map(|word| get(word).to_le_bytes()).collect();
        let length = label.iter().position(|byte| *byte == 0).unwrap_or(label.len());
        let label = String::from_utf8_lossy(&label[..length]).into_owned();
        let thread = get(&cell.state).thread(get(&page.thread));
        let region = self.region();
        let slot = region.threads().find(|slot| Some(slot.slot) == thread);
        let process = slot.and_then(|slot| {
            let of = (slot.process, slot.process_generation);
            region.processes().into_iter().find(|one| (one.slot, one.generation) == of)
        });
        Ok(Blocker { label, thread, process, ..none })
    }
}
