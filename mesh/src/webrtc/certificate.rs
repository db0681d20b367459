//! The self-signed certificate of a listener. Its hash is part of the listener's addresses, so it should stay the same.

use std::fmt;

use dimpl::DtlsCertificate;
use libp2p::multiaddr::Protocol;
use libp2p_webrtc_utils::Fingerprint;
use pem::Pem;
use zeroize::Zeroizing;

const CERTIFICATE: &str = "CERTIFICATE";
const PRIVATE_KEY: &str = "PRIVATE KEY";

/// A certificate with its private key.
#[derive(Clone)]
pub struct Certificate {
    der: Vec<u8>,
    /// PKCS #8.
    private_key: Zeroizing<Vec<u8>>,
}

/// Why a certificate is not usable.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The system has no random bytes, or similar.
    #[error("a certificate could not be made")]
    Generate,
    /// The text is not one certificate and one private key.
    #[error("expected one {CERTIFICATE} and one {PRIVATE_KEY} block in PEM")]
    Form,
}

impl Certificate {
    /// Makes a certificate with a new key on the curve P-256, which all browsers have.
    ///
    /// # Errors
    /// [`CertificateError::Generate`].
    pub fn generate() -> Result<Self, CertificateError> {
        let made = dimpl::certificate::generate_self_signed_certificate();
        let made = made.map_err(|_| CertificateError::Generate)?;
        Ok(Self { der: made.certificate, private_key: Zeroizing::new(made.private_key) })
    }

    /// Reads the certificate and key that [`to_pem`](Self::to_pem) wrote.
    ///
    /// # Errors
    /// [`CertificateError::Form`].
    pub fn from_pem(text: impl AsRef<[u8]>) -> Result<Self, CertificateError> {
        let blocks = pem::parse_many(text).map_err(|_| CertificateError::Form)?;
        let [certificate, private_key] = blocks.try_into().map_err(|_| CertificateError::Form)?;
        if certificate.tag() != CERTIFICATE || private_key.tag() != PRIVATE_KEY {
            return Err(CertificateError::Form);
        }
        Ok(Self {
            der: certificate.into_contents(),
            private_key: Zeroizing::new(private_key.into_contents()),
        })
    }

    /// The certificate and its private key as PEM.
    #[must_use]
    pub fn to_pem(&self) -> Zeroizing<String> {
        let blocks =
            [Pem::new(CERTIFICATE, self.der.as_slice()), Pem::new(PRIVATE_KEY, self.private_key.as_slice())];
        Zeroizing::new(pem::encode_many(&blocks))
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint::from_certificate(&self.der)
    }

    /// The part of a multiaddress that names this certificate.
    #[must_use]
    pub fn address_part(&self) -> Protocol<'static> {
        Protocol::Certhash(self.fingerprint().to_multihash())
    }

    pub(crate) fn to_dtls(&self) -> DtlsCertificate {
        DtlsCertificate { certificate: self.der.clone(), private_key: self.private_key.to_vec() }
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("fingerprint", &self.fingerprint()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_the_same_after_a_file() {
        let made = Certificate::generate().unwrap();
        let read = Certificate::from_pem(made.to_pem().as_str()).unwrap();
        assert_eq!(read.address_part(), made.address_part());
        assert_eq!(read.private_key, made.private_key);
        assert_ne!(Certificate::generate().unwrap().address_part(), made.address_part());
    }

    #[test]
    fn other_text_is_refused() {
        let text = Certificate::generate().unwrap().to_pem();
        let (certificate, key) = text.split_at(text.find("-----BEGIN PRIVATE").unwrap());
        for wrong in
            ["", "no PEM", certificate, key, &format!("{key}{certificate}"), &format!("{}{key}", *text)]
        {
            assert!(matches!(Certificate::from_pem(wrong), Err(CertificateError::Form)), "{wrong}");
        }
    }
}
