//! Records that are written into a store.

use core::iter::Peekable;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use bytes::{Buf, Bytes, BytesMut};
use latchwork_store::{
    Error, Key, KeyError, Mode, Raw, Rows, Store, Table, TableInfo, TxnOptions, Type, Value,
    ValueError,
};

use super::{Change, PIECE, Sum, frame};

/// Loads a table in bulk, in a thread of its own. Its transaction commits what it has got when the
/// stream ends or fails; a killed process has loaded nothing.
pub(crate) struct Loader {
    limit: usize,
    /// Records that were not sent yet, and how many.
    piece: BytesMut,
    records: usize,
    to: SyncSender<Bytes>,
    thread: JoinHandle<Result<u64, Error>>,
}

/// The records of a piece.
fn rows(mut piece: Bytes) -> impl Iterator<Item = (Bytes, Bytes)> {
    let mut part = move || {
        let length = piece.try_get_u64_le().ok()?;
        Some(piece.split_to(length as usize))
    };
    core::iter::from_fn(move || Some((part()?, part()?)))
}

impl Loader {
    pub(crate) fn start(store: &Store, table: &TableInfo) -> Self {
        let (to, pieces) = sync_channel::<Bytes>(4);
        let (store, limit) = (store.clone(), store.load_limit());
        let of: Table<Whole, Whole> = Table::named(&table.name).with_version(table.version);
        let load = move || store.load_sorted(&of, pieces.into_iter().flat_map(rows));
        let thread = std::thread::spawn(load);
        Self { limit, piece: BytesMut::new(), records: 0, to, thread }
    }

    /// Whether it can load a record: not a long value, nor what follows it.
    pub(crate) fn takes(&self, key: &[u8], value: &[u8]) -> bool {
        key.len() + value.len() <= self.limit
    }

    /// Adds a record; returns whether a piece was sent. The sum has the record when its piece is
    /// sent.
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8], sum: &mut Sum) -> Result<bool, Error> {
        sum.count(key, value);
        frame(key, &mut self.piece);
        frame(value, &mut self.piece);
        self.records += 1;
        if self.piece.len() < PIECE && self.records < STORE_RECORDS {
            return Ok(false);
        }
        // It fails if the load has failed: its error is that of the end.
        let stopped = |_| Error::Engine("the load has stopped".to_owned());
        self.records = 0;
        let piece = self.cut(sum);
        self.to.send(piece).map_err(stopped)?;
        Ok(true)
    }

    fn cut(&mut self, sum: &mut Sum) -> Bytes {
        sum.add_framed(&self.piece);
        core::mem::replace(&mut self.piece, BytesMut::with_capacity(PIECE)).freeze()
    }

    /// Waits until all is loaded.
    pub(crate) fn end(mut self, sum: &mut Sum) -> Result<(), Error> {
        let piece = self.cut(sum);
        let _ = self.to.send(piece);
        drop(self.to);
        let panicked = |_| Err(Error::Engine("the load has panicked".to_owned()));
        self.thread.join().unwrap_or_else(panicked).map(drop)
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
