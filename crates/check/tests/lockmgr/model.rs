//! A simple model of the lock manager: one thread, no latch, no fast path, the rules as `docs` and
//! the crate's pages state them. A flaw can be switched on to test the comparison.

use std::collections::{BTreeMap, BTreeSet};

use latchwork_lockmgr::{Mode, Modes, Reason};

/// A deliberate error in the model, which the comparison must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// New requests pass waiting ones.
    Overtakes,
    /// Conversions queue behind requests of owners that hold nothing.
    ConversionsQueue,
    /// A downgrade grants no waiting request.
    DowngradeUnseen,
    /// One unlock releases all counts.
    Countless,
    /// Locks of ancestors block a child.
    KinStops,
    /// Locks of a child do not block its parent.
    ParentsPass,
    /// Rolling back releases everything.
    NoSavepoints,
    /// Rolling back leaves modes and counts as they are.
    SavepointsKeepModes,
    /// An inherited lock loses its count.
    InheritLoses,
    /// An aborted owner may continue.
    AbortForgotten,
    /// A cancelled request still blocks others.
    CancelUnseen,
    /// Younger owners do not die.
    Immortal,
}

impl Flaw {
    pub(crate) const ALL: [Self; 12] = [
        Self::Overtakes,
        Self::ConversionsQueue,
        Self::DowngradeUnseen,
        Self::Countless,
        Self::KinStops,
        Self::ParentsPass,
        Self::NoSavepoints,
        Self::SavepointsKeepModes,
        Self::InheritLoses,
        Self::AbortForgotten,
        Self::CancelUnseen,
        Self::Immortal,
    ];
}

/// How a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Long,
    Never,
    Die,
    Wound,
}

/// The result of a request so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    Waiting,
    Refused,
    /// Because of one of these owners.
    Died(BTreeSet<usize>),
    /// The owner is already waiting.
    Busy,
    Aborted(Reason),
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    mode: Mode,
    count: u32,
    mark: u32,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    owner: usize,
    want: Mode,
    mark: u32,
}

#[derive(Clone, Debug, Default)]
struct Object {
    holds: BTreeMap<usize, Hold>,
    converting: Vec<Request>,
    waiting: Vec<Request>,
}

/// An owner's last savepoint: the number of locks it had taken, and for each name requested since,
/// the hold at the first such request.
#[derive(Clone, Debug, Default)]
struct Savepoint {
    marks: u32,
    asked: BTreeMap<Vec<u8>, Option<(Mode, u32)>>,
}

#[derive(Clone, Debug)]
struct Person {
    parent: Option<usize>,
    age: u64,
    marks: u32,
    savepoint: Savepoint,
    abort: Option<Reason>,
    waits_for: Option<Vec<u8>>,
    /// How its wait ended, until it is polled.
    ended: Option<Result<(), Reason>>,
}

/// The model.
pub(crate) struct Model {
    modes: Modes,
    flaw: Flaw,
    people: Vec<Person>,
    objects: BTreeMap<Vec<u8>, Object>,
    /// Set once the result depends on the order in which several owners were aborted.
    pub(crate) unsure: bool,
}

impl Model {
    /// Creates owners with these ages and parents. Of owners of one age the first is the oldest.
    pub(crate) fn new(modes: Modes, people: &[(u64, Option<usize>)], flaw: Flaw) -> Self {
        let person = |&(age, parent): &(u64, Option<usize>)| Person {
            parent,
            age,
            marks: 0,
            savepoint: Savepoint::default(),
            abort: None,
            waits_for: None,
            ended: None,
        };
        let people = people.iter().map(person).collect();
        Self { modes, flaw, people, objects: BTreeMap::new(), unsure: false }
    }

    /// Returns whether `who` is `of` or an ancestor of it.
    fn kin(&self, who: usize, of: usize) -> bool {
        if self.flaw == Flaw::KinStops {
            return who == of;
        }
        if self.flaw == Flaw::ParentsPass && self.people[who].parent == Some(of) {
            return true;
        }
        let mut at = Some(of);
        while let Some(each) = at {
            if each == who {
                return true;
            }
            at = self.people[each].parent;
        }
        false
    }

    fn clash(&self, a: Mode, b: Mode) -> bool {
        self.modes.conflicts(a, b) || self.modes.conflicts(b, a)
    }

    /// The holders that block a request.
    fn stoppers(&self, object: &Object, request: &Request) -> BTreeSet<usize> {
        let stops = |hold: &Hold| self.modes.conflicts(hold.mode, request.want);
        let all = object.holds.iter();
        all.filter(|(who, hold)| stops(hold) && !self.kin(**who, request.owner))
            .map(|(who, _)| *who)
            .collect()
    }

    /// Returns whether `owner` passes a waiting request because it or an ancestor blocks that
    /// request.
    fn passes(&self, object: &Object, owner: usize, request: &Request) -> bool {
        self.people[owner].parent.is_some()
            && object.holds.iter().any(|(who, hold)| {
                self.kin(*who, owner) && self.modes.conflicts(hold.mode, request.want)
            })
    }

    /// The owners of those earlier requests that a request must not pass.
    fn behind<'a>(
        &self,
        object: &Object,
        request: &Request,
        earlier: impl Iterator<Item = &'a Request>,
    ) -> BTreeSet<usize> {
        earlier
            .filter(|other| {
                other.owner != request.owner
                    && self.clash(other.want, request.want)
                    && !self.passes(object, request.owner, other)
            })
            .map(|other| other.owner)
            .collect()
    }

    /// The position in the queue of a new request.
    fn place(&self, object: &Object, request: &Request) -> usize {
        let goes_before = |other: &Request| {
            self.clash(other.want, request.want) && self.passes(object, request.owner, other)
        };
        object.waiting.iter().position(goes_before).unwrap_or(object.waiting.len())
    }

    /// The owners that a request waits for. The request need not be in the queue yet.
    fn blockers(&self, object: &Object, request: &Request) -> BTreeSet<usize> {
        let mut found = self.stoppers(object, request);
        if object.holds.contains_key(&request.owner) {
            if self.flaw == Flaw::ConversionsQueue {
                found.extend(self.behind(object, request, object.waiting.iter()));
            }
            return found;
        }
        let place = object.waiting.iter().position(|other| other.owner == request.owner);
        let place = place.unwrap_or_else(|| self.place(object, request));
        let earlier = object.converting.iter().chain(&object.waiting[..place]);
        if self.flaw != Flaw::Overtakes {
            found.extend(self.behind(object, request, earlier));
        }
        found
    }

    /// Requests a lock.
    pub(crate) fn request(&mut self, owner: usize, name: &[u8], mode: Mode, how: How) -> Outcome {
        if self.waits(owner) {
            return Outcome::Busy;
        }
        if let Some(why) = self.people[owner].abort.filter(|_| self.flaw != Flaw::AbortForgotten) {
            return Outcome::Aborted(why);
        }
        self.note_hold(owner, name);
        let mut object = self.objects.remove(name).unwrap_or_default();
        let outcome = self.ask(&mut object, owner, name, mode, how);
        self.keep(name, object);
        // Children of the owner may now pass requests that the owner blocks.
        self.advance(name);
        let (outcome, wounded) = outcome;
        self.unsure |= wounded.iter().filter(|other| self.waits(**other)).count() > 1;
        for other in wounded {
            self.abort(other, Reason::Wounded);
        }
        outcome
    }

    fn ask(
        &mut self,
        object: &mut Object,
        owner: usize,
        name: &[u8],
        mode: Mode,
        how: How,
    ) -> (Outcome, BTreeSet<usize>) {
        let held = object.holds.get(&owner).copied();
        let want = held.map_or(mode, |hold| self.modes.convert(hold.mode, mode));
        let request = Request { owner, want, mark: self.people[owner].marks + 1 };
        let same = held.is_some_and(|hold| hold.mode == want);
        let blockers = if same { BTreeSet::new() } else { self.blockers(object, &request) };
        if blockers.is_empty() {
            self.hold(object, &request);
            return (Outcome::Granted, BTreeSet::new());
        }
        let rank = |who: usize| (self.people[who].age, who);
        let (older, younger): (BTreeSet<_>, BTreeSet<_>) =
            blockers.into_iter().partition(|who| rank(*who) < rank(owner));
        match how {
            How::Never => return (Outcome::Refused, BTreeSet::new()),
            How::Die if !older.is_empty() && self.flaw != Flaw::Immortal => {
                return (Outcome::Died(older), BTreeSet::new());
            }
            _ => {}
        }
        if held.is_some() {
            object.converting.push(request);
        } else {
            self.people[owner].marks += 1;
            let place = self.place(object, &request);
            object.waiting.insert(place, request);
        }
        self.people[owner].waits_for = Some(name.to_vec());
        (Outcome::Waiting, if how == How::Wound { younger } else { BTreeSet::new() })
    }

    fn hold(&mut self, object: &mut Object, request: &Request) {
        let person = &mut self.people[request.owner];
        match object.holds.get_mut(&request.owner) {
            Some(hold) => (hold.mode, hold.count) = (request.want, hold.count + 1),
            None => {
                person.marks = person.marks.max(request.mark);
                object.holds.insert(
                    request.owner,
                    Hold { mode: request.want, count: 1, mark: request.mark },
                );
            }
        }
    }

    fn keep(&mut self, name: &[u8], object: Object) {
        if !object.holds.is_empty() || !object.converting.is_empty() || !object.waiting.is_empty() {
            self.objects.insert(name.to_vec(), object);
        }
    }

    /// Grants requests: conversions first, then the others in queue order.
    fn advance(&mut self, name: &[u8]) {
        let Some(mut object) = self.objects.remove(name) else { return };
        for converting in [true, false] {
            let mut at = 0;
            while let Some(request) =
                if converting { &object.converting } else { &object.waiting }.get(at).copied()
            {
                if self.blockers(&object, &request).is_empty() {
                    if converting {
                        object.converting.remove(at);
                    } else {
                        object.waiting.remove(at);
                    }
                    self.hold(&mut object, &request);
                    self.end_wait(request.owner, Ok(()));
                } else {
                    at += 1;
                }
            }
        }
        self.keep(name, object);
    }

    fn end_wait(&mut self, owner: usize, how: Result<(), Reason>) {
        self.people[owner].waits_for = None;
        self.people[owner].ended = Some(how);
    }

    /// Withdraws a request. The wait ends with this reason if there is one.
    fn withdraw(&mut self, owner: usize, told: Option<Reason>) {
        let Some(name) = self.people[owner].waits_for.take() else { return };
        if let Some(object) = self.objects.get_mut(&name) {
            object.converting.retain(|request| request.owner != owner);
            object.waiting.retain(|request| request.owner != owner);
        }
        if let Some(why) = told {
            self.end_wait(owner, Err(why));
        }
        if self.flaw != Flaw::CancelUnseen {
            self.advance(&name);
        }
    }

    /// Aborts an owner.
    pub(crate) fn abort(&mut self, owner: usize, why: Reason) {
        self.people[owner].abort = Some(why);
        self.withdraw(owner, Some(why));
    }

    /// Refuses the request of a deadlock's victim.
    pub(crate) fn refuse(&mut self, owner: usize) {
        self.withdraw(owner, Some(Reason::Deadlock));
    }

    /// Cancels the owner's request.
    pub(crate) fn cancel(&mut self, owner: usize) {
        self.withdraw(owner, None);
    }

    /// Returns whether the owner waits.
    pub(crate) fn waits(&self, owner: usize) -> bool {
        self.people[owner].waits_for.is_some()
    }

    /// Returns once how the last wait ended.
    pub(crate) fn ended(&mut self, owner: usize) -> Option<Result<(), Reason>> {
        self.people[owner].ended.take()
    }

    /// Returns whether the owner waits for a name that it does not hold.
    pub(crate) fn waits_for_new(&self, owner: usize) -> bool {
        let name = self.people[owner].waits_for.as_ref();
        name.is_some_and(|name| !self.objects[name].holds.contains_key(&owner))
    }

    /// The owners that a waiter waits for.
    pub(crate) fn waits_for(&self, owner: usize) -> BTreeSet<usize> {
        let Some(name) = &self.people[owner].waits_for else { return BTreeSet::new() };
        let object = &self.objects[name];
        let requests = object.converting.iter().chain(&object.waiting);
        requests
            .filter(|request| request.owner == owner)
            .flat_map(|request| self.blockers(object, request))
            .collect()
    }

    /// The owners that are part of a cycle.
    pub(crate) fn in_cycles(&self) -> BTreeSet<usize> {
        let reaches = |from: usize| {
            let (mut seen, mut todo) = (BTreeSet::new(), vec![from]);
            while let Some(at) = todo.pop() {
                todo.extend(self.waits_for(at).into_iter().filter(|next| seen.insert(*next)));
            }
            seen
        };
        (0..self.people.len()).filter(|who| reaches(*who).contains(who)).collect()
    }

    /// The held mode and its count.
    pub(crate) fn holds(&self, owner: usize, name: &[u8]) -> Option<(Mode, u32)> {
        let hold = self.objects.get(name)?.holds.get(&owner)?;
        Some((hold.mode, hold.count))
    }

    /// The number of held objects.
    pub(crate) fn held(&self, owner: usize) -> usize {
        self.objects.values().filter(|object| object.holds.contains_key(&owner)).count()
    }

    fn release_if(&mut self, owner: usize, which: impl Fn(&[u8], &Hold) -> bool) {
        let names: Vec<_> = self.objects.keys().cloned().collect();
        for name in names {
            let object = self.objects.get_mut(&name).unwrap();
            if object.holds.get(&owner).is_some_and(|hold| which(&name, hold)) {
                object.holds.remove(&owner);
                self.advance(&name);
            }
        }
    }

    /// Releases one count of a lock. Returns false if it is not held.
    pub(crate) fn unlock(&mut self, owner: usize, name: &[u8]) -> bool {
        let Some(object) = self.objects.get_mut(name) else { return false };
        let Some(hold) = object.holds.get_mut(&owner) else { return false };
        hold.count -= 1;
        if hold.count == 0 || self.flaw == Flaw::Countless {
            self.release_object(owner, name);
        }
        true
    }

    /// Releases a lock with all its counts.
    pub(crate) fn release_object(&mut self, owner: usize, name: &[u8]) {
        self.release_if(owner, |each, _| each == name);
    }

    /// Releases all locks.
    pub(crate) fn release_all(&mut self, owner: usize) {
        self.release_if(owner, |_, _| true);
    }

    /// Releases all locks in modes that do not write.
    pub(crate) fn release_reads(&mut self, owner: usize) {
        let modes = self.modes.clone();
        self.release_if(owner, |_, hold| !modes.is_write(hold.mode));
    }

    /// Weakens a lock. Returns false if no mode that covers `mode` is held.
    pub(crate) fn downgrade(&mut self, owner: usize, name: &[u8], mode: Mode) -> bool {
        let Some(object) = self.objects.get_mut(name) else { return false };
        let hold = object.holds.get_mut(&owner);
        let Some(hold) = hold.filter(|hold| self.modes.covers(hold.mode, mode)) else {
            return false;
        };
        hold.mode = mode;
        if self.flaw != Flaw::DowngradeUnseen {
            self.advance(name);
        }
        true
    }

    /// Sets the owner's savepoint.
    pub(crate) fn savepoint(&mut self, owner: usize) {
        let marks = self.people[owner].marks;
        self.people[owner].savepoint = Savepoint { marks, asked: BTreeMap::new() };
    }

    fn note_hold(&mut self, owner: usize, name: &[u8]) {
        let held = self.holds(owner, name);
        self.people[owner].savepoint.asked.entry(name.to_vec()).or_insert(held);
    }

    /// Releases locks taken since the savepoint and restores modes and counts.
    pub(crate) fn roll_back(&mut self, owner: usize) {
        let marks = self.people[owner].savepoint.marks;
        let asked = std::mem::take(&mut self.people[owner].savepoint.asked);
        let all = self.flaw == Flaw::NoSavepoints;
        self.release_if(owner, |_, hold| all || hold.mark > marks);
        for (name, held) in asked {
            let (Some(now), Some((mode, count))) = (self.holds(owner, &name), held) else {
                continue;
            };
            if self.flaw == Flaw::SavepointsKeepModes {
                continue;
            }
            let object = self.objects.get_mut(&name).unwrap();
            let hold = object.holds.get_mut(&owner).unwrap();
            hold.count = hold.count.min(count);
            if now.0 != mode && self.modes.covers(now.0, mode) {
                hold.mode = mode;
            }
            self.advance(&name);
        }
    }

    /// Passes a child's locks to its parent. Returns false if either waits.
    pub(crate) fn inherit(&mut self, child: usize) -> bool {
        let parent = self.people[child].parent.unwrap();
        if self.waits(child) || self.waits(parent) {
            return false;
        }
        let names: Vec<_> = self.objects.keys().cloned().collect();
        for name in names {
            if self.holds(child, &name).is_some() {
                self.note_hold(parent, &name);
            }
            let object = self.objects.get_mut(&name).unwrap();
            let Some(mut hold) = object.holds.remove(&child) else { continue };
            if self.flaw == Flaw::InheritLoses {
                hold.count = 1;
            }
            match object.holds.get_mut(&parent) {
                Some(theirs) => {
                    theirs.mode = self.modes.convert(theirs.mode, hold.mode);
                    theirs.count += hold.count;
                }
                None => {
                    self.people[parent].marks += 1;
                    let mark = self.people[parent].marks;
                    object.holds.insert(parent, Hold { mark, ..hold });
                }
            }
            self.advance(&name);
        }
        true
    }
}
