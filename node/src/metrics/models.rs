//! Metrics of models in memory, if a node has several or unloads them.

use prometheus_client::{
    metrics::family::Family,
    registry::{Registry, Unit},
};

use super::{Count, Labels, Level, Metrics, counter, counters, gauge, measured, mesh::level};
use crate::engine::set::SetObserver;

/// Series of models.
#[derive(Debug)]
pub(super) struct ModelSeries {
    loaded: Level,
    memory: Level,
    loads: Family<Labels, Count>,
    unloads: Count,
}

impl ModelSeries {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let loaded = "Models in memory now, where the node unloads them; 0 elsewhere";
        let memory = "What those are reckoned to take with the caches of their turns";
        let loads = "Models loaded for a turn, by result: ok, failed";
        Self {
            loaded: gauge(registry, "models_loaded", loaded),
            memory: measured(registry, Unit::Bytes, "model_memory", memory, Level::default()),
            loads: counters(registry, "model_loads", loads, "result", &["ok", "failed"]),
            unloads: counter(registry, "model_unloads", "Models unloaded, idle or for another"),
        }
    }
}

impl SetObserver for Metrics {
    fn taken(&self, models: usize, bytes: u64) {
        self.models.loaded.set(level(models as u64));
        self.models.memory.set(level(bytes));
    }

    fn load_ended(&self, well: bool) {
        let result = if well { "ok" } else { "failed" };
        self.models.loads.get_or_create(&[("result", result)]).inc();
    }

    fn unloaded(&self) {
        self.models.unloads.inc();
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
