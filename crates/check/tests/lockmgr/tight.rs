//! The locks of owners while the region is full again and again: whatever a call returns, held
//! locks stay held and never conflict.

use std::collections::BTreeMap;

use latchwork_check::left::nothing_in as nothing_is_left;
use latchwork_check::random::Random;
use latchwork_lockmgr::{Error, Manager, Mode, Options, Owner, Session, granular};
use latchwork_machine::Native;
use latchwork_region::Region;

const NAMES: u64 = 6;

type Holds = BTreeMap<u64, (Mode, u32)>;

/// An owner and the locks that it must hold.
struct Known<'s> {
    owner: Owner<'s>,
    holds: Holds,
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Region(latchwork_region::Error::Full(_)))
}

/// Returns true if the call succeeded, false if it was refused or had no room.
fn done(end: Result<(), Error>) -> bool {
    match end {
        Ok(()) => true,
        Err(error) if is_full(&error) || error == Error::NotGranted => false,
        Err(error) => panic!("{error}"),
    }
}

fn check(all: &[Known<'_>], after: &str) {
    let modes = granular::modes();
    for (at, one) in all.iter().enumerate() {
        for name in 0..NAMES {
            let holds = one.owner.holds(&name.to_le_bytes());
            let told = one.holds.get(&name).copied();
            assert_eq!(holds, Ok(told), "owner {at}, name {name}, after {after}");
            let Some((mode, _)) = told else { continue };
            for (other, it) in all.iter().enumerate().filter(|(other, _)| *other != at) {
                let other_mode = it.holds.get(&name).map(|hold| hold.0);
                let conflict = other_mode.is_some_and(|other| modes.conflicts(other, mode));
                assert!(!conflict, "owners {at} and {other} on name {name}, after {after}");
            }
        }
    }
}

fn fill(ballast: &Owner<'_>, room: u64) {
    let name = |number: u64| [b"ballast ", &number.to_le_bytes()[..]].concat();
    let last = (0..).find(|at| ballast.lock(&name(*at), granular::IS).is_err()).unwrap();
    for number in last.saturating_sub(room)..last {
        ballast.unlock(&name(number)).unwrap();
    }
}

fn lock(one: &mut Known<'_>, name: u64, mode: Mode) {
    let modes = granular::modes();
    if done(one.owner.try_lock(&name.to_le_bytes(), mode)) {
        let held = one.holds.entry(name).or_insert((mode, 0));
        *held = (modes.convert(held.0, mode), held.1 + 1);
    }
}

fn inherit(one: &mut Known<'_>, name: u64, mode: Mode) -> Option<String> {
    if one.holds.contains_key(&name) {
        return None;
    }
    let child = match one.owner.child() {
        Ok(child) => child,
        Err(error) if is_full(&error) => return None,
        Err(error) => panic!("{error}"),
    };
    let bytes = name.to_le_bytes();
    if !done(child.try_lock(&bytes, mode)) {
        return None;
    }
    let end = child.inherit();
    let (parents, its) = (one.owner.holds(&bytes).unwrap(), child.holds(&bytes).unwrap());
    assert!(parents.or(its) == Some((mode, 1)), "inherited {end:?}: {parents:?}, {its:?}");
    drop(child);
    if parents.is_some() {
        one.holds.insert(name, (mode, 1));
    }
    Some(format!("{end:?}"))
}

fn act(sessions: &[Session], all: &mut [Known<'_>], random: &mut Random) -> String {
    let modes: Vec<Mode> = granular::modes().each().collect();
    let (at, name) = (random.roll(all.len()), random.below(NAMES));
    let among = if random.below(2) == 0 { 2 } else { modes.len() };
    let mode = modes[random.roll(among)];
    let bytes = name.to_le_bytes();
    match random.below(12) {
        0..=5 => {
            lock(&mut all[at], name, mode);
            format!("lock {at} {name} {mode:?}")
        }
        6 | 7 => {
            let one = &mut all[at];
            if one.holds.remove(&name).is_some() {
                one.owner.release_object(&bytes).unwrap();
            }
            format!("release {at} {name}")
        }
        8 => {
            let one = &mut all[at];
            if let Some((held, count)) = one.holds.get(&name).copied()
                && granular::modes().covers(held, granular::IS)
            {
                one.owner.downgrade(&bytes, granular::IS).unwrap();
                one.holds.insert(name, (granular::IS, count));
            }
            format!("downgrade {at} {name}")
        }
        9 => {
            // Every second owner belongs to the same session.
            let to = (at + sessions.len()) % all.len();
            if let Some(hold) = all[at].holds.get(&name).copied()
                && !all[to].holds.contains_key(&name)
                && done(all[at].owner.trade(&bytes, &all[to].owner))
            {
                all[at].holds.remove(&name);
                all[to].holds.insert(name, hold);
            }
            format!("trade {at} {to} {name}")
        }
        10 => format!("inherit {at} {name} {mode:?} {:?}", inherit(&mut all[at], name, mode)),
        _ => {
            let one = &mut all[at];
            let savepoint = one.owner.savepoint().unwrap();
            let before = one.holds.clone();
            for _ in 0..3 {
                lock(one, random.below(NAMES), modes[random.roll(modes.len())]);
            }
            one.owner.roll_back_to(savepoint).unwrap();
            one.holds = before;
            format!("roll back {at}")
        }
    }
}

fn run(seed: u64, keep_after: u32) {
    let options = latchwork_region::Options { limit: 4 << 20, ..Default::default() };
    let region = Region::<Native>::private(&options).unwrap();
    let options = Options { keep_after, opens_early: true, ..Options::default() };
    let manager = Manager::new(region, granular::modes(), options).unwrap();
    let sessions = [manager.session().unwrap(), manager.session().unwrap()];
    let other = manager.session().unwrap();
    let ballast = other.owner().unwrap();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let known = |at: usize| Known { owner: sessions[at % 2].owner().unwrap(), holds: Holds::new() };
    let mut all: Vec<_> = (0..6).map(known).collect();
    for round in 0..20 {
        if round > 0 {
            fill(&ballast, random.below(6));
        }
        for step in 0..200 {
            let after = act(&sessions, &mut all, &mut random);
            check(&all, &format!("seed {seed}, round {round}, step {step}: {after}"));
        }
        ballast.release_all().unwrap();
    }
    drop((all, ballast));
    nothing_is_left(&other);
}

#[test]
fn locks_stay_held_in_a_full_region() {
    for seed in 0..20 {
        run(seed, [1, 2, 8, 32][seed as usize % 4]);
    }
}
