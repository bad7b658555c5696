//! The simulated disk, tested by a program that keeps a ledger. While the program fulfils all its
//! duties, no crash at any call with any seed loses what it acknowledged. With any duty omitted,
//! and with any fault that it cannot notice, losses are detected.

use std::path::Path;

use latchwork_disk::{Calls, Disk, Error, Fault, File, Open, Operation, Simulated, crc32c};

/// Longer than a sector, so that an entry can be torn.
const ENTRY: usize = 700;
const ENTRIES: u64 = 12;
/// Entries between two versions of the file that names the number of entries.
const STEP: u64 = 4;

/// The duties of the program besides writing.
#[derive(Clone, Copy, Debug)]
struct Duties {
    sync: bool,
    sync_folder: bool,
    checksum: bool,
    /// Stops when the disk reports a failure.
    heed: bool,
}

const ALL: Duties = Duties { sync: true, sync_folder: true, checksum: true, heed: true };

/// Entries and head that the program has acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct Answered {
    entries: u64,
    head: u64,
}

fn entry(number: u64) -> Vec<u8> {
    let mut bytes = vec![number as u8 + 1; ENTRY];
    bytes[..8].copy_from_slice(&(number + 1).to_le_bytes());
    let crc = crc32c(&bytes[..ENTRY - 4]);
    bytes[ENTRY - 4..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn path(name: &str) -> &Path {
    Path::new(name)
}

impl Duties {
    fn heeds(self, result: Result<(), Error>) -> Result<(), Error> {
        match result {
            Err(Error::Crashed(subject)) => Err(Error::Crashed(subject)),
            other if self.heed => other,
            _ => Ok(()),
        }
    }

    fn sync(self, file: &dyn File) -> Result<(), Error> {
        if self.sync { self.heeds(file.sync()) } else { Ok(()) }
    }

    fn sync_folder(self, disk: &Simulated) -> Result<(), Error> {
        if self.sync_folder { self.heeds(disk.sync_folder(path("d"))) } else { Ok(()) }
    }

    /// Writes the ledger until all entries are in it or the disk fails.
    fn run(self, disk: &Simulated, answered: &mut Answered) -> Result<(), Error> {
        disk.make_folder(path("d"))?;
        disk.sync_folder(path(""))?;
        let ledger = disk.open(path("d/ledger"), Open::CREATE)?;
        self.sync_folder(disk)?;
        for number in 0..ENTRIES {
            self.heeds(ledger.write(number * ENTRY as u64, &entry(number)))?;
            self.sync(&*ledger)?;
            answered.entries = number + 1;
            if answered.entries.is_multiple_of(STEP) {
                let head = disk.open(path("d/head.new"), Open::CREATE)?;
                head.truncate(0)?;
                self.heeds(head.write(0, &answered.entries.to_le_bytes()))?;
                self.sync(&*head)?;
                disk.rename(path("d/head.new"), path("d/head"))?;
                self.sync_folder(disk)?;
                answered.head = answered.entries;
            }
        }
        Ok(())
    }

    /// Reads the ledger back and compares it with what was acknowledged.
    fn check(self, disk: &Simulated, answered: Answered) -> Result<(), String> {
        let mut count = 0;
        match disk.open(path("d/ledger"), Open::READ) {
            Ok(ledger) => loop {
                let mut bytes = vec![0; ENTRY];
                match ledger.read(count * ENTRY as u64, &mut bytes) {
                    Err(Error::ShortRead { .. }) => break,
                    other => other.map_err(|e| e.to_string())?,
                }
                let crc = u32::from_le_bytes(bytes[ENTRY - 4..].try_into().unwrap());
                let good = if self.checksum {
                    crc == crc32c(&bytes[..ENTRY - 4])
                } else {
                    bytes[..8] == (count + 1).to_le_bytes()
                };
                if !good {
                    break;
                }
                if bytes != entry(count) {
                    return Err(format!("entry {count} has wrong contents"));
                }
                count += 1;
            },
            Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error.to_string()),
        }
        if count < answered.entries {
            return Err(format!("{count} entries of {}", answered.entries));
        }
        let mut head = [0; 8];
        match disk.open(path("d/head"), Open::READ) {
            Ok(file) => file.read(0, &mut head).map_err(|e| e.to_string())?,
            Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error.to_string()),
        }
        let head = u64::from_le_bytes(head);
        if head < answered.head || head > count {
            return Err(format!("head {head} of {}, {count} entries", answered.head));
        }
        Ok(())
    }

    /// Runs with a fault at call `number`, then loses unsynced data by `seed`.
    fn trial(self, fault: Option<(u64, Fault)>, seed: u64) -> Result<(), String> {
        let (disk, mut answered) = (Simulated::new(), Answered::default());
        if let Some((number, fault)) = fault {
            disk.plan(number, fault);
        }
        let _ = self.run(&disk, &mut answered);
        disk.restart(seed);
        self.check(&disk, answered)
    }

    /// The number of calls, and how many of the trials at all of them fail.
    fn trials(self, fault: Fault, seeds: u64) -> (u64, u64) {
        let disk = Simulated::new();
        self.run(&disk, &mut Answered::default()).unwrap();
        let calls = disk.calls().total();
        assert_eq!(disk.history().len() as u64, calls);
        let all = (0..calls).flat_map(|number| (0..seeds).map(move |seed| (number, seed)));
        let failed = all.filter(|(n, seed)| self.trial(Some((*n, fault)), *seed).is_err());
        (calls, failed.count() as u64)
    }
}

#[test]
fn a_careful_program_loses_nothing_at_any_crash() {
    let (calls, failed) = ALL.trials(Fault::Crash, 60);
    assert!(calls > 40, "{calls} calls");
    assert_eq!(failed, 0);
    for fault in [Fault::Device, Fault::Dropped, Fault::NoSpace] {
        assert_eq!(ALL.trials(fault, 20).1, 0, "a program that stops at {fault:?} lost an entry");
    }
}

#[test]
fn each_duty_left_out_is_caught() {
    for duties in [
        Duties { sync: false, ..ALL },
        Duties { sync_folder: false, ..ALL },
        Duties { checksum: false, ..ALL },
    ] {
        let (calls, failed) = duties.trials(Fault::Crash, 60);
        assert!(failed > 0, "{duties:?} failed in none of {} trials", calls * 60);
    }
    let careless = Duties { heed: false, ..ALL };
    for fault in [Fault::Device, Fault::Dropped, Fault::NoSpace] {
        assert!(careless.trials(fault, 20).1 > 0, "{fault:?} unheeded");
    }
}

#[test]
fn each_fault_that_a_disk_hides_is_caught() {
    for fault in [Fault::LostSync, Fault::LostWrite, Fault::Misdirected, Fault::FlippedBit] {
        assert!(ALL.trials(fault, 40).1 > 0, "{fault:?}");
    }
}

#[test]
fn the_same_seed_loses_the_same() {
    let lose = |seed| {
        let (disk, mut answered) = (Simulated::new(), Answered::default());
        disk.plan(30, Fault::Crash);
        let _ = Duties { sync: false, ..ALL }.run(&disk, &mut answered);
        disk.restart(seed);
        disk.peek(path("d/ledger"))
    };
    assert!((0..40).all(|seed| lose(seed) == lose(seed)));
    assert!((0..40).any(|seed| lose(seed) != lose(seed + 1)));
}

#[test]
fn every_kind_of_loss_happens() {
    let (mut torn, mut reordered, mut short, mut all, mut none) = (0, 0, 0, 0, 0);
    for seed in 0..400 {
        let disk = Simulated::new();
        let file = disk.open(path("f"), Open::FRESH).unwrap();
        disk.sync_folder(path("")).unwrap();
        file.write(0, &[1; 4096]).unwrap();
        file.sync().unwrap();
        file.write(0, &[2; 4096]).unwrap();
        file.write(4096, &[3; 512]).unwrap();
        disk.restart(seed);
        let seen = disk.peek(path("f")).unwrap();
        let old = seen[..4096].iter().filter(|byte| **byte == 1).count();
        assert_eq!(old % 512, 0, "a torn sector");
        let third = seen[4096..] == [3; 512];
        torn += u32::from(old != 0 && old != 4096);
        reordered += u32::from(old == 4096 && third);
        short += u32::from(old == 0 && seen.len() == 4096);
        all += u32::from(old == 4096 && seen.len() == 4096);
        none += u32::from(old == 0 && third);
    }
    assert!([torn, reordered, short, all, none].iter().all(|count| *count > 5));
}

/// A file of eight sectors of ones is overwritten with twos, and the sync fails. Returns what is
/// read afterwards, and what is on disk.
fn failed_sync(fault: Fault, seed: u64, restart: u64) -> (Vec<u8>, Vec<u8>) {
    let disk = Simulated::with_seed(seed);
    let file = disk.open(path("f"), Open::FRESH).unwrap();
    disk.sync_folder(path("")).unwrap();
    file.write(0, &[1; 4096]).unwrap();
    file.sync().unwrap();
    file.write(0, &[2; 4096]).unwrap();
    file.write(4096, &[3; 512]).unwrap();
    disk.plan(disk.calls().total(), fault);
    let told = file.sync().unwrap_err();
    assert_eq!(matches!(told, Error::NoSpace(_)), fault == Fault::NoSpace, "{told}");
    assert_eq!(disk.fired(), 1);
    // Nothing is left to be made durable.
    file.sync().unwrap();
    let seen = disk.peek(path("f")).unwrap();
    disk.restart(restart);
    (seen, disk.peek(path("f")).unwrap())
}

#[test]
fn a_failed_sync_leaves_any_part_and_a_later_sync_does_not_repair_it() {
    let written = [vec![2; 4096], vec![3; 512]].concat();
    for fault in [Fault::Device, Fault::NoSpace, Fault::Dropped] {
        let (mut all, mut none, mut torn, mut reordered) = (0, 0, 0, 0);
        for seed in 0..200 {
            let (seen, left) = failed_sync(fault, seed, seed);
            assert_eq!(failed_sync(fault, seed, seed + 1).1, left, "the sync had determined it");
            if fault == Fault::Dropped {
                let mut read = left.clone();
                read.resize(4608, 0);
                assert_eq!(seen, read, "dropped data is read, or the length has changed");
            } else {
                assert_eq!(seen, written, "kept data is not read");
            }
            let old = left[..4096].iter().filter(|byte| **byte == 1).count();
            assert_eq!(old % 512, 0, "a torn sector");
            all += u32::from(left == written);
            none += u32::from(left == [1; 4096]);
            torn += u32::from(old != 0 && old != 4096);
            reordered += u32::from(old == 4096 && left[4096..] == [3; 512]);
        }
        let counts = [all, none, torn, reordered];
        assert!(counts.iter().all(|count| *count > 2), "{fault:?}: {counts:?}");
    }
}

/// A failure is reported once, and once more by a sync of the whole file system.
#[test]
fn a_failed_sync_is_reported_by_a_sync_of_the_file_system() {
    let disk = Simulated::new();
    let open = || disk.open(path("f"), Open::CREATE).unwrap();
    let (first, older) = (open(), open());
    first.write(0, b"one").unwrap();
    disk.plan(disk.calls().total(), Fault::Device);
    first.sync().unwrap_err();
    let late = open();
    for file in [&first, &older, &late] {
        file.sync().unwrap();
    }
    for file in [&late, &older] {
        assert!(matches!(file.sync_in_doubt(), Err(Error::Device(_))), "{file:?}");
    }
    let other = disk.open(path("g"), Open::FRESH).unwrap();
    other.write(0, b"two").unwrap();
    disk.sync_folder(path("")).unwrap();
    late.sync_in_doubt().unwrap();
    open().sync_in_doubt().unwrap();
    disk.restart(1);
    assert_eq!(disk.peek(path("g")).unwrap(), b"two", "all files must be durable");
    assert_eq!(disk.calls()[Operation::SyncSystem], 4);
}

/// The system may drop clean data from its cache at any time, and never drops dirty data.
#[test]
fn only_clean_data_is_dropped_from_the_cache() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..40 {
        let disk = Simulated::with_seed(seed);
        let file = disk.open(path("f"), Open::FRESH).unwrap();
        file.write(0, b"one").unwrap();
        disk.plan(disk.calls().total(), Fault::Device);
        file.sync().unwrap_err();
        file.write(3, b"two").unwrap();
        assert_eq!(disk.peek(path("f")).unwrap(), b"onetwo");
        disk.drop_cache();
        let seen = disk.peek(path("f")).unwrap();
        assert_eq!(&seen[3..], b"two");
        lost += u32::from(&seen[..3] == b"\0\0\0");
        kept += u32::from(&seen[..3] == b"one");
    }
    assert!(lost > 2 && kept > 2 && lost + kept == 40, "{lost} lost, {kept} kept");
}

/// A planned crash also happens at a call that finds no room.
#[test]
fn a_planned_crash_happens_on_a_full_disk() {
    for call in 0..3 {
        let disk = Simulated::new();
        let file = disk.open(path("f"), Open::FRESH).unwrap();
        disk.set_capacity(Some(4));
        disk.plan(disk.calls().total(), Fault::Crash);
        let ended = match call {
            0 => file.write(0, &[1; 5]),
            1 => file.truncate(5),
            _ => file.allocate(0, 5),
        };
        assert!(matches!(ended, Err(Error::Crashed(_))), "{call}: {ended:?}");
        assert!(disk.is_down() && disk.fired() == 1);
        assert_eq!(disk.peek(path("f")).unwrap(), b"");
    }
}

#[test]
fn planned_faults_meet_their_calls() {
    let disk = Simulated::new();
    let file = disk.open(path("f"), Open::FRESH).unwrap();
    file.write(0, &[5; 100]).unwrap();
    let mut seen = [0; 100];
    disk.plan(2, Fault::ShortRead);
    assert!(matches!(file.read(0, &mut seen), Err(Error::ShortRead { got: 50, .. })));
    disk.plan(3, Fault::FlippedBit);
    file.read(0, &mut seen).unwrap();
    assert_eq!(seen.iter().filter(|byte| **byte == 4).count(), 1);
    disk.plan(4, Fault::LostWrite);
    assert_eq!(disk.fired(), 2);
    file.sync().unwrap();
    assert_eq!(disk.fired(), 2, "a lost write must not apply to a sync");
    disk.set_capacity(Some(128));
    assert!(matches!(file.write(100, &[1; 29]), Err(Error::NoSpace(_))));
    assert!(matches!(file.allocate(0, 129), Err(Error::NoSpace(_))));
    file.write(100, &[1; 28]).unwrap();
    assert_eq!(file.length().unwrap(), 128);
    disk.crash();
    assert!(matches!(file.length(), Err(Error::Crashed(_))));
    disk.restart(0);
    assert!(matches!(file.length(), Err(Error::Crashed(_))), "a file opened before the crash");
    assert_ne!(disk.calls(), Calls::default());
}

#[test]
fn simulated_and_system_disks_agree() {
    let disk = Simulated::new();
    let file = disk.open(path("/a"), Open::FRESH).unwrap();
    file.write(2, b"xy").unwrap();
    assert_eq!(disk.peek(path("a")).unwrap(), b"\0\0xy");
    disk.make_folder(path("d")).unwrap();
    disk.make_folder(path("d")).unwrap();
    assert!(matches!(disk.open(path("d"), Open::READ), Err(Error::NotRegular(_))));
    assert!(matches!(disk.open(path("no/f"), Open::CREATE), Err(Error::NotFound(_))));
    assert!(matches!(disk.open(path("a"), Open::FRESH), Err(Error::Exists(_))));
    assert!(matches!(disk.rename(path("no"), path("a")), Err(Error::NotFound(_))));
    disk.link(path("a"), path("b")).unwrap();
    assert!(matches!(disk.link(path("a"), path("b")), Err(Error::Exists(_))));
    disk.remove(path("a")).unwrap();
    assert_eq!(disk.list(path("")).unwrap(), ["b", "d"]);
    assert!(matches!(disk.open(path("a"), Open::READ), Err(Error::NotFound(_))));
    let (one, two) =
        (disk.open(path("b"), Open::WRITE).unwrap(), disk.open(path("b"), Open::READ).unwrap());
    assert!(matches!(two.write(0, b"x"), Err(Error::ReadOnly(_))));
    assert!(one.lock(9, true).unwrap() && !two.lock(9, false).unwrap());
    drop(one);
    assert!(two.lock(9, false).unwrap());
    assert_eq!(disk.calls()[Operation::Lock], 3);
}
