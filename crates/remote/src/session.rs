//! A connection of a thread: it is driven while the thread waits, so no thread of its own is
//! needed.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::Poll;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use latchwork_store::{Error, ServerFailure};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::config::SslMode;
use tokio_postgres::{CancelToken, Config, NoTls};

use crate::error::{of, server};
use crate::link::Link;

/// What reads and writes the socket; it ends with the connection.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection, and what drives it.
pub(crate) struct Session {
    driver: Driver,
    link: Link,
    cancel: CancelToken,
    /// Dropped behind what is registered with it.
    runtime: Runtime,
    /// Nothing is begun on it, and nothing failed.
    pub(crate) is_clean: bool,
}

/// Runs work until it is done, and drives the connection while the work waits.
fn drive<T>(
    runtime: &Runtime,
    driver: &mut Driver,
    deadline: Instant,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    let driven = poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(done);
        }
        // Once it has ended, what waits for answers gets errors.
        let _ = driver.as_mut().poll(cx);
        work.as_mut().poll(cx)
    });
    runtime.block_on(async { tokio::time::timeout_at(deadline.into(), driven).await.ok() })
}

/// Fuses a connection, so that it may be polled after its end.
fn fused(connection: impl Future + Send + 'static) -> Driver {
    Box::pin(async {
        let _ = connection.await;
        core::future::pending::<()>().await;
    })
}

impl Session {
    /// Connects.
    pub(crate) fn connect(
        config: &Config,
        deadline: Instant,
        trips: &Arc<AtomicU64>,
        copying: bool,
    ) -> Result<Self, Error> {
        if tokio::runtime::Handle::try_current().is_ok() {
            return Err(Error::Options(
                "a call that blocks, in a task of tokio: use spawn_blocking",
            ));
        }
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|why| server(ServerFailure::Unreachable, why.to_string()))?;
        let late = || server(ServerFailure::Unreachable, "no answer in time");
        let connecting =
            async { tokio::time::timeout_at(deadline.into(), connect(config)).await.ok() };
        let (client, mut driver) = runtime.block_on(connecting).ok_or_else(late)??;
        let cancel = client.cancel_token();
        let setup = Link::new(client, trips.clone(), copying);
        let link = drive(&runtime, &mut driver, deadline, setup).ok_or_else(late)?;
        let link = link.map_err(unreachable)?;
        Ok(Self { driver, link, cancel, runtime, is_clean: true })
    }

    /// Whether the server has ended the connection, as far as this machine has heard.
    pub(crate) fn is_over(&mut self) -> bool {
        let Self { runtime, driver, link, .. } = self;
        let look = poll_fn(|cx| {
            let _ = driver.as_mut().poll(cx);
            Poll::Ready(())
        });
        // The first round lets the runtime hear from the system.
        runtime.block_on(async {
            tokio::task::yield_now().await;
            look.await;
        });
        link.client().is_closed()
    }

    /// Runs work on the connection, and waits for it until the deadline.
    pub(crate) fn run<T>(
        &mut self,
        deadline: Instant,
        work: impl AsyncFnOnce(&Link) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Self { runtime, driver, link, cancel, is_clean } = self;
        match drive(runtime, driver, deadline, work(link)) {
            Some(done) => done,
            None => {
                *is_clean = false;
                // A server that waits for a lock does not hear that its client is gone.
                let told = async {
                    let told = cancel.cancel_query(NoTls);
                    let _ = tokio::time::timeout(Duration::from_secs(1), told).await;
                };
                runtime.block_on(told);
                Err(server(ServerFailure::ConnectionLost, "no answer before the deadline"))
            }
        }
    }
}

/// Connects as the address says, with or without TLS.
async fn connect(config: &Config) -> Result<(tokio_postgres::Client, Driver), Error> {
    #[cfg(feature = "tls")]
    if config.get_ssl_mode() != SslMode::Disable {
        let (client, connection) =
            config.connect(crate::tls::connector()?).await.map_err(failed)?;
        return Ok((client, fused(connection)));
    }
    if config.get_ssl_mode() == SslMode::Require {
        let what = "it wants TLS, and this program is built without the feature `tls`";
        return Err(server(ServerFailure::Address, what));
    }
    let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
    Ok((client, fused(connection)))
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
