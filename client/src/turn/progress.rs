//! The state of a turn across its attempts: the nodes tried, their failures, the part of the answer shown so far, and the
//! step after a failed attempt.

use std::{sync::Arc, time::Duration};

use baton_proto::{ErrorCode, SignedObject, ids::NodeId, tools::is_definitions, turn::TurnAuth};

use crate::{
    attempt::{Events, resolve::SHORT_STATUS_WAIT},
    background::repair,
    core::Core,
    error::{ClientError, log_failure, short},
    event::{InlinePolicy, RouteOptions, TurnEvent},
    identities::SessionMesh,
    network::{
        exchange,
        reputation::NodeFailure,
        retry::{AnswerPrefix, AttemptFailure, AttemptStatus, Carry, NextStep, carry, next_step},
    },
    session::{
        open_session::Session,
        state::{AttemptChange, Entry},
    },
    sync::head::{self, PublishReason},
};

/// How long a turn waits for its head to be published, when a node asks where the history is.
const PUBLISH_WAIT: Duration = Duration::from_secs(2);
/// Most silent nodes that a failure names.
const MAX_NAMED: usize = 8;
/// Connected nodes that are probed when an answer breaks off.
const MAX_PROBED: usize = 8;

/// A pending turn across its attempts.
pub(super) struct Progress<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) session: &'a Arc<Session>,
    /// The network under the session's identity. Held for the whole turn, so that it has one identity.
    pub(super) session_mesh: SessionMesh,
    /// The caller's route; failed attempts change how the history gets to the node.
    pub(super) route: RouteOptions,
    pub(super) tried: Vec<NodeId>,
    /// Number of the tried nodes that would refuse again.
    pub(super) refusals: usize,
    /// Codes that ended attempts, each with whether a peer reported it or the client found it.
    pub(super) codes: Vec<(ErrorCode, bool)>,
    pub(super) last: Option<(NodeId, AttemptFailure)>,
    pub(super) attempts: u32,
    /// The beginning of the answer, for the next node to continue.
    pub(super) begun: Option<AnswerPrefix>,
    /// Connected nodes that did not answer the probe when the answer broke off.
    pub(super) silent: Vec<NodeId>,
    /// Whether another node could have served the last attempt.
    pub(super) substitute: bool,
}

impl<'a> Progress<'a> {
    /// Before the first attempt.
    pub(super) async fn begin(
        core: &'a Arc<Core>,
        session: &'a Arc<Session>,
        route: RouteOptions,
    ) -> Result<Self, ClientError> {
        Ok(Self {
            core,
            session,
            session_mesh: core.identities.of_turns(session.id).await?,
            route,
            tried: Vec::new(),
            refusals: 0,
            codes: Vec::new(),
            last: None,
            attempts: 0,
            begun: None,
            silent: Vec::new(),
            substitute: false,
        })
    }

    /// Whether every tried node would refuse again.
    pub(super) fn refused_for_good(&self) -> bool {
        self.refusals == self.tried.len()
    }

    /// Nodes to try last after a failed attempt: those that failed, and those without a connection or a probe
    /// answer. Detecting a dead node takes seconds, while the reader waits.
    pub(super) fn last_resorts(&self) -> Vec<NodeId> {
        let peers = self.core.directory.mesh().peers();
        let unconnected = peers.into_iter().filter(|peer| !peer.connected).map(|peer| peer.node);
        let unconnected = unconnected.filter(|_| self.last.is_some());
        let mut last = self.tried.clone();
        // A node listed twice would count as failed twice.
        for node in self.silent.iter().copied().chain(unconnected) {
            if !last.contains(&node) {
                last.push(node);
            }
        }
        last
    }

    /// Probes the connected nodes: over QUIC, a dead node stays connected until its silence is long enough.
    pub(super) async fn probe_others(&mut self, failed: NodeId) {
        let mesh = self.core.directory.mesh();
        let connected = mesh.peers().into_iter().filter(|peer| peer.connected && peer.serves_turns);
        let others = connected.map(|peer| peer.node).filter(|node| *node != failed);
        let (asked, rest): (Vec<_>, Vec<_>) = others.enumerate().partition(|(index, _)| *index < MAX_PROBED);
        let asked: Vec<NodeId> = asked.into_iter().map(|(_, node)| node).collect();
        let there = exchange::answering_nodes(mesh, &asked, SHORT_STATUS_WAIT).await;
        let silent = asked.into_iter().filter(|node| !there.contains(node));
        self.silent = silent.chain(rest.into_iter().map(|(_, node)| node)).collect();
    }

    /// Keeps or drops the part of the answer that was shown.
    pub(super) fn carry(
        &mut self,
        auth: &TurnAuth,
        failure: &mut AttemptFailure,
        events: &mut Events<'_>,
    ) -> Carry {
        let carried = carry(self.begun.as_ref(), failure);
        match carried {
            Carry::Same => {}
            Carry::Longer => {
                self.begun = Some(AnswerPrefix {
                    author: auth.audience,
                    attempt: auth.attempt,
                    model: auth.model,
                    partial: std::mem::take(&mut *failure.partial),
                });
            }
            Carry::Back => {
                events(TurnEvent::Restarted);
                if let Some(begun) = &self.begun {
                    if !begun.partial.reports.is_empty() {
                        events(TurnEvent::Logprobs(begun.partial.reports.to_vec()));
                    }
                    events(TurnEvent::Text(begun.partial.text.to_string()));
                }
            }
            Carry::Void => {
                self.begun = None;
                events(TurnEvent::Restarted);
            }
        }
        carried
    }

    /// Journals a failed attempt, informs the caller, and prepares the next attempt.
    pub(super) async fn after_failure(
        &mut self,
        auth: &SignedObject<TurnAuth>,
        mut failure: AttemptFailure,
        noticed_ago: Duration,
        events: &mut Events<'_>,
    ) -> Result<(), ClientError> {
        let node = auth.audience;
        let (code, reason) = (failure.code, failure.reason.clone());
        events(TurnEvent::AttemptFailed { attempt: auth.attempt, node, code, reason, noticed_ago });
        self.journal_failure(auth, &failure).await?;
        let carried = self.carry(auth, &mut failure, events);
        // If a beginning was given to this node, that is at fault, and neither the turn nor the node.
        if carried != Carry::Void && !self.is_of_quota(auth, &failure) {
            let step = self.decide(node, &failure);
            self.take(step, node, &failure).await?;
        }
        self.last = Some((node, failure));
        Ok(())
    }

    /// Journals the facts that a later start needs.
    async fn journal_failure(&self, auth: &TurnAuth, failure: &AttemptFailure) -> Result<(), ClientError> {
        let note = failure.note.as_ref().map(|note| AttemptChange::Note(note.bytes().clone()));
        let is_wrong = failure.status == AttemptStatus::Wrong;
        // The author of any other is asked at the next start, and informed when another attempt is accepted.
        let is_over = is_wrong || failure.status == AttemptStatus::NothingSigned;
        let changes = note.into_iter().chain(is_over.then_some(AttemptChange::Ended { is_wrong }));
        let entries: Vec<_> = changes.map(|change| Entry::OfAttempt(auth.attempt, change)).collect();
        if entries.is_empty() { Ok(()) } else { self.session.record(entries).await }
    }

    /// Whether the node refused the quota, so that the next attempt shows another one, or none.
    fn is_of_quota(&self, auth: &SignedObject<TurnAuth>, failure: &AttemptFailure) -> bool {
        let quota = self.core.config.quota.as_ref();
        failure.code == Some(ErrorCode::QuotaExceeded)
            && failure.is_claim()
            && quota.is_some_and(|quota| quota.note_refused(auth, self.core.now_ms()))
    }

    fn decide(&mut self, node: NodeId, failure: &AttemptFailure) -> NextStep {
        let code = failure.code.map(|code| (code, failure.is_claim()));
        let mut seen = code.is_some_and(|code| self.codes.contains(&code));
        // A node that cannot enforce a schema, or report token probabilities, refuses with this code; others
        // can.
        if failure.code == Some(ErrorCode::PayloadRejected) && asks_more(self.session) {
            seen = self.tried.contains(&node);
        }
        self.codes.extend(code);
        next_step(failure, self.route.with_locator, seen)
    }

    async fn take(
        &mut self,
        step: NextStep,
        node: NodeId,
        failure: &AttemptFailure,
    ) -> Result<(), ClientError> {
        let core = self.core;
        if step == NextStep::Elsewhere || failure.fault == NodeFailure::Lied {
            core.directory.failed(node, failure.fault, u64::from(failure.retry_after_ms));
        }
        match step {
            NextStep::Elsewhere => {
                self.tried.push(node);
                self.refusals += usize::from(failure.is_final());
            }
            NextStep::Here(pause) => tokio::time::sleep(pause).await,
            NextStep::RenewRecord => core.directory.renew(node).await,
            NextStep::RepairStore => {
                self.route.inline = InlinePolicy::Always;
                repair::repair(core, self.session).await;
            }
            NextStep::Locate => {
                self.route.with_locator = true;
                self.publish().await?;
            }
            NextStep::Stop => return Err(turn_failed(self.attempts, node, failure)),
        }
        Ok(())
    }

    /// Publishes the head for a node that asks where the history is.
    async fn publish(&self) -> Result<(), ClientError> {
        if self.route.reconcile {
            // The node may know a newer head than ours.
            head::check_for_newer(self.core, self.session).await?;
        }
        // A silent index must not hold up the answer: the node may find the head there, or gets the history itself.
        let publishing = head::publish_head(self.core, self.session, PublishReason::Head);
        match tokio::time::timeout(PUBLISH_WAIT, publishing).await.unwrap_or(Ok(())) {
            Err(error) if error.is_divergence() && self.route.reconcile => Err(error),
            published => {
                log_failure(published, "the head record could not be published again");
                Ok(())
            }
        }
    }
}

/// Whether the pending turn needs a feature that not every node has.
fn asks_more(session: &Session) -> bool {
    session.read(|state| {
        let sampling = state.pending.as_ref().map(|pending| &pending.turn.sampling);
        sampling.is_some_and(|sampling| sampling.json_schema.is_some() || sampling.logprobs > 0)
            || state.system.iter().any(is_definitions)
    })
}

/// The failure of the turn at its last node.
pub(super) fn turn_failed(attempts: u32, node: NodeId, failure: &AttemptFailure) -> ClientError {
    let relayed = failure.status == AttemptStatus::Hearsay;
    let mut reason = failure.reason.clone();
    let silent = failure.silent_others.as_deref().unwrap_or_default();
    for silent in silent.iter().take(MAX_NAMED) {
        reason.push_str(&format!("; node {}: no answer", short(silent)));
    }
    if let more @ 1.. = silent.len().saturating_sub(MAX_NAMED) {
        reason.push_str(&format!("; {more} more without an answer"));
    }
    let (code, retry_after_ms) = (failure.code, failure.retry_after_ms);
    ClientError::TurnFailed { attempts, node, code, reason, relayed, retry_after_ms }
}
