//! Every kind of lock at once, in processes that are stopped, killed, and replaced at random: weak
//! and strong locks, conversions, ranges, futures, families, trades, names that are kept for one
//! session, savepoints, and the owners of dead processes that others adopt. A book of what is held
//! finds two that hold what they may not. In a region with room for a few cells more, too: there
//! any of them may be told that it is full.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Child;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use latchwork_check::random::Random;
use latchwork_check::{early, left};
use latchwork_lockmgr::{
    BatchOp, Error, KeyRange, Manager, Mode, Modes, Options, Owner, OwnerOptions, RangeKind,
    Session, Stripes, Wait, granular,
};
use latchwork_machine::{Deadline, Shared};
use latchwork_region::Region;

use crate::book::{Book, KEYS, NAMES};
use crate::deaths::{self, FOR_EVER, Peers};

/// The processes that run this file's `child`.
const PEERS: Peers = Peers(module_path!());
const SPACE: &[u8] = b"hot";
/// Where its stripes begin, but for the first.
const BOUNDS: [u64; 3] = [3, 5, 11];
/// Names from here on are locked again and again by one process after the other, and are in no
/// book.
const KEPT_NAMES: u64 = 1_000;

/// How large a region is that has little room.
const LITTLE: u64 = 4 << 20;
thread_local! {
    /// Whether the region has little room: then all that takes cells may fail.
    static IS_TIGHT: Cell<bool> = const { Cell::new(false) };
    /// How often this thread was told that there is no room.
    static REFUSED: Cell<u64> = const { Cell::new(0) };
    /// How many locks it was granted.
    static GRANTED: Cell<u64> = const { Cell::new(0) };
}

fn open(path: &Path, keep_after: u32) -> Manager<Shared> {
    let options = Options { keep_after, ..early::early() };
    let recovery = || Box::new(|_, label: &[u8]| !label.starts_with(b"kept"));
    loop {
        let mut sizes = deaths::options();
        if IS_TIGHT.get() {
            sizes.limit = LITTLE;
        }
        let region = Region::open_or_create(path, &sizes).unwrap();
        let modes = granular::modes();
        let opened = Manager::with_recovery(region, modes, options.clone(), recovery());
        if let Some(manager) = if_room(opened) {
            return manager;
        }
    }
}

/// What was had, unless there was no room for it.
fn if_room<T>(got: Result<T, Error>) -> Option<T> {
    match got {
        Ok(had) => Some(had),
        Err(Error::Region(latchwork_region::Error::Full(_))) if IS_TIGHT.get() => {
            REFUSED.set(REFUSED.get() + 1);
            std::thread::sleep(Duration::from_micros(200));
            None
        }
        Err(error) => panic!("a survivor got: {error}"),
    }
}

fn session(manager: &Manager<Shared>) -> Session<Shared> {
    loop {
        if let Some(session) = if_room(manager.session()) {
            return session;
        }
    }
}

fn soon() -> Wait {
    Wait::Until(Deadline::after::<Shared>(Duration::from_millis(20)))
}

/// Whether a lock was had. Anything but what a wait may end with is a fault.
fn had(end: Result<(), Error>) -> bool {
    match end {
        Ok(()) => true,
        Err(
            Error::TimedOut
            | Error::Deadlock(_)
            | Error::Aborted(_)
            | Error::NotGranted
            | Error::Died(_),
        ) => false,
        end => if_room(end).is_some(),
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future, but not for long.
fn wait_for<T>(mut future: Pin<&mut impl Future<Output = T>>, patience: Duration) -> Option<T> {
    let (waker, until) = (Waker::from(Arc::new(Unpark(std::thread::current()))), Instant::now());
    loop {
        if let Poll::Ready(end) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(end);
        }
        if until.elapsed() > patience {
            return None;
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// A process at work.
struct Life<'m> {
    session: &'m Session<Shared>,
    modes: &'m Modes,
    book: &'m Book,
    stripes: Stripes,
    random: Random,
    label: String,
    /// Whether its owners are kept after its death.
    kept: bool,
}

/// What an owner holds, and how often.
type Holds = BTreeMap<u64, (Mode, u32)>;

impl<'m> Life<'m> {
    fn mode(&mut self) -> Mode {
        let each: Vec<Mode> = self.modes.each().collect();
        // Weak ones half of the time.
        let among = if self.random.below(2) == 0 { 2 } else { each.len() };
        each[self.random.roll(among)]
    }

    fn name(&mut self) -> u64 {
        let among = if self.random.below(2) == 0 { 5 } else { NAMES };
        self.random.below(among)
    }

    /// One that is held.
    fn one_of(&mut self, holds: &Holds) -> Option<u64> {
        let place = self.random.roll(holds.len().max(1));
        holds.keys().nth(place).copied()
    }

    fn granted(&self, holds: &mut Holds, name: u64, mode: Mode) {
        GRANTED.set(GRANTED.get() + 1);
        let held = holds.entry(name).or_insert((mode, 0));
        *held = (self.modes.convert(held.0, mode), held.1 + 1);
        self.book_it(name, held.0);
    }

    /// Says in the book that a name was granted.
    fn book_it(&self, name: u64, mode: Mode) {
        if let Err(flaw) = self.book.granted(name, mode) {
            let mut rows = self.session.snapshot().unwrap();
            rows.retain(|row| row.object == name.to_le_bytes());
            panic!("{flaw}; the manager has {rows:?}");
        }
    }

    fn transaction(&mut self) {
        let label = self.label.clone();
        let options = OwnerOptions { label: &label, ..OwnerOptions::default() };
        let Some(owner) = if_room(self.session.owner_with(&options)) else { return };
        let (mut holds, mut others) = (Holds::new(), Vec::new());
        for _ in 0..1 + self.random.below(6) {
            let goes_on = match self.random.below(16) {
                0..=4 => self.lock(&owner, &mut holds),
                5 => self.convert(&owner, &mut holds),
                6 => self.downgrade(&owner, &mut holds),
                7 => self.release_one(&owner, &mut holds),
                8 | 9 => self.range(&owner),
                10 => self.lock_async(&owner, &mut holds),
                11 => self.batch(&owner, &mut holds),
                12 => self.back_to_a_savepoint(&owner, &mut holds),
                13 => self.come_back(&owner),
                14 => self.kept || self.as_a_child(&owner, &mut holds),
                _ => self.kept || self.trade(&owner, &mut holds, &mut others),
            };
            if !goes_on {
                break;
            }
        }
        holds.keys().for_each(|name| self.book.forget(*name));
        self.book.forget_ranges();
        for (_, names) in &others {
            self.book.forget(*names);
        }
        drop(others);
        owner.release_all().unwrap();
    }

    fn lock(&mut self, owner: &Owner<'_, Shared>, holds: &mut Holds) -> bool {
        let (name, mode) = (self.name(), self.mode());
        self.lock_so(owner, holds, name, mode)
    }

    fn lock_so(&self, owner: &Owner<'_, Shared>, holds: &mut Holds, name: u64, mode: Mode) -> bool {
        let done = had(owner.lock_with(&name.to_le_bytes(), mode, soon()));
        if done {
            self.granted(holds, name, mode);
        }
        done
    }

    fn convert(&mut self, owner: &Owner<'_, Shared>, holds: &mut Holds) -> bool {
        let Some(name) = self.one_of(holds) else { return true };
        let mode = self.mode();
        self.lock_so(owner, holds, name, mode)
    }

    fn downgrade(&mut self, owner: &Owner<'_, Shared>, holds: &mut Holds) -> bool {
        let Some(name) = self.one_of(holds) else { return true };
        let (held, _) = holds[&name];
        if self.modes.covers(held, granular::IS) {
            self.book.note(name, granular::IS);
            if if_room(owner.downgrade(&name.to_le_bytes(), granular::IS)).is_none() {
                return false;
            }
            holds.entry(name).and_modify(|held| held.0 = granular::IS);
        }
        true
    }

    fn release_one(&mut self, owner: &Owner<'_, Shared>, holds: &mut Holds) -> bool {
        let Some(name) = self.one_of(holds) else { return true };
        self.book.forget(name);
        match holds.remove(&name) {
            Some((_, 1)) => owner.unlock(&name.to_le_bytes()).unwrap(),
            _ => owner.release_object(&name.to_le_bytes()).unwrap(),
        }
        true
    }

    fn range(&mut self, owner: &Owner<'_, Shared>) -> bool {
        let kind = RangeKind::ALL[self.random.roll(RangeKind::ALL.len())];
        let from = self.random.below(KEYS);
        let to = (from + 1 + self.random.below(3)).min(KEYS);
        let (low, high) = (from.to_be_bytes(), to.to_be_bytes());
        let range = KeyRange::half_open(&low, &high);
        let done = had(owner.lock_striped(&self.stripes, range, kind, soon()));
        if done {
            self.book.granted_range(from, to, kind);
        }
        done
    }

    fn lock_async(&mut self, owner: &Owner<'_, Shared>, holds: &mut Holds) -> bool {
        let (name, mode) = (self.name(), self.mode());
        let (bytes, patience) = (name.to_le_bytes(), self.random.below(10));
        let mut future = Box::pin(owner.lock_async(&bytes, mode));
        let end = wait_for(future.as_mut(), Duration::from_millis(patience));
        // One that waits still is dropped: all is as before.
        drop(future);
        let done = end.is_some_and(had);
        if done {
            self.granted(holds, name, mode);
        }
        done
    }

    fn batch(&mut self, owner: &Owner<'_, Shared>, holds: &mut Holds) -> bool {
        let wanted = [(self.name(), self.mode()), (self.name(), self.mode())];
        let bytes = wanted.map(|(name, _)| name.to_le_bytes());
        let lock = |at: usize| BatchOp::Lock(&bytes[at], wanted[at].1, soon());
        let (done, end) = match owner.batch(&[lock(0), lock(1)]) {
            Ok(()) => (2, Ok(())),
            Err(failed) => (failed.done, Err(failed.error)),
        };
        for (name, mode) in &wanted[..done] {
            self.granted(holds, *name, *mode);
        }
        had(end)
    }

    /// Locks names that it holds and others, and rolls back to before that.
    fn back_to_a_savepoint(&mut self, owner: &Owner<'_, Shared>, holds: &mut Holds) -> bool {
        let savepoint = owner.savepoint().unwrap();
        let mut grown = holds.clone();
        for _ in 0..3 {
            let held = self.one_of(holds).filter(|_| self.random.below(2) == 0);
            let (name, mode) = (held.unwrap_or_else(|| self.name()), self.mode());
            if had(owner.lock_with(&name.to_le_bytes(), mode, soon())) {
                self.granted(&mut grown, name, mode);
            }
        }
        for name in grown.keys() {
            match holds.get(name) {
                Some((mode, _)) => self.book.note(*name, *mode),
                None => self.book.forget(*name),
            }
        }
        if if_room(owner.roll_back_to(savepoint)).is_none() {
            return false;
        }
        for (name, hold) in holds {
            assert_eq!(owner.holds(&name.to_le_bytes()), Ok(Some(*hold)), "rolled back");
        }
        true
    }

    /// Locks one name again and again, as one does for whom it is kept.
    fn come_back(&mut self, owner: &Owner<'_, Shared>) -> bool {
        let name = (KEPT_NAMES + self.random.below(8)).to_le_bytes();
        for _ in 0..1 + self.random.below(40) {
            if !had(owner.lock_with(&name, granular::X, soon())) {
                return false;
            }
            owner.unlock(&name).unwrap();
        }
        true
    }

    /// A child locks what its parent does not hold, and hands it on or lets it go.
    fn as_a_child(&mut self, owner: &Owner<'_, Shared>, holds: &mut Holds) -> bool {
        let (name, mode) = (self.name(), self.mode());
        if holds.contains_key(&name) {
            return true;
        }
        let Some(child) = if_room(owner.child()) else { return false };
        if !had(child.lock_with(&name.to_le_bytes(), mode, soon())) {
            return false;
        }
        self.book_it(name, mode);
        if self.random.below(2) == 0 {
            let inherited = if_room(child.inherit()).is_some();
            if inherited {
                holds.insert(name, (mode, 1));
            } else {
                self.book.forget(name);
            }
            return inherited;
        }
        self.book.forget(name);
        true
    }

    /// Hands a lock to another owner of its own, which keeps it to the end.
    fn trade(
        &mut self,
        owner: &Owner<'_, Shared>,
        holds: &mut Holds,
        others: &mut Vec<(Owner<'m, Shared>, u64)>,
    ) -> bool {
        let Some(name) = self.one_of(holds) else { return true };
        let Some(other) = if_room(self.session.owner()) else { return false };
        if if_room(owner.trade(&name.to_le_bytes(), &other)).is_some() {
            holds.remove(&name);
            others.push((other, name));
        }
        // Now it would wait for itself.
        false
    }

    /// The owners of dead processes that are kept hold what the book says; they are adopted, lock
    /// something more, and end.
    fn adopt(&mut self) {
        for (id, label) in self.session.labelled_orphans().unwrap() {
            let adopted = match self.session.adopt(id) {
                Ok(adopted) => adopted,
                Err(Error::NoOwner(_)) => continue,
                end => match if_room(end) {
                    Some(adopted) => adopted,
                    None => continue,
                },
            };
            let label = String::from_utf8_lossy(&label);
            let serial = label.trim_end_matches('\0').strip_prefix("kept ").expect("a label");
            if let Some((row, held)) = self.book.of_dead(serial.parse().unwrap()) {
                for (name, mode) in held {
                    let holds = adopted.holds(&name.to_le_bytes()).unwrap();
                    let holds = holds.is_some_and(|(held, _)| self.modes.covers(held, mode));
                    assert!(holds, "the orphan {serial} does not hold name {name} any more");
                }
                if self.random.below(3) == 0 {
                    // For another to adopt.
                    continue;
                }
                let _ = adopted.try_lock(&KEPT_NAMES.to_le_bytes(), granular::S);
                self.book.clear(row);
            }
            adopted.end().unwrap();
        }
    }

    fn rounds(&mut self, count: u64) {
        for round in 0..count {
            self.transaction();
            if round % 8 == 0 {
                self.adopt();
            }
        }
    }
}

/// What a child does: the environment says so. Does nothing in the parent.
#[test]
fn child() {
    let Some(told) = deaths::told() else { return };
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    // A process that found a fault may be killed before it ends by it.
    let faults = faults(&told.path);
    std::panic::set_hook(Box::new(move |fault| {
        let mut file = File::options().create(true).append(true).open(&faults).unwrap();
        file.write_all(format!("{fault}\n").as_bytes()).unwrap();
    }));
    IS_TIGHT.set(std::env::var_os("KINDS_TIGHT").is_some());
    let manager = open(&told.path, number("KINDS_KEEP_AFTER") as u32);
    live(&session(&manager), &told.path, number("KINDS_ROW"), told.seed, told.rounds);
}

/// Where processes tell what they found.
fn faults(path: &Path) -> PathBuf {
    path.with_extension("faults")
}

/// So many rounds of the process that has this row, and this serial number as its seed.
fn live(session: &Session<Shared>, path: &Path, row: u64, serial: u64, rounds: u64) {
    let (book, modes) = (Book::open(path, row), granular::modes());
    let stripes = Stripes::new(SPACE, BOUNDS.map(u64::to_be_bytes)).unwrap();
    let kept = is_kept(serial);
    let label = if kept { format!("kept {serial}") } else { format!("row {row}, {serial}") };
    let random = Random(serial.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (book, modes) = (&book, &modes);
    Life { session, modes, book, stripes, random, label, kept }.rounds(rounds);
}

/// Of each three processes one has owners that are kept after its death.
fn is_kept(serial: u64) -> bool {
    serial.is_multiple_of(3)
}

/// A process, and its row.
struct Peer {
    process: Child,
    row: u64,
}

impl Peer {
    fn start(path: &Path, parent: &Book, serial: u64, keep_after: u32) -> Self {
        let row = parent.begin(serial, is_kept(serial)).expect("all rows are of orphans");
        let mut command = PEERS.command(path, "", 0, serial, FOR_EVER);
        command.env("KINDS_ROW", row.to_string());
        command.env("KINDS_KEEP_AFTER", keep_after.to_string());
        if IS_TIGHT.get() {
            command.env("KINDS_TIGHT", "1");
        }
        Self { process: command.spawn().unwrap(), row }
    }

    fn signal(&mut self, signal: i32) {
        assert_eq!(
            self.process.try_wait().unwrap(),
            None,
            "a survivor ended by itself, see .faults"
        );
        // SAFETY: signals a child of ours, which nobody has waited for.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }

    /// Stops it, and waits until it has.
    fn stop(&mut self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.process.id());
        loop {
            let stat = std::fs::read_to_string(&stat).unwrap();
            match stat.rsplit(") ").next().and_then(|rest| rest.chars().next()) {
                Some('T') => return,
                Some('Z' | 'X') | None => panic!("a survivor ended by itself, see .faults"),
                Some(_) => std::thread::yield_now(),
            }
        }
    }

    /// Kills it, stopped, when the book says that it is dead.
    fn kill(mut self, parent: &Book) {
        self.stop();
        parent.end(self.row);
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An owner that has nearly all of the region's room.
struct Ballast<'s> {
    owner: Owner<'s, Shared>,
    names: u64,
}

impl Ballast<'_> {
    fn name(number: u64) -> Vec<u8> {
        [b"ballast ", &number.to_le_bytes()[..]].concat()
    }

    /// Locks names of its own until the region is full, and then lets so many go.
    fn leave(&mut self, room: u64) {
        // A weak mode: it closes no bias.
        while if_room(self.owner.lock(&Self::name(self.names), granular::IS)).is_some() {
            self.names += 1;
        }
        for _ in 0..room.min(self.names) {
            self.names -= 1;
            self.owner.unlock(&Self::name(self.names)).unwrap();
        }
    }

    fn release(&mut self) {
        self.owner.release_all().unwrap();
        self.names = 0;
    }
}

/// Kills one of three processes so often, and stops another now and then; all the others go on.
fn kills(count: u64, keep_after: u32) {
    let path = PEERS.fresh(&format!("kinds-{}-{keep_after}", IS_TIGHT.get()));
    let _ = std::fs::remove_file(faults(&path));
    let _ = std::fs::remove_file(path.with_extension("book"));
    let parent = Book::open(&path, u64::MAX);
    let manager = open(&path, keep_after);
    let (mut random, mut serial, since) = (Random(0x5eed + count), 10, Instant::now());
    let own = parent.begin(1, false).unwrap();
    let mut start = || {
        serial += 1;
        Peer::start(&path, &parent, serial, keep_after)
    };
    let mut peers: Vec<Peer> = (0..3).map(|_| start()).collect();
    let own_session = manager.session().unwrap();
    let mut ballast = Ballast { owner: own_session.owner().unwrap(), names: 0 };
    for round in 0..count {
        if IS_TIGHT.get() {
            ballast.leave(random.below(60));
        }
        std::thread::sleep(Duration::from_micros(1_000 + random.below(5_000)));
        if round % 4 == 0 {
            let stopped = &mut peers[random.roll(3)];
            stopped.stop();
            std::thread::sleep(Duration::from_micros(random.below(30_000)));
            stopped.signal(libc::SIGCONT);
        }
        peers.swap_remove(random.roll(3)).kill(&parent);
        // With little room this process keeps its session, for only its own kills make room.
        let fresh = (!IS_TIGHT.get()).then(|| session(&manager));
        live(fresh.as_ref().unwrap_or(&own_session), &path, own, 7 + 3 * round, 10);
        peers.push(start());
        if IS_TIGHT.get() && round / 50 % 2 == 0 {
            // It finds room for what a session keeps for as long as there is one.
            ballast.release();
            std::thread::sleep(Duration::from_millis(5));
        }
        if (round + 1) % 1_000 == 0 {
            let rate = (round + 1) as f64 / since.elapsed().as_secs_f64();
            println!("keep_after {keep_after}: {} kills, {rate:.0} a second", round + 1);
        }
    }
    peers.into_iter().for_each(|peer| peer.kill(&parent));
    drop(ballast);
    drop(own_session);
    if IS_TIGHT.get() {
        let (granted, refused) = (GRANTED.replace(0), REFUSED.replace(0));
        println!("keep_after {keep_after}: granted {granted}, refused {refused}");
        // Once in each round it is filled.
        assert!(granted > count && refused > count / 2, "granted {granted}, {refused}");
    }
    assert_eq!(std::fs::read_to_string(faults(&path)).unwrap_or_default(), "");
    let session = manager.session().unwrap();
    session.sweep().unwrap();
    let orphans = session.orphans().unwrap();
    println!("keep_after {keep_after}: {} orphans at the end", orphans.len());
    orphans.into_iter().for_each(|orphan| session.release_orphan(orphan).unwrap());
    left::nothing_in(&session);
    let _ = std::fs::remove_file(&path);
    let _ = std::fs::remove_file(path.with_extension("book"));
}

fn asked(usual: u64) -> u64 {
    std::env::var("LATCHWORK_LOCK_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// With names that are kept for one session at once, soon, and late.
fn with_all_kinds(count: u64) {
    for keep_after in [1, 2, 8, 32] {
        kills(count / 4, keep_after);
    }
}

#[test]
fn kills_among_all_kinds_harm_nobody() {
    with_all_kinds(asked(120));
}

#[test]
fn kills_in_a_full_region_harm_nobody() {
    IS_TIGHT.set(true);
    with_all_kinds(asked(80));
}

#[test]
#[ignore = "long: 100,000 kills"]
fn kills_among_all_kinds_harm_nobody_long() {
    with_all_kinds(asked(100_000));
}

#[test]
#[ignore = "long: 100,000 kills"]
fn kills_in_a_full_region_harm_nobody_long() {
    IS_TIGHT.set(true);
    with_all_kinds(asked(100_000));
}
