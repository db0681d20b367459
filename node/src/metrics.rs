//! Metrics of the node, in Prometheus's text format.
//!
//! The turn service reports through its observer, the store through `WatchedStore`. The rest is read on
//! request. Labels have few, fixed values; a session, peer or text never becomes a label.

pub(crate) mod format;
mod mesh;
mod observer;
mod speed;
mod watched_store;

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use baton_mesh::MeshStats;
use baton_proto::ErrorCode;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Metric, Registry, Unit},
};

use crate::{engine::EngineLoad, observer::BlobSource};
use format::prometheus_text;
use mesh::{MeshSeries, level};
use speed::Recent;
pub(crate) use speed::Speed;
pub(crate) use watched_store::WatchedStore;

type Labels = [(&'static str, &'static str); 1];
type Labels2 = [(&'static str, &'static str); 2];
type Count = Counter<u64, AtomicU64>;
type Level = Gauge<i64, AtomicI64>;

/// Buckets from 10 ms (a cached answer of a small model) to five minutes (a long answer of a large model).
const SECONDS: [f64; 14] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// Every source, in the order of the search.
const SOURCES: [BlobSource; 6] = [
    BlobSource::Inline,
    BlobSource::Journal,
    BlobSource::Cache,
    BlobSource::Store,
    BlobSource::Author,
    BlobSource::Peer,
];
/// Possible results of a source.
const CONTENTS: [&str; 4] = ["right", "wrong", "missing", "failed"];

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

/// Turns since the start.
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
    ready: Level,
    peers: Family<Labels, Level>,
    store: StoreSeries,
    mesh: MeshSeries,
    resident: Level,
    uptime: Level,
    failed_total: AtomicU64,
    refused_total: AtomicU64,
    recent: Recent,
}

/// Series of blobs and of the store.
#[derive(Debug)]
struct StoreSeries {
    blobs: Family<Labels2, Count>,
    stored: Family<Labels, Count>,
    wait: Histogram,
    bytes: Family<Labels, Count>,
    calls: Family<Labels2, Count>,
    up: Level,
}

impl StoreSeries {
    fn new(all: &mut Registry) -> Self {
        let blobs = "Blobs of histories, by source asked and what it had: right or wrong bytes, none (missing), no \
                     answer (failed)";
        let states = ["stored", "pending", "given_up"];
        let transfer = "Blob bytes sent to (up) and read from (down) the store";
        let series = Self {
            blobs: add(all, "blobs", blobs, Family::default()),
            stored: counters(all, "stored", "What became of storing new blobs", "state", &states),
            wait: times(all, "store_wait", "From sealing a blob until the store had it"),
            bytes: measured(all, Unit::Bytes, "store_transfer", transfer, Family::default()),
            calls: add(all, "store_calls", "Calls of the store, by kind and result", Family::default()),
            up: gauge(all, "store_up", "1 when the store answered lately"),
        };
        for call in ["put", "get", "exists"] {
            drop(series.calls.get_or_create(&[("call", call), ("result", "ok")]));
        }
        for direction in ["up", "down"] {
            drop(series.bytes.get_or_create(&[("direction", direction)]));
        }
        for source in SOURCES {
            for content in CONTENTS {
                drop(series.blobs.get_or_create(&[("source", source_name(source)), ("content", content)]));
            }
        }
        series
    }
}

/// Registers a metric under a name, with its help.
fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// A counter.
fn counter(registry: &mut Registry, name: &str, help: &str) -> Count {
    add(registry, name, help, Counter::default())
}

/// Counters by one label, at zero for `values`. A series that first appears with its first event hides that event's
/// rate.
fn counters(
    registry: &mut Registry,
    name: &str,
    help: &str,
    label: &'static str,
    values: &[&'static str],
) -> Family<Labels, Count> {
    let family = add(registry, name, help, Family::<Labels, Count>::default());
    values.iter().for_each(|value| drop(family.get_or_create(&[(label, *value)])));
    family
}

/// A level.
fn gauge(registry: &mut Registry, name: &str, help: &str) -> Level {
    add(registry, name, help, Gauge::default())
}

/// A metric with a unit.
fn measured<M: Metric + Clone>(registry: &mut Registry, unit: Unit, name: &str, help: &str, metric: M) -> M {
    registry.register_with_unit(name, help, unit, metric.clone());
    metric
}

/// A histogram of seconds.
fn times(registry: &mut Registry, name: &str, help: &str) -> Histogram {
    measured(registry, Unit::Seconds, name, help, Histogram::new(SECONDS))
}

impl Metrics {
    /// Creates all metrics at zero.
    #[must_use]
    pub fn new(slots: u32, queue: u32) -> Self {
        let mut registry = Registry::with_prefix("baton");
        let all = &mut registry;
        let kinds = ["turn", "note", "fetch_blob", "node_record", "relay", "embed"];
        let codes =
            [ErrorCode::Busy, ErrorCode::RateLimited, ErrorCode::QuotaExceeded, ErrorCode::GrantRequired]
                .map(ErrorCode::name);
        let outcomes = "Admitted turns that ended, by outcome: committed, abandoned or an error code";
        let attached = "Connections that joined a running turn or were answered from the journal";
        let embed_time = "From the slot of a request for embeddings until its reply was sealed";
        let made = "Tokens as they are made, also of turns that end otherwise; a proxied engine's are pieces of text";
        let jobs = "Answers being computed (running) and waiting in the engine now";
        let cache = "Keys and values: all (used), those kept for next turns, and the limit";
        gauge(all, "slots", "Turns that may be served at once").set(slots.into());
        gauge(all, "queue_limit", "Turns that may wait for a slot").set(queue.into());
        all.register("build", "The program", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        Self {
            requests: counters(all, "requests", "First frames of substreams, by kind", "kind", &kinds),
            turns: counters(all, "turns", outcomes, "outcome", &["committed", "abandoned"]),
            refused: counters(
                all,
                "refused",
                "Requests refused before anything ran, by error code",
                "code",
                &codes,
            ),
            bans: counter(all, "bans", "Peers refused for a while for what they did"),
            attached: counter(all, "turns_attached", attached),
            embedded: counters(
                all,
                "embedded",
                "Embedded for others, by unit: texts, tokens",
                "unit",
                &["texts", "tokens"],
            ),
            embed_time: times(all, "embed", embed_time),
            tokens: counters(
                all,
                "tokens",
                "Tokens of committed turns, by direction",
                "direction",
                &["input", "output"],
            ),
            tokens_made: counter(all, "tokens_made", made),
            charged: counter(all, "charged_micro_units", "Charged for turns, in millionths of a unit"),
            first_token: times(all, "first_token", "From admission to the first token"),
            turn_time: times(all, "turn", "From admission until the turn was signed"),
            queue_time: times(all, "turn_queue", "From admission to the start of generation"),
            running: gauge(all, "turns_running", "Turns being served now"),
            waiting: gauge(all, "turns_waiting", "Turns waiting for a slot now"),
            engine_jobs: add(all, "engine_jobs", jobs, Family::default()),
            engine_cache: measured(all, Unit::Bytes, "engine_cache", cache, Family::default()),
            ready: gauge(all, "ready", "1 when the node takes turns"),
            peers: add(all, "peers", "Peers known and connected", Family::default()),
            store: StoreSeries::new(all),
            mesh: MeshSeries::new(all),
            resident: measured(all, Unit::Bytes, "resident_memory", "Memory in use", Gauge::default()),
            uptime: measured(all, Unit::Seconds, "uptime", "Since the start", Gauge::default()),
            failed_total: AtomicU64::default(),
            refused_total: AtomicU64::default(),
            recent: Recent::default(),
            registry,
        }
    }

    /// All metrics, in Prometheus's text format 0.0.4.
    #[must_use]
    pub fn render(&self, now: &Snapshot, uptime: Duration) -> String {
        self.store.up.set(now.store_up.into());
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
        prometheus_text(&text)
    }

    /// Turns since the start.
    #[must_use]
    pub(crate) fn turn_counts(&self) -> TurnCounts {
        TurnCounts {
            committed: self.turns.get_or_create(&[("outcome", "committed")]).get(),
            failed: self.failed_total.load(Ordering::Relaxed),
            refused: self.refused_total.load(Ordering::Relaxed),
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
        self.store.calls.get_or_create(&[("call", call), ("result", result)]).inc();
        let direction = if call == "put" { "up" } else { "down" };
        self.store.bytes.get_or_create(&[("direction", direction)]).inc_by(bytes as u64);
    }

    fn blob(&self, source: BlobSource, content: &'static str) {
        self.store.blobs.get_or_create(&[("source", source_name(source)), ("content", content)]).inc();
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
            "# HELP baton_turns_waiting Turns waiting for a slot now.",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(text.contains(&format!("baton_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"))));
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
