//! Recovery after a death: the sweep, the repair of unfinished operations, the release of locks,
//! orphans.

pub(crate) mod notes;
pub(crate) mod orphans;
pub(crate) mod policy;
pub(crate) mod release;
pub(crate) mod repair;
pub(crate) mod sweep;

/// Common parts of this folder's tests: threads that die with locks.
#[cfg(test)]
mod staged {
    use latchwork_machine::Native;
    use latchwork_region::Region;

    use crate::granular::{X, modes};
    use crate::memory::Memory;
    use crate::memory::cells::OwnerCell;
    use crate::{Manager, Options, OwnerId, Session};

    pub(crate) const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];

    /// Creates a thread that holds three names and dies. Returns its session, whose slot is
    /// abandoned.
    pub(crate) fn dies(manager: &Manager) -> (Session, OwnerId) {
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        NAMES.iter().for_each(|name| owner.lock(name, X).unwrap());
        let id = owner.id();
        core::mem::forget(owner);
        session.thread().abandon();
        (session, id)
    }

    /// Creates such a thread and sweeps it, with a manager that keeps its owner.
    pub(crate) fn orphan(manager: &Manager) -> OwnerId {
        let (_session, id) = dies(manager);
        assert_eq!(manager.sweep(), Ok(1));
        id
    }

    pub(crate) fn cell_of(memory: &Memory<Native>, id: OwnerId) -> &OwnerCell<Native> {
        memory.owner_cell(id.number()).unwrap().unwrap()
    }

    /// Creates a manager that keeps the owners of dead threads for recovery.
    pub(crate) fn keeps() -> Manager {
        let region = Region::private(&Default::default()).unwrap();
        let options = Options { opens_early: true, ..Options::default() };
        Manager::with_recovery(region, modes(), options, Box::new(|_, _: &[u8]| false)).unwrap()
    }
}
