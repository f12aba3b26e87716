//! Reads the files of keys and certificates, and makes the TLS configurations of them.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};

use super::Settings;
use super::verify::Authority;

/// Longest file that is read, in bytes; collections of public authorities have a quarter of it.
const MAX_FILE: u64 = 1 << 20;

/// The word that stands for "no authority" in place of a file's name.
const NONE: &str = "none";

/// Keys that were read, and when the files were last written.
pub(super) struct Loaded {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    stamps: Vec<(PathBuf, Option<SystemTime>)>,
}

impl Loaded {
    /// Reads everything anew.
    ///
    /// # Errors
    /// A text for the log: the missing setting, the unreadable file, or the keys that do not fit together.
    pub(super) fn read(settings: &Settings) -> Result<Loaded, String> {
        let key_file = need(settings.private_key.as_ref(), "Private key")?;
        let cert_file = need(settings.certificate.as_ref(), "Certificate")?;
        let ca_file = need(settings.ca_cert.as_ref(), "CA certificate")?;
        let stamps = [
            Some(key_file),
            Some(cert_file),
            Some(ca_file),
            settings.peer_ca_cert.as_ref(),
        ]
        .into_iter()
        .flatten()
        .map(|f| (f.clone(), written(f)))
        .collect();

        let provider = provider();
        let versions = versions(settings.protocols.as_deref())?;
        let mut chain = certificates(cert_file)?;
        if let Some(file) = &settings.peer_ca_cert {
            chain.extend(certificates(file)?);
        }
        let key = private_key(key_file)?;
        let roots = match ca_file.as_os_str() == NONE {
            true => None,
            false => Some(Arc::new(roots(ca_file)?)),
        };
        let fit = |e: rustls::Error| match e {
            rustls::Error::InvalidCertificate(why) => {
                format!("{}: cannot be used: {why}", cert_file.display())
            }
            other => format!("{}: does not fit the private key: {other}", cert_file.display()),
        };
        let proto = |e: rustls::Error| format!("no usable protocol: {e}");

        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&versions)
            .map_err(proto)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Authority::new(roots.clone(), provider.clone())))
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(fit)?;
        let callers = match roots {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(roots) => WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
                .build()
                .map_err(|e| bad(ca_file, &e))?,
        };
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .map_err(proto)?
            .with_client_cert_verifier(callers)
            .with_single_cert(chain, key)
            .map_err(fit)?;
        Ok(Loaded {
            client: Arc::new(client),
            server: Arc::new(server),
            stamps,
        })
    }

    /// Whether a file was written since.
    pub(super) fn changed(&self) -> bool {
        self.stamps.iter().any(|(file, then)| written(file) != *then)
    }
}

/// The implementation of the ciphers, chosen here and not for the whole process.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The one key of a file.
pub(super) fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(&contents(file)?).map_err(|e| bad(file, &e))
}

/// Contents of a plain file of reasonable size. Others are refused: a pipe or a device would have us wait, or
/// read, for ever.
fn contents(file: &Path) -> Result<Vec<u8>, String> {
    // Opening a pipe waits for its other end unless it is opened with `NONBLOCK`.
    let open = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(file)
        .map_err(|e| bad(file, &crate::errno_text(&e)))?;
    let about = open.metadata().map_err(|e| bad(file, &crate::errno_text(&e)))?;
    if !about.is_file() || about.len() > MAX_FILE {
        return Err(format!(
            "{}: is not a file of keys or certificates",
            file.display()
        ));
    }
    let mut bytes = Vec::new();
    open.take(MAX_FILE)
        .read_to_end(&mut bytes)
        .map_err(|e| bad(file, &crate::errno_text(&e)))?;
    Ok(bytes)
}

/// All certificates of a file; at least one.
pub(super) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(&contents(file)?)
        .collect::<Result<_, _>>()
        .map_err(|e| bad(file, &e))?;
    match all.is_empty() {
        true => Err(format!("{}: holds no certificate", file.display())),
        false => Ok(all),
    }
}

/// The protocols of a list in Open vSwitch's notation (commas or spaces); all that are implemented where none
/// is given.
fn versions(list: Option<&str>) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let all = || vec![&version::TLS12, &version::TLS13];
    let Some(list) = list else { return Ok(all()) };
    let mut wanted = Vec::new();
    for word in list.split([',', ' ', '\t']).filter(|w| !w.is_empty()) {
        match word {
            "TLSv1.2" => wanted.push(&version::TLS12),
            "TLSv1.3" => wanted.push(&version::TLS13),
            "TLSv1" | "TLSv1.1" => {
                log::warn!(target: "stream_ssl", "{word}: left out, it is broken and not implemented")
            }
            other => return Err(format!("{other}: SSL protocol not recognized")),
        }
    }
    match wanted.is_empty() {
        true => Err(format!("{list}: none of these protocols is implemented")),
        false => Ok(wanted),
    }
}

fn roots(file: &Path) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(file)? {
        store.add(certificate).map_err(|e| bad(file, &e))?;
    }
    Ok(store)
}

fn need<'a>(file: Option<&'a PathBuf>, what: &str) -> Result<&'a PathBuf, String> {
    file.ok_or_else(|| format!("{what} must be configured to use SSL"))
}

fn bad(file: &Path, why: &dyn std::fmt::Display) -> String {
    format!("{}: {why}", file.display())
}

fn written(file: &Path) -> Option<SystemTime> {
    file.metadata().and_then(|m| m.modified()).ok()
}
