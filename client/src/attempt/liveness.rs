//! The liveness of a lost reply's author, as the mesh sees it, and how long to ask for its turn while another
//! node could continue. Pure, except for the look at the peer table.

use std::time::Duration;

use baton_mesh::MeshHandle;
use baton_proto::ids::NodeId;

use super::resolve::SHORT_STATUS_WAIT;

/// A status request and its answer are one round trip, and the node reads its journal for it. The rest is
/// time for a busy node.
const STATUS_ROUND_TRIPS: u32 = 4;
/// A loaded machine answers within this, however near it is.
const LEAST_STATUS_WAIT: Duration = Duration::from_millis(150);

/// Liveness of an author whose reply was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthorLiveness {
    /// Its connection is closed, and others are open.
    Gone,
    /// It is connected, as far as is known; the round trip of its last ping, if measured.
    Connected(Option<Duration>),
    /// No node is connected: this machine's line may be down.
    Unknown,
}

impl AuthorLiveness {
    /// The current liveness of `author`, by the session's connection with it and by the client's connections
    /// with the others.
    pub(crate) fn of(session: &MeshHandle, client: &MeshHandle, author: NodeId) -> Self {
        let connected = |mesh: &MeshHandle| mesh.peers().into_iter().filter(|peer| peer.connected);
        let round_trip = || connected(client).find(|peer| peer.node == author)?.round_trip;
        match connected(session).find(|peer| peer.node == author) {
            Some(peer) => Self::Connected(peer.round_trip.or_else(round_trip)),
            None if connected(client).any(|peer| peer.node != author && peer.serves_turns) => Self::Gone,
            None => Self::Unknown,
        }
    }

    /// How long to ask the author about its turn while another node could continue.
    ///
    /// The next attempt is not sent meanwhile, although its number would differ. An author that answers has
    /// sealed the turn; an admitted substitute would have read the prompt for nothing, and without pay. The
    /// steps before admission are done by then: the substitutes were probed at the same time, so one with an
    /// open connection can be chosen.
    pub(crate) fn status_wait(self) -> Duration {
        match self {
            Self::Connected(Some(round_trip)) => {
                round_trip.saturating_mul(STATUS_ROUND_TRIPS).clamp(LEAST_STATUS_WAIT, SHORT_STATUS_WAIT)
            }
            _ => SHORT_STATUS_WAIT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_wait_grows_with_the_round_trip_up_to_a_bound() {
        let wait = |millis| AuthorLiveness::Connected(Some(Duration::from_millis(millis))).status_wait();
        assert_eq!(wait(1), LEAST_STATUS_WAIT);
        assert_eq!(wait(90), Duration::from_millis(360));
        assert_eq!(wait(10_000), SHORT_STATUS_WAIT);
        assert_eq!(AuthorLiveness::Connected(None).status_wait(), SHORT_STATUS_WAIT, "not known how far");
        assert_eq!(AuthorLiveness::Unknown.status_wait(), SHORT_STATUS_WAIT);
    }
}
