//! Random bytes: a changed log opens, is reported as damaged, or ends earlier.

use std::sync::Arc;

use latchwork_disk::{Disk, Open, Simulated};
use latchwork_log::{Checkpoint, Error, Head, LogFiles, Lsn, Mode, Piece};
use proptest::prelude::*;

use crate::stage::{Answered, begin, folder, operate, read_back, work};

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
    fn changed_files_are_detected(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u32>(), prop::collection::vec(any::<u8>(), 1..20)), 1..6),
        low in any::<bool>(),
    ) {
        let disk = written();
        let names = disk.list(folder()).unwrap();
        for (name, at, bytes) in changes {
            let path = folder().join(&names[name.index(names.len())]);
            let length = disk.peek(&path).unwrap().len() as u64;
            // Headers matter most.
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

/// The records that a reader of the files finds, skipping gaps.
fn looked_at(disk: &Simulated) -> Vec<Lsn> {
    let files = LogFiles::open(Arc::new(disk.clone()), folder()).unwrap();
    let mut scan = files.scan(Lsn::FIRST);
    let mut found = Vec::new();
    loop {
        while let Some(entry) = scan.next_entry().unwrap() {
            found.push(entry.lsn);
        }
        if scan.skip().unwrap().is_none() {
            return found;
        }
    }
}

#[test]
fn a_reader_skips_missing_segments() {
    let disk = Simulated::new();
    let life = begin(&disk).unwrap();
    let last = (0..400).map(|n| operate(&life, n, Mode::None).unwrap()).last().unwrap();
    life.session.flush(last).unwrap();
    drop(life);
    let all = looked_at(&disk);
    let segment = crate::stage::options().segment;
    assert!(all.last().unwrap().0 > 2 * segment, "the log has too few segments");
    // Distant segment names, with no segments in between.
    for name in ["0000000000ffffff", "0000ffffffffffff", "ffffffffffffffff"] {
        disk.open(&folder().join(name), Open::CREATE).unwrap();
        assert_eq!(looked_at(&disk), all, "{name}");
    }
    assert!(LogFiles::open(Arc::new(disk.clone()), folder()).unwrap().oldest().unwrap().is_some());
    disk.remove(&folder().join(format!("{:016x}", 1))).unwrap();
    let found = looked_at(&disk);
    let inside = |lsn: &Lsn| (segment..2 * segment).contains(&lsn.0);
    // A record that begins in the first segment and ends in the missing one may be lost as well.
    let rest: Vec<_> = all.iter().filter(|lsn| !inside(lsn)).copied().collect();
    let crossing = rest.iter().rposition(|lsn| lsn.0 < segment).unwrap();
    let whole: Vec<_> = [&rest[..crossing], &rest[crossing + 1..]].concat();
    assert!(found == whole || found == rest, "{} of {}", found.len(), rest.len());
}

#[test]
fn damage_before_the_durable_end_is_not_the_end() {
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
    assert_eq!(begin(&disk).err(), Some(error), "the failed open changed the files");
}

/// A damaged header must not end the records of a piece early.
#[test]
fn damage_in_a_piece_is_an_error() {
    for (byte, with) in [(8, 0xaa), (22, 0), (40, 0xaa)] {
        let disk = Simulated::new();
        let life = begin(&disk).unwrap();
        let places: Vec<_> = (0..20).map(|n| operate(&life, n, Mode::Full).unwrap()).collect();
        let path = folder().join(format!("{:016x}", 0));
        disk.damage(&path, 4096 + places[10].0 + byte, &[with]);
        let mut pieces = life.log.pieces(places[0]).unwrap();
        let all = pieces.next_piece(Piece::default()).and_then(|piece| {
            let piece = piece.expect("a piece with the records");
            let read = piece.entries().try_for_each(|(place, _)| piece.entry(place).map(|_| ()));
            read.map(|()| piece.entries().count())
        });
        assert_eq!(all, Err(Error::NotARecord(places[10])), "{byte}");
    }
}

/// Operations that were made durable one by one, in the last segment: neither the control file nor
/// a header shows that, but each record contains the durable position before it.
#[test]
fn damage_in_the_last_segment_is_detected_by_later_records() {
    let operations = 38;
    for (damaged, head) in (0..operations).flat_map(|n| [(n, false), (n, true)]) {
        let disk = Simulated::new();
        let life = begin(&disk).unwrap();
        let all = || (0..operations).map(|n| operate(&life, n, Mode::Full).unwrap());
        let places: Vec<_> = all().collect();
        let (at, end) = (places[damaged as usize], life.log.end());
        assert!(end.0 < crate::stage::options().segment, "the log has a second segment");
        drop(life);
        let path = folder().join(format!("{:016x}", 0));
        let place = 4096 + at.0 + if head { 0 } else { 26 };
        disk.damage(&path, place, &[0xaa; 4]);
        let opened = begin(&disk);
        if damaged + 1 == operations {
            assert_eq!(
                read_back(&opened.unwrap()),
                Ok((0, damaged)),
                "only the last record is lost"
            );
        } else {
            let last = *places.last().unwrap();
            match opened.err() {
                Some(Error::LogDamaged { at: found, flushed }) => {
                    assert!(found == at && flushed >= last, "{damaged}: {found}, {flushed}");
                }
                other => panic!("{damaged}: {other:?}"),
            }
        }
    }
}

/// The last segment, or one with others after it.
#[test]
fn a_segment_with_a_damaged_header_is_reported() {
    for last in [false, true] {
        let disk = written();
        let mut names = disk.list(folder()).unwrap();
        names.retain(|name| name.len() == 16);
        names.sort();
        let name = if last { names.last() } else { names.first() };
        assert!(names.len() > 1 && disk.damage(&folder().join(name.unwrap()), 44, &[1]));
        assert_eq!(begin(&disk).err(), Some(Error::Corrupt { what: "header of a segment" }));
    }
}

/// A lost last segment takes with it the evidence that its records were durable. The control file
/// has it for a segment's first records, and for all but the last eighth of a segment.
#[test]
fn a_missing_or_blank_last_segment_is_reported() {
    let segment = crate::stage::options().segment;
    // In the second case the previous segment is full to the last byte when it is flushed.
    for (end, full, left) in
        [(segment + 1, false, None), (segment + 1, true, None), (segment * 5 / 4, false, Some(16))]
    {
        let disk = Simulated::new();
        let life = begin(&disk).unwrap();
        let mut numbers = 0..;
        while life.log.end().0 < end {
            let rest = segment.saturating_sub(life.log.end().0);
            if full && (64..8000).contains(&rest) {
                life.session.reserve(rest).unwrap();
                let payload = vec![7; rest as usize - 26];
                let mut last = life.session.build(&Head::default(), &[&payload]).unwrap();
                let lsn = life.session.append(&mut last).unwrap();
                life.session.flush(lsn).unwrap();
                assert_eq!(life.log.flushed(), Lsn(segment));
            }
            operate(&life, numbers.next().unwrap(), Mode::Full).unwrap();
        }
        drop(life);
        let path = folder().join(format!("{:016x}", 1));
        match left {
            None => disk.remove(&path).unwrap(),
            Some(part) => {
                let from = segment / part;
                disk.damage(&path, 4096 + from, &vec![0; (segment - from) as usize]);
            }
        }
        let error = begin(&disk).err().unwrap();
        let told = |at: Lsn, flushed: Lsn| at < flushed && flushed.0 > segment;
        assert!(matches!(error, Error::LogDamaged { at, flushed } if told(at, flushed)), "{error}");
    }
}

/// The same for records since a checkpoint: the segment of the redo point must exist, whether any
/// record was durable since or not.
#[test]
fn missing_records_since_a_checkpoint_are_reported() {
    type Damage = fn(&Simulated, &std::path::Path, Lsn);
    let gone: Damage = |disk, path, _| disk.remove(path).unwrap();
    let blank: Damage =
        |disk, path, redo| assert!(disk.damage(path, 4096 + redo.0, &vec![0; 1 << 14]));
    for (mode, damage) in [(Mode::Full, gone), (Mode::Full, blank), (Mode::Write, gone)] {
        let disk = Simulated::new();
        let life = begin(&disk).unwrap();
        work(&life, (0, 10), Mode::Full, &mut Answered::default()).unwrap();
        let redo = life.log.end();
        life.session.checkpoint(Checkpoint { lsn: Lsn::NEVER, redo, clean: true }).unwrap();
        drop(life);
        let life = begin(&disk).unwrap();
        operate(&life, 10, mode).unwrap();
        drop(life);
        damage(&disk, &folder().join(format!("{:016x}", 0)), redo);
        let error = begin(&disk).err().unwrap();
        assert!(matches!(error, Error::LogDamaged { at, .. } if at == redo), "{error}");
    }
}

#[test]
fn a_truncated_segment_is_reported() {
    let disk = written();
    let mut names = disk.list(folder()).unwrap();
    names.retain(|name| name.len() == 16);
    let path = folder().join(names.iter().max().unwrap());
    let length = disk.peek(&path).unwrap().len() as u64;
    disk.open(&path, Open::WRITE).unwrap().truncate(length - 1).unwrap();
    assert_eq!(begin(&disk).err(), Some(Error::Corrupt { what: "length of a segment" }));
}

/// The durable position in a record is the last one before the record with the same low bits.
#[test]
fn the_durable_position_is_read_beyond_64_gib() {
    let (disk, segment) = (Simulated::new(), crate::stage::options().segment);
    let life = begin(&disk).unwrap();
    let places: Vec<_> = (0..20).map(|n| operate(&life, n, Mode::Full).unwrap()).collect();
    drop(life);
    let scan_at = |lsn: Lsn| {
        let files = LogFiles::open(Arc::new(disk.clone()), folder()).unwrap();
        files.scan(lsn).next_entry().unwrap().unwrap()
    };
    let (far, near) = (Lsn((1 << 36) + places[19].0), Lsn((1 << 36) + places[3].0));
    let old = scan_at(places[19]);
    assert_eq!((old.durable, scan_at(places[0]).durable), (places[19], Lsn::FIRST));
    let bytes = disk.peek(&folder().join(format!("{:016x}", 0))).unwrap();
    let from = 4096 + old.lsn.0 as usize;
    let mut record = bytes[from..from + (old.next().0 - old.lsn.0) as usize].to_vec();
    let file = disk.open(&folder().join(format!("{:016x}", (1 << 36) / segment)), Open::CREATE);
    let file = file.unwrap();
    for (lsn, durable) in [(far, far), (near, places[19])] {
        // The checksum does not cover the record's position.
        record[8..14].copy_from_slice(&(lsn.0 / 16).to_le_bytes()[..6]);
        file.write(4096 + lsn.0 % segment, &record).unwrap();
        assert_eq!(scan_at(lsn).durable, durable);
    }
}

/// After the end, a recycled segment has complete records of an earlier round with valid checksums;
/// only their positions show that they do not belong here.
#[test]
fn an_old_record_is_not_read_as_a_new_one() {
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
