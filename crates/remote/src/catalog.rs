//! The tables of a database: their numbers, types and schema versions.
//!
//! A row of `latchwork_tables` never changes once it has types, and is never removed. So what one
//! transaction has found holds for all later ones, and is kept for the whole handle.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use latchwork_store::elsewhere::{Named, table_info};
use latchwork_store::{Error, NAME_MAX, ServerFailure, TableInfo};
use tokio_postgres::Row;

use crate::error::server;
use crate::link::{Link, Message, params};
use crate::sql::{Sql, tree_of};

/// The tables whose types were compared with those of this program, by their tags.
#[derive(Default)]
pub(crate) struct Catalog {
    known: RwLock<HashMap<u64, &'static str>>,
}

impl Catalog {
    pub(crate) fn knows(&self, named: &Named) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&named.tag) == Some(&named.name)
    }

    pub(crate) fn insert(&self, named: &Named) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(named.tag, named.name);
    }
}

/// Refuses a name that the store refuses as well.
pub(crate) fn fits(named: &Named) -> Result<(), Error> {
    match named.name.len() > NAME_MAX {
        true => Err(Error::NameTooLong { table: named.name.to_owned() }),
        false => Ok(()),
    }
}

/// The message that finds a table.
pub(crate) fn find(named: &Named) -> Message {
    Message::Bound(Sql::Table, params![tree_of(named.name)])
}

/// The message that adds or updates the table in the catalog, with its types and its version.
pub(crate) fn add(name: &str, info: &TableInfo, is_there: bool) -> Message {
    let (tree, version) = (tree_of(name), i64::from(info.version));
    let (key, value) = (info.key.clone(), info.value.clone());
    match is_there {
        true => Message::Bound(Sql::TypeTable, params![tree, key, value, version]),
        false => {
            let name = name.as_bytes().to_vec();
            Message::Bound(Sql::AddTable, params![tree, name, key, value, version])
        }
    }
}

/// The table as a program names it.
pub(crate) fn wanted(named: &Named) -> TableInfo {
    let text = |of: &latchwork_store::Type| (!named.is_any()).then(|| of.to_string());
    table_info(named.name.to_owned(), text(&named.key), text(&named.value), named.version)
}

/// A table from a row of the catalog.
fn info(row: &Row) -> Result<TableInfo, Error> {
    let read = || -> Result<_, tokio_postgres::Error> {
        let name: &[u8] = row.try_get(0)?;
        Ok((name.to_vec(), row.try_get(1)?, row.try_get(2)?, row.try_get::<_, i64>(3)?))
    };
    let (name, key, value, version) = read().map_err(|why| crate::error::of(&why))?;
    let foreign = || server(ServerFailure::ForeignTable, "latchwork_tables has a damaged row");
    let name = String::from_utf8(name).map_err(|_| foreign())?;
    Ok(table_info(name, key, value, u32::try_from(version).map_err(|_| foreign())?))
}

/// The catalog's entries of all tables.
pub(crate) async fn all_tables(link: &Link) -> Result<Vec<TableInfo>, Error> {
    let answers = link.all(&[Message::Bound(Sql::Tables, params![])]).await?;
    answers.iter().flat_map(|answer| &*answer.rows).map(info).collect()
}

/// The catalog's entry for a table that a call names.
pub(crate) enum Found {
    /// There is no row.
    Absent,
    /// The row has no types, and the call has.
    Untyped,
    /// Its types and its version are those of the call.
    Typed,
}

/// Compares a row of the catalog with the table that a call names.
pub(crate) fn compare(named: &Named, row: Option<&Row>) -> Result<Found, Error> {
    let Some(row) = row else { return Ok(Found::Absent) };
    let stored = info(row)?;
    if stored.name != named.name {
        let what = format!("the tables {} and {} have one number", stored.name, named.name);
        return Err(server(ServerFailure::ForeignTable, what));
    }
    named.check(&stored)?;
    let is_typed = stored.key.is_some() && stored.value.is_some();
    Ok(if is_typed || named.is_any() { Found::Typed } else { Found::Untyped })
}
