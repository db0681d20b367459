//! The defence of a server of streams: rates by peer and by subnet, misbehaviour scores with bans, and the peers
//! that were served before. Pure: no clock, no I/O, no await.
//!
//! Peer identities are free, so limits by peer alone only stop peers that keep their identity; limits by
//! subnet stop the others. A subnet also has innocent users, so it is never banned. Its score only makes each
//! request of its unknown peers cost more of their common share. Peers of the subnet that were served before
//! have a separate share, and so have holders of a grant. A node and a relayer call the guard for every stream
//! and turn.

mod known_peers;
mod scores;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use baton_proto::{ErrorCode, ids::NodeId};

use crate::{
    rate::{MAX_RATE_ENTRIES, Rates},
    subnet::{Networks, Origin, Subnet},
};
use known_peers::KnownPeers;
use scores::Scores;

/// Points at which a peer is banned: at least four of the gravest offences within minutes.
const BAN_POINTS: u32 = 1000;
/// Maximum points of one offence.
const MAX_POINTS: u32 = BAN_POINTS / 4;
/// Points of a peer after a ban; the next ban comes sooner.
const PROBATION_POINTS: u32 = BAN_POINTS / 2;
/// Points that a served turn removes. A relayer thus escapes a ban when some of its users send invalid
/// requests.
const SERVED_POINTS: u32 = 50;
/// Points of a subnet at which the share of its unknown peers is halved. Each doubling of the points halves
/// it again.
const TIGHT_POINTS: u32 = 500;
/// Maximum halvings of the share of a subnet's unknown peers: they always keep a sixteenth.
const MAX_TIGHTNESS: u32 = 4;
/// Maximum points of a subnet: five half-lives later it counts as normal again.
const MAX_SUBNET_POINTS: u32 = TIGHT_POINTS << MAX_TIGHTNESS;
/// Answered streams of a banned peer; the next stream costs it its connections.
const ANSWERED_IN_BAN: u32 = 2;
/// Tolerance for a peer that comes back before its retry time: two clocks, and the network delay.
const EARLY_SLACK_MS: u64 = 50;
/// Time until a refused peer has received its retry time. Requests already in transit do not count against
/// it.
const HEARD_AFTER_MS: u64 = 500;
/// Frames of any kind for each turn in the share of a subnet's unknown peers.
const FRAMES_PER_TURN: u64 = 10;
/// Bans a minute in the log. A flood of fresh identities causes hundreds of bans a minute.
const LOGGED_BANS_PER_MINUTE: u32 = 10;
const MINUTE_MS: u64 = 60_000;

/// Limits of a [`Guard`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardLimits {
    /// Whether misbehaviour is scored, and peers are counted by subnet and banned.
    pub defence: bool,
    /// Networks whose peers are neither counted by subnet nor banned: the operator's own.
    pub own_networks: Networks,
    /// Turns a minute from one peer.
    pub turns_per_minute: u32,
    /// Frames of any kind a minute from one peer.
    pub frames_per_minute: u32,
    /// Turns a minute of a subnet's unknown peers together. Its peers served before have the same amount
    /// again.
    pub subnet_turns_per_minute: u32,
}

/// A kind of misbehaviour that no correct client shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offence {
    /// A signature that does not verify, or a session ID of another key.
    Forged,
    /// An invalid or oversized frame.
    Garbage,
    /// The same turn with other content, or an old turn.
    Replayed,
    /// A signed but invalid request.
    Rejected,
    /// A stream without data for too long.
    Stalled,
    /// A request for another node, too old or too new, or of another version. A wrong clock is enough.
    Unfit,
    /// More than its share; the refusal named a retry time.
    Hasty,
    /// A request before the retry time.
    Early,
}

impl Offence {
    /// The offence behind a refusal, if there is one.
    #[must_use]
    pub fn of(code: ErrorCode) -> Option<Self> {
        use ErrorCode as E;
        Some(match code {
            E::BadSignature | E::SessionIdMismatch => Self::Forged,
            E::FrameTooLarge | E::NonCanonical | E::BlobTooLarge => Self::Garbage,
            E::IdempotencyConflict | E::Replayed => Self::Replayed,
            E::PayloadRejected | E::BadGenesis | E::BadSequence | E::MemUnauthorized => Self::Rejected,
            E::WrongAudience | E::Expired | E::NotYetValid | E::UnsupportedVersion | E::KxExpired => {
                Self::Unfit
            }
            E::RateLimited => Self::Hasty,
            _ => return None,
        })
    }

    fn points(self) -> u32 {
        match self {
            Self::Forged => MAX_POINTS,
            Self::Garbage => 200,
            Self::Stalled | Self::Early => 50,
            Self::Replayed | Self::Rejected => 20,
            Self::Unfit => 10,
            Self::Hasty => 5,
        }
    }
}

/// The peer at the other end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Its identity.
    pub peer: NodeId,
    /// Its subnet; `None` if it is not counted.
    pub subnet: Option<Subnet>,
}

/// A stream that must not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamRefusal {
    /// The retry time in milliseconds.
    pub retry_after_ms: u32,
    /// Close the peer's connections for this long.
    pub shut_out_ms: Option<u64>,
}

/// All counters. Every table is bounded.
#[derive(Debug)]
pub struct Guard {
    on: bool,
    own_networks: Networks,
    peer_frames: Rates<NodeId>,
    subnet_frames: Rates<Pool>,
    peer_turns: Rates<NodeId>,
    subnet_turns: Rates<Pool>,
    peers: Scores<NodeId>,
    subnets: Scores<Subnet>,
    known_peers: KnownPeers,
    logged_bans: Rates<()>,
    /// Retry times of unknown peers that had too many turns.
    retry_notices: HashMap<NodeId, RetryNotice>,
}

/// A retry time given to a peer.
#[derive(Debug, Clone, Copy)]
struct RetryNotice {
    heard_ms: u64,
    again_ms: u64,
}

/// A turn is refused because the limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany {
    /// The retry time in milliseconds.
    pub retry_after_ms: u32,
    /// It came back before an earlier retry time.
    pub early: bool,
}

/// A subnet's unknown peers, or its peers that were served before: each group has its own share.
pub type Pool = (Subnet, bool);

impl Guard {
    /// A guard without history.
    #[must_use]
    pub fn new(limits: &GuardLimits) -> Self {
        let subnet_turns = u64::from(limits.subnet_turns_per_minute);
        Self {
            on: limits.defence,
            own_networks: limits.own_networks.clone(),
            peer_frames: Rates::new(limits.frames_per_minute),
            subnet_frames: Rates::per(subnet_turns.saturating_mul(FRAMES_PER_TURN), MINUTE_MS),
            peer_turns: Rates::new(limits.turns_per_minute),
            subnet_turns: Rates::per(subnet_turns, MINUTE_MS),
            peers: Scores::default(),
            subnets: Scores::default(),
            known_peers: KnownPeers::default(),
            logged_bans: Rates::new(LOGGED_BANS_PER_MINUTE),
            retry_notices: HashMap::new(),
        }
    }

    /// Whether to log another ban.
    pub fn logs_ban(&mut self, now_ms: u64) -> bool {
        self.logged_bans.take((), now_ms).is_ok()
    }

    /// The caller of a stream from this origin.
    #[must_use]
    pub fn caller(&self, peer: NodeId, origin: Origin) -> Caller {
        let subnet = origin.counted(&self.own_networks).filter(|_| self.on);
        Caller { peer, subnet }
    }

    /// Whether a peer is counted by subnet and was not served before.
    #[must_use]
    pub fn is_unknown(&self, who: &Caller, now_ms: u64) -> bool {
        who.subnet.is_some() && !self.known_peers.has(&who.peer, now_ms)
    }

    /// Whether a peer queues after the others: it is unknown, or was first served only a moment ago.
    /// Identities are free, so each could otherwise be served once and then enjoy priority.
    #[must_use]
    pub fn queues_as_unknown(&self, who: &Caller, now_ms: u64) -> bool {
        who.subnet.is_some() && !self.known_peers.has_settled(&who.peer, now_ms)
    }

    /// The group of its subnet that a caller is counted in; none if it is not counted.
    #[must_use]
    pub fn pool(&self, who: &Caller, now_ms: u64) -> Option<Pool> {
        who.subnet.map(|subnet| (subnet, self.known_peers.has(&who.peer, now_ms)))
    }

    /// Cost of one request from a pool.
    fn cost(&self, pool: &Pool, now_ms: u64) -> u64 {
        let (subnet, served_before) = pool;
        if *served_before {
            return 1;
        }
        1 << tightness(self.subnets.points(subnet, now_ms))
    }

    /// Admits a new stream before any read.
    ///
    /// # Errors
    /// The refusal of a banned peer, or of a peer or subnet with too many streams.
    pub fn arrive(&mut self, who: &Caller, now_ms: u64) -> Result<(), StreamRefusal> {
        let refusal = |retry_after_ms| StreamRefusal { retry_after_ms, shut_out_ms: None };
        if who.subnet.is_some()
            && let Some(left_ms) = self.peers.banned_for(&who.peer, now_ms)
        {
            let again = self.peers.came_in_ban(&who.peer);
            let shut_out_ms = (again > ANSWERED_IN_BAN).then_some(left_ms);
            return Err(StreamRefusal {
                retry_after_ms: u32::try_from(left_ms).unwrap_or(u32::MAX),
                shut_out_ms,
            });
        }
        self.peer_frames.take(who.peer, now_ms).map_err(refusal)?;
        if let Some(pool) = self.pool(who, now_ms) {
            let cost = self.cost(&pool, now_ms);
            self.subnet_frames.take_many(pool, cost, now_ms).map_err(refusal)?;
        }
        Ok(())
    }

    /// Admits a turn request before any check. A turn under a known grant does not count for the subnet.
    ///
    /// # Errors
    /// [`TooMany`], with the retry time.
    pub fn turn(&mut self, who: &Caller, granted: bool, now_ms: u64) -> Result<(), TooMany> {
        let Err(retry_after_ms) = self.take_turn(who, granted, now_ms) else {
            self.retry_notices.remove(&who.peer);
            return Ok(());
        };
        Err(TooMany {
            retry_after_ms,
            early: self.is_unknown(who, now_ms) && self.is_early(who.peer, retry_after_ms, now_ms),
        })
    }

    fn take_turn(&mut self, who: &Caller, granted: bool, now_ms: u64) -> Result<(), u32> {
        self.peer_turns.take(who.peer, now_ms)?;
        match self.pool(who, now_ms) {
            Some(pool) if !granted => {
                let cost = self.cost(&pool, now_ms);
                self.subnet_turns.take_many(pool, cost, now_ms)
            }
            _ => Ok(()),
        }
    }

    /// Whether a peer came back before an earlier retry time. Remembers the new retry time.
    fn is_early(&mut self, peer: NodeId, retry_after_ms: u32, now_ms: u64) -> bool {
        if let Some(notice) = self.retry_notices.get(&peer).filter(|notice| now_ms < notice.again_ms) {
            return now_ms >= notice.heard_ms && now_ms.saturating_add(EARLY_SLACK_MS) < notice.again_ms;
        }
        if self.retry_notices.len() >= MAX_RATE_ENTRIES {
            self.retry_notices.retain(|_, notice| notice.again_ms > now_ms);
        }
        if self.retry_notices.len() < MAX_RATE_ENTRIES {
            let again_ms = now_ms.saturating_add(retry_after_ms.into());
            self.retry_notices
                .insert(peer, RetryNotice { heard_ms: now_ms.saturating_add(HEARD_AFTER_MS), again_ms });
        }
        false
    }

    /// Records an offence. Returns the length of the ban if the peer is banned now.
    pub fn offence(&mut self, who: &Caller, offence: Offence, now_ms: u64) -> Option<u64> {
        let subnet = who.subnet?;
        let points = offence.points();
        // In a restricted subnet, early retries take capacity for which others wait.
        let tightness = tightness(self.subnets.points(&subnet, now_ms));
        self.subnets.add(subnet, points, MAX_SUBNET_POINTS, now_ms);
        let points = if offence == Offence::Early { (points << tightness).min(MAX_POINTS) } else { points };
        let total = self.peers.add(who.peer, points, BAN_POINTS, now_ms);
        (total >= BAN_POINTS).then(|| self.peers.ban(&who.peer, PROBATION_POINTS, now_ms))
    }

    /// A turn of this peer was served to its end.
    pub fn served(&mut self, who: &Caller, now_ms: u64) {
        if let Some(subnet) = who.subnet {
            self.peers.forgive(&who.peer, SERVED_POINTS, now_ms);
            self.known_peers.note(who.peer, subnet, now_ms);
        }
    }
}

/// Number of halvings of the share of a subnet's unknown peers.
fn tightness(points: u32) -> u32 {
    match points.checked_div(TIGHT_POINTS) {
        None | Some(0) => 0,
        Some(times) => (times.ilog2() + 1).min(MAX_TIGHTNESS),
    }
}
