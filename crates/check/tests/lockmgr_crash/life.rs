//! The work of a process while others are killed: random operations of every kind, with a book of
//! held locks that detects conflicting grants.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use latchwork_check::random::Random;
use latchwork_lockmgr::{
    BatchOp, Error, KeyRange, Mode, Modes, Owner, OwnerOptions, RangeKind, Session, Stripes, Wait,
    granular,
};
use latchwork_machine::{Deadline, Shared};

use crate::book::{Book, KEYS, NAMES};

const SPACE: &[u8] = b"hot";
/// Names from here on are locked repeatedly by one process after another, and are not in the book.
const KEPT_NAMES: u64 = 1_000;

thread_local! {
    /// Whether the region has little room, so that any call that allocates cells may fail.
    pub(crate) static IS_TIGHT: Cell<bool> = const { Cell::new(false) };
    /// How often this thread was refused for lack of room.
    pub(crate) static REFUSED: Cell<u64> = const { Cell::new(0) };
    /// Number of locks that this thread was granted.
    pub(crate) static GRANTED: Cell<u64> = const { Cell::new(0) };
}

/// Returns the result, or None if there was no room for it. Panics on any other error.
pub(crate) fn if_room<T>(got: Result<T, Error>) -> Option<T> {
    match got {
        Ok(had) => Some(had),
        Err(Error::Region(latchwork_region::Error::Full(_))) if IS_TIGHT.get() => {
            REFUSED.set(REFUSED.get() + 1);
            std::thread::sleep(Duration::from_micros(200));
            None
        }
        Err(error) => panic!("a surviving process got: {error}"),
    }
}

fn soon() -> Wait {
    Wait::Until(Deadline::after::<Shared>(Duration::from_millis(20)))
}

/// Returns whether a lock was granted. Panics unless a wait may end with this error.
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

/// Polls a future until it is ready or this time has passed.
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
pub(crate) struct Life<'m> {
    pub(crate) session: &'m Session<Shared>,
    pub(crate) modes: &'m Modes,
    pub(crate) book: &'m Book,
    pub(crate) stripes: Stripes,
    pub(crate) random: Random,
    pub(crate) label: String,
    /// Whether this process's owners are kept after its death.
    pub(crate) kept: bool,
}

/// The names that an owner holds: mode and count.
type Holds = BTreeMap<u64, (Mode, u32)>;

/// The stripes of the keyspace in which all ranges are locked.
pub(crate) fn stripes() -> Stripes {
    Stripes::new(SPACE, [3u64, 5, 11].map(u64::to_be_bytes)).unwrap()
}

impl<'m> Life<'m> {
    fn mode(&mut self) -> Mode {
        let each: Vec<Mode> = self.modes.each().collect();
        // Half of them weak.
        let among = if self.random.below(2) == 0 { 2 } else { each.len() };
        each[self.random.roll(among)]
    }

    fn name(&mut self) -> u64 {
        let among = if self.random.below(2) == 0 { 5 } else { NAMES };
        self.random.below(among)
    }

    /// Returns a random name that is held.
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

    /// Records a granted name in the book.
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
            owner.downgrade(&name.to_le_bytes(), granular::IS).unwrap();
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
        // Dropping a future that still waits withdraws its request.
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

    /// Locks held and other names, and rolls back to a savepoint before that.
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
        owner.roll_back_to(savepoint).unwrap();
        for (name, hold) in holds {
            assert_eq!(owner.holds(&name.to_le_bytes()), Ok(Some(*hold)), "rolled back");
        }
        true
    }

    /// Locks one name repeatedly, so that it is reserved for this session.
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

    /// A child owner locks a name that its parent does not hold, and passes it on or unlocks it.
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

    /// Trades a lock to another owner of this process, which keeps it until the end.
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
        // Further requests of this owner could wait for the other one.
        false
    }

    /// Adopts orphans: checks that they hold what the book lists, locks one more name, and ends
    /// them.
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
                    assert!(holds, "the orphan {serial} no longer holds name {name}");
                }
                if self.random.below(3) == 0 {
                    // Left for another process to adopt.
                    continue;
                }
                let _ = adopted.try_lock(&KEPT_NAMES.to_le_bytes(), granular::S);
                self.book.clear(row);
            }
            adopted.end().unwrap();
        }
    }

    pub(crate) fn rounds(&mut self, count: u64) {
        for round in 0..count {
            self.transaction();
            if round % 8 == 0 {
                self.adopt();
            }
        }
    }
}
