//! Regions in one process: cells, slots, growth, and deaths simulated by threads.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_check::cell::{self, value};
use latchwork_machine::{Native, Shared};
use latchwork_region::{Error, Fate, Offset, Options, Region};

type Words = [AtomicU64; 7];

fn small() -> Options {
    Options { processes: 8, threads: 64, waiters: 64, limit: 64 << 20, ..Options::default() }
}

#[test]
fn cells_are_lent_out_zeroed_and_taken_back() {
    let region = Region::private(&Options::default()).unwrap();
    let thread = region.thread().unwrap();
    let cell = thread.alloc::<Words>().unwrap();
    for word in cell.iter() {
        assert_eq!(word.swap(9, Relaxed), 0);
    }
    let generation = cell.generation();
    let offset = cell.publish();
    assert_eq!(cell::generation(&region, offset), Ok(generation));
    assert_eq!(region.audit().unwrap().used(), 1);
    cell::free(&thread, offset).unwrap();
    assert_eq!(cell::free(&thread, offset), Err(Error::NotInUse(offset.raw())));
    // The last cell freed is the next one allocated.
    let again = thread.alloc::<Words>().unwrap();
    assert_eq!((again.offset(), again.generation()), (offset, generation + 1));
    assert!(again.iter().all(|word| word.load(Relaxed) == 0), "a cell is lent out zeroed");
    drop(again);
    let audit = region.audit().unwrap();
    assert!(audit.is_sound(), "{audit:?}");
    assert_eq!(audit.used(), 0);
}

#[test]
fn every_size_has_its_cells() {
    fn size<const N: usize>(region: &Region) {
        let thread = region.thread().unwrap();
        let mut offsets = Vec::new();
        for _ in 0..300 {
            let cell = thread.alloc::<[AtomicU64; N]>().unwrap();
            cell[N - 1].store(N as u64, Relaxed);
            offsets.push(cell.publish());
        }
        let mut places: Vec<_> = offsets.iter().map(|offset| offset.raw()).collect();
        places.sort_unstable();
        let apart = match N * 8 + 8 {
            ..=48 => 48,
            bytes @ ..=4096 => bytes.next_power_of_two().max(64),
            _ => 65_472,
        } as u32
            / 16;
        assert!(places.windows(2).all(|two| two[1] - two[0] >= apart), "cells overlap");
        for offset in offsets {
            assert_eq!(value(region, offset).unwrap()[N - 1].load(Relaxed), N as u64);
            cell::free(&thread, offset).unwrap();
        }
    }
    let region = Region::private(&small()).unwrap();
    size::<1>(&region);
    size::<5>(&region);
    size::<6>(&region);
    size::<7>(&region);
    size::<15>(&region);
    size::<31>(&region);
    size::<63>(&region);
    size::<127>(&region);
    size::<255>(&region);
    size::<511>(&region);
    size::<8183>(&region);
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.used() == 0, "{audit:?}");
}

#[test]
fn offsets_that_lead_nowhere_are_refused() {
    let region = Region::private(&small()).unwrap();
    let thread = region.thread().unwrap();
    let cell = thread.alloc::<Words>().unwrap();
    assert_eq!(value(&region, Offset::<Words>::NULL).err(), Some(Error::OutOfRange(0)));
    for raw in [u32::MAX, u32::MAX - 1, 1 << 31, (region.len() / 16) as u32] {
        let offset = Offset::<Words>::from_raw(raw);
        assert_eq!(value(&region, offset).err(), Some(Error::OutOfRange(raw)));
        assert_eq!(cell::free(&thread, offset), Err(Error::OutOfRange(raw)));
    }
    // Of another size, between two cells, never allocated.
    let raw = cell.offset().raw();
    let wide = cell.offset().cast::<[AtomicU64; 20]>();
    assert_eq!(cell::free(&thread, wide), Err(Error::NotInUse(raw)));
    let inside = Offset::<Words>::from_raw(raw + 1);
    assert_eq!(cell::free(&thread, inside), Err(Error::NotInUse(raw + 1)));
    // A false link of an allocated cell, within another cell.
    let large = thread.alloc::<[AtomicU64; 20]>().unwrap();
    value(&region, large.offset()).unwrap().iter().for_each(|word| word.store(u64::MAX, Relaxed));
    let inside = Offset::<Words>::from_raw(large.offset().raw() + 1);
    assert_eq!(region.lent(inside), Ok(None));
    assert_eq!(thread.adopt(inside), Err(Error::NotInUse(inside.raw())));
    assert!(large.iter().all(|word| word.load(Relaxed) == u64::MAX));
    drop((cell, large));
    assert!(region.audit().unwrap().is_sound());
}

#[test]
fn a_region_grows_to_its_limit_and_not_beyond() {
    let region = Region::private(&Options { limit: 8 << 20, ..small() }).unwrap();
    let (thread, first) = (region.thread().unwrap(), region.len());
    let mut offsets = Vec::new();
    let full = loop {
        match thread.alloc::<Words>() {
            Ok(cell) => offsets.push(cell.publish()),
            Err(error) => break error,
        }
    };
    assert_eq!(full, Error::Full(8 << 20));
    assert!(offsets.len() > 100_000 && region.len() > first, "{} cells", offsets.len());
    assert_eq!(region.audit().unwrap().used(), offsets.len() as u64);
    // The full region stays usable: another size is refused too, and freed cells return.
    assert_eq!(thread.alloc::<[AtomicU64; 100]>().err(), Some(Error::Full(8 << 20)));
    let count = offsets.len();
    for offset in offsets.drain(..) {
        cell::free(&thread, offset).unwrap();
    }
    for _ in 0..count {
        offsets.push(thread.alloc::<Words>().unwrap().publish());
    }
    assert_eq!(thread.alloc::<Words>().err(), Some(Error::Full(8 << 20)));
    for offset in offsets {
        cell::free(&thread, offset).unwrap();
    }
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.used() == 0, "{audit:?}");
}

#[test]
fn many_threads_allocate_and_free_each_others_cells() {
    let region = Region::private(&Options { limit: 1 << 30, ..small() }).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel::<Offset<Words>>();
    let receiver = std::sync::Mutex::new(receiver);
    std::thread::scope(|scope| {
        for me in 0..6u64 {
            let (region, sender, receiver) = (&region, sender.clone(), &receiver);
            scope.spawn(move || {
                let thread = region.thread().unwrap();
                for round in 0..20_000 {
                    let cell = thread.alloc::<Words>().unwrap();
                    for word in cell.iter() {
                        // Two owners of one cell would see each other's mark.
                        assert_eq!(word.swap(me + 1, Relaxed), 0, "round {round}");
                    }
                    sender.send(cell.publish()).unwrap();
                    let offset = receiver.lock().unwrap().recv().unwrap();
                    let cell = value(region, offset).unwrap();
                    let owner = cell[0].load(Relaxed);
                    assert!(cell.iter().all(|word| word.swap(0, Relaxed) == owner));
                    cell::free(&thread, offset).unwrap();
                }
            });
        }
    });
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.used() == 0, "{audit:?}");
    assert!(region.threads().next().is_none(), "all slots came back");
    assert!(region.len() < 8 << 20, "cells were reused, yet it grew to {}", region.len());
}

#[test]
fn freed_cells_reach_other_threads() {
    let region = Region::private(&small()).unwrap();
    let (giver, taker) = (region.thread().unwrap(), region.thread().unwrap());
    let mut length = 0;
    for round in 0..200 {
        let cells: Vec<_> = (0..1_000).map(|_| taker.alloc::<Words>().unwrap().publish()).collect();
        for offset in cells {
            cell::free(&giver, offset).unwrap();
        }
        if round == 1 {
            length = region.len();
        }
    }
    assert_eq!(region.len(), length, "cells freed by one thread are not reused by another");
    assert!(region.audit().unwrap().is_sound());
}

#[test]
fn a_thread_that_released_its_slot_does_not_affect_the_next_owner() {
    let region = Region::private(&small()).unwrap();
    let old = region.thread().unwrap();
    old.abandon();
    assert!(!old.has_slot());
    assert_eq!(region.sweep(), Ok(1), "it counts as dead");
    let new = region.thread().unwrap();
    assert_eq!(new.number(), old.number());
    assert!(!old.has_slot());
    old.abandon();
    drop(old);
    assert!(new.has_slot(), "the slot of a living thread was freed");
    assert_ne!(region.thread().unwrap().number(), new.number());
}

#[test]
fn a_dead_threads_cells_in_hand_are_decided() {
    let region = Region::<Shared>::heap(&small()).unwrap();
    let killed = region.another().unwrap();
    let thread = killed.thread().unwrap();
    thread.intent().unwrap()[3].store(77, Relaxed);
    let kept = thread.alloc::<Words>().unwrap();
    let dropped = thread.alloc::<Words>().unwrap();
    let (keep, drops) = (kept.offset(), dropped.offset());
    assert_eq!(region.dead_threads().unwrap().count(), 0, "the living are left alone");
    killed.die();
    std::mem::forget((kept, dropped));
    let mut asked = Vec::new();
    for dead in region.dead_threads().unwrap() {
        assert_eq!(dead.intent()[3].load(Relaxed), 77);
        let again = region.dead_threads().unwrap().count();
        assert_eq!(again, 0, "two sweepers claimed one dead thread");
        dead.finish(|cell| {
            asked.push(cell.offset);
            if cell.offset == keep.cast() { Fate::Keep } else { Fate::Free }
        })
        .unwrap();
    }
    asked.sort_unstable_by_key(|offset| offset.raw());
    let mut both = [keep.cast(), drops.cast()];
    both.sort_unstable_by_key(|offset| offset.raw());
    assert_eq!(asked, both);
    assert_eq!(region.audit().unwrap().used(), 1);
    drop(thread);
    let next = region.thread().unwrap();
    assert!(next.intent().unwrap().iter().all(|word| word.load(Relaxed) == 0));
    cell::free(&next, keep).unwrap();
    assert!(region.audit().unwrap().is_sound());
}

#[test]
fn after_a_sweepers_death_the_next_sweeps() {
    let region = Region::<Native>::heap(&small()).unwrap();
    let killed = region.another().unwrap();
    std::mem::forget(killed.thread().unwrap());
    killed.die();
    let sweeper = region.another().unwrap();
    let dead = sweeper.dead_threads().unwrap().next().expect("a dead thread");
    sweeper.die();
    assert_eq!(region.sweep(), Ok(1));
    let next = region.thread().unwrap();
    assert_eq!(next.number(), dead.number(), "the slot was not freed");
    std::mem::forget(dead);
    // One dropped half way is found again too.
    let third = region.another().unwrap();
    std::mem::forget(third.thread().unwrap());
    third.die();
    drop(region.dead_threads().unwrap().next().expect("a dead thread"));
    assert_eq!(region.sweep(), Ok(1));
}

#[test]
fn slots_are_reused_and_their_number_is_a_typed_limit() {
    let region = Region::private(&Options { threads: 4, ..small() }).unwrap();
    for round in 1..=100u32 {
        let threads: Vec<_> = (0..4).map(|_| region.thread().unwrap()).collect();
        assert!(threads.iter().all(|thread| thread.generation() == Ok(round)));
        assert_eq!(region.thread().err(), Some(Error::Threads(4)));
        assert_eq!(region.threads().count(), 4);
    }
    assert_eq!(region.threads().count(), 0);
    let others: Vec<_> = (0..7).map(|_| region.another().unwrap()).collect();
    assert_eq!(region.another().err(), Some(Error::Processes(8)));
    let generation = others[0].process().unwrap().1;
    drop(others);
    assert_eq!(region.another().unwrap().process(), Ok((1, generation + 1)));
}

#[test]
fn a_thread_holds_seven_cells_at_most() {
    let region = Region::private(&small()).unwrap();
    let thread = region.thread().unwrap();
    let mut cells: Vec<_> = (0..7).map(|_| thread.alloc::<Words>().unwrap()).collect();
    assert_eq!(thread.alloc::<Words>().err(), Some(Error::InHand(7)));
    cells.remove(3).publish();
    cells.push(thread.alloc::<Words>().unwrap());
    assert_eq!(thread.alloc::<Words>().err(), Some(Error::InHand(7)));
    drop(cells);
    assert_eq!(region.audit().unwrap().used(), 1);
}

#[test]
fn options_that_make_no_sense_are_named() {
    let with = |change: fn(&mut Options)| {
        let mut options = small();
        change(&mut options);
        Region::private(&options).err()
    };
    assert_eq!(with(|o| o.processes = 0), Some(Error::Options("processes")));
    assert_eq!(with(|o| o.threads = 1 << 20), Some(Error::Options("threads")));
    assert_eq!(with(|o| o.waiters = 70_000), Some(Error::Options("waiters")));
    assert_eq!(with(|o| o.limit = 100), Some(Error::Options("limit")));
    assert_eq!(with(|o| o.limit = u64::MAX), Some(Error::Options("limit")));
}
