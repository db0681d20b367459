//! Several head indexes as one: what is published goes to all of them, and what is asked is asked of all of them, so that
//! some may be away, lose records or withhold them without anybody being misled.
//!
//! None is trusted. A record counts only with the session's own signature, and the highest sequence is taken; an index
//! that shows less than another is named. Which answers mean what is decided by pure functions ([`judge`], [`tally`]).

use std::{sync::Arc, time::Duration};

use baton_proto::{
    ErrorCode, Signed,
    head::HeadRecord,
    ids::HeadIndexKey,
    store::{HeadIndex, StoreError, StoreFuture},
};
use futures::future::join_all;
use tokio::time::timeout;

use crate::error::ClientError;

/// Most indexes of a client, beside the nodes' DHT: each is asked at every look, and a few are enough to outvote what some
/// withhold.
pub const MAX_HEAD_INDEXES: usize = 8;

/// A head index with the name by which users are told of it.
#[derive(Clone)]
pub struct NamedIndex {
    /// A URL, or what it is.
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

/// How an index stands beside the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexStanding {
    /// Its name.
    pub name: String,
    /// What it showed.
    pub shows: IndexShows,
}

/// What an index showed of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexShows {
    /// The newest record that any of them has.
    Newest {
        /// Its number.
        sequence: u64,
    },
    /// An older record than another has: it withholds the newest, lost it, or never got it.
    Behind {
        /// Its number.
        sequence: u64,
    },
    /// No record.
    Nothing,
    /// Something that is no record of this session.
    Wrong {
        /// What is wrong with it.
        code: ErrorCode,
    },
    /// It did not answer, or not in time.
    Unavailable {
        /// Why.
        reason: String,
    },
}

impl IndexShows {
    /// Whether it answered with a record of the session, or with none.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Newest { .. } | Self::Behind { .. } | Self::Nothing)
    }
}

impl std::fmt::Display for IndexShows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Newest { .. } => f.write_str("has the newest record"),
            Self::Behind { .. } => f.write_str("behind, or withholding: it shows an older record"),
            Self::Nothing => f.write_str("has no record"),
            Self::Wrong { code } => write!(f, "shows what is no record of this session: {code}"),
            Self::Unavailable { reason } => write!(f, "unavailable: {reason}"),
        }
    }
}

/// What a look at all of them gave.
#[derive(Debug, Clone)]
pub(crate) struct Look {
    /// The valid record with the highest sequence.
    pub(crate) best: Option<Signed<HeadRecord>>,
    /// What each showed.
    pub(crate) standings: Vec<IndexStanding>,
}

/// What came of offering a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offered {
    /// How many took it.
    pub(crate) taken: usize,
    /// Whether one has a newer record: by its own word where nobody took ours, and proven by that record otherwise.
    pub(crate) superseded: bool,
    /// Those that did not take it, each with why.
    pub(crate) failed: Vec<(String, StoreError)>,
}

impl Offered {
    /// As a single index would have answered: one that took it is enough.
    ///
    /// # Errors
    /// [`StoreError::HeadSuperseded`] before anything else; what can be tried again before what cannot.
    pub(crate) fn result(&self) -> Result<(), StoreError> {
        if self.superseded {
            return Err(StoreError::HeadSuperseded);
        }
        if self.taken > 0 {
            return Ok(());
        }
        let errors = || self.failed.iter().map(|(_, error)| error);
        let error = errors().find(|error| error.is_retryable()).or_else(|| errors().next());
        Err(error.cloned().unwrap_or_else(|| unavailable("no head index is configured")))
    }

    /// The names of those that did not take it.
    pub(crate) fn missing(&self) -> Vec<String> {
        self.failed.iter().map(|(name, _)| name.clone()).collect()
    }
}

impl HeadIndexes {
    /// One index of these, each asked for at most `wait`.
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

    /// Asks all of them at once.
    pub(crate) async fn look(&self, key: HeadIndexKey) -> Look {
        self.look_within(key, self.wait).await
    }

    /// As [`HeadIndexes::look`], each asked for at most `wait` where that is shorter than usual.
    pub(crate) async fn look_within(&self, key: HeadIndexKey, wait: Duration) -> Look {
        let wait = wait.min(self.wait);
        let asked = self.members.iter().map(|member| async move {
            let answer = timeout(wait, member.index.resolve(key)).await;
            (member.name.clone(), answer.unwrap_or_else(|_| Err(unavailable("it did not answer in time"))))
        });
        let answers = join_all(asked).await;
        let look = judge(answers.into_iter().map(|(name, answer)| (name, read(answer, key))).collect());
        look.tell();
        look
    }

    /// Offers a record to all of them at once, or to those with these names.
    pub(crate) async fn offer(&self, record: &[u8], only: Option<&[String]>) -> Offered {
        let wanted = |member: &&NamedIndex| only.is_none_or(|names| names.contains(&member.name));
        let offers = self.members.iter().filter(wanted).map(|member| async move {
            let answer = timeout(self.wait, member.index.publish(record.to_vec())).await;
            let answer = answer.unwrap_or_else(|_| Err(unavailable("it did not answer in time")));
            // Whoever claims to have a newer one can show it.
            let shown = match &answer {
                Err(StoreError::HeadSuperseded) => self.newer(member, record).await,
                _ => false,
            };
            (member.name.clone(), answer, shown)
        });
        let offered = tally(join_all(offers).await);
        for (name, error) in &offered.failed {
            tracing::warn!(index = name, %error, "a head index did not take a head record");
        }
        offered
    }

    /// Whether an index shows a newer record than this one.
    async fn newer(&self, member: &NamedIndex, record: &[u8]) -> bool {
        let Ok(ours) = Signed::<HeadRecord>::verify_encoded(record) else { return false };
        let key = ours.index_key();
        let Ok(answer) = timeout(self.wait, member.index.resolve(key)).await else { return false };
        matches!(read(answer, key), Shown::Record(theirs) if ranks_above(&theirs, &ours))
    }
}

impl HeadIndex for HeadIndexes {
    fn publish<'a>(&'a self, record: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.offer(&record, None).await.result() })
    }

    fn resolve<'a>(&'a self, key: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            let look = self.look(key).await;
            match &look.best {
                Some(record) => Ok(Some(record.encode())),
                None if look.standings.iter().any(|one| one.shows.is_answer()) => Ok(None),
                None => Err(look.silence()),
            }
        })
    }
}

impl std::fmt::Debug for HeadIndexes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.members.iter().map(|member| &member.name)).finish()
    }
}

impl Look {
    /// Why there is nothing to go by, where none of them answered.
    pub(crate) fn silence(&self) -> StoreError {
        let told: Vec<String> =
            self.standings.iter().map(|one| format!("{} {}", one.name, one.shows)).collect();
        unavailable(&format!("the head indexes do not tell: {}", told.join("; ")))
    }

    /// Whether one of them did not answer properly, so that it may have what the others do not show.
    pub(crate) fn is_partial(&self) -> bool {
        self.standings.iter().any(|one| !one.shows.is_answer())
    }

    /// The names of those that have less than the newest record.
    pub(crate) fn laggards(&self) -> Vec<String> {
        let lags =
            |one: &&IndexStanding| matches!(one.shows, IndexShows::Behind { .. } | IndexShows::Nothing);
        if self.best.is_none() {
            return Vec::new();
        }
        self.standings.iter().filter(lags).map(|one| one.name.clone()).collect()
    }

    fn tell(&self) {
        for one in &self.standings {
            match &one.shows {
                IndexShows::Newest { .. } => {}
                IndexShows::Nothing if self.best.is_none() => {}
                shows => tracing::warn!(index = one.name, %shows, "a head index"),
            }
        }
    }
}

/// An answer, read.
#[derive(Debug, Clone)]
pub(crate) enum Shown {
    Record(Box<Signed<HeadRecord>>),
    Nothing,
    Wrong(ErrorCode),
    Unavailable(String),
}

/// Reads an answer: only a signed record of this key is one.
fn read(answer: Result<Option<Vec<u8>>, StoreError>, key: HeadIndexKey) -> Shown {
    let bytes = match answer {
        Ok(Some(bytes)) => bytes,
        Ok(None) | Err(StoreError::NotFound) => return Shown::Nothing,
        Err(error) => return Shown::Unavailable(error.to_string()),
    };
    match Signed::<HeadRecord>::verify_encoded(&bytes) {
        Ok(record) if record.index_key() == key => Shown::Record(Box::new(record)),
        Ok(_) => Shown::Wrong(ErrorCode::BadSignature),
        Err(code) => Shown::Wrong(code),
    }
}

/// Whether a record goes before another: by number, and by its bytes where two devices chose the same one, so that all
/// devices take the same.
fn ranks_above(one: &Signed<HeadRecord>, other: &Signed<HeadRecord>) -> bool {
    let rank = |record: &Signed<HeadRecord>| (record.sequence, std::cmp::Reverse(record.encode()));
    rank(one) > rank(other)
}

/// What the answers of several indexes mean together.
pub(crate) fn judge(answers: Vec<(String, Shown)>) -> Look {
    let mut best: Option<Signed<HeadRecord>> = None;
    for (_, shown) in &answers {
        if let Shown::Record(record) = shown
            && best.as_ref().is_none_or(|best| ranks_above(record, best))
        {
            best = Some((**record).clone());
        }
    }
    let newest = best.as_ref().map(Signed::encode);
    let standing = |(name, shown): (String, Shown)| {
        let shows = match shown {
            Shown::Record(record) => {
                let sequence = record.sequence;
                if newest.as_ref() == Some(&record.encode()) {
                    IndexShows::Newest { sequence }
                } else {
                    IndexShows::Behind { sequence }
                }
            }
            Shown::Nothing => IndexShows::Nothing,
            Shown::Wrong(code) => IndexShows::Wrong { code },
            Shown::Unavailable(reason) => IndexShows::Unavailable { reason },
        };
        IndexStanding { name, shows }
    };
    Look { best, standings: answers.into_iter().map(standing).collect() }
}

/// What the answers to an offer mean together: each with whether a newer record was shown.
pub(crate) fn tally(answers: Vec<(String, Result<(), StoreError>, bool)>) -> Offered {
    let taken = answers.iter().filter(|(_, answer, _)| answer.is_ok()).count();
    // One that only claims a newer record holds up nobody while others take ours.
    let superseded = answers.iter().any(|(_, answer, shown)| {
        matches!(answer, Err(StoreError::HeadSuperseded)) && (*shown || taken == 0)
    });
    let failed = answers.into_iter().filter_map(|(name, answer, _)| Some((name, answer.err()?)));
    Offered { taken, superseded, failed: failed.collect() }
}

fn unavailable(reason: &str) -> StoreError {
    StoreError::Unavailable { reason: reason.to_owned(), retry_after: None }
}

#[cfg(test)]
mod tests;
