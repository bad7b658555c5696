//! TLS by rustls, with the certificates that the system trusts.

use latchwork_store::{Error, ServerFailure};
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::server;

/// Creates connections with TLS.
pub(crate) fn connector() -> Result<MakeRustlsConnect, Error> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(server(ServerFailure::Address, "the system has no certificates to trust"));
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
