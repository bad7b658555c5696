//! All calls of an owner, compared step by step with a model: families, savepoints, batches, the
//! kinds of waiting, deadlocks. (`naive.rs` compares the core calls in more modes.)

use std::collections::BTreeSet;

use latchwork_lockmgr::{
    BatchError, BatchOp as Batched, Child, Error, Manager, Mode, Modes, Options, Owner,
    OwnerOptions, Reason, Session, Step, Wait, berkeley, granular, postgres, shared,
};
use latchwork_region::Region;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

#[allow(unreachable_pub, reason = "a module of this test")]
use crate::model::{Flaw, How, Model, Outcome};

/// Ages and parents: three unrelated owners in two sessions; two children and a grandchild of the
/// first.
const PEOPLE: [(u64, Option<usize>); 6] =
    [(1, None), (2, None), (3, None), (1, Some(0)), (1, Some(3)), (1, Some(0))];
const NAMES: [&[u8]; 4] = [b"a", b"a name of 31 bytes, neither more", &[7; 90], &[8; 900]];

#[derive(Clone, Copy, Debug)]
enum BatchOp {
    Ask(usize, usize, u8, How),
    Convert(usize, usize, u8),
    Any(usize, u8),
    Unlock(usize, usize),
    ReleaseObject(usize, usize),
    ReleaseAll(usize),
    ReleaseReads(usize),
    Cancel(usize),
    Downgrade(usize, usize, u8),
    Savepoint(usize),
    RollBack(usize),
    Inherit(usize),
    Kill(usize),
    Batch(usize, usize, usize, u8),
    Detect,
    Wrong(usize),
}

fn operation() -> impl Strategy<Value = BatchOp> {
    let (owner, name, mode) = (0..PEOPLE.len(), 0..NAMES.len(), 0..9u8);
    let how = prop_oneof![
        6 => Just(How::Long),
        3 => Just(How::Never),
        2 => Just(How::Die),
        1 => Just(How::Wound),
    ];
    let object = || (owner.clone(), name.clone());
    prop_oneof![
        40 => (owner.clone(), name.clone(), mode.clone(), how)
            .prop_map(|(o, n, m, h)| BatchOp::Ask(o, n, m, h)),
        3 => (object(), mode.clone()).prop_map(|((o, n), m)| BatchOp::Convert(o, n, m)),
        2 => (owner.clone(), mode.clone()).prop_map(|(o, m)| BatchOp::Any(o, m)),
        12 => object().prop_map(|(o, n)| BatchOp::Unlock(o, n)),
        3 => object().prop_map(|(o, n)| BatchOp::ReleaseObject(o, n)),
        3 => owner.clone().prop_map(BatchOp::ReleaseAll),
        2 => owner.clone().prop_map(BatchOp::ReleaseReads),
        6 => owner.clone().prop_map(BatchOp::Cancel),
        5 => (object(), mode.clone()).prop_map(|((o, n), m)| BatchOp::Downgrade(o, n, m)),
        3 => owner.clone().prop_map(BatchOp::Savepoint),
        3 => owner.clone().prop_map(BatchOp::RollBack),
        4 => (3..6usize).prop_map(BatchOp::Inherit),
        1 => owner.clone().prop_map(BatchOp::Kill),
        3 => (object(), name, mode).prop_map(|((o, n), k, m)| BatchOp::Batch(o, n, k, m)),
        4 => Just(BatchOp::Detect),
        1 => owner.prop_map(BatchOp::Wrong),
    ]
}

/// Returns a description of the difference if the two values differ.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, real: T, model: T) -> Result<(), String> {
    if real == model { Ok(()) } else { Err(format!("{what}: it is {real:?}, not {model:?}")) }
}

/// The lock manager and the model.
struct Pair<'a> {
    sessions: [&'a Session; 2],
    owners: [&'a Owner<'a>; 6],
    children: [&'a Child<'a, 'a>; 3],
    model: Model,
}

impl Pair<'_> {
    /// Returns the model's outcome as the manager's result. If the request died of one of several
    /// owners, the owner that the manager names.
    fn said(&self, outcome: Outcome, real: &Result<Step, Error>) -> Result<Step, Error> {
        match outcome {
            Outcome::Granted => Ok(Step::Granted),
            Outcome::Waiting => Ok(Step::Waiting),
            Outcome::Refused => Err(Error::NotGranted),
            Outcome::Busy => Err(Error::Waiting),
            Outcome::Aborted(why) => Err(Error::Aborted(why)),
            Outcome::Died(older) => {
                let mut ids = older.iter().map(|who| Error::Died(self.owners[*who].id()));
                let named = ids.find(|error| real.as_ref().err() == Some(error));
                Err(named.unwrap_or_else(|| Error::Died(self.owners[*older.first().unwrap()].id())))
            }
        }
    }

    fn mode(&self, number: u8) -> Mode {
        let modes = self.sessions[0].manager().modes();
        modes.each().nth(usize::from(number) % modes.len()).unwrap()
    }

    /// An operation that is refused while the owner waits, or if the model says that the lock is
    /// not held.
    fn calm(
        &mut self,
        owner: usize,
        real: Result<(), Error>,
        model: impl FnOnce(&mut Model) -> bool,
    ) -> Result<(), String> {
        let expected = match self.model.waits(owner) {
            true => Err(Error::Waiting),
            false if model(&mut self.model) => Ok(()),
            false => Err(Error::NotHeld),
        };
        same("outcome", real, expected)
    }

    /// Runs the operation in both. Returns false if they cannot be compared any further.
    fn step(&mut self, operation: BatchOp) -> Result<bool, String> {
        let owners = self.owners;
        match operation {
            BatchOp::Ask(o, n, m, how) => {
                let wait = match how {
                    How::Long => Wait::Detect,
                    How::Never => Wait::Never,
                    How::Die => Wait::Die,
                    How::Wound => Wait::Wound,
                };
                let mode = self.mode(m);
                let real = owners[o].request(NAMES[n], mode, wait);
                let model = self.model.request(o, NAMES[n], mode, how);
                let expected = self.said(model, &real);
                same("request", real, expected)?;
                return Ok(!self.model.unsure);
            }
            BatchOp::Convert(o, n, m) => {
                let mode = self.mode(m);
                let real = owners[o].convert(NAMES[n], mode, Wait::Never).map(|()| Step::Granted);
                if self.model.holds(o, NAMES[n]).is_none() {
                    same("convert", real, Err(Error::NotHeld))?;
                } else {
                    let model = self.model.request(o, NAMES[n], mode, How::Never);
                    if model == Outcome::Granted {
                        self.model.unlock(o, NAMES[n]);
                    }
                    let expected = self.said(model, &real);
                    same("convert", real, expected)?;
                }
            }
            BatchOp::Any(o, m) => {
                let mode = self.mode(m);
                let real = owners[o].lock_any(NAMES, mode);
                let mut expected = Ok(None);
                for (at, name) in NAMES.iter().enumerate() {
                    match self.model.request(o, name, mode, How::Never) {
                        Outcome::Granted => expected = Ok(Some(at)),
                        Outcome::Refused => continue,
                        outcome => expected = self.said(outcome, &Ok(Step::Granted)).map(|_| None),
                    }
                    break;
                }
                same("any", real, expected)?;
            }
            BatchOp::Unlock(o, n) => {
                let real = owners[o].unlock(NAMES[n]);
                self.calm(o, real, |model| model.unlock(o, NAMES[n]))?;
            }
            BatchOp::ReleaseObject(o, n) => {
                let real = owners[o].release_object(NAMES[n]);
                self.calm(o, real, |model| {
                    model.release_object(o, NAMES[n]);
                    true
                })?;
            }
            BatchOp::ReleaseAll(o) => {
                let real = owners[o].release_all();
                self.calm(o, real, |model| {
                    model.release_all(o);
                    true
                })?;
            }
            BatchOp::ReleaseReads(o) => {
                let real = owners[o].release_reads();
                self.calm(o, real, |model| {
                    model.release_reads(o);
                    true
                })?;
            }
            BatchOp::Cancel(o) => {
                same("cancel", owners[o].cancel(), Ok(self.model.waits(o)))?;
                self.model.cancel(o);
            }
            BatchOp::Downgrade(o, n, m) => {
                let mode = self.mode(m);
                let real = owners[o].downgrade(NAMES[n], mode);
                self.calm(o, real, |model| model.downgrade(o, NAMES[n], mode))?;
            }
            BatchOp::Savepoint(_) | BatchOp::RollBack(_) => unreachable!("done by the caller"),
            BatchOp::Inherit(o) => {
                let done = self.model.inherit(o);
                let expected = if done { Ok(()) } else { Err(Error::Waiting) };
                same("inherit", self.children[o - 3].inherit(), expected)?;
            }
            BatchOp::Kill(o) => {
                same("kill", self.sessions[o % 2].kill(owners[o].id()), Ok(()))?;
                self.model.abort(o, Reason::Killed);
            }
            BatchOp::Batch(o, n, k, m) => self.batch(o, NAMES[n], NAMES[k], m)?,
            BatchOp::Detect => return self.detect(),
            BatchOp::Wrong(o) => {
                let no_mode = Mode::new(16);
                let other = owners[(o + 1) % owners.len()].savepoint();
                let free = !self.model.waits(o);
                let asked = owners[o].request(b"a", no_mode, Wait::Never);
                let named = owners[o].request(&[1; 4001], self.mode(0), Wait::Never);
                if free && !matches!(asked, Err(Error::Aborted(_))) {
                    same("mode", asked, Err(Error::Mode(no_mode)))?;
                    same("name", named, Err(Error::Name(4001)))?;
                }
                if let Ok(other) = other {
                    same("savepoint", owners[o].roll_back_to(other), Err(Error::Family))?;
                }
                if free {
                    same("name", owners[o].unlock(b""), Err(Error::Name(0)))?;
                }
            }
        }
        Ok(true)
    }

    /// A batch of two locks, an unlock and `release_reads`, up to the first that fails.
    fn batch(&mut self, o: usize, first: &[u8], second: &[u8], m: u8) -> Result<(), String> {
        let mode = self.mode(m);
        let real = self.owners[o].batch(&[
            Batched::Lock(first, mode, Wait::Never),
            Batched::Lock(second, mode, Wait::Never),
            Batched::Unlock(first),
            Batched::ReleaseReads,
            Batched::ReleaseObject(second),
        ]);
        let mut expected = Ok(());
        for (done, name) in [first, second].into_iter().enumerate() {
            let outcome = self.model.request(o, name, mode, How::Never);
            let said = self.said(outcome, &Ok(Step::Granted));
            if let Err(error) = said {
                expected = Err(BatchError { done, error });
                break;
            }
        }
        if expected.is_ok() {
            self.model.unlock(o, first);
            self.model.release_reads(o);
            self.model.release_object(o, second);
        }
        same("batch", real, expected)
    }

    /// Detects deadlocks: victims must be owners in a cycle, and no cycle may remain.
    fn detect(&mut self) -> Result<bool, String> {
        let danger = self.model.in_cycles();
        let before: Vec<_> = (0..PEOPLE.len()).map(|who| self.model.waits_for(who)).collect();
        let reordered = self.sessions[0].stats().reordered;
        let found = self.sessions[0].detect().map_err(|error| error.to_string())?;
        let reordered = self.sessions[0].stats().reordered != reordered;
        let mut victims = BTreeSet::new();
        for who in danger.clone() {
            let Some(Err(Error::Deadlock(cycle))) = self.owners[who].poll().unwrap() else {
                continue;
            };
            same("the victim begins its cycle", cycle[0].owner, self.owners[who].id())?;
            let who_is = |id| self.owners.iter().position(|owner| owner.id() == id).unwrap();
            let cycle: Vec<usize> = cycle.iter().map(|link| who_is(link.owner)).collect();
            for (at, from) in cycle.iter().enumerate() {
                let to = cycle[(at + 1) % cycle.len()];
                if !reordered && !before[*from].contains(&to) {
                    return Err(format!("{from} does not wait for {to} in {cycle:?}"));
                }
            }
            victims.insert(who);
        }
        same("victims", victims.len(), found)?;
        same("cycles were there", found != 0 || reordered, !danger.is_empty())?;
        if reordered {
            // The manager has reordered a queue, so the model's order no longer applies.
            return Ok(false);
        }
        for who in &victims {
            self.model.refuse(*who);
            self.model.ended(*who);
        }
        same("cycles are left", self.model.in_cycles(), BTreeSet::new())?;
        Ok(true)
    }

    /// Compares waiters, results of waits, and held locks.
    fn agree(&mut self) -> Result<(), String> {
        for (o, owner) in self.owners.iter().enumerate() {
            let ended = match self.model.waits(o) {
                true => None,
                false => Some(self.model.ended(o).unwrap_or(Ok(())).map_err(Error::Aborted)),
            };
            same(&format!("poll of {o}"), owner.poll(), Ok(ended))?;
            for name in NAMES {
                let what = format!("{o} holds {:?}", &name[..1]);
                same(&what, owner.holds(name), Ok(self.model.holds(o, name)))?;
            }
            // The manager also counts the lock that an owner waits for.
            let pending = usize::from(self.model.waits_for_new(o));
            let held = owner.held().map(|held| held - pending);
            same(&format!("count of {o}"), held, Ok(self.model.held(o)))?;
        }
        Ok(())
    }
}

fn compare(modes: &Modes, weak: bool, operations: &[BatchOp], flaw: Flaw) -> Result<(), String> {
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    let options = Options { weak, ..latchwork_check::early::early() };
    let manager = Manager::new(region, modes.clone(), options).unwrap();
    let sessions = [&manager.session().unwrap(), &manager.session().unwrap()];
    let aged = |session: usize, age| {
        let options = OwnerOptions { age: Some(age), ..OwnerOptions::default() };
        sessions[session].owner_with(&options).unwrap()
    };
    {
        let (a, b, c) = (aged(0, 1), aged(0, 2), aged(1, 3));
        // In the order of their numbers: of two of one age, the lower number is older.
        let d = a.child().unwrap();
        let e = d.child().unwrap();
        let f = a.child().unwrap();
        let owners: [&Owner<'_>; 6] = [&a, &b, &c, &d, &e, &f];
        let model = Model::new(modes.clone(), &PEOPLE, flaw);
        let mut pair = Pair { sessions, owners, children: [&d, &e, &f], model };
        let mut points = owners.map(|owner| owner.savepoint().unwrap());
        (0..owners.len()).for_each(|o| pair.model.savepoint(o));
        for (at, operation) in operations.iter().enumerate() {
            let told = |error| format!("operation {at}, {operation:?}: {error}");
            match *operation {
                BatchOp::Savepoint(o) => {
                    let real = owners[o].savepoint();
                    if pair.model.waits(o) {
                        same("savepoint", real, Err(Error::Waiting)).map_err(told)?;
                    } else {
                        points[o] = real.unwrap();
                        pair.model.savepoint(o);
                    }
                }
                BatchOp::RollBack(o) => {
                    let real = owners[o].roll_back_to(points[o]);
                    pair.calm(o, real, |model| {
                        model.roll_back(o);
                        true
                    })
                    .map_err(told)?;
                }
                operation => {
                    if !pair.step(operation).map_err(told)? {
                        break;
                    }
                }
            }
            pair.agree().map_err(told)?;
        }
    }
    let totals = sessions[0].totals().unwrap();
    let left = (totals.objects, totals.requests, totals.weak, totals.owners);
    same("left", left, (0, 0, 0, 0))?;
    same("sound", manager.region().audit().unwrap().is_sound(), true)
}

/// Runs random operations; returns the shortest sequence that differs, and the difference.
fn search(modes: &Modes, weak: bool, cases: u32, flaw: Flaw) -> Result<(), String> {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let seed = proptest::test_runner::RngAlgorithm::ChaCha;
    let rng = proptest::test_runner::TestRng::deterministic_rng(seed);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let operations = prop::collection::vec(operation(), 1..120);
    let end = runner.run(&operations, |operations| {
        compare(modes, weak, &operations, flaw).map_err(TestCaseError::fail)
    });
    match end {
        Ok(()) => Ok(()),
        Err(TestError::Fail(why, operations)) => Err(format!("{why}\n{operations:#?}")),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn as_the_model_granular() {
    search(&granular::modes(), true, 600, Flaw::None).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn as_the_model_granular_nothing_weak() {
    search(&granular::modes(), false, 600, Flaw::None).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn as_the_model_shared() {
    search(&shared::modes(), true, 600, Flaw::None).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn as_the_model_berkeley() {
    search(&berkeley::modes(), true, 400, Flaw::None).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn as_the_model_postgres() {
    search(&postgres::modes(), true, 400, Flaw::None).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
#[ignore = "long"]
fn as_the_model_for_long() {
    for modes in [granular::modes(), shared::modes(), berkeley::modes(), postgres::modes()] {
        for weak in [true, false] {
            search(&modes, weak, 20_000, Flaw::None).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

#[test]
fn a_model_with_a_flaw_is_noticed() {
    for flaw in Flaw::ALL {
        let end = search(&granular::modes(), true, 600, flaw);
        assert!(end.is_err(), "{flaw:?} is not detected");
    }
}
