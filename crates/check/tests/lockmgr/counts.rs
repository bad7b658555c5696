//! Counts are exact or an error: of waiting conversions, of locks passed on, of forgotten tasks.

use core::future::Future;
use core::task::{Context, Waker};

use latchwork_check::left;
use latchwork_lockmgr::{
    Error, Manager, Owner, Step, Wait, granular, shared,
    shared::{S, X},
};
use latchwork_machine::Native;
use latchwork_region::Region;

fn take(owner: &Owner<'_>, times: u32) {
    for _ in 0..times {
        owner.lock(b"x", S).unwrap();
    }
}

#[test]
fn a_traded_lock_keeps_its_count() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let (a, b) = (session.owner().unwrap(), session.owner().unwrap());
    take(&a, 65_535);
    take(&b, 65_535);
    a.trade(b"x", &b).unwrap();
    assert_eq!(a.holds(b"x"), Ok(None));
    assert_eq!(b.holds(b"x"), Ok(Some((S, 131_070))));
    // It cannot lock more itself, but it can inherit a child's lock.
    assert_eq!(b.lock(b"x", S), Err(Error::Count));
    let child = b.child().unwrap();
    take(&child, 65_535);
    child.inherit().unwrap();
    drop(child);
    assert_eq!(b.holds(b"x"), Ok(Some((S, 196_605))));
    for left in (0..196_605).rev() {
        b.unlock(b"x").unwrap();
        if left % 65_536 == 0 || left < 2 {
            let held = (left != 0).then_some((S, left));
            assert_eq!(b.holds(b"x"), Ok(held));
        }
    }
    assert_eq!(b.unlock(b"x"), Err(Error::NotHeld));
    drop((a, b));
    left::nothing_in(&session);
}

/// More conversions on one name than 16 bits can count, if `count` is large enough.
fn conversions(count: usize) {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let holder = session.owner().unwrap();
    let owners: Vec<_> = (0..count).map(|_| session.owner().unwrap()).collect();
    holder.lock(b"x", granular::S).unwrap();
    for owner in &owners {
        owner.lock(b"x", granular::IS).unwrap();
        assert_eq!(owner.request(b"x", granular::IX, Wait::Detect), Ok(Step::Waiting));
    }
    holder.release_all().unwrap();
    for owner in &owners {
        assert_eq!(owner.poll(), Ok(Some(Ok(()))), "a conversion was lost");
    }
    drop((holder, owners));
    left::nothing_in(&session);
}

#[test]
fn conversions_of_one_name_are_counted() {
    conversions(300);
}

#[test]
#[ignore = "long: a minute and more"]
fn more_conversions_of_one_name_than_16_bits_count() {
    conversions(65_536);
}

/// The threads that call wakers in this process, and its address space in bytes.
fn wakers_and_bytes() -> (usize, u64) {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(Result::unwrap);
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    let wakers = names.filter(|name| name.starts_with("latchwork-waker")).count();
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    (wakers, pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096)
}

/// Waiting futures are forgotten, with or without their owners: the threads that would wake them
/// end, and the managers' memory is unmapped.
#[test]
fn forgotten_futures_hold_neither_threads_nor_memory() {
    const EACH: u64 = 1 << 36;
    let before = wakers_and_bytes().1;
    for with_owner in [false, true] {
        for _ in 0..10 {
            let options = latchwork_region::Options { limit: EACH, ..Default::default() };
            let region = Region::<Native>::private(&options).unwrap();
            let manager =
                Manager::new(region, shared::modes(), latchwork_check::early::early()).unwrap();
            let session = manager.session().unwrap();
            let (holder, waiter) = (session.owner().unwrap(), session.owner().unwrap());
            holder.lock(b"x", X).unwrap();
            let mut future = Box::pin(waiter.lock_async(b"x", X));
            assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            core::mem::forget(future);
            if with_owner {
                core::mem::forget(waiter);
            }
        }
    }
    // No timeout: the loop ends when the threads have ended.
    while wakers_and_bytes().0 != 0 || wakers_and_bytes().1 > before + EACH {
        std::thread::sleep(core::time::Duration::from_millis(5));
    }
}
