//! The account that requests to a relayer act for: the key's own, or the owner of a delegation to the key.

use std::path::Path;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use baton_client::AccountKey;
use baton_keys::{account::account_id, ids::PublicKey};
use serde::{Deserialize, Serialize};

use crate::{
    clock::{now_ms, relayer_time},
    failure::Failure,
    files::read_bounded,
    out::clean,
    settings::Settings,
};

/// Largest delegation file: a few keys and names.
const MAX_FILE_BYTES: u64 = 8 * 1024;

/// A delegation as it is stored and sent. Relayers know no other fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Delegation {
    pub id: String,
    pub owner_key: String,
    pub delegate_key: String,
    pub scopes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relayer: Option<String>,
    pub not_before: String,
    pub expires: String,
    pub signature: String,
}

/// The account that requests act for, and the delegation to do so.
pub(crate) struct RequestAuthority {
    /// The account that owns the memory.
    pub owner: String,
    /// The delegation as a request header; `None` for the owner itself, and for a key that the relayer knows.
    pub header: Option<String>,
}

impl RequestAuthority {
    /// From flags and files. A delegation that is named, or lies beside the account key, determines the owner
    /// to act for.
    pub(crate) fn from(settings: &Settings, key: &AccountKey) -> Result<Self, Failure> {
        let named = settings.options.delegation.clone();
        let beside = settings.account_file().with_extension("delegation");
        let path = named.clone().or_else(|| beside.exists().then_some(beside));
        let own = || settings.options.owner.clone().unwrap_or_else(|| key.account_id());
        let Some(path) = path else { return Ok(Self { owner: own(), header: None }) };
        let (delegation, owner) = read(&path, key)?;
        match &settings.options.owner {
            Some(wanted) if *wanted != owner && named.is_none() => Ok(Self { owner: own(), header: None }),
            Some(wanted) if *wanted != owner => Err(Failure::Usage(format!(
                "the delegation in {} is of {owner}, and --owner names another account",
                path.display()
            ))),
            _ => {
                let json = serde_json::to_vec(&delegation).unwrap_or_default();
                Ok(Self { owner, header: Some(BASE64_URL_SAFE_NO_PAD.encode(json)) })
            }
        }
    }
}

/// Reads a delegation, which must be to this key and not expired.
fn read(path: &Path, key: &AccountKey) -> Result<(Delegation, String), Failure> {
    let wrong = |what: &str| Failure::Usage(format!("{}: {what}", path.display()));
    let text = read_bounded(path, MAX_FILE_BYTES).map_err(|error| wrong(&error.to_string()))?;
    let delegation: Delegation = serde_json::from_str(&text)
        .map_err(|_| wrong("this is not a delegation that baton account delegate wrote"))?;
    let owner = PublicKey::parse_hex(&delegation.owner_key).map_err(|_| wrong("its owner's key is none"))?;
    if delegation.delegate_key != key.public_key().to_string() {
        return Err(wrong(&format!(
            "the delegation is to the key {}, and this one is {}; name the right key with --account",
            delegation.delegate_key,
            key.public_key()
        )));
    }
    // Both are RFC 3339 in UTC, so text order is time order.
    if delegation.expires <= relayer_time(now_ms() / 1_000) {
        let day = delegation.expires.get(..10).unwrap_or_default();
        return Err(wrong(&format!("the delegation ended on {}; ask the owner for another", clean(day))));
    }
    Ok((delegation, account_id(&owner)))
}
