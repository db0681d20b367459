//! Rights: a signed permission for the holder of a key, narrowable by the holder, checked offline.
//!
//! An operator grants turns to a user, an account delegates its memory, and a relayer invites an owner. In a
//! chain of [`Right`]s:
//!
//! 1. The giver signs the first right.
//! 2. The holder of each right signs the next one, which names it by its hash and only narrows it.
//! 3. The last holder signs each use, so a stolen right is worthless. For a turn, that is a [`QuotaProof`].
//!
//! Not to be confused with [`Grant`](crate::turn::Grant), the keys of a turn.

use std::{fmt, ops::Range, str::FromStr};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use baton_keys::{
    SecretSigningKey,
    contexts::{QUOTA_PROOF, RIGHT, RIGHT_HASH, SignatureLabel},
    secret::{kdf, random_bytes},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    codec,
    error::ErrorCode,
    ids::{AuthHash, ModelId, PublicKey, RightHash, RightId},
    limits::{MAX_MEMORY_RIGHT_MS, MAX_RIGHT_CHAIN, MAX_RIGHT_LIST, MAX_SIGNED_BYTES, VERSION},
    signed::{Signable, SignedBytes, SignedObject},
    text::is_name,
};

/// Prefix of the text form.
const TEXT_PREFIX: &str = "baton-right-1:";
/// Bytes of the text form's checksum.
const CHECKSUM_BYTES: usize = 4;
/// Longest encoding of a chain.
const MAX_CHAIN_BYTES: usize = 8 + MAX_RIGHT_CHAIN * (MAX_SIGNED_BYTES + 72);

/// A right, for the holder of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Right {
    /// Format version, 1.
    pub version: u8,
    /// The grantor, who signs: the giver in the first right of a chain, the previous right's holder in the
    /// others.
    pub grantor: PublicKey,
    /// Random id, by which the right is revoked.
    pub id: RightId,
    /// Hash of the right that this one narrows; none in the first of a chain.
    pub parent: Option<RightHash>,
    /// The key of the holder.
    pub holder: PublicKey,
    /// Keys of the nodes or relayers that accept it; empty for all.
    pub places: Vec<PublicKey>,
    /// What it allows.
    pub scope: RightScope,
    /// Start, in milliseconds since the Unix epoch.
    pub from_ms: u64,
    /// End.
    pub until_ms: u64,
    /// Number of further rights that may follow in the chain.
    pub depth: u8,
}

/// The object of a right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RightScope {
    /// Turns at nodes: a grant.
    Turns(TurnQuota),
    /// The giver's memory at relayers: a delegation.
    Memory(MemoryAccess),
    /// Memory of its own at a relayer: an invitation.
    Ownership,
}

/// A quota of turns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnQuota {
    /// Models that it covers; empty for all.
    pub models: Vec<ModelId>,
    /// Turns an hour at each node.
    pub turns_per_hour: u32,
    /// Tokens of answers, and a sixteenth of the tokens that a node reads, an hour at each node.
    pub tokens_per_hour: u64,
    /// Concurrent turns at each node.
    pub concurrent: u16,
}

/// The use of an account's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryAccess {
    /// The permissions.
    pub permissions: Permissions,
    /// The only project that it covers; `None` for everything.
    pub project: Option<String>,
}

/// One permission of a key in an account's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Permission {
    /// See memories that are not intimate.
    Read = 1,
    /// Add, change and delete memories, without seeing any.
    Write = 2,
    /// Hold conversations, which recall memory and add to it.
    Chat = 4,
    /// Manage delegations and settings, export and import, and delete whole projects.
    Admin = 8,
    /// See intimate items too, if another permission shows memories.
    Intimate = 16,
}

impl Permission {
    /// All permissions.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Chat, Self::Admin, Self::Intimate];

    /// Its name in texts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Chat => "chat",
            Self::Admin => "admin",
            Self::Intimate => "intimate",
        }
    }
}

/// A set of permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permissions(pub u8);

impl Permissions {
    /// The named permissions; `None` for an unknown name.
    #[must_use]
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut set = 0;
        for name in names {
            set |= Permission::ALL.into_iter().find(|permission| permission.name() == name)? as u8;
        }
        Some(Self(set))
    }

    /// Whether it contains a permission.
    #[must_use]
    pub const fn allow(self, permission: Permission) -> bool {
        self.0 & permission as u8 != 0
    }

    /// Their names.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        Permission::ALL
            .into_iter()
            .filter(|permission| self.allow(*permission))
            .map(Permission::name)
            .collect()
    }
}

impl Signable for Right {
    const LABEL: SignatureLabel = RIGHT;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadSignature;

    fn signer(&self) -> PublicKey {
        self.grantor
    }

    fn check(&self) -> Result<(), ErrorCode> {
        let models = self.quota().map_or(0, |quota| quota.models.len());
        if self.places.len() > MAX_RIGHT_LIST || models > MAX_RIGHT_LIST {
            return Err(ErrorCode::FrameTooLarge);
        }
        if let Some(MemoryAccess { permissions, project }) = self.memory() {
            let is_known = (1..32).contains(&permissions.0);
            if !is_known || project.as_deref().is_some_and(|name| !is_name(name)) {
                return Err(ErrorCode::NonCanonical);
            }
            if self.until_ms.saturating_sub(self.from_ms) > MAX_MEMORY_RIGHT_MS {
                return Err(ErrorCode::Expired);
            }
        }
        let deep = usize::from(self.depth) >= MAX_RIGHT_CHAIN;
        if deep || self.from_ms >= self.until_ms { Err(ErrorCode::QuotaExceeded) } else { Ok(()) }
    }
}

/// Whether `inner` allows no more than `outer`; an empty list allows all.
fn within<T: PartialEq>(inner: &[T], outer: &[T]) -> bool {
    outer.is_empty() || (!inner.is_empty() && inner.iter().all(|item| outer.contains(item)))
}

impl RightScope {
    /// Whether this scope exceeds its parent in no field.
    fn narrows(&self, parent: &Self) -> bool {
        match (self, parent) {
            (Self::Turns(inner), Self::Turns(outer)) => {
                within(&inner.models, &outer.models)
                    && inner.turns_per_hour <= outer.turns_per_hour
                    && inner.tokens_per_hour <= outer.tokens_per_hour
                    && inner.concurrent <= outer.concurrent
            }
            (Self::Memory(inner), Self::Memory(outer)) => {
                inner.permissions.0 & !outer.permissions.0 == 0
                    && (outer.project.is_none() || inner.project == outer.project)
            }
            (Self::Ownership, Self::Ownership) => true,
            _ => false,
        }
    }
}

impl Right {
    /// A first right with a fresh id, which counts everywhere and cannot be narrowed.
    #[must_use]
    pub fn new(grantor: PublicKey, holder: PublicKey, scope: RightScope, valid_ms: Range<u64>) -> Self {
        Self {
            version: VERSION,
            grantor,
            id: RightId(random_bytes()),
            parent: None,
            holder,
            places: Vec::new(),
            scope,
            from_ms: valid_ms.start,
            until_ms: valid_ms.end,
            depth: 0,
        }
    }

    /// The turns that it allows.
    #[must_use]
    pub fn quota(&self) -> Option<&TurnQuota> {
        if let RightScope::Turns(quota) = &self.scope { Some(quota) } else { None }
    }

    /// The memory that it allows.
    #[must_use]
    pub fn memory(&self) -> Option<&MemoryAccess> {
        if let RightScope::Memory(access) = &self.scope { Some(access) } else { None }
    }

    /// Whether it allows turns with a model.
    #[must_use]
    pub fn covers(&self, model: ModelId) -> bool {
        self.quota().is_some_and(|quota| quota.models.is_empty() || quota.models.contains(&model))
    }

    /// Checks time and place.
    ///
    /// # Errors
    /// [`ErrorCode::NotYetValid`], [`ErrorCode::Expired`], [`ErrorCode::WrongAudience`].
    pub fn check_use(&self, place: PublicKey, now_ms: u64) -> Result<(), ErrorCode> {
        if now_ms < self.from_ms {
            Err(ErrorCode::NotYetValid)
        } else if now_ms >= self.until_ms {
            Err(ErrorCode::Expired)
        } else if !self.places.is_empty() && !self.places.contains(&place) {
            Err(ErrorCode::WrongAudience)
        } else {
            Ok(())
        }
    }

    /// Whether this right exceeds its parent in no field.
    fn narrows(&self, parent: &Self) -> bool {
        within(&self.places, &parent.places)
            && self.scope.narrows(&parent.scope)
            && self.from_ms >= parent.from_ms
            && self.until_ms <= parent.until_ms
            && self.depth < parent.depth
    }

    /// Its fields for programs.
    #[must_use]
    pub fn describe(&self) -> Value {
        let (kind, scope) = match &self.scope {
            RightScope::Turns(quota) => (
                "turns",
                json!({
                    "models": texts(&quota.models),
                    "turns_per_hour": quota.turns_per_hour,
                    "tokens_per_hour": quota.tokens_per_hour,
                    "concurrent": quota.concurrent,
                }),
            ),
            RightScope::Memory(access) => {
                ("memory", json!({ "scopes": access.permissions.names(), "project": access.project }))
            }
            RightScope::Ownership => ("ownership", json!({})),
        };
        json!({
            "id": self.id.to_string(),
            "grantor": self.grantor.to_string(),
            "holder": self.holder.to_string(),
            "places": texts(&self.places),
            kind: scope,
            "from_ms": self.from_ms,
            "until_ms": self.until_ms,
            "depth": self.depth,
        })
    }
}

fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

impl SignedObject<Right> {
    /// `KDF("right-hash", body ‖ signature)`.
    #[must_use]
    pub fn right_hash(&self) -> RightHash {
        RightHash(self.bytes().hash(RIGHT_HASH))
    }
}

/// The holder's use of a grant for one turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaProof {
    /// Format version, 1.
    pub version: u8,
    /// The holder of the chain's last right, who signs.
    pub holder: PublicKey,
    /// Hash of that right.
    pub grant: RightHash,
    /// The turn's authorisation, which names node, session and time.
    pub auth_hash: AuthHash,
}

impl Signable for QuotaProof {
    const LABEL: SignatureLabel = QUOTA_PROOF;
    const BAD_SIGNATURE: ErrorCode = ErrorCode::BadSignature;

    fn signer(&self) -> PublicKey {
        self.holder
    }
}

/// A chain of rights and the proof for the turn that follows on the same substream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaUse {
    /// Signed [`Right`]s, the issuer's first.
    pub chain: Vec<SignedBytes>,
    /// The signed [`QuotaProof`].
    pub proof: SignedBytes,
}

/// A chain that was valid when it was checked. Its text form is for files and messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RightChain {
    links: Vec<SignedObject<Right>>,
}

impl RightChain {
    /// Signs a first right.
    ///
    /// # Errors
    /// As [`RightChain::verify_form`].
    pub fn issue(right: Right, key: &SecretSigningKey) -> Result<Self, ErrorCode> {
        Self::verify_form(&[SignedObject::sign(right, key).bytes().clone()])
    }

    /// Narrows the last right by its holder's key, after a change of the copy.
    ///
    /// # Errors
    /// As [`RightChain::verify_form`]: [`ErrorCode::QuotaExceeded`] for a wider or too deep right.
    pub fn narrow(&self, key: &SecretSigningKey, change: impl FnOnce(&mut Right)) -> Result<Self, ErrorCode> {
        let last = self.last();
        let mut right = Right {
            grantor: key.public_key(),
            id: RightId(random_bytes()),
            parent: Some(last.right_hash()),
            depth: last.depth.checked_sub(1).ok_or(ErrorCode::QuotaExceeded)?,
            ..Right::clone(last)
        };
        change(&mut right);
        let mut chain = self.bytes();
        chain.push(SignedObject::sign(right, key).bytes().clone());
        Self::verify_form(&chain)
    }

    /// Checks a chain of one of these grantors. Its grantor and structure come before the costly signatures.
    ///
    /// # Errors
    /// [`ErrorCode::QuotaExceeded`] for another grantor; as [`RightChain::verify_form`].
    pub fn verify(chain: &[SignedBytes], grantors: &[PublicKey]) -> Result<Self, ErrorCode> {
        let first = SignedObject::<Right>::peek(chain.first().ok_or(ErrorCode::FrameTooLarge)?)?;
        if grantors.contains(&first.grantor) {
            Self::verify_form(chain)
        } else {
            Err(ErrorCode::QuotaExceeded)
        }
    }

    /// As [`RightChain::verify`], for the holder: any grantor will do.
    ///
    /// # Errors
    /// - [`ErrorCode::FrameTooLarge`] for an empty or too long chain.
    /// - [`ErrorCode::QuotaExceeded`] for a link that widens or is too deep.
    /// - [`ErrorCode::BadSignature`] for a link by another signer; as [`SignedObject::verify`].
    pub fn verify_form(chain: &[SignedBytes]) -> Result<Self, ErrorCode> {
        let Self { links } = Self::of_verified(chain)?;
        links.iter().try_for_each(|link| SignedObject::<Right>::verify(link.bytes().clone()).map(drop))?;
        Ok(Self { links })
    }

    /// As [`RightChain::verify_form`], for bytes whose signatures were verified before, as
    /// [`SignedObject::of_verified`].
    ///
    /// # Errors
    /// As [`RightChain::verify_form`].
    pub fn of_verified(chain: &[SignedBytes]) -> Result<Self, ErrorCode> {
        if chain.is_empty() || chain.len() > MAX_RIGHT_CHAIN {
            return Err(ErrorCode::FrameTooLarge);
        }
        let links: Result<Vec<_>, _> =
            chain.iter().cloned().map(SignedObject::<Right>::of_verified).collect();
        let links = links?;
        check_links(&links)?;
        Ok(Self { links })
    }

    /// Checks everything that can change after the signatures were checked: time, place, revocations.
    ///
    /// # Errors
    /// As [`Right::check_use`]; [`ErrorCode::QuotaExceeded`] for a revoked right.
    pub fn check_use(&self, place: PublicKey, revoked: &[RightId], now_ms: u64) -> Result<(), ErrorCode> {
        // Each link narrows its parent, so the last link stands for all.
        self.last().check_use(place, now_ms)?;
        if self.is_revoked(revoked) { Err(ErrorCode::QuotaExceeded) } else { Ok(()) }
    }

    /// Whether a list of revoked ids has a right of this chain.
    #[must_use]
    pub fn is_revoked(&self, revoked: &[RightId]) -> bool {
        self.links.iter().any(|link| revoked.contains(&link.id))
    }

    /// Checks that the holder of the last right uses it for this turn.
    ///
    /// # Errors
    /// [`ErrorCode::BadSignature`] for a proof by another key, of another right or for another turn.
    pub fn check_proof(&self, proof: SignedBytes, auth_hash: &AuthHash) -> Result<(), ErrorCode> {
        let last = self.last();
        let claimed = SignedObject::<QuotaProof>::peek(&proof)?;
        let fits = claimed.holder == last.holder
            && claimed.grant == last.right_hash()
            && claimed.auth_hash == *auth_hash;
        if !fits {
            return Err(ErrorCode::BadSignature);
        }
        SignedObject::<QuotaProof>::verify(proof).map(drop)
    }

    /// The use of this chain for a turn, by the last holder's key.
    #[must_use]
    pub fn prove(&self, key: &SecretSigningKey, auth_hash: AuthHash) -> QuotaUse {
        let holder = key.public_key();
        let proof = QuotaProof { version: VERSION, holder, grant: self.last().right_hash(), auth_hash };
        QuotaUse { chain: self.bytes(), proof: SignedObject::sign(proof, key).bytes().clone() }
    }

    /// The rights, the giver's first.
    #[must_use]
    pub fn links(&self) -> &[SignedObject<Right>] {
        &self.links
    }

    /// The rights as signed.
    #[must_use]
    pub fn bytes(&self) -> Vec<SignedBytes> {
        self.links.iter().map(|link| link.bytes().clone()).collect()
    }

    /// The giver, who signed the first right.
    ///
    /// # Panics
    /// Never: a verified chain has a link.
    #[must_use]
    pub fn grantor(&self) -> PublicKey {
        self.links.first().expect("a verified chain has a link").grantor
    }

    /// The last right, which is in use.
    ///
    /// # Panics
    /// Never: a verified chain has a link.
    #[must_use]
    pub fn last(&self) -> &SignedObject<Right> {
        self.links.last().expect("a verified chain has a link")
    }

    /// The last right's fields for programs, with the chain's `text`.
    #[must_use]
    pub fn describe(&self) -> Value {
        let mut fields = self.last().describe();
        if let Value::Object(fields) = &mut fields {
            fields.insert("text".to_owned(), self.to_string().into());
        }
        fields
    }
}

impl fmt::Display for RightChain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = codec::encode(&self.bytes());
        bytes.extend_from_slice(&checksum(&bytes));
        write!(formatter, "{TEXT_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for RightChain {
    type Err = ErrorCode;

    /// Undoes the text form of a chain, and checks the chain as [`RightChain::verify_form`].
    ///
    /// # Errors
    /// [`ErrorCode::NonCanonical`] for another text, or a damaged copy; as [`RightChain::verify_form`].
    fn from_str(text: &str) -> Result<Self, ErrorCode> {
        let encoded = text.trim().strip_prefix(TEXT_PREFIX).ok_or(ErrorCode::NonCanonical)?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| ErrorCode::NonCanonical)?;
        let (bytes, sum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(ErrorCode::NonCanonical)?;
        if *sum != checksum(bytes) {
            return Err(ErrorCode::NonCanonical);
        }
        Self::verify_form(&codec::decode::<Vec<SignedBytes>>(bytes, MAX_CHAIN_BYTES)?)
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let [a, b, c, d, ..] = kdf(RIGHT_HASH, &[bytes]);
    [a, b, c, d]
}

/// Checks that each link is by its parent's holder, names its parent and is narrower.
fn check_links(links: &[SignedObject<Right>]) -> Result<(), ErrorCode> {
    if links.first().is_none_or(|first| first.parent.is_some()) {
        return Err(ErrorCode::QuotaExceeded);
    }
    for pair in links.windows(2) {
        let [parent, child] = pair else { continue };
        if child.grantor != parent.holder || child.parent != Some(parent.right_hash()) {
            return Err(ErrorCode::BadSignature);
        }
        if !child.narrows(parent) {
            return Err(ErrorCode::QuotaExceeded);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;
    const NODE: PublicKey = PublicKey([5; 32]);
    const MODEL: ModelId = ModelId([6; 32]);

    fn key(fill: u8) -> SecretSigningKey {
        SecretSigningKey::from_seed(&[fill; 32])
    }

    fn quota() -> TurnQuota {
        TurnQuota { models: Vec::new(), turns_per_hour: 100, tokens_per_hour: 10_000, concurrent: 4 }
    }

    fn memory(permissions: u8, project: Option<&str>) -> RightScope {
        let permissions = Permissions(permissions);
        RightScope::Memory(MemoryAccess { permissions, project: project.map(str::to_owned) })
    }

    fn first() -> Right {
        let scope = RightScope::Turns(quota());
        let right = Right::new(key(1).public_key(), key(2).public_key(), scope, NOW - 10..NOW + 10);
        Right { id: RightId([1; 16]), depth: 3, ..right }
    }

    fn child(parent: &SignedObject<Right>, by: u8) -> Right {
        Right {
            grantor: key(by).public_key(),
            id: RightId([by; 16]),
            parent: Some(parent.right_hash()),
            holder: key(by + 1).public_key(),
            depth: parent.depth - 1,
            ..Right::clone(parent)
        }
    }

    fn verify(chain: &[SignedObject<Right>], revoked: &[RightId]) -> Result<RightChain, ErrorCode> {
        let bytes: Vec<_> = chain.iter().map(|link| link.bytes().clone()).collect();
        let chain = RightChain::verify(&bytes, &[key(1).public_key()])?;
        chain.check_use(NODE, revoked, NOW).map(|()| chain)
    }

    /// Four links, each signed by the holder of its parent.
    fn four() -> Vec<SignedObject<Right>> {
        let mut chain = RightChain::issue(first(), &key(1)).unwrap();
        for by in 2..5 {
            chain = chain.narrow(&key(by), |right| right.holder = key(by + 1).public_key()).unwrap();
        }
        chain.links
    }

    #[test]
    fn a_chain_of_four_holds_and_the_fifth_link_is_too_deep() {
        let mut chain = four();
        assert_eq!(verify(&chain, &[]).unwrap().last().depth, 0);
        let fifth = Right { depth: 0, parent: Some(chain[3].right_hash()), ..child(&chain[0], 5) };
        chain.push(SignedObject::sign(fifth, &key(5)));
        assert_eq!(verify(&chain, &[]).unwrap_err(), ErrorCode::FrameTooLarge);
        assert_eq!(verify(&[], &[]).unwrap_err(), ErrorCode::FrameTooLarge);
        // Nor may a short chain exceed its right's depth.
        let shallow = RightChain::issue(Right { depth: 0, ..first() }, &key(1)).unwrap();
        assert_eq!(shallow.narrow(&key(2), |_| {}).unwrap_err(), ErrorCode::QuotaExceeded);
        let below = Right { depth: 0, parent: Some(shallow.last().right_hash()), ..child(&chain[0], 2) };
        let below = [shallow.last().clone(), SignedObject::sign(below, &key(2))];
        assert_eq!(verify(&below, &[]).unwrap_err(), ErrorCode::QuotaExceeded);
    }

    #[test]
    fn a_chain_is_a_line_of_text_and_back_and_a_damaged_copy_is_named_as_such() {
        let chain = verify(&four(), &[]).unwrap();
        let text = chain.to_string();
        assert_eq!(format!("\n {text}\n").parse(), Ok(chain));
        let cut = &text[..text.len() - 8];
        let changed = text.replacen('A', "B", 1);
        for wrong in ["x", TEXT_PREFIX, "baton-right-1:!!", "baton-right-2:AAAAAAAA", cut, &changed] {
            assert_eq!(wrong.parse::<RightChain>(), Err(ErrorCode::NonCanonical), "{wrong}");
        }
    }

    #[test]
    fn no_link_widens_anything() {
        type Change = fn(&mut Right);
        fn quota_of(right: &mut Right) -> &mut TurnQuota {
            let RightScope::Turns(quota) = &mut right.scope else { panic!("a grant") };
            quota
        }
        let turns = RightScope::Turns(TurnQuota { models: vec![MODEL], ..quota() });
        let of_turns: &[Change] = &[
            |right| right.places.clear(),
            |right| right.places.push(PublicKey([9; 32])),
            |right| quota_of(right).models.clear(),
            |right| quota_of(right).models = vec![ModelId([9; 32])],
            |right| quota_of(right).turns_per_hour += 1,
            |right| quota_of(right).tokens_per_hour += 1,
            |right| quota_of(right).concurrent += 1,
            |right| right.scope = memory(1, None),
            |right| right.scope = RightScope::Ownership,
            |right| right.from_ms -= 1,
            |right| right.until_ms += 1,
            |right| right.depth += 1,
        ];
        let of_memory: &[Change] = &[
            |right| right.scope = memory(0b111, Some("garden")),
            |right| right.scope = memory(0b11, None),
            |right| right.scope = memory(0b11, Some("house")),
            |right| right.scope = RightScope::Turns(quota()),
        ];
        for (scope, changes) in [(turns, of_turns), (memory(0b11, Some("garden")), of_memory)] {
            let parent = SignedObject::sign(Right { places: vec![NODE], scope, ..first() }, &key(1));
            for (number, change) in changes.iter().enumerate() {
                let mut wider = child(&parent, 2);
                change(&mut wider);
                let chain = [parent.clone(), SignedObject::sign(wider, &key(2))];
                assert_eq!(verify(&chain, &[]).unwrap_err(), ErrorCode::QuotaExceeded, "change {number}");
            }
            assert!(verify(&[parent.clone(), SignedObject::sign(child(&parent, 2), &key(2))], &[]).is_ok());
        }
    }

    #[test]
    fn refuses_other_signers_grantors_times_places_and_revoked_links() {
        let chain = four();
        let mut forged = chain.clone();
        forged[1] = SignedObject::sign(Right::clone(&chain[1]), &key(9));
        // Its hash changes with its signature, so the next link does not name it.
        assert_eq!(verify(&forged, &[]).unwrap_err(), ErrorCode::BadSignature);
        assert_eq!(verify(&forged[..2], &[]).unwrap_err(), ErrorCode::BadSignature);
        let stolen = Right { grantor: key(9).public_key(), ..child(&chain[0], 2) };
        let stolen = [chain[0].clone(), SignedObject::sign(stolen, &key(9))];
        assert_eq!(verify(&stolen, &[]).unwrap_err(), ErrorCode::BadSignature);
        assert_eq!(verify(&chain[1..], &[]).unwrap_err(), ErrorCode::QuotaExceeded, "the first is left out");
        let other = Right { grantor: key(8).public_key(), ..first() };
        assert_eq!(verify(&[SignedObject::sign(other, &key(8))], &[]).unwrap_err(), ErrorCode::QuotaExceeded);
        for link in &chain {
            assert_eq!(verify(&chain, &[link.id]).unwrap_err(), ErrorCode::QuotaExceeded);
        }
        let models = RightScope::Turns(TurnQuota { models: vec![MODEL; 17], ..quota() });
        let long = Right { until_ms: NOW + MAX_MEMORY_RIGHT_MS, ..first() };
        for (changed, expected) in [
            (Right { until_ms: NOW, ..first() }, ErrorCode::Expired),
            (Right { from_ms: NOW + 1, ..first() }, ErrorCode::NotYetValid),
            (Right { places: vec![PublicKey([9; 32])], ..first() }, ErrorCode::WrongAudience),
            (Right { places: vec![NODE; 17], ..first() }, ErrorCode::FrameTooLarge),
            (Right { scope: models, ..first() }, ErrorCode::FrameTooLarge),
            (Right { depth: 4, ..first() }, ErrorCode::QuotaExceeded),
            (Right { until_ms: NOW - 10, ..first() }, ErrorCode::QuotaExceeded),
            (Right { scope: memory(1, None), ..long }, ErrorCode::Expired),
            (Right { scope: memory(0, None), ..first() }, ErrorCode::NonCanonical),
            (Right { scope: memory(32, None), ..first() }, ErrorCode::NonCanonical),
            (Right { scope: memory(1, Some("a\n")), ..first() }, ErrorCode::NonCanonical),
        ] {
            assert_eq!(verify(&[SignedObject::sign(changed, &key(1))], &[]).unwrap_err(), expected);
        }
        assert!(first().covers(MODEL) && !Right { scope: RightScope::Ownership, ..first() }.covers(MODEL));
        let models = RightScope::Turns(TurnQuota { models: vec![MODEL], ..quota() });
        let bound = Right { scope: models, ..first() };
        assert!(bound.covers(MODEL) && !bound.covers(ModelId([9; 32])));
    }

    #[test]
    fn permissions_have_names() {
        let some = Permissions::named(["intimate", "read"]).unwrap();
        assert_eq!((some, some.names()), (Permissions(17), vec!["read", "intimate"]));
        assert!(some.allow(Permission::Intimate) && !some.allow(Permission::Write));
        assert_eq!(Permissions::named(["read", "fly"]), None);
    }

    #[test]
    fn a_proof_is_the_holders_and_for_one_turn_only() {
        let chain = verify(&four(), &[]).unwrap();
        let turn = AuthHash([7; 32]);
        let proof = QuotaProof {
            version: VERSION,
            holder: key(5).public_key(),
            grant: chain.last().right_hash(),
            auth_hash: turn,
        };
        let signed = |proof: &QuotaProof, by: u8| SignedObject::sign(proof.clone(), &key(by)).bytes().clone();
        assert_eq!(chain.check_proof(chain.prove(&key(5), turn).proof, &turn), Ok(()));
        let refused = Err(ErrorCode::BadSignature);
        assert_eq!(chain.check_proof(signed(&proof, 5), &AuthHash([8; 32])), refused, "another turn");
        assert_eq!(chain.check_proof(signed(&proof, 4), &turn), refused, "another key's signature");
        let thief = QuotaProof { holder: key(9).public_key(), ..proof.clone() };
        assert_eq!(chain.check_proof(signed(&thief, 9), &turn), refused, "another holder");
        let wider = QuotaProof { grant: chain.links()[0].right_hash(), ..proof };
        assert_eq!(chain.check_proof(signed(&wider, 5), &turn), refused, "another right of the chain");
    }
}
