//! A log of small segments on a simulated disk, and numbered operations whose contents follow from
//! their numbers, so that a reader can check that each is complete and in order.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use latchwork_check::random::Random;
use latchwork_disk::{Disk, Simulated};
use latchwork_log::{Checkpoint, Entry, Error, Flags, Head, Log, Lsn, Mode, Options, Session};
use latchwork_machine::Native;
use latchwork_region::{Region, Thread};

pub(crate) const SMALL: u64 = 1 << 16;

pub(crate) fn options() -> Options {
    Options { buffer: SMALL, segment: SMALL, id: 77, threads: 8, ..Options::default() }
}

pub(crate) fn region() -> Region<Native> {
    let sizes = latchwork_region::Options {
        processes: 4,
        threads: 8,
        waiters: 8,
        limit: 512 << 10,
        ..latchwork_region::Options::default()
    };
    Region::heap(&sizes).unwrap()
}

/// A region with a log and a session.
pub(crate) struct Life {
    pub(crate) session: Session<Native>,
    pub(crate) log: Log<Native>,
    pub(crate) thread: Thread<Native>,
    pub(crate) region: Region<Native>,
}

pub(crate) fn folder() -> &'static Path {
    Path::new("store/log")
}

pub(crate) fn begin(disk: &Simulated) -> Result<Life, Error> {
    begin_in(disk, region())
}

/// Creates the parent folder of the log.
pub(crate) fn prepare(disk: &Simulated) -> Result<(), Error> {
    disk.make_folder(Path::new("store"))?;
    Ok(disk.sync_folder(Path::new(""))?)
}

pub(crate) fn begin_in(disk: &Simulated, region: Region<Native>) -> Result<Life, Error> {
    begin_with(disk, region, &options())
}

pub(crate) fn begin_with(
    disk: &Simulated,
    region: Region<Native>,
    options: &Options,
) -> Result<Life, Error> {
    prepare(disk)?;
    let thread = region.thread()?;
    let log = Log::open(&region, Arc::new(disk.clone()), folder(), options, &thread)?;
    let session = log.session(&thread)?;
    Ok(Life { session, log, thread, region })
}

/// The payload of operation `number`.
pub(crate) fn payload(number: u64) -> Vec<u8> {
    let mut random = Random(number + 1);
    let length = match random.below(8) {
        0 => 4000 + random.below(3000),
        1 => 0,
        _ => random.below(300),
    };
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((0..length).map(|i| (i ^ number) as u8));
    bytes
}

pub(crate) fn head(number: u64, flags: Flags) -> Head {
    Head { kind: number as u8, flags, page: number, aux: 9, ..Head::default() }
}

/// Appends operation `number` and commits it.
pub(crate) fn operate(life: &Life, number: u64, mode: Mode) -> Result<Lsn, Error> {
    let session = &life.session;
    let bytes = payload(number);
    let mut record = session.build(&head(number, Flags::LAST), &[&bytes[..8], &bytes[8..]])?;
    session.reserve(record.bytes() as u64)?;
    let lsn = session.append(&mut record)?;
    session.commit(lsn, mode)?;
    Ok(lsn)
}

/// The acknowledged operations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered {
    /// All operations below this number were committed with the durability of their mode.
    pub(crate) operations: u64,
    /// The redo point of the last acknowledged checkpoint, as the number of its first operation.
    pub(crate) redo: u64,
}

/// Appends operations from `from` to `to`, with a checkpoint from time to time.
pub(crate) fn work(
    life: &Life,
    (from, to): (u64, u64),
    mode: Mode,
    answered: &mut Answered,
) -> Result<(), Error> {
    for number in from..to {
        let lsn = operate(life, number, mode)?;
        answered.operations = number + 1;
        if number % 40 == 39 {
            life.session.checkpoint(Checkpoint { lsn, redo: lsn, clean: false })?;
            answered.redo = number;
            life.session.recycle(lsn)?;
        }
    }
    Ok(())
}

/// Reads all operations back and checks that none is damaged or missing. Returns the first number
/// and the one after the last; both are zero if there is none.
pub(crate) fn read_back(life: &Life) -> Result<(u64, u64), String> {
    let (mut first, mut next) = (None, 0);
    for entry in life.log.scan(life.log.recovered().redo) {
        let entry: Entry = entry.map_err(|error| error.to_string())?;
        let number = entry.head.page;
        if first.is_none() {
            (first, next) = (Some(number), number);
        }
        if number != next
            || entry.payload != payload(number)
            || entry.head != head(number, Flags::LAST)
        {
            return Err(format!("operation {number} where {next} should be: {entry:?}"));
        }
        next = number + 1;
    }
    Ok((first.unwrap_or(0), next))
}

thread_local! {
    /// The channel on which this thread signals its end.
    static ENDS: RefCell<Option<Sender<()>>> = const { RefCell::new(None) };
}

/// Runs `work` in a thread that ends in the middle of it as if it were killed: no destructor runs.
/// The caller then declares its process dead.
pub(crate) fn until_it_ends(work: impl FnOnce() + Send + 'static) {
    let (ends, ended) = channel();
    std::thread::spawn(move || {
        ENDS.set(Some(ends));
        work();
        ENDS.set(None);
    });
    ended.recv().expect("the thread did not reach its end");
}

/// Ends this thread.
pub(crate) fn end_here() -> ! {
    ENDS.take().expect("a thread of `until_it_ends`").send(()).unwrap();
    loop {
        std::thread::park();
    }
}

/// Runs `work` in a thread of its own with a timeout that no run comes close to.
pub(crate) fn without_waiting<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, is_done) = channel();
    std::thread::spawn(move || done.send(work()));
    is_done.recv_timeout(Duration::from_secs(60)).expect("a thread waits forever")
}
