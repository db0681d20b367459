//! The certificate of listeners on WebRTC. It stays the same, since its hash is part of the node's addresses.

use std::path::Path;

use baton_keys::files;
use baton_mesh::WebRtcCertificate;

use crate::failure::{Exit, Failure};

/// The file in the data directory: certificate and private key as PEM.
const CERTIFICATE_FILE: &str = "webrtc.pem";
/// Largest such file; one has about 800 bytes.
const MAX_FILE_BYTES: u64 = 16 * 1024;

/// Reads the certificate, or makes it at the first start.
pub(super) fn load_or_create(data_dir: &Path) -> Result<WebRtcCertificate, Failure> {
    let path = data_dir.join(CERTIFICATE_FILE);
    let failed = |text: String| Failure::text(Exit::Storage, text);
    if let Some(bytes) = files::read_secret(&path, "certificate of WebRTC", MAX_FILE_BYTES)? {
        return WebRtcCertificate::from_pem(&bytes).map_err(|error| {
            failed(format!(
                "{CERTIFICATE_FILE} in the data directory is damaged: {error}; move it away, and the node makes another \
                 (its WebRTC addresses then change)"
            ))
        });
    }
    let made = WebRtcCertificate::generate()?;
    files::write_private(&path, made.to_pem().as_bytes())
        .map_err(|error| failed(format!("cannot write {CERTIFICATE_FILE} to the data directory: {error}")))?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn the_certificate_stays_the_same_and_is_private() {
        let home = tempfile::tempdir().unwrap();
        let made = load_or_create(home.path()).unwrap();
        let path = home.path().join(CERTIFICATE_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(load_or_create(home.path()).unwrap().address_part(), made.address_part());
        fs::write(&path, "other words").unwrap();
        let error = load_or_create(home.path()).unwrap_err().to_string();
        assert!(error.contains("webrtc.pem") && error.contains("move it away"), "{error}");
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "other words",
            "a damaged file is left for the operator"
        );
    }
}
