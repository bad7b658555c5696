//! Flat combining: the thread that gets the lock runs the operations of all waiting threads.
//!
//! D. Hendler, I. Incze, N. Shavit and M. Tzafrir, "Flat combining and the
//! synchronization-parallelism tradeoff", SPAA 2010. A thread leaves its operation in its record.
//! It then either sees it done, or gets the lock and runs all operations that it finds, including
//! its own. The data stay in the combiner's cache.
//!
//! State: a test-and-set lock; a record for each thread. The paper links the records of active
//! threads in a list and drops idle ones; here the threads are known, and the list is the array.
//! Invariant: only the lock's holder serves.
//!
//! An operation that panics does so in the combiner, which leaves the lock held.

use latchwork_machine::{Machine, Padded};

use crate::backoff::Backoff;
use crate::delegation::Record;
use crate::ttas::TtasPlain;
use crate::words::words;
use crate::{Bytes, Delegate, Lock, Named, Row, row};

/// Passes over the records before a combiner hands the lock on, if each finds an operation.
const PASSES_MAX: u32 = 8;
/// The most pauses between looks.
const PAUSES_MAX: u32 = 8;

/// A flat-combining lock: a byte, and a line for each thread.
pub struct FlatCombining<M: Machine> {
    lock: TtasPlain<M>,
    records: Row<Record<M>>,
}

impl<M: Machine> Named for FlatCombining<M> {
    words!(lock, [records]);
}

impl<M: Machine> Delegate for FlatCombining<M> {
    fn new(threads: usize) -> Self {
        Self { lock: Lock::new(threads), records: row(threads) }
    }

    unsafe fn with(&self, me: usize, operation: &mut (dyn FnMut() + Send)) {
        let own = &self.records[me];
        // SAFETY: no other thread uses the number `me`, so the record is ours and idle; and we do
        // not return before it is idle again.
        unsafe { own.ask(operation) };
        let mut backoff = Backoff::<M>::new(1, PAUSES_MAX);
        while !own.is_idle() {
            if !self.lock.try_lock() {
                backoff.pause();
                continue;
            }
            for _ in 0..PASSES_MAX {
                let mut served = false;
                for record in &self.records {
                    // SAFETY: we hold the lock.
                    served |= unsafe { record.serve() };
                }
                if !served {
                    break;
                }
            }
            self.lock.unlock(me);
        }
    }

    fn bytes(&self, _: usize) -> Bytes {
        Bytes::new(size_of::<M::AtomicU8>(), size_of::<Padded<Record<M>>>())
    }
}
