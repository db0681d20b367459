//! Publisher tokens: the permission to PUT, and its bounds.
//!
//! A token is a JWT, signed with HS256 and a secret that the store shares with the issuer of tokens. It has
//! an expiry (`exp`) and an ID (`jti`) that is accepted once, and may bound the blob that it pays for.
//! Statuses, reasons and the order of the checks are those of Walrus's publisher. Neither a token nor the
//! secret ever reaches a log.

use axum::http::{HeaderMap, StatusCode, header};
use baton_proto::ids::SuiAddress;
use baton_walrus_client::wire::reason;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, errors::ErrorKind};
use serde::Deserialize;

use super::{EmbeddedStore, answers::Refusal, jwt_secret::JwtSecret};

/// How long after its expiry a token is still accepted, for clocks that differ.
const LEEWAY_S: u64 = 60;

/// The claims of a token.
#[derive(Debug, Deserialize)]
pub(super) struct Claim {
    exp: i64,
    jti: String,
    send_object_to: Option<String>,
    epochs: Option<u32>,
    max_epochs: Option<u32>,
    size: Option<u64>,
    max_size: Option<u64>,
}

/// The parts of a request that a token may bound.
pub(super) struct AuthorizationRequest<'a> {
    pub(super) epochs: u32,
    pub(super) send_object_to: Option<&'a str>,
    /// Bytes of the body: the minimum, and the maximum if known.
    pub(super) body: (u64, Option<u64>),
}

impl EmbeddedStore {
    /// Checks the token of a PUT and uses it up. `None` when the store requires none.
    pub(super) async fn authorize(
        &self,
        headers: &HeaderMap,
        asked: &AuthorizationRequest<'_>,
    ) -> Result<Option<Claim>, Refusal> {
        let Some(secret) = &self.inner.config.jwt_secret else { return Ok(None) };
        let now_s = self.inner.config.clock.now_ms() / 1000;
        let (claim, expires_s) = verify(secret, bearer(headers)?, now_s)?;
        let inner = self.inner.clone();
        let allowed = claim.allows(asked);
        // The store's operations are short, but they block.
        super::blocking(move || {
            inner.disk.use_token(&claim.jti, expires_s, now_s)?;
            if allowed.is_err() {
                inner.disk.release_token(&claim.jti)?;
            }
            allowed.map(|()| Some(claim))
        })
        .await
    }
}

/// The token in the Authorization header.
fn bearer(headers: &HeaderMap) -> Result<&str, Refusal> {
    let refuse = |message: &str| Refusal::text(StatusCode::BAD_REQUEST, message);
    let value = headers.get(header::AUTHORIZATION);
    let value = value.ok_or_else(|| refuse("Header of type `authorization` was missing"))?;
    let token = value.to_str().ok().and_then(|text| text.split_once(' '));
    let token =
        token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
    token.ok_or_else(|| refuse("invalid HTTP header (authorization)"))
}

/// Checks signature and time. The second value is the time until which the token's ID must be remembered.
fn verify(secret: &JwtSecret, token: &str, now_s: u64) -> Result<(Claim, u64), Refusal> {
    let mut validation = Validation::new(Algorithm::HS256);
    // The store's own clock decides, below.
    validation.validate_exp = false;
    validation.required_spec_claims.clear();
    let key = DecodingKey::from_secret(secret.as_bytes());
    let claim = match jsonwebtoken::decode::<Claim>(token, &key, &validation) {
        Ok(decoded) => decoded.claims,
        Err(error) if matches!(error.kind(), ErrorKind::InvalidSignature) => {
            let message = "the signature on the token is invalid";
            return Err(Refusal::auth(StatusCode::UNAUTHORIZED, reason::INVALID_SIGNATURE, message));
        }
        Err(_) => return Err(precondition("INVALID_TOKEN", "the JWT token is invalid")),
    };
    let Ok(expires_s) = u64::try_from(claim.exp) else {
        return Err(precondition("INVALID_TIMESTAMP", "one of the timestamps in the JWT token is invalid"));
    };
    let expires_s = expires_s.saturating_add(LEEWAY_S);
    if expires_s < now_s {
        let message = "the signature on the token has expired";
        return Err(Refusal::auth(StatusCode::GATEWAY_TIMEOUT, "EXPIRED_SIGNATURE", message));
    }
    Ok((claim, expires_s))
}

fn precondition(reason: &'static str, message: &'static str) -> Refusal {
    Refusal::auth(StatusCode::BAD_REQUEST, reason, message)
}

fn invalid_size() -> Refusal {
    precondition("INVALID_SIZE", "the size of the request does not match the size specified in the token")
}

fn inconsistent() -> Refusal {
    precondition("INCONSISTENT_TOKEN", "the token is inconsistent")
}

impl Claim {
    /// Checks all facts known before the body arrives.
    fn allows(&self, asked: &AuthorizationRequest<'_>) -> Result<(), Refusal> {
        if self.size.is_some() && self.max_size.is_some() {
            return Err(inconsistent());
        }
        let (at_least, at_most) = asked.body;
        let too_large = at_most.zip(self.max_size).is_some_and(|(body, limit)| body > limit);
        let too_small = at_most.zip(self.size).is_some_and(|(body, size)| body < size);
        if too_large || too_small || self.size.is_some_and(|size| at_least > size) {
            return Err(invalid_size());
        }
        match (self.epochs, self.max_epochs) {
            (Some(_), Some(_)) => return Err(inconsistent()),
            (Some(epochs), None) if asked.epochs != epochs => return Err(invalid_epochs()),
            (None, Some(limit)) if asked.epochs > limit => return Err(invalid_epochs()),
            _ => {}
        }
        let Some(owner) = &self.send_object_to else { return Ok(()) };
        let address = |text: &str| SuiAddress::parse_hex(text.strip_prefix("0x").unwrap_or(text)).ok();
        if address(owner).is_none() || asked.send_object_to.and_then(address) != address(owner) {
            let message = "the send_object_to field in the query does not match the token, or is missing";
            return Err(precondition("INVALID_SEND_OBJECT_TO", message));
        }
        Ok(())
    }

    /// Checks the size once it is known.
    pub(super) fn allows_size(&self, size: u64) -> Result<(), Refusal> {
        let too_large = self.max_size.is_some_and(|limit| size > limit);
        if too_large || self.size.is_some_and(|wanted| size != wanted) {
            return Err(invalid_size());
        }
        Ok(())
    }
}

fn invalid_epochs() -> Refusal {
    precondition("INVALID_EPOCHS", "the epochs field in the query does not match the token")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim {
            exp: 0,
            jti: String::new(),
            send_object_to: None,
            epochs: None,
            max_epochs: None,
            size: None,
            max_size: None,
        }
    }

    #[test]
    fn sizes_are_checked_as_far_as_they_are_known() {
        let asked = |at_least, at_most| AuthorizationRequest {
            epochs: 1,
            send_object_to: None,
            body: (at_least, at_most),
        };
        let exact = Claim { size: Some(10), ..claim() };
        let bounded = Claim { max_size: Some(10), ..claim() };
        for (claim, at_least, at_most, allowed) in [
            (&exact, 10, Some(10), true),
            (&exact, 9, Some(9), false),
            (&exact, 11, Some(11), false),
            (&exact, 0, None, true),
            (&exact, 11, None, false),
            (&bounded, 10, Some(10), true),
            (&bounded, 0, Some(0), true),
            (&bounded, 11, Some(11), false),
            (&bounded, 0, None, true),
        ] {
            assert_eq!(
                claim.allows(&asked(at_least, at_most)).is_ok(),
                allowed,
                "{claim:?} {at_least} {at_most:?}"
            );
        }
        assert!(
            exact.allows_size(10).is_ok() && exact.allows_size(9).is_err() && exact.allows_size(11).is_err()
        );
        assert!(bounded.allows_size(0).is_ok() && bounded.allows_size(11).is_err());
    }
}
