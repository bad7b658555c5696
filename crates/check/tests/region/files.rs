//! Files that are not regions or cannot be: each gives its own error.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{sleep, spawn};
use std::time::Duration;

use latchwork_check::cell::{self, image, value};
use latchwork_check::folder::Folder;
use latchwork_check::forked::in_child;
use latchwork_check::refusal::{Call, refuse};
use latchwork_machine::Shared;
use latchwork_region::{Error, Offset, Options, Region, Unforked};

type Words = [AtomicU64; 7];

fn small() -> Options {
    Options { processes: 8, threads: 16, waiters: 16, limit: 16 << 20, ..Options::default() }
}

fn open(path: &Path) -> Option<Error> {
    Region::open(path, &small()).err()
}

fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Overwrites bytes of a file.
fn patch(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

#[test]
fn a_region_is_made_private_and_found_again() {
    let folder = Folder::new("found");
    let path = folder.at("region");
    assert_eq!(open(&path), Some(Error::NotFound));
    let region = Region::create(&path, &small()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(Region::create(&path, &small()).err(), Some(Error::Exists));
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "something was left behind");
    let thread = region.thread().unwrap();
    let cell = thread.alloc::<Words>().unwrap();
    cell[2].store(5, Relaxed);
    region.root(0).unwrap().store(u64::from(cell.publish().raw()), Relaxed);
    let creation = region.creation();
    drop((thread, region));
    // All processes have ended; the bytes remain.
    let region = Region::open_or_create(&path, &small()).unwrap();
    assert_eq!(region.creation(), creation);
    let offset = Offset::<Words>::from_raw(region.root(0).unwrap().load(Relaxed) as u32);
    assert_eq!(value(&region, offset).unwrap()[2].load(Relaxed), 5);
    let other = Region::create(folder.at("other"), &small()).unwrap();
    assert_ne!(other.creation(), creation);
}

#[test]
fn a_view_takes_no_slot_and_changes_nothing() {
    let folder = Folder::new("view");
    let path = folder.at("region");
    let region = Region::create(&path, &small()).unwrap();
    let thread = region.thread().unwrap();
    let offset = thread.alloc::<Words>().unwrap().publish();
    value(&region, offset).unwrap()[0].store(3, Relaxed);
    let view = Region::view(&path, &small()).unwrap();
    assert_eq!(value(&view, offset).unwrap()[0].load(Relaxed), 3);
    value(&region, offset).unwrap()[0].store(4, Relaxed);
    assert_eq!(value(&view, offset).unwrap()[0].load(Relaxed), 3, "a view is of a moment");
    view.refresh().unwrap();
    assert_eq!(value(&view, offset).unwrap()[0].load(Relaxed), 4, "a view sees what is stored");
    value(&view, offset).unwrap()[0].store(99, Relaxed);
    assert_eq!(value(&region, offset).unwrap()[0].load(Relaxed), 4);
    assert_eq!(view.thread().err(), Some(Error::View));
    assert_eq!(view.dead_threads().err(), Some(Error::View));
    assert!(view.processes()[0].alive && view.processes().len() == 1);
    assert_eq!(view.audit().unwrap().used(), 1);
    // Later growth is found without a message.
    let first = region.len();
    let mut last = offset;
    while region.len() == first {
        last = thread.alloc::<Words>().unwrap().publish();
        value(&region, last).unwrap()[1].store(8, Relaxed);
    }
    assert_eq!(value(&view, last).unwrap()[1].load(Relaxed), 8);
    assert_eq!(image(&view).len() as u64, region.len());
    drop((thread, region));
    // The child of another test also has the file open between its fork and its exec.
    let mut waits = 0..10_000;
    while view.processes()[0].alive {
        waits.next().expect("a process still has it open");
        sleep(Duration::from_millis(1));
    }
}

#[test]
fn links_and_other_things_are_refused() {
    let folder = Folder::new("links");
    let path = folder.at("region");
    drop(Region::create(&path, &small()).unwrap());
    symlink(&path, folder.at("symlink")).unwrap();
    assert_eq!(open(&folder.at("symlink")), Some(Error::Symlink));
    symlink(folder.at("nothing"), folder.at("dangling")).unwrap();
    assert_eq!(open(&folder.at("dangling")), Some(Error::Symlink));
    let made = Region::create(folder.at("dangling"), &small()).err();
    assert_eq!(made, Some(Error::Exists), "made a file through a link");
    assert!(!folder.at("nothing").exists());
    fs::hard_link(&path, folder.at("hard")).unwrap();
    assert_eq!(open(&path), Some(Error::HardLinked(2)));
    assert_eq!(open(&folder.at("hard")), Some(Error::HardLinked(2)));
    fs::remove_file(folder.at("hard")).unwrap();
    assert_eq!(open(&path), None);
    assert_eq!(open(&folder.0), Some(Error::NotRegular));
    assert_eq!(open(Path::new("/dev/null")), Some(Error::NotRegular));
    let fifo = folder.at("fifo");
    let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
    // SAFETY: a name that ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert_eq!(open(&fifo), Some(Error::NotRegular));
}

/// Each error is that of a kind of file system without a feature. The system is made to refuse the
/// feature.
#[test]
fn filesystems_without_what_is_needed_are_refused() {
    let mapping = Call { number: libc::SYS_mmap, only: Some((3, libc::MAP_SHARED as u32)) };
    let space = Call { number: libc::SYS_fallocate, only: None };
    // The commands for open file description locks are 36 to 38. No other command used here has
    // this bit.
    let locks = Call { number: libc::SYS_fcntl, only: Some((1, 0x20)) };
    for (call, errno, expected) in [
        (mapping, libc::ENODEV, Error::NoMmap),
        (space, libc::EOPNOTSUPP, Error::NoFallocate),
        (locks, libc::EINVAL, Error::NoLocks),
    ] {
        let folder = Folder::new("lacking");
        let (path, other) = (folder.at("region"), folder.at("other"));
        drop(Region::create(&path, &small()).unwrap());
        let said = spawn(move || {
            refuse(call, errno);
            let opened = Region::<Shared>::open(&path, &small()).err();
            (Region::<Shared>::create(&other, &small()).err(), opened, fs::exists(&other).unwrap())
        });
        // Opening a file needs no more space.
        let opened = (expected != Error::NoFallocate).then_some(expected);
        assert_eq!(said.join().unwrap(), (Some(expected), opened, false));
    }
}

#[test]
fn permissions_for_other_users_are_refused() {
    let folder = Folder::new("mode");
    let path = folder.at("region");
    drop(Region::create(&path, &small()).unwrap());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
    assert_eq!(open(&path), Some(Error::TooOpen(0o622)));
    let wide = Options { mode: 0o666, ..small() };
    assert!(Region::open(&path, &wide).is_ok());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    if !is_root() {
        println!("skipped: only root can give a file away, or be refused by nothing");
        return;
    }
    std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
    assert_eq!(open(&path), Some(Error::ForeignOwner(12345)));
}

#[test]
fn damaged_headers_say_what_is_wrong() {
    let folder = Folder::new("damage");
    let path = folder.at("region");
    let region = Region::create(&path, &small()).unwrap();
    let length = region.len();
    drop(region);
    let whole = fs::read(&path).unwrap();
    let check = |at: u64, bytes: &[u8], expected: Error| {
        patch(&path, at, bytes);
        assert_eq!(open(&path), Some(expected), "after a change at {at}");
        assert_eq!(Region::view(&path, &small()).err(), Some(expected));
        let image = fs::read(&path).unwrap();
        assert_eq!(Region::<Shared>::from_image(&image).err(), Some(expected));
        patch(&path, at, &whole[at as usize..at as usize + bytes.len()]);
        assert_eq!(open(&path), None, "the file is whole again");
    };
    check(0, b"SQLite format 3", Error::Foreign);
    check(0, &[0; 80], Error::Foreign);
    check(8, &4u32.to_ne_bytes(), Error::Version { found: 4, known: 6 });
    check(8, &7u32.to_ne_bytes(), Error::Version { found: 7, known: 6 });
    let other = 0x0102_0304_u32.swap_bytes();
    check(12, &other.to_ne_bytes(), Error::Endian);
    check(12, &7u32.to_ne_bytes(), Error::Corrupt { what: "byte-order mark", at: 12 });
    let sum = Error::Corrupt { what: "checksum of the header", at: 72 };
    check(24, &9u32.to_ne_bytes(), sum);
    check(72, &[1, 2, 3, 4], sum);
    // With a valid checksum, like a forger's.
    let forged = |at: usize, value: &[u8]| {
        let mut fixed = whole[..80].to_vec();
        fixed[at..at + value.len()].copy_from_slice(value);
        let crc = crc32(&fixed[..72]);
        fixed[72..76].copy_from_slice(&crc.to_ne_bytes());
        fixed
    };
    let here = u32::from_ne_bytes(whole[16..20].try_into().unwrap());
    let huge = (here * 4).to_ne_bytes();
    check(0, &forged(16, &huge), Error::PageSize { found: here * 4, here });
    check(0, &forged(24, &[0; 4]), Error::Corrupt { what: "processes", at: 24 });
    check(0, &forged(28, &[255; 4]), Error::Corrupt { what: "threads", at: 28 });
    check(0, &forged(32, &[255; 4]), Error::Corrupt { what: "waiters", at: 32 });
    check(0, &forged(40, &[255; 8]), Error::Corrupt { what: "limit", at: 40 });
    check(0, &forged(68, &[3; 4]), Error::Corrupt { what: "sizes in the header", at: 20 });
    let lies = Error::Corrupt { what: "length of the region", at: 1024 };
    for wrong in [0, 1, length + 1, u64::MAX, 1 << 36] {
        check(1024, &wrong.to_ne_bytes(), lies);
    }
    let more = length + (1 << 20);
    let short = Error::Truncated { needed: more, found: length };
    check(1024, &more.to_ne_bytes(), short);
}

/// The checksum of the header, bit by bit: CRC-32 as in IEEE 802.3.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
    })
}

#[test]
fn truncated_files_are_refused() {
    let folder = Folder::new("short");
    let path = folder.at("region");
    let needed = Region::create(&path, &small()).unwrap().len();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for found in [needed - 1, needed / 2, 4096, 1032] {
        file.set_len(found).unwrap();
        assert_eq!(open(&path), Some(Error::Truncated { needed, found }));
    }
    for found in [1031, 1024, 80, 79, 16, 1, 0] {
        file.set_len(found).unwrap();
        let error = open(&path);
        assert!(
            matches!(error, Some(Error::Truncated { found: f, .. }) if f == found),
            "{error:?}"
        );
    }
}

#[test]
fn a_peer_that_truncates_stops_growth_with_an_error() {
    let folder = Folder::new("peer");
    let path = folder.at("region");
    let (one, two) =
        (Region::create(&path, &small()).unwrap(), Region::open(&path, &small()).unwrap());
    let (first, thread) = (one.len(), one.thread().unwrap());
    let mut last = Offset::<Words>::NULL;
    while one.len() == first {
        last = thread.alloc::<Words>().unwrap().publish();
    }
    let needed = one.len();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(first).unwrap();
    // The handle that has not mapped the new part gets an error. An access would be a signal.
    assert_eq!(value(&two, last).err(), Some(Error::Truncated { needed, found: first }));
    assert_eq!(
        Region::open(&path, &small()).err(),
        Some(Error::Truncated { needed, found: first })
    );
}

#[test]
fn a_full_disk_is_an_error_and_takes_nothing() {
    let folder = Folder::new("full");
    let disk = folder.at("disk");
    fs::create_dir(&disk).unwrap();
    let mount = |options: &str| {
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&disk);
        mount.output().is_ok_and(|output| output.status.success())
    };
    if !is_root() || !mount("size=3m") {
        println!("skipped: no tmpfs can be mounted here, so a full disk is not tested");
        return;
    }
    let path = disk.join("region");
    let region = Region::create(&path, &small()).unwrap();
    let thread = region.thread().unwrap();
    let mut offsets = Vec::new();
    let error = loop {
        match thread.alloc::<Words>() {
            Ok(cell) => offsets.push(cell.publish()),
            Err(error) => break error,
        }
    };
    assert_eq!(Region::create(disk.join("second"), &small()).err(), Some(Error::NoSpace));
    let names = fs::read_dir(&disk).unwrap().count();
    // The region stays usable within its mapped part.
    for offset in offsets.drain(..) {
        value(&region, offset).unwrap()[6].store(1, Relaxed);
        cell::free(&thread, offset).unwrap();
    }
    let cell = thread.alloc::<Words>().map(drop);
    let audit = region.audit().unwrap();
    drop((thread, region));
    let remounted =
        std::process::Command::new("mount").args(["-o", "remount,ro"]).arg(&disk).status();
    let read_only = (Region::create(disk.join("third"), &small()).err(), open(&path));
    let _ = std::process::Command::new("umount").arg(&disk).status();
    assert_eq!(error, Error::NoSpace);
    assert_eq!(names, 1, "a region that could not be made left a file");
    assert_eq!(cell, Ok(()));
    assert!(audit.is_sound() && audit.used() == 0, "{audit:?}");
    assert!(remounted.unwrap().success());
    assert_eq!(read_only, (Some(Error::ReadOnly), Some(Error::ReadOnly)));
}

#[test]
fn places_where_no_file_can_be_created_are_named() {
    // procfs and sysfs: no file can be created there, and their files cannot be mapped.
    let made = Region::create("/proc/latchwork", &small()).err();
    assert!(matches!(made, Some(Error::NotFound | Error::Permission)), "{made:?}");
    let made = Region::create("/nowhere/at/all", &small()).err();
    assert_eq!(made, Some(Error::NotFound));
}

/// A file of the child may have a descriptor number that its parent used.
#[test]
fn the_child_of_a_fork_keeps_its_own_files() {
    let of_parent = Unforked::new(File::open("/dev/null").unwrap()).unwrap();
    let number = of_parent.as_raw_fd();
    let status = in_child(|| {
        let other = File::open("/dev/zero").unwrap();
        // SAFETY: descriptor numbers; the one of this number was closed at the fork.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        // SAFETY: just created, with no other owner.
        let own = Unforked::new(unsafe { File::from_raw_fd(number) }).unwrap();
        // SAFETY: the child does not use it otherwise.
        drop(unsafe { std::ptr::read(&of_parent) });
        let mut byte = [1];
        own.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(byte, [0]);
    });
    assert_eq!(status, 0);
}

#[test]
fn errors_read_as_sentences() {
    let errors = [
        (Error::Symlink, "symbolic link"),
        (Error::HardLinked(2), "2 names"),
        (Error::Version { found: 9, known: 1 }, "version 9"),
        (Error::PageSize { found: 65536, here: 4096 }, "65536"),
        (Error::Truncated { needed: 10, found: 3 }, "3 found"),
        (Error::Corrupt { what: "limit", at: 40 }, "limit, at byte 40"),
        (Error::Forked, "fork"),
    ];
    for (error, word) in errors {
        assert!(error.to_string().contains(word), "{error}");
    }
}
