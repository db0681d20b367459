//! The conversation itself: turns on three nodes in turn, a node that dies, a turn without any locator.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use baton_client::{InlinePolicy, TurnEvent, TurnInput};
use baton_proto::ids::NodeId;

use super::Demo;
use crate::{network::EngineChoice, output};

/// Told in the first turn, asked for in the sixth.
const QUESTIONS: [&str; 6] = [
    "My dog is called Biscuit. Please remember that.",
    "What is the capital of France?",
    "Name one colour of the rainbow.",
    "How many days has a week?",
    "Say hello in Spanish.",
    "What is the name of my dog?",
];

impl Demo {
    /// Six turns, each on the next of three nodes; the window of the sixth still holds the first.
    pub(super) async fn conversation(&mut self) -> anyhow::Result<()> {
        output::note("a conversation of six turns, each on another node");
        for (index, question) in QUESTIONS.iter().enumerate() {
            let node = self.node_at(index)?;
            let outcome = self.say(TurnInput { node: Some(node), ..Self::ask(question) }).await?;
            ensure!(outcome.node == node, "turn {index} was served by another node than asked");
            if index + 1 == QUESTIONS.len() {
                // The commitment in the receipt binds the window; the client has checked it against its own text.
                let from = outcome.receipt.window_from;
                ensure!(from == 0, "the window of the last turn begins at {from}, after the fact was told");
            }
        }
        ensure!(self.nodes_used.len() == 3, "only {} nodes were used", self.nodes_used.len());
        self.client.verify(self.session, true).await?;
        Ok(())
    }

    /// `kill -9` of the serving node after its first words; another node completes the turn.
    pub(super) async fn kill_mid_answer(&mut self) -> anyhow::Result<()> {
        output::note("kill -9 of the serving node in the middle of its answer");
        let input = TurnInput {
            max_output_tokens: 120,
            allow_echo: self.engine == EngineChoice::Echo,
            ..Self::ask(&format!("Tell me a long story about the sea{}.", " and the wind".repeat(20)))
        };
        let serving: Arc<Mutex<Option<NodeId>>> = Arc::default();
        let (sender, mut first_words) = tokio::sync::mpsc::channel(1);
        let shared = serving.clone();
        let on_event = move |event: TurnEvent| match event {
            TurnEvent::Attempt { node, .. } => {
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(node);
            }
            // Only the first words matter; a full channel says that they are reported already.
            TurnEvent::Text(_) => drop(sender.try_send(())),
            _ => {}
        };
        let client = self.client.clone();
        let session = self.session;
        let turn = tokio::spawn(async move { client.turn(session, input, on_event).await });
        first_words.recv().await.context("the turn ended before its first words")?;
        let victim = *serving.lock().unwrap_or_else(PoisonError::into_inner);
        let victim = victim.context("an attempt has a node")?;
        let index = self.network.index_of(victim).context("the serving node is ours")?;
        self.network.kill_node(victim).await?;
        output::note(&format!("  killed {victim:.8}"));
        let outcome = turn.await.context("the turn panicked")??;
        self.accepted(&outcome);
        ensure!(outcome.node != victim, "the dead node cannot have completed the turn");
        ensure!(outcome.receipt.attempt > 0, "the turn was completed as its first attempt");
        self.network.start_node(index, &[]).await?;
        self.reopen_client().await?;
        self.report.recovered_after_kill = true;
        Ok(())
    }

    /// A node that never saw the session finds its head by the session id alone.
    pub(super) async fn without_locator(&mut self) -> anyhow::Result<()> {
        output::note("a turn without any locator, to a node that never saw the session");
        self.settle().await?;
        let node = self.network.add_node(&[]).await?;
        self.reopen_client().await?;
        let outcome = self
            .say(TurnInput {
                node: Some(node),
                with_locator: false,
                inline: InlinePolicy::Never,
                ..Self::ask("What did I tell you about my dog?")
            })
            .await?;
        ensure!(outcome.node == node, "another node served");
        self.report.found_by_session_id = true;
        Ok(())
    }
}
