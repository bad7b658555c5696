//! Sequences: numbers that are unique across callers.
//!
//! A thread claims numbers in batches, each with a short transaction on the row of the sequence,
//! and returns them without access to shared memory. So there is no hot record. A number is used up
//! whether the transaction that requested it commits or not. Sequences have gaps: the rest of a
//! batch is lost when its thread ends.

use core::any::Any;
use core::ops::Range;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use latchwork_machine::ConstMachine;

use crate::names::kept;
use crate::{Error, Store, Table};

/// The table with the next number of each sequence.
const SEQUENCES: Table<&str, u64> = Table::new("latchwork sequences");

/// A sequence of numbers that starts at 1: see [`Store::next_number`].
///
/// Declared as a constant, as a [`Table`] is. Programs that name the same sequence share it.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    name: &'static str,
    batch: u64,
}

impl Sequence {
    /// Creates the sequence of this name. A thread claims 64 numbers at a time.
    pub const fn new(name: &'static str) -> Self {
        Self { name, batch: 64 }
    }

    /// Creates the sequence of a name that is computed at run time: see [`Table::named`].
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::Sequence;
    ///
    /// let tenant = "ann";
    /// assert_eq!(Sequence::named(&format!("orders of {tenant}")).name(), "orders of ann");
    /// ```
    pub fn named(name: &str) -> Self {
        Self::new(kept(name))
    }

    /// Sets how many numbers are claimed at a time. With 1, only deaths leave gaps, and each number
    /// costs a transaction.
    ///
    /// # Panics
    ///
    /// Panics if `batch` is 0.
    #[must_use]
    pub const fn batch(self, batch: u64) -> Self {
        assert!(batch > 0, "a batch of nothing");
        Self { batch, ..self }
    }

    /// Returns how many numbers are claimed at a time.
    pub const fn batch_size(&self) -> u64 {
        self.batch
    }

    /// Returns its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

/// The numbers of a sequence that a thread has claimed and not returned yet.
struct Claimed {
    /// The store's handle in this process. While this exists, no other object has its address.
    store: Weak<dyn Any>,
    left: Range<u64>,
}

/// The claims of a thread, by the address of the store and the name.
struct Claims {
    all: BTreeMap<(usize, &'static str), Claimed>,
    /// At this number of claims, those of closed stores are removed.
    look: usize,
}

impl Claims {
    const FEW: usize = 16;

    fn put(&mut self, store: usize, name: &'static str, claimed: Claimed) {
        if self.all.len() >= self.look {
            self.all.retain(|_, claimed| claimed.store.strong_count() > 0);
            self.look = (2 * self.all.len()).max(Self::FEW);
        }
        self.all.insert((store, name), claimed);
    }
}

thread_local! {
    static CLAIMED: RefCell<Claims> =
        const { RefCell::new(Claims { all: BTreeMap::new(), look: Claims::FEW }) };
}

impl<M: ConstMachine> Store<M> {
    /// Returns a number that no other call returns, of any thread or process, now or later. The
    /// numbers of a thread increase; those of two threads are in no order. The number is claimed at
    /// once, in a transaction of its own, also within the closure of another transaction. A
    /// rollback of that transaction does not return the number.
    ///
    /// If the store's commits are durable, the claim of a batch is durable before its first number
    /// is returned. In other modes, a number may be returned again after a crash of the machine,
    /// but only if no surviving transaction has written it: the claim precedes such transactions in
    /// the log.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write); [`Error::Engine`] if the sequence is exhausted. Within a
    /// closure of `write`, [`Error::CommitUnknown`] refers to the claim of the numbers; the changes
    /// of the closure are rolled back.
    ///
    /// # Examples
    ///
    /// ```
    /// use latchwork_store::{Sequence, Store, Table};
    ///
    /// const ORDERS: Table<u64, &str> = Table::new("orders");
    /// const ORDER: Sequence = Sequence::new("order");
    ///
    /// # let path = std::env::temp_dir().join(format!("store-sequence-{}", std::process::id()));
    /// let store = Store::open(&path)?;
    /// for what in ["tea", "cake"] {
    ///     let number = store.next_number(&ORDER)?;
    ///     store.write(|tx| tx.insert(&ORDERS, number, what))?;
    /// }
    /// let all = store.read(|tx| tx.range(&ORDERS, ..)?.collect::<Result<Vec<_>, _>>())?;
    /// assert_eq!(all, [(1, "tea".to_owned()), (2, "cake".to_owned())]);
    /// # drop(store);
    /// # std::fs::remove_dir_all(&path).unwrap();
    /// # Ok::<(), latchwork_store::Error>(())
    /// ```
    pub fn next_number(&self, sequence: &Sequence) -> Result<u64, Error> {
        let home = self.home();
        // The child of a fork has copies of its parent's claims and must not use them.
        home.manager.region().check()?;
        let (store, name) = (Arc::as_ptr(home).addr(), sequence.name);
        let next = |claims: &mut Claims| claims.all.get_mut(&(store, name))?.left.next();
        let claimed = CLAIMED.try_with(|claims| next(&mut claims.borrow_mut()));
        if let Some(number) = claimed.map_err(|_| Error::ThreadEnds)? {
            return Ok(number);
        }
        let mut left = self.claim(sequence)?;
        let number = left.next().ok_or_else(over)?;
        let home: Arc<dyn Any> = home.clone();
        let claimed = Claimed { store: Arc::downgrade(&home), left };
        // Copy the name: the string of a library that is unloaded would no longer exist.
        CLAIMED.with_borrow_mut(|claims| claims.put(store, kept(name), claimed));
        Ok(number)
    }

    /// Claims the next numbers of a sequence.
    fn claim(&self, sequence: &Sequence) -> Result<Range<u64>, Error> {
        self.write(|tx| {
            let from = tx.get_for_update(&SEQUENCES, sequence.name)?.unwrap_or(1);
            let to = from.saturating_add(sequence.batch);
            if from == to {
                return Err(over());
            }
            tx.put(&SEQUENCES, sequence.name, to)?;
            Ok(from..to)
        })
    }
}

/// Creates the error of an exhausted sequence.
fn over() -> Error {
    Error::Engine("the sequence is at its end".to_owned())
}
