//! The child of a fork: every call with objects of its parent returns `Forked` and accesses no
//! memory of the region.

use core::future::Future;
use core::pin::{Pin, pin};
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;
use core::task::{Context, Poll, Waker};
use std::path::Path;
use std::time::Duration;

use latchwork_check::forked::in_child;
use latchwork_lockmgr::{
    Adopted, BatchError, BatchOp, Child, Claims, Error, Held, HeldRange, KeyRange, LockFuture,
    Manager, Options, Owner, OwnerOptions, RangeFuture, RangeKind, RangeRequest, Savepoint,
    Session, Step, StoredOwner, View, Wait, shared,
    shared::{S, X},
};
use latchwork_machine::{Native, Shared};
use latchwork_region::Region;

const FORKED: Error = Error::Region(latchwork_region::Error::Forked);
fn key() -> KeyRange<'static> {
    KeyRange::key(b"k")
}

const KIND: RangeKind = RangeKind::WriteNext;

/// Memory of the child in place of the parent's region, in which a store is detected.
struct Overlay(&'static [AtomicU8]);

impl Overlay {
    fn over(from: usize, length: usize) -> Self {
        // SAFETY: a new mapping at a free address.
        let at = unsafe {
            libc::mmap(
                from as *mut libc::c_void,
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        assert_eq!(at as usize, from, "the parent's region is still mapped");
        // SAFETY: mapped above with this length, zeroed, and never unmapped.
        Self(unsafe { core::slice::from_raw_parts(at.cast(), length) })
    }

    fn is_untouched(&self) -> bool {
        self.0.iter().all(|byte| byte.load(Relaxed) == 0)
    }
}

/// The owners of a process when it forks.
struct Scene<'a> {
    manager: &'a Manager<Shared>,
    session: &'a Session<Shared>,
    /// Holds x in a weak mode, y, and a range.
    idle: Owner<'a, Shared>,
    /// Waits for y.
    waiting: Owner<'a, Shared>,
    other: Owner<'a, Shared>,
    /// A savepoint of `idle`.
    savepoint: Savepoint,
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(end) => end,
        Poll::Pending => panic!("it waits"),
    }
}

fn owners_say_so(scene: &Scene<'_>, child: &Child<'_, '_, Shared>) {
    for owner in [&scene.idle, &scene.waiting, child] {
        assert_eq!(owner.age(), Err(FORKED));
        assert_eq!(owner.lock(b"x", S), Err(FORKED));
        assert_eq!(owner.lock(b"y", X), Err(FORKED));
        assert_eq!(owner.try_lock(b"z", X), Err(FORKED));
        assert_eq!(owner.lock_timeout(b"z", X, Duration::from_millis(1)), Err(FORKED));
        assert_eq!(owner.request(b"z", S, Wait::Never), Err(FORKED));
        assert_eq!(owner.finish(None), Err(FORKED));
        assert_eq!(owner.poll(), Err(FORKED));
        assert_eq!(owner.cancel(), Err(FORKED));
        assert_eq!(owner.unlock(b"x"), Err(FORKED));
        assert_eq!(owner.unlock(b"y"), Err(FORKED));
        assert_eq!(owner.release_object(b"y"), Err(FORKED));
        assert_eq!(owner.release_reads(), Err(FORKED));
        assert_eq!(owner.release_all(), Err(FORKED));
        assert_eq!(owner.held(), Err(FORKED));
        assert_eq!(owner.locks(), Err(FORKED));
        assert_eq!(owner.holds(b"x"), Err(FORKED));
        assert_eq!(owner.downgrade(b"y", S), Err(FORKED));
        assert_eq!(owner.convert(b"x", X, Wait::Never), Err(FORKED));
        assert_eq!(owner.lock_any([b"x".as_slice()], S), Err(FORKED));
        assert_eq!(owner.child().map(drop), Err(FORKED));
        assert_eq!(owner.savepoint(), Err(FORKED));
        assert_eq!(owner.trade(b"y", &scene.other), Err(FORKED));
        assert_eq!(scene.other.trade(b"y", owner), Err(FORKED));
        assert_eq!(ready(owner.lock_async(b"x", S)), Err(FORKED));
        assert_eq!(ready(owner.lock_range_async(b"s", key(), KIND, Wait::Never)), Err(FORKED));
        assert_eq!(owner.lock_range(b"s", key(), KIND, Wait::Never), Err(FORKED));
        assert_eq!(owner.request_range(b"s", key(), KIND, Wait::Never).map(drop), Err(FORKED));
        assert_eq!(owner.unlock_range(b"s", key(), KIND), Err(FORKED));
        assert_eq!(owner.holds_range(b"s", key(), KIND), Err(FORKED));
        let _ = owner.id();
        owners_say_so_too(scene, owner);
    }
    assert_eq!(child.inherit(), Err(FORKED));
    assert_eq!(child.parent().held(), Err(FORKED));
    assert_eq!(scene.idle.roll_back_to(scene.savepoint), Err(FORKED));
}

/// Several locks at once, changes of ranges, and trades.
fn owners_say_so_too(scene: &Scene<'_>, owner: &Owner<'_, Shared>) {
    let ms = Duration::from_millis(1);
    assert_eq!(owner.lock_with(b"x", S, Wait::Detect), Err(FORKED));
    assert_eq!(ready(owner.lock_async_with(b"x", S, Wait::Die)), Err(FORKED));
    assert_eq!(owner.release_all_in_turn(), Err(FORKED));
    for operation in [
        BatchOp::Lock(b"x", S, Wait::Detect),
        BatchOp::Unlock(b"x"),
        BatchOp::ReleaseObject(b"x"),
        BatchOp::ReleaseReads,
        BatchOp::ReleaseAll,
    ] {
        let error = BatchError { done: 0, error: FORKED };
        assert_eq!(owner.batch(&[operation, BatchOp::ReleaseAll]), Err(error));
    }
    assert_eq!(owner.holdings(), Err(FORKED));
    let lock = Held { locks: vec![(b"x".to_vec(), S)], ..Held::default() };
    assert_eq!(owner.take_held(&lock), Err(FORKED));
    let (keyspace, from, to) = (b"s".to_vec(), b"k".to_vec(), None);
    let range = HeldRange { keyspace, from, to, kind: KIND };
    assert_eq!(owner.take_held(&Held { ranges: vec![range], ..Held::default() }), Err(FORKED));
    assert_eq!(owner.try_lock_range(b"s", key(), KIND), Err(FORKED));
    assert_eq!(owner.lock_range_timeout(b"s", key(), KIND, ms), Err(FORKED));
    assert_eq!(owner.downgrade_range(b"s", key(), KIND, RangeKind::ReadNext), Err(FORKED));
    assert_eq!(owner.downgrade_range(b"s", key(), KIND, KIND), Err(FORKED));
    let (ab, bc) = (KeyRange::half_open(b"a", b"b"), KeyRange::half_open(b"b", b"c"));
    assert_eq!(owner.split_range(b"s", KeyRange::half_open(b"a", b"c"), KIND, b"b"), Err(FORKED));
    assert_eq!(owner.merge_ranges(b"s", ab, bc, KIND), Err(FORKED));
    assert_eq!(owner.trade_range(b"s", key(), KIND, &scene.other), Err(FORKED));
    assert_eq!(scene.other.trade_range(b"s", key(), KIND, owner), Err(FORKED));
}

/// Adopted and stored owners and claims of the parent, used in the child.
fn others_say_so(scene: &Scene<'_>, others: &Others<'_>) {
    let Others { adopted, stored, claims, thread } = others;
    assert_eq!(adopted.lock(b"z", X), Err(FORKED));
    assert_eq!(adopted.unlock(b"orphan"), Err(FORKED));
    assert_eq!(adopted.held(), Err(FORKED));
    assert_eq!(stored.get().lock(b"z", X), Err(FORKED));
    assert_eq!(stored.session().sweep(), Err(FORKED));
    assert_eq!(claims.count(), Err(FORKED));
    assert!(matches!(scene.manager.stored_owner(&OwnerOptions::default()), Err(FORKED)));
    // SAFETY: the child's copy, which the child does not use otherwise.
    let adopted = unsafe { copy(adopted) };
    // SAFETY: as above.
    let mut stored = unsafe { copy(stored) };
    // SAFETY: as above.
    let thread = unsafe { copy(thread) };
    assert_eq!(adopted.end(), Err(FORKED));
    assert_eq!(stored.renew(&OwnerOptions::default()), Err(FORKED));
    assert_eq!(ready(stored.lock_async(b"z", X, Wait::Detect)), Err(FORKED));
    let asked = ready(stored.lock_range_async(b"s", key(), KIND, Wait::Detect));
    assert_eq!(asked, Err(FORKED));
    drop(stored);
    let session = scene.manager.session_on(thread);
    assert_eq!(session.owner().map(drop), Err(FORKED));
    assert_eq!(session.release_left(), Err(FORKED));
    assert_eq!(session.thread().generation(), Err(latchwork_region::Error::Forked));
}

/// Objects created before the fork, in addition to the owners.
struct Others<'a> {
    adopted: Adopted<'a, Shared>,
    stored: StoredOwner<Shared>,
    claims: Claims<'a, Shared>,
    thread: latchwork_region::Thread<Shared>,
}

/// Copies an object of the parent.
///
/// # Safety
///
/// The child does not use it otherwise.
unsafe fn copy<T>(of: &T) -> T {
    // SAFETY: a valid reference; the caller keeps the rest of the promise.
    unsafe { (&raw const *of).read() }
}

/// A process dies with a lock and leaves an orphan.
fn leave_orphan(path: &Path, manager: &Manager<Shared>) {
    let died = in_child(|| {
        let manager = open(path);
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        owner.lock(b"orphan", X).unwrap();
        core::mem::forget(owner);
        core::mem::forget(session);
        core::mem::forget(manager);
    });
    assert_eq!(died, 0);
    assert_eq!(manager.sweep(), Ok(1));
}

fn open(path: &Path) -> Manager<Shared> {
    let options = latchwork_region::Options { limit: 1 << 28, ..Default::default() };
    let region = Region::<Shared>::open_or_create(path, &options).unwrap();
    let keep = Box::new(|_, _: &[u8]| false);
    Manager::with_recovery(region, shared::modes(), Options::default(), keep).unwrap()
}

fn sessions_say_so(scene: &Scene<'_>) {
    let Scene { manager, session, .. } = scene;
    assert_eq!(session.owner().map(drop), Err(FORKED));
    assert_eq!(session.owner_with(&OwnerOptions::default()).map(drop), Err(FORKED));
    assert_eq!(session.detect(), Err(FORKED));
    assert_eq!(session.kill(scene.idle.id()), Err(FORKED));
    assert_eq!(session.sweep(), Err(FORKED));
    assert_eq!(session.release_orphan(scene.idle.id()), Err(FORKED));
    assert_eq!(session.owners(), Err(FORKED));
    assert_eq!(session.orphans(), Err(FORKED));
    assert_eq!(session.adopt(scene.idle.id()).map(drop), Err(FORKED));
    assert_eq!(session.keyspace_claims(b"s").map(drop), Err(FORKED));
    assert_eq!(session.release_left(), Err(FORKED));
    assert_eq!(session.places().map(drop), Err(FORKED));
    assert_eq!(manager.sweep(), Err(FORKED));
    // Calls that only need memory of the process.
    let _ = (session.stats(), session.waits(), session.manager().modes().each().count());
    let _ = session.thread().number();
    assert_eq!(session.labelled_orphans(), Err(FORKED));
    assert_eq!(session.owners_labelled("a"), Err(FORKED));
    assert_eq!(manager.health(), Err(FORKED));
    let _ = format!("{manager:?} {session:?} {:?}", scene.idle);
    assert_eq!(session.partition_totals().map(drop), Err(FORKED));
    assert_eq!(session.totals().map(drop), Err(FORKED));
    assert_eq!(session.snapshot().map(drop), Err(FORKED));
    assert_eq!(manager.session().map(drop), Err(FORKED));
    let region = manager.region().clone();
    assert_eq!(View::new(region.clone()).map(drop), Err(FORKED));
    let again = Manager::new(region, shared::modes(), Options::default());
    assert_eq!(again.map(drop), Err(FORKED));
    let (region, keep) = (manager.region().clone(), Box::new(|_, _: &[u8]| false));
    let again = Manager::with_recovery(region, shared::modes(), Options::default(), keep);
    assert_eq!(again.map(drop), Err(FORKED));
}

/// Runs the child's part twice: with the region unmapped, so that an access kills it, and with
/// other memory in its place, so that a store is detected.
fn in_both_children(region: &Region<Shared>, work: impl Fn()) {
    // The first mapping is a word elsewhere, the second the second part of the header.
    let from = region.places()[1].0 & !0xfff;
    let length = region.len() as usize;
    assert_eq!(in_child(&work), 0, "a call accessed the region, or returned another error");
    let touched = in_child(|| {
        let overlay = Overlay::over(from, length);
        work();
        assert!(overlay.is_untouched(), "a call changed memory of the child");
    });
    assert_eq!(touched, 0);
    let seen = in_child(|| {
        let overlay = Overlay::over(from, length);
        overlay.0[length - 1].store(1, Relaxed);
        assert!(overlay.is_untouched());
    });
    assert_ne!(seen, 0, "a store was not detected");
}

#[test]
fn every_call_in_a_forked_child_returns_forked() {
    let path = std::env::temp_dir().join(format!("lockmgr-fork-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let manager = open(&path);
    leave_orphan(&path, &manager);
    let session = manager.session().unwrap();
    let owner = || session.owner().unwrap();
    let idle = owner();
    let savepoint = idle.savepoint().unwrap();
    let scene = Scene {
        manager: &manager,
        session: &session,
        idle,
        waiting: owner(),
        other: owner(),
        savepoint,
    };
    let orphan = session.orphans().unwrap()[0];
    let others = Others {
        adopted: session.adopt(orphan).unwrap(),
        stored: manager.stored_owner(&OwnerOptions::default()).unwrap(),
        claims: session.keyspace_claims(b"s").unwrap(),
        thread: manager.region().thread().unwrap(),
    };
    scene.idle.lock(b"x", S).unwrap();
    scene.idle.lock(b"y", X).unwrap();
    scene.idle.lock_range(b"s", key(), KIND, Wait::Never).unwrap();
    scene.waiting.request(b"y", X, Wait::Detect).unwrap();
    let child = scene.idle.child().unwrap();
    child.lock(b"c", X).unwrap();
    let view = View::new(manager.region().clone()).unwrap().unwrap();
    // Waiting futures and requests, each with its own owner.
    let (a, b, c) = (owner(), owner(), owner());
    let mut lock = Box::pin(a.lock_async(b"y", X));
    let mut range = Box::pin(b.lock_range_async(b"s", key(), KIND, Wait::Detect));
    let mut context = Context::from_waker(Waker::noop());
    assert!(lock.as_mut().poll(&mut context).is_pending());
    assert!(range.as_mut().poll(&mut context).is_pending());
    let request = c.request_range(b"s", key(), KIND, Wait::Detect).unwrap();
    in_both_children(manager.region(), || {
        owners_say_so(&scene, &child);
        sessions_say_so(&scene);
        assert_eq!(view.look().map(drop), Err(FORKED));
        assert_eq!(view.verify(None).map(drop), Err(FORKED));
        assert_eq!(view.deadlocks().map(drop), Err(FORKED));
        assert_eq!(view.partitions().map(drop), Err(FORKED));
        assert_eq!(view.latched(), Err(FORKED));
        assert_eq!(view.deadlocks_ever(), Err(FORKED));
        assert!(view.has(manager.modes()));
        assert_eq!(request.poll(), Err(FORKED));
        assert_eq!(request.step(), Step::Waiting);
        // SAFETY: the child's copy, which the child does not use otherwise.
        assert_eq!(unsafe { copy(&request) }.finish(), Err(FORKED));
        others_say_so(&scene, &others);
    });
    copies_say_so(manager.region(), &mut lock, &mut range, &raw const request);
    // The parent's objects are unchanged.
    drop(child);
    assert_eq!(others.adopted.holds(b"orphan"), Ok(Some((X, 1))));
    others.adopted.end().unwrap();
    drop((others.stored, others.thread));
    assert!(lock.as_mut().poll(&mut context).is_pending());
    assert_eq!(request.poll(), Ok(None));
    drop((lock, range, request));
    assert_eq!(scene.idle.release_all(), Ok(()));
    assert_eq!(scene.waiting.poll(), Ok(Some(Ok(()))));
    drop((scene, a, b, c));
    latchwork_check::left::nothing_in(&session);
    let _ = std::fs::remove_file(&path);
}

/// Copies of waiting futures and requests are dropped or polled in the child, which has no effect.
fn copies_say_so<'o, 's, 'n>(
    region: &Region<Shared>,
    lock: &mut Pin<Box<LockFuture<'o, 's, 'n, Shared>>>,
    range: &mut Pin<Box<RangeFuture<'o, 's, 'n, Shared>>>,
    request: *const RangeRequest<'o, 's, Shared>,
) {
    type Dropped<'a> = Box<dyn FnOnce() + 'a>;
    for turn in 0..3 {
        let (lock, range, request) = (&raw mut *lock, &raw mut *range, request);
        in_both_children(region, || {
            let work: Dropped<'_> = match turn {
                // SAFETY: the child's copy, which the child does not use otherwise.
                0 => Box::new(|| drop(unsafe { lock.read() })),
                // SAFETY: as above.
                1 => Box::new(|| drop(unsafe { range.read() })),
                // SAFETY: as above.
                _ => Box::new(|| drop(unsafe { request.read() })),
            };
            work();
        });
    }
    let mut context = Context::from_waker(Waker::noop());
    for turn in 0..2 {
        let (lock, range) = (&raw mut *lock, &raw mut *range);
        let context = &raw mut context;
        in_both_children(region, || {
            // SAFETY: the child's copy, which the child does not use otherwise.
            let lock = unsafe { &mut *lock };
            // SAFETY: as above.
            let range = unsafe { &mut *range };
            // SAFETY: as above.
            let context = unsafe { &mut *context };
            let end = match turn {
                0 => lock.as_mut().poll(context),
                _ => range.as_mut().poll(context),
            };
            assert_eq!(end, Poll::Ready(Err(FORKED)));
        });
    }
}

/// The same in private memory; all objects are dropped at the child's end.
#[test]
fn a_forked_child_may_drop_all_objects() {
    let manager: Manager<Native> = Manager::private(shared::modes()).unwrap();
    let status = {
        let session = manager.session().unwrap();
        let owner = session.owner().unwrap();
        owner.lock(b"x", S).unwrap();
        owner.lock(b"y", X).unwrap();
        let (owner, session) = (&raw const owner, &raw const session);
        in_child(|| {
            // SAFETY: the child's copy, which the child does not use otherwise.
            let owner = unsafe { owner.read() };
            // SAFETY: as above; it is dropped after the owner.
            let session = unsafe { session.read() };
            assert_eq!(owner.unlock(b"x"), Err(FORKED));
            drop(owner);
            drop(session);
        })
    };
    assert_eq!(status, 0);
}
