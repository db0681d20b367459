//! Accounts: the use of this node by each subnet and grant in the last hour. Pure: the clock is a parameter.
//!
//! An account counts three resources: turns, tokens, and storage units (MiB x epochs). Amounts are held before the work,
//! and those that were not used return at its end. [`crate::turn::charge`] is the only caller.
//!
//! The service saves a [`snapshot`](Accounts::snapshot) once a minute and at shutdown, so a restart forgives nothing. A
//! crash forgives at most a minute, and counts the turns that ran at the last snapshot as if they used all that they held.

#[cfg(test)]
mod tests;

use baton_limits::{BoundedMap, Bucket, MAX_KEYS, Rate, Subnet};
use baton_proto::{codec, ids::RightHash};
use serde::{Deserialize, Serialize};

use super::limits::{BUSY_RETRY_MS, HourlyRates};

/// The period of every rate.
const HOUR_MS: u64 = 3_600_000;
/// Version of a snapshot; another version is ignored.
const SNAPSHOT_VERSION: u8 = 2;
/// Largest snapshot: every account with its key, amounts and time.
const MAX_SNAPSHOT_BYTES: usize = MAX_KEYS * 80 + 16;
/// The rate at which a bucket is saved: without decay, which goes on from the saved time.
const SAVED: Rate = Rate::per_hour(0).in_bursts_of(u64::MAX);

/// Amounts of the counted resources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    /// Turns and embedding requests.
    pub(crate) turns: u64,
    /// Tokens of answers, and a part of those of prompts.
    pub(crate) tokens: u64,
    /// Storage units, as in [`baton_proto::node_record::storage_units`].
    pub(crate) storage: u64,
}

impl Amounts {
    /// The amounts, in the order of [`HourlyRates`].
    fn parts(self) -> [u64; 3] {
        [self.turns, self.tokens, self.storage]
    }

    /// The part that was not used.
    pub(crate) fn without(self, used: Self) -> Self {
        Self {
            turns: self.turns.saturating_sub(used.turns),
            tokens: self.tokens.saturating_sub(used.tokens),
            storage: self.storage.saturating_sub(used.storage),
        }
    }
}

/// The holder of an account, by a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Holder {
    is_grant: bool,
    hash: [u8; 32],
}

impl Holder {
    /// The peers of a subnet.
    pub(crate) fn subnet(subnet: Subnet) -> Self {
        Self { is_grant: false, hash: blake3::hash(subnet.to_string().as_bytes()).into() }
    }

    /// A grant.
    pub(crate) fn grant(grant: RightHash) -> Self {
        Self { is_grant: true, hash: grant.0 }
    }
}

/// An account that pays for work, with its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Payer {
    pub(crate) holder: Holder,
    pub(crate) rates: HourlyRates,
    /// Most turns at once.
    pub(crate) concurrent: u16,
}

#[derive(Debug, Clone, Copy, Default)]
struct Account {
    is_grant: bool,
    buckets: [Bucket; 3],
    /// Turns under way.
    running: u16,
}

impl Account {
    /// The time of the last use.
    fn at_ms(&self) -> u64 {
        self.buckets.iter().map(Bucket::at_ms).max().unwrap_or(0)
    }
}

/// An account in a snapshot.
#[derive(Debug, Serialize, Deserialize)]
struct SavedAccount {
    holder: Holder,
    /// Rounded up.
    used: [u64; 3],
    at_ms: [u64; 3],
}

/// See the module. When the table is full, accounts without a turn under way go first, and subnets before grants.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    accounts: BoundedMap<Holder, Account>,
    /// Whether anything changed since the last snapshot.
    changed: bool,
}

impl Accounts {
    fn entry(&mut self, holder: Holder) -> &mut Account {
        self.changed = true;
        let account = self
            .accounts
            .entry(holder, |account: &Account| (account.running > 0, account.is_grant, account.at_ms()));
        account.is_grant = holder.is_grant;
        account
    }

    /// Holds the amounts at all payers, or nothing. A turn also counts as under way until [`Accounts::end`].
    ///
    /// # Errors
    /// The wait in milliseconds until the amounts are there; `u32::MAX` if they never are.
    pub(crate) fn hold(&mut self, payers: &[Payer], amounts: Amounts, now_ms: u64) -> Result<(), u32> {
        for payer in payers {
            let account = self.accounts.get(&payer.holder).copied().unwrap_or_default();
            if amounts.turns > 0 && account.running >= payer.concurrent {
                return Err(BUSY_RETRY_MS);
            }
            let waits = counted(payer, amounts).map(|(index, rate, count)| {
                account.buckets.get(index).map_or(0, |bucket| bucket.wait_ms(&rate, count, now_ms))
            });
            if let Some(wait) = waits.max().filter(|wait| *wait > 0) {
                return Err(wait);
            }
        }
        for payer in payers {
            let account = self.entry(payer.holder);
            for (index, rate, count) in counted(payer, amounts) {
                if let Some(bucket) = account.buckets.get_mut(index) {
                    bucket.take(&rate, count, now_ms)?;
                }
            }
            if amounts.turns > 0 {
                account.running = account.running.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Ends a turn, and returns the amounts that it held and did not use.
    pub(crate) fn end(&mut self, payers: &[Payer], unused: Amounts) {
        for payer in payers {
            let Some(account) = self.accounts.get_mut(&payer.holder) else { continue };
            account.running = account.running.saturating_sub(1);
            for (index, rate, count) in counted(payer, unused) {
                if let Some(bucket) = account.buckets.get_mut(index) {
                    bucket.give_back(&rate, count);
                }
            }
        }
        self.changed |= !payers.is_empty();
    }

    /// The accounts in use, if any changed since the last call.
    pub(crate) fn snapshot(&mut self, now_ms: u64) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let in_use =
            self.accounts.iter().filter(|(_, account)| now_ms.saturating_sub(account.at_ms()) < HOUR_MS);
        let saved = in_use.map(|(holder, account)| SavedAccount {
            holder: *holder,
            used: account.buckets.map(|bucket| bucket.in_use(&SAVED, now_ms)),
            at_ms: account.buckets.map(|bucket| bucket.at_ms()),
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
            tracing::warn!("the saved accounts cannot be read: every account starts anew");
            return accounts;
        };
        for SavedAccount { holder, used, at_ms } in saved {
            let [turns, tokens, storage] = used;
            let [turns_ms, tokens_ms, storage_ms] = at_ms.map(|at_ms| at_ms.min(now_ms));
            let pairs = [(turns, turns_ms), (tokens, tokens_ms), (storage, storage_ms)];
            accounts.entry(holder).buckets = pairs.map(|(count, at_ms)| Bucket::used(count, at_ms, &SAVED));
        }
        accounts
    }
}

/// The amounts that a payer counts, each with its place among the resources and its rate.
fn counted(payer: &Payer, amounts: Amounts) -> impl Iterator<Item = (usize, Rate, u64)> {
    let each = payer.rates.into_iter().zip(amounts.parts()).enumerate();
    each.filter_map(|(index, (rate, count))| rate.filter(|_| count > 0).map(|rate| (index, rate, count)))
}
