//! Bearer tokens, a publisher's proof of permission.
//!
//! Owns the secrets and their tokens; [`HttpStore`](crate::HttpStore) sends them. Walrus's publishers accept
//! each JSON web token once, so every PUT gets a newly minted one. Secrets are wiped when dropped, never
//! printed, and marked sensitive in requests.

use std::{sync::Arc, time::Duration};

use jsonwebtoken::{EncodingKey, Header};
use reqwest::header::HeaderValue;
use serde::Serialize;
use zeroize::Zeroizing;

/// Fewest bytes of a secret, as HS256 requires (RFC 7518, 3.2).
pub const MIN_JWT_SECRET_BYTES: usize = 32;
/// Longest bearer token: servers refuse request heads of more than some kilobytes.
const MAX_TOKEN_BYTES: usize = 4096;
/// Validity of a minted token. It is checked at the start of a PUT, so it covers clock differences, not the
/// upload.
const VALID_FOR: Duration = Duration::from_secs(120);

/// The reason why a token cannot be used; every text names the fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Not valid in a header.
    #[error("a bearer token must be 1 to {MAX_TOKEN_BYTES} visible ASCII characters without spaces")]
    Form,
    /// A secret that could be guessed.
    #[error("the secret for tokens must have at least {MIN_JWT_SECRET_BYTES} bytes, as HS256 asks for")]
    ShortSecret,
}

/// A publisher's bearer token: given, or minted for each PUT.
#[derive(Clone)]
pub struct PublisherToken(TokenKind);

#[derive(Clone)]
enum TokenKind {
    Bearer(Arc<Zeroizing<String>>),
    Minted(Arc<EncodingKey>),
}

/// The PUT that a token is for.
#[derive(Debug, Clone, Default)]
pub(crate) struct TokenPurpose {
    /// The blob's lifetime in epochs.
    pub(crate) epochs: u32,
    /// Bytes of the body, if the publisher counts in the same way.
    pub(crate) size: Option<u64>,
    /// The object's receiver, as in the query.
    pub(crate) send_object_to: Option<String>,
}

#[derive(Serialize)]
struct TokenClaims<'a> {
    iat: u64,
    exp: u64,
    jti: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    send_object_to: Option<&'a str>,
    epochs: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

impl PublisherToken {
    /// A ready token, sent unchanged with every PUT.
    ///
    /// # Errors
    /// [`TokenError::Form`] for a token that a header cannot hold.
    pub fn bearer(token: impl Into<String>) -> Result<Self, TokenError> {
        let token = Zeroizing::new(token.into());
        let fits = !token.is_empty() && token.len() <= MAX_TOKEN_BYTES;
        if !fits || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Form);
        }
        Ok(Self(TokenKind::Bearer(Arc::new(token))))
    }

    /// A JSON web token (HS256) for each PUT, minted from the secret of at least 32 bytes that is shared with the
    /// publisher. It names the epochs, size and receiver of its PUT, so it is useless for another.
    ///
    /// # Errors
    /// [`TokenError::ShortSecret`].
    pub fn minted(secret: &[u8]) -> Result<Self, TokenError> {
        if secret.len() < MIN_JWT_SECRET_BYTES {
            return Err(TokenError::ShortSecret);
        }
        Ok(Self(TokenKind::Minted(Arc::new(EncodingKey::from_secret(secret)))))
    }

    /// Whether each PUT gets its own token.
    pub(crate) fn is_fresh(&self) -> bool {
        matches!(self.0, TokenKind::Minted(_))
    }

    /// The value of the `Authorization` header for one PUT. `now` is Unix time in seconds.
    pub(crate) fn header(&self, purpose: &TokenPurpose, now: u64) -> Result<HeaderValue, TokenError> {
        let token = match &self.0 {
            TokenKind::Bearer(token) => Zeroizing::new(format!("Bearer {}", token.as_str())),
            TokenKind::Minted(key) => Zeroizing::new(format!("Bearer {}", mint(key, purpose, now)?.as_str())),
        };
        let mut value = HeaderValue::from_str(&token).map_err(|_| TokenError::Form)?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl std::fmt::Debug for PublisherToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &self.0 {
            TokenKind::Bearer(_) => "PublisherToken(bearer)",
            TokenKind::Minted(_) => "PublisherToken(minted)",
        })
    }
}

fn mint(key: &EncodingKey, purpose: &TokenPurpose, now: u64) -> Result<Zeroizing<String>, TokenError> {
    let claims = TokenClaims {
        iat: now,
        exp: now.saturating_add(VALID_FOR.as_secs()),
        jti: hex::encode(rand::random::<[u8; 16]>()),
        send_object_to: purpose.send_object_to.as_deref(),
        epochs: purpose.epochs,
        size: purpose.size,
    };
    let token = jsonwebtoken::encode(&Header::default(), &claims, key);
    token.map(Zeroizing::new).map_err(|_| TokenError::Form)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};

    use super::*;

    const SECRET: &[u8] = b"a secret of more than 32 bytes, for tests";

    fn claims(purpose: &TokenPurpose, now: u64) -> BTreeMap<String, serde_json::Value> {
        let header = PublisherToken::minted(SECRET).unwrap().header(purpose, now).unwrap();
        assert!(header.is_sensitive());
        let token = header.to_str().unwrap().strip_prefix("Bearer ").unwrap().to_owned();
        let mut validation = Validation::new(Algorithm::HS256);
        validation.validate_exp = false;
        decode(&token, &DecodingKey::from_secret(SECRET), &validation).unwrap().claims
    }

    #[test]
    fn every_put_gets_a_token_of_its_own_that_says_what_it_is_for() {
        let purpose = TokenPurpose { epochs: 3, size: Some(12), send_object_to: Some("0x07".to_owned()) };
        let first = claims(&purpose, 1000);
        assert_eq!((&first["iat"], &first["exp"]), (&1000.into(), &1120.into()));
        assert_eq!((&first["epochs"], &first["size"]), (&3.into(), &12.into()));
        assert_eq!(first["send_object_to"], "0x07");
        assert_eq!(first["jti"].as_str().unwrap().len(), 32);
        assert_ne!(claims(&purpose, 1000)["jti"], first["jti"]);
    }

    #[test]
    fn secrets_are_not_printed() {
        for token in [PublisherToken::bearer("hush").unwrap(), PublisherToken::minted(SECRET).unwrap()] {
            let text = format!("{token:?}");
            assert!(!text.contains("hush") && !text.contains("secret of more"), "{text}");
        }
    }

    #[test]
    fn refuses_what_cannot_be_sent_or_could_be_guessed() {
        for token in ["", "two words", "line\nbreak", "ü"] {
            assert_eq!(PublisherToken::bearer(token).unwrap_err(), TokenError::Form, "{token:?}");
        }
        assert!(PublisherToken::bearer("x".repeat(MAX_TOKEN_BYTES + 1)).is_err());
        assert_eq!(PublisherToken::minted(&[1; 31]).unwrap_err(), TokenError::ShortSecret);
    }
}
