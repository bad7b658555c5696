//! Texts of errors about locks: the locked key, and the transactions in the way.

use core::fmt;
use core::ops::Bound;

use latchwork_lockmgr::{Blocker, Error as LocksError};
use latchwork_region::ProcessState;

use crate::key::code;
use crate::lock_name::{LOCK_NAME, of_name};
use crate::{AnyKey, Key};

/// The bounds of a range of keys.
pub type KeyBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// A transaction that another one waited for, as of the end of that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its process id, as seen in its own pid namespace. `None` if the process is dead and not yet
    /// swept, or the transaction has ended since.
    pub pid: Option<u32>,
    /// Its label: see [`TxnOptions::label`](crate::TxnOptions::label).
    pub label: String,
    /// Whether the process was stopped (by `SIGSTOP` or a debugger). False for a process in another
    /// pid namespace, where this is unknown.
    pub stopped: bool,
    /// Whether it holds the lock; otherwise it waits for the lock before the failed transaction.
    pub holds: bool,
    /// Whether it belongs to the thread that waited.
    pub same_thread: bool,
}

impl Holder {
    pub(crate) fn of(blocker: Blocker, same_thread: bool) -> Self {
        let Blocker { label, holds, process, .. } = blocker;
        let pid = process.map(|process| process.pid);
        let stopped = process.is_some_and(|process| process.state() == ProcessState::Stopped);
        Self { pid, label, stopped, holds, same_thread }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let does = if self.holds { "held by" } else { "behind" };
        match self.pid {
            _ if self.same_thread => write!(f, "{does} another transaction of this thread")?,
            Some(pid) if pid == std::process::id() => write!(f, "{does} this process ({pid})")?,
            Some(pid) => write!(f, "{does} process {pid}")?,
            None => write!(f, "{does} a transaction that has ended, or whose process is dead")?,
        }
        if !self.label.is_empty() {
            write!(f, ", label {:?}", self.label)?;
        }
        match self.stopped {
            true => f.write_str(", which is stopped: continue it (SIGCONT) or end it"),
            false => Ok(()),
        }
    }
}

/// The object of a lock, for error texts.
pub(crate) struct Of<'e> {
    pub(crate) table: &'e str,
    pub(crate) key: &'e [u8],
    pub(crate) range: Option<&'e KeyBounds>,
}

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, key, range } = self;
        let Some((from, to)) = range else { return write!(f, "key {} of {table}", Name(key)) };
        if matches!((from, to), (Bound::Unbounded, Bound::Unbounded)) {
            return write!(f, "all keys of {table}");
        }
        f.write_str("keys")?;
        match from {
            Bound::Included(key) => write!(f, " from {}", Name(key))?,
            Bound::Excluded(key) => write!(f, " after {}", Name(key))?,
            Bound::Unbounded => {}
        }
        match to {
            Bound::Included(key) => write!(f, " up to {}", Name(key))?,
            Bound::Excluded(key) => write!(f, " before {}", Name(key))?,
            Bound::Unbounded => {}
        }
        write!(f, " of {table}")
    }
}

/// Formats why a lock was not granted and which transactions are in the way: the holders, if any.
pub(crate) fn say_of_lock(
    f: &mut fmt::Formatter<'_>,
    of: &Of<'_>,
    why: &LocksError,
    holders: &[Holder],
) -> fmt::Result {
    write!(f, "{of}: {}", Why(why))?;
    let any_holds = holders.iter().any(|holder| holder.holds);
    let mut shown = holders.iter().filter(|holder| holder.holds || !any_holds);
    shown.by_ref().take(FEW).try_for_each(|holder| write!(f, "; {holder}"))?;
    match shown.count() {
        0 => Ok(()),
        more => write!(f, "; and {more} more"),
    }
}

/// How many holders the text names.
const FEW: usize = 3;

/// Formats a key by its types if the bytes encode a key, otherwise as bytes.
pub(crate) struct Name<'k>(pub(crate) &'k [u8]);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        match AnyKey::take(&mut rest, false) {
            Ok(key) if rest.is_empty() => write!(f, "{}", key.to_string().escape_debug()),
            _ => Bytes(self.0).fmt(f),
        }
    }
}

/// Formats bytes without a known encoding.
pub(crate) struct Bytes<'k>(pub(crate) &'k [u8]);

impl fmt::Display for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// Formats the reason of the lock manager; decodes the keys of a deadlock.
struct Why<'w>(&'w LocksError);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LocksError::Deadlock(cycle) = self.0 else { return self.0.fmt(f) };
        write!(f, "deadlock of {} transactions, of which this one is rolled back", cycle.owners)?;
        for link in cycle {
            let (owner, mode) = (link.owner, link.wanted);
            match of_name(&link.object) {
                Some((tree, key)) => {
                    write!(f, "; {owner} waits for key {} of {}", Name(key), of_tree(tree))?
                }
                None => write!(f, "; {owner} waits for {}", Bytes(&link.object))?,
            }
            let cut = if link.object.len() >= LOCK_NAME { ".." } else { "" };
            write!(f, "{cut} in mode {mode}")?;
        }
        Ok(())
    }
}

/// Names a table whose name is not known.
pub(crate) fn of_tree(tree: u32) -> String {
    format!("tree {tree}")
}

/// Names a key. For a text that is cut off, returns the available part.
pub(crate) fn key_in_words(key: &[u8]) -> String {
    let text = key.strip_prefix(&[code::TEXT]).map(str::from_utf8);
    match text {
        Some(Ok(text)) if !text.contains('\0') => text.escape_debug().to_string(),
        _ => Name(key).to_string(),
    }
}
