//! Why a folder is not opened as a store, or not made one; and what to do about it.

use core::fmt;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// Why a path was refused. Its text says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no store, and none was to be made.
    NoStore,
    /// It is a file, or lies below one.
    NotAFolder,
    /// It is a symbolic link to what is not there.
    DeadLink,
    /// The folder's path has more than 250 bytes, is no UTF-8, or has a line end in it.
    Path,
    /// The folder has files and is no store.
    NotEmpty {
        /// One of them.
        name: OsString,
    },
    /// There is something at a path where a store is to be made.
    Taken,
    /// A copy was to be made in the folder of a store.
    WithinStore,
    /// Another process is making a store there.
    BeingMade,
    /// Another process has been opening or closing it for longer than was to be waited.
    BeingOpened {
        /// Which, if that can be told.
        process: Option<u32>,
    },
    /// The store has a format that is not known here: a newer program made it.
    Newer {
        /// Its format.
        format: u64,
        /// The version of the program that made it, if it says so.
        program: Option<String>,
    },
    /// The store has a format that is not read any more: an older program made it.
    Older {
        /// Its format.
        format: u64,
    },
    /// A file of the folder is not what it should be.
    Damaged {
        /// Which.
        file: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A file of the store has other names, in this folder or another one (hard links): what one
    /// store writes would change the other one.
    HardLinked {
        /// The file.
        file: PathBuf,
        /// How many names it has.
        names: u64,
    },
    /// The file system is read-only.
    ReadOnly,
    /// The system does not permit it.
    Permission,
    /// It is another user's. Root is one, too: what it made there, that user could not open.
    ForeignOwner {
        /// Whose it is.
        owner: u32,
    },
    /// The file system, or the user's share of it, is full; or this process may not make files so
    /// long.
    NoSpace,
    /// The folder is on a file system that other machines write, too.
    Network {
        /// Its name.
        kind: &'static str,
    },
    /// Other processes have it open, and their shared memory is not to be seen from here.
    OtherNamespace,
    /// Nobody has this folder open, and living processes have its shared memory: they have another
    /// folder open, of the same path.
    OtherFolder,
    /// Its shared memory is that of a store at another path: it was moved or copied while it was
    /// open, or after its processes were killed.
    Elsewhere {
        /// Where that store is.
        path: PathBuf,
    },
    /// Its shared memory cannot be joined.
    Memory {
        /// What is wrong with it.
        why: String,
    },
    /// Something else is in the place of shared memory, or beside it.
    NotMemory {
        /// Its name.
        name: OsString,
    },
    /// As many processes have it open as its memory has slots for.
    Processes {
        /// How many.
        limit: u32,
    },
    /// Processes have it open.
    InUse,
    /// Processes read it in place ([`Options::read_only`](crate::Options::read_only)): their files
    /// must not change.
    ReadElsewhere,
    /// Its processes were killed: their memory has what its files do not have yet.
    LeftOpen,
    /// It has transactions that are prepared or that a crash left open, or commits beside prepared
    /// ones, of thread slots that there would not be.
    Threads {
        /// How many threads it is to be opened for, at least.
        needed: u32,
    },
    /// Its prepared transactions have more locks than there would be memory for.
    Locks {
        /// For how many bytes it was to be opened: `sizes.locks`.
        limit: u64,
    },
    /// The system said no in another way.
    System {
        /// The kind.
        kind: io::ErrorKind,
        /// What it said.
        why: String,
    },
}

impl From<io::Error> for Refusal {
    fn from(why: io::Error) -> Self {
        use io::ErrorKind as Kind;
        match why.kind() {
            Kind::NotADirectory => Self::NotAFolder,
            Kind::ReadOnlyFilesystem => Self::ReadOnly,
            Kind::PermissionDenied => Self::Permission,
            Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => Self::NoSpace,
            kind => Self::System { kind, why: why.to_string() },
        }
    }
}

impl Refusal {
    /// The text of one that has nothing of its own to tell.
    fn text(&self) -> Option<&'static str> {
        Some(match self {
            Self::NoStore => "there is no store",
            Self::NotAFolder => "it is no folder: a store is one",
            Self::DeadLink => "it is a link to what is not there: make that, or remove the link",
            Self::Path => "a store's path is UTF-8, of 250 bytes at most, without line ends",
            Self::Taken => "there is something of that name; choose another",
            Self::WithinStore => "it lies in the folder of a store: choose a place beside that",
            Self::BeingMade => "another process makes it just now",
            Self::ReadOnly => {
                "the file system is read-only: open the store with `read_only` (`--read-only`)"
            }
            Self::Permission => {
                "this user may not write there, or not look there: open it as its owner does"
            }
            Self::NoSpace => {
                "the file system is full, or the file too long for it or for RLIMIT_FSIZE: make \
                 room, nothing is lost"
            }
            Self::OtherNamespace => {
                "other processes have it open, and their shared memory is not to be seen from \
                 here, or by this user: share /dev/shm between the containers, or use one of them"
            }
            Self::OtherFolder => {
                "living processes have the shared memory of this path and another folder, of \
                 which this is a copy: mount it at another path, or give each its own /dev/shm"
            }
            Self::InUse => "processes have it open: close it, or use `backup`",
            Self::ReadElsewhere => {
                "processes read its files in place, with `read_only`: end them, or read it so, too"
            }
            Self::LeftOpen => {
                "its processes were killed, and their memory has what its files have not: open \
                 it once and close it, as `stat` does; or `forget-memory` has the files alone count"
            }
            _ => return None,
        })
    }
}

fn being_opened(process: Option<u32>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("another process ")?;
    process.map_or(Ok(()), |process| write!(f, "({process}) "))?;
    f.write_str(
        "opens or closes it, which takes long after a crash of the machine: wait longer, or look \
         at that process",
    )
}

fn newer(format: u64, program: Option<&str>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let known = crate::format::FORMAT;
    write!(f, "created with format {format}; this version reads format {known}. ")?;
    match program {
        Some(program) => write!(f, "Use latchwork {program} or later"),
        None => f.write_str("Use a later version of latchwork"),
    }
}

fn older(format: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let known = crate::format::FORMAT;
    write!(f, "created with format {format}")?;
    if let Some(version) = crate::format::version_of(format) {
        return write!(
            f,
            " (latchwork {version}); this version reads format {known}. `latchwork store upgrade` \
             converts it in place; copy the folder before"
        );
    }
    write!(
        f,
        "; this version reads format {known}. Run `latchwork store dump` of the version that \
         created it, and `latchwork store load` of this one"
    )
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEmpty { name } => {
                write!(f, "no store, or not its own: it has `{}`", name.display())
            }
            Self::BeingOpened { process } => being_opened(*process, f),
            Self::ForeignOwner { owner } => write!(
                f,
                "it belongs to user {owner}, and all of a store, its shared memory too, to one \
                 user: open it as that one (`sudo -u '#{owner}'`), or give all to another with \
                 `chown -R` while nobody has it open"
            ),
            Self::Newer { format, program } => newer(*format, program.as_deref(), f),
            Self::Older { format } => older(*format, f),
            Self::Damaged { file, what } => {
                write!(f, "its file `{file}` is damaged, or not the one that belongs there: {what}")
            }
            Self::HardLinked { file, names } => write!(
                f,
                "its file `{}` has {names} names (hard links), so that another folder changes \
                 with this one: copy the folder with `cp -r --reflink=auto` and open the copy, or \
                 remove the other names; `store backup` makes a copy of an open store",
                file.display()
            ),
            Self::NotMemory { name } => write!(
                f,
                "`{}` is no shared memory of a store: move it away, and all that is not the \
                 store's",
                name.display()
            ),
            Self::Memory { why } => write!(
                f,
                "this shared memory of a store cannot be joined: {why}. End the processes that \
                 have the store open; if it stays so, `forget-memory` has the files alone count, \
                 without what was not synced"
            ),
            Self::Network { kind } => write!(
                f,
                "it is on {kind}, a file system of other machines, whose locks and memory a \
                 store's processes cannot share: put it on a disk of this one"
            ),
            Self::Elsewhere { path } => write!(
                f,
                "its shared memory is that of the store at {}: it was moved or copied while that \
                 was open, or is mounted at another path here. Move it back, or copy a store with \
                 `backup`; `forget-memory` has the files alone count, without what was not synced",
                path.display()
            ),
            Self::Processes { limit } => write!(
                f,
                "{limit} processes have it open, and its shared memory has no slot for another \
                 one: close one of them, or look at the store with `--read-only`, which needs no \
                 slot"
            ),
            Self::Threads { needed } => write!(
                f,
                "it has transactions of more threads, which are prepared or which a crash left \
                 open: open it for {needed} threads at least, until those are decided and these \
                 undone"
            ),
            Self::Locks { limit } => write!(
                f,
                "its prepared transactions have more locks than {limit} bytes of memory have room \
                 for: open it with more (`sizes.locks`), until those are decided"
            ),
            Self::System { why, .. } => f.write_str(why),
            other => f.write_str(other.text().unwrap_or("refused")),
        }
    }
}

impl core::error::Error for Refusal {}
