//! Budgets of the operator's resources, over all owners: stored bytes, blobs and model calls.
//!
//! Rates by key, owner and subnet bound one user; these bound all of them together. A refusal names the option.
//! The counts of the hour are saved (`budget_file.rs`), so that a restart does not begin the hour anew.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_limits::{Buckets, MAX_KEYS, Rate};
use baton_memory::{
    content::{ContentFuture, ContentStore},
    extraction::{Complete, ModelError, PromptMessage},
    ids::OwnerId,
    model::Text,
};
use baton_proto::store::StoreError;
use baton_walrus_client::quilt::QuiltPatchId;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

/// The operator's budgets; 0 means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetLimits {
    /// Bytes of the embedded database's pages in use, and of the key files.
    pub max_bytes: u64,
    /// Blobs an hour that are stored at the publishers.
    pub blobs_per_hour: u64,
    /// Calls an hour of the language model at `model_url`.
    pub model_calls_per_hour: u64,
    /// Among them, calls for one owner.
    pub owner_model_calls_per_hour: u64,
}

impl Default for BudgetLimits {
    fn default() -> Self {
        Self {
            max_bytes: 64 << 30,
            // A hundred facts share a blob.
            blobs_per_hour: 1_000,
            model_calls_per_hour: 6_000,
            owner_model_calls_per_hour: 600,
        }
    }
}

/// A budget that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetSpent {
    /// The option that sets it.
    pub(crate) option: &'static str,
    /// The wait in milliseconds until there is more, if time alone brings it.
    pub(crate) wait_ms: Option<u32>,
}

/// The name under which an owner's calls are counted.
pub(crate) type OwnerName = [u8; 16];

/// The budgets of a relayer.
pub struct Budgets {
    limits: BudgetLimits,
    /// Names an owner by the relayer's keys: without them, nobody can tell whose name stands in the file.
    name_of: Box<dyn Fn(OwnerId) -> OwnerName + Send + Sync>,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    stored_bytes: AtomicU64,
    hourly: Mutex<HourlyBudgets>,
}

struct HourlyBudgets {
    blobs: Option<Buckets<()>>,
    calls: Option<Buckets<()>>,
    owner_calls: Option<Buckets<OwnerName>>,
}

/// The use of the hourly budgets at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BudgetLevels {
    /// In milliseconds since the Unix epoch.
    pub(crate) at_ms: u64,
    /// Absent where nothing was used, or there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) blobs: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model_calls: Option<u64>,
    /// Names of owners in hex.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) owner_model_calls: BTreeMap<String, u64>,
}

fn hourly<K: Copy + Eq + std::hash::Hash>(amount: u64) -> Option<Buckets<K>> {
    (amount > 0).then(|| Buckets::new(Rate::per_hour(amount)))
}

impl Budgets {
    /// Budgets with this clock, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn new(limits: BudgetLimits, now_ms: Arc<dyn Fn() -> u64 + Send + Sync>) -> Self {
        let hourly = HourlyBudgets {
            blobs: hourly(limits.blobs_per_hour),
            calls: hourly(limits.model_calls_per_hour),
            owner_calls: hourly(limits.owner_model_calls_per_hour),
        };
        let name_of = Box::new(|OwnerId(owner): OwnerId| owner.first_chunk().copied().unwrap_or_default());
        Self { limits, name_of, now_ms, stored_bytes: AtomicU64::new(0), hourly: Mutex::new(hourly) }
    }

    /// The same, counting owners under these names.
    #[must_use]
    pub(crate) fn with_names(self, name_of: impl Fn(OwnerId) -> OwnerName + Send + Sync + 'static) -> Self {
        Self { name_of: Box::new(name_of), ..self }
    }

    /// The use of the hourly budgets now.
    pub(crate) fn levels(&self) -> BudgetLevels {
        let at_ms = (self.now_ms)();
        let hourly = self.hourly();
        let of_all =
            |rates: &Option<Buckets<()>>| rates.as_ref()?.in_use(at_ms).next().map(|((), used)| used);
        let owners = hourly.owner_calls.iter().flat_map(|calls| calls.in_use(at_ms));
        BudgetLevels {
            at_ms,
            blobs: of_all(&hourly.blobs),
            model_calls: of_all(&hourly.calls),
            owner_model_calls: owners.map(|(name, used)| (hex::encode(name), used)).collect(),
        }
    }

    /// Continues with the use of the hourly budgets of an earlier process. A time in the future counts as now.
    pub(crate) fn restore(&self, levels: &BudgetLevels) {
        let at_ms = levels.at_ms.min((self.now_ms)());
        let mut hourly = self.hourly();
        if let (Some(blobs), Some(used)) = (&mut hourly.blobs, levels.blobs) {
            blobs.restore((), used, at_ms);
        }
        if let (Some(calls), Some(used)) = (&mut hourly.calls, levels.model_calls) {
            calls.restore((), used, at_ms);
        }
        let Some(calls) = &mut hourly.owner_calls else { return };
        for (name, used) in levels.owner_model_calls.iter().take(MAX_KEYS) {
            let mut bytes = OwnerName::default();
            if hex::decode_to_slice(name, &mut bytes).is_ok() {
                calls.restore(bytes, *used, at_ms);
            }
        }
    }

    fn hourly(&self) -> MutexGuard<'_, HourlyBudgets> {
        self.hourly.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the bytes that are stored now.
    pub fn note_stored(&self, bytes: u64) {
        self.stored_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Whether more may be stored.
    ///
    /// # Errors
    /// [`BudgetSpent`]: a deletion or the operator makes room.
    pub(crate) fn check_bytes(&self) -> Result<(), BudgetSpent> {
        let most = self.limits.max_bytes;
        if most == 0 || self.stored_bytes.load(Ordering::Relaxed) < most {
            return Ok(());
        }
        Err(BudgetSpent { option: "max_bytes", wait_ms: None })
    }

    /// Takes a blob.
    fn take_blob(&self) -> Result<(), BudgetSpent> {
        let mut hourly = self.hourly();
        let Some(blobs) = &mut hourly.blobs else { return Ok(()) };
        let spent = |wait| BudgetSpent { option: "blobs_per_hour", wait_ms: Some(wait) };
        blobs.take((), (self.now_ms)()).map_err(spent)
    }

    /// Takes a model call for an owner.
    ///
    /// # Errors
    /// [`BudgetSpent`], of the owner first.
    pub(crate) fn take_model_call(&self, owner: Option<OwnerId>) -> Result<(), BudgetSpent> {
        let now_ms = (self.now_ms)();
        let owner = owner.map(|owner| (self.name_of)(owner));
        let mut hourly = self.hourly();
        if let (Some(owner), Some(calls)) = (owner, &mut hourly.owner_calls) {
            let spent = |wait| BudgetSpent { option: "owner_model_calls_per_hour", wait_ms: Some(wait) };
            calls.take(owner, now_ms).map_err(spent)?;
        }
        let Some(calls) = &mut hourly.calls else { return Ok(()) };
        let Err(wait) = calls.take((), now_ms) else { return Ok(()) };
        if let (Some(owner), Some(calls)) = (owner, &mut hourly.owner_calls) {
            calls.give_back(&owner, 1);
        }
        Err(BudgetSpent { option: "model_calls_per_hour", wait_ms: Some(wait) })
    }

    /// Whether an owner has a model call left. Takes nothing.
    ///
    /// # Errors
    /// As [`Self::take_model_call`].
    pub(crate) fn check_model_call(&self, owner: OwnerId) -> Result<(), BudgetSpent> {
        let now_ms = (self.now_ms)();
        let owner = (self.name_of)(owner);
        let hourly = self.hourly();
        let own = hourly.owner_calls.as_ref().map_or(0, |calls| calls.wait_ms(&owner, now_ms));
        let all = hourly.calls.as_ref().map_or(0, |calls| calls.wait_ms(&(), now_ms));
        for (option, wait) in [("owner_model_calls_per_hour", own), ("model_calls_per_hour", all)] {
            if wait > 0 {
                return Err(BudgetSpent { option, wait_ms: Some(wait) });
            }
        }
        Ok(())
    }
}

/// A language model whose calls are counted, for one owner or for none.
pub(crate) struct CountedModel {
    model: Arc<dyn Complete>,
    budgets: Arc<Budgets>,
    owner: Option<OwnerId>,
}

impl CountedModel {
    /// Counts the calls of a model.
    #[must_use]
    pub(crate) fn new(model: Arc<dyn Complete>, budgets: Arc<Budgets>) -> Self {
        Self { model, budgets, owner: None }
    }
}

impl Complete for CountedModel {
    fn complete<'a>(
        &'a self,
        messages: &'a [PromptMessage],
        max_tokens: u32,
    ) -> BoxFuture<'a, Result<Text, ModelError>> {
        Box::pin(async move {
            if let Err(BudgetSpent { option, wait_ms }) = self.budgets.take_model_call(self.owner) {
                tracing::debug!(option, "a model call is over its budget");
                let retry_after = wait_ms.map(|wait| Duration::from_millis(wait.into()));
                return Err(ModelError::Busy { retry_after });
            }
            self.model.complete(messages, max_tokens).await
        })
    }

    fn for_owner(&self, owner: OwnerId) -> Option<Arc<dyn Complete>> {
        let (model, budgets) = (self.model.clone(), self.budgets.clone());
        Some(Arc::new(Self { model, budgets, owner: Some(owner) }))
    }
}

/// A store of contents whose blobs are counted.
pub(crate) struct CountedContents {
    store: Arc<dyn ContentStore>,
    budgets: Arc<Budgets>,
}

impl CountedContents {
    /// Counts the blobs of a store.
    #[must_use]
    pub(crate) fn new(store: Arc<dyn ContentStore>, budgets: Arc<Budgets>) -> Self {
        Self { store, budgets }
    }
}

impl ContentStore for CountedContents {
    fn put<'a>(&'a self, contents: &'a [(String, Vec<u8>)]) -> ContentFuture<'a, Vec<QuiltPatchId>> {
        Box::pin(async move {
            if let Err(BudgetSpent { option, wait_ms }) = self.budgets.take_blob() {
                tracing::warn!(option, "contents stay in the database: the hour's blobs are used up");
                let retry_after = wait_ms.map(|wait| Duration::from_millis(wait.into()));
                return Err(StoreError::Unavailable { reason: format!("{option} is used up"), retry_after });
            }
            self.store.put(contents).await
        })
    }

    fn batch_limit(&self) -> usize {
        self.store.batch_limit()
    }

    fn get<'a>(&'a self, id: QuiltPatchId) -> ContentFuture<'a, Vec<u8>> {
        self.store.get(id)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn budgets(limits: BudgetLimits) -> (Arc<Budgets>, Arc<AtomicU64>) {
        let now_ms = Arc::new(AtomicU64::new(0));
        let clock = now_ms.clone();
        let clock = Arc::new(move || clock.load(Ordering::SeqCst));
        (Arc::new(Budgets::new(limits, clock)), now_ms)
    }

    struct Echo;

    impl Complete for Echo {
        fn complete<'a>(&'a self, _: &'a [PromptMessage], _: u32) -> BoxFuture<'a, Result<Text, ModelError>> {
            Box::pin(async { Ok(Text::from("yes")) })
        }
    }

    struct AnyStore;

    impl ContentStore for AnyStore {
        fn put<'a>(&'a self, _: &'a [(String, Vec<u8>)]) -> ContentFuture<'a, Vec<QuiltPatchId>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn get<'a>(&'a self, _: QuiltPatchId) -> ContentFuture<'a, Vec<u8>> {
            Box::pin(async { Err(StoreError::NotFound) })
        }
    }

    #[test]
    fn model_calls_end_at_the_owners_budget_and_at_that_of_all() {
        let limits = BudgetLimits {
            model_calls_per_hour: 5,
            owner_model_calls_per_hour: 3,
            ..BudgetLimits::default()
        };
        let (budgets, now_ms) = budgets(limits);
        let model = CountedModel::new(Arc::new(Echo), budgets.clone());
        let (one, other) = (OwnerId([1; 32]), OwnerId([2; 32]));
        let calls = |owner| {
            let model = model.for_owner(owner).unwrap();
            (0..10).filter(|_| model.complete(&[], 1).now_or_never().unwrap().is_ok()).count()
        };
        assert_eq!([calls(one), calls(other)], [3, 2]);
        let spent = |owner| budgets.check_model_call(owner).unwrap_err().option;
        assert_eq!([spent(one), spent(other)], ["owner_model_calls_per_hour", "model_calls_per_hour"]);
        assert_eq!(spent(OwnerId([3; 32])), "model_calls_per_hour");
        now_ms.store(HOUR_MS, Ordering::SeqCst);
        assert_eq!(budgets.check_model_call(one), Ok(()));
        // A refusal by the budget of all takes nothing from the owner.
        assert_eq!([calls(other), calls(one)], [3, 2]);
    }

    #[test]
    fn a_restart_does_not_begin_the_hour_anew() {
        let limits = BudgetLimits {
            blobs_per_hour: 4,
            model_calls_per_hour: 4,
            owner_model_calls_per_hour: 2,
            ..BudgetLimits::default()
        };
        let (one, other) = (OwnerId([1; 32]), OwnerId([2; 32]));
        let (before, now_ms) = budgets(limits);
        now_ms.store(HOUR_MS, Ordering::SeqCst);
        before.take_blob().unwrap();
        for _ in 0..2 {
            before.take_model_call(Some(one)).unwrap();
        }
        let levels = before.levels();
        assert_eq!((levels.blobs, levels.model_calls, levels.owner_model_calls.len()), (Some(1), Some(2), 1));

        let (after, clock) = budgets(limits);
        clock.store(HOUR_MS, Ordering::SeqCst);
        after.restore(&levels);
        assert_eq!(after.check_model_call(one).unwrap_err().option, "owner_model_calls_per_hour");
        assert!(after.take_model_call(Some(other)).is_ok() && after.take_model_call(Some(other)).is_ok());
        assert_eq!(after.take_model_call(None).unwrap_err().option, "model_calls_per_hour");
        assert_eq!((0..4).filter(|_| after.take_blob().is_ok()).count(), 3);
        // The hours between the two processes refill the budgets, and a clock set back gives nothing.
        clock.store(2 * HOUR_MS, Ordering::SeqCst);
        assert!(after.check_model_call(one).is_ok());
        let (early, _) = budgets(limits);
        early.restore(&levels);
        assert!(early.check_model_call(one).is_err());
    }

    #[test]
    fn blobs_and_bytes_end_at_their_budgets() {
        let (budgets, _) =
            budgets(BudgetLimits { max_bytes: 10, blobs_per_hour: 2, ..BudgetLimits::default() });
        let store = CountedContents::new(Arc::new(AnyStore), budgets.clone());
        let put = || store.put(&[]).now_or_never().unwrap();
        assert!(put().is_ok() && put().is_ok());
        let refused = put().unwrap_err();
        let StoreError::Unavailable { reason, retry_after } = refused else { panic!("{refused:?}") };
        assert!(reason.contains("blobs_per_hour") && retry_after.is_some(), "{reason}");
        budgets.note_stored(9);
        assert_eq!(budgets.check_bytes(), Ok(()));
        budgets.note_stored(10);
        assert_eq!(budgets.check_bytes().unwrap_err().option, "max_bytes");
    }

    #[test]
    fn zero_is_no_limit() {
        let none = BudgetLimits {
            max_bytes: 0,
            blobs_per_hour: 0,
            model_calls_per_hour: 0,
            owner_model_calls_per_hour: 0,
        };
        let (budgets, _) = budgets(none);
        budgets.note_stored(u64::MAX);
        assert_eq!(budgets.check_bytes(), Ok(()));
        assert!((0..1000).all(|_| budgets.take_model_call(Some(OwnerId([1; 32]))).is_ok()));
        assert!((0..1000).all(|_| budgets.take_blob().is_ok()));
    }
}
