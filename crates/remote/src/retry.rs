//! When a transaction runs again.

use std::time::{Duration, Instant};

use latchwork_store::{Attempts, Error, ServerFailure, TxnOptions};
use rand::RngExt;

/// How a run of a transaction ended without a commit.
pub(crate) enum End<E> {
    /// The closure has returned an error; and why the transaction can only be run again, if it can.
    Returned(E, Option<Box<Error>>),
    /// The commit failed, or there was no connection.
    Failed(Error),
}

impl<E> From<Error> for End<E> {
    fn from(why: Error) -> Self {
        Self::Failed(why)
    }
}

impl End<Error> {
    /// Has a transaction run again also after an error of its closure that is retryable.
    pub(crate) fn by_error(self) -> Self {
        match self {
            Self::Returned(own, failed)
                if !failed.as_ref().is_some_and(|why| why.is_retryable()) =>
            {
                Self::Failed(own)
            }
            other => other,
        }
    }
}

/// The runs of a transaction.
pub(crate) struct Runs {
    pub(crate) deadline: Instant,
    count: u32,
}

impl Runs {
    pub(crate) fn new(options: &TxnOptions) -> Self {
        Self { deadline: Instant::now() + options.time, count: 1 }
    }

    /// A transaction on a server has no position in a log.
    pub(crate) fn done<R>(&self, value: R) -> Attempts<R> {
        Attempts { value, at: None, runs: self.count }
    }

    /// After a run that has not committed: how long to wait before the next one, or the error of
    /// the transaction.
    pub(crate) fn again<E: From<Error>>(&mut self, end: End<E>) -> Result<Duration, E> {
        let failed = match end {
            End::Failed(why) if why.is_retryable() => why,
            End::Failed(why) => return Err(why.into()),
            End::Returned(_, Some(why)) if why.is_retryable() => *why,
            End::Returned(own, _) => return Err(own),
        };
        // The first conflicts cost little; a server that starts takes longer.
        let most = match &failed {
            Error::Server(why) if why.kind == ServerFailure::Unreachable => 100_000,
            _ => 500_u64 << self.count.min(7),
        };
        let wait = Duration::from_micros(rand::rng().random_range(0..most));
        if Instant::now() + wait >= self.deadline {
            return Err(Error::Deadline { runs: self.count, last: Box::new(failed) }.into());
        }
        self.count += 1;
        Ok(wait)
    }
}
