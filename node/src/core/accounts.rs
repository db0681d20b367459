//! Accounts: the use of this node by each peer, subnet and grant in the last hour. Pure: the clock is a
//! parameter.
//!
//! An account counts three resources: turns, tokens, and storage units (MiB x epochs). It has at most an hour's
//! amount of each; use decays evenly, and is gone after an hour of rest. Amounts are held before the work,
//! booked as the work is done, and the rest is returned. [`crate::turn::charge`] is the only caller.
//!
//! Identities are free, and so are accounts of peers: the account of their subnet bounds them together. The
//! service saves a [`snapshot`](Accounts::snapshot) once a minute and at shutdown, so a restart forgives
//! nothing, and a crash at most a minute.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use baton_mesh::Subnet;
use baton_proto::{
    codec,
    ids::{NodeId, QuotaHash},
};
use serde::{Deserialize, Serialize};

use super::limits::{BUSY_RETRY_MS, HourlyLimits};

/// The period of every limit.
pub(crate) const HOUR_MS: u64 = 3_600_000;
/// Accounts of each kind. When full, those with the oldest use go first; an hour's rest makes room as well.
pub(crate) const MAX_ACCOUNTS: usize = 4096;
/// Accounts evicted at once, so that a flood of new identities does not scan the table for each.
const EVICTED_AT_ONCE: usize = MAX_ACCOUNTS / 8;
/// Version of a snapshot; another version is ignored.
const SNAPSHOT_VERSION: u8 = 1;
/// Largest snapshot: every account with its key, amounts and time.
pub(crate) const MAX_SNAPSHOT_BYTES: usize = 3 * MAX_ACCOUNTS * 80 + 16;

/// Amounts of the counted resources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Amounts {
    /// Turns and embedding requests.
    pub(crate) turns: u64,
    /// Tokens of answers, and a part of those of prompts.
    pub(crate) tokens: u64,
    /// Storage units, as in [`baton_proto::node_record::storage_units`].
    pub(crate) storage: u64,
}

impl Amounts {
    fn parts(self) -> [u64; 3] {
        [self.turns, self.tokens, self.storage]
    }
}

/// The kind of an account's holder; each kind has its own table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
enum HolderKind {
    Peer,
    Subnet,
    Grant,
}

/// The holder of an account, by a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Holder(HolderKind, [u8; 32]);

impl Holder {
    /// A peer.
    pub(crate) fn peer(peer: NodeId) -> Self {
        Self(HolderKind::Peer, peer.0)
    }

    /// The unknown peers of a subnet, or its peers that were served before.
    pub(crate) fn subnet((subnet, served_before): (Subnet, bool)) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[u8::from(served_before)]);
        match subnet {
            Subnet::V4(prefix) => hasher.update(&[4]).update(&prefix),
            Subnet::V6(prefix) => hasher.update(&[6]).update(&prefix),
            Subnet::Relay(None) => hasher.update(&[1]),
            Subnet::Relay(Some(address)) => hasher.update(&[2]).update(address.to_string().as_bytes()),
        };
        Self(HolderKind::Subnet, hasher.finalize().into())
    }

    /// A grant.
    pub(crate) fn grant(grant: QuotaHash) -> Self {
        Self(HolderKind::Grant, grant.0)
    }
}

/// An account that pays for work, with its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Payer {
    pub(crate) holder: Holder,
    pub(crate) limits: HourlyLimits,
    /// Most turns at once.
    pub(crate) concurrent: u16,
}

#[derive(Debug, Clone, Copy, Default)]
struct Account {
    /// Use at `at_ms`, in units of 1/[`HOUR_MS`], so that its decay is a whole number.
    used: [u128; 3],
    at_ms: u64,
    /// Held for work under way. Does not decay.
    held: [u64; 3],
    /// Turns under way.
    running: u16,
}

/// An account in a snapshot.
#[derive(Debug, Serialize, Deserialize)]
struct SavedAccount {
    holder: Holder,
    /// Rounded up.
    used: [u64; 3],
    at_ms: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    peers: HashMap<Holder, Account>,
    subnets: HashMap<Holder, Account>,
    grants: HashMap<Holder, Account>,
    /// Whether anything changed since the last snapshot.
    changed: bool,
}

impl Account {
    /// Use at a time, within the limits. A limit that was lowered since makes the account full, and no more.
    fn at(&self, limits: &HourlyLimits, now_ms: u64) -> [u128; 3] {
        let elapsed = u128::from(now_ms.saturating_sub(self.at_ms));
        let mut used = self.used;
        for (used, limit) in used.iter_mut().zip(limits.parts()) {
            *used = match limit.map(u128::from) {
                Some(limit) => (*used).min(limit * u128::from(HOUR_MS)).saturating_sub(limit * elapsed),
                None => 0,
            };
        }
        used
    }
}

impl Accounts {
    /// Holds the amounts at all payers, or nothing. A turn also counts as under way until [`Accounts::end`].
    ///
    /// # Errors
    /// The wait in milliseconds until the amounts are there; `u32::MAX` if they never are.
    pub(crate) fn hold(&mut self, payers: &[Payer], amounts: Amounts, now_ms: u64) -> Result<(), u32> {
        for payer in payers {
            let account = self.table(payer.holder).get(&payer.holder).copied().unwrap_or_default();
            if amounts.turns > 0 && account.running >= payer.concurrent {
                return Err(BUSY_RETRY_MS);
            }
            let taken = account.at(&payer.limits, now_ms).into_iter().zip(account.held);
            let waits = taken.zip(payer.limits.parts()).zip(amounts.parts());
            let wait = waits.map(|(((used, held), limit), wanted)| {
                wait_ms(used.saturating_add(scaled(held)), limit, wanted)
            });
            let wait = wait.max().unwrap_or(0);
            if wait > 0 {
                return Err(wait);
            }
        }
        for payer in payers {
            let table = self.table(payer.holder);
            make_room(table, &payer.holder, now_ms);
            let account = table.entry(payer.holder).or_default();
            change(&mut account.held, amounts, u64::saturating_add);
            if amounts.turns > 0 {
                account.running = account.running.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Turns held amounts into use: the work was done.
    pub(crate) fn book(&mut self, payers: &[Payer], done: Amounts, now_ms: u64) {
        for payer in payers {
            let Some(account) = self.table(payer.holder).get_mut(&payer.holder) else { continue };
            account.used = account.at(&payer.limits, now_ms);
            account.at_ms = account.at_ms.max(now_ms);
            for (used, done) in account.used.iter_mut().zip(done.parts()) {
                *used = used.saturating_add(scaled(done));
            }
            change(&mut account.held, done, u64::saturating_sub);
        }
        self.changed |= !payers.is_empty();
    }

    /// Ends a turn, and returns the amounts that it holds and did not use.
    pub(crate) fn end(&mut self, payers: &[Payer], unused: Amounts) {
        for payer in payers {
            if let Some(account) = self.table(payer.holder).get_mut(&payer.holder) {
                account.running = account.running.saturating_sub(1);
                change(&mut account.held, unused, u64::saturating_sub);
            }
        }
    }

    /// The accounts in use, if any changed since the last call.
    pub(crate) fn snapshot(&mut self, now_ms: u64) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let in_use = [&self.peers, &self.subnets, &self.grants].into_iter().flatten();
        let saved = in_use.filter(|(_, account)| !is_rested(account, now_ms)).map(|(holder, account)| {
            let used = account
                .used
                .map(|used| u64::try_from(used.div_ceil(u128::from(HOUR_MS))).unwrap_or(u64::MAX));
            SavedAccount { holder: *holder, used, at_ms: account.at_ms }
        });
        let saved: Vec<SavedAccount> = saved.collect();
        Some(codec::encode(&(SNAPSHOT_VERSION, saved)))
    }

    /// The accounts of a snapshot. Times in the future become now, since a clock may have been set back; each
    /// account is full at most. An unreadable snapshot gives no accounts.
    pub(crate) fn restored(snapshot: &[u8], now_ms: u64) -> Self {
        let mut accounts = Self::default();
        let decoded: Result<(u8, Vec<SavedAccount>), _> = codec::decode(snapshot, MAX_SNAPSHOT_BYTES);
        let Ok((SNAPSHOT_VERSION, saved)) = decoded else {
            tracing::warn!("the saved accounts of peers cannot be read: every account starts anew");
            return accounts;
        };
        for SavedAccount { holder, used, at_ms } in saved {
            let account = Account { used: used.map(scaled), at_ms: at_ms.min(now_ms), ..Account::default() };
            let table = accounts.table(holder);
            if !is_rested(&account, now_ms) && table.len() < MAX_ACCOUNTS {
                table.insert(holder, account);
            }
        }
        accounts
    }

    fn table(&mut self, holder: Holder) -> &mut HashMap<Holder, Account> {
        match holder.0 {
            HolderKind::Peer => &mut self.peers,
            HolderKind::Subnet => &mut self.subnets,
            HolderKind::Grant => &mut self.grants,
        }
    }
}

fn change(held: &mut [u64; 3], amounts: Amounts, by: fn(u64, u64) -> u64) {
    for (held, amount) in held.iter_mut().zip(amounts.parts()) {
        *held = by(*held, amount);
    }
}

fn scaled(amount: u64) -> u128 {
    u128::from(amount) * u128::from(HOUR_MS)
}

/// The wait until an amount fits a limit.
fn wait_ms(used: u128, limit: Option<u64>, wanted: u64) -> u32 {
    let Some(limit) = limit.filter(|_| wanted > 0) else { return 0 };
    if wanted > limit {
        return u32::MAX;
    }
    let over = used.saturating_add(scaled(wanted)).saturating_sub(scaled(limit));
    u32::try_from(over.div_ceil(u128::from(limit))).unwrap_or(u32::MAX)
}

/// Whether all use has decayed.
fn is_rested(account: &Account, now_ms: u64) -> bool {
    account.running == 0
        && (now_ms.saturating_sub(account.at_ms) >= HOUR_MS || account.used.iter().all(|used| *used == 0))
}

/// Makes room for another account. Accounts with a turn under way stay.
fn make_room(table: &mut HashMap<Holder, Account>, holder: &Holder, now_ms: u64) {
    if table.len() < MAX_ACCOUNTS || table.contains_key(holder) {
        return;
    }
    table.retain(|_, account| !is_rested(account, now_ms));
    if table.len() < MAX_ACCOUNTS {
        return;
    }
    let mut times: Vec<u64> =
        table.values().filter(|account| account.running == 0).map(|account| account.at_ms).collect();
    let last = EVICTED_AT_ONCE.min(times.len());
    let Some(at) = last.checked_sub(1) else { return };
    let (_, oldest, _) = times.select_nth_unstable(at);
    let (oldest, mut left) = (*oldest, last);
    table.retain(|_, account| {
        let evicted = account.running == 0 && account.at_ms <= oldest && left > 0;
        left -= usize::from(evicted);
        !evicted
    });
}
