//! The tables of words and patterns that the rules share: one file for each language, in `tables`.

use std::{
    collections::{HashMap, HashSet},
    sync::{LazyLock, OnceLock},
};

/// English first: its rules come before those of other languages.
const TABLES: [&str; 7] = [
    include_str!("tables/en.txt"),
    include_str!("tables/de.txt"),
    include_str!("tables/fr.txt"),
    include_str!("tables/es.txt"),
    include_str!("tables/it.txt"),
    include_str!("tables/pt.txt"),
    include_str!("tables/nl.txt"),
];

static SECTIONS: LazyLock<HashMap<&str, Vec<&str>>> = LazyLock::new(|| {
    let mut sections: HashMap<&str, Vec<&str>> = HashMap::new();
    for table in TABLES {
        let mut section = "";
        for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with("//")) {
            match line.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
                Some(name) => section = name,
                None => sections.entry(section).or_default().push(line),
            }
        }
    }
    sections
});

/// The rows of a section, in all languages.
///
/// # Panics
/// For an unknown name: the names are constants of this crate and its tables, and a test reads them all.
pub(super) fn rows(section: &str) -> &'static [&'static str] {
    SECTIONS.get(section).unwrap_or_else(|| unreachable!("no table has the section {section}"))
}

/// The words of a set, by its name in patterns.
pub(super) fn set(name: &str) -> impl Iterator<Item = &'static str> {
    rows(&format!("words {name}")).iter().flat_map(|row| row.split(' '))
}

/// A set of words.
pub(super) struct Words {
    name: &'static str,
    parsed: OnceLock<HashSet<&'static str>>,
}

impl Words {
    const fn new(name: &'static str) -> Self {
        Self { name, parsed: OnceLock::new() }
    }

    /// All words.
    pub(super) fn all(&self) -> &HashSet<&'static str> {
        self.parsed.get_or_init(|| set(self.name).collect())
    }

    /// Whether the set contains a word in lower case.
    pub(super) fn contains(&self, word: &str) -> bool {
        self.all().contains(word)
    }
}

pub(super) static ABBREVIATIONS: Words = Words::new("abbreviation");
pub(super) static ADVERBS: Words = Words::new("adverb");
pub(super) static ASKING: Words = Words::new("asking");
pub(super) static AUXILIARY: Words = Words::new("auxiliary");
pub(super) static CHATTER: Words = Words::new("chatter");
pub(super) static COMMAND: Words = Words::new("command");
pub(super) static DAYS: Words = Words::new("day");
pub(super) static FILLERS: Words = Words::new("fillers");
pub(super) static INNER: Words = Words::new("inner");
pub(super) static INTIMATE_STEMS: Words = Words::new("intimate_stems");
pub(super) static IS_AFTER: Words = Words::new("is_after");
pub(super) static JOINING: Words = Words::new("joining");
pub(super) static KEEPING: Words = Words::new("keeping");
pub(super) static MEDICINES: Words = Words::new("medicines");
pub(super) static NOT_A_NAME: Words = Words::new("not_a_name");
pub(super) static OPENERS: Words = Words::new("openers");
pub(super) static OWN: Words = Words::new("own");
pub(super) static PHRASE_ENDS: Words = Words::new("phrase_end");
pub(super) static RELATIONS: Words = Words::new("relation");
pub(super) static REQUESTS: Words = Words::new("requests");
pub(super) static SCAFFOLD: Words = Words::new("scaffold");
pub(super) static SMALL_TALK: Words = Words::new("small_talk");
pub(super) static STOP: Words = Words::new("stop");
pub(super) static SUBJECTS: Words = Words::new("subjects");
pub(super) static TASK_WORDS: Words = Words::new("task_words");
pub(super) static TELLS: Words = Words::new("tells");
pub(super) static TELLS_NOTHING: Words = Words::new("tells_nothing");
pub(super) static TEXTS: Words = Words::new("texts");
static NUMBERS: Words = Words::new("numbers");

/// Whether a word is a number, in digits or as a small number word.
pub(super) fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) || NUMBERS.contains(word)
}

/// Words that stand for others, such as contractions.
pub(super) static CONTRACTIONS: LazyLock<HashMap<&str, Vec<&str>>> = LazyLock::new(|| {
    let written = rows("contractions").iter().filter_map(|row| row.split_once(" = "));
    let each = written.flat_map(|(short, full)| short.split(' ').map(move |word| (word, full)));
    each.map(|(word, full)| (word, full.split(' ').collect())).collect()
});
