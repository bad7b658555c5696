//! Numbers every call to a disk, so that a fault can be planned at one, and counts calls by
//! operation, so that a program can report its syncs.

use core::fmt;
use core::ops::{Index, Sub};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// The operation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// [`Disk::open`](crate::Disk::open).
    Open,
    /// [`File::read`](crate::File::read).
    Read,
    /// [`File::write`](crate::File::write).
    Write,
    /// [`File::sync`](crate::File::sync).
    Sync,
    /// [`File::truncate`](crate::File::truncate).
    Truncate,
    /// [`File::allocate`](crate::File::allocate).
    Allocate,
    /// [`File::length`](crate::File::length).
    Length,
    /// [`File::lock`](crate::File::lock).
    Lock,
    /// [`Disk::make_folder`](crate::Disk::make_folder).
    MakeFolder,
    /// [`Disk::rename`](crate::Disk::rename).
    Rename,
    /// [`Disk::link`](crate::Disk::link).
    Link,
    /// [`Disk::remove`](crate::Disk::remove).
    Remove,
    /// [`Disk::list`](crate::Disk::list).
    List,
    /// [`Disk::sync_folder`](crate::Disk::sync_folder).
    SyncFolder,
    /// The additional call of [`File::sync_in_doubt`](crate::File::sync_in_doubt) besides its
    /// [`Sync`](Self::Sync).
    SyncSystem,
    /// [`File::punch`](crate::File::punch).
    Punch,
}

const OPERATIONS: usize = Operation::Punch as usize + 1;

impl Operation {
    /// Returns its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Truncate => "truncate",
            Self::Allocate => "allocate",
            Self::Length => "length",
            Self::Lock => "lock",
            Self::MakeFolder => "make folder",
            Self::Rename => "rename",
            Self::Link => "link",
            Self::Remove => "remove",
            Self::List => "list",
            Self::SyncFolder => "sync folder",
            Self::SyncSystem => "sync file system",
            Self::Punch => "punch",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The number of calls of each operation: `calls[Operation::Sync]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    counts: [u64; OPERATIONS],
    /// Bytes that [`Operation::Read`] returned.
    pub bytes_read: u64,
    /// Bytes that [`Operation::Write`] wrote.
    pub bytes_written: u64,
}

impl Calls {
    /// Returns the number of all calls.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl Index<Operation> for Calls {
    type Output = u64;

    fn index(&self, operation: Operation) -> &u64 {
        &self.counts[operation as usize]
    }
}

impl Sub for Calls {
    type Output = Self;

    /// Returns the calls since `before`.
    fn sub(mut self, before: Self) -> Self {
        for (count, before) in self.counts.iter_mut().zip(before.counts) {
            *count = count.saturating_sub(before);
        }
        self.bytes_read = self.bytes_read.saturating_sub(before.bytes_read);
        self.bytes_written = self.bytes_written.saturating_sub(before.bytes_written);
        self
    }
}

/// The counters of one disk. Relaxed: they order nothing.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    counts: [AtomicU64; OPERATIONS],
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, operation: Operation) {
        self.counts[operation as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.count(Operation::Read);
        self.bytes_read.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn wrote(&self, bytes: usize) {
        self.count(Operation::Write);
        self.bytes_written.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn get(&self) -> Calls {
        let mut calls = Calls {
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            ..Calls::default()
        };
        for (count, counter) in calls.counts.iter_mut().zip(&self.counts) {
            *count = counter.load(Relaxed);
        }
        calls
    }
}
