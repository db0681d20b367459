use proptest::prelude::*;

use super::*;

const HERE: Subnet = Subnet::V4([203, 0, 113]);

fn rates(turns: Option<u64>, tokens: u64, storage: u64) -> HourlyRates {
    [turns.map(Rate::per_hour), Some(Rate::per_hour(tokens)), Some(Rate::per_hour(storage))]
}

fn payer(holder: Holder, rates: HourlyRates) -> Payer {
    Payer { holder, rates, concurrent: u16::MAX }
}

fn subnet(subnet: Subnet) -> Vec<Payer> {
    vec![payer(Holder::subnet(subnet), rates(None, 1000, 650))]
}

fn grant(number: u8) -> Payer {
    payer(Holder::grant(RightHash([number; 32])), rates(None, 1000, 650))
}

fn tokens(tokens: u64) -> Amounts {
    Amounts { turns: 1, tokens, storage: 0 }
}

fn storage(storage: u64) -> Amounts {
    Amounts { storage, ..Amounts::default() }
}

#[test]
fn unused_amounts_come_back_and_use_decays_within_an_hour() {
    let mut accounts = Accounts::default();
    let who = subnet(HERE);
    accounts.hold(&who, tokens(800), 0).unwrap();
    assert_eq!(accounts.hold(&who, tokens(800), 0), Err(2_160_000), "600 tokens more in 36 minutes");
    accounts.end(&who, tokens(790));
    accounts.hold(&who, tokens(800), 0).unwrap();
    assert_eq!(accounts.hold(&who, tokens(1001), 0), Err(u32::MAX), "no wait makes an hour larger");
    let percent = HOUR_MS / 100;
    assert!(accounts.hold(&who, tokens(1000), 80 * percent).is_err(), "810 tokens decay in 81 percent");
    assert!(accounts.hold(&who, tokens(1000), 81 * percent).is_ok());
    assert!(accounts.hold(&who, tokens(1), 0).is_err(), "a clock that goes back gives nothing");
    assert!(
        accounts.hold(&subnet(Subnet::V4([198, 51, 100])), tokens(1000), 0).is_ok(),
        "another has its own"
    );
}

#[test]
fn a_refusal_takes_nothing_from_any_payer() {
    let mut accounts = Accounts::default();
    let none = payer(Holder::grant(RightHash([2; 32])), rates(Some(0), 1000, 650));
    for _ in 0..10 {
        assert_eq!(accounts.hold(&[grant(1), none], tokens(1000), 0), Err(u32::MAX));
    }
    assert!(accounts.hold(&[grant(1)], tokens(1000), 0).is_ok());
}

#[test]
fn turns_at_once_are_bounded() {
    let mut accounts = Accounts::default();
    let two = [Payer { concurrent: 2, ..grant(1) }];
    assert!(accounts.hold(&two, tokens(1), 0).is_ok() && accounts.hold(&two, tokens(1), 0).is_ok());
    assert_eq!(accounts.hold(&two, tokens(1), 0), Err(BUSY_RETRY_MS));
    assert!(accounts.hold(&two, storage(13), 0).is_ok(), "storage of a turn under way");
    accounts.end(&two, Amounts::default());
    assert!(accounts.hold(&two, tokens(1), 0).is_ok());
}

#[test]
fn a_restart_forgives_nothing_and_a_wrong_clock_or_snapshot_little() {
    let mut accounts = Accounts::default();
    let who = subnet(HERE);
    accounts.hold(&who, Amounts { turns: 1, tokens: 700, storage: 65 }, 1000).unwrap();
    accounts.end(&who, Amounts::default());
    let saved = accounts.snapshot(1000).unwrap();
    assert_eq!(accounts.snapshot(1000), None, "nothing changed");
    let mut again = Accounts::restored(&saved, 1000);
    assert_eq!(again.hold(&who, tokens(301), 1000), Err(3600), "one token more");
    assert!(again.hold(&who, tokens(300), 1000).is_ok());
    // The clock was an hour ahead before the restart.
    let mut back = Accounts::restored(&saved, 0);
    assert!(back.hold(&who, tokens(301), 0).is_err() && back.hold(&who, tokens(1000), HOUR_MS).is_ok());
    // The operator lowered the limit meanwhile.
    let lower = [payer(who[0].holder, rates(None, 100, 650))];
    assert_eq!(Accounts::restored(&saved, 1000).hold(&lower, tokens(100), 1000), Err(3_600_000));
    for wrong in [&b""[..], &saved[1..], &[9; 40], &saved[..saved.len() - 1]] {
        assert!(Accounts::restored(wrong, 1000).accounts.is_empty());
    }
}

#[test]
fn the_table_is_bounded_and_turns_under_way_and_grants_stay() {
    let mut accounts = Accounts::default();
    let busy = subnet(HERE);
    accounts.hold(&busy, tokens(1000), 0).unwrap();
    accounts.hold(&[grant(1)], tokens(1000), 0).unwrap();
    accounts.end(&[grant(1)], Amounts::default());
    for number in 0..20_000u32 {
        let [_, _, b, c] = number.to_be_bytes();
        let who = subnet(Subnet::V4([100, b, c]));
        accounts.hold(&who, storage(1), number.into()).unwrap();
    }
    assert!(accounts.accounts.len() <= MAX_KEYS);
    for payers in [busy, vec![grant(1)]] {
        assert!(accounts.hold(&payers, tokens(100), 20_000).is_err(), "its account is still there");
    }
    let saved = accounts.snapshot(20_000).unwrap();
    assert!(saved.len() <= MAX_SNAPSHOT_BYTES, "{}", saved.len());
    assert_eq!(Accounts::restored(&saved, 20_000).accounts.len(), accounts.accounts.len());
    accounts.end(&[], Amounts::default());
    accounts.changed = true;
    let empty = Accounts::restored(&accounts.snapshot(20_000 + HOUR_MS).unwrap(), 0);
    assert!(empty.accounts.is_empty(), "an hour of rest");
}

/// A step of a subnet's history with a node.
#[derive(Debug, Clone)]
enum Step {
    /// A turn that wants tokens and units, and uses parts of them in percent after a time.
    Turn {
        tokens: u64,
        units: u64,
        used: u64,
        span_ms: u64,
    },
    Wait(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..2000, 0u64..700, 0u64..=100, 0u64..600_000)
            .prop_map(|(tokens, units, used, span_ms)| Step::Turn { tokens, units, used, span_ms }),
        2 => (0u64..900_000).prop_map(Step::Wait),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    /// Served tokens and stored units never exceed an hour's amount and its decay, over any sequence of turns and
    /// restarts.
    #[test]
    fn use_never_exceeds_the_quota(steps in proptest::collection::vec(step(), 0..200)) {
        let (mut accounts, who) = (Accounts::default(), subnet(HERE));
        let (mut now_ms, mut served, mut stored) = (0, 0u64, 0u64);
        for step in steps {
            match step {
                Step::Turn { tokens: wanted, units, used, span_ms } => {
                    let held = Amounts { turns: 1, tokens: wanted, storage: units };
                    if accounts.hold(&who, held, now_ms).is_err() {
                        continue;
                    }
                    now_ms += span_ms;
                    let done = Amounts { turns: 1, tokens: wanted * used / 100, storage: units * used / 100 };
                    served += done.tokens;
                    stored += done.storage;
                    accounts.end(&who, held.without(done));
                }
                Step::Wait(span) => now_ms += span,
                Step::Restart => {
                    if let Some(saved) = accounts.snapshot(now_ms) {
                        accounts = Accounts::restored(&saved, now_ms);
                    }
                }
            }
            let most = |hour: u64| hour + hour * now_ms / HOUR_MS + 1;
            prop_assert!(served <= most(1000), "{served} tokens in {now_ms} ms");
            prop_assert!(stored <= most(650), "{stored} units in {now_ms} ms");
        }
    }
}
