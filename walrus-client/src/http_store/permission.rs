//! Whether publishers accept this client's PUTs, asked without storing anything.
//!
//! The request asks for a blob that is both permanent and deletable. A publisher checks the token first, and
//! then refuses this contradiction: it stores nothing and pays nothing.

use std::time::{SystemTime, UNIX_EPOCH};

use futures::future::join_all;
use reqwest::{Url, header};

use super::{HttpStore, answer::Failure, fetch::failure, join, sources::origin};
use crate::{http_client::describe, jwt::TokenPurpose, wire::reason};

/// The body of the request, in bytes.
const BODY: &[u8] = &[0];
/// Reasons of a publisher that does not accept the token.
const TOKEN_REASONS: [&str; 5] = [
    reason::INVALID_SIGNATURE,
    reason::TOKEN_ALREADY_USED,
    "INVALID_TOKEN",
    "INVALID_TIMESTAMP",
    "EXPIRED_SIGNATURE",
];

/// Whether a publisher accepts PUTs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PutPermission {
    /// It does, with the configured token or without one.
    Granted,
    /// It refuses them.
    Refused {
        /// Its reason.
        reason: String,
    },
    /// Its answer shows neither.
    Unknown {
        /// The answer, or the failed connection.
        reason: String,
    },
}

impl HttpStore {
    /// Asks every publisher whether it accepts a PUT with the configured token; stores nothing. The first part
    /// names the publisher. A token that counts only once is used up.
    pub async fn put_permissions(&self) -> Vec<(String, PutPermission)> {
        join_all(self.inner.publishers.urls().map(|publisher| self.ask_permission(publisher))).await
    }

    async fn ask_permission(&self, publisher: &Url) -> (String, PutPermission) {
        let permission = match self.send_refusable(publisher).await {
            Ok(None) => PutPermission::Granted,
            Ok(Some(failure)) => judge(&failure),
            Err(reason) => PutPermission::Unknown { reason },
        };
        (origin(publisher), permission)
    }

    /// Sends the PUT; `None` if it was accepted nevertheless.
    async fn send_refusable(&self, publisher: &Url) -> Result<Option<Failure>, String> {
        let mut url = join(publisher, "v1/blobs").map_err(|error| error.to_string())?;
        url.query_pairs_mut().extend_pairs([("epochs", "1"), ("permanent", "true"), ("deletable", "true")]);
        let mut request = self.inner.client(&url).put(url).timeout(self.inner.policy.base_timeout).body(BODY);
        if let Some(token) = &self.inner.token {
            let purpose = TokenPurpose { epochs: 1, size: Some(BODY.len() as u64), send_object_to: None };
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let value = token.header(&purpose, now).map_err(|error| error.to_string())?;
            request = request.header(header::AUTHORIZATION, value);
        }
        let answer = request.send().await.map_err(|error| describe(&error))?;
        Ok(if answer.status().is_success() { None } else { Some(failure(answer).await) })
    }
}

/// The permission that a refusal of the contradiction shows.
fn judge(failure: &Failure) -> PutPermission {
    let (reason, code) = (failure.reason(), failure.code().unwrap_or_default());
    let names_token = || String::from_utf8_lossy(&failure.body).to_lowercase().contains("authorization");
    match failure.status {
        400 if code == reason::INVALID_BLOB_PERSISTENCE => PutPermission::Granted,
        // An aggregator takes no PUT.
        401 | 403 | 404 | 405 | 407 => PutPermission::Refused { reason },
        _ if TOKEN_REASONS.contains(&code.as_str()) => PutPermission::Refused { reason },
        400 if names_token() => PutPermission::Refused { reason },
        _ => PutPermission::Unknown { reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_shows_whether_the_token_was_accepted() {
        let coded = |code: &str| format!(r#"{{"error":{{"details":[{{"reason":"{code}"}}]}}}}"#);
        let cases = [
            (400, coded("INVALID_BLOB_PERSISTENCE"), "granted"),
            (400, "Header of type `authorization` was missing".to_owned(), "refused"),
            (400, coded("INVALID_TOKEN"), "refused"),
            (401, coded("INVALID_SIGNATURE"), "refused"),
            (504, coded("EXPIRED_SIGNATURE"), "refused"),
            (405, String::new(), "refused"),
            (400, coded("MALFORMED_REQUEST"), "unknown"),
            (429, String::new(), "unknown"),
            (503, String::new(), "unknown"),
        ];
        for (status, body, expected) in cases {
            let judged = judge(&Failure {
                status,
                retry_after: None,
                body: body.clone().into_bytes(),
                way: String::new(),
            });
            let judged = match judged {
                PutPermission::Granted => "granted",
                PutPermission::Refused { .. } => "refused",
                PutPermission::Unknown { .. } => "unknown",
            };
            assert_eq!(judged, expected, "{status} {body}");
        }
    }
}
