//! Counters of an [`HttpStore`](super::HttpStore), without any ID or content.

use std::sync::atomic::{AtomicU64, Ordering};

use baton_proto::store::StoreError;
use serde::Serialize;

/// The kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the calls'")]
pub enum Operation {
    Read,
    Stat,
    Object,
    Patch,
    Patches,
    Concat,
    Put,
    Quilt,
}

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are those of the errors")]
pub enum OperationOutcome {
    Ok,
    NotFound,
    Unavailable,
    OutcomeUnknown,
    TooLarge,
    WrongContent,
    Refused,
}

const OPERATIONS: [Operation; 8] = [
    Operation::Read,
    Operation::Stat,
    Operation::Object,
    Operation::Patch,
    Operation::Patches,
    Operation::Concat,
    Operation::Put,
    Operation::Quilt,
];
const ENDINGS: [OperationOutcome; 7] = [
    OperationOutcome::Ok,
    OperationOutcome::NotFound,
    OperationOutcome::Unavailable,
    OperationOutcome::OutcomeUnknown,
    OperationOutcome::TooLarge,
    OperationOutcome::WrongContent,
    OperationOutcome::Refused,
];

impl OperationOutcome {
    fn of<T>(result: &Result<T, StoreError>) -> Self {
        match result {
            Ok(_) => Self::Ok,
            Err(StoreError::NotFound) => Self::NotFound,
            Err(StoreError::Unavailable { .. }) => Self::Unavailable,
            Err(StoreError::OutcomeUnknown { .. }) => Self::OutcomeUnknown,
            Err(StoreError::TooLarge { .. }) => Self::TooLarge,
            Err(StoreError::WrongContent) => Self::WrongContent,
            Err(StoreError::Refused { .. } | StoreError::HeadSuperseded) => Self::Refused,
        }
    }
}

/// A counter that only goes up.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one store.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    ended: [[Counter; ENDINGS.len()]; OPERATIONS.len()],
    pub(super) bytes_sent: Counter,
    pub(super) bytes_received: Counter,
    pub(super) retries: Counter,
    pub(super) hedges: Counter,
    pub(super) hedges_won: Counter,
    pub(super) probes: Counter,
    pub(super) resends: Counter,
}

/// Number of calls with the same result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct OperationCount {
    /// The call.
    pub operation: Operation,
    /// The result.
    pub ended: OperationOutcome,
    /// Number of calls.
    pub count: u64,
}

/// Figures of one source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceSnapshot {
    /// Scheme, host and port.
    pub origin: String,
    /// Requests sent to it.
    pub requests: u64,
    /// Failed or refused requests, wrong content included; a 404 is an answer.
    pub failures: u64,
    /// Answers with wrong content or a wrong ID.
    pub wrong_content: u64,
    /// Its usual latency in milliseconds, if measured in the last minutes.
    pub latency_ms: Option<u64>,
    /// Milliseconds for which it stays behind the others.
    pub cooling_ms: u64,
}

/// The counters since the store was set up, at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HttpStoreMetrics {
    /// Calls by result, without zeros.
    pub operations: Vec<OperationCount>,
    /// Bytes of sent bodies, including failed PUTs.
    pub bytes_sent: u64,
    /// Bytes of received bodies, including discarded bodies.
    pub bytes_received: u64,
    /// Repeated rounds over the sources.
    pub retries: u64,
    /// Further sources asked because another was slow.
    pub hedges: u64,
    /// Reads that such a source answered first.
    pub hedges_won: u64,
    /// Searches for a blob whose PUT was in doubt.
    pub probes: u64,
    /// PUTs sent again after such a search.
    pub resends: u64,
    /// The publishers as configured.
    pub publishers: Vec<SourceSnapshot>,
    /// The aggregators as configured.
    pub aggregators: Vec<SourceSnapshot>,
}

impl HttpStoreMetrics {
    /// Number of calls with this result.
    #[must_use]
    pub fn count(&self, operation: Operation, ended: OperationOutcome) -> u64 {
        let counted = self.operations.iter().find(|one| one.operation == operation && one.ended == ended);
        counted.map_or(0, |one| one.count)
    }
}

impl Metrics {
    pub(super) fn ended<T>(&self, operation: Operation, result: &Result<T, StoreError>) {
        let row = OPERATIONS.iter().position(|one| *one == operation);
        let column = ENDINGS.iter().position(|one| *one == OperationOutcome::of(result));
        let cell =
            row.and_then(|row| self.ended.get(row)).zip(column).and_then(|(row, column)| row.get(column));
        if let Some(counter) = cell {
            counter.add(1);
        }
    }

    pub(super) fn snapshot(
        &self,
        publishers: Vec<SourceSnapshot>,
        aggregators: Vec<SourceSnapshot>,
    ) -> HttpStoreMetrics {
        let rows = OPERATIONS.iter().zip(&self.ended);
        let operations = rows
            .flat_map(|(operation, row)| ENDINGS.iter().zip(row).map(move |cell| (*operation, cell)))
            .filter(|(_, (_, counter))| counter.get() > 0)
            .map(|(operation, (ended, counter))| OperationCount {
                operation,
                ended: *ended,
                count: counter.get(),
            })
            .collect();
        HttpStoreMetrics {
            operations,
            bytes_sent: self.bytes_sent.get(),
            bytes_received: self.bytes_received.get(),
            retries: self.retries.get(),
            hedges: self.hedges.get(),
            hedges_won: self.hedges_won.get(),
            probes: self.probes.get(),
            resends: self.resends.get(),
            publishers,
            aggregators,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_a_cell_for_every_ending() {
        let metrics = Metrics::default();
        for operation in OPERATIONS {
            metrics.ended(operation, &Ok(()));
            metrics.ended::<()>(operation, &Err(StoreError::NotFound));
            metrics.ended::<()>(operation, &Err(StoreError::NotFound));
        }
        let snapshot = metrics.snapshot(Vec::new(), Vec::new());
        for operation in OPERATIONS {
            assert_eq!(snapshot.count(operation, OperationOutcome::Ok), 1);
            assert_eq!(snapshot.count(operation, OperationOutcome::NotFound), 2);
            assert_eq!(snapshot.count(operation, OperationOutcome::Refused), 0);
        }
        let text = serde_json::to_string(&snapshot).unwrap();
        assert!(text.contains(r#"{"operation":"quilt","ended":"not_found","count":2}"#), "{text}");
    }
}
