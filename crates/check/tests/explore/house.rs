//! A lock manager on the simulated machine, owners that use it, and checks of their locks.
//!
//! The locks of each owner are also recorded outside of the simulation, where no store is delayed:
//! an owner holds a lock from the return of the call that took it to the call that releases it. If
//! two owners hold conflicting locks, the lock manager is wrong.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use crate::flawed::Breakable;
use latchwork_check::explore::{Counted, Schedule, body, two_by_two};
use latchwork_lockmgr::{
    Error, Manager, Mode, Modes, Options, Owner, OwnerOptions, Reason, Session, View, Wait,
};
use latchwork_machine::{Clock, Deadline, Machine};
use latchwork_region::Region;
use latchwork_sim::{Explorer, Simulation};

/// Number of accesses after which a run counts as endless.
const LIMIT: u64 = 600_000;

/// Approximate accesses of a run, within which priorities are changed.
const LENGTH: u64 = 1_500;

/// For deadlines that must never be reached.
pub(crate) const NEVER: Duration = Duration::from_secs(3600);
/// Shorter than the longest nap, after which a waiter notices a lost wake-up.
const PATIENCE: Duration = Duration::from_millis(45);

/// Objects that the owners of a run lock.
pub(crate) const NAMES: usize = 3;

/// Random numbers that depend only on the schedule.
pub(crate) struct Dice(Cell<u64>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        let dice = Self(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
        (0..4).for_each(|_| _ = dice.below(2));
        dice
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        let mut x = self.0.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.set(x);
        ((u128::from(x) * u128::from(bound)) >> 64) as u64
    }

    pub(crate) fn one_in(&self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// A hold, as its owner expects it.
#[derive(Clone, Copy, Debug)]
struct Hold {
    name: usize,
    mode: Mode,
    count: u32,
}

/// State that the owners of a run share, outside of the simulation.
pub(crate) struct Book {
    modes: Modes,
    holds: RefCell<Vec<Vec<Hold>>>,
    data: Vec<Counted>,
    /// How often each object was written.
    written: Vec<Cell<u64>>,
    flaw: RefCell<Option<String>>,
    /// The call that each owner began last, and its object.
    actions: RefCell<Vec<(&'static str, usize)>>,
    /// Owners that were refused because of a deadlock.
    pub(crate) victims: Cell<usize>,
    /// Requests that were granted.
    pub(crate) granted: Cell<usize>,
    /// Requests that were cancelled, or refused for another reason than a deadlock.
    pub(crate) refused: Cell<usize>,
    /// How many owners have reached the barrier.
    arrived: Cell<usize>,
    owners: usize,
    patience: Duration,
}

impl Book {
    /// Records the first flaw.
    pub(crate) fn flaw(&self, text: String) {
        self.flaw.borrow_mut().get_or_insert(text);
    }

    fn last_actions(&self) -> String {
        let actions = self.actions.borrow();
        let told = |(me, (action, name)): (usize, &(&str, usize))| format!("{me}: {action} {name}");
        actions.iter().enumerate().map(told).collect::<Vec<_>>().join("; ")
    }
}

/// One owner of a run, in its simulated thread.
pub(crate) struct Life<'a> {
    pub(crate) me: usize,
    pub(crate) owner: &'a Owner<'a, Breakable>,
    pub(crate) session: &'a Session<Breakable>,
    pub(crate) book: &'a Book,
    pub(crate) dice: Dice,
    names: &'a [Vec<u8>],
}

impl Life<'_> {
    pub(crate) fn name(&self, name: usize) -> &[u8] {
        &self.names[name]
    }

    fn begins(&self, action: &'static str, name: usize) {
        self.book.actions.borrow_mut()[self.me] = (action, name);
    }

    fn hold(&self, name: usize) -> Option<Hold> {
        self.book.holds.borrow()[self.me].iter().copied().find(|hold| hold.name == name)
    }

    /// The mode in which this owner holds an object.
    pub(crate) fn mode(&self, name: usize) -> Option<Mode> {
        self.hold(name).map(|hold| hold.mode)
    }

    fn write_down(&self, new: Hold) {
        let mut holds = self.book.holds.borrow_mut();
        let mine = &mut holds[self.me];
        mine.retain(|hold| hold.name != new.name);
        if new.count > 0 {
            mine.push(new);
        }
        for (other, theirs) in holds.iter().enumerate().filter(|(other, _)| *other != self.me) {
            let clash = |hold: &&Hold| {
                hold.name == new.name
                    && new.count > 0
                    && self.book.modes.conflicts(hold.mode, new.mode)
            };
            if let Some(hold) = theirs.iter().find(clash) {
                let text =
                    format!("owner {} has {new:?} while owner {other} has {hold:?}", self.me);
                self.book.flaw(text);
            }
        }
    }

    /// Records a flaw if a thread slept until a deadline that should not be reached.
    pub(crate) fn in_time(&self) {
        if u128::from(Breakable::now(Clock::Monotonic)) >= self.book.patience.as_nanos() {
            self.book.flaw(format!("owner {}: a thread slept through a wake-up", self.me));
        }
    }

    /// Records the result of a request, and a flaw if that result is impossible.
    pub(crate) fn ended(
        &self,
        name: usize,
        mode: Mode,
        wait: Wait,
        end: &Result<(), Error>,
    ) -> bool {
        self.in_time();
        let count = |cell: &Cell<usize>| cell.set(cell.get() + 1);
        match (end, wait) {
            (Ok(()), _) => {
                count(&self.book.granted);
                let old = self.hold(name);
                let made = old.map_or(mode, |old| self.book.modes.convert(old.mode, mode));
                let count = old.map_or(0, |old| old.count) + 1;
                self.write_down(Hold { name, mode: made, count });
            }
            (Err(Error::Deadlock(cycle)), _) => {
                count(&self.book.victims);
                let mut owners: Vec<_> = cycle.iter().map(|link| link.owner).collect();
                owners.sort_unstable();
                owners.dedup();
                let all = owners.len() == cycle.len() && cycle.len() >= 2;
                if !all || cycle[0].owner != self.owner.id() {
                    self.book.flaw(format!("owner {}: a cycle without it: {cycle:?}", self.me));
                }
            }
            (Err(Error::TimedOut), Wait::Until(deadline)) => {
                count(&self.book.refused);
                if Breakable::now(Clock::Monotonic) < deadline.at {
                    self.book.flaw(format!("owner {}: timed out too early", self.me));
                }
            }
            (Err(Error::NotGranted), Wait::Never)
            | (Err(Error::Died(_)), Wait::Die)
            | (Err(Error::Aborted(Reason::Wounded | Reason::Killed)), _) => {
                count(&self.book.refused);
            }
            (Err(error), _) => self.book.flaw(format!("owner {}: {error}", self.me)),
        }
        end.is_ok()
    }

    /// Requests a lock; returns whether it was granted.
    pub(crate) fn lock(&self, name: usize, mode: Mode, wait: Wait) -> bool {
        self.begins("lock", name);
        let end = self.owner.lock_with(self.name(name), mode, wait);
        self.ended(name, mode, wait, &end)
    }

    /// Requests a lock, polls a few times, and cancels the request.
    pub(crate) fn lock_and_cancel(&self, name: usize, mode: Mode, looks: u64) -> bool {
        self.begins("lock or cancel", name);
        let wait = Wait::Detect;
        let mut end = self.owner.request(self.name(name), mode, wait).map(drop);
        for _ in 0..looks {
            match self.owner.poll() {
                Ok(None) => {}
                Ok(Some(now)) => {
                    end = end.and(now);
                    break;
                }
                Err(error) => end = end.and(Err(error)),
            }
        }
        if end.is_ok() {
            match self.owner.cancel() {
                // Neither granted nor refused.
                Ok(true) => return false,
                Ok(false) => {}
                Err(error) => end = Err(error),
            }
        }
        self.ended(name, mode, wait, &end)
    }

    /// Releases a lock once.
    pub(crate) fn unlock(&self, name: usize) {
        self.begins("unlock", name);
        let Some(old) = self.hold(name) else { return };
        // The mode stays the same until the last release, as in the table.
        self.write_down(Hold { count: old.count - 1, ..old });
        self.done("unlock", self.owner.unlock(self.name(name)));
    }

    /// Releases all locks.
    pub(crate) fn release_all(&self) {
        self.begins("release_all", 0);
        self.book.holds.borrow_mut()[self.me].clear();
        self.done("release_all", self.owner.release_all());
    }

    /// Replaces a mode by a weaker one.
    pub(crate) fn downgrade(&self, name: usize, mode: Mode) {
        self.begins("downgrade", name);
        let Some(old) = self.hold(name) else { return };
        self.write_down(Hold { mode, ..old });
        self.done("downgrade", self.owner.downgrade(self.name(name), mode));
    }

    /// Compares the manager's state of a lock with the recorded one.
    pub(crate) fn compare(&self, name: usize) {
        self.begins("compare", name);
        let said = self.owner.holds(self.name(name));
        let known = self.hold(name).map(|hold| (hold.mode, hold.count));
        if said != Ok(known) {
            self.book.flaw(format!("owner {}: expected {known:?}, found {said:?}", self.me));
        }
    }

    fn done(&self, what: &str, end: Result<(), Error>) {
        self.in_time();
        if let Err(error) = end {
            self.book.flaw(format!("owner {}: {what}: {error}", self.me));
        }
    }

    /// Writes or reads the object that a lock protects.
    pub(crate) fn use_it(&self, name: usize, writes: bool) {
        match writes {
            true => {
                let written = &self.book.written[name];
                written.set(written.get() + 1);
                self.book.data[name].count();
            }
            false => self.book.data[name].read(),
        }
    }

    /// Waits until all owners have called this.
    pub(crate) fn meet(&self) {
        self.book.arrived.set(self.book.arrived.get() + 1);
        while self.book.arrived.get() < self.book.owners {
            Breakable::relax();
        }
    }

    /// A deadline after at most this many steps.
    pub(crate) fn soon(&self, steps: u64) -> Deadline {
        Deadline::after::<Breakable>(Duration::from_nanos(100 * self.dice.below(steps)))
    }
}

/// Describes the contents of a manager after a failure.
fn remains(manager: &Manager<Breakable>) -> String {
    let Ok(Some(view)) = View::new(manager.region().clone()) else { return String::new() };
    let (rows, latched) = (view.look().map(|picture| picture.rows), view.latched());
    let mut text = format!("latches held: {latched:?}");
    if let Err(error) = &rows {
        text += &format!("\n{error}");
    }
    for row in rows.unwrap_or_default() {
        let (object, owner) = (String::from_utf8_lossy(&row.object), row.owner);
        let (held, wanted) = (row.held.map(|m| m.number()), row.wanted.map(|m| m.number()));
        text += &format!("\n{object}: {owner} has {held:?}, wants {wanted:?}, weak {}", row.weak);
    }
    text
}

/// The parameters of a run.
pub(crate) struct Plan {
    pub(crate) schedule: Schedule,
    pub(crate) modes: Modes,
    /// The modes of the manager if they differ. A control needs that.
    pub(crate) told: Option<Modes>,
    pub(crate) owners: usize,
    pub(crate) detect_after: Duration,
    /// The simulated time at which the run must have ended.
    pub(crate) patience: Duration,
    pub(crate) names: Vec<Vec<u8>>,
}

impl Plan {
    /// Two to four owners of some names, without deadlines.
    pub(crate) fn new(schedule: Schedule, modes: Modes) -> Self {
        Self {
            schedule,
            modes,
            told: None,
            owners: 2 + (schedule.0 / 8 % 3) as usize,
            detect_after: NEVER,
            patience: PATIENCE,
            names: (0..NAMES).map(|name| format!("object {name}").into_bytes()).collect(),
        }
    }

    /// With deadlock detection after the default time.
    pub(crate) fn detecting(self) -> Self {
        let detect_after = Options::default().detect_after;
        Self { detect_after, ..self }
    }

    fn explorer(&self) -> Explorer {
        let seed = self.schedule.0;
        match seed % 2 {
            0 => Explorer::random(seed),
            _ => Explorer::pct(seed, 1 + (seed / 2 % 4) as usize, LENGTH),
        }
    }

    /// Runs `life` in each owner's thread, and checks what is left.
    pub(crate) fn run(&self, life: impl Fn(&Life<'_>)) -> Result<Book, String> {
        crate::flawed::renew();
        let told = |error: Error| error.to_string();
        let manager = self.manager().map_err(told)?;
        let sessions = (0..self.owners).map(|_| manager.session()).collect::<Result<Vec<_>, _>>();
        let sessions = sessions.map_err(told)?;
        let owner = |(age, session)| {
            Session::owner_with(
                session,
                &OwnerOptions { age: Some(1 + age as u64), ..OwnerOptions::default() },
            )
        };
        let owners = sessions.iter().enumerate().map(owner).collect::<Result<Vec<_>, _>>();
        let owners = owners.map_err(told)?;
        for owner in &owners {
            // Allocates their pages, which would otherwise take a thousand accesses in each run.
            owner.lock(b"a page", self.weakest()).map_err(told)?;
            owner.unlock(b"a page").map_err(told)?;
        }
        let used = manager.region().audit().map_err(|error| error.to_string())?.used();
        let book = self.book();
        let bodies = owners.iter().zip(&sessions).enumerate().map(|(me, (owner, session))| {
            let (book, names, life) = (&book, &self.names[..], &life);
            let dice = Dice::new(self.schedule.0 << 3 | me as u64);
            body(move || {
                let life_of = Life { me, owner, session, book, dice, names };
                life(&life_of);
                life_of.release_all();
                life_of.in_time();
            })
        });
        let simulation = Simulation::new(&two_by_two(), self.schedule.0);
        let ended = simulation.explore(self.explorer()).limit(LIMIT).run(bodies.collect());
        let flaw = book.flaw.take();
        if let Some(text) = flaw.or_else(|| ended.err().map(|stuck| stuck.to_string())) {
            // Threads are stopped inside calls: their objects must not be used again.
            core::mem::forget(owners);
            core::mem::forget(sessions);
            return Err(format!("{text}\n{}\n{}", book.last_actions(), remains(&manager)));
        }
        self.look(&manager, &sessions[0], &owners[0], used)?;
        for (data, written) in book.data.iter().zip(&book.written) {
            data.check(written.get())?;
        }
        Ok(book)
    }

    fn weakest(&self) -> Mode {
        let weak = self.modes.each().find(|mode| self.modes.is_weak(*mode));
        weak.expect("modes with a weak one")
    }

    fn manager(&self) -> Result<Manager<Breakable>, Error> {
        let region = Region::heap(&latchwork_region::Options {
            processes: 1,
            threads: self.owners as u32,
            waiters: 1,
            limit: 4 << 20,
            ..latchwork_region::Options::default()
        })?;
        // Reservation: never, at the first request, or at the second.
        let keep_after = (self.schedule.0 / 2 % 3) as u32;
        let options = Options {
            detect_after: self.detect_after,
            keep_after,
            // Barging: never, for a while, or as long as any request waits.
            barge_for: [Duration::ZERO, Duration::from_micros(20), NEVER]
                [(self.schedule.0 / 6 % 3) as usize],
            ..latchwork_check::early::early()
        };
        Manager::new(region, self.told.clone().unwrap_or_else(|| self.modes.clone()), options)
    }

    fn book(&self) -> Book {
        Book {
            modes: self.modes.clone(),
            holds: RefCell::new(vec![Vec::new(); self.owners]),
            data: (0..self.names.len()).map(|_| Counted::default()).collect(),
            written: self.names.iter().map(|_| Cell::new(0)).collect(),
            flaw: RefCell::default(),
            actions: RefCell::new(vec![("nothing", 0); self.owners]),
            victims: Cell::new(0),
            granted: Cell::new(0),
            refused: Cell::new(0),
            arrived: Cell::new(0),
            owners: self.owners,
            patience: self.patience,
        }
    }

    /// Checks the manager after all owners have released their locks.
    fn look(
        &self,
        manager: &Manager<Breakable>,
        session: &Session<Breakable>,
        owner: &Owner<'_, Breakable>,
        used: u64,
    ) -> Result<(), String> {
        let told = |error: Error| error.to_string();
        let left = session.totals().map_err(told)?;
        if (left.objects, left.requests, left.waiting, left.weak) != (0, 0, 0, 0) {
            return Err(format!("locks or requests are left: {left:?}"));
        }
        let view = View::new(manager.region().clone()).map_err(told)?.ok_or("no manager")?;
        let verified = view.verify(Some(&self.modes)).map_err(told)?;
        if !verified.flaws.is_empty() || !verified.latched.is_empty() {
            return Err(format!("{verified:?}"));
        }
        let audit = manager.region().audit().map_err(|error| error.to_string())?;
        // Expected: idle objects and the chains of their tables, a spare request of each session,
        // and the deadlock history with its records.
        let idle = session.totals().map_err(told)?.idle;
        let (chains, spares) = (2 * self.names.len() as u64, self.owners as u64);
        let records = 1 + view.deadlocks().map_err(told)?.len() as u64;
        if !audit.is_sound() || audit.used() > used + idle + chains + spares + records {
            return Err(format!("{used} cells were in use, now {}: {audit:?}", audit.used()));
        }
        // No strong request is counted any more, so the biases open again.
        for name in &self.names {
            let before = session.stats().weak;
            // The number of requests depends on the measured cost of closings.
            for _ in 0..600 {
                owner.lock(name, self.weakest()).map_err(told)?;
                owner.unlock(name).map_err(told)?;
                if session.stats().weak != before {
                    break;
                }
            }
            if session.stats().weak == before {
                return Err(format!("{} stays closed", String::from_utf8_lossy(name)));
            }
        }
        Ok(())
    }
}
