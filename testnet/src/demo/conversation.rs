//! The demo's conversation: turns on three nodes, a killed node, and a turn without a locator.

use anyhow::{Context as _, ensure};
use baton_client::{InlinePolicy, TurnEvent, TurnInput, TurnOutcome};
use baton_proto::{SignedObject, turn::TurnAuth};

use super::{Demo, short};
use crate::output;

/// The first turn states a fact; the sixth asks for it.
const QUESTIONS: [&str; 6] = [
    "My dog is called Biscuit. Please remember that.",
    "What is the capital of France?",
    "Name one colour of the rainbow.",
    "How many days has a week?",
    "Say hello in Spanish.",
    "What is the name of my dog?",
];

impl Demo {
    /// Runs six turns, alternating between three nodes; the window of the sixth still holds the first.
    pub(super) async fn conversation(&mut self) -> anyhow::Result<()> {
        output::note("a conversation of six turns, each on another node");
        let (last_question, before) = QUESTIONS.split_last().context("there are questions")?;
        for (index, question) in before.iter().enumerate() {
            self.say_on(index, question).await?;
        }
        let outcome = self.say_on(before.len(), last_question).await?;
        let from = outcome.receipt.window_from;
        ensure!(from == 0, "the window of the last turn begins at {from}, after the fact was told");
        ensure!(self.nodes_used.len() == 3, "only {} nodes were used", self.nodes_used.len());
        self.verify_stored().await?;
        Ok(())
    }

    async fn say_on(&mut self, index: usize, question: &str) -> anyhow::Result<TurnOutcome> {
        let node = self.node_at(index)?;
        let outcome = self.say(Self::ask(question).with_route(|route| route.node = Some(node))).await?;
        ensure!(outcome.node == node, "turn {} was served by another node than asked", outcome.seq + 1);
        Ok(outcome)
    }

    /// The authorisation of an accepted turn.
    async fn auth_of(&self, seq: u64) -> anyhow::Result<SignedObject<TurnAuth>> {
        let export = self.export().await?;
        let turn = export.turns.iter().find(|turn| turn.seq == seq).context("the turn is in the export")?;
        let auth = turn.auth.as_ref().context("the turn has its authorisation")?;
        Ok(SignedObject::<TurnAuth>::verify_encoded(auth)?)
    }

    /// Kills the serving node with `kill -9` after its first words; another node must complete the turn.
    pub(super) async fn kill_mid_answer(&mut self) -> anyhow::Result<()> {
        output::note("kill -9 of the serving node in the middle of its answer");
        let story = format!("Tell me a long story about the sea{}.", " and the wind".repeat(20));
        let input = TurnInput { max_output_tokens: 120, ..Self::ask(&story) }
            .with_route(|route| route.allow_echo = self.echo);
        let (sender, mut speaker) = tokio::sync::mpsc::channel(1);
        let mut serving = None;
        let on_event = move |event: TurnEvent| match event {
            TurnEvent::Attempt { node, .. } => serving = Some(node),
            // Only the first words matter; a full channel means that they are already reported.
            TurnEvent::Text(_) => drop(serving.map(|node| sender.try_send(node))),
            _ => {}
        };
        let client = self.client.clone();
        let session = self.session;
        let turn = tokio::spawn(async move { client.session(session).turn(input, on_event).await });
        let victim = speaker.recv().await.context("the turn ended before its first words")?;
        let index = self.network.index_of(victim).context("the serving node is ours")?;
        self.network.kill_node(victim).await?;
        output::note(&format!("  killed {}", short(victim)));
        let outcome = turn.await.context("the turn panicked")??;
        self.accepted(&outcome);
        ensure!(outcome.node != victim, "the dead node cannot have completed the turn");
        ensure!(outcome.receipt.attempt > 0, "the turn was completed as its first attempt");
        self.network.start_node(index, &[]).await?;
        self.reopen_client().await?;
        Ok(())
    }

    /// A node that never saw the session finds its head by the session ID alone.
    pub(super) async fn without_locator(&mut self) -> anyhow::Result<()> {
        output::note("a turn without any locator, to a node that never saw the session");
        self.settle().await?;
        let node = self.network.add_node(&[]).await?;
        self.reopen_client().await?;
        let outcome = self
            .say(Self::ask("What did I tell you about my dog?").with_route(|route| {
                route.node = Some(node);
                (route.with_locator, route.inline) = (false, InlinePolicy::Never);
                // A second attempt would include the locator.
                route.max_attempts = 1;
            }))
            .await?;
        ensure!(outcome.node == node, "another node served");
        let auth = self.auth_of(outcome.seq).await?;
        ensure!(auth.attempt == 0 && auth.prev_blob.is_none(), "the request said where the history is");
        Ok(())
    }
}
