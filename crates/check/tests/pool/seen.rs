//! The proof that a read stores nothing that others load: it runs where storing is death.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_disk::System;
use latchwork_machine::Shared;
use latchwork_pool::{Error, FileSpec, Options, Pool};
use latchwork_region::{AreaOptions, Options as RegionOptions, Region};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pool-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options() -> Options {
    Options { frames: 64, frames_max: 64, frame_bytes: 1024, ..Options::default() }
}

fn region_options() -> RegionOptions {
    RegionOptions { limit: 16 << 20, ..RegionOptions::default() }
}

/// How a child that does this ends: the signal that killed it, or none.
fn killed_by(work: impl FnOnce()) -> Option<i32> {
    // SAFETY: the child touches its own openings only, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the default action needs no handler.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the child without running what belongs to its parent.
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

/// Every kind of warm read, of a page none of whose words changes but on pages 0 to 3.
fn read_all(seen: &Pool<Shared>, rounds: u64) {
    let looker = seen.looker();
    let file = seen.file_id(0).unwrap();
    let (mut bytes, mut words) = ([0; 100], [0; 10]);
    for page in (0..rounds).map(|round| round % 40) {
        let value = looker.read(file, page, |view| {
            let first = view.word(2)?;
            (3..view.len()).all(|index| view.word(index) == Some(first)).then_some(first)
        });
        // A page that is changed all the time may ask for the shared latch, which is a store.
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
    assert!(looker.counted().reads >= rounds * 3 / 2, "the optimistic path was taken");
    assert_eq!(looker.write(file, 3).map(drop), Err(Error::View));
    assert_eq!(looker.sync(0, &mut |_| {}), Err(Error::View));
    assert_eq!(looker.read(file, 50, |view| view.word(2)), Err(Error::View), "not there");
    assert_eq!(seen.list().unwrap().count(), 40);
}

/// Changes pages 0 to 3 until told.
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
    // A writer at work, so that reads are torn and begin again.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| change_some(&region, &pool, &over));
        read_all(&view(&path), 20_000);
        over.store(true, Relaxed);
    });
    // The control: on the same mappings a store is death, and reading is not.
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
