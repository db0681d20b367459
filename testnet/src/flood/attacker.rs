//! An attacker: a process of its own whose work is done by one thread of the lowest priority, since on one machine it
//! competes for the processors, unlike an attacker over a network.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{attack::NodeAttack, relayer_attack::RelayerAttack};
use crate::{
    output,
    process::{Process, cpu_seconds},
};

/// Time for an attacker's report after its attack.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of the attacker.
#[derive(Debug, Args)]
pub(crate) struct AttackerArgs {
    /// The attack, as JSON
    plan: String,
}

/// The attack of an attacker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum AttackPlan {
    Node(NodeAttack),
    Relayer(RelayerAttack),
}

/// A due request.
pub(super) const OFFERED: &str = "offered";
/// A request that was written to a connection.
pub(super) const SENT: &str = "sent";
/// A request whose connection was refused before its handshake.
pub(super) const REFUSED_AT_DOOR: &str = "refused at the door";
/// A request whose connection was refused in or after the handshake.
pub(super) const REFUSED_IN_HANDSHAKE: &str = "refused in the handshake";
/// A request that did not reach the node because the attacker was too slow.
pub(super) const BEHIND: &str = "behind";
/// An identity that completed a handshake.
pub(super) const IDENTITIES: &str = "identities";

/// An attacker's report.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AttackReport {
    /// Counts of its attempts, and of the answers by kind or error code; `none` for a stream that ended
    /// without an answer.
    pub counts: BTreeMap<String, u64>,
    /// Processors that it used, on average.
    pub cpus: f64,
}

impl AttackReport {
    /// The count of an event.
    #[must_use]
    pub fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }
}

/// The counts of an attack's connections.
#[derive(Clone, Default)]
pub(super) struct AttackCounts(Arc<Mutex<BTreeMap<String, u64>>>);

impl AttackCounts {
    pub(super) fn count(&self, what: &str) {
        *self.0.lock().entry(what.to_owned()).or_default() += 1;
    }
}

/// A running attacker.
pub(super) struct Attacker(Process);

impl Attacker {
    /// Starts an attacker, and waits until it attacks.
    pub(super) async fn start(plan: &AttackPlan, folder: &Path) -> anyhow::Result<Self> {
        let plan = serde_json::to_string(plan)?;
        let args = ["flood-attack", plan.as_str()];
        Ok(Self(Process::start("attacker", "baton-testnet", &args, folder).await?))
    }

    /// Waits for the end of the attack, and for the attacker's report.
    pub(super) async fn report(mut self) -> anyhow::Result<AttackReport> {
        let done = self.0.wait_event("done", REPORT_TIMEOUT).await?;
        self.0.kill().await?;
        Ok(serde_json::from_value(done["report"].clone())?)
    }
}

/// Runs the attacker process.
pub(crate) async fn run(args: AttackerArgs) -> anyhow::Result<()> {
    let plan: AttackPlan = serde_json::from_str(&args.plan).context("the attack is none")?;
    let shots = match &plan {
        AttackPlan::Node(attack) => attack.shots().await?,
        AttackPlan::Relayer(_) => Vec::new(),
    };
    output::line(&json!({ "event": "ready" }).to_string());
    let attacking = std::thread::spawn(move || {
        // The priority is this thread's own. The measurement is about the attacked server, not about two local
        // processes that compete for a processor.
        let _ = rustix::process::nice(19);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (began, cpus) = (Instant::now(), cpu_seconds(std::process::id())?);
        let counts = AttackCounts::default();
        runtime.block_on(async {
            match plan {
                AttackPlan::Node(attack) => attack.run(shots, &counts).await,
                AttackPlan::Relayer(attack) => {
                    attack.run(counts.clone()).await;
                    Ok(())
                }
            }
        })?;
        let cpus = (cpu_seconds(std::process::id())? - cpus) / began.elapsed().as_secs_f64();
        let (counts, cpus) = (counts.0.lock().clone(), (cpus * 100.0).round() / 100.0);
        anyhow::Ok(AttackReport { counts, cpus })
    });
    let report = tokio::task::spawn_blocking(move || attacking.join()).await?;
    let report = report.ok().context("the attacker panicked")??;
    output::line(&json!({ "event": "done", "report": report }).to_string());
    Ok(())
}
