//! From the errors of the client to those of the store.

use std::error::Error as _;

use latchwork_store::{Error, ServerError, ServerFailure};
use tokio_postgres::error::SqlState;

/// An error that a call met.
pub(crate) fn of(why: &tokio_postgres::Error) -> Error {
    let Some(said) = why.as_db_error() else { return of_connection(why).into() };
    let (state, message) = (said.code().code(), said.message());
    ServerError::with_state(kind(said.code()), state, message).into()
}

/// The error for a failure reported by the client itself.
fn of_connection(why: &tokio_postgres::Error) -> ServerError {
    let text = match why.source() {
        Some(source) => format!("{why}: {source}"),
        None => why.to_string(),
    };
    // The kinds of the client's errors are private; their texts are fixed.
    let about = why.to_string();
    let begins = |with: &str| about.starts_with(with);
    let kind = if begins("error serializing") || begins("error encoding") {
        ServerFailure::TooLarge
    } else if begins("authentication error") || text.contains("password") {
        ServerFailure::Credentials
    } else if begins("invalid configuration") {
        ServerFailure::Address
    } else if begins("error performing TLS") {
        ServerFailure::Tls
    } else if begins("error connecting") || begins("timeout") {
        ServerFailure::Unreachable
    } else {
        ServerFailure::ConnectionLost
    };
    ServerError::new(kind, text)
}

/// The kind of failure that a SQLSTATE means for a transaction.
fn kind(state: &SqlState) -> ServerFailure {
    let code = state.code();
    match code {
        // A transaction that follows an error of its own says the second; a cached plan may be
        // out of date once.
        // `53200`: PostgreSQL has no room to note one more conflict of serializable transactions,
        // or no memory, and rolls back.
        "40001" | "40P01" | "53200" => ServerFailure::Conflict,
        "28000" | "28P01" => ServerFailure::Credentials,
        "42501" => ServerFailure::Privilege,
        "3D000" | "3F000" => ServerFailure::NoDatabase,
        "25006" => ServerFailure::ReadOnly,
        "57P03" | "53300" => ServerFailure::Unreachable,
        // The server ends the connection: the transaction is rolled back.
        "57P01" | "57P02" | "57P04" | "57P05" | "25P03" | "25P04" => ServerFailure::ConnectionLost,
        "53100" => ServerFailure::NoSpace,
        "54000" | "54001" | "54011" | "54023" | "22001" => ServerFailure::TooLarge,
        "42P01" | "42703" | "42804" | "42883" | "42P10" => ServerFailure::ForeignTable,
        _ if code.starts_with("08") => ServerFailure::ConnectionLost,
        _ => ServerFailure::Other,
    }
}

/// Whether the outcome of a commit that met this is not known.
pub(crate) fn leaves_commit_unknown(why: &tokio_postgres::Error) -> bool {
    let Some(said) = why.as_db_error() else { return true };
    // `40003`: the server itself does not know. A server that ends the connection may have
    // committed before.
    let code = said.code().code();
    code == "40003" || kind(said.code()) == ServerFailure::ConnectionLost
}

/// The error that a server of this kind would send.
pub(crate) fn server(kind: ServerFailure, message: impl Into<String>) -> Error {
    ServerError::new(kind, message).into()
}

/// The error of a commit whose outcome is not known.
pub(crate) fn commit_unknown(why: Error) -> Error {
    Error::CommitUnknown { why: Box::new(why) }
}
