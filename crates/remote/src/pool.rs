//! Connections that are not in use.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use latchwork_store::{Error, ServerFailure};
use tokio_postgres::Config;

use crate::error::server;
use crate::session::Session;

/// The connections of a handle.
pub(crate) struct Pool {
    config: Config,
    limit: usize,
    copying: bool,
    pub(crate) trips: Arc<AtomicU64>,
    state: Mutex<Idle>,
    given_back: Condvar,
}

#[derive(Default)]
struct Idle {
    sessions: Vec<Session>,
    /// Of all connections, those in use included.
    open: usize,
}

/// A connection in use. It goes back to the pool if it is clean, and is closed if not.
pub(crate) struct Taken<'p> {
    pool: &'p Pool,
    /// None at the end alone.
    session: Option<Session>,
}

impl Pool {
    pub(crate) fn new(config: Config, limit: usize, copying: bool) -> Self {
        Self {
            config,
            limit: limit.max(1),
            copying,
            trips: Arc::default(),
            state: Mutex::default(),
            given_back: Condvar::new(),
        }
    }

    /// Takes a connection that is free, or makes one; waits until the deadline if there are as many
    /// as there may be.
    pub(crate) fn take(&self, deadline: Instant) -> Result<Taken<'_>, Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            while let Some(mut session) = state.sessions.pop() {
                // A server that was restarted has ended it: nothing is begun on it then.
                if !session.is_over() {
                    return Ok(Taken { pool: self, session: Some(session) });
                }
                state.open -= 1;
            }
            if state.open < self.limit {
                state.open += 1;
                break;
            }
            let now = Instant::now();
            if now >= deadline {
                let all = format!("all {} connections of this handle are in use", self.limit);
                return Err(server(ServerFailure::Unreachable, all));
            }
            let waited = self.given_back.wait_timeout(state, deadline - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        let mut taken = Taken { pool: self, session: None };
        let session = Session::connect(&self.config, deadline, &self.trips, self.copying)?;
        taken.session = Some(session);
        Ok(taken)
    }
}

impl Taken<'_> {
    /// The connection.
    pub(crate) fn session(&mut self) -> Result<&mut Session, Error> {
        let ended = || server(ServerFailure::ConnectionLost, "the connection was given back");
        self.session.as_mut().ok_or_else(ended)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let session = self.session.take().filter(|session| session.is_clean);
        let mut state = self.pool.state.lock().unwrap_or_else(PoisonError::into_inner);
        match session {
            Some(session) => state.sessions.push(session),
            None => state.open -= 1,
        }
        drop(state);
        self.pool.given_back.notify_one();
    }
}
