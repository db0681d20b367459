//! Errors, with a status that clients act upon. Their first form is that of OpenAI's API:
//! `{"error":{"message","type","param","code"}}`.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use baton_proto::{ErrorCode, ids::SessionId, limits::MAX_MESSAGE_BYTES, record::Message};
use serde_json::{Value, json};

use crate::{http::session_header::name_session, keys::usage::SpentQuota};
use baton_client::{ClientError, choose::NoChoice};

/// Retry delay for a client, in seconds.
const RETRY_AFTER_S: u64 = 2;

/// The way in which a program sends its key.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"baton serve\"");

/// The status of each code. All others are of requests that cannot be served as they are.
fn status_of(code: &str) -> StatusCode {
    match code {
        "invalid_api_key" | "key_expired" => StatusCode::UNAUTHORIZED,
        "origin_not_allowed" | "owner_only" | "grant_required" => StatusCode::FORBIDDEN,
        "unknown_url" | "model_not_found" | "no_memory" | "memory_not_found" | "session_not_found"
        | "session_deleted" | "response_not_found" | "thread_not_found" | "no_answer" => {
            StatusCode::NOT_FOUND
        }
        "session_busy"
        | "session_behind"
        | "session_empty"
        | "history_mismatch"
        | "turn_not_found"
        | "message_not_pending"
        | "response_in_conversation" => StatusCode::CONFLICT,
        "body_too_large" => StatusCode::PAYLOAD_TOO_LARGE,
        "unsupported_encoding" => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "rate_limit_exceeded" | "insufficient_quota" => StatusCode::TOO_MANY_REQUESTS,
        "answer_interrupted" | "relayer_failed" => StatusCode::BAD_GATEWAY,
        "no_node" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// An error as its reader sees it. Holds no text of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    param: Option<Box<str>>,
    message: Box<str>,
    session: Option<SessionId>,
    /// Seconds after which the request may succeed, if they are known.
    retry_after_s: Option<u64>,
}

impl ApiError {
    /// An error with the status of its code.
    pub(crate) fn new(code: &'static str, message: impl Into<Box<str>>) -> Self {
        let (status, message) = (status_of(code), message.into());
        Self { status, code, param: None, message, session: None, retry_after_s: None }
    }

    /// An error in the parameter of this path; in none, if it is empty.
    pub(crate) fn request(code: &'static str, param: &str, message: impl Into<Box<str>>) -> Self {
        Self { param: (!param.is_empty()).then(|| param.into()), ..Self::new(code, message) }
    }

    /// A value that is out of range, or of the wrong kind.
    pub(crate) fn value(param: &str, message: impl Into<Box<str>>) -> Self {
        Self::request("invalid_value", param, message)
    }

    /// An unsupported feature of the API.
    pub(crate) fn unsupported(param: &str, message: impl Into<Box<str>>) -> Self {
        Self::request("unsupported_parameter", param, message)
    }

    /// A message that fails its check: its text is too long, or a name or an id of it.
    pub(crate) fn long_message(param: &str, message: &Message) -> Self {
        let bytes = message.text.len();
        if bytes <= MAX_MESSAGE_BYTES {
            return Self::value(param, "a name or an id of a message is too long");
        }
        let message = format!("a message has {bytes} bytes of text; at most {MAX_MESSAGE_BYTES} are served");
        Self::request("context_length_exceeded", param, message)
    }

    /// The bearer key is missing or wrong.
    pub(crate) fn key() -> Self {
        let message = "the bearer key is missing, wrong or removed; the owner's is in the file that baton serve named when it \
             started, and baton serve keys lists the others";
        Self::new("invalid_api_key", message)
    }

    /// A quota of the key of this name is spent.
    pub(crate) fn quota(name: &str, spent: SpentQuota) -> Self {
        let SpentQuota { limit, rest_tokens, wait_s } = spent;
        let (code, cause) = match rest_tokens {
            None => ("rate_limit_exceeded", format!("has made its {} of this hour", count(limit, "request"))),
            Some(rest) => {
                let limit = count(limit, "token");
                let cause = format!("has {rest} of its {limit} of this day left, too few for this request");
                ("insufficient_quota", cause)
            }
        };
        let message = format!("the key {name:?} {cause}; the quota begins anew in {}", wait(wait_s));
        Self { retry_after_s: Some(wait_s), ..Self::new(code, message) }
    }

    /// More requests at once than the endpoint serves, or than the key may have.
    pub(crate) fn crowded() -> Self {
        Self::new("rate_limit_exceeded", "too many requests at once; wait for one of them to end")
    }

    /// The same error, for a turn of this session.
    pub(crate) fn of(self, session: SessionId) -> Self {
        Self { session: Some(session), ..self }
    }

    /// The same error, with the parameter under another name.
    pub(crate) fn renamed(mut self, rename: impl FnOnce(&str) -> String) -> Self {
        self.param = self.param.map(|param| rename(&param).into());
        self
    }

    /// The status of the response.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// The faulty parameter.
    pub(crate) fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// The sentence for people.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The sentence, with the parameter where it names none: for APIs whose errors have no field for it.
    pub(crate) fn message_with_param(&self, own_name: impl FnOnce(&str) -> String) -> String {
        match self.param().map(own_name) {
            Some(param) if !self.message.contains(&param) => format!("{param}: {}", self.message),
            _ => self.message.to_string(),
        }
    }

    /// The code, for programs.
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    /// The body of the response, and of the event that ends a stream.
    pub(crate) fn body(&self) -> Value {
        let kind = match (self.code, self.status) {
            ("insufficient_quota", _) => "insufficient_quota",
            (_, StatusCode::TOO_MANY_REQUESTS) => "rate_limit_error",
            (_, status) if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}

/// A number of things: "1 request", "2 requests".
fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// A time to wait, as people say it: "3 h 40 min", "5 min", "20 s".
fn wait(seconds: u64) -> String {
    match (seconds.div_ceil(60) / 60, seconds.div_ceil(60) % 60) {
        (0, _) if seconds < 60 => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min"),
        (hours, 0) => format!("{hours} h"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

impl From<ClientError> for ApiError {
    fn from(error: ClientError) -> Self {
        let hint = match &error {
            ClientError::NoNode(NoChoice::ModelUnavailable { .. }) => {
                Some("name one of these, or auto to leave the choice to the client")
            }
            error => error.hint(),
        };
        let message = match hint {
            Some(hint) => format!("{error} ({hint})"),
            None => error.to_string(),
        };
        let (code, param) = match (&error, error.code()) {
            (ClientError::NoNode(NoChoice::ModelUnavailable { .. } | NoChoice::ModelOfSession { .. }), _)
            | (_, Some(ErrorCode::ModelUnavailable)) => ("model_not_found", "model"),
            (ClientError::NoNode(_), _) => ("no_node", ""),
            (ClientError::EmptyMessage | ClientError::TooManyMessages { .. }, _) => {
                ("invalid_value", "messages")
            }
            (ClientError::TitleTooLong { .. }, _) => ("invalid_value", "title"),
            (ClientError::SchemaTooLong { .. }, _) => ("invalid_value", "response_format"),
            (ClientError::MessageTooLong { .. }, _) | (_, Some(ErrorCode::ContextOverflow)) => {
                ("context_length_exceeded", "messages")
            }
            (ClientError::UnknownSession(_), _) => ("session_not_found", ""),
            (ClientError::Busy | ClientError::InUse(_), _) => ("session_busy", ""),
            (ClientError::Behind { .. }, _) => ("session_behind", ""),
            (ClientError::Deleted, _) => ("session_deleted", ""),
            (_, Some(ErrorCode::ContentRefused)) => ("content_policy_violation", "messages"),
            (_, Some(ErrorCode::PayloadRejected)) => ("invalid_request", ""),
            (_, Some(ErrorCode::Busy | ErrorCode::RateLimited | ErrorCode::QuotaExceeded)) => {
                ("rate_limit_exceeded", "")
            }
            (_, Some(ErrorCode::GrantRequired)) => ("grant_required", ""),
            _ => {
                let is_nodes = matches!(
                    error,
                    ClientError::TurnFailed { .. }
                        | ClientError::EmbedFailed { .. }
                        | ClientError::Protocol(_)
                );
                let status =
                    if is_nodes { StatusCode::BAD_GATEWAY } else { StatusCode::INTERNAL_SERVER_ERROR };
                return Self { status, ..Self::new(error.name(), message) };
            }
        };
        Self { retry_after_s: error.retry_after_s(), ..Self::request(code, param, message) }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            let retry_after = HeaderValue::from(self.retry_after_s.unwrap_or(RETRY_AFTER_S));
            response.headers_mut().insert(header::RETRY_AFTER, retry_after);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, CHALLENGE);
        }
        if let Some(session) = self.session {
            name_session(&mut response, session);
        }
        // Other APIs have forms of their own, in which the guard writes it.
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_said_as_people_say_them() {
        for (seconds, said) in [
            (1, "1 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3_541, "1 h"),
            (3_600, "1 h"),
            (13_173, "3 h 40 min"),
            (86_400, "24 h"),
        ] {
            assert_eq!(wait(seconds), said, "{seconds}");
        }
        let spent = ApiError::quota("anna", SpentQuota { limit: 1, rest_tokens: None, wait_s: 90 });
        assert!(
            spent.message.contains("has made its 1 request of this hour; the quota begins anew in 2 min")
        );
    }

    #[test]
    fn a_client_learns_by_status_and_code_what_to_do() {
        let missing = NoChoice::ModelUnavailable { wanted: "a".to_owned(), served: "b".to_owned() };
        let node = baton_proto::ids::NodeId([0; 32]);
        let failed = |code| ClientError::TurnFailed {
            attempts: 1,
            node,
            code,
            reason: String::new(),
            relayed: false,
            retry_after_ms: 29_500,
        };
        let cases = [
            (ClientError::NoNode(missing), 404, "model_not_found"),
            (ClientError::NoNode(NoChoice::NoNodes), 503, "no_node"),
            (failed(Some(ErrorCode::Busy)), 429, "rate_limit_exceeded"),
            (failed(Some(ErrorCode::ContextOverflow)), 400, "context_length_exceeded"),
            (failed(Some(ErrorCode::GrantRequired)), 403, "grant_required"),
            (failed(Some(ErrorCode::ContentRefused)), 400, "content_policy_violation"),
            (failed(Some(ErrorCode::PayloadRejected)), 400, "invalid_request"),
            (failed(Some(ErrorCode::RateLimited)), 429, "rate_limit_exceeded"),
            (failed(Some(ErrorCode::BackendDenied)), 502, "BackendDenied"),
            (failed(Some(ErrorCode::Internal)), 502, "Internal"),
            (failed(Some(ErrorCode::ReceiptMismatch)), 502, "ReceiptMismatch"),
            (failed(None), 502, "Unreachable"),
            (ClientError::Busy, 409, "session_busy"),
            (ClientError::TaskEnded, 500, "TaskEnded"),
        ];
        for (error, status, code) in cases {
            let api_error = ApiError::from(error);
            assert_eq!((api_error.status.as_u16(), api_error.code), (status, code));
            assert_eq!(api_error.body()["error"]["code"], code);
            let pause = (status == 429).then_some("30");
            let response = api_error.into_response();
            let header = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
            assert_eq!(header.filter(|_| status != 503), pause, "{code}");
        }
    }
}
