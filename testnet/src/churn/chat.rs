//! One client's conversation, without pauses: it sends a message, compares the answer, and sends the next.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use baton_client::{Client, ClientError, ResumeOptions, TurnEvent, TurnInput, TurnOutcome};
use baton_proto::ids::{NodeId, SessionId};
use tokio_util::sync::CancellationToken;

use super::{
    gaps::{Failure, Takeover, TurnWatch},
    nodes::Deaths,
};
use crate::{
    byzantine::{AttemptKey, Misbehaviour, MisbehaviourLog},
    draws::Draws,
};

/// Resumes after which an unfinished turn counts as lost; each makes several attempts at nodes.
const MAX_RESUMES: u32 = 20;
/// Pause before a turn is resumed.
const PAUSE: Duration = Duration::from_millis(250);

/// The results of one client.
#[derive(Default)]
pub(super) struct ClientResults {
    /// Messages of accepted turns.
    pub(super) said: Vec<String>,
    pub(super) failures: Vec<Failure>,
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

/// The latest event of a client that chats; clones share it. The event is none once the client has finished.
#[derive(Clone, Debug)]
pub(super) struct LatestEvent(Arc<Mutex<(Option<String>, Instant)>>);

impl LatestEvent {
    pub(super) fn begin() -> Self {
        Self(Arc::new(Mutex::new((Some("no turn yet".to_owned()), Instant::now()))))
    }

    fn put(&self, event: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (event, Instant::now());
    }

    fn take(&self, seq: u64, event: &TurnEvent) {
        let event = match event {
            TurnEvent::Text(text) => format!("text of {} bytes", text.len()),
            event => format!("{event:?}"),
        };
        self.put(Some(format!("turn {seq}, {event}")));
    }

    /// The event in words with its age; none if the client has finished.
    pub(super) fn unfinished(&self) -> Option<String> {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (event, since) = &*latest;
        event.as_ref().map(|event| format!("{event}, {:.1} s ago", since.elapsed().as_secs_f64()))
    }
}

/// A client with its conversation.
pub(super) struct Talk {
    pub(super) index: usize,
    pub(super) client: Client,
    pub(super) session: SessionId,
    pub(super) draws: Draws,
    pub(super) words: (u64, u64),
    pub(super) byzantine: Arc<Vec<NodeId>>,
    pub(super) log: MisbehaviourLog,
    pub(super) deaths: Deaths,
    pub(super) latest: LatestEvent,
    pub(super) results: ClientResults,
}

/// The echo engine's answer.
pub(super) fn echo(said: &str) -> String {
    format!("echo: {said}")
}

impl Talk {
    /// Talks until it is stopped, and finishes the running turn.
    pub(super) async fn run(mut self, stop: CancellationToken) -> anyhow::Result<Self> {
        while !stop.is_cancelled() {
            let said = self.next_message();
            self.turn(said).await?;
        }
        self.latest.put(None);
        Ok(self)
    }

    /// A message of unique words, so that each missing or doubled word shows.
    fn next_message(&mut self) -> String {
        let (least, most) = self.words;
        let count = least + self.draws.below(most.saturating_sub(least) + 1);
        let turn = self.results.said.len();
        let words = (0..count).map(|word| format!("w{word}x{:04x}", self.draws.next() & 0xffff));
        [format!("client{}", self.index), format!("turn{turn}")]
            .into_iter()
            .chain(words)
            .collect::<Vec<_>>()
            .join(" ")
    }

    async fn turn(&mut self, said: String) -> anyhow::Result<()> {
        let seq = self.results.said.len() as u64;
        let (log, deaths, latest) = (self.log.clone(), self.deaths.clone(), self.latest.clone());
        let mut watch = TurnWatch::new(self.session, seq, &log, &deaths);
        let input = TurnInput { allow_echo: true, ..TurnInput::user(said.as_str()) };
        let take = |watch: &mut TurnWatch<'_>, event| {
            latest.take(seq, &event);
            watch.take(event);
        };
        let session = self.client.session(self.session);
        let mut result = session.turn(input, |event| take(&mut watch, event)).await.map(Some);
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
            watch = TurnWatch::new(self.session, seq, &log, &deaths);
            let options = ResumeOptions { allow_echo: true, ..ResumeOptions::default() };
            result = self.client.session(self.session).resume(options, |event| take(&mut watch, event)).await;
        };
        watch.accepted(&outcome);
        self.compare(&said, &outcome, &watch);
        self.collect(&mut watch);
        self.results.said.push(said);
        Ok(())
    }

    /// Counts the turns with unstored blobs whose nodes this client found to lie.
    pub(super) async fn note_detected_claims(&mut self) -> anyhow::Result<()> {
        let explained = self.client.explain(None, &ResumeOptions::default()).await?;
        let lied =
            |node: &&NodeId| explained.iter().any(|one| one.node == **node && one.last_fault == Some("lied"));
        self.results.claims_detected = self.results.claimed_stored.iter().filter(lied).count() as u64;
        Ok(())
    }

    fn note_unfinished(&mut self, error: &ClientError) {
        tracing::info!(client = self.index, %error, "a turn is taken up again");
        self.latest.put(Some(format!("turn {}, {error}", self.results.said.len())));
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
        if seq != self.results.said.len() as u64 {
            wrong(format!("it should be turn {}", self.results.said.len()));
        }
        if outcome.text != echo(said) {
            wrong(format!("the answer has other words: {}", difference(&outcome.text, &echo(said))));
        }
        if watch.shown != outcome.text {
            wrong(format!("other words were shown: {}", difference(&watch.shown, &outcome.text)));
        }
        if self.byzantine.contains(&outcome.node) {
            self.results.from_byzantine += 1;
        }
        let key = AttemptKey { session: self.session, seq, attempt: outcome.attempt };
        let Some(entry) = self.log.entry(&key) else { return };
        self.results.accepted_misbehaviours.push(entry.misbehaviour);
        if entry.misbehaviour == Misbehaviour::ClaimsStored {
            self.results.claimed_stored.push(outcome.node);
        }
        if entry.first_link.is_none_or(|first| first != outcome.link_hash) {
            wrong(format!("a lie was accepted: {:?}", entry.misbehaviour));
        }
    }
}

/// The first difference of two texts, in words.
fn difference(found: &str, expected: &str) -> String {
    let (found, expected): (Vec<_>, Vec<_>) = (found.split(' ').collect(), expected.split(' ').collect());
    let at = found.iter().zip(&expected).take_while(|(left, right)| left == right).count();
    let around = |words: &[&str]| words.iter().skip(at).take(3).copied().collect::<Vec<_>>().join(" ");
    format!(
        "at word {at} \"{}\" for \"{}\" ({} words for {})",
        around(&found),
        around(&expected),
        found.len(),
        expected.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_its_place() {
        assert_eq!(difference("a b b c", "a b c"), "at word 2 \"b c\" for \"c\" (4 words for 3)");
    }
}
