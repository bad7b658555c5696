//! Ranges of keys as the statements take them.

use core::ops::Bound;

use crate::link::{Params, params};
use crate::sql::Sql;

/// A range: from a key on, and up to before another one, if there is an end.
pub(crate) struct Range {
    pub(crate) from: Vec<u8>,
    pub(crate) to: Option<Vec<u8>>,
}

/// The first key behind this one.
pub(crate) fn behind(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}

impl Range {
    pub(crate) fn new<B: AsRef<[u8]>>(from: Bound<B>, to: Bound<B>) -> Self {
        let from = match from {
            Bound::Included(key) => key.as_ref().to_vec(),
            Bound::Excluded(key) => behind(key.as_ref()),
            Bound::Unbounded => Vec::new(),
        };
        let to = match to {
            Bound::Included(key) => Some(behind(key.as_ref())),
            Bound::Excluded(key) => Some(key.as_ref().to_vec()),
            Bound::Unbounded => None,
        };
        Self { from, to }
    }

    /// The ends of the range.
    pub(crate) fn bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Included(self.from), self.to.map_or(Bound::Unbounded, Bound::Excluded))
    }

    /// The statement that reads at most so many records of a table, and its parameters.
    pub(crate) fn scan(&self, tree: i64, back: bool, limit: i64) -> (Sql, Params) {
        let sql = match (back, &self.to) {
            (false, None) => Sql::ScanFrom,
            (false, Some(_)) => Sql::ScanBetween,
            (true, None) => Sql::BackFrom,
            (true, Some(_)) => Sql::BackBetween,
        };
        let from = self.from.clone();
        match &self.to {
            Some(to) => (sql, params![tree, from, limit, to.clone()]),
            None => (sql, params![tree, from, limit]),
        }
    }

    fn ends(&self, tree: i64) -> Params {
        match &self.to {
            Some(to) => params![tree, self.from.clone(), to.clone()],
            None => params![tree, self.from.clone()],
        }
    }

    /// The statement that counts the records.
    pub(crate) fn count(&self, tree: i64) -> (Sql, Params) {
        let sql = if self.to.is_some() { Sql::CountBetween } else { Sql::CountFrom };
        (sql, self.ends(tree))
    }

    /// The statement that removes the records.
    pub(crate) fn remove(&self, tree: i64) -> (Sql, Params) {
        let sql = if self.to.is_some() { Sql::RemoveBetween } else { Sql::RemoveFrom };
        (sql, self.ends(tree))
    }
}
