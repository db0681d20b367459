//! Reads calls out of an answer while it arrives. However the answer is cut, emitted text is never part of a
//! call. Text that proves not to be a call is emitted as text. Space around calls is ASCII's, as in the grammars that
//! engines hold calls to: after other space, a call would not be held.
//!
//! Syntaxes:
//!
//! - Hermes, Qwen: `<tool_call>{…}</tool_call>`
//! - Mistral: `[TOOL_CALLS] […]`
//! - Llama 3: `{…}`, or several with `;` between, after `<|python_tag|>` or as the whole answer
//! - the lists of Mistral and Llama 3 without their markers: some models have these as control tokens without
//!   text
//! - Qwen2.5 Coder: `{"name": …, "arguments": {…}}` in a fenced code block that is the whole answer

use zeroize::Zeroizing;

use super::{Call, Json, MAX_CALLS, is_tool_name};

/// A part of an answer.
#[derive(Clone, PartialEq, Eq)]
pub enum Piece {
    /// More of its text.
    Content(Zeroizing<String>),
    /// A whole call.
    Call(Call),
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Content(text) => write!(f, "Content({} bytes)", text.len()),
            Self::Call(call) => call.fmt(f),
        }
    }
}

/// The marker that begins a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallMarker {
    Hermes,
    Mistral,
    Llama,
}

impl CallMarker {
    const ALL: [Self; 3] = [Self::Hermes, Self::Mistral, Self::Llama];

    const fn text(self) -> &'static str {
        match self {
            Self::Hermes => "<tool_call>",
            Self::Mistral => "[TOOL_CALLS]",
            Self::Llama => "<|python_tag|>",
        }
    }
}

/// Begins and ends a code block of Markdown.
const FENCE: &str = "```";
/// The language of a code block that may hold calls; it may be missing.
const FENCE_LANGUAGE: &str = "json";

/// Ends a call that [`CallMarker::Hermes`] began.
const HERMES_END: &str = "</tool_call>";

/// Most markers in one answer without a call after them; all further input is text. Such a marker can take a
/// read to the answer's end, so this bounds the cost of an answer full of markers.
pub(super) const MAX_FAILED_MARKERS: usize = 16;

/// The reader's state at the start of the held text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only space so far.
    Begin,
    /// The answer may consist of calls without a marker.
    Bare,
    /// In text.
    Text,
    /// After a marker.
    Marked(CallMarker),
    /// After a call; its end marker may follow.
    After,
}

/// The outcome of a step.
enum Step {
    /// The next step can run.
    Again,
    /// More of the answer is needed.
    Wait,
}

/// The reader; see the module.
pub struct AnswerReader<K> {
    known: K,
    state: State,
    /// The input; from `at` on it is not yet emitted.
    came: Zeroizing<String>,
    at: usize,
    /// The space before a marker; dropped if the marker begins a call.
    gap: Zeroizing<String>,
    scan: BracketScan,
    calls: usize,
    /// Markers without a call after them.
    failed: usize,
}

impl<K: Fn(&str) -> bool> AnswerReader<K> {
    /// A reader of one answer; `known` as in [`super::read_answer`].
    pub fn new(known: K) -> Self {
        let (came, gap) = Default::default();
        Self {
            known,
            state: State::Begin,
            came,
            at: 0,
            gap,
            scan: BracketScan::default(),
            calls: 0,
            failed: 0,
        }
    }

    fn held(&self) -> &str {
        self.came.get(self.at..).unwrap_or_default()
    }

    /// Drops all held text.
    fn drop_held(&mut self) {
        (self.came, self.at) = Default::default();
    }

    /// Takes the next part of the answer.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        if self.at > 0 {
            self.came.drain(..self.at);
            self.at = 0;
        }
        self.came.push_str(text);
        let mut pieces = Vec::new();
        while matches!(self.step(&mut pieces), Step::Again) {}
        pieces
    }

    /// The call that is being written after its marker: its name, and the text of its arguments as far as it came. With
    /// `bare`, also a call without a marker that the whole answer is. A call in another form is none before its end.
    pub fn open_call(&self, bare: bool) -> Option<(&str, &str)> {
        match self.state {
            State::Marked(CallMarker::Hermes) => {}
            State::Bare if bare => {}
            _ => return None,
        }
        begun_call(self.held()).filter(|(name, _)| self.state != State::Bare || (self.known)(name))
    }

    /// Ends the answer: the held text is a call that needs no end marker, or text.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        loop {
            match self.state {
                State::Bare | State::Marked(CallMarker::Llama) => self.finish_sequence(&mut pieces),
                State::Marked(marker) => self.unmark(marker, &mut pieces),
                State::After => {
                    if !self.held().trim_ascii().is_empty() {
                        // A partial end marker: nothing else waits in this state.
                        self.drop_held();
                    }
                    self.state = State::Text;
                }
                State::Begin => self.state = State::Text,
                State::Text => {}
            }
            while matches!(self.step(&mut pieces), Step::Again) {}
            if self.state == State::Text {
                break;
            }
        }
        let rest = Zeroizing::new(self.held().to_owned());
        self.drop_held();
        // Space after the last call belongs to the syntax, not to the answer.
        let said = if self.calls > 0 { rest.trim_ascii() } else { rest.as_str() };
        if !said.is_empty() {
            pieces.push(Piece::Content(rest));
        }
        pieces
    }

    /// Emits all held text as calls, or else as text.
    fn finish_sequence(&mut self, pieces: &mut Vec<Piece>) {
        let bare = self.state == State::Bare;
        let allowed = |(call, exact): &(Call, bool)| !bare || (*exact && (self.known)(&call.name));
        let calls = match self.held().trim_ascii().strip_prefix(FENCE) {
            Some(block) if bare => block_calls(block),
            _ => sequence(self.held()),
        };
        let calls = calls.filter(|calls| calls.iter().all(allowed));
        match calls {
            Some(calls) if self.has_room(calls.len()) => {
                self.take_calls(calls, pieces);
                self.drop_held();
                self.state = State::Text;
            }
            _ if bare => self.state = State::Text,
            _ => self.unmark(CallMarker::Llama, pieces),
        }
    }

    fn step(&mut self, pieces: &mut Vec<Piece>) -> Step {
        match self.state {
            State::Begin => self.step_at_begin(),
            State::Bare if cannot_be_calls(self.held()) => {
                self.state = State::Text;
                Step::Again
            }
            State::Bare | State::Marked(CallMarker::Llama) => Step::Wait,
            State::Text => self.step_in_text(pieces),
            State::Marked(marker) => self.step_in_call(marker, pieces),
            State::After => self.step_after_call(),
        }
    }

    fn step_at_begin(&mut self) -> Step {
        let begun = self.held().trim_ascii_start();
        let bracket = begun.starts_with('[') && !CallMarker::Mistral.text().starts_with(begun);
        let marked = begun.starts_with(CallMarker::Mistral.text());
        self.state = match begun {
            "" => return Step::Wait,
            // It may become the marker.
            _ if begun.starts_with('[') && !bracket && !marked => return Step::Wait,
            _ if begun.len() < FENCE.len() && FENCE.starts_with(begun) => return Step::Wait,
            _ if begun.starts_with('{') || (bracket && !marked) || begun.starts_with(FENCE) => State::Bare,
            _ => State::Text,
        };
        Step::Again
    }

    /// Emits text up to a marker or a possible marker, without the space before it.
    fn step_in_text(&mut self, pieces: &mut Vec<Piece>) -> Step {
        self.state = State::Text;
        let held = self.held();
        let (end, marker) = match self.failed {
            MAX_FAILED_MARKERS.. => (held.len(), None),
            _ => match first_marker(held) {
                Some((at, marker)) => (at, Some(marker)),
                None => (held.len() - begun_marker(held), None),
            },
        };
        let text = held.get(..end).unwrap_or_default();
        let kept = text.trim_ascii_end();
        let gap = Zeroizing::new(text.get(kept.len()..).unwrap_or_default().to_owned());
        let said = kept.len();
        if said > 0 {
            pieces.push(Piece::Content(Zeroizing::new(kept.to_owned())));
        }
        match marker {
            Some(marker) => {
                self.at += end + marker.text().len();
                self.gap = gap;
                (self.state, self.scan) = (State::Marked(marker), BracketScan::default());
                Step::Again
            }
            None => {
                self.at += said;
                Step::Wait
            }
        }
    }

    fn step_in_call(&mut self, marker: CallMarker, pieces: &mut Vec<Piece>) -> Step {
        let held = self.came.get(self.at..).unwrap_or_default();
        let end = match self.scan.end(held, marker == CallMarker::Mistral) {
            ScanOutcome::Open => return Step::Wait,
            ScanOutcome::Wrong => {
                self.unmark(marker, pieces);
                return Step::Again;
            }
            ScanOutcome::End(end) => end,
        };
        let calls = held.get(..end).and_then(Json::parse).and_then(|value| calls_of(&value));
        match calls {
            Some(calls) if self.has_room(calls.len()) => {
                self.take_calls(calls, pieces);
                self.at += end;
                self.state = if marker == CallMarker::Hermes { State::After } else { State::Text };
            }
            _ => self.unmark(marker, pieces),
        }
        Step::Again
    }

    fn step_after_call(&mut self) -> Step {
        let rest = self.held().trim_ascii_start();
        if let Some(rest) = rest.strip_prefix(HERMES_END) {
            self.at = self.came.len() - rest.len();
        } else if HERMES_END.starts_with(rest) {
            return Step::Wait;
        }
        self.state = State::Text;
        Step::Again
    }

    /// Emits a marker without a call as text.
    fn unmark(&mut self, marker: CallMarker, pieces: &mut Vec<Piece>) {
        self.failed += 1;
        let mut text = std::mem::take(&mut self.gap);
        text.push_str(marker.text());
        pieces.push(Piece::Content(text));
        self.state = State::Text;
    }

    fn take_calls(&mut self, calls: Vec<(Call, bool)>, pieces: &mut Vec<Piece>) {
        self.gap = Zeroizing::default();
        pieces.extend(calls.into_iter().map(|(call, _)| Piece::Call(call)));
    }

    /// Counts calls, if there is room for all of them.
    fn has_room(&mut self, more: usize) -> bool {
        let fits = more > 0 && self.calls + more <= MAX_CALLS;
        self.calls += if fits { more } else { 0 };
        fits
    }
}

/// The name and the begun arguments of a call whose fields come in this order; the arguments are a map.
fn begun_call(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = skip(text, &["{", "\"name\"", ":", "\""])?.split_once('"')?;
    let rest = skip(rest, &[","])?;
    let arguments = skip(rest, &["\"arguments\"", ":"]).or_else(|| skip(rest, &["\"parameters\"", ":"]))?;
    let arguments = arguments.trim_ascii_start();
    (is_tool_name(name) && arguments.starts_with('{')).then_some((name, arguments))
}

/// The text after these tokens, which may have space before them.
fn skip<'a>(text: &'a str, tokens: &[&str]) -> Option<&'a str> {
    tokens.iter().try_fold(text, |text, token| text.trim_ascii_start().strip_prefix(*token))
}

/// The first marker in a text, with its position.
fn first_marker(text: &str) -> Option<(usize, CallMarker)> {
    text.match_indices(['<', '[']).find_map(|(at, _)| {
        let rest = text.get(at..)?;
        let marker = CallMarker::ALL.into_iter().find(|marker| rest.starts_with(marker.text()))?;
        Some((at, marker))
    })
}

/// Length of the longest suffix of `text` that is the start of a marker.
fn begun_marker(text: &str) -> usize {
    let longest = |marker: CallMarker| {
        let marker = marker.text();
        (1..marker.len()).rev().find(|&length| text.ends_with(&marker[..length])).unwrap_or(0)
    };
    CallMarker::ALL.into_iter().map(longest).max().unwrap_or(0)
}

/// The calls of a code block after its fence: maps of a name and then arguments, with space between them. None for
/// another language, an open block, and other contents.
fn block_calls(block: &str) -> Option<Vec<(Call, bool)>> {
    let (language, block) = block.split_once('\n')?;
    let mut rest = block.strip_suffix(FENCE)?.trim_ascii();
    if !["", FENCE_LANGUAGE].contains(&language.trim_ascii()) {
        return None;
    }
    let mut calls = Vec::new();
    while !rest.is_empty() && calls.len() <= MAX_CALLS {
        let (value, after) = Json::parse_first(rest)?;
        let Json::Map(entries) = &value else { return None };
        let [(name, _), (arguments, Json::Map(_))] = &entries[..] else { return None };
        if (name.as_str(), arguments.as_str()) != ("name", "arguments") {
            return None;
        }
        calls.push(call_of(&value)?);
        rest = after.trim_ascii_start();
    }
    Some(calls)
}

/// Whether an answer that begins with a bracket or a fence cannot be calls; known as soon as its first key is there.
fn cannot_be_calls(text: &str) -> bool {
    let text = text.trim_ascii_start();
    let text = match text.strip_prefix(FENCE).map(|block| block.split_once('\n').ok_or(block)) {
        None => text,
        Some(Ok((language, block))) if ["", FENCE_LANGUAGE].contains(&language.trim_ascii()) => {
            block.trim_ascii_start()
        }
        Some(Ok(_)) => return true,
        Some(Err(begun)) => return !FENCE_LANGUAGE.starts_with(begun.trim_ascii()),
    };
    let text = text.strip_prefix('[').unwrap_or(text).trim_ascii_start();
    let Some(map) = text.strip_prefix('{') else { return !text.is_empty() };
    let map = map.strip_prefix('{').unwrap_or(map);
    let Some(key) = map.trim_ascii_start().strip_prefix('"') else {
        return !map.trim_ascii_start().is_empty();
    };
    let Some((key, _)) = key.split_once('"') else { return key.len() > "parameters".len() };
    !KEYS.contains(&key)
}

/// Keys of a call.
const KEYS: [&str; 6] = ["name", "arguments", "parameters", "type", "function", "id"];

/// Reads a whole text as calls, with `;`, `,` or space between them. Some templates show calls with two braces by
/// mistake, and their models write one call so.
fn sequence(text: &str) -> Option<Vec<(Call, bool)>> {
    if let Some(inner) = text.trim_ascii().strip_prefix('{').filter(|inner| inner.starts_with('{')) {
        let (value, after) = Json::parse_first(inner)?;
        return if matches!(after.trim_ascii(), "" | "}") { calls_of(&value) } else { None };
    }
    let mut calls = Vec::new();
    let mut rest = text.trim_ascii();
    while !rest.is_empty() {
        let (value, after) = Json::parse_first(rest)?;
        calls.extend(calls_of(&value)?);
        rest = after.trim_start_matches(|c: char| c.is_ascii_whitespace() || matches!(c, ';' | ','));
        if calls.len() > MAX_CALLS {
            return None;
        }
    }
    Some(calls)
}

/// The calls of a value, which is a map or a list of maps; none if any part is not a call.
fn calls_of(value: &Json) -> Option<Vec<(Call, bool)>> {
    match value {
        Json::List(values) => values.iter().map(call_of).collect(),
        _ => Some(vec![call_of(value)?]),
    }
}

/// A call, and whether it has only the keys of a call.
fn call_of(value: &Json) -> Option<(Call, bool)> {
    let Json::Map(entries) = value else { return None };
    let mut exact = entries.iter().all(|(key, _)| KEYS.contains(&key.as_str()));
    let inner = match value.get("function") {
        Some(inner @ Json::Map(entries)) => {
            exact &= entries.iter().all(|(key, _)| KEYS.contains(&key.as_str()));
            inner
        }
        _ => value,
    };
    let name = inner.get("name").and_then(Json::as_text).filter(|name| is_tool_name(name))?;
    let given = inner.get("arguments").or_else(|| inner.get("parameters"));
    exact &= given.is_some();
    let arguments = match given {
        None | Some(Json::Null) => Json::Map(Vec::new()),
        Some(map @ Json::Map(_)) => map.clone(),
        // The form of OpenAI's API.
        Some(Json::Text(text)) => Json::parse(text).filter(|value| matches!(value, Json::Map(_)))?,
        Some(_) => return None,
    };
    Some((Call { name: name.to_owned(), arguments }, exact))
}

/// Finds the end of a JSON map or list; reads each byte once.
#[derive(Default)]
struct BracketScan {
    at: usize,
    depth: usize,
    in_text: bool,
    escaped: bool,
}

enum ScanOutcome {
    /// Not there yet.
    Open,
    /// Neither a map nor a list.
    Wrong,
    /// At this position.
    End(usize),
}

impl BracketScan {
    fn end(&mut self, text: &str, or_list: bool) -> ScanOutcome {
        for byte in text.bytes().skip(self.at) {
            self.at += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_text => self.escaped = true,
                b'"' if self.depth > 0 => self.in_text = !self.in_text,
                _ if self.in_text => {}
                b'{' => self.depth += 1,
                b'[' if self.depth > 0 || or_list => self.depth += 1,
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return ScanOutcome::End(self.at);
                    }
                }
                _ if self.depth == 0 && !byte.is_ascii_whitespace() => return ScanOutcome::Wrong,
                _ => {}
            }
        }
        ScanOutcome::Open
    }
}
