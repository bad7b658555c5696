//! Freed and reused pages under kills: threads of several processes fill and empty parts of some
//! tables in all orders, and are killed at random.
//!
//! Each part of a table has a tally, which transactions change together with the part; the two
//! agree in every snapshot. While no thread writes, every page belongs to one table or is free.

use std::time::Duration;

use latchwork_check::random::Random;
use latchwork_store::{Error, Mode, Options, Store, Table, TxnOptions, WriteTxn};

use crate::{Place, start};

/// Processes from this number on run this workload.
pub(crate) const ATTACKERS: u64 = 200;
const PROCESSES: u64 = 2;
const THREADS: u64 = 4;

const TABLES: [Table<(u64, u64), &[u8]>; 3] =
    [Table::new("ascending"), Table::new("descending"), Table::new("both")];
/// For each part: the number of its records, in millions, plus the sum of their keys.
const TALLIES: Table<(u64, u64), u64> = Table::new("tallies");
const RECORD: u64 = 1_000_000;
const PARTS: u64 = 6;
/// Upper bound of a part's keys.
const NUMBERS: u64 = 500;
/// Bound of the file's pages: there are at most 9,000 records of half a KB, some of them long.
const PAGES_MAX: u64 = 16 << 10;

type Write<'x, 's> = WriteTxn<'x, 's, latchwork_machine::Shared>;

fn options() -> Options {
    let mut options = Options::default();
    options.sizes.page = 4096;
    options.sizes.cache = 1 << 20;
    options.sizes.log_buffer = 1 << 20;
    options.sizes.log_segment = 4 << 20;
    options.sizes.log_budget = 2 << 20;
    options.sizes.history = 16 << 20;
    options.sizes.threads = 96;
    options
}

pub(crate) fn open(place: &Place) -> Store {
    Store::open_with(place.store(), &options()).unwrap()
}

/// The work of a process until it is killed.
pub(crate) fn attack(place: &Place, id: u64) -> ! {
    let store = open(place);
    let seed = 1 + id * 1_000_003 + store.log_end();
    for thread in 1..THREADS {
        let store = store.clone();
        std::thread::spawn(move || Attacker::new(store, id, thread, seed).go_on());
    }
    Attacker::new(store, id, 0, seed).go_on()
}

struct Attacker {
    store: Store,
    name: String,
    random: Random,
    number: u64,
}

/// Ends the process if a thread panics; otherwise the other threads would continue unnoticed.
struct Loud;

impl Drop for Loud {
    fn drop(&mut self) {
        std::process::exit(101);
    }
}

impl Attacker {
    fn new(store: Store, id: u64, thread: u64, seed: u64) -> Self {
        let random = Random(seed.wrapping_mul(2 * thread + 1));
        Self { store, name: format!("{id} {thread}"), random, number: 0 }
    }

    fn go_on(mut self) -> ! {
        let _loud = Loud;
        loop {
            self.round();
        }
    }

    fn round(&mut self) {
        match self.random.roll(100) {
            0 => self.store.checkpoint().unwrap(),
            1..15 => self.look(),
            15..20 => self.prepare(),
            _ => self.change(),
        }
    }

    /// Checks in a snapshot that a part agrees with its tally.
    fn look(&mut self) {
        let (table, part) = (self.random.roll(TABLES.len()), self.random.below(PARTS));
        let pause = Duration::from_micros(self.random.below(3000));
        let seen = self.store.read(|tx| {
            let tally = tx.get(&TALLIES, (table as u64, part))?.unwrap_or(0);
            std::thread::sleep(pause);
            let mut sum = 0;
            for row in tx.range(&TABLES[table], (part, 0)..(part + 1, 0))? {
                let ((_, number), value) = row?;
                assert!(value.iter().all(|byte| *byte == number as u8), "a wrong value");
                sum += RECORD + number;
            }
            assert_eq!(sum, tally, "table {table}, part {part} at {}", tx.at());
            Ok(())
        });
        match seen {
            Ok(()) | Err(Error::SnapshotTooOld { .. }) => {}
            Err(why) => panic!("{why}"),
        }
    }

    /// Fills or empties a part of a table.
    fn change(&mut self) {
        let mode = [Mode::None, Mode::None, Mode::Write, Mode::Full][self.random.roll(4)];
        let time = Duration::from_secs(60);
        let patience = TxnOptions { mode: Some(mode), time, ..TxnOptions::default() };
        let (seed, fails) = (self.random.below(u64::MAX - 1) + 1, self.random.below(12) == 0);
        let changed = self.store.write_with(&patience, |tx| {
            let mut random = Random(seed);
            step(tx, &mut random)?;
            if random.below(8) == 0 {
                let here = tx.savepoint()?;
                step(tx, &mut random)?;
                tx.roll_back_to(here)?;
            }
            if fails { Err(Error::Rejected(String::new())) } else { Ok(()) }
        });
        match changed {
            Ok(_) | Err(Error::Rejected(_)) => {}
            Err(why) => panic!("{why}"),
        }
    }

    /// The same in two phases.
    fn prepare(&mut self) {
        self.number += 1;
        let gid = format!("{} {}", self.name, self.number).into_bytes();
        let mut random = Random(self.random.below(u64::MAX - 1) + 1);
        let mut tx = self.store.begin().unwrap();
        match tx.with(|tx| step(tx, &mut random)) {
            Err(why) if why.is_retryable() => return,
            done => done.unwrap(),
        }
        match tx.prepare(&gid) {
            Err(why) if why.is_retryable() => return,
            done => done.unwrap(),
        }
        match self.random.roll(2) {
            0 => drop(self.store.commit_prepared(&gid).unwrap()),
            _ => self.store.roll_back_prepared(&gid).unwrap(),
        }
    }
}

/// Inserts a run of records into a part, or removes some, in a random order.
fn step(tx: &mut Write<'_, '_>, random: &mut Random) -> Result<(), Error> {
    let (table, part) = (random.roll(TABLES.len()), random.below(PARTS));
    let (rows, tally) = (&TABLES[table], (table as u64, part));
    let mut sum = tx.get_for_update(&TALLIES, tally)?.unwrap_or(0);
    let from = random.below(NUMBERS);
    let to = (from + 1 + random.below(NUMBERS / 3)).min(NUMBERS);
    let (from, to) = if random.below(12) == 0 { (0, NUMBERS) } else { (from, to) };
    match random.roll(5) {
        0 | 1 => {
            for number in from..to.min(from + 60) {
                let length = match random.below(100) {
                    0 => 3000 + random.below(20_000),
                    _ => random.below(900),
                };
                let value = vec![number as u8; length as usize];
                let new = tx.get_for_update(rows, (part, number))?.is_none();
                tx.put(rows, (part, number), &value)?;
                sum += if new { RECORD + number } else { 0 };
            }
        }
        order => {
            let there = tx.range(rows, (part, from)..(part, to))?;
            let there = there.map(|row| Ok(row?.0.1)).collect::<Result<Vec<_>, Error>>()?;
            sum -= there.iter().map(|number| RECORD + number).sum::<u64>();
            match order {
                2 => drop(tx.remove_range(rows, (part, from)..(part, to))?),
                3 => {
                    let mut back = there.iter().rev();
                    back.try_for_each(|number| tx.remove(rows, (part, *number)).map(drop))?;
                }
                _ => {
                    // From the middle to the end, then from the start to the middle.
                    let (first, last) = there.split_at(there.len() / 2);
                    let mut all = last.iter().chain(first);
                    all.try_for_each(|number| tx.remove(rows, (part, *number)).map(drop))?;
                }
            }
        }
    }
    tx.put(&TALLIES, tally, sum)
}

/// Decides the transactions that a killed process has prepared.
fn decide(store: &Store, dead: &str, random: &mut Random) {
    for prepared in store.prepared().unwrap() {
        if prepared.gid.starts_with(dead.as_bytes()) {
            match random.roll(2) {
                0 => drop(store.commit_prepared(&prepared.gid).unwrap()),
                _ => store.roll_back_prepared(&prepared.gid).unwrap(),
            }
        }
    }
}

/// Checks, while no thread writes, that every page belongs to one table or is free, and the
/// tallies.
fn check(store: &Store, attacker: &mut Attacker) -> u64 {
    store.sweep().unwrap();
    store.verify().unwrap();
    let space = store.space().unwrap();
    assert_eq!(space.lost, 0, "{space:?}");
    (0..60).for_each(|_| attacker.look());
    space.free
}

/// Kills one of the processes `count` times and replaces it; sometimes all of them.
pub(crate) fn kills(count: u64) {
    let place = Place::new("pages");
    let store = open(&place);
    let mut random = Random(0x5eed);
    let mut attacker = Attacker::new(store.clone(), 0, 0, 77);
    let new = |number: u64| start(&place, ATTACKERS + number, "", 0);
    let mut all: Vec<_> = (0..PROCESSES).map(new).collect();
    let mut free = 0;
    for kill in 1..=count {
        std::thread::sleep(Duration::from_millis(20 + random.below(150)));
        let together = kill % 8 == 0;
        let victim = random.below(PROCESSES);
        for number in (0..PROCESSES).filter(|number| together || *number == victim) {
            let process = &mut all[number as usize];
            assert_eq!(process.try_wait().unwrap(), None, "a process ended by itself");
            process.kill().unwrap();
            process.wait().unwrap();
            store.sweep().unwrap();
            decide(&store, &format!("{} ", ATTACKERS + number), &mut random);
        }
        if together {
            free = free.max(check(&store, &mut attacker));
        }
        (0..2).for_each(|_| attacker.change());
        for number in (0..PROCESSES).filter(|number| together || *number == victim) {
            all[number as usize] = new(number);
        }
    }
    for (number, process) in all.iter_mut().enumerate() {
        process.kill().unwrap();
        process.wait().unwrap();
        store.sweep().unwrap();
        decide(&store, &format!("{} ", ATTACKERS + number as u64), &mut random);
    }
    free = free.max(check(&store, &mut attacker));
    assert!(free > 0, "no page was freed");
    let space = store.space().unwrap();
    println!("{count} kills, {space:?}");
    assert!(space.pages < PAGES_MAX, "{space:?}");
}
