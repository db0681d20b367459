//! LoCoMo (Maharana et al., "Evaluating very long-term conversational memory of LLM agents", 2024): long
//! dialogues with questions and the turns that answer them. The data is CC BY-NC 4.0: the product does not
//! include it, and was not fitted to it.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

use anyhow::Context as _;
use baton_memory::{
    model::Kind,
    search::{
        Background, DEFAULT_THRESHOLD, Documents, Index, QuantisedVector, Question, RankedItem, TermHasher,
        Weights, document_features, indexed_text, rank,
    },
};
use baton_models::embed::{EmbedRole, Embedder};
use serde::Deserialize;
use serde_json::{Map, Value};
use time::{Date, Month};

use super::measures::{NoMatch, Report, Sums};

/// Texts of one embedding call.
const BATCH: usize = 64;

/// Ranks that are evaluated.
const DEPTH: usize = 100;

/// Least scores of a match: the default, and stricter ones that a caller may use.
const THRESHOLDS: [f64; 5] = [DEFAULT_THRESHOLD as f64, 0.6, 0.7, 0.8, 0.9];

/// Questions that no dialogue between two friends answers.
const UNRELATED: [&str; 12] = [
    "How do I bake sourdough bread?",
    "What is the capital of Mongolia?",
    "Write a Python function that reverses a linked list.",
    "Who won the 1998 world cup final?",
    "Translate 'good morning' into Japanese.",
    "What is the boiling point of ethanol?",
    "How does TLS certificate pinning work?",
    "Give me a regex for email addresses.",
    "What is the difference between TCP and UDP?",
    "Convert 5 miles to kilometres.",
    "Who wrote The Brothers Karamazov?",
    "What does the GDP deflator measure?",
];

#[derive(Deserialize)]
struct Sample {
    conversation: Map<String, Value>,
    qa: Vec<QaEntry>,
}

#[derive(Deserialize)]
struct QaEntry {
    question: String,
    #[serde(default)]
    evidence: Vec<String>,
    category: u64,
}

#[derive(Deserialize)]
struct DialogueLine {
    speaker: String,
    dia_id: String,
    #[serde(default)]
    text: String,
}

/// One dialogue, its turns numbered from 0.
struct Dialogue {
    turns: Vec<DialogueTurn>,
    questions: Vec<Gold>,
    end_ms: u64,
}

struct DialogueTurn {
    session: u64,
    speaker: String,
    text: String,
    time_ms: u64,
}

struct Gold {
    question: String,
    category: u64,
    evidence: BTreeSet<u64>,
}

/// Measures recall on a file in LoCoMo's format, with each embedder and with none (`bm25`). Every question of
/// categories 1 to 4 searches its own dialogue.
pub(super) async fn locomo(file: &Path, embedders: &[Arc<dyn Embedder>]) -> anyhow::Result<Report> {
    let dialogues = read(file).with_context(|| format!("cannot use the data file {}", file.display()))?;
    let mut report = Report::default();
    for embedder in std::iter::once(None).chain(embedders.iter().map(Some)) {
        let name = embedder.map_or("bm25", |embedder| embedder.id()).to_owned();
        let with = match embedder {
            Some(embedder) => Some((&**embedder, Background::measure(&**embedder).await?)),
            None => None,
        };
        let mut sums = Sums::default();
        let mut told = THRESHOLDS.map(|threshold| NoMatch { threshold, ..NoMatch::default() });
        for (number, dialogue) in dialogues.iter().enumerate() {
            let other = dialogues.get((number + 1) % dialogues.len()).unwrap_or(dialogue);
            measure(dialogue, other, with, &mut sums, &mut told).await?;
        }
        #[expect(clippy::cast_precision_loss, reason = "a handful of dialogues")]
        let count = dialogues.len().max(1) as f64;
        for share in told.iter_mut().flat_map(|told| {
            let NoMatch { answered, kept_at_10, answered_elsewhere, answered_unrelated, .. } = told;
            [answered, kept_at_10, answered_elsewhere, answered_unrelated]
        }) {
            *share = (*share / count * 10_000.0).round() / 10_000.0;
        }
        report.configs.push(sums.report(&name, told.into()));
    }
    Ok(report)
}

/// Asks a dialogue its own questions, another dialogue's, and unrelated ones.
async fn measure(
    dialogue: &Dialogue,
    other: &Dialogue,
    embedder: Option<(&dyn Embedder, Background)>,
    sums: &mut Sums,
    told: &mut [NoMatch],
) -> anyhow::Result<()> {
    let hasher = TermHasher::new([0; 32]);
    let index = index(dialogue, &hasher, embedder.map(|(embedder, _)| embedder)).await?;
    let ask = async |questions: Vec<&str>| -> anyhow::Result<Vec<Vec<RankedItem>>> {
        let mut answers = Vec::with_capacity(questions.len());
        for batch in questions.chunks(BATCH) {
            let vectors = match embedder {
                Some((embedder, _)) => embedder.embed(EmbedRole::Query, batch).await?,
                None => Vec::new(),
            };
            for (at, text) in batch.iter().enumerate() {
                let mut question = Question::parse(text, &hasher, dialogue.end_ms);
                if let Some((embedder, _)) = embedder {
                    let words = Question::words_sought(text);
                    let asked: Vec<&str> = words.iter().map(String::as_str).collect();
                    question = question.with_related(&words, &embedder.related(&asked).await, &hasher);
                }
                if let (Some(vector), Some((_, background))) = (vectors.get(at), embedder) {
                    question = question.with_vector(vector, background);
                }
                let found = index.scan(&question, &|_| true);
                answers.push(rank(&question, &found, dialogue, &Weights::default(), DEPTH));
            }
        }
        Ok(answers)
    };

    let answers = ask(dialogue.questions.iter().map(|gold| gold.question.as_str()).collect()).await?;
    let rank_of = |gold: &Gold, ranked: &[RankedItem]| -> Vec<usize> {
        let evidence = ranked.iter().enumerate().filter(|(_, item)| gold.evidence.contains(&item.number));
        evidence.map(|(rank, _)| rank).collect()
    };
    for (gold, ranked) in dialogue.questions.iter().zip(&answers) {
        sums.add(gold.category, gold.evidence.len(), &rank_of(gold, ranked));
    }
    // Names are removed, so that they alone do not decide.
    let names: BTreeSet<&str> = other.turns.iter().map(|turn| turn.speaker.as_str()).collect();
    let nameless =
        |gold: &Gold| names.iter().fold(gold.question.clone(), |text, name| text.replace(name, "the person"));
    let elsewhere: Vec<String> = other.questions.iter().map(nameless).collect();
    let elsewhere = ask(elsewhere.iter().map(String::as_str).collect()).await?;
    let unrelated = ask(UNRELATED.to_vec()).await?;
    for told in told {
        let above = |item: &RankedItem| f64::from(item.score) >= told.threshold;
        let found = |answers: &[Vec<RankedItem>]| {
            share(answers.iter().filter(|ranked| ranked.first().is_some_and(above)).count(), answers.len())
        };
        let kept: f64 = dialogue
            .questions
            .iter()
            .zip(&answers)
            .map(|(gold, ranked)| {
                let kept =
                    rank_of(gold, ranked).into_iter().filter(|rank| *rank < 10 && above(&ranked[*rank]));
                share(kept.count(), gold.evidence.len())
            })
            .sum();
        #[expect(clippy::cast_precision_loss, reason = "some hundred questions")]
        let questions = answers.len().max(1) as f64;
        told.answered += found(&answers);
        told.kept_at_10 += kept / questions;
        told.answered_elsewhere += found(&elsewhere);
        told.answered_unrelated += found(&unrelated);
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "some hundred questions")]
fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

async fn index(
    dialogue: &Dialogue,
    hasher: &TermHasher,
    embedder: Option<&dyn Embedder>,
) -> anyhow::Result<Index> {
    let mut index = Index::new(embedder.map_or(0, Embedder::dimensions));
    for (number, turn) in (0..).zip(&dialogue.turns) {
        index.insert(number, document_features(&turn.text, &turn.speaker, turn.time_ms, hasher));
    }
    let Some(embedder) = embedder else { return Ok(index) };
    let texts: Vec<String> =
        dialogue.turns.iter().map(|turn| indexed_text(&turn.text, &turn.speaker, turn.time_ms)).collect();
    let mut number = 0;
    for batch in texts.chunks(BATCH) {
        let batch: Vec<&str> = batch.iter().map(String::as_str).collect();
        for vector in embedder.embed(EmbedRole::Document, &batch).await? {
            index.set_vector(number, Some(QuantisedVector::from_unit(&vector)));
            number += 1;
        }
    }
    Ok(index)
}

impl Dialogue {
    fn turn(&self, number: u64) -> Option<&DialogueTurn> {
        self.turns.get(usize::try_from(number).ok()?)
    }
}

impl Documents for Dialogue {
    fn neighbours(&self, number: u64) -> [Option<u64>; 2] {
        let session = self.turn(number).map(|turn| turn.session);
        let same = |near: &u64| self.turn(*near).map(|turn| turn.session) == session;
        [number.checked_sub(1).filter(same), number.checked_add(1).filter(same)]
    }

    fn time_ms(&self, number: u64) -> u64 {
        self.turn(number).map_or(0, |turn| turn.time_ms)
    }

    fn kind(&self, _number: u64) -> Kind {
        Kind::Episode
    }

    fn salience(&self, _number: u64) -> f32 {
        0.5
    }
}

fn read(file: &Path) -> anyhow::Result<Vec<Dialogue>> {
    let samples: Vec<Sample> = serde_json::from_slice(&std::fs::read(file)?)?;
    let dialogues = samples.into_iter().map(dialogue).collect::<anyhow::Result<Vec<_>>>()?;
    anyhow::ensure!(!dialogues.is_empty(), "there is no dialogue in it");
    Ok(dialogues)
}

fn dialogue(mut sample: Sample) -> anyhow::Result<Dialogue> {
    let mut turns = Vec::new();
    let mut ids = HashMap::new();
    for session in 1_u64.. {
        let Some(said) = sample.conversation.remove(&format!("session_{session}")) else {
            // Some dialogues name the date of a session without any turn.
            if sample.conversation.contains_key(&format!("session_{session}_date_time")) {
                continue;
            }
            break;
        };
        let said: Vec<DialogueLine> = serde_json::from_value(said)?;
        let date = sample.conversation.get(&format!("session_{session}_date_time")).and_then(Value::as_str);
        let date_ms = date.and_then(day_ms).with_context(|| format!("session {session} has no date"))?;
        for (minute, said) in (0..).zip(said) {
            ids.insert(said.dia_id, turns.len() as u64);
            let time_ms = date_ms + minute * 60_000;
            turns.push(DialogueTurn { session, speaker: said.speaker, text: said.text, time_ms });
        }
    }
    let gold = |asked: QaEntry| {
        // A few questions name several turns in one text.
        let named = asked
            .evidence
            .iter()
            .flat_map(|text| text.split(|c: char| !(c.is_ascii_alphanumeric() || c == ':')));
        let evidence: BTreeSet<u64> = named.filter_map(|id| ids.get(id).copied()).collect();
        let scored = (1..=4).contains(&asked.category) && !evidence.is_empty();
        scored.then_some(Gold { question: asked.question, category: asked.category, evidence })
    };
    let questions = sample.qa.into_iter().filter_map(gold).collect();
    let end_ms = turns.last().map_or(0, |turn: &DialogueTurn| turn.time_ms);
    Ok(Dialogue { turns, questions, end_ms })
}

/// The first millisecond of the day in "1:56 pm on 8 May, 2023"; 0 for a day that no calendar has.
fn day_ms(text: &str) -> Option<u64> {
    let (_, date) = text.split_once(" on ")?;
    let mut words = date.split([' ', ',']).filter(|word| !word.is_empty());
    let day = words.next()?.parse().ok().filter(|day| (1..=31).contains(day))?;
    let name = words.next()?.to_lowercase();
    let mut months = (1..=12).filter_map(|number| Month::try_from(number).ok());
    let month = months.find(|month| month.to_string().to_lowercase() == name)?;
    let year = words.next()?.parse().ok().filter(|year| (1970..10_000).contains(year))?;
    let Ok(date) = Date::from_calendar_date(year, month, day) else { return Some(0) };
    u64::try_from(date.midnight().assume_utc().unix_timestamp()).ok()?.checked_mul(1000)
}

#[cfg(test)]
mod tests;
