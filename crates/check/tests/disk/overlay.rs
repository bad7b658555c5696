//! A disk whose changes stay in memory, compared with a plain file; and a disk that refuses
//! changes.

use std::path::Path;
use std::sync::Arc;

use latchwork_check::random::Random;
use latchwork_disk::{Disk, Error, Open, Overlay, ReadOnly, Simulated};

/// Writes to an overlay are read back from it, and the file below does not change.
#[test]
fn an_overlay_is_a_file_and_the_file_below_stays_unchanged() {
    let (below, path) = (Simulated::new(), Path::new("file"));
    let mut bytes: Vec<u8> = (0..20_000_u32).map(|n| n as u8).collect();
    below.open(path, Open::CREATE).unwrap().write(0, &bytes).unwrap();
    let before = bytes.clone();
    let overlay = Overlay::new(Arc::new(below.clone()));
    let (file, same) =
        (overlay.open(path, Open::WRITE).unwrap(), overlay.open(path, Open::READ).unwrap());
    let mut random = Random(7);
    for round in 0..4000_u32 {
        let at = random.below(30_000) as usize;
        match random.below(10) {
            0 => {
                file.truncate(at as u64).unwrap();
                bytes.resize(at, 0);
            }
            1 => {
                file.allocate(at as u64, 100).unwrap();
                bytes.resize(bytes.len().max(at + 100), 0);
            }
            _ => {
                let piece = vec![round as u8; random.below(9000) as usize];
                file.write(at as u64, &piece).unwrap();
                bytes.resize(bytes.len().max(at + piece.len()), 0);
                bytes[at..at + piece.len()].copy_from_slice(&piece);
            }
        }
        assert_eq!(same.length(), Ok(bytes.len() as u64));
        let mut read = vec![0; bytes.len()];
        same.read(0, &mut read).unwrap();
        assert!(read == bytes, "round {round}");
        let beyond = same.read(bytes.len() as u64 - bytes.len().min(1) as u64, &mut [0; 2]);
        assert!(matches!(beyond, Err(Error::ShortRead { .. })), "{beyond:?}");
    }
    assert!(below.peek(path).unwrap() == before);
}

#[test]
fn names_of_an_overlay_change_only_in_it() {
    let below = Simulated::new();
    let [a, b, c] = ["a", "b", "c"].map(Path::new);
    below.open(a, Open::CREATE).unwrap().write(0, b"one").unwrap();
    let overlay = Overlay::new(Arc::new(below.clone()));
    overlay.rename(a, b).unwrap();
    overlay.open(c, Open::FRESH).unwrap().write(0, b"two").unwrap();
    assert!(matches!(overlay.open(c, Open::FRESH), Err(Error::Exists(_))));
    assert!(matches!(overlay.open(a, Open::READ), Err(Error::NotFound(_))));
    let mut read = [0; 3];
    overlay.open(b, Open::READ).unwrap().read(0, &mut read).unwrap();
    assert_eq!(&read, b"one");
    assert_eq!(overlay.list(Path::new("")).unwrap(), ["b", "c"]);
    overlay.remove(b).unwrap();
    assert_eq!(overlay.list(Path::new("")).unwrap(), ["c"]);
    assert_eq!(below.list(Path::new("")).unwrap(), ["a"]);
}

#[test]
fn a_disk_that_is_only_read_refuses_changes() {
    let (below, path) = (Simulated::new(), Path::new("file"));
    below.open(path, Open::CREATE).unwrap().write(0, b"one").unwrap();
    let disk = ReadOnly::new(Arc::new(below.clone()));
    let file = disk.open(path, Open::WRITE).unwrap();
    let mut read = [0; 3];
    file.read(0, &mut read).unwrap();
    assert_eq!(&read, b"one");
    let all = [
        file.write(0, b"two"),
        file.truncate(0),
        file.sync(),
        file.allocate(0, 10),
        disk.remove(path),
        disk.rename(path, Path::new("other")),
        disk.open(Path::new("other"), Open::FRESH).map(drop),
    ];
    assert!(all.iter().all(|end| matches!(end, Err(Error::ReadOnly(_)))), "{all:?}");
    assert_eq!(below.peek(path).unwrap(), b"one");
}
