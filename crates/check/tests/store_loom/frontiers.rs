//! A log and the frontiers of a store: which commits a snapshot sees, and which part of the log is
//! kept for it.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use latchwork_check::overlaid::{Flaw, nap_short, together};
use latchwork_check::{Overlaid, models};
use latchwork_disk::{Disk, Simulated};
use latchwork_log::{Flags, Head, Log, Lsn, Mode, Options, Session};
use latchwork_machine::{Machine, Word};
use latchwork_region::{Area, AreaOptions, Region, Thread};
use latchwork_store::internals::Frontiers;
use loom::cell::UnsafeCell;

/// The work of a thread in a model.
type Part<'a> = Box<dyn FnOnce() + 'a>;

const SLOTS: u32 = 3;
const SMALL: u64 = 1 << 16;

/// A log with a session for each slot, and the frontiers. Executions begin with it and restore it.
struct Stage {
    sessions: Vec<Session<Overlaid>>,
    log: Log<Overlaid>,
    frontiers: Frontiers<Overlaid>,
    /// A word of the test.
    mark: Area<Overlaid>,
    /// The end of the log when the stage was created.
    end: Lsn,
}

// SAFETY: a stage consists of atomic words and data in a mutex.
unsafe impl Send for Stage {}
// SAFETY: as above.
unsafe impl Sync for Stage {}

/// Appends a record of a transaction, which commits if `last`.
fn append(session: &Session<Overlaid>, last: bool) -> Lsn {
    let flags = if last { Flags::LAST } else { Flags(0) };
    let mut record = session.build(&Head { flags, ..Head::default() }, &[&[7; 8]]).unwrap();
    session.append(&mut record).unwrap()
}

fn sizes(processes: u32) -> latchwork_region::Options {
    latchwork_region::Options {
        processes,
        threads: SLOTS,
        waiters: 2,
        limit: 1 << 20,
        ..latchwork_region::Options::default()
    }
}

fn disk() -> Arc<dyn Disk> {
    let disk = Simulated::new();
    disk.make_folder("store".as_ref()).unwrap();
    disk.sync_folder("".as_ref()).unwrap();
    Arc::new(disk)
}

fn open(
    region: &Region<Overlaid>,
    disk: &Arc<dyn Disk>,
    thread: &Thread<Overlaid>,
) -> Log<Overlaid> {
    let options =
        Options { buffer: SMALL, segment: SMALL, id: 7, threads: SLOTS, ..Options::default() };
    Log::open(region, disk.clone(), "store/log".as_ref(), &options, thread).unwrap()
}

/// A stage in which the first slot has already made this many commits of one record.
fn stage(mode: Mode, commits: u64) -> Stage {
    let region = Region::<Overlaid>::heap(&sizes(1)).unwrap();
    let threads: Vec<_> = (0..SLOTS).map(|_| region.thread().unwrap()).collect();
    let log = open(&region, &disk(), &threads[0]);
    let sessions: Vec<_> = threads.iter().map(|thread| log.session(thread).unwrap()).collect();
    sessions.iter().for_each(|session| session.reserve(4000).unwrap());
    for _ in 0..commits {
        sessions[0].reserve(4000).unwrap();
        append(&sessions[0], true);
    }
    // The slots stay taken: loom's threads use these sessions, whichever threads they are.
    threads.into_iter().for_each(std::mem::forget);
    Stage::over(sessions, &region, log, mode)
}

/// The history between the first end of the log and now; the recycling thread writes there.
#[derive(Default)]
struct History(UnsafeCell<u32>);

impl History {
    fn read(&self) {
        // SAFETY: no thread recycles what a snapshot reads, or loom panics.
        self.0.with(|_| {});
    }

    fn recycle(&self) {
        // SAFETY: no snapshot reads what is recycled, or loom panics.
        self.0.with_mut(|_| {});
    }
}

impl Stage {
    fn over(
        sessions: Vec<Session<Overlaid>>,
        region: &Region<Overlaid>,
        log: Log<Overlaid>,
        mode: Mode,
    ) -> Self {
        let frontiers = Frontiers::new(region, &log, mode).unwrap();
        let mark = AreaOptions { first: 64, limit: 64, huge: false };
        let mark = region.area("mark", &mark).unwrap();
        let end = log.end();
        Self { sessions, log, frontiers, mark, end }
    }

    fn mark(&self) -> &<Overlaid as Machine>::AtomicU64 {
        self.mark.word(0).unwrap()
    }

    /// Takes a snapshot, and reads the history if its position needs it.
    fn read(&self, slot: u16, history: &History) {
        let (_, low) = self.frontiers.remember(slot).unwrap();
        if low <= self.end.0 {
            history.read();
            // Relaxed: the snapshot itself keeps the history.
            assert!(self.mark().load(Relaxed) <= low, "recycled under a snapshot");
        }
        self.frontiers.forget(slot);
    }

    /// Recycles the history if no snapshot needs it.
    fn recycle(&self, history: &History) {
        let needed = self.frontiers.needed().unwrap();
        if needed > self.end.0 {
            // Relaxed: as above.
            self.mark().store(needed, Relaxed);
            history.recycle();
        }
    }

    /// Returns whether a snapshot sees what the first slot wrote at this position.
    fn sees(&self, (at, low): (u64, u64), stamp: Lsn) -> bool {
        let commit = || {
            let found = |_, commit: Lsn| (commit.0 <= at).then_some(commit.0);
            self.log.commits_of(0, found).unwrap().unwrap_or(0)
        };
        stamp.0 < low || (stamp.0 <= at && stamp.0 <= commit())
    }

    /// The positions of the next three records, which all have the length of the existing one.
    fn records(&self) -> [Lsn; 3] {
        let length = self.end.0 - Lsn::FIRST.0;
        [0, 1, 2].map(|number| Lsn(self.end.0 + number * length))
    }

    /// Takes a snapshot and checks that it sees a transaction of two records completely or not at
    /// all, and never an uncommitted record after it.
    fn look(&self, slot: u16) {
        let taken = self.frontiers.remember(slot).unwrap();
        let [first, commit, open] = self.records();
        let expected = taken.0 >= commit.0;
        assert_eq!(self.sees(taken, first), expected, "{taken:?}");
        assert_eq!(self.sees(taken, commit), expected, "{taken:?}");
        assert!(!self.sees(taken, open), "{taken:?}: not committed");
        self.frontiers.forget(slot);
    }
}

/// A commit and the recycling of the log before it, against a snapshot.
fn recycling(mode: Mode, readers: u16) -> impl Fn() + Send + Sync + 'static {
    let stage = stage(mode, 1);
    move || {
        let history = History::default();
        let (stage, history) = (&stage, &history);
        let writer: Part<'_> = Box::new(move || {
            let commit = append(&stage.sessions[0], true);
            stage.frontiers.show(commit).unwrap();
            stage.recycle(history);
        });
        let reader = |slot| -> Part<'_> { Box::new(move || stage.read(slot, history)) };
        together(std::iter::once(writer).chain((1..=readers).map(reader)).collect());
        // No snapshot is left.
        stage.recycle(history);
    }
}

/// A transaction that commits and another that does not, against a snapshot; with `raises` a third
/// thread moves `low`.
fn commits(mode: Mode, raises: bool) -> impl Fn() + Send + Sync + 'static {
    let stage = stage(mode, 1);
    move || {
        let stage = &stage;
        let writer: Part<'_> = Box::new(move || {
            let first = append(&stage.sessions[0], false);
            let commit = append(&stage.sessions[0], true);
            stage.frontiers.show(commit).unwrap();
            let open = append(&stage.sessions[0], false);
            assert_eq!([first, commit, open], stage.records());
        });
        let reader: Part<'_> = Box::new(move || {
            if !raises {
                stage.frontiers.raise_low().unwrap();
            }
            stage.look(1);
        });
        let raiser: Part<'_> = Box::new(move || _ = stage.frontiers.raise_low().unwrap());
        let mut parts = vec![writer, reader];
        parts.extend(raises.then_some(raiser));
        together(parts);
        stage.look(1);
    }
}

/// A commit, against a search for the newest commit: it is found once the log has it, and earlier
/// ones are always found.
fn newest() -> impl Fn() + Send + Sync + 'static {
    let stage = stage(Mode::None, 1);
    move || {
        let stage = &stage;
        let [second, ..] = stage.records();
        let writer: Part<'_> =
            Box::new(move || assert_eq!(append(&stage.sessions[0], true), second));
        let reader: Part<'_> = Box::new(move || {
            let least = if stage.log.end() > second { second } else { Lsn::FIRST };
            let newest = stage.log.newest_commit().unwrap();
            assert!(newest >= Some(least) && newest <= Some(second), "{newest:?}, not {least}");
        });
        together(vec![writer, reader]);
    }
}

thread_local! {
    /// Called when a thread of the model dies in its append.
    static DIES: RefCell<Option<Box<dyn FnOnce()>>> = RefCell::default();
}

/// The panic payload of a thread that has died.
struct Died;

fn die_in_append(step: &'static str) {
    if step == "append: copied"
        && let Some(then) = DIES.take()
    {
        then();
        // Not by `panic!`, which would print a message.
        resume_unwind(Box::new(Died));
    }
}

/// A thread dies in the append that commits its transaction, before the record is in the log.
/// Another thread sweeps it, takes the commit back, fills its place and appends a record. A third
/// moves `low`: the transaction stays uncommitted throughout.
fn death() -> impl Fn() + Send + Sync + 'static {
    latchwork_log::set_point_hook(die_in_append);
    let region = Region::<Overlaid>::heap(&sizes(2)).unwrap();
    let process = region.another().unwrap();
    let threads = [&process, &region, &region].map(|region| region.thread().unwrap());
    let disk = disk();
    let log = open(&region, &disk, &threads[1]);
    let of_dead = open(&process, &disk, &threads[0]);
    let sessions = vec![of_dead.session(&threads[0]).unwrap(), log.session(&threads[1]).unwrap()];
    sessions.iter().for_each(|session| session.reserve(4000).unwrap());
    threads.into_iter().for_each(std::mem::forget);
    append(&sessions[0], true);
    let stage = Stage::over(sessions, &region, log, Mode::None);
    let stage = Arc::new((stage, process, region));
    let first = append(&stage.0.sessions[0], false);
    move || {
        let (writes, reads) = (stage.clone(), &stage.0);
        let dying: Part<'_> = Box::new(move || {
            let works = writes.clone();
            DIES.set(Some(Box::new(move || {
                works.1.die();
                assert_eq!(works.2.sweep().unwrap(), 1);
                append(&works.0.sessions[1], false);
            })));
            let died = catch_unwind(AssertUnwindSafe(|| append(&writes.0.sessions[0], true)));
            assert!(died.is_err_and(|died| died.is::<Died>()), "the thread did not die");
        });
        let reader: Part<'_> = Box::new(move || {
            let low = reads.frontiers.raise_low().unwrap();
            assert!(low <= first.0, "low is {low}, and {first} is not committed");
        });
        nap_short(1, 2);
        together(vec![dying, reader]);
        assert_eq!(stage.0.log.open_of(0).unwrap(), (first, first));
    }
}

/// The oldest entries of a list of commits are overwritten while another thread searches them.
/// Between its first two commits the slot has a transaction that was rolled back.
fn overwritten() -> impl Fn() + Send + Sync + 'static {
    let stage = stage(Mode::None, 0);
    let slot = &stage.sessions[0];
    let first = append(slot, true);
    let undone = append(slot, false);
    slot.forget(0).unwrap();
    for _ in 0..62 {
        slot.reserve(4000).unwrap();
        append(slot, true);
    }
    slot.reserve(4000).unwrap();
    move || {
        let stage = &stage;
        let writer: Part<'_> = Box::new(move || {
            append(&stage.sessions[0], true);
            append(&stage.sessions[0], true);
        });
        let reader: Part<'_> = Box::new(move || {
            let at_first = |_, commit: Lsn| (commit.0 <= first.0).then_some(commit);
            let found = stage.log.commits_of(0, at_first).unwrap();
            assert!(found.is_none_or(|found| found == first), "{found:?}, not {first:?}");
            let inside = |begun: Lsn, commit: Lsn| match () {
                () if commit < undone => Some(false),
                () if begun <= undone => Some(true),
                () => None,
            };
            assert_ne!(stage.log.commits_of(0, inside).unwrap(), Some(true), "it was rolled back");
        });
        together(vec![writer, reader]);
    }
}

models! {
    loom_recycling, loom_recycling_long, loom_recycling_control:
        recycling(Mode::None, 1), 4, 6, [Flaw::Hasty, Flaw::Lax];
    loom_recycling_durable, loom_recycling_durable_long, loom_recycling_durable_control:
        recycling(Mode::Full, 1), 3, 5, [Flaw::Hasty, Flaw::Lax];
    loom_two_readers, loom_two_readers_long, loom_two_readers_control:
        recycling(Mode::None, 2), 2, 3, [Flaw::Hasty, Flaw::Lax];
    loom_commits, loom_commits_long, loom_commits_control:
        commits(Mode::None, false), 2, 3, [Flaw::Lax];
    loom_newest, loom_newest_long, loom_newest_control: newest(), 3, 5, [Flaw::Lax];
    loom_commits_shown, loom_commits_shown_long, loom_commits_shown_control:
        commits(Mode::Full, false), 2, 3, [Flaw::Lax];
    loom_low, loom_low_long, loom_low_control:
        commits(Mode::None, true), 1, 2, [Flaw::Lax];
    loom_death, loom_death_long, loom_death_control: death(), 3, 4, [Flaw::Lax];
    loom_overwritten, loom_overwritten_long, loom_overwritten_control:
        overwritten(), 3, 4, [Flaw::Lax];
}
