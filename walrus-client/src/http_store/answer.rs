//! What an HTTP answer means, decided without I/O.
//!
//! Owns the mapping from statuses and bodies to [`StoreError`]: one function for each of PUT, GET and the head
//! index. Texts that come from the store are cut and stripped before they enter an error.

use std::time::Duration;

use baton_proto::{
    ids::BlobId,
    store::{PutOutcome, StoreError},
};

use crate::wire::{ErrorAnswer, StoreResult, reason};

/// Longest foreign text taken into an error, in characters.
const MAX_REASON_CHARS: usize = 120;

/// An answer that is not a success: its status and what may be known of its cause.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
    /// The bounded body; empty when it could not be read.
    pub(super) body: Vec<u8>,
}

impl Failure {
    /// The machine-readable reason, if the body is Walrus's JSON.
    fn code(&self) -> Option<String> {
        let answer: ErrorAnswer = serde_json::from_slice(&self.body).ok()?;
        answer.reason().map(clean)
    }

    /// The reason code, or the status with the start of a text body.
    fn reason(&self) -> String {
        if let Some(code) = self.code() {
            return code;
        }
        let text = clean(&String::from_utf8_lossy(&self.body));
        if text.is_empty() || text.starts_with(['{', '<']) {
            format!("HTTP {}", self.status)
        } else {
            format!("HTTP {}: {text}", self.status)
        }
    }

    fn unavailable(&self) -> StoreError {
        StoreError::Unavailable { reason: self.reason(), retry_after: self.retry_after }
    }

    fn refused(&self) -> StoreError {
        StoreError::Refused { reason: self.reason() }
    }

    /// A PUT of `length` bytes was answered so.
    ///
    /// 429 and 503 turn a request away before it is worked on. The other server errors come from the middle
    /// of storing (500 and 504 after the blob may have been registered and stored), and a gateway's 502 says
    /// nothing: there the outcome is unknown and the caller must probe.
    pub(super) fn of_put(&self, length: u64) -> StoreError {
        match self.status {
            // The store does not say its limit; it is somewhere below what was sent.
            413 => StoreError::TooLarge { length, limit: length.saturating_sub(1) },
            408 | 429 | 503 => self.unavailable(),
            500..=599 => StoreError::OutcomeUnknown { reason: self.reason() },
            _ => self.refused(),
        }
    }

    /// A GET or HEAD was answered so.
    pub(super) fn of_get(&self) -> StoreError {
        match self.status {
            404 => StoreError::NotFound,
            408 | 429 | 500..=599 => self.unavailable(),
            _ => self.refused(),
        }
    }

    /// A head was published and answered so. Publishing the same bytes again does nothing, so every server
    /// error may simply be tried again.
    pub(super) fn of_publish(&self, length: u64) -> StoreError {
        match self.status {
            409 => StoreError::HeadSuperseded,
            413 => StoreError::TooLarge { length, limit: length.saturating_sub(1) },
            404 | 405 => StoreError::Refused { reason: "the store has no head index".to_owned() },
            408 | 429 | 500..=599 => self.unavailable(),
            _ => self.refused(),
        }
    }

    /// A head was looked up and answered so: `None` when the index has no record under the key.
    pub(super) fn of_resolve(&self) -> Option<StoreError> {
        match self.status {
            404 if self.code().as_deref() == Some(reason::HEAD_NOT_FOUND) => None,
            404 | 405 => Some(StoreError::Refused { reason: "the store has no head index".to_owned() }),
            _ => Some(self.of_get()),
        }
    }
}

/// Reads the body of a PUT that was answered with 200. `expected` is our own computation of the ID.
pub(super) fn put_outcome(body: &[u8], expected: BlobId) -> Result<PutOutcome, StoreError> {
    let unknown = |reason: &str| StoreError::OutcomeUnknown { reason: reason.to_owned() };
    let result: StoreResult =
        serde_json::from_slice(body).map_err(|_| unknown("the answer is not a store result"))?;
    let (text, newly_created, end_epoch) = match result {
        StoreResult::NewlyCreated(created) => {
            let end = created.blob_object.storage.map(|storage| storage.end_epoch);
            (created.blob_object.blob_id, true, end)
        }
        StoreResult::AlreadyCertified(certified) => (certified.blob_id, false, Some(certified.end_epoch)),
        StoreResult::MarkedInvalid(_) => {
            return Err(StoreError::Refused { reason: "the blob is marked invalid".to_owned() });
        }
        // The phase says where it stopped, not what of it was undone.
        StoreResult::Error(failure) => {
            let phase = clean(&failure.failure_phase);
            return Err(unknown(&format!("the publisher failed in phase \"{phase}\"")));
        }
    };
    match text.parse::<BlobId>() {
        Ok(blob_id) if blob_id == expected => Ok(PutOutcome { blob_id, newly_created, end_epoch }),
        _ => Err(StoreError::WrongContent),
    }
}

/// A `Retry-After` in seconds; the date form is not used by any store.
pub(super) fn retry_after(value: &str) -> Option<Duration> {
    value.trim().parse().ok().map(Duration::from_secs)
}

/// A foreign text without control characters, on one line, cut.
fn clean(text: &str) -> String {
    let visible: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON_CHARS).collect();
    visible.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(status: u16, body: &str) -> Failure {
        Failure { status, retry_after: None, body: body.as_bytes().to_vec() }
    }

    #[test]
    fn a_failed_put_is_unknown_unless_it_was_turned_away() {
        for status in [500, 502, 504] {
            assert!(matches!(failure(status, "").of_put(1), StoreError::OutcomeUnknown { .. }), "{status}");
        }
        for status in [429, 503] {
            assert!(matches!(failure(status, "").of_put(1), StoreError::Unavailable { .. }), "{status}");
        }
        for status in [301, 400, 401, 403, 404, 451] {
            assert!(matches!(failure(status, "").of_put(1), StoreError::Refused { .. }), "{status}");
        }
        assert_eq!(failure(413, "").of_put(9), StoreError::TooLarge { length: 9, limit: 8 });
    }

    #[test]
    fn foreign_text_is_cut_and_kept_on_one_line() {
        let text = format!("a\n\x1b[31m{}", "x".repeat(1000));
        let StoreError::Refused { reason } = failure(400, &text).of_get() else { panic!("not refused") };
        assert!(reason.chars().count() < 140 && !reason.contains(char::is_control), "{reason}");
        assert_eq!(failure(451, "<html>").of_get(), StoreError::Refused { reason: "HTTP 451".to_owned() });
    }

    #[test]
    fn a_missing_route_is_not_a_missing_head() {
        let none = r#"{"error":{"details":[{"reason":"HEAD_NOT_FOUND"}]}}"#;
        assert_eq!(failure(404, none).of_resolve(), None);
        assert!(matches!(failure(404, "").of_resolve(), Some(StoreError::Refused { .. })));
    }

    #[test]
    fn retry_after_is_seconds() {
        assert_eq!(retry_after(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), None);
    }
}
