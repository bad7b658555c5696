//! Arbitrary bytes as a region with a lock manager, used by a caller that trusts no result. The
//! fuzz target does the same.

use latchwork_lockmgr::granular::{self, IS, IX, S, X};
use latchwork_lockmgr::{Error, KeyRange, Manager, Owner, RangeKind, Session, View, Wait};
use latchwork_machine::Native;
use latchwork_region::Region;

const BLOCK: usize = 1 << 16;
/// The position in the region's header of its length, its number of blocks and its roots.
const LENGTH_AT: usize = 1024;
const BLOCKS_AT: usize = 1024 + 64;

fn options() -> latchwork_region::Options {
    latchwork_region::Options { processes: 3, threads: 6, waiters: 1, limit: 4 << 20, mode: 0o600 }
}

fn names() -> Vec<Vec<u8>> {
    let long = [30, 90, 300, 900].map(|length| vec![length as u8; length]);
    let short = (0..40u8).map(|n| vec![n; 1 + n as usize % 20]);
    short.chain(long).collect()
}

/// Takes some of everything. Waiting owners go to `keep`, which never drops them.
fn fill<'s>(session: &'s Session, keep: &mut Vec<Owner<'s>>) -> Result<(), Error> {
    for (turn, modes) in [[IS, X], [IX, S], [S, IX]].iter().enumerate() {
        let owner = session.owner()?;
        for (at, name) in names().iter().enumerate().skip(turn) {
            if at % 3 != 0 {
                let _ = owner.try_lock(name, modes[at % 2]);
            }
        }
        for (at, kind) in RangeKind::ALL.into_iter().enumerate() {
            let (from, to) = ([at as u8 * 2], [at as u8 * 3 + turn as u8 + 1]);
            let _ = owner.lock_range(b"keys", KeyRange::half_open(&from, &to), kind, Wait::Never);
        }
        keep.push(owner);
    }
    let owner = session.owner()?;
    let request =
        owner.request_range(b"keys", KeyRange::all(), RangeKind::WriteNext, Wait::Detect)?;
    core::mem::forget(request);
    keep.push(owner);
    for name in names().iter().take(6) {
        let owner = session.owner()?;
        let _ = owner.lock(b"of one's own", IS);
        let _ = owner.request(name, X, Wait::Detect);
        keep.push(owner);
    }
    Ok(())
}

/// A region in which two processes used a lock manager and died, one of them while it held a latch.
pub fn image() -> Vec<u8> {
    let region = Region::<Native>::heap(&options()).unwrap();
    let other = region.another().unwrap();
    let manager = Manager::new(region.clone(), granular::modes(), crate::early::early()).unwrap();
    let theirs = Manager::new(other.clone(), granular::modes(), crate::early::early()).unwrap();
    let (session, second) = (manager.session().unwrap(), theirs.session().unwrap());
    let mut kept = (Vec::new(), Vec::new());
    fill(&session, &mut kept.0).unwrap();
    fill(&second, &mut kept.1).unwrap();
    other.die();
    let mut image = crate::cell::image(&region);
    let blocks: [u8; 8] = image[BLOCKS_AT..BLOCKS_AT + 8].try_into().unwrap();
    // Two more blocks, so that it can grow a little.
    let length = BLOCK * (1 + u64::from_ne_bytes(blocks) as usize + 2);
    image.truncate(length);
    image[LENGTH_AT..LENGTH_AT + 8].copy_from_slice(&(length as u64).to_ne_bytes());
    for slot in 0..3 {
        let held = (12_288 + latchwork_machine::Shared::overhead(1)).next_multiple_of(4096);
        image[held + slot * 128 + 24..held + slot * 128 + 28].fill(0);
    }
    image
}

/// The extent of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// All operations.
    Whole,
    /// Views only: a living thread initialises the region or holds a latch, and would be waited
    /// for.
    Seen,
}

/// Whether a latch is held by a living thread or by none, so that waiting for it would never end.
fn is_stuck(view: &View, region: &Region) -> Result<bool, Error> {
    let dead = |slot: u32| {
        region.threads().any(|thread| {
            thread.slot == slot && !region.alive(thread.process, thread.process_generation)
        })
    };
    Ok(view.latched()?.iter().any(|(_, slot)| !dead(*slot)))
}

/// Every operation of a lock manager on these bytes. Errors are allowed; each call must return.
pub fn use_it(image: &[u8]) -> Result<Used, Error> {
    let region = Region::<Native>::from_image(image)?;
    let modes = granular::modes();
    let view = View::new(region.clone())?;
    if let Some(view) = &view {
        let _ = (view.has(&modes), view.verify(Some(&modes)), view.verify(None));
        let picture = view.look()?;
        let _ = (picture.edges(Some(&modes)).len(), picture.edges(None).len());
        if is_stuck(view, &region)? {
            return Ok(Used::Seen);
        }
    } else if region.root(0)?.load(core::sync::atomic::Ordering::Relaxed) != 0 {
        return Ok(Used::Seen);
    }
    let manager = Manager::new(region.clone(), modes, crate::early::early())?;
    let session = manager.session()?;
    if let Some(view) = View::new(region.clone())?
        && is_stuck(&view, &region)?
    {
        return Ok(Used::Seen);
    }
    session.sweep()?;
    let _ = (session.totals(), session.snapshot().map(|rows| rows.len()), session.detect());
    for orphan in session.orphans()? {
        let _ = session.release_orphan(orphan);
    }
    for owner in manager_owners(&region)? {
        let _ = session.kill(owner);
    }
    lock_all(&session)?;
    let _ = region.audit();
    Ok(Used::Whole)
}

fn manager_owners(region: &Region) -> Result<Vec<latchwork_lockmgr::OwnerId>, Error> {
    let Some(view) = View::new(region.clone())? else { return Ok(Vec::new()) };
    Ok(view.look()?.owners.iter().take(4).map(|owner| owner.owner).collect())
}

fn lock_all(session: &Session) -> Result<(), Error> {
    let (owner, other) = (session.owner()?, session.owner()?);
    let child = owner.child()?;
    for (at, name) in names().iter().enumerate() {
        let _ = owner.try_lock(name, [IS, IX, S, X][at % 4]);
        let _ = child.try_lock(name, [X, IS][at % 2]);
        let _ = other.request(name, S, Wait::Detect);
        let _ = (other.poll(), session.detect(), other.cancel());
        let _ = (owner.holds(name), owner.downgrade(name, IS), owner.unlock(name));
    }
    for (at, kind) in RangeKind::ALL.into_iter().enumerate() {
        let (from, to) = ([at as u8], [at as u8 * 5 + 1]);
        let range = KeyRange::half_open(&from, &to);
        let _ = owner.lock_range(b"keys", range, kind, Wait::Never);
        let _ = child.lock_range(b"keys", KeyRange::key(&to), kind, Wait::Never);
        let request = other.request_range(b"keys", range, kind, Wait::Detect);
        let _ = request.map(|request| request.poll());
        let _ = (owner.holds_range(b"keys", range, kind), other.cancel());
        let _ = owner.unlock_range(b"keys", range, kind);
    }
    let _ = (child.inherit(), owner.release_reads(), owner.release_all(), other.held());
    Ok(())
}
