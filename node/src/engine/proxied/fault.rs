//! Errors of the server: their class, from its status and the body of its answer, whatever server it is. Pure.
//!
//! Servers agree on the statuses of keys, rates and models. For the rest they send 400 or 500, an identifier of their
//! own, or words alone: `{"error":{"message","type","code"}}`, `{"error":"words"}`, lists of these, the fields without
//! `error`, plain text, or a page. An error in a stream may have its status as `code`.

use std::time::{Duration, SystemTime};

use baton_proto::tools::Json;
use baton_walrus_client::http_date;
use zeroize::Zeroizing;

use crate::engine::{BackendFault, EngineError};

/// Maximum bytes read of an error's body.
pub(super) const MAX_BODY_BYTES: usize = 16 * 1024;

/// Words of servers for the length of a prompt, and for too much of it. One of each makes a prompt that is too long.
const LENGTH: &[&str] = &[
    "context",
    "prompt ",
    "input is too",
    "input (",
    "input length",
    "input token",
    "inputs`",
    "message tokens",
    "model token limit",
    "number of tokens",
];
const EXCESS: &[&str] = &[
    "exceed",
    "greater than",
    "larger than",
    "longer than",
    "maximum",
    "must be <=",
    "must have less than",
    "not enough",
    "too large",
    "too long",
    "too many",
    "too small",
];
/// Identifiers and words for a prompt that is too long. All words of an entry occur together.
const OVERFLOW: &[&[&str]] = &[
    &["reduce the length"],
    &["too many tokens"],
    &["too many input tokens"],
    &["range of input length"],
    &["tokens in request"],
    &["request_too_large"],
    &["max_tokens must be", "got -"],
];
/// The same for other lengths and times.
const NO_OVERFLOW: &[&[&str]] = &[&["context deadline"], &["maximum value"]];
/// The same for content that the server's policy refuses.
const CONTENT: &[&[&str]] = &[
    &["content_filter"],
    &["content_policy"],
    &["content policy"],
    &["content management policy"],
    &["moderation"],
    &["safety system"],
    &["usage policies"],
];
/// The same for the node's account.
const ACCOUNT: &[&[&str]] = &[
    &["invalid_api_key"],
    &["incorrect api key"],
    &["invalid api key"],
    &["api key not valid"],
    &["billing"],
    &["payment required"],
    &["credit balance"],
    &["account", "good standing"],
];
/// The same for a model that is not there.
const NO_MODEL: &[&[&str]] = &[
    &["model_not_found"],
    &["model", "not found"],
    &["model", "not exist"],
    &["model", "decommissioned"],
    &["no model", "loaded"],
    &["no such model"],
    &["not a valid model"],
    &["invalid_model"],
    &["unknown model"],
];
/// The same for loads.
const BUSY: &[&[&str]] = &[&["overloaded"], &["loading model"]];
/// The same for rates.
const RATE: &[&[&str]] = &[
    &["rate_limit"],
    &["rate limit"],
    &["quota"],
    &["throttl"],
    &["too many requests"],
    &["tokens per min"],
    &["tokens per day"],
];

/// The error in an answer with this status and body. An error in a stream has the status of the stream, which is 200.
/// `retry_after` is the header of that name.
pub(super) fn classify(status: u16, retry_after: Option<&str>, body: &[u8]) -> EngineError {
    let body = body.get(..body.len().min(MAX_BODY_BYTES)).unwrap_or_default();
    let text = Zeroizing::new(String::from_utf8_lossy(body).into_owned());
    let json = Json::parse(&text);
    let inner = json
        .as_ref()
        .filter(|_| (200..300).contains(&status))
        .and_then(|json| find(json, &["error", "errors", "choices", "code", "status"], &error_status));
    let status = inner.unwrap_or(status);
    let fault = fault(status, &Zeroizing::new(text.to_ascii_lowercase()));
    let words = match fault {
        // Their words are about the node, or about machines behind it.
        BackendFault::Denied | BackendFault::Failed | BackendFault::Busy => "",
        _ => words(&text, json.as_ref()),
    };
    let words = Zeroizing::new(words.to_owned());
    EngineError::Backend { fault, status, retry_after_ms: pause_ms(retry_after), words }
}

/// The first value with the property of a value, of the first item of a list, or below these keys of a map.
fn find<'a, T>(json: &'a Json, keys: &[&str], of: &impl Fn(&'a Json) -> Option<T>) -> Option<T> {
    of(json).or_else(|| match json {
        Json::List(values) => find(values.first()?, keys, of),
        _ => keys.iter().find_map(|key| find(json.get(key)?, keys, of)),
    })
}

fn error_status(json: &Json) -> Option<u16> {
    let number = match json {
        Json::Number(number) => number.parse().ok(),
        json => json.as_text()?.parse().ok(),
    };
    number.filter(|status| (400..600).contains(status))
}

fn fault(status: u16, body: &str) -> BackendFault {
    let says = |entries: &[&[&str]]| entries.iter().any(|words| words.iter().all(|word| body.contains(word)));
    let any = |words: &[&str]| words.iter().any(|word| body.contains(word));
    let overflows = !says(NO_OVERFLOW) && (says(OVERFLOW) || any(LENGTH) && any(EXCESS));
    match status {
        401 | 402 | 407 => BackendFault::Denied,
        429 => BackendFault::RateLimited,
        503 | 529 => BackendFault::Busy,
        403 | 451 if says(CONTENT) => BackendFault::ContentRefused,
        403 => BackendFault::Denied,
        451 => BackendFault::ContentRefused,
        // A page is of a proxy, and its words say nothing of the request.
        500.. if body.trim_start().starts_with('<') => BackendFault::Failed,
        413 if !says(RATE) => BackendFault::ContextOverflow,
        _ if says(RATE) => BackendFault::RateLimited,
        _ if overflows => BackendFault::ContextOverflow,
        _ if says(CONTENT) => BackendFault::ContentRefused,
        _ if says(ACCOUNT) => BackendFault::Denied,
        _ if says(BUSY) => BackendFault::Busy,
        404 => BackendFault::NoModel,
        _ if says(NO_MODEL) => BackendFault::NoModel,
        // llama.cpp and others answer with 500 to messages that the model's template refuses.
        500 if body.contains("jinja") || body.contains("chat template") => BackendFault::Rejected,
        408 | 409 | 425 => BackendFault::Failed,
        400..=499 => BackendFault::Rejected,
        _ => BackendFault::Failed,
    }
}

/// The server's message, in any of the forms; none of a page.
fn words<'a>(text: &'a str, json: Option<&'a Json>) -> &'a str {
    let message = |json| find(json, &["error", "errors", "detail", "message", "msg"], &Json::as_text);
    match json.map(message) {
        Some(message) => message.unwrap_or_default(),
        None if text.trim_start().starts_with(['<', '{', '[']) => "",
        None => text,
    }
}

/// The pause of a `Retry-After`, in seconds or as a date; 0 for none.
fn pause_ms(retry_after: Option<&str>) -> u32 {
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let pause = retry_after.map(str::trim).and_then(|text| match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => Some(Duration::from_secs(http_date(text)?).saturating_sub(now())),
    });
    u32::try_from(pause.unwrap_or_default().as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A class, a status and a body on each line.
    const ERRORS: &str = r##"
# OpenAI
ContextOverflow 400 {"error":{"message":"This model's maximum context length is 4096 tokens.","type":"invalid_request_error","code":"context_length_exceeded"}}
Denied 401 {"error":{"message":"Incorrect API key provided: sk-1","code":"invalid_api_key"}}
RateLimited 429 {"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}
NoModel 404 {"error":{"message":"The model `m` does not exist","code":"model_not_found"}}
Rejected 400 {"error":{"message":"Invalid schema for response_format 'answer'","param":"response_format"}}
ContentRefused 400 {"error":{"message":"refused","code":"content_policy_violation"}}
ContentRefused 403 {"error":{"code":"content_filter","message":"m"}}
Failed 500 {"error":{"message":"The server had an error","type":"server_error"}}
# llama.cpp
ContextOverflow 400 {"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":4}}
Busy 503 {"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}
Rejected 500 {"error":{"code":500,"message":"Jinja Exception: roles must alternate","type":"server_error"}}
Denied 401 {"error":{"code":401,"message":"Invalid API Key","type":"authentication_error"}}
# vLLM
ContextOverflow 400 {"object":"error","message":"This model's maximum context length is 8 tokens. However, you requested 9","type":"BadRequestError","code":400}
NoModel 404 {"object":"error","message":"The model `m` does not exist.","type":"NotFoundError","code":404}
# Ollama
NoModel 404 {"error":"model \"m\" not found, try pulling it first"}
ContextOverflow 400 {"error":"the input length exceeds the context length"}
Failed 500 {"error":"llama runner process has terminated"}
# LM Studio
ContextOverflow 400 {"error":"Trying to keep the first 9 tokens when context the overflows. However, the model is loaded with context length of only 4 tokens, which is not enough."}
# TGI
ContextOverflow 422 {"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4. Given: 9","error_type":"validation"}
RateLimited 429 {"error":"Model is overloaded","error_type":"overloaded"}
# lengths, in the words of many
ContextOverflow 400 {"code":"invalid-argument","error":"This model's maximum prompt length is 131072 but the request contains 537812 tokens."}
ContextOverflow 400 {"error":{"message":"The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller","code":400}}
ContextOverflow 400 {"object":"error","message":"The sum of prompt length (5000.0), query length (0) should not exceed max_num_tokens (2048)"}
ContextOverflow 400 {"error":"Prompt too long: 5000 tokens > 4096"}
ContextOverflow 400 {"error":"prompt too long; exceeded max context length by 5 tokens"}
ContextOverflow 400 {"message":"Prompt length 5000 is greater than max_seq_len 4096"}
ContextOverflow 400 {"object":"error","message":"The input (5000 tokens) is longer than the model's context length (4096 tokens)."}
ContextOverflow 400 {"message":"Requested input length 5000 exceeds maximum input length 4096"}
ContextOverflow 422 {"error":"Input validation error: `inputs` must have less than 4096 tokens. Given: 5000"}
ContextOverflow 400 {"error":{"message":"Please reduce the length of the messages or completion."}}
ContextOverflow 400 {"message":"Prompt contains 50000 tokens and 0 draft tokens, too large for model with 32768 maximum context length"}
ContextOverflow 400 {"message":"too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000."}
ContextOverflow 400 [{"error":{"code":400,"message":"The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).","status":"INVALID_ARGUMENT"}}]
ContextOverflow 400 {"message":"Input is too long for requested model."}
ContextOverflow 400 {"message":"Input Tokens Exceeded: Number of input tokens exceeds maximum length."}
ContextOverflow 400 {"error":{"message":"The prompt is too long: 137497, model maximum context length: 131071"}}
ContextOverflow 400 {"error":{"message":"Invalid request: Your request exceeded model token limit: 262144"}}
ContextOverflow 400 {"error":{"message":"Range of input length should be [1, 30720]"}}
ContextOverflow 400 {"error":{"message":"prompt token count of 128001 exceeds the limit of 128000"}}
ContextOverflow 400 {"error":{"message":"input length and `max_tokens` exceed context limit: 199211 + 20000 > 200000"}}
# other lengths, rates and times
Rejected 400 {"error":{"message":"max_tokens is too large: 100000. This model supports at most 16384 completion tokens","param":"max_tokens"}}
Rejected 400 {"error":{"message":"`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the `context_window` for this model"}}
Rejected 400 {"error":{"message":"max_tokens: 9000 > 8192, which is the maximum allowed number of output tokens for this model"}}
Rejected 400 {"error":{"message":"Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"}}
Rejected 400 {"error":{"message":"Invalid 'prompt_cache_key': string too long. Expected a string with maximum length 64"}}
Rejected 400 {"detail":[{"type":"greater_than","msg":"Input should be greater than 0","loc":["body","top_k"]}]}
RateLimited 400 {"error":{"message":"Input tokens per minute exceeded, the maximum is 30000"}}
RateLimited 400 {"message":"Too many tokens per day, please wait before trying again."}
RateLimited 413 {"error":{"message":"Quota exceeded for quota metric 'Input tokens'"}}
RateLimited 400 {"message":"Throttling error: Too many tokens, please wait before trying again."}
RateLimited 429 {"error":{"message":"The input token count exceeds the maximum of this minute"}}
Failed 500 {"error":"context deadline exceeded"}
# proxies
Failed 502 <html><h1>502 Bad Gateway</h1></html>
Failed 500 <html>maximum context</html>
RateLimited 413 {"error":{"message":"Request too large on tokens per minute (TPM)","code":"rate_limit_exceeded"}}
Failed 504 upstream request timeout
ContextOverflow 400 prompt is too long
Rejected 400
ContextOverflow 200 {"error":{"message":"the request exceeds the available context size"}}
Failed 200 {"error":{"message":"x"}}
# the status in the body of a success
RateLimited 200 {"error":{"code":429,"message":"Provider returned error"}}
Denied 200 {"error":{"code":"401","message":"No auth credentials found"}}
Failed 200 {"error":{"code":7,"message":"x"}}
# loads
Busy 200 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}
Busy 500 {"error":{"message":"The model is overloaded. Please try again later."}}
# the whole request
ContextOverflow 413 {"error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}
ContextOverflow 413 <html><h1>413 Request Entity Too Large</h1></html>
ContextOverflow 400 {"object":"error","message":"max_tokens must be at least 1, got -904.","code":400}
# accounts and models without their statuses
Denied 400 [{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}]
Denied 400 {"error":{"message":"Your credit balance is too low to access the API."}}
Denied 400 {"code":"Arrearage","message":"Access denied, please make sure your account is in good standing."}
NoModel 400 {"error":{"message":"The model `m` has been decommissioned","code":"model_decommissioned"}}
NoModel 400 {"error":{"message":"m is not a valid model ID","code":400}}
NoModel 400 {"object":"error","message":"Invalid model: m","type":"invalid_model"}
NoModel 400 {"error":{"message":"Model Not Exist","type":"invalid_request_error"}}
NoModel 400 {"detail":"No models are currently loaded."}
NoModel 400 {"success":false,"errors":[{"code":5007,"message":"No such model m"}]}
Failed 307
"##;

    #[test]
    fn every_servers_errors_have_their_class() {
        for line in ERRORS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = line.splitn(3, ' ');
            let (class, status) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
            let body = words.next().unwrap_or_default();
            let EngineError::Backend { fault, .. } = classify(status, None, body.as_bytes()) else {
                panic!("no error of the server")
            };
            assert_eq!(format!("{fault:?}"), class, "{line}");
        }
    }

    #[test]
    fn words_are_of_the_request_and_never_of_the_nodes_key_or_machines() {
        for (status, body, expected) in [
            (400, r#"{"error":{"message":"a","type":"b"}}"#, "a"),
            (400, r#"{"error":"a"}"#, "a"),
            (400, r#"{"message":"a","object":"error"}"#, "a"),
            (400, r#"{"detail":"a"}"#, "a"),
            (400, r#"[{"error":{"message":"a"}}]"#, "a"),
            (400, r#"{"success":false,"errors":[{"message":"a"}]}"#, "a"),
            (422, r#"{"detail":[{"loc":["body"],"msg":"a","input":"secret"}]}"#, "a"),
            (400, "a", "a"),
            (400, "<html>a</html>", ""),
            (400, "{\"detail\":[{\"input\":\"secret\"}]}", ""),
            (400, "\u{FFFD}", "\u{FFFD}"),
            (401, r#"{"error":{"message":"key sk-secret"}}"#, ""),
            (500, r#"{"error":{"message":"http://10.0.0.7 is down"}}"#, ""),
        ] {
            let error = classify(status, None, body.as_bytes());
            let EngineError::Backend { words, .. } = &error else { panic!("no error of the server") };
            assert_eq!(words.as_str(), expected, "{body}");
            assert!(!error.to_string().contains("secret"));
        }
        let endless = vec![b'x'; 1 << 20];
        let EngineError::Backend { words, .. } = classify(400, None, &endless) else { panic!("no error") };
        assert_eq!(words.len(), MAX_BODY_BYTES);
    }

    #[test]
    fn reads_the_pause_that_a_server_asks_for() {
        for (header, pause) in [
            (Some("30"), 30_000),
            (Some(" 1.5 "), 1500),
            (Some("-1"), 0),
            (Some("1e9"), u32::MAX),
            (Some("Wed"), 0),
            (Some("Wed, 21 Oct 2015 07:28:00 GMT"), 0),
            (Some("Fri, 31 Dec 9999 23:59:59 GMT"), u32::MAX),
            (None, 0),
        ] {
            assert_eq!(pause_ms(header), pause, "{header:?}");
        }
    }
}
