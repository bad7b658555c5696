//! Remote core locking: one core does nothing but run the critical sections of others.
//!
//! J.-P. Lozi, F. David, G. Thomas, J. Lawall and G. Muller, "Remote core locking", USENIX ATC
//! 2012. A client leaves its section in its line of the server's array and polls that line; the
//!       server scans the array. A section costs two misses, and the data never leave the server's
//!       cache.
//!
//! State: a record for each thread; `served`, whether a server exists. Invariant: one thread, of
//! number zero, serves at a time. The paper's servers for many locks, and their handling of
//! blocking sections, are omitted.

use core::sync::atomic::Ordering::{Acquire, Release};

use latchwork_machine::{Machine, Padded, Word};

use crate::delegation::Record;
use crate::words::words;
use crate::{Bytes, Delegate, Named, Row, row};

/// Rounds without work after which the server yields its processor.
const IDLE_ROUNDS: u32 = 64;

/// A remote core lock: a line for each thread, and a core.
pub struct Rcl<M: Machine> {
    records: Row<Record<M>>,
    served: Padded<M::AtomicU32>,
}

impl<M: Machine> Named for Rcl<M> {
    words!([records], served);
}

impl<M: Machine> Rcl<M> {
    fn round(&self) -> bool {
        let mut worked = false;
        for record in &self.records {
            // SAFETY: the caller has set `served`, and only one thread has.
            worked |= unsafe { record.serve() };
        }
        worked
    }
}

impl<M: Machine> Delegate for Rcl<M> {
    fn new(threads: usize) -> Self {
        Self { records: row(threads), served: Padded::default() }
    }

    /// Does not return before a thread serves.
    unsafe fn with(&self, me: usize, operation: &mut (dyn FnMut() + Send)) {
        let own = &self.records[me];
        // SAFETY: no other thread uses the number `me`, so the record is ours and idle; and we do
        // not return before it is idle again.
        unsafe { own.ask(operation) };
        own.wait();
    }

    fn has_server(&self) -> bool {
        true
    }

    fn serve(&self, until: &dyn Fn() -> bool) {
        // Acquire: synchronizes with the Release below, of the previous server.
        assert_eq!(self.served.swap(1, Acquire), 0, "somebody serves already");
        let mut idle = 0u32;
        loop {
            // Called before the round, so that operations left before it returned true are done.
            let last = until();
            idle = if self.round() { 0 } else { idle + 1 };
            if last {
                break;
            }
            if idle != 0 {
                if idle.is_multiple_of(IDLE_ROUNDS) { M::yield_now() } else { M::relax() }
            }
        }
        // Release: synchronizes with the Acquire above.
        self.served.store(0, Release);
    }

    fn bytes(&self, _: usize) -> Bytes {
        let record = size_of::<Padded<Record<M>>>();
        Bytes::new(record * self.records.len(), 0)
    }
}
