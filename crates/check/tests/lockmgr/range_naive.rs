//! Locks on ranges of keys compared with a list of intervals, step by step.

use core::ops::Bound;

use latchwork_check::left::nothing_in as nothing_is_left;
use latchwork_lockmgr::{Error, KeyRange, Owner, RangeKind, RangeRequest, Step, Wait, granular};
use proptest::prelude::*;

const SPACE: &[u8] = b"orders";

/// An interval of the list.
#[derive(Clone, Debug)]
struct Claim {
    owner: usize,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    kind: RangeKind,
    held: bool,
    count: u32,
}

#[derive(Default)]
struct Naive {
    claims: Vec<Claim>,
}

impl Naive {
    fn overlap(a: &Claim, b: &Claim) -> bool {
        a.to.as_ref().is_none_or(|to| *to > b.from) && b.to.as_ref().is_none_or(|to| *to > a.from)
    }

    fn in_the_way(&self, at: usize) -> bool {
        let me = &self.claims[at];
        let stops = |a: &Claim, b: &Claim| Self::overlap(a, b) && a.kind.stops(b.kind);
        let held = |c: &&Claim| c.held && c.owner == me.owner;
        self.claims[..at].iter().any(|other| {
            let mine = self.claims.iter().filter(held).any(|mine| stops(mine, other));
            other.owner != me.owner && stops(other, me) && (other.held || !mine)
        }) || self.claims[at + 1..]
            .iter()
            .any(|other| other.held && other.owner != me.owner && stops(other, me))
    }

    fn ask(&mut self, new: Claim, wait: bool) -> Result<Step, Error> {
        let same = |c: &&mut Claim| {
            c.held
                && (c.owner, c.kind) == (new.owner, new.kind)
                && (&c.from, &c.to) == (&new.from, &new.to)
        };
        if let Some(old) = self.claims.iter_mut().find(same) {
            old.count += 1;
            return Ok(Step::Granted);
        }
        self.claims.push(new);
        let at = self.claims.len() - 1;
        if !self.in_the_way(at) {
            self.claims[at].held = true;
            return Ok(Step::Granted);
        }
        if wait {
            return Ok(Step::Waiting);
        }
        self.claims.pop();
        Err(Error::NotGranted)
    }

    fn request_of(&self, owner: usize) -> Option<usize> {
        self.claims.iter().position(|claim| claim.owner == owner && !claim.held)
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Ask(usize, u8, u8, u8, bool),
    Unlock(usize, u8, u8, u8),
    ReleaseAll(usize),
    Drop(usize),
}

const OWNERS: usize = 5;
const KEYS: [&[u8]; 10] = [
    b"",
    b"a",
    b"a\0",
    b"a\0\0",
    b"abcdefgh",
    b"abcdefgh\0",
    b"abcdefghi",
    b"b",
    b"\xff",
    &[9; 99],
];

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let parts = || (0..OWNERS, 0..14u8, 0..14u8, 0..7u8);
    let operation = prop_oneof![
        8 => (parts(), any::<bool>()).prop_map(|((o, a, b, k), w)| Operation::Ask(o, a, b, k, w)),
        3 => parts().prop_map(|(o, a, b, k)| Operation::Unlock(o, a, b, k)),
        1 => (0..OWNERS).prop_map(Operation::ReleaseAll),
        2 => (0..OWNERS).prop_map(Operation::Drop),
    ];
    prop::collection::vec(operation, 1..100)
}

/// A range by two numbers, with all kinds of bounds.
fn range_of(a: u8, b: u8) -> KeyRange<'static> {
    let end = |n: u8, other: bool| match (KEYS.get(n as usize), other) {
        (None, _) => Bound::Unbounded,
        (Some(key), true) => Bound::Included(*key),
        (Some(key), false) => Bound::Excluded(*key),
    };
    KeyRange { from: end(a, b.is_multiple_of(2)), to: end(b, a.is_multiple_of(3)) }
}

fn plain(owner: usize, range: KeyRange<'_>, kind: RangeKind) -> Claim {
    let next = |key: &[u8]| [key, b"\0"].concat();
    let from = match range.from {
        Bound::Unbounded => vec![],
        Bound::Included(key) => key.to_vec(),
        Bound::Excluded(key) => next(key),
    };
    let to = match range.to {
        Bound::Unbounded => None,
        Bound::Included(key) => Some(next(key)),
        Bound::Excluded(key) => Some(key.to_vec()),
    };
    Claim { owner, from, to, kind, held: false, count: 1 }
}

fn compare(operations: &[Operation]) {
    let manager = latchwork_check::early::private(granular::modes()).unwrap();
    let session = manager.session().unwrap();
    let owners: Vec<Owner<'_>> = (0..OWNERS).map(|_| session.owner().unwrap()).collect();
    let mut naive = Naive::default();
    {
        let mut waiting: Vec<Option<RangeRequest<'_, '_>>> = (0..OWNERS).map(|_| None).collect();
        for operation in operations {
            match *operation {
                Operation::Ask(o, a, b, k, wait) if waiting[o].is_none() => {
                    let (range, kind) = (range_of(a, b), RangeKind::ALL[k as usize]);
                    let how = if wait { Wait::Detect } else { Wait::Never };
                    let got = owners[o].request_range(SPACE, range, kind, how);
                    let claim = plain(o, range, kind);
                    if claim.to.as_ref().is_some_and(|to| *to <= claim.from) {
                        assert_eq!(got.map(|r| r.step()), Err(Error::EmptyRange));
                        continue;
                    }
                    let expected = naive.ask(claim, wait);
                    assert_eq!(got.as_ref().map(RangeRequest::step), expected.as_ref().copied());
                    if expected == Ok(Step::Waiting) {
                        waiting[o] = got.ok();
                    }
                }
                Operation::Unlock(o, a, b, k) if waiting[o].is_none() => {
                    let (range, kind) = (range_of(a, b), RangeKind::ALL[k as usize]);
                    let got = owners[o].unlock_range(SPACE, range, kind);
                    let claim = plain(o, range, kind);
                    let at = naive.claims.iter().position(|c| {
                        (c.owner, c.kind, &c.from, &c.to) == (o, kind, &claim.from, &claim.to)
                    });
                    match at {
                        None => assert!(matches!(got, Err(Error::NotHeld | Error::EmptyRange))),
                        Some(at) => {
                            assert_eq!(got, Ok(()));
                            naive.claims[at].count -= 1;
                            if naive.claims[at].count == 0 {
                                naive.claims.remove(at);
                            }
                        }
                    }
                }
                Operation::ReleaseAll(o) if waiting[o].is_none() => {
                    owners[o].release_all().unwrap();
                    naive.claims.retain(|claim| claim.owner != o);
                }
                Operation::Drop(o) if waiting[o].is_some() => {
                    waiting[o] = None;
                    naive.claims.remove(naive.request_of(o).unwrap());
                }
                _ => {}
            }
            settle(&mut naive, &mut waiting);
            for (o, owner) in owners.iter().enumerate() {
                let held = naive.claims.iter().filter(|claim| claim.owner == o && claim.held);
                let tickets = held.count() + usize::from(waiting[o].is_some());
                assert_eq!(owner.held(), Ok(tickets + usize::from(waiting[o].is_some())));
            }
            assert_eq!(session.totals().unwrap().ranges, naive.claims.len() as u64);
        }
    }
    drop(owners);
    nothing_is_left(&session);
}

/// Polls all waiting requests until nothing changes, in the same order in both.
fn settle(naive: &mut Naive, waiting: &mut [Option<RangeRequest<'_, '_>>]) {
    loop {
        let mut changed = false;
        for (o, slot) in waiting.iter_mut().enumerate() {
            let Some(request) = slot else { continue };
            let end = request.poll().unwrap();
            let at = naive.request_of(o).unwrap();
            let free = !naive.in_the_way(at);
            assert_eq!(end, free.then_some(Ok(())), "owner {o}: {:?}", naive.claims);
            if free {
                naive.claims[at].held = true;
                *slot = None;
                changed = true;
            }
        }
        if !changed {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..Default::default() })]

    #[test]
    fn ranges_equal_a_list_of_intervals(operations in operations()) {
        compare(&operations);
    }
}
