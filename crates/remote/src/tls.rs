//! TLS by rustls, with the certificates that the system trusts or that the address names.
//!
//! A certificate is always checked, and the name of the host with it, also in the mode `require`,
//! in which `libpq` checks neither.

use std::path::Path;

use latchwork_store::{Error, ServerFailure};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use crate::error::server;

/// Creates connections with TLS.
#[cfg(feature = "tls")]
pub(crate) type Tls = tokio_postgres_rustls::MakeRustlsConnect;
/// Creates connections without TLS.
#[cfg(not(feature = "tls"))]
pub(crate) type Tls = tokio_postgres::NoTls;

/// How connections of an address are encrypted, and the file of the certificates that it trusts.
#[cfg(feature = "tls")]
pub(crate) fn connector(config: &Config, trusted: Option<&Path>) -> Result<Tls, Error> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    let mut roots = rustls::RootCertStore::empty();
    if let Some(path) = trusted {
        let failed = |why: &dyn core::fmt::Display| {
            let what = format!("cannot read the certificates of {}: {why}", path.display());
            server(ServerFailure::Address, what)
        };
        for certificate in CertificateDer::pem_file_iter(path).map_err(|why| failed(&why))? {
            let certificate = certificate.map_err(|why| failed(&why))?;
            roots.add(certificate).map_err(|why| failed(&why))?;
        }
        if roots.is_empty() {
            return Err(failed(&"it has none"));
        }
    } else if config.get_ssl_mode() != SslMode::Disable {
        // If the system has none, each server's certificate is refused; connections without TLS
        // work.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let config = rustls::ClientConfig::builder().with_root_certificates(roots);
    Ok(Tls::new(config.with_no_client_auth()))
}

/// Refuses an address that wants TLS.
#[cfg(not(feature = "tls"))]
pub(crate) fn connector(config: &Config, trusted: Option<&Path>) -> Result<Tls, Error> {
    if config.get_ssl_mode() == SslMode::Require || trusted.is_some() {
        let what = "it wants TLS, and this program is built without the feature `tls`";
        return Err(server(ServerFailure::Address, what));
    }
    Ok(tokio_postgres::NoTls)
}
