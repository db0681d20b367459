//! The turn substream as a libp2p behaviour: negotiates streams out and hands streams in to the swarm task.
//!
//! Called by [`crate::actor`] only. It decides nothing: admission of inbound streams and dialling are the
//! actor's. Written here rather than taken from `libp2p-stream`, whose inbound queue holds one stream and
//! silently drops the others of a burst, whose table of connections only grows, and which hides why a
//! stream was not opened.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Ready, ready},
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
    limits::{MAX_NEGOTIATING_STREAMS, MAX_PENDING_OPENS, NEGOTIATION_TIMEOUT},
    origin::Origin,
};

/// The turn protocol; the name carries the version.
pub const TURN_PROTOCOL: StreamProtocol = StreamProtocol::new("/baton/turn/1");

/// A stream and the protocol agreed for it.
pub(crate) type Negotiated = (Stream, StreamProtocol);

/// Where the answer to an open goes. Dropped without an answer when the connection ends first.
pub(crate) type OpenReply = oneshot::Sender<Result<Negotiated, OpenError>>;

/// A stream that a peer opened.
#[derive(Debug)]
pub(crate) struct InboundStream {
    pub(crate) peer: PeerId,
    pub(crate) origin: Origin,
    pub(crate) negotiated: Negotiated,
}

/// The behaviour.
pub(crate) struct Behaviour {
    protocols: Vec<StreamProtocol>,
    accept: bool,
    actions: VecDeque<ToSwarm<InboundStream, OpenReply>>,
}

impl Behaviour {
    /// Speaks the given versions, most wanted first, and lets others open streams if `accept`.
    pub(crate) fn new(protocols: Vec<StreamProtocol>, accept: bool) -> Self {
        Self { protocols, accept, actions: VecDeque::new() }
    }

    /// Opens a stream on this connection with the peer; one that has ended drops the reply.
    pub(crate) fn open(&mut self, peer: PeerId, connection: ConnectionId, reply: OpenReply) {
        if self.actions.len() >= MAX_PENDING_OPENS {
            let _ = reply.send(Err(OpenError::Busy));
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
            outbound_protocols: self.protocols.clone(),
            inbound_protocols: if self.accept { self.protocols.clone() } else { Vec::new() },
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
        // Whoever was dialled may open turns too.
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
    outbound_protocols: Vec<StreamProtocol>,
    inbound_protocols: Vec<StreamProtocol>,
    /// Asked for and not yet being negotiated.
    opens: VecDeque<OpenReply>,
    /// Negotiated by the peer and not yet handed over.
    arrived: VecDeque<Negotiated>,
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
                let upgrade = TurnUpgrade(self.outbound_protocols.clone());
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
            // A whole negotiation queue's worth waits here only if the swarm is stuck; more are reset.
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. })
                if self.arrived.len() < MAX_NEGOTIATING_STREAMS =>
            {
                self.arrived.push_back(protocol);
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info }) => {
                let _ = info.send(Ok(protocol));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { error, info }) => {
                let _ = info.send(Err(open_error(error)));
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
