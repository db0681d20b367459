//! Kills and restarts of nodes.

use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::{ChurnOptions, HUB};
use crate::{draws::Draws, network::Network};

/// Counts of kills and starts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChurnCounts {
    pub(super) kills: u64,
    pub(super) starts: u64,
}

/// Kills or restarts one node at a time, until the time is over. At least half of the mortal nodes are always
/// alive.
pub(super) async fn kill_and_restart(
    network: &mut Network,
    options: &ChurnOptions,
    seed: u64,
) -> anyhow::Result<ChurnCounts> {
    let mut draws = Draws::of(seed, 2);
    let mut counts = ChurnCounts::default();
    let until = tokio::time::Instant::now() + Duration::from_secs(options.seconds);
    let every = Duration::from_millis(options.every_ms);
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if tokio::time::Instant::now() >= until {
            return Ok(counts);
        }
        let is_up = |index: &usize| network.nodes.get(*index).is_some_and(Option::is_some);
        let (up, down): (Vec<usize>, Vec<usize>) = (HUB..network.nodes.len()).partition(is_up);
        let may_die = 2 * up.len() > up.len() + down.len();
        if may_die && (down.is_empty() || draws.below(2) == 0) {
            let victim = draws.one_of(&up).and_then(|index| network.nodes.get(index)?.as_ref());
            let Some(node) = victim.map(|running| running.node) else { continue };
            network.kill_node(node).await?;
            counts.kills += 1;
        } else if let Some(index) = draws.one_of(&down) {
            network.start_node(index, &[]).await?;
            counts.starts += 1;
        }
    }
}
