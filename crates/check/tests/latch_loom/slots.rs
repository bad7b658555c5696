//! Waiter slots of several processes: a slot of a dead process is given to one thread.

use std::sync::atomic::Ordering::Relaxed;

use latchwork_check::Loom;
use latchwork_check::loom_machine::explore;
use latchwork_machine::status::{ORPHANED, REMOVED};
use latchwork_machine::{Machine, Slots, Word};
use loom::thread;

const DEAD: u64 = 1;

fn slots(process: u64) -> Slots<'static, Loom> {
    Loom::slots(core::ptr::null()).in_the_name_of(process)
}

/// An orphaned slot of a dead process is in a queue. A thread of one process removes and discards
/// it, a thread of another reclaims slots of the dead process, and both need a slot then.
fn discarded() {
    let number = thread::spawn(|| slots(DEAD).mine()).join().unwrap();
    slots(DEAD).at(number).status.store(ORPHANED, Relaxed);
    let removes = thread::spawn(move || {
        slots(2).at(number).status.store(REMOVED, Relaxed);
        slots(2).discard(number, ORPHANED);
        slots(2).mine()
    });
    let reclaims = thread::spawn(|| {
        slots(3).reclaim(|owner| owner == DEAD);
        slots(3).mine()
    });
    assert_ne!(removes.join().unwrap(), reclaims.join().unwrap(), "the slot was given twice");
    assert_eq!(slots(2).taken(), 2);
}

#[test]
fn loom_an_orphaned_slot_is_given_once() {
    explore("orphan", 3, discarded);
}
