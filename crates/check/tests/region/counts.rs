//! Counters of the region near their limits.

use latchwork_machine::Native;
use latchwork_region::{Options, Region};

/// The counter of a process slot's owners skips zero, which is never alive. Each owner is alive
/// until it leaves, and its threads are not swept.
#[test]
fn a_process_lives_whatever_its_number_is() {
    let region = Region::<Native>::heap(&Options { limit: 64 << 20, ..Options::default() });
    let region = region.unwrap();
    let (slot, first) = region.another().unwrap().process().unwrap();
    assert_eq!(first, 1);
    region.set_owners_ever(slot, u32::MAX - 3);
    let mut seen = Vec::new();
    for _ in 0..6 {
        let process = region.another().unwrap();
        let (same, generation) = process.process().unwrap();
        assert_eq!(same, slot);
        let thread = process.thread().unwrap();
        assert!(region.alive(slot, generation), "{generation}");
        assert!(seen.iter().all(|old| !region.alive(slot, *old)), "{seen:?}");
        assert_eq!(region.sweep(), Ok(0), "{generation}");
        assert!(thread.has_slot() && !region.has_dead(), "{generation}");
        seen.push(generation);
    }
    assert_eq!(seen, [u32::MAX - 2, u32::MAX - 1, u32::MAX, 1, 2, 3]);
}
