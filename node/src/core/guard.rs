//! Who gets how much of this node: rates by peer and by subnet, scores of misbehaviour with their bans, the standing of
//! peers that were served before, and quotas that an issuer granted. Pure: no clock, no I/O, nothing awaited.
//!
//! Identities of peers are free, so whatever counts by peer alone stops only those who stay the same; what counts by
//! subnet stops the others. A subnet is shared with people who did nothing, so it is never shut out: its score only
//! makes each request of its strangers count for more of what they have together. Peers of it that were served before
//! have a share apart from them, and so have holders of a grant. Called by the service for every stream and turn.

pub(crate) mod quotas;
mod scores;
mod standing;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use baton_mesh::{MAX_RATE_ENTRIES, Origin, Rates, Subnet};
use baton_proto::{ErrorCode, ids::NodeId};

use super::limits::ServiceLimits;
use scores::Scores;
use standing::Standing;

/// Points at which a peer is refused for a while: at least four of the gravest offences within minutes.
const BAN_POINTS: u32 = 1000;
/// Points of one offence, at most.
const MAX_POINTS: u32 = BAN_POINTS / 4;
/// Points that a peer has left after a ban: the next one is nearer.
const PROBATION_POINTS: u32 = BAN_POINTS / 2;
/// Points that a turn which was served takes away: a relayer that passes on what some of its users make up is not shut out.
const SERVED_POINTS: u32 = 50;
/// Points of a subnet from which on its strangers are held shorter; twice as many hold them twice as short.
const TIGHT_POINTS: u32 = 500;
/// Most halvings of what strangers of a subnet have: a sixteenth is never taken away.
const MAX_TIGHTNESS: u32 = 4;
/// Most points of a subnet: from there it takes five half-lives until it is as others.
const MAX_SUBNET_POINTS: u32 = TIGHT_POINTS << MAX_TIGHTNESS;
/// Streams of a banned peer that are answered; the next one costs it its connections.
const ANSWERED_IN_BAN: u32 = 2;
/// How much too early whoever was told when to come again may come: two clocks, and the way.
const EARLY_SLACK_MS: u64 = 50;
/// Time until whoever was told something has heard it: what was on its way meanwhile is not held against it.
const HEARD_AFTER_MS: u64 = 500;
/// Frames of any kind that a subnet's strangers have for each turn that they have.
const FRAMES_PER_TURN: u64 = 10;
/// Bans a minute of which the log tells: a flood of fresh identities is banned hundreds of times a minute.
const TOLD_BANS_PER_MINUTE: u32 = 10;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;

/// What somebody did that a client that works does not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offence {
    /// A signature that does not verify, or a session id of another key.
    Forged,
    /// A frame that is none, or that is larger than any.
    Garbage,
    /// The same turn with other content, or an old one.
    Replayed,
    /// A request that is signed, and wrong.
    Rejected,
    /// A stream on which nothing came in time.
    Stalled,
    /// For another node, too old or too new, or of another version: a wrong clock is enough.
    Unfit,
    /// More than its share; it was told when to come again.
    Hasty,
    /// Before the time that it was told.
    Early,
}

impl Offence {
    /// What a refusal says of whoever caused it.
    pub(crate) fn of(code: ErrorCode) -> Option<Self> {
        use ErrorCode as E;
        Some(match code {
            E::BadSignature | E::SessionIdMismatch => Self::Forged,
            E::FrameTooLarge | E::NonCanonical | E::BlobTooLarge => Self::Garbage,
            E::IdempotencyConflict | E::Replayed => Self::Replayed,
            E::PayloadRejected | E::BadGenesis | E::BadSequence | E::MemUnauthorized | E::MemTooLarge => {
                Self::Rejected
            }
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

/// Who is at the other end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Its identity.
    pub(crate) peer: NodeId,
    /// What it is counted by; none where it is not counted.
    pub(crate) subnet: Option<Subnet>,
}

/// A stream is not to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turned {
    /// When to come again.
    pub(crate) retry_after_ms: u32,
    /// Its connections are not worth keeping for so long.
    pub(crate) shut_out_ms: Option<u64>,
}

/// All that is counted. Every table is bounded.
#[derive(Debug)]
pub(crate) struct Guard {
    on: bool,
    count_private: bool,
    peer_frames: Rates<NodeId>,
    subnet_frames: Rates<Pool>,
    peer_turns: Rates<NodeId>,
    subnet_turns: Rates<Pool>,
    peer_tokens: Option<Rates<NodeId>>,
    subnet_tokens: Option<Rates<Pool>>,
    peers: Scores<NodeId>,
    subnets: Scores<Subnet>,
    standing: Standing,
    told_bans: Rates<()>,
    /// When strangers that had too many turns were told to come again.
    told: HashMap<NodeId, Told>,
}

/// What a peer was told.
#[derive(Debug, Clone, Copy)]
struct Told {
    heard_ms: u64,
    again_ms: u64,
}

/// A turn is refused, since there were too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany {
    /// When to come again.
    pub(crate) retry_after_ms: u32,
    /// It was told so before, and did not wait.
    pub(crate) early: bool,
}

/// A subnet's strangers, or those of it who were served before: each have a share of their own.
type Pool = (Subnet, bool);

fn hourly<K: Copy + Eq + std::hash::Hash>(tokens: u64) -> Option<Rates<K>> {
    (tokens > 0).then(|| Rates::per(tokens, HOUR_MS))
}

impl Guard {
    pub(crate) fn new(limits: &ServiceLimits) -> Self {
        let subnet_turns = u64::from(limits.subnet_turns_per_minute);
        Self {
            on: limits.defence,
            count_private: limits.count_private,
            peer_frames: Rates::new(limits.frames_per_minute),
            subnet_frames: Rates::per(subnet_turns.saturating_mul(FRAMES_PER_TURN), MINUTE_MS),
            peer_turns: Rates::new(limits.turns_per_minute),
            subnet_turns: Rates::per(subnet_turns, MINUTE_MS),
            peer_tokens: hourly(limits.tokens_per_hour),
            subnet_tokens: hourly(limits.subnet_tokens_per_hour),
            peers: Scores::default(),
            subnets: Scores::default(),
            standing: Standing::default(),
            told_bans: Rates::new(TOLD_BANS_PER_MINUTE),
            told: HashMap::new(),
        }
    }

    /// Whether the log is to tell of one more ban.
    pub(crate) fn tells(&mut self, now_ms: u64) -> bool {
        self.told_bans.take((), now_ms).is_ok()
    }

    /// Who a stream's peer is to this node.
    pub(crate) fn caller(&self, peer: NodeId, origin: Origin) -> Caller {
        let subnet = origin.subnet().filter(|subnet| self.on && (self.count_private || !subnet.is_private()));
        Caller { peer, subnet }
    }

    /// Whether a peer is neither counted apart nor was served before.
    pub(crate) fn is_stranger(&self, who: &Caller, now_ms: u64) -> bool {
        who.subnet.is_some() && !self.standing.has(&who.peer, now_ms)
    }

    /// Whether a peer comes after others in the line: a stranger, or one that was none for a moment only. Identities are free,
    /// so that each could be served once and be preferred with the next request.
    pub(crate) fn is_newcomer(&self, who: &Caller, now_ms: u64) -> bool {
        who.subnet.is_some() && !self.standing.has_settled(&who.peer, now_ms)
    }

    fn pool(&self, who: &Caller, now_ms: u64) -> Option<Pool> {
        who.subnet.map(|subnet| (subnet, self.standing.has(&who.peer, now_ms)))
    }

    /// What one request of a pool counts for.
    fn cost(&self, pool: &Pool, now_ms: u64) -> u64 {
        let (subnet, served_before) = pool;
        if *served_before {
            return 1;
        }
        1 << tightness(self.subnets.points(subnet, now_ms))
    }

    /// A stream was opened; nothing of it was read.
    pub(crate) fn arrive(&mut self, who: &Caller, now_ms: u64) -> Result<(), Turned> {
        let turned = |retry_after_ms| Turned { retry_after_ms, shut_out_ms: None };
        if who.subnet.is_some()
            && let Some(left_ms) = self.peers.banned_for(&who.peer, now_ms)
        {
            let again = self.peers.came_in_ban(&who.peer);
            let shut_out_ms = (again > ANSWERED_IN_BAN).then_some(left_ms);
            return Err(Turned { retry_after_ms: u32::try_from(left_ms).unwrap_or(u32::MAX), shut_out_ms });
        }
        self.peer_frames.take(who.peer, now_ms).map_err(turned)?;
        if let Some(pool) = self.pool(who, now_ms) {
            let cost = self.cost(&pool, now_ms);
            self.subnet_frames.take_many(pool, cost, now_ms).map_err(turned)?;
        }
        Ok(())
    }

    /// A turn is asked for; nothing of it was checked. One under a grant that is known does not count to the subnet.
    pub(crate) fn turn(&mut self, who: &Caller, granted: bool, now_ms: u64) -> Result<(), TooMany> {
        let Err(retry_after_ms) = self.take_turn(who, granted, now_ms) else {
            self.told.remove(&who.peer);
            return Ok(());
        };
        Err(TooMany {
            retry_after_ms,
            early: self.is_stranger(who, now_ms) && self.is_early(who.peer, retry_after_ms, now_ms),
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

    /// Whether a peer that is told when to come again was told so before, and did not wait. Remembers what it is told.
    fn is_early(&mut self, peer: NodeId, retry_after_ms: u32, now_ms: u64) -> bool {
        if let Some(told) = self.told.get(&peer).filter(|told| now_ms < told.again_ms) {
            return now_ms >= told.heard_ms && now_ms.saturating_add(EARLY_SLACK_MS) < told.again_ms;
        }
        if self.told.len() >= MAX_RATE_ENTRIES {
            self.told.retain(|_, told| told.again_ms > now_ms);
        }
        if self.told.len() < MAX_RATE_ENTRIES {
            let again_ms = now_ms.saturating_add(retry_after_ms.into());
            self.told.insert(peer, Told { heard_ms: now_ms.saturating_add(HEARD_AFTER_MS), again_ms });
        }
        false
    }

    /// Takes the tokens that an answer may have, of whoever is counted and has no grant.
    pub(crate) fn hold_tokens(
        &mut self,
        who: &Caller,
        tokens: u64,
        now_ms: u64,
    ) -> Result<Option<Pool>, u32> {
        let Some(pool) = self.pool(who, now_ms) else { return Ok(None) };
        if let Some(peers) = &mut self.peer_tokens {
            peers.take_many(who.peer, tokens, now_ms)?;
        }
        if let Some(subnets) = &mut self.subnet_tokens
            && let Err(wait) = subnets.take_many(pool, tokens, now_ms)
        {
            if let Some(peers) = &mut self.peer_tokens {
                peers.give_back(&who.peer, tokens);
            }
            return Err(wait);
        }
        Ok(Some(pool))
    }

    /// Gives back what an answer did not have.
    pub(crate) fn return_tokens(&mut self, who: &Caller, pool: Option<Pool>, tokens: u64) {
        let Some(pool) = pool else { return };
        if let Some(peers) = &mut self.peer_tokens {
            peers.give_back(&who.peer, tokens);
        }
        if let Some(subnets) = &mut self.subnet_tokens {
            subnets.give_back(&pool, tokens);
        }
    }

    /// Somebody did something wrong. Says for how long the peer is refused from now on, if this was too much.
    pub(crate) fn offence(&mut self, who: &Caller, offence: Offence, now_ms: u64) -> Option<u64> {
        let subnet = who.subnet?;
        let points = offence.points();
        // Where strangers are held short, whoever does not wait takes what others wait for.
        let tightness = tightness(self.subnets.points(&subnet, now_ms));
        self.subnets.add(subnet, points, MAX_SUBNET_POINTS, now_ms);
        let points = if offence == Offence::Early { (points << tightness).min(MAX_POINTS) } else { points };
        let total = self.peers.add(who.peer, points, BAN_POINTS, now_ms);
        (total >= BAN_POINTS).then(|| self.peers.ban(&who.peer, PROBATION_POINTS, now_ms))
    }

    /// A turn of this peer was served to its end.
    pub(crate) fn served(&mut self, who: &Caller, now_ms: u64) {
        if let Some(subnet) = who.subnet {
            self.peers.forgive(&who.peer, SERVED_POINTS, now_ms);
            self.standing.note(who.peer, subnet, now_ms);
        }
    }
}

/// How often what strangers of a subnet have is halved.
fn tightness(points: u32) -> u32 {
    match points.checked_div(TIGHT_POINTS) {
        None | Some(0) => 0,
        Some(times) => (times.ilog2() + 1).min(MAX_TIGHTNESS),
    }
}
