//! Counters of what an [`HttpStore`](super::HttpStore) does, without any ID or content.

use std::sync::atomic::{AtomicU64, Ordering};

use baton_proto::store::StoreError;
use serde::Serialize;

/// What was called.
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

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are those of the errors")]
pub enum Ended {
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
const ENDINGS: [Ended; 7] = [
    Ended::Ok,
    Ended::NotFound,
    Ended::Unavailable,
    Ended::OutcomeUnknown,
    Ended::TooLarge,
    Ended::WrongContent,
    Ended::Refused,
];

impl Ended {
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

/// How often a call ended in a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct OperationCount {
    /// The call.
    pub operation: Operation,
    /// How it ended.
    pub ended: Ended,
    /// How often.
    pub count: u64,
}

/// What one source did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceSnapshot {
    /// Scheme, host and port.
    pub origin: String,
    /// Requests sent to it.
    pub requests: u64,
    /// Requests that it failed or refused, wrong content included; a 404 is an answer.
    pub failures: u64,
    /// Answers with other content than asked for, or a wrong ID.
    pub wrong_content: u64,
    /// What it usually takes to answer, in milliseconds, if measured in the last minutes.
    pub latency_ms: Option<u64>,
    /// For how many milliseconds it stays behind the others.
    pub cooling_ms: u64,
}

/// The counters at one time, since the store was set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HttpStoreMetrics {
    /// Calls by how they ended; only those that happened.
    pub operations: Vec<OperationCount>,
    /// Bytes of bodies sent, also of PUTs that failed.
    pub bytes_sent: u64,
    /// Bytes of bodies received, also of those thrown away.
    pub bytes_received: u64,
    /// Rounds begun anew over the sources.
    pub retries: u64,
    /// Further sources asked because one took long.
    pub hedges: u64,
    /// Reads that such a source won.
    pub hedges_won: u64,
    /// Looks for a blob whose PUT was in doubt.
    pub probes: u64,
    /// PUTs sent again after such a look.
    pub resends: u64,
    /// The publishers as configured.
    pub publishers: Vec<SourceSnapshot>,
    /// The aggregators as configured.
    pub aggregators: Vec<SourceSnapshot>,
}

impl HttpStoreMetrics {
    /// How often a call ended in a way.
    #[must_use]
    pub fn count(&self, operation: Operation, ended: Ended) -> u64 {
        let counted = self.operations.iter().find(|one| one.operation == operation && one.ended == ended);
        counted.map_or(0, |one| one.count)
    }
}

impl Metrics {
    pub(super) fn ended<T>(&self, operation: Operation, result: &Result<T, StoreError>) {
        let row = OPERATIONS.iter().position(|one| *one == operation);
        let column = ENDINGS.iter().position(|one| *one == Ended::of(result));
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
            assert_eq!(snapshot.count(operation, Ended::Ok), 1);
            assert_eq!(snapshot.count(operation, Ended::NotFound), 2);
            assert_eq!(snapshot.count(operation, Ended::Refused), 0);
        }
        let text = serde_json::to_string(&snapshot).unwrap();
        assert!(text.contains(r#"{"operation":"quilt","ended":"not_found","count":2}"#), "{text}");
    }
}
