//! Many threads request a page that is not in the pool: one of them reads it from disk.

use std::sync::Arc;

use latchwork_check::stops::{Armed, Stopped, stop_at};
use latchwork_disk::{Disk, Operation, System};
use latchwork_machine::Native;
use latchwork_pool::{Error, FileId, FileSpec, FrameInfo, Pool};
use latchwork_region::Region;

use super::pages::{Scratch, make, options, region, value};
use super::points::hooked;

const READERS: usize = 12;
const PAGES: u64 = 40;

/// A pool without any page of its file, and a disk that counts calls.
struct Cold {
    region: Region<Native>,
    disk: Arc<System>,
    pool: Pool,
    file: FileId,
}

impl Cold {
    fn new(scratch: &Scratch) -> Self {
        Self::of(&scratch.spec())
    }

    fn of(spec: &FileSpec) -> Self {
        hooked();
        let written = region();
        let pool = super::pages::pool(&written, &options(64));
        let thread = written.thread().unwrap();
        let handle = pool.handle(&thread).unwrap();
        let file = handle.file(spec).unwrap();
        make(&handle, file, PAGES);
        handle.sync(u64::MAX, &mut |_| {}).unwrap();
        let (region, disk) = (region(), Arc::new(System::new()));
        let pool = Pool::open(&region, disk.clone(), &options(64)).unwrap();
        let thread = region.thread().unwrap();
        let file = pool.handle(&thread).unwrap().file(spec).unwrap();
        drop(thread);
        Self { region, disk, pool, file }
    }

    fn reads(&self) -> u64 {
        self.disk.calls()[Operation::Read]
    }

    /// Reads a page in a new thread and returns the page with the numbers of disk reads and
    /// failures. The thread stops where `armed` says, and calls `looked` when it has found the page
    /// missing.
    fn read(&self, page: u64, armed: Option<Armed>, looked: &dyn Fn()) -> Read {
        let thread = self.region.thread().unwrap();
        let handle = self.pool.handle(&thread).unwrap();
        if let Some(armed) = armed {
            armed.here();
        }
        assert!(handle.try_optimistic(self.file, page).is_none(), "the page is in the pool");
        looked();
        let found = value(&handle, self.file, page);
        let counted = handle.counted();
        Read { found, faults: counted.faults, failed: counted.failed }
    }
}

struct Read {
    found: Result<u64, Error>,
    faults: u64,
    failed: u64,
}

/// Readers that all stop at this step after finding the page missing, and then all continue.
fn together(cold: &Cold, page: u64, step: &'static str) -> Vec<Read> {
    let (armed, stopped): (Vec<Armed>, Vec<Stopped>) = (0..READERS).map(|_| stop_at(step)).unzip();
    std::thread::scope(|scope| {
        let read = |armed| scope.spawn(move || cold.read(page, Some(armed), &|| ()));
        let readers: Vec<_> = armed.into_iter().map(read).collect();
        stopped.iter().for_each(Stopped::wait);
        drop(stopped);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    })
}

#[test]
fn readers_that_all_took_a_frame_for_one_page_read_it_once() {
    for sparse in [false, true] {
        let scratch = Scratch::new("cold-frames");
        all_took_a_frame(&Cold::of(&FileSpec { sparse, ..scratch.spec() }));
    }
}

fn all_took_a_frame(cold: &Cold) {
    for page in 3..9 {
        let before = cold.reads();
        let readers = together(cold, page, "fault.tagged");
        assert!(readers.iter().all(|read| read.found == Ok(page)));
        assert_eq!(readers.iter().map(|read| read.faults).sum::<u64>(), 1);
        assert_eq!(cold.reads() - before, 1, "the disk was asked more than once");
        let whole = |frame: FrameInfo| frame.state == "valid" && frame.holder.is_none();
        assert!(cold.pool.list().unwrap().all(whole), "a frame was not given back");
    }
    assert!(cold.pool.verify().unwrap().flaws.is_empty());
}

#[test]
fn readers_that_come_while_a_page_is_read_wait_for_it() {
    let scratch = Scratch::new("cold-wait");
    let cold = Cold::new(&scratch);
    let (cold, page) = (&cold, 7);
    // Before the call of the disk, and after it.
    for (page, step) in [(page, "fault.published"), (page + 1, "fault.read")] {
        let before = cold.reads();
        let (armed, stopped) = stop_at(step);
        let (looked, looks) = std::sync::mpsc::channel();
        let readers: Vec<_> = std::thread::scope(|scope| {
            let first = scope.spawn(move || cold.read(page, Some(armed), &|| ()));
            stopped.wait();
            let follow = |_| {
                let looked = looked.clone();
                scope.spawn(move || cold.read(page, None, &|| looked.send(()).unwrap()))
            };
            let others: Vec<_> = (1..READERS).map(follow).collect();
            // Each has found the page missing.
            (1..READERS).for_each(|_| looks.recv().unwrap());
            assert_eq!(cold.reads() - before, u64::from(step == "fault.read"));
            stopped.go_on();
            let all = others.into_iter().chain([first]);
            all.map(|reader| reader.join().unwrap()).collect()
        });
        assert!(readers.iter().all(|read| read.found == Ok(page)));
        assert_eq!(readers.iter().map(|read| read.faults).sum::<u64>(), 1);
        assert_eq!(cold.reads() - before, 1, "the disk was asked more than once");
    }
}

#[test]
fn each_reader_of_a_damaged_page_has_its_own_error() {
    let scratch = Scratch::new("cold-damaged");
    let cold = Cold::new(&scratch);
    scratch.patch(5 * 1024 + 80, &[1, 2, 3]);
    let before = cold.reads();
    let readers = together(&cold, 5, "fault.tagged");
    let damaged = Error::Checksum { file: 0, page: 5 };
    assert!(readers.iter().all(|read| read.found == Err(damaged.clone()) && read.failed == 1));
    assert_eq!(cold.reads() - before, READERS as u64, "an error was handed on");
    assert_eq!(cold.pool.list().unwrap().count(), 0, "a failed read kept a frame");
    let fine = cold.read(6, None, &|| ());
    assert_eq!((fine.found, fine.faults), (Ok(6), 1));
}
