//! The defence of a server of streams: rates of a subnet, points for misbehaviour, and bans of peers.
//!
//! A subnet also has innocent users, so it is never banned. Its points only make each of its requests cost more of its
//! rate. A turn under a grant does not count to the rate of its subnet. Node and relayer call the guard for every stream
//! and turn.

use std::hash::Hash;

use crate::{
    ban::Bans,
    bucket::{Bucket, Buckets, Rate},
    subnet::Subnet,
};

/// Points at which a peer is banned: at least four of the gravest offences within minutes.
const BAN_POINTS: u32 = 1000;
/// Maximum points of one offence.
const MAX_POINTS: u32 = BAN_POINTS / 4;
/// Points of a peer after a ban; the next ban comes sooner.
const PROBATION_POINTS: u32 = BAN_POINTS / 2;
/// Points that a served turn removes. A relayer thus escapes a ban when some of its users send invalid requests.
const SERVED_POINTS: u32 = 50;
/// Points of a subnet from which its requests cost double. Each doubling of the points doubles the cost again.
const TIGHT_POINTS: u32 = 500;
/// Maximum doublings of the cost: a subnet always keeps a sixteenth of its rate.
const MAX_TIGHTNESS: u32 = 4;
/// Maximum points of a subnet: five half-lives later it counts as normal again.
const MAX_SUBNET_POINTS: u32 = TIGHT_POINTS << MAX_TIGHTNESS;
/// Answered streams of a banned peer; the next stream costs it its connections.
const ANSWERED_IN_BAN: u32 = 2;
/// Streams of any kind for each turn in the rate of a subnet.
const STREAMS_PER_TURN: u64 = 10;
/// Bans a minute in the log. A flood of fresh identities causes hundreds of bans a minute.
const LOGGED_BANS: Rate = Rate::per_minute(10);

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
pub struct Caller<P> {
    /// Its identity.
    pub peer: P,
    /// Its subnet; `None` if it is of the operator's own networks, and not counted.
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

/// A turn is refused because the rate of its subnet is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnRefusal {
    /// The retry time in milliseconds.
    pub retry_after_ms: u32,
    /// It came back before an earlier retry time.
    pub early: bool,
}

/// All counters. Every table is bounded.
#[derive(Debug)]
pub struct Guard<P> {
    burst: u64,
    streams: Buckets<Subnet>,
    turns: Buckets<Subnet>,
    peers: Bans<P>,
    subnets: Bans<Subnet>,
    logged_bans: Bucket,
}

impl<P: Copy + Eq + Hash> Guard<P> {
    /// A guard without history, for this number of turns a minute from one subnet.
    #[must_use]
    pub fn new(turns_per_minute: u32) -> Self {
        let burst = u64::from(turns_per_minute.max(1));
        Self {
            burst,
            streams: Buckets::new(Rate::per_minute(burst * STREAMS_PER_TURN)),
            turns: Buckets::new(Rate::per_minute(burst)),
            peers: Bans::default(),
            subnets: Bans::default(),
            logged_bans: Bucket::default(),
        }
    }

    /// Whether to log another ban.
    pub fn logs_ban(&mut self, now_ms: u64) -> bool {
        self.logged_bans.take(&LOGGED_BANS, 1, now_ms).is_ok()
    }

    /// Doublings of the cost of a subnet's requests.
    fn tightness(&self, subnet: &Subnet, now_ms: u64) -> u32 {
        match self.subnets.points(subnet, now_ms).checked_div(TIGHT_POINTS) {
            None | Some(0) => 0,
            Some(times) => (times.ilog2() + 1).min(MAX_TIGHTNESS),
        }
    }

    /// Cost of one request from a subnet.
    fn cost(&self, subnet: &Subnet, now_ms: u64) -> u64 {
        (1 << self.tightness(subnet, now_ms)).min(self.burst)
    }

    /// Admits a new stream before any read.
    ///
    /// # Errors
    /// The refusal of a banned peer, or of a subnet with too many streams.
    pub fn arrive(&mut self, who: &Caller<P>, now_ms: u64) -> Result<(), StreamRefusal> {
        let Some(subnet) = who.subnet else { return Ok(()) };
        if let Some(left_ms) = self.peers.banned_for(&who.peer, now_ms) {
            let again = self.peers.visited_in_ban(&who.peer);
            let shut_out_ms = (again > ANSWERED_IN_BAN).then_some(left_ms);
            let retry_after_ms = u32::try_from(left_ms).unwrap_or(u32::MAX);
            return Err(StreamRefusal { retry_after_ms, shut_out_ms });
        }
        let cost = self.cost(&subnet, now_ms);
        let taken = self.streams.take_many(subnet, cost, now_ms);
        taken.map_err(|retry_after_ms| StreamRefusal { retry_after_ms, shut_out_ms: None })
    }

    /// Admits a turn request before any check. A turn under a known grant does not count.
    ///
    /// # Errors
    /// [`TurnRefusal`], with the retry time.
    pub fn turn(&mut self, who: &Caller<P>, granted: bool, now_ms: u64) -> Result<(), TurnRefusal> {
        let Some(subnet) = who.subnet.filter(|_| !granted) else { return Ok(()) };
        let cost = self.cost(&subnet, now_ms);
        let Err(retry_after_ms) = self.turns.take_many(subnet, cost, now_ms) else {
            self.peers.admitted(&who.peer);
            return Ok(());
        };
        Err(TurnRefusal { retry_after_ms, early: self.peers.is_early(who.peer, retry_after_ms, now_ms) })
    }

    /// Records an offence. Returns the length of the ban if the peer is banned now.
    pub fn offence(&mut self, who: &Caller<P>, offence: Offence, now_ms: u64) -> Option<u64> {
        let subnet = who.subnet?;
        let points = offence.points();
        // In a subnet with points, early retries take capacity for which others wait.
        let tightness = self.tightness(&subnet, now_ms);
        self.subnets.add(subnet, points, MAX_SUBNET_POINTS, now_ms);
        let points = if offence == Offence::Early { (points << tightness).min(MAX_POINTS) } else { points };
        let total = self.peers.add(who.peer, points, BAN_POINTS, now_ms);
        (total >= BAN_POINTS).then(|| self.peers.ban(who.peer, PROBATION_POINTS, now_ms))
    }

    /// A turn of this peer was served to its end.
    pub fn served(&mut self, who: &Caller<P>, now_ms: u64) {
        self.peers.forgive(&who.peer, SERVED_POINTS, now_ms);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        MAX_KEYS,
        ban::{FIRST_BAN_MS, HALF_LIFE_MS, LONGEST_BAN_MS},
    };

    const MINUTE_MS: u64 = 60_000;
    const HOUR_MS: u64 = 60 * MINUTE_MS;
    const HERE: [u8; 4] = [203, 0, 113, 9];
    const THERE: [u8; 4] = [198, 51, 100, 9];
    const OFFENCES: [Offence; 8] = [
        Offence::Forged,
        Offence::Garbage,
        Offence::Replayed,
        Offence::Rejected,
        Offence::Stalled,
        Offence::Unfit,
        Offence::Hasty,
        Offence::Early,
    ];

    fn guard() -> Guard<u32> {
        Guard::new(16)
    }

    fn caller(peer: u32, ip: [u8; 4]) -> Caller<u32> {
        Caller { peer, subnet: Some(IpAddr::from(ip).into()) }
    }

    #[test]
    fn no_single_offence_bans_and_four_forgeries_do() {
        let who = caller(1, HERE);
        for offence in OFFENCES {
            let mut guard = guard();
            for _ in 0..3 {
                assert_eq!(guard.offence(&who, offence, 0), None, "{offence:?}");
            }
            assert!(guard.arrive(&who, 0).is_ok());
        }
        let mut guard = guard();
        let bans: Vec<_> = (0..4).map(|_| guard.offence(&who, Offence::Forged, 0)).collect();
        assert_eq!(bans, [None, None, None, Some(FIRST_BAN_MS)]);
        let refusals: Vec<_> = (0..4).map(|_| guard.arrive(&who, 1000).unwrap_err()).collect();
        assert_eq!(refusals[1], StreamRefusal { retry_after_ms: 119_000, shut_out_ms: None });
        assert!(refusals[2].shut_out_ms.is_some(), "it keeps coming, and loses its connections");
        assert!(guard.arrive(&who, FIRST_BAN_MS).is_ok(), "it ends");
    }

    #[test]
    fn bans_grow_while_they_repeat_and_shrink_with_quiet_hours() {
        let (mut guard, who) = (guard(), caller(1, HERE));
        let next = |guard: &mut Guard<u32>, now_ms: u64| {
            (0..4).find_map(|_| guard.offence(&who, Offence::Forged, now_ms)).unwrap()
        };
        let (mut now_ms, mut spans) = (0, Vec::new());
        for _ in 0..7 {
            let span = next(&mut guard, now_ms);
            now_ms += span;
            spans.push(span / FIRST_BAN_MS);
        }
        assert_eq!(spans, [1, 2, 4, 8, 16, 30, 30], "at most {LONGEST_BAN_MS} ms");
        assert_eq!(next(&mut guard, now_ms + 24 * HOUR_MS), FIRST_BAN_MS);
    }

    #[test]
    fn peers_that_come_before_their_retry_time_are_noticed() {
        let (mut guard, who) = (guard(), caller(1, HERE));
        (0..16).for_each(|_| guard.turn(&who, false, 0).unwrap());
        let told = guard.turn(&who, false, 0).unwrap_err();
        assert_eq!(told, TurnRefusal { retry_after_ms: 3750, early: false });
        assert!(!guard.turn(&who, false, 499).unwrap_err().early, "it may not have heard");
        assert!(guard.turn(&who, false, 500).unwrap_err().early);
        assert!(guard.turn(&who, false, 3000).unwrap_err().early);
        // At its retry time it is served; the next retry time is new.
        assert!(guard.turn(&who, false, 3750).is_ok());
        assert!(!guard.turn(&who, false, 3751).unwrap_err().early);
        // A punctual peer that is refused because of others is never early.
        let (late, mut now_ms) = (caller(99, HERE), 4000);
        for _ in 0..5 {
            let told = guard.turn(&late, false, now_ms).unwrap_err();
            assert!(!told.early);
            now_ms += u64::from(told.retry_after_ms);
            guard.turn(&caller(50, HERE), false, now_ms).unwrap();
        }
    }

    #[test]
    fn coming_too_early_counts_more_in_a_subnet_with_points() {
        let mut guard = guard();
        let banned_after = |guard: &mut Guard<u32>, who| {
            (1..).find(|_| guard.offence(&who, Offence::Early, 0).is_some()).unwrap_or(0)
        };
        // Its own twenty offences are points of its subnet: the second half counts double.
        assert_eq!(banned_after(&mut guard, caller(1, THERE)), 15);
        for peer in 100..300 {
            guard.offence(&caller(peer, HERE), Offence::Forged, 0);
        }
        assert_eq!(banned_after(&mut guard, caller(2, HERE)), 4, "never fewer than of the gravest");
    }

    #[test]
    fn a_subnet_is_held_shorter_and_never_shut_out_and_others_do_not_notice() {
        let mut guard = guard();
        // Fresh identities forge, but none often enough for a ban.
        for peer in 0..500 {
            assert_eq!(guard.offence(&caller(peer, HERE), Offence::Forged, 0), None);
        }
        let admitted = |guard: &mut Guard<u32>, ip, now_ms| {
            (1000..1100).filter(|peer| guard.turn(&caller(*peer, ip), false, now_ms).is_ok()).count()
        };
        assert_eq!(admitted(&mut guard, HERE, 0), 1, "a sixteenth of sixteen");
        assert!(guard.turn(&caller(1, HERE), true, 0).is_ok(), "a grant is counted elsewhere");
        assert_eq!(admitted(&mut guard, THERE, 0), 16);
        assert_eq!(admitted(&mut guard, HERE, 8 * HALF_LIFE_MS), 16, "and it is forgotten");
    }

    #[test]
    fn callers_of_the_own_networks_are_not_counted() {
        let (mut guard, who) = (guard(), Caller { peer: 1, subnet: None });
        (0..100).for_each(|_| assert_eq!(guard.offence(&who, Offence::Forged, 0), None));
        assert!((0..1000).all(|_| guard.arrive(&who, 0).is_ok() && guard.turn(&who, false, 0).is_ok()));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Arrive(u32),
        Turn(u32),
        Offence(u32, usize),
        Served(u32),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0u32..40).prop_map(Step::Arrive),
            (0u32..40).prop_map(Step::Turn),
            (0u32..40, 0..OFFENCES.len()).prop_map(|(who, what)| Step::Offence(who, what)),
            (0u32..40).prop_map(Step::Served),
            (0u64..200_000).prop_map(Step::Wait),
        ];
        proptest::collection::vec(step, 0..400)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

        /// A correct peer is never banned for others of its subnet. No ban exceeds the maximum. A subnet always has its
        /// own rate.
        #[test]
        fn nobody_is_banned_for_others_and_no_ban_is_for_ever(steps in steps()) {
            let mut guard = guard();
            let (honest, away) = (caller(999, HERE), caller(998, THERE));
            let mut now_ms = 0;
            for step in steps {
                match step {
                    Step::Arrive(who) => {
                        if let Err(refusal) = guard.arrive(&caller(who, HERE), now_ms) {
                            prop_assert!((1..=LONGEST_BAN_MS).contains(&u64::from(refusal.retry_after_ms)));
                        }
                    }
                    Step::Turn(who) => drop(guard.turn(&caller(who, HERE), false, now_ms)),
                    Step::Offence(who, what) => {
                        if let Some(span) = guard.offence(&caller(who, HERE), OFFENCES[what], now_ms) {
                            prop_assert!((FIRST_BAN_MS..=LONGEST_BAN_MS).contains(&span));
                        }
                    }
                    Step::Served(who) => guard.served(&caller(who, HERE), now_ms),
                    Step::Wait(span) => now_ms += span,
                }
                prop_assert!(guard.peers.banned_for(&honest.peer, now_ms).is_none());
            }
            prop_assert!(guard.turn(&away, false, now_ms).is_ok());
            // After an hour of quiet the subnet is normal again: the honest peer is served.
            now_ms += HOUR_MS;
            prop_assert!(guard.arrive(&honest, now_ms).is_ok() && guard.turn(&honest, false, now_ms).is_ok());
        }

        /// The peers of a subnet never exceed its rate, whatever identities they take.
        #[test]
        fn fresh_identities_get_no_more_than_their_subnets_rate(
            arrivals in proptest::collection::vec((any::<u32>(), 0u64..3000), 0..300),
        ) {
            let mut guard = guard();
            let (mut now_ms, mut admitted) = (0, 0u64);
            for (peer, pause) in arrivals {
                now_ms += pause;
                admitted += u64::from(guard.turn(&caller(peer, HERE), false, now_ms).is_ok());
            }
            prop_assert!(admitted <= 16 + 16 * now_ms / MINUTE_MS, "{admitted} in {now_ms} ms");
        }
    }

    #[test]
    fn every_table_is_bounded() {
        let mut guard = guard();
        // Five thousand a second, each with its own peer ID and subnet.
        for peer in 0..100_000u32 {
            let [_, a, b, c] = peer.to_be_bytes();
            let (who, now_ms) = (caller(peer, [100 + a, b, c, 1]), u64::from(peer) / 5);
            let _ = guard.arrive(&who, now_ms);
            let _ = guard.turn(&who, false, now_ms);
            guard.offence(&who, Offence::Garbage, now_ms);
        }
        assert!(guard.peers.len() <= MAX_KEYS && guard.subnets.len() <= MAX_KEYS);
        assert!([&guard.streams, &guard.turns].iter().all(|table| table.in_use(0).count() <= MAX_KEYS));
    }
}
