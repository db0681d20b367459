//! Summarises older episodes by rule: the most informative sentences in order, each with speaker and date
//! (C13).

use std::collections::HashMap;

use super::{
    sensitive::{bonus, is_injection, is_secret},
    text::{prefix, sentences},
    words::{SMALL_TALK, STOP},
};
use crate::{dates::Day, model::Role};

/// A message to summarise.
#[derive(Clone, Copy)]
pub struct SummaryMessage<'a> {
    /// Its speaker.
    pub role: Role,
    /// Its text.
    pub text: &'a str,
    /// When, in milliseconds since the Unix epoch.
    pub time_ms: u64,
}

/// Most sentences that are weighed: the work for a block of episodes stays within milliseconds.
const MAX_WEIGHED: usize = 4_096;
/// Most bytes of one sentence of a summary: a longer one is a pasted text.
const MAX_SENTENCE_BYTES: usize = 400;

struct WeighedSentence<'a> {
    at: usize,
    role: Role,
    time_ms: u64,
    text: &'a str,
    weight: f32,
}

/// The most informative sentences of `messages`, at most `max_bytes` of them with their labels, oldest first.
/// Questions, small talk, secrets and injections are left out. The assistant's sentences weigh half and are
/// labelled. Empty if no sentence is informative.
#[must_use]
pub fn summarise(messages: &[SummaryMessage<'_>], max_bytes: usize) -> String {
    let mut weighed = weigh(messages);
    weighed.sort_by(|a, b| b.weight.total_cmp(&a.weight).then(a.at.cmp(&b.at)));
    let mut chosen: Vec<&WeighedSentence<'_>> = Vec::new();
    let mut used = 0;
    for one in &weighed {
        let repeated = chosen.iter().any(|other| super::wording(other.text) == super::wording(one.text));
        let line = line(one).len();
        if !repeated && used + line <= max_bytes {
            used += line;
            chosen.push(one);
        }
    }
    chosen.sort_by_key(|one| one.at);
    chosen.into_iter().map(line).collect::<String>().trim_end().to_owned()
}

fn line(one: &WeighedSentence<'_>) -> String {
    let who = match one.role {
        Role::User => "The user",
        Role::Assistant => "The assistant",
        Role::System => "Instructions",
        Role::Summary => "Before",
    };
    format!("{} {who}: {}\n", Day::of(one.time_ms).iso(), prefix(one.text, MAX_SENTENCE_BYTES))
}

fn weigh<'a>(messages: &[SummaryMessage<'a>]) -> Vec<WeighedSentence<'a>> {
    let mut counts: HashMap<String, f32> = HashMap::new();
    let mut all = Vec::new();
    for told in messages.iter().filter(|told| told.role != Role::System) {
        for sentence in sentences(told.text) {
            let small = sentence.words.iter().all(|word| SMALL_TALK.contains(&word.lower));
            if sentence.asks()
                || small
                || sentence.words.len() < 3
                || is_secret(sentence.text)
                || is_injection(sentence.text)
            {
                continue;
            }
            for word in sentence.words.iter().filter(|word| !STOP.contains(&word.lower)) {
                *counts.entry(word.lower.clone()).or_default() += 1.0;
            }
            all.push((told.role, told.time_ms, sentence));
            if all.len() >= MAX_WEIGHED {
                break;
            }
        }
    }
    let most = counts.values().copied().fold(1.0, f32::max);
    let weight = |sentence: &super::text::Sentence<'_>, role: Role| {
        let content: Vec<f32> = sentence
            .words
            .iter()
            .filter_map(|word| counts.get(&word.lower).filter(|_| !STOP.contains(&word.lower)))
            .map(|count| (1.0 + count).ln() / (1.0 + most).ln())
            .collect();
        // The mean of its words, so that length alone does not win, plus the rules' worth.
        let topical = content.iter().sum::<f32>() / (content.len() as f32 + 2.0);
        let worth = super::salience(sentence.text) + bonus(&sentence.words);
        let trust = if role == Role::Assistant { 0.5 } else { 1.0 };
        (topical + 2.0 * worth) * trust
    };
    all.iter()
        .enumerate()
        .map(|(at, (role, time_ms, sentence))| WeighedSentence {
            at,
            role: *role,
            time_ms: *time_ms,
            text: sentence.text,
            weight: weight(sentence, *role),
        })
        .collect()
}
