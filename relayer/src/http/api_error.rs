//! All errors in one shape: code, message, hint and request id. Codes are stable; texts are for people.

use axum::{
    Json,
    extract::Request,
    http::{HeaderValue, StatusCode},
    middleware::Next,
    response::{IntoResponse, Response},
};
use baton_keys::secret::random_bytes;
use baton_memory::api::MemoryError;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::{auth::AuthError, budgets::BudgetSpent, owners::OwnerRefusal};

/// A kind of error: status, stable code, message and hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ApiErrorKind(&'static (u16, &'static str, &'static str, &'static str));

macro_rules! kinds {
    ($($name:ident = $status:literal, $code:literal, $message:literal, $hint:literal;)*) => {
        $(pub(crate) const $name: ApiErrorKind = ApiErrorKind(&($status, $code, $message, $hint));)*
        /// All kinds.
        const ALL: &[ApiErrorKind] = &[$($name),*];
    };
}

kinds! {
    BAD_REQUEST = 400, "bad_request", "the request cannot be used", "see /openapi.json for what the route takes";
    UNAUTHENTICATED = 401, "unauthenticated", "the request is not signed by a key that may act for this account",
        "sign timestamp, method, path and query, body hash, nonce and account id with the owner's key or one it delegated to; never use a nonce twice";
    TOKEN = 401, "invalid_token", "the token is unknown, revoked or expired",
        "make another: baton account delegate --token --relayer URL; tokens are for /mcp, and other routes are signed";
    CLEAR_TOKEN = 403, "token_in_clear", "a token came over a connection that others can read",
        "use https://: a proxy with TLS on the relayer's machine, or one of its trusted_proxies";
    UNNAMED = 401, "relayer_unnamed", "the request does not name this relayer",
        "add relayer=KEY to the query before signing; /relayer has the key, and the URL that it proves";
    CLOCK = 401, "clock_skew", "the request's time is more than 300 seconds from the relayer's", "set this machine's clock";
    SCOPE = 403, "scope_missing", "the delegation does not allow this", "ask the owner for a delegation with this scope";
    OWNER_ONLY = 403, "owner_only", "only the owner's own key may do this", "sign with the account key itself";
    BOUND = 403, "project_only", "the delegation is bound to another project", "name the delegation's project, or ask the owner for another delegation";
    NOT_ADMITTED = 403, "not_admitted", "this relayer does not serve this account",
        "ask its operator to list your account id (allowed_owners), or for an invitation: baton memory redeem";
    FULL = 403, "quota_exceeded", "this owner's memory is full", "delete or export what is not needed";
    NOT_FOUND = 404, "not_found", "there is no such thing", "list what there is; ids count within one account only";
    NO_ROUTE = 404, "no_route", "there is no such route", "see /openapi.json for all of them";
    NO_METHOD = 405, "no_method", "the route does not take this method", "see /openapi.json for what it takes";
    SLOW_BODY = 408, "slow_body", "the body did not arrive in time", "send it again, in parts if it is large";
    CONFLICT = 409, "conflict", "this contradicts what is there", "read again what is there, and decide again";
    CHAT_ROLLBACK = 409, "rollback_detected", "the session is not where the head says", "go on from where the session is by leaving `head` out, or find who lost or hid turns";
    CHAT_FORKED = 409, "fork_detected", "another turn stands in the place of one that was known", "export the session with your own client before going on";
    CHAT_GONE = 410, "session_deleted", "the session was deleted", "begin a new one";
    TOO_LARGE = 413, "too_large", "the body is too long", "send it in parts";
    WRONG_RELAYER = 421, "wrong_relayer", "the request is signed for another relayer", "sign it for this one: /relayer has its key";
    RATE = 429, "rate_limited", "too many requests", "wait for as long as Retry-After says";
    INTERNAL = 500, "internal", "the relayer has a fault", "tell the operator the request id";
    DAMAGED = 500, "damaged", "what is stored for this owner cannot be used", "tell the operator the request id; restore from Walrus or from an export";
    UNSUPPORTED = 501, "not_supported", "this relayer does not do that", "see the documentation for what it does instead";
    NO_WALRUS = 501, "no_walrus", "this relayer keeps no contents on Walrus, so there are none to restore from",
        "import an export (POST /api/import), or have the operator set publishers and aggregators; what is remembered here is not lost";
    UNAVAILABLE = 503, "unavailable", "memory is unavailable for now", "try again later";
    BUDGET = 503, "budget_spent", "a budget of this relayer is used up", "try again later, or ask its operator to raise it";
    BUSY = 503, "busy", "the relayer has as many requests in hand as it takes", "wait for as long as Retry-After says";
    NO_MODEL = 503, "no_model", "this relayer has no language model to answer with", "use the memories, or set model_url in the relayer's configuration";
    NO_NODE = 503, "no_node", "no node was found that can serve the turn", "try again later, or name another model; the message is kept for this session's next request";
    MODEL = 503, "model_unavailable", "the language model did not answer", "use the memories, or try again later";
    DEADLINE = 504, "deadline", "the answer took too long", "ask for less, or try again later";
}

/// The codes of all errors with a status.
pub(super) fn codes_of(status: u16) -> Vec<&'static str> {
    ALL.iter().filter(|kind| kind.0.0 == status).map(|kind| kind.0.1).collect()
}

/// The statuses of all errors.
#[cfg(test)]
pub(super) fn statuses() -> std::collections::BTreeSet<u16> {
    ALL.iter().map(|kind| kind.0.0).collect()
}

/// An error in JSON.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = FaultJson)]
pub(crate) struct ApiErrorJson {
    /// Stable code of the error.
    pub(crate) code: String,
    /// Error message, for people.
    pub(crate) message: String,
    /// Suggested next step.
    pub(crate) hint: String,
    /// Id of the request in the relayer's log.
    pub(crate) request_id: String,
    /// Seconds to wait before a retry, if a retry may help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_seconds: Option<u64>,
    /// Further fields, by code.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub(crate) more: Map<String, Value>,
}

/// An error to be sent; `finish` builds the answer.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    kind: ApiErrorKind,
    message: Option<String>,
    hint: Option<&'static str>,
    retry_after_s: Option<u64>,
    /// Boxed, since few errors have one and all are returned by value.
    more: Option<Box<Map<String, Value>>>,
}

impl ApiError {
    /// An error of a kind, with the kind's texts.
    #[must_use]
    pub(crate) fn new(kind: ApiErrorKind) -> Self {
        Self { kind, message: None, hint: None, retry_after_s: None, more: None }
    }

    /// An invalid request, with the reason.
    #[must_use]
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(BAD_REQUEST).saying(message)
    }

    /// A missing object of this kind.
    #[must_use]
    pub(crate) fn missing(what: &str) -> Self {
        Self::new(NOT_FOUND).saying(format!("no such {what}"))
    }

    /// Sets the message.
    #[must_use]
    pub(crate) fn saying(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Sets the hint.
    #[must_use]
    pub(crate) fn hinting(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Sets the retry time, in milliseconds from now.
    #[must_use]
    pub(crate) fn after_ms(mut self, ms: u64) -> Self {
        self.retry_after_s = Some(ms.div_ceil(1_000).max(1));
        self
    }

    /// Adds a field.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: Value) -> Self {
        self.more.get_or_insert_default().insert(name.to_owned(), value);
        self
    }

    /// Its HTTP status.
    #[must_use]
    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.kind.0.0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Its stable code.
    #[must_use]
    pub(crate) fn code(&self) -> &'static str {
        self.kind.0.1
    }

    /// Its sent form, with a request id.
    #[must_use]
    pub(crate) fn json(self, request_id: &str) -> ApiErrorJson {
        ApiErrorJson {
            code: self.kind.0.1.to_owned(),
            message: self.message.unwrap_or_else(|| self.kind.0.2.to_owned()),
            hint: self.hint.unwrap_or(self.kind.0.3).to_owned(),
            request_id: request_id.to_owned(),
            retry_after_seconds: self.retry_after_s,
            more: self.more.map(|more| *more).unwrap_or_default(),
        }
    }
}

impl From<AuthError> for ApiError {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::Signature => Self::new(UNAUTHENTICATED),
            AuthError::Clock => Self::new(CLOCK),
            AuthError::Memory(error) => error.into(),
        }
    }
}

impl From<OwnerRefusal> for ApiError {
    fn from(refusal: OwnerRefusal) -> Self {
        match refusal {
            OwnerRefusal::NotListed => Self::new(NOT_ADMITTED),
            OwnerRefusal::NotInvited => Self::new(NOT_ADMITTED)
                .saying("this relayer serves invited accounts, and this one has no valid invitation"),
            OwnerRefusal::Full(most) => Self::new(BUDGET)
                .saying(format!("this relayer has {most} owners, as many as it takes (max_owners)"))
                .hinting("use another relayer, or ask its operator to raise max_owners"),
            OwnerRefusal::TooManyNew(wait) => Self::new(RATE)
                .saying("too many new owners from this subnet within an hour")
                .after_ms(wait.into()),
            OwnerRefusal::Memory(error) => error.into(),
        }
    }
}

impl From<BudgetSpent> for ApiError {
    fn from(BudgetSpent { option, wait_ms }: BudgetSpent) -> Self {
        let error = Self::new(BUDGET).saying(format!("the budget {option} of this relayer is used up"));
        match wait_ms {
            Some(wait) => error.after_ms(wait.into()),
            None => error.hinting("delete what is not needed, or ask the operator to raise it"),
        }
    }
}

impl From<MemoryError> for ApiError {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::NotFound(what) => Self::missing(what),
            MemoryError::Invalid(why) => Self::bad(why),
            MemoryError::Conflict(why) => Self::new(CONFLICT).saying(why),
            MemoryError::Full(why) => Self::new(FULL).saying(format!("this owner's memory is full: {why}")),
            // A storage's error text is for the operator.
            MemoryError::Unavailable(why) => {
                tracing::warn!(why, "memory is unavailable");
                Self::new(UNAVAILABLE).after_ms(2_000)
            }
            MemoryError::Damaged(why) | MemoryError::Lost(why) => {
                tracing::error!(why, "an owner's memory is damaged");
                Self::new(DAMAGED)
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// The id of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestId(pub String);

impl RequestId {
    fn random() -> Self {
        Self(hex::encode(random_bytes::<8>()))
    }
}

/// Gives each request an id, formats errors, and forbids caching of answers.
pub(super) async fn finish(mut request: Request, next: Next) -> Response {
    let id = RequestId::random();
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let (status, code, retry_after) = (error.status(), error.code(), error.retry_after_s);
        if status.is_server_error() {
            tracing::warn!(request = id.0, code, "a request failed");
        }
        let clock = error.kind == CLOCK;
        let headers = std::mem::take(response.headers_mut());
        response = (status, Json(error.json(&id.0))).into_response();
        for (name, value) in &headers {
            if !response.headers().contains_key(name) && name != "content-length" {
                response.headers_mut().append(name, value.clone());
            }
        }
        if let Some(seconds) = retry_after {
            response.headers_mut().insert("retry-after", HeaderValue::from(seconds));
        }
        if clock {
            response
                .headers_mut()
                .insert("x-auth-error", HeaderValue::from_static("ERR_TIMESTAMP_OUT_OF_BOUNDS"));
        }
    }
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        response.headers_mut().insert("x-request-id", value);
    }
    response.headers_mut().entry("cache-control").or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_distinct_and_statuses_valid() {
        let codes: HashSet<_> = ALL.iter().map(|kind| kind.0.1).collect();
        assert_eq!(codes.len(), ALL.len());
        assert!(
            ALL.iter().all(|kind| StatusCode::from_u16(kind.0.0).is_ok_and(|status| !status.is_success()))
        );
    }

    #[test]
    fn storage_error_texts_are_not_sent() {
        for error in [
            MemoryError::Unavailable("10.0.0.7:5432".into()),
            MemoryError::Damaged("/data/x".into()),
            MemoryError::Lost("version 7 of /data/x".into()),
        ] {
            let json = serde_json::to_string(&ApiError::from(error).json("r")).unwrap();
            assert!(!json.contains("10.0.0.7") && !json.contains("/data"), "{json}");
        }
    }
}
