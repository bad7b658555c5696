//! Resource limits are typed errors, and the lock manager continues with what it has.

use core::future::Future;
use core::task::{Context, Poll, Waker};
use std::path::Path;

use latchwork_check::folder::Folder;
use latchwork_check::forked::{in_child, limit};
use latchwork_check::left;
use latchwork_lockmgr::{
    Error, KeyRange, Manager, Options, Owner, RangeKind, Session, Step, Wait, shared,
    shared::{S, X},
};
use latchwork_machine::{ConstMachine, Native, Shared};
use latchwork_region::{Error as Because, Region};

fn options(limit: u64) -> latchwork_region::Options {
    latchwork_region::Options { limit, ..Default::default() }
}

fn manager(path: &Path) -> Manager<Shared> {
    let region = Region::open_or_create(path, &options(1 << 30)).unwrap();
    Manager::new(region, shared::modes(), Options::default()).unwrap()
}

/// Locks names until there is no room, and returns how many, and the error.
fn fill<M: ConstMachine>(owner: &Owner<'_, M>) -> (u64, Error) {
    for at in 0u64.. {
        if let Err(error) = owner.try_lock(&at.to_le_bytes(), X) {
            return (at, error);
        }
    }
    unreachable!("the region is never full");
}

/// Fills a region that cannot grow, repeatedly, and checks that other calls still succeed.
fn fills_and_goes_on<M: ConstMachine>(session: &Session<M>, why: &Because) {
    let mut most = Vec::new();
    for _ in 0..6 {
        let owner = || session.owner().unwrap();
        let (a, b, filler) = (owner(), owner(), owner());
        a.lock(b"a", X).unwrap();
        b.lock(b"b", X).unwrap();
        a.lock(b"weak", S).unwrap();
        let (taken, error) = fill(&filler);
        assert_eq!(error, Error::Region(*why));
        let range = b.lock_range(b"keys", KeyRange::all(), RangeKind::Gap, Wait::Never);
        assert_eq!(range, Err(Error::Region(*why)));
        for at in 0..4u64 {
            filler.unlock(&at.to_le_bytes()).unwrap();
        }
        // Waits, deadlocks and held locks need no more room.
        assert_eq!(a.request(b"b", X, Wait::Detect), Ok(Step::Waiting));
        assert!(matches!(b.lock(b"a", X), Err(Error::Deadlock(_))));
        b.release_all().unwrap();
        assert_eq!(a.poll(), Ok(Some(Ok(()))));
        assert_eq!(a.holds(b"weak"), Ok(Some((S, 1))));
        most.push(taken);
        drop((a, b, filler));
        left::nothing_in(session);
    }
    assert!(most[5] >= most[4] && most[5] > 1000, "the region holds less over time: {most:?}");
}

#[test]
fn a_limit_of_the_file_is_an_error_and_no_signal() {
    let folder = Folder::new("file");
    let status = in_child(|| {
        let manager = manager(&folder.at("region"));
        let session = manager.session().unwrap();
        limit(libc::RLIMIT_FSIZE, manager.region().len());
        fills_and_goes_on(&session, &Because::FileLimit);
        limit(libc::RLIMIT_FSIZE, 1 << 16);
        let second = Region::<Shared>::create(folder.0.join("second"), &options(1 << 30));
        assert_eq!(second.err(), Some(Because::FileLimit));
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1, "a file is left");
        // With a higher limit the region grows.
        limit(libc::RLIMIT_FSIZE, u64::MAX);
        let owner = session.owner().unwrap();
        for at in 0..200_000u64 {
            owner.lock(&at.to_le_bytes(), X).unwrap();
        }
    });
    assert_eq!(status, 0, "the process was killed or failed: {status:#x}");
}

/// The control: by default the signal kills the process.
#[test]
fn the_signal_of_that_limit_kills() {
    let folder = Folder::new("signal");
    let status = in_child(|| {
        let file = std::fs::File::create(folder.at("region")).unwrap();
        limit(libc::RLIMIT_FSIZE, 4096);
        let _ = file.set_len(1 << 20);
    });
    assert_eq!(status & 0x7f, libc::SIGXFSZ, "the limit was not tested");
}

#[test]
fn a_full_filesystem_is_an_error() {
    let folder = Folder::new("disk");
    let mut mount = std::process::Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=12m", "tmpfs"]).arg(&folder.0);
    if !mount.output().is_ok_and(|output| output.status.success()) {
        println!("skipped: no tmpfs can be mounted here, so a full one is not tested");
        return;
    }
    let status = in_child(|| {
        let manager = manager(&folder.at("region"));
        fills_and_goes_on(&manager.session().unwrap(), &Because::NoSpace);
    });
    let unmounted = std::process::Command::new("umount").arg(&folder.0).status();
    assert_eq!(status, 0);
    assert!(unmounted.unwrap().success());
}

/// The size of this process's address space.
fn addresses() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn a_limit_of_addresses_is_an_error() {
    let folder = Folder::new("addresses");
    let status = in_child(|| {
        let before = addresses();
        limit(libc::RLIMIT_AS, before + (2 << 30));
        let own = Region::<Native>::private(&options(1 << 36)).err();
        let shared = Region::<Shared>::create(folder.0.join("second"), &options(1 << 36)).err();
        for end in [own, shared] {
            assert!(matches!(end, Some(Because::TooLarge(_))), "{end:?}");
        }
        let manager = manager(&folder.at("region"));
        let session = manager.session().unwrap();
        // No room for another thread's stack: a waiting future fails and is withdrawn.
        limit(libc::RLIMIT_AS, addresses() + (8 << 20));
        let threads = || std::thread::Builder::new().spawn(std::thread::park);
        assert!((0..1000).any(|_| threads().is_err()), "there is still room for threads");
        let (holder, waiter) = (session.owner().unwrap(), session.owner().unwrap());
        holder.lock(b"x", X).unwrap();
        for _ in 0..3 {
            let mut future = Box::pin(waiter.lock_async(b"x", X));
            let end = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(end, Poll::Ready(Err(Error::NoThread)));
            drop(future);
            waiter.lock(b"y", X).unwrap();
            waiter.unlock(b"y").unwrap();
        }
        drop((holder, waiter));
        left::nothing_in(&session);
    });
    assert_eq!(status, 0);
}

#[test]
fn a_limit_of_descriptors_is_an_error() {
    let folder = Folder::new("descriptors");
    let status = in_child(|| {
        let first = manager(&folder.at("region"));
        let session = first.session().unwrap();
        limit(libc::RLIMIT_NOFILE, 0);
        for path in [folder.at("region"), folder.0.join("second")] {
            let end = Region::<Shared>::open_or_create(&path, &options(1 << 30));
            let Some(Because::System { errno, .. }) = end.as_ref().err() else { panic!("{end:?}") };
            assert_eq!(*errno, libc::EMFILE);
        }
        // Open sessions, sweeps and growth still work.
        let other = first.session().unwrap();
        assert_eq!(other.sweep(), Ok(0));
        let (a, b) = (session.owner().unwrap(), other.owner().unwrap());
        for at in 0..200_000u64 {
            a.lock(&at.to_le_bytes(), X).unwrap();
        }
        assert_eq!(b.try_lock(&7u64.to_le_bytes(), X), Err(Error::NotGranted));
        drop((a, b));
        limit(libc::RLIMIT_NOFILE, 64);
        left::nothing_in(&session);
    });
    assert_eq!(status, 0);
}
