//! The node's own counters, memory and processor time during a flood.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{network::NodeProcess, process::cpu_seconds};

/// How often memory is sampled.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// The beginning of the metrics of open connections.
const CONNECTIONS: &str = "baton_connections{";

/// The node's counters from its admin port; for a part, their increase. They include honest clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCounts {
    /// Connections refused before or during their handshake.
    pub connections_refused: u64,
    /// Streams handed to the turn service.
    pub streams: u64,
    /// Streams reset because too many were open.
    pub streams_reset: u64,
    /// Turn requests that were read and decoded.
    pub turns_read: u64,
    /// Turns that were served.
    pub turns_served: u64,
    /// Refusals by error code.
    pub refused: BTreeMap<String, u64>,
    /// Peers shut out for a while.
    pub bans: u64,
    /// Connections open now; the only field that is no increase.
    pub connections: u64,
}

/// The values of a node's metrics, by name with labels.
pub(super) type NodeMetrics = BTreeMap<String, u64>;

/// Reads the metrics of a node.
pub(super) async fn metrics(admin: &str) -> anyhow::Result<NodeMetrics> {
    let answer = reqwest::get(format!("http://{admin}/metrics")).await?.error_for_status()?;
    Ok(parse(&answer.text().await?))
}

fn parse(text: &str) -> NodeMetrics {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let values = lines.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        let value = Duration::try_from_secs_f64(value.parse().ok()?).map_or(0, |value| value.as_secs());
        Some((name.to_owned(), value))
    });
    values.collect()
}

/// The sum of the metrics whose names begin so.
fn sum(metrics: &NodeMetrics, begins: &str) -> u64 {
    metrics.iter().filter(|(name, _)| name.starts_with(begins)).map(|(_, value)| value).sum()
}

impl NodeCounts {
    /// The increase from earlier metrics to later ones.
    pub(super) fn between(before: &NodeMetrics, after: &NodeMetrics) -> Self {
        let more = |name: &str| sum(after, name).saturating_sub(sum(before, name));
        let codes = after.keys().filter_map(|name| {
            let code = name.strip_prefix("baton_refused_total{code=\"")?.strip_suffix("\"}")?;
            Some((code.to_owned(), more(name)))
        });
        let streams_reset = ["too_many", "queue_full"]
            .map(|result| more(&format!("baton_streams_total{{result=\"{result}\"}}")))
            .into_iter()
            .sum();
        Self {
            connections_refused: more("baton_inbound_refused_total{"),
            streams: more("baton_streams_total{result=\"accepted\"}"),
            streams_reset,
            turns_read: more("baton_requests_total{kind=\"turn\"}"),
            turns_served: more("baton_turns_total{outcome=\"committed\"}"),
            refused: codes.filter(|(_, count)| *count > 0).collect(),
            bans: more("baton_bans_total"),
            connections: sum(after, CONNECTIONS),
        }
    }

    /// Refusals with this code.
    #[must_use]
    pub fn refused_as(&self, code: &str) -> u64 {
        self.refused.get(code).copied().unwrap_or(0)
    }
}

/// A process's resident memory during a part, in MiB.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct MemoryUse {
    /// One value each second.
    pub each_second: Vec<f64>,
    /// Open connections at these times.
    pub connections: Vec<u64>,
    /// The maximum.
    pub most: f64,
    /// The median of the last third minus that of the first: growth without single peaks.
    pub grew: f64,
    /// The median of the last third minus that of the second: growth after tables and caches had a third of
    /// the time to fill.
    pub grew_late: f64,
}

impl MemoryUse {
    fn of(samples: &[(f64, u64)]) -> Self {
        let (each_second, connections): (Vec<f64>, Vec<u64>) = samples.iter().copied().unzip();
        let third = each_second.len().div_ceil(3);
        let middle = |samples: &[f64]| {
            let mut sorted = samples.to_vec();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
        };
        let later = each_second.len() - third;
        let growth = |since: &[f64]| ((middle(&each_second[later..]) - middle(since)) * 10.0).round() / 10.0;
        let grew = growth(&each_second[..third]);
        let grew_late = growth(&each_second[later.saturating_sub(third)..later]);
        let most = each_second.iter().copied().fold(0.0, f64::max);
        Self { each_second, connections, most, grew, grew_late }
    }
}

/// Samples a process until it is stopped.
pub(super) struct NodeWatch {
    pid: u32,
    began: (Instant, f64),
    stop: oneshot::Sender<()>,
    samples: JoinHandle<Vec<(f64, u64)>>,
}

impl NodeWatch {
    pub(super) fn begin(node: &NodeProcess) -> anyhow::Result<Self> {
        let pid = node.process.id().context("the node runs")?;
        let admin = node.admin.clone().context("the node has an admin port")?;
        let began = (Instant::now(), cpu_seconds(pid)?);
        let (stop, mut stopped) = oneshot::channel();
        let samples = tokio::spawn(async move {
            let (mut samples, mut ticks) = (Vec::new(), tokio::time::interval(SAMPLE_EVERY));
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    _ = &mut stopped => return samples,
                }
                if let (Ok(mib), Ok(metrics)) = (resident_mib(pid), metrics(&admin).await) {
                    samples.push((mib, sum(&metrics, CONNECTIONS)));
                }
            }
        });
        Ok(Self { pid, began, stop, samples })
    }

    /// Ends sampling. Returns the memory and the average of used processors.
    pub(super) async fn end(self) -> anyhow::Result<(MemoryUse, f64)> {
        let Self { pid, began, stop, samples } = self;
        let _ = stop.send(());
        let samples = samples.await?;
        let cpus = (cpu_seconds(pid)? - began.1) / began.0.elapsed().as_secs_f64();
        Ok((MemoryUse::of(&samples), (cpus * 100.0).round() / 100.0))
    }
}

fn resident_mib(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok((kib.context("the system says how much memory a process has")? / 102.4).round() / 10.0)
}

/// The machine's load: how many processes want a processor, averaged over a minute.
pub(super) fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_the_node_writes_them() {
        let text = "# HELP baton_bans Peers\nbaton_inbound_refused_total{reason=\"subnet_rate\"} 3\n\
                    baton_inbound_refused_total{reason=\"handshake\"} 4\n\
                    baton_streams_total{result=\"too_many\"} 2\nbaton_streams_total{result=\"queue_full\"} 3\n\
                    baton_refused_total{code=\"BadSignature\"} 11\nbaton_bans_total 4\n# EOF\n";
        let counts = NodeCounts::between(&NodeMetrics::new(), &parse(text));
        assert_eq!((counts.connections_refused, counts.streams_reset, counts.bans), (7, 5, 4));
        assert_eq!((counts.refused_as("BadSignature"), counts.refused_as("Busy")), (11, 0));
        assert_eq!(NodeCounts::between(&parse(text), &parse(text)), NodeCounts::default());
    }

    #[test]
    fn growth_is_of_the_middles_and_not_of_a_peak() {
        let memory = MemoryUse::of(&[1.0, 4.0, 7.0, 90.0, 12.0, 11.0, 13.0, 15.0, 80.0].map(|mib| (mib, 0)));
        assert!((memory.grew - 11.0).abs() < 0.01 && (memory.most - 90.0).abs() < 0.01, "{memory:?}");
        assert!((memory.grew_late - 3.0).abs() < 0.01, "{memory:?}");
    }
}
