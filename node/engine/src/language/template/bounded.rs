//! A template whose values, output and nesting are bounded while it is rendered.
//!
//! The template library bounds steps, but not the bytes of a value. So each instruction that makes a value is followed
//! by a filter that counts the value's bytes, and output passes through a formatter that does the same. Operations
//! that could make a large value at once have versions of their own here.

use std::{
    fmt::{self, Write as _},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Output, State, Value,
    machinery::{self, CompiledTemplate, Instruction, Instructions, TemplateConfig, Token},
    syntax::SyntaxConfig,
    value::{Rest, ValueKind, ValueOrKwargs},
};

/// Maximum size in bytes of one value, with all values in it.
const MAX_VALUE_BYTES: usize = 8 << 20;
/// Maximum size in bytes of all values of one rendering, and of all that they write.
const MAX_WORK_BYTES: usize = 64 << 20;
/// Bytes counted for a value beside its text.
const VALUE_BYTES: usize = 32;
/// Deepest nesting of values; tools may have 128 levels.
const MAX_DEPTH: usize = 160;
/// The largest number in an expression with `*`: the library computes constants before it counts steps.
const MAX_FACTOR: u64 = 100;

// Filters of this module. A template cannot name them.
const COUNT: &str = "!count";
const CONCAT: &str = "!concat";
const MULTIPLY: &str = "!multiply";
const PLAIN: &str = "!plain";
/// Filters whose result is as long as the product of their arguments, and their checked versions.
const GROWING: [(&str, &str); 7] = [
    ("batch", "!batch"),
    ("format", "!format"),
    ("indent", "!indent"),
    ("join", "!join"),
    ("map", "!map"),
    ("replace", "!replace"),
    ("slice", "!slice"),
];
/// The same for methods of texts.
const GROWING_METHODS: [(&str, &str); 3] =
    [("format", "!.format"), ("join", "!.join"), ("replace", "!.replace")];

fn refused(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

fn too_large() -> Error {
    refused("the template makes too much text")
}

/// The bytes that a rendering may still make.
#[derive(Clone)]
struct Budget(Arc<AtomicUsize>);

impl Budget {
    fn take(&self, bytes: usize) -> Result<(), Error> {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(bytes), Ordering::Relaxed);
        if bytes > left { Err(too_large()) } else { Ok(()) }
    }

    /// Counts a value.
    fn count(&self, value: &Value) -> Result<(), Error> {
        let most = self.0.load(Ordering::Relaxed).min(MAX_VALUE_BYTES);
        let mut bytes = 0;
        measure(value, MAX_DEPTH, most, &mut bytes)?;
        self.take(bytes)
    }

    /// The text of values, counted.
    fn text(&self, values: &[&Value]) -> Result<String, Error> {
        let most = self.0.load(Ordering::Relaxed).min(MAX_VALUE_BYTES);
        let mut text = BoundedText { text: String::new(), most };
        let written = values.iter().try_for_each(|value| match value.kind() {
            // As in Python.
            ValueKind::Bool => text.write_str(if value.is_true() { "True" } else { "False" }),
            ValueKind::None => text.write_str("None"),
            _ => write!(text, "{value}"),
        });
        written.map_err(|_| too_large())?;
        self.take(text.text.len())?;
        Ok(text.text)
    }
}

/// A text up to a limit.
struct BoundedText {
    text: String,
    most: usize,
}

impl fmt::Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.len() > self.most - self.text.len() {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// Adds the bytes of a value and of all values in it, up to a limit.
fn measure(value: &Value, depth: usize, most: usize, bytes: &mut usize) -> Result<(), Error> {
    *bytes = bytes.saturating_add(VALUE_BYTES + value.as_str().map_or(0, str::len));
    if *bytes > most {
        return Err(too_large());
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) || is_namespace(value) {
        return Ok(());
    }
    let Some(deeper) = depth.checked_sub(1) else {
        return Err(refused("the template nests values too deeply"));
    };
    for key in value.try_iter()? {
        if value.kind() == ValueKind::Map {
            measure(&value.get_item(&key)?, deeper, most, bytes)?;
        }
        measure(&key, deeper, most, bytes)?;
    }
    Ok(())
}

fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// Whether a namespace or a function is in a value. Stored in a namespace, it could come to hold itself.
fn holds_state(value: &Value) -> Result<bool, Error> {
    if is_namespace(value) || value.kind() == ValueKind::Plain {
        return Ok(true);
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            for key in value.try_iter()? {
                let inner = if value.kind() == ValueKind::Map { value.get_item(&key)? } else { key };
                if holds_state(&inner)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Ok(false),
    }
}

/// Checks the arguments of a growing filter or method: the result is at most as long as their product.
fn check_growth(name: &str, arguments: &[Value]) -> Result<(), Error> {
    let Some((value, rest)) = arguments.split_first() else { return Ok(()) };
    if name == "map" {
        // It applies a filter to each item.
        let inner = rest.first().and_then(Value::as_str);
        let grows = inner.is_some_and(|inner| GROWING.iter().any(|(name, _)| *name == inner));
        let Some(inner) = inner.filter(|_| grows) else { return Ok(()) };
        let mut arguments = arguments.to_vec();
        arguments.remove(1);
        return check_growth(inner, &arguments);
    }
    let mut bytes = 0;
    measure(value, MAX_DEPTH, MAX_VALUE_BYTES, &mut bytes)?;
    let mut factor = 1;
    for value in rest {
        factor = factor.max(largest(value)?);
    }
    if name == "format" {
        let runs = value.as_str().unwrap_or_default().split(|c: char| !c.is_ascii_digit());
        factor = factor.max(
            runs.filter_map(|run| run.parse().ok().or((!run.is_empty()).then_some(usize::MAX)))
                .max()
                .unwrap_or(1),
        );
    }
    if bytes.saturating_mul(factor) > MAX_VALUE_BYTES { Err(too_large()) } else { Ok(()) }
}

/// The largest number or length of a text in an argument.
fn largest(value: &Value) -> Result<usize, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.len());
    }
    match value.kind() {
        ValueKind::Number => Ok(value.as_usize().unwrap_or(usize::MAX)),
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter()?.try_fold(0, |most, item| Ok(most.max(largest(&item)?)))
        }
        // Named arguments.
        ValueKind::Map => {
            value.try_iter()?.try_fold(0, |most, key| Ok(most.max(largest(&value.get_item(&key)?)?)))
        }
        _ => Ok(1),
    }
}

/// The product of numbers, or a text repeated.
fn multiply(left: &Value, right: &Value) -> Result<Value, Error> {
    let repeated = |text: &str, count: &Value| {
        let count = count.as_usize().ok_or_else(|| refused("a text is repeated a number of times"))?;
        if text.len().saturating_mul(count) > MAX_VALUE_BYTES {
            Err(too_large())
        } else {
            Ok(text.repeat(count).into())
        }
    };
    match (left.as_str(), right.as_str()) {
        (Some(text), _) => return repeated(text, right),
        (_, Some(text)) => return repeated(text, left),
        _ => {}
    }
    if let (Some(left), Some(right)) = (left.as_i64(), right.as_i64()) {
        return left.checked_mul(right).map(Value::from).ok_or_else(|| refused("the product is too large"));
    }
    match (f64::try_from(left.clone()), f64::try_from(right.clone())) {
        (Ok(left), Ok(right)) => Ok((left * right).into()),
        _ => Err(refused("only numbers and texts are multiplied")),
    }
}

/// Adds the bounded operations to an environment.
fn bound(environment: &mut Environment<'_>) {
    let budget = Budget(Arc::new(AtomicUsize::new(MAX_WORK_BYTES)));
    environment.remove_global("debug");
    let own = budget.clone();
    environment.add_filter(COUNT, move |value: Value| own.count(&value).map(|()| value));
    let own = budget.clone();
    environment.add_filter(CONCAT, move |left: &Value, right: &Value| own.text(&[left, right]));
    environment.add_filter(MULTIPLY, multiply);
    environment.add_filter(PLAIN, |value: Value| {
        if holds_state(&value)? { Err(refused("a namespace holds plain values alone")) } else { Ok(value) }
    });
    for (name, checked) in GROWING {
        environment.add_filter(checked, move |state: &mut State<'_, '_>, arguments: Rest<ValueOrKwargs>| {
            let arguments = arguments.into_values();
            check_growth(name, &arguments)?;
            state.apply_filter(name, &arguments)
        });
    }
    for (name, checked) in GROWING_METHODS {
        environment.add_filter(checked, move |state: &mut State<'_, '_>, arguments: Rest<ValueOrKwargs>| {
            let arguments = arguments.into_values();
            check_growth(name, &arguments)?;
            let (value, rest) = arguments.split_first().ok_or_else(|| refused("a method without a value"))?;
            value.call_method(state, name, rest)
        });
    }
    environment.set_formatter(move |out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value| {
        let text = budget.text(&[value])?;
        out.write_str(&text).map_err(Error::from)
    });
}

/// Refuses constants that the library would repeat while it compiles.
fn check_constants(source: &str, syntax: &SyntaxConfig) -> Result<(), Error> {
    let (mut factors, mut has_text, mut largest) = (0, false, 0);
    for token in machinery::tokenize(source, false, syntax.clone()) {
        match token?.0 {
            Token::VariableStart | Token::BlockStart => (factors, has_text, largest) = (0, false, 0),
            Token::Mul => factors += 1,
            Token::Pow => factors += 2,
            Token::Str(_) | Token::String(_) => has_text = true,
            Token::Int(number) => largest = largest.max(number),
            Token::Int128(_) | Token::Float(_) => largest = u64::MAX,
            _ => {}
        }
        if has_text && factors > 0 && (factors > 1 || largest > MAX_FACTOR) {
            return Err(refused("the template repeats a text too often"));
        }
    }
    Ok(())
}

/// Compiles a template.
fn compile<'s>(source: &'s str, syntax: &SyntaxConfig) -> Result<CompiledTemplate<'s>, Error> {
    check_constants(source, syntax)?;
    let default_auto_escape = Arc::new(|_: &str| AutoEscape::None);
    let config = TemplateConfig { syntax_config: syntax.clone(), default_auto_escape };
    let mut compiled = CompiledTemplate::new("chat", source, &config)?;
    compiled.instructions = counted(&compiled.instructions);
    for block in compiled.blocks.values_mut() {
        *block = counted(block);
    }
    Ok(compiled)
}

/// Renders a template.
///
/// # Errors
/// The template's own error, or a limit of this module.
pub(super) fn render(
    environment: &Environment<'_>,
    source: &str,
    syntax: &SyntaxConfig,
    context: Value,
) -> Result<String, Error> {
    let compiled = compile(source, syntax)?;
    let mut environment = environment.clone();
    bound(&mut environment);
    let mut text = String::new();
    {
        let mut out = machinery::make_string_output(&mut text);
        let CompiledTemplate { instructions, blocks, .. } = &compiled;
        machinery::eval(&environment, instructions, context, blocks, &mut out, AutoEscape::None).map(drop)?;
    }
    Ok(text)
}

/// The instructions, with a count after each that makes a value.
fn counted<'s>(old: &Instructions<'s>) -> Instructions<'s> {
    let (mut all, mut starts) = (Vec::new(), Vec::new());
    for index in 0.. {
        starts.push(u32::try_from(all.len()).unwrap_or(u32::MAX));
        let Some(instruction) = old.get(index) else { break };
        expand(instruction, &mut all);
    }
    let mut new = Instructions::new(old.name(), old.source());
    for mut instruction in all {
        if let Instruction::Iterate(target)
        | Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::BuildMacro(_, target, _) = &mut instruction
        {
            *target = starts.get(*target as usize).copied().unwrap_or(u32::MAX);
        }
        new.add(instruction);
    }
    new
}

fn expand<'s>(instruction: &Instruction<'s>, all: &mut Vec<Instruction<'s>>) {
    // Not among the filters that the library finds by number.
    let filter = |name, arguments| Instruction::ApplyFilter(name, arguments, u8::MAX);
    let checked = |names: &[(&str, &'static str)], name: &str| {
        names.iter().find(|(known, _)| *known == name).map(|(_, checked)| *checked)
    };
    let count = filter(COUNT, Some(1));
    match instruction {
        Instruction::EmitRaw(text) => {
            all.extend([Instruction::LoadConst(Value::from(*text)), Instruction::Emit])
        }
        Instruction::StringConcat => all.push(filter(CONCAT, Some(2))),
        Instruction::Mul => all.extend([filter(MULTIPLY, Some(2)), count]),
        Instruction::SetAttr(_) => {
            all.extend([Instruction::Swap, filter(PLAIN, Some(1)), Instruction::Swap, instruction.clone()]);
        }
        Instruction::ApplyFilter(name, arguments, _) => {
            let filter = checked(&GROWING, name).map(|name| filter(name, *arguments));
            all.extend([filter.unwrap_or_else(|| instruction.clone()), count]);
        }
        Instruction::CallMethod(name, arguments) => {
            let filter = checked(&GROWING_METHODS, name).map(|name| filter(name, *arguments));
            all.extend([filter.unwrap_or_else(|| instruction.clone()), count]);
        }
        Instruction::Add
        | Instruction::Slice
        | Instruction::BuildList(_)
        | Instruction::BuildMap(_)
        | Instruction::BuildTuple(_)
        | Instruction::CallFunction(..)
        | Instruction::CallObject(_)
        | Instruction::EndCapture => all.extend([instruction.clone(), count]),
        other => all.push(other.clone()),
    }
}
