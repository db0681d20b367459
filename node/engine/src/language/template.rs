//! A model's chat template, rendered with the template's own text separate from the conversation's.
//!
//! The template never sees a message's text, only a slot in its place; the same holds for tools and calls
//! (`slots.rs`). So no text can break out of its message, whatever the template does. The tokenizer knows for
//! every character whether the template's author wrote it.

mod bounded;
mod described;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

use minijinja::{Environment, Error, ErrorKind, Value, syntax::SyntaxConfig, value::Kwargs};
use zeroize::Zeroizing;

use self::{
    described::described,
    slots::{Keys, Slots, ordered},
};
use super::{
    Date, LanguageError,
    chat::{Call, Conversation, Json, Message, Role, Tool},
};

/// Maximum size in bytes of a chat template. The largest in use have some tens of kilobytes.
pub const MAX_TEMPLATE_BYTES: usize = 256 * 1024;

/// Maximum number of instructions of one rendering. A message takes some hundred, a tool some hundreds.
pub const TEMPLATE_FUEL: u64 = 4_000_000;

/// Maximum size in bytes of one rendering: the template's own text, with slots in the place of conversation
/// texts.
pub const MAX_RENDERED_BYTES: usize = 4 << 20;

/// A call in an answer's text, in the most common syntax.
const PROBE_CALL: &str = "<tool_call>\n{\"name\": \"probe\", \"arguments\": {}}\n</tool_call>";

/// A tool's definition.
const PROBE_TOOL: &str = r#"{"type": "function", "function": {"name": "probe", "description": "A probe.", "parameters": {"type": "object", "properties": {}}}}"#;

/// A part of a rendered prompt.
pub enum Segment {
    /// Written by the template's author: special tokens are recognised.
    Template(String),
    /// Written by a participant of the conversation: plain text only.
    Content(Zeroizing<String>),
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    syntax: SyntaxConfig,
    bos: String,
    eos: String,
    /// The prefix of every slot's name; does not occur in the template itself.
    slot_prefix: String,
    /// Whether the template trims white space off contents. Rendering then trims them itself, because the
    /// template sees none.
    trims: bool,
    /// Whether the template shows tools to the model.
    takes_tools: bool,
    /// Whether tools can stand in the system text, if the template has no part for them.
    describes_tools: bool,
    /// Whether its models write calls between `<tool_call>` and `</tool_call>`.
    marks_calls: bool,
    /// Whether the template shows calls separately from an answer's text. Otherwise they stay in the text.
    takes_calls: bool,
    hash: [u8; 32],
}

impl ChatTemplate {
    /// Compiles `source` and renders a probe with it, so that an unusable template fails at load.
    ///
    /// # Errors
    /// [`LanguageError::Template`].
    pub fn new(source: &str, bos: &str, eos: &str, date: Date) -> Result<Self, LanguageError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(LanguageError::Template { reason: "the template is too long".into() });
        }
        let mut environment = Environment::new();
        environment.set_fuel(Some(TEMPLATE_FUEL));
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        let syntax = syntax.build().map_err(|error| template_error(&error))?;
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", move |pattern: String| date.format(&pattern));
        // The library takes nothing for an empty list, and many a template asks so whether there are tools.
        environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        let hash = blake3::hash(source.as_bytes());
        let mut template = Self {
            environment,
            source: without_training_marks(source),
            syntax,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            slot_prefix: format!("slot{}x", &hash.to_hex()[..24]),
            trims: false,
            takes_tools: false,
            describes_tools: false,
            marks_calls: source.contains("<tool_call>"),
            takes_calls: false,
            hash: hash.into(),
        };
        let probe = Value::from(BTreeMap::from([("role", "user"), ("content", " probe ")]));
        let slots = Slots::new(&template.slot_prefix);
        template.trims = !template.render_values(&[probe], Value::from(()), &slots)?.contains(" probe ");
        template.probe_tools();
        Ok(template)
    }

    /// Tries out the template's support for tools.
    fn probe_tools(&mut self) {
        let definition: serde_json::Value = serde_json::from_str(PROBE_TOOL).unwrap_or_default();
        let tool = Tool { definition: definition.into(), text: Zeroizing::new(PROBE_TOOL.to_owned()) };
        let mut probe = Conversation { messages: vec![Message::new(Role::User, "probe")], tools: vec![tool] };
        self.takes_tools = self.render_as(&probe, &Form::default()).is_ok();
        if !self.takes_tools {
            self.describes_tools = self.render_as(&described(&probe), &Form::default()).is_ok();
            self.marks_calls |= self.describes_tools;
            probe.tools = Vec::new();
        }
        let id = "probe0000".to_owned();
        let call = Call { id: id.clone(), name: "probe".to_owned(), arguments: Json::Map(Vec::new()) };
        let answer = Message {
            content: Zeroizing::default(),
            calls: vec![call],
            ..Message::new(Role::Assistant, PROBE_CALL)
        };
        let result = Message {
            name: Some("probe".to_owned()),
            call_id: Some(id),
            ..Message::new(Role::Tool, "probed")
        };
        probe.messages.extend([answer, result]);
        self.takes_calls = self.render_as(&probe, &Form { calls_apart: true, ..Form::default() }).is_ok();
    }

    /// BLAKE3 of the source text, for the manifest.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// Whether prompts may contain tools.
    pub fn takes_tools(&self) -> bool {
        self.takes_tools || self.describes_tools
    }

    /// Whether the model is told to write calls between `<tool_call>` and `</tool_call>`.
    pub fn marks_calls(&self) -> bool {
        self.marks_calls
    }

    /// Renders a prompt, ready for the model's answer. Fails if the template leaves a message, a call or a
    /// tool out.
    ///
    /// # Errors
    /// [`LanguageError::Template`] and [`LanguageError::ToolsUnsupported`].
    pub fn render(&self, prompt: &Conversation) -> Result<Vec<Segment>, LanguageError> {
        if !prompt.tools.is_empty() && !self.takes_tools {
            if !self.describes_tools {
                return Err(LanguageError::ToolsUnsupported);
            }
            return self.render_as(&described(prompt), &Form::default());
        }
        // Some templates take only one call at once, or no words beside calls. The answer's own text can hold
        // all of them. Other templates require optional parts of a definition.
        let whole = [false, true].map(|whole_tools| Form { calls_apart: self.takes_calls, whole_tools });
        let in_text = whole.map(|form| Form { calls_apart: false, ..form });
        let [first, rest @ ..] = [whole[0], in_text[0], whole[1], in_text[1]];
        let rendered = self.render_as(prompt, &first);
        if rendered.is_ok() {
            return rendered;
        }
        rest.iter().find_map(|form| self.render_as(prompt, form).ok()).map_or(rendered, Ok)
    }

    fn render_as(&self, prompt: &Conversation, form: &Form) -> Result<Vec<Segment>, LanguageError> {
        let ids = prompt.messages.iter().flat_map(|message| &message.calls).map(|call| call.id.as_str());
        let mut filling = Filling {
            ids: ids.filter(|id| is_plain(id)).collect(),
            form: *form,
            trims: self.trims,
            slots: Slots::new(&self.slot_prefix),
            required: Vec::new(),
        };
        let arguments = prompt.messages.iter().flat_map(|message| &message.calls).map(|call| &call.arguments);
        filling.slots.put_keys(prompt.tools.iter().map(|tool| &tool.definition).chain(arguments));
        let tools = if prompt.tools.is_empty() { Value::from(()) } else { filling.tools(&prompt.tools) };
        let messages: Vec<Value> = prompt.messages.iter().map(|message| filling.message(message)).collect();
        let rendered = self.render_values(&messages, tools, &filling.slots)?;
        filling.slots.split(&rendered, &filling.required)
    }

    fn render_values(
        &self,
        messages: &[Value],
        tools: Value,
        slots: &Slots,
    ) -> Result<String, LanguageError> {
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
        let rendered = bounded::render(&environment, &self.source, &self.syntax, context);
        let rendered = rendered.map_err(|error| template_error(&error))?;
        if rendered.len() > MAX_RENDERED_BYTES {
            return Err(LanguageError::Template { reason: "the template writes too much".into() });
        }
        Ok(rendered)
    }
}

/// A template without the tags that mark the texts for training. They mean nothing when a model answers; what they do to
/// the space around them stays.
fn without_training_marks(source: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        let inner = tag.split("%}").next().unwrap_or_default();
        let name = inner.trim_matches(['-', '+']).trim();
        let plain = match name {
            "generation" => "if true",
            "endgeneration" => "endif",
            name => name,
        };
        out.push_str(before);
        if plain == name {
            out.push_str(inner)
        } else {
            out.push_str(&inner.replace(name, &format!(" {plain} ")))
        }
        rest = tag.get(inner.len()..).unwrap_or_default();
    }
    out + rest
}

/// Whether an id may appear in the template's own text.
fn is_plain(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn template_error(error: &Error) -> LanguageError {
    LanguageError::Template { reason: error.detail().map_or_else(|| error.kind().to_string(), str::to_owned) }
}

/// The form of calls and definitions that a template gets.
#[derive(Clone, Copy, Default)]
struct Form {
    /// Calls separate from the text of their answers, or within it.
    calls_apart: bool,
    /// Definitions with a description and parameters, even if empty.
    whole_tools: bool,
}

/// A prompt in conversion to a template's input.
struct Filling<'a> {
    form: Form,
    /// Ids of calls that the template may see unchanged.
    ids: HashSet<&'a str>,
    trims: bool,
    slots: Slots,
    /// Slots that must be rendered.
    required: Vec<usize>,
}

impl Filling<'_> {
    fn tools(&mut self, tools: &[Tool]) -> Value {
        tools.iter().map(|tool| self.tool(&tool.definition)).collect()
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

    fn message(&mut self, message: &Message) -> Value {
        let apart = self.form.calls_apart && !message.calls.is_empty();
        let mut text = if apart { message.content.clone() } else { message.text.clone() };
        if self.trims {
            text = Zeroizing::new(text.trim().to_owned());
        }
        let (text, number) = self.slots.put(text);
        self.required.push(number);
        let mut fields = BTreeMap::from([("role", Value::from(message.role.name())), ("content", text)]);
        if apart {
            let calls: Vec<Value> = message.calls.iter().map(|call| self.call(call)).collect();
            fields.insert("tool_calls", Value::from(calls));
        }
        if let Some(name) = &message.name {
            fields.insert("name", self.slots.text(name));
        }
        if let Some(id) = &message.call_id {
            fields.insert("tool_call_id", self.id(id));
        }
        Value::from(fields)
    }

    /// The id itself for a call of this conversation, otherwise a slot: templates check the length.
    fn id(&self, id: &str) -> Value {
        if self.ids.contains(id) { Value::from(id) } else { self.slots.text(id) }
    }

    fn call(&mut self, call: &Call) -> Value {
        let (name, number) = self.slots.put(Zeroizing::new(call.name.clone()));
        self.required.push(number);
        let arguments = self.slots.json(&call.arguments, Keys::Free);
        let function = ordered([("name", name), ("arguments", arguments)]);
        let kind = Value::from("function");
        ordered([("id", self.id(&call.id)), ("type", kind), ("function", function)])
    }
}

/// A definition with all parts that a function can have.
fn whole(tool: &Json) -> Json {
    let mut whole = tool.clone();
    if let Json::Map(entries) = &mut whole
        && let Some((_, Json::Map(function))) = entries.iter_mut().find(|(key, _)| key.as_str() == "function")
    {
        let text = |text: &str| Zeroizing::new(text.to_owned());
        let of = [(text("type"), Json::Text(text("object"))), (text("properties"), Json::Map(Vec::new()))];
        let missing = [("description", Json::Text(text(""))), ("parameters", Json::Map(of.into()))];
        for (key, empty) in missing {
            if !function.iter().any(|(name, _)| name.as_str() == key) {
                function.push((text(key), empty));
            }
        }
    }
    whole
}
