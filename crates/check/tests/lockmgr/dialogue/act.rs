//! Runs a dialogue: a thread for each owner and its children, which runs the operations sent to it.
//!
//! Whether a request waits is read from `request` and `poll`, never from the time a call takes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use latchwork_lockmgr::{
    Child, Error, Manager, Owner, OwnerId, OwnerOptions, Reason, Savepoint, Session, Snapshot,
    Step, View, Wait,
};
use latchwork_machine::{ConstMachine, Deadline};

use super::script::{Line, Operation, Role, Script, Waits};

/// An operation of an owner, and the channel for its result.
type Told<'a> = (&'a str, Operation, Sender<String>);
/// The owners' ids by name.
type Cast = Mutex<BTreeMap<String, OwnerId>>;

/// One of a thread's owners, linked to the thread's others.
struct Member<'a, M: ConstMachine> {
    name: &'a str,
    owner: &'a Owner<'a, M>,
    child: Option<&'a Child<'a, 'a, M>>,
    mark: Cell<Option<Savepoint>>,
    rest: Option<&'a Member<'a, M>>,
}

impl<'a, M: ConstMachine> Member<'a, M> {
    fn find(&'a self, name: &str) -> &'a Member<'a, M> {
        if self.name == name { self } else { self.rest.unwrap().find(name) }
    }
}

/// Runs a dialogue in a manager that is not used otherwise.
///
/// # Errors
///
/// The first line with a different result, or locks that are left at the end.
pub(crate) fn perform<M: ConstMachine>(
    manager: &Manager<M>,
    script: &Script,
    lines: &[Line],
) -> Result<(), String> {
    let cast = Cast::default();
    let end = std::thread::scope(|scope| {
        let mut stage = BTreeMap::new();
        for (age, role) in script.roles.iter().enumerate().filter(|(_, r)| r.parent.is_none()) {
            let (to, told) = channel::<Told<'_>>();
            let (begun, begins) = channel();
            let cast = &cast;
            scope.spawn(move || live(manager, &script.roles, role, age, cast, &told, &begun));
            begins.recv().map_err(|_| format!("{} could not begin", role.name))?;
            stage.insert(&role.name[..], to);
        }
        converse(manager, script, lines, &cast, |role, operation| {
            let mut root = script.roles.iter().find(|r| r.name == role).unwrap();
            while let Some(parent) = &root.parent {
                root = script.roles.iter().find(|r| r.name == *parent).unwrap();
            }
            let (to, said) = channel();
            stage[&root.name[..]].send((role, operation, to)).unwrap();
            said.recv().map_err(|_| format!("{role} sent no result"))
        })
    });
    end?;
    let session = manager.session().map_err(|e| e.to_string())?;
    let totals = session.totals().map_err(|e| e.to_string())?;
    let left = (totals.objects, totals.requests, totals.weak, totals.owners);
    if left != (0, 0, 0, 0) || !manager.region().audit().is_ok_and(|audit| audit.is_sound()) {
        return Err(format!("locks or cells are left: {left:?}"));
    }
    Ok(())
}

/// Runs each line in turn; then cancels all requests that still wait.
fn converse<'a, M: ConstMachine>(
    manager: &Manager<M>,
    script: &'a Script,
    lines: &'a [Line],
    cast: &Cast,
    tell: impl Fn(&'a str, Operation) -> Result<String, String>,
) -> Result<(), String> {
    let mut waiting: Vec<&str> = Vec::new();
    let mut differs = Ok(());
    for line in lines {
        let mut outcome = tell(&line.step.role, line.step.operation.clone())?;
        waiting.retain(|role| {
            *role != line.step.role
                || !matches!(line.step.operation, Operation::Expire | Operation::Cancel)
        });
        if outcome == "waits" {
            waiting.push(&line.step.role);
            outcome += &in_the_way(manager, script, cast, &line.step.role)?;
        }
        let mut others = Vec::new();
        for role in script.roles.iter().map(|role| &role.name[..]) {
            if !waiting.contains(&role) {
                continue;
            }
            let said = tell(role, Operation::Poll)?;
            if said != "waits" {
                waiting.retain(|other| *other != role);
                others.push(format!("{role} {said}"));
            }
        }
        if outcome != line.outcome || others != line.others {
            let came = std::iter::once(outcome).chain(others).collect::<Vec<_>>().join("; ");
            differs = Err(format!("line {}: {}: it came to: {came}", line.number, line.step.name));
            break;
        }
    }
    for role in waiting {
        tell(role, Operation::Cancel)?;
    }
    differs
}

/// The owners that hold what a waiter requests, and those it queues behind.
fn in_the_way<M: ConstMachine>(
    manager: &Manager<M>,
    script: &Script,
    cast: &Cast,
    role: &str,
) -> Result<String, String> {
    let view = View::new(manager.region().clone()).map_err(|e| e.to_string())?;
    let picture: Snapshot = view.ok_or("no manager")?.look().map_err(|e| e.to_string())?;
    let cast = cast.lock().unwrap();
    let name_of = |id: OwnerId| {
        let found = script.roles.iter().find(|role| cast[&role.name] == id);
        found.map_or_else(|| id.to_string(), |role| role.name.clone())
    };
    let mut said = String::new();
    for (hard, word) in [(true, " for"), (false, " behind")] {
        let edges = picture.edges(Some(manager.modes()));
        let mine = edges
            .iter()
            .filter(|edge| edge.hard == hard && picture.rows[edge.row].owner == cast[role]);
        let mut names: Vec<_> =
            mine.map(|edge| name_of(picture.rows[edge.blocker].owner)).collect();
        names.sort();
        if !names.is_empty() {
            said += word;
            names.iter().for_each(|name| said.extend([" ", name]));
        }
    }
    Ok(said)
}

/// The thread of an owner.
fn live<M: ConstMachine>(
    manager: &Manager<M>,
    roles: &[Role],
    role: &Role,
    age: usize,
    cast: &Cast,
    told: &Receiver<Told<'_>>,
    begun: &Sender<()>,
) {
    let session = manager.session().unwrap();
    // The first named owner is the oldest.
    let options = OwnerOptions { age: Some(age as u64 + 1), ..OwnerOptions::default() };
    let owner = session.owner_with(&options).unwrap();
    cast.lock().unwrap().insert(role.name.clone(), owner.id());
    let root =
        Member { name: &role.name, owner: &owner, child: None, mark: Cell::default(), rest: None };
    bear(&session, roles, &root, cast, told, begun);
}

/// Creates the children of the thread's owners, then runs operations.
fn bear<M: ConstMachine>(
    session: &Session<M>,
    roles: &[Role],
    family: &Member<'_, M>,
    cast: &Cast,
    told: &Receiver<Told<'_>>,
    begun: &Sender<()>,
) {
    let is_there = |name: &str| {
        let mut at = Some(family);
        std::iter::from_fn(|| {
            let member = at?;
            at = member.rest;
            Some(member)
        })
        .any(|member| member.name == name)
    };
    let next = roles.iter().find_map(|role| {
        let parent = role.parent.as_ref()?;
        (is_there(parent) && !is_there(&role.name)).then_some((role, parent))
    });
    let Some((role, parent)) = next else {
        begun.send(()).unwrap();
        for (name, operation, to) in told {
            // A closed channel means that the dialogue has failed already.
            let _ = to.send(act(session, family.find(name), operation, cast));
        }
        return;
    };
    let child = family.find(parent).owner.child().unwrap();
    cast.lock().unwrap().insert(role.name.clone(), child.id());
    let member = Member {
        name: &role.name,
        owner: &child,
        child: Some(&child),
        mark: Cell::default(),
        rest: Some(family),
    };
    bear(session, roles, &member, cast, told, begun);
}

fn act<M: ConstMachine>(
    session: &Session<M>,
    member: &Member<'_, M>,
    operation: Operation,
    cast: &Cast,
) -> String {
    let (owner, modes) = (member.owner, session.manager().modes());
    let done = |end: Result<(), Error>| match end {
        Ok(()) => "done".to_owned(),
        Err(error) => failure(&error, cast),
    };
    let granted = |end: Result<(), Error>| match end {
        Ok(()) => "granted".to_owned(),
        Err(error) => failure(&error, cast),
    };
    match operation {
        Operation::Lock(name, mode, how) => {
            let wait = match how {
                Waits::Long => Wait::Detect,
                Waits::Never => Wait::Never,
                Waits::Die => Wait::Die,
                Waits::Wound => Wait::Wound,
            };
            match owner.request(&name, mode, wait) {
                Ok(Step::Waiting) => "waits".to_owned(),
                end => granted(end.map(|_| ())),
            }
        }
        // With an expired deadline: a request that still waits times out.
        Operation::Expire => granted(owner.finish(Some(Deadline::after::<M>(Default::default())))),
        Operation::Poll => match owner.poll() {
            Ok(None) => "waits".to_owned(),
            Ok(Some(end)) => granted(end),
            Err(error) => failure(&error, cast),
        },
        Operation::Cancel => match owner.cancel() {
            Ok(true) => "cancelled".to_owned(),
            end => granted(end.map(|_| ())),
        },
        Operation::Unlock(name) => done(owner.unlock(&name)),
        Operation::Release(name) => done(owner.release_object(&name)),
        Operation::ReleaseReads => done(owner.release_reads()),
        Operation::ReleaseAll => done(owner.release_all()),
        Operation::Downgrade(name, mode) => done(owner.downgrade(&name, mode)),
        Operation::Savepoint => {
            member.mark.set(Some(owner.savepoint().unwrap()));
            "done".to_owned()
        }
        Operation::RollBack => match member.mark.get() {
            Some(mark) => done(owner.roll_back_to(mark)),
            None => "no savepoint".to_owned(),
        },
        Operation::Inherit => match member.child {
            Some(child) => done(child.inherit()),
            None => "no child".to_owned(),
        },
        Operation::Holds(name) => match owner.holds(&name) {
            Ok(Some((mode, count))) => format!("{} {count}", modes.name(mode)),
            Ok(None) => "nothing".to_owned(),
            Err(error) => failure(&error, cast),
        },
        Operation::Detect => match session.detect() {
            Ok(found) => format!("found {found}"),
            Err(error) => failure(&error, cast),
        },
        Operation::Kill(role) => {
            let victim = cast.lock().unwrap()[&role];
            done(session.kill(victim))
        }
    }
}

fn failure(error: &Error, cast: &Cast) -> String {
    let cast = cast.lock().unwrap();
    let name_of = |id: OwnerId| {
        let found = cast.iter().find(|(_, known)| **known == id);
        found.map_or_else(|| id.to_string(), |(name, _)| name.clone())
    };
    match error {
        Error::NotGranted => "refused".to_owned(),
        Error::TimedOut => "timed out".to_owned(),
        Error::NotHeld => "not held".to_owned(),
        Error::Died(owner) => format!("died of {}", name_of(*owner)),
        Error::Aborted(Reason::Wounded) => "wounded".to_owned(),
        Error::Aborted(Reason::Killed) => "killed".to_owned(),
        Error::Deadlock(cycle) => {
            let names: Vec<_> = cycle.iter().map(|link| name_of(link.owner)).collect();
            format!("deadlock {}", names.join(" "))
        }
        error => format!("error {error}"),
    }
}
