//! The keys and their usage while the endpoint runs, and their files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use baton_keys::files;
use parking_lot::{Mutex, MutexGuard};

use super::{
    KeyListError, KeyListFile, NamedKey, hash,
    usage::{QuotaRest, SpentQuota, UsageCounts, UsageTable},
};

/// The usage file's name in the home folder.
const USAGE_FILE: &str = "serve.usage.json";
/// Largest usage file: a month of the most keys.
const MAX_USAGE_BYTES: u64 = 1024 * 1024;

/// The keys of a home with their usage, for an endpoint.
#[derive(Debug, Clone)]
pub struct NamedKeys {
    inner: Arc<KeyAccounts>,
}

#[derive(Debug)]
struct KeyAccounts {
    list: KeyListFile,
    usage_path: PathBuf,
    state: Mutex<AccountState>,
}

#[derive(Debug, Default)]
struct AccountState {
    keys: Vec<NamedKey>,
    usage: UsageTable,
    /// Whether the usage file lacks some usage.
    is_unsaved: bool,
    /// Whether the list's file could not be read, which the log has.
    is_unreadable: bool,
}

/// A request, or the tokens of a running one. All of them are counted at first: nobody knows how many the node computes
/// until its receipt comes. So a request whose end the endpoint does not live to see is counted too. Dropping a charge
/// that was not kept takes them back.
#[derive(Debug)]
pub(crate) struct Charge {
    keys: NamedKeys,
    name: String,
    held: UsageCounts,
    /// When they were counted, in seconds since the Unix epoch.
    held_s: u64,
    is_kept: bool,
}

impl NamedKeys {
    /// The keys of a home folder. Usage that cannot be read begins anew.
    ///
    /// # Errors
    /// As [`KeyListFile::keys`].
    pub fn open(home: &Path) -> Result<Self, KeyListError> {
        let list = KeyListFile::of_home(home);
        let keys = list.keys()?;
        let usage = read_usage(home);
        let state = AccountState { keys, usage, is_unsaved: false, is_unreadable: false };
        let inner = KeyAccounts { list, usage_path: home.join(USAGE_FILE), state: Mutex::new(state) };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn state(&self) -> MutexGuard<'_, AccountState> {
        self.inner.state.lock()
    }

    /// The key that a program sent, if it has a name; it may have ended.
    pub(crate) fn find(&self, sent: &[u8]) -> Option<Arc<NamedKey>> {
        let hash = hash(sent);
        self.state().keys.iter().find(|key| key.is_key(&hash)).cloned().map(Arc::new)
    }

    /// The keys, by name, with a copy of their usage.
    pub(crate) fn usage(&self) -> (Vec<NamedKey>, UsageTable) {
        let state = self.state();
        (state.keys.clone(), state.usage.clone())
    }

    /// The rest of a key's quotas.
    pub(crate) fn rest(&self, key: &NamedKey, now_s: u64) -> QuotaRest {
        self.state().usage.rest(key, now_s)
    }

    /// Counts a key's request, or holds its tokens.
    pub(crate) fn hold(&self, key: &NamedKey, wanted: UsageCounts, now_s: u64) -> Result<Charge, SpentQuota> {
        let mut state = self.state();
        let held = state.usage.hold(key, wanted, now_s)?;
        state.is_unsaved = true;
        Ok(Charge { keys: self.clone(), name: key.name.clone(), held, held_s: now_s, is_kept: false })
    }

    /// Reads the list again, and writes new usage. Blocking.
    pub(crate) fn synchronise(&self) {
        let keys = self.inner.list.keys();
        let mut state = self.state();
        let was_unreadable = std::mem::replace(&mut state.is_unreadable, keys.is_err());
        match keys {
            Ok(keys) => {
                state.usage.keep(&keys);
                state.keys = keys;
            }
            Err(_) if was_unreadable => {}
            Err(error) => {
                tracing::warn!(%error, "the list of keys changed, and cannot be read; the former one holds")
            }
        }
        if !std::mem::take(&mut state.is_unsaved) {
            return;
        }
        let text = serde_json::to_string(&state.usage).unwrap_or_default();
        drop(state);
        if let Err(error) = files::replace_private(&self.inner.usage_path, text.as_bytes()) {
            tracing::warn!(%error, "the usage of keys was not saved");
            self.state().is_unsaved = true;
        }
    }
}

/// The usage of a home's keys, as last saved. Usage that cannot be read is empty, with a warning in the log.
#[must_use]
pub fn read_usage(home: &Path) -> UsageTable {
    let path = home.join(USAGE_FILE);
    let read = match files::read_secret(&path, "the usage of keys", MAX_USAGE_BYTES) {
        Ok(None) => return UsageTable::default(),
        Ok(Some(bytes)) => serde_json::from_slice(&bytes).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    read.unwrap_or_else(|reason| {
        tracing::warn!(file = %path.display(), reason, "the usage of keys begins anew");
        UsageTable::default()
    })
}

impl Charge {
    /// The estimated tokens of the input, and the most tokens of the answer.
    pub(crate) fn held(&self) -> UsageCounts {
        self.held
    }

    /// Keeps all of it counted, as once a node is asked: from then on it may compute.
    pub(crate) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Counts the real usage instead.
    pub(crate) fn settle(mut self, used: UsageCounts, now_s: u64) {
        self.is_kept = true;
        self.replace(used, now_s);
    }

    fn replace(&self, used: UsageCounts, now_s: u64) {
        let mut state = self.keys.state();
        state.usage.settle(&self.name, self.held, self.held_s, used, now_s);
        state.is_unsaved = true;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if !self.is_kept {
            self.replace(UsageCounts::default(), self.held_s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: u64 = 1_800_000_000;

    fn found(keys: &NamedKeys, sent: &str) -> Option<(String, Option<u64>)> {
        keys.find(sent.as_bytes()).map(|key| (key.name.clone(), key.expires_s))
    }

    #[test]
    fn keys_are_learned_and_forgotten_while_the_endpoint_runs() {
        let home = tempfile::tempdir().unwrap();
        let (keys, list) = (NamedKeys::open(home.path()).unwrap(), KeyListFile::of_home(home.path()));
        let (_, anna) = list.add("anna", NOW_S, |_| {}).unwrap();
        assert_eq!(found(&keys, &anna), None);
        keys.synchronise();
        assert_eq!(found(&keys, &anna), Some(("anna".to_owned(), None)));
        list.change("anna", |key| key.expires_s = Some(NOW_S)).unwrap();
        keys.synchronise();
        let ended = Some(("anna".to_owned(), Some(NOW_S)));
        assert_eq!(found(&keys, &anna), ended);
        files::replace_private(&home.path().join("serve.keys.json"), b"{").unwrap();
        keys.synchronise();
        assert_eq!(found(&keys, &anna), ended, "the former list holds");
        std::fs::remove_file(home.path().join("serve.keys.json")).unwrap();
        keys.synchronise();
        assert_eq!(found(&keys, &anna), None);
    }

    #[test]
    fn usage_survives_a_restart_and_damage_stops_nothing() {
        let home = tempfile::tempdir().unwrap();
        let list = KeyListFile::of_home(home.path());
        let (anna, _) = list.add("anna", NOW_S, |key| key.quotas.tokens_per_day = Some(100)).unwrap();
        let keys = NamedKeys::open(home.path()).unwrap();
        let wanted = UsageCounts::of_tokens(10, 50);
        keys.hold(&anna, UsageCounts::REQUEST, NOW_S).unwrap().keep();
        let charge = keys.hold(&anna, wanted, NOW_S).unwrap();
        assert_eq!(charge.held().output_tokens, 50);
        charge.settle(UsageCounts::of_tokens(20, 30), NOW_S);
        drop(keys.hold(&anna, wanted, NOW_S).unwrap());
        keys.synchronise();
        let keys = NamedKeys::open(home.path()).unwrap();
        assert_eq!(keys.rest(&anna, NOW_S).tokens, Some(50), "a request that asked no node counts no tokens");
        let mut charge = keys.hold(&anna, UsageCounts::of_tokens(10, 30), NOW_S).unwrap();
        charge.keep();
        drop(charge);
        assert_eq!(keys.rest(&anna, NOW_S).tokens, Some(10), "one that a node may have computed counts all");
        assert_eq!(read_usage(home.path()).of("anna").unwrap().day(NOW_S).requests, 1);
        // Killed while a request runs: the next process counts what the node may have computed.
        let mut charge = keys.hold(&anna, UsageCounts::of_tokens(3, 2), NOW_S).unwrap();
        charge.keep();
        keys.synchronise();
        assert_eq!(NamedKeys::open(home.path()).unwrap().rest(&anna, NOW_S).tokens, Some(5));
        charge.settle(UsageCounts::of_tokens(1, 1), NOW_S);
        assert_eq!(keys.rest(&anna, NOW_S).tokens, Some(8), "a receipt says less");
        files::replace_private(&home.path().join(USAGE_FILE), b"[]").unwrap();
        assert_eq!(NamedKeys::open(home.path()).unwrap().rest(&anna, NOW_S).tokens, Some(100));
    }
}
