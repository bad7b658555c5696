//! What errors about locks say: of what, and which transactions are in the way.

use core::fmt;
use core::ops::Bound;

use latchwork_lockmgr::{Blocker, Error as LocksError};
use latchwork_region::ProcessState;

use crate::key::code;
use crate::lock_name::{LOCK_NAME, of_name};
use crate::{AnyKey, Key};

/// The ends of a range of keys.
pub type KeyBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// A transaction in the way of another one, as it was when a wait for a lock came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its process, by the number that this has in its own pid namespace. None if its process is
    /// dead and not yet swept, or if the transaction has ended meanwhile.
    pub pid: Option<u32>,
    /// Its label: see [`TxnOptions::label`](crate::TxnOptions::label).
    pub label: String,
    /// Whether that process was stopped (by `SIGSTOP`, or a debugger). Not known, and false, of a
    /// process in another pid namespace.
    pub stopped: bool,
    /// Whether it holds the lock; if not, it waits for it, before the transaction that failed.
    pub holds: bool,
    /// Whether it is of the thread that waited.
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

/// What a lock is of, as people read it.
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

/// Why a lock was not had, and which transactions are in the way: those that hold it, if any do.
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

/// How many holders are named.
const FEW: usize = 3;

/// A key as people read it: by its types, if it has been encoded by some.
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

/// Bytes that nobody has encoded.
pub(crate) struct Bytes<'k>(pub(crate) &'k [u8]);

impl fmt::Display for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// Why a lock was not had, with the keys of a deadlock as people read them.
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

/// A table as an error names it whose name is not known.
pub(crate) fn of_tree(tree: u32) -> String {
    format!("tree {tree}")
}

/// A key as errors name it. Of a text that is cut off, what is there.
pub(crate) fn key_in_words(key: &[u8]) -> String {
    let text = key.strip_prefix(&[code::TEXT]).map(str::from_utf8);
    match text {
        Some(Ok(text)) if !text.contains('\0') => text.escape_debug().to_string(),
        _ => Name(key).to_string(),
    }
}
