//! The system's files through the trait `Disk`: each operation, and each error that a test can
//! cause.

use std::os::unix::fs::symlink;
use std::path::Path;

use latchwork_check::folder::Folder;
use latchwork_disk::{ALIGNMENT, Buffer, Disk, Error, Open, Operation, System};

#[test]
fn bytes_come_back_and_calls_are_counted() {
    let (disk, folder) = (System::new(), Folder::new("disk-bytes"));
    let file = disk.open(&folder.at("f"), Open::FRESH).unwrap();
    file.write(10, b"hello").unwrap();
    file.allocate(0, 8192).unwrap();
    file.sync().unwrap();
    file.sync_in_doubt().unwrap();
    assert_eq!(file.length().unwrap(), 8192);
    let mut seen = [1; 7];
    file.read(9, &mut seen).unwrap();
    assert_eq!(&seen, b"\0hello\0");
    file.truncate(12).unwrap();
    let mut seen = [1; 7];
    let Err(Error::ShortRead { subject, wanted: 7, got: 3 }) = file.read(9, &mut seen) else {
        panic!("a read beyond the end should be short");
    };
    assert_eq!((subject.operation, subject.at), (Operation::Read, 9));
    assert_eq!(&seen, b"\0he\x01\x01\x01\x01", "the rest of the buffer must be unchanged");
    let calls = disk.calls();
    assert_eq!((calls[Operation::Write], calls[Operation::Read]), (1, 2));
    assert_eq!((calls[Operation::Sync], calls[Operation::Open]), (2, 1));
    assert_eq!(calls[Operation::SyncSystem], 1);
    assert_eq!((calls.bytes_written, calls.bytes_read), (5, 10));
    assert_eq!(disk.clone().calls(), calls, "clones must share their counts");
    assert_eq!((disk.calls() - calls).total(), 0);
}

#[test]
fn names_come_and_go() {
    let (disk, folder) = (System::new(), Folder::new("disk-names"));
    let (a, b, c) = (folder.at("a"), folder.at("b"), folder.at("c"));
    disk.open(&a, Open::FRESH).unwrap().write(0, b"first").unwrap();
    assert!(matches!(disk.open(&a, Open::FRESH), Err(Error::Exists(_))));
    disk.open(&b, Open::CREATE).unwrap().write(0, b"second").unwrap();
    disk.link(&b, &c).unwrap();
    assert!(matches!(disk.link(&a, &c), Err(Error::Exists(_))));
    let old = disk.open(&b, Open::READ).unwrap();
    disk.rename(&a, &b).unwrap();
    disk.sync_folder(&folder.0).unwrap();
    assert_eq!(disk.list(&folder.0).unwrap(), ["b", "c"]);
    disk.remove(&c).unwrap();
    assert!(matches!(disk.remove(&c), Err(Error::NotFound(_))));
    let mut seen = [0; 6];
    old.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"second", "an open file must outlive its name");
    disk.open(&b, Open::READ).unwrap().read(0, &mut seen[..5]).unwrap();
    assert_eq!(&seen[..5], b"first");
    disk.make_folder(&folder.at("d")).unwrap();
    disk.make_folder(&folder.at("d")).unwrap();
    assert!(matches!(disk.make_folder(&b), Err(Error::Exists(_))));
    assert!(matches!(disk.sync_folder(&folder.at("no")), Err(Error::NotFound(_))));
    assert!(matches!(disk.list(&folder.at("no")), Err(Error::NotFound(_))));
}

#[test]
fn only_plain_files_are_opened() {
    let (disk, folder) = (System::new(), Folder::new("disk-kinds"));
    assert!(matches!(disk.open(&folder.at("no"), Open::WRITE), Err(Error::NotFound(_))));
    assert!(matches!(disk.open(&folder.0, Open::READ), Err(Error::NotRegular(_))));
    assert!(matches!(disk.open(&folder.0, Open::WRITE), Err(Error::NotRegular(_))));
    assert!(matches!(disk.open(Path::new("/dev/null"), Open::WRITE), Err(Error::NotRegular(_))));
    disk.open(&folder.at("f"), Open::FRESH).unwrap();
    symlink(folder.at("f"), folder.at("s")).unwrap();
    assert!(matches!(disk.open(&folder.at("s"), Open::CREATE), Err(Error::NotRegular(_))));
    let file = disk.open(&folder.at("f"), Open::READ).unwrap();
    let Err(error @ Error::ReadOnly(_)) = file.write(3, b"x") else {
        panic!("a file opened for reading was written");
    };
    assert!(error.to_string().starts_with("write ") && error.to_string().contains("at 3"));
}

#[test]
fn locks_are_between_open_files_and_end_with_them() {
    let (disk, folder) = (System::new(), Folder::new("disk-locks"));
    let open = || disk.open(&folder.at("f"), Open::CREATE).unwrap();
    let (one, two) = (open(), open());
    assert!(one.lock(1 << 60, true).unwrap());
    assert!(!two.lock(1 << 60, true).unwrap());
    assert!(!two.lock(1 << 60, false).unwrap());
    assert!(two.lock((1 << 60) + 1, true).unwrap(), "another byte is another lock");
    assert!(one.lock(1 << 60, false).unwrap(), "the file's own lock must be convertible");
    assert!(two.lock(1 << 60, false).unwrap());
    assert!(!one.lock(1 << 60, true).unwrap());
    drop(two);
    assert!(one.lock(1 << 60, true).unwrap());
    assert!(one.lock(u64::MAX, true).is_err());
}

#[test]
fn direct_files_take_aligned_buffers_only() {
    let (disk, folder) = (System::new(), Folder::new("disk-direct"));
    let file = match disk.open(&folder.at("f"), Open::FRESH.direct()) {
        Ok(file) => file,
        Err(Error::Unsupported(_)) => {
            println!("skipped: {} has no direct I/O", folder.0.display());
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let mut buffer = Buffer::new(2 * ALIGNMENT);
    buffer.fill(7);
    file.write(ALIGNMENT as u64, &buffer).unwrap();
    let mut back = Buffer::new(ALIGNMENT);
    file.read(2 * ALIGNMENT as u64, &mut back).unwrap();
    assert!(back.iter().all(|byte| *byte == 7));
    assert!(matches!(file.write(1, &buffer), Err(Error::Misaligned(_))));
    assert!(matches!(file.write(0, &buffer[..512]), Err(Error::Misaligned(_))));
    assert!(matches!(file.read(0, &mut back[1..]), Err(Error::Misaligned(_))));
}
