//! The shared file: accounts, and for each owner of locks a note of how to undo its transfer.
//!
//! Records have 64 bytes, so none crosses a page, and each is written by one system call: a killed
//! process leaves a record in its old or its new state. (Power failures are not covered.)
//!
//! | record | content |
//! |---|---|
//! | 0 | number of accounts |
//! | 1.. | accounts: balance, and number of changes |
//! | then | notes, by the slot of the owner |

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use latchwork_lockmgr::OwnerId;

const WORDS: usize = 8;
const BYTES: u64 = WORDS as u64 * 8;
/// Owners with a slot beyond this cannot leave a note. There are never that many here.
const NOTES: u32 = 1 << 20;

/// The first balance of every account.
pub(super) const OPENING: i64 = 1000;

type Record = [u64; WORDS];

/// Returns the constant total of so many accounts.
pub(super) fn expected(accounts: u64) -> i64 {
    accounts as i64 * OPENING
}

/// An account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) balance: i64,
    pub(super) changes: u64,
}

/// A transfer, as recorded before it begins: both accounts in their old state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Undo {
    pub(super) amount: i64,
    pub(super) from: (u64, Account),
    pub(super) to: (u64, Account),
}

impl Undo {
    /// Returns the accounts in their new state.
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
    /// Creates the file.
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

    /// Opens a file that `create` created.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut ledger = Self { file, accounts: 0 };
        ledger.accounts = ledger.read(0)?[0];
        Ok(ledger)
    }

    /// Returns the constant total of all accounts.
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

    /// Reads an account, which the caller has locked.
    pub(super) fn account(&self, number: u64) -> io::Result<Account> {
        let words = self.read(1 + number)?;
        Ok(Account { balance: words[0] as i64, changes: words[1] })
    }

    /// Changes an account, which the caller has locked exclusively.
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

    /// Records how to undo the owner's next transfer.
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

    /// Erases the note of a completed transfer.
    pub(super) fn forget(&self, owner: OwnerId) -> io::Result<()> {
        self.write(self.note_of(owner)?, Record::default())
    }

    /// Undoes the transfer that a dead owner began, while it still has its locks. Returns the
    /// transfer, if any, and whether only one account was changed. May be repeated, because the
    /// process that does it may also be killed.
    pub(super) fn undo(&self, owner: OwnerId) -> io::Result<Option<(Undo, bool)>> {
        let words = match self.read(self.note_of(owner)?) {
            // No note was ever written that far behind in the file.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            words => words?,
        };
        // Otherwise it is none, or that of an earlier owner of the slot.
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
