//! One client's conversation, without pauses: it sends a message, compares the answer, and sends the next.

use anyhow::Context as _;
use baton_client::{Client, ClientError, RouteOptions, TurnInput, TurnOutcome};
use baton_proto::ids::{NodeId, SessionId};
use tokio_util::sync::CancellationToken;

use super::{
    KnownNodes,
    gaps::{FailedAttempt, Takeover, TurnWatch},
};
use crate::{
    byzantine::{AttemptKey, Misbehaviour},
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
    /// Misbehaviours in accepted attempts.
    pub(super) accepted_misbehaviours: Vec<Misbehaviour>,
    /// Nodes of accepted turns whose blobs were called stored and not stored.
    pub(super) claimed_stored: Vec<NodeId>,
    /// How many of them this client found to lie.
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
    pub(super) known: KnownNodes,
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
        let known = self.known.clone();
        let mut watch = TurnWatch::new(self.session, seq, &known);
        let input = TurnInput::user(said.as_str()).with_route(|route| route.allow_echo = true);
        let session = self.client.session(self.session);
        let mut result = session.turn(input, |event| watch.take(event)).await.map(Some);
        let mut resumes = 0;
        let outcome = loop {
            match result {
                Ok(Some(outcome)) => break outcome,
                Ok(None) => {
                    self.results
                        .violations
                        .push(format!("turn {seq} of client {} was forgotten", self.index));
                    return Ok(());
                }
                Err(error) if resumes < MAX_RESUMES => {
                    self.note_unfinished(&error);
                    resumes += 1;
                }
                Err(error) => return Err(error).context("a turn could not be finished"),
            }
            tokio::time::sleep(PAUSE).await;
            // A new call does not repeat the text shown before.
            self.collect(&mut watch);
            watch = TurnWatch::new(self.session, seq, &known);
            let options = RouteOptions { allow_echo: true, ..RouteOptions::default() };
            result = self.client.session(self.session).resume(options, |event| watch.take(event)).await;
        };
        watch.accepted(&outcome);
        self.compare(&said, &outcome, &watch);
        self.collect(&mut watch);
        self.results.ledger.acknowledge(&said);
        Ok(())
    }

    /// Counts the turns with unstored blobs whose nodes this client found to lie.
    pub(super) async fn note_detected_claims(&mut self) -> anyhow::Result<()> {
        let explained = self.client.explain(None, &RouteOptions::default()).await?;
        let lied =
            |node: &&NodeId| explained.iter().any(|one| one.node == **node && one.last_fault == Some("lied"));
        self.results.claims_detected = self.results.claimed_stored.iter().filter(lied).count() as u64;
        Ok(())
    }

    fn note_unfinished(&mut self, error: &ClientError) {
        tracing::info!(client = self.index, %error, "a turn is taken up again");
        self.results.unfinished.push(error.name());
    }

    /// Moves a watch's results into this client's results.
    fn collect(&mut self, watch: &mut TurnWatch<'_>) {
        self.results.failures.append(&mut watch.failures);
        self.results.takeovers.append(&mut watch.takeovers);
        self.results.restarts += watch.restarts;
    }

    /// Checks that the answer equals the engine's word for word, that the same text was shown, and that no
    /// misbehaviour is in it.
    fn compare(&mut self, said: &str, outcome: &TurnOutcome, watch: &TurnWatch<'_>) {
        let (client, seq) = (self.index, outcome.seq);
        let mut wrong = |what: String| {
            self.results.violations.push(format!("client {client}, turn {seq}: {what}"));
        };
        if seq != self.results.ledger.acknowledged() {
            wrong(format!("it should be turn {}", self.results.ledger.acknowledged()));
        }
        let expected = echo(said);
        for (what, text) in [("answered", &outcome.text), ("shown", &watch.shown)] {
            if *text != expected {
                wrong(format!("{text:?} was {what} for {expected:?}"));
            }
        }
        if self.known.byzantine.contains(&outcome.node) {
            self.results.from_byzantine += 1;
        }
        let key = AttemptKey { session: self.session, seq, attempt: outcome.attempt };
        let Some(entry) = self.known.log.entry(&key) else { return };
        self.results.accepted_misbehaviours.push(entry.misbehaviour);
        if entry.misbehaviour == Misbehaviour::ClaimsStored {
            self.results.claimed_stored.push(outcome.node);
        }
        if entry.first_link.is_none_or(|first| first != outcome.link_hash) {
            wrong(format!("a lie was accepted: {:?}", entry.misbehaviour));
        }
    }
}
