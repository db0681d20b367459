//! What JSON a schema allows, or what text an expression, as a mask over a model's tokens.
//!
//! The schema is a stranger's. Its size, nesting and values are bounded before it is compiled; compiling and each step
//! have fuel, and the automaton a number of states, by which the crate ends with an error. Compiling is deterministic and so
//! is every mask, so a resumed or repeated answer meets the same ones. What a grammar saw of an answer is dropped with it.

use std::sync::Arc;

use llguidance::{
    JsonCompileOptions, Matcher, ParserFactory,
    api::{ParserLimits, TopLevelGrammar},
    toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie},
};
use serde_json::Value;

use super::{LanguageError, Tokenizer};

/// Bytes of a schema or an expression.
pub const MAX_SCHEMA_BYTES: usize = 64 * 1024;

/// Levels of arrays and objects in a schema. Each level of it is several calls deep while it is compiled; people's schemas
/// have ten, and OpenAI's limit is ten levels of objects.
const MAX_SCHEMA_DEPTH: usize = 48;
/// Values in a schema, keys counted: alternatives multiply while it is compiled.
const MAX_SCHEMA_VALUES: usize = 4_096;
/// Times that a schema refers to a definition of its own. Chains of them are followed in depth.
const MAX_SCHEMA_REFS: usize = 256;
/// Stack for compiling: several calls for each level that the limits above allow, with room. It is only reserved.
const COMPILE_STACK_BYTES: usize = 64 << 20;

/// States of an automaton, of one to two kilobytes each.
const MAX_STATES: usize = 20_000;
/// Symbols of a grammar; large schemas of well-known formats have as many.
const MAX_GRAMMAR_SYMBOLS: usize = 200_000;
/// Fuel of the automaton's first states: some tens of milliseconds.
const COMPILE_FUEL: u64 = 1_000_000;
/// Fuel of one mask: some fifteen milliseconds at the most, for a token that takes as long.
const STEP_FUEL: u64 = 200_000;
/// Items that one mask may cost, some milliseconds.
const STEP_ITEMS: usize = 50_000;

/// As Python prints JSON, which models have seen most. Free white space would let a small model write nothing else.
const ITEM_SEPARATOR: &str = ", ";
/// See [`ITEM_SEPARATOR`].
const KEY_SEPARATOR: &str = ": ";

/// Compiles schemas for one model's tokens.
pub struct Grammars {
    factory: ParserFactory,
}

impl Grammars {
    /// Sorts the vocabulary; some hundred milliseconds.
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
            // An error must not carry the answer.
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Self { factory })
    }

    /// Compiles a schema: some milliseconds for most, and the thread that does it may be busy for a second with the worst
    /// that the limits allow.
    ///
    /// # Errors
    /// [`LanguageError::Schema`].
    pub fn compile(&self, schema: &str) -> Result<Grammar, LanguageError> {
        let mut schema = read(schema)?;
        let options = JsonCompileOptions {
            item_separator: ITEM_SEPARATOR.to_owned(),
            key_separator: KEY_SEPARATOR.to_owned(),
            whitespace_flexible: false,
            ..JsonCompileOptions::default()
        };
        options.apply_to(&mut schema);
        self.start(TopLevelGrammar::from_json_schema(schema))
    }

    /// Compiles a regular expression (of the `regex` crate's syntax, without anchors and look-around) that the whole
    /// answer is to match.
    ///
    /// # Errors
    /// [`LanguageError::Schema`].
    pub fn compile_regex(&self, expression: &str) -> Result<Grammar, LanguageError> {
        if expression.len() > MAX_SCHEMA_BYTES {
            return Err(LanguageError::Schema { reason: "it is too long" });
        }
        self.start(TopLevelGrammar::from_regex(expression))
    }

    fn start(&self, grammar: TopLevelGrammar) -> Result<Grammar, LanguageError> {
        let compiled = std::thread::scope(|scope| {
            let work = || {
                let parser = self.factory.create_parser(grammar);
                let mut matcher = Matcher::new(parser);
                // What can never begin would only fail after a slot is taken.
                let first = if matcher.is_error() { None } else { matcher.compute_mask().ok() };
                (matcher, first.is_some_and(|mask| !mask.is_zero()))
            };
            let thread =
                std::thread::Builder::new().stack_size(COMPILE_STACK_BYTES).spawn_scoped(scope, work);
            thread.ok().and_then(|thread| thread.join().ok())
        });
        let (matcher, may_begin) = compiled.ok_or(LanguageError::Library)?;
        if matcher.is_error() {
            return Err(LanguageError::Schema { reason: "it is too complex, or says what is not supported" });
        }
        if !may_begin {
            return Err(LanguageError::Schema { reason: "nothing satisfies it" });
        }
        Ok(Grammar { matcher, vocabulary: self.factory.tok_env().tok_trie().vocab_size() })
    }
}

const TOO_COMPLEX: LanguageError = LanguageError::Schema { reason: "it is too complex" };

/// Whether a schema is JSON within the limits, for who only hands it on.
///
/// # Errors
/// [`LanguageError::Schema`].
pub fn check(schema: &str) -> Result<(), LanguageError> {
    read(schema).map(drop)
}

/// Parses a schema within its limits.
fn read(text: &str) -> Result<Value, LanguageError> {
    let refuse = |reason| Err(LanguageError::Schema { reason });
    if text.len() > MAX_SCHEMA_BYTES {
        return refuse("it is too long");
    }
    // The parser has its own limit of nesting, above ours.
    let Ok(schema) = serde_json::from_str::<Value>(text) else { return refuse("it is not JSON") };
    let mut budget = Budget { values: MAX_SCHEMA_VALUES, refs: MAX_SCHEMA_REFS };
    if !budget.covers(&schema, MAX_SCHEMA_DEPTH) {
        return refuse("it is too large");
    }
    let Value::Object(fields) = &schema else { return refuse("it is not an object") };
    // The crate's own options: they could make it lenient.
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

/// Where an answer stands in what its schema allows.
#[derive(Clone)]
pub struct Grammar {
    matcher: Matcher,
    vocabulary: usize,
}

impl Grammar {
    /// Takes the tokens of a known prefix.
    ///
    /// # Errors
    /// [`LanguageError::NoPrefix`] when they are not the beginning of anything that is allowed.
    pub fn resume(&mut self, ids: &[u32]) -> Result<(), LanguageError> {
        if ids.iter().any(|&id| id as usize >= self.vocabulary) {
            return Err(LanguageError::NoPrefix);
        }
        match self.matcher.try_consume_tokens(ids) {
            Ok(taken) if taken == ids.len() => Ok(()),
            Ok(_) => Err(LanguageError::NoPrefix),
            Err(_) => Err(TOO_COMPLEX),
        }
    }

    /// Whether nothing more may follow.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.matcher.is_stopped()
    }

    /// Leaves the logits of the tokens that may come next, and takes away the others'. `ends` says which tokens end an
    /// answer; they may come where the value is whole.
    pub fn mask(&mut self, logits: &mut [f32], ends: impl Fn(u32) -> bool) -> Result<(), LanguageError> {
        let allowed: SimpleVob = self.matcher.compute_mask().map_err(|_| TOO_COMPLEX)?;
        let whole = self.matcher.is_accepting().map_err(|_| TOO_COMPLEX)?;
        for (id, logit) in (0u32..).zip(logits.iter_mut()) {
            let may =
                if ends(id) { whole } else { (id as usize) < self.vocabulary && allowed.is_allowed(id) };
            if !may {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Takes the token that was chosen.
    pub fn push(&mut self, id: u32) -> Result<(), LanguageError> {
        self.matcher.consume_token(id).map_err(|_| TOO_COMPLEX)
    }
}

#[cfg(test)]
mod tests;
