//! Calls within a free answer: its text is free, and a call that the model begins is held to a grammar.

use llguidance::{Matcher, toktrie::TokTrie};
use zeroize::Zeroizing;

use crate::language::LanguageError;

/// The marker with which a call begins.
const BEGIN: &[u8] = b"<tool_call>";
/// Most calls that are held to the grammar. More are no calls to their readers.
const MAX_CALLS: usize = 62;

/// The Lark grammar of a call after its marker, around the JSON of this schema.
pub(super) fn lark(schema: &str) -> String {
    format!("start: \"\\n\"? call \"\\n\"? \"</tool_call>\"\ncall: %json {schema}\n")
}

/// Tokens that hold the end of the marker with more bytes after it. Where they would end a marker, they are not
/// allowed: the grammar begins with the token after the marker.
pub(super) struct CrossingTokens([Vec<u32>; BEGIN.len()]);

impl CrossingTokens {
    /// Looks through a vocabulary.
    pub(super) fn of(trie: &TokTrie) -> Self {
        let mut crossing: [Vec<u32>; BEGIN.len()] = Default::default();
        for id in 0..u32::try_from(trie.vocab_size()).unwrap_or(0) {
            let bytes = trie.token(id);
            for (begun, tokens) in crossing.iter_mut().enumerate() {
                let rest = BEGIN.get(begun..).unwrap_or_default();
                let crosses = match begun {
                    // The whole marker may stand anywhere before the end.
                    0 => bytes.windows(BEGIN.len()).any(|part| part == BEGIN) && !bytes.ends_with(BEGIN),
                    _ => bytes.len() > rest.len() && bytes.starts_with(rest),
                };
                if crosses {
                    tokens.push(id);
                }
            }
        }
        Self(crossing)
    }
}

/// The state of an answer.
#[derive(Clone)]
pub(super) struct CallState {
    /// The grammar's state at the start of a call.
    start: Matcher,
    /// The state of the call that has begun.
    call: Option<Matcher>,
    /// The last bytes of the text, which may begin a marker.
    tail: Zeroizing<Vec<u8>>,
    calls: usize,
}

impl CallState {
    pub(super) fn new(start: Matcher) -> Self {
        Self { start, call: None, tail: Zeroizing::default(), calls: 0 }
    }

    /// The matcher of the begun call.
    pub(super) fn call(&mut self) -> Option<&mut Matcher> {
        self.call.as_mut()
    }

    /// Tokens that must not follow in the text.
    pub(super) fn excluded<'a>(&self, crossing: &'a CrossingTokens) -> impl Iterator<Item = u32> + 'a {
        let begun =
            (1..BEGIN.len()).find(|&begun| BEGIN.get(..begun).is_some_and(|part| self.tail.ends_with(part)));
        let of = |begun: usize| crossing.0.get(begun).into_iter().flatten().copied();
        of(0).chain(begun.into_iter().flat_map(of))
    }

    /// Advances by a token with these bytes.
    pub(super) fn push(&mut self, id: u32, bytes: &[u8]) -> Result<(), LanguageError> {
        if let Some(call) = &mut self.call {
            call.consume_token(id).map_err(|_| super::TOO_COMPLEX)?;
            if call.is_stopped() {
                self.call = None;
            }
            return Ok(());
        }
        self.tail.extend_from_slice(bytes);
        if self.tail.ends_with(BEGIN) && self.calls < MAX_CALLS {
            self.calls += 1;
            self.call = Some(self.start.clone());
            self.tail.clear();
        }
        let surplus = self.tail.len().saturating_sub(BEGIN.len() - 1);
        self.tail.drain(..surplus);
        Ok(())
    }
}
