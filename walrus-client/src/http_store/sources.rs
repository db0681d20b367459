//! The publishers or aggregators of a store: their URLs and health.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use reqwest::Url;
use tokio::time::Instant;

use super::{
    health::{Offence, SourceHealth},
    metrics::{Counter, SourceSnapshot},
};
use crate::jwt::PublisherToken;

/// One publisher or aggregator.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) url: Url,
    pub(super) token: Option<PublisherToken>,
    requests: Counter,
    failures: Counter,
    wrong_content: Counter,
}

/// All sources of one role, in configured order.
#[derive(Debug)]
pub(super) struct Sources {
    list: Vec<Source>,
    health: Mutex<SourceHealth>,
}

impl Sources {
    pub(super) fn new(list: impl IntoIterator<Item = (Url, Option<PublisherToken>)>) -> Self {
        let source = |(url, token)| Source {
            url,
            token,
            requests: Counter::default(),
            failures: Counter::default(),
            wrong_content: Counter::default(),
        };
        let list: Vec<Source> = list.into_iter().map(source).collect();
        let health = Mutex::new(SourceHealth::new(list.len()));
        Self { list, health }
    }

    fn health(&self) -> MutexGuard<'_, SourceHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, index: usize) -> &Source {
        self.list.get(index).expect("indices come from the order of these very sources")
    }

    /// All sources, the first to ask at the front.
    pub(super) fn order(&self) -> Vec<usize> {
        self.health().order(Instant::now())
    }

    /// The URLs as configured.
    pub(super) fn urls(&self) -> impl Iterator<Item = &Url> {
        self.list.iter().map(|source| &source.url)
    }

    pub(super) fn note_request(&self, index: usize) {
        self.get(index).requests.add(1);
    }

    pub(super) fn note_answer(&self, index: usize, latency: Duration) {
        self.health().note_answer(index, latency, Instant::now());
    }

    pub(super) fn note_overtaken(&self, index: usize, waited: Duration) {
        self.health().note_overtaken(index, waited, Instant::now());
    }

    pub(super) fn note_offence(&self, index: usize, offence: Offence) {
        let source = self.get(index);
        source.failures.add(1);
        if offence == Offence::WrongContent {
            source.wrong_content.add(1);
            tracing::warn!(source = %origin(&source.url), "a store gave other content than asked for");
        }
        self.health().note_offence(index, offence, Instant::now());
    }

    pub(super) fn latency(&self, index: usize) -> Option<Duration> {
        self.health().latency(index, Instant::now())
    }

    pub(super) fn snapshot(&self) -> Vec<SourceSnapshot> {
        let now = Instant::now();
        let health = self.health();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let view = |(index, source): (usize, &Source)| SourceSnapshot {
            origin: origin(&source.url),
            requests: source.requests.get(),
            failures: source.failures.get(),
            wrong_content: source.wrong_content.get(),
            latency_ms: health.latency(index, now).map(millis),
            cooling_ms: millis(health.cooling(index, now)),
        };
        self.list.iter().enumerate().map(view).collect()
    }
}

/// Scheme, host and port: a path may hold secrets.
pub(super) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}
