//! How the author of a lost reply stands, as the mesh sees it, and for how long it is worth being asked what became of the turn
//! while somebody else could go on. Pure, but for the look at the table of peers.

use std::time::Duration;

use baton_mesh::MeshHandle;
use baton_proto::ids::NodeId;

use crate::settle::SHORT_STATUS_WAIT;

/// A status request and its answer are one round trip, and the node reads its journal for it: so many give it time to be
/// busy.
const STATUS_ROUND_TRIPS: u32 = 4;
/// A loaded machine answers within this, however near it is.
const LEAST_STATUS_WAIT: Duration = Duration::from_millis(150);

/// How an author stands whose reply was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The connection with it is closed, and others are open.
    Gone,
    /// It is connected, as far as is known; its last answer to a ping took so long.
    Connected(Option<Duration>),
    /// Nobody is connected: the fault may be this machine's line.
    Unknown,
}

impl Standing {
    /// An author's, now.
    pub(crate) fn of(mesh: &MeshHandle, author: NodeId) -> Self {
        let peers = mesh.peers();
        match peers.iter().find(|peer| peer.node == author && peer.connected) {
            Some(peer) => Self::Connected(peer.round_trip),
            None if peers.iter().any(|peer| peer.connected && peer.serves_turns) => Self::Gone,
            None => Self::Unknown,
        }
    }

    /// For how long it is asked what became of its turn while somebody else could go on.
    ///
    /// The next attempt is not sent meanwhile, though its number would be another: an author that answers has sealed the turn,
    /// and a substitute that was admitted already would have read the prompt for nothing, and be paid by nobody. What comes
    /// before admission is done by then: the substitutes were asked for a sign of life at the same time, so that one with an open
    /// connection is there to be chosen.
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
    fn a_near_author_is_asked_for_a_shorter_time_than_a_far_one_and_none_for_longer_than_the_most() {
        let wait = |millis| Standing::Connected(Some(Duration::from_millis(millis))).status_wait();
        assert_eq!(wait(1), LEAST_STATUS_WAIT);
        assert_eq!(wait(90), Duration::from_millis(360));
        assert_eq!(wait(10_000), SHORT_STATUS_WAIT);
        assert_eq!(Standing::Connected(None).status_wait(), SHORT_STATUS_WAIT, "not known how far");
        assert_eq!(Standing::Unknown.status_wait(), SHORT_STATUS_WAIT);
    }
}
