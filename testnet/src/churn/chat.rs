//! One client's conversation, without pauses: it sends a message, compares the answer, and sends the next.

use std::sync::Arc;

use anyhow::Context as _;
use baton_client::{Client, RouteOptions, TurnInput, TurnOutcome};
use baton_proto::ids::{NodeId, SessionId};
use tokio_util::sync::CancellationToken;

use super::gaps::{FailedAttempt, Takeover, TurnWatch};
use crate::{
    byzantine::{Act, AttemptKey, FakeNode, lie_of},
    draws::Draws,
    trial::{
        PAUSE,
        ledger::{TurnLedger, echo},
    },
};

/// Resumes after which an unfinished turn counts as lost; each makes several attempts at nodes.
const MAX_RESUMES: u32 = 20;

/// The results of one client.
#[derive(Default)]
pub(super) struct ClientResults {
    /// The messages, of which those of accepted turns are acknowledged.
    pub(super) ledger: TurnLedger,
    pub(super) failures: Vec<FailedAttempt>,
    pub(super) takeovers: Vec<Takeover>,
    /// Times that the shown text was discarded.
    pub(super) restarts: u64,
    /// Errors of turns that failed as a whole and were resumed, by name.
    pub(super) unfinished: Vec<&'static str>,
    /// Lies in accepted attempts, with their nodes.
    pub(super) accepted_lies: Vec<(Act, NodeId)>,
    /// How many of the blobs that were called stored and not stored this client noticed.
    pub(super) claims_detected: u64,
    /// Turns accepted from byzantine nodes, falsified or not.
    pub(super) from_byzantine: u64,
    pub(super) violations: Vec<String>,
}

/// A client with its conversation.
pub(super) struct ChurnClient {
    pub(super) index: usize,
    pub(super) client: Client,
    pub(super) session: SessionId,
    pub(super) draws: Draws,
    pub(super) words: (u64, u64),
    pub(super) liars: Arc<Vec<FakeNode>>,
    pub(super) results: ClientResults,
}

impl ChurnClient {
    /// Talks until it is stopped, and finishes the running turn.
    pub(super) async fn run(mut self, stop: CancellationToken) -> anyhow::Result<Self> {
        while !stop.is_cancelled() {
            let said = self.next_message();
            self.turn(said).await?;
        }
        Ok(self)
    }

    /// A message of unique words, so that each missing or doubled word shows.
    fn next_message(&mut self) -> String {
        let (least, most) = self.words;
        let count = least + self.draws.below(most.saturating_sub(least) + 1);
        let turn = self.results.ledger.next_number();
        let words = (0..count).map(|word| format!("w{word}x{:04x}", self.draws.next() & 0xffff));
        [format!("client{}", self.index), format!("turn{turn}")]
            .into_iter()
            .chain(words)
            .collect::<Vec<_>>()
            .join(" ")
    }

    async fn turn(&mut self, said: String) -> anyhow::Result<()> {
        let seq = self.results.ledger.acknowledged();
        self.results.ledger.say(0, &said);
        let mut watch = TurnWatch::new(self.session, seq, &self.liars, &mut self.results);
        let input = TurnInput::user(said.as_str()).with_route(|route| route.allow_echo = true);
        let session = self.client.session(self.session);
        let mut result = session.turn(input, |event| watch.take(event)).await.map(Some);
        for resumes in 0.. {
            match result {
                Err(error) if resumes < MAX_RESUMES => watch.results.unfinished.push(error.name()),
                _ => break,
            }
            tokio::time::sleep(PAUSE).await;
            watch.begin_again();
            let options = RouteOptions { allow_echo: true, ..RouteOptions::default() };
            result = session.resume(options, |event| watch.take(event)).await;
        }
        let shown = watch.shown;
        match result.context("a turn could not be finished")? {
            Some(outcome) => {
                self.compare(&said, &outcome, &shown);
                self.results.ledger.acknowledge(&said);
            }
            None => {
                let forgotten = format!("turn {seq} of client {} was forgotten", self.index);
                self.results.violations.push(forgotten);
            }
        }
        Ok(())
    }

    /// Counts the turns with unstored blobs whose nodes this client found to lie.
    pub(super) async fn note_detected_claims(&mut self) -> anyhow::Result<()> {
        let explained = self.client.explain(None, &RouteOptions::default()).await?;
        let lied =
            |node: NodeId| explained.iter().any(|one| one.node == node && one.last_fault == Some("lied"));
        let accepted = self.results.accepted_lies.iter();
        let claims = accepted.filter(|(act, node)| *act == Act::ClaimStored && lied(*node));
        self.results.claims_detected = claims.count() as u64;
        Ok(())
    }

    /// Checks that the answer equals the engine's word for word, that the same text was shown, and that no
    /// misbehaviour is in it.
    fn compare(&mut self, said: &str, outcome: &TurnOutcome, shown: &str) {
        let (client, seq) = (self.index, outcome.seq);
        let results = &mut self.results;
        let mut wrong =
            |what: String| results.violations.push(format!("client {client}, turn {seq}: {what}"));
        if seq != results.ledger.acknowledged() {
            wrong(format!("it should be turn {}", results.ledger.acknowledged()));
        }
        let expected = echo(said);
        for (what, text) in [("answered", outcome.text.as_str()), ("shown", shown)] {
            if text != expected {
                wrong(format!("{text:?} was {what} for {expected:?}"));
            }
        }
        if self.liars.iter().any(|node| node.id() == outcome.node) {
            results.from_byzantine += 1;
        }
        let key = AttemptKey { session: self.session, seq, attempt: outcome.attempt };
        let Some(lie) = lie_of(&self.liars, &key) else { return };
        results.accepted_lies.push((lie.act, outcome.node));
        if lie.link != Some(outcome.link_hash) {
            wrong(format!("a lie was accepted: {:?}", lie.act));
        }
    }
}
