//! Requests of Ollama's API. As Ollama does, they skip fields that nobody here knows; the answer names them.
//! Known parameters that would change the answer and are not served are refused by name.

use std::collections::VecDeque;

use baton_proto::record::{Message, Role};
use serde_json::{Value, json};

use crate::{
    apis::openai::embeddings::TextsToEmbed,
    form::{
        completion::{CompletionRequest, Retention},
        fields::{BodyFields, is_empty, whole},
        format, neutral,
        tools::{CallIds, PastCall, ToolRequest},
        wire::read_common,
    },
    http::api_error::ApiError,
    models::bare_name,
};

/// The served options, with their names in the form of all APIs.
const OPTIONS: [(&str, &str); 10] = [
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("seed", "seed"),
    ("stop", "stop"),
    ("repeat_penalty", "repetition_penalty"),
    ("num_predict", "max_tokens"),
];

/// Most names of skipped fields in an answer.
const MAX_IGNORED: usize = 32;
/// Most characters of a skipped field's name.
const MAX_IGNORED_CHARS: usize = 64;

/// Reads the model's name out of a body, where it is `model`, or `name` in older clients.
pub(super) fn read_model(body: &[u8]) -> Result<String, ApiError> {
    let mut fields = BodyFields::of_body(body)?;
    let name = fields.text("model")?.or(fields.text("name")?).filter(|name| !name.is_empty());
    let missing = || ApiError::value("model", "model is the name of a model");
    name.map(|name| bare_name(&name).to_owned()).ok_or_else(missing)
}

/// A parameter under its name in this API.
pub(super) fn own_param(param: &str) -> String {
    match OPTIONS.iter().find(|(_, shared)| *shared == param) {
        Some((own, _)) => format!("options.{own}"),
        None => param.replace("response_format.json_schema.schema", "format").replace(format::NAME, "format"),
    }
}

/// Reads the body of a chat.
///
/// # Parameters
/// `session` is the session that the header names.
pub(super) fn read_chat(body: &[u8], session: Option<String>) -> Result<CompletionRequest, ApiError> {
    let mut fields = BodyFields::of_body(body)?;
    let mut reader = MessageReader::default();
    for message in fields.objects("messages")? {
        reader.push(message)?;
    }
    let tools = ToolRequest { tools: fields.list("tools")?.unwrap_or_default(), ..ToolRequest::default() };
    Ok(CompletionRequest { session, ..read(fields, reader.messages, tools)? })
}

/// Reads the body of a request without a conversation.
pub(super) fn read_generate(body: &[u8]) -> Result<CompletionRequest, ApiError> {
    let mut fields = BodyFields::of_body(body)?;
    let system = fields.text("system")?.filter(|text| !text.is_empty());
    let mut messages = Vec::from_iter(system.map(|text| Message::new(Role::System, text)));
    messages.push(Message::new(Role::User, fields.text("prompt")?.unwrap_or_default()));
    let request = read(fields, messages, ToolRequest::default())?;
    Ok(CompletionRequest { retention: Retention::Single, ..request })
}

/// Reads the body of a request for vectors: of the texts in this field. Also returns the skipped fields.
pub(super) fn read_embed(body: &[u8], name: &str) -> Result<(TextsToEmbed, Vec<String>), ApiError> {
    let mut fields = BodyFields::of_body(body)?;
    let texts = TextsToEmbed::take(&mut fields, name)?;
    // A text beyond the limit is refused, cut or not.
    for known in ["truncate", "options", "keep_alive"] {
        fields.take(known);
    }
    let skipped = fields.iter().filter(|(_, value)| !is_empty(value));
    Ok((texts, ignored(skipped.map(|(name, _)| name.to_owned()))))
}

/// The names of skipped fields, as an answer has them.
fn ignored(names: impl Iterator<Item = String>) -> Vec<String> {
    names.take(MAX_IGNORED).map(|name| name.chars().take(MAX_IGNORED_CHARS).collect()).collect()
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
    fn push(&mut self, mut message: BodyFields) -> Result<(), ApiError> {
        let role = message.role(&["system", "user", "assistant", "tool"])?;
        let mut text = message.text("content")?.unwrap_or_default();
        let (calls, at) = (message.objects("tool_calls")?, message.at("tool_calls"));
        if !calls.is_empty() {
            if role != Role::Assistant {
                return Err(ApiError::value(&at, "only the assistant calls tools"));
            }
            let calls = self.read_calls(calls)?;
            text = self.ids.write(text, calls, &at)?;
        }
        let (id, name) = (message.text("tool_call_id")?, message.text("tool_name")?);
        let call_id = if role == Role::Tool { self.take_call(id, name.as_deref()) } else { None };
        if message.take("images").is_some_and(|images| !is_empty(&images)) {
            let unserved = "images is not supported in a message";
            return Err(ApiError::unsupported(&message.at("images"), unserved));
        }
        let read = Message { role, name: None, call_id, text };
        read.check().map_err(|_| ApiError::long_message(&message.at("content"), &read))?;
        self.messages.push(read);
        Ok(())
    }

    fn read_calls(&mut self, calls: Vec<BodyFields>) -> Result<Vec<PastCall>, ApiError> {
        self.waiting.clear();
        let read = calls.into_iter().map(|mut call| {
            // Its path is a name of its own.
            let id = call.text("id")?.unwrap_or_else(|| call.path().to_owned());
            let mut function = call.part("function")?;
            let name = function.peek("name").and_then(Value::as_str).unwrap_or_default();
            self.waiting.push_back((id.clone(), name.to_owned()));
            PastCall::take(&mut function, Some(id), "arguments")
        });
        read.collect()
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

/// Reads the parameters that a chat and a text share: writes them as all APIs have them. A request without a message
/// has an empty one.
fn read(
    mut fields: BodyFields,
    mut messages: Vec<Message>,
    tools: ToolRequest,
) -> Result<CompletionRequest, ApiError> {
    if messages.is_empty() {
        messages.push(Message::new(Role::User, ""));
    }
    let mut shared = BodyFields::default();
    let form = match fields.take("format") {
        Some(Value::String(text)) if text == "json" => Some(json!({ "type": "json_object" })),
        Some(schema @ Value::Object(_)) => {
            Some(format::nested(json!({ "type": "json_schema", "schema": schema })))
        }
        None => None,
        Some(Value::String(text)) if text.is_empty() => None,
        Some(_) => return Err(ApiError::value("format", "format is \"json\" or a schema, an object")),
    };
    shared.put(format::NAME, form);
    shared.put("stream", fields.flag("stream")?.unwrap_or(true));
    shared.put("model", fields.text("model")?.map(|name| bare_name(&name).to_owned()));
    let mut options = fields.part("options")?;
    if options.peek("num_predict").and_then(whole).is_some_and(|tokens| tokens < 0) {
        // It stands for no limit of the request's own.
        options.take("num_predict");
    }
    for (own, name) in OPTIONS {
        shared.put(name, options.take(own));
    }
    let mut unknown = Vec::new();
    for (name, value) in fields.iter() {
        match neutral::check(name, value) {
            Err(error) if REFUSED.contains(&name) => return Err(error),
            Err(_) => unknown.push(name.to_owned()),
            Ok(()) => {}
        }
    }
    let skipped = options.iter().filter(|(name, value)| !is_default_option(name, value));
    let skipped = skipped.map(|(name, _)| format!("options.{name}"));
    let ignored = ignored(unknown.into_iter().chain(skipped));
    Ok(CompletionRequest { ignored, ..read_common(shared, messages, tools)? })
}

/// Parameters of Ollama that would make another answer, or another request, of this one.
const REFUSED: [&str; 7] = ["think", "images", "template", "raw", "suffix", "context", "logprobs"];

/// Whether skipping an option changes nothing.
fn is_default_option(name: &str, value: &Value) -> bool {
    let default = match name {
        _ if is_empty(value) => return true,
        "mirostat" => 0.0,
        "typical_p" | "tfs_z" => 1.0,
        "repeat_last_n" => 64.0,
        _ => return false,
    };
    value.as_f64() == Some(default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apis::ollama::error_body;
    use crate::form::fields::with;

    fn chat(more: Value) -> Result<CompletionRequest, ApiError> {
        let body =
            with(json!({ "model": "m:latest", "messages": [{ "role": "user", "content": "hi" }] }), more);
        read_chat(body.to_string().as_bytes(), None)
    }

    #[test]
    fn messages_and_options_are_read() {
        let request = chat(json!({
            "messages": [{ "role": "system", "content": "be brief" }, { "role": "user", "content": "a" },
                         { "role": "assistant", "content": "b", "thinking": "x" }, { "role": "user", "content": "c" }],
            "options": { "temperature": 0, "top_k": 4, "num_predict": 9, "num_ctx": 2048, "seed": 3, "stop": ["x"],
                         "min_p": 0.05 },
            "keep_alive": "5m", "think": false, "format": "json",
        }))
        .unwrap();
        assert_eq!((request.model.as_deref(), request.max_tokens), (Some("m"), Some(9)));
        assert_eq!((request.stream, request.system.len(), request.messages.len()), (true, 1, 3));
        assert_eq!((request.temperature, request.seed), (Some(0.0), Some(3)));
        assert!((request.sampling.min_p - 0.05).abs() < f32::EPSILON);
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
        assert_eq!(empty.messages, [Message::new(Role::User, "")]);
    }

    #[test]
    fn unknown_fields_and_options_are_skipped_and_named() {
        let request = chat(json!({
            "max_output_tokens": 20, "temperature": 0.2, "think": false, "keep_alive": -1, "thing": null,
            "options": { "mirostat_tau": 0.1, "mirostat": 0, "warmth": 1, "num_ctx": 9, "seed": 1.0, "top_k": 4.0 },
            "messages": [{ "role": "user", "content": null, "wings": 1 }, { "role": "tool", "content": "" }],
        }))
        .unwrap();
        assert_eq!(
            request.ignored,
            ["max_output_tokens", "temperature", "options.mirostat_tau", "options.warmth", "options.num_ctx"]
        );
        assert_eq!((request.seed, request.sampling.top_k), (Some(1), 4));
        let many: serde_json::Map<String, Value> =
            (0..100).map(|number| (format!("{number}{}", "x".repeat(100)), json!(1))).collect();
        let ignored = chat(Value::Object(many)).unwrap().ignored;
        assert!(ignored.len() == MAX_IGNORED && ignored.iter().all(|name| name.len() <= MAX_IGNORED_CHARS));
    }

    #[test]
    fn parameters_that_are_not_served_are_refused_by_their_names() {
        let long = json!([{ "role": "user", "content": "x".repeat(600 * 1024) }]);
        let call = json!({ "function": { "name": "f", "arguments": "x" } });
        let call = json!([{ "role": "assistant", "tool_calls": [call] }]);
        for (name, value, param) in [
            ("think", json!("high"), "think"),
            ("format", json!("yaml"), "format"),
            ("options", json!({ "temperature": 9 }), "temperature"),
            ("options", json!({ "min_p": 2 }), "options.min_p"),
            ("options", json!({ "repeat_penalty": 0 }), "options.repeat_penalty"),
            ("options", json!({ "num_predict": 1_000_000 }), "options.num_predict"),
            ("options", json!({ "num_predict": "9" }), "options.num_predict"),
            ("options", json!({ "seed": 0.5 }), "options.seed"),
            ("options", json!(1), "options"),
            ("stream", json!("yes"), "stream"),
            ("messages", json!([{ "role": "user", "content": 1 }]), "messages[0].content"),
            ("messages", long, "messages[0].content"),
            ("messages", json!([{ "role": "robot", "content": "" }]), "messages[0].role"),
            ("messages", json!([{ "role": "user", "content": "", "images": ["aa"] }]), "messages[0].images"),
            ("messages", call, "messages[0].tool_calls[0].function.arguments"),
            ("tools", json!([{ "type": "function", "function": {} }]), "tools[0].function.name"),
            ("template", json!("x"), "template"),
            ("logprobs", json!(true), "logprobs"),
        ] {
            let api_error =
                chat(json!({ name: value.clone() })).err().unwrap_or_else(|| panic!("{name} {value}"));
            let body = error_body(&api_error);
            let message = body["error"].as_str().unwrap();
            assert!(message.contains(param), "{param}: {message}");
        }
        let embed = |body: Value| read_embed(body.to_string().as_bytes(), "input");
        assert!(embed(json!({ "model": "m", "input": [1, 2] })).is_err());
        let (_, ignored) =
            embed(json!({ "model": "m", "input": "a", "truncate": true, "wings": 2 })).unwrap();
        assert_eq!(ignored, ["wings"]);
        assert_eq!(read_model(br#"{"name":"m:latest"}"#).unwrap(), "m");
        assert!(read_model(b"{}").is_err());
    }
}
