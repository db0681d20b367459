//! The choice, by examples and by properties.

use baton_keys::SecretSigningKey;
use baton_proto::{
    ids::ModelId,
    limits::{MAX_CLOCK_SKEW_MS, NODE_RECORD_VERSION},
    node_record::{KeyWindow, NodeLimits, StorageOffer},
    receipt::EngineKind,
};
use proptest::prelude::*;

use super::*;
use crate::network::quota::tests::issued;

const NOW: u64 = 1_000_000;

fn offer(name: &str, engine: EngineKind) -> ModelOffer {
    let model = ModelId([u8::try_from(name.len()).unwrap(); 32]);
    ModelOffer { model, name: name.to_owned(), engine, context_tokens: 2048, input_price: 0, output_price: 0 }
}

fn record(id: u8, offers: &[(&str, EngineKind)]) -> NodeRecord {
    NodeRecord {
        version: NODE_RECORD_VERSION,
        node: NodeId([id; 32]),
        sequence: 1,
        addresses: Vec::new(),
        keys: vec![KeyWindow {
            key: ExchangeKey::from([id; ExchangeKey::LEN]),
            from_ms: 0,
            until_ms: NOW + 1000,
        }],
        models: offers.iter().map(|(name, engine)| offer(name, *engine)).collect(),
        limits: NodeLimits { slots: 2, queue: 2, turns_per_minute: 60, max_output_tokens: 512 },
        storage: StorageOffer::default(),
        versions: vec![1],
        software: "test".to_owned(),
        issued_ms: 0,
        expires_ms: NOW + 1000,
    }
}

fn candidate(record: &NodeRecord) -> Candidate<'_> {
    Candidate { record, in_flight: 0, gone: false, evidence: Evidence::default() }
}

fn wish() -> Wish<'static> {
    Wish { now_ms: NOW, ..Wish::default() }
}

/// Nodes chosen over many random numbers.
fn chosen(candidates: &[Candidate<'_>], wish: &Wish<'_>) -> Vec<u8> {
    let step = u64::MAX / 97;
    let mut nodes: Vec<u8> =
        (0..97).map(|index| choose(candidates, wish, index * step).unwrap().node.0[0]).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

#[test]
fn refuses_by_the_first_condition_nobody_meets() {
    let native = record(1, &[("small", EngineKind::Native)]);
    let echo = record(2, &[("echo", EngineKind::Echo)]);
    let mut stale = record(3, &[("small", EngineKind::Native)]);
    stale.expires_ms = NOW - MAX_CLOCK_SKEW_MS - 1;
    let mut future = record(4, &[("small", EngineKind::Native)]);
    future.versions = vec![9];
    let elsewhere = NodeId([9; 32]);
    let cases: Vec<(Vec<&NodeRecord>, Wish<'_>, NoChoice)> = vec![
        (vec![], wish(), NoChoice::NoNodes),
        (vec![], Wish { node: Some(elsewhere), ..wish() }, NoChoice::NodeUnknown(elsewhere)),
        (vec![&native], Wish { node: Some(elsewhere), ..wish() }, NoChoice::NodeUnknown(elsewhere)),
        (vec![&stale], wish(), NoChoice::NoneCurrent),
        (vec![&future], wish(), NoChoice::NoneCurrent),
        (vec![&echo], wish(), NoChoice::OnlyEcho),
        (vec![&echo], Wish { model: Some("echo"), ..wish() }, NoChoice::OnlyEcho),
        (
            vec![&native, &echo],
            Wish { model: Some("large"), ..wish() },
            NoChoice::ModelUnavailable { wanted: "large".to_owned(), served: "echo, small".to_owned() },
        ),
    ];
    for (records, wish, expected) in cases {
        let candidates: Vec<_> = records.iter().map(|record| candidate(record)).collect();
        assert_eq!(choose(&candidates, &wish, 7), Err(expected));
    }
}

#[test]
fn prefers_native_and_spreads_over_equals() {
    let (first, second) =
        (record(1, &[("small", EngineKind::Native)]), record(2, &[("small", EngineKind::Native)]));
    let large = record(3, &[("larger", EngineKind::Native)]);
    let proxied = record(4, &[("small", EngineKind::Proxied)]);
    let echo = record(5, &[("small", EngineKind::Echo)]);
    let all = [&first, &second, &large, &proxied, &echo].map(candidate);
    assert_eq!(chosen(&all, &wish()), [1, 2, 3]);
    assert_eq!(chosen(&all, &Wish { model: Some("small"), ..wish() }), [1, 2]);
    assert_eq!(chosen(&all[3..], &wish()), [4]);
    assert_eq!(chosen(&all[4..], &Wish { allow_echo: true, ..wish() }), [5]);
    let library = record(6, &[("small", EngineKind::Library)]);
    let before_proxied = [&library, &proxied, &echo].map(candidate);
    assert_eq!(chosen(&before_proxied, &wish()), [6]);
    assert_eq!(
        chosen(&[&first, &library].map(candidate), &wish()),
        [1],
        "what can be computed again comes first"
    );
    assert_eq!(chosen(&all, &Wish { allow_echo: true, node: Some(NodeId([5; 32])), ..wish() }), [5]);
}

#[test]
fn storage_is_ordered_as_offered_and_counts_in_the_price() {
    let mut dear = record(1, &[("small", EngineKind::Native)]);
    dear.storage = StorageOffer { price: 10, max_epochs: 20, unknown_max_epochs: 5 };
    let wanted = StoragePolicy { open_epochs: 3, closed_epochs: 53, send_object_to: None };
    let limited = |max_price| Wish { storage: Some(wanted), max_price: Some(max_price), ..wish() };
    let all = [candidate(&dear)];
    let choice = choose(&all, &limited(650), 7).unwrap();
    assert_eq!((choice.storage.open_epochs, choice.storage.closed_epochs), (3, 5));
    assert_eq!((choice.highest_price(0), choice.terms.storage_price), (650, 10), "13 MiB for five epochs");
    let refused = choose(&all, &limited(649), 7);
    assert_eq!(refused, Err(NoChoice::TooExpensive { cheapest: 650, max_price: 649 }));
    // A holder of a grant is offered more, and pays for it.
    let key = SecretSigningKey::from_seed(&[2; 32]);
    let quota = QuotaHolder::new(issued(key.public_key()), key).unwrap();
    let granted = Wish { quota: Some(&quota), ..limited(10_000) };
    let choice = choose(&all, &granted, 7).unwrap();
    assert_eq!((choice.storage.closed_epochs, choice.highest_price(0)), (20, 2600));
    // A request that stores nothing pays nothing for it.
    assert_eq!(chosen(&all, &Wish { max_price: Some(0), ..wish() }), [1]);
}

#[test]
fn asks_no_node_that_may_cost_more_than_is_paid() {
    let mut dear = record(1, &[("small", EngineKind::Native)]);
    // A context of 2048 tokens and 100 tokens of answer.
    (dear.models[0].input_price, dear.models[0].output_price) = (1000, 10_000);
    let free = record(2, &[("small", EngineKind::Native)]);
    let both = [candidate(&dear), candidate(&free)];
    let limited = |max_price| Wish { output_tokens: 100, max_price: Some(max_price), ..wish() };
    assert_eq!(chosen(&both, &limited(3048)), [1, 2]);
    assert_eq!(chosen(&both, &limited(3047)), [2]);
    assert_eq!(chosen(&both, &limited(0)), [2]);
    assert_eq!(chosen(&both[..1], &wish()), [1], "without a limit");
    let refused = choose(&both[..1], &limited(3047), 7).unwrap_err();
    assert_eq!(refused, NoChoice::TooExpensive { cheapest: 3048, max_price: 3047 });
    assert!(refused.to_string().contains("3047"), "{refused}");
}

/// A node that served and was measured.
fn proven(turns: f64, first_token_ms: f64, rate: f64) -> Evidence {
    let speed = Speed { turns, first_token_ms, tokens_per_second: Some(rate) };
    Evidence { served: turns, speed: Some(speed), ..Evidence::default() }
}

/// The probability of each node, by the first byte of its id.
fn shares(candidates: &[Candidate<'_>], wish: &Wish<'_>) -> Vec<(u8, f64)> {
    let mut shares: Vec<(u8, f64)> = Vec::new();
    for row in weigh(candidates, wish) {
        let Verdict::Ranked(ranked) = row.verdict else { continue };
        match shares.last_mut().filter(|(node, _)| *node == row.record.node.0[0]) {
            Some((_, share)) => *share += ranked.share,
            None => shares.push((row.record.node.0[0], ranked.share)),
        }
    }
    shares
}

fn share(candidates: &[Candidate<'_>], wish: &Wish<'_>, node: u8) -> f64 {
    shares(candidates, wish).into_iter().filter(|(id, _)| *id == node).map(|(_, share)| share).sum()
}

fn records(count: u8) -> Vec<NodeRecord> {
    (1..=count).map(|id| record(id, &[("small", EngineKind::Native)])).collect()
}

fn behind_of(candidates: &[Candidate<'_>], wish: &Wish<'_>, node: u8) -> Option<Behind> {
    weigh(candidates, wish).into_iter().find(|row| row.record.node.0[0] == node).and_then(|row| {
        match row.verdict {
            Verdict::Ranked(ranked) => ranked.behind,
            Verdict::Excluded(exclusion) => panic!("{exclusion:?}"),
        }
    })
}

#[test]
fn asks_failed_nodes_only_when_there_is_no_other() {
    let records = records(2);
    let paused = |record, until| Candidate {
        evidence: Evidence { paused_until_ms: until, ..Evidence::default() },
        ..candidate(record)
    };
    let (avoided, longer) = (paused(&records[0], NOW + 5), paused(&records[1], NOW + 9));
    assert_eq!(chosen(&[avoided, candidate(&records[1])], &wish()), [2]);
    assert_eq!(chosen(&[avoided, longer], &wish()), [1], "the one that is free again soonest");
    let over = paused(&records[0], NOW);
    assert_eq!(chosen(&[over, candidate(&records[1])], &wish()), [1, 2]);
    let tried = [NodeId([1; 32])];
    let wish = Wish { tried: &tried, ..wish() };
    assert_eq!(chosen(&[candidate(&records[0]), longer], &wish), [2]);
    assert_eq!(chosen(&[candidate(&records[0])], &wish), [1]);
}

#[test]
fn a_gone_node_comes_after_one_that_failed_and_a_liar_after_one_that_failed_twice() {
    let records = records(3);
    let liar = Candidate {
        evidence: Evidence { lied_until_ms: NOW + 1, ..proven(50.0, 1.0, 1000.0) },
        ..candidate(&records[0])
    };
    let gone = Candidate { gone: true, ..candidate(&records[1]) };
    let honest = candidate(&records[2]);
    let all = [liar, gone, honest];
    let once = NodeId([3; 32]);
    assert_eq!(chosen(&all, &wish()), [3]);
    assert_eq!(chosen(&all, &Wish { tried: &[once], ..wish() }), [3], "a hiccup is better than nobody");
    assert_eq!(chosen(&all, &Wish { tried: &[once, once], ..wish() }), [2]);
    let tried = [once, once, NodeId([2; 32])];
    assert_eq!(chosen(&all, &Wish { tried: &tried, ..wish() }), [1], "nobody else is left to ask");
    let tried = [once, once, NodeId([2; 32]), NodeId([1; 32])];
    assert_eq!(chosen(&all, &Wish { tried: &tried, ..wish() }), [2, 3], "and then once");
    assert_eq!(chosen(&all, &Wish { node: Some(NodeId([1; 32])), ..wish() }), [1], "named by the user");
    assert_eq!(behind_of(&all, &wish(), 1), Some(Behind::Lied { until_ms: NOW + 1 }));
    assert_eq!(behind_of(&all, &wish(), 2), Some(Behind::Gone));
    assert_eq!(behind_of(&all, &wish(), 3), None);
    let past = Candidate { evidence: Evidence { lied_until_ms: NOW, ..liar.evidence }, ..liar };
    assert!(share(&[past, honest], &wish(), 1) > 0.3, "after its time");
}

#[test]
fn own_turns_there_and_busy_answers_move_the_draw_elsewhere() {
    let records = records(3);
    let loaded = Candidate { in_flight: 1, ..candidate(&records[0]) };
    let full = Candidate { in_flight: 9, ..candidate(&records[1]) };
    let busy =
        Candidate { evidence: Evidence { busy: 1.0, ..Evidence::default() }, ..candidate(&records[1]) };
    let free = candidate(&records[2]);
    let wish = wish();
    assert!(share(&[loaded, free], &wish, 1) < share(&[loaded, free], &wish, 3));
    assert_eq!(behind_of(&[full, free], &wish, 2), Some(Behind::Score));
    assert!((share(&[busy, free], &wish, 2) - 1.0 / 3.0).abs() < 0.01);
}

#[test]
fn fast_nodes_are_preferred_slow_ones_left_and_one_slow_answer_is_forgiven() {
    let records = records(4);
    let node = |index: usize, evidence| Candidate { evidence, ..candidate(&records[index]) };
    let usual = proven(10.0, 500.0, 40.0);
    let all = [
        node(0, usual),
        node(1, proven(10.0, 400.0, 80.0)),
        node(2, proven(10.0, 8000.0, 5.0)),
        node(3, proven(1.0, 8000.0, 5.0)),
    ];
    let wish = wish();
    assert!(share(&all, &wish, 2) > share(&all, &wish, 1));
    assert_eq!(behind_of(&all, &wish, 3), Some(Behind::Score), "ten slow answers");
    assert!(share(&all, &wish, 4) > 0.0, "one slow answer");
}

#[test]
fn a_node_that_fails_often_leaves_the_draw_and_one_failure_changes_little() {
    let records = records(3);
    let failing = |index: usize, served, failed| Candidate {
        evidence: Evidence { served, failed, ..Evidence::default() },
        ..candidate(&records[index])
    };
    let all = [failing(0, 20.0, 0.0), failing(1, 20.0, 1.0), failing(2, 10.0, 10.0)];
    let wish = wish();
    let (good, hiccup) = (share(&all, &wish, 1), share(&all, &wish, 2));
    assert!(hiccup > good * 0.8, "{good} {hiccup}");
    assert_eq!(behind_of(&all, &wish, 3), Some(Behind::Score));
    let unproven = [failing(0, 20.0, 0.0), failing(1, 0.0, 1.0)];
    assert!(share(&unproven, &wish, 2) > 0.2, "the first failure of an unproven node");
}

#[test]
fn the_node_that_served_last_is_preferred_but_never_alone() {
    let records = records(4);
    let all: Vec<_> = records
        .iter()
        .map(|record| Candidate { evidence: proven(5.0, 500.0, 40.0), ..candidate(record) })
        .collect();
    let warm = Wish { warm: Some(NodeId([2; 32])), ..wish() };
    let before = share(&all, &wish(), 2);
    assert!((before - 0.25).abs() < 1e-9);
    assert!((share(&all, &warm, 2) - 0.4).abs() < 1e-9, "twice the weight of the others");
    assert!(share(&all[..2], &warm, 2) <= MAX_SHARE + 1e-9);
    assert!(
        all.iter().all(|one| behind_of(&all, &warm, one.record.node.0[0]).is_none()),
        "nobody is driven out"
    );
}

#[test]
fn prices_within_the_limit_matter_and_never_decide() {
    let mut records = records(2);
    (records[1].models[0].output_price, records[1].models[0].input_price) = (10_000, 1000);
    let wish = Wish { output_tokens: 100, max_price: Some(3048), ..wish() };
    let all: Vec<_> = records.iter().map(candidate).collect();
    let dear = share(&all, &wish, 2);
    assert!(dear > 0.35 && dear < 0.4, "{dear}");
}

/// Evidence of any kind, within the limits of a reputation table.
fn evidence() -> impl Strategy<Value = Evidence> {
    let speed = (0.02..10.0f64, 1.0..60_000.0f64, proptest::option::of(0.1..10_000.0f64)).prop_map(
        |(turns, first_token_ms, tokens_per_second)| Speed { turns, first_token_ms, tokens_per_second },
    );
    let until = prop_oneof![Just(0), NOW - 1000..NOW + 100_000];
    (0.0..50.0f64, 0.0..50.0f64, 0.0..9.0f64, proptest::option::of(speed), until.clone(), until).prop_map(
        |(served, failed, busy, speed, paused_until_ms, lied_until_ms)| Evidence {
            served,
            failed,
            busy,
            speed,
            paused_until_ms,
            lied_until_ms,
        },
    )
}

/// A node of any kind: record, turns in flight, presence, evidence.
fn any_node() -> impl Strategy<Value = (NodeRecord, u32, bool, Evidence)> {
    let engine = prop_oneof![
        Just(EngineKind::Native),
        Just(EngineKind::Library),
        Just(EngineKind::Proxied),
        Just(EngineKind::Echo)
    ];
    let offers = (prop_oneof![Just("small"), Just("larger")], engine, 0..5000u64, 0..5000u64);
    (
        1..40u8,
        proptest::collection::vec(offers, 0..3),
        (NOW - 500..NOW + 1000, 0..3u8, 0..2000u32),
        0..12u32,
        any::<bool>(),
        evidence(),
    )
        .prop_map(|(id, offers, (expires_ms, version, slots), in_flight, gone, evidence)| {
            let mut made = record(id, &[]);
            (made.expires_ms, made.versions, made.limits.slots) = (expires_ms, vec![version], slots);
            for (name, engine, input_price, output_price) in offers {
                made.models.push(ModelOffer { input_price, output_price, ..offer(name, engine) });
            }
            (made, in_flight, gone, evidence)
        })
}

type AnyNode = (NodeRecord, u32, bool, Evidence);

fn candidates_of(nodes: &[AnyNode]) -> Vec<Candidate<'_>> {
    let mut seen = std::collections::HashSet::new();
    let fresh = nodes.iter().filter(|(record, ..)| seen.insert(record.node));
    fresh
        .map(|(record, in_flight, gone, evidence)| Candidate {
            record,
            in_flight: *in_flight,
            gone: *gone,
            evidence: *evidence,
        })
        .collect()
}

proptest! {
    #[test]
    fn the_choice_is_one_for_a_seed_in_whatever_order(
        nodes in proptest::collection::vec(any_node(), 0..12),
        random: u64,
    ) {
        let mut candidates = candidates_of(&nodes);
        let first = choose(&candidates, &wish(), random);
        prop_assert_eq!(&first, &choose(&candidates, &wish(), random));
        candidates.reverse();
        prop_assert_eq!(first, choose(&candidates, &wish(), random));
    }

    #[test]
    fn the_choice_is_never_outside_the_hard_conditions(
        nodes in proptest::collection::vec(any_node(), 0..12),
        random: u64,
        max_price in 0..20_000u64,
        allow_echo: bool,
        named in proptest::option::of(1..40u8),
        model in proptest::option::of(prop_oneof![Just("small"), Just("larger")]),
        tried in proptest::collection::vec(1..40u8, 0..4),
    ) {
        let candidates = candidates_of(&nodes);
        let tried: Vec<NodeId> = tried.into_iter().map(|id| NodeId([id; 32])).collect();
        let wish = Wish {
            model,
            node: named.map(|id| NodeId([id; 32])),
            allow_echo,
            output_tokens: 100,
            max_price: Some(max_price),
            tried: &tried,
            ..wish()
        };
        if let Ok(choice) = choose(&candidates, &wish, random) {
            let chosen = candidates.iter().find(|candidate| candidate.record.node == choice.node).unwrap();
            prop_assert!(chosen.record.current_key(NOW) == Ok(&choice.key));
            prop_assert!(chosen.record.versions.contains(&1));
            prop_assert!(chosen.record.models.contains(&choice.offer));
            prop_assert!(choice.highest_price(100) <= max_price);
            prop_assert!(allow_echo || choice.offer.engine != EngineKind::Echo);
            prop_assert!(wish.node.is_none_or(|node| node == choice.node));
            prop_assert!(wish.model.is_none_or(|model| model == choice.offer.name));
            let lied = |candidate: &Candidate<'_>| candidate.evidence.lied_until_ms > NOW;
            if lied(chosen) {
                // Then every honest node that answers failed twice in this turn.
                for other in &candidates {
                    let failures = tried.iter().filter(|node| **node == other.record.node).count();
                    let better = !lied(other) && !other.gone && failures < 2;
                    let share = share(&[*other], &wish, other.record.node.0[0]);
                    prop_assert!(!better || share == 0.0, "{:?}", other.record.node);
                }
            }
        }
    }

    #[test]
    fn shares_add_up_and_are_bounded(nodes in proptest::collection::vec(any_node(), 1..12)) {
        let candidates = candidates_of(&nodes);
        let wish = Wish { allow_echo: true, output_tokens: 100, ..wish() };
        let shares: Vec<_> =
            shares(&candidates, &wish).into_iter().filter(|(_, share)| *share > 0.0).collect();
        let total: f64 = shares.iter().map(|(_, share)| share).sum();
        prop_assert!(shares.is_empty() || (total - 1.0).abs() < 1e-9);
        if shares.len() > 1 {
            prop_assert!(shares.iter().all(|(_, share)| *share <= MAX_SHARE + 1e-9), "{:?}", shares);
        }
        let served = |id: u8| {
            let of = candidates.iter().find(|candidate| candidate.record.node.0[0] == id).unwrap();
            of.evidence.served >= 0.5
        };
        let new: f64 = shares.iter().filter(|(id, _)| !served(*id)).map(|(_, share)| share).sum();
        if shares.iter().any(|(id, _)| served(*id)) {
            prop_assert!(new <= UNPROVEN_SHARE + 1e-9, "{new}");
        }
    }

    #[test]
    fn a_node_that_claims_wonders_gains_nothing(
        others in proptest::collection::vec(evidence(), 1..8),
        own in evidence(),
        in_flight in 0..9u32,
        slots in BELIEVED_SLOTS..u32::MAX,
        max_output_tokens in 512..u32::MAX,
        context_tokens in 2048..u32::MAX,
        repeated in 1..5usize,
    ) {
        let count = u8::try_from(others.len()).unwrap();
        let mut records = records(count + 1);
        for record in &mut records {
            record.limits.slots = BELIEVED_SLOTS;
        }
        let measured = |records: &[NodeRecord]| {
            let candidates: Vec<_> = records
                .iter()
                .zip(std::iter::once(&own).chain(&others))
                .map(|(record, evidence)| Candidate { in_flight, evidence: *evidence, ..candidate(record) })
                .collect();
            share(&candidates, &Wish { output_tokens: 100, ..wish() }, 1)
        };
        let plain = measured(&records);
        let boaster = &mut records[0];
        boaster.limits = NodeLimits { slots, queue: u32::MAX, turns_per_minute: u32::MAX, max_output_tokens };
        boaster.models[0].context_tokens = context_tokens;
        let offer = boaster.models[0].clone();
        boaster.models.extend(std::iter::repeat_n(offer, repeated));
        boaster.software = "the fastest of all".to_owned();
        boaster.sequence = u64::MAX;
        let boasted = measured(&records);
        prop_assert!((plain - boasted).abs() < 1e-9, "{plain} {boasted}");
    }

    #[test]
    fn an_unproven_node_of_ordinary_speed_is_always_in_the_draw(
        others in proptest::collection::vec(evidence(), 1..8),
        dear in 0..1_000_000u64,
    ) {
        let count = u8::try_from(others.len()).unwrap();
        let mut records = records(count + 1);
        records[0].models[0].output_price = dear;
        let candidates: Vec<_> = records
            .iter()
            .zip(std::iter::once(&Evidence::default()).chain(&others))
            .map(|(record, evidence)| Candidate { evidence: *evidence, ..candidate(record) })
            .collect();
        let unproven = share(&candidates, &Wish { output_tokens: 100, ..wish() }, 1);
        prop_assert!(unproven > 0.0);
    }
}

#[test]
fn turns_and_embeddings_are_asked_of_offers_of_their_own_kind_alone() {
    let both = record(1, &[("small", EngineKind::Native), ("vectors", EngineKind::Embedding)]);
    let only = record(2, &[("vectors", EngineKind::Embedding)]);
    let all = [candidate(&both), candidate(&only)];
    let embeddings = Wish { embeddings: true, ..wish() };
    for random in (0..64).map(|step| step << 58) {
        let turn = choose(&all, &wish(), random).unwrap();
        assert_eq!((turn.node, turn.offer.name.as_str()), (both.node, "small"));
        assert_eq!(choose(&all, &embeddings, random).unwrap().offer.name, "vectors");
    }
    let named = |model| Wish { model: Some(model), ..wish() };
    let unavailable = |wanted: &str, served: &str| {
        Err(NoChoice::ModelUnavailable { wanted: wanted.to_owned(), served: served.to_owned() })
    };
    assert_eq!(choose(&all, &named("vectors"), 0), unavailable("vectors", "small"));
    let of_turns = Wish { embeddings: true, ..named("small") };
    assert_eq!(choose(&all, &of_turns, 0), unavailable("small", "vectors"));
    assert_eq!(choose(&all[1..], &wish(), 0), unavailable("any", "none"));
}
