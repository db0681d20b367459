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
use baton_memory::{api::MemoryError, ids::OwnerId};
use baton_proto::right::{MemoryAccess, RightChain};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::delegation::{
    MAX_HEADER_BYTES, Scope,
    registry::{Records, Registry},
};

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

/// A request with a valid signature, time and right; only its nonce is not taken yet.
#[derive(Debug)]
pub(crate) struct AuthenticatedRequest {
    /// The caller.
    pub(crate) caller: Caller,
    nonce: [u8; 32],
    until_ms: u64,
}

/// Headers of a signed request, decoded.
struct SignatureHeaders<'a> {
    key: PublicKey,
    signature: [u8; SIGNATURE_LEN],
    timestamp: &'a str,
    seconds: u64,
    nonce: &'a str,
    account_text: &'a str,
    account: OwnerId,
}

impl<'a> SignatureHeaders<'a> {
    /// The nonce under its key, as it is stored.
    fn nonce_hash(&self) -> [u8; 32] {
        Sha256::new()
            .chain_update(b"baton request nonce")
            .chain_update(self.key.0)
            .chain_update(self.nonce.as_bytes())
            .finalize()
            .into()
    }

    fn read(headers: &'a HeaderMap) -> Option<Self> {
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
        Some(Self {
            key: PublicKey::parse_hex(single(headers, HEADER_PUBLIC_KEY)?).ok()?,
            signature,
            timestamp,
            seconds: timestamp.parse().ok()?,
            nonce,
            account_text,
            account: account_text.parse().ok()?,
        })
    }
}

/// A header that occurs exactly once.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// A request with a valid time and signature. Its key's rights are not known yet.
pub(crate) struct VerifiedHead<'a> {
    signed: SignatureHeaders<'a>,
    headers: &'a HeaderMap,
}

/// The header in which a request may state its body's hash, so that its signature can be checked before the
/// body is read.
pub(crate) const HEADER_BODY_SHA256: &str = "x-body-sha256";

/// The head of a request in the form of a signed one. Its signature is not verified yet.
pub(crate) struct SignedHead<'a> {
    signed: SignatureHeaders<'a>,
    headers: &'a HeaderMap,
    body_sha256: Option<&'a str>,
}

impl<'a> SignedHead<'a> {
    /// Reads a head, without the body, and checks its time.
    ///
    /// # Errors
    /// [`AuthError::Signature`] for a header that is missing or malformed, [`AuthError::Clock`].
    pub(crate) fn read(headers: &'a HeaderMap, now_ms: u64) -> Result<Self, AuthError> {
        let signed = SignatureHeaders::read(headers).ok_or(AuthError::Signature)?;
        if signed.seconds.abs_diff(now_ms / 1_000) > MAX_REQUEST_AGE_SECONDS {
            return Err(AuthError::Clock);
        }
        let body_sha256 = match headers.contains_key(HEADER_BODY_SHA256) {
            false => None,
            true => {
                let is_hash = |text: &&str| {
                    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
                };
                let stated = single(headers, HEADER_BODY_SHA256).filter(is_hash);
                Some(stated.ok_or(AuthError::Signature)?)
            }
        };
        Ok(Self { signed, headers, body_sha256 })
    }

    /// The hash of the body, if the head states it: 64 lowercase hex characters.
    #[must_use]
    pub(crate) fn stated_body_sha256(&self) -> Option<&str> {
        self.body_sha256
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
        let Self { signed, headers, .. } = self;
        let request = RequestParts {
            timestamp: signed.timestamp,
            method: method.as_str(),
            path_and_query,
            body_sha256,
            nonce: signed.nonce,
            account_id: signed.account_text,
        };
        verify_request(&signed.key, &request, &signed.signature).map_err(|_| AuthError::Signature)?;
        Ok(VerifiedHead { signed, headers })
    }
}

impl VerifiedHead<'_> {
    /// The account that it names. Whether the key may act for it is not known yet.
    #[must_use]
    pub(crate) fn account(&self) -> OwnerId {
        self.signed.account
    }

    /// Refuses a request that was admitted before, while that costs its key and its owner nothing.
    ///
    /// # Errors
    /// [`AuthError::Signature`] for a used nonce, and memory's.
    pub(crate) async fn refuse_replay(&self, records: &dyn Records, now_ms: u64) -> Result<(), AuthError> {
        match records.has_nonce(self.signed.nonce_hash(), now_ms).await {
            Ok(false) => Ok(()),
            Ok(true) => Err(AuthError::Signature),
            Err(error) => Err(AuthError::Memory(error)),
        }
    }

    /// Looks up the rights of the key.
    ///
    /// # Errors
    /// [`AuthError`].
    pub(crate) async fn identify(
        self,
        registry: &Registry,
        now_ms: u64,
    ) -> Result<AuthenticatedRequest, AuthError> {
        let Self { signed, headers } = self;
        let delegation = delegation_of(registry, &signed, headers, now_ms).await?;
        let caller = Caller { owner: signed.account, key: signed.key, delegation };
        let nonce = signed.nonce_hash();
        // One second longer than the request is valid: clocks are read in seconds.
        let until_ms = signed.seconds.saturating_add(MAX_REQUEST_AGE_SECONDS + 1).saturating_mul(1_000);
        Ok(AuthenticatedRequest { caller, nonce, until_ms })
    }
}

/// The delegation of the signer; `None` for the account's own key.
async fn delegation_of(
    registry: &Registry,
    signed: &SignatureHeaders<'_>,
    headers: &HeaderMap,
    now_ms: u64,
) -> Result<Option<MemoryAccess>, AuthError> {
    if bool::from(OwnerId::of(&signed.key).0.ct_eq(&signed.account.0)) {
        return Ok(None);
    }
    let presented = match headers.contains_key("x-delegation") {
        false => None,
        true => {
            let text = single(headers, "x-delegation").ok_or(AuthError::Signature)?;
            let chain =
                Some(text).filter(|text| text.len() <= MAX_HEADER_BYTES).map(str::parse::<RightChain>);
            Some(chain.and_then(Result::ok).ok_or(AuthError::Signature)?)
        }
    };
    let found = registry.find(signed.account, &signed.key, presented.as_ref(), now_ms).await;
    match found {
        Ok(Some(delegation)) => Ok(Some(delegation)),
        Ok(None) => Err(AuthError::Signature),
        Err(error) => Err(AuthError::Memory(error)),
    }
}

impl AuthenticatedRequest {
    /// Takes the request's nonce: of two requests with one nonce, only one succeeds. A request that only `reads` needs
    /// no room on the disk.
    ///
    /// # Errors
    /// [`AuthError::Signature`] for a used nonce, and memory's.
    pub(crate) async fn admit(
        self,
        records: &dyn Records,
        now_ms: u64,
        reads: bool,
    ) -> Result<Caller, AuthError> {
        let taken = match reads {
            true => records.take_nonce_to_read(self.nonce, now_ms, self.until_ms).await,
            false => records.take_nonce(self.nonce, now_ms, self.until_ms).await,
        };
        match taken {
            Ok(true) => Ok(self.caller),
            Ok(false) => Err(AuthError::Signature),
            Err(error) => Err(AuthError::Memory(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::{HeaderName, HeaderValue};
    use baton_keys::{
        SecretSigningKey,
        account::{AccountKey, account_id, body_sha256},
    };

    use super::*;
    use crate::delegation::registry::tests::InMemoryRecords;

    const NOW_S: u64 = 1_795_302_840;

    struct Authenticator {
        registry: Registry,
    }

    impl Authenticator {
        fn new() -> Self {
            let records = Arc::new(InMemoryRecords::default());
            Self { registry: Registry::new(records, PublicKey([8; 32])) }
        }

        async fn ask(
            &self,
            method: &Method,
            path: &str,
            headers: &HeaderMap,
            body: &[u8],
        ) -> Result<Caller, AuthError> {
            let now_ms = NOW_S * 1_000 + 500;
            let head = SignedHead::read(headers, now_ms)?;
            let verified = head.verify(method, path, &body_sha256(body))?;
            let identified = verified.identify(&self.registry, now_ms).await?;
            identified.admit(self.registry.records(), now_ms, false).await
        }

        #[track_caller]
        fn expect_refusal(result: &Result<Caller, AuthError>, why: &str) {
            assert!(matches!(result, Err(AuthError::Signature)), "{why}: {result:?}");
        }
    }

    fn owner_key() -> SecretSigningKey {
        SecretSigningKey::from_seed(&[7; 32])
    }

    fn owner() -> OwnerId {
        OwnerId::of(&owner_key().public_key())
    }

    fn signed_at(key: &SecretSigningKey, account: Option<OwnerId>, seconds: u64) -> HeaderMap {
        let account = account.map_or_else(|| account_id(&key.public_key()), |owner| owner.to_string());
        let headers = AccountKey::from_seed(&key.expose_seed()).request_headers(
            &account,
            "POST",
            "/api/recall?a=1",
            b"{}",
            seconds,
        );
        let pair = |(name, value): (_, String)| {
            (HeaderName::from_static(name), HeaderValue::from_str(&value).unwrap())
        };
        headers.into_iter().map(pair).collect()
    }

    #[tokio::test]
    async fn a6_requests_are_signed_over_their_canonical_bytes() {
        let authenticator = Authenticator::new();
        let headers = || signed_at(&owner_key(), None, NOW_S);
        let caller = authenticator.ask(&Method::POST, "/api/recall?a=1", &headers(), b"{}").await.unwrap();
        assert_eq!(caller, Caller { owner: owner(), key: owner_key().public_key(), delegation: None });
        let (post, path) = (Method::POST, "/api/recall?a=1");
        Authenticator::expect_refusal(
            &authenticator.ask(&Method::PUT, path, &headers(), b"{}").await,
            "another method",
        );
        Authenticator::expect_refusal(
            &authenticator.ask(&post, "/api/recall?a=2", &headers(), b"{}").await,
            "another query",
        );
        Authenticator::expect_refusal(
            &authenticator.ask(&post, "/api/forget?a=1", &headers(), b"{}").await,
            "another path",
        );
        Authenticator::expect_refusal(
            &authenticator.ask(&post, path, &headers(), b"{ }").await,
            "another body",
        );
        for name in ["x-public-key", "x-signature", "x-timestamp", "x-nonce", "x-account-id"] {
            let mut missing = headers();
            missing.remove(name);
            Authenticator::expect_refusal(&authenticator.ask(&post, path, &missing, b"{}").await, name);
            let mut twice = headers();
            let value = twice[name].clone();
            twice.append(name, value);
            Authenticator::expect_refusal(&authenticator.ask(&post, path, &twice, b"{}").await, name);
            let mut changed = headers();
            changed.insert(name, HeaderValue::from_static("0"));
            let answer = authenticator.ask(&post, path, &changed, b"{}").await;
            if name == "x-timestamp" {
                // The time is checked before the body is read.
                assert!(matches!(answer, Err(AuthError::Clock)), "{answer:?}");
            } else {
                Authenticator::expect_refusal(&answer, name);
            }
        }
    }

    #[tokio::test]
    async fn a_nonce_has_no_dots() {
        let authenticator = Authenticator::new();
        for nonce in ["", "a.b", "a b", &"a".repeat(MAX_NONCE_BYTES + 1)] {
            let key = AccountKey::from_seed(&[7; 32]);
            let (account, digest, timestamp) = (key.account_id(), body_sha256(b"{}"), NOW_S.to_string());
            let parts = RequestParts {
                timestamp: &timestamp,
                method: "POST",
                path_and_query: "/api/recall?a=1",
                body_sha256: &digest,
                nonce,
                account_id: &account,
            };
            let mut headers = signed_at(&owner_key(), None, NOW_S);
            let signature = hex::encode(key.sign_request(&parts));
            headers.insert(HEADER_NONCE, HeaderValue::from_str(nonce).unwrap());
            headers.insert(HEADER_SIGNATURE, HeaderValue::from_str(&signature).unwrap());
            Authenticator::expect_refusal(
                &authenticator.ask(&Method::POST, "/api/recall?a=1", &headers, b"{}").await,
                nonce,
            );
        }
    }

    #[tokio::test]
    async fn a_nonce_counts_once() {
        let authenticator = Authenticator::new();
        let headers = signed_at(&owner_key(), None, NOW_S);
        let ask = || authenticator.ask(&Method::POST, "/api/recall?a=1", &headers, b"{}");
        assert!(ask().await.is_ok());
        Authenticator::expect_refusal(&ask().await, "a replay");
    }

    #[tokio::test]
    async fn a_clock_may_differ_by_five_minutes() {
        let authenticator = Authenticator::new();
        for (seconds, good) in [
            (NOW_S - MAX_REQUEST_AGE_SECONDS, true),
            (NOW_S + MAX_REQUEST_AGE_SECONDS, true),
            (NOW_S - MAX_REQUEST_AGE_SECONDS - 1, false),
            (NOW_S + MAX_REQUEST_AGE_SECONDS + 1, false),
            (u64::MAX, false),
            (0, false),
        ] {
            let headers = signed_at(&owner_key(), None, seconds);
            let answer = authenticator.ask(&Method::POST, "/api/recall?a=1", &headers, b"{}").await;
            assert_eq!(answer.is_ok(), good, "{seconds}");
            assert!(good || matches!(answer, Err(AuthError::Clock)));
        }
    }
}
