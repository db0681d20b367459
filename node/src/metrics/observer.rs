//! Counts the turn service's reports.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use baton_proto::{ErrorCode, wire::StoreState};

use super::Metrics;
use crate::observer::{BlobSource, RequestKind, ServiceObserver, TurnSummary};

impl ServiceObserver for Metrics {
    fn requested(&self, kind: RequestKind) {
        let kind = match kind {
            RequestKind::Turn => "turn",
            RequestKind::Note => "note",
            RequestKind::FetchBlob => "fetch_blob",
            RequestKind::NodeRecord => "node_record",
            RequestKind::Relay => "relay",
            RequestKind::Embed => "embed",
        };
        self.requests.get_or_create(&[("kind", kind)]).inc();
    }

    fn turn_attached(&self) {
        self.attached.inc();
    }

    fn refused(&self, code: ErrorCode) {
        self.refused.get_or_create(&[("code", code.name())]).inc();
        self.refused_total.fetch_add(1, Ordering::Relaxed);
    }

    fn banned(&self) {
        self.bans.inc();
    }

    fn failed(&self, code: ErrorCode) {
        self.turns.get_or_create(&[("outcome", code.name())]).inc();
        self.failed_total.fetch_add(1, Ordering::Relaxed);
    }

    fn finished(&self, turn: &TurnSummary) {
        self.recent.finished(turn, Instant::now());
        self.turns.get_or_create(&[("outcome", "committed")]).inc();
        self.tokens.get_or_create(&[("direction", "input")]).inc_by(turn.input_tokens.into());
        self.tokens.get_or_create(&[("direction", "output")]).inc_by(turn.output_tokens.into());
        self.charged.inc_by(turn.price);
        self.queue_time.observe(f64::from(turn.queue_ms) / 1000.0);
        self.turn_time.observe(f64::from(turn.total_ms) / 1000.0);
        if turn.first_token_ms > 0 {
            self.first_token.observe(f64::from(turn.first_token_ms) / 1000.0);
        }
    }

    fn abandoned(&self) {
        self.turns.get_or_create(&[("outcome", "abandoned")]).inc();
    }

    fn embedded(&self, texts: usize, tokens: usize, took: Duration) {
        self.embedded.get_or_create(&[("unit", "texts")]).inc_by(texts as u64);
        self.embedded.get_or_create(&[("unit", "tokens")]).inc_by(tokens as u64);
        self.embed_time.observe(took.as_secs_f64());
    }

    fn blob_used(&self, source: BlobSource) {
        self.blob(source, "right");
    }

    fn blob_wrong(&self, source: BlobSource) {
        self.blob(source, "wrong");
    }

    fn blob_missing(&self, source: BlobSource) {
        self.blob(source, "missing");
    }

    fn blob_failed(&self, source: BlobSource) {
        self.blob(source, "failed");
    }

    fn tokens_made(&self, count: usize) {
        self.tokens_made.inc_by(count as u64);
    }

    fn stored(&self, state: &StoreState, after: Duration) {
        let state = match state {
            StoreState::Stored { .. } => {
                self.store.wait.observe(after.as_secs_f64());
                "stored"
            }
            StoreState::Pending => "pending",
            StoreState::GivenUp => "given_up",
        };
        self.store.stored.get_or_create(&[("state", state)]).inc();
    }

    fn load(&self, running: usize, waiting: usize) {
        self.running.set(i64::try_from(running).unwrap_or(i64::MAX));
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }
}
