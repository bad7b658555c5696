//! Threads that find a dead thread's page and are stopped between the check and the repair.
//! Then a sweep frees the killed thread's slot, and a new thread claims it and takes the same
//! latch. The new thread's page must not be affected.

use std::cell::RefCell;
use std::mem::forget;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use latchwork_check::folder::Folder;
use latchwork_machine::Shared;
use latchwork_pool::{FileSpec, set_point_hook};
use latchwork_region::Thread;

use super::kills::start;
use super::place::{self, PAGES, Place};

/// A stop of a thread: it reports its arrival and waits to be continued.
pub(super) struct Stop {
    at: &'static str,
    reached: Sender<()>,
    go: Receiver<()>,
}

thread_local! {
    /// Each stops the thread once.
    pub(super) static STOP: RefCell<Vec<Stop>> = const { RefCell::new(Vec::new()) };
}

/// Called at each step of this program's threads.
pub(super) fn at_step(step: &'static str) {
    let stop = STOP.with_borrow_mut(|stops| {
        let here = stops.iter().position(|stop| stop.at == step);
        here.map(|here| stops.remove(here))
    });
    if let Some(stop) = stop {
        stop.reached.send(()).unwrap();
        stop.go.recv().unwrap();
    }
}

/// The other side of a stop.
pub(super) struct Stopped {
    pub(super) reached: Receiver<()>,
    pub(super) go: Sender<()>,
}

pub(super) fn stop(at: &'static str) -> (Stop, Stopped) {
    set_point_hook(place::at_step);
    let ((reached, wait), (go, told)) = (channel(), channel());
    (Stop { at, reached, go: told }, Stopped { reached: wait, go })
}

/// Time for a waiter to do something wrong.
fn pause() {
    std::thread::sleep(Duration::from_millis(150));
}

/// Starts a child that dies at this step, and waits for its death.
fn die(folder: &Folder, step: &str) {
    let ended = start(&folder.0, step, 1, 20_000, 5).wait().unwrap();
    assert_eq!(ended.code(), None, "{step}: not killed");
}

/// The page latched by a thread slot.
fn latched(place: &Place, slot: u32) -> u64 {
    let held = place.pool.list().unwrap().find(|frame| frame.holder == Some(slot));
    held.expect("a page is latched").page.1
}

/// A thread waits for `page`, which the thread of `slot` left latched. Before it takes the latch
/// over, `free` repairs the page, and a new thread claims the slot and latches the page.
fn newcomer_keeps_its_page(
    place: &Place,
    waits: Thread<Shared>,
    slot: u32,
    page: u64,
    free: &dyn Fn(),
) {
    let (stops, stopped) = stop("repair.met");
    let taken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let taken = &taken;
        let waiter = scope.spawn(move || {
            STOP.set(vec![stops]);
            let work = place.work(&waits);
            let held = work.handle.write(work.file, page).unwrap();
            taken.store(true, SeqCst);
            drop(held);
        });
        stopped.reached.recv().unwrap();
        free();
        let thread = place.region.thread().unwrap();
        assert_eq!(thread.number(), slot, "the newcomer has another slot");
        let newcomer = place.work(&thread);
        let held = newcomer.handle.write(newcomer.file, page).unwrap();
        stopped.go.send(()).unwrap();
        pause();
        assert!(!taken.load(SeqCst), "a page was taken from a living thread");
        drop(held);
        waiter.join().unwrap();
        assert!(taken.load(SeqCst));
    });
}

#[test]
fn a_page_is_not_taken_from_the_new_owner_of_a_dead_threads_slot() {
    let folder = Folder::new("meet-dead");
    let place = Place::open(&folder.0, false);
    let thread = place.region.thread().unwrap();
    let work = place.work(&thread);
    work.begin();
    let waits = place.region.thread().unwrap();
    die(&folder, "change.half");
    let page = latched(&place, 2);
    newcomer_keeps_its_page(&place, waits, 2, page, &|| assert_eq!(place.sweep(), 1));
    work.check().unwrap();
}

#[test]
fn a_page_is_not_taken_from_the_new_owner_of_a_released_slot() {
    let folder = Folder::new("meet-forgot");
    let place = Place::open(&folder.0, false);
    let thread = place.region.thread().unwrap();
    let work = place.work(&thread);
    work.begin();
    let (forgets, waits) = (place.region.thread().unwrap(), place.region.thread().unwrap());
    let slot = forgets.number();
    {
        let work = place.work(&forgets);
        forget(work.handle.write(work.file, 3).unwrap());
    }
    drop(forgets);
    newcomer_keeps_its_page(&place, waits, slot, 3, &|| {
        assert_eq!(work.handle.repair(&[slot]), Ok(1));
    });
    work.check().unwrap();
    // Without a new thread the latch is taken over.
    let (forgets, waits) = (place.region.thread().unwrap(), place.region.thread().unwrap());
    {
        let work = place.work(&forgets);
        forget(work.handle.write(work.file, 4).unwrap());
    }
    drop(forgets);
    place.work(&waits).change(4);
    work.check().unwrap();
}

#[test]
fn a_page_that_a_living_thread_changes_is_not_poisoned_for_a_dead_one() {
    let folder = Folder::new("meet-late");
    let place = Place::open(&folder.0, false);
    let thread = place.region.thread().unwrap();
    let work = place.work(&thread);
    work.begin();
    let waits = place.region.thread().unwrap();
    die(&folder, "change.half");
    let page = latched(&place, 2);
    let (stops, stopped) = stop("repair.met");
    std::thread::scope(|scope| {
        let place = &place;
        let waiter = scope.spawn(move || {
            STOP.set(vec![stops]);
            let work = place.work(&waits);
            drop(work.handle.write(work.file, page).unwrap());
        });
        stopped.reached.recv().unwrap();
        // The slot of the killed thread is free from here on, and the page belongs to another.
        assert_eq!(place.sweep(), 1);
        let mut held = work.handle.write(work.file, page).unwrap();
        let lsn = held.lsn();
        held.begin(lsn);
        let frame = held.frame();
        stopped.go.send(()).unwrap();
        pause();
        let state = place.pool.frame(frame).unwrap().state;
        held.commit();
        waiter.join().unwrap();
        assert_eq!(state, "valid", "a living thread's page is poisoned");
    });
    work.check().unwrap();
}

#[test]
fn a_write_is_not_taken_from_the_new_owner_of_a_dead_threads_slot() {
    let folder = Folder::new("meet-writer");
    let place = Place::open(&folder.0, false);
    let thread = place.region.thread().unwrap();
    let work = place.work(&thread);
    work.begin();
    let waits = place.region.thread().unwrap();
    die(&folder, "write.claimed");
    let dirty = || place.pool.list().unwrap().filter(|frame| frame.dirty).count();
    let (stops, stopped) = stop("repair.met");
    let (writes, writing) = stop("write.copied");
    std::thread::scope(|scope| {
        let place = &place;
        let waiter = scope.spawn(move || {
            STOP.set(vec![stops]);
            let work = place.work(&waits);
            work.handle.clean(u32::MAX).unwrap()
        });
        stopped.reached.recv().unwrap();
        assert_eq!(place.sweep(), 1);
        let thread = place.region.thread().unwrap();
        assert_eq!(thread.number(), 2, "the newcomer has another slot");
        let newcomer = scope.spawn(move || {
            let work = place.work(&thread);
            STOP.set(vec![writes]);
            work.handle.clean(1).unwrap()
        });
        writing.reached.recv().unwrap();
        stopped.go.send(()).unwrap();
        waiter.join().unwrap();
        let left = dirty();
        writing.go.send(()).unwrap();
        assert_eq!((left, newcomer.join().unwrap()), (1, 1), "two threads write one page");
        assert_eq!(dirty(), 0);
    });
    work.check().unwrap();
}

#[test]
fn a_reused_free_page_does_not_corrupt_the_free_list() {
    let folder = Folder::new("meet-free");
    let place = Place::open(&folder.0, false);
    let (thread, other) = (place.region.thread().unwrap(), place.region.thread().unwrap());
    let work = place.work(&thread);
    work.begin();
    let have = |work: &place::Work<'_>| {
        let mut page = work.handle.new_page(work.file).unwrap();
        page.begin(0);
        let number = page.page();
        page.commit();
        number
    };
    work.handle.free_page(work.file, 2).unwrap();
    work.handle.free_page(work.file, 1).unwrap();
    let (stops, stopped) = stop("free.seen");
    std::thread::scope(|scope| {
        let place = &place;
        let waiter = scope.spawn(move || {
            STOP.set(vec![stops]);
            have(&place.work(&other))
        });
        stopped.reached.recv().unwrap();
        // It has seen that 1 links to 2.
        let had = (have(&work), have(&work));
        work.handle.free_page(work.file, 1).unwrap();
        stopped.go.send(()).unwrap();
        assert_eq!((had, waiter.join().unwrap()), ((1, 2), 1));
        assert_eq!(have(&work), PAGES, "2 has an owner");
    });
}

#[test]
fn buckets_whose_holder_died_open() {
    for swept in [true, false] {
        let folder = Folder::new(&format!("meet-sparse-{swept}"));
        let place = Place::open(&folder.0, false);
        let thread = place.region.thread().unwrap();
        // The pages of the file exist, and this pool has none of them yet.
        std::fs::write(folder.0.join("data"), vec![0; 512 * PAGES as usize]).unwrap();
        die(&folder, "hash.latched");
        let newcomer = swept.then(|| {
            assert_eq!(place.sweep(), 1);
            place.region.thread().unwrap()
        });
        let (done, told) = channel::<()>();
        let spec = FileSpec { page_bytes: 512, ..FileSpec::new(folder.0.join("first")) };
        let spec = FileSpec { sparse: true, ..spec };
        std::thread::spawn(move || {
            let handle = place.pool.handle(&thread).unwrap();
            let file = handle.file(&spec).unwrap();
            // Enough pages to need each latch.
            for page in 0..1_000 {
                let mut page = handle.create(file, page * page).unwrap();
                page.begin(0);
                page.commit();
            }
            drop(done);
        });
        // Far above any expected time, as below.
        let ended = told.recv_timeout(Duration::from_secs(60));
        assert_eq!(ended, Err(RecvTimeoutError::Disconnected), "{swept}: it waits forever");
        assert!(newcomer.is_none_or(|thread| thread.number() == 1));
    }
}

#[test]
fn a_table_whose_holder_died_opens() {
    for (step, swept) in [("table.latched", true), ("table.latched", false), ("table.chunk", true)]
    {
        let folder = Folder::new(&format!("meet-{step}-{swept}"));
        let place = Place::open(&folder.0, false);
        let thread = place.region.thread().unwrap();
        if step == "table.latched" {
            die(&folder, step);
        } else {
            // The pages of the file exist, and this pool has no chunk for them yet.
            std::fs::write(folder.0.join("data"), vec![0; 512 * PAGES as usize]).unwrap();
            die(&folder, step);
        }
        // A sweep frees the slot, and a living thread without a latch claims it.
        let newcomer = swept.then(|| {
            assert_eq!(place.sweep(), 1);
            place.region.thread().unwrap()
        });
        let (done, told) = channel::<()>();
        let spec = FileSpec { page_bytes: 512, ..FileSpec::new(folder.0.join("first")) };
        std::thread::spawn(move || {
            let handle = place.pool.handle(&thread).unwrap();
            let file = handle.file(&spec).unwrap();
            let mut page = handle.new_page(file).unwrap();
            page.begin(0);
            page.commit();
            drop(done);
        });
        // Far above any expected time: waiting forever must be a failure.
        let ended = told.recv_timeout(Duration::from_secs(60));
        assert_eq!(ended, Err(RecvTimeoutError::Disconnected), "{step}: it waits forever");
        assert!(newcomer.is_none_or(|thread| thread.number() == 1));
    }
}
