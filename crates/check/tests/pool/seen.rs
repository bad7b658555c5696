//! Proof that a read stores nothing to memory that other threads load: it runs on mappings without
//! the right to write.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_check::folder::Folder;
use latchwork_disk::System;
use latchwork_machine::Shared;
use latchwork_pool::{Error, FileSpec, Options, Pool};
use latchwork_region::{AreaOptions, Options as RegionOptions, Region};

fn options() -> Options {
    Options { frames: 64, frames_max: 64, frame_bytes: 1024, ..Options::default() }
}

fn region_options() -> RegionOptions {
    RegionOptions { limit: 16 << 20, ..RegionOptions::default() }
}

/// The signal that kills a child which runs `work`, if any.
fn killed_by(work: impl FnOnce()) -> Option<i32> {
    // SAFETY: the child uses its own handles only and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the default action needs no handler.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the child without running its parent's destructors.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(libc::WIFSIGNALED(status) || libc::WEXITSTATUS(status) == 0, "the child failed");
    libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
}

fn view(path: &Path) -> Pool<Shared> {
    let region = Region::<Shared>::view(path, &region_options()).unwrap();
    Pool::open(&region, Arc::new(System::new()), &options()).unwrap()
}

/// Every kind of warm read. Only pages 0 to 3 change.
fn read_all(seen: &Pool<Shared>, rounds: u64) {
    let looker = seen.looker();
    let file = seen.file_id(0).unwrap();
    let (mut bytes, mut words) = ([0; 100], [0; 10]);
    for page in (0..rounds).map(|round| round % 40) {
        let value = looker.read(file, page, |view| {
            let first = view.word(2)?;
            (3..view.len()).all(|index| view.word(index) == Some(first)).then_some(first)
        });
        // For a page that changes all the time a read may take the shared latch, which is a store.
        match value {
            Ok(value) => assert_eq!(value >> 32, page),
            Err(Error::View) => assert!(page < 4),
            Err(other) => panic!("{other}"),
        }
        let still = 4 + page % 36;
        let snapshot = looker.optimistic(file, still).unwrap();
        snapshot.view().bytes(17, &mut bytes).unwrap();
        snapshot.view().copy(20, &mut words).unwrap();
        assert!(snapshot.validate() && snapshot.lsn() == 0);
        assert_eq!(words, [still << 32; 10]);
    }
    let sparse = seen.file_id(1).unwrap();
    for page in 0..20 {
        let value = looker.read(sparse, page << 20, |view| view.word(2));
        assert_eq!(value, Ok(page), "through the hash table");
    }
    assert!(looker.counted().reads >= rounds * 3 / 2, "the optimistic path was taken");
    assert_eq!(looker.write(file, 3).map(drop), Err(Error::View));
    assert_eq!(looker.sync(0, &mut |_| {}), Err(Error::View));
    assert_eq!(looker.read(file, 50, |view| view.word(2)), Err(Error::View), "not there");
    assert_eq!(seen.list().unwrap().count(), 60);
}

/// Changes pages 0 to 3 until told to end.
fn change_some(region: &Region<Shared>, pool: &Pool<Shared>, over: &AtomicBool) {
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = pool.file_id(0).unwrap();
    while !over.load(Relaxed) {
        for page in 0..4 {
            let mut held = handle.write(file, page).unwrap();
            let next = held.word(2).unwrap() + 1;
            held.begin(0);
            (2..held.len()).for_each(|index| assert!(held.set(index, next)));
            held.commit();
        }
    }
}

#[test]
fn warm_reads_of_every_kind_run_on_memory_that_cannot_be_stored_to() {
    let folder = Folder::new("readonly");
    let (path, data) = (folder.0.join("region"), folder.0.join("data"));
    let region = Region::create(&path, &region_options()).unwrap();
    let pool = Pool::open(&region, Arc::new(System::new()), &options()).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let file = handle.file(&FileSpec { page_bytes: 1024, ..FileSpec::new(&data) }).unwrap();
    for page in 0..40u64 {
        let mut held = handle.new_page(file).unwrap();
        held.begin(0);
        (2..held.len()).for_each(|index| assert!(held.set(index, page << 32)));
        held.commit();
    }
    let spec = FileSpec { page_bytes: 1024, ..FileSpec::new(folder.0.join("sparse")) };
    let sparse = handle.file(&FileSpec { sparse: true, ..spec }).unwrap();
    for page in 0..20u64 {
        let mut held = handle.create(sparse, page << 20).unwrap();
        held.begin(0);
        assert!(held.set(2, page));
        held.commit();
    }
    // A concurrent writer, so that reads are torn and restart.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| change_some(&region, &pool, &over));
        read_all(&view(&path), 20_000);
        over.store(true, Relaxed);
    });
    // The control: on the same mappings a store kills the process and a read does not.
    assert_eq!(killed_by(|| read_all(&view(&path), 2_000)), None);
    for name in ["pool-head", "pool-xlat", "pool-desc", "pool-frames"] {
        let stores = killed_by(|| {
            let region = Region::<Shared>::view(&path, &region_options()).unwrap();
            let some = AreaOptions { first: 1, limit: 1 << 20, huge: false };
            region.area(name, &some).unwrap().word(5).unwrap().store(1, Relaxed);
        });
        assert_eq!(stores, Some(libc::SIGSEGV), "{name}");
    }
}

/// Removes or restores the write permission of this process's mappings of files in the directory.
/// Returns the number of mappings.
fn writable(folder: &Path, yes: bool) -> usize {
    let (had, rights) = if yes { ("r--s", libc::PROT_WRITE) } else { ("rw-s", 0) };
    let hex = |text: &str| usize::from_str_radix(text, 16).unwrap();
    let mut changed = 0;
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let Some(file) = words.get(5).filter(|_| words[1] == had) else { continue };
        if Path::new(file).starts_with(folder) {
            let (from, to) = words[0].split_once('-').unwrap();
            let at = core::ptr::without_provenance_mut(hex(from));
            // SAFETY: a mapping of this process, which stays readable.
            let done = unsafe { libc::mprotect(at, hex(to) - hex(from), libc::PROT_READ | rights) };
            assert_eq!(done, 0, "{file}");
            changed += 1;
        }
    }
    changed
}

/// A thread with write permission stores nothing while it reads either: neither in the pool nor in
/// the region with its slot. Reads are counted in steps of thousands, each a store to its slot, so
/// this test makes fewer.
#[test]
fn warm_reads_of_a_thread_that_may_write_store_nothing() {
    let folder = Folder::new("ordinary");
    let region = Region::create(folder.0.join("region"), &region_options()).unwrap();
    let pool = Pool::<Shared>::open(&region, Arc::new(System::new()), &options()).unwrap();
    let thread = region.thread().unwrap();
    let first = pool.handle(&thread).unwrap();
    let spec = FileSpec { page_bytes: 1024, ..FileSpec::new(folder.0.join("data")) };
    let file = first.file(&spec).unwrap();
    for page in 0..40u64 {
        let mut held = first.new_page(file).unwrap();
        held.begin(0);
        (2..held.len()).for_each(|index| assert!(held.set(index, page << 32)));
        held.commit();
        // Often enough to set its reference mark, which later reads find set.
        for _ in 0..64 {
            first.read(file, page, |view| view.word(2)).unwrap();
        }
    }
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let pin = handle.pin(file, 7).unwrap();
    let counted = handle.counted();
    let taken = writable(&folder.0, false);
    let (mut bytes, mut words) = ([0; 100], [0; 10]);
    for page in (0..2_000).map(|round| round % 40) {
        let value = page << 32;
        assert_eq!(handle.read(file, page, |view| view.word(2)), Ok(value));
        let (all, known) =
            handle.read_known(file, page, |view| Some(view.run(2, 20)?.sum::<u64>())).unwrap();
        assert_eq!(all, 20 * value);
        assert!(known.validate());
        let snapshot = handle.try_optimistic(file, page).unwrap();
        snapshot.view().bytes(17, &mut bytes).unwrap();
        snapshot.view().copy(20, &mut words).unwrap();
        assert!(snapshot.validate() && words == [value; 10]);
        assert_eq!(pin.read(|view| view.word(9)), Ok(7 << 32));
    }
    let after = handle.counted();
    assert_eq!(writable(&folder.0, true), taken);
    // The region and the pool's four areas, each in one or more mappings.
    assert!(taken >= 5, "{taken} mappings");
    assert!(after.reads > counted.reads + 6_000, "{after:?}");
    let stored = after.marked + after.slow + after.fallbacks + after.restarts;
    assert_eq!(stored, counted.marked + counted.slow + counted.fallbacks + counted.restarts);
}

/// The child of a fork has no frames: a handle that remembers the frame of a page does not use it.
#[test]
fn the_child_of_a_fork_is_refused() {
    let folder = Folder::new("forked");
    let region = Region::create(folder.0.join("region"), &region_options()).unwrap();
    let pool = Pool::<Shared>::open(&region, Arc::new(System::new()), &options()).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let spec = FileSpec { page_bytes: 1024, ..FileSpec::new(folder.0.join("data")) };
    let file = handle.file(&spec).unwrap();
    let mut held = handle.new_page(file).unwrap();
    held.begin(0);
    held.commit();
    assert_eq!(handle.read(file, 0, |view| view.word(2)), Ok(0));
    let forked = Error::Region(latchwork_region::Error::Forked);
    let ended = killed_by(|| {
        assert_eq!(handle.read(file, 0, |view| view.word(2)), Err(forked.clone()));
        assert!(handle.try_optimistic(file, 0).is_none());
        assert_eq!(handle.write(file, 0).map(drop), Err(forked.clone()));
    });
    assert_eq!(ended, None);
    assert_eq!(handle.read(file, 0, |view| view.word(2)), Ok(0));
}

/// A thread's resources at a fork belong to the parent. The child drops them without a store, since
/// the memory is not mapped.
#[test]
fn the_child_of_a_fork_drops_its_parents_objects() {
    let folder = Folder::new("forked-drops");
    let region = Region::create(folder.0.join("region"), &region_options()).unwrap();
    let pool = Pool::<Shared>::open(&region, Arc::new(System::new()), &options()).unwrap();
    let thread = region.thread().unwrap();
    let handle = pool.handle(&thread).unwrap();
    let spec = FileSpec { page_bytes: 1024, ..FileSpec::new(folder.0.join("data")) };
    let file = handle.file(&spec).unwrap();
    for _ in 0..4 {
        let mut held = handle.new_page(file).unwrap();
        held.begin(0);
        held.commit();
    }
    let mut pin = Some(handle.pin(file, 0).unwrap());
    let mut held = [1, 2, 3].map(|page| Some(handle.write(file, page).unwrap()));
    held[1].as_mut().unwrap().begin(0);
    held[2].as_mut().unwrap().intend();
    assert_eq!(killed_by(|| drop(pin.take())), None);
    assert_eq!(killed_by(|| held.iter_mut().for_each(|held| drop(held.take()))), None);
    assert_eq!(pool.pins().count(), 1);
    held[1].take().unwrap().commit();
    drop((pin, held));
    assert_eq!(pool.pins().count(), 0);
    let read = |page| handle.read(file, page, |view| view.word(2));
    assert!((1..4).all(|page| read(page) == Ok(0)));
}
