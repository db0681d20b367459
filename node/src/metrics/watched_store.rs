//! A store wrapper that counts: every call passes unchanged, and its result and bytes are counted. The time
//! of the last answer determines readiness.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use baton_proto::{
    ids::{BlobDigest, BlobId},
    store::{BlobStore, PutOptions, PutOutcome, StoreError, StoreFuture},
};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::Metrics;

/// Timeout of a probe: longer than a HEAD to a store on another continent.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// A store with metrics.
pub(crate) struct WatchedStore {
    inner: Arc<dyn BlobStore>,
    metrics: Arc<Metrics>,
    last_answer: Mutex<Option<Instant>>,
    /// Whether a probe has ended, with an answer or without one.
    was_probed: AtomicBool,
}

impl WatchedStore {
    /// Wraps a store.
    #[must_use]
    pub(crate) fn new(inner: Arc<dyn BlobStore>, metrics: Arc<Metrics>) -> Self {
        Self { inner, metrics, last_answer: Mutex::new(None), was_probed: AtomicBool::new(false) }
    }

    /// Time since the store's last answer, if there was one.
    #[must_use]
    pub(crate) fn answered_ago(&self) -> Option<Duration> {
        self.last_answer.lock().map(|at| at.elapsed())
    }

    /// Requests a blob that does not exist; any answer shows that the store is up.
    pub(crate) async fn probe(&self) -> bool {
        let answer = timeout(PROBE_TIMEOUT, self.exists(BlobId([0; 32]))).await;
        self.was_probed.store(true, Ordering::Relaxed);
        answer.is_ok_and(|answer| answered(&answer))
    }

    /// Whether a probe has ended. Before that, silence says nothing about the store.
    #[must_use]
    pub(crate) fn was_probed(&self) -> bool {
        self.was_probed.load(Ordering::Relaxed)
    }

    fn note<T>(&self, call: &'static str, result: &Result<T, StoreError>, bytes: usize) {
        self.metrics.store_called(call, result_name(result), bytes);
        if answered(result) {
            *self.last_answer.lock() = Some(Instant::now());
        }
    }
}

/// Whether the answer, even a refusal, comes from the store itself.
fn answered<T>(result: &Result<T, StoreError>) -> bool {
    !matches!(result, Err(StoreError::Unavailable { .. } | StoreError::OutcomeUnknown { .. }))
}

fn result_name<T>(result: &Result<T, StoreError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(StoreError::NotFound) => "not_found",
        Err(StoreError::Unavailable { .. }) => "unavailable",
        Err(StoreError::OutcomeUnknown { .. }) => "outcome_unknown",
        Err(StoreError::TooLarge { .. }) => "too_large",
        Err(StoreError::WrongContent) => "wrong_content",
        Err(StoreError::Refused { .. }) => "refused",
        Err(StoreError::HeadSuperseded) => "superseded",
    }
}

impl BlobStore for WatchedStore {
    fn put<'a>(&'a self, bytes: Vec<u8>, options: PutOptions) -> StoreFuture<'a, PutOutcome> {
        Box::pin(async move {
            let length = bytes.len();
            let result = self.inner.put(bytes, options).await;
            self.note("put", &result, if result.is_ok() { length } else { 0 });
            result
        })
    }

    fn get<'a>(&'a self, id: BlobId, limit: usize) -> StoreFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let result = self.inner.get(id, limit).await;
            self.note("get", &result, result.as_ref().map_or(0, Vec::len));
            result
        })
    }

    fn get_checked<'a>(&'a self, id: BlobId, limit: usize, digest: BlobDigest) -> StoreFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let result = self.inner.get_checked(id, limit, digest).await;
            self.note("get", &result, result.as_ref().map_or(0, Vec::len));
            result
        })
    }

    fn exists<'a>(&'a self, id: BlobId) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let result = self.inner.exists(id).await;
            self.note("exists", &result, 0);
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Snapshot, *};

    /// Answers every call with the same error, or with success.
    struct FixedStore(Option<StoreError>);

    impl FixedStore {
        fn answer<T: Send + 'static>(&self, value: T) -> StoreFuture<'_, T> {
            let result = self.0.clone().map_or(Ok(value), Err);
            Box::pin(async move { result })
        }
    }

    impl BlobStore for FixedStore {
        fn put<'a>(&'a self, _: Vec<u8>, _: PutOptions) -> StoreFuture<'a, PutOutcome> {
            self.answer(PutOutcome { blob_id: BlobId([1; 32]), newly_created: true, end_epoch: None })
        }
        fn get<'a>(&'a self, _: BlobId, _: usize) -> StoreFuture<'a, Vec<u8>> {
            self.answer(vec![0; 10])
        }
        fn exists<'a>(&'a self, _: BlobId) -> StoreFuture<'a, bool> {
            self.answer(false)
        }
    }

    fn watch(error: Option<StoreError>) -> (WatchedStore, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new(1, 1));
        (WatchedStore::new(Arc::new(FixedStore(error)), metrics.clone()), metrics)
    }

    #[tokio::test]
    async fn counts_bytes_and_results_and_passes_them_on() {
        let (store, metrics) = watch(None);
        assert!(store.answered_ago().is_none());
        store.put(vec![0; 100], PutOptions::default()).await.unwrap();
        assert_eq!(store.get(BlobId([0; 32]), 10).await.unwrap().len(), 10);
        assert!(store.probe().await && store.answered_ago().is_some());
        let text = metrics.render(&Snapshot::default(), Duration::ZERO);
        for line in [
            "baton_store_transfer_bytes_total{direction=\"up\"} 100",
            "baton_store_transfer_bytes_total{direction=\"down\"} 10",
            "baton_store_calls_total{call=\"exists\",result=\"ok\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[tokio::test]
    async fn silence_is_not_an_answer_but_a_refusal_is() {
        let silent = StoreError::Unavailable { reason: "x".to_owned(), retry_after: None };
        let (store, _) = watch(Some(silent.clone()));
        assert!(!store.was_probed());
        assert!(!store.probe().await && store.answered_ago().is_none());
        assert!(store.was_probed());
        assert_eq!(store.put(vec![0; 9], PutOptions::default()).await, Err(silent));
        let (store, metrics) = watch(Some(StoreError::Refused { reason: "x".to_owned() }));
        assert!(store.probe().await && store.answered_ago().is_some());
        store.put(vec![0; 9], PutOptions::default()).await.unwrap_err();
        let text = metrics.render(&Snapshot::default(), Duration::ZERO);
        assert!(
            text.contains("baton_store_transfer_bytes_total{direction=\"up\"} 0"),
            "a refused PUT moved nothing"
        );
    }
}
