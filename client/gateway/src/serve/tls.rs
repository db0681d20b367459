//! TLS with a certificate in two files, which are read again when they change: the owner's, or those that `acme`
//! keeps.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use baton_kit::listen::SlotStream;
use parking_lot::{Mutex, MutexGuard};
use tokio::{io::AsyncWriteExt as _, time::timeout};
use tokio_rustls::{
    LazyConfigAcceptor,
    rustls::{
        self, ServerConfig,
        crypto::aws_lc_rs::default_provider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::Acceptor,
        sign::{CertifiedKey, SingleCertAndKey},
        version::TLS13,
    },
    server::TlsStream,
};
use zeroize::Zeroizing;

/// Largest file with a certificate's chain or its key.
const MAX_PEM_BYTES: u64 = 256 * 1024;
/// Time for a program's first message, which it sends at once.
const HELLO_TIME: Duration = Duration::from_secs(3);
/// Time for a handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Interval between two looks at the files.
const FILES_INTERVAL: Duration = Duration::from_secs(60);
/// The protocol in which an authority asks for the proof of a name (RFC 8737).
pub(crate) const PROOF_PROTOCOL: &[u8] = b"acme-tls/1";

/// A certificate's file or its key's that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be used: {reason}")]
pub struct TlsError {
    /// The file.
    path: PathBuf,
    /// The cause, and what is expected.
    reason: String,
}

/// A certificate with its key, from two PEM files.
#[derive(Debug, Clone)]
pub struct TlsIdentity {
    inner: Arc<TlsFiles>,
}

#[derive(Debug)]
struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
    /// `None` while there are no files yet.
    current: Mutex<Option<CurrentIdentity>>,
    /// By name: the answer to an authority that asks for its proof.
    proofs: Mutex<HashMap<String, Arc<ServerConfig>>>,
}

#[derive(Debug, Clone)]
struct CurrentIdentity {
    config: Arc<ServerConfig>,
    /// When the files changed last.
    modified: [Option<SystemTime>; 2],
}

impl TlsIdentity {
    /// Reads the certificate's chain and its key.
    ///
    /// # Errors
    /// [`TlsError`] when a file cannot be read, or the two do not belong together.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let modified = [modified(certificate), modified(key)];
        let current = CurrentIdentity { config: server_config(certificate, key)?, modified };
        Ok(Self::new(certificate, key, Some(current)))
    }

    /// As [`TlsIdentity::read`], for files that may come later. Blocking.
    pub(crate) fn expect(certificate: &Path, key: &Path) -> Self {
        Self::read(certificate, key).unwrap_or_else(|_| Self::new(certificate, key, None))
    }

    fn new(certificate: &Path, key: &Path, current: Option<CurrentIdentity>) -> Self {
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        let (current, proofs) = (Mutex::new(current), Mutex::default());
        Self { inner: Arc::new(TlsFiles { certificate, key, current, proofs }) }
    }

    fn current(&self) -> MutexGuard<'_, Option<CurrentIdentity>> {
        self.inner.current.lock()
    }

    /// The configuration with the certificate, if there is one.
    pub(crate) fn config(&self) -> Option<Arc<ServerConfig>> {
        self.current().as_ref().map(|current| current.config.clone())
    }

    /// The answers to an authority, by name.
    pub(crate) fn proofs(&self) -> MutexGuard<'_, HashMap<String, Arc<ServerConfig>>> {
        self.inner.proofs.lock()
    }

    /// Reads the files again if one of them changed. Blocking.
    pub(crate) fn refresh(&self) {
        let files = &self.inner;
        let modified = [modified(&files.certificate), modified(&files.key)];
        let is_known = |current: &CurrentIdentity| current.modified == modified;
        if modified == [None, None] || self.current().as_ref().is_some_and(is_known) {
            return;
        }
        match server_config(&files.certificate, &files.key) {
            Ok(config) => {
                tracing::info!("the certificate changed, and is used from now on");
                *self.current() = Some(CurrentIdentity { config, modified });
            }
            // One file may be newer than the other for a moment; the next look reads both again.
            Err(error) => tracing::warn!(%error, "the changed certificate cannot be used; the former one is"),
        }
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn server_config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let fault = |path: &Path, reason: String| TlsError { path: path.to_owned(), reason };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&read(certificate)?)
        .collect::<Result<_, _>>()
        .map_err(|error| fault(certificate, format!("not a certificate in PEM form: {error}")))?;
    if chain.is_empty() {
        return Err(fault(certificate, "it has no certificate in PEM form".to_owned()));
    }
    let secret = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| {
        fault(key, format!("not a private key in PEM form without a passphrase: {error}"))
    })?;
    let own = CertifiedKey::from_der(chain, secret, &default_provider());
    own.and_then(|own| config_of(own, b"http/1.1")).map_err(|error| {
        fault(key, format!("the key does not belong to the certificate, or is of an unknown kind: {error}"))
    })
}

/// The configuration of connections with a certificate, in one protocol.
pub(crate) fn config_of(own: CertifiedKey, protocol: &[u8]) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    let fault = |reason: String| TlsError { path: path.to_owned(), reason };
    let length = std::fs::metadata(path).map_err(|error| fault(error.to_string()))?.len();
    if length > MAX_PEM_BYTES {
        return Err(fault(format!("it is longer than {MAX_PEM_BYTES} bytes")));
    }
    std::fs::read(path).map(Zeroizing::new).map_err(|error| fault(error.to_string()))
}

/// A program's connection after its handshake; none for one that fails, and for an authority, which only asks for the
/// proof of a name.
pub(crate) async fn open(stream: SlotStream, identity: TlsIdentity) -> Option<TlsStream<SlotStream>> {
    timeout(HANDSHAKE_TIME, shake_hands(stream, &identity)).await.ok()?.ok()?
}

async fn shake_hands(
    stream: SlotStream,
    identity: &TlsIdentity,
) -> io::Result<Option<TlsStream<SlotStream>>> {
    let hello = timeout(HELLO_TIME, LazyConfigAcceptor::new(Acceptor::default(), stream));
    let begun = hello.await.map_err(|_| io::ErrorKind::TimedOut)??;
    let hello = begun.client_hello();
    let asks_proof = hello.alpn().is_some_and(|mut names| names.any(|name| name == PROOF_PROTOCOL));
    if !asks_proof {
        let config = identity.config().ok_or(io::ErrorKind::NotConnected)?;
        return begun.into_stream(config).await.map(Some);
    }
    let name = hello.server_name().unwrap_or_default().to_ascii_lowercase();
    let proof = identity.proofs().get(&name).cloned().ok_or(io::ErrorKind::NotFound)?;
    begun.into_stream(proof).await?.shutdown().await?;
    Ok(None)
}

/// Reads changed files again, for ever.
pub(crate) async fn watch_files(identity: TlsIdentity) {
    loop {
        tokio::time::sleep(FILES_INTERVAL).await;
        let identity = identity.clone();
        let _ = tokio::task::spawn_blocking(move || identity.refresh()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_identity(folder: &Path) -> (PathBuf, PathBuf) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        (certificate, key)
    }

    #[test]
    fn files_that_cannot_be_used_are_named_with_the_cause() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = write_identity(folder.path());
        TlsIdentity::read(&certificate, &key).unwrap();
        let other = tempfile::tempdir().unwrap();
        let (_, other_key) = write_identity(other.path());
        let (empty, missing) = (folder.path().join("empty"), folder.path().join("missing"));
        std::fs::write(&empty, "").unwrap();
        for (certificate, key, named, cause) in [
            (&certificate, &other_key, "key.pem", "does not belong"),
            (&empty, &key, "empty", "no certificate"),
            (&certificate, &empty, "empty", "not a private key"),
            (&certificate, &certificate, "certificate.pem", "not a private key"),
            (&missing, &key, "missing", "No such file"),
        ] {
            let error = TlsIdentity::read(certificate, key).unwrap_err().to_string();
            assert!(error.contains(named) && error.contains(cause), "{error}");
        }
    }

    #[test]
    fn a_renewed_certificate_is_used_and_a_broken_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = write_identity(folder.path());
        let identity = TlsIdentity::read(&certificate, &key).unwrap();
        let first = identity.config().unwrap();
        identity.refresh();
        assert!(Arc::ptr_eq(&first, &identity.config().unwrap()), "nothing changed");
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(&key, "").unwrap();
        identity.refresh();
        assert!(Arc::ptr_eq(&first, &identity.config().unwrap()), "the former one stays");
        write_identity(folder.path());
        identity.refresh();
        assert!(!Arc::ptr_eq(&first, &identity.config().unwrap()));
    }
}
