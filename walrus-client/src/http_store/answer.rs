//! The meaning of HTTP answers, decided without I/O.
//!
//! Owns the mapping from statuses and bodies to faults: one function for each of PUT, GET and the head index.
//! [`retry`](super::retry) decides the reaction to a fault. Texts from the store are cut and stripped before
//! they enter an error.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use baton_proto::{ids::BlobId, store::StoreError};

use serde::de::DeserializeOwned;

use super::times::http_date;
use crate::wire::{ErrorAnswer, QuiltStoreResult, StoreResult, reason};

/// Longest text of a store in an error, in characters.
const MAX_REASON_CHARS: usize = 120;

/// The reason why one aggregator did not serve a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReadFault {
    /// It answered that it lacks the object.
    Missing,
    /// It failed on its side or asks to wait; a later try may succeed.
    Busy { reason: String, retry_after: Option<Duration> },
    /// No connection came about. That says nothing of the blob, nor does it weaken another source's 404. A
    /// source that is gone for good must not prevent the storing of a blob.
    Unreachable { reason: String },
    /// It refused; another aggregator may serve the read.
    Refused { reason: String },
    /// The answer exceeds the limit.
    TooLarge { length: u64, limit: u64 },
    /// It sent other content than requested.
    Wrong,
}

impl ReadFault {
    pub(super) fn busy(reason: impl Into<String>) -> Self {
        Self::Busy { reason: reason.into(), retry_after: None }
    }

    /// The wait that it asked for.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// The reason why one publisher did not confirm that it stored a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PutFault {
    /// Certainly not stored: no connection, or refused for now.
    Busy { reason: String, retry_after: Option<Duration> },
    /// Certainly not stored: this publisher refuses it.
    Refused { reason: String },
    /// Certainly not stored: larger than this publisher's limit.
    TooLarge,
    /// It may or may not be stored.
    Ambiguous { reason: String },
    /// It reports another blob ID.
    WrongId,
    /// The network has marked it invalid: no publisher can store it.
    Invalid,
}

/// A publisher's statement of a stored blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PublisherStatement {
    /// False when it was already certified.
    pub(super) newly_created: bool,
    /// First epoch without the blob.
    pub(super) end_epoch: Option<u64>,
}

/// An answer without success: its status and hints at the cause.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
    /// The bounded body; empty when it could not be read.
    pub(super) body: Vec<u8>,
    /// The proxy on the way, in words: the answer may be its own.
    pub(super) way: String,
}

impl Failure {
    /// The machine-readable reason, if the body is Walrus's JSON.
    pub(super) fn code(&self) -> Option<String> {
        let answer: ErrorAnswer = json(&self.body)?;
        answer.reason().map(clean)
    }

    /// The reason code, or the status with the start of a text body.
    pub(super) fn reason(&self) -> String {
        if let Some(code) = self.code() {
            return code;
        }
        if (300..400).contains(&self.status) {
            return format!("HTTP {}: a redirect that is not followed", self.status);
        }
        let text = clean(&String::from_utf8_lossy(&self.body));
        let (status, way) = (self.status, &self.way);
        if text.is_empty() || text.starts_with(['{', '<']) {
            format!("HTTP {status}{way}")
        } else {
            format!("HTTP {status}{way}: {text}")
        }
    }

    fn unavailable(&self) -> StoreError {
        StoreError::Unavailable { reason: self.reason(), retry_after: self.retry_after }
    }

    fn refused(&self) -> StoreError {
        StoreError::Refused { reason: self.reason() }
    }

    /// The fault of a PUT with this answer. `fresh_token` means that its token was never sent before.
    ///
    /// Only a refusal proves that nothing was stored. Server errors leave the outcome unknown. A publisher
    /// sends 500 or 504 when the blob may already be registered and stored. A gateway's error does not tell
    /// how far the publisher came.
    pub(super) fn of_put(&self, fresh_token: bool) -> PutFault {
        let reason = self.reason();
        match self.status {
            413 => PutFault::TooLarge,
            429 if self.code().as_deref() == Some(reason::TOKEN_ALREADY_USED) => {
                // A party in between has already sent our token, and with it our PUT.
                if fresh_token { PutFault::Ambiguous { reason } } else { PutFault::Refused { reason } }
            }
            429 => PutFault::Busy { reason, retry_after: self.retry_after },
            // The publisher may have stored the blob, and names the place of its answer.
            303 | 408 | 500..=599 => PutFault::Ambiguous { reason },
            _ => PutFault::Refused { reason },
        }
    }

    /// The fault of a GET or HEAD with this answer.
    pub(super) fn of_get(&self) -> ReadFault {
        match self.status {
            404 => ReadFault::Missing,
            501 | 505 => ReadFault::Refused { reason: self.reason() },
            202 | 408 | 425 | 429 | 500..=599 => {
                ReadFault::Busy { reason: self.reason(), retry_after: self.retry_after }
            }
            _ => ReadFault::Refused { reason: self.reason() },
        }
    }

    /// The error of publishing a head with this answer. Publishing the same bytes again does nothing, so
    /// every server error may be retried.
    pub(super) fn of_publish(&self, length: u64) -> StoreError {
        match self.status {
            409 => StoreError::HeadSuperseded,
            413 => StoreError::TooLarge { length, limit: length.saturating_sub(1) },
            404 | 405 => StoreError::Refused { reason: "the store has no head index".to_owned() },
            408 | 429 | 500..=599 => self.unavailable(),
            _ => self.refused(),
        }
    }

    /// The error of looking up a head with this answer; `None` when the index has no record under the key.
    pub(super) fn of_resolve(&self) -> Option<StoreError> {
        match self.status {
            404 if self.code().as_deref() == Some(reason::HEAD_NOT_FOUND) => None,
            404 | 405 => Some(StoreError::Refused { reason: "the store has no head index".to_owned() }),
            408 | 429 | 500..=599 => Some(self.unavailable()),
            _ => Some(self.refused()),
        }
    }
}

/// The JSON of a body, whatever its content type says, also after a byte order mark.
pub(super) fn json<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body)).ok()
}

/// Reads the body of a blob PUT's answer of success. `expected` is the ID that this client computed.
pub(super) fn blob_stored(body: &[u8], expected: BlobId) -> Result<PublisherStatement, PutFault> {
    let result: StoreResult = json(body).ok_or_else(no_result)?;
    accepted(result, expected)
}

/// Reads the body of a quilt PUT's answer of success. `patches` maps this client's identifiers to patch IDs. The
/// publisher must name the same ones, in any order.
pub(super) fn quilt_stored(
    body: &[u8],
    expected: BlobId,
    patches: &BTreeMap<String, String>,
) -> Result<PublisherStatement, PutFault> {
    let result: QuiltStoreResult = json(body).ok_or_else(no_result)?;
    let accepted = accepted(result.blob_store_result, expected)?;
    let named = result.stored_quilt_blobs.len();
    let theirs: BTreeMap<String, String> =
        result.stored_quilt_blobs.into_iter().map(|patch| (patch.identifier, patch.quilt_patch_id)).collect();
    if named == patches.len() && theirs == *patches { Ok(accepted) } else { Err(PutFault::WrongId) }
}

fn no_result() -> PutFault {
    PutFault::Ambiguous { reason: "the answer is not a store result".to_owned() }
}

fn accepted(result: StoreResult, expected: BlobId) -> Result<PublisherStatement, PutFault> {
    let (text, accepted) = match result {
        StoreResult::NewlyCreated(created) => {
            let object = created.blob_object;
            let end_epoch = object.storage.map(|storage| storage.end_epoch);
            (object.blob_id, PublisherStatement { newly_created: true, end_epoch })
        }
        StoreResult::AlreadyCertified(certified) => {
            let end_epoch = Some(certified.end_epoch);
            (certified.blob_id, PublisherStatement { newly_created: false, end_epoch })
        }
        StoreResult::MarkedInvalid(_) => return Err(PutFault::Invalid),
        // The phase says where it stopped, but not how much was undone.
        StoreResult::Error(failure) => {
            let phase = clean(&failure.failure_phase);
            return Err(PutFault::Ambiguous { reason: format!("the publisher failed in phase \"{phase}\"") });
        }
    };
    if text.parse() == Ok(expected) { Ok(accepted) } else { Err(PutFault::WrongId) }
}

/// A `Retry-After`, in seconds or as a date. A date counts from the answer's own `Date`, since the clocks may differ.
pub(super) fn retry_after(value: &str, answered: Option<&str>) -> Option<Duration> {
    if let Ok(seconds) = value.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let here = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = answered.and_then(|date| http_date(date.trim())).unwrap_or_else(here);
    Some(Duration::from_secs(http_date(value.trim())?.saturating_sub(now)))
}

/// A store's text on one line, without control characters, cut.
fn clean(text: &str) -> String {
    let visible: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON_CHARS).collect();
    visible.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(status: u16, body: &str) -> Failure {
        Failure { status, retry_after: None, body: body.as_bytes().to_vec(), way: String::new() }
    }

    fn reason(fault: &PutFault) -> &'static str {
        match fault {
            PutFault::Busy { .. } => "busy",
            PutFault::Refused { .. } => "refused",
            PutFault::TooLarge => "too large",
            PutFault::Ambiguous { .. } => "ambiguous",
            PutFault::WrongId => "wrong",
            PutFault::Invalid => "invalid",
        }
    }

    #[test]
    fn a_failed_put_is_in_doubt_unless_it_was_turned_away() {
        for (statuses, expected) in [
            (&[303, 408, 500, 502, 503, 504, 520][..], "ambiguous"),
            (&[429], "busy"),
            (&[301, 400, 401, 403, 404, 405, 451], "refused"),
            (&[413], "too large"),
        ] {
            for status in statuses {
                assert_eq!(reason(&failure(*status, "").of_put(true)), expected, "{status}");
            }
        }
    }

    #[test]
    fn a_failed_read_is_missing_busy_or_refused() {
        for (statuses, expected) in [
            (&[404][..], ReadFault::Missing),
            (&[408, 425, 429, 500, 502, 503, 504, 520], ReadFault::busy("HTTP")),
            (&[301, 400, 401, 403, 405, 416, 451, 501], ReadFault::Refused { reason: "HTTP".to_owned() }),
        ] {
            for status in statuses {
                let found = match failure(*status, "").of_get() {
                    ReadFault::Busy { .. } => ReadFault::busy("HTTP"),
                    ReadFault::Refused { .. } => ReadFault::Refused { reason: "HTTP".to_owned() },
                    other => other,
                };
                assert_eq!(found, expected, "{status}");
            }
        }
    }

    #[test]
    fn foreign_text_is_cut_and_kept_on_one_line() {
        let text = format!("a\n\x1b[31m{}", "x".repeat(1000));
        let ReadFault::Refused { reason } = failure(400, &text).of_get() else { panic!("not refused") };
        assert!(reason.chars().count() < 140 && !reason.contains(char::is_control), "{reason}");
        assert_eq!(failure(451, "<html>").of_get(), ReadFault::Refused { reason: "HTTP 451".to_owned() });
    }

    #[test]
    fn a_quilt_is_stored_only_under_our_own_patch_ids() {
        let id = BlobId([7; 32]);
        let answer = |patches: &str| {
            format!(
                r#"{{"blobStoreResult":{{"alreadyCertified":{{"blobId":"{id}","endEpoch":3}}}},"storedQuiltBlobs":[{patches}]}}"#
            )
        };
        let ours = BTreeMap::from([("a".to_owned(), "A".to_owned()), ("b".to_owned(), "B".to_owned())]);
        let [a, b] = [r#"{"identifier":"a","quiltPatchId":"A"}"#, r#"{"identifier":"b","quiltPatchId":"B"}"#];
        let good = answer(&format!("{b},{a}"));
        assert_eq!(quilt_stored(good.as_bytes(), id, &ours).unwrap().end_epoch, Some(3));
        for bad in
            [a.to_owned(), format!("{a},{b},{b}"), format!("{a},{}", b.replace('B', "C")), String::new()]
        {
            assert_eq!(quilt_stored(answer(&bad).as_bytes(), id, &ours), Err(PutFault::WrongId), "{bad}");
        }
        assert_eq!(quilt_stored(good.as_bytes(), BlobId([8; 32]), &ours), Err(PutFault::WrongId));
    }

    #[test]
    fn a_missing_route_is_not_a_missing_head() {
        let none = r#"{"error":{"details":[{"reason":"HEAD_NOT_FOUND"}]}}"#;
        assert_eq!(failure(404, none).of_resolve(), None);
        assert!(matches!(failure(404, "").of_resolve(), Some(StoreError::Refused { .. })));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let answered = Some("Wed, 21 Oct 2015 07:28:00 GMT");
        for (value, seconds) in [
            (" 7 ", Some(7)),
            ("Wed, 21 Oct 2015 07:28:09 GMT", Some(9)),
            ("Wednesday, 21-Oct-15 07:28:09 GMT", Some(9)),
            ("Wed, 21 Oct 2015 07:27:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ] {
            assert_eq!(retry_after(value, answered), seconds.map(Duration::from_secs), "{value}");
        }
        assert_eq!(
            retry_after("Wed, 21 Oct 2015 07:28:09 GMT", None),
            Some(Duration::ZERO),
            "by our own clock"
        );
    }
}
