//! Spans and events for subscribers of the crate `tracing`, with the feature `tracing`. Without the
//! feature, each call here is empty.
//!
//! The target is `latchwork_store`.
//!
//! | level | message | fields |
//! |---|---|---|
//! | warn | `slow commit` | `at`, `ns`: the commit waited at least 100 ms for the disk |
//! | warn | `slow lock` | `table`, `key`, `ns`, `granted`: the request waited at least 100 ms |
//! | error | `sync failed` | `error`: the log could not be written or made durable |
//! | info | `checkpoint made` | `bytes` of log since the one before, `ns`, `punched` bytes |
//! | warn | `checkpoint failed` | `error`, `ns` |
//! | info | `swept` | `threads` that died, `ns` |
//! | info | `recovered` | `bytes` of log that were read, `ns` |
//!
//! Checkpoints, sweeps and recoveries are spans with the names `checkpoint`, `sweep`, `recovery`.

#[cfg(not(feature = "tracing"))]
mod sink {
    use core::fmt::Display;

    use latchwork_machine::ConstMachine;

    /// The start of an operation that may be slow.
    pub(crate) struct Begun;

    impl Begun {
        #[inline(always)]
        #[allow(clippy::extra_unused_type_parameters, reason = "as with the feature")]
        pub(crate) fn now<M: ConstMachine>() -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn lock<M: ConstMachine>(self, _: bool, _: impl FnOnce() -> (String, Vec<u8>)) {}
    }

    /// A span that ends when this is dropped.
    pub(crate) struct Span;

    pub(crate) fn checkpoint() -> Span {
        Span
    }

    pub(crate) fn sweep() -> Span {
        Span
    }

    pub(crate) fn recovery() -> Span {
        Span
    }

    pub(crate) fn committed(_: u64, _: u64) {}

    pub(crate) fn sync_failed(_: &dyn Display) {}

    pub(crate) fn checkpoint_made(_: u64, _: u64, _: u64) {}

    pub(crate) fn checkpoint_failed(_: &dyn Display, _: u64) {}

    pub(crate) fn swept(_: usize, _: u64) {}

    pub(crate) fn recovered(_: u64, _: u64) {}
}

#[cfg(feature = "tracing")]
mod sink {
    use core::fmt::Display;

    use latchwork_machine::{Clock, ConstMachine};
    use tracing::span::EnteredSpan;
    use tracing::{Level, enabled, error, info, info_span, warn};

    const TARGET: &str = "latchwork_store";

    /// An operation of at least this many nanoseconds is slow.
    const SLOW: u64 = 100_000_000;

    /// The start of an operation that may be slow. The clock is read only if there is a subscriber.
    pub(crate) struct Begun(Option<u64>);

    impl Begun {
        #[inline]
        pub(crate) fn now<M: ConstMachine>() -> Self {
            Self(enabled!(target: TARGET, Level::WARN).then(|| M::now(Clock::Monotonic)))
        }

        /// Reports the end of a lock request. `of` names the table and the key.
        #[inline]
        pub(crate) fn lock<M: ConstMachine>(
            self,
            granted: bool,
            of: impl FnOnce() -> (String, Vec<u8>),
        ) {
            let Some(from) = self.0 else { return };
            let ns = M::now(Clock::Monotonic).saturating_sub(from);
            if ns >= SLOW {
                let (table, key) = of();
                let key = key.escape_ascii();
                warn!(target: TARGET, table, %key, ns, granted, "slow lock");
            }
        }
    }

    /// A span that ends when this is dropped.
    pub(crate) struct Span(#[allow(dead_code)] EnteredSpan);

    pub(crate) fn checkpoint() -> Span {
        Span(info_span!(target: TARGET, "checkpoint").entered())
    }

    pub(crate) fn sweep() -> Span {
        Span(info_span!(target: TARGET, "sweep").entered())
    }

    pub(crate) fn recovery() -> Span {
        Span(info_span!(target: TARGET, "recovery").entered())
    }

    /// Reports a commit at this position and how long it waited for the disk.
    pub(crate) fn committed(at: u64, ns: u64) {
        if ns >= SLOW {
            warn!(target: TARGET, at, ns, "slow commit");
        }
    }

    pub(crate) fn sync_failed(error: &dyn Display) {
        error!(target: TARGET, %error, "sync failed");
    }

    pub(crate) fn checkpoint_made(bytes: u64, ns: u64, punched: u64) {
        info!(target: TARGET, bytes, ns, punched, "checkpoint made");
    }

    pub(crate) fn checkpoint_failed(error: &dyn Display, ns: u64) {
        warn!(target: TARGET, %error, ns, "checkpoint failed");
    }

    pub(crate) fn swept(threads: usize, ns: u64) {
        if threads != 0 {
            info!(target: TARGET, threads, ns, "swept");
        }
    }

    pub(crate) fn recovered(bytes: u64, ns: u64) {
        info!(target: TARGET, bytes, ns, "recovered");
    }
}

pub(crate) use sink::*;
