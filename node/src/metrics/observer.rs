//! Counts the turn service's reports.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use baton_proto::{ErrorCode, wire::StoreState};

use super::Metrics;
use crate::observer::{BlobContent, BlobSource, ServiceObserver, TurnSummary};

impl ServiceObserver for Metrics {
    fn requested(&self, kind: &'static str) {
        self.add("requests", [kind, ""], 1);
    }
    fn turn_attached(&self) {
        self.add("turns_attached", ["", ""], 1);
    }
    fn refused(&self, code: ErrorCode) {
        self.add("refused", [code.name(), ""], 1);
    }
    fn banned(&self) {
        self.add("bans", ["", ""], 1);
    }
    fn failed(&self, code: ErrorCode) {
        self.add("turns", [code.name(), ""], 1);
    }
    fn finished(&self, turn: &TurnSummary) {
        self.recent.finished(turn, Instant::now());
        self.add("turns", ["committed", ""], 1);
        self.add("tokens", ["input", ""], turn.input_tokens.into());
        self.add("tokens", ["output", ""], turn.output_tokens.into());
        self.add("charged_micro_units", ["", ""], turn.price);
        let time = |ms: u32| Duration::from_millis(ms.into());
        self.turn_queue.observe(time(turn.queue_ms));
        self.turn.observe(time(turn.total_ms));
        if turn.first_token_ms > 0 {
            self.first_token.observe(time(turn.first_token_ms));
        }
    }
    fn abandoned(&self) {
        self.add("turns", ["abandoned", ""], 1);
    }
    fn embedded(&self, texts: usize, tokens: usize, took: Duration) {
        self.add("embedded", ["texts", ""], texts as u64);
        self.add("embedded", ["tokens", ""], tokens as u64);
        self.embed.observe(took);
    }
    fn blob(&self, source: BlobSource, content: BlobContent) {
        let source = match source {
            BlobSource::Inline => "inline",
            BlobSource::Journal => "journal",
            BlobSource::Cache => "cache",
            BlobSource::Store => "store",
            BlobSource::Author => "author",
            BlobSource::Peer => "peer",
        };
        let content = match content {
            BlobContent::Right => "right",
            BlobContent::Wrong => "wrong",
            BlobContent::Missing => "missing",
            BlobContent::Failed => "failed",
        };
        self.add("blobs", [source, content], 1);
    }
    fn tokens_made(&self, count: usize) {
        self.add("tokens_made", ["", ""], count as u64);
    }
    fn stored(&self, state: &StoreState, after: Duration) {
        let state = match state {
            StoreState::Stored { .. } => {
                self.store_wait.observe(after);
                "stored"
            }
            StoreState::Pending => "pending",
            StoreState::GivenUp => "given_up",
        };
        self.add("stored", [state, ""], 1);
    }
    fn load(&self, running: usize, waiting: usize) {
        self.running.store(running, Ordering::Relaxed);
        self.waiting.store(waiting, Ordering::Relaxed);
    }
}
