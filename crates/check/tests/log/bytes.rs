//! Bytes that nobody wrote: a changed log is opened, told to be damaged, or ends earlier.

use latchwork_disk::{Disk, Simulated};
use latchwork_log::{Error, Mode};
use proptest::prelude::*;

use crate::stage::{Answered, begin, folder, read_back, work};

/// A disk with a log of some segments, and the number of operations in it.
fn written() -> Simulated {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    work(&life, (0, 110), Mode::Full, &mut Answered::default()).unwrap();
    drop(life);
    disk
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn changed_files_are_told(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u32>(), prop::collection::vec(any::<u8>(), 1..20)), 1..6),
        low in any::<bool>(),
    ) {
        let disk = written();
        let names = disk.list(folder()).unwrap();
        for (name, at, bytes) in changes {
            let path = folder().join(&names[name.index(names.len())]);
            let length = disk.peek(&path).unwrap().len() as u64;
            // Headers are where it matters most.
            let range = if low { 200.min(length) } else { length };
            disk.damage(&path, u64::from(at) % range, &bytes);
        }
        match begin(&disk) {
            Ok(life) => prop_assert!(read_back(&life).is_ok()),
            Err(Error::LogDamaged { at, flushed }) => prop_assert!(at < flushed),
            Err(Error::Corrupt { .. } | Error::Foreign | Error::Version { .. }) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

#[test]
fn damage_below_what_was_durable_is_no_end() {
    let disk = written();
    let life = begin(&disk).unwrap();
    let (redo, end) = (life.log.recovered().redo, life.log.end());
    life.session.checkpoint(latchwork_log::Checkpoint { lsn: redo, redo, clean: false }).unwrap();
    let segment = crate::stage::options().segment;
    drop(life);
    let middle = (redo.0 + (end.0 - redo.0) / 2) / 16 * 16;
    let path = folder().join(format!("{:016x}", middle / segment));
    disk.damage(&path, 4096 + middle % segment, &[0xaa; 64]);
    let error = begin(&disk).err().unwrap();
    assert!(matches!(error, Error::LogDamaged { at, flushed } if at < flushed), "{error}");
    assert_eq!(begin(&disk).err(), Some(error), "nothing was changed");
}

/// A recycled segment has records of an earlier round behind the end, whole and with checksums
/// that hold: only the position that each of them names tells that it is none of this log's.
#[test]
fn an_old_record_is_no_new_one() {
    let disk = written();
    let life = begin(&disk).unwrap();
    let (end, segment) = (life.log.end().0, crate::stage::options().segment);
    let mut starts: Vec<u64> = Vec::new();
    for entry in life.log.scan(life.log.recovered().redo) {
        starts.push(entry.unwrap().lsn.0);
    }
    starts.push(end);
    drop(life);
    let fits = |pair: &&[u64]| {
        pair[0] / segment == end / segment && end % segment + pair[1] - pair[0] <= segment
    };
    let old = starts.windows(2).rev().find(fits).unwrap();
    let path = folder().join(format!("{:016x}", end / segment));
    let bytes = disk.peek(&path).unwrap();
    let from = (4096 + old[0] % segment) as usize;
    let record = &bytes[from..from + (old[1] - old[0]) as usize];
    disk.damage(&path, 4096 + end % segment, record);
    assert_eq!(begin(&disk).unwrap().log.end().0, end);
}
