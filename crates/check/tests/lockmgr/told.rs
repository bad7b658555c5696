//! Deadlock reports contain the whole cycle or say how much is missing. Deadlocks are broken and
//! requests withdrawn even in a full region.

use core::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use latchwork_check::left;
use latchwork_lockmgr::{
    Cycle, Error, Manager, Owner, Session, Step, Wait, shared,
    shared::{S, X},
};
use latchwork_machine::Native;
use latchwork_region::Region;

/// A name of this length.
fn name(number: usize, length: usize) -> Vec<u8> {
    let mut name = format!("{number:08}").into_bytes();
    name.resize(length, b'.');
    name
}

/// Makes owners wait for each other's names in a cycle, and returns the victim's report.
fn cycle_of(session: &Session, owners: usize, length: usize) -> Cycle {
    let all: Vec<Owner<'_>> = (0..owners).map(|_| session.owner().unwrap()).collect();
    for (number, owner) in all.iter().enumerate() {
        owner.lock(&name(number, length), X).unwrap();
    }
    for (number, owner) in all.iter().enumerate() {
        let next = name((number + 1) % owners, length);
        assert_eq!(owner.request(&next, X, Wait::Detect), Ok(Step::Waiting));
    }
    assert_eq!(session.detect(), Ok(1));
    let ends = all.iter().filter_map(|owner| owner.poll().unwrap());
    let told: Vec<Cycle> = ends
        .filter_map(|end| if let Err(Error::Deadlock(cycle)) = end { Some(cycle) } else { None })
        .collect();
    let [cycle] = &told[..] else { panic!("{} victims", told.len()) };
    assert_eq!(cycle.owners as usize, owners);
    // Each waits for the name that the next one holds.
    for (link, next) in cycle.iter().zip(&cycle[1..]) {
        let number = |link: &latchwork_lockmgr::Link| {
            all.iter().position(|owner| owner.id() == link.owner).unwrap()
        };
        assert_eq!(number(next), (number(link) + 1) % owners);
        let whole = name(number(next), length);
        assert!(whole.starts_with(&link.object) && link.length == length, "{link:?}");
        assert!(link.hard && link.wanted == X && link.held.is_none());
    }
    told[0].clone()
}

#[test]
fn a_report_is_complete_or_says_how_much_is_missing() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    // Owners, length of a name, whether the report is whole, and how many links it lacks.
    let cases = [
        (2, 8, true, 0),
        (2, 4000, true, 0),
        (16, 4000, true, 0),
        (17, 4000, false, 0),
        (1000, 40, true, 0),
        (1000, 200, false, 0),
        (4091, 8, false, 0),
        (4200, 8, false, 109),
    ];
    for (owners, length, whole, missing) in cases {
        let cycle = cycle_of(&session, owners, length);
        assert_eq!(cycle.is_whole(), whole, "{owners} owners, {length} bytes");
        assert_eq!(cycle.missing(), missing, "{owners} owners, {length} bytes");
        assert_eq!(cycle.links.len(), owners - missing);
        let said = Error::Deadlock(cycle).to_string();
        assert_eq!(said.contains("more of 4200 owners"), missing != 0);
        left::nothing_in(&session);
    }
}

/// A manager in a region that is soon full.
fn small() -> Manager {
    let options = latchwork_region::Options { limit: 6 << 20, ..Default::default() };
    let region = Region::<Native>::private(&options).unwrap();
    Manager::new(region, shared::modes(), latchwork_check::early::early()).unwrap()
}

/// Locks names until the region is full, and unlocks a few: room for requests, but for no block.
fn fill(owner: &Owner<'_>) {
    let taken = (0..).find(|at| owner.try_lock(&name(*at, 8), X).is_err()).unwrap();
    for at in 0..16.min(taken) {
        owner.unlock(&name(at, 8)).unwrap();
    }
}

#[test]
fn a_deadlock_is_broken_in_a_full_region() {
    let manager = small();
    let session = manager.session().unwrap();
    for round in 0..3 {
        let (a, b, filler) =
            (session.owner().unwrap(), session.owner().unwrap(), session.owner().unwrap());
        a.lock(b"a", X).unwrap();
        b.lock(b"b", X).unwrap();
        fill(&filler);
        assert_eq!(a.request(b"b", X, Wait::Detect), Ok(Step::Waiting));
        // The younger owner is the victim; its wait ends with a report.
        let Err(Error::Deadlock(cycle)) = b.lock(b"a", X) else { panic!("no victim") };
        assert_eq!((cycle.owners, cycle.missing()), (2, 2 - cycle.links.len()));
        if round == 0 {
            assert!(cycle.links.is_empty(), "the region had room for a report: nothing was tested");
            assert!(Error::Deadlock(cycle).to_string().contains("2 more of 2 owners"));
        }
        b.release_all().unwrap();
        assert_eq!(a.poll(), Ok(Some(Ok(()))));
        drop((a, b, filler));
        left::nothing_in(&session);
    }
}

/// The sweep of a waiter meets damage. The waiter gets an error and its request is withdrawn.
#[test]
fn a_wait_that_fails_leaves_no_request() {
    let options = latchwork_region::Options::default();
    let region = Region::<Native>::private(&options).unwrap();
    let manager = Manager::new(region, shared::modes(), latchwork_check::early::early()).unwrap();
    let dying = manager.region().another().unwrap();
    let other =
        Manager::new(dying.clone(), shared::modes(), latchwork_check::early::early()).unwrap();
    let (session, aborted) = (manager.session().unwrap(), other.session().unwrap());
    let (holder, waiter) = (session.owner().unwrap(), session.owner().unwrap());
    holder.lock(b"x", S).unwrap();
    waiter.lock(b"x", S).unwrap();
    holder.lock(b"y", X).unwrap();
    // The killed thread's intent says that it frees a request at an invalid offset.
    let slot = manager.region().threads().last().unwrap().slot;
    manager.region().intent(slot).unwrap()[0].store(1 << 32 | 0xffff_fff0, Relaxed);
    dying.die();
    let far = Duration::from_secs(600);
    for round in 0..3 {
        // A new request, and a conversion.
        for name in [b"y", b"x"] {
            let end = waiter.lock_timeout(name, X, far);
            assert!(matches!(end, Err(Error::Region(_))), "{round}: {end:?}");
            let waiting = session.totals().unwrap().waiting;
            assert_eq!(waiting, 0, "{round}: the request is queued still");
        }
        assert_eq!(waiter.holds(b"x"), Ok(Some((S, 1))));
        waiter.lock(b"z", X).unwrap();
        waiter.unlock(b"z").unwrap();
    }
    core::mem::forget(aborted);
}
