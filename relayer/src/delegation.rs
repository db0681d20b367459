//! Delegations: an owner's permission for another key to use the owner's memory.
//!
//! A delegation is signed by the account key. It names one key, its scopes and its expiry, and can be
//! revoked. A request presents it in the header `x-delegation`, or the owner registers it. A registered key
//! needs no header: the `memwal` SDK sends only an account id and a public key. The signed form is a text, so
//! that any language can make one:
//!
//! ```text
//! baton delegation v1
//! id 00112233445566778899aabbccddeeff
//! owner 0x<64 hex characters>
//! delegate <64 hex characters>
//! scopes read,write
//! project <name>          (this line only where it is bound to a project)
//! relayer <64 hex characters>   (this line only where it counts at one relayer alone)
//! from 1795302840
//! until 1795389240
//! ```
//!
//! Each line ends with a line feed. Scopes have the order read, write, chat, admin, intimate. Times are
//! seconds since the Unix epoch. The signature is Ed25519 by the account key over the byte 19,
//! `baton/v1/delegation`, and the text.

pub mod registry;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use baton_keys::{
    SIGNATURE_LEN, SecretSigningKey, contexts::DELEGATION, ids::PublicKey, secret::random_bytes, sign,
};
use baton_memory::{
    ids::OwnerId,
    limits::{NAME_FORM, is_name},
};
use baton_proto::signed::SignatureBytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::time;

/// Longest `x-delegation` header: ids, keys, a signature and a project's name, in base64 of JSON with escapes.
pub(crate) const MAX_HEADER_BYTES: usize = 4 * 1024;
/// Longest life of a delegation; for a longer time, the owner signs another.
pub(crate) const MAX_LIFETIME_SECONDS: u64 = 366 * 86_400;

/// One right of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Scope {
    /// See memories that are not intimate.
    Read = 1,
    /// Add, change and delete memories, without seeing any.
    Write = 2,
    /// Hold conversations, which recall memory and add to it.
    Chat = 4,
    /// Manage delegations and settings, export and import, and delete whole projects.
    Admin = 8,
    /// See intimate items too, if another scope shows memories.
    Intimate = 16,
}

impl Scope {
    /// All scopes, in signing order.
    pub(crate) const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Chat, Self::Admin, Self::Intimate];

    /// Its name in texts.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Chat => "chat",
            Self::Admin => "admin",
            Self::Intimate => "intimate",
        }
    }
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scopes(u8);

impl Scopes {
    /// The named scopes; `None` for an unknown name or an empty list.
    #[must_use]
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut set = 0;
        for name in names {
            set |= Scope::ALL.into_iter().find(|scope| scope.name() == name)? as u8;
        }
        (set != 0).then_some(Self(set))
    }

    /// Whether it contains a scope.
    #[must_use]
    pub(crate) const fn allow(self, scope: Scope) -> bool {
        self.0 & scope as u8 != 0
    }

    /// Their names, in signing order.
    #[must_use]
    pub(crate) fn names(self) -> Vec<&'static str> {
        Scope::ALL.into_iter().filter(|scope| self.allow(*scope)).map(Scope::name).collect()
    }
}

/// Why a delegation is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DelegationError {
    /// It has another form.
    #[error("this is not a delegation: {0}")]
    Form(&'static str),
    /// The owner's signature does not match.
    #[error("the owner's signature does not verify")]
    Signature,
}

/// An owner's permission for a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegation {
    /// Random; names the delegation for a revocation.
    pub(crate) id: [u8; 16],
    /// The owner of the memory.
    pub(crate) owner: OwnerId,
    /// The key.
    pub(crate) delegate: PublicKey,
    /// The key's scopes.
    pub(crate) scopes: Scopes,
    /// The only project that it covers; `None` for everything.
    pub project: Option<String>,
    /// The only relayer at which it counts; `None` for every relayer.
    pub relayer: Option<PublicKey>,
    /// Start of its validity, in seconds since the Unix epoch.
    pub(crate) not_before_s: u64,
    /// End of its validity.
    pub(crate) expires_s: u64,
}

impl Delegation {
    /// A delegation with a fresh id.
    #[must_use]
    pub fn new(
        owner: OwnerId,
        delegate: PublicKey,
        scopes: Scopes,
        not_before_s: u64,
        expires_s: u64,
    ) -> Self {
        let id = random_bytes();
        Self { id, owner, delegate, scopes, project: None, relayer: None, not_before_s, expires_s }
    }

    /// The text that is signed.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        let project = self.project.as_ref().map(|name| format!("project {name}\n")).unwrap_or_default();
        let relayer = self.relayer.map(|key| format!("relayer {key}\n")).unwrap_or_default();
        format!(
            "baton delegation v1\nid {}\nowner {}\ndelegate {}\nscopes {}\n{project}{relayer}from {}\nuntil {}\n",
            hex::encode(self.id),
            self.owner,
            self.delegate,
            self.scopes.names().join(","),
            self.not_before_s,
            self.expires_s,
        )
    }

    /// Signs it with the owner's account key.
    #[must_use]
    pub fn sign(self, account: &SecretSigningKey) -> SignedDelegation {
        let signature = SignatureBytes(account.sign(DELEGATION, self.text().as_bytes()));
        SignedDelegation { delegation: self, owner_key: account.public_key(), signature }
    }

    /// Whether it counts at a relayer.
    #[must_use]
    pub(crate) fn counts_at_relayer(&self, relayer: &PublicKey) -> bool {
        self.relayer.is_none_or(|named| named == *relayer)
    }

    /// Whether it is valid at a time.
    #[must_use]
    pub(crate) fn holds_at(&self, now_s: u64) -> bool {
        (self.not_before_s..self.expires_s).contains(&now_s)
    }

    fn check_form(&self) -> Result<(), DelegationError> {
        if self.project.as_deref().is_some_and(|name| !is_name(name)) {
            return Err(DelegationError::Form(NAME_FORM));
        }
        match self.expires_s.checked_sub(self.not_before_s) {
            None | Some(0) => Err(DelegationError::Form("it expires before it begins")),
            Some(seconds) if seconds > MAX_LIFETIME_SECONDS => {
                Err(DelegationError::Form("it would count for more than 366 days"))
            }
            Some(_) => Ok(()),
        }
    }
}

/// A delegation with the owner's signature, which is verified for outside input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedDelegation {
    /// The delegation.
    pub(crate) delegation: Delegation,
    /// The owner's key; its address is the owner.
    pub(crate) owner_key: PublicKey,
    /// Over [`Delegation::text`].
    pub(crate) signature: SignatureBytes,
}

/// A delegation in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DelegationJson {
    /// Random id, 32 hex characters.
    pub id: String,
    /// The owner's Ed25519 public key, 64 hex characters.
    pub(crate) owner_key: String,
    /// Key that may act for the owner, 64 hex characters.
    pub(crate) delegate_key: String,
    /// Scopes: `read`, `write`, `chat`, `admin`, `intimate`. `write` alone reads nothing; `read`, `chat` and
    /// `admin` show intimate items only together with `intimate`.
    pub(crate) scopes: Vec<String>,
    /// The one project that it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) project: Option<String>,
    /// The one relayer at which it counts, 64 hex characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) relayer: Option<String>,
    /// Start of validity, RFC 3339, whole seconds.
    pub(crate) not_before: String,
    /// End of validity, RFC 3339, whole seconds.
    pub(crate) expires: String,
    /// Ed25519 over the canonical text, 128 hex characters.
    pub(crate) signature: String,
}

impl From<&SignedDelegation> for DelegationJson {
    fn from(signed: &SignedDelegation) -> Self {
        let SignedDelegation { delegation, owner_key, signature } = signed;
        Self {
            id: hex::encode(delegation.id),
            owner_key: owner_key.to_string(),
            delegate_key: delegation.delegate.to_string(),
            scopes: delegation.scopes.names().into_iter().map(str::to_owned).collect(),
            project: delegation.project.clone(),
            relayer: delegation.relayer.map(|key| key.to_string()),
            not_before: time::format(delegation.not_before_s.saturating_mul(1_000)),
            expires: time::format(delegation.expires_s.saturating_mul(1_000)),
            signature: hex::encode(signature.0),
        }
    }
}

impl DelegationJson {
    /// Parses it, and verifies its form and the owner's signature, but not its validity period.
    ///
    /// # Errors
    /// [`DelegationError`].
    pub fn verify(&self) -> Result<SignedDelegation, DelegationError> {
        let form = DelegationError::Form;
        let mut id = [0; 16];
        hex::decode_to_slice(&self.id, &mut id).map_err(|_| form("`id` has 32 hex characters"))?;
        let key = |text: &str| PublicKey::parse_hex(text).map_err(|_| form("a key has 64 hex characters"));
        let (owner_key, delegate) = (key(&self.owner_key)?, key(&self.delegate_key)?);
        let scopes = Scopes::named(self.scopes.iter().take(16).map(String::as_str))
            .ok_or(form("`scopes` are of read, write, chat, admin and intimate"))?;
        let seconds = |text: &str| {
            let ms = time::parse(text).filter(|ms| ms % 1_000 == 0);
            ms.map(|ms| ms / 1_000).ok_or(form("times are RFC 3339 with whole seconds"))
        };
        let mut signature = [0; SIGNATURE_LEN];
        hex::decode_to_slice(&self.signature, &mut signature)
            .map_err(|_| form("`signature` has 128 hex characters"))?;
        let delegation = Delegation {
            id,
            owner: OwnerId::of(&owner_key),
            delegate,
            scopes,
            project: self.project.clone(),
            relayer: self.relayer.as_deref().map(key).transpose()?,
            not_before_s: seconds(&self.not_before)?,
            expires_s: seconds(&self.expires)?,
        };
        delegation.check_form()?;
        sign::verify(DELEGATION, &owner_key, delegation.text().as_bytes(), &signature)
            .map_err(|_| DelegationError::Signature)?;
        Ok(SignedDelegation { delegation, owner_key, signature: SignatureBytes(signature) })
    }

    /// Its form in the `x-delegation` header: base64url without padding of the JSON.
    #[must_use]
    pub fn to_header(&self) -> String {
        let json = serde_json::to_vec(self).expect("strings always have a JSON form");
        BASE64_URL_SAFE_NO_PAD.encode(json)
    }

    /// Reads such a header.
    ///
    /// # Errors
    /// [`DelegationError::Form`].
    pub(crate) fn from_header(text: &str) -> Result<Self, DelegationError> {
        let wrong = DelegationError::Form("`x-delegation` is base64url of its JSON, at most 4 KiB");
        if text.len() > MAX_HEADER_BYTES {
            return Err(wrong);
        }
        let json = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| wrong)?;
        serde_json::from_slice(&json).map_err(|_| wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(account: &SecretSigningKey) -> Delegation {
        let scopes = Scopes::named(["write", "read"]).unwrap();
        let owner = OwnerId::of(&account.public_key());
        let delegation = Delegation::new(owner, PublicKey([2; 32]), scopes, 1_000, 2_000);
        Delegation { id: [1; 16], project: Some("garden shed".to_owned()), ..delegation }
    }

    #[test]
    fn the_text_is_what_the_documentation_says() {
        let account = SecretSigningKey::from_seed(&[7; 32]);
        let owner = OwnerId::of(&account.public_key());
        let expected = format!(
            "baton delegation v1\nid {}\nowner {owner}\ndelegate {}\nscopes read,write\nproject garden shed\n\
             from 1000\nuntil 2000\n",
            "01".repeat(16),
            "02".repeat(32)
        );
        assert_eq!(sample(&account).text(), expected);
        let bound = Delegation { relayer: Some(PublicKey([3; 32])), ..sample(&account) };
        let line = format!("shed\nrelayer {}\nfrom", "03".repeat(32));
        assert_eq!(bound.text(), expected.replace("shed\nfrom", &line));
        assert_eq!(DELEGATION.as_str().len(), 19);
    }

    #[test]
    fn survives_json_and_header_with_its_signature() {
        let account = SecretSigningKey::from_seed(&[7; 32]);
        let signed = sample(&account).sign(&account);
        let json = DelegationJson::from(&signed);
        assert_eq!(json.verify(), Ok(signed));
        assert_eq!(DelegationJson::from_header(&json.to_header()), Ok(json));
        assert!(DelegationJson::from_header("!").is_err());
        assert!(DelegationJson::from_header(&"A".repeat(MAX_HEADER_BYTES + 1)).is_err());
    }

    #[test]
    fn refuses_any_change_and_another_signer() {
        let account = SecretSigningKey::from_seed(&[7; 32]);
        let good = DelegationJson::from(&sample(&account).sign(&account));
        let changes: [fn(&mut DelegationJson); 8] = [
            |json| json.relayer = Some("04".repeat(32)),
            |json| json.id = "ff".repeat(16),
            |json| json.delegate_key = "03".repeat(32),
            |json| json.scopes.push("admin".to_owned()),
            |json| json.project = None,
            |json| json.not_before = time::format(999_000),
            |json| json.expires = time::format(3_000_000),
            |json| json.owner_key = SecretSigningKey::generate().public_key().to_string(),
        ];
        for change in changes {
            let mut json = good.clone();
            change(&mut json);
            assert_eq!(json.verify(), Err(DelegationError::Signature), "{json:?}");
        }
        let mut delegation = sample(&account);
        delegation.owner = OwnerId([9; 32]);
        let foreign = DelegationJson::from(&delegation.sign(&account));
        assert_eq!(foreign.verify(), Err(DelegationError::Signature), "the owner is the signer");
    }

    #[test]
    fn refuses_what_has_no_form() {
        let account = SecretSigningKey::from_seed(&[7; 32]);
        let check = |change: fn(&mut Delegation)| {
            let mut delegation = sample(&account);
            change(&mut delegation);
            let verified = DelegationJson::from(&delegation.sign(&account)).verify();
            assert!(matches!(verified, Err(DelegationError::Form(_))), "{verified:?}");
        };
        check(|delegation| delegation.expires_s = delegation.not_before_s);
        check(|delegation| delegation.expires_s = delegation.not_before_s + MAX_LIFETIME_SECONDS + 1);
        check(|delegation| delegation.project = Some("a\nscopes admin".to_owned()));
        check(|delegation| delegation.project = Some(String::new()));
        assert_eq!(Scopes::named(["intimate", "read"]).unwrap().names(), ["read", "intimate"]);
        assert_eq!(Scopes::named(["read", "fly"]), None);
        assert_eq!(Scopes::named([]), None);
    }
}
