//! Copies of stores under load, and stores restored from copies.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use latchwork_check::random::Random;
use latchwork_disk::{Disk, Error as DiskError, Fault, Open, Simulated};
use latchwork_machine::Native;
use latchwork_region::Region;
use latchwork_store::{Error, Mode, Refusal, Sizes, Store, TxnOptions, restore};

use crate::stage::{
    ACCOUNTS, COUNT, EACH, Place, ROWS, all, fill, open, options, sum, transfer, why,
};

/// A finished copy whose creator died before it removed the mark is not mistaken for an unfinished
/// copy of the name next to it.
#[test]
fn a_copy_with_the_name_of_an_unfinished_one_is_not_removed() {
    let place = Place::new("named");
    let store = open(place.at("one"));
    fill(&store, 50);
    store.backup(place.at("copy.new"), &mut |_| {}).unwrap();
    fs::write(place.at("copy.new/being-made"), "copy.new").unwrap();
    let refused = store.backup(place.at("copy"), &mut |_| {}).unwrap_err();
    assert_eq!(why(refused), Refusal::Taken);
    restore(place.at("copy.new"), place.at("two"), &mut |_| {}).unwrap();
    // An unfinished copy of a dead process is removed.
    fs::write(place.at("copy.new/being-made"), "copy").unwrap();
    store.backup(place.at("copy"), &mut |_| {}).unwrap();
    assert!(!place.at("copy.new").exists());
    // An opened store is not removed, nor is a store that a user has named like a copy.
    fs::rename(place.at("copy"), place.at("other.new")).unwrap();
    fs::write(place.at("other.new/being-made"), "other").unwrap();
    drop(open(place.at("other.new")));
    let taken = || why(store.backup(place.at("other"), &mut |_| {}).unwrap_err());
    assert_eq!(taken(), Refusal::Taken);
    fs::remove_dir_all(place.at("other.new")).unwrap();
    fs::create_dir(place.at("other.new")).unwrap();
    fs::write(place.at("other.new/notes"), "kept").unwrap();
    for says in ["my own", ""] {
        fs::write(place.at("other.new/being-made"), says).unwrap();
        assert_eq!(taken(), Refusal::Taken);
    }
    assert_eq!(fs::read(place.at("other.new/notes")).unwrap(), b"kept");
}

/// Several processes create copies of one name while an unfinished copy exists: one succeeds and
/// its copy is complete; the others get errors and remove nothing.
#[test]
fn concurrent_copies_of_one_name_do_not_mix() {
    let place = Place::new("crowd");
    let store = open(place.at("one"));
    fill(&store, 300);
    for round in 0..40 {
        let to = place.at("copy");
        if round % 2 == 0 {
            fs::create_dir(place.at("copy.new")).unwrap();
            let is_named = round % 4 == 0;
            fs::write(place.at("copy.new/being-made"), if is_named { "copy" } else { "" }).unwrap();
            if is_named {
                fs::write(place.at("copy.new/data"), "a part").unwrap();
            }
        }
        let (barrier, to, store) = (&Barrier::new(6), &to, &store);
        let made = std::thread::scope(|scope| {
            let copies = [(); 6].map(|()| {
                scope.spawn(move || {
                    barrier.wait();
                    store.backup(to, &mut |_| {})
                })
            });
            copies.map(|copy| copy.join().unwrap())
        });
        for refused in made.iter().filter_map(|made| made.as_ref().err()) {
            let why = why(refused.clone());
            assert!(matches!(why, Refusal::Taken | Refusal::BeingMade), "{round}: {why:?}");
        }
        assert_eq!(made.iter().flatten().count(), 1, "{round}");
        assert!(!place.at("copy.new").exists());
        restore(to, place.at("again"), &mut |_| {}).unwrap();
        ["copy", "again"].iter().for_each(|name| fs::remove_dir_all(place.at(name)).unwrap());
    }
}

#[test]
fn a_copy_is_an_independent_store() {
    let place = Place::new("copy");
    let store = open(place.at("one"));
    fill(&store, 2000);
    let before = all(&store);
    let mut told = 0;
    let copied = store.backup(place.at("copy"), &mut |_| told += 1).unwrap();
    assert!(copied.pages > 50 && copied.end > 0 && told > 1, "{copied:?}");
    store.write(|tx| tx.remove_range(&ROWS, ..)).unwrap();
    // The copy stays unchanged when stores are restored from it.
    for name in ["two", "three"] {
        restore(place.at("copy"), place.at(name), &mut |_| {}).unwrap();
        let again = open(place.at(name));
        assert_eq!(all(&again), before);
        again.verify().unwrap();
        transfer(&again, 1, 2);
    }
    // It can be opened itself, while the original and other copies are open.
    let itself = open(place.at("copy"));
    assert_eq!(all(&itself), before);
    assert_eq!(why(store.backup(place.at("copy"), &mut |_| {}).unwrap_err()), Refusal::Taken);
    let open_one = restore(place.at("copy"), place.at("four"), &mut |_| {}).unwrap_err();
    assert_eq!(why(open_one), Refusal::InUse);
    let none = restore(place.at("nothing"), place.at("four"), &mut |_| {}).unwrap_err();
    assert_eq!(why(none), Refusal::NoStore);
    let taken = restore(place.at("copy"), place.at("two"), &mut |_| {}).unwrap_err();
    assert!(matches!(why(taken), Refusal::Taken | Refusal::InUse));
    assert!(!place.at("four").exists() && !place.at("four.new").exists());
}

/// A copy that was never opened lacks the lock files; reading creates them.
#[test]
fn a_copy_being_read_is_not_opened() {
    let place = Place::new("read");
    let store = open(place.at("one"));
    fill(&store, COUNT);
    store.backup(place.at("copy"), &mut |_| {}).unwrap();
    let (mut options, mut refused) = (crate::stage::options(), 0);
    options.wait = Some(Duration::ZERO);
    restore(place.at("copy"), place.at("two"), &mut |_| {
        let why = Store::open_with(place.at("copy"), &options).map(drop).unwrap_err();
        assert!(matches!(&why, Error::Open { why: Refusal::BeingOpened { .. }, .. }), "{why}");
        refused += 1;
    })
    .unwrap();
    assert!(refused > 0);
    assert_eq!(sum(&open(place.at("copy"))), sum(&open(place.at("two"))));
}

/// Threads write and checkpoints are made during copies: each copy has a correct sum and everything
/// that was acknowledged before it began.
#[test]
fn a_copy_made_during_writes_is_consistent() {
    let place = Place::new("while");
    let mut small = options();
    small.sizes.cache = 1 << 20;
    small.sizes.log_budget = 256 << 10;
    let store = Store::open_with(place.at("one"), &small).unwrap();
    fill(&store, 3000);
    let (over, answered) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 3]);
    std::thread::scope(|scope| {
        for (writer, answered) in (0..).zip(&answered) {
            let (store, over) = (&store, &over);
            scope.spawn(move || {
                let mut random = Random(writer + 1);
                while !over.load(Relaxed) {
                    transfer(store, random.below(COUNT), random.below(COUNT));
                    let next = answered.load(Relaxed) + 1;
                    let (row, length) = (random.below(3000), random.below(900) as usize);
                    let patience = TxnOptions { mode: Some(Mode::None), ..TxnOptions::default() };
                    store
                        .write_with(&patience, |tx| {
                            tx.put(&ROWS, row, &vec![7; length])?;
                            tx.put(&ROWS, 1_000_000 + writer, &next.to_le_bytes())
                        })
                        .unwrap();
                    answered.store(next, Relaxed);
                }
            });
        }
        for round in 0..8 {
            let before = answered.each_ref().map(|answered| answered.load(Relaxed));
            let copy = place.at(&format!("copy-{round}"));
            store.backup(&copy, &mut |_| {}).unwrap();
            let again = place.at(&format!("again-{round}"));
            restore(&copy, &again, &mut |_| {}).unwrap();
            let again = open(again);
            again.verify().unwrap();
            assert_eq!(sum(&again), COUNT as i64 * EACH);
            for (writer, before) in (0..).zip(before) {
                let there = again.read(|tx| tx.get(&ROWS, 1_000_000 + writer)).unwrap();
                let there = there.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()));
                assert!(there >= before, "writer {writer}: {before} acknowledged, {there} present");
            }
        }
        over.store(true, Relaxed);
    });
}

/// A process that is killed while it copies.
#[test]
fn copies_until_it_is_killed() {
    let Some(place) = Place::told() else { return };
    let store = open(place.at("one"));
    let slowly = |_: &_| std::thread::sleep(Duration::from_micros(300));
    for round in 0.. {
        let copy = place.at(&format!("copy-{round}"));
        store.backup(&copy, &mut { slowly }).unwrap();
        restore(&copy, place.at(&format!("again-{round}")), &mut { slowly }).unwrap();
    }
}

#[test]
fn a_killed_copy_is_not_a_store() {
    let place = Place::new("killed");
    let store = open(place.at("one"));
    fill(&store, 3000);
    let records = all(&store);
    let mut random = Random(17);
    let (mut halves, mut whole) = (0, 0);
    for _ in 0..24 {
        let mut child = place.start("backup::copies_until_it_is_killed");
        std::thread::sleep(Duration::from_micros(random.below(250_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        store.sweep().unwrap();
        transfer(&store, 1, 1);
        for entry in fs::read_dir(&place.path).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name == "one" {
                continue;
            }
            let mut only = options();
            only.create = false;
            if name.ends_with(".new") {
                halves += 1;
                // Possibly complete and not yet renamed; otherwise it is no store.
                let is_marked = path.join("being-made").exists();
                let opened = (halves % 2 == 0).then(|| Store::open_with(&path, &only));
                let is_opened = match opened {
                    Some(Ok(store)) => {
                        assert_eq!(all(&store), records);
                        true
                    }
                    Some(Err(error)) => {
                        assert_eq!(why(error), Refusal::NoStore, "{name}");
                        false
                    }
                    None => false,
                };
                // The next copy of this name removes it, unless it is in use.
                let copied = store.backup(path.with_extension(""), &mut |_| {});
                if is_opened || !is_marked && path.join("identity").exists() {
                    assert_eq!(why(copied.unwrap_err()), Refusal::Taken);
                    assert_eq!(all(&open(path.clone())), records, "{name}");
                    fs::remove_dir_all(&path).unwrap();
                } else {
                    copied.unwrap();
                }
            } else {
                whole += 1;
                assert_eq!(all(&open(path.clone())), records, "{name}");
            }
            let _ = fs::remove_dir_all(path.with_extension(""));
            assert!(!path.exists());
        }
    }
    println!("{halves} halves, {whole} whole copies");
    assert!(halves > 0 && whole > 0);
    // No pin of a killed process keeps the log.
    store.sweep().unwrap();
    store.checkpoint().unwrap();
    assert_eq!(all(&store), records);
}

fn flip(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

#[test]
fn a_damaged_page_or_copy_is_an_error() {
    let place = Place::new("damaged");
    let store = open(place.at("one"));
    fill(&store, 1000);
    // A write during the copy, so that the copy has a log.
    let mut once = true;
    let copied = store.backup(place.at("copy"), &mut |_| {
        if core::mem::take(&mut once) {
            std::thread::scope(|scope| _ = scope.spawn(|| transfer(&store, 1, 2)).join());
        }
    });
    assert!(copied.unwrap().log_bytes > 0);
    store.checkpoint().unwrap();
    let length = fs::metadata(place.at("one/data")).unwrap().len();
    flip(&place.at("one/data"), length / 2);
    let refused = store.backup(place.at("other"), &mut |_| {}).unwrap_err();
    assert!(matches!(refused, Error::Pool(_)), "{refused}");
    assert!(!place.at("other").exists() && !place.at("other.new").exists());
    // A copy with a truncated log, or with a wrong page.
    let segment = fs::read_dir(place.at("copy/log")).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<PathBuf> = segment.filter(|path| !path.ends_with("control")).collect();
    segments.sort();
    let log = fs::read(segments.last().unwrap()).unwrap();
    let end = log.iter().rposition(|byte| *byte != 0).unwrap() as u64;
    flip(segments.last().unwrap(), end - 40);
    let refused = restore(place.at("copy"), place.at("two"), &mut |_| {}).unwrap_err();
    assert!(matches!(refused, Error::Log(latchwork_log::Error::LogDamaged { .. })), "{refused}");
    flip(segments.last().unwrap(), end - 40);
    flip(&place.at("copy/data"), length / 2);
    let refused = restore(place.at("copy"), place.at("two"), &mut |_| {}).unwrap_err();
    assert!(matches!(refused, Error::Pool(_) | Error::Tree(_)), "{refused}");
    assert!(!place.at("two").exists() && !place.at("two.new").exists());
}

/// A free page may be torn by a crash while it was freed: a copy has zeros in its place. Used pages
/// before and after it are copied.
#[test]
fn a_free_page_need_not_be_sound() {
    let place = Place::new("free");
    let store = open(place.at("one"));
    fill(&store, 2000);
    store.checkpoint().unwrap();
    let page = 8192;
    let of_a_row = |bytes: &[u8]| bytes.windows(20).any(|some| some == [77; 20]);
    let data = fs::read(place.at("one/data")).unwrap();
    let at = data.chunks_exact(page).rposition(of_a_row).unwrap() * page;
    store.write(|tx| tx.remove_range(&ROWS, ..)).unwrap();
    store.checkpoint().unwrap();
    assert!(store.space().unwrap().free > 20);
    flip(&place.at("one/data"), (at + page / 2) as u64);
    store.backup(place.at("copy"), &mut |_| {}).unwrap();
    let copied = fs::read(place.at("copy/data")).unwrap();
    assert!(copied[at..at + page].iter().all(|byte| *byte == 0), "a free page was copied");
    restore(place.at("copy"), place.at("two"), &mut |_| {}).unwrap();
    let again = open(place.at("two"));
    again.verify().unwrap();
    fill(&again, 2000);
    again.verify().unwrap();
    // The original store has the torn page and reuses it when needed.
    fill(&store, 2000);
    store.verify().unwrap();
    assert_eq!(all(&store), all(&again));
}

fn sizes() -> Sizes {
    Sizes {
        cache: 1 << 20,
        cache_max: 0,
        page: 4096,
        log_buffer: 1 << 20,
        log_segment: 1 << 20,
        log_budget: 128 << 10,
        history: 64 << 20,
        threads: 16,
        locks: 64 << 20,
        mode: Mode::Full,
    }
}

fn life(disk: &Simulated, folder: &str) -> Result<Store<Native>, Error> {
    let options = latchwork_region::Options {
        threads: 16,
        processes: 4,
        waiters: 64,
        limit: 64 << 20,
        ..latchwork_region::Options::default()
    };
    let region = Region::private(&options).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    disk.make_folder(Path::new(folder))?;
    disk.sync_folder(Path::new("/"))?;
    Store::in_region(&region, &disk, Path::new(folder), &sizes())
}

fn some(store: &Store<Native>, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..40 {
        let (row, length) = (random.below(200), random.below(900) as usize);
        store.write(|tx| tx.put(&ROWS, row, &vec![seed as u8; length])).unwrap();
    }
    store.write(|tx| tx.put(&ACCOUNTS, 0, 1)).unwrap();
}

/// At each disk call in turn, the disk is full, a write or sync fails, or the machine stops: the
/// copy is complete or no store, and the original continues.
#[test]
fn a_disk_failure_at_any_call_leaves_no_partial_copy() {
    let copy_on = |from: &Store<Native>, disk: &Simulated| {
        disk.make_folder(Path::new("/copy"))?;
        disk.sync_folder(Path::new("/"))?;
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        from.backup_on(&shared, Path::new("/copy"), &mut |_| {})
    };
    let home = Simulated::new();
    let store = life(&home, "/home").unwrap();
    (1..4).for_each(|seed| some(&store, seed));
    let sound = Simulated::new();
    copy_on(&store, &sound).unwrap();
    let calls = sound.calls().total();
    let expected = all_of(&life(&sound, "/copy").unwrap());
    assert_eq!(expected, all_of(&store));
    let (mut full, mut lost, mut crashed) = (0, 0, 0);
    for (fault, call) in [Fault::NoSpace, Fault::Device, Fault::Dropped, Fault::Crash]
        .into_iter()
        .flat_map(|fault| (0..calls).map(move |call| (fault, call)))
    {
        let disk = Simulated::new();
        disk.plan(call, fault);
        match copy_on(&store, &disk).map_err(|error| match error {
            Error::Log(latchwork_log::Error::Disk(why)) => Error::Disk(why),
            other => other,
        }) {
            Err(Error::Disk(DiskError::NoSpace(_))) => full += 1,
            Err(Error::Disk(DiskError::Device(_))) => lost += 1,
            Err(Error::Disk(DiskError::Crashed(_))) => crashed += 1,
            Err(other) => panic!("{fault:?} at {call}: {other}"),
            Ok(_) => assert_eq!(disk.fired(), 0, "{fault:?} at {call} was not reported"),
        }
        if fault == Fault::Crash {
            disk.restart(call);
        }
        // Without its last file it is no log, so the copy cannot be opened.
        if disk.open(Path::new("/copy/log/control"), Open::READ).is_ok() {
            let there = life(&disk, "/copy").unwrap();
            assert_eq!(all_of(&there), expected, "{fault:?} at {call}");
        }
    }
    println!("of {calls} calls {full} full, {lost} failed, {crashed} crashed");
    assert!(full > 5 && lost > 5 && crashed > 5);
    some(&store, 9);
    store.verify().unwrap();
}

fn all_of(store: &Store<Native>) -> latchwork_check::dump_bytes::Tables {
    let (text, _) = store.dump(Vec::new(), None, &mut |_| {}).unwrap();
    latchwork_check::dump_bytes::read(&text).unwrap().0
}

/// A copy's log begins in the middle of a segment: without its control file it is not a new log.
#[test]
fn a_copy_without_its_control_file_is_refused_unchanged() {
    let place = Place::new("uncontrolled");
    let store = open(place.at("one"));
    fill(&store, 50);
    store.backup(place.at("copy"), &mut |_| {}).unwrap();
    drop(store);
    let (control, kept) = (place.at("copy/log/control"), place.at("control"));
    fs::rename(&control, &kept).unwrap();
    let refused = why(Store::open_with(place.at("copy"), &options()).map(drop).unwrap_err());
    assert!(matches!(refused, Refusal::Damaged { file: "log", .. }), "{refused:?}");
    fs::rename(&kept, &control).unwrap();
    assert_eq!(all(&open(place.at("copy"))), all(&open(place.at("one"))));
}
