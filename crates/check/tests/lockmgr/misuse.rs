//! Invalid input: each kind returns a specific error and changes nothing.

use std::sync::atomic::Ordering::Relaxed;

use latchwork_check::left;
use latchwork_check::tasks::block_on;
use latchwork_lockmgr::{
    BatchError, BatchOp, Error, KeyRange, Manager, Mode, Modes, ModesError, ModesSpec, NAME_MAX,
    Options, RangeKind, Step, View, Wait, berkeley, granular, postgres, shared,
    shared::{S, X},
};
use latchwork_machine::{Native, Shared};
use latchwork_region::Region;

#[test]
fn invalid_modes_are_refused() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    let other = [granular::X, granular::IS, berkeley::READ, postgres::ACCESS_SHARE];
    let none = [Mode::new(0), Mode::new(1), Mode::new(2), Mode::new(16), Mode::new(255)];
    for mode in other.into_iter().chain(none) {
        let none = Err(Error::Mode(mode));
        assert_eq!(owner.lock(b"x", mode), none);
        assert_eq!(owner.try_lock(b"x", mode), none);
        assert_eq!(owner.request(b"x", mode, Wait::Detect), Err(Error::Mode(mode)));
        assert_eq!(owner.lock_any([b"x".as_slice()], mode), Err(Error::Mode(mode)));
        assert_eq!(block_on(owner.lock_async(b"x", mode)), none);
        let end = owner.batch(&[BatchOp::Lock(b"x", mode, Wait::Never)]);
        assert_eq!(end, Err(BatchError { done: 0, error: Error::Mode(mode) }));
        owner.lock(b"x", S).unwrap();
        assert_eq!(owner.downgrade(b"x", mode), none);
        assert_eq!(owner.convert(b"x", mode, Wait::Never), none);
        assert_eq!(owner.holds(b"x"), Ok(Some((S, 1))));
        owner.unlock(b"x").unwrap();
    }
    drop(owner);
    left::nothing_in(&session);
}

#[test]
fn invalid_names_are_refused() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    let long = vec![7; NAME_MAX + 1];
    for (name, length) in [(b"".as_slice(), 0), (&long, NAME_MAX + 1)] {
        let none = Err(Error::Name(length));
        for mode in [S, X] {
            assert_eq!(owner.lock(name, mode), none);
            assert_eq!(owner.try_lock(name, mode), none);
            assert_eq!(block_on(owner.lock_async(name, mode)), none);
            assert_eq!(owner.downgrade(name, mode), none);
            assert_eq!(owner.convert(name, mode, Wait::Never), none);
        }
        assert_eq!(owner.unlock(name), none);
        assert_eq!(owner.release_object(name), none);
        assert_eq!(owner.holds(name), Err(Error::Name(length)));
        assert_eq!(owner.trade(name, &other), none);
    }
    // The longest name that is allowed.
    owner.lock(&long[1..], X).unwrap();
    assert_eq!(owner.holds(&long[1..]), Ok(Some((X, 1))));
    drop((owner, other));
    left::nothing_in(&session);
}

#[test]
fn locks_that_are_not_held_cannot_be_released() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    for mode in [S, X] {
        owner.lock(b"x", mode).unwrap();
        // The lock of another owner.
        assert_eq!(other.unlock(b"x"), Err(Error::NotHeld));
        owner.unlock(b"x").unwrap();
        // A second unlock.
        assert_eq!(owner.unlock(b"x"), Err(Error::NotHeld));
        owner.lock(b"x", mode).unwrap();
        owner.release_all().unwrap();
        // After all locks were released.
        assert_eq!(owner.unlock(b"x"), Err(Error::NotHeld));
        assert_eq!(owner.downgrade(b"x", S), Err(Error::NotHeld));
        assert_eq!(owner.convert(b"x", X, Wait::Never), Err(Error::NotHeld));
        assert_eq!(owner.trade(b"x", &other), Err(Error::NotHeld));
        assert_eq!(owner.release_object(b"x"), Ok(()), "an object without locks can be released");
        owner.release_all().unwrap();
    }
    owner.lock(b"x", S).unwrap();
    assert_eq!(owner.downgrade(b"x", X), Err(Error::NotHeld), "a stronger mode is no downgrade");
    // A range with other keys or of another kind.
    let (all, one) = (KeyRange::all(), KeyRange::key(b"k"));
    owner.lock_range(b"keys", one, RangeKind::Gap, Wait::Never).unwrap();
    assert_eq!(owner.unlock_range(b"keys", all, RangeKind::Gap), Err(Error::NotHeld));
    assert_eq!(owner.unlock_range(b"keys", one, RangeKind::Insert), Err(Error::NotHeld));
    assert_eq!(owner.unlock_range(b"other", one, RangeKind::Gap), Err(Error::NotHeld));
    assert_eq!(other.unlock_range(b"keys", one, RangeKind::Gap), Err(Error::NotHeld));
    owner.unlock_range(b"keys", one, RangeKind::Gap).unwrap();
    assert_eq!(owner.unlock_range(b"keys", one, RangeKind::Gap), Err(Error::NotHeld));
    drop((owner, other));
    left::nothing_in(&session);
}

#[test]
fn invalid_owners_are_refused() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    let gone = owner.id();
    drop(owner);
    assert_eq!(session.kill(gone), Err(Error::NoOwner(gone)));
    // Its slot is free or belongs to another owner: the old id is unknown.
    let again = session.owner().unwrap();
    assert_eq!(session.kill(gone), Err(Error::NoOwner(gone)));
    assert_eq!(again.lock(b"x", X), Ok(()));
    assert_eq!(session.release_orphan(gone), Err(Error::NoOwner(gone)));
    // A living owner cannot be released by its id.
    assert_eq!(session.release_orphan(again.id()), Err(Error::NoOwner(again.id())));
    assert_eq!(again.holds(b"x"), Ok(Some((X, 1))));
    // While an owner waits, its other calls fail.
    assert_eq!(other.request(b"x", X, Wait::Detect), Ok(Step::Waiting));
    assert_eq!(other.lock(b"y", X), Err(Error::Waiting));
    assert_eq!(other.unlock(b"y"), Err(Error::Waiting));
    assert_eq!(other.release_all(), Err(Error::Waiting));
    assert_eq!(other.downgrade(b"y", S), Err(Error::Waiting));
    let all = KeyRange::all();
    let end = other.lock_range(b"keys", all, RangeKind::Gap, Wait::Never);
    assert_eq!(end, Err(Error::Waiting));
    assert_eq!(other.unlock_range(b"keys", all, RangeKind::Gap), Err(Error::Waiting));
    assert_eq!(other.cancel(), Ok(true));
    drop((again, other));
    left::nothing_in(&session);
}

#[test]
fn a_count_ends_with_an_error() {
    let manager = latchwork_check::early::private(shared::modes()).unwrap();
    let session = manager.session().unwrap();
    let owner = session.owner().unwrap();
    for mode in [S, X] {
        for _ in 0..65_535 {
            owner.lock(b"x", mode).unwrap();
        }
        assert_eq!(owner.lock(b"x", mode), Err(Error::Count));
        assert_eq!(owner.holds(b"x"), Ok(Some((mode, 65_535))));
        for _ in 0..65_535 {
            owner.unlock(b"x").unwrap();
        }
        assert_eq!(owner.unlock(b"x"), Err(Error::NotHeld));
    }
    drop(owner);
    left::nothing_in(&session);
}

#[test]
fn a_limit_is_named() {
    let region = Region::<Native>::private(&latchwork_region::Options::default()).unwrap();
    let options = Options { owner_locks: Some(3), ..latchwork_check::early::early() };
    let manager = Manager::new(region, shared::modes(), options).unwrap();
    let session = manager.session().unwrap();
    let (owner, other) = (session.owner().unwrap(), session.owner().unwrap());
    for name in [b"a", b"b", b"c"] {
        owner.lock(name, X).unwrap();
    }
    assert_eq!(owner.lock(b"d", X), Err(Error::Cap("locks of an owner", 3)));
    // The owner may lock held names again; other owners are not limited by its locks.
    owner.lock(b"a", X).unwrap();
    other.lock(b"d", X).unwrap();
    owner.release_object(b"a").unwrap();
    assert_eq!(owner.try_lock(b"e", X), Ok(()));
    drop((owner, other));
    left::nothing_in(&session);
}

#[test]
fn invalid_sets_of_modes_are_refused() {
    // A number beyond every set of modes is no mode.
    for modes in [granular::modes(), shared::modes(), berkeley::modes(), postgres::modes()] {
        assert!((0..=u8::MAX).all(|number| !modes.has(Mode::new(number))));
    }
    let names: [&'static str; 17] = ["m"; 17];
    let spec = |n: usize, conflicts: &'static [u8]| ModesSpec {
        names: Box::leak(Box::new(names[..n].to_vec())),
        conflicts,
        convert: None,
        weak: 0,
        writes: 0,
    };
    let fails = |spec: &ModesSpec<'_>, error: ModesError| {
        assert_eq!(Modes::new(spec).err(), Some(error), "{error}");
        assert!(!error.to_string().is_empty());
    };
    fails(&spec(0, &[]), ModesError::Count(0));
    fails(&spec(17, &[0; 289]), ModesError::Count(17));
    // Not total: one entry missing, one too many.
    fails(&spec(2, &[0, 1, 1]), ModesError::NotTotal("conflict", 4, 3));
    fails(&spec(2, &[0, 1, 1, 1, 1]), ModesError::NotTotal("conflict", 4, 5));
    let two = || spec(2, &[0, 1, 1, 1]);
    fails(
        &ModesSpec { convert: Some(&[0, 1, 1]), ..two() },
        ModesError::NotTotal("conversion", 4, 3),
    );
    fails(&ModesSpec { weak: 4, ..two() }, ModesError::Mask(4));
    fails(&ModesSpec { writes: 8, ..two() }, ModesError::Mask(8));
    fails(&ModesSpec { weak: 2, ..two() }, ModesError::WeakConflict(Mode::new(1), Mode::new(1)));
    let unknown = ModesSpec { convert: Some(&[0, 1, 1, 2]), ..two() };
    fails(&unknown, ModesError::NoSuchMode(Mode::new(1), Mode::new(1)));
    let weaker = ModesSpec { convert: Some(&[0, 0, 1, 1]), ..two() };
    fails(&weaker, ModesError::TooWeak(Mode::new(0), Mode::new(1)));
    // Two modes that do not cover each other and that no mode covers.
    fails(&spec(2, &[1, 0, 0, 1]), ModesError::NoJoin(Mode::new(0), Mode::new(1)));
    // Two weak modes that are compatible, but not compatible with their join.
    let alone = ModesSpec {
        names: &["R", "A", "X"],
        conflicts: &[0, 0, 1, 0, 0, 1, 1, 1, 1],
        convert: Some(&[0, 2, 2, 2, 1, 2, 2, 2, 2]),
        weak: 3,
        writes: 0,
    };
    fails(&alone, ModesError::WeakConvert(Mode::new(0), Mode::new(1)));
    assert_eq!(shared::modes().with_weak(1 << 5).err(), Some(ModesError::Mask(1 << 5)));
    let both = shared::modes().with_weak(3).err();
    assert!(matches!(both, Some(ModesError::WeakConflict(_, _))), "{both:?}");
}

#[test]
fn foreign_regions_are_refused() {
    let path = std::env::temp_dir().join(format!("lockmgr-misuse-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let options = latchwork_region::Options { limit: 1 << 26, ..Default::default() };
    let region = Region::<Shared>::create(&path, &options).unwrap();
    // The region has no manager yet.
    let view = Region::<Shared>::view(&path, &options).unwrap();
    assert!(View::new(view.clone()).unwrap().is_none());
    // A read-only view cannot create one.
    let end = Manager::new(view, shared::modes(), latchwork_check::early::early()).err();
    assert_eq!(end, Some(Error::Region(latchwork_region::Error::View)));
    let manager =
        Manager::new(region.clone(), shared::modes(), latchwork_check::early::early()).unwrap();
    let other_weak = shared::modes().with_weak(0).unwrap();
    for modes in [granular::modes(), berkeley::modes(), postgres::modes(), other_weak] {
        let again = Region::<Shared>::open(&path, &options).unwrap();
        let end = Manager::new(again, modes, latchwork_check::early::early()).err();
        assert_eq!(end, Some(Error::Foreign));
    }
    let view = View::new(Region::<Shared>::view(&path, &options).unwrap()).unwrap().unwrap();
    assert!(view.has(&shared::modes()) && !view.has(&granular::modes()));
    left::nothing(&manager);
    // This root has the number of blocks of partitions, a power of two.
    let blocks = region.root(11).unwrap();
    assert!([2, 4].contains(&blocks.load(Relaxed)));
    blocks.store(5, Relaxed);
    let again = Manager::new(region.clone(), shared::modes(), latchwork_check::early::early());
    assert_eq!(again.err(), Some(Error::Foreign));
    let _ = std::fs::remove_file(&path);
    // A file that is no region is refused before a manager is opened.
    std::fs::write(&path, [7; 100_000]).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let end = Region::<Shared>::open(&path, &options).err();
    assert_eq!(end, Some(latchwork_region::Error::Foreign));
    let _ = std::fs::remove_file(&path);
}

#[test]
fn errors_read_as_sentences() {
    let errors = [
        (Error::Mode(Mode::new(9)), "mode 9 is not"),
        (Error::Mode(granular::SIX), "mode SIX, of the preset granular, is not"),
        (Error::Name(0), "0 bytes"),
        (Error::Keyspace(300), "300 bytes"),
        (Error::Key(3000), "3000 bytes"),
        (Error::EmptyRange, "no key"),
        (Error::NotHeld, "not held"),
        (Error::Waiting, "waits already"),
        (Error::Cap("locks of an owner", 3), "at most 3 locks of an owner"),
        (Error::Count, "65,535"),
        (Error::Foreign, "other modes"),
        (Error::Modes(ModesError::Count(0)), "modes: "),
        (Error::Region(latchwork_region::Error::ReadOnly), "region: the filesystem is read-only"),
    ];
    for (error, words) in errors {
        assert!(error.to_string().contains(words), "{error}");
    }
}
