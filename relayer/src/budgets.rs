//! Budgets of the operator's resources, over all owners: stored bytes, blobs and model calls.
//!
//! Rates by key, owner and subnet bound one user; these bound all of them together. A refusal names the option.
//! The use of the hour is saved (`upkeep.rs`), so that a restart does not begin the hour anew.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use baton_limits::{Bucket, Buckets, Rate};
use baton_memory::{
    content::{ContentFuture, ContentStore},
    extraction::{Complete, ModelError, PromptMessage},
    ids::OwnerId,
    model::Text,
};
use baton_proto::{ids::BlobId, store::StoreError};
use baton_walrus_client::quilt::QuiltPatchId;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// The operator's budgets; 0 means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetLimits {
    /// Bytes of the embedded database's pages in use, and of the key files.
    pub max_bytes: u64,
    /// Blobs an hour that are stored at the publishers.
    pub blobs_per_hour: u64,
    /// Calls an hour of the language model at `model_url`. An owner has a tenth of them.
    pub model_calls_per_hour: u64,
}

impl Default for BudgetLimits {
    fn default() -> Self {
        // A hundred facts share a blob.
        Self { max_bytes: 64 << 30, blobs_per_hour: 1_000, model_calls_per_hour: 6_000 }
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

impl BudgetSpent {
    fn hourly(option: &'static str) -> impl Fn(u32) -> Self {
        move |wait| Self { option, wait_ms: Some(wait) }
    }
}

/// The budgets of a relayer.
pub struct Budgets {
    limits: BudgetLimits,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    stored_bytes: AtomicU64,
    hourly: Mutex<HourlyBudgets>,
}

struct HourlyBudgets {
    blobs: Bucket,
    calls: Bucket,
    owner_calls: Buckets<OwnerId>,
}

/// The use of the hourly budgets at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HourlyUse {
    /// In milliseconds since the Unix epoch.
    at_ms: u64,
    pub(crate) blobs: u64,
    pub(crate) model_calls: u64,
}

fn hourly(amount: u64) -> Rate {
    Rate::per_hour(if amount == 0 { u64::MAX } else { amount })
}

impl Budgets {
    /// Budgets with this clock, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn new(limits: BudgetLimits, now_ms: Arc<dyn Fn() -> u64 + Send + Sync>) -> Self {
        let owner_calls = Buckets::new(hourly(limits.model_calls_per_hour.div_ceil(10)));
        let hourly = HourlyBudgets { blobs: Bucket::default(), calls: Bucket::default(), owner_calls };
        Self { limits, now_ms, stored_bytes: AtomicU64::new(0), hourly: Mutex::new(hourly) }
    }

    /// The use of the hourly budgets now.
    pub(crate) fn hourly_use(&self) -> HourlyUse {
        let (at_ms, limits, used) = ((self.now_ms)(), &self.limits, self.hourly.lock());
        HourlyUse {
            at_ms,
            blobs: used.blobs.in_use(&hourly(limits.blobs_per_hour), at_ms),
            model_calls: used.calls.in_use(&hourly(limits.model_calls_per_hour), at_ms),
        }
    }

    /// Continues with the use of the hourly budgets of an earlier process. A time in the future counts as now.
    pub(crate) fn restore(&self, earlier: HourlyUse) {
        let at_ms = earlier.at_ms.min((self.now_ms)());
        let mut used = self.hourly.lock();
        used.blobs = Bucket::used(earlier.blobs, at_ms, &hourly(self.limits.blobs_per_hour));
        used.calls = Bucket::used(earlier.model_calls, at_ms, &hourly(self.limits.model_calls_per_hour));
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
        let rate = hourly(self.limits.blobs_per_hour);
        let taken = self.hourly.lock().blobs.take(&rate, 1, (self.now_ms)());
        taken.map_err(BudgetSpent::hourly("blobs_per_hour"))
    }

    /// Takes a model call for an owner.
    ///
    /// # Errors
    /// [`BudgetSpent`], of the owner first.
    pub(crate) fn take_model_call(&self, owner: Option<OwnerId>) -> Result<(), BudgetSpent> {
        let (now_ms, rate) = ((self.now_ms)(), hourly(self.limits.model_calls_per_hour));
        let mut used = self.hourly.lock();
        if let Some(owner) = owner {
            let taken = used.owner_calls.take(owner, now_ms);
            taken.map_err(BudgetSpent::hourly("model_calls_per_hour, of which an owner has a tenth,"))?;
        }
        let taken = used.calls.take(&rate, 1, now_ms).map_err(BudgetSpent::hourly("model_calls_per_hour"));
        if let (Err(_), Some(owner)) = (&taken, owner) {
            used.owner_calls.give_back(&owner, 1);
        }
        taken
    }

    /// Whether an owner has a model call left. Takes nothing.
    ///
    /// # Errors
    /// As [`Self::take_model_call`].
    pub(crate) fn check_model_call(&self, owner: OwnerId) -> Result<(), BudgetSpent> {
        self.take_model_call(Some(owner))?;
        let mut used = self.hourly.lock();
        used.owner_calls.give_back(&owner, 1);
        used.calls.give_back(&hourly(self.limits.model_calls_per_hour), 1);
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

    fn get(&self, quilt: BlobId, verified: bool) -> ContentFuture<'_, HashMap<QuiltPatchId, Vec<u8>>> {
        self.store.get(quilt, verified)
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

        fn get(&self, _: BlobId, _: bool) -> ContentFuture<'_, HashMap<QuiltPatchId, Vec<u8>>> {
            Box::pin(async { Err(StoreError::NotFound) })
        }
    }

    #[test]
    fn model_calls_end_at_an_owners_tenth_and_at_the_budget_of_all() {
        let (budgets, now_ms) = budgets(BudgetLimits { model_calls_per_hour: 12, ..BudgetLimits::default() });
        let model = CountedModel::new(Arc::new(Echo), budgets.clone());
        let owner = |number| OwnerId([number; 32]);
        let calls = |number| {
            let model = model.for_owner(owner(number)).unwrap();
            (0..10).filter(|_| model.complete(&[], 1).now_or_never().unwrap().is_ok()).count()
        };
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(calls), [2, 2, 2, 2, 2, 2, 0]);
        let spent = |number| budgets.check_model_call(owner(number)).unwrap_err().option;
        assert!(spent(1).contains("a tenth") && spent(8) == "model_calls_per_hour");
        now_ms.store(HOUR_MS, Ordering::SeqCst);
        assert_eq!(budgets.check_model_call(owner(1)), Ok(()));
        // A refusal by the budget of all takes nothing from the owner, and neither does a check.
        assert_eq!([7, 1].map(calls), [2, 2]);
    }

    #[test]
    fn a_restart_does_not_begin_the_hour_anew() {
        let limits = BudgetLimits { blobs_per_hour: 4, model_calls_per_hour: 4, ..BudgetLimits::default() };
        let (before, now_ms) = budgets(limits);
        now_ms.store(HOUR_MS, Ordering::SeqCst);
        before.take_blob().unwrap();
        before.take_model_call(None).unwrap();
        let used = before.hourly_use();
        let calls = |budgets: &Budgets| (0..9).filter(|_| budgets.take_model_call(None).is_ok()).count();
        // The hours between the two processes refill the budgets, and a clock set back gives nothing.
        for (clock, left) in [(HOUR_MS, 3), (2 * HOUR_MS, 4), (0, 3)] {
            let (after, now_ms) = budgets(limits);
            now_ms.store(clock, Ordering::SeqCst);
            after.restore(used);
            assert_eq!((calls(&after), (0..9).filter(|_| after.take_blob().is_ok()).count()), (left, left));
        }
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
        let none = BudgetLimits { max_bytes: 0, blobs_per_hour: 0, model_calls_per_hour: 0 };
        let (budgets, _) = budgets(none);
        budgets.note_stored(u64::MAX);
        assert_eq!(budgets.check_bytes(), Ok(()));
        assert!((0..1000).all(|_| budgets.take_model_call(Some(OwnerId([1; 32]))).is_ok()));
        assert!((0..1000).all(|_| budgets.take_blob().is_ok()));
    }
}
