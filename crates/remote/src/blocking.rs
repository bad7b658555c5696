//! Transactions of threads.

use core::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use latchwork_store::Error;

use crate::calls::{Calls, Transaction};
use crate::catalog::Catalog;
use crate::pool::Taken;
use crate::retry::End;
use crate::session::Driven;
use crate::state::Steps;

/// A transaction of a thread, which waits in each call.
pub(crate) struct Blocking<S> {
    taken: Taken<Driven>,
    transaction: Transaction<S>,
}

impl<S: Steps> Blocking<S> {
    pub(crate) fn new(taken: Taken<Driven>, catalog: Arc<Catalog>, deadline: Instant) -> Self {
        Self { taken, transaction: Transaction::new(catalog, deadline) }
    }

    pub(crate) fn call<T>(
        &mut self,
        call: impl AsyncFnOnce(&mut Calls<'_, S>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Self { taken, transaction } = self;
        taken.connection()?.wait(async |session| {
            let (mut on, limit) = transaction.begin(session);
            // Pinned where it is made: a future is large, and would be copied at each step down.
            let done = limit.within(pin!(call(&mut on))).await;
            transaction.answered(session, done)
        })
    }

    /// Ends with the result of its closure.
    pub(crate) fn end<R, E>(mut self, result: Result<R, E>) -> Result<R, End<E>> {
        let Self { taken, transaction } = &mut self;
        match result {
            // No need to enter the runtime.
            Ok(value) if transaction.has_no_work() => Ok(value),
            result => {
                taken.connection()?.wait(async |session| transaction.end(session, result).await)
            }
        }
    }
}

/// The calls of a transaction that only read.
macro_rules! reads {
    () => {
        fn get<K: Key, V: Value>(
            &mut self,
            table: &Table<K, V>,
            key: K::Of<'_>,
        ) -> Result<Option<V::Owned>, Error> {
            let key = table.key(&key)?;
            self.call(async |on| on.get(table, key).await)
        }

        fn get_many<'k, K: Key, V: Value>(
            &mut self,
            table: &Table<K, V>,
            keys: impl IntoIterator<Item = K::Of<'k>>,
        ) -> Result<Vec<Option<V::Owned>>, Error> {
            let keys = $crate::calls::keys_of(table, keys)?;
            self.call(async |on| on.get_many(table, keys).await)
        }

        fn contains<K: Key, V: Value>(
            &mut self,
            table: &Table<K, V>,
            key: K::Of<'_>,
        ) -> Result<bool, Error> {
            let key = table.key(&key)?;
            self.call(async |on| on.contains(table, key).await)
        }

        fn first<K: Key, V: Value>(
            &mut self,
            table: &Table<K, V>,
        ) -> Result<Option<Record<K, V>>, Error> {
            self.call(async |on| on.end(table, false).await)
        }

        fn last<K: Key, V: Value>(
            &mut self,
            table: &Table<K, V>,
        ) -> Result<Option<Record<K, V>>, Error> {
            self.call(async |on| on.end(table, true).await)
        }

        fn count<'k, K: Key, V: Value>(
            &mut self,
            table: &Table<K, V>,
            range: impl RangeBounds<K::Of<'k>>,
        ) -> Result<u64, Error> {
            let range = $crate::calls::range_of(table, &range)?;
            self.call(async |on| on.count(table, range).await)
        }
    };
}
pub(crate) use reads;
