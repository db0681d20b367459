//! Metrics of models in memory, if a node has several or unloads them.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

use super::{Count, Labels, Level, Metrics, mesh::level};
use crate::engine::set::SetObserver;

/// Series of models.
#[derive(Debug, Default)]
pub(super) struct ModelSeries {
    loaded: Level,
    memory: Level,
    loads: Family<Labels, Count>,
    unloads: Count,
}

impl ModelSeries {
    pub(super) fn register(&self, registry: &mut Registry) {
        let Self { loaded, memory, loads, unloads } = self;
        registry.register(
            "models_loaded",
            "Models in memory now, where the node unloads them; 0 elsewhere",
            Gauge::clone(loaded),
        );
        registry.register_with_unit(
            "model_memory",
            "What those are reckoned to take with the caches of their turns",
            Unit::Bytes,
            Gauge::clone(memory),
        );
        registry.register("model_loads", "Models loaded for a turn, by result: ok, failed", loads.clone());
        registry.register("model_unloads", "Models unloaded, idle or for another", Counter::clone(unloads));
        for result in ["ok", "failed"] {
            drop(loads.get_or_create(&[("result", result)]));
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
