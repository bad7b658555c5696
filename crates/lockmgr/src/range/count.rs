//! The number of claims of a keyspace, which a writer reads before it searches for claims.

use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use latchwork_machine::{ConstMachine, Word};

use crate::Error;
use crate::memory::Memory;
use crate::memory::blocks::chain_of;
use crate::memory::cells::{generation_at, get};
use crate::memory::typed::Link;
use crate::range::cells::Keyspace;

/// A keyspace whose claims a thread counts repeatedly; see [`Claims::count`].
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
    /// Returns a handle to count a keyspace's claims. The keyspace need not exist.
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
    /// Returns an upper bound of the number of claims, held and waited for. It includes all claims
    /// that were created before the caller took a latch that it shares with the threads that create
    /// them. So a writer that has latched a page and reads zero knows that no claim protects a scan
    /// of that page.
    ///
    /// Costs two to six loads. If another keyspace has the same chain, takes a latch; if the latch
    /// is not open, returns 1. It never blocks, because the sweep of the latch's dead holder may
    /// wait for the caller's page. Claims of dead owners count until they are swept.
    ///
    /// # Errors
    ///
    /// [`Error::Region`].
    pub fn count(&self) -> Result<u32, Error> {
        let memory = self.memory;
        memory.region().check()?;
        // Acquire: synchronizes with the Release in `find_or_make_keyspace`, so that the keyspace
        // is visible as it was created.
        let head = self.heads[self.chain as usize].load(Acquire);
        if head.is_null() {
            return Ok(0);
        }
        let generation = generation_at(memory.region(), head)?;
        let only = memory.keyspace(head)?;
        if get(&only.next).is_null() && get(&only.length) as usize == self.name.len() {
            let claims = get(&only.claims);
            // Acquire: the loads above precede the next one.
            M::fence(Acquire);
            // If the keyspace is still there, it was the only one of its chain. Returning too many
            // is harmless if it was another's, and so is the 1 for a cell that was reused in
            // between.
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

    /// Returns names of keyspaces of equal length that share a chain.
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

    /// A thread that holds a page latch counts claims: it must not wait for a thread that may be
    /// dead.
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
        // By the thread that holds it, for which waiting is an error.
        assert_eq!((count(one), count(other)), (Ok(1), Ok(1)));
        drop(latched);
        owner.release_all().unwrap();
        assert_eq!((count(one), count(other)), (Ok(0), Ok(0)));
    }

    /// Keyspaces of the same chain are created and removed, including the counted one whenever it
    /// has no claim. The count is never too low.
    #[test]
    fn a_count_misses_no_claim_while_keyspaces_come_and_go() {
        let manager = Manager::private(modes()).unwrap();
        let sessions = [(); 2].map(|()| manager.session().unwrap());
        let spaces = neighbours(sessions[0].owner().unwrap().memory);
        // `None` when the other thread has ended.
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
            // The mutex stands for the latch that is shared by threads that create claims and
            // threads that count them.
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
