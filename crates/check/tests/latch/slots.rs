//! Damaged links between waiter slots: a thread waits in another slot instead, and no list is
//! endless.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_machine::{Machine, Native, Slot, SlotTable, Slots, status};

/// A word of a slot, by its name.
fn word<'a>(slot: &'a Slot<Native>, name: &str) -> &'a AtomicU32 {
    let (at, _) = Slot::<Native>::WORDS.into_iter().find(|(_, word)| *word == name).unwrap();
    let word = (&raw const *slot).wrapping_byte_add(at).cast::<AtomicU32>();
    // SAFETY: a word of the slot, of this type.
    unsafe { &*word }
}

#[test]
fn damaged_links_between_slots_end_a_list() {
    let table = SlotTable::default();
    let memory: Vec<Slot<Native>> = (0..9).map(|_| Slot::default()).collect();
    let slots = Slots::new(&table, &memory);
    let next = || {
        let number = slots.mine();
        slots.at(number).status.store(status::PARKED, Relaxed);
        number
    };
    assert_eq!([next(), next()], [1, 2]);
    // A cycle, and then a slot that does not exist.
    for (damaged, gets) in [(2, 3), (70_000, 4)] {
        word(slots.at(1), "chain").store(damaged, Relaxed);
        assert_eq!(slots.readopt(77), None);
        assert_eq!(next(), gets);
    }
    (1..=4).for_each(|number| slots.at(number).status.store(status::FREE, Relaxed));
    slots.retire(4);
    Native::set_chain(&slots, 0);
    // The list of returned slots ends after the first.
    word(slots.at(1), "free").store(70_000, Relaxed);
    assert_eq!([next(), next(), next()], [1, 5, 6]);
    Native::set_chain(&slots, 0);
}
