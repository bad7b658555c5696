//! Two disks for files that must not change.
//!
//! [`Overlay`] keeps writes in memory of this process and only reads the files below it, so that a
//! store on read-only media can be recovered and read. [`ReadOnly`] refuses every call that would
//! change a file for a process that reads what others write.
//!
//! A file of an overlay consists of blocks of 4,096 bytes. Written blocks are in memory; others are
//! read from the file below, up to the point where it was truncated.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::{Calls, Disk, Error, File, Open, Operation, Subject};

const BLOCK: usize = 4096;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A disk whose changes stay in memory of this process. Clones are the same disk.
///
/// It uses memory for each written block of 4,096 bytes, and a descriptor for each opened file,
/// until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Overlay {
    below: Arc<dyn Disk>,
    /// The files that were opened, created or named here; none where a name was removed.
    names: Arc<Mutex<HashMap<PathBuf, Option<Arc<Node>>>>>,
}

impl Overlay {
    /// Creates an overlay that reads from `below` and changes nothing there.
    pub fn new(below: Arc<dyn Disk>) -> Self {
        Self { below, names: Arc::default() }
    }

    /// The file of this name, if it exists.
    fn node(&self, path: &Path) -> Result<Option<Arc<Node>>, Error> {
        if let Some(known) = locked(&self.names).get(path) {
            return Ok(known.clone());
        }
        match self.below.open(path, Open::READ) {
            Ok(file) => {
                let node = Arc::new(Node::new(path, Some(file))?);
                Ok(locked(&self.names).entry(path.to_owned()).or_insert(Some(node)).clone())
            }
            Err(Error::NotFound(_)) => Ok(None),
            Err(why) => Err(why),
        }
    }

    fn moves(&self, from: &Path, operation: Operation) -> Result<Arc<Node>, Error> {
        self.node(from)?.ok_or_else(|| Error::NotFound(Subject::new(operation, from, 0)))
    }
}

impl Disk for Overlay {
    fn open(&self, path: &Path, how: Open) -> Result<Box<dyn File>, Error> {
        let subject = || Subject::new(Operation::Open, path, 0);
        let node = match self.node(path)? {
            Some(_) if how.fresh => return Err(Error::Exists(subject())),
            Some(node) => node,
            None if how.create || how.fresh => {
                let node = Arc::new(Node::new(path, None)?);
                locked(&self.names).insert(path.to_owned(), Some(node.clone()));
                node
            }
            None => return Err(Error::NotFound(subject())),
        };
        Ok(Box::new(OverlayFile { node }))
    }

    fn make_folder(&self, path: &Path) -> Result<(), Error> {
        // Files have whole paths here, so a folder needs no entry.
        match self.below.list(path) {
            Err(Error::NotFound(_)) | Ok(_) => Ok(()),
            Err(why) => Err(why),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Error> {
        let node = self.moves(from, Operation::Rename)?;
        let mut names = locked(&self.names);
        names.insert(from.to_owned(), None);
        names.insert(to.to_owned(), Some(node));
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> Result<(), Error> {
        let node = self.moves(from, Operation::Link)?;
        if self.node(to)?.is_some() {
            return Err(Error::Exists(Subject::new(Operation::Link, to, 0)));
        }
        locked(&self.names).insert(to.to_owned(), Some(node));
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<(), Error> {
        self.moves(path, Operation::Remove)?;
        locked(&self.names).insert(path.to_owned(), None);
        Ok(())
    }

    fn list(&self, folder: &Path) -> Result<Vec<OsString>, Error> {
        let mut found = match self.below.list(folder) {
            Err(Error::NotFound(_)) => Vec::new(),
            other => other?,
        };
        for (path, node) in locked(&self.names).iter() {
            if path.parent() == Some(folder)
                && let Some(name) = path.file_name()
            {
                found.retain(|known| known != name);
                found.extend(node.is_some().then(|| name.to_owned()));
            }
        }
        found.sort();
        Ok(found)
    }

    fn sync_folder(&self, _: &Path) -> Result<(), Error> {
        Ok(())
    }

    fn calls(&self) -> Calls {
        self.below.calls()
    }
}

/// A file of an overlay.
#[derive(Debug)]
struct Node {
    path: PathBuf,
    below: Option<Box<dyn File>>,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    length: u64,
    /// The bytes of the file below that are used; zeros follow them.
    kept: u64,
    blocks: BTreeMap<u64, Box<[u8; BLOCK]>>,
}

impl Node {
    fn new(path: &Path, below: Option<Box<dyn File>>) -> Result<Self, Error> {
        let length = below.as_ref().map_or(Ok(0), |below| below.length())?;
        let state = RwLock::new(State { length, kept: length, blocks: BTreeMap::new() });
        Ok(Self { path: path.to_owned(), below, state })
    }

    /// Reads bytes of one block from the file below.
    fn fetch(&self, state: &State, at: u64, into: &mut [u8]) -> Result<(), Error> {
        into.fill(0);
        let count = state.kept.saturating_sub(at).min(into.len() as u64) as usize;
        match &self.below {
            Some(below) if count > 0 => below.read(at, &mut into[..count]),
            _ => Ok(()),
        }
    }
}

/// The pieces of a run of bytes by block: the block's number, the offset in it, and the bytes.
fn pieces(at: u64, count: usize) -> impl Iterator<Item = (u64, usize, core::ops::Range<usize>)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let now = at + done as u64;
        let within = (now % BLOCK as u64) as usize;
        let piece = (count - done).min(BLOCK - within);
        let range = done..done + piece;
        done += piece;
        (piece > 0).then_some((now / BLOCK as u64, within, range))
    })
}

#[derive(Debug)]
struct OverlayFile {
    node: Arc<Node>,
}

impl OverlayFile {
    fn change(&self) -> std::sync::RwLockWriteGuard<'_, State> {
        self.node.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.node.state.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File for OverlayFile {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        let state = self.look();
        let (wanted, there) = (into.len() as u64, state.length.saturating_sub(at));
        let got = wanted.min(there);
        for (block, within, range) in pieces(at, got as usize) {
            let place = at + range.start as u64;
            let into = &mut into[range];
            match state.blocks.get(&block) {
                Some(bytes) => into.copy_from_slice(&bytes[within..within + into.len()]),
                None => self.node.fetch(&state, place, into)?,
            }
        }
        if got < wanted {
            let subject = Subject::new(Operation::Read, &self.node.path, at);
            return Err(Error::ShortRead { subject, wanted, got });
        }
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), Error> {
        let mut state = self.change();
        for (block, within, range) in pieces(at, from.len()) {
            if !state.blocks.contains_key(&block) {
                let mut bytes = Box::new([0; BLOCK]);
                self.node.fetch(&state, block * BLOCK as u64, &mut bytes[..])?;
                state.blocks.insert(block, bytes);
            }
            if let Some(bytes) = state.blocks.get_mut(&block) {
                bytes[within..within + range.len()].copy_from_slice(&from[range]);
            }
        }
        state.length = state.length.max(at + from.len() as u64);
        Ok(())
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    fn sync_in_doubt(&self) -> Result<(), Error> {
        Ok(())
    }

    fn truncate(&self, length: u64) -> Result<(), Error> {
        let mut state = self.change();
        if length < state.length {
            state.kept = state.kept.min(length);
            drop(state.blocks.split_off(&length.div_ceil(BLOCK as u64)));
            let within = (length % BLOCK as u64) as usize;
            if let Some(bytes) = state.blocks.get_mut(&(length / BLOCK as u64)) {
                bytes[within..].fill(0);
            }
        }
        state.length = length;
        Ok(())
    }

    fn allocate(&self, at: u64, length: u64) -> Result<(), Error> {
        let mut state = self.change();
        state.length = state.length.max(at.saturating_add(length));
        Ok(())
    }

    fn punch(&self, at: u64, _: u64) -> Result<(), Error> {
        Err(Error::Unsupported(Subject::new(Operation::Punch, &self.node.path, at)))
    }

    fn length(&self) -> Result<u64, Error> {
        Ok(self.look().length)
    }

    fn links(&self) -> Result<u64, Error> {
        self.node.below.as_ref().map_or(Ok(1), |below| below.links())
    }

    fn lock(&self, _: u64, _: bool) -> Result<bool, Error> {
        Ok(true)
    }
}

/// A disk that refuses every change with [`Error::ReadOnly`], as if the file could not be opened
/// for writing.
#[derive(Clone, Debug)]
pub struct ReadOnly {
    below: Arc<dyn Disk>,
}

fn refuse<T>(path: &Path) -> Result<T, Error> {
    Err(Error::ReadOnly(Subject::new(Operation::Open, path, 0)))
}

impl ReadOnly {
    /// Creates a disk that reads from `below`.
    pub fn new(below: Arc<dyn Disk>) -> Self {
        Self { below }
    }
}

impl Disk for ReadOnly {
    fn open(&self, path: &Path, how: Open) -> Result<Box<dyn File>, Error> {
        if how.fresh {
            return refuse(path);
        }
        let read = Open { direct: how.direct, ..Open::READ };
        let file = self.below.open(path, read)?;
        Ok(Box::new(ReadOnlyFile { file, path: path.to_owned() }))
    }

    fn make_folder(&self, path: &Path) -> Result<(), Error> {
        self.below.list(path).map(drop)
    }

    fn rename(&self, from: &Path, _: &Path) -> Result<(), Error> {
        refuse(from)
    }

    fn link(&self, from: &Path, _: &Path) -> Result<(), Error> {
        refuse(from)
    }

    fn remove(&self, path: &Path) -> Result<(), Error> {
        refuse(path)
    }

    fn list(&self, folder: &Path) -> Result<Vec<OsString>, Error> {
        self.below.list(folder)
    }

    fn sync_folder(&self, folder: &Path) -> Result<(), Error> {
        refuse(folder)
    }

    fn calls(&self) -> Calls {
        self.below.calls()
    }
}

#[derive(Debug)]
struct ReadOnlyFile {
    file: Box<dyn File>,
    path: PathBuf,
}

impl File for ReadOnlyFile {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        self.file.read(at, into)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Error> {
        refuse(&self.path)
    }

    fn sync(&self) -> Result<(), Error> {
        refuse(&self.path)
    }

    fn sync_in_doubt(&self) -> Result<(), Error> {
        refuse(&self.path)
    }

    fn truncate(&self, _: u64) -> Result<(), Error> {
        refuse(&self.path)
    }

    fn allocate(&self, _: u64, _: u64) -> Result<(), Error> {
        refuse(&self.path)
    }

    fn punch(&self, _: u64, _: u64) -> Result<(), Error> {
        refuse(&self.path)
    }

    fn length(&self) -> Result<u64, Error> {
        self.file.length()
    }

    fn links(&self) -> Result<u64, Error> {
        self.file.links()
    }

    fn allocated(&self) -> Result<u64, Error> {
        self.file.allocated()
    }

    fn next_data(&self, at: u64) -> Result<Option<u64>, Error> {
        self.file.next_data(at)
    }

    fn lock(&self, byte: u64, exclusive: bool) -> Result<bool, Error> {
        self.file.lock(byte, exclusive)
    }
}
