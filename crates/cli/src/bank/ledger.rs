//! The shared file: accounts, and for each owner of locks a note of how to undo what it began.
//!
//! Records of 64 bytes, so that none crosses a page, each written by one system call: a process
//! that is killed leaves a record as it was or as it was to be. (Of a power cut nothing is said
//! here.)
//!
//! | record | what |
//! |---|---|
//! | 0 | how many accounts there are |
//! | 1.. | accounts: balance, and how often it was changed |
//! | then | notes, by the slot of the owner |

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use latchwork_lockmgr::OwnerId;

const WORDS: usize = 8;
const BYTES: u64 = WORDS as u64 * 8;
/// Owners with a slot beyond this cannot leave a note. There are never as many here.
const NOTES: u32 = 1 << 20;

/// What every account begins with.
pub(super) const OPENING: i64 = 1000;

type Record = [u64; WORDS];

/// What so many accounts have together, for ever.
pub(super) fn expected(accounts: u64) -> i64 {
    accounts as i64 * OPENING
}

/// An account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) balance: i64,
    pub(super) changes: u64,
}

/// A transfer, as noted before it begins: both accounts as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Undo {
    pub(super) amount: i64,
    pub(super) from: (u64, Account),
    pub(super) to: (u64, Account),
}

impl Undo {
    /// The accounts as they are to be.
    pub(super) fn after(&self) -> [(u64, Account); 2] {
        let moved = |(number, account): (u64, Account), amount| {
            (number, Account { balance: account.balance + amount, changes: account.changes + 1 })
        };
        [moved(self.from, -self.amount), moved(self.to, self.amount)]
    }
}

/// The file.
pub(super) struct Ledger {
    file: File,
    pub(super) accounts: u64,
}

impl Ledger {
    /// Makes the file.
    pub(super) fn create(path: &Path, accounts: u64) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        let ledger = Self { file, accounts };
        for number in 0..accounts {
            ledger.set(number, Account { balance: OPENING, changes: 0 })?;
        }
        let mut first = Record::default();
        first[0] = accounts;
        ledger.write(0, first)?;
        Ok(ledger)
    }

    /// Opens a file that `create` has made.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut ledger = Self { file, accounts: 0 };
        ledger.accounts = ledger.read(0)?[0];
        Ok(ledger)
    }

    /// What all accounts have together, for ever.
    pub(super) fn expected(&self) -> i64 {
        expected(self.accounts)
    }

    fn read(&self, record: u64) -> io::Result<Record> {
        let mut bytes = [0; BYTES as usize];
        self.file.read_exact_at(&mut bytes, record * BYTES)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(std::array::from_fn(|at| u64::from_ne_bytes(words[at])))
    }

    fn write(&self, record: u64, words: Record) -> io::Result<()> {
        self.file.write_all_at(words.map(u64::to_ne_bytes).as_flattened(), record * BYTES)
    }

    /// An account, for whoever has it locked.
    pub(super) fn account(&self, number: u64) -> io::Result<Account> {
        let words = self.read(1 + number)?;
        Ok(Account { balance: words[0] as i64, changes: words[1] })
    }

    /// Changes an account, for whoever has it locked exclusively.
    pub(super) fn set(&self, number: u64, account: Account) -> io::Result<()> {
        let mut words = Record::default();
        (words[0], words[1]) = (account.balance as u64, account.changes);
        self.write(1 + number, words)
    }

    fn note_of(&self, owner: OwnerId) -> io::Result<u64> {
        if owner.index >= NOTES {
            return Err(io::Error::other(format!("no room for a note of owner {owner}")));
        }
        Ok(1 + self.accounts + u64::from(owner.index))
    }

    /// Notes how to undo what the owner is about to do.
    pub(super) fn note(&self, owner: OwnerId, undo: &Undo) -> io::Result<()> {
        let (from, to) = (undo.from, undo.to);
        let words = [
            u64::from(owner.generation) + 1,
            from.0,
            from.1.balance as u64,
            from.1.changes,
            to.0,
            to.1.balance as u64,
            to.1.changes,
            undo.amount as u64,
        ];
        self.write(self.note_of(owner)?, words)
    }

    /// The owner has done it all: nothing is to be undone.
    pub(super) fn forget(&self, owner: OwnerId) -> io::Result<()> {
        self.write(self.note_of(owner)?, Record::default())
    }

    /// Undoes what a dead owner had begun, while its locks are still its own. Says what that was,
    /// if anything, and whether one account was changed and the other not. May be done again:
    /// whoever does it may be killed, too.
    pub(super) fn undo(&self, owner: OwnerId) -> io::Result<Option<(Undo, bool)>> {
        let words = match self.read(self.note_of(owner)?) {
            // No note was ever so far behind in the file.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            words => words?,
        };
        // Else it is none, or one of an earlier owner of the slot.
        if words[0] != u64::from(owner.generation) + 1 {
            return Ok(None);
        }
        let account = |at: usize| {
            (words[at], Account { balance: words[at + 1] as i64, changes: words[at + 2] })
        };
        let undo = Undo { from: account(1), to: account(4), amount: words[7] as i64 };
        let changed = |was: (u64, Account)| Ok::<bool, io::Error>(self.account(was.0)? != was.1);
        let half = changed(undo.from)? != changed(undo.to)?;
        self.set(undo.from.0, undo.from.1)?;
        self.set(undo.to.0, undo.to.1)?;
        self.forget(owner)?;
        Ok(Some((undo, half)))
    }
}
