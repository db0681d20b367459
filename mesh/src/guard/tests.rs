use proptest::prelude::*;

use super::{
    known_peers::{MAX_KNOWN, MAX_OF_SUBNET, SETTLING_MS},
    scores::{FIRST_BAN_MS, HALF_LIFE_MS, LONGEST_BAN_MS, MAX_SCORES, faded},
    *,
};

const HOUR_MS: u64 = 60 * MINUTE_MS;

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

fn limits() -> GuardLimits {
    GuardLimits {
        turns_per_minute: 10,
        frames_per_minute: 100,
        subnet_turns_per_minute: 16,
        defence: true,
        own_networks: Networks::default(),
    }
}

fn peer(number: u32) -> NodeId {
    let mut bytes = [7; 32];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    NodeId(bytes)
}

fn caller(guard: &Guard, number: u32, ip: [u8; 4]) -> Caller {
    guard.caller(peer(number), Origin::Direct(ip.into()))
}

const HERE: [u8; 4] = [203, 0, 113, 9];
const THERE: [u8; 4] = [198, 51, 100, 9];

#[test]
fn no_single_offence_bans_and_four_forgeries_do() {
    for offence in OFFENCES {
        let mut guard = Guard::new(&limits());
        let who = caller(&guard, 1, HERE);
        for _ in 0..3 {
            assert_eq!(guard.offence(&who, offence, 0), None, "{offence:?}");
        }
        assert!(guard.arrive(&who, 0).is_ok());
    }
    let mut guard = Guard::new(&limits());
    let who = caller(&guard, 1, HERE);
    let bans: Vec<_> = (0..4).map(|_| guard.offence(&who, Offence::Forged, 0)).collect();
    assert_eq!(bans, [None, None, None, Some(FIRST_BAN_MS)]);
    let turned = guard.arrive(&who, 1000).unwrap_err();
    assert_eq!(turned, StreamRefusal { retry_after_ms: 119_000, shut_out_ms: None });
    assert!(guard.arrive(&who, FIRST_BAN_MS).is_ok(), "it ends");
}

#[test]
fn a_banned_peer_that_keeps_coming_loses_its_connections() {
    let mut guard = Guard::new(&limits());
    let who = caller(&guard, 1, HERE);
    assert!((0..4).any(|_| guard.offence(&who, Offence::Forged, 0).is_some()));
    let told: Vec<_> = (0..20).map(|_| guard.arrive(&who, 0).unwrap_err().shut_out_ms.is_some()).collect();
    assert_eq!(told.iter().filter(|shut| !**shut).count(), 2);
    assert_eq!(told.last(), Some(&true));
}

#[test]
fn unknown_peers_that_come_before_their_retry_time_are_noticed() {
    let mut guard = Guard::new(&limits());
    let who = caller(&guard, 1, HERE);
    (0..10).for_each(|_| guard.turn(&who, false, 0).unwrap());
    let told = guard.turn(&who, false, 0).unwrap_err();
    assert_eq!(told, TooMany { retry_after_ms: 6000, early: false });
    assert!(!guard.turn(&who, false, 499).unwrap_err().early, "it may not have heard");
    assert!(guard.turn(&who, false, 500).unwrap_err().early);
    assert!(guard.turn(&who, false, 5000).unwrap_err().early);
    // At its retry time it is served; the next retry time is new.
    assert!(guard.turn(&who, false, 6000).is_ok());
    assert!(!guard.turn(&who, false, 6001).unwrap_err().early);
    // Two kinds of peers are not early: peers served before, and punctual peers that are refused because of
    // others.
    let known = caller(&guard, 2, HERE);
    guard.served(&known, 6001);
    (0..10).for_each(|_| guard.turn(&known, false, 6001).unwrap());
    assert!((0..5).all(|again| !guard.turn(&known, false, 6500 + again).unwrap_err().early));
    let mut guard = Guard::new(&limits());
    (0..16).for_each(|number| guard.turn(&caller(&guard, number, HERE), false, 0).unwrap());
    let late = caller(&guard, 99, HERE);
    let mut now = 0;
    for _ in 0..5 {
        let told = guard.turn(&late, false, now).unwrap_err();
        assert!(!told.early);
        now += u64::from(told.retry_after_ms);
        // Another peer is faster.
        guard.turn(&caller(&guard, 50, HERE), false, now).unwrap();
    }
}

#[test]
fn coming_too_early_counts_more_where_the_share_of_unknown_peers_is_cut() {
    let mut guard = Guard::new(&limits());
    let banned_after = |guard: &mut Guard, who| {
        (1..).find(|_| guard.offence(&who, Offence::Early, 0).is_some()).unwrap_or(0)
    };
    let quiet = caller(&guard, 1, THERE);
    // Its own twenty offences restrict its subnet: the second half counts double.
    assert_eq!(banned_after(&mut guard, quiet), 15);
    for number in 100..300 {
        guard.offence(&caller(&guard, number, HERE), Offence::Forged, 0);
    }
    let hasty = caller(&guard, 2, HERE);
    assert_eq!(banned_after(&mut guard, hasty), 4, "never fewer than of the gravest");
}

#[test]
fn a_peer_queues_as_unknown_for_a_while_after_its_first_served_turn() {
    let mut guard = Guard::new(&limits());
    let who = caller(&guard, 1, HERE);
    let mut is_last = |served, now| {
        if served {
            guard.served(&who, now);
        }
        guard.queues_as_unknown(&who, now)
    };
    assert!(is_last(false, 0) && is_last(true, 0) && is_last(true, SETTLING_MS - 1));
    assert!(!is_last(false, SETTLING_MS) && !is_last(true, HOUR_MS), "coming again does not begin it anew");
    assert!(!is_last(false, 2 * HOUR_MS - 1) && is_last(false, 2 * HOUR_MS), "an hour without a turn does");
    assert!(is_last(true, 2 * HOUR_MS));
}

#[test]
fn bans_grow_while_they_repeat_and_shrink_with_quiet_hours() {
    let mut guard = Guard::new(&limits());
    let who = caller(&guard, 1, HERE);
    let mut now = 0;
    let next = |guard: &mut Guard, now: u64| loop {
        if let Some(span) = guard.offence(&who, Offence::Forged, now) {
            break span;
        }
    };
    let mut spans = Vec::new();
    for _ in 0..7 {
        let span = next(&mut guard, now);
        now += span;
        spans.push(span / FIRST_BAN_MS);
    }
    assert_eq!(spans, [1, 2, 4, 8, 16, 30, 30], "at most {LONGEST_BAN_MS} ms");
    assert_eq!(next(&mut guard, now + 24 * HOUR_MS), FIRST_BAN_MS);
}

#[test]
fn a_subnet_is_held_shorter_and_never_shut_out_and_others_do_not_notice() {
    let mut guard = Guard::new(&limits());
    // Fresh identities forge, but none often enough for a ban.
    for number in 0..500 {
        let forger = caller(&guard, number, HERE);
        assert_eq!(guard.offence(&forger, Offence::Forged, 0), None);
    }
    let admitted = |guard: &mut Guard, ip| {
        (1000..1100)
            .filter(|number| {
                let who = caller(guard, *number, ip);
                guard.turn(&who, false, 0).is_ok()
            })
            .count()
    };
    assert_eq!(admitted(&mut guard, HERE), 1, "a sixteenth of sixteen");
    assert_eq!(admitted(&mut guard, THERE), 16);
    let later = 8 * HALF_LIFE_MS;
    let again = (0..100).filter(|number| {
        let who = caller(&guard, 2000 + number, HERE);
        guard.turn(&who, false, later).is_ok()
    });
    assert_eq!(again.count(), 16, "and it is forgotten");
}

#[test]
fn known_peers_and_holders_of_a_grant_are_not_crowded_out_by_their_neighbours() {
    let mut guard = Guard::new(&limits());
    let honest = caller(&guard, 1, HERE);
    assert!(guard.is_unknown(&honest, 0));
    guard.served(&honest, 0);
    assert!(!guard.is_unknown(&honest, 0));
    for number in 100..400 {
        let flooder = caller(&guard, number, HERE);
        let _ = guard.turn(&flooder, false, 0);
        guard.offence(&flooder, Offence::Forged, 0);
    }
    let unknown = caller(&guard, 2, HERE);
    assert!(guard.turn(&unknown, false, 0).is_err(), "the share of unknown peers is used up");
    assert!(guard.turn(&unknown, true, 0).is_ok(), "a grant has its own");
    for _ in 0..10 {
        assert!(guard.turn(&honest, false, 0).is_ok());
    }
    assert!(guard.turn(&honest, false, 0).is_err(), "its own share");
    // Served floods cannot take its standing either.
    for number in 100..400 {
        let flooder = caller(&guard, number, HERE);
        guard.served(&flooder, 0);
    }
    assert!(!guard.is_unknown(&honest, HOUR_MS / 2));
    assert_eq!(guard.known_peers.len(), MAX_OF_SUBNET);
}

#[test]
fn only_listed_networks_are_not_counted() {
    let home = [192, 168, 1, 2];
    let own_networks = vec!["192.168.0.0/16".parse().unwrap()].into();
    let mut guard = Guard::new(&GuardLimits { own_networks, ..limits() });
    let who = caller(&guard, 1, home);
    (0..100).for_each(|_| assert_eq!(guard.offence(&who, Offence::Forged, 0), None));
    assert!(guard.arrive(&who, 0).is_ok() && !guard.is_unknown(&who, 0));
    let mut strict = Guard::new(&limits());
    let who = caller(&strict, 1, home);
    assert!((0..4).any(|_| strict.offence(&who, Offence::Forged, 0).is_some()));
    let off = Guard::new(&GuardLimits { defence: false, ..limits() });
    assert_eq!(caller(&off, 1, HERE).subnet, None);
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

    /// Points never rise with time, halve in a half-life, and reach zero.
    #[test]
    fn points_fade(points in any::<u32>(), first in 0u64..10_000_000, more in 0u64..10_000_000) {
        prop_assert!(faded(points, first) <= points);
        prop_assert!(faded(points, first + more) <= faded(points, first));
        prop_assert_eq!(faded(points, HALF_LIFE_MS), points / 2);
        prop_assert_eq!(faded(points, 40 * HALF_LIFE_MS), 0);
    }

    /// A correct peer is never banned for others of its subnet. No ban exceeds the maximum. A peer of another
    /// subnet always has its own share.
    #[test]
    fn nobody_is_banned_for_others_and_no_ban_is_for_ever(steps in steps()) {
        let mut guard = Guard::new(&limits());
        let (honest, away) = (caller(&guard, 999, HERE), caller(&guard, 998, THERE));
        let mut now = 0;
        for step in steps {
            match step {
                Step::Arrive(who) => {
                    let who = caller(&guard, who, HERE);
                    if let Err(turned) = guard.arrive(&who, now) {
                        prop_assert!(u64::from(turned.retry_after_ms) <= LONGEST_BAN_MS);
                        prop_assert!(turned.retry_after_ms > 0);
                    }
                }
                Step::Turn(who) => {
                    let who = caller(&guard, who, HERE);
                    let _ = guard.turn(&who, false, now);
                }
                Step::Offence(who, what) => {
                    let who = caller(&guard, who, HERE);
                    if let Some(span) = guard.offence(&who, OFFENCES[what], now) {
                        prop_assert!((FIRST_BAN_MS..=LONGEST_BAN_MS).contains(&span));
                    }
                }
                Step::Served(who) => {
                    let who = caller(&guard, who, HERE);
                    guard.served(&who, now);
                }
                Step::Wait(span) => now += span,
            }
            prop_assert!(guard.peers.banned_for(&honest.peer, now).is_none());
        }
        prop_assert!(guard.turn(&away, false, now).is_ok());
        // After an hour of quiet the subnet is normal again: the honest peer is served.
        now += HOUR_MS;
        prop_assert!(guard.arrive(&honest, now).is_ok() && guard.turn(&honest, false, now).is_ok());
    }

    /// A subnet's unknown peers never exceed its share of turns, whatever identities they take.
    #[test]
    fn fresh_identities_get_no_more_than_their_subnets_share(
        arrivals in proptest::collection::vec((any::<u32>(), 0u64..3000), 0..300),
    ) {
        let mut guard = Guard::new(&limits());
        let (mut now, mut admitted) = (0, 0u64);
        for (number, pause) in arrivals {
            now += pause;
            let who = caller(&guard, number, HERE);
            admitted += u64::from(guard.turn(&who, false, now).is_ok());
        }
        prop_assert!(admitted <= 16 + 16 * now / MINUTE_MS, "{admitted} in {now} ms");
    }
}

#[test]
fn every_table_is_bounded() {
    let mut guard = Guard::new(&limits());
    let bytes = |number: u32| number.to_be_bytes();
    // Five thousand a second, each with its own peer ID and subnet.
    for number in 0..100_000 {
        let [_, a, b, c] = bytes(number);
        let (who, now) = (caller(&guard, number, [100 + a, b, c, 1]), u64::from(number) / 5);
        let _ = guard.arrive(&who, now);
        let _ = guard.turn(&who, false, now);
        guard.offence(&who, Offence::Garbage, now);
        if number % 25 == 0 {
            guard.served(&who, now);
        }
    }
    assert!(guard.peers.len() <= MAX_SCORES && guard.subnets.len() <= MAX_SCORES);
    assert!(guard.known_peers.len() <= MAX_KNOWN);
    let Guard { peer_frames, subnet_frames, peer_turns, subnet_turns, .. } = guard;
    let of_peers = [peer_frames, peer_turns];
    for size in of_peers.iter().map(Rates::len).chain([subnet_frames, subnet_turns].iter().map(Rates::len)) {
        assert!((1..=MAX_RATE_ENTRIES).contains(&size), "{size}");
    }
}
