//! Measures the writing rules on a table of exchanges in everyday and messy English, some German, French,
//! Spanish, Italian, Dutch and Swedish.
//!
//! All lines but `unseen` were used while the rules were written: their figures detect regressions. No rule
//! was changed for an `unseen` line: its figures show the rules on new text. The same was true of `held`,
//! `late` and `last` when they were new: recall .93, .65 and .63, precision 1.00, .84 and .89.
//!
//! A turn that the gate misses is not lost: it is kept and searched, and a model may judge it.

#![expect(clippy::print_stdout, reason = "the figures are what the measurement is for")]

use baton_memory::extraction::{Candidate, MessagePair, extract, gate};

const EXCHANGES: &str = include_str!("../data/exchanges.jsonl");

#[derive(serde::Deserialize)]
struct Case {
    set: String,
    #[serde(rename = "u")]
    user: String,
    #[serde(rename = "a", default)]
    assistant: String,
    #[serde(rename = "p")]
    persona: Option<String>,
    #[serde(rename = "w")]
    writes: bool,
    /// Words of the expected candidates, one candidate each.
    #[serde(rename = "f", default)]
    facts: Vec<String>,
    slot: Option<String>,
    #[serde(rename = "i", default)]
    intimate: bool,
    mode: Option<String>,
    layer: Option<String>,
    flag: Option<String>,
}

impl Case {
    fn pair(&self) -> MessagePair<'_> {
        MessagePair {
            user: &self.user,
            assistant: &self.assistant,
            time_ms: 0,
            persona: self.persona.as_deref(),
        }
    }
}

fn cases() -> Vec<Case> {
    EXCHANGES.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[derive(Default)]
struct Score {
    right: usize,
    wrong: usize,
    missed: usize,
}

impl Score {
    fn add(&mut self, found: bool, wanted: bool) {
        match (found, wanted) {
            (true, true) => self.right += 1,
            (true, false) => self.wrong += 1,
            (false, true) => self.missed += 1,
            (false, false) => {}
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    fn precision_recall(&self) -> (f32, f32) {
        let share = |part: usize, whole: usize| if whole == 0 { 1.0 } else { part as f32 / whole as f32 };
        (share(self.right, self.right + self.wrong), share(self.right, self.right + self.missed))
    }
}

fn report(name: &str, score: &Score) -> (f32, f32) {
    let (precision, recall) = score.precision_recall();
    println!(
        "{name}: precision {precision:.3}, recall {recall:.3} ({} right, {} wrong, {} missed)",
        score.right, score.wrong, score.missed
    );
    (precision, recall)
}

/// Precision and recall of the gate over some of the cases.
fn gate_score(cases: &[Case], set: &str) -> Score {
    let mut score = Score::default();
    for case in cases.iter().filter(|case| case.set == set) {
        let writes = gate(&case.pair()).writes();
        if writes != case.writes {
            println!("gate: {} for {:?}", if writes { "writes" } else { "does not write" }, case.user);
        }
        score.add(writes, case.writes);
    }
    score
}

fn extraction_score(cases: &[Case], set: &str) -> Score {
    let mut score = Score::default();
    for case in cases.iter().filter(|case| case.set == set) {
        let found = extract(&case.pair());
        let holds = |candidate: &Candidate, fact: &String| candidate.text.contains(fact.as_str());
        for fact in &case.facts {
            let hit = found.iter().any(|candidate| holds(candidate, fact));
            if !hit {
                println!("missed: {fact:?} of {:?}", case.user);
            }
            score.add(hit, true);
        }
        for candidate in &found {
            if !case.facts.iter().any(|fact| holds(candidate, fact)) {
                println!("beyond: {:?}", &*candidate.text);
                score.wrong += 1;
            }
        }
    }
    score
}

#[test]
fn e5_the_gate_writes_what_is_worth_keeping_and_little_else() {
    let cases = cases();
    assert!(cases.len() >= 150, "{} cases", cases.len());
    for (set, floor) in [("dev", 0.97), ("held", 0.95), ("late", 0.92), ("last", 0.90), ("unseen", 0.60)] {
        let (precision, recall) = report(&format!("gate, {set}"), &gate_score(&cases, set));
        assert!(precision >= floor && recall >= floor, "{set}");
    }
}

#[test]
fn extraction_keeps_the_facts_and_little_else() {
    let cases = cases();
    for (set, floor) in [("dev", 0.97), ("held", 0.95), ("late", 0.92), ("last", 0.90), ("unseen", 0.60)] {
        let (precision, recall) = report(&format!("extraction, {set}"), &extraction_score(&cases, set));
        assert!(precision >= floor && recall >= floor, "{set}");
    }
}

#[test]
fn slots_layers_flags_and_care_are_as_the_table_says() {
    let mut wrong = Vec::new();
    for case in cases() {
        let found = extract(&case.pair());
        let verdict = gate(&case.pair());
        let slots: Vec<String> = found
            .iter()
            .filter_map(|one| one.slot.as_ref())
            .map(|slot| format!("{}={}", slot.key, slot.value))
            .collect();
        if let Some(slot) = case.slot.as_ref().filter(|slot| !slots.contains(slot)) {
            wrong.push(format!("{:?}: slots {slots:?}, not {slot}", case.user));
        }
        if case.writes && found.iter().any(|one| one.intimate) != case.intimate {
            wrong.push(format!("{:?}: intimate {}", case.user, !case.intimate));
        }
        if let Some(mode) = case.mode.as_ref().filter(|mode| verdict.mode.name() != mode.as_str()) {
            wrong.push(format!("{:?}: {} and not {mode}", case.user, verdict.mode.name()));
        }
        if let Some(layer) = &case.layer
            && !found.iter().any(|one| one.layer.name() == layer)
        {
            wrong.push(format!("{:?}: not {layer}", case.user));
        }
        if let Some(flag) = case.flag.as_ref().filter(|flag| !verdict.has(flag)) {
            wrong.push(format!("{:?}: flags {:?}, not {flag}", case.user, verdict.flags));
        }
    }
    println!("{}", wrong.join("\n"));
    assert!(wrong.len() <= 3, "{} differ", wrong.len());
}
