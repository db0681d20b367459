//! JSON schemas, as masks over a model's tokens.
//!
//! Schemas are untrusted. Their size, nesting and values are bounded before compiling. Compiling and each
//! step have fuel, and the automaton has a limit of states; beyond them, the crate returns an error.
//! Compiling and masks are deterministic, so a resumed or repeated answer gets the same masks. A grammar's
//! state of an answer is dropped with the grammar.

mod calls;
mod numbers;
mod schema;

use std::sync::Arc;

use llguidance::{
    JsonCompileOptions, Matcher, ParserFactory,
    api::{GrammarInit, ParserLimits, TopLevelGrammar},
    toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie},
};
use serde_json::Value;

use self::{
    calls::{CallState, TextTokens},
    numbers::Numbers,
    schema::refused,
};
use super::{LanguageError, Tokenizer};

/// Maximum size in bytes of a schema or an expression.
pub const MAX_SCHEMA_BYTES: usize = 64 * 1024;

/// Maximum number of levels of arrays and objects in a schema. Each level takes several nested calls while
/// compiling. Real schemas have ten levels, and OpenAI's limit is ten levels of objects.
const MAX_SCHEMA_DEPTH: usize = 48;
/// Maximum number of values in a schema, keys included: alternatives multiply while compiling.
const MAX_SCHEMA_VALUES: usize = 4_096;
/// Maximum number of references of a schema to its own definitions. Compiling follows chains of them in
/// depth.
const MAX_SCHEMA_REFS: usize = 256;
/// Most places of a keyword that are tried alone after a refusal.
const MAX_CULPRITS: usize = 16;
/// Stack for compiling: several calls for each level within the limits above, with a margin. It is only
/// reserved.
const COMPILE_STACK_BYTES: usize = 64 << 20;

/// Maximum number of states of an automaton, of one to two kilobytes each.
const MAX_STATES: usize = 20_000;
/// Maximum number of symbols of a grammar; large schemas of well-known formats have as many.
const MAX_GRAMMAR_SYMBOLS: usize = 200_000;
/// Fuel of the automaton's first states: some tens of milliseconds.
const COMPILE_FUEL: u64 = 1_000_000;
/// Fuel of one mask: at most some fifteen milliseconds, for a token that takes as long.
const STEP_FUEL: u64 = 200_000;
/// Maximum number of items for one mask: some milliseconds.
const STEP_ITEMS: usize = 50_000;

/// Python's JSON style, the most frequent in training data. With free white space, a small model could write
/// white space for ever.
const ITEM_SEPARATOR: &str = ", ";
/// See [`ITEM_SEPARATOR`].
const KEY_SEPARATOR: &str = ": ";

/// Compiles schemas for one model's tokens.
pub struct Grammars {
    factory: ParserFactory,
    text_tokens: Arc<TextTokens>,
}

impl Grammars {
    /// Sorts the vocabulary, which takes some hundred milliseconds.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, LanguageError> {
        let words: Vec<Vec<u8>> = (0..tokenizer.vocabulary())
            .map(|id| u32::try_from(id).map_or_else(|_| Vec::new(), |id| tokenizer.token_bytes(id).to_vec()))
            .collect();
        let vocabulary = u32::try_from(words.len()).map_err(|_| LanguageError::Library)?;
        let end = tokenizer.stops().first().copied().ok_or(LanguageError::NoEndToken)?;
        let trie = TokTrie::from(&TokRxInfo::new(vocabulary, end), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|_| LanguageError::Library)?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            initial_lexer_fuel: COMPILE_FUEL,
            step_lexer_fuel: STEP_FUEL,
            step_max_items: STEP_ITEMS,
            max_lexer_states: MAX_STATES,
            max_grammar_size: MAX_GRAMMAR_SYMBOLS,
            // An error must not contain the answer.
            verbose_errors: false,
            ..ParserLimits::default()
        };
        let text_tokens = Arc::new(TextTokens::of(env.tok_trie()));
        Ok(Self { factory, text_tokens })
    }

    /// Compiles a schema. Most take some milliseconds; the worst within the limits may occupy the thread for
    /// a second.
    ///
    /// # Errors
    /// [`LanguageError::Schema`].
    pub fn compile(&self, schema: &str) -> Result<Grammar, LanguageError> {
        let (schema, numbers) = schema::prepared(read(schema)?)?;
        let whole = |schema: &Value| TopLevelGrammar::from_json_schema(with_options(schema, &compact()));
        let matcher = self.start_schema(&schema, &numbers, &whole)?;
        Ok(self.grammar(State::Whole(Box::new(matcher))))
    }

    /// Compiles the schema of a call, for a free answer in which each call is held to it. A call stands between
    /// `<tool_call>` and `</tool_call>`, or the whole answer is a code block of calls, or one call. With `strict`, the answer has
    /// no calls in other syntaxes.
    ///
    /// # Errors
    /// [`LanguageError::Schema`].
    pub fn compile_calls(&self, schema: &str, strict: bool) -> Result<Grammar, LanguageError> {
        let (schema, numbers) = schema::prepared(read(schema)?)?;
        let start = |lark: fn(&str) -> String, options: &JsonCompileOptions| {
            self.start_schema(&schema, &numbers, &|schema| {
                TopLevelGrammar::from_lark(lark(&with_options(schema, options).to_string()))
            })
        };
        let spaces = JsonCompileOptions {
            whitespace_pattern: Some(calls::BLOCK_SPACE.to_owned()),
            ..JsonCompileOptions::default()
        };
        let starts = [
            start(calls::lark, &compact())?,
            start(calls::block_lark, &spaces)?,
            start(calls::bare_lark, &spaces)?,
        ];
        Ok(self.grammar(State::Calls(Box::new(CallState::new(starts, strict)))))
    }

    fn grammar(&self, state: State) -> Grammar {
        Grammar { state, env: self.factory.tok_env().clone(), text_tokens: self.text_tokens.clone() }
    }

    /// Starts the grammar around a schema. A refusal names the keyword and its place, where the library names one.
    fn start_schema(
        &self,
        schema: &Value,
        numbers: &Numbers,
        around: &dyn Fn(&Value) -> TopLevelGrammar,
    ) -> Result<Matcher, LanguageError> {
        let message = match self.start(around(schema), numbers) {
            Ok(matcher) => return Ok(matcher),
            Err(StartError::Nothing) => return refuse("nothing satisfies it"),
            Err(StartError::Panicked) => return Err(LanguageError::Library),
            Err(StartError::Refused(message)) => message,
        };
        if message.contains("Unsatisfiable") {
            return refuse("nothing satisfies it");
        }
        let Some(keyword) = schema::culprit(&message) else { return Err(TOO_COMPLEX) };
        let mut places = schema::places(&mut schema.clone(), keyword);
        places.truncate(MAX_CULPRITS);
        // With several, it is the first that the library refuses alone.
        let is_refused = |(_, alone): &(String, Value)| matches!(self.start(around(alone), numbers), Err(StartError::Refused(again)) if schema::culprit(&again) == Some(keyword));
        let at = if places.len() > 1 { places.iter().position(is_refused).unwrap_or(0) } else { 0 };
        match places.get(at) {
            Some((place, _)) => Err(refused(keyword, place, "nodes do not hold answers to this form of it")),
            None => Err(TOO_COMPLEX),
        }
    }

    fn start(&self, grammar: TopLevelGrammar, numbers: &Numbers) -> Result<Matcher, StartError> {
        let work = || {
            let (env, limits) = (self.factory.tok_env().clone(), self.factory.limits().clone());
            let internal = GrammarInit::Serialized(grammar).to_internal(Some(env), limits);
            let (grammar, mut lexemes) =
                internal.map_err(|error| StartError::Refused(format!("{error:#}")))?;
            numbers.put_into(&mut lexemes).map_err(|error| StartError::Refused(error.to_string()))?;
            let parser =
                self.factory.create_parser_from_init_default(GrammarInit::Internal(grammar, lexemes));
            let mut matcher = Matcher::new(parser);
            // Refuse a grammar without a possible first token now, before it takes a slot.
            let first = if matcher.is_error() { None } else { matcher.compute_mask().ok() };
            if matcher.is_error() {
                return Err(StartError::Refused(matcher.get_error().unwrap_or_default()));
            }
            if first.is_none_or(|mask| mask.is_zero()) { Err(StartError::Nothing) } else { Ok(matcher) }
        };
        std::thread::scope(|scope| {
            let thread =
                std::thread::Builder::new().stack_size(COMPILE_STACK_BYTES).spawn_scoped(scope, work);
            thread.ok().and_then(|thread| thread.join().ok()).unwrap_or(Err(StartError::Panicked))
        })
    }
}

/// Why a grammar does not start.
enum StartError {
    /// The library's message.
    Refused(String),
    /// No answer satisfies it.
    Nothing,
    /// The library failed.
    Panicked,
}

fn refuse<T>(reason: &'static str) -> Result<T, LanguageError> {
    Err(LanguageError::Schema { reason: reason.into() })
}

const TOO_COMPLEX: LanguageError =
    LanguageError::Schema { reason: std::borrow::Cow::Borrowed("it is too complex") };

/// Checks that a schema is JSON within the limits, for callers that only forward it.
///
/// # Errors
/// [`LanguageError::Schema`].
pub fn check(schema: &str) -> Result<(), LanguageError> {
    read(schema).map(drop)
}

/// The white space of answers.
fn compact() -> JsonCompileOptions {
    JsonCompileOptions {
        item_separator: ITEM_SEPARATOR.to_owned(),
        key_separator: KEY_SEPARATOR.to_owned(),
        whitespace_flexible: false,
        ..JsonCompileOptions::default()
    }
}

/// A schema with the library's options.
fn with_options(schema: &Value, options: &JsonCompileOptions) -> Value {
    let mut schema = schema.clone();
    options.apply_to(&mut schema);
    schema
}

/// Parses a schema and applies the limits.
fn read(text: &str) -> Result<Value, LanguageError> {
    if text.len() > MAX_SCHEMA_BYTES {
        return refuse("it is too long");
    }
    // The parser has its own nesting limit, above this one.
    let Ok(schema) = serde_json::from_str::<Value>(&numbers::mark(text)) else {
        return refuse("it is not JSON");
    };
    let mut budget = Budget { values: MAX_SCHEMA_VALUES, refs: MAX_SCHEMA_REFS };
    if !budget.covers(&schema, MAX_SCHEMA_DEPTH) {
        return refuse("it is too large");
    }
    let Value::Object(fields) = &schema else { return refuse("it is not an object") };
    // The crate's own options could relax the checks.
    if fields.contains_key("x-guidance") {
        return refuse("it says what is not supported");
    }
    Ok(schema)
}

struct Budget {
    values: usize,
    refs: usize,
}

impl Budget {
    fn take(&mut self, values: usize) -> bool {
        let left = self.values.checked_sub(values);
        self.values = left.unwrap_or(0);
        left.is_some()
    }

    fn covers(&mut self, value: &Value, depth: usize) -> bool {
        let Some(deeper) = depth.checked_sub(1) else { return false };
        match value {
            Value::Array(items) => {
                self.take(items.len() + 1) && items.iter().all(|item| self.covers(item, deeper))
            }
            Value::Object(fields) => {
                let refs = usize::from(fields.contains_key("$ref"));
                let Some(left) = self.refs.checked_sub(refs) else { return false };
                self.refs = left;
                self.take(fields.len() + 1) && fields.values().all(|field| self.covers(field, deeper))
            }
            _ => true,
        }
    }
}

/// The state of an answer within its grammar.
#[derive(Clone)]
pub struct Grammar {
    state: State,
    env: TokEnv,
    text_tokens: Arc<TextTokens>,
}

#[derive(Clone)]
enum State {
    /// The whole answer follows the grammar.
    Whole(Box<Matcher>),
    /// The calls of the answer follow it.
    Calls(Box<CallState>),
}

impl Grammar {
    /// Advances over the tokens of a known prefix.
    ///
    /// # Errors
    /// [`LanguageError::NoPrefix`] if they do not begin any allowed answer.
    pub fn resume(&mut self, ids: &[u32]) -> Result<(), LanguageError> {
        let vocabulary = self.env.tok_trie().vocab_size();
        if ids.iter().any(|&id| id as usize >= vocabulary) {
            return Err(LanguageError::NoPrefix);
        }
        match &mut self.state {
            State::Whole(matcher) => match matcher.try_consume_tokens(ids) {
                Ok(taken) if taken == ids.len() => Ok(()),
                Ok(_) => Err(LanguageError::NoPrefix),
                Err(_) => Err(TOO_COMPLEX),
            },
            State::Calls(_) => {
                ids.iter().try_for_each(|&id| self.push(id)).map_err(|_| LanguageError::NoPrefix)
            }
        }
    }

    /// Whether no token may follow.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        match &self.state {
            State::Whole(matcher) => matcher.is_stopped(),
            State::Calls(_) => false,
        }
    }

    /// Keeps the logits of allowed next tokens, and sets the others to minus infinity. `ends` identifies
    /// tokens that end an answer; they are allowed where the value is complete.
    pub fn mask(&mut self, logits: &mut [f32], ends: impl Fn(u32) -> bool) -> Result<(), LanguageError> {
        let matcher = match &mut self.state {
            State::Whole(matcher) => matcher,
            State::Calls(calls) => {
                if calls.call().is_none() {
                    calls.exclude(&self.text_tokens, |id| {
                        if let Some(logit) = logits.get_mut(id as usize) {
                            *logit = f32::NEG_INFINITY;
                        }
                    });
                }
                let Some(matcher) = calls.call() else { return Ok(()) };
                matcher
            }
        };
        let allowed: SimpleVob = matcher.compute_mask().map_err(|_| TOO_COMPLEX)?;
        let whole = matcher.is_accepting().map_err(|_| TOO_COMPLEX)?;
        let vocabulary = self.env.tok_trie().vocab_size();
        for (id, logit) in (0u32..).zip(logits.iter_mut()) {
            let may = if ends(id) { whole } else { (id as usize) < vocabulary && allowed.is_allowed(id) };
            if !may {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Advances by the chosen token.
    pub fn push(&mut self, id: u32) -> Result<(), LanguageError> {
        match &mut self.state {
            State::Whole(matcher) => matcher.consume_token(id).map_err(|_| TOO_COMPLEX),
            State::Calls(calls) => calls.push(id, self.env.tok_trie().token(id)),
        }
    }
}

#[cfg(test)]
mod tests;
