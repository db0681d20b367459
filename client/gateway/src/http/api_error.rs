//! Errors, with a status that clients act upon. Their first form is that of OpenAI's API:
//! `{"error":{"message","type","param","code"}}`.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use baton_proto::{ErrorCode, ids::SessionId, limits::MAX_MESSAGE_BYTES, record::Message};
use serde_json::{Value, json};

use crate::{clock::rfc3339, http::session_header::name_session, keys::usage::SpentQuota};
use baton_client::{ClientError, choose::NoChoice};

/// Retry delay for a client, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("2");

/// The way in which a program sends its key.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"baton serve\"");
/// The codes of errors about threads, in Anthropic's API.
const THREAD_NOT_FOUND: &str = "thread_not_found";
const THREAD_UNSUPPORTED: &str = "thread_unsupported_request";

/// An error as its reader sees it. Holds no text of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
    param: Option<Box<str>>,
    message: Box<str>,
    session: Option<SessionId>,
    /// Seconds after which the request may succeed, if they are known.
    retry_after_s: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: &'static str, message: impl Into<Box<str>>) -> Self {
        Self { status, kind, code, param: None, message: message.into(), session: None, retry_after_s: None }
    }

    /// A request that cannot be served as it is; `param` names the faulty parameter.
    pub(crate) fn request(code: &'static str, param: &str, message: impl Into<Box<str>>) -> Self {
        let api_error = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", code, message);
        Self { param: (!param.is_empty()).then(|| param.into()), ..api_error }
    }

    /// A value that is out of range, or of the wrong kind.
    pub(crate) fn value(param: &str, message: impl Into<Box<str>>) -> Self {
        Self::request("invalid_value", param, message)
    }

    /// A message that fails its check: its text is too long, or a name or an id of it.
    pub(crate) fn long_message(param: &str, message: &Message) -> Self {
        let bytes = message.text.len();
        if bytes <= MAX_MESSAGE_BYTES {
            return Self::value(param, "a name or an id of the message is too long");
        }
        let message =
            format!("the message has {bytes} bytes of text; at most {MAX_MESSAGE_BYTES} are served");
        Self::request("context_length_exceeded", param, message)
    }

    /// An unsupported feature of OpenAI's API.
    pub(crate) fn unsupported(param: &str, message: impl Into<Box<str>>) -> Self {
        Self::request("unsupported_parameter", param, message)
    }

    /// The bearer key is missing or wrong.
    pub(crate) fn key() -> Self {
        let message = "the bearer key is missing, wrong or removed; the owner's is in the file that baton serve named when it \
             started, and baton serve keys lists the others";
        Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", "invalid_api_key", message)
    }

    /// The key of this name has ended.
    pub(crate) fn expired(name: &str, end_s: u64) -> Self {
        let message = format!(
            "the key {name:?} ended at {}; its owner extends it with baton serve keys change",
            rfc3339(end_s)
        );
        Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", "key_expired", message)
    }

    /// A quota of the key of this name is spent.
    pub(crate) fn quota(name: &str, spent: SpentQuota) -> Self {
        let wait_s = spent.wait_s();
        let (kind, code, cause) = match spent {
            SpentQuota::Requests { limit, .. } => (
                "rate_limit_error",
                "rate_limit_exceeded",
                format!("has made its {} of this hour", count(limit, "request")),
            ),
            SpentQuota::Tokens { limit, rest, .. } => (
                "insufficient_quota",
                "insufficient_quota",
                format!(
                    "has {rest} of its {} of this day left, too few for this request",
                    count(limit, "token")
                ),
            ),
        };
        let message = format!("the key {name:?} {cause}; the quota begins anew in {}", wait(wait_s));
        let api_error = Self::new(StatusCode::TOO_MANY_REQUESTS, kind, code, message);
        Self { retry_after_s: Some(wait_s), ..api_error }
    }

    /// A route for the owner's own key, asked with another key.
    pub(crate) fn owner_only() -> Self {
        let message = "this address is for the owner's key; a key with a name does not reach it";
        Self::new(StatusCode::FORBIDDEN, "invalid_request_error", "owner_only", message)
    }

    /// The relayer refused or failed.
    pub(crate) fn relayer(reason: impl Into<Box<str>>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "server_error", "relayer_failed", reason)
    }

    /// A request from a page or by a name that is not allowed.
    pub(crate) fn forbidden(message: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "invalid_request_error", "origin_not_allowed", message)
    }

    /// Nothing is at this address.
    pub(crate) fn missing(code: &'static str, message: impl Into<Box<str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", code, message)
    }

    /// The session's state differs from the request's view, or the session is busy.
    pub(crate) fn conflict(code: &'static str, message: impl Into<Box<str>>) -> Self {
        Self::new(StatusCode::CONFLICT, "invalid_request_error", code, message)
    }

    /// A body beyond the limit.
    pub(crate) fn too_large(message: String) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", "body_too_large", message)
    }

    /// A body in another form than it was written.
    pub(crate) fn encoding(message: String) -> Self {
        let kind = "invalid_request_error";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, kind, "unsupported_encoding", message)
    }

    /// More requests at once than the endpoint serves, or than the key may have.
    pub(crate) fn crowded() -> Self {
        let message = "too many requests at once; wait for one of them to end";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "rate_limit_exceeded", message)
    }

    /// The program has part of the answer, and the node that began it is gone.
    pub(crate) fn interrupted() -> Self {
        let message = "the node failed within the answer, and another one answered differently; ask again";
        Self::new(StatusCode::BAD_GATEWAY, "server_error", "answer_interrupted", message)
    }

    /// No node was found at any of these places.
    pub(crate) fn no_node(tried: &str) -> Self {
        let message =
            format!("no node was found; tried: {tried} (is the node running? see why with baton doctor)");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "no_node", message)
    }

    /// No turn here has the message that a thread continues.
    pub(crate) fn thread_not_found() -> Self {
        let message = "no message with this id is kept here; send the whole conversation";
        let api_error = Self::missing(THREAD_NOT_FOUND, message);
        Self { param: Some("thread.previous_message_id".into()), ..api_error }
    }

    /// A thread with a wish that is not served.
    pub(crate) fn thread_unsupported(param: &str, message: impl Into<Box<str>>) -> Self {
        Self::request(THREAD_UNSUPPORTED, param, message)
    }

    /// The code by which clients of Anthropic's API act on an error of a thread.
    pub(crate) fn thread_code(&self) -> Option<&'static str> {
        [THREAD_NOT_FOUND, THREAD_UNSUPPORTED].into_iter().find(|code| *code == self.code)
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

    /// The code, for programs.
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    /// The body of the response, and of the event that ends a stream.
    pub(crate) fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
        } })
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
        let server = |status, code| Self::new(status, "server_error", code, message.clone());
        match &error {
            ClientError::NoNode(NoChoice::ModelUnavailable { .. } | NoChoice::ModelOfSession { .. }) => {
                Self { param: Some("model".into()), ..Self::missing("model_not_found", message) }
            }
            ClientError::NoNode(_) => server(StatusCode::SERVICE_UNAVAILABLE, "no_node"),
            ClientError::EmptyMessage
            | ClientError::TooManyMessages { .. }
            | ClientError::TitleTooLong { .. } => Self::value("messages", message),
            ClientError::SchemaTooLong { .. } => Self::value("response_format", message),
            ClientError::MessageTooLong { .. } => {
                Self::request("context_length_exceeded", "messages", message)
            }
            ClientError::UnknownSession(_) => Self::missing("session_not_found", message),
            ClientError::Busy | ClientError::InUse(_) => Self::conflict("session_busy", message),
            ClientError::Behind { .. } => Self::conflict("session_behind", message),
            ClientError::Deleted => Self::missing("session_deleted", message),
            _ => match error.code() {
                Some(ErrorCode::ContextOverflow) => {
                    Self::request("context_length_exceeded", "messages", message)
                }
                Some(ErrorCode::ContentRefused) => {
                    Self::request("content_policy_violation", "messages", message)
                }
                Some(ErrorCode::PayloadRejected) => Self::request("invalid_request", "", message),
                Some(ErrorCode::Busy | ErrorCode::RateLimited | ErrorCode::QuotaExceeded) => {
                    let retry_after_s = error.retry_after_s();
                    let status = StatusCode::TOO_MANY_REQUESTS;
                    let api_error = Self::new(status, "rate_limit_error", "rate_limit_exceeded", message);
                    Self { retry_after_s, ..api_error }
                }
                Some(ErrorCode::GrantRequired) => {
                    Self::new(StatusCode::FORBIDDEN, "invalid_request_error", "grant_required", message)
                }
                Some(ErrorCode::ModelUnavailable) => {
                    Self { param: Some("model".into()), ..Self::missing("model_not_found", message) }
                }
                _ if matches!(
                    error,
                    ClientError::TurnFailed { .. }
                        | ClientError::EmbedFailed { .. }
                        | ClientError::Protocol(_)
                ) =>
                {
                    server(StatusCode::BAD_GATEWAY, error.name())
                }
                _ => server(StatusCode::INTERNAL_SERVER_ERROR, error.name()),
            },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            let retry_after = self.retry_after_s.map_or(RETRY_AFTER, HeaderValue::from);
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
        let spent = ApiError::quota("anna", SpentQuota::Requests { limit: 1, wait_s: 90 });
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
