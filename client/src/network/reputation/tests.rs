//! The table after various events, and its file.

use std::os::unix::fs::PermissionsExt as _;

use baton_keys::files::FileSecret;

use super::{
    file::{FILE, ReputationFile},
    *,
};

const NOW: u64 = 1_000_000_000_000;
const MINUTE: u64 = 60_000;

fn node(number: usize) -> NodeId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
    NodeId(bytes)
}

fn fast() -> Option<SpeedSample> {
    Some(SpeedSample { first_token: Some(Duration::from_millis(200)), tokens_per_second: Some(50.0) })
}

/// The file of a new home, and the home.
fn file() -> (tempfile::TempDir, ReputationFile) {
    let home = tempfile::tempdir().unwrap();
    let file = ReputationFile::new(home.path(), &FileSecret::from_bytes([5; 32]));
    (home, file)
}

/// Pauses of a node after these faults, in quick succession.
fn pauses(faults: &[NodeFailure]) -> Vec<u64> {
    let mut table = Reputation::default();
    let pause = |fault: &NodeFailure| {
        table.failed(node(1), *fault, 0, NOW);
        table.evidence(node(1), NOW).paused_until_ms - NOW
    };
    faults.iter().map(pause).collect()
}

#[test]
fn pauses_grow_by_what_a_node_did() {
    assert_eq!(
        pauses(&[NodeFailure::Unreachable; 7]),
        [5000, 10_000, 20_000, 40_000, 80_000, 120_000, 120_000]
    );
    assert_eq!(pauses(&[NodeFailure::Busy; 3]), [1000, 2000, 4000]);
    let minutes: Vec<u64> = pauses(&[NodeFailure::Stalled; 8]).iter().map(|pause| pause / MINUTE).collect();
    assert_eq!(minutes, [1, 2, 4, 8, 16, 32, 60, 60]);
    let mut table = Reputation::default();
    table.failed(node(1), NodeFailure::Busy, 30_000, NOW);
    assert_eq!(table.evidence(node(1), NOW).paused_until_ms, NOW + 30_000, "as long as it asks for");
    table.failed(node(2), NodeFailure::Busy, u64::from(u32::MAX), NOW);
    assert_eq!(table.evidence(node(2), NOW).paused_until_ms, NOW + MAX_PAUSE_MS, "but not for ever");
}

#[test]
fn a_hiccup_is_over_when_the_node_serves_and_a_lie_is_not() {
    let mut table = Reputation::default();
    table.failed(node(1), NodeFailure::Stalled, 0, NOW);
    table.served(node(1), None, NOW + 1);
    let evidence = table.evidence(node(1), NOW + 1);
    assert_eq!((evidence.paused_until_ms, evidence.lied_until_ms), (0, 0));
    table.failed(node(1), NodeFailure::Lied, 0, NOW);
    table.served(node(1), fast(), NOW + 1);
    let evidence = table.evidence(node(1), NOW + 1);
    assert_eq!(evidence.lied_until_ms, NOW + 24 * 60 * MINUTE);
}

#[test]
fn a_node_that_stalls_now_and_then_pauses_longer_each_time_though_it_serves_between() {
    let mut table = Reputation::default();
    for _ in 0..3 {
        table.failed(node(1), NodeFailure::Stalled, 0, NOW);
        table.served(node(1), None, NOW);
    }
    table.failed(node(1), NodeFailure::Stalled, 0, NOW);
    assert_eq!(table.evidence(node(1), NOW).paused_until_ms, NOW + 8 * MINUTE);
    // Two days later that is long ago.
    let later = NOW + 48 * 60 * MINUTE;
    table.failed(node(1), NodeFailure::Stalled, 0, later);
    assert_eq!(table.evidence(node(1), later).paused_until_ms, later + MINUTE);
}

#[test]
fn what_was_seen_halves_in_its_half_life() {
    let mut table = Reputation::default();
    for _ in 0..4 {
        table.served(node(1), fast(), NOW);
    }
    table.failed(node(1), NodeFailure::Busy, 0, NOW);
    let later = table.evidence(node(1), NOW + HALF_LIFE_MS);
    assert!((later.served - 2.0).abs() < 1e-9);
    let speed = later.speed.unwrap();
    assert!((speed.turns - 2.0).abs() < 1e-9);
    assert!((speed.first_token_ms - 200.0).abs() < 1e-9, "a mean does not fade, only its weight");
    let soon = table.evidence(node(1), NOW + BUSY_HALF_LIFE_MS);
    assert!((soon.busy - 0.5).abs() < 1e-6);
    assert_eq!(table.evidence(node(2), NOW), Evidence::default(), "a node never asked");
    assert!(table.evidence(node(1), NOW - HALF_LIFE_MS).served <= 4.0, "a clock that goes back adds nothing");
}

#[test]
fn newer_speeds_count_more() {
    let mut table = Reputation::default();
    let rate = |rate| Some(SpeedSample { tokens_per_second: Some(rate), ..fast().unwrap() });
    for _ in 0..100 {
        table.served(node(1), rate(100.0), NOW);
    }
    for _ in 0..20 {
        table.served(node(1), rate(10.0), NOW);
    }
    let speed = table.evidence(node(1), NOW).speed.unwrap();
    assert!(speed.tokens_per_second.unwrap() < 45.0, "{speed:?}");
}

#[test]
fn the_table_is_bounded_and_a_liar_is_not_forgotten_by_asking_others() {
    let mut table = Reputation::default();
    table.failed(node(0), NodeFailure::Lied, 0, NOW);
    for number in 1..2 * MAX_NODES {
        table.served(node(number), None, NOW + number as u64);
    }
    let last = NOW + 2 * MAX_NODES as u64;
    assert_eq!(table.nodes.len(), MAX_NODES);
    assert!(table.evidence(node(0), last).lied_until_ms > last);
    assert!(table.evidence(node(2 * MAX_NODES - 1), last).served > 0.9);
    assert_eq!(table.evidence(node(1), last), Evidence::default(), "the one not asked for longest");
    for number in 0..2 * MAX_WARM {
        table.note_warm(node(number).0, NOW + number as u64);
    }
    assert_eq!(table.warm.len(), MAX_WARM);
    for number in 0..2 * MAX_MODEL_NAMES {
        table.note_model(ModelId(node(number).0), "a model");
    }
    assert_eq!(table.models.len(), MAX_MODEL_NAMES);
    table.note_model(ModelId(node(0).0), "a\u{1b}[2Jmodel");
    assert_eq!(table.model_name(ModelId(node(0).0)), Some("a model"), "no control characters");
}

#[test]
fn a_node_with_a_proved_lie_is_avoided_for_a_month_whatever_comes_after() {
    for fault in [NodeFailure::Equivocated, NodeFailure::Contradicted] {
        avoided_for_a_month(fault);
    }
}

fn avoided_for_a_month(fault: NodeFailure) {
    let (mut table, day) = (Reputation::default(), LIED_MS);
    table.failed(node(1), fault, 0, NOW);
    table.failed(node(1), NodeFailure::CutOff, 0, NOW + 1);
    table.failed(node(1), NodeFailure::Lied, 0, NOW + 2);
    table.served(node(1), None, NOW + 3);
    assert_eq!(table.last_fault(node(1)), Some(fault), "not covered by later ones");
    assert_eq!(table.evidence(node(1), NOW + 29 * day).lied_until_ms, NOW + 30 * day);
    let (_home, file) = file();
    file.write(&table, NOW + 4).unwrap();
    let mut read = file.load(NOW + 4);
    assert_eq!(read.evidence(node(1), NOW).lied_until_ms, NOW + 30 * day, "also from the disk");
    let mut other = Reputation::default();
    other.failed(node(1), NodeFailure::CutOff, 0, NOW + 9);
    read.merge(other, NOW + 10);
    assert_eq!(read.last_fault(node(1)), Some(fault), "whatever another process saw later");
    assert!(read.evidence(node(1), NOW + 10).lied_until_ms > NOW + 29 * day);
    table.failed(node(1), NodeFailure::CutOff, 0, NOW + 31 * day);
    assert_eq!(table.last_fault(node(1)), Some(NodeFailure::CutOff), "after its time");
}

/// A table with entries of every kind.
fn full() -> Reputation {
    let mut table = Reputation::default();
    table.served(node(1), fast(), NOW);
    table.failed(node(2), NodeFailure::Lied, 0, NOW);
    table.note_warm([7; 32], NOW);
    table.note_model(ModelId([3; 32]), "parrot");
    table
}

#[test]
fn the_file_is_sealed_private_and_read_back() {
    let (home, file) = file();
    assert_eq!(file.load(NOW), Reputation::default(), "no file is no trouble");
    file.write(&full(), NOW).unwrap();
    assert_eq!(file.load(NOW), full());
    let path = home.path().join(FILE);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let bytes = std::fs::read(&path).unwrap();
    for told in ["parrot", "served", &node(1).to_string()] {
        assert!(!bytes.windows(told.len()).any(|window| window == told.as_bytes()), "{told}");
    }
}

#[test]
fn a_damaged_file_is_quarantined() {
    let (home, file) = file();
    let other = ReputationFile::new(home.path(), &FileSecret::from_bytes([6; 32]));
    let path = home.path().join(FILE);
    let damage: [&dyn Fn(); 4] = [
        &|| std::fs::write(&path, b"nonsense").unwrap(),
        &|| std::fs::write(&path, b"").unwrap(),
        &|| other.write(&full(), NOW).unwrap(),
        &|| std::fs::write(&path, vec![0; 2 << 20]).unwrap(),
    ];
    for (index, damage) in damage.into_iter().enumerate() {
        damage();
        assert_eq!(file.load(NOW), Reputation::default());
        assert!(!path.exists());
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), index + 1, "what was there is kept");
        file.write(&full(), NOW).unwrap();
        assert_eq!(file.load(NOW), full());
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_clock_that_was_wrong_bans_nobody_for_ever() {
    let (_home, file) = file();
    let years = NOW + 1_000_000 * MINUTE;
    let mut table = Reputation::default();
    table.failed(node(1), NodeFailure::Lied, 0, years);
    table.failed(node(2), NodeFailure::Stalled, 0, years);
    table.note_warm([7; 32], years);
    file.write(&table, years).unwrap();
    let table = file.load(NOW);
    assert_eq!(table.evidence(node(1), NOW).lied_until_ms, NOW + LIED_MS);
    assert!(table.evidence(node(2), NOW).paused_until_ms <= NOW + MAX_STALL_PAUSE_MS);
    assert!(!table.is_warm(&[7; 32], NOW + WARM_MS));
}

#[test]
fn two_processes_keep_the_later_word_and_the_longer_avoidance() {
    let mut ours = Reputation::default();
    ours.served(node(1), None, NOW);
    ours.failed(node(2), NodeFailure::Lied, 0, NOW);
    let mut theirs = Reputation::default();
    theirs.failed(node(1), NodeFailure::Unreachable, 0, NOW + 5);
    theirs.served(node(2), None, NOW + 5);
    theirs.served(node(3), None, NOW + 5);
    ours.merge(theirs, NOW + 5);
    let now = NOW + 5;
    assert!(ours.evidence(node(1), now).failed > 0.9 && ours.evidence(node(1), now).served < 0.1);
    assert!(ours.evidence(node(2), now).served > 0.9);
    assert_eq!(ours.evidence(node(2), now).lied_until_ms, NOW + LIED_MS);
    assert!(ours.evidence(node(3), now).served > 0.9);
}
