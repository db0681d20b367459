//! Requests of OpenAI's API, read strictly: an unsupported parameter is refused by name, never ignored.

use std::collections::BTreeMap;

use baton_proto::{
    record::{Message, Role},
    tools::Json,
    turn::TokenBias,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    api_error::ApiError,
    completion::{CompletionRequest, RequestPlace, Retention, SamplingRequest, check_max_tokens, is_any},
    format,
    logprobs::LogprobsRequest,
    tools::{CallFault, CallIds, PastCall, ToolChoice, ToolRequest, check_call_count, check_name},
};

/// A chat completion request.
#[derive(Deserialize)]
pub(super) struct ChatRequest {
    messages: Vec<MessageInput>,
    /// The session, if the caller knows it.
    session: Option<String>,
    /// The turn that the new messages replace, with all later ones; needs a session.
    replaces: Option<u64>,
    /// The turn after which the new messages begin a branch; needs a session.
    branch_after: Option<u64>,
    /// Whether memory is recalled, where the endpoint has any.
    memory: Option<bool>,
    tools: Option<Json>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    n: Option<usize>,
    store: Option<bool>,
    metadata: Option<Value>,
    #[serde(flatten)]
    common: CommonParameters,
}

/// A text completion request.
#[derive(Deserialize)]
pub(super) struct TextRequest {
    prompt: Texts,
    #[serde(flatten)]
    common: CommonParameters,
}

/// One text or several, as several parameters are; or something else.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Texts {
    One(String),
    Several(Vec<String>),
    Other(serde::de::IgnoredAny),
}

impl Texts {
    /// The texts; none for something else.
    pub(super) fn list(self) -> Option<Vec<String>> {
        match self {
            Self::One(text) => Some(vec![text]),
            Self::Several(texts) => Some(texts),
            Self::Other(_) => None,
        }
    }

    /// The texts that end an answer.
    pub(super) fn stop(texts: Option<Self>) -> Result<Vec<String>, ApiError> {
        let wrong = || ApiError::value("stop", "stop is a text or a list of texts");
        texts.map_or(Ok(Vec::new()), |texts| texts.list().ok_or_else(wrong))
    }
}

#[derive(Deserialize)]
struct MessageInput {
    role: String,
    content: Option<Content>,
    name: Option<String>,
    tool_call_id: Option<String>,
    tool_calls: Option<Vec<CallInput>>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Deserialize)]
struct ContentPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

/// The parameters that all kinds of requests share.
#[derive(Deserialize)]
pub(super) struct CommonParameters {
    model: Option<String>,
    #[serde(default)]
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    /// Biases by token id, as text.
    logit_bias: Option<BTreeMap<String, f32>>,
    seed: Option<i64>,
    stop: Option<Texts>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
    /// Padding that hides the stream's sizes from observers; this connection is a loopback one.
    #[serde(default, rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
}

/// The place that a request names.
fn read_place(
    session: Option<&str>,
    replaces: Option<u64>,
    branch_after: Option<u64>,
) -> Result<RequestPlace, ApiError> {
    let (place, name) = match (replaces, branch_after) {
        (None, None) => return Ok(RequestPlace::AfterMessages),
        (Some(seq), None) => (RequestPlace::Replaces(seq), "replaces"),
        (None, Some(seq)) => (RequestPlace::BranchAfter(seq), "branch_after"),
        (Some(_), Some(_)) => {
            let message = "a request replaces turns or begins a branch, not both";
            return Err(ApiError::value("branch_after", message));
        }
    };
    if session.is_none_or(|name| name == "new") {
        return Err(ApiError::value(name, format!("{name} needs the session that has this turn")));
    }
    Ok(place)
}

/// Most answers to a request.
const MAX_ANSWERS: usize = 4;

/// Parameters that describe the caller and not the answer.
const LABELS: [&str; 6] =
    ["user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier", "store"];

/// How long the session of a chat request lasts. A title, tags and the like, which Open WebUI has made in the
/// background after each message, are no conversation: it names the task, or sends a prompt of this form.
fn retention(
    store: Option<bool>,
    metadata: Option<&Value>,
    session: Option<&str>,
    messages: &[Message],
) -> Result<Retention, ApiError> {
    let is_named = session.is_some_and(|name| name != "new");
    if is_named && store == Some(false) {
        let message = "store is false, so nothing of this answer is kept; a named session keeps it";
        return Err(ApiError::unsupported("store", message));
    }
    let is_prompt = |text: &str| text.starts_with("### Task:") && text.contains("<chat_history>");
    let is_task = metadata.and_then(|labels| labels.get("task")).is_some_and(Value::is_string)
        || matches!(messages, [message] if message.role == Role::User && is_prompt(&message.text));
    Ok(match store {
        _ if is_task && !is_named => Retention::Single,
        Some(false) => Retention::Brief,
        _ => Retention::Stored,
    })
}

impl ChatRequest {
    /// Reads a body.
    ///
    /// # Parameters
    /// `session` is the header's session, which takes precedence over the body's.
    pub(super) fn read(body: &[u8], session: Option<String>) -> Result<CompletionRequest, ApiError> {
        let mut request: Self = parse(body)?;
        request.session = session.or(request.session);
        let place = read_place(request.session.as_deref(), request.replaces, request.branch_after)?;
        let memory = request.memory.unwrap_or(true);
        let logprobs = LogprobsRequest::of_chat(&mut request.common.rest)?;
        if request.messages.is_empty() {
            return Err(ApiError::value("messages", "messages is empty"));
        }
        let mut messages = Vec::with_capacity(request.messages.len());
        let mut ids = CallIds::default();
        for (index, message) in request.messages.into_iter().enumerate() {
            messages.push(message.read(index, &mut ids)?);
        }
        let pinned = messages.iter().take_while(|message| message.role == Role::System).count();
        let rest = messages.split_off(pinned);
        let retention =
            retention(request.store, request.metadata.as_ref(), request.session.as_deref(), &rest)?;
        let tool_request = ToolRequest {
            tools: request.tools,
            choice: read_choice(request.tool_choice.as_ref(), "/function/name")?,
            parallel_tool_calls: request.parallel_tool_calls,
        };
        let completion = request.common.into_request(messages, rest, request.session)?;
        let completion = tool_request.read()?.into_request(completion, format::NAME)?;
        let answers = request.n.unwrap_or(1);
        if !(1..=MAX_ANSWERS).contains(&answers) {
            return Err(ApiError::unsupported("n", format!("n is from 1 to {MAX_ANSWERS}")));
        }
        Ok(CompletionRequest { logprobs, place, memory, answers, retention, ..completion })
    }
}

impl TextRequest {
    /// Reads a body. The text becomes one message of its own conversation: nodes render every prompt by the
    /// model's chat template.
    pub(super) fn read(body: &[u8]) -> Result<CompletionRequest, ApiError> {
        let mut request: Self = parse(body)?;
        let logprobs = LogprobsRequest::of_text(&mut request.common.rest)?;
        let not_text = || ApiError::unsupported("prompt", "prompt must be a text, not tokens");
        let prompts = request.prompt.list().ok_or_else(not_text)?;
        let one = <[String; 1]>::try_from(prompts);
        let [prompt] = one.map_err(|_| ApiError::unsupported("prompt", "one prompt at a time is served"))?;
        let messages = vec![Message::new(Role::User, prompt)];
        Ok(CompletionRequest {
            logprobs,
            retention: Retention::Single,
            ..request.common.into_request(Vec::new(), messages, None)?
        })
    }
}

pub(super) fn parse<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = serde_path_to_error::deserialize(&mut json).map_err(|error| unreadable(&error))?;
    json.end().map_err(|error| unreadable_body(&error))?;
    Ok(read)
}

/// The error of a body, which names the wrong field where it is known.
pub(super) fn unreadable(error: &serde_path_to_error::Error<serde_json::Error>) -> ApiError {
    let path = error.path().to_string();
    // The library writes a question mark where it knows no name.
    match path.trim_end_matches('?').trim_end_matches('.') {
        "" => unreadable_body(error.inner()),
        path => ApiError::request("invalid_body", path, format!("{path} cannot be read: {}", error.inner())),
    }
}

/// A serde error quotes the value; only the request's author reads it.
fn unreadable_body(error: &serde_json::Error) -> ApiError {
    ApiError::request("invalid_body", "", format!("the body cannot be read: {error}"))
}

impl MessageInput {
    fn read(self, index: usize, ids: &mut CallIds) -> Result<Message, ApiError> {
        let at = |field: &str| format!("messages[{index}].{field}");
        let role = match self.role.as_str() {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            other => {
                let message =
                    format!("there is no role {other:?}: it is system, developer, user, assistant or tool");
                return Err(ApiError::value(&at("role"), message));
            }
        };
        // Programs send an assistant's message back with all its original fields, most of them empty.
        if let Some((field, _)) = self.rest.iter().find(|(_, value)| !is_empty(value)) {
            return Err(ApiError::unsupported(&at(field), format!("{field} is not supported in a message")));
        }
        let text = match self.content {
            None => String::new(),
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => {
                let mut text = String::new();
                for part in parts {
                    match (part.kind.as_str(), part.text) {
                        ("text", Some(part)) => text.push_str(&part),
                        ("text", None) => {
                            return Err(ApiError::value(&at("content"), "a text part has no text"));
                        }
                        (kind, _) => {
                            let message = format!("content of type {kind:?} is not supported; send text");
                            return Err(ApiError::unsupported(&at("content"), message));
                        }
                    }
                }
                text
            }
        };
        let text = match self.tool_calls {
            Some(calls) if role == Role::Assistant => ids.write(&text, read_calls(index, calls)?),
            Some(calls) if !calls.is_empty() => {
                return Err(ApiError::value(&at("tool_calls"), "only the assistant calls tools"));
            }
            _ => text,
        };
        check_name(index, role, self.name.as_deref())?;
        let call_id = self.tool_call_id.map(|id| ids.ours(id));
        let message = Message { role, name: self.name, call_id, text };
        message.check().map_err(|_| ApiError::long_message(&at("content"), &message))?;
        Ok(message)
    }
}

/// A call as a program sends it back.
#[derive(Deserialize)]
struct CallInput {
    id: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    function: Option<FunctionInput>,
}

#[derive(Deserialize)]
struct FunctionInput {
    name: String,
    #[serde(default)]
    arguments: String,
}

fn read_calls(index: usize, calls: Vec<CallInput>) -> Result<Vec<PastCall>, ApiError> {
    check_call_count(calls.len(), &format!("messages[{index}].tool_calls"))?;
    let read = |(position, CallInput { id, kind, function }): (usize, CallInput)| {
        let at = |field: &str| format!("messages[{index}].tool_calls[{position}].{field}");
        if kind.is_some_and(|kind| kind != "function") {
            return Err(ApiError::unsupported(&at("type"), "only calls of type function are served"));
        }
        let call = match function {
            Some(FunctionInput { name, arguments }) => PastCall::new(id, name, &arguments),
            None => Err(CallFault::Name),
        };
        call.map_err(|fault| {
            let field = if fault == CallFault::Name { "function.name" } else { "function.arguments" };
            ApiError::value(&at(field), fault.message())
        })
    };
    calls.into_iter().enumerate().map(read).collect()
}

/// Reads `tool_choice`; a choice of one function has its name at `name`, a JSON pointer.
pub(super) fn read_choice(choice: Option<&Value>, name: &str) -> Result<ToolChoice, ApiError> {
    match choice {
        None | Some(Value::Null) => return Ok(ToolChoice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => return Ok(ToolChoice::Auto),
            "none" => return Ok(ToolChoice::Never),
            "required" => return Ok(ToolChoice::Required),
            _ => {}
        },
        Some(choice) if choice.get("type").and_then(Value::as_str) == Some("function") => {
            if let Some(name) = choice.pointer(name).and_then(Value::as_str) {
                return Ok(ToolChoice::Named(name.to_owned()));
            }
        }
        Some(_) => {}
    }
    let message = "tool_choice is auto, none, required, or a function with its name";
    Err(ApiError::unsupported("tool_choice", message))
}

/// The biases, in ascending order of tokens.
fn read_biases(biases: BTreeMap<String, f32>) -> Result<Vec<TokenBias>, ApiError> {
    let wrong = || {
        ApiError::value(
            "logit_bias",
            "logit_bias has token ids of the model's vocabulary, as texts of digits",
        )
    };
    let read = |(token, bias): (String, f32)| Some(TokenBias { token: token.parse().ok()?, bias });
    let mut biases = biases.into_iter().map(read).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    biases.sort_by_key(|bias| bias.token);
    Ok(biases)
}

impl CommonParameters {
    /// The request with these parameters.
    pub(super) fn into_request(
        mut self,
        system: Vec<Message>,
        messages: Vec<Message>,
        session: Option<String>,
    ) -> Result<CompletionRequest, ApiError> {
        let json_schema = format::take(&mut self.rest)?;
        self.rest.iter().try_for_each(|(name, value)| neutral(name, value))?;
        let stop = Texts::stop(self.stop)?;
        let sampling = SamplingRequest {
            top_k: self.top_k.unwrap_or(0),
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            token_biases: read_biases(self.logit_bias.unwrap_or_default())?,
            seed: self.seed.map(i64::cast_unsigned),
            stop,
            ..SamplingRequest::of(self.temperature, self.top_p)
        };
        sampling.check()?;
        let max_tokens = self.max_completion_tokens.or(self.max_tokens);
        check_max_tokens(max_tokens)?;
        let stream = self.stream.unwrap_or(false);
        if self.stream_options.is_some() && !stream {
            return Err(ApiError::value("stream_options", "stream_options needs stream to be true"));
        }
        // Programs that must name a model send such placeholders.
        let model = self.model.filter(|model| !is_any(model));
        let include_usage = self.stream_options.is_some_and(|options| options.include_usage);
        Ok(CompletionRequest {
            session,
            model,
            sampling,
            max_tokens,
            stream,
            include_usage,
            json_schema,
            ..CompletionRequest::new(system, messages)
        })
    }
}

pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Whether an unsupported parameter of OpenAI's API holds only its default.
pub(super) fn neutral(name: &str, value: &Value) -> Result<(), ApiError> {
    // Asked for by its presence, even with no options.
    let asks = name == "web_search_options" && !value.is_null();
    if (is_empty(value) && !asks) || LABELS.contains(&name) {
        return Ok(());
    }
    let is = |expected: Value| if *value == expected { Ok(()) } else { Err(()) };
    let number = |expected: f64| if value.as_f64() == Some(expected) { Ok(()) } else { Err(()) };
    let (check, why) = match name {
        "n" | "best_of" => (number(1.0), "one answer is given to a request"),
        "echo" => (is(Value::Bool(false)), "only the answer is given"),
        "suffix" | "functions" | "function_call" | "audio" | "prediction" | "reasoning_effort"
        | "verbosity" | "web_search_options" => (Err(()), "it is not served"),
        "modalities" => (is(Value::from(vec!["text"])), "only text is served"),
        "tools" | "tool_choice" | "parallel_tool_calls" => (Err(()), "tools are for chat completions"),
        _ => {
            let message = format!("there is no parameter {name}");
            return Err(ApiError::request("unknown_parameter", name, message));
        }
    };
    check.map_err(|()| ApiError::unsupported(name, format!("{name} is not supported: {why}")))
}

#[cfg(test)]
mod tests {
    use baton_proto::turn::Sampling;
    use serde_json::json;

    use super::*;

    fn chat(more: Value) -> Result<CompletionRequest, ApiError> {
        let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        ChatRequest::read(body.to_string().as_bytes(), None)
    }

    #[test]
    fn a_body_that_cannot_be_read_is_refused_by_the_field() {
        let refused = |body: &str| {
            let refused = ChatRequest::read(body.as_bytes(), None).unwrap_err().body();
            (refused["error"]["param"].clone(), refused["error"]["message"].as_str().unwrap().to_owned())
        };
        let (field, message) = refused(r#"{"messages":1}"#);
        assert_eq!(field, "messages");
        assert!(
            message.starts_with("messages cannot be read: ") && message.contains("a sequence"),
            "{message}"
        );
        let (field, message) = refused(r#"{"messages":[{"role":"user","content":"a"},{"role":2}]}"#);
        assert_eq!(field, "messages[1].role", "{message}");
        for body in ["", "{", "{} 1"] {
            let (field, message) = refused(body);
            assert!(field.is_null() && message.starts_with("the body cannot be read: "), "{message}");
        }
    }

    #[test]
    fn a_place_in_a_session_needs_the_session_and_is_one_of_two() {
        let place = |more| chat(more).map(|request| request.place);
        assert_eq!(place(json!({})).unwrap(), RequestPlace::AfterMessages);
        assert_eq!(place(json!({ "session": "ab", "replaces": 0 })).unwrap(), RequestPlace::Replaces(0));
        assert_eq!(
            place(json!({ "session": "ab", "branch_after": 2 })).unwrap(),
            RequestPlace::BranchAfter(2)
        );
        assert!(place(json!({ "replaces": 0 })).is_err());
        assert!(place(json!({ "session": "new", "branch_after": 0 })).is_err());
        assert!(place(json!({ "session": "ab", "replaces": 1, "branch_after": 1 })).is_err());
    }

    #[test]
    fn memory_is_recalled_unless_the_request_declines_it() {
        assert!(chat(json!({})).unwrap().memory);
        assert!(!chat(json!({ "memory": false })).unwrap().memory);
    }

    #[test]
    fn leading_system_text_is_pinned_and_the_rest_is_said() {
        let request = chat(json!({ "messages": [
            { "role": "developer", "content": "be brief" },
            { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
            { "role": "assistant", "content": "c", "refusal": null, "annotations": [], "tool_calls": null },
            { "role": "system", "content": "d" },
            { "role": "tool", "content": "e", "tool_call_id": "1" },
        ]}))
        .unwrap();
        assert_eq!(request.system, [Message::new(Role::System, "be brief")]);
        let said: Vec<_> =
            request.messages.iter().map(|message| (message.role, message.text.as_str())).collect();
        assert_eq!(
            said,
            [(Role::User, "ab"), (Role::Assistant, "c"), (Role::System, "d"), (Role::Tool, "e")]
        );
        assert_eq!(request.messages[3].call_id.as_deref(), Some("1"));
    }

    #[test]
    fn what_asks_for_the_default_is_taken_and_what_is_not_served_is_refused_by_name() {
        let taken = json!({
            "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": false, "logit_bias": {},
            "response_format": { "type": "text" }, "tools": [], "tool_choice": "auto", "user": "me",
            "metadata": { "a": "b" }, "store": true, "modalities": ["text"], "parallel_tool_calls": true,
        });
        assert!(chat(taken).is_ok());
        let refused = [
            ("n", json!(5)),
            ("presence_penalty", json!(2.5)),
            ("frequency_penalty", json!(-2.1)),
            ("logprobs", json!(1)),
            ("top_logprobs", json!(3)),
            ("logit_bias", json!({ "50256": -101 })),
            ("logit_bias", json!({ "the": 1 })),
            ("logit_bias", json!({ "7": 1, "07": 1 })),
            ("response_format", json!({ "type": "regex" })),
            ("echo", json!(true)),
            ("web_search_options", json!({})),
            ("functions", json!([{ "name": "f" }])),
            ("tool_choice", json!("required")),
            ("modalities", json!(["text", "audio"])),
            ("temprature", json!(1)),
            ("temperature", json!(9)),
            ("temperature", json!(-0.1)),
            ("top_p", json!(1.5)),
            ("stop", json!([""])),
            ("stop", json!(vec!["x"; 17])),
            ("max_tokens", json!(0)),
            ("stream_options", json!({ "include_usage": true })),
        ];
        for (name, value) in refused {
            let api_error = chat(json!({ name: value.clone() })).unwrap_err();
            assert_eq!(api_error.body()["error"]["param"], name, "{value}");
        }
        for messages in [
            json!([]),
            json!([{ "role": "robot", "content": "hi" }]),
            json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]),
            json!([{ "role": "assistant", "content": null, "tool_calls": [{ "id": "1" }] }]),
            json!([{ "role": "assistant", "content": null, "function_call": { "name": "f" } }]),
            json!([{ "role": "user", "content": 5 }]),
            json!("hi"),
        ] {
            assert!(chat(json!({ "messages": messages.clone() })).is_err(), "{messages}");
        }
        assert!(ChatRequest::read(b"{", None).is_err());
    }

    #[test]
    fn sampling_is_as_asked_and_otherwise_as_configured() {
        let sampling = |more| chat(more).unwrap().sampling.with_defaults(0.7, 5);
        let repetition_penalty = baton_client::MODEL_PENALTY;
        let configured = Sampling { temperature: 0.7, seed: 5, repetition_penalty, ..Sampling::default() };
        assert_eq!(sampling(json!({})), configured);
        let asked = sampling(json!({
            "temperature": 0, "top_p": 0.5, "seed": -1, "stop": "\n", "top_k": 3, "repetition_penalty": 1.1,
            "presence_penalty": 0.5, "frequency_penalty": -2, "logit_bias": { "50256": -100, "9": 1.5 },
        }));
        let expected = Sampling {
            temperature: 0.0,
            top_p: 0.5,
            top_k: 3,
            repetition_penalty: 1.1,
            seed: u64::MAX,
            stop: vec!["\n".to_owned()],
            presence_penalty: 0.5,
            frequency_penalty: -2.0,
            token_biases: vec![TokenBias { token: 9, bias: 1.5 }, TokenBias { token: 50_256, bias: -100.0 }],
            ..Sampling::default()
        };
        assert_eq!(asked, expected);
        assert_eq!(sampling(json!({ "top_p": 0, "temperature": 1 })).temperature.to_bits(), 0);
    }

    #[test]
    fn a_text_is_asked_by_itself_and_passes() {
        let request = TextRequest::read(br#"{"model":"any","prompt":["a"],"max_tokens":5}"#).unwrap();
        assert_eq!(
            (request.messages.len(), request.session, request.model, request.retention),
            (1, None, None, Retention::Single)
        );
        assert!(!chat(json!({})).unwrap().is_ephemeral());
        for body in
            ["{\"prompt\":[1,2]}", "{\"prompt\":[\"a\",\"b\"]}", "{\"prompt\":\"a\",\"best_of\":3}", "{}"]
        {
            assert!(TextRequest::read(body.as_bytes()).is_err(), "{body}");
        }
    }
}
