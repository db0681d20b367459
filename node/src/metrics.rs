//! Metrics of the node, in Prometheus's text format.
//!
//! The turn service reports through its observer, the store through `WatchedStore`. The rest is read on
//! request. Labels have few, fixed values; a session, peer or text never becomes a label.

pub(crate) mod exposition;
mod mesh;
mod models;
mod observer;
mod speed;
mod times;
mod watched_store;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use baton_mesh::MeshStats;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::engine::Load;
use exposition::{Exposition, Kind};
use speed::Recent;
pub(crate) use speed::Speed;
use times::Times;
pub(crate) use watched_store::WatchedStore;

/// Values of up to two labels; a missing one is empty.
type Labels = [&'static str; 2];

/// Counted events: name, help, and each label with the values that are there before their first event. A series that
/// first appears with its first event hides that event's rate.
type Counter = (&'static str, &'static str, &'static [(&'static str, &'static [&'static str])]);

/// The counted events. A name ends with `_total` in the text.
const COUNTERS: [Counter; 15] = [
    ("bans", "Peers refused for a while for what they did", &[]),
    (
        "blobs",
        "Blobs of histories, by source asked and what it had: right or wrong bytes, none (missing), no answer (failed)",
        &[
            ("source", &["inline", "journal", "cache", "store", "author", "peer"]),
            ("content", &["right", "wrong", "missing", "failed"]),
        ],
    ),
    ("charged_micro_units", "Charged for turns, in millionths of a unit", &[]),
    ("embedded", "Embedded for others, by unit: texts, tokens", &[("unit", &["texts", "tokens"])]),
    ("model_loads", "Models loaded for a turn, by result: ok, failed", &[("result", &["ok", "failed"])]),
    ("model_unloads", "Models unloaded, idle or for another", &[]),
    (
        "refused",
        "Requests refused before anything ran, by error code",
        &[("code", &["Busy", "RateLimited", "QuotaExceeded", "GrantRequired"])],
    ),
    (
        "requests",
        "First frames of substreams, by kind",
        &[("kind", &["turn", "note", "fetch_blob", "node_record", "relay", "embed"])],
    ),
    (
        "store_calls",
        "Calls of the store, by kind and result",
        &[("call", &["put", "get", "exists"]), ("result", &["ok"])],
    ),
    (
        "store_transfer_bytes",
        "Blob bytes sent to (up) and read from (down) the store",
        &[("direction", &["up", "down"])],
    ),
    ("stored", "What became of storing new blobs", &[("state", &["stored", "pending", "given_up"])]),
    ("tokens", "Tokens of committed turns, by direction", &[("direction", &["input", "output"])]),
    (
        "tokens_made",
        "Tokens as they are made, also of turns that end otherwise; a proxied engine's are pieces of text",
        &[],
    ),
    (
        "turns",
        "Admitted turns that ended, by outcome: committed, abandoned or an error code",
        &[("outcome", &["committed", "abandoned"])],
    ),
    ("turns_attached", "Connections that joined a running turn or were answered from the journal", &[]),
];

/// Figures that are read on request only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// The mesh's counts.
    pub(crate) mesh: MeshStats,
    /// Peers now.
    pub(crate) peers: PeerCounts,
    /// Whether the store answered recently.
    pub(crate) store_up: bool,
    /// Whether the node takes turns.
    pub(crate) ready: bool,
    /// The engine's load.
    pub(crate) engine: Load,
}

/// Counts of peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerCounts {
    /// With a connection.
    pub(crate) connected: usize,
    /// In the table.
    pub(crate) known: usize,
}

/// Turns since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Default)]
pub struct Metrics {
    slots: u32,
    queue: u32,
    counts: Mutex<BTreeMap<(&'static str, Labels), u64>>,
    running: AtomicUsize,
    waiting: AtomicUsize,
    models_loaded: AtomicUsize,
    model_bytes: AtomicU64,
    first_token: Times,
    turn: Times,
    turn_queue: Times,
    embed: Times,
    store_wait: Times,
    recent: Recent,
}

impl Metrics {
    /// Creates all metrics at zero.
    #[must_use]
    pub fn new(slots: u32, queue: u32) -> Self {
        let mut counts = BTreeMap::new();
        for (name, _, labels) in COUNTERS {
            let values = |at: usize| labels.get(at).map_or(&[""][..], |(_, values)| values);
            for first in values(0) {
                counts.extend(values(1).iter().map(|second| ((name, [*first, *second]), 0)));
            }
        }
        Self { slots, queue, counts: Mutex::new(counts), ..Self::default() }
    }

    /// Counts events.
    fn add(&self, name: &'static str, labels: Labels, more: u64) {
        *self.counts.lock().entry((name, labels)).or_default() += more;
    }

    /// All metrics, in Prometheus's text format 0.0.4.
    #[must_use]
    pub fn render(&self, now: &Snapshot, uptime: Duration) -> String {
        let mut text = Exposition::default();
        text.family(Kind::Gauge, "build_info", "The program");
        text.sample("build_info", [("version", env!("CARGO_PKG_VERSION"))], 1);
        let running = self.running.load(Ordering::Relaxed) as u64;
        let waiting = self.waiting.load(Ordering::Relaxed) as u64;
        let models = self.models_loaded.load(Ordering::Relaxed) as u64;
        let model_bytes = self.model_bytes.load(Ordering::Relaxed);
        for (name, help, level) in [
            (
                "model_memory_bytes",
                "What the models in memory are reckoned to take with the caches of their turns",
                model_bytes,
            ),
            ("models_loaded", "Models in memory now, where the node unloads them; 0 elsewhere", models),
            ("queue_limit", "Turns that may wait for a slot", self.queue.into()),
            ("ready", "1 when the node takes turns", now.ready.into()),
            ("resident_memory_bytes", "Memory in use", resident_bytes().unwrap_or(0)),
            ("slots", "Turns that may be served at once", self.slots.into()),
            ("store_up", "1 when the store answered lately", now.store_up.into()),
            ("turns_running", "Turns being served now", running),
            ("turns_waiting", "Turns waiting for a slot now", waiting),
            ("uptime_seconds", "Since the start", uptime.as_secs()),
        ] {
            text.single(Kind::Gauge, name, help, level);
        }
        let peers = [("known", now.peers.known as u64), ("connected", now.peers.connected as u64)];
        text.by(Kind::Gauge, ("peers", "Peers known and connected"), "state", &peers);
        let Load { running, waiting, kv_bytes, cached_bytes, kv_budget } = now.engine;
        let about = ("engine_jobs", "Answers being computed (running) and waiting in the engine now");
        text.by(Kind::Gauge, about, "state", &[("running", running as u64), ("waiting", waiting as u64)]);
        let about =
            ("engine_cache_bytes", "Keys and values: all (used), those kept for next turns, and the limit");
        let bytes = [("used", kv_bytes as u64), ("kept", cached_bytes as u64), ("limit", kv_budget as u64)];
        text.by(Kind::Gauge, about, "bytes", &bytes);
        self.write_counts(&mut text);
        for (name, help, times) in [
            (
                "embed_seconds",
                "From the slot of a request for embeddings until its reply was sealed",
                &self.embed,
            ),
            ("first_token_seconds", "From admission to the first token", &self.first_token),
            ("store_wait_seconds", "From sealing a blob until the store had it", &self.store_wait),
            ("turn_queue_seconds", "From admission to the start of generation", &self.turn_queue),
            ("turn_seconds", "From admission until the turn was signed", &self.turn),
        ] {
            times.write(&mut text, name, help);
        }
        mesh::write(&mut text, &now.mesh);
        text.into_text()
    }

    fn write_counts(&self, text: &mut Exposition) {
        let counts = self.counts.lock();
        for (name, help, labels) in COUNTERS {
            let full = format!("{name}_total");
            text.family(Kind::Counter, &full, help);
            for ((_, values), count) in
                counts.range((name, ["", ""])..).take_while(|((of, _), _)| *of == name)
            {
                text.sample(&full, labels.iter().map(|(label, _)| *label).zip(*values), count);
            }
        }
    }

    /// Turns since the start.
    #[must_use]
    pub(crate) fn turn_counts(&self) -> TurnCounts {
        let counts = self.counts.lock();
        let sum = |name: &str, is_counted: fn(&str) -> bool| {
            let of_name = counts.iter().filter(|((of, [value, _]), _)| *of == name && is_counted(value));
            of_name.map(|(_, count)| count).sum()
        };
        TurnCounts {
            committed: sum("turns", |outcome| outcome == "committed"),
            failed: sum("turns", |outcome| !matches!(outcome, "committed" | "abandoned")),
            refused: sum("refused", |_| true),
            running: self.running.load(Ordering::Relaxed) as u64,
            waiting: self.waiting.load(Ordering::Relaxed) as u64,
        }
    }

    /// Output tokens of the last minute.
    #[must_use]
    pub(crate) fn speed(&self) -> Speed {
        self.recent.speed(Instant::now())
    }

    /// A store call ended. `bytes` went up for a put, down otherwise.
    pub(crate) fn store_called(&self, call: &'static str, result: &'static str, bytes: usize) {
        self.add("store_calls", [call, result], 1);
        self.add("store_transfer_bytes", [if call == "put" { "up" } else { "down" }, ""], bytes as u64);
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
    use std::collections::HashMap;

    use super::*;
    use crate::{
        engine::set::SetObserver as _,
        observer::{BlobContent, BlobSource, ServiceObserver as _, TurnSummary},
    };
    use baton_proto::{ErrorCode, wire::StoreState};

    fn render(metrics: &Metrics) -> String {
        metrics.render(
            &Snapshot {
                peers: PeerCounts { connected: 3, known: 4 },
                ready: true,
                engine: Load { running: 4, cached_bytes: 5, ..Load::default() },
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
        metrics.taken(2, 5_000_000_000);
        metrics.load_ended(true);
        metrics.load_ended(false);
        metrics.unloaded();
        metrics.blob(BlobSource::Store, BlobContent::Right);
        metrics.blob(BlobSource::Author, BlobContent::Failed);
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
            "baton_first_token_seconds_sum 0.14",
            "baton_first_token_seconds_bucket{le=\"0.05\"} 0",
            "baton_first_token_seconds_bucket{le=\"0.1\"} 2",
            "baton_first_token_seconds_bucket{le=\"+Inf\"} 2",
            "baton_turns_running 2",
            "baton_turns_waiting 7",
            "baton_slots 2",
            "baton_engine_jobs{state=\"running\"} 4",
            "baton_engine_cache_bytes{bytes=\"kept\"} 5",
            "baton_blobs_total{source=\"store\",content=\"right\"} 1",
            "baton_blobs_total{source=\"peer\",content=\"wrong\"} 0",
            "baton_blobs_total{source=\"author\",content=\"failed\"} 1",
            "baton_tokens_made_total 3",
            "baton_models_loaded 2",
            "baton_model_memory_bytes 5000000000",
            "baton_model_loads_total{result=\"ok\"} 1",
            "baton_model_loads_total{result=\"failed\"} 1",
            "baton_model_unloads_total 1",
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
    fn all_samples_are_under_types_that_the_format_knows_and_labels_stay_few() {
        let metrics = Metrics::new(2, 16);
        for code in ErrorCode::WIRE.iter().chain(ErrorCode::LOCAL) {
            metrics.failed(*code);
            metrics.refused(*code);
        }
        let text = render(&metrics);
        let mut types = HashMap::new();
        let mut helps = 0;
        for line in text.lines().filter(|line| line.starts_with('#')) {
            let mut words = line.split(' ').skip(1);
            let (mark, family, kind) = (words.next(), words.next().unwrap(), words.next().unwrap());
            match mark.unwrap() {
                "HELP" => helps += 1,
                "TYPE" => assert!(types.insert(family, kind).is_none(), "{line}"),
                _ => panic!("not of the text format: {line}"),
            }
        }
        assert_eq!(helps, types.len());
        for sample in text.lines().filter(|line| !line.starts_with('#')) {
            let name = sample.split(['{', ' ']).next().unwrap();
            let histogram = ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|suffix| name.strip_suffix(suffix))
                .any(|family| types.get(family) == Some(&"histogram"));
            let plain = types.get(name).is_some_and(|kind| *kind != "histogram");
            assert!(histogram || plain, "{sample}");
            assert_eq!(types.get(name) == Some(&"counter"), name.ends_with("_total"), "{sample}");
        }
        let codes = ErrorCode::WIRE.len() + ErrorCode::LOCAL.len();
        assert!(text.lines().count() < 110 * 4 + 2 * codes, "{}", text.lines().count());
        // An event that no family names would be lost.
        let names = COUNTERS.map(|(name, ..)| name);
        assert!(metrics.counts.lock().keys().all(|(name, _)| names.contains(name)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_in_use_is_known_on_linux() {
        assert!(resident_bytes().unwrap() > 100 * 1024);
    }
}
