//! Removal of files.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;

use latchwork_check::random::Random;
use latchwork_check::stops::stop_at;
use latchwork_disk::{Disk, Fault, Operation, Simulated};
use latchwork_machine::Native;
use latchwork_pool::{Error, FileId, FileSpec, Handle, PageMut, Pool};

use super::pages::{Scratch, fill, make, options, pool, region, value};
use super::points::{at_points, hooked};

#[test]
fn a_removed_files_number_is_reused() {
    let (first, stays) = (Scratch::new("goes"), Scratch::new("stays"));
    let region = region();
    let pool = pool(&region, &options(64));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let stays = handle.file(&stays.spec()).unwrap();
    make(&handle, stays, 20);
    let mut last = None;
    // More often than an entry has generations, so the numbers wrap around.
    for round in 0..300u64 {
        let sparse = round % 3 == 2;
        let file = handle.file(&FileSpec { sparse, ..first.spec() }).unwrap();
        let number = file.number();
        assert_ne!(Some(number), last, "as the last one");
        assert_eq!((number % 256, u64::from(number / 256)), (1, round % 127));
        if let Some(last) = last {
            assert_eq!(pool.file_id(last), Err(Error::NoFile(last)));
        }
        // Sometimes more than the pool has frames; some are free at the end.
        let pages = 5 + round % 100;
        for page in 0..pages {
            let mut held = handle.new_page(file).unwrap();
            assert_eq!(held.page(), page, "round {round}: not a new file");
            held.begin(0);
            assert!(held.set(2, round << 32 | page));
            held.commit();
        }
        for page in 0..pages {
            let seen = handle.read(file, page, |view| view.word(2));
            assert_eq!(seen, Ok(round << 32 | page));
        }
        if !sparse {
            handle.free_page(file, 3).unwrap();
        }
        assert!(first.0.exists());
        handle.remove_file(file).unwrap();
        assert!(!first.0.exists());
        last = Some(number);
        let gone = Error::NoFile(number);
        assert_eq!(value(&handle, file, 0), Err(gone.clone()));
        assert_eq!(handle.new_page(file).map(drop), Err(gone.clone()));
        assert_eq!(handle.create(file, 0).map(drop), Err(gone.clone()));
        assert_eq!(handle.free_page(file, 0), Err(gone.clone()));
        assert_eq!(handle.remove_file(file), Err(gone));
        assert_eq!(pool.files().unwrap().len(), 1);
    }
    assert!(pool.list().unwrap().all(|frame| frame.page.0 == stays.number()));
    assert_eq!(pool.verify().unwrap().flaws, [""; 0]);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    (0..20).for_each(|page| assert_eq!(value(&handle, stays, page), Ok(page)));
}

/// A name of a removed file does not find the pages of the file in its place.
#[test]
fn an_old_name_finds_nothing_of_the_next_file() {
    let (scratch, next) = (Scratch::new("old-name"), Scratch::new("old-name-next"));
    let region = region();
    let pool = pool(&region, &options(64));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let old = handle.file(&scratch.spec()).unwrap();
    make(&handle, old, 4);
    let snapshot = handle.optimistic(old, 1).unwrap();
    handle.remove_file(old).unwrap();
    assert!(!snapshot.validate());
    assert!(handle.upgrade(&snapshot).unwrap().is_none());
    let new = handle.file(&next.spec()).unwrap();
    make(&handle, new, 4);
    assert_eq!((old.number(), new.number()), (0, 256));
    for page in 0..4 {
        assert_eq!(value(&handle, old, page), Err(Error::NoFile(0)));
        assert!(handle.try_optimistic(old, page).is_none());
        assert_eq!(value(&handle, new, page), Ok(page));
    }
    // A process that had the old file open writes to the new one.
    fill(&handle, new, 2, 77);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    handle.discard(new, 2).unwrap();
    assert_eq!(value(&handle, new, 2), Ok(77));
    assert_eq!(std::fs::metadata(&next.0).unwrap().len(), 4 * 1024);
}

/// A thread brings a page in or creates one while the file is removed: the page does not remain.
#[test]
fn a_page_read_during_a_removal_is_removed() {
    for (sparse, made) in [(false, false), (false, true), (true, false), (true, true)] {
        let scratch = Scratch::new("meanwhile");
        let region = region();
        let pool = pool(&region, &options(64));
        let thread = region.thread().unwrap();
        let handle = pool.handle(&thread).unwrap();
        let file = handle.file(&FileSpec { sparse, ..scratch.spec() }).unwrap();
        for page in 0..4 {
            fill_new(&handle, file, page);
        }
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
        (0..4).for_each(|page| handle.discard(file, page).unwrap());
        // It has a frame for the page, which has no entry yet.
        let ((reached, wait), (go, told), (ends, ended)) =
            (channel(), channel::<()>(), channel::<()>());
        std::thread::scope(|scope| {
            let (pool, region) = (&pool, &region);
            scope.spawn(move || {
                let stopped = AtomicBool::new(false);
                at_points(move |point| {
                    if point == "evict.claimed" && !stopped.swap(true, Relaxed) {
                        reached.send(()).unwrap();
                        told.recv().unwrap();
                    }
                });
                let thread = region.thread().unwrap();
                let handle = pool.handle(&thread).unwrap();
                let make = |mut page: PageMut<'_, '_, Native>| {
                    page.begin(0);
                    page.commit();
                    0
                };
                let found = match made {
                    true => handle.create(file, 2).map(make),
                    false => value(&handle, file, 2),
                };
                drop(ends);
                assert_eq!(found, Err(Error::NoFile(file.number())));
            });
            wait.recv().unwrap();
            // The pages are removed, and the file still has its place.
            at_points(move |point| {
                if point == "remove.emptied" {
                    let _ = go.send(());
                    let _ = ended.recv();
                }
            });
            handle.remove_file(file).unwrap();
            at_points(|_| ());
        });
        assert_eq!(pool.list().unwrap().count(), 0, "a page stayed");
        assert_eq!(pool.verify().unwrap().flaws, [""; 0]);
    }
}

fn fill_new(handle: &Handle<'_>, file: FileId, page: u64) {
    let mut held = handle.create(file, page).unwrap();
    held.begin(0);
    (2..held.len()).for_each(|index| assert!(held.set(index, page)));
    held.commit();
}

/// A process used a place long ago and still has that file open. Its number now belongs to another
/// file.
#[test]
fn a_number_that_comes_back_is_another_file() {
    let (region, folder) = (region(), Scratch::new("comes-back"));
    std::fs::create_dir(&folder.0).unwrap();
    let pool = pool(&region, &options(16));
    let another = region.another().unwrap();
    let peer = super::pages::pool(&another, &options(16));
    let (thread, theirs) = (region.thread().unwrap(), another.thread().unwrap());
    let (handle, theirs) = (pool.handle(&thread).unwrap(), peer.handle(&theirs).unwrap());
    let spec = |name: &str| FileSpec { page_bytes: 1024, ..FileSpec::new(folder.0.join(name)) };
    let first = theirs.file(&spec("first")).unwrap();
    fill_new(&theirs, first, 0);
    theirs.clean(1).unwrap();
    handle.remove_file(first).unwrap();
    for _ in 0..126 {
        let file = handle.file(&spec("between")).unwrap();
        assert_ne!(file.number(), first.number());
        handle.remove_file(file).unwrap();
    }
    let last = handle.file(&spec("last")).unwrap();
    assert_eq!(last.number(), first.number());
    fill_new(&handle, last, 3);
    // The peer writes out the page that was created here.
    assert_eq!(theirs.clean(1), Ok(1));
    let written = std::fs::metadata(folder.0.join("last")).unwrap().len();
    assert_eq!(written, 4 * 1024, "it went into the file that is gone");
    handle.discard(last, 3).unwrap();
    assert_eq!(value(&handle, last, 3), Ok(3));
    drop((handle, theirs));
    std::fs::remove_dir_all(&folder.0).unwrap();
}

/// A thread opens a path whose file is being removed: it gets a new file, whose name remains.
#[test]
fn a_path_that_is_being_removed_is_a_new_file() {
    hooked();
    let scratch = Scratch::new("new-file");
    let region = region();
    let pool = pool(&region, &options(16));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let old = handle.file(&scratch.spec()).unwrap();
    make(&handle, old, 5);
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    let (armed, stopped) = stop_at("remove.marked");
    let new = std::thread::scope(|scope| {
        let (region, pool) = (&region, &pool);
        scope.spawn(move || {
            let thread = region.thread().unwrap();
            let handle = pool.handle(&thread).unwrap();
            armed.here();
            handle.remove_file(old).unwrap();
        });
        stopped.wait();
        let new = handle.file(&scratch.spec()).unwrap();
        assert_eq!(pool.pages(new), Ok(0), "the old file's pages were counted");
        fill_new(&handle, new, 0);
        stopped.go_on();
        new
    });
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    assert_eq!(std::fs::metadata(&scratch.0).unwrap().len(), 1024, "it has no name");
    assert_eq!(value(&handle, new, 0), Ok(0));
}

/// A thread that holds a page opens a file while another waits for that page to remove its file.
#[test]
fn a_thread_with_a_page_may_open_files_during_a_removal() {
    hooked();
    let (held, other) = (Scratch::new("held"), Scratch::new("held-other"));
    let region = region();
    let pool = pool(&region, &options(16));
    let (thread, mine) = (region.thread().unwrap(), region.thread().unwrap());
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&held.spec()).unwrap();
    make(&handle, file, 2);
    let (armed, stopped) = stop_at("remove.marked");
    let (done, told) = channel::<()>();
    std::thread::scope(|scope| {
        let (pool, region) = (&pool, &region);
        scope.spawn(move || {
            let handle = pool.handle(&mine).unwrap();
            let page = handle.write(file, 1).unwrap();
            let spec = other.spec();
            scope.spawn(move || {
                let thread = region.thread().unwrap();
                let handle = pool.handle(&thread).unwrap();
                armed.here();
                handle.remove_file(file).unwrap();
            });
            stopped.wait();
            stopped.go_on();
            // Time for the other thread to reach the page.
            std::thread::sleep(std::time::Duration::from_millis(100));
            handle.file(&spec).unwrap();
            drop(done);
            drop(page);
        });
        // Far above any expected time: waiting forever must be a failure.
        let ended = told.recv_timeout(std::time::Duration::from_secs(60));
        if ended != Err(std::sync::mpsc::RecvTimeoutError::Disconnected) {
            eprintln!("two threads wait for each other");
            std::process::abort();
        }
    });
}

/// Calls that began with an existing file and continue after another file has its place have no
/// effect on that file.
#[test]
fn a_late_call_does_nothing_to_the_next_file() {
    type Call = fn(&Handle<'_>, FileId) -> Result<(), Error>;
    let calls: [(&str, Call); 5] = [
        ("free.wanted", |handle, file| handle.free_page(file, 1)),
        ("free.marked", |handle, file| handle.free_page(file, 1)),
        ("free.linked", |handle, file| handle.free_page(file, 1)),
        ("free.seen", |handle, file| handle.new_page(file).map(drop)),
        ("free.had", |handle, file| handle.new_page(file).map(drop)),
    ];
    hooked();
    for (step, call) in calls {
        let (scratch, next) = (Scratch::new("late"), Scratch::new("late-next"));
        let region = region();
        let pool = pool(&region, &options(64));
        let thread = region.thread().unwrap();
        let handle = pool.handle(&thread).unwrap();
        let old = handle.file(&scratch.spec()).unwrap();
        make(&handle, old, 6);
        handle.free_page(old, 5).unwrap();
        let (armed, stopped) = stop_at(step);
        let new = std::thread::scope(|scope| {
            let (region, pool) = (&region, &pool);
            let late = scope.spawn(move || {
                let thread = region.thread().unwrap();
                let handle = pool.handle(&thread).unwrap();
                armed.here();
                call(&handle, old)
            });
            stopped.wait();
            handle.remove_file(old).unwrap();
            let new = handle.file(&next.spec()).unwrap();
            make(&handle, new, 6);
            handle.free_page(new, 5).unwrap();
            handle.sync(u64::MAX, &mut |_| {}).unwrap();
            // They are on disk only, except for the page whose entry this call had, which a store
            // would read from its frame.
            let left = |page: &u64| *page != 1 || step != "free.linked";
            (0..5).filter(left).for_each(|page| handle.discard(new, page).unwrap());
            stopped.go_on();
            assert_eq!(late.join().unwrap(), Err(Error::NoFile(old.number())), "{step}");
            new
        });
        let known = (pool.free_pages(new), pool.pages(new));
        assert_eq!(known, (Ok(1), Ok(6)), "{step}");
        (0..5).for_each(|page| assert_eq!(value(&handle, new, page), Ok(page), "{step}"));
        assert_eq!(handle.new_page(new).map(|page| page.page()), Ok(5), "{step}");
        let gone = Error::NoFile(old.number());
        assert_eq!(pool.extend(old, 100), Err(gone.clone()));
        assert_eq!((pool.pages(old), pool.free_pages(old)), (Err(gone.clone()), Err(gone.clone())));
        assert_eq!(pool.file_stats(old), Err(gone.clone()));
        assert_eq!((handle.discard(old, 2), handle.take_next(old)), (Err(gone.clone()), Err(gone)));
        assert_eq!(pool.pages(new), Ok(6));
        assert_eq!(pool.verify().unwrap().flaws, [""; 0], "{step}");
    }
}

/// A thread frees a page while its file is removed, and is late: the next file has no mark of it.
#[test]
fn a_page_that_is_freed_meanwhile_leaves_no_mark() {
    hooked();
    let scratch = Scratch::new("freed-late");
    let region = region();
    let pool = pool(&region, &options(16));
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let old = handle.file(&scratch.spec()).unwrap();
    make(&handle, old, 4);
    let (armed, stopped) = stop_at("free.wanted");
    let (ends, ended) = channel::<()>();
    std::thread::scope(|scope| {
        let (region, pool) = (&region, &pool);
        let late = scope.spawn(move || {
            let thread = region.thread().unwrap();
            let handle = pool.handle(&thread).unwrap();
            armed.here();
            let freed = handle.free_page(old, 1);
            drop(ends);
            freed
        });
        stopped.wait();
        let go_on = std::cell::Cell::new(Some(stopped));
        // The marks are removed, and the file still has its place.
        at_points(move |point| {
            if point == "remove.emptied" {
                drop(go_on.take());
                let _ = ended.recv();
            }
        });
        handle.remove_file(old).unwrap();
        at_points(|_| ());
        assert_eq!(late.join().unwrap(), Err(Error::NoFile(old.number())));
    });
    let new = handle.file(&scratch.spec()).unwrap();
    make(&handle, new, 4);
    assert_eq!(value(&handle, new, 1), Ok(1));
}

/// Threads create, use and remove their own files in a pool that is too small for them.
#[test]
fn threads_remove_files_concurrently() {
    let region = region();
    let pool = pool(&region, &options(32));
    std::thread::scope(|scope| {
        for seed in 0..4u64 {
            let (pool, region) = (&pool, &region);
            scope.spawn(move || {
                let thread = region.thread().unwrap();
                let handle = pool.handle(&thread).unwrap();
                let mut random = Random(seed + 5);
                for round in 0..100 {
                    let scratch = Scratch::new(&format!("beside-{seed}"));
                    let sparse = random.below(2) == 0;
                    let file = handle.file(&FileSpec { sparse, ..scratch.spec() }).unwrap();
                    let pages: Vec<u64> = (0..20).map(|page| page * (1 + seed)).collect();
                    pages.iter().for_each(|page| fill_new(&handle, file, *page));
                    for page in &pages {
                        assert_eq!(value(&handle, file, *page), Ok(*page), "round {round}");
                    }
                    handle.remove_file(file).unwrap();
                }
            });
        }
    });
    assert_eq!(pool.list().unwrap().count(), 0);
    assert_eq!(pool.files().unwrap().len(), 0);
    assert_eq!(pool.verify().unwrap().flaws, [""; 0]);
}

fn spec(name: &str) -> FileSpec {
    FileSpec { page_bytes: 1024, ..FileSpec::new(Path::new("/data").join(name)) }
}

fn disk() -> Simulated {
    let disk = Simulated::new();
    disk.make_folder(Path::new("/data")).unwrap();
    disk
}

/// A thread has synced a file and reports it after the file was removed and another has its place.
#[test]
fn a_late_sync_does_not_affect_the_next_file() {
    hooked();
    let (region, disk) = (region(), disk());
    let pool: Pool = Pool::open(&region, Arc::new(disk.clone()), &options(16)).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let old = handle.file(&spec("old")).unwrap();
    (0..10).for_each(|page| fill_new(&handle, old, page));
    let (armed, stopped) = stop_at("sync.done");
    std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            let thread = region.thread().unwrap();
            let handle = pool.handle(&thread).unwrap();
            armed.here();
            handle.sync(u64::MAX, &mut |_| {})
        });
        stopped.wait();
        handle.remove_file(old).unwrap();
        let new = handle.file(&spec("new")).unwrap();
        assert_eq!(new.number() % 256, old.number() % 256);
        fill_new(&handle, new, 0);
        stopped.go_on();
        assert_eq!(late.join().unwrap(), Ok(()));
    });
    let syncs = || disk.history().iter().filter(|call| **call == Operation::Sync).count();
    let before = syncs();
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    assert_eq!(syncs(), before + 1, "the written pages are not durable");
}

/// A page left half changed by a dead thread is removed with its file. No callback rebuilds it.
#[test]
fn a_half_changed_page_is_removed_with_its_file() {
    for sparse in [false, true] {
        let scratch = Scratch::new("half");
        let region = region();
        let pool = pool(&region, &options(16));
        let (thread, dies) = (region.thread().unwrap(), region.thread().unwrap());
        let handle = pool.handle(&thread).unwrap();
        let file = handle.file(&FileSpec { sparse, ..scratch.spec() }).unwrap();
        (0..4).for_each(|page| fill_new(&handle, file, page));
        {
            let handle = pool.handle(&dies).unwrap();
            let mut held = handle.write(file, 2).unwrap();
            held.begin(0);
            std::mem::forget(held);
            // And a page whose change was abandoned long ago.
            let mut held = handle.write(file, 3).unwrap();
            held.begin(0);
        }
        drop(dies);
        handle.remove_file(file).unwrap();
        assert_eq!(pool.list().unwrap().count(), 0);
        assert_eq!(pool.verify().unwrap().flaws, [""; 0]);
        let file = handle.file(&scratch.spec()).unwrap();
        make(&handle, file, 30);
        assert_eq!(value(&handle, file, 2), Ok(2));
    }
}

/// A disk fails to delete a file: other files are unaffected, and its path is refused until the
/// deletion succeeds.
#[test]
fn a_file_that_cannot_be_deleted_does_not_affect_others() {
    let (region, disk) = (region(), disk());
    let pool: Pool = Pool::open(&region, Arc::new(disk.clone()), &options(16)).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&spec("stays")).unwrap();
    make(&handle, file, 3);
    // The next call is the deletion.
    let fail = || disk.plan(disk.history().len() as u64, Fault::Device);
    fail();
    let refused = handle.remove_file(file);
    assert!(matches!(refused, Err(Error::Disk(_))), "{refused:?}");
    assert_eq!(value(&handle, file, 0), Err(Error::NoFile(0)));
    let other = handle.file(&spec("other")).unwrap();
    assert_eq!(other.number(), 1);
    make(&handle, other, 20);
    // It tries again.
    fail();
    handle.sync(u64::MAX, &mut |_| {}).unwrap();
    fail();
    assert!(matches!(handle.file(&spec("stays")), Err(Error::Disk(_))));
    // Now it succeeds.
    let again = handle.file(&spec("stays")).unwrap();
    assert_eq!((again.number(), pool.pages(again)), (256, Ok(0)));
    make(&handle, again, 3);
    assert_eq!(pool.files().unwrap().len(), 2);
}
