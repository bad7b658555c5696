//! Areas: long runs of words outside a region, in memory and in files, and invalid files.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::spawn;

use latchwork_check::folder::Folder;
use latchwork_latch::ShflMutex;
use latchwork_machine::Shared;
use latchwork_region::{Area, AreaOptions, Error, Options, Plain, Region};

const SMALL: AreaOptions = AreaOptions { first: 1 << 16, limit: 1 << 22, huge: false };

/// The file of the only area of a region in this directory.
fn area_of(folder: &Folder) -> PathBuf {
    let mut files = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.extension().is_some()).unwrap()
}

fn options() -> Options {
    Options { processes: 8, threads: 16, waiters: 16, limit: 16 << 20, ..Options::default() }
}

fn open(path: &Path) -> Region<Shared> {
    Region::open_or_create(path, &options()).unwrap()
}

fn area(region: &Region<Shared>) -> Result<Area<Shared>, Error> {
    region.area("frames", &SMALL)
}

#[test]
fn a_private_area_is_one_for_all_clones() {
    let region = Region::private(&options()).unwrap();
    let first = region.area("frames", &SMALL).unwrap();
    let second = region.another().unwrap().area("frames", &SMALL).unwrap();
    assert_eq!((first.words().unwrap(), first.limit()), (1 << 13, 1 << 19));
    first.word(17).unwrap().store(5, Relaxed);
    assert_eq!(second.word(17).unwrap().load(Relaxed), 5);
    let other = region.area("log", &SMALL).unwrap();
    assert_eq!(other.word(17).unwrap().load(Relaxed), 0, "names are apart");
    assert_eq!(first.word(1 << 13).err(), Some(Error::OutOfArea(1 << 13)));
    first.grow((1 << 13) + 1).unwrap();
    assert_eq!(second.words().unwrap(), 1 << 14);
    second.word(1 << 13).unwrap().store(6, Relaxed);
    assert_eq!(first.slice((1 << 13) - 1, 2).unwrap()[1].load(Relaxed), 6);
    assert_eq!(first.grow(1 << 20).err(), Some(Error::Full((1 << 22) + (1 << 16))));
    for at in [1 << 14, u64::MAX, u64::MAX / 8, 1 << 61] {
        assert_eq!(first.word(at).err(), Some(Error::OutOfArea(at)), "{at}");
        assert!(first.slice(8, at).is_err(), "{at}");
    }
}

#[test]
fn a_heap_area_serves_models() {
    let region = Region::<latchwork_machine::Native>::heap(&options()).unwrap();
    let area = region.area("frames", &SMALL).unwrap();
    assert_eq!(area.words().unwrap(), area.limit(), "it is all there from the start");
    area.grow(1 << 14).unwrap();
    area.word(1 << 13).unwrap().store(1, Relaxed);
    assert_eq!(area.word(1 << 19).err(), Some(Error::OutOfArea(1 << 19)));
}

#[test]
fn a_file_is_the_same_area_in_every_opening() {
    let folder = Folder::new("area-same");
    let (one, two) = (open(&folder.at("region")), open(&folder.at("region")));
    let (first, second) = (area(&one).unwrap(), area(&two).unwrap());
    first.word(3).unwrap().store(9, Relaxed);
    assert_eq!(second.word(3).unwrap().load(Relaxed), 9);
    second.grow(1 << 15).unwrap();
    second.word((1 << 15) - 1).unwrap().store(4, Relaxed);
    // The first handle has not mapped what the second one added.
    assert_eq!(first.word((1 << 15) - 1).unwrap().load(Relaxed), 4);
    let larger = AreaOptions { first: 1 << 20, limit: 1 << 30, huge: true };
    assert_eq!(one.area("frames", &larger).unwrap().limit(), 1 << 19, "made once");
    Region::<Shared>::remove(folder.at("region")).unwrap();
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
    assert_eq!(second.word(3).unwrap().load(Relaxed), 9, "an open mapping stays valid");
}

#[test]
fn many_make_and_grow_one_area_at_once() {
    let folder = Folder::new("area-race");
    let path = Arc::new(folder.at("region"));
    drop(open(&path));
    let threads: Vec<_> = (0..6u64)
        .map(|number| {
            let path = path.clone();
            spawn(move || {
                let area = area(&open(&path)).unwrap();
                for step in 1..=64 {
                    area.grow(step << 13).unwrap();
                    area.word((step << 13) - 1 - number).unwrap().store(number + 1, Relaxed);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let area = area(&open(&path)).unwrap();
    for (step, number) in (1..=64u64).flat_map(|s| (0..6).map(move |n| (s, n))) {
        assert_eq!(area.word((step << 13) - 1 - number).unwrap().load(Relaxed), number + 1);
    }
}

#[test]
fn released_words_read_zero_and_serve_again() {
    let folder = Folder::new("area-release");
    let region = open(&folder.at("region"));
    let shared = area(&region).unwrap();
    let private = Region::private(&options()).unwrap();
    let private = private.area("frames", &SMALL).unwrap();
    shared.word(512 + 7).unwrap().store(1, Relaxed);
    shared.word(511).unwrap().store(2, Relaxed);
    private.word(512 + 7).unwrap().store(1, Relaxed);
    shared.release(511, 1025).unwrap();
    private.release(512, 1024).unwrap();
    assert_eq!(shared.word(519).unwrap().load(Relaxed), 0);
    assert_eq!(shared.word(511).unwrap().load(Relaxed), 2, "only whole pages are discarded");
    assert_eq!(private.word(519).unwrap().load(Relaxed), 0);
    shared.reclaim(512, 1024).unwrap();
    shared.word(519).unwrap().store(3, Relaxed);
    assert_eq!(area(&open(&folder.at("region"))).unwrap().word(519).unwrap().load(Relaxed), 3);
}

/// With or without huge pages of the system, stored words remain as an area grows, new words are
/// zero, and other mappings of the file see both.
#[test]
fn words_of_an_area_in_huge_pages_stay() {
    // The memory of the other one is usually a file on disk, which has no huge pages.
    let in_memory = format!("/dev/shm/latchwork-area-huge-{}", std::process::id());
    for folder in [Folder::new("area-huge"), Folder(in_memory.into())] {
        if fs::create_dir_all(&folder.0).is_err() {
            println!("SKIPPED: no folder {}", folder.0.display());
            continue;
        }
        let options = AreaOptions { first: 5 << 20, limit: 32 << 20, huge: true };
        let path = folder.at("region");
        let mine = open(&path).area("frames", &options).unwrap();
        let theirs = open(&path).area("frames", &options).unwrap();
        // From and to the middle of a huge page, within one, by one and by several at once.
        for megabytes in [5, 7, 8, 9, 20, 31] {
            let words = megabytes << 17;
            mine.grow(words).unwrap();
            theirs.grow(words).unwrap();
            for n in (0..words).step_by(1023) {
                let old = theirs.word(n).unwrap().load(Relaxed);
                assert!(old == 0 || old == n + 1, "word {n} is {old}");
                assert!(n >= 5 << 17 || megabytes == 5 || old == n + 1);
                mine.word(n).unwrap().store(n + 1, Relaxed);
                assert_eq!(theirs.word(n).unwrap().load(Relaxed), n + 1);
            }
        }
        assert_eq!(mine.grow(33 << 17), Err(Error::Full((32 << 20) + (1 << 16))));
        let view = Region::view(path, &self::options()).unwrap();
        let seen = view.area("frames", &options).unwrap();
        assert_eq!(seen.word(1023).unwrap().load(Relaxed), 1024);
    }
}

#[test]
fn a_view_reads_an_area_and_cannot_store() {
    let folder = Folder::new("area-view");
    let region = open(&folder.at("region"));
    assert_eq!(
        Region::view(folder.at("region"), &options()).unwrap().area("frames", &SMALL).err(),
        Some(Error::NotFound)
    );
    area(&region).unwrap().word(3).unwrap().store(9, Release);
    let seen = area(&Region::view(folder.at("region"), &options()).unwrap()).unwrap();
    assert_eq!(seen.word(3).unwrap().load(Acquire), 9);
    assert_eq!(seen.grow(1 << 16).err(), Some(Error::View));
    // SAFETY: the child only stores to a word and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // The child of a fork has no areas, so it opens another view.
        let seen = area(&Region::view(folder.at("region"), &options()).unwrap()).unwrap();
        let quiet = libc::SIG_DFL;
        // SAFETY: the default action needs no handler.
        unsafe { libc::signal(libc::SIGSEGV, quiet) };
        seen.word(3).unwrap().store(1, Relaxed);
        // SAFETY: ends the child without running its parent's destructors.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV);
}

#[test]
fn a_fork_has_no_area() {
    let region = Region::private(&options()).unwrap();
    let area = region.area("frames", &SMALL).unwrap();
    // SAFETY: the child reads a word of its own and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = area.word(0).err() == Some(Error::Forked)
            && area.grow(1 << 14).err() == Some(Error::Forked);
        // SAFETY: ends the child without running its parent's destructors.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
}

#[test]
fn files_that_are_no_area_are_refused() {
    let folder = Folder::new("area-refused");
    let region = open(&folder.at("region"));
    drop(area(&region).unwrap());
    let path = area_of(&folder);
    let whole = fs::read(&path).unwrap();
    let patched = |at: usize, bytes: &[u8]| {
        let mut copy = whole.clone();
        copy[at..at + bytes.len()].copy_from_slice(bytes);
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&copy, 0).unwrap();
        area(&region).err()
    };
    let corrupt = |what, at| Some(Error::Corrupt { what, at });
    assert_eq!(patched(0, b"rubbish!"), Some(Error::ForeignArea));
    assert_eq!(patched(16, &[1; 16]), Some(Error::ForeignArea), "another region's");
    assert_eq!(patched(8, &[9]), corrupt("header of an area", 0));
    assert_eq!(patched(32, &[0xff; 8]), corrupt("header of an area", 0));
    assert_eq!(patched(40, b"log"), corrupt("header of an area", 0));
    for length in [0, 1, 1 << 16, (1 << 17) + 1, 1 << 40, u64::MAX] {
        let said = patched(1024, &length.to_ne_bytes());
        assert_eq!(said, corrupt("length of an area", 1024), "{length}");
    }
    let longer = (1u64 << 22) + (1 << 16);
    let found = whole.len() as u64;
    let said = patched(1024, &longer.to_ne_bytes());
    assert_eq!(said, Some(Error::Truncated { needed: longer, found }));
    assert_eq!(patched(0, &[]), None, "whole again");
    for length in [0, 10, 1000, 1500, 100_000] {
        fs::write(&path, &whole).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
        assert!(matches!(area(&region), Err(Error::Truncated { .. })), "{length}");
    }
    for name in ["", "Frames", "a/b", "..", "seventeen-letters"] {
        assert_eq!(region.area(name, &SMALL).err(), Some(Error::Options("name of an area")));
    }
    for (first, limit) in [(0, 1 << 20), (1 << 20, 1 << 16), (1, 1 << 50), (1, u64::MAX)] {
        let odd = AreaOptions { first, limit, huge: false };
        assert!(matches!(region.area("odd", &odd), Err(Error::Options(_))), "{first} {limit}");
    }
}

#[test]
fn latches_in_an_area_wait_in_the_regions_slots() {
    /// A mutex in an area and the data that it guards.
    #[repr(C)]
    struct Guarded(ShflMutex<Shared>, AtomicU64);
    // SAFETY: its words are atomic, and all bytes are valid values.
    unsafe impl Plain for Guarded {}
    fn guarded(area: &Area<Shared>) -> &Guarded {
        // SAFETY: these words are a `Guarded` in every use.
        unsafe { area.resolve(64) }.unwrap()
    }
    let folder = Folder::new("area-latch");
    let path = Arc::new(folder.at("region"));
    drop(area(&open(&path)).unwrap());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let path = path.clone();
            spawn(move || {
                let area = area(&open(&path)).unwrap();
                let guarded = guarded(&area);
                for _ in 0..2_000 {
                    guarded.0.lock();
                    let seen = guarded.1.load(Relaxed);
                    std::thread::yield_now();
                    guarded.1.store(seen + 1, Relaxed);
                    // SAFETY: this thread locked it above.
                    unsafe { guarded.0.unlock() };
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let region = open(&path);
    let area = area(&region).unwrap();
    assert_eq!(guarded(&area).1.load(Relaxed), 8_000);
    assert!(region.waiters() <= 16);
    // SAFETY: it is refused.
    assert_eq!(unsafe { area.resolve::<Aligned>(64) }.err(), Some(Error::OutOfArea(64)));

    /// A value aligned to 4,096 bytes.
    #[repr(C, align(4096))]
    #[derive(Debug)]
    struct Aligned(AtomicU64);
    // SAFETY: an atomic word followed by padding.
    unsafe impl Plain for Aligned {}
}
