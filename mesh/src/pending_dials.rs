//! Pending dials: the peers, the addresses tried, and the opens that wait for a connection.
//!
//! Pure bookkeeping; the swarm task dials.

use std::collections::HashMap;

use libp2p::{Multiaddr, PeerId, swarm::ConnectionId};

use crate::{
    error::OpenError,
    limits::{MAX_DIAL_ADDRS, MAX_PENDING_OPENS},
    turn_protocol::OpenReply,
};

/// Addresses tried for one peer in one dial, over all waiting opens.
const MAX_TRIED_ADDRS: usize = 4 * MAX_DIAL_ADDRS;

#[derive(Debug, Default)]
struct PendingDial {
    /// Running attempts, each with its addresses.
    attempts: HashMap<ConnectionId, Vec<Multiaddr>>,
    tried: Vec<Multiaddr>,
    waiters: Vec<OpenReply>,
    /// The most informative failure so far.
    failure: Option<OpenError>,
}

/// All dials of one mesh.
#[derive(Debug, Default)]
pub(crate) struct PendingDials(HashMap<PeerId, PendingDial>);

impl PendingDials {
    /// Queues `reply` until the peer is connected; answers `Busy` when too many opens wait.
    pub(crate) fn wait(&mut self, peer: PeerId, reply: OpenReply) {
        if self.0.values().map(|dial| dial.waiters.len()).sum::<usize>() >= MAX_PENDING_OPENS {
            // Drop waiters whose callers have given up.
            self.0.values_mut().for_each(|dial| dial.waiters.retain(|reply| !reply.is_closed()));
            if self.0.values().map(|dial| dial.waiters.len()).sum::<usize>() >= MAX_PENDING_OPENS {
                reply.send(Err(OpenError::Busy));
                return;
            }
        }
        self.0.entry(peer).or_default().waiters.push(reply);
    }

    /// Whether an attempt is running.
    pub(crate) fn is_dialing(&self, peer: PeerId) -> bool {
        self.0.get(&peer).is_some_and(|dial| !dial.attempts.is_empty())
    }

    /// The addresses that this dial has not tried yet; marks them as tried.
    pub(crate) fn untried(&mut self, peer: PeerId, addrs: Vec<Multiaddr>) -> Vec<Multiaddr> {
        let dial = self.0.entry(peer).or_default();
        let mut fresh = Vec::new();
        for address in addrs {
            let known = dial.tried.contains(&address);
            if !known && fresh.len() < MAX_DIAL_ADDRS && dial.tried.len() < MAX_TRIED_ADDRS {
                dial.tried.push(address.clone());
                fresh.push(address);
            }
        }
        fresh
    }

    /// An attempt has begun.
    pub(crate) fn started(&mut self, peer: PeerId, connection: ConnectionId, addrs: Vec<Multiaddr>) {
        self.0.entry(peer).or_default().attempts.insert(connection, addrs);
    }

    /// An attempt failed, or could not begin. Returns the addresses to try again.
    ///
    /// When another identity answered at one address, that answer hid the results of the attempt's other
    /// addresses; these are returned.
    pub(crate) fn failed(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        failure: OpenError,
    ) -> Vec<Multiaddr> {
        let Some(dial) = self.0.get_mut(&peer) else { return Vec::new() };
        let mut rest = dial.attempts.remove(&connection).unwrap_or_default();
        match &failure {
            OpenError::WrongIdentity { address } => {
                let before = rest.len();
                rest.retain(|tried| tried != address);
                if rest.len() == before {
                    rest.clear(); // an address that we did not name: trying again could go on for ever
                }
            }
            _ => rest.clear(),
        }
        if !matches!(dial.failure, Some(OpenError::WrongIdentity { .. })) {
            dial.failure = Some(failure);
        }
        rest
    }

    /// Ends the dial if no attempt is left, and sends its failure to all waiters. Call it after attempts were
    /// refused or failed.
    pub(crate) fn settle(&mut self, peer: PeerId) {
        if self.is_dialing(peer) {
            return;
        }
        let Some(dial) = self.0.remove(&peer) else { return };
        let failure = dial
            .failure
            .unwrap_or_else(|| OpenError::Unreachable { reason: "no address of it is known".to_owned() });
        for reply in dial.waiters {
            reply.send(Err(failure.clone()));
        }
    }

    /// Ends the dial because a connection with the peer is open, and returns the waiters.
    pub(crate) fn connected(&mut self, peer: PeerId) -> Vec<OpenReply> {
        self.0.remove(&peer).map(|dial| dial.waiters).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    fn addr(port: u16) -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap()
    }

    fn unreachable() -> OpenError {
        OpenError::Unreachable { reason: "refused".to_owned() }
    }

    #[test]
    fn waiters_hear_of_the_last_attempt_only() {
        let (mut dials, peer) = (PendingDials::default(), PeerId::random());
        let (reply, mut answer) = oneshot::channel();
        dials.wait(peer, OpenReply::new(reply, None));
        let (first, second) = (ConnectionId::new_unchecked(1), ConnectionId::new_unchecked(2));
        dials.started(peer, first, vec![addr(1)]);
        dials.started(peer, second, vec![addr(2)]);
        assert_eq!(dials.failed(peer, first, unreachable()), vec![]);
        dials.settle(peer);
        assert!(answer.try_recv().is_err(), "the second attempt is still running");
        dials.failed(peer, second, unreachable());
        dials.settle(peer);
        assert_eq!(answer.try_recv().unwrap().unwrap_err(), unreachable());
        assert!(dials.0.is_empty());
    }

    #[test]
    fn a_wrong_identity_does_not_hide_the_other_addresses() {
        let (mut dials, peer) = (PendingDials::default(), PeerId::random());
        let attempt = ConnectionId::new_unchecked(1);
        dials.started(peer, attempt, vec![addr(1), addr(2)]);
        let wrong = OpenError::WrongIdentity { address: addr(1) };
        assert_eq!(dials.failed(peer, attempt, wrong.clone()), vec![addr(2)]);
        let again = ConnectionId::new_unchecked(2);
        dials.started(peer, again, vec![addr(2)]);
        assert_eq!(dials.failed(peer, again, OpenError::WrongIdentity { address: addr(9) }), vec![]);
        let (reply, mut answer) = oneshot::channel();
        dials.wait(peer, OpenReply::new(reply, None));
        dials.settle(peer);
        assert_eq!(answer.try_recv().unwrap().unwrap_err(), wrong);
    }

    #[test]
    fn addresses_are_tried_once_and_in_bounded_number() {
        let (mut dials, peer) = (PendingDials::default(), PeerId::random());
        assert_eq!(dials.untried(peer, vec![addr(1), addr(1), addr(2)]), vec![addr(1), addr(2)]);
        assert_eq!(dials.untried(peer, vec![addr(2), addr(3)]), vec![addr(3)]);
        let total: usize = (0..20)
            .map(|round| dials.untried(peer, (0..20).map(|n| addr(100 + round * 20 + n)).collect()).len())
            .sum();
        assert_eq!(total + 3, MAX_TRIED_ADDRS);
    }

    #[test]
    fn refuses_more_waiters_than_the_limit_unless_some_gave_up() {
        let (mut dials, peer) = (PendingDials::default(), PeerId::random());
        let mut answers: Vec<_> = (0..MAX_PENDING_OPENS)
            .map(|_| {
                let (reply, answer) = oneshot::channel();
                dials.wait(peer, OpenReply::new(reply, None));
                answer
            })
            .collect();
        let (reply, mut answer) = oneshot::channel();
        dials.wait(peer, OpenReply::new(reply, None));
        assert_eq!(answer.try_recv().unwrap().unwrap_err(), OpenError::Busy);
        answers.pop();
        let (reply, mut answer) = oneshot::channel();
        dials.wait(peer, OpenReply::new(reply, None));
        assert!(answer.try_recv().is_err(), "still waiting");
    }
}
