mod classifier;

use baton_keys::files::FileSecret;

use super::*;

const MODEL: ModelId = ModelId([7; 32]);
const PAUSE: Duration = Duration::from_secs(60);

fn node(number: u8) -> NodeId {
    NodeId([number; 32])
}

fn shape(seq: u64, bytes: u32) -> TurnShape {
    TurnShape {
        model: MODEL,
        seq,
        bytes,
        system_bytes: 0,
        temperature: 0.5,
        top_p: 1.0,
        top_k: 0,
        repetition_penalty: 1.0,
        logprobs: 0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seeded: true,
        max_output_tokens: 256,
        pause_ms: if seq == 0 { 0 } else { 10_000 },
    }
}

fn ledger(turns: &[(u8, u64, u64, u32)]) -> DecoyLedger {
    let mut ledger = DecoyLedger::default();
    for (number, tokens, seq, bytes) in turns {
        ledger.note_turn(node(*number), *tokens, Some(shape(*seq, *bytes)));
    }
    ledger
}

#[test]
fn decoys_use_their_share_and_a_bounded_advance() {
    let mut ledger = DecoyLedger::default();
    assert!(!ledger.is_due(30), "there is no turn to imitate");
    ledger.note_turn(node(1), 100_000, Some(shape(0, 40)));
    assert!(ledger.is_due(30) && !ledger.is_due(0));
    assert_eq!(ledger.totals().credit(30), 3_000 + 16_384);
    ledger.note_decoy_turn(7_000, 5);
    assert!(ledger.is_due(30));
    ledger.note_decoy_turn(12_384, 5);
    assert!(!ledger.is_due(30), "the share is used up");
    assert_eq!(
        ledger.totals(),
        DecoyTotals {
            real_tokens: 100_000,
            decoy_tokens: 19_384,
            price: 10,
            turns: 2,
            ..DecoyTotals::default()
        }
    );
    ledger.note_turn(node(1), 1_000, None);
    assert!(ledger.is_due(30), "the owner's turns pay for more");
    ledger.note_decoy_turn(u64::MAX, u64::MAX);
    assert_eq!(ledger.totals().credit(MAX_DECOY_SHARE), i64::MIN);
    let most = DecoyTotals { real_tokens: u64::MAX, ..DecoyTotals::default() };
    assert_eq!(most.credit(u32::MAX), most.credit(MAX_DECOY_SHARE), "no share is larger");
}

#[test]
fn two_turns_of_the_owner_pass_between_decoys_of_the_background() {
    let mut ledger = DecoyLedger::default();
    for _ in 0..3 {
        assert!(!ledger.is_time());
        ledger.note_turn(node(1), 10, Some(shape(0, 40)));
        assert!(!ledger.is_time());
        ledger.note_turn(node(1), 10, Some(shape(1, 40)));
        assert!(ledger.is_time());
        ledger.note_decoy_turn(10, 0);
        ledger.note_start();
    }
}

#[test]
fn unchecked_nodes_come_first_and_those_with_most_tokens_among_them() {
    let mut draws = Draws::of(3);
    let mut ledger = ledger(&[(1, 100, 0, 40), (2, 900, 0, 40), (3, 500, 0, 40)]);
    let all = || vec![node(1), node(2), node(3), node(4)];
    assert_eq!(ledger.order_to_check(all(), &mut draws), [node(2), node(3), node(1), node(4)]);
    ledger.note_agreement(node(2), 5);
    ledger.note_agreement(node(3), 5);
    ledger.note_agreement(node(3), 6);
    assert_eq!(ledger.order_to_check(all(), &mut draws)[0], node(1));
    ledger.note_turn(node(2), 10_000, None);
    assert_eq!(ledger.order_to_check(all(), &mut draws)[..2], [node(1), node(2)], "never checked first");
    assert_eq!(ledger.order_to_decide(all(), &mut draws)[..2], [node(3), node(2)]);
    // Nodes of equal rank come in any order.
    let firsts: std::collections::BTreeSet<NodeId> = (0..64)
        .filter_map(|_| ledger.order_to_check(vec![node(8), node(9)], &mut draws).first().copied())
        .collect();
    assert_eq!(firsts.len(), 2);
}

#[test]
fn a_plan_has_the_shape_of_the_owners_turns() {
    let mut draws = Draws::of(9);
    assert_eq!(DecoyLedger::default().plan(PAUSE, &mut draws), None);
    // Sessions of two turns: short questions, and long ones after them.
    let turns: Vec<_> = (0..40).map(|turn| (1, 10, turn % 2, if turn % 2 == 0 { 60 } else { 600 })).collect();
    let ledger = ledger(&turns);
    for _ in 0..100 {
        let plan = ledger.plan(PAUSE, &mut draws).unwrap();
        assert_eq!((plan.model, plan.turns.len(), plan.max_output_tokens), (MODEL, 2, 256));
        let lengths: Vec<usize> = plan.turns.iter().map(|turn| turn.text.len()).collect();
        assert!((20..70).contains(&lengths[0]) && (530..610).contains(&lengths[1]), "{lengths:?}");
        assert_eq!((plan.turns[0].pause, plan.turns[1].pause), (Duration::ZERO, Duration::from_secs(10)));
        assert!(plan.sampling.check().is_ok() && plan.sampling.seed != 0 && plan.system.is_empty());
    }
    // Half of the sessions have a second turn.
    let turns: Vec<_> = (0..60).map(|turn| (1, 10, u64::from(turn % 3 == 2), 60)).collect();
    let ledger = super::tests::ledger(&turns);
    let two = (0..1_000).filter(|_| ledger.plan(PAUSE, &mut draws).unwrap().turns.len() == 2).count();
    assert!((420..580).contains(&two), "{two} of 1,000");
    let mut one = DecoyLedger::default();
    let system = TurnShape { system_bytes: 90, seeded: false, ..shape(0, 40) };
    one.note_turn(node(1), 10, Some(system));
    let plan = one.plan(PAUSE, &mut draws).unwrap();
    assert!((60..100).contains(&plan.system[0].text.len()) && plan.sampling.seed == 0, "{plan:?}");
}

#[test]
fn the_ledger_is_bounded() {
    let mut ledger = DecoyLedger::default();
    for number in 0..1_000_u64 {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&number.to_le_bytes());
        ledger.note_turn(NodeId(id), 1_000 - number, Some(shape(number, 40)));
    }
    assert_eq!((ledger.nodes.len(), ledger.shapes.len()), (MAX_NODES, MAX_SHAPES));
    let oldest = ledger.shapes.front().unwrap().seq;
    assert_eq!(oldest, 1_000 - MAX_SHAPES as u64);
}

#[test]
fn two_processes_of_a_home_add_up_and_a_damaged_file_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let secret = FileSecret::generate();
    let file = || DecoyFile::new(folder.path(), &secret);
    let open = || DecoyAccount::new(DecoyPolicy::default(), Some(file()), file().load());
    let (one, other) = (open(), open());
    one.note_turn(node(1), 1_000, Some(shape(0, 40)));
    other.note_turn(node(2), 500, Some(shape(0, 40)));
    other.ledger().note_decoy_turn(70, 3);
    one.save();
    other.save();
    other.save();
    one.save();
    let stored = file().load();
    let expected =
        DecoyTotals { real_tokens: 1_500, decoy_tokens: 70, price: 3, turns: 1, ..DecoyTotals::default() };
    assert_eq!(stored.totals(), expected);
    assert_eq!((stored.nodes.len(), stored.shapes.len()), (2, 1));
    let path = folder.path().join("decoys");
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(file().load(), DecoyLedger::default());
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(!text.contains("shapes"), "it is sealed");
    let off = DecoyAccount::new(DecoyPolicy::off(), None, DecoyLedger::default());
    off.note_turn(node(1), 9, Some(shape(0, 40)));
    assert_eq!(off.ledger().totals(), DecoyTotals::default(), "without decoys nothing is recorded");
}
