//! A quota granted to this client's user: the chain of grants, and the key that proves our right to it.
//!
//! Two files in the home folder, `grant.key` and `grant.chain`. The key belongs to no session or account: a
//! node that sees it learns only the quota's holder.

use std::{collections::BTreeMap, fs, io, path::Path, sync::Arc};

use baton_keys::{
    SecretSigningKey,
    files::{self, FileSecret},
};
use baton_proto::{
    ErrorCode, SignedObject,
    embed::EmbedAuth,
    ids::{AuthHash, ModelId, NodeId, PublicKey},
    right::{QuotaUse, Right, RightChain},
    turn::TurnAuth,
};
use parking_lot::Mutex;

use crate::error::ClientError;

/// The holder's key in the home folder.
pub const GRANT_KEY_FILE: &str = "grant.key";
/// The chain of grants in the home folder.
pub const GRANT_CHAIN_FILE: &str = "grant.chain";
/// Kind of the key in its file.
const GRANT_KEY_KIND: &str = "grant";
/// Largest chain file to read: four grants of at most sixteen nodes and models take far less.
const MAX_CHAIN_FILE_BYTES: u64 = 64 * 1024;

/// A chain of grants whose last grant is this key's.
#[derive(Debug, Clone)]
pub struct QuotaHolder {
    chain: RightChain,
    key: SecretSigningKey,
    /// Nodes that refused the grant, each with the time until which it is not shown there again.
    refused: Arc<Mutex<BTreeMap<NodeId, u64>>>,
}

/// How long a node that refused the grant is not shown it: it may not trust the issuer, or the grant may be used
/// up. A turn without a grant is served there under the node's own quota.
const REFUSED_MS: u64 = 10 * 60 * 1000;
/// Most nodes that are remembered for that.
const MAX_REFUSED: usize = 256;

impl QuotaHolder {
    /// Combines a chain and its holder's key.
    ///
    /// # Errors
    /// [`ErrorCode::BadSignature`] when the last right is another key's, or no grant.
    pub fn new(chain: RightChain, key: SecretSigningKey) -> Result<Self, ErrorCode> {
        let ours = chain.last().holder == key.public_key() && chain.last().quota().is_some();
        if ours { Ok(Self { chain, key, refused: Arc::default() }) } else { Err(ErrorCode::BadSignature) }
    }

    /// Loads the holder from a home folder; none without a chain. Blocking.
    ///
    /// # Errors
    /// [`ClientError::Config`] for a chain that cannot be used, [`ClientError::File`], and those of key
    /// files.
    pub fn load(home: &Path, passphrase: Option<&str>) -> Result<Option<Self>, ClientError> {
        let path = home.join(GRANT_CHAIN_FILE);
        if !path.exists() {
            return Ok(None);
        }
        let chain = read_chain(&path)?;
        let key = load_key(home, passphrase)?;
        let unusable = |code: ErrorCode| {
            ClientError::Config(format!("the grant in {} cannot be used: {code}", path.display()))
        };
        Self::new(chain, key).map(Some).map_err(unusable)
    }

    /// The grant in use.
    #[must_use]
    pub fn grant(&self) -> &Right {
        self.chain.last()
    }

    /// The quota for a turn, if it applies.
    pub(crate) fn for_turn(&self, auth: &SignedObject<TurnAuth>) -> Option<QuotaUse> {
        self.show((auth.audience, auth.model), auth.issued_ms, auth.auth_hash())
    }

    /// The quota for a request for embeddings, if it applies.
    pub(crate) fn for_embeddings(&self, auth: &SignedObject<EmbedAuth>) -> Option<QuotaUse> {
        self.show((auth.audience, auth.model), auth.issued_ms, auth.auth_hash())
    }

    /// Notes that a node refused a turn for its quota. Returns whether the grant was shown to it: then another
    /// try without the grant may be served.
    pub(crate) fn note_refused(&self, auth: &SignedObject<TurnAuth>, now_ms: u64) -> bool {
        self.applies((auth.audience, auth.model), auth.issued_ms) && self.withhold(auth.audience, now_ms)
    }

    /// Shows the grant no more to this node for a while.
    fn withhold(&self, node: NodeId, now_ms: u64) -> bool {
        let mut refused = self.refused.lock();
        refused.retain(|_, until_ms| *until_ms > now_ms);
        if refused.len() < MAX_REFUSED {
            refused.insert(node, now_ms.saturating_add(REFUSED_MS));
        }
        refused.contains_key(&node)
    }

    /// Whether the grant counts for a model at a node, and the node did not just refuse it.
    pub(crate) fn applies(&self, (node, model): (NodeId, ModelId), issued_ms: u64) -> bool {
        let grant = self.grant();
        let counts = grant.covers(model) && grant.check_use(node.public_key(), issued_ms).is_ok();
        counts && self.refused.lock().get(&node).is_none_or(|until_ms| *until_ms <= issued_ms)
    }

    fn show(&self, target: (NodeId, ModelId), issued_ms: u64, auth_hash: AuthHash) -> Option<QuotaUse> {
        self.applies(target, issued_ms).then(|| self.chain.prove(&self.key, auth_hash))
    }

    /// Narrows the grant for another key; returns the longer chain.
    ///
    /// # Errors
    /// As [`RightChain::narrow`].
    pub fn narrow(&self, change: impl FnOnce(&mut Right)) -> Result<RightChain, ErrorCode> {
        self.chain.narrow(&self.key, change)
    }
}

/// Reads a chain from a file. Blocking.
///
/// # Errors
/// [`ClientError::File`], [`ClientError::Config`].
pub fn read_chain(path: &Path) -> Result<RightChain, ClientError> {
    let failed = |source| ClientError::File { action: "read", path: path.to_owned(), source };
    let length = fs::metadata(path).map_err(failed)?.len();
    if length > MAX_CHAIN_FILE_BYTES {
        return Err(failed(io::Error::other(format!("it is larger than {MAX_CHAIN_FILE_BYTES} bytes"))));
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    text.parse::<RightChain>()
        .map_err(|code| ClientError::Config(format!("{} holds no grant: {code}", path.display())))
}

/// Writes a chain to the home folder, replacing an earlier one. Blocking.
///
/// # Errors
/// [`ClientError::File`].
pub fn keep_chain(home: &Path, chain: &RightChain) -> Result<(), ClientError> {
    let path = home.join(GRANT_CHAIN_FILE);
    let kept = files::replace_private(&path, format!("{chain}\n").as_bytes());
    kept.map_err(|source| ClientError::File { action: "write", path, source })
}

/// The holder's public key; creates the key if it is missing. Blocking.
///
/// # Errors
/// Those of key files.
pub fn holder_key(home: &Path, passphrase: Option<&str>) -> Result<PublicKey, ClientError> {
    let path = home.join(GRANT_KEY_FILE);
    if !path.exists() {
        if !home.is_dir() {
            files::create_private_folder(home).map_err(|source| ClientError::File {
                action: "make",
                path: home.to_owned(),
                source,
            })?;
        }
        files::create(&path, GRANT_KEY_KIND, &FileSecret::generate(), passphrase)?;
    }
    Ok(load_key(home, passphrase)?.public_key())
}

fn load_key(home: &Path, passphrase: Option<&str>) -> Result<SecretSigningKey, ClientError> {
    let secret = files::load(&home.join(GRANT_KEY_FILE), GRANT_KEY_KIND, passphrase)?;
    Ok(SecretSigningKey::from_seed(secret.expose()))
}

#[cfg(test)]
pub(crate) mod tests {
    use baton_proto::right::{RightScope, TurnQuota};

    use super::*;

    /// A grant for this holder, at every node.
    pub(crate) fn issued(holder: PublicKey) -> RightChain {
        let issuer = SecretSigningKey::from_seed(&[1; 32]);
        let quota =
            TurnQuota { models: Vec::new(), turns_per_hour: 10, tokens_per_hour: 1000, concurrent: 1 };
        let grant = Right::new(issuer.public_key(), holder, RightScope::Turns(quota), 0..u64::MAX);
        RightChain::issue(grant, &issuer).unwrap()
    }

    #[test]
    fn a_home_keeps_a_key_and_a_chain_that_is_its_own() {
        let home = tempfile::tempdir().unwrap();
        assert!(QuotaHolder::load(home.path(), None).unwrap().is_none());
        let key = holder_key(home.path(), None).unwrap();
        assert_eq!(holder_key(home.path(), None).unwrap(), key, "made once");
        keep_chain(home.path(), &issued(key)).unwrap();
        let holder = QuotaHolder::load(home.path(), None).unwrap().unwrap();
        assert_eq!(holder.grant().holder, key);
        keep_chain(home.path(), &issued(PublicKey([9; 32]))).unwrap();
        assert!(matches!(QuotaHolder::load(home.path(), None), Err(ClientError::Config(_))));
        fs::write(home.path().join(GRANT_CHAIN_FILE), "nonsense").unwrap();
        assert!(matches!(QuotaHolder::load(home.path(), None), Err(ClientError::Config(_))));
    }

    #[test]
    fn a_node_that_refused_the_grant_is_not_shown_it_for_a_while() {
        let key = SecretSigningKey::from_seed(&[2; 32]);
        let holder = QuotaHolder::new(issued(key.public_key()), key).unwrap();
        let (refuses, other, model) = (NodeId([1; 32]), NodeId([2; 32]), ModelId([3; 32]));
        let shown = |node, now_ms| holder.show((node, model), now_ms, AuthHash([4; 32])).is_some();
        assert!(shown(refuses, 1000));
        assert!(holder.withhold(refuses, 1000));
        assert!(!shown(refuses, 1000 + REFUSED_MS - 1) && shown(other, 2000));
        assert!(shown(refuses, 1000 + REFUSED_MS), "its issuer may be trusted by then");
        for number in 0..2 * MAX_REFUSED {
            let mut bytes = [9; 32];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            holder.withhold(NodeId(bytes), 2000);
        }
        assert!(holder.refused.lock().len() <= MAX_REFUSED);
    }
}
