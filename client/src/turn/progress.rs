//! The state of a turn across its attempts: the nodes tried, their failures, and the part of the answer shown so far.

use std::sync::Arc;

use baton_proto::{ErrorCode, ids::NodeId, turn::TurnAuth};

use crate::{
    attempt::{Events, resolve::SHORT_STATUS_WAIT},
    core::Core,
    error::ClientError,
    event::{RouteOptions, TurnEvent},
    identities::SessionMesh,
    network::{
        exchange,
        retry::{AnswerPrefix, AttemptFailure, Carry, carry},
    },
    session::open_session::Session,
};

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
}
