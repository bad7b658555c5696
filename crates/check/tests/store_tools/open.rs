//! Opening folders as stores.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use latchwork_check::forked::in_child;
use latchwork_store::{Error, Options, Refusal, Store, discard_shared_memory, restore, upgrade};

use crate::left::{LATE, killed};
use crate::stage::{
    ACCOUNTS, COUNT, EACH, Place, ROWS, all, copy, fill, open, options, sum, transfer, why,
};

#[test]
fn a_store_keeps_the_sizes_of_its_pages_and_segments() {
    let place = Place::new("page");
    let mut small = options();
    small.sizes.page = 4096;
    let store = Store::open_with(place.at("one"), &small).unwrap();
    fill(&store, 300);
    let records = all(&store);
    // Other processes that open it, now or later, need not know the size.
    let other = Store::open_with(place.at("one"), &options()).unwrap();
    assert_eq!(all(&other), records);
    drop((store, other));
    let store = Store::open_with(place.at("one"), &Options::default()).unwrap();
    assert_eq!(all(&store), records);
    let (_, summary) = store.dump(Vec::new(), None, &mut |_| {}).unwrap();
    assert_eq!(summary.page, 4096);
}

pub(crate) fn refused(path: impl AsRef<Path>) -> Refusal {
    why(Store::open_with(path, &options()).map(drop).unwrap_err())
}

/// An open waits for a process that opens or closes the store, within its time limit; the error
/// names the process.
#[test]
fn opening_has_a_deadline() {
    let place = Place::new("deadline");
    drop(open(place.at("one")));
    let opening = fs::File::open(place.at("one/opening")).unwrap();
    opening.lock().unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(20)] {
        let options = Options { wait: Some(wait), ..options() };
        let refused = why(Store::open_with(place.at("one"), &options).map(drop).unwrap_err());
        let Refusal::BeingOpened { process } = &refused else { panic!("{refused}") };
        // Not all file systems report the process.
        assert!(process.is_none_or(|process| process == std::process::id()), "{refused}");
        assert!(refused.to_string().contains("opens or closes it"), "{refused}");
    }
    thread::scope(|scope| {
        let long = Options { wait: Some(Duration::from_secs(600)), ..options() };
        let waits = scope.spawn(move || Store::open_with(place.at("one"), &long).map(drop));
        thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        opening.unlock().unwrap();
        waits.join().unwrap().unwrap();
    });
}

/// Closing the last handle of the last process removes the memory. If that fails, `close` returns
/// the error and nothing is lost.
#[test]
fn close_reports_errors_and_whether_it_was_the_last() {
    let place = Place::new("close");
    let (path, is_left) = (place.at("one"), || place.at("one/region").exists());
    let (store, other) = (open(path.clone()), open(path.clone()));
    fill(&store, 300);
    let (clone, transaction) = (store.clone(), store.begin().unwrap());
    assert_eq!(store.close(), Ok(false));
    assert_eq!(clone.close(), Ok(false));
    drop(transaction);
    assert!(is_left());
    assert_eq!(other.close(), Ok(true));
    assert!(!is_left());
    // A `region` file of another store.
    let store = open(path.clone());
    let records = all(&store);
    let told = fs::read_to_string(path.join("region")).unwrap();
    let number = told.lines().nth(3).unwrap();
    fs::write(path.join("region"), told.replace(number, &"0".repeat(32))).unwrap();
    let why = store.close().unwrap_err();
    assert!(
        matches!(why, Error::Open { why: Refusal::Damaged { file: "region", .. }, .. }),
        "{why}"
    );
    assert!(why.is_damage());
    fs::write(path.join("region"), told).unwrap();
    let store = open(path.clone());
    assert_eq!(all(&store), records);
    fs::rename(path.join("opening"), path.join("closing")).unwrap();
    assert!(matches!(store.close(), Err(Error::Open { .. })));
    fs::rename(path.join("closing"), path.join("opening")).unwrap();
    let store = open(path.clone());
    assert_eq!(all(&store), records);
    assert_eq!(store.close(), Ok(true));
    assert!(!is_left());
}

/// A symbolic link to a store, or to a parent folder, is another name of the same store.
#[test]
fn a_store_has_one_name() {
    let place = Place::new("link");
    std::os::unix::fs::symlink(&place.path, place.at("link")).unwrap();
    let one = open(place.at("one"));
    fill(&one, 200);
    let other = open(place.at("link/one"));
    std::os::unix::fs::symlink("gone", place.at("dead")).unwrap();
    assert_eq!(refused(place.at("dead")), Refusal::DeadLink);
    assert_eq!(all(&other), all(&one));
    for round in 0..100 {
        transfer(if round % 2 == 0 { &one } else { &other }, round % COUNT, (round + 5) % COUNT);
    }
    assert_eq!((sum(&one), sum(&other)), (COUNT as i64 * EACH, COUNT as i64 * EACH));
    drop((one, other));
    assert_eq!(sum(&open(place.at("one"))), COUNT as i64 * EACH);
}

#[test]
fn folders_without_a_store_are_refused() {
    let place = Place::new("foreign");
    fs::write(place.at("file"), "a diary").unwrap();
    assert_eq!(refused(place.at("file")), Refusal::NotAFolder);
    assert_eq!(refused(place.at("file/below")), Refusal::NotAFolder);
    fs::create_dir(place.at("full")).unwrap();
    fs::write(place.at("full/diary"), "kept").unwrap();
    assert_eq!(refused(place.at("full")), Refusal::NotEmpty { name: "diary".into() });
    assert_eq!(fs::read_dir(place.at("full")).unwrap().count(), 1, "a file was created there");
    let mut only = options();
    only.create = false;
    let none = Store::open_with(place.at("none"), &only).map(drop).unwrap_err();
    assert_eq!(why(none), Refusal::NoStore);
    assert!(!place.at("none").exists());
    // An identity file of another program, of a newer version, and a truncated one.
    drop(open(place.at("one")));
    let identity = fs::read_to_string(place.at("one/identity")).unwrap();
    let with = |text: &str| {
        fs::write(place.at("one/identity"), text).unwrap();
        refused(place.at("one"))
    };
    assert!(matches!(with("another program's\n"), Refusal::Damaged { file: "identity", .. }));
    assert!(matches!(with(""), Refusal::Damaged { file: "identity", .. }));
    let newer = identity.replace("format 7", "format 8").replace("program ", "program 9.");
    let Refusal::Newer { format: 8, program: Some(program) } = with(&newer) else { panic!() };
    assert!(program.starts_with("9."), "{program}");
    assert_eq!(with(&identity.replace("format 7", "format 5")), Refusal::Older { format: 5 });
    for length in [10, 30, 60] {
        let cut = with(&identity[..length]);
        assert!(matches!(cut, Refusal::Damaged { file: "identity", .. }), "{length}: {cut:?}");
    }
    fs::write(place.at("one/identity"), identity).unwrap();
    open(place.at("one")).verify().unwrap();
}

/// A folder `memory` in a store that is no shared memory belongs to the user.
#[test]
fn a_users_folder_is_not_treated_as_memory() {
    let place = Place::new("theirs");
    drop(open(place.at("one")));
    fs::create_dir(place.at("one/memory")).unwrap();
    drop(open(place.at("one")));
    fs::create_dir(place.at("one/memory")).unwrap();
    fs::write(place.at("one/memory/notes"), "kept").unwrap();
    let theirs = |name: &str| Refusal::NotMemory { name: name.into() };
    assert_eq!(refused(place.at("one")), theirs("notes"));
    assert_eq!(fs::read(place.at("one/memory/notes")).unwrap(), b"kept");
    fs::remove_dir_all(place.at("one/memory")).unwrap();
    fs::write(place.at("one/memory"), "a file").unwrap();
    assert_eq!(refused(place.at("one")), theirs("memory"));
    fs::remove_file(place.at("one/memory")).unwrap();
    drop(open(place.at("one")));
    // A link to a folder that may be memory, and names similar to those of memory files.
    fs::create_dir(place.at("aside")).unwrap();
    fs::write(place.at("aside/region"), "kept").unwrap();
    std::os::unix::fs::symlink(place.at("aside"), place.at("one/memory")).unwrap();
    assert_eq!(refused(place.at("one")), theirs("memory"));
    assert_eq!(fs::read(place.at("aside/region")).unwrap(), b"kept");
    fs::remove_file(place.at("one/memory")).unwrap();
    for name in ["0123456789abcdef0123456789abcdef.jpg", "store.0123", "region.tar"] {
        fs::create_dir(place.at("one/memory")).unwrap();
        fs::write(place.at("one/memory").join(name), "kept").unwrap();
        assert_eq!(refused(place.at("one")), theirs(name));
        fs::remove_dir_all(place.at("one/memory")).unwrap();
    }
    for name in ["0123456789abcdef0123456789abcdef.pool-desc", "region.0123456789abcdef"] {
        fs::create_dir(place.at("one/memory")).unwrap();
        fs::write(place.at("one/memory").join(name), "left").unwrap();
        drop(open(place.at("one")));
        assert!(!place.at("one/memory").exists(), "part of the memory is left");
    }
}

/// No call blocks on a pipe without a writer.
#[test]
fn pipes_in_place_of_files_are_an_error() {
    let place = Place::new("pipes");
    drop(open(place.at("one")));
    let make = |name: &str| {
        let path = std::ffi::CString::new(place.at(name).to_str().unwrap()).unwrap();
        // SAFETY: a path that ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    };
    for name in ["identity", "region"] {
        let (path, aside) = (place.at("one").join(name), place.at("aside"));
        let was_there = fs::rename(&path, &aside).is_ok();
        make(&format!("one/{name}"));
        let mut told = vec![refused(place.at("one")).to_string()];
        let restored = restore(place.at("one"), place.at("two"), &mut |_| {});
        told.push(why(restored.unwrap_err()).to_string());
        // Discarding reads the file that names the memory.
        told.extend(
            discard_shared_memory(place.at("one")).err().map(|error| why(error).to_string()),
        );
        assert!(told.iter().all(|text| text.contains(name)), "{told:?}");
        let _ = fs::remove_file(&path);
        if was_there {
            fs::rename(&aside, &path).unwrap();
        }
        drop(open(place.at("one")));
    }
    fs::create_dir(place.at("two.new")).unwrap();
    make("two.new/being-made");
    let refused = restore(place.at("one"), place.at("two"), &mut |_| {}).unwrap_err();
    assert_eq!(why(refused), Refusal::Taken);
}

/// A process may have one store for each of many tenants.
#[test]
fn many_stores_are_open_at_once() {
    let place = Place::new("tenants");
    let stores: Vec<_> = (0..40).map(|n| open(place.at(&format!("of {n}")))).collect();
    for (n, store) in stores.iter().enumerate() {
        store.put(&LATE, 1, n as u64).unwrap();
    }
    for (n, store) in stores.iter().enumerate() {
        assert_eq!(store.get(&LATE, 1).unwrap(), Some(n as u64));
    }
}

/// A process with an open store writes into the folder that it opened, whatever has the path in the
/// meantime, and closes that folder.
#[test]
fn an_open_folder_may_be_moved() {
    let place = Place::new("moved");
    let mut small = options();
    (small.sizes.log_segment, small.sizes.log_buffer) = (1 << 20, 1 << 20);
    (small.sizes.log_budget, small.sizes.history) = (1 << 20, 2 << 20);
    let old = Store::open_with(place.at("one"), &small).unwrap();
    old.put(&ROWS, 0, b"old").unwrap();
    fs::rename(place.at("one"), place.at("two")).unwrap();
    let new = Store::open_with(place.at("one"), &small).unwrap();
    // Segments are created and removed, and checkpoints are made.
    for row in 1..6000 {
        old.put(&ROWS, row, &[1; 1000]).unwrap();
        if row % 3 == 0 {
            new.put(&ROWS, row, b"new").unwrap();
        }
    }
    old.checkpoint().unwrap();
    assert_eq!(new.read(|tx| tx.count(&ROWS, ..)), Ok(1999));
    for drops in [old, new] {
        drop(drops);
        // A closed store leaves no memory: it opens at its new path.
        let two = Store::open_with(place.at("two"), &small).unwrap();
        assert_eq!(two.read(|tx| tx.count(&ROWS, ..)), Ok(6000));
        two.verify().unwrap();
    }
    let one = Store::open_with(place.at("one"), &small).unwrap();
    assert_eq!(one.read(|tx| tx.count(&ROWS, ..)), Ok(1999));
    one.verify().unwrap();
}

#[test]
fn a_nested_store_is_not_treated_as_memory() {
    let place = Place::new("inner");
    open(place.at("one")).put(&ROWS, 1, b"outer").unwrap();
    open(place.at("one/memory")).put(&ROWS, 1, b"inner").unwrap();
    assert!(matches!(refused(place.at("one")), Refusal::NotMemory { .. }));
    assert_eq!(open(place.at("one/memory")).get(&ROWS, 1), Ok(Some(b"inner".to_vec())));
    fs::rename(place.at("one/memory"), place.at("two")).unwrap();
    // Killed while it removed its memory, a process may leave any of its files.
    fs::create_dir(place.at("one/memory")).unwrap();
    fs::write(place.at("one/memory/region"), "rest").unwrap();
    assert_eq!(open(place.at("one")).get(&ROWS, 1), Ok(Some(b"outer".to_vec())));
    assert!(!place.at("one/memory").exists());
}

#[test]
fn impossible_paths_are_refused_before_anything_is_created() {
    use std::os::unix::ffi::OsStrExt;

    let place = Place::new("paths");
    let other = std::ffi::OsStr::from_bytes(b"\xff");
    let long = "d".repeat(230);
    for name in ["a\nb".as_ref(), "c\r".as_ref(), other, long.as_ref()] {
        let path = place.path.join(name);
        assert_eq!(refused(path.clone()), Refusal::Path, "{}", path.display());
        assert!(!path.exists());
    }
}

/// Memory of killed processes belongs to the folder that they had open. A copy by `cp` has other
/// files, and a moved folder has another path.
#[test]
fn a_copied_folder_does_not_join_the_originals_memory() {
    let place = Place::new("copied");
    killed(&place);
    copy(&place.at("one"), &place.at("two"));
    let one = fs::canonicalize(place.at("one")).unwrap();
    assert_eq!(refused(place.at("two")), Refusal::Elsewhere { path: one.clone() });
    fs::rename(place.at("one"), place.at("three")).unwrap();
    assert_eq!(refused(place.at("three")), Refusal::Elsewhere { path: one });
    let left = restore(place.at("three"), place.at("four"), &mut |_| {}).unwrap_err();
    assert!(matches!(why(left), Refusal::Elsewhere { .. }));
    fs::rename(place.at("three"), place.at("one")).unwrap();
    let left = restore(place.at("one"), place.at("four"), &mut |_| {}).unwrap_err();
    assert_eq!(why(left), Refusal::LeftOpen);
    let store = open(place.at("one"));
    let there = store.read(|tx| tx.get(&ROWS, 77_777)).unwrap();
    assert_eq!(there.as_deref(), Some(&b"not on the disk"[..]), "the memory was not joined");
    // A copy of a closed store is a separate store, even while the original is open.
    drop(store);
    copy(&place.at("one"), &place.at("five"));
    let (store, other) = (open(place.at("one")), open(place.at("five")));
    store.write(|tx| tx.put(&ACCOUNTS, 50, 1)).unwrap();
    other.write(|tx| tx.put(&ACCOUNTS, 50, 2)).unwrap();
    assert_eq!(store.read(|tx| tx.get(&ACCOUNTS, 50)).unwrap(), Some(1));
    drop(store);
    assert_eq!(other.read(|tx| tx.get(&ACCOUNTS, 50)).unwrap(), Some(2));
}

#[test]
fn activity_is_counted() {
    let place = Place::new("activity");
    let store = open(place.at("one"));
    fill(&store, 100);
    let before = store.activity().unwrap();
    (0..10).for_each(|_| transfer(&store, 1, 2));
    let after = store.activity().unwrap();
    assert_eq!(after.commits, before.commits + 10);
    assert!(after.end > before.end && after.flushed == after.end, "{after:?}");
    assert_eq!((after.snapshots, after.writing, &after.pins[..]), (0, 0, &[][..]));
    store
        .read(|_| {
            std::thread::scope(|scope| {
                let look = || {
                    let held = store.write(|tx| {
                        tx.put(&ACCOUNTS, 1, 1)?;
                        store.activity()
                    });
                    let held = held.unwrap();
                    assert_eq!((held.snapshots, held.writing), (1, 1), "{held:?}");
                    assert!(held.oldest_snapshot.is_some() && held.oldest_write >= Some(after.end));
                    assert!(held.locks >= 1 && held.transactions >= 1, "{held:?}");
                };
                scope.spawn(look).join().unwrap();
            });
            Ok(())
        })
        .unwrap();
    store
        .backup(place.at("copy"), &mut |_| {
            assert_eq!(store.activity().unwrap().pins[0].0, "backup");
        })
        .unwrap();
    assert_eq!(store.activity().unwrap().pins, []);
}

/// A thread keeps no resources of a store after the store is closed.
#[test]
fn threads_outlive_stores() {
    let place = Place::new("longer");
    let (give, take) = mpsc::channel::<Store>();
    let (done, wait) = mpsc::channel();
    let other = thread::spawn(move || {
        for store in take {
            store.put(&ROWS, 1, b"other").unwrap();
            drop((store.snapshot().unwrap(), store));
            done.send(()).unwrap();
        }
    });
    let mappings = || fs::read_to_string("/proc/self/maps").unwrap().matches("longer").count();
    for round in 0..40 {
        let mut beside = options();
        beside.place = latchwork_store::MemoryPlace::Folder;
        let store = Store::open_with(place.at("one"), &beside).unwrap();
        store.put(&ROWS, 2, b"this").unwrap();
        give.send(store.clone()).unwrap();
        wait.recv().unwrap();
        drop(store);
        assert_eq!(mappings(), 0, "round {round}");
        assert!(!place.at("one/region").exists(), "the store was not closed");
    }
    drop(give);
    other.join().unwrap();
}

/// The child of a fork inherits its parent's files, but keeps no lock on them.
#[test]
fn children_keep_no_store_locked() {
    let place = Place::new("children");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let forks = scope.spawn(|| {
            let mut children = Vec::new();
            while !stop.load(Relaxed) && children.len() < 500 {
                // SAFETY: the child only calls functions that are allowed after a fork.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: as above.
                    unsafe { libc::sleep(60) };
                    // SAFETY: as above.
                    unsafe { libc::_exit(0) };
                }
                children.push(child);
                thread::sleep(Duration::from_millis(2));
            }
            children
        });
        let begun = Instant::now();
        for _ in 0..30 {
            drop(open(place.at("one")));
        }
        let took = begun.elapsed();
        stop.store(true, Relaxed);
        for child in forks.join().unwrap() {
            // SAFETY: a child process that has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: it takes no pointer but null.
            unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
        }
        assert!(took < Duration::from_secs(50), "{took:?}");
    });
}

/// The child of a fork that outlives its parent does not keep the store open.
#[test]
fn children_of_dead_processes_keep_no_store_open() {
    let place = Place::new("orphan");
    let mut ends = [0; 2];
    // SAFETY: an array for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let status = in_child(|| {
        let store = open(place.at("one"));
        fill(&store, 10);
        // SAFETY: the child only calls functions that are allowed after a fork.
        if unsafe { libc::fork() } == 0 {
            let mut byte = 0u8;
            // SAFETY: as above.
            unsafe { libc::close(ends[1]) };
            // SAFETY: as above; it returns when no process can write to the pipe.
            unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) };
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        std::mem::forget(store);
    });
    assert_eq!(status, 0);
    // The grandchild releases the files when it first runs, which may be later.
    let begun = Instant::now();
    let forgotten = loop {
        match discard_shared_memory(place.at("one")) {
            Err(Error::Open { why: Refusal::InUse, .. }) if begun.elapsed().as_secs() < 20 => {
                thread::sleep(Duration::from_millis(1));
            }
            forgotten => break forgotten.unwrap(),
        }
    };
    assert!(forgotten > 0);
    assert_eq!(sum(&open(place.at("one"))), COUNT as i64 * EACH);
    for end in ends {
        // SAFETY: opened above, and no longer used.
        unsafe { libc::close(end) };
    }
}

/// A process that opens a store as often as it can.
#[test]
fn hoarder() {
    let Some(place) = Place::told() else { return };
    let mut handles = vec![open(place.at("one"))];
    let told = loop {
        match Store::open_with(place.at("one"), &options()) {
            Ok(handle) => handles.push(handle),
            Err(told) => break told,
        }
    };
    assert!(handles.len() > 60 && told.to_string().contains("all it can"), "{told}");
    handles.truncate(60);
    drop(open(place.at("one")));
}

/// The error says that this process has too many handles and does not advise discarding the memory.
/// Runs in its own process, because no other test could open a store at the same time.
#[test]
fn too_many_handles_of_a_process_affect_no_other() {
    let place = Place::new("handles");
    assert!(place.start("open::hoarder").wait().unwrap().success());
}

#[test]
fn invalid_options_leave_no_folder() {
    let place = Place::new("senseless");
    let with = |change: fn(&mut Options)| {
        let mut options = options();
        change(&mut options);
        let refused = Store::open_with(place.at("one"), &options).map(drop);
        assert!(matches!(refused, Err(Error::Options(_))), "{refused:?}");
        assert!(!place.at("one").exists());
    };
    with(|options| options.sizes.threads = 1);
    with(|options| options.sizes.threads = 16_001);
    with(|options| options.sizes.log_segment = 1 << 50);
    with(|options| options.sizes.cache = u64::MAX);
    let mut least = options();
    least.sizes.threads = 2;
    fill(&Store::open_with(place.at("one"), &least).unwrap(), 10);
}

/// Slots that a process holds through another `open` of the store count as its own.
#[test]
fn all_opens_of_a_process_share_one_store() {
    let place = Place::new("opens");
    let mut few = options();
    few.sizes.threads = 8;
    let stores = [0, 1].map(|_| Store::open_with(place.at("one"), &few).unwrap());
    let mut held = Vec::new();
    let why = (0..)
        .find_map(|number: usize| stores[number % 2].begin().map(|one| held.push(one)).err())
        .unwrap();
    let Error::Threads { limit: 8, here } = why else { panic!("{why}") };
    assert!(here >= held.len() as u32 && held.len() > 4, "{here} of {}", held.len());
}

/// A store of format 5 or 6 is refused with advice, and converted in place by `upgrade`.
#[test]
fn a_store_of_an_older_format_is_upgraded() {
    let place = Place::new("older");
    let store = open(place.at("one"));
    fill(&store, 100);
    let records = all(&store);
    let identity = fs::read_to_string(place.at("one/identity")).unwrap();
    let why_not = |path: &Path| why(upgrade(path).unwrap_err());
    assert_eq!(why_not(&place.at("one")), Refusal::InUse);
    drop(store);
    for format in [5, 6] {
        let of = format!("format {format}");
        let old: String = identity
            .lines()
            .filter(|line| !line.starts_with("program"))
            .fold(String::new(), |text, line| text + &line.replace("format 7", &of) + "\n");
        fs::write(place.at("one/identity"), old).unwrap();
        let older = refused(place.at("one"));
        assert_eq!(older, Refusal::Older { format });
        assert!(older.to_string().contains("latchwork store upgrade"), "{older}");
        let done = upgrade(place.at("one")).unwrap();
        assert_eq!((done.from, done.to), (format, 7));
        assert!(all(&open(place.at("one"))) == records);
        let again = upgrade(place.at("one")).unwrap();
        assert_eq!((again.from, again.to), (7, 7));
    }
    fs::write(place.at("one/identity"), identity.replace("format 7", "format 3")).unwrap();
    assert_eq!(why_not(&place.at("one")), Refusal::Older { format: 3 });
    assert_eq!(why_not(&place.at("two")), Refusal::NoStore);
}
