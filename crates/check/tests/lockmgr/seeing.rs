//! The counters of a session, and the last deadlocks as a view shows them.

use std::sync::Barrier;
use std::time::Duration;

use latchwork_check::cell::image;
use latchwork_lockmgr::{
    Deadlock, Error, Link, Manager, Mode, Options, Owner, OwnerOptions, Session, Stats, Step, View,
    WAIT_CLASSES, Wait, Waits, granular,
    granular::{IS, IX, S, X},
};
use latchwork_machine::{Machine, Native};
use latchwork_region::Region;

fn region() -> Region {
    Region::private(&latchwork_region::Options::default()).unwrap()
}

/// A manager in which deadlocks are detected only on request.
fn calm(region: Region) -> Manager {
    let options =
        Options { detect_after: Duration::from_secs(3600), ..latchwork_check::early::early() };
    Manager::new(region, granular::modes(), options).unwrap()
}

fn labelled<'s>(session: &'s Session, label: &str) -> Owner<'s> {
    session.owner_with(&OwnerOptions { label, ..OwnerOptions::default() }).unwrap()
}

/// Owners that hold one object each and wait for the next one's; then the cycle is broken. Returns
/// the victim's report.
fn cycle(session: &Session, names: &[Vec<u8>]) -> Vec<Link> {
    let owners: Vec<_> =
        (0..names.len()).map(|at| labelled(session, &format!("owner {at}"))).collect();
    for (owner, name) in owners.iter().zip(names) {
        owner.lock(name, X).unwrap();
    }
    for (at, owner) in owners.iter().enumerate() {
        let next = &names[(at + 1) % names.len()];
        assert_eq!(owner.request(next, X, Wait::Detect), Ok(Step::Waiting));
    }
    assert_eq!(session.detect(), Ok(1));
    let ends: Vec<_> = owners.iter().filter_map(|owner| owner.poll().unwrap()).collect();
    let told = ends.into_iter().filter_map(|end| match end {
        Err(Error::Deadlock(cycle)) => Some(cycle.links),
        _ => None,
    });
    let mut told: Vec<_> = told.collect();
    assert_eq!(told.len(), 1, "one victim");
    told.remove(0)
}

fn names(count: usize, length: usize) -> Vec<Vec<u8>> {
    (0..count).map(|at| format!("{at:0length$}").into_bytes()).collect()
}

fn seen(manager: &Manager) -> Vec<Deadlock> {
    View::new(manager.region().clone()).unwrap().unwrap().deadlocks().unwrap()
}

#[test]
fn locks_granted_at_once_are_not_counted_as_waits() {
    let manager = calm(region());
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    for (name, mode) in [(&b"a"[..], IX), (b"b", IS), (b"a/1", X), (b"b/1", S)] {
        owner.lock(name, mode).unwrap();
    }
    let stats = session.stats();
    let weak = if Native::heavy_barrier() { 2 } else { 0 };
    assert_eq!((stats.requests, stats.weak, stats.granted), (4, weak, 4 - weak));
    assert_eq!(stats.waits, 0);
    assert_eq!(session.waits(), Waits::new());
    assert!((stats.fast_share() - weak as f64 / 4.0).abs() < 1e-9);
    assert!((Stats::default().fast_share() - 1.0).abs() < 1e-9);
}

#[test]
fn each_wait_is_counted_by_its_mode_and_its_end() {
    let manager = calm(region());
    let session = manager.session().unwrap();
    let (holder, waiter) = (session.owner().unwrap(), session.owner().unwrap());
    holder.lock(b"x", X).unwrap();
    // A wait that is granted.
    assert_eq!(waiter.request(b"x", S, Wait::Detect), Ok(Step::Waiting));
    holder.release_all().unwrap();
    assert_eq!(waiter.poll(), Ok(Some(Ok(()))));
    // A conversion that is withdrawn counts in the mode that it would have had.
    holder.lock(b"x", S).unwrap();
    assert_eq!(waiter.request(b"x", IX, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(waiter.cancel(), Ok(true));
    // A timeout.
    let end = waiter.lock_timeout(b"x", X, Duration::from_millis(3));
    assert_eq!(end, Err(Error::TimedOut));
    // An owner that is killed.
    assert_eq!(waiter.request(b"x", X, Wait::Detect), Ok(Step::Waiting));
    session.kill(waiter.id()).unwrap();
    assert!(matches!(waiter.poll(), Ok(Some(Err(Error::Aborted(_))))));
    drop((waiter, holder));
    let links = cycle(&session, &names(3, 4));
    assert_eq!(links.len(), 3);

    let stats = session.stats();
    // In the cycle one owner is the victim. A second was granted the victim's lock. The third
    // withdrew when it was dropped, or was granted after the others had ended.
    assert_eq!((stats.waits, stats.timeouts, stats.aborted, stats.victims), (7, 1, 1, 1));
    let waits = session.waits();
    let all: u64 = waits.modes().map(|mode| waits.count(mode)).sum();
    assert_eq!(all, 7, "each wait must end once: {waits:?}");
    assert_eq!((waits.count(S), waits.count(granular::SIX), waits.count(X)), (1, 1, 5));
    assert!(waits.longest(X) >= 3_000_000, "the wait of 3 ms is missing: {}", waits.longest(X));
    assert!(waits.sum(X) >= waits.longest(X) && waits.count(IS) == 0);

    let mut sum = stats;
    sum += stats;
    assert_eq!((sum.waits, sum.timeouts, sum.requests), (14, 2, 2 * stats.requests));
    let mut merged = waits.clone();
    merged.merge(&waits);
    assert_eq!((merged.count(X), merged.sum(S)), (10, 2 * waits.sum(S)));
    assert_eq!(merged.longest(X), waits.longest(X));
}

#[test]
fn classes_are_powers_of_two() {
    let mut waits = Waits::new();
    let lengths = [0, 1, 2, 3, 4, 1023, 1024, 1 << 39, u64::MAX];
    let classes = [0, 0, 1, 1, 2, 9, 10, 39, 39];
    let mut counts = [0u64; WAIT_CLASSES];
    for (ns, class) in lengths.into_iter().zip(classes) {
        waits.add(S, ns);
        counts[class] += 1;
    }
    assert_eq!(waits.classes(S), counts);
    assert_eq!(waits.quantile(S, 0.0), 1);
    assert_eq!(waits.quantile(S, 0.5), 7);
    assert_eq!(waits.quantile(S, 1.0), u64::MAX);
    waits.add(Mode::new(200), 5);
    assert_eq!(waits.modes().collect::<Vec<_>>(), [S]);
    assert_eq!((waits.count(Mode::new(200)), waits.quantile(X, 0.9)), (0, 0));
}

#[test]
fn partitions_add_up() {
    let manager = calm(region());
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    for at in 0..3000u32 {
        owner.lock(&at.to_le_bytes(), X).unwrap();
    }
    let other = session.owner().unwrap();
    assert_eq!(other.request(&7u32.to_le_bytes(), S, Wait::Detect), Ok(Step::Waiting));
    let (totals, parts) = (session.totals().unwrap(), session.partition_totals().unwrap());
    assert_eq!(parts.iter().map(|p| p.objects).sum::<u64>(), 3000);
    assert_eq!(parts.iter().map(|p| p.requests).sum::<u64>(), totals.requests);
    assert_eq!(parts.iter().filter(|p| p.waiting == 1).count(), 1);
    let view = View::new(manager.region().clone()).unwrap().unwrap();
    let viewed = view.partitions().unwrap();
    let of_session = parts.iter().map(|p| (p.number, p.objects, p.idle, p.requests, p.waiting));
    let of_view = viewed.iter().map(|p| (p.number, p.objects, p.idle, p.requests, p.waiting));
    assert!(of_session.eq(of_view));
    let picture = view.look().unwrap();
    assert_eq!((picture.owners_ever, picture.waits_ever), (2, 1));
}

#[test]
fn the_last_sixteen_deadlocks_are_kept() {
    let manager = calm(region());
    let session = manager.session().unwrap();
    assert_eq!(seen(&manager), []);
    let told: Vec<_> = (0..20).map(|at| cycle(&session, &names(2 + at % 5, 5 + at))).collect();
    let kept = seen(&manager);
    assert_eq!(kept.iter().map(|d| d.number).collect::<Vec<_>>(), (5..=20).collect::<Vec<_>>());
    for (deadlock, links) in kept.iter().zip(&told[4..]) {
        assert_eq!(deadlock.owners as usize, links.len());
        let cycle: Vec<_> = deadlock.cycle.iter().map(|waiter| waiter.link.clone()).collect();
        assert_eq!(&cycle, links, "the record must equal the victim's report");
        for waiter in &deadlock.cycle {
            assert!(waiter.label.starts_with("owner "));
            assert_eq!(waiter.name_length, waiter.link.object.len());
            assert_eq!(waiter.thread.unwrap().thread, 0);
            assert_eq!(waiter.thread.unwrap().pid, Some(std::process::id()));
        }
        assert_eq!(deadlock.finder, deadlock.cycle[0].thread);
        assert!(deadlock.ago.is_some() && deadlock.at > 1_600_000_000_000_000_000);
    }
    let view = View::new(manager.region().clone()).unwrap().unwrap();
    assert_eq!(view.deadlocks_ever(), Ok(20));
    assert_eq!(view.verify(Some(&granular::modes())).unwrap().flaws, Vec::<String>::new());
}

#[test]
fn long_cycles_and_long_names_are_kept_as_far_as_they_fit() {
    let manager = calm(region());
    let blocks = latchwork_check::left::blocks(&manager);
    let session = manager.session().unwrap();
    for (owners, length, kept) in [(30, 64, 30), (700, 20, 700), (3000, 200, 600)] {
        let told = cycle(&session, &names(owners, length));
        let last = seen(&manager).pop().unwrap();
        assert_eq!(last.owners as usize, owners);
        assert!(last.cycle.len() >= kept && last.cycle.len() <= owners, "{}", last.cycle.len());
        for (waiter, link) in last.cycle.iter().zip(&told) {
            assert_eq!(waiter.link.owner, link.owner);
            assert_eq!(waiter.name_length, length);
            // A record has 64 bytes of few names; the victim's report has part of each link.
            assert_eq!(waiter.link.object.len(), length.min(64));
            let both = waiter.link.object.len().min(link.object.len());
            assert_eq!(waiter.link.object[..both], link.object[..both]);
        }
    }
    // Repeated, so that records of each size replace records of each other size.
    for at in 0..40 {
        cycle(&session, &names([2, 30, 700][at % 3], 8));
    }
    assert_eq!(seen(&manager).len(), 16);
    drop(session);
    let audit = manager.region().audit().unwrap();
    assert!(audit.is_sound());
    // Only records have 512 bytes. Whole blocks are also used by the manager.
    let of = |owners: u32| (28..44).filter(|n| [2, 30, 700][(n - 4) % 3] == owners).count() as u64;
    assert_eq!(audit.of(512).used, of(2));
    assert_eq!(audit.of(65_472).used, blocks + of(700));
}

#[test]
fn a_concurrent_reader_sees_complete_cycles_only() {
    let manager = calm(region());
    let (start, over) = (Barrier::new(2), std::sync::atomic::AtomicBool::new(false));
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = manager.session().unwrap();
            start.wait();
            for round in 0..3000 {
                cycle(&session, &names(2 + round % 9, 6));
            }
            over.store(true, relaxed);
        });
        let view = View::new(manager.region().clone()).unwrap().unwrap();
        start.wait();
        let mut read = 0;
        while !over.load(relaxed) {
            for deadlock in view.deadlocks().unwrap() {
                let owners = 2 + (deadlock.number - 1) % 9;
                assert_eq!(u64::from(deadlock.owners), owners);
                assert_eq!(deadlock.cycle.len() as u64, owners);
                for (waiter, next) in deadlock.cycle.iter().zip(deadlock.cycle.iter().skip(1)) {
                    let number = |label: &str| label["owner ".len()..].parse::<u64>().unwrap();
                    assert_eq!(number(&next.label), (number(&waiter.label) + 1) % owners);
                    assert_eq!(
                        waiter.link.object,
                        format!("{:06}", number(&next.label)).as_bytes()
                    );
                }
                read += 1;
            }
        }
        assert!(read > 16, "read only {read}");
    });
}

#[test]
fn records_of_arbitrary_bytes_do_no_harm() {
    let options = latchwork_region::Options { limit: 6 << 20, ..Default::default() };
    let manager = calm(Region::<Native>::heap(&options).unwrap());
    let session = manager.session().unwrap();
    for at in 0..16 {
        cycle(&session, &names(2 + at, 9));
    }
    drop(session);
    let image = image(manager.region());
    let read = |image: &[u8]| {
        let view = View::new(Region::<Native>::from_image(image).ok()?).ok()??;
        let found = view.deadlocks();
        let _ = view.verify(None);
        found.ok()
    };
    assert_eq!(read(&image).unwrap().len(), 16);
    // Records are found by their labels.
    let spots: Vec<_> =
        (0..image.len() - 8).step_by(8).filter(|at| &image[*at..*at + 6] == b"owner ").collect();
    let history_at = (0..image.len() - 136)
        .step_by(8)
        .find(|at| image[*at..*at + 8] == 16u64.to_ne_bytes() && is_history(&image[*at + 8..]))
        .unwrap();
    let mut seed = 0x9e37_79b9u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let (mut fewer, mut failed) = (0, 0);
    for round in 0..1500 {
        let mut wrong = image.clone();
        for _ in 0..1 + round % 3 {
            let at = if random() % 2 == 0 {
                history_at + random() as usize % 17 * 8
            } else {
                spots[random() as usize % spots.len()].saturating_sub(random() as usize % 9 * 8)
            };
            let value = match random() % 4 {
                0 => u64::MAX,
                1 => random(),
                2 => random() >> (random() % 64),
                _ => 1 << (random() % 64),
            };
            wrong[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        match read(&wrong) {
            Some(found) => {
                assert!(found.len() <= 16);
                fewer += u32::from(found.len() < 16);
            }
            None => failed += 1,
        }
    }
    assert!(fewer > 200, "damaged records must be left out: {fewer} times, failed {failed} times");
}

/// Returns whether these bytes contain the offsets of sixteen small records.
fn is_history(bytes: &[u8]) -> bool {
    let words = bytes.chunks_exact(8).take(16).map(|b| u64::from_ne_bytes(b.try_into().unwrap()));
    let mut count = 0;
    words.filter(|word| *word as u32 != 0 && word >> 32 <= 2).for_each(|_| count += 1);
    count == 16
}
