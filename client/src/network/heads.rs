//! Several head indexes as one: each record is published to all of them, and each look queries all of them.
//! So a few may be down, or lose or withhold records, without misleading the client.
//!
//! No index is trusted. A record counts only with the session's own signature, and the highest sequence is the
//! newest; an index that shows less than another is named. Pure functions ([`judge`], [`tally`]) evaluate the
//! answers.

mod first;

use std::{cmp::Ordering, sync::Arc, time::Duration};

use baton_proto::{
    ErrorCode, SignedObject,
    head::{HeadPlace, HeadRecord},
    ids::HeadIndexKey,
    store::{HeadIndex, StoreError, StoreFuture},
};
use futures::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use tokio::time::timeout;

pub use first::FirstIndex;

use crate::{
    error::{ClientError, NO_INDEX_ANSWERS},
    index_status::{IndexAnswer, IndexStatus},
};

/// Most indexes of a client, without the nodes' DHT. Each is queried at every look, and a few are enough to
/// make up for withheld records.
pub const MAX_HEAD_INDEXES: usize = 8;

/// Places of the first round of a look: the present week, and the week before or after.
const FIRST_ROUND: usize = 2;
/// Places of each later round: an index gets this many requests at once.
const LATER_ROUND: usize = 8;

/// How long an offer waits for further indexes after one has taken the record.
const OTHERS_WAIT: Duration = Duration::from_secs(1);

/// A head index with its name for users.
#[derive(Clone)]
pub struct NamedIndex {
    /// A URL or a description.
    pub name: String,
    /// The index.
    pub index: Arc<dyn HeadIndex>,
}

/// Several head indexes.
#[derive(Clone)]
pub struct HeadIndexes {
    members: Vec<NamedIndex>,
    wait: Duration,
}

/// The result of a look at all indexes.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeadLookup {
    /// The valid record with the highest sequence.
    pub(crate) best: Option<SignedObject<HeadRecord>>,
    /// The other valid records, newest first: an index that lags shows an earlier head.
    pub(crate) older: Vec<SignedObject<HeadRecord>>,
    /// The answer of each index.
    pub(crate) statuses: Vec<IndexStatus>,
}

/// The outcome of offering a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublishOutcome {
    /// Names of the indexes that took it.
    pub(crate) taken: Vec<String>,
    /// Whether an index has a newer record. Its word is enough if no index took ours; otherwise it must show
    /// the record.
    pub(crate) superseded: bool,
    /// Names of the indexes that refused it or were not reached, with the reasons.
    pub(crate) failed: Vec<(String, StoreError)>,
}

impl PublishOutcome {
    /// The outcome as a single index's answer: one acceptance is enough.
    ///
    /// # Errors
    /// [`StoreError::HeadSuperseded`] first, then retryable errors before others.
    pub(crate) fn result(&self) -> Result<(), StoreError> {
        if self.superseded {
            return Err(StoreError::HeadSuperseded);
        }
        if !self.taken.is_empty() {
            return Ok(());
        }
        let errors = || self.failed.iter().map(|(_, error)| error);
        let error = errors().find(|error| error.is_retryable()).or_else(|| errors().next());
        Err(error.cloned().unwrap_or_else(|| unavailable("no head index is configured")))
    }
}

impl HeadIndexes {
    /// Combines these indexes; each query waits at most `wait`.
    ///
    /// # Errors
    /// [`ClientError::Config`] for none, or more than [`MAX_HEAD_INDEXES`] and the DHT.
    pub fn new(members: Vec<NamedIndex>, wait: Duration) -> Result<Self, ClientError> {
        if !(1..=MAX_HEAD_INDEXES + 1).contains(&members.len()) {
            let many = members.len();
            return Err(ClientError::Config(format!(
                "{many} head indexes: there are from 1 to {MAX_HEAD_INDEXES}"
            )));
        }
        Ok(Self { members, wait })
    }

    /// These indexes and one more.
    pub(crate) fn with(&self, member: NamedIndex) -> Self {
        Self { members: self.members.iter().cloned().chain([member]).collect(), wait: self.wait }
    }

    /// Looks in these places, newest period first, until an index shows a record: first in the two newest
    /// periods, then in eight at a time. The indexes are queried at once, each place once, with at most `wait`
    /// for an index and a round. An index that did not answer is not queried again.
    pub(crate) async fn look(&self, places: &[HeadPlace], wait: Duration) -> HeadLookup {
        let wait = wait.min(self.wait);
        let mut answers: Vec<(String, Vec<IndexReply>)> =
            self.members.iter().map(|member| (member.name.clone(), Vec::new())).collect();
        let (newest, older) = places.split_at(places.len().min(FIRST_ROUND));
        for round in std::iter::once(newest).chain(older.chunks(LATER_ROUND)) {
            let asked = self.members.iter().zip(&mut answers).map(|(member, (_, answers))| async move {
                if answers.iter().all(|answer| matches!(answer, IndexReply::Nothing)) {
                    answers.extend(member.resolve_all(round, wait).await);
                }
            });
            join_all(asked).await;
            let is_record = |answer: &IndexReply| matches!(answer, IndexReply::Record(_));
            if answers.iter().any(|(_, answers)| answers.iter().any(is_record)) {
                break;
            }
        }
        let look = judge(answers);
        look.log();
        look
    }

    /// Offers a record at once to all indexes whose names are wanted. Once one has taken it, the others get a moment more.
    pub(crate) async fn offer(&self, record: &[u8], wanted: impl Fn(&String) -> bool) -> PublishOutcome {
        let wanted = self.members.iter().filter(|member| wanted(&member.name));
        let mut offers: FuturesUnordered<_> = wanted.map(|member| self.offer_to(member, record)).collect();
        let (mut answers, mut wait) = (Vec::new(), Duration::MAX);
        // An index that does not answer by then is offered the record again later.
        while let Ok(Some(answer)) = timeout(wait, offers.next()).await {
            if answer.1.is_ok() {
                wait = OTHERS_WAIT;
            }
            answers.push(answer);
        }
        drop(offers);
        tally(answers)
    }

    async fn offer_to(&self, member: &NamedIndex, record: &[u8]) -> OfferAnswer {
        let answer = timeout(self.wait, member.index.publish(record.to_vec())).await;
        let answer = answer.unwrap_or_else(|_| Err(unavailable("it did not answer in time")));
        // An index that claims to have a newer record can show it.
        let shown = answer == Err(StoreError::HeadSuperseded) && self.newer(member, record).await;
        (member.name.clone(), answer, shown)
    }

    /// The names of the indexes that have not taken an offer.
    pub(crate) fn lacking(&self, outcome: &PublishOutcome) -> Vec<String> {
        let names = self.members.iter().map(|member| &member.name);
        names.filter(|name| !outcome.taken.contains(name)).cloned().collect()
    }

    /// Whether an index shows a newer record than this one.
    async fn newer(&self, member: &NamedIndex, record: &[u8]) -> bool {
        let Ok(ours) = SignedObject::<HeadRecord>::verify_encoded(record) else { return false };
        let place = HeadPlace { period: ours.period(), key: ours.index_key() };
        let Ok(answer) = timeout(self.wait, member.index.resolve(place.key)).await else { return false };
        matches!(read(answer, place), IndexReply::Record(theirs) if ranks_above(&theirs, &ours))
    }
}

impl NamedIndex {
    /// Its answers about several places.
    async fn resolve_all(&self, places: &[HeadPlace], wait: Duration) -> Vec<IndexReply> {
        let asked = places.iter().map(|place| async move {
            let answer = timeout(wait, self.index.resolve(place.key)).await;
            read(answer.unwrap_or_else(|_| Err(unavailable("it did not answer in time"))), *place)
        });
        join_all(asked).await
    }
}

impl std::fmt::Debug for HeadIndexes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.members.iter().map(|member| &member.name)).finish()
    }
}

impl HeadLookup {
    /// The reasons when no index answered.
    pub(crate) fn no_answer(&self) -> StoreError {
        let answer = |one: &IndexStatus| match &one.shows {
            IndexAnswer::Unavailable { reason } if reason.contains(&one.name) => reason.clone(),
            IndexAnswer::Unavailable { reason } => format!("{}: {reason}", one.name),
            shows => format!("{} {shows}", one.name),
        };
        let answers: Vec<String> = self.statuses.iter().map(answer).collect();
        unavailable(&format!("{NO_INDEX_ANSWERS} ({})", answers.join("; ")))
    }

    /// Whether an index gave no proper answer, so that it may have more than the others show.
    pub(crate) fn is_partial(&self) -> bool {
        self.statuses.iter().any(|one| !one.shows.is_answer())
    }

    /// The names of the indexes with less than the newest record.
    pub(crate) fn outdated(&self) -> Vec<String> {
        let lags =
            |one: &&IndexStatus| matches!(one.shows, IndexAnswer::Behind { .. } | IndexAnswer::Nothing);
        if self.best.is_none() {
            return Vec::new();
        }
        self.statuses.iter().filter(lags).map(|one| one.name.clone()).collect()
    }

    fn log(&self) {
        for one in &self.statuses {
            match &one.shows {
                IndexAnswer::Newest { .. } => {}
                IndexAnswer::Nothing if self.best.is_none() => {}
                shows => tracing::warn!(index = one.name, %shows, "a head index"),
            }
        }
    }
}

/// A parsed answer.
#[derive(Debug, Clone)]
pub(crate) enum IndexReply {
    Record(Box<SignedObject<HeadRecord>>),
    Nothing,
    Wrong(ErrorCode),
    Unavailable(String),
}

/// Parses an answer: only a signed record of this place counts.
fn read(answer: Result<Option<Vec<u8>>, StoreError>, place: HeadPlace) -> IndexReply {
    let bytes = match answer {
        Ok(Some(bytes)) => bytes,
        Ok(None) | Err(StoreError::NotFound) => return IndexReply::Nothing,
        Err(StoreError::Unavailable { reason, .. } | StoreError::Refused { reason }) => {
            return IndexReply::Unavailable(reason);
        }
        Err(error) => return IndexReply::Unavailable(error.to_string()),
    };
    match SignedObject::<HeadRecord>::verify_encoded(&bytes) {
        Ok(record) if record.index_key() == place.key => {
            // So a higher sequence is never in an earlier place.
            let fits = record.period() == place.period;
            if fits {
                IndexReply::Record(Box::new(record))
            } else {
                IndexReply::Wrong(ErrorCode::BadSequence)
            }
        }
        Ok(_) => IndexReply::Wrong(ErrorCode::BadSignature),
        Err(code) => IndexReply::Wrong(code),
    }
}

/// Whether a record ranks above another: by sequence, then by its bytes. So all devices take the same record
/// if two chose the same sequence.
fn ranks_above(one: &SignedObject<HeadRecord>, other: &SignedObject<HeadRecord>) -> bool {
    let rank = |record: &SignedObject<HeadRecord>| (record.sequence, std::cmp::Reverse(record.encode()));
    rank(one) > rank(other)
}

/// Evaluates the answers of several indexes, each about its places from the newest on. An index's status is
/// its first answer other than nothing: what it shows in an older place does not excuse a newer one.
pub(crate) fn judge(answers: Vec<(String, Vec<IndexReply>)>) -> HeadLookup {
    let records = answers.iter().flat_map(|(_, shown)| shown).filter_map(|shown| match shown {
        IndexReply::Record(record) => Some((**record).clone()),
        _ => None,
    });
    let mut older: Vec<SignedObject<HeadRecord>> = records.collect();
    older.sort_by(|one, other| if ranks_above(one, other) { Ordering::Less } else { Ordering::Greater });
    older.dedup_by_key(|record| record.encode());
    let best = (!older.is_empty()).then(|| older.remove(0));
    let newest = best.as_ref().map(SignedObject::encode);
    let status = |(name, shown): (String, Vec<IndexReply>)| {
        let first = shown.into_iter().find(|answer| !matches!(answer, IndexReply::Nothing));
        let shows = match first.unwrap_or(IndexReply::Nothing) {
            IndexReply::Record(record) => {
                let sequence = record.sequence;
                if newest.as_ref() == Some(&record.encode()) {
                    IndexAnswer::Newest { sequence }
                } else {
                    IndexAnswer::Behind { sequence }
                }
            }
            IndexReply::Nothing => IndexAnswer::Nothing,
            IndexReply::Wrong(code) => IndexAnswer::Wrong { code },
            IndexReply::Unavailable(reason) => IndexAnswer::Unavailable { reason },
        };
        IndexStatus { name, shows }
    };
    HeadLookup { best, older, statuses: answers.into_iter().map(status).collect() }
}

/// An index's name, its answer to an offer, and whether it showed a newer record.
pub(crate) type OfferAnswer = (String, Result<(), StoreError>, bool);

/// Evaluates the answers to an offer.
pub(crate) fn tally(answers: Vec<OfferAnswer>) -> PublishOutcome {
    let taken = answers.iter().filter(|(_, answer, _)| answer.is_ok()).map(|(name, ..)| name.clone());
    let taken: Vec<String> = taken.collect();
    // An unproven claim of a newer record delays no caller while other indexes take ours.
    let superseded = answers.iter().any(|(_, answer, shown)| {
        matches!(answer, Err(StoreError::HeadSuperseded)) && (*shown || taken.is_empty())
    });
    let failed: Vec<(String, StoreError)> =
        answers.into_iter().filter_map(|(name, answer, _)| Some((name, answer.err()?))).collect();
    for (name, error) in &failed {
        tracing::warn!(index = name, %error, "a head index did not take a head record");
    }
    PublishOutcome { taken, superseded, failed }
}

fn unavailable(reason: &str) -> StoreError {
    StoreError::Unavailable { reason: reason.to_owned(), retry_after: None }
}

/// A head index that publishes nothing.
pub(crate) struct NoHeadIndex;

impl HeadIndex for NoHeadIndex {
    fn publish<'a>(&'a self, _record: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn resolve<'a>(&'a self, _key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async { Ok(None) })
    }
}

#[cfg(test)]
mod tests;
