//! The publishers or aggregators of a store: their URLs and health.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use reqwest::Url;
use tokio::time::Instant;

use super::health::{SourceHealth, SourceOffence};

/// All sources of one role, in configured order.
#[derive(Debug)]
pub(super) struct StoreSources {
    urls: Vec<Url>,
    health: Mutex<SourceHealth>,
}

impl StoreSources {
    pub(super) fn new(urls: Vec<Url>) -> Self {
        let health = Mutex::new(SourceHealth::new(urls.len()));
        Self { urls, health }
    }

    fn health(&self) -> MutexGuard<'_, SourceHealth> {
        self.health.lock()
    }

    pub(super) fn url(&self, index: usize) -> &Url {
        self.urls.get(index).expect("indices come from the order of these very sources")
    }

    /// All sources, the first to ask at the front.
    pub(super) fn order(&self) -> Vec<usize> {
        self.health().order(Instant::now())
    }

    /// The URLs as configured.
    pub(super) fn urls(&self) -> impl Iterator<Item = &Url> {
        self.urls.iter()
    }

    pub(super) fn note_answer(&self, index: usize, latency: Duration) {
        self.health().note_answer(index, latency, Instant::now());
    }

    pub(super) fn note_overtaken(&self, index: usize, waited: Duration) {
        self.health().note_overtaken(index, waited, Instant::now());
    }

    pub(super) fn note_offence(&self, index: usize, offence: SourceOffence) {
        if offence == SourceOffence::WrongContent {
            let source = origin(self.url(index));
            tracing::warn!(%source, "a store gave other content than asked for");
        }
        self.health().note_offence(index, offence, Instant::now());
    }

    pub(super) fn latency(&self, index: usize) -> Option<Duration> {
        self.health().latency(index, Instant::now())
    }
}

/// Scheme, host and port: a path may hold secrets.
pub(super) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}
