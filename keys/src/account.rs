//! The account key of a memory owner: its file, its backup words, and its signatures on requests to a
//! relayer.
//!
//! An account is an Ed25519 key; its id is the key's Sui address ([`crate::owner`]). So the verifier of a
//! signature also knows the account.
//!
//! Requests are signed as in the published `memwal` SDK, over the raw text of [`request_text`]. That text
//! begins with a digit of the time. A labelled message begins with a length byte below any digit, then
//! `baton/`. So neither can pass for the other.

use std::{fs, path::Path};

use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::{
    contexts::RELAYER_URL,
    files::{self, FileSecret, KeyFileError},
    ids::PublicKey,
    owner::sui_address,
    secret::random_bytes,
    session::SessionRoot,
    sign::{self, BadSignature, SIGNATURE_LEN, SecretSigningKey, verify_raw},
    words::WordsError,
};

/// The kind of an account key file.
pub const ACCOUNT_KEY_KIND: &str = "account";
/// Largest difference between a request's time and the relayer's, in seconds.
pub const MAX_REQUEST_AGE_SECONDS: u64 = 300;

/// Header with the signer's public key, in hex.
pub const HEADER_PUBLIC_KEY: &str = "x-public-key";
/// Header with the signature, in hex.
pub const HEADER_SIGNATURE: &str = "x-signature";
/// Header with the time, in seconds since the Unix epoch.
pub const HEADER_TIMESTAMP: &str = "x-timestamp";
/// Header with the nonce, a version 4 UUID.
pub const HEADER_NONCE: &str = "x-nonce";
/// Header with the account's id.
pub const HEADER_ACCOUNT_ID: &str = "x-account-id";

/// The key of an account, or of a delegate.
#[derive(Clone, Debug)]
pub struct AccountKey(SecretSigningKey);

/// The bytes that a memory export's signature covers: the BLAKE3 of its earlier lines, each with a line feed.
pub fn export_digest<'a>(lines: impl IntoIterator<Item = &'a str>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for line in lines {
        hasher.update(line.as_bytes());
        hasher.update(b"\n");
    }
    hasher.finalize().into()
}

impl AccountKey {
    /// A fresh random account.
    #[must_use]
    pub fn generate() -> Self {
        Self(SecretSigningKey::generate())
    }

    /// The account with this seed.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SecretSigningKey::from_seed(seed))
    }

    /// Writes the key to a new file with mode 0600; never overwrites an existing file.
    ///
    /// # Errors
    /// [`KeyFileError::Io`], also when the file exists.
    pub fn create(&self, path: &Path, passphrase: Option<&str>) -> Result<(), KeyFileError> {
        if let Some(folder) =
            path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        {
            let made = files::create_private_folder(folder);
            made.map_err(|source| KeyFileError::Io { action: "create", path: path.to_owned(), source })?;
        }
        let secret = FileSecret::from_bytes(*self.0.expose_seed());
        files::create(path, ACCOUNT_KEY_KIND, &secret, passphrase)
    }

    /// Reads the key from its file.
    ///
    /// # Errors
    /// [`KeyFileError`], by cause.
    pub fn load(path: &Path, passphrase: Option<&str>) -> Result<Self, KeyFileError> {
        Ok(Self::from_seed(files::load(path, ACCOUNT_KEY_KIND, passphrase)?.expose()))
    }

    /// Whether a key file exists at a path.
    #[must_use]
    pub fn exists(path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok()
    }

    /// The key as 24 words, for backup on paper.
    #[must_use]
    pub fn to_words(&self) -> Zeroizing<String> {
        SessionRoot::from_bytes(*self.0.expose_seed()).to_words()
    }

    /// The key from its 24 words. Any 24 backup words give an account, also those of a session: compare the
    /// address.
    ///
    /// # Errors
    /// [`WordsError`], with the first wrong word if there is one.
    pub fn from_words(words: &str) -> Result<Self, WordsError> {
        Ok(Self::from_seed(SessionRoot::from_words(words)?.expose()))
    }

    /// The public key.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        self.0.public_key()
    }

    /// The account's id: `0x` and the Sui address of the key in hex.
    #[must_use]
    pub fn account_id(&self) -> String {
        account_id(&self.public_key())
    }

    /// The signing key, for objects signed under a label.
    #[must_use]
    pub fn signing_key(&self) -> &SecretSigningKey {
        &self.0
    }

    /// Signs a request for an account: this key's own account, or the account that made it a delegate.
    #[must_use]
    pub fn sign_request(&self, request: &RequestParts<'_>) -> [u8; SIGNATURE_LEN] {
        self.0.sign_raw(request_text(request).as_bytes())
    }

    /// The headers of a request signed now, under a fresh nonce, on behalf of `account`.
    #[must_use]
    pub fn request_headers(
        &self,
        account: &str,
        method: &str,
        path_and_query: &str,
        body: &[u8],
        now_seconds: u64,
    ) -> [(&'static str, String); 5] {
        let (timestamp, nonce) = (now_seconds.to_string(), uuid4());
        let body_sha256 = body_sha256(body);
        let parts = RequestParts {
            timestamp: &timestamp,
            method,
            path_and_query,
            body_sha256: &body_sha256,
            nonce: &nonce,
            account_id: account,
        };
        let signature = hex::encode(self.sign_request(&parts));
        [
            (HEADER_PUBLIC_KEY, self.public_key().to_string()),
            (HEADER_SIGNATURE, signature),
            (HEADER_TIMESTAMP, timestamp),
            (HEADER_NONCE, nonce),
            (HEADER_ACCOUNT_ID, account.to_owned()),
        ]
    }
}

/// `0x` and the Sui address of a key in hex.
#[must_use]
pub fn account_id(key: &PublicKey) -> String {
    format!("0x{}", hex::encode(sui_address(key)))
}

/// The parts of a request that its signature covers, as sent.
#[derive(Clone, Copy, Debug)]
pub struct RequestParts<'a> {
    /// Seconds since the Unix epoch, in digits.
    pub timestamp: &'a str,
    /// Upper case.
    pub method: &'a str,
    /// From the first slash, with the query as sent.
    pub path_and_query: &'a str,
    /// SHA-256 of the body in lower-case hex; an absent body counts as no bytes.
    pub body_sha256: &'a str,
    /// A version 4 UUID.
    pub nonce: &'a str,
    /// The account on whose behalf the request is; empty without the header.
    pub account_id: &'a str,
}

/// `{timestamp}.{method}.{path and query}.{body_sha256}.{nonce}.{account_id}`.
#[must_use]
pub fn request_text(parts: &RequestParts<'_>) -> String {
    let RequestParts { timestamp, method, path_and_query, body_sha256, nonce, account_id } = parts;
    format!("{timestamp}.{method}.{path_and_query}.{body_sha256}.{nonce}.{account_id}")
}

/// Checks the signature of a request, strictly.
///
/// # Errors
/// [`BadSignature`], for every cause.
pub fn verify_request(
    key: &PublicKey,
    parts: &RequestParts<'_>,
    signature: &[u8; SIGNATURE_LEN],
) -> Result<(), BadSignature> {
    verify_raw(key, request_text(parts).as_bytes(), signature)
}

/// SHA-256 of a body in lower-case hex.
#[must_use]
pub fn body_sha256(body: &[u8]) -> String {
    hex::encode(Sha256::digest(body))
}

/// A random UUID, version 4 (RFC 9562).
#[must_use]
pub fn uuid4() -> String {
    let mut bytes = random_bytes::<16>();
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let text = hex::encode(bytes);
    format!("{}-{}-{}-{}-{}", &text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..])
}

/// The query parameter by which a signed request names its relayer.
pub const RELAYER_PARAMETER: &str = "relayer";

/// A path and query with the name of the relayer, for a signed request: another relayer refuses its bytes.
#[must_use]
pub fn addressed_to(path_and_query: &str, relayer: &PublicKey) -> String {
    let mark = if path_and_query.contains('?') { '&' } else { '?' };
    format!("{path_and_query}{mark}{RELAYER_PARAMETER}={relayer}")
}

/// A relayer's signature over the URL at which it serves, without a slash at its end.
///
/// A client compares the URL with the one that it uses. So no relayer can pass another's key off as its own.
#[must_use]
pub fn sign_relayer_url(relayer: &SecretSigningKey, url: &str) -> [u8; SIGNATURE_LEN] {
    relayer.sign(RELAYER_URL, url.trim_end_matches('/').as_bytes())
}

/// Verifies such a signature.
///
/// # Errors
/// [`BadSignature`].
pub fn verify_relayer_url(
    relayer: &PublicKey,
    url: &str,
    signature: &[u8; SIGNATURE_LEN],
) -> Result<(), BadSignature> {
    sign::verify(RELAYER_URL, relayer, url.trim_end_matches('/').as_bytes(), signature)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/api/recall?limit=3";

    fn parts<'a>(headers: &'a [(&'static str, String); 5], body: &'a str) -> RequestParts<'a> {
        let [_, _, (_, timestamp), (_, nonce), (_, account_id)] = headers;
        RequestParts { timestamp, method: "POST", path_and_query: PATH, body_sha256: body, nonce, account_id }
    }

    #[test]
    fn a_request_verifies_as_signed_and_not_with_any_part_changed() {
        let key = AccountKey::from_seed(&[3; 32]);
        let headers = key.request_headers(&key.account_id(), "POST", PATH, b"{}", 1_700_000_000);
        let digest = body_sha256(b"{}");
        let good = parts(&headers, &digest);
        let mut signature = [0; SIGNATURE_LEN];
        hex::decode_to_slice(&headers[1].1, &mut signature).unwrap();
        let check = |parts: &RequestParts<'_>| verify_request(&key.public_key(), parts, &signature);
        assert_eq!(check(&good), Ok(()));
        let other = body_sha256(b"[]");
        for changed in [
            RequestParts { timestamp: "1700000001", ..good },
            RequestParts { method: "GET", ..good },
            RequestParts { path_and_query: "/api/recall?limit=4", ..good },
            RequestParts { body_sha256: &other, ..good },
            RequestParts { nonce: "x", ..good },
            RequestParts { account_id: "0x00", ..good },
        ] {
            assert_eq!(check(&changed), Err(BadSignature), "{changed:?}");
        }
        let other_key = AccountKey::generate().public_key();
        assert_eq!(verify_request(&other_key, &good, &signature), Err(BadSignature));
    }

    /// A signature under a label is never valid for a request, whatever the request contains.
    #[test]
    fn requests_and_labelled_messages_are_never_the_same_bytes() {
        let text = request_text(&RequestParts {
            timestamp: "1700000000",
            method: "GET",
            path_and_query: "/",
            body_sha256: &body_sha256(b""),
            nonce: &uuid4(),
            account_id: "",
        });
        let labels = crate::contexts::ALL_LABELS.iter().map(|(_, label)| label.as_str());
        assert!(text.starts_with(|first: char| first.is_ascii_digit()));
        assert!(labels.clone().all(|label| label.len() < usize::from(b'0') && label.starts_with("baton/")));
    }

    #[test]
    fn a_relayer_is_named_in_the_query_and_names_its_own_url() {
        let relayer = SecretSigningKey::from_seed(&[3; 32]);
        let key = relayer.public_key();
        assert_eq!(addressed_to("/v1/x", &key), format!("/v1/x?relayer={key}"));
        assert_eq!(addressed_to("/v1/x?a=1", &key), format!("/v1/x?a=1&relayer={key}"));
        let signature = sign_relayer_url(&relayer, "https://a.example/");
        assert_eq!(verify_relayer_url(&key, "https://a.example", &signature), Ok(()));
        assert_eq!(verify_relayer_url(&key, "https://b.example", &signature), Err(BadSignature));
        let other = SecretSigningKey::from_seed(&[4; 32]).public_key();
        assert_eq!(verify_relayer_url(&other, "https://a.example", &signature), Err(BadSignature));
    }

    #[test]
    fn a_nonce_is_a_version_4_uuid() {
        let nonce = uuid4();
        assert_ne!(nonce, uuid4());
        let parts: Vec<&str> = nonce.split('-').collect();
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(parts[2].starts_with('4') && "89ab".contains(&parts[3][..1]));
    }

    #[test]
    fn an_account_is_kept_in_a_private_file_and_in_words() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys/account.key");
        let key = AccountKey::generate();
        key.create(&path, Some("correct horse")).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(AccountKey::load(&path, None), Err(KeyFileError::PassphraseNeeded { .. })));
        let loaded = AccountKey::load(&path, Some("correct horse")).unwrap();
        assert_eq!(loaded.account_id(), key.account_id());
        assert!(matches!(AccountKey::generate().create(&path, None), Err(KeyFileError::Io { .. })));
        let restored = AccountKey::from_words(&key.to_words()).unwrap();
        assert_eq!(restored.public_key(), key.public_key());
        assert!(key.account_id().starts_with("0x") && key.account_id().len() == 66);
    }
}
