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
        Self { target, limit, permits: Arc::new(Semaphore::new(limit)), idle: Mutex::default() }
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
    /// As the other `take`, for a task.
    pub(crate) async fn take(self: &Arc<Self>, deadline: Instant) -> Result<Taken<Session>, Error> {
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
        let ended = || server(ServerFailure::ConnectionLost, "the connection was given back");
        self.connection.as_mut().ok_or_else(ended)
    }
}

impl<C: Pooled> Drop for Taken<C> {
    fn drop(&mut self) {
        if let Some(mut connection) = self.connection.take()
            && connection.is_clean()
        {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
    }
}
