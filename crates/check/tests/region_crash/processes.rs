//! Regions opened by several processes, and their state after some are killed.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use latchwork_check::cell::{self, value};
use latchwork_latch::ShflMutex;
use latchwork_machine::Shared;
use latchwork_region::{Error, Fate, Offset, Options, Plain, Region, Thread};

type Words = [AtomicU64; 7];
type Wide = [AtomicU64; 40];

/// A region's file, removed with the test.
struct Path(PathBuf);

impl Path {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("latchwork-{name}-{}", std::process::id())))
    }

    fn open(&self) -> Region<Shared> {
        Region::open_or_create(&self.0, &small()).unwrap()
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn small() -> Options {
    Options { processes: 16, threads: 32, waiters: 32, limit: 256 << 20, ..Options::default() }
}

/// A process that runs `body`.
struct Child(libc::pid_t);

impl Child {
    fn new(body: impl FnOnce()) -> Self {
        // SAFETY: the child runs `body`, which opens its own handles, and ends with `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: it does not return.
            unsafe { libc::_exit(i32::from(done.is_err())) };
        }
        // The child drops the captures of the body, not this process.
        std::mem::forget(body);
        Self(pid)
    }

    fn kill(self) {
        // SAFETY: a child of this process that was not waited for.
        assert_eq!(unsafe { libc::kill(self.0, libc::SIGKILL) }, 0);
        assert_eq!(self.status(), libc::SIGKILL);
    }

    fn status(&self) -> i32 {
        let mut status = 0;
        // SAFETY: a child of this process, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
        status
    }

    /// Waits for its end, which must be successful.
    fn join(self) {
        assert_eq!(self.status(), 0, "the child failed");
    }
}

fn nap() {
    std::thread::sleep(Duration::from_micros(200));
}

fn sleep_for_ever() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Waits until a root is not zero, and returns it.
fn root(region: &Region<Shared>, number: usize) -> u64 {
    loop {
        match region.root(number).unwrap().load(Relaxed) {
            0 => nap(),
            value => return value,
        }
    }
}

#[test]
fn one_grows_and_the_other_follows() {
    let path = Path::new("grow");
    let region = path.open();
    let first = region.len();
    let child = Child::new(|| {
        let region = path.open();
        let thread = region.thread().unwrap();
        let mut last = 0;
        for count in 0..100_000 {
            let cell = thread.alloc::<Words>().unwrap();
            cell[0].store(last, Relaxed);
            cell[1].store(count, Relaxed);
            last = u64::from(cell.publish().raw());
        }
        region.root(1).unwrap().store(last, Release);
    });
    // This process allocates concurrently.
    let thread = region.thread().unwrap();
    let mine: Vec<_> = (0..50_000).map(|_| thread.alloc::<Words>().unwrap().publish()).collect();
    let mut at = root(&region, 1);
    child.join();
    let mut count = 0;
    while at != 0 {
        let offset = Offset::<Words>::from_raw(at as u32);
        let cell = value(&region, offset).unwrap();
        count += 1;
        assert_eq!(cell[1].load(Relaxed), 100_000 - count);
        at = cell[0].load(Relaxed);
        cell::free(&thread, offset).unwrap();
    }
    assert_eq!(count, 100_000);
    for offset in mine {
        cell::free(&thread, offset).unwrap();
    }
    assert!(region.len() > first + (8 << 20), "the region did not grow in steps");
    let audit = region.audit().unwrap();
    assert!(audit.is_sound() && audit.used() == 0, "{audit:?}");
}

/// A latch in a cell and the data that it guards.
#[repr(C)]
struct Counter {
    latch: ShflMutex<Shared>,
    count: AtomicU64,
}

// SAFETY: a latch is a word of the machine, and any value of it is valid.
unsafe impl Plain for Counter {}

#[test]
fn latches_in_cells_work_between_processes() {
    const ROUNDS: u64 = 20_000;
    let path = Path::new("latch");
    let region = path.open();
    let thread = region.thread().unwrap();
    let offset = thread.alloc::<Counter>().unwrap().publish();
    let work = |region: &Region<Shared>| {
        let counter = value(region, offset).unwrap();
        for _ in 0..ROUNDS {
            counter.latch.lock();
            counter.count.store(counter.count.load(Relaxed) + 1, Relaxed);
            // SAFETY: locked above.
            unsafe { counter.latch.unlock() };
        }
    };
    let child = Child::new(|| work(&path.open()));
    work(&region);
    child.join();
    assert_eq!(value(&region, offset).unwrap().count.load(Relaxed), 2 * ROUNDS);
}

#[test]
fn the_kernel_reports_which_processes_live() {
    let path = Path::new("lives");
    let region = path.open();
    let twice = path.open();
    let (me, again) = (region.process().unwrap(), twice.process().unwrap());
    assert_ne!(me.0, again.0, "two handles must have two process slots");
    for eyes in [&region, &twice] {
        assert!(eyes.alive(me.0, me.1) && eyes.alive(again.0, again.1));
    }
    drop(twice);
    // The child of another test also has the file for a moment after its fork.
    let mut waits = 0..10_000;
    while region.alive(again.0, again.1) {
        waits.next().expect("the file is still open elsewhere");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(region.alive(me.0, me.1), "closing one handle dropped the other's lock");
    let child = Child::new(|| {
        let region = path.open();
        region.root(0).unwrap().store(u64::from(region.process().unwrap().1), Release);
        sleep_for_ever();
    });
    let generation = root(&region, 0) as u32;
    assert!(region.alive(again.0, generation), "it did not take the free slot");
    let info = region.processes()[again.0 as usize];
    assert_eq!(info.pid, child.0 as u32);
    assert!(info.alive && info.start != 0 && info.namespace != 0, "{info:?}");
    child.kill();
    assert!(!region.alive(again.0, generation));
    assert!(!region.alive(me.0, me.1 + 1) && !region.alive(15, 0) && !region.alive(9999, 1));
}

#[test]
fn pids_prove_nothing() {
    let path = Path::new("pids");
    let region = path.open();
    let child = |keep: bool| {
        let child = Child::new(|| {
            let region = path.open();
            let thread = region.thread().unwrap();
            std::mem::forget(thread.alloc::<Words>().unwrap());
            region.root(0).unwrap().store(1, Release);
            sleep_for_ever();
        });
        root(&region, 0);
        region.root(0).unwrap().store(0, Release);
        if keep { Some(child) } else { (child.kill(), None).1 }
    };
    // The pid of a dead process now belongs to a living one: this one.
    child(false);
    let slot = 1;
    let pid_at = (12_288 + Shared::overhead(32)).next_multiple_of(4096) + slot * 128 + 4;
    let forge = |pid: u32| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(&path.0).unwrap();
        file.write_all_at(&pid.to_ne_bytes(), pid_at as u64).unwrap();
        assert_eq!(region.processes()[slot].pid, pid, "the slot is not where this test thinks");
    };
    forge(std::process::id());
    assert_eq!(region.sweep(), Ok(1), "a reused pid hid a dead process");
    // A living process whose pid is of another namespace is left alone.
    let child = child(true).unwrap();
    forge(0x3fff_fff0);
    assert_eq!(region.sweep(), Ok(0), "a sweep removed a living process");
    assert_eq!(region.audit().unwrap().used(), 1);
    child.kill();
    assert_eq!(region.sweep(), Ok(1));
    assert_eq!(region.audit().unwrap().used(), 0);
}

#[test]
fn another_pid_namespace_is_seen() {
    let path = Path::new("namespace");
    let region = path.open();
    let outer = Child::new(|| {
        // SAFETY: no preconditions.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            region.root(0).unwrap_err();
            path.open().root(0).unwrap().store(2, Release);
            return;
        }
        Child::new(|| {
            let region = path.open();
            std::mem::forget(region.thread().unwrap());
            region.root(0).unwrap().store(1, Release);
            sleep_for_ever();
        })
        .status();
    });
    if root(&region, 0) == 2 {
        println!("skipped: no pid namespace can be created here");
        return outer.join();
    }
    let (here, there) = (region.processes()[0], region.processes()[1]);
    assert_eq!(there.pid, 1, "it must be the first process of its namespace");
    assert_ne!(here.namespace, there.namespace);
    assert!(there.alive);
    assert_eq!(region.sweep(), Ok(0));
    // The namespace ends with its first process, a child of the outer one.
    let children = format!("/proc/{0}/task/{0}/children", outer.0);
    let inner: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    // SAFETY: a child of our child, which waits for it.
    assert_eq!(unsafe { libc::kill(inner, libc::SIGKILL) }, 0);
    outer.join();
    assert!(!region.processes()[1].alive);
    assert_eq!(region.sweep(), Ok(1));
}

#[test]
fn calls_in_the_child_of_a_fork_fail() {
    let path = Path::new("fork");
    let region = path.open();
    let private = Region::private(&small()).unwrap();
    let (thread, own) = (region.thread().unwrap(), private.thread().unwrap());
    let offset = thread.alloc::<Words>().unwrap().publish();
    let mine = own.alloc::<Words>().unwrap().publish();
    let process = region.process().unwrap();
    Child::new(|| {
        assert_eq!(region.check(), Err(Error::Forked));
        assert_eq!(value(&region, offset).err(), Some(Error::Forked));
        assert_eq!(thread.alloc::<Words>().err(), Some(Error::Forked));
        assert_eq!(cell::free(&thread, offset), Err(Error::Forked));
        assert_eq!(thread.intent().err(), Some(Error::Forked));
        assert_eq!(region.thread().err(), Some(Error::Forked));
        assert_eq!(region.dead_threads().err(), Some(Error::Forked));
        assert_eq!(region.audit().err(), Some(Error::Forked));
        assert_eq!(value(&private, mine).err(), Some(Error::Forked));
        assert!(region.threads().next().is_none() && region.is_empty());
        // It may open the region itself and drop the inherited handle.
        let anew = path.open();
        assert!(anew.alive(process.0, process.1));
        assert!(value(&anew, offset).is_ok());
        drop((thread, own, region, private));
        assert!(value(&anew, offset).is_ok());
        assert!(anew.alive(process.0, process.1), "the child released its parent's lock");
    })
    .join();
}

#[test]
fn a_surviving_child_does_not_keep_its_parent_alive() {
    let path = Path::new("orphan");
    let region = path.open();
    let parent = Child::new(|| {
        let region = path.open();
        std::mem::forget(region.thread().unwrap());
        let child = Child::new(sleep_for_ever);
        region.root(0).unwrap().store(child.0 as u64, Release);
        sleep_for_ever();
    });
    let grandchild = root(&region, 0) as i32;
    // Its fork handler runs first; this gives it time.
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(region.sweep(), Ok(0));
    parent.kill();
    // SAFETY: signal 0 only checks whether the process exists.
    assert_eq!(unsafe { libc::kill(grandchild, 0) }, 0, "the grandchild is dead as well");
    assert_eq!(region.sweep(), Ok(1), "a child's copy of the file kept its parent alive");
    // SAFETY: a grandchild of this process, which was adopted and sleeps.
    assert_eq!(unsafe { libc::kill(grandchild, libc::SIGKILL) }, 0);
}

/// A user of regions: it keeps cells, each noted in an intent word before it is published.
struct Keeper<'t> {
    thread: &'t Thread<Shared>,
    state: u64,
}

impl Keeper<'_> {
    fn step(&mut self) {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let entry = self.state as usize % 16;
        let word = &self.thread.intent().unwrap()[entry];
        let noted = word.load(Relaxed);
        let wide = entry >= 12;
        if noted != 0 {
            free(self.thread, noted, wide);
            word.store(0, Release);
        } else if self.state & 0x1000 == 0 {
            // In hand for a moment, and freed.
            drop(self.thread.alloc::<Words>().unwrap());
        } else if wide {
            let cell = self.thread.alloc::<Wide>().unwrap();
            word.store(
                u64::from(cell.generation()) << 32 | u64::from(cell.offset().raw()),
                Release,
            );
            cell.publish();
        } else {
            let cell = self.thread.alloc::<Words>().unwrap();
            word.store(
                u64::from(cell.generation()) << 32 | u64::from(cell.offset().raw()),
                Release,
            );
            cell.publish();
        }
    }
}

fn free(thread: &Thread<Shared>, noted: u64, wide: bool) {
    if wide {
        cell::free(thread, Offset::<Wide>::from_raw(noted as u32)).unwrap();
    } else {
        cell::free(thread, Offset::<Words>::from_raw(noted as u32)).unwrap();
    }
}

/// Sweeps like a layer above: frees the cells of the intent words, then the rest.
fn sweep(region: &Region<Shared>, thread: &Thread<Shared>) -> usize {
    let mut count = 0;
    for dead in region.dead_threads().unwrap() {
        for (entry, word) in dead.intent().iter().enumerate() {
            let noted = word.load(Relaxed);
            let offset = Offset::<Words>::from_raw(noted as u32);
            if noted != 0 && region.lent(offset).unwrap() == Some((noted >> 32) as u32) {
                free(thread, noted, entry >= 12);
            }
        }
        dead.finish(|_| Fate::Free).unwrap();
        count += 1;
    }
    count
}

#[test]
fn killed_while_they_allocate_and_free() {
    kills("kill", 400);
}

#[test]
#[ignore = "long: 50,000 kills, some two minutes"]
fn killed_many_times_while_they_allocate_and_free() {
    kills("kills", 50_000);
}

fn kills(name: &str, kills: u64) {
    let path = Path::new(name);
    let region = path.open();
    let thread = region.thread().unwrap();
    let (mut torn, mut held, mut swept) = (0, 0, 0);
    for seed in 1..=kills {
        let child = Child::new(|| {
            let region = path.open();
            let threads: Vec<_> = (0..2).map(|_| region.thread().unwrap()).collect();
            region.root(0).unwrap().store(1, Release);
            let mut keepers: Vec<_> = threads
                .iter()
                .zip(1..)
                .map(|(thread, n)| Keeper { thread, state: (seed * 0x9e37_79b9_7f4a_7c15) ^ n })
                .collect();
            loop {
                keepers.iter_mut().for_each(Keeper::step);
            }
        });
        root(&region, 0);
        region.root(0).unwrap().store(0, Release);
        std::thread::sleep(Duration::from_micros(seed * 7919 % 1500));
        child.kill();
        let before = region.audit().unwrap();
        torn += u64::from(!before.is_sound());
        held += u64::from(before.used() != 0);
        swept += sweep(&region, &thread) as u64;
        let after = region.audit().unwrap();
        assert!(after.is_sound() && after.used() == 0, "kill {seed}: {before:?} became {after:?}");
    }
    println!("{kills} kills: {torn} tore a list, {held} left cells in use, {swept} slots swept");
    assert_eq!(swept, 2 * kills);
    // The control: without a sweep the counts would be wrong. A kill seldom falls between two
    // stores of one list; `stores.rs` dies between any two.
    assert!(held > kills / 2, "the kills hit nothing: {torn}, {held}");
    assert!(region.len() < 8 << 20, "kills cost memory: {} bytes", region.len());
}

#[test]
fn other_users_are_kept_out() {
    let path = Path::new("users");
    drop(path.open());
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can become another user");
        return;
    }
    Child::new(|| {
        // SAFETY: the child becomes the user nobody and ends as such.
        assert_eq!(unsafe { libc::setuid(65534) }, 0);
        assert_eq!(Region::open(&path.0, &small()).err(), Some(Error::Permission));
        assert_eq!(Region::create("/latchwork", &small()).err(), Some(Error::Permission));
    })
    .join();
}
