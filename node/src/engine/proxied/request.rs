//! The body of a request: JSON from borrowed parts, in one buffer of the right size that is wiped after
//! sending. Pure.
//!
//! Copies in the HTTP client's socket buffers are out of reach.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use bytes::Bytes;
use serde::{Serialize, Serializer};
use zeroize::Zeroizing;

use crate::{
    engine::{
        GenerateJob,
        language::{Constraint, ConstraintKind},
    },
    prompt::{SpokenCall, ToolMessage, role_name},
};

/// Mask for seeds. Servers differ in a seed's width; 31 bits fit all of them.
const SEED_MASK: u64 = 0x7fff_ffff;

/// The request body. Fields outside the protocol are sent only when a job needs them.
pub(super) fn body(model: &str, job: &GenerateJob) -> io::Result<Bytes> {
    let GenerateJob { prompt, sampling, max_tokens, constraint, .. } = job;
    let spoken = prompt.spoken();
    let head = Head {
        model,
        messages: spoken.iter().map(message).collect(),
        stream: true,
        stream_options: StreamOptions { include_usage: true },
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        seed: sampling.seed & SEED_MASK,
        max_tokens: *max_tokens,
        stop: &sampling.stop,
        top_k: Some(sampling.top_k).filter(|top_k| *top_k > 0),
        min_p: Some(sampling.min_p).filter(|min_p| *min_p > 0.0),
        repetition_penalty: Some(sampling.repetition_penalty)
            .filter(|penalty| (penalty - 1.0).abs() > f32::EPSILON),
        presence_penalty: Some(sampling.presence_penalty).filter(|penalty| *penalty != 0.0),
        frequency_penalty: Some(sampling.frequency_penalty).filter(|penalty| *penalty != 0.0),
        logit_bias: sampling.token_biases.iter().map(|bias| (bias.token.to_string(), bias.bias)).collect(),
    };
    let schema = constraint.as_ref().and_then(|constraint| match constraint {
        Constraint(ConstraintKind::Passed(schema)) => Some(schema.as_str()),
        Constraint(_) => None,
    });
    let tools = prompt.tools().map(|tools| tools.message());
    // These two are JSON already, in the field order that people use; models were trained on that order.
    let mut rest: Vec<&[u8]> = Vec::new();
    if let Some(schema) = schema {
        rest.push(br#","response_format":{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":"#);
        rest.extend([schema.as_bytes(), b"}}".as_slice()]);
    }
    if let Some(tools) = &tools {
        rest.extend([b",\"tools\":".as_slice(), tools.text.as_bytes()]);
    }
    rest.push(b"}");
    // A growing buffer leaves copies behind, so the size is measured first.
    let mut size = Size(0);
    serde_json::to_writer(&mut size, &head)?;
    let size = size.0 + rest.iter().map(|part| part.len()).sum::<usize>();
    let mut bytes = Zeroizing::new(Vec::with_capacity(size));
    serde_json::to_writer(&mut *bytes, &head)?;
    // Removes the closing brace.
    bytes.pop();
    rest.into_iter().for_each(|part| bytes.extend_from_slice(part));
    Ok(Bytes::from_owner(bytes))
}

#[derive(Serialize)]
struct Head<'a> {
    model: &'a str,
    messages: Vec<WireMessage<'a>>,
    stream: bool,
    stream_options: StreamOptions,
    temperature: f32,
    top_p: f32,
    seed: u64,
    max_tokens: u32,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repetition_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    presence_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frequency_penalty: Option<f32>,
    /// Of the server's own vocabulary.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    logit_bias: BTreeMap<String, f32>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct WireMessage<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
}

#[derive(Serialize)]
struct WireCall<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    function: WireFunction<'a>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    name: &'a str,
    #[serde(serialize_with = "wiped")]
    arguments: Zeroizing<String>,
}

fn wiped<S: Serializer>(text: &Zeroizing<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

fn message<'a>(spoken: &'a ToolMessage<'_>) -> WireMessage<'a> {
    let ToolMessage { message, content, calls, answers, .. } = spoken;
    let (id, name) = answers.as_ref().map(|(id, name)| (id, name)).unzip();
    WireMessage {
        role: role_name(message.role),
        content,
        tool_calls: calls.iter().map(call).collect(),
        name: message.name.as_ref().or(name).map(String::as_str),
        tool_call_id: id.or(message.call_id.as_ref()).map(String::as_str),
    }
}

fn call(SpokenCall { id, call }: &SpokenCall) -> WireCall<'_> {
    let function = WireFunction { name: &call.name, arguments: call.arguments.write() };
    WireCall { id, kind: "function", function }
}

/// A writer that only counts bytes.
struct Size(usize);

impl Write for Size {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        engine::Sampling,
        prompt::{ChatMessage, Prompt, Role},
    };

    fn job(text: &str, sampling: Sampling) -> GenerateJob {
        GenerateJob::new(Prompt::new(vec![ChatMessage::new(Role::User, text)]), sampling, 9)
    }

    #[test]
    fn is_the_json_that_it_should_be() {
        let sampling =
            Sampling { stop: vec!["}".into()], top_k: 4, min_p: 0.5, seed: u64::MAX, ..Sampling::default() };
        let schema = Zeroizing::new(r#"{"z":1,"a":2}"#.into());
        let constraint = Some(Constraint(ConstraintKind::Passed(schema)));
        let job = GenerateJob { constraint, ..job("a \"b\"\n\u{1F600}", sampling) };
        let bytes = body("m", &job).unwrap();
        let value: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(value["messages"], json!([{ "role": "user", "content": "a \"b\"\n\u{1F600}" }]));
        assert_eq!(
            (&value["stop"], &value["top_k"], &value["min_p"]),
            (&json!(["}"]), &json!(4), &json!(0.5))
        );
        assert_eq!(value["seed"], json!(SEED_MASK));
        assert_eq!(value["response_format"]["json_schema"]["schema"], json!({ "z": 1, "a": 2 }));
        let text = std::str::from_utf8(&bytes).unwrap();
        assert!(text.contains(r#""schema":{"z":1,"a":2}"#), "the order is the writer's: {text}");
    }
}
