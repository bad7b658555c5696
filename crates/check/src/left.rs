//! Checks for leaked counts and cells.

use core::sync::atomic::Ordering::Relaxed;

use latchwork_lockmgr::{Manager, Session};
use latchwork_machine::{ConstMachine, Word};

/// Fails unless every counter of a manager is zero, its lists are consistent, and each cell of its
/// region is free or used. Its sessions may remain; its owners must have ended.
pub fn nothing_in<M: ConstMachine>(session: &Session<M>) {
    let totals = session.totals().unwrap();
    let left = (totals.objects, totals.requests, totals.waiting, totals.weak, totals.ranges);
    assert_eq!(left, (0, 0, 0, 0, 0), "left: {:?}", session.snapshot());
    assert_eq!((totals.owners, totals.orphans), (0, 0), "left: owners, orphans");
    let region = session.manager().region();
    let view = latchwork_lockmgr::View::new(region.clone()).unwrap().unwrap();
    let said = view.verify(Some(session.manager().modes())).unwrap();
    assert!(said.flaws.is_empty() && said.latched.is_empty(), "{said:?}");
    let audit = region.audit().unwrap();
    assert!(audit.is_sound(), "{audit:?}");
}

/// As [`nothing_in`], without a session.
pub fn nothing<M: ConstMachine>(manager: &Manager<M>) {
    nothing_in(&manager.session().unwrap());
}

/// The number of whole blocks of a manager without locks: partitions, their biases and the
/// directory of owners.
pub fn blocks<M: ConstMachine>(manager: &Manager<M>) -> u64 {
    // The root with the number of blocks of partitions, as a power of two.
    let power = manager.region().root(11).expect("a root").load(Relaxed);
    (2 << power) + 1
}
