//! The state of a turn across its attempts: the nodes tried, their failures, and the part of the answer shown so far.

use baton_mesh::MeshHandle;
use baton_proto::{ErrorCode, ids::NodeId, turn::TurnAuth};

use crate::{
    attempt::{Events, resolve::SHORT_STATUS_WAIT},
    event::{InlinePolicy, ResumeOptions, TurnEvent},
    network::{
        exchange,
        retry::{AnswerPrefix, AttemptFailure, Carry, carry},
    },
};

/// Connected nodes that are probed when an answer breaks off.
const MAX_PROBED: usize = 8;

/// State across the attempts of one turn.
pub(super) struct Progress {
    pub(super) tried: Vec<NodeId>,
    /// Number of the tried nodes that would refuse again.
    pub(super) refusals: usize,
    /// Codes that ended attempts, each with whether a peer reported it or the client found it.
    pub(super) codes: Vec<(ErrorCode, bool)>,
    pub(super) with_locator: bool,
    /// Whether a newer head ends the attempts, because the caller merges it.
    pub(super) reconcile: bool,
    pub(super) inline: InlinePolicy,
    pub(super) last: Option<(NodeId, AttemptFailure)>,
    pub(super) attempts: u32,
    /// The beginning of the answer, for the next node to continue.
    pub(super) begun: Option<AnswerPrefix>,
    /// Connected nodes that did not answer the probe when the answer broke off.
    pub(super) silent: Vec<NodeId>,
    /// Whether another node could have served the last attempt.
    pub(super) substitute: bool,
}

impl Progress {
    /// Before the first attempt.
    pub(super) fn begin(options: &ResumeOptions) -> Self {
        Self {
            tried: Vec::new(),
            refusals: 0,
            codes: Vec::new(),
            with_locator: options.with_locator,
            reconcile: options.reconcile,
            inline: options.inline,
            last: None,
            attempts: 0,
            begun: None,
            silent: Vec::new(),
            substitute: false,
        }
    }

    /// Whether every tried node would refuse again.
    pub(super) fn refused_for_good(&self) -> bool {
        self.refusals == self.tried.len()
    }

    /// Nodes to try last after a failed attempt: those that failed, and those without a connection or a probe
    /// answer. Detecting a dead node takes seconds, while the reader waits.
    pub(super) fn last_resorts(&self, mesh: &MeshHandle) -> Vec<NodeId> {
        let unconnected = mesh.peers().into_iter().filter(|peer| !peer.connected).map(|peer| peer.node);
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
    pub(super) async fn probe_others(&mut self, mesh: &MeshHandle, failed: NodeId) {
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
}
