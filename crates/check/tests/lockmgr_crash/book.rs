//! A file in which each process records the locks that it holds, read by all of them. If two
//! processes hold conflicting locks, the process that was granted last detects it.
//!
//! ```text
//!  column 0           states of the rows: a serial number, and the bits below
//!  columns 1 to 24    names: in each row the mode that the row's process holds, plus one
//!  columns 25 to 40   keys: in each row the kinds of ranges that it holds there, a bit each
//! ```
//!
//! A process records a lock after it was granted and removes the record before it unlocks. The
//! parent stops a process, marks its row as dead, and then kills it. The row of a dead process does
//! not count unless its owners are kept. So a row never lists more than is held.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use latchwork_lockmgr::{Mode, Modes, RangeKind, granular};

pub(crate) const NAMES: u64 = 24;
pub(crate) const KEYS: u64 = 16;
const ROWS: usize = 64;

/// In a row's state.
const ALIVE: u64 = 1;
const DEAD: u64 = 2;
const KEPT: u64 = 4;
const SERIAL: u32 = 3;

/// The file, opened by the process of one row.
pub(crate) struct Book {
    file: File,
    row: u64,
    modes: Modes,
    each: Vec<Mode>,
}

type Column = [u64; ROWS];

impl Book {
    pub(crate) fn open(path: &Path, row: u64) -> Self {
        let mut open = File::options();
        let file = open.create(true).truncate(false).read(true).write(true);
        let file = file.open(path.with_extension("book")).unwrap();
        file.set_len((1 + NAMES + KEYS) * ROWS as u64 * 8).unwrap();
        let modes = granular::modes();
        let each = modes.each().collect();
        Self { file, row, modes, each }
    }

    fn put(&self, column: u64, row: u64, word: u64) {
        let at = (column * ROWS as u64 + row) * 8;
        self.file.write_all_at(&word.to_le_bytes(), at).unwrap();
    }

    fn column(&self, column: u64) -> Column {
        let mut bytes = [0; ROWS * 8];
        self.file.read_exact_at(&mut bytes, column * ROWS as u64 * 8).unwrap();
        let words = bytes.as_chunks().0;
        core::array::from_fn(|row| u64::from_le_bytes(words[row]))
    }

    /// Returns the nonzero words in a column of those rows of other processes that count.
    fn others(&self, column: u64) -> impl Iterator<Item = (u64, u64)> {
        // The state is read twice: a row reassigned to another process in between does not count.
        let before = self.column(0);
        let words = self.column(column);
        let (after, me) = (self.column(0), self.row);
        let counts = |state: u64| state & ALIVE != 0 || state & (DEAD | KEPT) == DEAD | KEPT;
        (0..ROWS).filter_map(move |row| {
            let counts = before[row] == after[row] && counts(after[row]) && row as u64 != me;
            (counts && words[row] != 0).then_some((row as u64, words[row]))
        })
    }

    /// Records that a name was granted in this mode. Fails with a description if another process
    /// holds a conflicting lock.
    pub(crate) fn granted(&self, name: u64, mode: Mode) -> Result<(), String> {
        self.note(name, mode);
        for (row, word) in self.others(1 + name) {
            let held = self.each[word as usize - 1];
            if self.modes.conflicts(held, mode) {
                let (me, modes) = (self.row, &self.modes);
                let (mode, held) = (modes.name(mode), modes.name(held));
                return Err(format!("row {me} has {mode} on name {name}, row {row} has {held}"));
            }
        }
        Ok(())
    }

    /// Records that a held name is now held in a weaker mode.
    pub(crate) fn note(&self, name: u64, mode: Mode) {
        let place = self.each.iter().position(|each| *each == mode).unwrap();
        self.put(1 + name, self.row, place as u64 + 1);
    }

    /// Removes the record of a name, before it is unlocked.
    pub(crate) fn forget(&self, name: u64) {
        self.put(1 + name, self.row, 0);
    }

    /// As [`granted`](Self::granted), for a range. Panics on a conflict.
    pub(crate) fn granted_range(&self, from: u64, to: u64, kind: RangeKind) {
        // A granted intention blocks no request.
        if kind == RangeKind::Intention {
            return;
        }
        for key in from..to {
            let column = 1 + NAMES + key;
            let mine = self.column(column)[self.row as usize];
            self.put(column, self.row, mine | 1 << kind as u64);
            for (row, kinds) in self.others(column) {
                // A conflict in one direction only is allowed: it depends on the order of requests.
                let excludes = |held: &RangeKind| held.stops(kind) && kind.stops(*held);
                let is_held = |held: &&RangeKind| kinds >> **held as u64 & 1 != 0;
                let stops = RangeKind::ALL.iter().filter(is_held).find(|held| excludes(held));
                let me = self.row;
                assert!(stops.is_none(), "row {me} has {kind:?} at {key}, row {row} {stops:?}");
            }
        }
    }

    /// Removes all records of ranges in this row.
    pub(crate) fn forget_ranges(&self) {
        (0..KEYS).for_each(|key| self.put(1 + NAMES + key, self.row, 0));
    }

    /// Assigns a row to a new process, whose owners are kept after its death if `kept`. The serial
    /// number is not zero. Returns None if all rows are needed for owners of dead processes.
    pub(crate) fn begin(&self, serial: u64, kept: bool) -> Option<u64> {
        let states = self.column(0);
        let said: Vec<Column> = (1..=NAMES + KEYS).map(|column| self.column(column)).collect();
        let is_free = |row: &usize| match states[*row] {
            0 => true,
            state if state & ALIVE != 0 => false,
            state if state & KEPT == 0 => true,
            _ => said.iter().all(|column| column[*row] == 0),
        };
        let row = (0..ROWS).find(is_free)? as u64;
        self.put(0, row, 0);
        (1..=NAMES + KEYS).for_each(|column| self.put(column, row, 0));
        self.put(0, row, serial << SERIAL | if kept { ALIVE | KEPT } else { ALIVE });
        Some(row)
    }

    /// Marks the row of a stopped process as dead.
    pub(crate) fn end(&self, row: u64) {
        let state = self.column(0)[row as usize];
        self.put(0, row, state & !ALIVE | DEAD);
    }

    /// Returns the row of the killed process with this serial number, and the names and modes it
    /// held.
    pub(crate) fn of_dead(&self, serial: u64) -> Option<(u64, Vec<(u64, Mode)>)> {
        let states = self.column(0);
        let is = |state: &u64| state & DEAD != 0 && state >> SERIAL == serial;
        let row = states.iter().position(is)?;
        let held = (0..NAMES).filter_map(|name| {
            let word = self.column(1 + name)[row];
            (word != 0).then(|| (name, self.each[word as usize - 1]))
        });
        Some((row as u64, held.collect()))
    }

    /// Removes all records of a row.
    pub(crate) fn clear(&self, row: u64) {
        (1..=NAMES + KEYS).for_each(|column| self.put(column, row, 0));
    }
}

/// Conflicting locks are detected; those of a dead process count if its owners are kept.
#[test]
fn conflicting_grants_are_detected() {
    let path = std::env::temp_dir().join(format!("book-{}", std::process::id()));
    let _ = std::fs::remove_file(path.with_extension("book"));
    let book = |row| Book::open(&path, row);
    let fails =
        |work: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err();
    let parent = book(99);
    let rows = [(1, false), (2, true), (3, false)].map(|(n, kept)| parent.begin(n, kept).unwrap());
    assert_eq!(rows, [0, 1, 2]);
    let [one, kept, three] = rows.map(book);
    one.granted(5, granular::S).unwrap();
    kept.granted(5, granular::IS).unwrap();
    assert!(three.granted(5, granular::IX).is_err() && three.granted(6, granular::X).is_ok());
    three.forget(5);
    parent.end(0);
    three.granted(5, granular::IX).unwrap();
    assert!(three.granted(5, granular::X).is_err());
    parent.end(1);
    assert!(three.granted(5, granular::X).is_err(), "the lock of the dead process is kept");
    assert_eq!(parent.of_dead(2), Some((1, vec![(5, granular::IS)])));
    assert_eq!(parent.begin(4, false), Some(0));
    parent.clear(1);
    three.granted(5, granular::X).unwrap();
    three.granted_range(3, 6, RangeKind::ReadNext);
    let four = book(0);
    four.granted_range(6, 8, RangeKind::WriteNext);
    assert!(fails(&|| four.granted_range(5, 7, RangeKind::Insert)));
    let _ = std::fs::remove_file(path.with_extension("book"));
}
