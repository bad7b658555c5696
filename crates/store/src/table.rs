//! Tables: names, and the types of their keys and values.
//!
//! A table is a constant, or named at run time. Nothing is looked up before it is used, so a
//! `const` costs nothing, and two programs that name the same table with the same types share it.

use core::fmt;
use core::marker::PhantomData;

use crate::key::KEY_MAX;
use crate::names::kept;
use crate::types::{HASH, number, text};
use crate::{Error, Key, Raw, Type, Value};

/// A table whose keys are in order, each with one value.
///
/// The first call of a transaction that may write and names a table records its types and its
/// [schema version](Self::with_version) in the store. From then on every call that names the table
/// with other types or another version fails with [`Error::TableType`]. A session compares them
/// once for each table. Tools that read any table use [`Raw`](crate::Raw) or
/// [`AnyKey`](crate::AnyKey), which match every type.
///
/// # Examples
///
/// ```
/// use latchwork_store::Table;
///
/// const ACCOUNTS: Table<u64, i64> = Table::new("accounts");
/// const OWNERS: Table<(&str, u64), ()> = Table::new("owners");
/// assert_eq!(ACCOUNTS.name(), "accounts");
/// assert!(OWNERS.key(&("ann", 8))? < OWNERS.key(&("ann", 9))?);
/// # Ok::<(), latchwork_store::Error>(())
/// ```
pub struct Table<K, V> {
    name: &'static str,
    version: u32,
    /// Hash of the name, the version and the described types; used for lookups.
    hash: u64,
    /// Types of a table of [`Raw`](crate::Raw) that are known only at run time.
    described: Option<(Type, Type)>,
    of: PhantomData<fn(K, V)>,
}

/// A table that a call names.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) name: &'static str,
    pub(crate) tag: u64,
    pub(crate) version: u32,
    pub(crate) key: Type,
    pub(crate) value: Type,
}

impl<K, V> Table<K, V> {
    /// Creates the table of this name, with schema version 0. O(length of the name); evaluated by
    /// the compiler in a constant. A name of more than 900 bytes fails at its first use
    /// ([`Error::NameTooLong`]).
    pub const fn new(name: &'static str) -> Self {
        Self { name, version: 0, hash: hashed(name, 0), described: None, of: PhantomData }
    }

    /// Sets the schema version, which a program changes when the meaning of keys or values changes.
    /// The store refuses a program with another version than the recorded one.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::Table;
    ///
    /// /// Prices in cents; version 0 had them in euros.
    /// const PRICES: Table<&str, u64> = Table::new("prices").with_version(1);
    /// assert_eq!(PRICES.version(), 1);
    /// ```
    #[must_use]
    pub const fn with_version(self, version: u32) -> Self {
        let hash = self.hash ^ hashed(self.name, self.version) ^ hashed(self.name, version);
        Self { version, hash, ..self }
    }

    /// Returns its schema version.
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Creates the table of a name that is computed at run time. It is the same table as that of a
    /// constant with this name.
    ///
    /// The process keeps each distinct name until it ends. O(log names), under a mutex; a `Table`
    /// that is used often should be kept by the caller.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Store, Table};
    ///
    /// # let path = std::env::temp_dir().join(format!("store-named-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// for tenant in ["ann", "bob"] {
    ///     let mails: Table<u64, &str> = Table::named(&format!("mails of {tenant}"));
    ///     store.put(&mails, 1, "welcome")?;
    /// }
    /// assert_eq!(store.tables()?, ["mails of ann", "mails of bob"]);
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn named(name: &str) -> Self {
        Self::new(kept(name))
    }

    /// Returns its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<K: Key, V: Value> Table<K, V> {
    /// Hash of its types, computed by the compiler.
    const TYPES: u64 = V::TYPE.hash(K::TYPE.hash(HASH));

    /// Identifies the table: a hash of its name, version and types.
    #[inline]
    pub(crate) const fn tag(&self) -> u64 {
        self.hash ^ Self::TYPES
    }

    /// Returns the table for code that does not depend on its types.
    pub(crate) const fn asked(&self) -> Asked {
        let (key, value) = match self.described {
            Some(described) => described,
            None => (*K::TYPE, *V::TYPE),
        };
        Asked { name: self.name, tag: self.tag(), version: self.version, key, value }
    }
}

impl Table<Raw, Raw> {
    /// Sets types that are known only at run time, for programs in other languages, which encode
    /// keys and values themselves. The types are recorded and compared as those of any table. The
    /// store does not check written bytes against them. O(length of the types).
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{AnyKey, Error, Key, KeyPart, Raw, Store, Table, Type};
    ///
    /// # let path = std::env::temp_dir().join(format!("store-described-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// let (key, value) = (Type::parse("(str,u64)").unwrap(), Type::parse("u64").unwrap());
    /// let lines: Table<Raw, Raw> = Table::named("lines").described(key, value);
    /// let mut bytes = Vec::new();
    /// AnyKey::encode(&&[KeyPart::Text("ann".to_owned()), KeyPart::Integer(8)][..], &mut bytes);
    /// store.put(&lines, &bytes, &7_u64.to_le_bytes())?;
    ///
    /// const LINES: Table<(&str, u64), u64> = Table::new("lines");
    /// assert_eq!(store.get(&LINES, ("ann", 8))?, Some(7));
    /// const WRONG: Table<u64, u64> = Table::new("lines");
    /// assert!(matches!(store.get(&WRONG, 8), Err(Error::TableType { .. })));
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    #[must_use]
    pub const fn described(self, key: Type, value: Type) -> Self {
        let of_types = value.hash(key.hash(HASH));
        let hash = hashed(self.name, self.version) ^ of_types;
        Self { hash, described: Some((key, value)), ..self }
    }
}

impl<K: Key, V> Table<K, V> {
    /// Encodes a key. O(length).
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`].
    pub fn key(&self, key: &K::Of<'_>) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.key_into(key, &mut bytes)?;
        Ok(bytes)
    }

    /// Encodes a key into `bytes`, replacing their contents.
    #[inline]
    pub(crate) fn key_into(&self, key: &K::Of<'_>, bytes: &mut Vec<u8>) -> Result<(), Error> {
        bytes.clear();
        K::encode(key, bytes);
        checked(self.name, bytes)
    }

    /// Decodes a key. O(length).
    ///
    /// # Errors
    ///
    /// [`Error::Key`].
    pub fn key_of(&self, bytes: &[u8]) -> Result<K::Owned, Error> {
        K::decode(bytes).map_err(|why| Error::Key { table: self.name.to_owned(), why })
    }
}

impl<K, V: Value> Table<K, V> {
    /// Encodes a value. O(length).
    pub fn value(&self, value: &V::Of<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.value_into(value, &mut bytes);
        bytes
    }

    /// Encodes a value into `bytes`, replacing their contents.
    #[inline]
    pub(crate) fn value_into(&self, value: &V::Of<'_>, bytes: &mut Vec<u8>) {
        bytes.clear();
        V::encode(value, bytes);
    }

    /// Decodes a value. O(length).
    ///
    /// # Errors
    ///
    /// [`Error::Value`].
    pub fn value_of(&self, bytes: &[u8]) -> Result<V::Owned, Error> {
        V::decode(bytes).map_err(|why| Error::Value { table: self.name.to_owned(), why })
    }
}

/// Returns the hash of a name and a schema version.
const fn hashed(name: &str, version: u32) -> u64 {
    number(text(HASH, name), version as u64)
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Table<K, V> {}

impl<K, V> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Table").field(&self.name).finish()
    }
}

/// A table whose keys have any number of values each, in order.
///
/// A pair of key and value is one record, whose key contains both. The pairs of a key are
/// neighbours.
///
/// # Examples
///
/// ```
/// use latchwork_store::Multi;
///
/// const TAGS: Multi<&str, u64> = Multi::new("tags");
/// let (one, two) = (TAGS.pair(&("red", 1))?, TAGS.pair(&("red", 2))?);
/// assert!(TAGS.all_of(&"red")?.contains(&one) && TAGS.all_of(&"red")?.contains(&two));
/// assert!(!TAGS.all_of(&"re")?.contains(&one));
/// # Ok::<(), latchwork_store::Error>(())
/// ```
pub struct Multi<K, V> {
    table: Table<(K, V), ()>,
}

impl<K, V> Multi<K, V> {
    /// Creates the table of this name.
    pub const fn new(name: &'static str) -> Self {
        Self { table: Table::new(name) }
    }

    /// Creates the table of a name that is computed at run time: see [`Table::named`].
    pub fn named(name: &str) -> Self {
        Self { table: Table::named(name) }
    }

    /// Sets the schema version: see [`Table::with_version`].
    #[must_use]
    pub const fn with_version(self, version: u32) -> Self {
        Self { table: self.table.with_version(version) }
    }

    /// Returns its name.
    pub const fn name(&self) -> &'static str {
        self.table.name
    }

    /// Returns the table of its pairs.
    pub(crate) fn table(&self) -> &Table<(K, V), ()> {
        &self.table
    }
}

impl<K: Key, V: Key> Multi<K, V> {
    /// Encodes a pair. O(length).
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`].
    pub fn pair<'p>(&self, pair: &(K::Of<'p>, V::Of<'p>)) -> Result<Vec<u8>, Error> {
        self.table.key(pair)
    }

    /// Decodes a pair. O(length).
    ///
    /// # Errors
    ///
    /// [`Error::Key`].
    pub fn pair_of(&self, bytes: &[u8]) -> Result<(K::Owned, V::Owned), Error> {
        self.table.key_of(bytes)
    }

    /// Returns the range of all pairs of a key. O(length).
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`].
    pub fn all_of(&self, key: &K::Of<'_>) -> Result<core::ops::Range<Vec<u8>>, Error> {
        let mut from = Vec::new();
        K::append(key, false, &mut from);
        checked(self.name(), &from)?;
        Ok(after(&from, from.clone()))
    }
}

impl<K, V> Clone for Multi<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Multi<K, V> {}

impl<K, V> fmt::Debug for Multi<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Multi").field(&self.table.name).finish()
    }
}

/// Returns the range of all keys that begin with these parts. No part begins with FF, as [`Key`]
/// says. An FF after the zero that ends a text is not a part but belongs to a longer text.
pub(crate) fn after(prefix: &[u8], from: Vec<u8>) -> core::ops::Range<Vec<u8>> {
    let mut to = prefix.to_vec();
    to.push(0xff);
    from..to
}

#[inline]
pub(crate) fn checked(table: &str, bytes: &[u8]) -> Result<(), Error> {
    if bytes.len() > KEY_MAX {
        let (length, limit) = (bytes.len(), KEY_MAX);
        return Err(Error::KeyTooLong { table: table.to_owned(), length, limit });
    }
    Ok(())
}
