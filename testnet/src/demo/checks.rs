//! A node that draws its tokens by another seed than asked is named by the next two nodes, and avoided.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use baton_client::{Client, NewSession, RouteOptions, TurnEvent, TurnInput, TurnOutcome};
use baton_proto::{
    check::CheckVerdict,
    ids::{NodeId, SessionId},
    turn::Sampling,
};

use super::{Demo, client_config, short};
use crate::{
    byzantine::{EngineLie, FalseEngine, NodeInProcess},
    network::native_engine,
    output,
};

impl Demo {
    /// Each node checks the last answer before it goes on: so the lie is found in the conversation itself.
    pub(super) async fn checked_answers(&mut self, folder: &Path) -> anyhow::Result<()> {
        output::note("a node that draws its answer by another seed than the client's");
        let model = native_engine(self.network.options.model_dir.clone()).await?;
        let engine = FalseEngine::new(model.info(), model.clone(), EngineLie::IgnoresSeed);
        let liar = NodeInProcess::start(&self.network, "other-seed", Arc::new(engine)).await?;
        let mut config = client_config(&self.network, &folder.join("checking-client"))?;
        config.bootstrap.extend(liar.addresses.clone());
        let client = Client::open(config).await?;
        let session = client.new_session(NewSession::default()).await?;

        say(&client, session, liar.node, "Tell me about the moon.").await?;
        for index in 0..2 {
            let node = self.node_at(index)?;
            let outcome = say(&client, session, node, "Go on, please.").await?;
            let check = outcome.receipt.checks.first().context("the node checked no answer")?;
            match check.verdict {
                CheckVerdict::Different { .. } => output::note(&format!(
                    "  {} says that the answer of {} has other tokens than its seed gives",
                    short(node),
                    short(liar.node)
                )),
                other => bail!("the false answer was called {other:?}"),
            }
        }
        let rows = client.explain(None, &RouteOptions::default()).await?;
        let avoided: Vec<NodeId> = rows
            .iter()
            .filter(|row| row.evidence.lied_until_ms > client.now_ms())
            .map(|row| row.node)
            .collect();
        ensure!(avoided == [liar.node], "{avoided:?} are avoided, not only {}", liar.node);
        client.shutdown(Duration::from_secs(5)).await;
        liar.stop().await?;
        Ok(())
    }
}

async fn say(client: &Client, session: SessionId, node: NodeId, text: &str) -> anyhow::Result<TurnOutcome> {
    let sampling = Sampling { temperature: 0.8, seed: 7, ..Sampling::default() };
    let route = RouteOptions { node: Some(node), ..RouteOptions::default() };
    let input = TurnInput { route, max_output_tokens: 24, sampling, ..TurnInput::user(text) };
    Ok(client.session(session).turn(input, |_: TurnEvent| {}).await?)
}
