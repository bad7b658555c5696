//! Connections that are not in use.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use latchwork_store::{Error, ServerFailure};
use tokio::runtime::Builder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

use crate::error::server;
use crate::session::{Driven, Pooled, Session, Target};

/// The connections of a handle.
pub(crate) struct Pool<C: Pooled> {
    pub(crate) target: Target,
    limit: usize,
    /// One for each connection that may be in use.
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<C>>,
    /// The process that has opened the handle.
    process: u32,
}

/// A connection in use. It goes back to the pool if it is clean, and is closed if not.
pub(crate) struct Taken<C: Pooled> {
    pool: Arc<Pool<C>>,
    /// None at the end alone.
    connection: Option<C>,
    /// Released after the connection is in the pool again.
    _permit: OwnedSemaphorePermit,
}

impl<C: Pooled> Pool<C> {
    pub(crate) fn new(target: Target, limit: usize) -> Self {
        let limit = limit.clamp(1, Semaphore::MAX_PERMITS);
        let permits = Arc::new(Semaphore::new(limit));
        Self { target, limit, permits, idle: Mutex::default(), process: std::process::id() }
    }

    /// Whether this is the child of a fork. Its parent uses the same sockets, and the same list of
    /// sockets to wait for.
    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    fn refuse_child(&self) -> Result<(), Error> {
        match self.is_forked() {
            true => Err(Error::Options(
                "a handle of the parent, in the child of a fork: open the database again",
            )),
            false => Ok(()),
        }
    }

    /// Waits for a permit, the caller that waits longest first.
    async fn permit(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, Error> {
        let permit = timeout_at(deadline.into(), self.permits.clone().acquire_owned()).await;
        permit.ok().and_then(Result::ok).ok_or_else(|| {
            let all = format!("all {} connections of this handle are in use", self.limit);
            server(ServerFailure::Unreachable, all)
        })
    }

    /// A connection that the server has not ended.
    fn reused(&self) -> Option<C> {
        loop {
            let last = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            if !last.is_over() {
                return Some(last);
            }
        }
    }
}

impl Pool<Driven> {
    /// Takes a connection that is free, or makes one; waits until the deadline if there are as many
    /// as there may be.
    pub(crate) fn take(self: &Arc<Self>, deadline: Instant) -> Result<Taken<Driven>, Error> {
        self.refuse_child()?;
        if tokio::runtime::Handle::try_current().is_ok() {
            return Err(Error::Options(
                "a call that blocks, in a task of tokio: use AsyncPostgres or spawn_blocking",
            ));
        }
        let permit = match self.permits.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let runtime = Builder::new_current_thread().enable_time().build();
                let failed =
                    |why: std::io::Error| server(ServerFailure::Unreachable, why.to_string());
                runtime.map_err(failed)?.block_on(self.permit(deadline))?
            }
        };
        let connection = match self.reused() {
            Some(connection) => connection,
            None => Driven::connect(&self.target, deadline)?,
        };
        Ok(Taken { pool: self.clone(), connection: Some(connection), _permit: permit })
    }
}

impl Pool<Session> {
    /// As the other `take`, in a task.
    pub(crate) async fn take(self: &Arc<Self>, deadline: Instant) -> Result<Taken<Session>, Error> {
        self.refuse_child()?;
        let permit = self.permit(deadline).await?;
        let connection = match self.reused() {
            Some(connection) => connection,
            None => Session::connect(&self.target, deadline).await?,
        };
        Ok(Taken { pool: self.clone(), connection: Some(connection), _permit: permit })
    }
}

impl<C: Pooled> Taken<C> {
    /// The connection.
    pub(crate) fn connection(&mut self) -> Result<&mut C, Error> {
        self.pool.refuse_child()?;
        let ended = || server(ServerFailure::ConnectionLost, "the connection was given back");
        self.connection.as_mut().ok_or_else(ended)
    }
}

impl<C: Pooled> Drop for Taken<C> {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        if self.pool.is_forked() {
            // Closing it would end it for the parent.
            core::mem::forget(connection);
        } else if connection.is_clean() {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
    }
}

impl<C: Pooled> Drop for Pool<C> {
    fn drop(&mut self) {
        if self.is_forked() {
            let idle = self.idle.get_mut().unwrap_or_else(PoisonError::into_inner);
            idle.drain(..).for_each(core::mem::forget);
        }
    }
}
