//! Numbers of a schema that `f64` does not hold. The grammar library reads each number as one, and would round them.
//!
//! The text of such a number stands in the parsed schema behind [`MARK`]. The library compiles a placeholder in its
//! place, and the lexeme of the placeholder then becomes the number's own expression.

use llguidance::{derivre::RegexAst, earley::lexerspec::LexerSpec};
use serde_json::{Value, json};

use crate::language::LanguageError;

/// Begins the text of a marked number; a character for private use.
const MARK: &str = "\u{f8ff}number ";
/// Decimal digits that `f64` holds, whatever they are.
const EXACT_DIGITS: usize = 15;
/// The largest number up to which `f64` holds every integer.
const EXACT_INTEGER: u128 = 1 << 53;
/// Most zeros after the point before the library writes a number at great length.
const MOST_ZEROS: i64 = 40;
/// Most digits of a bound: `i128` holds any so many.
const MAX_DIGITS: usize = 38;
/// Most multiples that are listed.
const MAX_MULTIPLES: i128 = 400;
/// The first placeholder: `f64` holds it and its half steps.
const FIRST_PLACEHOLDER: u64 = (1 << 51) + 1;

/// A decimal number: its digits without leading zeros, times a power of ten.
#[derive(Clone)]
struct Decimal {
    negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    fn parse(token: &str) -> Option<Self> {
        let (negative, rest) = token.strip_prefix('-').map_or((false, token), |rest| (true, rest));
        let (number, exponent) = rest.split_once(['e', 'E']).map_or((rest, None), |(n, e)| (n, Some(e)));
        let (whole, fraction) = number.split_once('.').map_or((number, None), |(w, f)| (w, Some(f)));
        let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_sound = are_digits(whole)
            && (whole == "0" || !whole.starts_with('0'))
            && fraction.is_none_or(are_digits)
            && exponent.is_none_or(|text| are_digits(text.strip_prefix(['+', '-']).unwrap_or(text)));
        if !is_sound {
            return None;
        }
        let fraction = fraction.unwrap_or_default();
        let exponent = exponent.map_or(Some(0), |text| text.parse::<i32>().ok()).unwrap_or(i32::MAX);
        let all = format!("{whole}{fraction}");
        let digits = all.trim_start_matches('0').trim_end_matches('0');
        let zeros = all.len() - all.trim_end_matches('0').len();
        let shift = i64::try_from(zeros).ok()? - i64::try_from(fraction.len()).ok()?;
        Some(Self { negative, digits: digits.to_owned(), exponent: i64::from(exponent) + shift })
    }

    /// The number that a value holds.
    fn of(value: &Value) -> Option<Self> {
        Self::parse(&marked(value).map_or_else(|| value.to_string(), str::to_owned))
    }

    /// Its value, if it is an integer of bounded length.
    fn integer(&self) -> Option<i128> {
        self.scaled(0)
    }

    /// Its value in units of this decimal place, if it has so many of them.
    fn scaled(&self, places: i64) -> Option<i128> {
        if self.digits.is_empty() {
            return Some(0);
        }
        let zeros = usize::try_from(self.exponent + places).ok()?;
        let length = self.digits.len().checked_add(zeros)?;
        let text = (length <= MAX_DIGITS).then(|| format!("{}{}", self.digits, "0".repeat(zeros)))?;
        let size: i128 = text.parse().ok()?;
        Some(if self.negative { -size } else { size })
    }

    /// Whether the library keeps it as it is.
    fn is_exact(&self) -> bool {
        if self.exponent >= 0 || self.digits.is_empty() {
            return self.integer().is_some_and(|number| number.unsigned_abs() <= EXACT_INTEGER);
        }
        self.digits.len() <= EXACT_DIGITS && self.exponent >= -MOST_ZEROS
    }
}

/// The text of a schema with marks for numbers that `f64` does not hold.
pub(super) fn mark(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
    while let Some(at) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
        let (before, token) = rest.split_at(at);
        out.push_str(before);
        let end = if token.starts_with('"') { string_end(token) } else { token.find(|c: char| !is_part(c)) };
        let (token, after) = token.split_at(end.unwrap_or(token.len()));
        match Decimal::parse(token) {
            Some(number) if !number.is_exact() => out.push_str(&format!("\"{MARK}{token}\"")),
            _ => out.push_str(token),
        }
        rest = after;
    }
    out + rest
}

/// The end of a JSON string at the start of a text.
fn string_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    let close = text.bytes().skip(1).position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    });
    close.map(|close| close + 2)
}

/// The text of a marked number.
fn marked(value: &Value) -> Option<&str> {
    value.as_str()?.strip_prefix(MARK)
}

/// Whether a marked number is in this value.
pub(super) fn has_mark(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(has_mark),
        Value::Object(fields) => fields.values().any(has_mark),
        value => marked(value).is_some(),
    }
}

/// The numbers of a schema, by their placeholders.
#[derive(Default)]
pub(super) struct Numbers(Vec<Placeholder>);

struct Placeholder {
    /// As the library writes it.
    text: String,
    expression: String,
}

impl Numbers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The definitions of the placeholders.
    pub(super) fn definitions(&self) -> impl Iterator<Item = (String, Value)> {
        self.0.iter().enumerate().map(|(index, placeholder)| {
            let number: serde_json::Number = placeholder.text.parse().unwrap_or_else(|_| 0.into());
            (name(index), json!({ "const": number }))
        })
    }

    /// A schema of this value alone. `None` if it has no marked number.
    pub(super) fn of_const(&mut self, value: &Value) -> Option<Value> {
        if !has_mark(value) {
            return None;
        }
        let any = |numbers: &mut Self, value: &Value| {
            numbers.of_const(value).unwrap_or_else(|| json!({ "const": value }))
        };
        Some(match value {
            Value::Array(items) => {
                let items: Vec<Value> = items.iter().map(|item| any(self, item)).collect();
                let count = items.len();
                json!({ "type": "array", "prefixItems": items, "items": false, "minItems": count, "maxItems": count })
            }
            Value::Object(fields) => {
                let keys: Vec<&String> = fields.keys().collect();
                let fields: serde_json::Map<_, _> =
                    fields.iter().map(|(key, value)| (key.clone(), any(self, value))).collect();
                json!({ "type": "object", "properties": fields, "required": keys, "additionalProperties": false })
            }
            value => {
                let token = marked(value)?;
                let number = Decimal::parse(token)?;
                let expression = token.replace('.', "\\.").replace('+', "\\+");
                self.placeholder(expression, number.negative, number.exponent >= 0)
            }
        })
    }

    /// A schema of the numbers within bounds. `None` if a bound is no integer of at most [`MAX_DIGITS`] digits.
    pub(super) fn within(&mut self, least: &[Limit<'_>], most: &[Limit<'_>], integer: bool) -> Option<Value> {
        let (least, most) = (tightest(least, true, 0)?, tightest(most, false, 0)?);
        let expression = integers(least, most, integer)?;
        Some(self.placeholder(expression, false, integer))
    }

    fn placeholder(&mut self, expression: String, negative: bool, integer: bool) -> Value {
        let index = self.0.iter().position(|known| known.expression == expression).unwrap_or_else(|| {
            let number = FIRST_PLACEHOLDER + self.0.len() as u64;
            let (sign, half) = (if negative { "-" } else { "" }, if integer { "" } else { ".5" });
            self.0.push(Placeholder { text: format!("{sign}{number}{half}"), expression });
            self.0.len() - 1
        });
        json!({ "$ref": format!("#/$defs/{}", name(index)) })
    }

    /// Puts the numbers in the place of their placeholders.
    pub(super) fn put_into(&self, spec: &mut LexerSpec) -> Result<(), LanguageError> {
        for Placeholder { text, expression } in &self.0 {
            for index in 0..spec.lexemes.len() {
                let is_placeholder = spec.lexemes.get(index);
                if !is_placeholder.is_some_and(|lexeme| spec.has_forced_bytes(lexeme, text.as_bytes())) {
                    continue;
                }
                let mut rest = spec.lexemes.split_off(index).into_iter();
                spec.current_class = rest.next().ok_or(LanguageError::Library)?.class();
                let expression = RegexAst::Regex(expression.clone());
                let added = spec.add_greedy_lexeme(String::new(), expression, false, None, usize::MAX);
                // A lexeme that is there already is not added again.
                if added.is_err() || spec.lexemes.len() != index + 1 {
                    return Err(super::TOO_COMPLEX);
                }
                spec.lexemes.extend(rest);
            }
        }
        Ok(())
    }
}

fn name(index: usize) -> String {
    format!("{MARK}{index}")
}

/// A bound of a schema.
pub(super) struct Limit<'a> {
    pub(super) value: &'a Value,
    pub(super) excluded: bool,
}

/// The tightest of these bounds in units of a decimal place, if there is one. `None` if a bound is between two of them. With
/// an excluded bound, the numbers between it and the next unit are left out.
fn tightest(bounds: &[Limit<'_>], lower: bool, places: i64) -> Option<Option<i128>> {
    let last = |bound: &Limit<'_>| {
        let number = Decimal::of(bound.value)?.scaled(places)?;
        Some(number + i128::from(bound.excluded) * if lower { 1 } else { -1 })
    };
    let all = bounds.iter().map(last).collect::<Option<Vec<_>>>()?.into_iter();
    Some(if lower { all.max() } else { all.min() })
}

/// The multiples of a number within bounds. `None` if they are too many for a list, or have too many digits.
pub(super) fn multiples(
    step: &Value,
    [least, most]: &[Vec<Limit<'_>>; 2],
    integer: bool,
) -> Option<Vec<Value>> {
    let step = Decimal::of(step)?;
    let bounds = least.iter().chain(most).map(|bound| Decimal::of(bound.value));
    let exponents = bounds.chain([Some(step.clone())]).map(|number| Some(number?.exponent));
    // All of them as whole numbers of the last decimal place.
    let places = -exponents.collect::<Option<Vec<_>>>()?.into_iter().min()?.min(0);
    let (least, most) = (tightest(least, true, places)??, tightest(most, false, places)??);
    let (step, unit) =
        (step.scaled(places)?.checked_abs()?, 10_i128.checked_pow(u32::try_from(places).ok()?)?);
    let step = if integer { (step / common_divisor(step, unit)).checked_mul(unit)? } else { step };
    let first = least.checked_add(step - 1)?.checked_div_euclid(step)?;
    let last = most.checked_div_euclid(step)?;
    if last.checked_sub(first)? >= MAX_MULTIPLES {
        return None;
    }
    let value = |number: i128| {
        let number = number.checked_mul(step)?;
        let (sign, size) = (if number < 0 { "-" } else { "" }, number.checked_abs()?);
        let width = usize::try_from(places).ok()?;
        let fraction = if width == 0 { String::new() } else { format!(".{:0width$}", size % unit) };
        let text = format!("{sign}{}{}", size / unit, fraction.trim_end_matches('0').trim_end_matches('.'));
        serde_json::from_str(&mark(&text)).ok()
    };
    (first..=last).map(value).collect()
}

fn common_divisor(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// The expression of the numbers from `least` to `most`; `None` if there are none.
fn integers(least: Option<i128>, most: Option<i128>, only_integers: bool) -> Option<String> {
    if least.zip(most).is_some_and(|(least, most)| least > most) {
        return None;
    }
    let mut parts = Vec::new();
    // Sizes of numbers below zero lie between those of the upper and of the lower bound.
    if least.is_none_or(|least| least < 0) {
        let low = most.filter(|most| *most < 0).map_or(u128::from(only_integers), i128::unsigned_abs);
        parts.push(format!("-{}", sizes(low, least.map(i128::unsigned_abs), only_integers)));
    }
    if most.is_none_or(|most| most >= 0) {
        let low = least.filter(|least| *least >= 0).map_or(0, i128::unsigned_abs);
        parts.push(sizes(low, most.map(i128::unsigned_abs), only_integers));
    }
    Some(parts.join("|"))
}

/// The expression of the numbers without a sign from `low` to `high`, with fractions below `high` if wanted.
fn sizes(low: u128, high: Option<u128>, only_integers: bool) -> String {
    let fraction = if only_integers { "" } else { "(\\.[0-9]+)?" };
    let Some(high) = high else {
        let low = low.to_string();
        let same_length = span(&low, &"9".repeat(low.len()));
        return format!("(({same_length}|[1-9][0-9]{{{},}}){fraction})", low.len());
    };
    if only_integers {
        return format!("({})", range(low, high));
    }
    let zeros = format!("{high}(\\.0+)?");
    match low == high {
        true => format!("({zeros})"),
        false => format!("(({}){fraction}|{zeros})", range(low, high - 1)),
    }
}

/// The expression of the integers from `low` to `high`, of any lengths.
fn range(low: u128, high: u128) -> String {
    let (low, high) = (low.to_string(), high.to_string());
    let parts: Vec<String> = (low.len()..=high.len())
        .map(|length| {
            let first =
                if length == low.len() { low.clone() } else { format!("1{}", "0".repeat(length - 1)) };
            let last = if length == high.len() { high.clone() } else { "9".repeat(length) };
            span(&first, &last)
        })
        .collect();
    parts.join("|")
}

/// The expression of the integers from `low` to `high`, which have the same length.
fn span(low: &str, high: &str) -> String {
    let (Some(first), Some(last)) = (low.chars().next(), high.chars().next()) else { return String::new() };
    let (low_rest, high_rest) = (low.get(1..).unwrap_or_default(), high.get(1..).unwrap_or_default());
    if first == last {
        return format!("{first}{}", span(low_rest, high_rest));
    }
    let (all_low, all_high) = (low_rest.bytes().all(|d| d == b'0'), high_rest.bytes().all(|d| d == b'9'));
    let (nines, zeros, any) = ("9".repeat(low_rest.len()), "0".repeat(low_rest.len()), low_rest.len());
    let mut parts = Vec::new();
    let from = if all_low { first } else { next(first, 1) };
    let to = if all_high { last } else { next(last, -1) };
    if !all_low {
        parts.push(format!("{first}{}", span(low_rest, &nines)));
    }
    if from <= to {
        parts.push(format!("[{from}-{to}][0-9]{{{any}}}"));
    }
    if !all_high {
        parts.push(format!("{last}{}", span(&zeros, high_rest)));
    }
    format!("({})", parts.join("|"))
}

/// The digit beside another.
fn next(digit: char, step: i8) -> char {
    char::from((digit as u8).saturating_add_signed(step))
}
