//! Authentication: one scheme for every route, Ed25519 over the request's canonical bytes.
//!
//! The account id is the address of the owner's key, so a request signed by the owner needs nothing else.
//! Another key needs a delegation. Every signature error has the same answer, so that an attacker does not
//! learn which part was right. The HTTP gate calls this module before any other code sees a request.

use axum::http::{HeaderMap, Method};
use baton_keys::{
    SIGNATURE_LEN,
    account::{
        HEADER_ACCOUNT_ID, HEADER_NONCE, HEADER_PUBLIC_KEY, HEADER_SIGNATURE, HEADER_TIMESTAMP,
        MAX_REQUEST_AGE_SECONDS, RequestParts, verify_request,
    },
    ids::PublicKey,
};
use baton_memory::{Memory, api::MemoryError, ids::OwnerId};
use baton_proto::right::{MemoryAccess, RightChain};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::delegation::{MAX_HEADER_BYTES, Scope, registry::Registry};

/// Longest nonce: a UUID, or random bytes of ample length in hex.
const MAX_NONCE_BYTES: usize = 128;

/// The authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The owner of the memory.
    pub(crate) owner: OwnerId,
    /// The key that signed.
    pub(crate) key: PublicKey,
    /// The key's right by the owner's delegation; `None` for the owner's own key.
    pub(crate) delegation: Option<MemoryAccess>,
}

impl Caller {
    /// Whether it is the owner's own key.
    #[must_use]
    pub(crate) fn is_owner(&self) -> bool {
        self.delegation.is_none()
    }

    /// Whether it has a scope.
    #[must_use]
    pub(crate) fn may(&self, scope: Scope) -> bool {
        self.delegation.as_ref().is_none_or(|access| access.permissions.allow(scope))
    }

    /// Whether intimate items may be shown to it.
    #[must_use]
    pub(crate) fn sees_intimate(&self) -> bool {
        self.may(Scope::Intimate)
    }

    /// The one project that it is bound to.
    #[must_use]
    pub(crate) fn bound_to(&self) -> Option<&str> {
        self.delegation.as_ref().and_then(|delegation| delegation.project.as_deref())
    }
}

/// Why authentication failed.
#[derive(Debug)]
pub(crate) enum AuthError {
    /// A header is missing or malformed, the signature is invalid, the key may not act for the account, or
    /// the nonce was used before. The answer does not say which.
    Signature,
    /// The time is too far from the relayer's clock. This is checked first, before any signature.
    Clock,
    /// Memory failed to answer.
    Memory(MemoryError),
}

impl From<MemoryError> for AuthError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}

/// A header that occurs exactly once.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// The header in which a request may state its body's hash, so that its signature can be checked before the
/// body is read.
pub(crate) const HEADER_BODY_SHA256: &str = "x-body-sha256";

/// The head of a request in the form of a signed one. Its signature is not verified yet.
pub(crate) struct SignedHead<'a> {
    key: PublicKey,
    signature: [u8; SIGNATURE_LEN],
    timestamp: &'a str,
    seconds: u64,
    nonce: &'a str,
    account_text: &'a str,
    account: OwnerId,
    body_sha256: Option<&'a str>,
    headers: &'a HeaderMap,
}

/// A request with a valid time and signature. Its key's rights are not known yet, and its nonce is not taken.
pub(crate) struct VerifiedHead<'a>(SignedHead<'a>);

impl<'a> SignedHead<'a> {
    /// Reads a head, without the body, and checks its time.
    ///
    /// # Errors
    /// [`AuthError::Signature`] for a header that is missing or malformed, [`AuthError::Clock`].
    pub(crate) fn read(headers: &'a HeaderMap, now_ms: u64) -> Result<Self, AuthError> {
        let head = Self::parse(headers).ok_or(AuthError::Signature)?;
        let is_timely = head.seconds.abs_diff(now_ms / 1_000) <= MAX_REQUEST_AGE_SECONDS;
        if is_timely { Ok(head) } else { Err(AuthError::Clock) }
    }

    fn parse(headers: &'a HeaderMap) -> Option<Self> {
        let timestamp = single(headers, HEADER_TIMESTAMP)?;
        let account_text = single(headers, HEADER_ACCOUNT_ID)?;
        let nonce = single(headers, HEADER_NONCE)?;
        // Only the path may contain dots, so that the signed text has one reading only.
        let is_nonce = (1..=MAX_NONCE_BYTES).contains(&nonce.len())
            && nonce.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_nonce || !timestamp.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let mut signature = [0; SIGNATURE_LEN];
        hex::decode_to_slice(single(headers, HEADER_SIGNATURE)?, &mut signature).ok()?;
        let is_hash = |text: &&str| {
            text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let states_hash = headers.contains_key(HEADER_BODY_SHA256);
        let body_sha256 = single(headers, HEADER_BODY_SHA256).filter(is_hash);
        if states_hash && body_sha256.is_none() {
            return None;
        }
        Some(Self {
            key: PublicKey::parse_hex(single(headers, HEADER_PUBLIC_KEY)?).ok()?,
            signature,
            timestamp,
            seconds: timestamp.parse().ok()?,
            nonce,
            account_text,
            account: account_text.parse().ok()?,
            body_sha256,
            headers,
        })
    }

    /// The hash of the body, if the head states it: 64 lowercase hex characters.
    #[must_use]
    pub(crate) fn stated_body_sha256(&self) -> Option<&str> {
        self.body_sha256
    }

    /// The nonce under its key, as it is stored.
    fn nonce_hash(&self) -> [u8; 32] {
        Sha256::new()
            .chain_update(b"baton request nonce")
            .chain_update(self.key.0)
            .chain_update(self.nonce.as_bytes())
            .finalize()
            .into()
    }

    /// Checks the signature over the request with a body of this hash.
    ///
    /// # Errors
    /// [`AuthError::Signature`].
    pub(crate) fn verify(
        self,
        method: &Method,
        path_and_query: &str,
        body_sha256: &str,
    ) -> Result<VerifiedHead<'a>, AuthError> {
        let request = RequestParts {
            timestamp: self.timestamp,
            method: method.as_str(),
            path_and_query,
            body_sha256,
            nonce: self.nonce,
            account_id: self.account_text,
        };
        verify_request(&self.key, &request, &self.signature).map_err(|_| AuthError::Signature)?;
        Ok(VerifiedHead(self))
    }
}

impl VerifiedHead<'_> {
    /// The account that it names. Whether the key may act for it is not known yet.
    #[must_use]
    pub(crate) fn account(&self) -> OwnerId {
        self.0.account
    }

    /// Refuses a request that was admitted before, while that costs its key and its owner nothing.
    ///
    /// # Errors
    /// [`AuthError::Signature`] for a used nonce, and memory's.
    pub(crate) async fn refuse_replay(&self, memory: &Memory, now_ms: u64) -> Result<(), AuthError> {
        if memory.has_nonce(self.0.nonce_hash(), now_ms).await? { Err(AuthError::Signature) } else { Ok(()) }
    }

    /// The caller, by the rights of the key.
    ///
    /// # Errors
    /// [`AuthError`].
    pub(crate) async fn identify(&self, registry: &Registry, now_ms: u64) -> Result<Caller, AuthError> {
        let Self(head) = self;
        let delegation = delegation_of(registry, head, now_ms).await?;
        Ok(Caller { owner: head.account, key: head.key, delegation })
    }

    /// Takes the request's nonce: of two requests with one nonce, only one succeeds. A request that only `reads` needs
    /// no room on the disk.
    ///
    /// # Errors
    /// [`AuthError::Signature`] for a used nonce, and memory's.
    pub(crate) async fn take_nonce(
        &self,
        memory: &Memory,
        now_ms: u64,
        reads: bool,
    ) -> Result<(), AuthError> {
        let nonce = self.0.nonce_hash();
        // One second longer than the request is valid: clocks are read in seconds.
        let until_ms = self.0.seconds.saturating_add(MAX_REQUEST_AGE_SECONDS + 1).saturating_mul(1_000);
        let taken = match reads {
            true => memory.take_nonce_to_read(nonce, now_ms, until_ms).await?,
            false => memory.take_nonce(nonce, now_ms, until_ms).await?,
        };
        if taken { Ok(()) } else { Err(AuthError::Signature) }
    }
}

/// The delegation of the signer; `None` for the account's own key.
async fn delegation_of(
    registry: &Registry,
    head: &SignedHead<'_>,
    now_ms: u64,
) -> Result<Option<MemoryAccess>, AuthError> {
    if bool::from(OwnerId::of(&head.key).0.ct_eq(&head.account.0)) {
        return Ok(None);
    }
    let text = single(head.headers, "x-delegation").filter(|text| text.len() <= MAX_HEADER_BYTES);
    let presented = text.and_then(|text| text.parse::<RightChain>().ok());
    if presented.is_none() && head.headers.contains_key("x-delegation") {
        return Err(AuthError::Signature);
    }
    let found = registry.find(head.account, &head.key, presented.as_ref(), now_ms).await?;
    found.map(Some).ok_or(AuthError::Signature)
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
    use baton_keys::account::{AccountKey, body_sha256};

    use super::*;

    const NOW_S: u64 = 1_795_302_840;
    const PATH: &str = "/api/recall?a=1";

    fn key() -> AccountKey {
        AccountKey::from_seed(&[7; 32])
    }

    fn signed_at(seconds: u64) -> HeaderMap {
        let headers = key().request_headers(&key().account_id(), "POST", PATH, b"{}", seconds);
        let pair = |(name, value): (_, String)| {
            (HeaderName::from_static(name), HeaderValue::from_str(&value).unwrap())
        };
        headers.into_iter().map(pair).collect()
    }

    fn verify(headers: &HeaderMap) -> Result<(), AuthError> {
        let head = SignedHead::read(headers, NOW_S * 1_000 + 500)?;
        head.verify(&Method::POST, PATH, &body_sha256(b"{}")).map(drop)
    }

    #[test]
    fn a_nonce_has_no_dots() {
        for (nonce, good) in [
            ("a-b", true),
            ("", false),
            ("a.b", false),
            ("a b", false),
            (&"a".repeat(MAX_NONCE_BYTES + 1), false),
        ] {
            let (account_id, digest, timestamp) = (key().account_id(), body_sha256(b"{}"), NOW_S.to_string());
            let parts = RequestParts {
                timestamp: &timestamp,
                method: "POST",
                path_and_query: PATH,
                body_sha256: &digest,
                nonce,
                account_id: &account_id,
            };
            let mut headers = signed_at(NOW_S);
            let signature = hex::encode(key().sign_request(&parts));
            headers.insert(HEADER_NONCE, HeaderValue::from_str(nonce).unwrap());
            headers.insert(HEADER_SIGNATURE, HeaderValue::from_str(&signature).unwrap());
            let verified = verify(&headers);
            assert_eq!(verified.is_ok(), good, "{nonce}");
            assert!(good || matches!(verified, Err(AuthError::Signature)), "{nonce}");
        }
    }

    #[test]
    fn a_clock_may_differ_by_five_minutes() {
        for (seconds, good) in [
            (NOW_S - MAX_REQUEST_AGE_SECONDS, true),
            (NOW_S + MAX_REQUEST_AGE_SECONDS, true),
            (NOW_S - MAX_REQUEST_AGE_SECONDS - 1, false),
            (NOW_S + MAX_REQUEST_AGE_SECONDS + 1, false),
            (u64::MAX, false),
            (0, false),
        ] {
            let verified = verify(&signed_at(seconds));
            assert_eq!(verified.is_ok(), good, "{seconds}");
            assert!(good || matches!(verified, Err(AuthError::Clock)));
        }
    }
}
