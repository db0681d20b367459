//! Metrics of models in memory, if a node has several or unloads them.

use std::sync::atomic::Ordering;

use super::Metrics;
use crate::engine::set::SetObserver;

impl SetObserver for Metrics {
    fn taken(&self, models: usize, bytes: u64) {
        self.models_loaded.store(models, Ordering::Relaxed);
        self.model_bytes.store(bytes, Ordering::Relaxed);
    }

    fn load_ended(&self, well: bool) {
        self.add("model_loads", [if well { "ok" } else { "failed" }, ""], 1);
    }

    fn unloaded(&self) {
        self.add("model_unloads", ["", ""], 1);
    }
}
