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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::Snapshot;

    #[test]
    fn models_are_counted_as_they_come_and_go() {
        let metrics = Metrics::new(1, 1);
        metrics.taken(2, 5_000_000_000);
        metrics.load_ended(true);
        metrics.load_ended(false);
        metrics.unloaded();
        let text = metrics.render(&Snapshot::default(), Duration::ZERO);
        for line in [
            "baton_models_loaded 2",
            "baton_model_memory_bytes 5000000000",
            "baton_model_loads_total{result=\"ok\"} 1",
            "baton_model_loads_total{result=\"failed\"} 1",
            "baton_model_unloads_total 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
