//! The step after a failed attempt: a pure decision from the failure and the earlier attempts.

use std::time::Duration;

use baton_keys::session::RecordKey;
use baton_mesh::{FrameError, OpenError};
use baton_proto::{
    ErrorCode, Retry, SignedObject,
    ids::{ModelId, NodeId},
    receipt::ProgressNote,
    turn::{ResumePrefix, resume_tokens_hash},
    wire::failure_reason,
};
use zeroize::Zeroizing;

use crate::{
    logprobs::TokenReport,
    network::{exchange::ExchangeError, reputation::NodeFailure},
};

/// Pause before the same node is asked again, if it named none.
const DEFAULT_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause within one turn; a node that wants a longer pause is asked later, or never.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct AttemptFailure {
    /// The code, if the node or the client's own checks named one.
    pub(crate) code: Option<ErrorCode>,
    /// The failure in words.
    pub(crate) reason: String,
    /// How long the node asked to wait.
    pub(crate) retry_after_ms: u32,
    /// The state of the attempt.
    pub(crate) status: AttemptStatus,
    /// The failure held against its node.
    pub(crate) fault: NodeFailure,
    /// The other known nodes, if none of them answers either.
    pub(crate) silent_others: Option<Vec<NodeId>>,
    /// The part of the answer that had arrived.
    pub(crate) partial: Box<PartialAnswer>,
    /// The node's last progress note.
    pub(crate) note: Option<Box<SignedObject<ProgressNote>>>,
    /// Whether the node was asked about the turn after its silence, and does not run it.
    pub(crate) disowned: bool,
}

/// The state of a failed attempt, as far as the client knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptStatus {
    /// Nothing was signed: the node never saw the turn, or said so itself. There is nothing to ask it.
    NothingSigned,
    /// A relayer reports that the node refused. The node may have the turn nevertheless.
    Hearsay,
    /// The reply was lost: its author may have sealed the turn.
    Lost,
    /// The client's own checks found the reply wrong; its author is no longer trusted about it.
    Wrong,
}

/// The arrived part of an answer that did not end well, including an earlier node's part; never in a log.
#[derive(Default)]
pub(crate) struct PartialAnswer {
    /// Its text.
    pub(crate) text: Zeroizing<String>,
    /// Its tokens, if the engine reports their ids: the text is exactly theirs.
    pub(crate) ids: Zeroizing<Vec<u32>>,
    /// Their probabilities, if requested.
    pub(crate) reports: Zeroizing<Vec<TokenReport>>,
}

impl std::fmt::Debug for PartialAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PartialAnswer({} bytes, {} tokens)", self.text.len(), self.ids.len())
    }
}

/// The beginning of an answer whose node failed, for another node to continue.
pub(crate) struct AnswerPrefix {
    /// The node that made the last part.
    pub(crate) author: NodeId,
    /// Its attempt, whose authorisation names the part that it continued.
    pub(crate) attempt: u32,
    /// The model, which must be the same.
    pub(crate) model: ModelId,
    /// The beginning itself; ids are never empty.
    pub(crate) partial: PartialAnswer,
}

impl AnswerPrefix {
    /// The reference to it in the next authorisation.
    pub(crate) fn prefix(&self, record_key: &RecordKey) -> ResumePrefix {
        ResumePrefix {
            author: self.author,
            attempt: self.attempt,
            token_count: u32::try_from(self.partial.ids.len()).unwrap_or(u32::MAX),
            tokens_hash: resume_tokens_hash(record_key, &self.partial.ids),
        }
    }
}

/// The fate of the shown text when an attempt fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carry {
    /// Nothing new was shown: the earlier text stays.
    Same,
    /// Another node may continue all of it.
    Longer,
    /// This attempt's addition is void; the earlier text stays.
    Back,
    /// All of it is void.
    Void,
}

/// Decides the fate of the shown text:
/// - The text of a node whose reply was wrong is void.
/// - Text from an engine that reports no ids cannot be continued.
/// - A beginning that a node rejects is void.
pub(crate) fn carry(begun: Option<&AnswerPrefix>, failure: &AttemptFailure) -> Carry {
    let (text, ids) = begun.map_or((0, 0), |begun| (begun.partial.text.len(), begun.partial.ids.len()));
    let rejected = failure.code == Some(ErrorCode::PayloadRejected) && failure.is_claim();
    let longer = failure.partial.text.len() > text || failure.partial.ids.len() > ids;
    match failure.status {
        _ if begun.is_some() && rejected => Carry::Void,
        _ if !longer => Carry::Same,
        AttemptStatus::Wrong => Carry::Back,
        _ if failure.partial.ids.len() > ids => Carry::Longer,
        _ => Carry::Back,
    }
}

impl AttemptFailure {
    /// The node's answer failed a check of the client.
    pub(crate) fn check(code: ErrorCode) -> Self {
        Self {
            code: Some(code),
            reason: code.to_string(),
            retry_after_ms: 0,
            status: AttemptStatus::Wrong,
            fault: NodeFailure::Lied,
            silent_others: None,
            partial: Box::default(),
            note: None,
            disowned: false,
        }
    }

    /// The reply ended, or stalled, before its last chunk.
    pub(crate) fn lost(reason: String) -> Self {
        Self {
            reason,
            status: AttemptStatus::Lost,
            fault: NodeFailure::CutOff,
            ..Self::check(ErrorCode::StreamTruncated)
        }
    }

    /// The reply stopped, or took too long.
    pub(crate) fn stalled(reason: String) -> Self {
        Self { fault: NodeFailure::Stalled, ..Self::lost(reason) }
    }

    /// The same failure without blame: the network or this machine may be at fault.
    #[must_use]
    pub(crate) fn unclear(self) -> Self {
        Self { fault: NodeFailure::Unclear, ..self }
    }

    /// The node itself reports that the turn failed.
    pub(crate) fn node(code: ErrorCode, retry_after_ms: u32) -> Self {
        let fault = match code {
            ErrorCode::Busy | ErrorCode::RateLimited => NodeFailure::Busy,
            _ => NodeFailure::Refused,
        };
        Self { retry_after_ms, status: AttemptStatus::NothingSigned, fault, ..Self::check(code) }
    }

    /// The same failure in the node's own words, if it gave any: they say more than the code.
    pub(crate) fn because(self, words: &str) -> Self {
        let words = failure_reason(words);
        if words.is_empty() { self } else { Self { reason: words, ..self } }
    }

    /// Whether the node would refuse the same turn again: only another node, or another request, helps.
    pub(crate) fn is_final(&self) -> bool {
        use ErrorCode::{BackendDenied, GrantRequired, ModelUnavailable, QuotaExceeded, RateLimited};
        let Some(code) = self.code.filter(|_| self.is_claim()) else { return false };
        let pause = Duration::from_millis(u64::from(self.retry_after_ms));
        match code {
            BackendDenied | GrantRequired | ModelUnavailable => true,
            // Without a pause, it is a limit of one turn.
            QuotaExceeded => pause.is_zero() || pause > MAX_PAUSE,
            RateLimited => pause > MAX_PAUSE,
            code => code.retry() == Retry::Never,
        }
    }

    /// The same failure, after its author was asked about the turn and gave a wrong answer.
    ///
    /// If memory was added, the relayer that added it may be at fault.
    pub(crate) fn exposed(self, code: ErrorCode, memory: bool) -> Self {
        let reason = format!("what the node says of the turn is not what it sent: {code}");
        let fault = if memory || code == ErrorCode::StatusUnknown { self.fault } else { NodeFailure::Lied };
        Self { code: Some(code), reason, status: AttemptStatus::Wrong, fault, ..self }
    }

    /// Whether the code is a peer's claim, which the client could not check.
    pub(crate) fn is_claim(&self) -> bool {
        matches!(self.status, AttemptStatus::NothingSigned | AttemptStatus::Hearsay)
    }
}

impl From<ExchangeError> for AttemptFailure {
    fn from(error: ExchangeError) -> Self {
        let reason = error.to_string();
        match error {
            ExchangeError::Refused { code, retry_after_ms } => Self::node(code, retry_after_ms),
            ExchangeError::Broken(code) => Self::check(code),
            // The substream never opened, so the node never saw the turn.
            ExchangeError::Open(error) => {
                let fault = match error {
                    OpenError::Busy | OpenError::Closed => NodeFailure::Unclear,
                    _ => NodeFailure::Unreachable,
                };
                let status = AttemptStatus::NothingSigned;
                Self { code: None, reason, status, fault, ..Self::check(ErrorCode::Internal) }
            }
            // No honest node announces such a frame.
            ExchangeError::Frame(FrameError::TooLarge(_)) => {
                Self { reason, ..Self::check(ErrorCode::FrameTooLarge) }
            }
            ExchangeError::Frame(FrameError::Timeout) => Self::stalled(reason),
            ExchangeError::Frame(_) | ExchangeError::Ended => Self::lost(reason),
        }
    }
}

/// The step after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Another attempt; at the failed node only if there is no other.
    Elsewhere,
    /// Another attempt, at the same node if it is still the best, after a pause.
    Here(Duration),
    /// Fetch the node's record again, then another attempt.
    RenewRecord,
    /// Check the store, restore missing blobs, send them along, then another attempt.
    RepairStore,
    /// Include the location of the history, and publish the head again, then another attempt.
    Locate,
    /// Nodes agree that the turn itself is wrong: no further attempt now. It stays pending, because no node
    /// signed its claim.
    Stop,
}

/// Decides the next step. `repeated` says whether the same code, from the same source, already ended an
/// earlier attempt of this turn, at another node if there is one. A remedy that did not help is not tried
/// again.
pub(crate) fn next_step(failure: &AttemptFailure, with_locator: bool, repeated: bool) -> NextStep {
    let Some(code) = failure.code else { return NextStep::Elsewhere };
    let pause = Duration::from_millis(u64::from(failure.retry_after_ms)).clamp(DEFAULT_PAUSE, MAX_PAUSE);
    match code {
        ErrorCode::BlobUnavailable | ErrorCode::HeadMismatch if !with_locator && !repeated => {
            NextStep::Locate
        }
        ErrorCode::BlobUnavailable | ErrorCode::BlobHashMismatch if !repeated => NextStep::RepairStore,
        ErrorCode::KxExpired if !repeated => NextStep::RenewRecord,
        // Both concern a clock; one fresh authorisation is worth a try.
        ErrorCode::Expired | ErrorCode::NotYetValid if repeated => NextStep::Elsewhere,
        ErrorCode::RateLimited => NextStep::Elsewhere,
        code => match code.retry() {
            Retry::Here if repeated => NextStep::Elsewhere,
            Retry::Here => NextStep::Here(pause),
            Retry::Elsewhere => NextStep::Elsewhere,
            // An answer that fails the client's checks is the node's fault, not the turn's.
            Retry::Never if !failure.is_claim() => NextStep::Elsewhere,
            // One node's unsigned claim does not end a turn.
            Retry::Never if !repeated => NextStep::Elsewhere,
            Retry::Never => NextStep::Stop,
        },
    }
}

/// Pause before a node that already failed in this turn is asked again, because there is no other.
pub(crate) fn pause_before_repeat(attempt: u32, retry_after_ms: u32) -> Duration {
    let grown = DEFAULT_PAUSE * 2u32.saturating_pow(attempt.min(5));
    grown.max(Duration::from_millis(u64::from(retry_after_ms))).min(MAX_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hearsay(code: ErrorCode) -> AttemptFailure {
        AttemptFailure { status: AttemptStatus::Hearsay, ..AttemptFailure::node(code, 0) }
    }

    #[test]
    fn follows_the_codes_advice_and_cures_once() {
        use ErrorCode as C;
        let cases = [
            (AttemptFailure::node(C::Busy, 0), true, false, NextStep::Elsewhere),
            (AttemptFailure::node(C::ModelUnavailable, 0), true, false, NextStep::Elsewhere),
            (AttemptFailure::node(C::Internal, 0), true, true, NextStep::Elsewhere),
            (AttemptFailure::node(C::KxExpired, 0), true, false, NextStep::RenewRecord),
            (AttemptFailure::node(C::KxExpired, 0), true, true, NextStep::Elsewhere),
            (AttemptFailure::node(C::BlobUnavailable, 0), true, false, NextStep::RepairStore),
            (AttemptFailure::node(C::BlobUnavailable, 0), true, true, NextStep::Elsewhere),
            (AttemptFailure::node(C::BlobHashMismatch, 0), true, false, NextStep::RepairStore),
            (AttemptFailure::node(C::BlobUnavailable, 0), false, false, NextStep::Locate),
            (AttemptFailure::node(C::HeadMismatch, 0), false, false, NextStep::Locate),
            (AttemptFailure::node(C::HeadMismatch, 0), true, false, NextStep::Elsewhere),
            (AttemptFailure::node(C::Expired, 900), true, false, NextStep::Here(Duration::from_millis(900))),
            (AttemptFailure::node(C::Expired, 0), true, false, NextStep::Here(DEFAULT_PAUSE)),
            (AttemptFailure::node(C::Expired, 0), true, true, NextStep::Elsewhere),
            (AttemptFailure::node(C::ContextOverflow, 0), true, false, NextStep::Elsewhere),
            (AttemptFailure::node(C::ContextOverflow, 0), true, true, NextStep::Stop),
            (AttemptFailure::node(C::PayloadRejected, 0), true, false, NextStep::Elsewhere),
            (hearsay(C::PayloadRejected), true, false, NextStep::Elsewhere),
            (hearsay(C::PayloadRejected), true, true, NextStep::Stop),
            (AttemptFailure::check(C::NonCanonical), true, true, NextStep::Elsewhere),
            (AttemptFailure::check(C::ReceiptMismatch), true, false, NextStep::Elsewhere),
            (AttemptFailure::check(C::BlobMismatch), true, true, NextStep::Elsewhere),
            (AttemptFailure::check(C::BadNodeSignature), true, false, NextStep::Elsewhere),
            (AttemptFailure::check(C::NonCanonical), true, false, NextStep::Elsewhere),
            (ExchangeError::Ended.into(), true, false, NextStep::Elsewhere),
        ];
        for (failure, with_locator, seen, expected) in cases {
            assert_eq!(next_step(&failure, with_locator, seen), expected, "{failure:?}");
        }
    }

    fn partial(tokens: u32) -> PartialAnswer {
        PartialAnswer {
            text: Zeroizing::new("x".repeat(tokens as usize)),
            ids: Zeroizing::new((0..tokens).collect()),
            reports: Zeroizing::default(),
        }
    }

    #[test]
    fn what_was_shown_is_continued_unless_its_node_was_caught_or_reports_no_tokens() {
        let begun = |tokens| AnswerPrefix {
            author: NodeId([1; 32]),
            attempt: 0,
            model: ModelId([2; 32]),
            partial: partial(tokens),
        };
        let lost =
            |partial| AttemptFailure { partial: Box::new(partial), ..AttemptFailure::lost(String::new()) };
        let wrong = |partial| AttemptFailure {
            partial: Box::new(partial),
            ..AttemptFailure::check(ErrorCode::ReceiptMismatch)
        };
        assert_eq!(carry(None, &lost(partial(0))), Carry::Same);
        assert_eq!(carry(None, &lost(partial(3))), Carry::Longer);
        assert_eq!(carry(Some(&begun(3)), &lost(partial(5))), Carry::Longer);
        assert_eq!(carry(Some(&begun(3)), &lost(PartialAnswer::default())), Carry::Same, "it never began");
        assert_eq!(carry(Some(&begun(3)), &lost(partial(3))), Carry::Same);
        assert_eq!(carry(Some(&begun(3)), &wrong(partial(5))), Carry::Back);
        assert_eq!(carry(None, &wrong(partial(5))), Carry::Back);
        let words = PartialAnswer { ids: Zeroizing::default(), ..partial(5) };
        assert_eq!(carry(None, &lost(words)), Carry::Back, "no ids");
        let rejected = AttemptFailure::node(ErrorCode::PayloadRejected, 0);
        assert_eq!(carry(Some(&begun(3)), &rejected), Carry::Void);
        assert_eq!(carry(None, &rejected), Carry::Same);
    }

    #[test]
    fn pauses_are_bounded() {
        let failure = AttemptFailure::node(ErrorCode::Expired, u32::MAX);
        assert_eq!(next_step(&failure, true, false), NextStep::Here(MAX_PAUSE));
        assert_eq!(pause_before_repeat(30, u32::MAX), MAX_PAUSE);
    }
}
