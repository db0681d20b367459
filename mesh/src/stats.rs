//! Counters of a mesh. The swarm task alone writes them; [`crate::MeshHandle::stats`] reads them. They are
//! plain numbers, without peers, addresses or keys.

use std::sync::{Mutex, PoisonError};

use libp2p::{
    Multiaddr,
    multiaddr::Protocol,
    relay,
    swarm::{ConnectionDenied, DialError, ListenError},
};

use crate::{address_scope::is_circuit, gate::ConnectionRefusal, records::RecordFault};

/// Counts since the start of a mesh, except where noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeshStats {
    /// Connections open now.
    pub connections: u64,
    /// Connections open now, by transport.
    pub transports: TransportStats,
    /// Dials that failed.
    pub dials_failed: DialStats,
    /// Inbound connections that failed or were refused.
    pub inbound_refused: InboundStats,
    /// Inbound turns handed to [`crate::Incoming`].
    pub turns_accepted: u64,
    /// Inbound turns reset because the queue of [`crate::Incoming`] was full.
    pub turns_refused_queue: u64,
    /// Inbound turns reset because too many were open, or a peer of an unknown subnet opened them too fast.
    pub turns_refused_quota: u64,
    /// Gossip of node records.
    pub gossip: GossipStats,
    /// The DHT.
    pub dht: DhtStats,
    /// Load of this mesh as a relay.
    pub relay: RelayStats,
    /// Direct connections made by hole punching.
    pub holes_punched: u64,
    /// Attempts at hole punching that failed.
    pub holes_failed: u64,
    /// Peers that are shut out now.
    pub shut_out: u64,
}

/// Connections open now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransportStats {
    /// Over TCP.
    pub tcp: u64,
    /// Over QUIC.
    pub quic: u64,
    /// Through a relay, over any transport.
    pub relayed: u64,
}

/// Dials that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DialStats {
    /// No peer answered, or the handshake was not this network's.
    pub unreachable: u64,
    /// Another identity answered.
    pub wrong_identity: u64,
    /// This mesh's own limits forbade another connection.
    pub limits: u64,
}

/// Inbound connections that failed or were refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InboundStats {
    /// Too many new connections from one subnet within a minute.
    pub subnet_rate: u64,
    /// Too many connections from one subnet, open or being set up.
    pub subnet_count: u64,
    /// Too many new connections in all within a second.
    pub rate: u64,
    /// The peer is shut out for a while.
    pub shut_out: u64,
    /// A limit was reached: connections in all, connections being set up, connections of the peer, or memory.
    pub limits: u64,
    /// The handshake failed.
    pub handshake: u64,
}

/// Gossip messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GossipStats {
    /// New node records.
    pub taken: u64,
    /// Valid records that were not newer than the known one.
    pub known: u64,
    /// Dropped because their author sent one a moment ago, or their forwarder brought too many from unknown
    /// authors.
    pub too_often: u64,
    /// Dropped because they were expired or from the future.
    pub out_of_time: u64,
    /// Refused: no node record, another author's record, or one that does not verify.
    pub invalid: u64,
}

/// Records and queries of the DHT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DhtStats {
    /// Records stored for others now.
    pub records: u64,
    /// Records accepted into the store.
    pub stored: u64,
    /// Refused because the sender puts too many.
    pub refused_rate: u64,
    /// Refused because they were expired or from the future.
    pub refused_time: u64,
    /// Refused: no record of this network, under another record's key, too large, or one that does not
    /// verify.
    pub refused_invalid: u64,
    /// Not stored, because the stored one is as new or newer.
    pub refused_old: u64,
    /// Not stored, because the store is full of records nearer to this mesh.
    pub refused_full: u64,
    /// Queries that this mesh started.
    pub queries: u64,
    /// Queries that were not started because too many ran.
    pub queries_refused: u64,
    /// Requests from other members.
    pub requests: u64,
}

/// Load of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RelayStats {
    /// Reservations held now.
    pub reservations: u64,
    /// Circuits open now.
    pub circuits: u64,
    /// Reservations granted; renewals do not count.
    pub reservations_granted: u64,
    /// Reservations refused.
    pub reservations_denied: u64,
    /// Circuits opened.
    pub circuits_opened: u64,
    /// Circuits refused, or that failed to open.
    pub circuits_denied: u64,
}

impl DialStats {
    /// The sum of all counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.unreachable + self.wrong_identity + self.limits
    }

    pub(crate) fn count(&mut self, error: &DialError) {
        let count = match error {
            DialError::Denied { .. } => &mut self.limits,
            DialError::WrongPeerId { .. } | DialError::LocalPeerId { .. } => &mut self.wrong_identity,
            _ => &mut self.unreachable,
        };
        *count += 1;
    }
}

impl InboundStats {
    /// The sum of all counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.subnet_rate + self.subnet_count + self.rate + self.shut_out + self.limits + self.handshake
    }

    pub(crate) fn count(&mut self, error: &ListenError) {
        match error {
            ListenError::Denied { cause } => match connection_refusal(cause) {
                Some(refusal) => self.refused(refusal),
                None => self.limits += 1,
            },
            _ => self.handshake += 1,
        }
    }

    pub(crate) fn refused(&mut self, refusal: ConnectionRefusal) {
        let count = match refusal {
            ConnectionRefusal::Rate => &mut self.subnet_rate,
            ConnectionRefusal::Count | ConnectionRefusal::Pending => &mut self.subnet_count,
            ConnectionRefusal::RateOfAll => &mut self.rate,
            ConnectionRefusal::ShutOut => &mut self.shut_out,
            ConnectionRefusal::Full => &mut self.limits,
        };
        *count += 1;
    }
}

/// The gate's reason, if the gate refused.
fn connection_refusal(cause: &ConnectionDenied) -> Option<ConnectionRefusal> {
    cause.downcast_ref::<ConnectionRefusal>().copied()
}

impl TransportStats {
    /// The count of an address's transport.
    pub(crate) fn of(&mut self, address: &Multiaddr) -> &mut u64 {
        let quic = |part| matches!(part, Protocol::QuicV1 | Protocol::Quic);
        if is_circuit(address) {
            &mut self.relayed
        } else if address.iter().any(quic) {
            &mut self.quic
        } else {
            &mut self.tcp
        }
    }
}

impl DhtStats {
    pub(crate) fn refused(&mut self, fault: &RecordFault) {
        let count = match fault {
            RecordFault::Time => &mut self.refused_time,
            _ => &mut self.refused_invalid,
        };
        *count += 1;
    }
}

impl RelayStats {
    pub(crate) fn count(&mut self, event: &relay::Event) {
        use relay::Event as E;
        match event {
            E::ReservationReqAccepted { renewed: false, .. } => {
                self.reservations += 1;
                self.reservations_granted += 1;
            }
            E::ReservationReqDenied { .. } => self.reservations_denied += 1,
            E::ReservationClosed { .. } | E::ReservationTimedOut { .. } => {
                self.reservations = self.reservations.saturating_sub(1);
            }
            E::CircuitReqAccepted { .. } => {
                self.circuits += 1;
                self.circuits_opened += 1;
            }
            E::CircuitReqDenied { .. } => self.circuits_denied += 1,
            E::CircuitClosed { .. } => self.circuits = self.circuits.saturating_sub(1),
            // Renewals change nothing, and libp2p logs failures to answer.
            _ => {}
        }
    }
}

/// The counters of a running mesh.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<MeshStats>);

impl Counters {
    pub(crate) fn count(&self, change: impl FnOnce(&mut MeshStats)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn read(&self) -> MeshStats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use libp2p::PeerId;

    use super::*;

    #[test]
    fn connections_are_counted_by_transport() {
        let mut open = TransportStats::default();
        let relay = PeerId::random();
        for address in [
            "/ip4/192.0.2.1/tcp/1".to_owned(),
            "/ip4/192.0.2.1/udp/1/quic-v1".to_owned(),
            "/ip6/2001:db8::1/udp/1/quic-v1".to_owned(),
            format!("/ip4/192.0.2.1/udp/1/quic-v1/p2p/{relay}/p2p-circuit"),
        ] {
            *open.of(&address.parse().unwrap()) += 1;
        }
        assert_eq!(open, TransportStats { tcp: 1, quic: 2, relayed: 1 });
    }

    #[test]
    fn refusals_are_counted_by_who_refused_and_why() {
        let denied = |refusal| ListenError::Denied { cause: ConnectionDenied::new(refusal) };
        let mut refused = InboundStats::default();
        for refusal in [
            ConnectionRefusal::Rate,
            ConnectionRefusal::Count,
            ConnectionRefusal::Pending,
            ConnectionRefusal::RateOfAll,
            ConnectionRefusal::Full,
            ConnectionRefusal::ShutOut,
        ] {
            refused.count(&denied(refusal));
        }
        refused.count(&ListenError::Aborted);
        refused.count(&ListenError::Denied { cause: ConnectionDenied::new(std::fmt::Error) });
        let each =
            InboundStats { subnet_rate: 1, subnet_count: 2, rate: 1, shut_out: 1, limits: 2, handshake: 1 };
        assert_eq!((refused, refused.total()), (each, 8));
        let mut failed = DialStats::default();
        failed.count(&DialError::NoAddresses);
        failed.count(&DialError::Denied { cause: ConnectionDenied::new(ConnectionRefusal::Count) });
        failed.count(&DialError::LocalPeerId { address: "/ip4/192.0.2.1/tcp/1".parse().unwrap() });
        assert_eq!(failed, DialStats { unreachable: 1, wrong_identity: 1, limits: 1 });
    }

    #[test]
    fn a_relays_reservations_and_circuits_are_those_of_now() {
        let mut relay = RelayStats::default();
        let (source, other) = (PeerId::random(), PeerId::random());
        let granted = |renewed| relay::Event::ReservationReqAccepted { src_peer_id: source, renewed };
        let opened = relay::Event::CircuitReqAccepted { src_peer_id: other, dst_peer_id: source };
        for event in [&granted(false), &granted(true), &opened, &opened] {
            relay.count(event);
        }
        assert_eq!((relay.reservations, relay.circuits), (1, 2));
        relay.count(&relay::Event::CircuitClosed { src_peer_id: other, dst_peer_id: source, error: None });
        relay.count(&relay::Event::ReservationClosed { src_peer_id: source });
        assert_eq!((relay.reservations, relay.circuits), (0, 1));
        assert_eq!((relay.reservations_granted, relay.circuits_opened), (1, 2));
    }
}
