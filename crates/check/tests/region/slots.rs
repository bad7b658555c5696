//! Thread slots are claimed and released. Every free slot is found, whatever the hint is.

use std::mem::forget;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_check::random::Random;
use latchwork_machine::Native;
use latchwork_region::{Error, Options, Region, Thread};

const SLOTS: u32 = 300;

fn region() -> Region<Native> {
    let (processes, threads, waiters, limit) = (8, SLOTS, 8, 64 << 20);
    Region::heap(&Options { processes, threads, waiters, limit, ..Options::default() }).unwrap()
}

fn claim(region: &Region<Native>, count: u32) -> Vec<Thread<Native>> {
    (0..count).map(|_| region.thread().unwrap()).collect()
}

/// Claims all slots and checks that there is no further one.
fn all(region: &Region<Native>) -> Vec<Thread<Native>> {
    let threads = claim(region, SLOTS);
    let mut numbers: Vec<_> = threads.iter().map(Thread::number).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..SLOTS));
    assert_eq!(region.thread().err(), Some(Error::Threads(SLOTS)));
    threads
}

/// The hint of the next free slot: after the length, the blocks, and three other words.
fn hint(region: &Region<Native>) -> &AtomicU32 {
    let places = region.places();
    let (header, ..) = places.iter().find(|(.., name)| name == "header").unwrap();
    // SAFETY: a word of the header, which is mapped for as long as the region is borrowed.
    unsafe { &*((header + 128 + 12) as *const AtomicU32) }
}

#[test]
fn the_lowest_is_claimed() {
    let region = region();
    let mut threads = all(&region);
    let mut random = Random(9);
    for _ in 0..2000 {
        let count = 1 + random.below(5) as usize;
        let mut freed: Vec<_> = (0..count)
            .map(|_| threads.swap_remove(random.below(threads.len() as u64) as usize).number())
            .collect();
        freed.sort_unstable();
        let got = claim(&region, count as u32);
        assert!(got.iter().map(Thread::number).eq(freed), "it is not the lowest");
        threads.extend(got);
    }
    drop(threads);
    all(&region);
}

#[test]
fn slots_of_dead_threads_are_found() {
    let region = region();
    for round in 0..3 {
        let process = region.another().unwrap();
        let living = claim(&region, 10 * (round + 1));
        all_but(&process, living.len() as u32).into_iter().for_each(forget);
        process.die();
        assert_eq!(region.thread().err(), Some(Error::Threads(SLOTS)));
        drop(living);
        assert_eq!(region.sweep(), Ok((SLOTS - 10 * (round + 1)) as usize));
        assert_eq!(region.thread().unwrap().number(), 0);
        all(&region);
    }
}

fn all_but(region: &Region<Native>, held: u32) -> Vec<Thread<Native>> {
    claim(region, SLOTS - held)
}

/// A wrong hint, or a hint that a killed thread did not store.
#[test]
fn the_hint_may_be_wrong() {
    let region = region();
    for wrong in [0, 7, SLOTS - 1, SLOTS, SLOTS + 1, 0xffff, u32::MAX, 1 << 16] {
        for held in [0, 5, SLOTS - 1] {
            let threads = claim(&region, held);
            hint(&region).store(wrong, Relaxed);
            let rest = all_but(&region, held);
            assert_eq!(region.thread().err(), Some(Error::Threads(SLOTS)));
            drop((threads, rest));
            hint(&region).store(wrong, Relaxed);
            all(&region);
        }
    }
    // `hint` returns that word.
    let threads = claim(&region, 20);
    assert_eq!(hint(&region).load(Relaxed) & 0xffff, 20);
    drop(threads);
    assert_eq!(hint(&region).load(Relaxed) & 0xffff, 0);
}

/// Slots that are briefly kept free, and slots that a layer claims by number, are not lost.
#[test]
fn slots_that_are_claimed_by_number_come_back() {
    let region = region();
    let threads = claim(&region, 4);
    let third = region.thread_at(7).unwrap().unwrap();
    region.while_free(4, || assert_eq!(region.thread().unwrap().number(), 5)).unwrap().unwrap();
    assert_eq!(region.thread().unwrap().number(), 4);
    let more = claim(&region, 4);
    assert!(more.iter().map(Thread::number).eq([4, 5, 6, 8]));
    drop(third);
    assert_eq!(region.thread().unwrap().number(), 7);
    drop((threads, more));
    all(&region);
}

/// Threads claim and release concurrently: no slot has two owners, and none is lost.
#[test]
fn many_come_and_go() {
    let region = region();
    let held: Vec<_> = (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|scope| {
        for me in 0..4u64 {
            let (region, held) = (&region, &held);
            scope.spawn(move || {
                let mut random = Random(me + 1);
                for _ in 0..2000 {
                    let threads = claim(region, 1 + random.below(60) as u32);
                    for thread in &threads {
                        assert_eq!(held[thread.number() as usize].fetch_add(1, Relaxed), 0);
                    }
                    for thread in threads {
                        held[thread.number() as usize].fetch_sub(1, Relaxed);
                    }
                }
            });
        }
    });
    all(&region);
}
