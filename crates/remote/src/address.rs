//! The address of a database on a server.

use std::path::PathBuf;
use std::str::FromStr;

use latchwork_store::{Error, ServerFailure};
use percent_encoding::percent_decode_str;
use tokio_postgres::Config;

use crate::error::server;

/// Reads an address. Two options of `libpq` that the client does not know are read here: the mode
/// `verify-full`, which is what the mode `require` does, and `sslrootcert`, the file of the
/// certificates to trust.
pub(crate) fn parse(address: &str) -> Result<(Config, Option<PathBuf>), Error> {
    let (base, options) = address.split_once('?').unwrap_or((address, ""));
    let (mut trusted, mut rest) = (None, Vec::new());
    for option in options.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("sslmode", "verify-full")) => rest.push("sslmode=require"),
            Some(("sslrootcert", path)) => {
                trusted = Some(percent_decode_str(path).decode_utf8_lossy().into_owned().into());
            }
            _ => rest.push(option),
        }
    }
    let config = match rest[..] {
        [] => Config::from_str(base),
        _ => Config::from_str(&format!("{base}?{}", rest.join("&"))),
    };
    let refused = |why: tokio_postgres::Error| {
        let why = std::error::Error::source(&why).map_or(why.to_string(), |s| s.to_string());
        server(ServerFailure::Address, why)
    };
    Ok((config.map_err(refused)?, trusted))
}
