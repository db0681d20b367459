//! The gate: decides whether to keep anything of an exchange. The default is no.

use super::{
    MessagePair, Mode, Risk, Verdict,
    extract::{EXPLICIT_BONUS, Unit, moments_of, units_of},
    flag,
    rules::{EXPLICIT_RULES, OFF_RECORD_RULES, RECAP_RULES},
    sensitive::{is_injection, is_intimate, is_secret},
    text::{Pattern, Sentence, Word, any, sentences},
    words::{
        ASKING, AUXILIARY, COMMAND, FILLERS, KEEPING, OPENERS, OWN, REQUESTS, SMALL_TALK, SUBJECTS, TEXTS,
    },
};
use crate::model::Layer;

/// The form of a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SentenceForm {
    /// A statement.
    Statement,
    /// A question or a command; facts may stand beside it.
    Question,
}

/// The rules' reading of an exchange.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// The user wants it not kept.
    pub off_record: bool,
    /// The user wants it kept.
    pub explicit: bool,
    /// It holds a secret.
    pub secret: bool,
    /// It reads like an injection.
    pub injection: bool,
    /// It is only small talk.
    pub small_talk: bool,
    /// It asks about earlier messages.
    pub recap: bool,
    /// It only asks or commands.
    pub question: bool,
    /// One of its statements is intimate.
    pub intimate: bool,
    /// The user's statements.
    pub units: Vec<Unit>,
    /// The assistant's statements about itself.
    pub moments: Vec<Unit>,
}

impl Reading {
    /// Whether the rules would keep anything.
    pub(super) fn writes(&self) -> bool {
        let told = !self.units.is_empty() || !self.moments.is_empty();
        told && !self.off_record
    }

    /// Whether the rules leave nothing to a judge.
    fn certain(&self) -> bool {
        self.off_record
            || self.explicit
            || self.small_talk
            || self.recap
            || (self.question && self.units.is_empty())
    }
}

/// The start of a sentence's content, after greetings, "please", "could you" and similar words.
fn after_fillers(words: &[Word]) -> usize {
    words.iter().take_while(|word| FILLERS.contains(&word.lower)).count().min(words.len().saturating_sub(1))
}

/// Whether a pattern matches at the beginning of a sentence or clause, except for fillers.
fn opens(patterns: &[Pattern], words: &[Word]) -> bool {
    super::text::clauses(words).into_iter().any(|range| {
        let clause = words.get(range.clone()).unwrap_or_default();
        // With and without the fillers: "no need to remember" begins with one.
        let skipped = range.start + after_fillers(clause);
        any(patterns, words, range.clone()) || any(patterns, words, skipped..range.end)
    })
}

/// Whether every word is one of small talk, and the sentence is short.
fn is_small_talk(sentence: &Sentence<'_>, first: bool) -> bool {
    let words = &sentence.words;
    let small = |word: &Word| SMALL_TALK.contains(&word.lower);
    // "Hi Anna": the name of the person greeted is not small talk.
    let greeted = first
        && words.len() <= 3
        && words.first().is_some_and(small)
        && words.iter().skip(1).all(|word| word.capital || small(word));
    // "How are you?" is small talk; "how was your evening?" may lead a persona to talk about itself.
    let wonders = sentence.asks()
        && words.iter().any(|word| matches!(word.lower.as_str(), "was" | "were" | "your" | "did" | "have"));
    words.len() <= 14 && !wonders && (words.iter().all(small) || greeted)
}

/// Whether a sentence asks or commands.
fn asks(sentence: &Sentence<'_>) -> bool {
    let words = &sentence.words;
    if sentence.asks() {
        return true;
    }
    let polite = words.iter().take_while(|word| OPENERS.contains(&word.lower)).count();
    let at = |index: usize| words.get(polite + index).map(|word| word.lower.as_str());
    let (first, second) = (at(0).unwrap_or_default(), at(1));
    let asking = ASKING.contains(first) && !second.is_some_and(|word| matches!(word, "i" | "a" | "an"));
    let inverted = AUXILIARY.contains(first) && second.is_some_and(|word| SUBJECTS.contains(word));
    asking || inverted || REQUESTS.contains(first)
}

/// Reads an exchange by the rules.
pub(super) fn read(pair: &MessagePair<'_>) -> Reading {
    let message = pair.user;
    let all = sentences(message);
    let mut reading = Reading {
        injection: is_injection(message),
        secret: is_secret(message),
        small_talk: all.iter().enumerate().all(|(at, sentence)| is_small_talk(sentence, at == 0)),
        question: !all.is_empty(),
        ..Reading::default()
    };
    let mut asked_to_keep = false;
    for (at, sentence) in all.iter().enumerate() {
        let words = &sentence.words;
        if opens(&OFF_RECORD_RULES, words) {
            reading.off_record = true;
        }
        let keeps = opens(&EXPLICIT_RULES, words) && (!sentence.asks() || asks_to_keep(words));
        reading.explicit |= keeps;
        asked_to_keep |= keeps;
        let recap = !keeps && opens(&RECAP_RULES, words);
        reading.recap |= recap;
        let asked = !keeps && asks(sentence);
        reading.question &= asked || recap || is_small_talk(sentence, at == 0);
        if recap && hands_over(sentence) {
            break;
        }
        if recap
            || is_small_talk(sentence, at == 0)
            || is_injection(sentence.text)
            || is_secret(sentence.text)
        {
            continue;
        }
        let form = if asked { SentenceForm::Question } else { SentenceForm::Statement };
        let mut units = units_of(message, sentence, form);
        if keeps {
            units = explicit_units(message, sentence, units);
        }
        join_pronoun(message, sentence, &mut units, &mut reading.units);
        reading.units.append(&mut units);
        // "Translate this: …", "Fix the following.": the text after it is not about the user.
        if asked && hands_over(sentence) {
            break;
        }
    }
    if asked_to_keep && reading.units.is_empty() {
        keep_all(message, &all, &mut reading);
    }
    reading.recap &= reading.units.is_empty();
    if pair.persona.is_some() && !reading.small_talk && !reading.recap && !reading.off_record {
        reading.moments = sentences(pair.assistant)
            .iter()
            .filter(|sentence| !is_injection(sentence.text))
            .filter_map(|sentence| moments_of(pair.assistant, sentence))
            .take(4)
            .collect();
    }
    reading.intimate =
        reading.units.iter().any(|unit| is_intimate(message.get(unit.start..unit.end).unwrap_or_default()));
    reading
}

/// Whether a request is followed by a text: it ends with a colon, or mentions "the following" or "this text".
fn hands_over(sentence: &Sentence<'_>) -> bool {
    let following = sentence.words.iter().any(|word| matches!(word.lower.as_str(), "following" | "below"));
    let this = sentence.words.windows(2).any(|pair| match pair {
        [this, text] => matches!(this.lower.as_str(), "this" | "these") && TEXTS.contains(&text.lower),
        _ => false,
    });
    sentence.announces() || following || this
}

/// "Could you remember that …?" asks to keep something; "could you remember my name?" asks for something
/// kept.
fn asks_to_keep(words: &[Word]) -> bool {
    let keeps = |word: &Word| matches!(word.lower.as_str(), "remember" | "note" | "memorise" | "memorize");
    let verb = words.iter().take(5).position(keeps);
    verb.is_some_and(|verb| words.iter().skip(verb + 1).take(3).any(|word| word.lower == "that"))
}

/// The statement to keep, without the command: "Remember that I park on level 3" keeps "I park on level 3".
fn explicit_units(message: &str, sentence: &Sentence<'_>, mut units: Vec<Unit>) -> Vec<Unit> {
    let words = &sentence.words;
    let commanded = words.iter().take_while(|word| COMMAND.contains(&word.lower)).count();
    let verb = words.iter().take(commanded + 1).position(|word| KEEPING.contains(&word.lower));
    let tells = |word: &Word| OWN.contains(&word.lower) || !COMMAND.contains(&word.lower);
    let begin = verb.and_then(|verb| (verb + 1..words.len()).find(|at| words.get(*at).is_some_and(tells)));
    let Some((begin, first)) = begin.and_then(|at| Some((at, words.get(at)?))) else { return units };
    if words.len() - begin < 2 {
        return units;
    }
    let end = sentence.start + sentence.text.len();
    match units.as_mut_slice() {
        [] => {
            let slot = super::slot_of(message.get(first.start..end).unwrap_or_default());
            units.push(Unit {
                start: first.start,
                end,
                slot,
                salience: 0.9,
                layer: Layer::Profile,
                edge: None,
            });
        }
        [unit] => {
            unit.start = unit.start.max(first.start);
            unit.salience = (unit.salience + EXPLICIT_BONUS).clamp(0.9, 1.0);
        }
        many => many.iter_mut().for_each(|unit| unit.salience = (unit.salience + EXPLICIT_BONUS).min(1.0)),
    }
    units
}

/// "Remember this" before or after its subject: keeps every statement of the message, whether the rules match
/// or not.
fn keep_all(message: &str, all: &[Sentence<'_>], reading: &mut Reading) {
    for (at, sentence) in all.iter().enumerate() {
        let command =
            opens(&EXPLICIT_RULES, &sentence.words) || asks(sentence) || is_small_talk(sentence, at == 0);
        if command || is_secret(sentence.text) || is_injection(sentence.text) || sentence.words.len() < 3 {
            continue;
        }
        let end = sentence.start + sentence.text.len();
        let slot = super::slot_of(message.get(sentence.start..end).unwrap_or_default());
        reading.units.push(Unit {
            start: sentence.start,
            end,
            slot,
            salience: 0.85,
            layer: Layer::Profile,
            edge: None,
        });
    }
}

/// "I have a dog. His name is Biscuit.": a sentence that begins with a pronoun joins the fact before it.
fn join_pronoun(message: &str, sentence: &Sentence<'_>, units: &mut Vec<Unit>, before: &mut [Unit]) {
    const PRONOUNS: &[&str] = &["he", "she", "it", "they", "his", "her", "its", "their"];
    let begins = sentence.words.first().is_some_and(|word| PRONOUNS.contains(&word.lower.as_str()));
    let Some(last) = before.last_mut().filter(|_| begins && !sentence.asks()) else { return };
    let between = message.get(last.end..sentence.start).unwrap_or("-");
    if !between.trim().is_empty() || sentence.start.saturating_sub(last.start) > 400 {
        return;
    }
    last.end = sentence.start + sentence.text.len();
    last.salience = (last.salience + 0.05).min(1.0);
    units.clear();
}

/// The rules' verdict on an exchange.
#[must_use]
pub fn gate(pair: &MessagePair<'_>) -> Verdict {
    let reading = read(pair);
    let mut flags = Vec::new();
    let raised = [
        (reading.off_record, flag::OFF_RECORD),
        (reading.explicit, flag::EXPLICIT),
        (reading.secret, flag::SECRET),
        (reading.intimate, flag::INTIMATE),
        (reading.injection, flag::INJECTION),
        (reading.small_talk, flag::SMALL_TALK),
        (reading.recap, flag::RECAP),
        (reading.question && !reading.small_talk && !reading.recap, flag::QUESTION),
    ];
    flags.extend(raised.iter().filter(|(is, _)| *is).map(|(_, name)| (*name).to_owned()));
    // A user who asks to keep an intimate fact has consented; a mention alone needs consent.
    let asks = reading.intimate && !reading.explicit;
    let mode = match (reading.off_record, asks) {
        (true, _) => Mode::SafeRedirect,
        (_, true) => Mode::MemoryConsent,
        _ => Mode::InWorldAnswer,
    };
    let risk = if reading.injection || asks || reading.secret { Risk::Medium } else { Risk::Low };
    let note = match (reading.off_record, reading.units.len(), reading.moments.len()) {
        (true, ..) => "by rule: the user asked not to remember it".to_owned(),
        (_, 0, 0) => "by rule: nothing worth keeping".to_owned(),
        (_, told, moments) => format!("by rule: {told} statements of the user, {moments} of the assistant"),
    };
    Verdict { mode, risk, flags, note, extract_memory: reading.writes() }
}

/// Whether a model should judge as well. The rules alone decide on greetings, thanks, recaps and plain
/// questions, and on explicit requests to keep or not to keep.
#[must_use]
pub fn needs_judge(pair: &MessagePair<'_>) -> bool {
    !read(pair).certain()
}

/// The combined verdict of rules and model.
///
/// - A model opens the gate where the rules found nothing.
/// - Its "no" closes the gate: the rules' "yes" never overrules it, and `safe_redirect` of either side holds.
/// - The rules' floors hold: flags only add up, and care is never less than the rules'. The model opens
///   nothing that the rules call small talk, recap or question.
#[must_use]
pub fn combine(rules: Verdict, model: Verdict) -> Verdict {
    let floors = [flag::SMALL_TALK, flag::RECAP, flag::QUESTION, flag::EXPLICIT];
    let shut = floors.iter().any(|name| rules.has(name));
    let mut flags = rules.flags.clone();
    flags.extend(model.flags.into_iter().filter(|name| !rules.flags.contains(name)));
    let mode = match (rules.mode, model.mode) {
        (Mode::SafeRedirect, _) | (_, Mode::SafeRedirect) => Mode::SafeRedirect,
        _ if rules.has(flag::EXPLICIT) => rules.mode,
        (Mode::MemoryConsent, _) | (_, Mode::MemoryConsent) => Mode::MemoryConsent,
        _ => Mode::InWorldAnswer,
    };
    let extract_memory = model.extract_memory && (rules.extract_memory || !shut);
    Verdict { mode, risk: rules.risk.max(model.risk), flags, note: model.note, extract_memory }
}
