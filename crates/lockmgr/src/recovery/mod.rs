//! What follows a death: the sweep, the repair of what was half done, the release of what the dead
//! had, orphans.

pub(crate) mod notes;
pub(crate) mod orphans;
pub(crate) mod policy;
pub(crate) mod release;
pub(crate) mod repair;
pub(crate) mod sweep;

/// A stage for the tests of this folder: a thread that died, and with what.
#[cfg(test)]
mod staged {
    use latchwork_machine::Native;
    use latchwork_region::Region;

    use crate::granular::{X, modes};
    use crate::memory::Memory;
    use crate::memory::cells::OwnerCell;
    use crate::{Manager, Options, OwnerId, Session};

    pub(crate) const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];

    /// A thread that held three names and died; its session, which is nobody's now.
    pub(crate) fn dies(manager: &Manager) -> (Session, OwnerId) {
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        NAMES.iter().for_each(|name| owner.lock(name, X).unwrap());
        let id = owner.id();
        core::mem::forget(owner);
        session.thread().abandon();
        (session, id)
    }

    /// The same, swept by a manager that keeps such owners.
    pub(crate) fn orphan(manager: &Manager) -> OwnerId {
        let (_session, id) = dies(manager);
        assert_eq!(manager.sweep(), Ok(1));
        id
    }

    pub(crate) fn cell_of(memory: &Memory<Native>, id: OwnerId) -> &OwnerCell<Native> {
        memory.owner_cell(id.number()).unwrap().unwrap()
    }

    /// A manager that keeps the owners of dead threads for recovery.
    pub(crate) fn keeps() -> Manager {
        let region = Region::private(&Default::default()).unwrap();
        let options = Options { opens_early: true, ..Options::default() };
        Manager::with_recovery(region, modes(), options, Box::new(|_, _: &[u8]| false)).unwrap()
    }
}
