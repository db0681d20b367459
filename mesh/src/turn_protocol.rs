//! The turn substream as a libp2p behaviour: negotiates streams out and hands streams in to the swarm task. Streams of the
//! protocols beside it are carried alike.
//!
//! Called by [`crate::actor`] only. It decides nothing: admission of inbound streams and dialling are the
//! actor's. Written here rather than taken from `libp2p-stream`, whose inbound queue holds one stream and
//! silently drops the others of a burst, whose table of connections only grows, and which hides why a
//! stream was not opened.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Ready, ready},
    sync::Arc,
    task::{Context, Poll},
};

use libp2p::{
    Multiaddr, PeerId, Stream, StreamProtocol,
    core::{
        Endpoint,
        transport::PortUse,
        upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo},
    },
    swarm::{
        ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm,
        NetworkBehaviour, NotifyHandler, StreamUpgradeError, SubstreamProtocol, THandler, THandlerInEvent,
        THandlerOutEvent, ToSwarm,
        handler::{ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound},
    },
};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    error::OpenError,
    limits::{MAX_NEGOTIATING_STREAMS, MAX_PENDING_OPENS, MeshLimits, NEGOTIATION_TIMEOUT},
    origin::Origin,
    rate::Pace,
    stats::Counters,
    until::PeersUntil,
};

/// The turn protocol; the name carries the version.
pub const TURN_PROTOCOL: StreamProtocol = StreamProtocol::new("/baton/turn/1");

/// The protocol of embeddings, which nodes speak that offer them.
pub const EMBED_PROTOCOL: StreamProtocol = StreamProtocol::new("/baton/embed/1");

/// The protocol of audits, which nodes speak that offer them.
pub const AUDIT_PROTOCOL: StreamProtocol = StreamProtocol::new("/baton/audit/1");

/// A stream and the protocol agreed for it.
pub(crate) type Negotiated = (Stream, StreamProtocol);

/// Where the answer to an open goes. Dropped without an answer when the connection ends first.
#[derive(Debug)]
pub(crate) struct OpenReply {
    answer: oneshot::Sender<Result<Negotiated, OpenError>>,
    /// The protocol that is wanted; the turn protocol where none is named.
    protocol: Option<StreamProtocol>,
}

impl OpenReply {
    pub(crate) fn new(
        answer: oneshot::Sender<Result<Negotiated, OpenError>>,
        protocol: Option<StreamProtocol>,
    ) -> Self {
        Self { answer, protocol }
    }

    /// Answers; whoever gave up does not hear it.
    pub(crate) fn send(self, result: Result<Negotiated, OpenError>) {
        let _ = self.answer.send(result);
    }

    /// Whether whoever asked gave up.
    pub(crate) fn is_closed(&self) -> bool {
        self.answer.is_closed()
    }
}

/// A stream that a peer opened.
#[derive(Debug)]
pub(crate) struct InboundStream {
    pub(crate) peer: PeerId,
    pub(crate) origin: Origin,
    pub(crate) negotiated: Negotiated,
}

/// How often strangers may open streams. Looked at in the connections' own tasks, so that a flood of streams on accepted
/// connections never reaches the swarm task.
#[derive(Debug, Clone)]
pub(crate) struct Strangers {
    count_private: bool,
    pace: Pace,
    known: PeersUntil,
    counters: Arc<Counters>,
}

impl Strangers {
    /// By these limits; `known` are no strangers. What is refused is counted.
    pub(crate) fn new(limits: &MeshLimits, known: PeersUntil, counters: Arc<Counters>) -> Self {
        let pace = Pace::new(limits.new_streams_at_once, limits.new_streams_per_second);
        Self { count_private: limits.count_private, pace, known, counters }
    }
}

/// The behaviour.
pub(crate) struct Behaviour {
    protocols: Vec<StreamProtocol>,
    accepted: Vec<StreamProtocol>,
    strangers: Strangers,
    actions: VecDeque<ToSwarm<InboundStream, OpenReply>>,
}

impl Behaviour {
    /// Opens turns in the given versions, most wanted first, and lets others open streams of the accepted protocols.
    pub(crate) fn new(
        protocols: Vec<StreamProtocol>,
        accepted: Vec<StreamProtocol>,
        strangers: Strangers,
    ) -> Self {
        Self { protocols, accepted, strangers, actions: VecDeque::new() }
    }

    /// Opens a stream on this connection with the peer; one that has ended drops the reply.
    pub(crate) fn open(&mut self, peer: PeerId, connection: ConnectionId, reply: OpenReply) {
        if self.actions.len() >= MAX_PENDING_OPENS {
            reply.send(Err(OpenError::Busy));
            return;
        }
        self.actions.push_back(ToSwarm::NotifyHandler {
            peer_id: peer,
            handler: NotifyHandler::One(connection),
            event: reply,
        });
    }

    fn handler(&self, peer: PeerId, origin: Origin) -> Handler {
        // The operator's own network is none of strangers.
        let counted = origin.counted(self.strangers.count_private).is_some();
        Handler {
            peer,
            origin,
            strangers: counted.then(|| self.strangers.clone()),
            outbound_protocols: self.protocols.clone(),
            inbound_protocols: self.accepted.clone(),
            opens: VecDeque::new(),
            arrived: VecDeque::new(),
        }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = InboundStream;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer, Origin::of(local, remote)))
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        remote: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        // Whoever was dialled may open turns too.
        Ok(self.handler(peer, Origin::of(remote, remote)))
    }

    fn on_swarm_event(&mut self, _: FromSwarm<'_>) {}

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        _: ConnectionId,
        (negotiated, origin): THandlerOutEvent<Self>,
    ) {
        // The swarm takes these before it polls the connections again, so the queue stays short.
        self.actions.push_back(ToSwarm::GenerateEvent(InboundStream { peer, origin, negotiated }));
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        self.actions.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

/// The turn protocol on one connection.
pub(crate) struct Handler {
    peer: PeerId,
    origin: Origin,
    /// What the peer may do while it is a stranger; none for the operator's own network.
    strangers: Option<Strangers>,
    outbound_protocols: Vec<StreamProtocol>,
    inbound_protocols: Vec<StreamProtocol>,
    /// Asked for and not yet being negotiated.
    opens: VecDeque<OpenReply>,
    /// Negotiated by the peer and not yet handed over.
    arrived: VecDeque<Negotiated>,
}

impl Handler {
    /// Whether the peer may have one more stream now.
    fn may_have(&mut self, now: Instant) -> bool {
        let Some(strangers) = &mut self.strangers else { return true };
        // Whether it is known is asked only of those that are too fast: the table is shared.
        let may = strangers.pace.take(now) || strangers.known.has(&self.peer, now);
        if !may {
            strangers.counters.count(|stats| stats.turns_refused_quota += 1);
        }
        may
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = OpenReply;
    type ToBehaviour = (Negotiated, Origin);
    type InboundProtocol = TurnUpgrade;
    type OutboundProtocol = TurnUpgrade;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = OpenReply;

    fn listen_protocol(&self) -> SubstreamProtocol<TurnUpgrade> {
        SubstreamProtocol::new(TurnUpgrade(self.inbound_protocols.clone()), ())
            .with_timeout(NEGOTIATION_TIMEOUT)
    }

    fn poll(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<TurnUpgrade, OpenReply, (Negotiated, Origin)>> {
        if let Some(negotiated) = self.arrived.pop_front() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour((negotiated, self.origin)));
        }
        // Whoever gave up meanwhile costs no stream.
        while let Some(reply) = self.opens.pop_front() {
            if !reply.is_closed() {
                let named = reply.protocol.clone().map(|protocol| vec![protocol]);
                let upgrade = TurnUpgrade(named.unwrap_or_else(|| self.outbound_protocols.clone()));
                let protocol = SubstreamProtocol::new(upgrade, reply).with_timeout(NEGOTIATION_TIMEOUT);
                return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
            }
        }
        Poll::Pending
    }

    fn on_behaviour_event(&mut self, reply: OpenReply) {
        self.opens.push_back(reply);
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<'_, TurnUpgrade, TurnUpgrade, (), OpenReply>) {
        match event {
            // A whole negotiation queue's worth waits here only if the swarm is stuck. More are reset, as is what comes too
            // fast from a stranger: no other task hears of those.
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. })
                if self.arrived.len() < MAX_NEGOTIATING_STREAMS && self.may_have(Instant::now()) =>
            {
                self.arrived.push_back(protocol);
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info }) => {
                info.send(Ok(protocol));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { error, info }) => {
                info.send(Err(open_error(error)));
            }
            _ => {}
        }
    }
}

fn open_error(error: StreamUpgradeError<Infallible>) -> OpenError {
    match error {
        StreamUpgradeError::NegotiationFailed => OpenError::ProtocolUnsupported,
        StreamUpgradeError::Timeout => OpenError::Timeout,
        StreamUpgradeError::Io(error) => OpenError::Unreachable { reason: error.to_string() },
        StreamUpgradeError::Apply(never) => match never {},
    }
}

/// Agrees on one of several versions and hands out the raw stream.
pub(crate) struct TurnUpgrade(Vec<StreamProtocol>);

impl UpgradeInfo for TurnUpgrade {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl InboundUpgrade<Stream> for TurnUpgrade {
    type Output = Negotiated;
    type Error = Infallible;
    type Future = Ready<Result<Negotiated, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}

impl OutboundUpgrade<Stream> for TurnUpgrade {
    type Output = Negotiated;
    type Error = Infallible;
    type Future = Ready<Result<Negotiated, Infallible>>;

    fn upgrade_outbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}
