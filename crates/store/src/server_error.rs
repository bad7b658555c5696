//! Errors of a database server on which a transaction ran.
//!
//! The store itself has no server: the crate `latchwork-remote` runs the same transactions on
//! engines that speak the protocol of PostgreSQL, and returns these errors within
//! [`Error::Server`](crate::Error::Server).

use core::fmt;

/// An error of a database server, or of the connection to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerError {
    /// The kind of failure.
    pub kind: ServerFailure,
    /// The SQLSTATE that the server sent; empty if the server sent none.
    pub state: String,
    /// The message of the server or of the system.
    pub message: String,
}

/// A kind of failure that a server reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerFailure {
    /// The address is not one of a database server, or an option of it is unknown.
    Address,
    /// The server cannot be reached, is starting, or has no free connection. Retryable.
    Unreachable,
    /// The server has no TLS, or its certificate is not trusted or is that of another host.
    Tls,
    /// The user, the password or the certificate is refused, or has expired.
    Credentials,
    /// The user may not do this with the tables.
    Privilege,
    /// The server has no database or schema of this name that the user may use.
    NoDatabase,
    /// The server or the user may only read.
    ReadOnly,
    /// The server is a standby, or recovers: it has no serializable transactions.
    Recovery,
    /// The server runs transactions at a lower isolation level than serializable.
    Isolation,
    /// A table of our name has other columns or another format than this program knows.
    ForeignTable,
    /// A copy into this database was begun and has not been finished.
    Copying,
    /// The connection was lost before the commit was sent: nothing is committed. Retryable.
    ConnectionLost,
    /// The transaction conflicted with another one and was rolled back. Retryable.
    Conflict,
    /// A key, a value or a statement is larger than the server takes.
    TooLarge,
    /// The server has no space left.
    NoSpace,
    /// Any other error.
    Other,
}

impl ServerError {
    /// Creates an error without a SQLSTATE.
    pub fn new(kind: ServerFailure, message: impl Into<String>) -> Self {
        Self::with_state(kind, "", message)
    }

    /// Creates an error with the SQLSTATE that the server sent.
    pub fn with_state(
        kind: ServerFailure,
        state: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { kind, state: state.into(), message: message.into() }
    }

    /// Returns whether the same transaction may succeed if it is run again.
    pub(crate) fn is_retryable(&self) -> bool {
        use ServerFailure::{Conflict, ConnectionLost, Unreachable};
        matches!(self.kind, Conflict | ConnectionLost | Unreachable)
    }
}

impl ServerFailure {
    /// Returns what happened, and what to do.
    fn said(self) -> &'static str {
        match self {
            Self::Address => "this is not the address of a database server",
            Self::Unreachable => "the server cannot be reached",
            Self::Tls => {
                "no connection with TLS; check the server's certificate, its host and `sslrootcert`"
            }
            Self::Credentials => "the server refuses the user; check user, password, and expiry",
            Self::Privilege => "the user lacks a privilege; grant it",
            Self::NoDatabase => {
                "the server has no such database or schema for this user; create it, or grant its use"
            }
            Self::ReadOnly => "the server or the user may only read; connect to the primary server",
            Self::Recovery => {
                "the server is a standby or recovers; connect to the primary server, or promote it"
            }
            Self::Isolation => "the server does not run transactions at the level serializable",
            Self::ForeignTable => {
                "a table of our name is not ours; name another schema (`search_path`) or database"
            }
            Self::Copying => {
                "a copy into this database is not finished; run `latchwork store copy` again"
            }
            Self::ConnectionLost => "the connection was lost, and nothing was committed",
            Self::Conflict => "another transaction was in conflict; this one was rolled back",
            Self::TooLarge => "larger than the server takes",
            Self::NoSpace => "the server has no space left",
            Self::Other => "the server failed",
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.said())?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        if !self.state.is_empty() {
            write!(f, " (SQLSTATE {})", self.state)?;
        }
        Ok(())
    }
}

impl core::error::Error for ServerError {}
