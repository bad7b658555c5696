//! Sequences: numbers that no two callers get.
//!
//! A thread claims numbers in batches, each by a short transaction of its own on the sequence's
//! row, and hands them out without touching anything shared. So there is no hot record, a number is
//! given whether the transaction that asked for it commits or not, and there are gaps: what is left
//! of a batch goes with its thread.

use core::any::Any;
use core::ops::Range;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use latchwork_machine::ConstMachine;

use crate::names::kept;
use crate::{Error, Store, Table};

/// The table that has the next number of each sequence.
const SEQUENCES: Table<&str, u64> = Table::new("latchwork sequences");

/// A sequence of numbers, from 1 on: see [`Store::next_number`].
///
/// A constant, as a [`Table`] is: programs that name the same one share it.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    name: &'static str,
    batch: u64,
}

impl Sequence {
    /// The sequence of this name, which a thread claims 64 numbers of at a time.
    pub const fn new(name: &'static str) -> Self {
        Self { name, batch: 64 }
    }

    /// The sequence of a name that is made at run time: see [`Table::named`].
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

    /// The same, with so many numbers at a time: 1 leaves no gaps but those of deaths, and costs
    /// each number a transaction.
    ///
    /// # Panics
    ///
    /// If it is 0.
    #[must_use]
    pub const fn batch(self, batch: u64) -> Self {
        assert!(batch > 0, "a batch of nothing");
        Self { batch, ..self }
    }

    /// How many numbers are claimed at a time.
    pub const fn batch_size(&self) -> u64 {
        self.batch
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

/// What a thread has claimed of a sequence and not given yet.
struct Claimed {
    /// The store as this process has it; nothing else is at that address while this is here.
    store: Weak<dyn Any>,
    left: Range<u64>,
}

/// What a thread has claimed: by the address of the store, and the name.
struct Claims {
    all: BTreeMap<(usize, &'static str), Claimed>,
    /// With so many it looks for those of stores that this process has closed.
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
    /// A number that no other call gets, of any thread or process, now or later. A thread's
    /// numbers rise; those of two threads are in no order. It is given at once, in a transaction of
    /// its own, also in the closure of another one, and not taken back if that is rolled back.
    ///
    /// The claim of a batch is durable before its first number is given, if the store's commits
    /// are. In the other modes a crash of the machine may give a number again that no surviving
    /// transaction has written; what the store has is never reused, for the claim comes before it
    /// in the log.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write); [`Error::Engine`] at the end of the numbers. In a closure
    /// of `write`, [`Error::CommitUnknown`] is said of the numbers: what it wrote is undone.
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
        // The child of a fork has its parent's claims in its memory, and must not use them.
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
        // A copy of the name: one in a library that is unloaded would be gone.
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

/// What a sequence says at its end.
fn over() -> Error {
    Error::Engine("the sequence is at its end".to_owned())
}
