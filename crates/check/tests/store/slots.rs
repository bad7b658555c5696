//! Thread slots: which objects hold them, which are released for others, and the error when none is
//! left.

use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;

use latchwork_disk::{Disk, Simulated};
use latchwork_machine::Native;
use latchwork_store::{Error, Mode, Store};

use crate::stage::{TABLE, begin, begin_in, sizes};

fn nested(store: &Store<Native>, depth: u32) -> Result<u32, Error> {
    match depth {
        0 => Ok(0),
        _ => store.read(|_| Ok(nested(store, depth - 1)? + 1)),
    }
}

/// Slots that a thread or a pooled session no longer needs are available to others.
#[test]
fn unneeded_thread_slots_are_available_to_others() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    store.put(&TABLE, b"a", b"1").unwrap();
    assert_eq!(nested(&store, 40), Ok(40));
    assert!(nested(&store, 60).is_err(), "the store has 48 slots");
    drop((0..40).map(|_| store.snapshot().unwrap()).collect::<Vec<_>>());
    let all = Barrier::new(44);
    thread::scope(|scope| {
        for number in 0..44u8 {
            let (store, all) = (&store, &all);
            scope.spawn(move || {
                let put = store.put(&TABLE, &[number], b"1");
                all.wait();
                put.unwrap();
            });
        }
    });
}

/// Pooled sessions of idle processes leave slots to others.
#[test]
fn idle_processes_leave_slots_to_others() {
    let disk = Simulated::new();
    let (region, first) = begin_in(&disk, sizes(Mode::None)).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let join = |_| {
        let path = Path::new("/home/store");
        let store = Store::in_region_with(&region, &disk, path, &sizes(Mode::None), 1).unwrap();
        let had: Vec<_> = (0..6).map(|_| store.snapshot().unwrap()).collect();
        drop(had);
        store
    };
    let all: Vec<_> = (0..12).map(join).collect();
    let held = region.threads().count();
    assert!((12..=40).contains(&held), "{held} slots of 48 are held");
    // The next object uses the pooled session.
    drop(all[0].snapshot().unwrap());
    assert_eq!(region.threads().count(), held);
    drop((all, first));
}

#[test]
fn a_missing_slot_is_an_error() {
    let store = begin(&Simulated::new(), Mode::None).unwrap();
    let mut held = Vec::new();
    let full = loop {
        match store.begin() {
            Ok(tx) => held.push(tx),
            Err(why) => break why,
        }
    };
    assert_eq!(full, Error::Threads { limit: 48, here: 48 });
    assert!(full.to_string().contains("thread slots are held, 48 by this process"), "{full}");
    assert_eq!(store.read(|_| Ok(())), Err(full), "other calls return the same error");
    held.pop();
    store.read(|_| Ok(())).unwrap();
}

/// A tool keeps its session while it runs, whatever its progress closure does with the store.
#[test]
fn a_tool_keeps_its_session() {
    let disk = Simulated::new();
    let (region, store) = begin_in(&disk, sizes(Mode::None)).unwrap();
    store.put(&TABLE, b"a", b"1").unwrap();
    let held = || region.threads().count();
    let own: Arc<dyn Disk> = Arc::new(disk.clone());
    let copies = |depth: u32| {
        let folder = format!("/home/copy{depth}");
        own.make_folder(Path::new(&folder)).unwrap();
        let mut told = 0;
        let copied = store.backup_on(&own, Path::new(&folder), &mut |_| {
            let before = held();
            store.put(&TABLE, &[depth as u8], b"2").unwrap();
            assert!(held() >= before, "{depth}: the copy has lost its session");
            told += 1;
        });
        assert!(copied.unwrap().pages > 0 && told > 0);
        Ok(())
    };
    copies(0).unwrap();
    // A thread that needs no more sessions keeps no more than these.
    store.write(|_| copies(1)).unwrap();
    store.write(|_| store.write(|_| copies(2))).unwrap();
    store.write(|_| store.write(|_| store.write(|_| copies(3)))).unwrap();
    store.verify().unwrap();
}
