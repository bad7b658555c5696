//! How many claims a keyspace has: what a writer asks before it looks.

use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use latchwork_machine::{ConstMachine, Word};

use crate::Error;
use crate::memory::Memory;
use crate::memory::blocks::chain_of;
use crate::memory::cells::{generation_at, get};
use crate::memory::typed::Link;
use crate::range::cells::Keyspace;

/// A keyspace, for a thread that asks again and again whether anybody has claims in it.
pub struct Claims<'s, M: ConstMachine> {
    memory: &'s Memory<M>,
    name: &'s [u8],
    chain: u32,
    heads: &'s [Link<M, Keyspace<M>>],
}

impl<M: ConstMachine> fmt::Debug for Claims<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claims({})", self.name.escape_ascii())
    }
}

impl<M: ConstMachine> Memory<M> {
    /// A look at a keyspace's claims, which need not be there yet.
    pub(crate) fn keyspace_claims<'s>(
        &'s self,
        keyspace: &'s [u8],
    ) -> Result<Claims<'s, M>, Error> {
        let chain = chain_of(self.keyspace_named(keyspace)?.hash);
        let heads = &self.keyspaces_or_new()?.heads[..];
        Ok(Claims { memory: self, name: keyspace, chain, heads })
    }
}

impl<M: ConstMachine> Claims<'_, M> {
    /// How many claims there are, held and waited for: no fewer than those that were made before
    /// the caller took whatever latch it shares with those who make them. A writer that latched a
    /// page, and is told zero, knows that no scan of that page is protected by a claim.
    ///
    /// Costs two loads, or six; if another keyspace falls to the same chain a latch, and if that
    /// is not open it tells one claim: it waits for nobody, for the caller's page may be what the
    /// sweep of the latch's dead holder waits for. What the dead left counts until they are swept.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn count(&self) -> Result<u32, Error> {
        let memory = self.memory;
        memory.region().check()?;
        // Acquire: synchronizes with the Release in `find_or_make_keyspace`, so that the keyspace
        // is seen as it was made.
        let head = self.heads[self.chain as usize].load(Acquire);
        if head.is_null() {
            return Ok(0);
        }
        let generation = generation_at(memory.region(), head)?;
        let only = memory.keyspace(head)?;
        if get(&only.next).is_null() && get(&only.length) as usize == self.name.len() {
            let claims = get(&only.claims);
            // Acquire: what was read comes before the next look.
            M::fence(Acquire);
            // If it is there still, it was the only one. Too many do no harm, were it another's;
            // nor does one that is told of a cell that came to be another keyspace's meanwhile.
            let is_same = self.heads[self.chain as usize].load(Relaxed) == head
                && generation_at(memory.region(), head)? == generation;
            return Ok(if is_same { claims } else { 1 });
        }
        let Some(latched) = memory.try_latch(memory.blocks.guarding(self.chain))? else {
            return Ok(1);
        };
        let space = latched.find_keyspace(&memory.named(self.name)?)?;
        if space.is_null() { Ok(0) } else { Ok(get(&memory.keyspace(space)?.claims)) }
    }
}

#[cfg(test)]
mod tests {
    use core::ops::Bound::Unbounded;
    use std::collections::HashMap;
    use std::sync::Mutex;

    use super::*;
    use crate::granular::modes;
    use crate::{KeyRange, Manager, Owner, RangeKind, Wait};

    /// Names of keyspaces, as long as each other, that share a chain.
    fn neighbours(memory: &Memory<latchwork_machine::Native>) -> [String; 3] {
        let mut known = HashMap::<_, Vec<String>>::new();
        for number in 100_000u32.. {
            let name = number.to_string();
            let chain = chain_of(memory.keyspace_named(name.as_bytes()).unwrap().hash);
            let known = known.entry(chain).or_default();
            known.push(name);
            if let [one, other, third] = &mut known[..] {
                return [one, other, third].map(core::mem::take);
            }
        }
        unreachable!("there are fewer chains than numbers")
    }

    /// A thread that has a page in hand asks: it is not to wait for one that may be dead.
    #[test]
    fn a_count_waits_for_no_latch() {
        let manager = Manager::private(modes()).unwrap();
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        let memory = owner.memory;
        let [one, other, _] = &neighbours(memory);
        for space in [one, other] {
            let all = KeyRange { from: Unbounded, to: Unbounded };
            owner.lock_range(space.as_bytes(), all, RangeKind::ReadNext, Wait::Never).unwrap();
        }
        let count = |space: &str| session.keyspace_claims(space.as_bytes()).unwrap().count();
        assert_eq!((count(one), count(other)), (Ok(1), Ok(1)));
        let chain = session.keyspace_claims(one.as_bytes()).unwrap().chain;
        let latched = memory.latch(memory.blocks.guarding(chain)).unwrap();
        // By the thread that holds it, where waiting is an error.
        assert_eq!((count(one), count(other)), (Ok(1), Ok(1)));
        drop(latched);
        owner.release_all().unwrap();
        assert_eq!((count(one), count(other)), (Ok(0), Ok(0)));
    }

    /// Keyspaces of the same chain come and go, and so does the one that is asked about whenever it
    /// has no claim: what is counted is never too little.
    #[test]
    fn a_count_misses_no_claim_while_keyspaces_come_and_go() {
        let manager = Manager::private(modes()).unwrap();
        let sessions = [(); 2].map(|()| manager.session().unwrap());
        let spaces = neighbours(sessions[0].owner().unwrap().memory);
        // None when the other thread has ended.
        let made = &Mutex::new(Some(0));
        let [asks, claims] = sessions;
        std::thread::scope(|scope| {
            let [one, other, third] = &spaces;
            scope.spawn(move || {
                let [owner, stranger] = [(); 2].map(|()| claims.owner().unwrap());
                let lock = |owner: &Owner<'_>, space: &str, at: u32| {
                    let key = at.to_le_bytes();
                    let (space, key) = (space.as_bytes(), KeyRange::key(&key));
                    owner.lock_range(space, key, RangeKind::ReadNext, Wait::Never).unwrap();
                };
                for turn in 0..10_000 {
                    let count = turn % 3;
                    let mut now = made.lock().unwrap();
                    (0..count).for_each(|at| lock(&owner, one, at));
                    *now = Some(count);
                    drop(now);
                    for at in 0..20 {
                        lock(&stranger, [other, third][at as usize % 2], at);
                        stranger.release_all().unwrap();
                    }
                    *made.lock().unwrap() = Some(0);
                    owner.release_all().unwrap();
                }
                *made.lock().unwrap() = None;
            });
            let claims = asks.keyspace_claims(one.as_bytes()).unwrap();
            // The mutex is the latch that those who make claims share with those who ask.
            while let now = made.lock().unwrap()
                && let Some(now) = *now
            {
                let counted = claims.count().unwrap();
                assert!(counted >= now.min(1), "{counted} of {now}");
            }
            assert_eq!(claims.count(), Ok(0));
        });
    }
}
