//! Threads that stop or die in the middle of a call, and the behaviour of the other threads.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use latchwork_check::between::{Before, Between};
use latchwork_disk::{Error as DiskError, File, Open, Simulated};
use latchwork_log::{Checkpoint, Error, Head, Log, Lsn, Mode, Options, Session};
use latchwork_machine::Native;
use latchwork_region::Region;

use crate::stage::{
    Life, SMALL, begin, begin_in, begin_with, end_here, folder, operate, options, prepare, region,
    until_it_ends, without_waiting,
};

thread_local! {
    /// Where this thread dies.
    static DIES: Cell<&'static str> = const { Cell::new("") };
    /// Where this thread stops, once.
    static STOP: RefCell<Option<Stop>> = const { RefCell::new(None) };
}

struct Stop {
    at: &'static str,
    reached: Sender<()>,
    go: Receiver<()>,
    /// Where the thread stops after that.
    next: Option<Box<Stop>>,
}

/// The other end of a stop.
struct Stopped {
    reached: Receiver<()>,
    go: Sender<()>,
}

fn stop(at: &'static str) -> (Stop, Stopped) {
    latchwork_log::set_point_hook(at_step);
    let ((reached, wait), (go, told)) = (channel(), channel());
    (Stop { at, reached, go: told, next: None }, Stopped { reached: wait, go })
}

fn at_step(step: &'static str) {
    if DIES.get() == step {
        end_here();
    }
    let stop = STOP.with_borrow_mut(|stop| stop.take_if(|stop| stop.at == step));
    if let Some(stop) = stop {
        stop.reached.send(()).unwrap();
        stop.go.recv().unwrap();
        STOP.set(stop.next.map(|next| *next));
    }
}

/// Another process of this life does something, and dies at a step of it.
fn dies(
    life: &Life,
    disk: &Simulated,
    at: &'static str,
    act: impl FnOnce(&Session<Native>) + Send + 'static,
) {
    latchwork_log::set_point_hook(at_step);
    let (region, disk) = (life.region.another().unwrap(), disk.clone());
    let process = region.clone();
    until_it_ends(move || {
        let thread = region.thread().unwrap();
        let log = Log::open(&region, Arc::new(disk), folder(), &options(), &thread).unwrap();
        let session = log.session(&thread).unwrap();
        DIES.set(at);
        act(&session);
    });
    process.die();
}

/// A leader dies in a log for which no thread waits: the next leader whose turn it is leads.
#[test]
fn a_periodic_flush_goes_on_behind_a_leader_that_died() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    operate(&life, 0, Mode::None).unwrap();
    dies(&life, &disk, "flush: claimed", |session| {
        session.tick(Duration::ZERO).unwrap();
    });
    operate(&life, 1, Mode::Periodic(Duration::ZERO)).unwrap();
    assert_eq!(life.log.flushed(), life.log.end());
}

/// A thread has seen a log that is not open, and continues when another has opened it: it joins
/// that log.
#[test]
fn a_log_that_was_opened_meanwhile_is_not_opened_anew() {
    let disk = Simulated::new();
    let region = region();
    let late_region = region.another().unwrap();
    let (own, (stops, stopped)) = (disk.clone(), stop("open: looked"));
    let late = std::thread::spawn(move || {
        STOP.set(Some(stops));
        let thread = late_region.thread().unwrap();
        let log = Log::open(&late_region, Arc::new(own), folder(), &options(), &thread).unwrap();
        (log.end(), log.flushed())
    });
    stopped.reached.recv().unwrap();
    let life = begin_in(&disk, region).unwrap();
    operate(&life, 0, Mode::Full).unwrap();
    operate(&life, 1, Mode::None).unwrap();
    stopped.go.send(()).unwrap();
    assert_eq!(late.join().unwrap(), (life.log.end(), life.log.flushed()));
    assert!(life.log.end() > life.log.flushed());
}

fn checkpoint(session: &Session<Native>, at: Lsn) {
    session.checkpoint(Checkpoint { lsn: at, redo: at, clean: false }).unwrap();
}

/// A thread dies after it has written a block of the control file, and before segments are recycled
/// as the block allows: the next thread writes the other block.
#[test]
fn a_block_that_was_written_is_not_the_next_one_to_be_written_over() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    let lsns: Vec<_> = (0..30).map(|n| operate(&life, n, Mode::Full).unwrap()).collect();
    checkpoint(&life.session, lsns[5]);
    let blocks = || {
        let bytes = disk.peek(&folder().join("control")).unwrap();
        [bytes[..4096].to_vec(), bytes[4096..].to_vec()]
    };
    let before = blocks();
    let at = lsns[15];
    dies(&life, &disk, "control: counted", move |session| checkpoint(session, at));
    let written = blocks();
    let which = usize::from(written[0] == before[0]);
    assert_ne!(written[which], before[which], "it wrote none");
    checkpoint(&life.session, lsns[25]);
    assert!(blocks()[which] == written[which], "the dead thread's block is written over");
}

/// A disk that panics in the next call of a kind.
#[derive(Debug, Default)]
struct Panics {
    syncs: AtomicBool,
    opens: AtomicBool,
}

impl Between for Panics {
    fn sync(&self, file: &dyn File, _: &Path) -> Result<(), DiskError> {
        assert!(!self.syncs.swap(false, Relaxed), "a sync panics");
        file.sync()
    }

    fn opens(&self, _: &Path, _: Open) -> Result<(), DiskError> {
        assert!(!self.opens.swap(false, Relaxed), "an open panics");
        Ok(())
    }
}

fn life_that_panics() -> (Arc<Panics>, Life) {
    let (disk, panics) = (Simulated::new(), Arc::new(Panics::default()));
    prepare(&disk).unwrap();
    let region = region();
    let thread = region.thread().unwrap();
    let own = Arc::new(Before::new(panics.clone(), disk));
    let log = Log::open(&region, own, folder(), &options(), &thread).unwrap();
    let session = log.session(&thread).unwrap();
    (panics, Life { session, log, thread, region })
}

/// After a panic of a leader it is unknown what is durable: the log is broken, and no thread waits.
#[test]
fn a_panic_of_a_leader_breaks_the_log() {
    let (panics, life) = life_that_panics();
    operate(&life, 0, Mode::Full).unwrap();
    panics.syncs.store(true, Relaxed);
    let leads = || operate(&life, 1, Mode::Full);
    assert!(catch_unwind(AssertUnwindSafe(leads)).is_err());
    assert_eq!(life.session.tick(Duration::ZERO), Err(Error::Broken));
}

/// A thread that panics with the maker's claim releases it, and another thread does the work.
#[test]
fn a_panic_of_a_maker_stops_no_other() {
    let (panics, life) = life_that_panics();
    let at = operate(&life, 0, Mode::Full).unwrap();
    panics.opens.store(true, Relaxed);
    let makes = || checkpoint(&life.session, at);
    assert!(catch_unwind(AssertUnwindSafe(makes)).is_err());
    without_waiting(move || checkpoint(&life.session, at));
}

/// Damaged memory has moved a frontier: the bytes below it are not in the buffer.
#[test]
fn a_damaged_frontier_breaks_the_log() {
    let life = begin(&Simulated::new()).unwrap();
    operate(&life, 0, Mode::Full).unwrap();
    let places = life.log.places().unwrap();
    let (at, ..) = places.iter().find(|(.., name)| name == "log.end").unwrap();
    // SAFETY: a word of the log's area, which is mapped for as long as `life` has it.
    unsafe { &*(*at as *const AtomicU64) }.fetch_add(1 << 20, Relaxed);
    assert_eq!(life.session.tick(Duration::ZERO), Err(Error::Broken));
}

/// Threads that wait for a stopped maker sleep.
#[test]
fn those_that_wait_for_a_stopped_maker_sleep() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    let at = operate(&life, 0, Mode::Full).unwrap();
    let (stops, stopped) = stop("maker: claimed");
    let with_session = |act: &dyn Fn(&Session<Native>)| {
        let thread = life.region.thread().unwrap();
        act(&life.log.session(&thread).unwrap());
    };
    std::thread::scope(|scope| {
        let with_session = &with_session;
        scope.spawn(move || {
            STOP.set(Some(stops));
            with_session(&|session| checkpoint(session, at));
        });
        stopped.reached.recv().unwrap();
        let waits = scope.spawn(move || {
            let (began, before) = (Instant::now(), worked());
            with_session(&|session| checkpoint(session, at));
            (worked() - before, began.elapsed())
        });
        std::thread::sleep(Duration::from_millis(300));
        stopped.go.send(()).unwrap();
        let (worked, took) = waits.join().unwrap();
        assert!(worked < took / 2, "{worked:?} of {took:?} at work");
    });
}

/// Does something in a thread slot of its own, with some credit.
fn with_session(region: &Region<Native>, log: &Log<Native>, act: impl FnOnce(&Session<Native>)) {
    let thread = region.thread().unwrap();
    let session = log.session(&thread).unwrap();
    session.reserve(1000).unwrap();
    act(&session);
}

/// Has a thread append a record and stop at a step, and returns when it has stopped. The thread
/// returns where its record is.
fn appends_and_stops<'s>(
    scope: &'s std::thread::Scope<'s, '_>,
    (region, log): (&'s Region<Native>, &'s Log<Native>),
    at: &'static str,
    mark: Option<Lsn>,
) -> (std::thread::ScopedJoinHandle<'s, Option<Lsn>>, Stopped) {
    let (stops, stopped) = stop(at);
    let appends = scope.spawn(move || {
        let thread = region.thread().unwrap();
        let session = log.session(&thread).unwrap();
        session.reserve(1000).unwrap();
        let mut record = session.build(&Head::default(), &[&[1; 16]]).unwrap();
        STOP.set(Some(stops));
        match mark {
            Some(mark) => session.append_since(&mut record, mark).unwrap(),
            None => Some(session.append(&mut record).unwrap()),
        }
    });
    stopped.reached.recv().unwrap();
    (appends, stopped)
}

/// Outside of the latch, and of the copy to its place, no other thread needs a thread that appends:
/// neither before, where it has asked for a place and leads its group, nor behind.
#[test]
fn thread_that_is_stopped_before_or_after_its_copy_stops_no_other() {
    for at in [
        "append: asked",
        "append: leads",
        "append: placed",
        "append: done",
        "append: published",
        "append: end",
    ] {
        let life = begin(&Simulated::new()).unwrap();
        let (region, log) = (&life.region, &life.log);
        std::thread::scope(|scope| {
            let (appends, stopped) = appends_and_stops(scope, (region, log), at, None);
            let (done, is_done) = channel();
            let other = scope.spawn(move || {
                let thread = region.thread().unwrap();
                let session = log.session(&thread).unwrap();
                for _ in 0..100 {
                    session.reserve(1000).unwrap();
                    let mut record = session.build(&Head::default(), &[&[2; 16]]).unwrap();
                    let lsn = session.append(&mut record).unwrap();
                    assert!(log.end() > lsn);
                }
                done.send(()).unwrap();
            });
            let goes_on = is_done.recv_timeout(Duration::from_secs(30));
            stopped.go.send(()).unwrap();
            assert!(goes_on.is_ok(), "{at}: another thread waits for it");
            other.join().unwrap();
            let lsn = appends.join().unwrap().unwrap();
            let entries = life.log.scan(Lsn::FIRST).collect::<Result<Vec<_>, _>>().unwrap();
            assert_eq!(entries.len(), 101);
            assert!(entries.iter().any(|entry| entry.lsn == lsn && entry.payload == [1; 16]));
        });
    }
}

/// A leader is stopped after it has moved the end, and before it tells the threads of its batch.
/// They return, also while other threads append all the time.
#[test]
fn threads_of_a_batch_return_though_its_leader_is_stopped() {
    let life = begin(&Simulated::new()).unwrap();
    let (ready, region, log) = (&Barrier::new(3), &life.region, &life.log);
    let over = &AtomicBool::new(false);
    let (mut first, latched) = stop("append: latched");
    let (second, published) = stop("append: published");
    first.next = Some(Box::new(second));
    let ((done, is_done), (follow, may_follow)) = (channel(), channel());
    std::thread::scope(|scope| {
        let leader = scope.spawn(move || {
            with_session(region, log, |session| {
                let mut record = session.build(&Head::default(), &[&[1; 16]]).unwrap();
                ready.wait();
                STOP.set(Some(first));
                session.append(&mut record).unwrap();
            });
        });
        let follower = scope.spawn(move || {
            with_session(region, log, |session| {
                let mut record = session.build(&Head::default(), &[&[2; 16]]).unwrap();
                ready.wait();
                may_follow.recv().unwrap();
                session.append(&mut record).unwrap();
                done.send(()).unwrap();
            });
        });
        ready.wait();
        latched.reached.recv().unwrap();
        follow.send(()).unwrap();
        // Until the follower has asked, most probably.
        std::thread::sleep(Duration::from_millis(200));
        latched.go.send(()).unwrap();
        published.reached.recv().unwrap();
        let others = scope.spawn(move || {
            with_session(region, log, |session| {
                while !over.load(Relaxed) {
                    let mut record = session.build(&Head::default(), &[&[3; 16]]).unwrap();
                    session.reserve(record.bytes() as u64).unwrap();
                    session.append(&mut record).unwrap();
                }
            });
        });
        let returned = is_done.recv_timeout(Duration::from_secs(20));
        over.store(true, Relaxed);
        published.go.send(()).unwrap();
        assert!(returned.is_ok(), "it waits for the stopped leader");
        for thread in [leader, follower, others] {
            thread.join().unwrap();
        }
    });
}

/// A thread asks for a place and is stopped, and the buffer is doubled before it gets one: it
/// copies its record to where the place is in the larger buffer.
#[test]
fn record_is_copied_to_its_place_in_a_buffer_that_was_doubled_since() {
    let growing =
        Options { buffer: 4 * SMALL, segment: 4 * SMALL, buffer_first: SMALL, ..options() };
    let life = begin_with(&Simulated::new(), region(), &growing).unwrap();
    let (region, log) = (&life.region, &life.log);
    std::thread::scope(|scope| {
        let (appends, stopped) = appends_and_stops(scope, (region, log), "append: asked", None);
        let other = scope.spawn(move || {
            let thread = region.thread().unwrap();
            let session = log.session(&thread).unwrap();
            for number in 0..100 {
                let mut record = session.build(&Head::default(), &[&[number; 1500]]).unwrap();
                session.reserve(record.bytes() as u64).unwrap();
                session.append(&mut record).unwrap();
            }
        });
        other.join().unwrap();
        assert!(log.end().0 > 2 * SMALL, "the buffer is not doubled");
        stopped.go.send(()).unwrap();
        let lsn = appends.join().unwrap().unwrap();
        let entries = log.scan(Lsn::FIRST).collect::<Result<Vec<_>, _>>().unwrap();
        assert_eq!(entries.len(), 101);
        assert!(entries.iter().any(|entry| entry.lsn == lsn && entry.payload == [1; 16]));
    });
}

/// The record of a leader is refused, because the log was marked since. The records to which it
/// has given places are in the log.
#[test]
fn leader_whose_record_is_refused_publishes_the_others() {
    let life = begin(&Simulated::new()).unwrap();
    let old = life.log.marked();
    operate(&life, 0, Mode::None).unwrap();
    assert!(life.session.mark().unwrap() > old);
    let (ready, region, log) = (&Barrier::new(2), &life.region, &life.log);
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let thread = region.thread().unwrap();
            let session = log.session(&thread).unwrap();
            session.reserve(1000).unwrap();
            let mut record = session.build(&Head::default(), &[&[2; 16]]).unwrap();
            ready.wait();
            ready.wait();
            session.append(&mut record).unwrap()
        });
        ready.wait();
        let (refused, stopped) =
            appends_and_stops(scope, (region, log), "append: latched", Some(old));
        ready.wait();
        // Until the other thread has asked, most probably.
        std::thread::sleep(Duration::from_millis(200));
        stopped.go.send(()).unwrap();
        assert_eq!(refused.join().unwrap(), None);
        let lsn = other.join().unwrap();
        assert!(life.log.end() > lsn);
    });
}

/// How long this thread was on a processor.
fn worked() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it is given where to write the time to.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A sweeper's slot comes after the slots of threads, and a sweeper is woken like a thread.
#[test]
fn a_sweeper_that_follows_is_woken() {
    let disk = Simulated::new();
    prepare(&disk).unwrap();
    let region = region();
    let (thread, sweeper) = (region.thread().unwrap(), region.sweeper().unwrap());
    let all = sweeper.number() + 1;
    // It would nap for that long.
    let options = Options { threads: all, nap: Duration::from_secs(300), ..options() };
    let log = Log::open(&region, Arc::new(disk.clone()), folder(), &options, &thread).unwrap();
    let session = log.session(&thread).unwrap();
    let life = Life { session, log, thread, region };
    let at = operate(&life, 0, Mode::None).unwrap();
    let (leads, leading) = stop("flush: synced");
    let (sleeps, asleep) = stop("follow: sleeps");
    let (done, is_done) = channel();
    std::thread::scope(|scope| {
        let (region, log) = (&life.region, &life.log);
        let leader = scope.spawn(move || {
            STOP.set(Some(leads));
            let thread = region.thread().unwrap();
            log.session(&thread).unwrap().flush(at).unwrap();
        });
        leading.reached.recv().unwrap();
        scope.spawn(move || {
            STOP.set(Some(sleeps));
            log.session(&sweeper).unwrap().flush(at).unwrap();
            done.send(()).unwrap();
        });
        asleep.reached.recv().unwrap();
        leading.go.send(()).unwrap();
        leader.join().unwrap();
        asleep.go.send(()).unwrap();
        let woken = is_done.recv_timeout(Duration::from_secs(30));
        assert!(woken.is_ok(), "it naps");
    });
}
