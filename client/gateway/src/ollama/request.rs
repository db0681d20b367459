//! Requests of Ollama's API, read strictly: an unsupported parameter is refused by name.

use std::collections::VecDeque;

use baton_proto::{
    record::{Message, Role},
    tools::Json,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    api_error::ApiError,
    completion::{CompletionRequest, Retention, SamplingRequest, check_max_tokens, is_any},
    embeddings::TextsToEmbed,
    format,
    tools::{CallFault, CallIds, PastCall, ToolChoice, ToolRequest, check_call_count},
    wire::{Texts, is_empty, parse},
};

/// Options about the memory and the processors of Ollama's own server.
const MACHINE_OPTIONS: [&str; 10] = [
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "num_keep",
    "use_mmap",
    "use_mlock",
    "numa",
    "low_vram",
];

#[derive(Deserialize)]
struct ChatBody {
    messages: Option<Vec<MessageInput>>,
    tools: Option<Vec<Value>>,
    #[serde(flatten)]
    common: CommonParameters,
}

#[derive(Deserialize)]
struct GenerateBody {
    prompt: Option<String>,
    system: Option<String>,
    #[serde(flatten)]
    common: CommonParameters,
}

#[derive(Deserialize)]
struct EmbedBody {
    model: Option<String>,
    input: Texts,
    dimensions: Option<u64>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct CommonParameters {
    model: Option<String>,
    stream: Option<bool>,
    format: Option<Value>,
    options: Option<Options>,
    think: Option<Value>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize, Default)]
struct Options {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    repeat_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<i64>,
    num_predict: Option<i64>,
    stop: Option<Texts>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct MessageInput {
    role: String,
    content: Option<String>,
    tool_calls: Option<Vec<CallInput>>,
    tool_name: Option<String>,
    tool_call_id: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct CallInput {
    id: Option<String>,
    function: FunctionInput,
}

#[derive(Deserialize)]
struct FunctionInput {
    name: String,
    arguments: Option<Value>,
}

/// The model that a request names.
pub(super) struct ModelName;

impl ModelName {
    /// Reads it out of a body, where it is `model`, or `name` in older clients.
    pub(super) fn read(body: &[u8]) -> Result<String, ApiError> {
        let body: Map<String, Value> = parse(body)?;
        let name = body.get("model").or_else(|| body.get("name")).and_then(Value::as_str);
        let name = name.filter(|name| !name.is_empty());
        let missing = || ApiError::value("model", "model is the name of a model");
        name.map(|name| bare_name(name).to_owned()).ok_or_else(missing)
    }
}

/// A model's name without the tag that clients add to a name without one.
pub(super) fn bare_name(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

/// A parameter under its name in this API.
pub(super) fn own_param(param: &str) -> String {
    match param {
        "stop" | "temperature" | "top_p" | "presence_penalty" | "frequency_penalty" => {
            format!("options.{param}")
        }
        "repetition_penalty" => "options.repeat_penalty".to_owned(),
        "max_tokens" => "options.num_predict".to_owned(),
        "response_format" => "format".to_owned(),
        param => param.to_owned(),
    }
}

/// Reads the body of a chat.
///
/// # Parameters
/// `session` is the session that the header names.
pub(super) fn read_chat(body: &[u8], session: Option<String>) -> Result<CompletionRequest, ApiError> {
    let body: ChatBody = parse(body)?;
    let mut reader = MessageReader::default();
    for (index, message) in body.messages.unwrap_or_default().into_iter().enumerate() {
        reader.push(index, message)?;
    }
    let mut system = reader.messages;
    let pinned = system.iter().take_while(|message| message.role == Role::System).count();
    let messages = system.split_off(pinned);
    let tools = match body.tools.filter(|tools| !tools.is_empty()) {
        Some(tools) => Json::parse(&Value::from(tools).to_string()),
        None => None,
    };
    let tools = ToolRequest { tools, choice: ToolChoice::Auto, parallel_tool_calls: None }.read()?;
    let completion = tools.into_request(body.common.into_request(system, messages)?, "format")?;
    Ok(CompletionRequest { session, ..completion })
}

/// Reads the body of a request without a conversation.
pub(super) fn read_generate(body: &[u8]) -> Result<CompletionRequest, ApiError> {
    let body: GenerateBody = parse(body)?;
    let message = |role: Role, text: Option<String>| {
        text.filter(|text| !text.is_empty()).map(|text| Message::new(role, text)).into_iter().collect()
    };
    let (system, messages) = (message(Role::System, body.system), message(Role::User, body.prompt));
    Ok(CompletionRequest { retention: Retention::Single, ..body.common.into_request(system, messages)? })
}

/// Reads the body of a request for vectors.
pub(super) fn read_embed(body: &[u8]) -> Result<TextsToEmbed, ApiError> {
    let body: EmbedBody = parse(body)?;
    let not_texts = || ApiError::unsupported("input", "input is a text or a list of texts");
    let texts = body.input.list().ok_or_else(not_texts)?;
    for (name, value) in &body.rest {
        // A text beyond the limit is refused, cut or not.
        if !matches!(name.as_str(), "truncate" | "options" | "keep_alive") && !is_empty(value) {
            return Err(ApiError::request(
                "unknown_parameter",
                name,
                format!("there is no parameter {name}"),
            ));
        }
    }
    TextsToEmbed::new(texts, body.model.map(|name| bare_name(&name).to_owned()), body.dimensions)
}

/// Reads the messages of a chat, with the calls that wait for their results.
#[derive(Default)]
struct MessageReader {
    messages: Vec<Message>,
    ids: CallIds,
    /// Ids and names of the calls without a result so far: results may come without an id.
    waiting: VecDeque<(String, String)>,
}

impl MessageReader {
    fn push(&mut self, index: usize, message: MessageInput) -> Result<(), ApiError> {
        let at = |field: &str| format!("messages[{index}].{field}");
        let role = match message.role.as_str() {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            _ => return Err(ApiError::value(&at("role"), "a role is system, user, assistant or tool")),
        };
        // Programs send thoughts back, which Ollama itself drops.
        let unserved = |(name, value): &(&String, &Value)| *name != "thinking" && !is_empty(value);
        if let Some((field, _)) = message.rest.iter().find(unserved) {
            return Err(ApiError::unsupported(&at(field), format!("{field} is not supported in a message")));
        }
        let text = message.content.unwrap_or_default();
        let calls = message.tool_calls.unwrap_or_default();
        if !calls.is_empty() && role != Role::Assistant {
            return Err(ApiError::value(&at("tool_calls"), "only the assistant calls tools"));
        }
        let text = if calls.is_empty() { text } else { self.write_calls(index, &text, calls)? };
        let call_id = match role {
            Role::Tool => self.take_call(message.tool_call_id, message.tool_name.as_deref()),
            _ => None,
        };
        let message = Message { role, name: None, call_id, text };
        message.check().map_err(|_| ApiError::long_message(&at("content"), &message))?;
        self.messages.push(message);
        Ok(())
    }

    fn write_calls(&mut self, index: usize, text: &str, calls: Vec<CallInput>) -> Result<String, ApiError> {
        check_call_count(calls.len(), &format!("messages[{index}].tool_calls"))?;
        self.waiting.clear();
        let mut past = Vec::with_capacity(calls.len());
        for (position, CallInput { id, function }) in calls.into_iter().enumerate() {
            let id = id.unwrap_or_else(|| format!("{index}-{position}"));
            self.waiting.push_back((id.clone(), function.name.clone()));
            let arguments = function.arguments.unwrap_or_else(|| json!({})).to_string();
            let call = PastCall::new(Some(id), function.name, &arguments).map_err(|fault| {
                let at = |field: &str| format!("messages[{index}].tool_calls[{position}].function.{field}");
                match fault {
                    CallFault::Name => ApiError::value(&at("name"), fault.message()),
                    CallFault::Arguments => ApiError::value(&at("arguments"), "arguments is an object"),
                }
            })?;
            past.push(call);
        }
        Ok(self.ids.write(text, past))
    }

    /// The call of a result: by its id, else by the tool's name, else the next one.
    fn take_call(&mut self, id: Option<String>, name: Option<&str>) -> Option<String> {
        let by_id = |(call, _): &(String, String)| id.as_ref() == Some(call);
        let by_name = |(_, tool): &(String, String)| name == Some(tool.as_str());
        let place = self.waiting.iter().position(by_id).or_else(|| self.waiting.iter().position(by_name));
        let taken = self.waiting.remove(place.unwrap_or(0)).map(|(call, _)| call);
        id.or(taken).map(|id| self.ids.ours(id))
    }
}

impl CommonParameters {
    fn into_request(
        self,
        system: Vec<Message>,
        messages: Vec<Message>,
    ) -> Result<CompletionRequest, ApiError> {
        self.rest.iter().try_for_each(|(name, value)| neutral(name, value))?;
        if self.think.is_some_and(|think| !matches!(think, Value::Null | Value::Bool(false))) {
            return Err(ApiError::unsupported("think", "think is not supported: no model here thinks apart"));
        }
        let json_schema = match self.format {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) if text.is_empty() => None,
            Some(Value::String(text)) if text == "json" => Some(json!({ "type": "object" }).to_string()),
            Some(schema @ Value::Object(_)) => Some(format::check_length(schema.to_string(), "format")?),
            Some(_) => return Err(ApiError::value("format", "format is \"json\" or a schema, an object")),
        };
        let options = self.options.unwrap_or_default();
        options.rest.iter().try_for_each(|(name, value)| neutral_option(name, value))?;
        let stop = Texts::stop(options.stop)?;
        let sampling = SamplingRequest {
            top_k: options.top_k.unwrap_or(0),
            repetition_penalty: options.repeat_penalty,
            presence_penalty: options.presence_penalty.unwrap_or(0.0),
            frequency_penalty: options.frequency_penalty.unwrap_or(0.0),
            seed: options.seed.map(i64::cast_unsigned),
            stop,
            ..SamplingRequest::of(options.temperature, options.top_p)
        };
        sampling.check()?;
        // A negative number stands for no limit of the request's own.
        let max_tokens = options.num_predict.filter(|tokens| *tokens >= 0);
        let max_tokens = max_tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
        check_max_tokens(max_tokens)?;
        let model = self.model.map(|name| bare_name(&name).to_owned());
        Ok(CompletionRequest {
            model: model.filter(|model| !is_any(model)),
            sampling,
            max_tokens,
            stream: self.stream.unwrap_or(true),
            json_schema,
            ..CompletionRequest::new(system, messages)
        })
    }
}

/// Whether an unsupported parameter holds only its default.
fn neutral(name: &str, value: &Value) -> Result<(), ApiError> {
    let is_default = match name {
        // Nodes keep their models loaded.
        "keep_alive" => true,
        "raw" | "logprobs" => *value == json!(false),
        "top_logprobs" => *value == json!(0),
        "suffix" | "template" => *value == json!(""),
        "images" | "context" => false,
        _ if is_empty(value) => true,
        _ => {
            return Err(ApiError::request(
                "unknown_parameter",
                name,
                format!("there is no parameter {name}"),
            ));
        }
    };
    if is_default || is_empty(value) {
        return Ok(());
    }
    Err(ApiError::unsupported(name, format!("{name} is not supported: it is not served")))
}

fn neutral_option(name: &str, value: &Value) -> Result<(), ApiError> {
    if MACHINE_OPTIONS.contains(&name) || is_empty(value) {
        return Ok(());
    }
    let default = match name {
        "min_p" | "mirostat" => 0.0,
        "typical_p" | "tfs_z" => 1.0,
        "repeat_last_n" => 64.0,
        _ => {
            let at = format!("options.{name}");
            return Err(ApiError::request("unknown_parameter", &at, format!("there is no option {name}")));
        }
    };
    if value.as_f64() == Some(default) {
        return Ok(());
    }
    let message = format!("the option {name} is not supported: nodes do not know it");
    Err(ApiError::unsupported(&format!("options.{name}"), message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ollama::error_body;

    fn chat(more: Value) -> Result<CompletionRequest, ApiError> {
        let mut body = json!({ "model": "m:latest", "messages": [{ "role": "user", "content": "hi" }] });
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        read_chat(body.to_string().as_bytes(), None)
    }

    #[test]
    fn messages_and_options_are_read() {
        let request = chat(json!({
            "messages": [{ "role": "system", "content": "be brief" }, { "role": "user", "content": "a" },
                         { "role": "assistant", "content": "b", "thinking": "x" }, { "role": "user", "content": "c" }],
            "options": { "temperature": 0, "top_k": 4, "num_predict": 9, "num_ctx": 2048, "seed": 3, "stop": ["x"],
                         "min_p": 0.0 },
            "keep_alive": "5m", "think": false, "format": "json",
        }))
        .unwrap();
        assert_eq!(
            (request.model.as_deref(), request.max_tokens, request.stream),
            (Some("m"), Some(9), true)
        );
        assert_eq!((request.system.len(), request.messages.len()), (1, 3));
        assert_eq!((request.sampling.temperature, request.sampling.seed), (Some(0.0), Some(3)));
        assert_eq!(request.json_schema.as_deref(), Some(r#"{"type":"object"}"#));
        let endless = chat(json!({ "options": { "num_predict": -1 }, "stream": false })).unwrap();
        assert_eq!((endless.max_tokens, endless.stream), (None, false));
    }

    #[test]
    fn results_find_their_calls_without_an_id() {
        let call = |name: &str| json!({ "function": { "name": name, "arguments": { "a": 1 } } });
        let request = chat(json!({
            "tools": [{ "type": "function", "function": { "name": "f", "parameters": {} } }],
            "messages": [
                { "role": "user", "content": "weather?" },
                { "role": "assistant", "content": "", "tool_calls": [call("f"), call("g")] },
                { "role": "tool", "content": "rain", "tool_name": "g" },
                { "role": "tool", "content": "sun" },
            ],
        }))
        .unwrap();
        let place = |index: usize| {
            let id = request.messages[index].call_id.as_deref().unwrap();
            baton_proto::tools::call_position(id)
        };
        assert_eq!((place(2), place(3)), (Some(1), Some(0)));
        assert!(request.tools.unwrap().has("f"));
    }

    #[test]
    fn a_text_without_a_conversation_keeps_its_system_text() {
        let body = json!({ "model": "m", "prompt": "hi", "system": "be brief", "suffix": "", "context": [] });
        let request = read_generate(body.to_string().as_bytes()).unwrap();
        assert!(request.is_ephemeral());
        assert_eq!((request.system.len(), request.messages.len()), (1, 1));
        let empty = read_generate(json!({ "model": "m" }).to_string().as_bytes()).unwrap();
        assert!(empty.messages.is_empty());
    }

    #[test]
    fn parameters_that_are_not_served_are_refused_by_their_names() {
        for (name, value, param) in [
            ("think", json!("high"), "think"),
            ("format", json!("yaml"), "format"),
            ("options", json!({ "temperature": 9 }), "temperature"),
            ("options", json!({ "repeat_penalty": 0 }), "options.repeat_penalty"),
            ("options", json!({ "num_predict": 1_000_000 }), "options.num_predict"),
            ("options", json!({ "min_p": 0.1 }), "options.min_p"),
            ("options", json!({ "warmth": 1 }), "options.warmth"),
            ("messages", json!([{ "role": "robot", "content": "" }]), "messages[0].role"),
            ("messages", json!([{ "role": "user", "content": "", "images": ["aa"] }]), "messages[0].images"),
            (
                "messages",
                json!([{ "role": "assistant", "tool_calls": [{ "function": { "name": "f", "arguments": "x" } }] }]),
                "messages[0].tool_calls[0].function.arguments",
            ),
            (
                "tools",
                json!([{ "type": "function", "function": { "name": "a b" } }]),
                "tools[0].function.name",
            ),
            ("template", json!("x"), "template"),
            ("logprobs", json!(true), "logprobs"),
            ("wings", json!(2), "wings"),
        ] {
            let api_error =
                chat(json!({ name: value.clone() })).err().unwrap_or_else(|| panic!("{name} {value}"));
            let body = error_body(&api_error);
            let message = body["error"].as_str().unwrap();
            assert!(message.contains(param), "{param}: {message}");
        }
        let texts = read_embed(json!({ "model": "m", "input": [1, 2] }).to_string().as_bytes());
        assert!(texts.is_err());
        assert!(
            read_embed(json!({ "model": "m", "input": "a", "truncate": true }).to_string().as_bytes())
                .is_ok()
        );
        assert_eq!(ModelName::read(br#"{"name":"m:latest"}"#).unwrap(), "m");
        assert!(ModelName::read(b"{}").is_err());
    }
}
