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
/// Default validity of a minted token. It is checked at the start of a PUT, so it covers clock differences,
/// not the upload.
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
    /// A validity of zero.
    #[error("a token must be valid for at least a second")]
    NotValid,
}

/// A publisher's bearer token: given, or minted for each PUT.
#[derive(Clone)]
pub struct PublisherToken(Kind);

#[derive(Clone)]
enum Kind {
    Bearer(Arc<Zeroizing<String>>),
    Minted(Arc<TokenMinter>),
}

/// Mints a JSON web token (HS256) for each PUT, from the secret shared with the publisher.
#[derive(Clone)]
pub struct TokenMinter {
    key: EncodingKey,
    valid_for: Duration,
    binds: bool,
    max_epochs: Option<u32>,
    max_size: Option<u64>,
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
struct Claims<'a> {
    iat: u64,
    exp: u64,
    jti: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    send_object_to: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epochs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_epochs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_size: Option<u64>,
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
        Ok(Self(Kind::Bearer(Arc::new(token))))
    }

    /// Tokens minted from the secret shared with the publisher.
    #[must_use]
    pub fn minted(minter: TokenMinter) -> Self {
        Self(Kind::Minted(Arc::new(minter)))
    }

    /// Whether each PUT gets its own token.
    pub(crate) fn is_fresh(&self) -> bool {
        matches!(self.0, Kind::Minted(_))
    }

    /// The value of the `Authorization` header for one PUT. `now` is Unix time in seconds.
    pub(crate) fn header(&self, purpose: &TokenPurpose, now: u64) -> Result<HeaderValue, TokenError> {
        let token = match &self.0 {
            Kind::Bearer(token) => Zeroizing::new(format!("Bearer {}", token.as_str())),
            Kind::Minted(minter) => Zeroizing::new(format!("Bearer {}", minter.mint(purpose, now)?.as_str())),
        };
        let mut value = HeaderValue::from_str(&token).map_err(|_| TokenError::Form)?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl std::fmt::Debug for PublisherToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Kind::Bearer(_) => f.write_str("PublisherToken(bearer)"),
            Kind::Minted(minter) => f.debug_tuple("PublisherToken").field(minter).finish(),
        }
    }
}

impl TokenMinter {
    /// Mints from this secret of at least 32 bytes.
    ///
    /// # Errors
    /// [`TokenError::ShortSecret`].
    pub fn new(secret: &[u8]) -> Result<Self, TokenError> {
        if secret.len() < MIN_JWT_SECRET_BYTES {
            return Err(TokenError::ShortSecret);
        }
        let key = EncodingKey::from_secret(secret);
        Ok(Self { key, valid_for: VALID_FOR, binds: true, max_epochs: None, max_size: None })
    }

    /// Validity of a token (120 s when not set), in whole seconds.
    ///
    /// # Errors
    /// [`TokenError::NotValid`] for less than a second.
    pub fn valid_for(mut self, time: Duration) -> Result<Self, TokenError> {
        if time.as_secs() == 0 {
            return Err(TokenError::NotValid);
        }
        self.valid_for = time;
        Ok(self)
    }

    /// Whether a token names the epochs, size and receiver of its PUT, and so is useless for another (true
    /// when not set).
    #[must_use]
    pub fn binds_put(mut self, binds: bool) -> Self {
        self.binds = binds;
        self
    }

    /// Names the most epochs that the token allows.
    #[must_use]
    pub fn max_epochs(mut self, epochs: u32) -> Self {
        self.max_epochs = Some(epochs);
        self
    }

    /// Names the largest body that the token allows, in bytes.
    #[must_use]
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.max_size = Some(bytes);
        self
    }

    fn mint(&self, purpose: &TokenPurpose, now: u64) -> Result<Zeroizing<String>, TokenError> {
        let bound = self.binds.then_some(purpose);
        // A claim is either exact or an upper bound, never both.
        let epochs = bound.map(|purpose| purpose.epochs).filter(|_| self.max_epochs.is_none());
        let size = bound.and_then(|purpose| purpose.size).filter(|_| self.max_size.is_none());
        let claims = Claims {
            iat: now,
            exp: now.saturating_add(self.valid_for.as_secs()),
            jti: hex::encode(rand::random::<[u8; 16]>()),
            send_object_to: bound.and_then(|purpose| purpose.send_object_to.as_deref()),
            epochs,
            max_epochs: self.max_epochs,
            size,
            max_size: self.max_size,
        };
        let token = jsonwebtoken::encode(&Header::default(), &claims, &self.key);
        token.map(Zeroizing::new).map_err(|_| TokenError::Form)
    }
}

impl std::fmt::Debug for TokenMinter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenMinter")
            .field("valid_for", &self.valid_for)
            .field("binds", &self.binds)
            .field("max_epochs", &self.max_epochs)
            .field("max_size", &self.max_size)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};

    use super::*;

    const SECRET: &[u8] = b"a secret of more than 32 bytes, for tests";

    fn claims(minter: TokenMinter, purpose: &TokenPurpose, now: u64) -> BTreeMap<String, serde_json::Value> {
        let header = PublisherToken::minted(minter).header(purpose, now).unwrap();
        assert!(header.is_sensitive());
        let token = header.to_str().unwrap().strip_prefix("Bearer ").unwrap().to_owned();
        let mut validation = Validation::new(Algorithm::HS256);
        validation.validate_exp = false;
        decode(&token, &DecodingKey::from_secret(SECRET), &validation).unwrap().claims
    }

    #[test]
    fn every_put_gets_a_token_of_its_own_that_says_what_it_is_for() {
        let purpose = TokenPurpose { epochs: 3, size: Some(12), send_object_to: Some("0x07".to_owned()) };
        let minter = TokenMinter::new(SECRET).unwrap().valid_for(Duration::from_secs(60)).unwrap();
        let first = claims(minter.clone(), &purpose, 1000);
        assert_eq!((&first["iat"], &first["exp"]), (&1000.into(), &1060.into()));
        assert_eq!((&first["epochs"], &first["size"]), (&3.into(), &12.into()));
        assert_eq!(first["send_object_to"], "0x07");
        assert_eq!(first["jti"].as_str().unwrap().len(), 32);
        assert_ne!(claims(minter, &purpose, 1000)["jti"], first["jti"]);
    }

    #[test]
    fn bounds_stand_in_for_exact_claims() {
        let minter = TokenMinter::new(SECRET).unwrap().max_epochs(9).max_size(99);
        let bounded = claims(minter, &TokenPurpose { epochs: 3, size: Some(12), ..Default::default() }, 1);
        assert_eq!((&bounded["max_epochs"], &bounded["max_size"]), (&9.into(), &99.into()));
        assert!(!bounded.contains_key("epochs") && !bounded.contains_key("size"));
        let unbound = claims(TokenMinter::new(SECRET).unwrap().binds_put(false), &TokenPurpose::default(), 1);
        assert_eq!(unbound.keys().collect::<Vec<_>>(), ["exp", "iat", "jti"]);
    }

    #[test]
    fn secrets_are_not_printed() {
        let minter = TokenMinter::new(SECRET).unwrap();
        for token in [PublisherToken::bearer("hush").unwrap(), PublisherToken::minted(minter)] {
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
        assert_eq!(TokenMinter::new(&[1; 31]).unwrap_err(), TokenError::ShortSecret);
        let minter = TokenMinter::new(SECRET).unwrap();
        assert_eq!(minter.valid_for(Duration::from_millis(999)).unwrap_err(), TokenError::NotValid);
    }
}
