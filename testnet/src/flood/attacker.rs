//! An attacker: a process of its own whose work is done by one thread of the lowest priority, since on one machine it
//! competes for the processors, unlike an attacker over a network.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use clap::Args;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{attack::NodeAttack, relayer_attack::RelayerAttack};
use crate::{output, process::Process};

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
    pub(super) async fn report<T: DeserializeOwned>(mut self) -> anyhow::Result<T> {
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
        runtime.block_on(async {
            let report: Value = match plan {
                AttackPlan::Node(attack) => serde_json::to_value(attack.run(shots).await?)?,
                AttackPlan::Relayer(attack) => serde_json::to_value(attack.run().await)?,
            };
            anyhow::Ok(report)
        })
    });
    let report = tokio::task::spawn_blocking(move || attacking.join()).await?;
    let report = report.ok().context("the attacker panicked")??;
    output::line(&json!({ "event": "done", "report": report }).to_string());
    Ok(())
}
