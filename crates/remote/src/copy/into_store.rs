//! Records that are written into a store.

use core::iter::Peekable;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use bytes::{Bytes, BytesMut};
use latchwork_store::{
    Error, Key, KeyError, Mode, Raw, Rows, Store, Table, TableInfo, TxnOptions, Type, Value,
    ValueError,
};

use super::{Change, PIECE};

/// Loads a table in bulk, in a thread of its own. Its transaction commits what it has got when the
/// stream ends or fails; a killed process has loaded nothing.
pub(crate) struct Loader {
    limit: usize,
    piece: Piece,
    to: SyncSender<Piece>,
    thread: JoinHandle<Result<u64, Error>>,
}

/// Keys and values one after the other, and the lengths of each pair.
#[derive(Default)]
struct Piece {
    bytes: BytesMut,
    lengths: Vec<(usize, usize)>,
}

impl Piece {
    fn into_rows(self) -> impl Iterator<Item = (Bytes, Bytes)> {
        let mut bytes = self.bytes.freeze();
        let row = move |(key, value)| (bytes.split_to(key), bytes.split_to(value));
        self.lengths.into_iter().map(row)
    }
}

impl Loader {
    pub(crate) fn start(store: &Store, table: &TableInfo) -> Self {
        let (to, pieces) = sync_channel::<Piece>(4);
        let (store, limit) = (store.clone(), store.load_limit());
        let of: Table<Whole, Whole> = Table::named(&table.name).with_version(table.version);
        let load = move || store.load_sorted(&of, pieces.into_iter().flat_map(Piece::into_rows));
        Self { limit, piece: Piece::default(), to, thread: std::thread::spawn(load) }
    }

    /// Whether it can load a record: not a long value, nor what follows it.
    pub(crate) fn takes(&self, key: &[u8], value: &[u8]) -> bool {
        key.len() + value.len() <= self.limit
    }

    /// Adds a record; returns whether a piece was sent.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.piece.bytes.extend_from_slice(key);
        self.piece.bytes.extend_from_slice(value);
        self.piece.lengths.push((key.len(), value.len()));
        if self.piece.bytes.len() < PIECE && self.piece.lengths.len() < STORE_RECORDS {
            return Ok(false);
        }
        let piece = core::mem::take(&mut self.piece);
        // It fails if the load has failed: its error is that of the end.
        let stopped = |_| Error::Engine("the load has stopped".to_owned());
        self.to.send(piece).map_err(stopped)?;
        Ok(true)
    }

    /// Waits until all is loaded.
    pub(crate) fn end(self) -> Result<(), Error> {
        let Self { piece, to, thread, .. } = self;
        let _ = to.send(piece);
        drop(to);
        let panicked = |_| Err(Error::Engine("the load has panicked".to_owned()));
        thread.join().unwrap_or_else(panicked).map(drop)
    }
}

/// Keys and values that are loaded: their bytes as they are.
struct Whole;

impl Key for Whole {
    type Of<'k> = Bytes;
    type Owned = Bytes;
    const TYPE: &'static Type = &Type::Any;

    fn append(key: &Bytes, _: bool, to: &mut Vec<u8>) {
        to.extend_from_slice(key);
    }

    fn take(from: &mut &[u8], _: bool) -> Result<Bytes, KeyError> {
        Ok(Bytes::copy_from_slice(core::mem::take(from)))
    }

    fn lend(owned: &Bytes) -> Bytes {
        owned.clone()
    }
}

impl Value for Whole {
    type Of<'v> = Bytes;
    type Owned = Bytes;
    const TYPE: &'static Type = &Type::Any;

    fn encode(value: &Bytes, to: &mut Vec<u8>) {
        to.extend_from_slice(value);
    }

    fn decode(bytes: &[u8]) -> Result<Bytes, ValueError> {
        Ok(Bytes::copy_from_slice(bytes))
    }

    fn lend(owned: &Bytes) -> Bytes {
        owned.clone()
    }
}

/// Makes a table equal to the source, from what an earlier copy has left of it.
pub(crate) struct Merge<'s> {
    store: &'s Store,
    of: Table<Raw, Raw>,
    there: Peekable<Rows<'s, Raw, Raw>>,
    changes: Vec<Change>,
    size: usize,
}

impl<'s> Merge<'s> {
    pub(crate) fn new(store: &'s Store, of: Table<Raw, Raw>, there: Rows<'s, Raw, Raw>) -> Self {
        Self { store, of, there: there.peekable(), changes: Vec::new(), size: 0 }
    }

    /// Adds a record of the source; returns whether some were written.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8], found: &mut u64) -> Result<bool, Error> {
        while let Some((old, _)) =
            self.there.next_if(|old| matches!(old, Ok((old, _)) if &old[..] < key)).transpose()?
        {
            self.changes.push((old, None));
        }
        match self.there.next_if(|old| !matches!(old, Ok((old, _)) if old != key)).transpose()? {
            Some((_, old)) if old == value => *found += 1,
            _ => {
                self.size += key.len() + value.len();
                self.changes.push((key.to_vec(), Some(value.to_vec())));
            }
        }
        let is_full = self.changes.len() >= STORE_RECORDS || self.size >= STORE_BYTES;
        if is_full {
            self.write()?;
        }
        Ok(is_full)
    }

    /// Removes the records behind the last one of the source.
    pub(crate) fn end(mut self) -> Result<(), Error> {
        while let Some((old, _)) = self.there.next().transpose()? {
            self.changes.push((old, None));
        }
        self.write()
    }

    fn write(&mut self) -> Result<(), Error> {
        let Self { store, of, changes, .. } = self;
        if changes.is_empty() {
            return Ok(());
        }
        let options = TxnOptions { mode: Some(Mode::None), label: "copy", ..TxnOptions::default() };
        store.write_with(&options, |tx| {
            changes.iter().try_for_each(|(key, value)| match value {
                Some(value) => tx.put(of, key, value),
                None => tx.remove(of, key).map(drop),
            })
        })?;
        changes.clear();
        self.size = 0;
        Ok(())
    }
}

/// How many records a transaction of the store has, and bytes.
const STORE_RECORDS: usize = 2000;
const STORE_BYTES: usize = 1 << 20;
