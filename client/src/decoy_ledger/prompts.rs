//! The texts of decoys: ordinary questions from a bounded set of templates, with drawn topics and lengths.
//! No text of the owner enters.

use super::draws::Draws;

/// How far a message may exceed the wanted length, in bytes.
const SLACK_BYTES: usize = 4;
/// Room that one more sentence should fill as well as possible, in bytes.
const LAST_BYTES: usize = 90;
/// Templates compared for each sentence; the one whose length fits best is taken.
const CANDIDATES: usize = 6;

/// Topics of conversations.
const TOPICS: [&str; 64] = [
    "sourdough bread",
    "tide pools",
    "bicycle gears",
    "the Silk Road",
    "photosynthesis",
    "compound interest",
    "jazz harmony",
    "volcanoes",
    "tax returns",
    "garden compost",
    "black holes",
    "vaccines",
    "tea",
    "the French Revolution",
    "chess openings",
    "solar panels",
    "migraines",
    "honey bees",
    "job interviews",
    "house plants",
    "ocean currents",
    "Roman roads",
    "running shoes",
    "watercolour",
    "mortgages",
    "sleep",
    "coral reefs",
    "the periodic table",
    "email etiquette",
    "knitting",
    "earthquakes",
    "the stock market",
    "coffee",
    "regular expressions",
    "migratory birds",
    "the immune system",
    "train travel",
    "pottery",
    "cheese",
    "spreadsheets",
    "haiku",
    "the water cycle",
    "electric cars",
    "family recipes",
    "sailing",
    "public speaking",
    "mushrooms",
    "the Moon",
    "bread knives",
    "sign language",
    "origami",
    "heat pumps",
    "time zones",
    "marathons",
    "the Renaissance",
    "board games",
    "wool",
    "antibiotics",
    "lighthouses",
    "budgeting",
    "rivers",
    "typography",
    "second-hand books",
    "stretching",
];
/// First messages.
const OPENERS: [&str; 32] = [
    "Hi",
    "Hey",
    "Help",
    "Hello!",
    "{}",
    "{}?",
    "About {}.",
    "Explain {}.",
    "What is {}?",
    "Tell me about {}.",
    "Explain {} simply.",
    "How did {} begin?",
    "Why do people like {}?",
    "Give me three facts about {}.",
    "I know nothing about {}. Where do I start?",
    "What should a beginner know about {}?",
    "Can you explain {} to a ten-year-old?",
    "What are common mistakes with {}?",
    "Write a short paragraph about {}.",
    "Is there a good way to learn more about {} at home?",
    "Make a list of five ideas around {}.",
    "What changed about {} in the last hundred years?",
    "Summarise the most important points about {}.",
    "I have to give a talk about {} tomorrow. Can you help me with an outline?",
    "My neighbour keeps talking about {}. What is so special about it?",
    "Help me write a short message to a friend about {}.",
    "Give me a good title for a text about {}.",
    "How would you describe {} in two sentences?",
    "What does {} cost these days, roughly?",
    "Which words come up often with {}?",
    "Name a book or a film about {}.",
    "What is the hardest part of {}?",
];
/// Later messages.
const FOLLOW_UPS: [&str; 32] = [
    "ok",
    "no",
    "yes",
    "more",
    "hm",
    "Really?",
    "For example?",
    "Why not?",
    "Why?",
    "And then?",
    "Go on.",
    "Shorter, please.",
    "Can you give an example?",
    "How do you know that?",
    "Say it in simpler words.",
    "What about the cost?",
    "Is that still true today?",
    "Which is the best one?",
    "What would you do first?",
    "Can you put that into a list?",
    "Who would disagree, and why?",
    "What is the difference to the usual way?",
    "I did not understand the last part. Again, please?",
    "Is there anything about {} that surprises most people?",
    "How long does that take in practice?",
    "Could you turn this into a short plan for a week?",
    "What are the risks, and how can I avoid them?",
    "Translate the most important sentence into French.",
    "What should I read next about {}?",
    "Let us say I only have ten minutes. What matters most?",
    "Compare that with how it was in the past.",
    "Thanks. One more question: how does {} relate to everyday life?",
];
/// Sentences that lengthen a message.
const DETAILS: [&str; 24] = [
    "Thanks.",
    "Please be brief.",
    "Keep it simple.",
    "No jargon, please.",
    "I am new to this.",
    "A few sentences are enough.",
    "It is for a school project.",
    "I have about an hour.",
    "I tried it once, and it did not go well.",
    "Please say so if something is uncertain.",
    "I would like to understand the reasons, not only the result.",
    "My friend says the opposite, so I want to be sure.",
    "Last year I read an article about it and forgot most.",
    "I live in a small town, and there is nobody here whom I could ask.",
    "Examples help me more than definitions, so please give me one or two.",
    "I will explain it to my parents later, and they ask difficult questions.",
    "So far I have only watched two videos, and they contradicted each other.",
    "If there are several opinions, tell me which of them most people share.",
    "There is no hurry, and I am happy to answer questions if you need to know more.",
    "Please do not repeat the question, and leave out anything that is not important.",
    "I care about the costs and about the time, and a little about how it looks in the end.",
    "At work we had a long discussion about it, and in the end nobody knew what was right.",
    "Assume that I know the basics, but that I have never done it with my own hands.",
    "Write in plain English, since my colleagues who will read it are not native speakers.",
];
/// Sentences of system texts.
const SYSTEM: [&str; 12] = [
    "You are a helpful assistant.",
    "Answer briefly.",
    "Be friendly and clear.",
    "Do not invent facts.",
    "Answer in plain English, without headings.",
    "If you do not know something, say so.",
    "Prefer short sentences and common words.",
    "Use lists only where they help the reader.",
    "Explain technical terms when they first appear.",
    "Ask a question back if the request is unclear.",
    "Give a short answer first, and the reasons after it.",
    "The user reads on a small screen, so keep paragraphs short.",
];

/// The texts of one decoy, which stay with one topic.
pub(super) struct PromptSequence {
    topic: &'static str,
    begun: bool,
}

impl PromptSequence {
    pub(super) fn begin(draws: &mut Draws) -> Self {
        Self { topic: draws.one_of(&TOPICS).unwrap_or("tea"), begun: false }
    }

    /// The next message, of about this many bytes.
    pub(super) fn message(&mut self, bytes: usize, draws: &mut Draws) -> String {
        let templates = if self.begun { &FOLLOW_UPS } else { &OPENERS };
        self.begun = true;
        let mut text =
            fitting(templates, self.topic, bytes, draws).unwrap_or_else(|| shortest(templates, self.topic));
        lengthen(&mut text, &DETAILS, bytes, draws);
        text
    }
}

/// A system text of about this many bytes.
pub(super) fn system_text(bytes: usize, draws: &mut Draws) -> String {
    let mut text = fitting(&SYSTEM, "", bytes, draws).unwrap_or_else(|| shortest(&SYSTEM, ""));
    lengthen(&mut text, &SYSTEM, bytes, draws);
    text
}

fn filled(template: &str, topic: &str) -> String {
    template.replace("{}", topic)
}

/// The longest of a few drawn sentences that fit; none if none fits.
fn fitting(templates: &[&str], topic: &str, bytes: usize, draws: &mut Draws) -> Option<String> {
    let drawn: Vec<String> = (0..CANDIDATES)
        .filter_map(|_| draws.one_of(templates))
        .map(|template| filled(template, topic))
        .filter(|text| text.len() <= bytes + SLACK_BYTES)
        .collect();
    drawn.into_iter().max_by_key(String::len)
}

fn shortest(templates: &[&str], topic: &str) -> String {
    templates.iter().map(|template| filled(template, topic)).min_by_key(String::len).unwrap_or_default()
}

/// Adds sentences until none fits: drawn ones first, and then the longest that fit.
fn lengthen(text: &mut String, sentences: &[&str], bytes: usize, draws: &mut Draws) {
    while let Some(room) = bytes.checked_sub(text.len() + 1) {
        let longest = || {
            let fits = sentences.iter().filter(|sentence| sentence.len() <= room + SLACK_BYTES);
            fits.max_by_key(|sentence| sentence.len()).map(|sentence| (*sentence).to_owned())
        };
        let drawn = if room < LAST_BYTES { None } else { fitting(sentences, "", room, draws) };
        let Some(more) = drawn.or_else(longest) else { break };
        text.push(' ');
        text.push_str(&more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_about_the_wanted_length_and_vary() {
        let mut draws = Draws::of(1);
        for wanted in [0, 20, 45, 80, 150, 400, 1500, 4096] {
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..200 {
                let mut conversation = PromptSequence::begin(&mut draws);
                let texts =
                    [conversation.message(wanted, &mut draws), conversation.message(wanted, &mut draws)];
                for text in texts {
                    assert!(text.len() <= wanted.max(40) + SLACK_BYTES, "{wanted}: {text}");
                    assert!(text.len() + 30 >= wanted, "{wanted}: {} bytes", text.len());
                    assert!(!text.contains("{}") && !text.is_empty());
                    seen.insert(text);
                }
            }
            let least = if wanted < 20 { 5 } else { 40 };
            assert!(seen.len() > least, "{wanted}: {} different messages of 400", seen.len());
        }
    }
}
