//! Arbitrary bytes as the files of a log for the fuzz target and the tests.

use std::path::Path;
use std::sync::Arc;

use latchwork_disk::{Disk, Open, Simulated};
use latchwork_log::{Head, Log, LogFiles, Lsn, Options};
use latchwork_region::Region;

const FOLDER: &str = "/log";
/// The files: control blocks and a segment.
const NAMES: [&str; 2] = ["control", "0000000000000000"];
const SEGMENT: u64 = 64 << 10;

/// The files of a log with some records.
pub fn sound() -> [Vec<u8>; 2] {
    let disk = Simulated::new();
    let region = Region::private(&latchwork_region::Options::default()).unwrap();
    let thread = region.thread().unwrap();
    let options =
        Options { buffer: SEGMENT, segment: SEGMENT, threads: 64, id: 77, ..Options::default() };
    let shared = Arc::new(disk.clone());
    let log = Log::open(&region, shared, Path::new(FOLDER), &options, &thread).unwrap();
    let session = log.session(&thread).unwrap();
    let mut last = Lsn::FIRST;
    for number in 0..40u8 {
        session.reserve(512).unwrap();
        let head = Head { kind: number, page: u64::from(number), ..Head::default() };
        let mut record = session.build(&head, &[&vec![number; usize::from(number) * 3]]).unwrap();
        last = session.append(&mut record).unwrap();
    }
    session.flush(last).unwrap();
    NAMES.map(|name| disk.peek(&Path::new(FOLDER).join(name)).unwrap())
}

/// Reads files as a log, with every position as a possible record. Returns the number of records.
pub fn exercise(files: &[Vec<u8>; 2]) -> usize {
    let disk = Simulated::new();
    disk.make_folder(Path::new(FOLDER)).unwrap();
    for (name, bytes) in NAMES.iter().zip(files) {
        let file = disk.open(&Path::new(FOLDER).join(name), Open::CREATE).unwrap();
        file.write(0, bytes).unwrap();
    }
    let Ok(log) = LogFiles::open(Arc::new(disk), Path::new(FOLDER)) else { return 0 };
    let Ok(Some(oldest)) = log.oldest() else { return 0 };
    let (mut scan, mut records, mut before) = (log.scan(oldest), 0, Lsn::NEVER);
    loop {
        while let Ok(Some(entry)) = scan.next_entry() {
            assert!(entry.lsn > before && scan.position() == entry.next(), "the scan advances");
            before = entry.lsn;
            records += 1;
        }
        if !matches!(scan.skip(), Ok(Some(_))) {
            return records;
        }
    }
}
