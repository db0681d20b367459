//! Requests of OpenAI's API, read strictly: an unsupported parameter is refused by name, never ignored.

use baton_proto::{
    limits::MAX_OUTPUT_TOKENS,
    record::{Message, Role},
    turn::TokenBias,
};
use serde_json::Value;

use crate::{
    form::{
        completion::{CompletionRequest, RequestPlace, Retention, SamplingRequest, is_any},
        fields::{BodyFields, whole},
        format,
        logprobs::LogprobsRequest,
        neutral,
        tools::{CallFault, CallIds, PastCall, ToolChoice, ToolRequest, check_call_count, check_name},
    },
    http::api_error::ApiError,
};

/// The place that a request names.
fn read_place(fields: &mut BodyFields, session: Option<&str>) -> Result<RequestPlace, ApiError> {
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
    if session.is_none_or(|name| name == "new") {
        return Err(ApiError::value(name, format!("{name} needs the session that has this turn")));
    }
    Ok(place)
}

/// Most answers to a request.
const MAX_ANSWERS: u64 = 4;

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

/// Reads the body of a chat completion.
///
/// # Parameters
/// `session` is the header's session, which takes precedence over the body's.
pub(crate) fn read_chat(body: &[u8], session: Option<String>) -> Result<CompletionRequest, ApiError> {
    let mut fields = BodyFields::of_body(body)?;
    let session = session.or(fields.text("session")?);
    let place = read_place(&mut fields, session.as_deref())?;
    let memory = fields.flag("memory")?.unwrap_or(true);
    let logprobs = LogprobsRequest::of_chat(&mut fields)?;
    let inputs = fields.objects("messages")?.unwrap_or_default();
    if inputs.is_empty() {
        return Err(ApiError::value("messages", "messages is empty"));
    }
    let mut messages = Vec::with_capacity(inputs.len());
    let mut ids = CallIds::default();
    for message in inputs {
        messages.push(read_message(message, &mut ids)?);
    }
    let pinned = messages.iter().take_while(|message| message.role == Role::System).count();
    let rest = messages.split_off(pinned);
    let tools = ToolRequest {
        tools: fields.list("tools")?.unwrap_or_default(),
        choice: read_choice(fields.take("tool_choice").as_ref(), "/function/name")?,
        parallel_tool_calls: fields.flag("parallel_tool_calls")?,
    };
    let answers = fields.whole("n", 0..=u64::MAX)?.unwrap_or(1);
    if !(1..=MAX_ANSWERS).contains(&answers) {
        return Err(ApiError::unsupported("n", format!("n is from 1 to {MAX_ANSWERS}")));
    }
    let answers = usize::try_from(answers).unwrap_or(1);
    let store = fields.flag("store")?;
    let retention = retention(store, fields.peek("metadata"), session.as_deref(), &rest)?;
    let completion = read_common(fields, messages, rest)?;
    let completion = tools.read()?.into_request(completion, format::NAME)?;
    Ok(CompletionRequest { session, logprobs, place, memory, answers, retention, ..completion })
}

/// Reads the body of a text completion. The text becomes one message of its own conversation: nodes render every
/// prompt by the model's chat template.
pub(crate) fn read_text(body: &[u8]) -> Result<CompletionRequest, ApiError> {
    let mut fields = BodyFields::of_body(body)?;
    let logprobs = LogprobsRequest::of_text(&mut fields)?;
    let not_text = |_| ApiError::unsupported("prompt", "prompt must be a text, not tokens");
    let missing = || ApiError::value("prompt", "prompt is a text, and missing");
    let prompts = fields.texts("prompt").map_err(not_text)?.ok_or_else(missing)?;
    let one = <[String; 1]>::try_from(prompts);
    let [prompt] = one.map_err(|_| ApiError::unsupported("prompt", "one prompt at a time is served"))?;
    let messages = vec![Message::new(Role::User, prompt)];
    let completion = read_common(fields, Vec::new(), messages)?;
    Ok(CompletionRequest { logprobs, retention: Retention::Single, ..completion })
}

fn read_message(mut fields: BodyFields, ids: &mut CallIds) -> Result<Message, ApiError> {
    let role = match fields.some_text("role")?.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        other => {
            let message =
                format!("there is no role {other:?}: it is system, developer, user, assistant or tool");
            return Err(ApiError::value(&fields.at("role"), message));
        }
    };
    let text = fields.content("content", &["text"], "")?;
    let calls = fields.objects("tool_calls")?.unwrap_or_default();
    let text = match calls.len() {
        0 => text,
        _ if role != Role::Assistant => {
            return Err(ApiError::value(&fields.at("tool_calls"), "only the assistant calls tools"));
        }
        count => {
            check_call_count(count, &fields.at("tool_calls"))?;
            ids.write(&text, calls.into_iter().map(read_call).collect::<Result<_, _>>()?)
        }
    };
    let name = fields.text("name")?;
    check_name(&fields.at("name"), role, name.as_deref())?;
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
    let at = fields.at("function");
    let id = fields.text("id")?;
    let (name, arguments) = match fields.object("function")? {
        None => Default::default(),
        Some(mut function) => {
            (function.text("name")?.unwrap_or_default(), function.text("arguments")?.unwrap_or_default())
        }
    };
    PastCall::new(id, name, &arguments).map_err(|fault| {
        let field = if fault == CallFault::Name { "name" } else { "arguments" };
        ApiError::value(&format!("{at}.{field}"), fault.message())
    })
}

/// Reads `tool_choice`; a choice of one function has its name at `name`, a JSON pointer.
pub(crate) fn read_choice(choice: Option<&Value>, name: &str) -> Result<ToolChoice, ApiError> {
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

/// The biases by token id, which is written as text, in ascending order of tokens.
fn read_biases(fields: &mut BodyFields) -> Result<Vec<TokenBias>, ApiError> {
    let Some(mut biases) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let tokens: Vec<String> = biases.iter().map(|(token, _)| token.to_owned()).collect();
    let mut read = Vec::with_capacity(tokens.len());
    for text in tokens {
        let Some(bias) = biases.number(&text)? else { continue };
        let wrong = |_| {
            let message = "logit_bias has token ids of the model's vocabulary, as texts of digits";
            ApiError::value("logit_bias", message)
        };
        read.push(TokenBias { token: text.parse().map_err(wrong)?, bias });
    }
    read.sort_by_key(|bias| bias.token);
    Ok(read)
}

/// Reads the seed; any number of 64 bits is one, with or without a sign.
pub(crate) fn read_seed(fields: &mut BodyFields) -> Result<Option<u64>, ApiError> {
    let seed = fields.whole("seed", i128::from(i64::MIN)..=i128::from(u64::MAX))?;
    let bits = |seed| u64::try_from(seed).ok().or_else(|| i64::try_from(seed).ok().map(i64::cast_unsigned));
    Ok(seed.and_then(bits))
}

/// Reads the parameters that all kinds of requests share. Those that are left must be neutral.
pub(crate) fn read_common(
    mut fields: BodyFields,
    system: Vec<Message>,
    messages: Vec<Message>,
) -> Result<CompletionRequest, ApiError> {
    let json_schema = format::take(&mut fields)?;
    let (temperature, top_p) = (fields.number("temperature")?, fields.number("top_p")?);
    let sampling = SamplingRequest {
        top_k: read_top_k(&mut fields)?,
        min_p: fields.number("min_p")?.unwrap_or(0.0),
        repetition_penalty: fields.number("repetition_penalty")?,
        presence_penalty: fields.number("presence_penalty")?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty")?.unwrap_or(0.0),
        token_biases: read_biases(&mut fields)?,
        seed: read_seed(&mut fields)?,
        stop: fields.texts("stop")?.unwrap_or_default(),
        ..SamplingRequest::of(temperature, top_p)
    };
    sampling.check()?;
    let older = fields.whole("max_tokens", 1..=MAX_OUTPUT_TOKENS)?;
    let max_tokens = fields.whole("max_completion_tokens", 1..=MAX_OUTPUT_TOKENS)?.or(older);
    let stream = fields.flag("stream")?.unwrap_or(false);
    let include_usage = read_stream_options(&mut fields, stream)?;
    // Programs that must name a model send such placeholders.
    let model = fields.text("model")?.filter(|model| !is_any(model));
    neutral::check_rest(&fields)?;
    Ok(CompletionRequest {
        model,
        sampling,
        max_tokens,
        stream,
        include_usage,
        json_schema,
        ..CompletionRequest::new(system, messages)
    })
}

/// Reads `top_k`; -1 stands for no limit, as servers of open models have it.
pub(crate) fn read_top_k(fields: &mut BodyFields) -> Result<u32, ApiError> {
    if fields.peek("top_k").and_then(whole) == Some(-1) {
        fields.take("top_k");
    }
    Ok(fields.whole("top_k", 0..=u32::MAX)?.unwrap_or(0))
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
    use baton_client::MODEL_PENALTY;

    use baton_proto::turn::Sampling;
    use serde_json::json;

    use super::*;

    fn chat(more: Value) -> Result<CompletionRequest, ApiError> {
        let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
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
        let part = |part: Value| json!([{ "role": "user", "content": [part] }]);
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
            ("logprobs", json!("yes"), "logprobs"),
            ("messages", json!({}), "messages"),
            ("messages", json!(["hi"]), "messages[0]"),
            ("messages", json!([{ "content": "hi" }]), "messages[0].role"),
            ("messages", json!([{ "role": "user", "content": 5 }]), "messages[0].content"),
            ("messages", part(json!(5)), "messages[0].content[0]"),
            ("messages", part(json!({ "type": "text", "text": 5 })), "messages[0].content[0].text"),
            ("messages", part(json!({ "type": "image_url" })), "messages[0].content[0].type"),
            ("messages", json!([{ "role": "assistant", "tool_calls": 1 }]), "messages[0].tool_calls"),
            (
                "messages",
                json!([{ "role": "assistant", "tool_calls": [{ "function": { "name": "f", "arguments": {} } }] }]),
                "messages[0].tool_calls[0].function.arguments",
            ),
            ("response_format", json!({ "type": 5 }), "response_format.type"),
            (
                "response_format",
                json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": 5 } }),
                "response_format.json_schema.schema",
            ),
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
            ],
        });
        let request = chat(nulls).unwrap();
        assert_eq!(
            (request.max_tokens, request.sampling.seed, request.sampling.top_k),
            (Some(77), Some(1000), 0)
        );
        assert!(!request.include_usage && !request.tools.unwrap().message().text.contains("null"));
        assert!(!request.json_schema.unwrap().contains("null"));
    }

    #[test]
    fn every_seed_that_an_answer_reports_is_taken() {
        let seed = |seed: Value| chat(json!({ "seed": seed })).unwrap().sampling.seed;
        assert_eq!(seed(json!(u64::MAX)), Some(u64::MAX));
        assert_eq!(seed(json!(1u64 << 63)), Some(1 << 63));
        assert_eq!(seed(json!(-1)), Some(u64::MAX));
        assert_eq!(seed(json!(i64::MIN)), Some(1 << 63));
    }

    #[test]
    fn empty_results_and_messages_of_a_history_are_taken() {
        let empty = [json!(""), json!("\n"), json!(null), json!([]), json!([{ "type": "text", "text": "" }])];
        for content in empty {
            let request = chat(json!({ "messages": [
                { "role": "user", "content": content },
                { "role": "assistant", "content": content },
                { "role": "tool", "content": content, "tool_call_id": "1" },
            ]}));
            assert_eq!(request.unwrap().messages.len(), 3, "{content}");
        }
        assert!(chat(json!({ "messages": [{ "role": "tool", "tool_call_id": "1" }] })).is_ok(), "missing");
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
            ("min_p", json!(-0.1)),
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
        assert!(read_chat(b"{", None).is_err());
    }

    #[test]
    fn sampling_is_as_asked_and_otherwise_as_configured() {
        let sampling = |more| chat(more).unwrap().sampling.with_defaults(0.7, 5);
        let configured = Sampling { temperature: 0.7, seed: 5, ..Sampling::default() };
        assert_eq!(sampling(json!({})), Sampling { repetition_penalty: MODEL_PENALTY, ..configured });
        let asked = sampling(json!({
            "temperature": 0, "top_p": 0.5, "seed": -1, "stop": "\n", "top_k": 3, "min_p": 0.05,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.5, "frequency_penalty": -2, "logit_bias": { "50256": -100, "9": 1.5 },
        }));
        let expected = Sampling {
            temperature: 0.0,
            top_p: 0.5,
            top_k: 3,
            min_p: 0.05,
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
        let request = read_text(br#"{"model":"any","prompt":["a"],"max_tokens":5}"#).unwrap();
        assert_eq!(
            (request.messages.len(), request.session, request.model, request.retention),
            (1, None, None, Retention::Single)
        );
        assert!(!chat(json!({})).unwrap().is_ephemeral());
        for body in
            ["{\"prompt\":[1,2]}", "{\"prompt\":[\"a\",\"b\"]}", "{\"prompt\":\"a\",\"best_of\":3}", "{}"]
        {
            assert!(read_text(body.as_bytes()).is_err(), "{body}");
        }
    }
}
