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

async fn metrics(admin: &str) -> anyhow::Result<String> {
    Ok(reqwest::get(format!("http://{admin}/metrics")).await?.error_for_status()?.text().await?)
}

impl NodeCounts {
    /// Reads the counters of a node.
    pub(super) async fn of(node: &NodeProcess) -> anyhow::Result<Self> {
        let admin = node.admin.as_deref().context("the node has an admin port")?;
        Ok(Self::parse(&metrics(admin).await?))
    }

    fn parse(text: &str) -> Self {
        let mut counts = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let value = Duration::try_from_secs_f64(value).map_or(0, |value| value.as_secs());
            match name {
                "baton_streams_total{result=\"accepted\"}" => counts.streams = value,
                "baton_streams_total{result=\"too_many\"}" | "baton_streams_total{result=\"queue_full\"}" => {
                    counts.streams_reset += value;
                }
                _ if name.starts_with("baton_inbound_refused_total{") => counts.connections_refused += value,
                _ if name.starts_with("baton_connections{") => counts.connections += value,
                "baton_requests_total{kind=\"turn\"}" => counts.turns_read = value,
                "baton_turns_total{outcome=\"committed\"}" => counts.turns_served = value,
                "baton_bans_total" => counts.bans = value,
                _ => {
                    let code = name.strip_prefix("baton_refused_total{code=\"");
                    if let Some(code) = code.and_then(|code| code.strip_suffix("\"}")) {
                        counts.refused.insert(code.to_owned(), value);
                    }
                }
            }
        }
        counts
    }

    /// The increase since `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        let refused = self.refused.iter().map(|(code, count)| {
            let before = before.refused.get(code).copied().unwrap_or(0);
            (code.clone(), count.saturating_sub(before))
        });
        Self {
            connections_refused: self.connections_refused.saturating_sub(before.connections_refused),
            streams: self.streams.saturating_sub(before.streams),
            streams_reset: self.streams_reset.saturating_sub(before.streams_reset),
            turns_read: self.turns_read.saturating_sub(before.turns_read),
            turns_served: self.turns_served.saturating_sub(before.turns_served),
            refused: refused.filter(|(_, count)| *count > 0).collect(),
            bans: self.bans.saturating_sub(before.bans),
            connections: self.connections,
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
                if let (Ok(mib), Ok(text)) = (resident_mib(pid), metrics(&admin).await) {
                    samples.push((mib, NodeCounts::parse(&text).connections));
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
        let counts = NodeCounts::parse(text);
        assert_eq!((counts.connections_refused, counts.streams_reset, counts.bans), (7, 5, 4));
        assert_eq!((counts.refused_as("BadSignature"), counts.refused_as("Busy")), (11, 0));
        assert_eq!(counts.since(&counts), NodeCounts::default());
    }

    #[test]
    fn growth_is_of_the_middles_and_not_of_a_peak() {
        let memory = MemoryUse::of(&[1.0, 4.0, 7.0, 90.0, 12.0, 11.0, 13.0, 15.0, 80.0].map(|mib| (mib, 0)));
        assert!((memory.grew - 11.0).abs() < 0.01 && (memory.most - 90.0).abs() < 0.01, "{memory:?}");
        assert!((memory.grew_late - 3.0).abs() < 0.01, "{memory:?}");
    }
}
