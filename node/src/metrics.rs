//! Metrics of the node, in the OpenMetrics text format; `format` writes them for readers of the older one.
//!
//! The turn service reports through its observer, the store through `WatchedStore`. The rest is read on
//! request. Labels have few, fixed values; a session, peer or text never becomes a label.

mod format;
mod mesh;
mod models;
mod observer;
mod speed;
mod totals;
mod watched_store;

use std::{
    sync::atomic::{AtomicI64, AtomicU64},
    time::{Duration, Instant},
};

use baton_mesh::MeshStats;
use baton_proto::ErrorCode;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

use crate::{engine::EngineLoad, observer::BlobSource};
pub(crate) use format::MetricsFormat;
use mesh::{MeshSeries, level};
use models::ModelSeries;
use speed::Recent;
pub(crate) use speed::Speed;
pub(crate) use totals::SourceCounts;
pub(crate) use watched_store::WatchedStore;

type Labels = [(&'static str, &'static str); 1];
type Labels2 = [(&'static str, &'static str); 2];
type Count = Counter<u64, AtomicU64>;
type Level = Gauge<i64, AtomicI64>;

/// Buckets from 10 ms (a cached answer of a small model) to five minutes (a long answer of a large model).
const SECONDS: [f64; 14] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// Figures that are read on request only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// The mesh's counts.
    pub(crate) mesh: MeshStats,
    /// Peers in the table.
    pub(crate) peers_known: usize,
    /// Peers with a connection.
    pub(crate) peers_connected: usize,
    /// Whether the store answered recently.
    pub(crate) store_up: bool,
    /// Whether the node takes turns.
    pub(crate) ready: bool,
    /// The engine's load.
    pub(crate) engine: EngineLoad,
}

/// Turns since the start, for the status page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct TurnCounts {
    /// Committed.
    pub(crate) committed: u64,
    /// Admitted and failed.
    pub(crate) failed: u64,
    /// Refused before anything ran.
    pub(crate) refused: u64,
    /// Running now.
    pub(crate) running: u64,
    /// Waiting now.
    pub(crate) waiting: u64,
}

/// All metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels, Count>,
    turns: Family<Labels, Count>,
    refused: Family<Labels, Count>,
    bans: Count,
    attached: Count,
    embedded: Family<Labels, Count>,
    embed_time: Histogram,
    tokens: Family<Labels, Count>,
    tokens_made: Count,
    charged: Count,
    first_token: Histogram,
    turn_time: Histogram,
    queue_time: Histogram,
    running: Level,
    waiting: Level,
    engine_jobs: Family<Labels, Level>,
    engine_cache: Family<Labels, Level>,
    blobs: Family<Labels2, Count>,
    stored: Family<Labels, Count>,
    store_time: Histogram,
    store_bytes: Family<Labels, Count>,
    store_calls: Family<Labels2, Count>,
    store_up: Level,
    ready: Level,
    peers: Family<Labels, Level>,
    mesh: MeshSeries,
    models: ModelSeries,
    resident: Level,
    uptime: Level,
    committed_total: Count,
    failed_total: Count,
    refused_total: Count,
    recent: Recent,
    first_tokens: Count,
    first_token_ms: Count,
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

impl Metrics {
    /// Creates all metrics at zero.
    #[must_use]
    pub fn new(slots: u32, queue: u32) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("baton"),
            requests: Family::default(),
            turns: Family::default(),
            refused: Family::default(),
            bans: Counter::default(),
            attached: Counter::default(),
            embedded: Family::default(),
            embed_time: seconds(),
            tokens: Family::default(),
            tokens_made: Counter::default(),
            charged: Counter::default(),
            first_token: seconds(),
            turn_time: seconds(),
            queue_time: seconds(),
            running: Gauge::default(),
            waiting: Gauge::default(),
            engine_jobs: Family::default(),
            engine_cache: Family::default(),
            blobs: Family::default(),
            stored: Family::default(),
            store_time: seconds(),
            store_bytes: Family::default(),
            store_calls: Family::default(),
            store_up: Gauge::default(),
            ready: Gauge::default(),
            peers: Family::default(),
            mesh: MeshSeries::default(),
            models: ModelSeries::default(),
            resident: Gauge::default(),
            uptime: Gauge::default(),
            committed_total: Counter::default(),
            failed_total: Counter::default(),
            refused_total: Counter::default(),
            recent: Recent::default(),
            first_tokens: Counter::default(),
            first_token_ms: Counter::default(),
        };
        metrics.register_turns(slots, queue);
        metrics.register_surroundings();
        metrics.begin_at_zero();
        metrics
    }

    fn register_turns(&mut self, slots: u32, queue: u32) {
        let Self { registry, .. } = self;
        registry.register("requests", "First frames of substreams, by kind", self.requests.clone());
        registry.register(
            "turns",
            "Admitted turns that ended, by outcome: committed, abandoned or an error code",
            self.turns.clone(),
        );
        registry.register(
            "refused",
            "Requests refused before anything ran, by error code",
            self.refused.clone(),
        );
        registry.register("bans", "Peers refused for a while for what they did", self.bans.clone());
        registry.register(
            "turns_attached",
            "Connections that joined a running turn or were answered from the journal",
            self.attached.clone(),
        );
        registry.register("embedded", "Embedded for others, by unit: texts, tokens", self.embedded.clone());
        registry.register_with_unit(
            "embed",
            "From the slot of a request for embeddings until its reply was sealed",
            Unit::Seconds,
            self.embed_time.clone(),
        );
        registry.register("tokens", "Tokens of committed turns, by direction", self.tokens.clone());
        registry.register(
            "tokens_made",
            "Tokens as they are made, also of turns that end otherwise; a proxied engine's are pieces of text",
            self.tokens_made.clone(),
        );
        registry.register(
            "charged_micro_units",
            "Charged for turns, in millionths of a unit",
            self.charged.clone(),
        );
        let time = Unit::Seconds;
        registry.register_with_unit(
            "first_token",
            "From admission to the first token",
            time.clone(),
            self.first_token.clone(),
        );
        registry.register_with_unit(
            "turn",
            "From admission until the turn was signed",
            time.clone(),
            self.turn_time.clone(),
        );
        registry.register_with_unit(
            "turn_queue",
            "From admission to the start of generation",
            time,
            self.queue_time.clone(),
        );
        registry.register("turns_running", "Turns being served now", self.running.clone());
        registry.register("turns_waiting", "Turns waiting for a slot now", self.waiting.clone());
        registry.register(
            "engine_jobs",
            "Answers being computed (running) and waiting in the engine now",
            self.engine_jobs.clone(),
        );
        registry.register_with_unit(
            "engine_cache",
            "Keys and values: all (used), those kept for next turns, and the limit",
            Unit::Bytes,
            self.engine_cache.clone(),
        );
        for (name, help, value) in [
            ("slots", "Turns that may be served at once", slots),
            ("queue_limit", "Turns that may wait for a slot", queue),
        ] {
            let gauge = Level::default();
            gauge.set(value.into());
            registry.register(name, help, gauge);
        }
    }

    fn register_surroundings(&mut self) {
        let Self { registry, .. } = self;
        registry.register(
            "blobs",
            "Blobs of histories, by source asked and what it had: right or wrong bytes, none (missing), no answer (failed)",
            self.blobs.clone(),
        );
        registry.register("stored", "What became of storing new blobs", self.stored.clone());
        registry.register_with_unit(
            "store_wait",
            "From sealing a blob until the store had it",
            Unit::Seconds,
            self.store_time.clone(),
        );
        registry.register_with_unit(
            "store_transfer",
            "Blob bytes sent to (up) and read from (down) the store",
            Unit::Bytes,
            self.store_bytes.clone(),
        );
        registry.register("store_calls", "Calls of the store, by kind and result", self.store_calls.clone());
        registry.register("store_up", "1 when the store answered lately", self.store_up.clone());
        registry.register("ready", "1 when the node takes turns", self.ready.clone());
        registry.register("peers", "Peers known and connected", self.peers.clone());
        self.mesh.register(registry);
        self.models.register(registry);
        registry.register_with_unit("resident_memory", "Memory in use", Unit::Bytes, self.resident.clone());
        registry.register_with_unit("uptime", "Since the start", Unit::Seconds, self.uptime.clone());
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The program", build);
    }

    /// Creates each series at zero. A series that first appears with its first event hides that event's rate.
    fn begin_at_zero(&self) {
        for outcome in ["committed", "abandoned"] {
            drop(self.turns.get_or_create(&[("outcome", outcome)]));
        }
        for kind in ["turn", "status", "ack", "abort", "fetch_blob", "node_record", "relay", "embed"] {
            drop(self.requests.get_or_create(&[("kind", kind)]));
        }
        for code in
            [ErrorCode::Busy, ErrorCode::RateLimited, ErrorCode::QuotaExceeded, ErrorCode::GrantRequired]
        {
            drop(self.refused.get_or_create(&[("code", code.name())]));
        }
        for call in ["put", "get", "exists"] {
            drop(self.store_calls.get_or_create(&[("call", call), ("result", "ok")]));
        }
        for unit in ["texts", "tokens"] {
            drop(self.embedded.get_or_create(&[("unit", unit)]));
        }
        for direction in ["input", "output"] {
            drop(self.tokens.get_or_create(&[("direction", direction)]));
        }
        for direction in ["up", "down"] {
            drop(self.store_bytes.get_or_create(&[("direction", direction)]));
        }
        for state in ["stored", "pending", "given_up"] {
            drop(self.stored.get_or_create(&[("state", state)]));
        }
        for source in totals::SOURCES {
            for content in totals::CONTENTS {
                drop(self.blobs.get_or_create(&[("source", source_name(source)), ("content", content)]));
            }
        }
    }

    /// All metrics, as OpenMetrics text.
    #[must_use]
    pub fn render(&self, now: &Snapshot, uptime: Duration) -> String {
        self.store_up.set(now.store_up.into());
        self.ready.set(now.ready.into());
        self.uptime.set(level(uptime.as_secs()));
        self.resident.set(level(resident_bytes().unwrap_or(0)));
        for (state, count) in [("known", now.peers_known), ("connected", now.peers_connected)] {
            self.peers.get_or_create(&[("state", state)]).set(level(count as u64));
        }
        let EngineLoad { running, waiting, kv_bytes, kept_bytes, kv_budget } = now.engine;
        for (state, count) in [("running", running), ("waiting", waiting)] {
            self.engine_jobs.get_or_create(&[("state", state)]).set(level(count as u64));
        }
        for (what, bytes) in [("used", kv_bytes), ("kept", kept_bytes), ("limit", kv_budget)] {
            self.engine_cache.get_or_create(&[("bytes", what)]).set(level(bytes as u64));
        }
        self.mesh.set(&now.mesh);
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string does not fail");
        text
    }

    /// Turns since the start.
    #[must_use]
    pub(crate) fn turn_counts(&self) -> TurnCounts {
        TurnCounts {
            committed: self.committed_total.get(),
            failed: self.failed_total.get(),
            refused: self.refused_total.get(),
            running: u64::try_from(self.running.get()).unwrap_or(0),
            waiting: u64::try_from(self.waiting.get()).unwrap_or(0),
        }
    }

    /// Output tokens of the last minute.
    #[must_use]
    pub(crate) fn speed(&self) -> Speed {
        self.recent.speed(Instant::now())
    }

    /// A store call ended. `bytes` went up for a put, down otherwise.
    pub(crate) fn store_called(&self, call: &'static str, result: &'static str, bytes: usize) {
        self.store_calls.get_or_create(&[("call", call), ("result", result)]).inc();
        let direction = if call == "put" { "up" } else { "down" };
        self.store_bytes.get_or_create(&[("direction", direction)]).inc_by(bytes as u64);
    }

    fn blob(&self, source: BlobSource, content: &'static str) {
        self.blobs.get_or_create(&[("source", source_name(source)), ("content", content)]).inc();
    }
}

fn source_name(source: BlobSource) -> &'static str {
    match source {
        BlobSource::Inline => "inline",
        BlobSource::Journal => "journal",
        BlobSource::Cache => "cache",
        BlobSource::Store => "store",
        BlobSource::Author => "author",
        BlobSource::Peer => "peer",
    }
}

/// Resident memory of this process, if the system reports it (Linux).
#[must_use]
pub(crate) fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::{ServiceObserver as _, TurnSummary};
    use baton_proto::wire::StoreState;

    fn render(metrics: &Metrics) -> String {
        metrics.render(
            &Snapshot {
                peers_connected: 3,
                ready: true,
                engine: EngineLoad { running: 4, kept_bytes: 5, ..EngineLoad::default() },
                ..Snapshot::default()
            },
            Duration::from_secs(5),
        )
    }

    #[test]
    fn counts_turns_by_outcome_and_shows_help_and_units() {
        let metrics = Metrics::new(2, 16);
        let turn = TurnSummary {
            input_tokens: 100,
            output_tokens: 20,
            queue_ms: 5,
            first_token_ms: 70,
            total_ms: 900,
            price: 11,
        };
        metrics.finished(&turn);
        metrics.finished(&turn);
        metrics.failed(ErrorCode::BlobUnavailable);
        metrics.refused(ErrorCode::Busy);
        metrics.load(2, 7);
        metrics.blob_used(BlobSource::Store);
        metrics.blob_wrong(BlobSource::Peer);
        metrics.blob_missing(BlobSource::Store);
        metrics.blob_failed(BlobSource::Author);
        metrics.tokens_made(3);
        metrics.stored(&StoreState::GivenUp, Duration::from_secs(60));
        metrics.store_called("put", "ok", 4096);
        let text = render(&metrics);
        for line in [
            "baton_turns_total{outcome=\"committed\"} 2",
            "baton_turns_total{outcome=\"BlobUnavailable\"} 1",
            "baton_refused_total{code=\"Busy\"} 1",
            "baton_tokens_total{direction=\"input\"} 200",
            "baton_charged_micro_units_total 22",
            "baton_first_token_seconds_count 2",
            "baton_first_token_seconds_bucket{le=\"0.1\"} 2",
            "baton_turns_running 2",
            "baton_turns_waiting 7",
            "baton_slots 2",
            "baton_engine_jobs{state=\"running\"} 4",
            "baton_engine_cache_bytes{bytes=\"kept\"} 5",
            "baton_blobs_total{source=\"store\",content=\"right\"} 1",
            "baton_blobs_total{source=\"peer\",content=\"wrong\"} 1",
            "baton_blobs_total{source=\"store\",content=\"missing\"} 1",
            "baton_blobs_total{source=\"author\",content=\"failed\"} 1",
            "baton_tokens_made_total 3",
            "baton_stored_total{state=\"given_up\"} 1",
            "baton_store_transfer_bytes_total{direction=\"up\"} 4096",
            "baton_peers{state=\"connected\"} 3",
            "baton_ready 1",
            "baton_uptime_seconds 5",
            "# UNIT baton_first_token_seconds seconds",
            "# HELP baton_turns_waiting Turns waiting for a slot now.",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(text.contains(&format!("baton_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"))));
        assert!(text.ends_with("# EOF\n"));
        let counts = metrics.turn_counts();
        assert_eq!((counts.committed, counts.failed, counts.refused, counts.running), (2, 1, 1, 2));
    }

    #[test]
    fn every_series_has_help_and_labels_stay_few() {
        let metrics = Metrics::new(1, 1);
        for code in ErrorCode::WIRE.iter().chain(ErrorCode::LOCAL) {
            metrics.failed(*code);
            metrics.refused(*code);
        }
        let text = render(&metrics);
        let helps = text.lines().filter(|line| line.starts_with("# HELP ")).count();
        let types = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
        assert_eq!(helps, types);
        let codes = ErrorCode::WIRE.len() + ErrorCode::LOCAL.len();
        assert!(text.lines().count() < 110 * 4 + 2 * codes, "{}", text.lines().count());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_in_use_is_known_on_linux() {
        assert!(resident_bytes().unwrap() > 100 * 1024);
    }
}
