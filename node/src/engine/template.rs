//! A model's chat template, rendered so that what the template says and what people say stay apart.
//!
//! The template never sees a message's text, only a slot in its place; tools and calls likewise (`slots.rs`). So no text
//! can break out of its message, whatever the template does with it, and the tokenizer knows for every character whether
//! the template's author wrote it.

mod slots;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use baton_proto::tools::{Call, Definitions, Json, write_answer};
use minijinja::{Environment, Error, ErrorKind, Value, syntax::SyntaxConfig, value::Kwargs};
use zeroize::Zeroizing;

use self::slots::{Keys, Slots, ordered};
use super::EngineError;
use crate::prompt::{ChatMessage, Prompt, Role, Spoken, SpokenCall, role_name};

/// Bytes of a chat template. The largest in use have some tens of kilobytes.
const MAX_TEMPLATE_BYTES: usize = 256 * 1024;

/// A part of a rendered prompt.
pub(crate) enum Segment {
    /// Written by the template's author: special tokens count.
    Template(String),
    /// Written by somebody in the conversation: text and nothing else.
    Content(Zeroizing<String>),
}

/// The date that a template's `strftime_now` formats. It is a setting and not the clock, so that rendering
/// is a function of the prompt and can be replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateDate {
    /// Year, four digits.
    pub year: u16,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day of the month, 1 to 31.
    pub day: u8,
}

impl Default for TemplateDate {
    /// 26 July 2024, which Llama's templates take where there is no clock.
    fn default() -> Self {
        Self { year: 2024, month: 7, day: 26 }
    }
}

impl TemplateDate {
    fn format(self, pattern: &str) -> Result<String, Error> {
        const MONTHS: [&str; 12] = [
            "January",
            "February",
            "March",
            "April",
            "May",
            "June",
            "July",
            "August",
            "September",
            "October",
            "November",
            "December",
        ];
        let month = MONTHS.get(usize::from(self.month).wrapping_sub(1)).copied().unwrap_or_default();
        let mut out = String::new();
        let mut characters = pattern.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            match characters.next() {
                Some('d') => out.push_str(&format!("{:02}", self.day)),
                Some('m') => out.push_str(&format!("{:02}", self.month)),
                Some('Y') => out.push_str(&format!("{:04}", self.year)),
                Some('B') => out.push_str(month),
                Some('b') => out.push_str(&month[..month.len().min(3)]),
                Some('H' | 'M' | 'S') => out.push_str("00"),
                Some('%') => out.push('%'),
                _ => {
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        "strftime_now knows %d %m %Y %B %b %H %M %S only",
                    ));
                }
            }
        }
        Ok(out)
    }
}

/// A compiled chat template.
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    /// Begins every slot's name; does not occur in the template itself.
    slot_prefix: String,
    /// Whether the template trims white space off contents; then we do, for it sees none.
    trims: bool,
    /// Whether it shows tools to the model.
    takes_tools: bool,
    /// Whether it shows calls that are apart from an answer's text. Where it does not, they stay in there.
    takes_calls: bool,
    hash: [u8; 32],
}

impl ChatTemplate {
    /// Compiles `source` and renders a probe with it, so that a template that cannot work fails at load.
    pub(crate) fn new(source: &str, bos: &str, eos: &str, date: TemplateDate) -> Result<Self, EngineError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(EngineError::Template { reason: "the template is too long".into() });
        }
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        environment.set_syntax(syntax.build().map_err(|error| template_error(&error))?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", move |pattern: String| date.format(&pattern));
        environment.add_template_owned("chat", source.to_owned()).map_err(|error| template_error(&error))?;

        let hash = blake3::hash(source.as_bytes());
        let mut template = Self {
            environment,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            slot_prefix: format!("slot{}x", &hash.to_hex()[..24]),
            trims: false,
            takes_tools: false,
            takes_calls: false,
            hash: hash.into(),
        };
        let probe = Value::from(BTreeMap::from([("role", "user"), ("content", " probe ")]));
        let slots = Slots::new(&template.slot_prefix);
        template.trims = !template.render_values(&[probe], Value::from(()), &slots)?.contains(" probe ");
        template.probe_tools();
        Ok(template)
    }

    /// Finds out by trying what the template makes of tools.
    fn probe_tools(&mut self) {
        let definition = r#"[{"type": "function", "function": {"name": "probe", "description": "A probe.",
            "parameters": {"type": "object", "properties": {}}}}]"#;
        let tools = Definitions::parse(definition).map(Arc::new);
        let mut messages = vec![ChatMessage::new(Role::User, "probe")];
        let asked = Prompt::new(messages.clone()).with_tools(tools.clone());
        self.takes_tools = self.render_as(&asked, &Form::default()).is_ok();
        let call = Call { name: "probe".to_owned(), arguments: Json::Map(Vec::new()) };
        messages.push(ChatMessage::new(Role::Assistant, write_answer("", &[call]).as_str()));
        messages.push(ChatMessage::new(Role::Tool, "probed"));
        let prompt = Prompt::new(messages).with_tools(tools.filter(|_| self.takes_tools));
        self.takes_calls = self.render_as(&prompt, &Form { calls_apart: true, ..Form::default() }).is_ok();
    }

    /// BLAKE3 of the source text, for the manifest.
    pub(crate) fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// Whether prompts may have tools.
    pub(crate) fn takes_tools(&self) -> bool {
        self.takes_tools
    }

    /// Renders a prompt, ready for the model's answer. Refuses to leave a message, a call or a tool out.
    pub(crate) fn render(&self, prompt: &Prompt) -> Result<Vec<Segment>, EngineError> {
        if prompt.tools().is_some() && !self.takes_tools {
            return Err(EngineError::ToolsUnsupported);
        }
        // Some know of calls and not of several at once, or not of words beside them: in the answer's own text, all can
        // stand. Others ask for what a definition need not have.
        let whole = [false, true].map(|whole_tools| Form { calls_apart: self.takes_calls, whole_tools });
        let in_text = whole.map(|form| Form { calls_apart: false, ..form });
        let [first, rest @ ..] = [whole[0], in_text[0], whole[1], in_text[1]];
        let rendered = self.render_as(prompt, &first);
        if rendered.is_ok() {
            return rendered;
        }
        rest.iter().find_map(|form| self.render_as(prompt, form).ok()).map_or(rendered, Ok)
    }

    fn render_as(&self, prompt: &Prompt, form: &Form) -> Result<Vec<Segment>, EngineError> {
        let mut filling = Filling {
            form: *form,
            trims: self.trims,
            slots: Slots::new(&self.slot_prefix),
            required: Vec::new(),
        };
        let tools = prompt.tools().map_or(Value::from(()), |tools| filling.tools(tools));
        let messages: Vec<Value> =
            prompt.spoken().into_iter().map(|spoken| filling.message(spoken)).collect();
        let rendered = self.render_values(&messages, tools, &filling.slots)?;
        filling.slots.split(&rendered, &filling.required)
    }

    fn render_values(&self, messages: &[Value], tools: Value, slots: &Slots) -> Result<String, EngineError> {
        let context = Value::from(BTreeMap::from([
            ("messages", Value::from(messages.to_vec())),
            ("tools", tools),
            ("add_generation_prompt", Value::from(true)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
        ]));
        let mut environment = self.environment.clone();
        let slots = slots.clone();
        environment.add_filter("tojson", move |value: &Value, indent: Option<Value>, named: Kwargs| {
            slots.tojson(value, indent.as_ref(), &named)
        });
        let template = environment.get_template("chat").map_err(|error| template_error(&error))?;
        template.render(context).map_err(|error| template_error(&error))
    }
}

fn template_error(error: &Error) -> EngineError {
    EngineError::Template { reason: error.detail().map_or_else(|| error.kind().to_string(), str::to_owned) }
}

/// In which form a template gets what it may not be made for.
#[derive(Clone, Copy, Default)]
struct Form {
    /// Calls apart from the text of their answers, or in there.
    calls_apart: bool,
    /// Definitions with a description and parameters even where they are empty.
    whole_tools: bool,
}

/// A prompt on its way into a template.
struct Filling {
    form: Form,
    trims: bool,
    slots: Slots,
    /// Slots that must be rendered.
    required: Vec<usize>,
}

impl Filling {
    fn tools(&mut self, tools: &Definitions) -> Value {
        tools.tools().iter().map(|tool| self.tool(tool)).collect()
    }

    fn tool(&mut self, tool: &Json) -> Value {
        let shown = if self.form.whole_tools {
            self.slots.json(&whole(tool), Keys::Schema)
        } else {
            self.slots.json(tool, Keys::Schema)
        };
        let name = shown.get_attr("function").and_then(|function| function.get_attr("name"));
        let number = name.ok().and_then(|name| self.slots.number(name.as_str()?));
        self.required.extend(number);
        shown
    }

    fn message(&mut self, spoken: Spoken<'_>) -> Value {
        let Spoken { message, content, text, calls, answers } = spoken;
        let calls = if self.form.calls_apart { calls } else { Vec::new() };
        let mut text = if calls.is_empty() { text } else { content };
        if self.trims {
            text = Zeroizing::new(text.trim().to_owned());
        }
        let (text, number) = self.slots.put(text);
        self.required.push(number);
        let mut fields = BTreeMap::from([("role", Value::from(role_name(message.role))), ("content", text)]);
        if !calls.is_empty() {
            let calls: Vec<Value> = calls.iter().map(|call| self.call(call)).collect();
            fields.insert("tool_calls", Value::from(calls));
        }
        let answered = answers.as_ref().map(|(_, name)| name);
        if let Some(name) = message.name.as_ref().or(answered) {
            fields.insert("name", self.slots.text(name));
        }
        match (&answers, &message.call_id) {
            // Made here, of letters and digits; templates look at its length.
            (Some((id, _)), _) => drop(fields.insert("tool_call_id", Value::from(id.as_str()))),
            (None, Some(id)) => drop(fields.insert("tool_call_id", self.slots.text(id))),
            (None, None) => {}
        }
        Value::from(fields)
    }

    fn call(&mut self, SpokenCall { id, call }: &SpokenCall) -> Value {
        let (name, number) = self.slots.put(Zeroizing::new(call.name.clone()));
        self.required.push(number);
        let arguments = self.slots.json(&call.arguments, Keys::Free);
        let function = ordered([("name", name), ("arguments", arguments)]);
        let kind = Value::from("function");
        ordered([("id", Value::from(id.as_str())), ("type", kind), ("function", function)])
    }
}

/// A definition with all that a function can have.
fn whole(tool: &Json) -> Json {
    let mut whole = tool.clone();
    if let Json::Map(entries) = &mut whole
        && let Some((_, Json::Map(function))) = entries.iter_mut().find(|(key, _)| key.as_str() == "function")
    {
        for (key, empty) in
            [("description", "\"\""), ("parameters", r#"{"type": "object", "properties": {}}"#)]
        {
            if !function.iter().any(|(name, _)| name.as_str() == key) {
                function.extend(Json::parse(empty).map(|value| (Zeroizing::new(key.to_owned()), value)));
            }
        }
    }
    whole
}
