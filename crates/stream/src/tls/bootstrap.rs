//! Trust at first sight (`bootstrap_ca_cert`): the first peer provides its authority's certificate.
//!
//! The peer must send the authority's certificate last in its chain (`--peer-ca-cert` there). It is kept only
//! if it vouches for the peer, in a file that must not exist yet. From then on it is the authority like any
//! other. An attacker in the middle of that first connection can pose as the peer: the setting accepts this
//! for its comfort.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::files::{certificates, private_key, provider};
use super::verify::Authority;
use super::{Settings, within};
use crate::connect::connect_tcp;

/// Fetches the authority's certificate of `to` and writes it to the file of the settings.
pub(super) async fn fetch(settings: &Settings, to: SocketAddr) -> io::Result<()> {
    let (Some(file), Some(key), Some(certificate)) =
        (&settings.ca_cert, &settings.private_key, &settings.certificate)
    else {
        return Err(io::Error::other(
            "Private key and certificate must be configured to use SSL",
        ));
    };
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Authority::new(None, provider())))
        .with_client_auth_cert(
            certificates(certificate).map_err(io::Error::other)?,
            private_key(key).map_err(io::Error::other)?,
        )
        .map_err(io::Error::other)?;
    let name = ServerName::IpAddress(to.ip().into());
    let socket = connect_tcp(to).await?;
    let stream = within(
        TlsConnector::from(Arc::new(config)).connect(name.clone(), socket),
        "SSL_connect",
    )
    .await?;
    let (_, connection) = stream.get_ref();
    let chain = connection.peer_certificates().unwrap_or_default();
    let found = authority(chain, &name);
    let saved = found.and_then(|ca| save(file, ca).map_err(|e| format!("{}: {e}", file.display())));
    match saved {
        Ok(()) => {
            log::info!(target: "stream_ssl", "successfully bootstrapped CA cert to {}", file.display());
            Ok(())
        }
        Err(why) => {
            let text = format!("could not bootstrap CA cert: {why}");
            log::error!(target: "stream_ssl", "{text}");
            Err(io::Error::other(text))
        }
    }
}

/// The last certificate of a chain, if it vouches for the first.
fn authority<'a>(
    chain: &'a [CertificateDer<'static>],
    name: &ServerName<'_>,
) -> Result<&'a CertificateDer<'static>, String> {
    let [peer, rest @ ..] = chain else {
        return Err("no certificate presented by peer".to_owned());
    };
    let [between @ .., last] = rest else {
        return Err("the peer sent no authority's certificate (start it with --peer-ca-cert)".to_owned());
    };
    let mut roots = RootCertStore::empty();
    roots.add(last.clone()).map_err(|e| e.to_string())?;
    Authority::new(Some(Arc::new(roots)), provider())
        .verify_server_cert(peer, between, name, &[], UnixTime::now())
        .map_err(|e| format!("the authority that the peer sent does not vouch for it: {e}"))?;
    Ok(last)
}

/// Writes one certificate as PEM into a new file.
fn save(file: &Path, certificate: &CertificateDer<'_>) -> io::Result<()> {
    let mut out = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(file)?;
    out.write_all(pem::encode(&pem::Pem::new("CERTIFICATE", certificate.as_ref())).as_bytes())
}
