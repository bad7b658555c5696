//! That nothing is left: no count, no cell.

use core::sync::atomic::Ordering::Relaxed;

use latchwork_lockmgr::{Manager, Session};
use latchwork_machine::{ConstMachine, Word};

/// Fails unless every count of a manager is zero, all its lists fit together, and each cell of its
/// region is free or somebody's. Its sessions may stay; its owners must have ended.
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

/// As [`nothing_in`], from outside.
pub fn nothing<M: ConstMachine>(manager: &Manager<M>) {
    nothing_in(&manager.session().unwrap());
}

/// How many whole blocks a manager without locks has: of partitions, of their biases, and the
/// directory of owners.
pub fn blocks<M: ConstMachine>(manager: &Manager<M>) -> u64 {
    // The root that says how many blocks of partitions there are, as a power of two.
    let power = manager.region().root(11).expect("a root").load(Relaxed);
    (2 << power) + 1
}
