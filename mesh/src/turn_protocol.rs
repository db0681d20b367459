//! The turn substream as a libp2p behaviour: it negotiates outbound streams and passes inbound ones to the
//! swarm task. It carries streams of the side protocols too.
//!
//! Only [`crate::actor`] calls it. It decides nothing: the actor admits inbound streams and dials.
//!
//! It replaces `libp2p-stream`, for three reasons:
//! - Its inbound queue holds one stream and silently drops the others of a burst.
//! - Its table of connections only grows.
//! - It hides why a stream was not opened.

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
use tokio::sync::oneshot;

use crate::{
    error::OpenError,
    gate::{SharedGate, StreamRate},
    limits::{MAX_NEGOTIATING_STREAMS, MAX_PENDING_OPENS, MeshLimits, NEGOTIATION_TIMEOUT},
    origin::Origin,
    stats::Counters,
};

/// The turn protocol; the name carries the version.
pub const TURN_PROTOCOL: StreamProtocol = StreamProtocol::new("/baton/turn/2");

/// The embedding protocol, spoken by nodes that offer embeddings.
pub const EMBED_PROTOCOL: StreamProtocol = StreamProtocol::new("/baton/embed/1");

/// A stream and its negotiated protocol.
pub(crate) type NegotiatedStream = (Stream, StreamProtocol);

/// The reply channel of an open. It is dropped unanswered if the connection closes first.
#[derive(Debug)]
pub(crate) struct OpenReply {
    answer: oneshot::Sender<Result<NegotiatedStream, OpenError>>,
    /// The wanted protocol; `None` means the turn protocol.
    protocol: Option<StreamProtocol>,
}

impl OpenReply {
    pub(crate) fn new(
        answer: oneshot::Sender<Result<NegotiatedStream, OpenError>>,
        protocol: Option<StreamProtocol>,
    ) -> Self {
        Self { answer, protocol }
    }

    /// Sends the result, unless the caller gave up.
    pub(crate) fn send(self, result: Result<NegotiatedStream, OpenError>) {
        let _ = self.answer.send(result);
    }

    /// Whether the caller gave up.
    pub(crate) fn is_closed(&self) -> bool {
        self.answer.is_closed()
    }
}

/// A stream that a peer opened.
#[derive(Debug)]
pub(crate) struct InboundStream {
    pub(crate) peer: PeerId,
    pub(crate) origin: Origin,
    pub(crate) negotiated: NegotiatedStream,
}

/// The behaviour of the turn protocol.
pub(crate) struct TurnBehaviour {
    protocols: Vec<StreamProtocol>,
    accepted: Vec<StreamProtocol>,
    gate: SharedGate,
    limits: MeshLimits,
    counters: Arc<Counters>,
    actions: VecDeque<ToSwarm<InboundStream, OpenReply>>,
}

impl TurnBehaviour {
    /// Opens turns in `protocols`, in order of preference. Peers may open streams of the `accepted` ones, at the rate of
    /// `limits`; `counters` counts the refusals.
    pub(crate) fn new(
        protocols: Vec<StreamProtocol>,
        accepted: Vec<StreamProtocol>,
        gate: SharedGate,
        limits: MeshLimits,
        counters: Arc<Counters>,
    ) -> Self {
        Self { protocols, accepted, gate, limits, counters, actions: VecDeque::new() }
    }

    /// Opens a stream on this connection with the peer. The reply is dropped if the connection has closed.
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

    fn handler(&self, origin: Origin) -> Handler {
        Handler {
            origin,
            rate: StreamRate::new(self.gate.clone(), origin, &self.limits),
            counters: self.counters.clone(),
            outbound_protocols: self.protocols.clone(),
            inbound_protocols: self.accepted.clone(),
            opens: VecDeque::new(),
            arrived: VecDeque::new(),
        }
    }
}

impl NetworkBehaviour for TurnBehaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = InboundStream;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(Origin::of(local, remote)))
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        remote: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        // A dialled peer may open turns too.
        Ok(self.handler(Origin::of(remote, remote)))
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
    origin: Origin,
    rate: StreamRate,
    counters: Arc<Counters>,
    outbound_protocols: Vec<StreamProtocol>,
    inbound_protocols: Vec<StreamProtocol>,
    /// Requested opens, not yet in negotiation.
    opens: VecDeque<OpenReply>,
    /// Negotiated inbound streams, not yet handed over.
    arrived: VecDeque<NegotiatedStream>,
}

impl Handler {
    /// Whether the peer may open one more stream now.
    fn may_open(&mut self) -> bool {
        let may = self.rate.take();
        if !may {
            self.counters.count(|stats| stats.turns_refused_quota += 1);
        }
        may
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = OpenReply;
    type ToBehaviour = (NegotiatedStream, Origin);
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
    ) -> Poll<ConnectionHandlerEvent<TurnUpgrade, OpenReply, (NegotiatedStream, Origin)>> {
        if let Some(negotiated) = self.arrived.pop_front() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour((negotiated, self.origin)));
        }
        // An open whose caller gave up costs no stream.
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
            // A full queue here means that the swarm is stuck. Excess streams are reset here, as are those
            // that come too fast; no other task sees them.
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. })
                if self.arrived.len() < MAX_NEGOTIATING_STREAMS && self.may_open() =>
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

/// Negotiates one of several protocols and returns the raw stream.
pub(crate) struct TurnUpgrade(Vec<StreamProtocol>);

impl UpgradeInfo for TurnUpgrade {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl InboundUpgrade<Stream> for TurnUpgrade {
    type Output = NegotiatedStream;
    type Error = Infallible;
    type Future = Ready<Result<NegotiatedStream, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}

impl OutboundUpgrade<Stream> for TurnUpgrade {
    type Output = NegotiatedStream;
    type Error = Infallible;
    type Future = Ready<Result<NegotiatedStream, Infallible>>;

    fn upgrade_outbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}
