use proptest::prelude::*;

use super::*;

const SUBNET: (Subnet, bool) = (Subnet::V4([203, 0, 113]), false);
const PEER_HOUR: HourlyLimits = HourlyLimits { turns: None, tokens: Some(1000), storage: Some(650) };
const SUBNET_HOUR: HourlyLimits = HourlyLimits { turns: None, tokens: Some(4000), storage: Some(2600) };

fn payer(holder: Holder, limits: HourlyLimits) -> Payer {
    Payer { holder, limits, concurrent: u16::MAX }
}

fn unknown_peer(number: u32) -> Vec<Payer> {
    let mut id = [7; 32];
    id[..4].copy_from_slice(&number.to_le_bytes());
    vec![payer(Holder::peer(NodeId(id)), PEER_HOUR), payer(Holder::subnet(SUBNET), SUBNET_HOUR)]
}

fn tokens(tokens: u64) -> Amounts {
    Amounts { turns: 1, tokens, storage: 0 }
}

fn storage(storage: u64) -> Amounts {
    Amounts { storage, ..Amounts::default() }
}

/// Work that is done at once.
fn work(accounts: &mut Accounts, payers: &[Payer], done: Amounts, now_ms: u64) -> Result<(), u32> {
    accounts.hold(payers, done, now_ms)?;
    accounts.book(payers, done, now_ms);
    accounts.end(payers, Amounts::default());
    Ok(())
}

#[test]
fn unused_amounts_come_back_and_use_decays_within_an_hour() {
    let mut accounts = Accounts::default();
    let who = unknown_peer(1);
    accounts.hold(&who, tokens(800), 0).unwrap();
    assert_eq!(accounts.hold(&who, tokens(800), 0), Err(2_160_000), "600 tokens more in 36 minutes");
    accounts.book(&who, tokens(10), 0);
    accounts.end(&who, Amounts { turns: 0, tokens: 790, storage: 0 });
    work(&mut accounts, &who, tokens(800), 0).unwrap();
    assert_eq!(accounts.hold(&who, tokens(1001), 0), Err(u32::MAX), "no wait makes an hour larger");
    let percent = HOUR_MS / 100;
    assert!(accounts.hold(&who, tokens(1000), 80 * percent).is_err(), "810 tokens decay in 81 percent");
    assert!(accounts.hold(&who, tokens(1000), 81 * percent).is_ok());
    assert!(accounts.hold(&who, tokens(1), 0).is_err(), "a clock that goes back gives nothing");
}

#[test]
fn held_amounts_do_not_decay_and_their_return_forgives_no_use_of_others() {
    let mut accounts = Accounts::default();
    let who = unknown_peer(1);
    accounts.hold(&who, tokens(1000), 0).unwrap();
    assert!(accounts.hold(&who, tokens(1), HOUR_MS).is_err(), "all is held");
    accounts.book(&who, tokens(400), HOUR_MS);
    accounts.end(&who, tokens(600));
    assert!(accounts.hold(&who, tokens(601), HOUR_MS).is_err());
    assert!(accounts.hold(&who, tokens(600), HOUR_MS).is_ok());
}

#[test]
fn fresh_identities_share_the_account_of_their_subnet() {
    let mut accounts = Accounts::default();
    let taken = |accounts: &mut Accounts, amounts: Amounts| {
        (10..100).filter(|number| accounts.hold(&unknown_peer(*number), amounts, 0).is_ok()).count()
    };
    assert_eq!(taken(&mut accounts, tokens(1000)), 4);
    assert_eq!(taken(&mut accounts, storage(65)), 40, "40 blobs of five epochs");
    let elsewhere = [payer(Holder::subnet((Subnet::V4([198, 51, 100]), false)), SUBNET_HOUR)];
    assert!(accounts.hold(&elsewhere, storage(65), 0).is_ok());
    let served_before = [payer(Holder::subnet((SUBNET.0, true)), SUBNET_HOUR)];
    assert!(accounts.hold(&served_before, storage(65), 0).is_ok(), "its known peers have their own");
}

#[test]
fn a_refusal_takes_nothing_from_any_payer() {
    let mut accounts = Accounts::default();
    let first = payer(Holder::grant(QuotaHash([1; 32])), PEER_HOUR);
    let none = HourlyLimits { turns: Some(0), ..PEER_HOUR };
    let second = payer(Holder::grant(QuotaHash([2; 32])), none);
    for _ in 0..10 {
        assert_eq!(accounts.hold(&[first, second], tokens(1000), 0), Err(u32::MAX));
    }
    assert!(accounts.hold(&[first], tokens(1000), 0).is_ok());
}

#[test]
fn turns_at_once_are_bounded() {
    let mut accounts = Accounts::default();
    let two = [Payer { concurrent: 2, ..payer(Holder::grant(QuotaHash([1; 32])), HourlyLimits::default()) }];
    assert!(accounts.hold(&two, tokens(1), 0).is_ok() && accounts.hold(&two, tokens(1), 0).is_ok());
    assert_eq!(accounts.hold(&two, tokens(1), 0), Err(BUSY_RETRY_MS));
    assert!(accounts.hold(&two, storage(13), 0).is_ok(), "storage of a turn under way");
    accounts.end(&two, Amounts::default());
    assert!(accounts.hold(&two, tokens(1), 0).is_ok());
}

#[test]
fn a_restart_forgives_nothing_and_a_wrong_clock_or_snapshot_little() {
    let mut accounts = Accounts::default();
    let who = unknown_peer(1);
    work(&mut accounts, &who, Amounts { turns: 1, tokens: 700, storage: 65 }, 1000).unwrap();
    let saved = accounts.snapshot(1000).unwrap();
    assert_eq!(accounts.snapshot(1000), None, "nothing changed");
    let mut again = Accounts::restored(&saved, 1000);
    assert_eq!(again.hold(&who, tokens(301), 1000), Err(3600), "one token more");
    assert!(again.hold(&who, tokens(300), 1000).is_ok());
    // The clock was an hour ahead before the restart.
    let mut back = Accounts::restored(&saved, 0);
    assert!(back.hold(&who, tokens(301), 0).is_err() && back.hold(&who, tokens(1000), HOUR_MS).is_ok());
    // The operator lowered the limit meanwhile.
    let lower = [payer(who[0].holder, HourlyLimits { tokens: Some(100), ..PEER_HOUR })];
    assert_eq!(Accounts::restored(&saved, 1000).hold(&lower, tokens(100), 1000), Err(3_600_000));
    assert!(Accounts::restored(&saved, 1000 + HOUR_MS).peers.is_empty(), "an hour of rest");
    for wrong in [&b""[..], &saved[1..], &[9; 40], &saved[..saved.len() - 1]] {
        assert!(Accounts::restored(wrong, 1000).peers.is_empty());
    }
}

#[test]
fn every_table_is_bounded_and_turns_under_way_stay() {
    let mut accounts = Accounts::default();
    let busy = unknown_peer(u32::MAX);
    accounts.hold(&busy, tokens(1000), 0).unwrap();
    accounts.book(&busy, tokens(500), 0);
    for number in 0..20_000u32 {
        let [_, a, b, c] = number.to_be_bytes();
        let subnet = payer(Holder::subnet((Subnet::V4([a, b, c]), false)), SUBNET_HOUR);
        let grant = payer(Holder::grant(QuotaHash([number.to_be_bytes()[3]; 32])), SUBNET_HOUR);
        let payers = [unknown_peer(number)[0], subnet, grant];
        work(&mut accounts, &payers, storage(1), u64::from(number)).unwrap();
    }
    for table in [&accounts.peers, &accounts.subnets, &accounts.grants] {
        assert!((1..=MAX_ACCOUNTS).contains(&table.len()), "{}", table.len());
    }
    assert!(accounts.hold(&busy[..1], tokens(100), 20_000).is_err(), "its account is still there");
    let saved = accounts.snapshot(20_000).unwrap();
    assert!(saved.len() <= MAX_SNAPSHOT_BYTES, "{}", saved.len());
    assert_eq!(Accounts::restored(&saved, 20_000).peers.len(), accounts.peers.len());
}

/// A step of a peer's history with a node.
#[derive(Debug, Clone)]
enum Step {
    /// A turn that wants tokens and units, and uses parts of them in percent.
    Turn {
        peer: u32,
        tokens: u64,
        units: u64,
        used: u64,
    },
    /// A turn that ends unserved.
    Cancel {
        peer: u32,
        tokens: u64,
        units: u64,
    },
    Wait(u64),
    /// A restart; with a turn under way if so.
    Restart {
        busy: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (tokens, units) = (0u64..2000, 0u64..700);
    prop_oneof![
        4 => (0u32..4, tokens.clone(), units.clone(), 0u64..=100)
            .prop_map(|(peer, tokens, units, used)| Step::Turn { peer, tokens, units, used }),
        1 => (0u32..4, tokens, units).prop_map(|(peer, tokens, units)| Step::Cancel { peer, tokens, units }),
        2 => (0u64..900_000).prop_map(Step::Wait),
        1 => any::<bool>().prop_map(|busy| Step::Restart { busy }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    /// Served tokens and stored units never exceed an hour's amount and its decay, over any sequence of turns,
    /// retries, cancels and restarts.
    #[test]
    fn use_never_exceeds_the_quota(steps in proptest::collection::vec(step(), 0..200)) {
        let mut accounts = Accounts::default();
        let mut now = 0;
        let (mut served, mut stored) = ([0u64; 4], [0u64; 4]);
        for step in steps {
            match step {
                Step::Turn { peer, tokens: wanted, units, used } => {
                    let who = unknown_peer(peer);
                    if accounts.hold(&who, tokens(wanted), now).is_err() {
                        continue;
                    }
                    if accounts.hold(&who, storage(units), now).is_err() {
                        accounts.end(&who, tokens(wanted));
                        continue;
                    }
                    let (spent, kept) = (wanted * used / 100, units * used / 100);
                    served[peer as usize] += spent;
                    stored[peer as usize] += kept;
                    accounts.book(&who, Amounts { turns: 1, tokens: spent, storage: kept }, now);
                    accounts.end(&who, Amounts { turns: 0, tokens: wanted - spent, storage: units - kept });
                }
                Step::Cancel { peer, tokens: wanted, units } => {
                    let who = unknown_peer(peer);
                    if accounts.hold(&who, tokens(wanted), now).is_ok() {
                        let held = accounts.hold(&who, storage(units), now).is_ok();
                        let units = if held { units } else { 0 };
                        accounts.end(&who, Amounts { turns: 1, tokens: wanted, storage: units });
                    }
                }
                Step::Wait(span) => now += span,
                Step::Restart { busy } => {
                    if busy {
                        let _ = accounts.hold(&unknown_peer(0), tokens(10), now);
                    }
                    if let Some(saved) = accounts.snapshot(now) {
                        accounts = Accounts::restored(&saved, now);
                    }
                }
            }
            let most = |hour: u64| hour + hour * now / HOUR_MS + 1;
            for peer in 0..4 {
                prop_assert!(served[peer] <= most(1000), "{} tokens in {now} ms", served[peer]);
                prop_assert!(stored[peer] <= most(650), "{} units in {now} ms", stored[peer]);
            }
            prop_assert!(served.iter().sum::<u64>() <= most(4000));
            prop_assert!(stored.iter().sum::<u64>() <= most(2600));
        }
    }
}
