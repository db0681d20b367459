//! Classifiers on the shape of turns, as nodes see it, hardly tell decoys from the owner's turns. They are trained on
//! the turns of some owners and tested on those of others: boosted stumps, and the nearest neighbours.
#![expect(clippy::cast_possible_truncation, reason = "the numbers of the simulation are small")]

use super::{
    super::{DecoyLedger, TurnShape, draws::Draws},
    MODEL, PAUSE, node,
};

const OWNERS: u64 = 240;
const TURNS: u64 = 90;
/// Turns before the first decoy.
const BEFORE_DECOYS: u64 = 30;
/// The owner's turns for each turn of a decoy. Real budgets send fewer; the classifiers get more to learn from.
const TURNS_PER_DECOY_TURN: u64 = 4;
const FEATURES: usize = 9;
const ROUNDS: usize = 60;
const NEIGHBOURS: usize = 25;
/// The largest share of right guesses, where 0.5 is a coin's.
const MOST_RIGHT: f64 = 0.55;

/// A turn as its node sees it: position, bytes of the message, of the session so far and of the system text,
/// pause, temperature, whether it has a seed, output limit, and number of messages in the prompt.
type Features = [f64; FEATURES];

struct Observation {
    features: Features,
    is_decoy: bool,
}

fn features(shape: &TurnShape, bytes_before: f64) -> Features {
    [
        shape.seq as f64,
        f64::from(shape.bytes),
        bytes_before,
        f64::from(shape.system_bytes),
        shape.pause_ms as f64,
        f64::from(shape.temperature),
        f64::from(u8::from(shape.seeded)),
        f64::from(shape.max_output_tokens),
        (2 * shape.seq + 1) as f64 + f64::from(u8::from(shape.system_bytes > 0)),
    ]
}

fn unit(draws: &mut Draws) -> f64 {
    draws.below(1 << 20) as f64 / f64::from(1 << 20)
}

/// A number around `median`, most of them within a factor of `spread`.
fn around(median: f64, spread: f64, draws: &mut Draws) -> f64 {
    let bell: f64 = (0..6).map(|_| unit(draws) - 0.5).sum();
    median * (bell * spread.ln() * 1.4).exp()
}

/// The turns of one owner and of the decoys between them.
fn owner(draws: &mut Draws) -> Vec<Observation> {
    let (median_bytes, goes_on) = (around(60.0, 2.5, draws), 0.4 + 0.45 * unit(draws));
    let settings = TurnShape {
        model: MODEL,
        seq: 0,
        bytes: 0,
        system_bytes: if draws.happens(1, 4) { around(120.0, 2.0, draws) as u32 } else { 0 },
        temperature: draws.one_of(&[0.0, 0.7, 0.8, 1.0]).unwrap(),
        top_p: 1.0,
        top_k: 0,
        repetition_penalty: 1.0,
        logprobs: 0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seeded: draws.happens(2, 3),
        max_output_tokens: draws.one_of(&[256, 1024, 2048]).unwrap(),
        pause_ms: 0,
    };
    let (mut ledger, mut seen) = (DecoyLedger::default(), Vec::new());
    let (mut seq, mut bytes_before, mut decoy_turns) = (0, 0.0, 0);
    for turn in 1..=TURNS {
        let first = seq == 0;
        let shape = TurnShape {
            seq,
            // Later messages are shorter.
            bytes: around(if first { median_bytes } else { median_bytes * 0.7 }, 2.5, draws)
                .clamp(2.0, 4000.0) as u32,
            pause_ms: if first { 0 } else { around(25_000.0, 3.0, draws).clamp(2_000.0, 59_000.0) as u64 },
            ..settings
        };
        seen.push(Observation { features: features(&shape, bytes_before), is_decoy: false });
        ledger.note_turn(node(1), 100, Some(shape));
        bytes_before += f64::from(shape.bytes);
        seq += 1;
        if unit(draws) > goes_on {
            (seq, bytes_before) = (0, 0.0);
        }
        while decoy_turns * TURNS_PER_DECOY_TURN < turn.saturating_sub(BEFORE_DECOYS) {
            let decoy = decoy(&ledger, &settings, draws);
            decoy_turns += decoy.len() as u64;
            seen.extend(decoy);
        }
    }
    seen
}

fn decoy(ledger: &DecoyLedger, settings: &TurnShape, draws: &mut Draws) -> Vec<Observation> {
    let plan = ledger.plan(PAUSE, draws).unwrap();
    let system: usize = plan.system.iter().map(|message| message.text.len()).sum();
    let mut bytes_before = 0.0;
    let mut seen = Vec::new();
    for (seq, turn) in plan.turns.iter().enumerate() {
        let shape = TurnShape {
            seq: seq as u64,
            bytes: u32::try_from(turn.text.len()).unwrap(),
            system_bytes: u32::try_from(system).unwrap(),
            temperature: plan.sampling.temperature,
            seeded: plan.sampling.seed != 0,
            max_output_tokens: plan.max_output_tokens,
            pause_ms: u64::try_from(turn.pause.as_millis()).unwrap(),
            ..*settings
        };
        seen.push(Observation { features: features(&shape, bytes_before), is_decoy: true });
        bytes_before += turn.text.len() as f64;
    }
    seen
}

/// As many decoys as real turns, of this many owners.
fn balanced(owners: u64, draws: &mut Draws) -> Vec<Observation> {
    let all: Vec<Observation> = (0..owners).flat_map(|_| owner(draws)).collect();
    let (decoys, mut real): (Vec<Observation>, Vec<Observation>) =
        all.into_iter().partition(|seen| seen.is_decoy);
    while real.len() > decoys.len() {
        let gone = draws.below(real.len());
        real.swap_remove(gone);
    }
    assert!(real.len() == decoys.len() && real.len() > 500, "{} and {}", real.len(), decoys.len());
    decoys.into_iter().chain(real).collect()
}

/// A guess by one feature and a limit; `sign` says which side is a decoy's.
#[derive(Clone, Copy)]
struct Stump {
    feature: usize,
    limit: f64,
    sign: f64,
    weight: f64,
}

impl Stump {
    fn guess(&self, features: &Features) -> f64 {
        if features[self.feature] > self.limit { self.sign } else { -self.sign }
    }
}

fn label(seen: &Observation) -> f64 {
    if seen.is_decoy { 1.0 } else { -1.0 }
}

/// Boosts stumps (AdaBoost, by Freund and Schapire).
fn boost(train: &[Observation]) -> Vec<Stump> {
    let mut limits: Vec<Vec<f64>> = Vec::new();
    for feature in 0..FEATURES {
        let mut values: Vec<f64> = train.iter().map(|seen| seen.features[feature]).collect();
        values.sort_by(f64::total_cmp);
        let mut chosen: Vec<f64> = (1..24).map(|part| values[part * values.len() / 24]).collect();
        chosen.dedup();
        limits.push(chosen);
    }
    let mut weights = vec![1.0 / train.len() as f64; train.len()];
    let mut stumps = Vec::new();
    for _ in 0..ROUNDS {
        let mut best = (0.5, Stump { feature: 0, limit: 0.0, sign: 1.0, weight: 0.0 });
        for (feature, limits) in limits.iter().enumerate() {
            for limit in limits {
                let stump = Stump { feature, limit: *limit, sign: 1.0, weight: 0.0 };
                let wrong: f64 = train
                    .iter()
                    .zip(&weights)
                    .filter(|(seen, _)| stump.guess(&seen.features) != label(seen))
                    .map(|(_, weight)| weight)
                    .sum();
                for (wrong, sign) in [(wrong, 1.0), (1.0 - wrong, -1.0)] {
                    if wrong < best.0 {
                        best = (wrong, Stump { sign, ..stump });
                    }
                }
            }
        }
        let (wrong, mut stump) = best;
        stump.weight = 0.5 * ((1.0 - wrong) / wrong.max(1e-9)).ln();
        for (seen, weight) in train.iter().zip(&mut weights) {
            *weight *= (-stump.weight * label(seen) * stump.guess(&seen.features)).exp();
        }
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
        stumps.push(stump);
    }
    stumps
}

/// The share of right guesses.
fn right(test: &[Observation], guess: impl Fn(&Features) -> f64) -> f64 {
    let right = test.iter().filter(|seen| guess(&seen.features) * label(seen) > 0.0).count();
    right as f64 / test.len() as f64
}

/// The spread of each feature.
fn spreads(train: &[Observation]) -> Vec<f64> {
    let spread = |feature: usize| {
        let mean = train.iter().map(|seen| seen.features[feature]).sum::<f64>() / train.len() as f64;
        let squares = train.iter().map(|seen| (seen.features[feature] - mean).powi(2)).sum::<f64>();
        (squares / train.len() as f64).sqrt().max(1e-9)
    };
    (0..FEATURES).map(spread).collect()
}

/// The most common label among the nearest turns, with features scaled to their spread.
fn nearest(train: &[Observation], spread: &[f64], features: &Features) -> f64 {
    let mut near: Vec<(f64, f64)> = train
        .iter()
        .map(|seen| {
            let apart = (0..FEATURES)
                .map(|feature| ((seen.features[feature] - features[feature]) / spread[feature]).powi(2));
            (apart.sum(), label(seen))
        })
        .collect();
    near.select_nth_unstable_by(NEIGHBOURS, |one, other| one.0.total_cmp(&other.0));
    near.iter().take(NEIGHBOURS).map(|(_, label)| label).sum()
}

#[test]
fn classifiers_on_what_nodes_see_hardly_tell_decoys_from_real_turns() {
    let mut draws = Draws::of(20);
    let (train, test) = (balanced(OWNERS, &mut draws), balanced(OWNERS / 2, &mut draws));
    let stumps = boost(&train);
    let boosted = |features: &Features| -> f64 {
        stumps.iter().map(|stump| stump.weight * stump.guess(features)).sum()
    };
    let by_stumps = right(&test, boosted);
    let few: Vec<Observation> = test.into_iter().step_by(8).collect();
    let spread = spreads(&train);
    let by_neighbours = right(&few, |features| nearest(&train, &spread, features));
    eprintln!("right: {by_stumps:.3} by boosted stumps, {by_neighbours:.3} by the nearest neighbours");
    assert!(by_stumps <= MOST_RIGHT, "boosted stumps: {by_stumps:.3}");
    assert!(by_neighbours <= MOST_RIGHT, "nearest neighbours: {by_neighbours:.3}");
    // The classifiers work: they tell turns of an unusual shape apart.
    let odd = |mut seen: Observation| {
        if seen.is_decoy {
            seen.features[7] += 100.0;
        }
        seen
    };
    let odd_train: Vec<Observation> = train.into_iter().map(odd).collect();
    let stumps = boost(&odd_train);
    let caught =
        right(&odd_train, |features| stumps.iter().map(|stump| stump.weight * stump.guess(features)).sum());
    assert!(caught > 0.9, "{caught:.3}");
}
