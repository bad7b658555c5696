//! A connection, and the runtime that drives it for a thread.

use core::future::Future;
use core::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use latchwork_store::{Error, ServerFailure};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout_at;
use tokio_postgres::{CancelToken, Client, Config};

use crate::error::{of, server};
use crate::link::Link;
use crate::tls::Tls;

/// How a handle connects.
pub(crate) struct Target {
    pub(crate) config: Config,
    pub(crate) tls: Tls,
    /// Whether a copy that is not finished is accepted.
    pub(crate) copying: bool,
    /// How often the connections of the handle have waited for answers.
    pub(crate) trips: Arc<AtomicU64>,
}

/// A connection. A task of the runtime that has connected it reads and writes the socket.
pub(crate) struct Session {
    link: Link,
    cancel: CancelToken,
    tls: Tls,
    /// Whether nothing is begun on it, and nothing failed.
    pub(crate) is_clean: bool,
}

impl Session {
    /// Connects.
    pub(crate) async fn connect(target: &Target, deadline: Instant) -> Result<Self, Error> {
        let connecting = async {
            let client = connect(target).await?;
            let (cancel, tls) = (client.cancel_token(), Tls::clone(&target.tls));
            let link = Link::new(client, target.trips.clone(), target.copying).await;
            Ok(Self { link: link.map_err(unreachable)?, cancel, tls, is_clean: true })
        };
        let late = || server(ServerFailure::Unreachable, "no answer in time");
        timeout_at(deadline.into(), connecting).await.unwrap_or_else(|_| Err(late()))
    }

    /// Begins work on the connection. It is not clean until the caller says so, even if the work is
    /// dropped before its end.
    pub(crate) fn begin(&mut self, deadline: Instant) -> (&Link, Limit<'_>) {
        self.is_clean = false;
        (&self.link, Limit { cancel: &self.cancel, tls: &self.tls, deadline })
    }
}

/// How long work on a connection may take.
pub(crate) struct Limit<'s> {
    cancel: &'s CancelToken,
    tls: &'s Tls,
    deadline: Instant,
}

impl Limit<'_> {
    /// Waits for work until the deadline.
    pub(crate) async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if let Ok(done) = timeout_at(self.deadline.into(), work).await {
            return done;
        }
        // A server that waits for a lock does not hear that its client is gone.
        let told = self.cancel.cancel_query(Tls::clone(self.tls));
        let _ = tokio::time::timeout(Duration::from_secs(1), told).await;
        Err(server(ServerFailure::ConnectionLost, "no answer before the deadline"))
    }
}

/// A connection of a thread: the runtime drives it while the thread waits for an answer, so no
/// other thread is woken.
pub(crate) struct Driven {
    pub(crate) session: Session,
    /// None at the end alone.
    runtime: Option<Runtime>,
    given_back: Instant,
}

/// After so long without use a connection is checked before a transaction uses it. A transaction
/// whose connection was lost sooner runs again.
const UNCHECKED: Duration = Duration::from_millis(100);

impl Driven {
    /// Connects.
    pub(crate) fn connect(target: &Target, deadline: Instant) -> Result<Self, Error> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|why| server(ServerFailure::Unreachable, why.to_string()))?;
        let session = runtime.block_on(Session::connect(target, deadline))?;
        Ok(Self { session, runtime: Some(runtime), given_back: Instant::now() })
    }

    /// Waits for work on the connection, and drives the connection until then.
    pub(crate) fn wait<T, E: From<Error>>(
        &mut self,
        work: impl AsyncFnOnce(&mut Session) -> Result<T, E>,
    ) -> Result<T, E> {
        let ended = || server(ServerFailure::ConnectionLost, "the connection was given back");
        self.runtime.as_ref().ok_or_else(ended)?.block_on(pin!(work(&mut self.session)))
    }

    /// Runs work on the connection, without a deadline.
    pub(crate) fn run<T>(
        &mut self,
        work: impl AsyncFnOnce(&Link) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.wait(async |session| {
            session.is_clean = false;
            work(&session.link).await
        })
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The other way to end a runtime panics in a task of another runtime.
            runtime.shutdown_background();
        }
    }
}

/// A connection that a pool keeps.
pub(crate) trait Pooled {
    /// Whether the next transaction can use it. Called when it is given back.
    fn is_clean(&mut self) -> bool;
    /// Whether the server has ended the connection, as far as this machine has heard. Called before
    /// it is used again.
    fn is_over(&self) -> bool;
}

impl Pooled for Session {
    fn is_clean(&mut self) -> bool {
        self.is_clean
    }

    fn is_over(&self) -> bool {
        self.link.client().is_closed()
    }
}

impl Pooled for Driven {
    fn is_clean(&mut self) -> bool {
        self.given_back = Instant::now();
        self.session.is_clean
    }

    fn is_over(&self) -> bool {
        if let Some(runtime) =
            self.runtime.as_ref().filter(|_| self.given_back.elapsed() > UNCHECKED)
        {
            // In this round the runtime hears from the system, and its task reads.
            runtime.block_on(tokio::task::yield_now());
        }
        self.session.is_over()
    }
}

/// Connects as the address says, with or without TLS, and has a task of this runtime drive the
/// connection.
async fn connect(Target { config, tls, .. }: &Target) -> Result<Client, Error> {
    let (client, connection) = config.connect(Tls::clone(tls)).await.map_err(failed)?;
    tokio::spawn(connection);
    Ok(client)
}

fn failed(why: tokio_postgres::Error) -> Error {
    unreachable(of(&why))
}

/// Turns a lost connection into a server that cannot be reached: no transaction had begun.
fn unreachable(why: Error) -> Error {
    match why {
        Error::Server(mut why) if why.kind == ServerFailure::ConnectionLost => {
            why.kind = ServerFailure::Unreachable;
            Error::Server(why)
        }
        other => other,
    }
}
