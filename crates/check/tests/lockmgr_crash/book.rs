//! What each of some processes says that it holds, in a file that all of them read: two that hold
//! what they may not are found by the one that was granted last.
//!
//! ```text
//!  column 0           states of the rows: a serial number, and the bits below
//!  columns 1 to 24    names: in each row the mode that the row's process holds, plus one
//!  columns 25 to 40   keys: in each row the kinds of ranges that it holds there, a bit each
//! ```
//!
//! A process writes what it holds after it was granted, and takes it back before it lets go. The
//! parent stops a process before it kills it, and says in the row's state that it is dead in
//! between: from then on its row does not count, unless its owners are kept. So a row never says
//! more than is held.

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

/// The file, as the process of one row has it.
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

    /// What the rows of others say in a column, and count.
    fn others(&self, column: u64) -> impl Iterator<Item = (u64, u64)> {
        // Twice: a row that goes to another process meanwhile does not count.
        let before = self.column(0);
        let words = self.column(column);
        let (after, me) = (self.column(0), self.row);
        let counts = |state: u64| state & ALIVE != 0 || state & (DEAD | KEPT) == DEAD | KEPT;
        (0..ROWS).filter_map(move |row| {
            let counts = before[row] == after[row] && counts(after[row]) && row as u64 != me;
            (counts && words[row] != 0).then_some((row as u64, words[row]))
        })
    }

    /// Says that a name is held so, which was granted just now; fails, and says why, if others hold
    /// what they may not beside it.
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

    /// Says that a name is held so, in a weaker mode from now on.
    pub(crate) fn note(&self, name: u64, mode: Mode) {
        let place = self.each.iter().position(|each| *each == mode).unwrap();
        self.put(1 + name, self.row, place as u64 + 1);
    }

    /// Takes back that a name is held: before it is let go.
    pub(crate) fn forget(&self, name: u64) {
        self.put(1 + name, self.row, 0);
    }

    /// As [`granted`](Self::granted), for a range.
    pub(crate) fn granted_range(&self, from: u64, to: u64, kind: RangeKind) {
        // Once granted it stops nobody.
        if kind == RangeKind::Intention {
            return;
        }
        for key in from..to {
            let column = 1 + NAMES + key;
            let mine = self.column(column)[self.row as usize];
            self.put(column, self.row, mine | 1 << kind as u64);
            for (row, kinds) in self.others(column) {
                // One that may come after the other, though not before it, is no fault.
                let excludes = |held: &RangeKind| held.stops(kind) && kind.stops(*held);
                let is_held = |held: &&RangeKind| kinds >> **held as u64 & 1 != 0;
                let stops = RangeKind::ALL.iter().filter(is_held).find(|held| excludes(held));
                let me = self.row;
                assert!(stops.is_none(), "row {me} has {kind:?} at {key}, row {row} {stops:?}");
            }
        }
    }

    /// Takes back all that the row says of ranges.
    pub(crate) fn forget_ranges(&self) {
        (0..KEYS).for_each(|key| self.put(1 + NAMES + key, self.row, 0));
    }

    /// A row for a new process, whose owners are kept after its death or not; its serial number is
    /// not zero. None if all rows say what dead owners hold.
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

    /// Says that a row's process, which is stopped, is dead.
    pub(crate) fn end(&self, row: u64) {
        let state = self.column(0)[row as usize];
        self.put(0, row, state & !ALIVE | DEAD);
    }

    /// What a dead process of this serial number held, whose owners are kept: names and modes.
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

    /// Takes back all that a row says.
    pub(crate) fn clear(&self, row: u64) {
        (1..=NAMES + KEYS).for_each(|column| self.put(column, row, 0));
    }
}

/// Two that hold what they may not are found; those of a dead process count if they are kept.
#[test]
fn what_two_may_not_hold_is_found() {
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
    assert!(three.granted(5, granular::X).is_err(), "the dead one's is kept");
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
