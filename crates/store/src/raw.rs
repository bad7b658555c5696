//! Keys and values of any table, as stored bytes.

use crate::key::{Key, KeyError};
use crate::types::Type;
use crate::value::{Value, ValueError};

/// A key or a value as stored bytes, for tools that read and write any table.
///
/// A table with keys or values of this type matches every recorded type. If a tool creates a table
/// with it, the table has no types until a program writes to it. A tool that writes must write
/// bytes that the recorded types allow; the store does not check this.
///
/// Programs that store their own byte strings should use `&[u8]` or `Vec<u8>`, which is a type like
/// any other.
///
/// # Examples
///
/// ```
/// use latchwork_store::{Raw, Store, Table};
///
/// const FRUIT: Table<&str, u64> = Table::new("fruit");
///
/// # let path = std::env::temp_dir().join(format!("store-raw-{}", std::process::id()));
/// let store = Store::open(&path)?;
/// store.put(&FRUIT, "pear", 3)?;
/// let raw: Table<Raw, Raw> = Table::new("fruit");
/// let rows = store.read(|tx| tx.range(&raw, ..)?.collect::<Result<Vec<_>, _>>())?;
/// assert_eq!(rows, [(b"\x02pear\x00".to_vec(), vec![3, 0, 0, 0, 0, 0, 0, 0])]);
/// # drop(store);
/// # std::fs::remove_dir_all(&path).unwrap();
/// # Ok::<(), latchwork_store::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw;

impl Key for Raw {
    type Of<'k> = &'k [u8];
    type Owned = Vec<u8>;
    const TYPE: &'static Type = &Type::Any;

    fn append(key: &Self::Of<'_>, _: bool, to: &mut Vec<u8>) {
        to.extend_from_slice(key);
    }

    /// Consumes all remaining bytes.
    fn take(from: &mut &[u8], _: bool) -> Result<Vec<u8>, KeyError> {
        Ok(core::mem::take(from).to_vec())
    }

    fn lend(owned: &Vec<u8>) -> &[u8] {
        owned
    }
}

impl Value for Raw {
    type Of<'v> = &'v [u8];
    type Owned = Vec<u8>;
    const TYPE: &'static Type = &Type::Any;

    fn encode(value: &Self::Of<'_>, to: &mut Vec<u8>) {
        to.extend_from_slice(value);
    }

    fn decode(bytes: &[u8]) -> Result<Vec<u8>, ValueError> {
        Ok(bytes.to_vec())
    }

    fn lend(owned: &Vec<u8>) -> &[u8] {
        owned
    }
}
