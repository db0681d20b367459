//! Reads requests of OpenAI's API, and the parameters that all APIs share, strictly: an unsupported parameter is refused
//! by name, never ignored. Other APIs write theirs under these names first.

use std::ops::RangeInclusive;

use baton_client::MODEL_PENALTY;
use baton_proto::{
    limits::{MAX_OUTPUT_TOKENS, MAX_STOP_BYTES, MAX_STOP_STRINGS, MAX_TOKEN_BIASES},
    record::{Message, Role},
    tools::TOOLS_NAME,
    turn::{Sampling, TokenBias},
};
use serde_json::Value;

use crate::{
    form::{
        completion::{CompletionRequest, RequestPlace, Retention, is_any},
        fields::{BodyFields, whole},
        format,
        logprobs::LogprobsRequest,
        neutral,
        tools::{CallIds, PastCall, ToolChoice, ToolRequest},
    },
    http::api_error::ApiError,
};

/// Most answers to a request.
const MAX_ANSWERS: u64 = 4;
const PENALTIES: RangeInclusive<f32> = -2.0..=2.0;

/// The place that a request names in a session that was there before, if it names one.
fn read_place(fields: &mut BodyFields, is_named: bool) -> Result<RequestPlace, ApiError> {
    let replaces = fields.whole("replaces", 0..=u64::MAX)?;
    let branch_after = fields.whole("branch_after", 0..=u64::MAX)?;
    let (place, name) = match (replaces, branch_after) {
        (None, None) => return Ok(RequestPlace::AfterMessages),
        (Some(seq), None) => (RequestPlace::Replaces(seq), "replaces"),
        (None, Some(seq)) => (RequestPlace::BranchAfter(seq), "branch_after"),
        (Some(_), Some(_)) => {
            let message = "a request replaces turns or begins a branch, not both";
            return Err(ApiError::value("branch_after", message));
        }
    };
    if !is_named {
        return Err(ApiError::value(name, format!("{name} needs the session that has this turn")));
    }
    Ok(place)
}

/// How long the session of a chat request lasts. A title, tags and the like, which Open WebUI has made in the
/// background after each message, are no conversation: it names the task, or sends a prompt of this form.
fn retention(store: Option<bool>, is_task: bool, request: &CompletionRequest) -> Result<Retention, ApiError> {
    if request.is_named() && store == Some(false) {
        let message = "store is false, so nothing of this answer is kept; a named session keeps it";
        return Err(ApiError::unsupported("store", message));
    }
    let is_prompt = |text: &str| text.starts_with("### Task:") && text.contains("<chat_history>");
    let is_task =
        is_task || matches!(&request.messages[..], [one] if one.role == Role::User && is_prompt(&one.text));
    Ok(match store {
        _ if is_task && !request.is_named() => Retention::Single,
        Some(false) => Retention::Brief,
        _ => Retention::Stored,
    })
}

/// Reads the body of a chat completion.
///
/// # Parameters
/// `session` is the header's session, which takes precedence over the body's.
pub(crate) fn read_chat(body: &[u8], session: Option<String>) -> Result<CompletionRequest, ApiError> {
    let mut fields = BodyFields::of_body(body)?;
    let session = session.or(fields.text("session")?);
    let declines_memory = fields.flag("memory")? == Some(false);
    let logprobs = LogprobsRequest::of_chat(&mut fields)?;
    let mut ids = CallIds::default();
    let messages = fields.objects("messages")?.into_iter().map(|message| read_message(message, &mut ids));
    let messages = messages.collect::<Result<Vec<_>, _>>()?;
    let tools = ToolRequest {
        tools: fields.list("tools")?.unwrap_or_default(),
        choice: read_choice(fields.take("tool_choice").as_ref(), "/function/name")?,
        parallel_tool_calls: fields.flag("parallel_tool_calls")?,
    };
    let answers = fields.whole("n", 0..=u64::MAX)?.unwrap_or(1);
    if !(1..=MAX_ANSWERS).contains(&answers) {
        return Err(ApiError::unsupported("n", format!("n is from 1 to {MAX_ANSWERS}")));
    }
    let more_answers = answers - 1;
    let store = fields.flag("store")?;
    let metadata = fields.peek("metadata").and_then(|labels| labels.get("task"));
    let is_task = metadata.is_some_and(Value::is_string);
    let named = CompletionRequest { session, ..CompletionRequest::default() };
    let place = read_place(&mut fields, named.is_named())?;
    let request = read_common(fields, messages, tools)?;
    let session = named.session;
    let request = CompletionRequest { session, place, declines_memory, logprobs, more_answers, ..request };
    Ok(CompletionRequest { retention: retention(store, is_task, &request)?, ..request })
}

/// Reads the body of a text completion. The text becomes one message of its own conversation: nodes render every
/// prompt by the model's chat template.
pub(crate) fn read_text(body: &[u8]) -> Result<CompletionRequest, ApiError> {
    let mut fields = BodyFields::of_body(body)?;
    let logprobs = LogprobsRequest::of_text(&mut fields)?;
    let not_text = |_| ApiError::unsupported("prompt", "prompt must be a text, not tokens");
    let prompts = fields.texts("prompt").map_err(not_text)?.unwrap_or_default();
    let one = <[String; 1]>::try_from(prompts);
    let [prompt] = one.map_err(|_| ApiError::unsupported("prompt", "prompt is one text"))?;
    let request = read_common(fields, vec![Message::new(Role::User, prompt)], ToolRequest::default());
    let request = request.map_err(own_text_name)?;
    Ok(CompletionRequest { logprobs, retention: Retention::Single, ..request })
}

/// A shared parameter under its name in a text completion.
pub(crate) fn own_text_name(api_error: ApiError) -> ApiError {
    api_error.renamed(|param| if param == "messages" { "prompt".to_owned() } else { param.to_owned() })
}

fn read_message(mut fields: BodyFields, ids: &mut CallIds) -> Result<Message, ApiError> {
    let role = fields.role(&["system", "developer", "user", "assistant", "tool"])?;
    let text = fields.content("content", &["text"], "")?;
    let (calls, at) = (fields.objects("tool_calls")?, fields.at("tool_calls"));
    if role != Role::Assistant && !calls.is_empty() {
        return Err(ApiError::value(&at, "only the assistant calls tools"));
    }
    let text = ids.write(text, calls.into_iter().map(read_call).collect::<Result<_, _>>()?, &at)?;
    let name = fields.text("name")?;
    if role == Role::System && name.as_deref() == Some(TOOLS_NAME) {
        let message = "a system message cannot be named tools; send them as the parameter tools";
        return Err(ApiError::value(&fields.at("name"), message));
    }
    let call_id = fields.text("tool_call_id")?.map(|id| ids.ours(id));
    // Programs send an assistant's message back with all its original fields, most of them empty.
    fields.refuse_rest("a message")?;
    let message = Message { role, name, call_id, text };
    message.check().map_err(|_| ApiError::long_message(&fields.at("content"), &message))?;
    Ok(message)
}

/// A call as a program sends it back.
fn read_call(mut fields: BodyFields) -> Result<PastCall, ApiError> {
    if fields.text("type")?.is_some_and(|kind| kind != "function") {
        return Err(ApiError::unsupported(&fields.at("type"), "only calls of type function are served"));
    }
    let id = fields.text("id")?;
    PastCall::take(&mut fields.part("function")?, id, "arguments")
}

/// Reads `tool_choice`; a choice of one function has its name at `name`, a JSON pointer.
pub(crate) fn read_choice(choice: Option<&Value>, name: &str) -> Result<ToolChoice, ApiError> {
    let Some(choice) = choice else { return Ok(ToolChoice::Auto) };
    let is_function = choice.get("type").and_then(Value::as_str) == Some("function");
    let named = choice.pointer(name).and_then(Value::as_str).filter(|_| is_function);
    match (choice.as_str(), named) {
        (Some("auto"), _) => Ok(ToolChoice::Auto),
        (Some("none"), _) => Ok(ToolChoice::Never),
        (Some("required"), _) => Ok(ToolChoice::Required),
        (_, Some(name)) => Ok(ToolChoice::Named(name.to_owned())),
        _ => {
            let message = "tool_choice is auto, none, required, or a function with its name";
            Err(ApiError::unsupported("tool_choice", message))
        }
    }
}

/// The biases by token id, which is written as text, in ascending order of tokens.
fn read_biases(fields: &mut BodyFields) -> Result<Vec<TokenBias>, ApiError> {
    let mut biases = fields.part("logit_bias")?;
    let tokens: Vec<String> = biases.iter().map(|(token, _)| token.to_owned()).collect();
    let mut read = Vec::with_capacity(tokens.len());
    let wrong = || {
        let message = format!("logit_bias has at most {MAX_TOKEN_BIASES} different token ids, as digits");
        ApiError::value("logit_bias", message)
    };
    for text in tokens {
        let Some(bias) = biases.number(&text, -100.0..=100.0)? else { continue };
        read.push(TokenBias { token: text.parse().map_err(|_| wrong())?, bias });
    }
    read.sort_by_key(|bias| bias.token);
    let is_sorted = read.is_sorted_by(|a, b| a.token < b.token);
    if is_sorted && read.len() <= MAX_TOKEN_BIASES { Ok(read) } else { Err(wrong()) }
}

/// Reads the seed; any number of 64 bits is one, with or without a sign.
fn read_seed(fields: &mut BodyFields) -> Result<Option<u64>, ApiError> {
    let seed = fields.whole("seed", i128::from(i64::MIN)..=i128::from(u64::MAX))?;
    let bits = |seed| u64::try_from(seed).ok().or_else(|| i64::try_from(seed).ok().map(i64::cast_unsigned));
    Ok(seed.and_then(bits))
}

/// Reads the temperature and the other settings of the sampling. A nucleus of zero leaves the likeliest token; `top_k`
/// of -1 stands for no limit, as servers of open models have it.
fn read_sampling(fields: &mut BodyFields) -> Result<(Option<f32>, Sampling), ApiError> {
    let temperature = fields.number("temperature", 0.0..=5.0)?;
    let top_p = fields.number("top_p", 0.0..=1.0)?;
    let nucleus = top_p.filter(|top_p| *top_p > 0.0);
    if fields.peek("top_k").and_then(whole) == Some(-1) {
        fields.take("top_k");
    }
    let stop = fields.texts("stop")?.unwrap_or_default();
    if stop.len() > MAX_STOP_STRINGS || !stop.iter().all(|text| (1..=MAX_STOP_BYTES).contains(&text.len())) {
        let message = format!("stop is at most {MAX_STOP_STRINGS} texts of 1 to {MAX_STOP_BYTES} bytes");
        return Err(ApiError::value("stop", message));
    }
    let sampling = Sampling {
        top_p: nucleus.unwrap_or(1.0),
        top_k: fields.whole("top_k", 0..=u32::MAX)?.unwrap_or(0),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0),
        stop,
        presence_penalty: fields.number("presence_penalty", PENALTIES)?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty", PENALTIES)?.unwrap_or(0.0),
        repetition_penalty: fields.number("repetition_penalty", 0.01..=10.0)?.unwrap_or(MODEL_PENALTY),
        token_biases: read_biases(fields)?,
        ..Sampling::default()
    };
    Ok((if top_p.is_some() && nucleus.is_none() { Some(0.0) } else { temperature }, sampling))
}

/// Reads the parameters that all kinds of requests share, with these messages and tools. Those that are left must be
/// neutral.
pub(crate) fn read_common(
    mut fields: BodyFields,
    mut messages: Vec<Message>,
    tools: ToolRequest,
) -> Result<CompletionRequest, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::value("messages", "messages is empty"));
    }
    for message in &messages {
        let name = if message.role == Role::System { "system" } else { "messages" };
        message.check().map_err(|_| ApiError::long_message(name, message))?;
    }
    let pinned = messages.iter().take_while(|message| message.role == Role::System).count();
    let rest = messages.split_off(pinned);
    let older = fields.whole("max_tokens", 1..=MAX_OUTPUT_TOKENS)?;
    let stream = fields.flag("stream")?.unwrap_or(false);
    let (temperature, sampling) = read_sampling(&mut fields)?;
    let request = CompletionRequest {
        system: messages,
        messages: rest,
        json_schema: format::take(&mut fields)?,
        temperature,
        seed: read_seed(&mut fields)?,
        sampling,
        max_tokens: fields.whole("max_completion_tokens", 1..=MAX_OUTPUT_TOKENS)?.or(older),
        stream,
        include_usage: read_stream_options(&mut fields, stream)?,
        // Programs that must name a model send placeholders.
        model: fields.text("model")?.filter(|model| !is_any(model)),
        ..CompletionRequest::default()
    };
    neutral::check_rest(&fields)?;
    tools.apply(request)
}

/// Reads whether a stream ends with the token counts.
fn read_stream_options(fields: &mut BodyFields, stream: bool) -> Result<bool, ApiError> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    if !stream {
        return Err(ApiError::value("stream_options", "stream_options needs stream to be true"));
    }
    let include_usage = options.flag("include_usage")?.unwrap_or(false);
    // Padding that hides the stream's sizes from observers; this connection is a loopback one.
    options.flag("include_obfuscation")?;
    options.refuse_rest("stream_options")?;
    Ok(include_usage)
}

#[cfg(test)]
mod tests {
    use baton_proto::{tools::MAX_TOOLS, turn::Sampling};
    use serde_json::json;

    use super::*;
    use crate::form::fields::with;

    fn chat(more: Value) -> Result<CompletionRequest, ApiError> {
        let body = with(json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] }), more);
        read_chat(body.to_string().as_bytes(), None)
    }

    #[test]
    fn a_body_that_cannot_be_read_is_refused_by_the_field() {
        let refused = |body: &str| {
            let refused = read_chat(body.as_bytes(), None).unwrap_err().body();
            (refused["error"]["param"].clone(), refused["error"]["message"].as_str().unwrap().to_owned())
        };
        let (field, message) = refused(r#"{"messages":1}"#);
        assert_eq!(field, "messages");
        assert_eq!(message, "messages is a list");
        let (field, message) = refused(r#"{"messages":[{"role":"user","content":"a"},{"role":2}]}"#);
        assert_eq!(field, "messages[1].role", "{message}");
        assert!(read_text("\u{feff}{\"prompt\": \"a\"}".as_bytes()).is_ok(), "a byte order mark is skipped");
        let long = format!(r#"{{"prompt": "{}"}}"#, "x".repeat(600 * 1024));
        assert_eq!(read_text(long.as_bytes()).unwrap_err().param(), Some("prompt"));
        for body in ["", "{", "{} 1", "[1]"] {
            let (field, message) = refused(body);
            assert!(
                field.is_null() && message.starts_with("the body cannot be read: it is no JSON"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_wrong_type_one_level_down_is_named_by_its_path_and_null_is_absent() {
        let user = |content: Value| json!([{ "role": "user", "content": content }]);
        let part = |part: Value| user(json!([part]));
        let assistant = |more: Value| json!([with(json!({ "role": "assistant" }), more)]);
        let call = |call: Value| assistant(json!({ "tool_calls": [{ "id": "1", "function": call }] }));
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let schema = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": 5 } });
        let function = "messages[0].tool_calls[0].function";
        let (call_name, arguments) = (&*format!("{function}.name"), &*format!("{function}.arguments"));
        let strict = "tools[0].function.strict";
        for (name, value, param) in [
            ("max_tokens", json!("8"), "max_tokens"),
            ("max_completion_tokens", json!(1.5), "max_completion_tokens"),
            ("temperature", json!("hot"), "temperature"),
            ("stream", json!("yes"), "stream"),
            ("seed", json!(1.5), "seed"),
            ("n", json!("two"), "n"),
            ("top_k", json!(-2), "top_k"),
            ("stop", json!(5), "stop"),
            ("logit_bias", json!({ "5": "x" }), "logit_bias.5"),
            ("logit_bias", json!({ "50256": -101 }), "logit_bias.50256"),
            ("logprobs", json!("yes"), "logprobs"),
            ("messages", json!({}), "messages"),
            ("messages", json!(["hi"]), "messages[0]"),
            ("messages", json!([{ "content": "hi" }]), "messages[0].role"),
            ("messages", user(json!(5)), "messages[0].content"),
            ("messages", user(json!("x".repeat(600 * 1024))), "messages[0].content"),
            ("messages", part(json!(5)), "messages[0].content[0]"),
            ("messages", part(json!({ "type": "text", "text": 5 })), "messages[0].content[0].text"),
            ("messages", part(json!({ "type": "image_url" })), "messages[0].content[0].type"),
            ("messages", assistant(json!({ "tool_calls": 1 })), "messages[0].tool_calls"),
            ("messages", call(json!({ "name": "f", "arguments": 5 })), arguments),
            ("messages", call(json!({ "name": "f", "arguments": "[1]" })), arguments),
            ("messages", call(json!({ "name": "a b", "arguments": "{}" })), call_name),
            ("messages", call(json!(null)), call_name),
            ("messages", assistant(json!({ "function_call": { "name": "f" } })), "messages[0].function_call"),
            ("messages", json!([{ "role": "system", "name": "tools", "content": "[]" }]), "messages[0].name"),
            ("messages", json!([{ "role": "user", "tool_calls": [{}] }]), "messages[0].tool_calls"),
            ("messages", json!([]), "messages"),
            ("messages", json!([{ "role": "robot", "content": "hi" }]), "messages[0].role"),
            ("n", json!(5), "n"),
            ("presence_penalty", json!(2.5), "presence_penalty"),
            ("frequency_penalty", json!(-2.1), "frequency_penalty"),
            ("logprobs", json!(1), "logprobs"),
            ("top_logprobs", json!(3), "top_logprobs"),
            ("logit_bias", json!({ "the": 1 }), "logit_bias"),
            ("logit_bias", json!({ "7": 1, "07": 1 }), "logit_bias"),
            ("response_format", json!({ "type": "regex" }), "response_format"),
            ("echo", json!(true), "echo"),
            ("web_search_options", json!({}), "web_search_options"),
            ("functions", json!([{ "name": "f" }]), "functions"),
            ("function_call", json!("auto"), "function_call"),
            ("tool_choice", json!("required"), "tool_choice"),
            ("tool_choice", json!("sometimes"), "tool_choice"),
            ("tool_choice", tool("g"), "tool_choice"),
            ("tools", json!({}), "tools"),
            ("tools", json!([tool("f"), tool("f")]), "tools"),
            ("tools", json!(vec![tool("f"); MAX_TOOLS + 1]), "tools"),
            ("tools", json!([tool("f"), {}]), "tools[1].type"),
            ("tools", json!([{ "type": "custom", "custom": {} }]), "tools[0].type"),
            ("tools", json!([tool("<|im_end|>")]), "tools[0].function.name"),
            ("tools", json!([with(tool("f"), json!({ "function": { "name": "f", "strict": 1 } }))]), strict),
            ("modalities", json!(["text", "audio"]), "modalities"),
            ("temprature", json!(1), "temprature"),
            ("temperature", json!(9), "temperature"),
            ("temperature", json!(-0.1), "temperature"),
            ("top_p", json!(1.5), "top_p"),
            ("min_p", json!(-0.1), "min_p"),
            ("stop", json!([""]), "stop"),
            ("stop", json!(vec!["x"; 17]), "stop"),
            ("max_tokens", json!(0), "max_tokens"),
            ("stream_options", json!({ "include_usage": true }), "stream_options"),
            ("response_format", json!({ "type": 5 }), "response_format.type"),
            ("response_format", schema, "response_format.json_schema.schema"),
        ] {
            let api_error =
                chat(json!({ name: value.clone() })).err().unwrap_or_else(|| panic!("{name} {value}"));
            let error = &api_error.body()["error"];
            assert_eq!(error["param"], param, "{value}");
            let message = error["message"].as_str().unwrap();
            let words = ["u32", "i64", "f32", "struct", "untagged", "variant", "line"];
            assert!(words.iter().all(|word| !message.contains(word)), "{message}");
        }
        let options = json!({ "foo": 1, "include_usage": true });
        let api_error = chat(json!({ "stream": true, "stream_options": options })).unwrap_err();
        assert_eq!(api_error.param(), Some("stream_options.foo"));
        let nulls = json!({
            "stream": true, "stream_options": { "include_usage": null, "include_obfuscation": null },
            "max_tokens": 77.0, "n": 1.0, "top_k": -1, "seed": 1e3, "metadata": null, "logprobs": null,
            "tools": [{ "type": "function", "strict": null, "function":
                { "name": "f", "description": null, "strict": null, "parameters": { "required": null } } }],
            "response_format": { "type": "json_schema", "text": null, "json_schema":
                { "name": "n", "strict": null, "description": null, "schema": { "title": null } } },
            "messages": [
                { "role": "user", "content": [{ "type": "text", "text": null, "image_url": null }] },
                { "role": "assistant", "content": null, "tool_calls":
                    [{ "id": null, "type": null, "function": { "name": "f", "arguments": null } }] },
                { "role": "tool", "content": null, "tool_call_id": null },
                { "role": "user", "content": "\n" },
                { "role": "assistant", "content": [{ "type": "text", "text": "" }] },
                { "role": "tool", "content": [], "tool_call_id": "1" },
                { "role": "tool", "tool_call_id": "1" },
            ],
        });
        let request = chat(nulls).unwrap();
        assert_eq!((request.max_tokens, request.seed), (Some(77), Some(1000)));
        assert_eq!(request.sampling.top_k, 0);
        assert!(!request.include_usage && !request.tools.unwrap().message().text.contains("null"));
        assert!(!request.json_schema.unwrap().contains("null"));
    }

    #[test]
    fn every_seed_that_an_answer_reports_is_taken() {
        let seed = |seed: Value| chat(json!({ "seed": seed })).unwrap().seed;
        assert_eq!(seed(json!(u64::MAX)), Some(u64::MAX));
        assert_eq!(seed(json!(1u64 << 63)), Some(1 << 63));
        assert_eq!(seed(json!(-1)), Some(u64::MAX));
        assert_eq!(seed(json!(i64::MIN)), Some(1 << 63));
    }

    #[test]
    fn a_place_in_a_session_needs_the_session_and_is_one_of_two() {
        let place = |more| chat(more).map(|request| request.place);
        for (more, expected) in [
            (json!({}), Some(RequestPlace::AfterMessages)),
            (json!({ "session": "ab", "replaces": 0 }), Some(RequestPlace::Replaces(0))),
            (json!({ "session": "ab", "branch_after": 2 }), Some(RequestPlace::BranchAfter(2))),
            (json!({ "replaces": 0 }), None),
            (json!({ "session": "new", "branch_after": 0 }), None),
            (json!({ "session": "ab", "replaces": 1, "branch_after": 1 }), None),
        ] {
            assert_eq!(place(more.clone()).ok(), expected, "{more}");
        }
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
        let expected = [(Role::User, "ab"), (Role::Assistant, "c"), (Role::System, "d"), (Role::Tool, "e")];
        assert_eq!(request.said(), expected);
        assert_eq!(request.messages[3].call_id.as_deref(), Some("1"));
    }

    #[test]
    fn parameters_with_their_defaults_are_taken() {
        let taken = json!({
            "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": false, "logit_bias": {},
            "response_format": { "type": "text" }, "tools": [], "tool_choice": "auto", "user": "me",
            "metadata": { "a": "b" }, "store": true, "modalities": ["text"], "parallel_tool_calls": true,
        });
        assert!(!chat(taken).unwrap().declines_memory);
        assert!(chat(json!({ "memory": false })).unwrap().declines_memory);
    }

    #[test]
    fn sampling_is_as_asked_and_otherwise_left_to_the_endpoint_and_the_model() {
        let none = chat(json!({})).unwrap();
        assert_eq!((none.temperature, none.seed), (None, None));
        assert_eq!(none.sampling, Sampling { repetition_penalty: MODEL_PENALTY, ..Sampling::default() });
        let asked = chat(json!({
            "temperature": 0, "top_p": 0.5, "seed": -1, "stop": "\n", "top_k": 3, "min_p": 0.05,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.5, "frequency_penalty": -2, "logit_bias": { "50256": -100, "9": 1.5 },
        }));
        let expected = Sampling {
            top_p: 0.5,
            top_k: 3,
            min_p: 0.05,
            repetition_penalty: 1.1,
            stop: vec!["\n".to_owned()],
            presence_penalty: 0.5,
            frequency_penalty: -2.0,
            token_biases: vec![TokenBias { token: 9, bias: 1.5 }, TokenBias { token: 50_256, bias: -100.0 }],
            ..Sampling::default()
        };
        let asked = asked.unwrap();
        assert_eq!((asked.temperature, asked.seed, asked.sampling), (Some(0.0), Some(u64::MAX), expected));
        let greedy = chat(json!({ "top_p": 0, "temperature": 1 })).unwrap();
        assert_eq!(greedy.temperature, Some(0.0));
    }

    #[test]
    fn a_text_is_asked_by_itself_and_passes() {
        let request = read_text(br#"{"model":"any","prompt":["a"],"max_tokens":5}"#).unwrap();
        assert_eq!((request.session, request.model, request.retention), (None, None, Retention::Single));
        assert!(!chat(json!({})).unwrap().is_ephemeral());
        for body in
            ["{\"prompt\":[1,2]}", "{\"prompt\":[\"a\",\"b\"]}", "{\"prompt\":\"a\",\"best_of\":3}", "{}"]
        {
            assert!(read_text(body.as_bytes()).is_err(), "{body}");
        }
    }
}
