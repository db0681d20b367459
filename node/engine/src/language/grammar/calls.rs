//! Calls within a free answer: its text is free, and a call that the model begins is held to a grammar.

use llguidance::{Matcher, toktrie::TokTrie};
use zeroize::Zeroizing;

use crate::language::LanguageError;

/// The marker with which a call begins.
const BEGIN: &[u8] = b"<tool_call>";
/// The markers of calls in other syntaxes.
const OTHERS: [&[u8]; 2] = [b"[TOOL_CALLS]", b"<|python_tag|>"];
/// Bytes with which an answer begins that is nothing but calls without a marker.
const BARE: &[u8] = b"{[";
/// Begins a code block, which may hold nothing but calls.
const FENCE: &[u8] = b"```";
/// The beginning of a call in a code block; space may stand between the parts.
const BLOCK_CALL: [&[u8]; 4] = [b"{", b"\"name\"", b":", b"\""];
/// The language of a code block that may hold calls; it may be missing.
const BLOCK_LANGUAGE: &[u8] = b"json";
/// Most bytes of the text that may be the beginning of a marker.
const MAX_TAIL: usize = 16;
/// Most calls that are held to the grammar. More are no calls to their readers.
const MAX_CALLS: usize = 62;

/// The Lark grammar of a call after its marker, around the JSON of this schema.
pub(super) fn lark(schema: &str) -> String {
    format!("start: \"\\n\"? call \"\\n\"? \"</tool_call>\"\ncall: %json {schema}\n")
}

/// The Lark grammar of calls in a code block after its first line, around the JSON of this schema.
pub(super) fn block_lark(schema: &str) -> String {
    format!(
        "start: SPACE? call (SPACE? call)* SPACE? \"```\"\nSPACE: /{BLOCK_SPACE}/\ncall: %json {schema}\n"
    )
}

/// The Lark grammar of an answer that is one call without a marker. Some models write two braces around it.
pub(super) fn bare_lark(schema: &str) -> String {
    format!(
        "start: SPACE? call | SPACE? \"{{\" call SPACE? \"}}\"\nSPACE: /{BLOCK_SPACE}/\ncall: %json {schema}\n"
    )
}

/// The space in a code block. It has a limit: a small model could write space for ever.
pub(super) const BLOCK_SPACE: &str = "[ \\t\\r\\n]{1,512}";
/// Most bytes of an answer's beginning that may become a call in a code block: no more than its space may have.
const MAX_BEGINNING: usize = 512;

/// Tokens that end a marker, by the number of its bytes that stand before them.
struct MarkerTokens {
    marker: &'static [u8],
    ends: Vec<Vec<u32>>,
}

impl MarkerTokens {
    /// Looks through a vocabulary. With `only_longer`, for tokens with more bytes after the marker.
    fn of(marker: &'static [u8], trie: &TokTrie, only_longer: bool) -> Self {
        let mut ends = vec![Vec::new(); marker.len()];
        for id in 0..u32::try_from(trie.vocab_size()).unwrap_or(0) {
            let bytes = trie.token(id);
            for (begun, tokens) in ends.iter_mut().enumerate() {
                let rest = marker.get(begun..).unwrap_or_default();
                let has_it = match begun {
                    // The whole marker may stand anywhere.
                    0 => bytes.windows(marker.len()).any(|part| part == marker),
                    _ => bytes.starts_with(rest),
                };
                let is_longer = if begun == 0 { !bytes.ends_with(marker) } else { bytes.len() > rest.len() };
                if has_it && (is_longer || !only_longer) {
                    tokens.push(id);
                }
            }
        }
        Self { marker, ends }
    }

    /// The tokens that end the marker after this text.
    fn after(&self, tail: &[u8]) -> impl Iterator<Item = u32> {
        let begins = |begun: &usize| self.marker.get(..*begun).is_some_and(|part| tail.ends_with(part));
        let begun = (1..self.marker.len()).rev().find(begins);
        let of = |begun: usize| self.ends.get(begun).into_iter().flatten().copied();
        of(0).chain(begun.into_iter().flat_map(of))
    }
}

/// Tokens that must not follow in a text, by the text before them.
pub(super) struct TextTokens {
    /// They would run over the end of the marker. The grammar begins with the token after it.
    crossing: MarkerTokens,
    /// They would begin a call in another syntax, which is not held to the grammar.
    others: Vec<MarkerTokens>,
    /// The same, at the start of an answer.
    bare: Vec<u32>,
}

impl TextTokens {
    /// Looks through a vocabulary.
    pub(super) fn of(trie: &TokTrie) -> Self {
        let all = 0..u32::try_from(trie.vocab_size()).unwrap_or(0);
        let is_bare =
            |id: &u32| trie.token(*id).trim_ascii_start().first().is_some_and(|byte| BARE.contains(byte));
        Self {
            crossing: MarkerTokens::of(BEGIN, trie, true),
            others: OTHERS.into_iter().map(|marker| MarkerTokens::of(marker, trie, false)).collect(),
            bare: all.filter(is_bare).collect(),
        }
    }
}

/// The state of an answer.
#[derive(Clone)]
pub(super) struct CallState {
    /// The grammar's state at the start of a call.
    start: Matcher,
    /// The state at the start of the calls in a code block.
    block_start: Matcher,
    /// The state at the start of a call without a marker.
    bare_start: Matcher,
    /// Whether calls in other syntaxes are kept out.
    strict: bool,
    /// The state of the call that has begun.
    call: Option<Matcher>,
    /// The last bytes of the text, which may begin a marker.
    tail: Zeroizing<Vec<u8>>,
    beginning: Beginning,
    calls: usize,
}

/// What the answer may still begin with.
#[derive(Clone)]
enum Beginning {
    /// So far it is nothing but space, or the first line of a code block without the space before it.
    Head(Zeroizing<Vec<u8>>),
    /// A code block's contents, or with `bare` the whole answer, may begin a call: their text and tokens.
    Call { bare: bool, contents: Zeroizing<Vec<u8>>, ids: Zeroizing<Vec<u32>> },
    /// It is text.
    Text,
}

/// Whether a text is space, or the beginning of a code block before the end of its first line.
fn is_head(text: &[u8]) -> bool {
    let text = text.trim_ascii();
    match text.strip_prefix(FENCE) {
        Some(language) => BLOCK_LANGUAGE.starts_with(language.trim_ascii_start()),
        None => FENCE.starts_with(text),
    }
}

/// Whether a line begins a code block that may hold calls.
fn begins_block(line: &[u8]) -> bool {
    let language = line.trim_ascii().strip_prefix(FENCE).map(<[u8]>::trim_ascii);
    language.is_some_and(|language| language.is_empty() || language == BLOCK_LANGUAGE)
}

/// Whether a code block's contents begin a call: its name comes next. `None` if they begin something else, and
/// `false` if more of them decides.
fn begins_call(contents: &[u8]) -> Option<bool> {
    let mut rest = contents;
    for part in BLOCK_CALL {
        rest = rest.trim_ascii_start();
        match rest.strip_prefix(part) {
            Some(after) => rest = after,
            None => return part.starts_with(rest).then_some(false),
        }
    }
    Some(true)
}

impl CallState {
    pub(super) fn new([start, block_start, bare_start]: [Matcher; 3], strict: bool) -> Self {
        let (tail, head) = Default::default();
        Self {
            start,
            block_start,
            bare_start,
            strict,
            call: None,
            tail,
            beginning: Beginning::Head(head),
            calls: 0,
        }
    }

    /// Takes the next token of an answer that is still beginning. Begins the calls of a code block with their
    /// tokens so far. Beyond the limit the answer is text, and a strict one is an error: its call would not be held.
    fn push_beginning(&mut self, id: u32, bytes: &[u8]) -> Result<(), LanguageError> {
        let beginning = std::mem::replace(&mut self.beginning, Beginning::Text);
        let (bare, contents, ids) = match beginning {
            Beginning::Text => return Ok(()),
            Beginning::Head(head) if head.is_empty() && bytes.trim_ascii_start().starts_with(b"{") => {
                (true, Zeroizing::new(bytes.to_vec()), Zeroizing::new(vec![id]))
            }
            Beginning::Head(mut head) => {
                head.extend_from_slice(bytes);
                let space = head.len() - head.trim_ascii_start().len();
                head.drain(..space);
                if is_head(&head) {
                    return self.wait(head.len(), Beginning::Head(head));
                }
                let Some(end) = head.iter().position(|byte| *byte == b'\n') else { return Ok(()) };
                let (line, contents) = head.split_at(end);
                if !begins_block(line) {
                    return Ok(());
                }
                (false, Zeroizing::new(contents.to_vec()), Zeroizing::new(vec![id]))
            }
            Beginning::Call { bare, mut contents, mut ids } => {
                contents.extend_from_slice(bytes);
                ids.push(id);
                (bare, contents, ids)
            }
        };
        let inner = contents.trim_ascii_start();
        let doubled = bare && inner.starts_with(b"{{");
        match begins_call(if doubled { inner.get(1..).unwrap_or_default() } else { inner }) {
            None => {}
            Some(false) => return self.wait(contents.len(), Beginning::Call { bare, contents, ids }),
            Some(true) => {
                let mut call = if bare { self.bare_start.clone() } else { self.block_start.clone() };
                if call.try_consume_tokens(&ids).is_ok_and(|taken| taken == ids.len()) {
                    self.calls += 1;
                    self.call = Some(call);
                }
            }
        }
        Ok(())
    }

    /// Keeps a beginning of this many bytes until more of the answer decides.
    fn wait(&mut self, bytes: usize, beginning: Beginning) -> Result<(), LanguageError> {
        match bytes > MAX_BEGINNING {
            false => self.beginning = beginning,
            true if self.strict => return Err(super::TOO_COMPLEX),
            true => {}
        }
        Ok(())
    }

    /// The matcher of the begun call.
    pub(super) fn call(&mut self) -> Option<&mut Matcher> {
        self.call.as_mut()
    }

    /// Calls `exclude` for the tokens that must not follow in the text.
    pub(super) fn exclude(&self, tokens: &TextTokens, mut exclude: impl FnMut(u32)) {
        tokens.crossing.after(&self.tail).for_each(&mut exclude);
        if self.strict {
            tokens.others.iter().flat_map(|other| other.after(&self.tail)).for_each(&mut exclude);
            if matches!(&self.beginning, Beginning::Head(head) if head.is_empty()) {
                tokens.bare.iter().copied().for_each(exclude);
            }
        }
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
        self.push_beginning(id, bytes)?;
        if self.call.is_some() {
            return Ok(());
        }
        self.tail.extend_from_slice(bytes);
        if self.tail.ends_with(BEGIN) && self.calls < MAX_CALLS {
            self.calls += 1;
            self.call = Some(self.start.clone());
            self.tail.clear();
        }
        let surplus = self.tail.len().saturating_sub(MAX_TAIL);
        self.tail.drain(..surplus);
        Ok(())
    }
}
