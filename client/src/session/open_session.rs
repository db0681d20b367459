//! One open session: its journal and its state, each under a lock, and the permits that keep turns in order.
//!
//! No lock is held across an await. The journal's lock is held for an append, on a blocking thread; the
//! state's lock only for moments.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use baton_keys::{files::FileSecret, session::SessionRoot};
use baton_proto::{
    ErrorCode,
    ids::{LinkHash, SessionId},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    error::ClientError,
    index_status::IndexStatus,
    session::{
        journal::{self, Journal, JournalLocation, JournalLog},
        state::{Entry, SessionHeader, State, StorageTerms},
    },
};

/// How long a look at the head index stays valid, on a device that knows of no other device.
const LOOK_EVERY_MS: u64 = 60 * 60 * 1000;
/// Pause after a look that no index answered, so that not every turn waits for one.
const LOOK_RETRY_MS: u64 = 30 * 1000;

/// How a round of background work treats turns whose author still has time to store them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthorPolicy {
    /// Waits until that time is over: after a start no other task handles them.
    Wait,
    /// Leaves them to their own tasks.
    Skip,
}

/// An open session.
pub(crate) struct Session {
    /// Its id.
    pub(crate) id: SessionId,
    /// Held for a whole write, by blocking threads alone.
    journal: Mutex<Option<Journal>>,
    /// Held for moments. Readers never wait for a journal, whose holder may need the reactor's threads to
    /// continue.
    state: Mutex<State>,
    turns: Arc<Semaphore>,
    /// One computation of a blob ID at a time: a turn waits for a running one and starts no second.
    pub(crate) ids: Semaphore,
    /// One head record published at a time, so that no two tasks publish the same head.
    pub(crate) heads: Semaphore,
    /// One round of background work at a time.
    pub(crate) rounds: Semaphore,
    trouble: Mutex<Option<ErrorCode>>,
    /// State of each head index at the last look.
    statuses: Mutex<Vec<IndexStatus>>,
    /// Times of the last comparison with the head index and of the last try, in milliseconds since the Unix
    /// epoch; 0 for never.
    compared_ms: AtomicU64,
    look_tried_ms: AtomicU64,
    /// Whether the head index had turns that are missing here; then a comparison comes before any other step.
    diverged: AtomicBool,
    /// The head whose last publication failed.
    unpublished: Mutex<Option<LinkHash>>,
    /// Set before a deletion is published, so that no live head is published after it.
    pub(crate) deleted: AtomicBool,
}

impl Session {
    /// Creates a session with these entries after its opening.
    pub(crate) fn create(
        (journals, secret): (&JournalLocation, &FileSecret),
        root: SessionRoot,
        header: SessionHeader,
        entries: Vec<Entry>,
    ) -> Result<Self, ClientError> {
        let mut first = vec![Entry::Opened(header.clone()).encode()];
        first.extend(entries.iter().map(Entry::encode));
        let mut state = State::new(root.clone(), header);
        for entry in entries {
            state.apply(entry)?;
        }
        let journal = Journal::create(journals, secret, &root, &first)?;
        Ok(Self::with(journal, state))
    }

    /// Opens a session's log; none if the log is empty.
    pub(crate) fn open_log(
        log: &Arc<dyn JournalLog>,
        root: &SessionRoot,
    ) -> Result<Option<Self>, ClientError> {
        let Some((journal, contents)) = Journal::open_log(log, root)? else { return Ok(None) };
        Ok(Some(Self::from_journal(journal, replay(Path::new("log"), contents)?)))
    }

    /// Opens a session's file for writing.
    pub(crate) fn open(path: &Path, secret: &FileSecret) -> Result<Self, ClientError> {
        let (journal, contents) = Journal::open(path, secret)?;
        Ok(Self::from_journal(journal, replay(path, contents)?))
    }

    /// Builds the session, and records a torn end if the journal can be written.
    fn from_journal(mut journal: Journal, state: State) -> Self {
        if state.torn_end > 0 {
            let entry = [Entry::TornEnd { bytes: state.torn_end }.encode()];
            // The journal can be read without it, and the head index shows the same.
            if let Err(error) = journal.append(&entry, true) {
                tracing::warn!(%error, "that a journal's end was cut off could not be noted");
            }
        }
        Self::with(journal, state)
    }

    fn with(journal: Journal, state: State) -> Self {
        Self {
            id: state.session_id,
            journal: Mutex::new(Some(journal)),
            state: Mutex::new(state),
            turns: Arc::new(Semaphore::new(1)),
            ids: Semaphore::new(1),
            heads: Semaphore::new(1),
            rounds: Semaphore::new(1),
            trouble: Mutex::new(None),
            statuses: Mutex::new(Vec::new()),
            compared_ms: AtomicU64::new(0),
            look_tried_ms: AtomicU64::new(0),
            diverged: AtomicBool::new(false),
            unpublished: Mutex::new(None),
            deleted: AtomicBool::new(false),
        }
    }

    /// The last trouble with the head index.
    pub(crate) fn trouble(&self) -> Option<ErrorCode> {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the trouble found by a look at the head index.
    pub(crate) fn set_trouble(&self, found: Option<ErrorCode>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// Records the result of a comparison with the head index.
    pub(crate) fn note_comparison<T>(&self, result: &Result<T, ClientError>) {
        let found = match result {
            Err(ClientError::Protocol(code)) => Some(*code),
            _ => None,
        };
        self.set_trouble(found);
        let diverged = result.as_ref().is_err_and(ClientError::is_divergence);
        self.diverged.store(diverged, Ordering::Relaxed);
    }

    /// Records a look at the head index. If an index answered, its content is known here.
    pub(crate) fn note_look(&self, now_ms: u64, answered: bool) {
        self.look_tried_ms.store(now_ms, Ordering::Relaxed);
        if answered {
            self.compared_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Whether a turn must first compare with the head index. It is due once after the session is opened,
    /// then after an hour. If no index answered, the next try waits.
    pub(crate) fn is_look_due(&self, now_ms: u64) -> bool {
        let since = |then: &AtomicU64| match then.load(Ordering::Relaxed) {
            0 => u64::MAX,
            then => now_ms.saturating_sub(then),
        };
        since(&self.compared_ms) > LOOK_EVERY_MS && since(&self.look_tried_ms) > LOOK_RETRY_MS
    }

    /// Whether the head index had turns that are missing here.
    pub(crate) fn is_diverged(&self) -> bool {
        self.diverged.load(Ordering::Relaxed)
    }

    /// Sets the head whose publication failed, and wakes the tasks that wait for it.
    pub(crate) fn set_unpublished(&self, head: Option<LinkHash>) {
        *self.unpublished.lock().unwrap_or_else(PoisonError::into_inner) = head;
        self.read(|state| state.signals.changed.send_replace(()));
    }

    /// Whether the last turn's head is published, or its publication has failed.
    pub(crate) fn is_publication_over(&self) -> bool {
        let unpublished = *self.unpublished.lock().unwrap_or_else(PoisonError::into_inner);
        self.read(|state| state.is_published() || unpublished == Some(state.prev_link()))
    }

    /// Whether background work is left: to store, to publish, or to offer a head record again to an index that
    /// refused it.
    pub(crate) fn has_work(&self) -> bool {
        !self.is_caught_up() || self.read(|state| state.head_unconfirmed.is_some())
    }

    /// Whether everything is stored and published. An index that is down while another has the head delays no
    /// caller.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.read(|state| state.is_published() && state.unstored.is_empty())
    }

    /// State of each head index at the last look.
    pub(crate) fn statuses(&self) -> Vec<IndexStatus> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the state of each head index.
    pub(crate) fn set_statuses(&self, statuses: Vec<IndexStatus>) {
        *self.statuses.lock().unwrap_or_else(PoisonError::into_inner) = statuses;
    }

    /// The permit to change the chain; one at a time.
    pub(crate) fn begin(&self) -> Result<OwnedSemaphorePermit, ClientError> {
        self.turns.clone().try_acquire_owned().map_err(|_| ClientError::Busy)
    }

    /// Reads the state.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.lock())
    }

    /// Whether a blob of the session is due for renewal.
    pub(crate) fn any_due(&self, terms: StorageTerms, now_ms: u64) -> bool {
        self.lock().any_due(terms, now_ms)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state changes only after a successful append, in steps that cannot panic midway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_journal(&self) -> MutexGuard<'_, Option<Journal>> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes entries, flushes them, and applies them. After an error none of them counts.
    ///
    /// Not undone by cancellation: once begun, the entries are written and applied.
    pub(crate) async fn record(self: &Arc<Self>, entries: Vec<Entry>) -> Result<(), ClientError> {
        self.write(entries, true, None).await
    }

    /// As [`Session::record`] but not flushed, for an entry that a crash may lose.
    pub(crate) async fn note(self: &Arc<Self>, entry: Entry) -> Result<(), ClientError> {
        self.write(vec![entry], false, None).await
    }

    /// As [`Session::record`], for facts about the turn with this link. Writes nothing if another turn has
    /// taken its position.
    pub(crate) async fn record_of(
        self: &Arc<Self>,
        turn: (u64, LinkHash),
        entries: Vec<Entry>,
    ) -> Result<(), ClientError> {
        self.write(entries, true, Some(turn)).await
    }

    async fn write(
        self: &Arc<Self>,
        entries: Vec<Entry>,
        flush: bool,
        of: Option<(u64, LinkHash)>,
    ) -> Result<(), ClientError> {
        let session = self.clone();
        crate::stack_wipe::spawn_blocking(move || session.write_blocking(entries, flush, of))
            .await
            .map_err(|_| ClientError::TaskEnded)?
    }

    fn write_blocking(
        &self,
        entries: Vec<Entry>,
        flush: bool,
        of: Option<(u64, LinkHash)>,
    ) -> Result<(), ClientError> {
        let encoded: Vec<_> = entries.iter().map(Entry::encode).collect();
        let mut journal = self.lock_journal();
        // The chain changes only under the journal's lock.
        if of.is_some_and(|(seq, link)| self.lock().link_at(seq) != Some(link)) {
            return Ok(());
        }
        journal.as_mut().ok_or(ClientError::Closed)?.append(&encoded, flush)?;
        // Still under the journal's lock: the state takes entries in the order of the journal.
        let mut state = self.lock();
        for entry in entries {
            state.apply(entry)?;
        }
        Ok(())
    }

    /// Compacts the journal to the entries that the next turn needs. Returns false if that is not worth it.
    /// Blocking.
    pub(crate) fn compact(
        &self,
        journals: &JournalLocation,
        secret: &FileSecret,
    ) -> Result<bool, ClientError> {
        let mut journal = self.lock_journal();
        let (entries, root, signals) = {
            let state = self.lock();
            let Some(entries) = state.compacted_entries() else { return Ok(false) };
            (entries, state.root.clone(), state.signals.clone())
        };
        let encoded: Vec<_> = entries.iter().map(Entry::encode).collect();
        // Before anything is written: entries that do not replay are not kept.
        let mut compacted = State::replay(root.clone(), &encoded)?;
        compacted.signals = signals;
        // After an error the old journal is not written any more.
        *journal = None;
        *journal = Some(Journal::create(journals, secret, &root, &encoded)?);
        *self.lock() = compacted;
        Ok(true)
    }

    /// Closes the file after a running write; later writes are refused. Blocking.
    pub(crate) fn close(&self) {
        drop(self.lock_journal().take());
    }

    /// Removes the session's file; later writes are refused.
    pub(crate) fn remove(&self) -> Result<(), ClientError> {
        let journal = self.lock_journal().take();
        journal.map_or(Ok(()), Journal::remove)
    }
}

/// A session's state from its file, without opening the file for writing.
pub(crate) fn peek(path: &Path, secret: &FileSecret) -> Result<State, ClientError> {
    replay(path, journal::read(path, secret)?)
}

/// The last use and the id of a session, read from its file without replaying it.
pub(crate) fn last_used(path: &Path, secret: &FileSecret) -> Result<(u64, SessionId), ClientError> {
    let contents = journal::read(path, secret)?;
    let damaged = |_| ClientError::JournalDamaged { path: path.to_owned(), entry: 1 };
    Ok((State::last_used_of(&contents.entries).map_err(damaged)?, contents.root.session_id()))
}

fn replay(path: &Path, contents: journal::Contents) -> Result<State, ClientError> {
    let entries = contents.entries.len() as u64;
    let mut state = State::replay(contents.root, &contents.entries)
        .map_err(|_| ClientError::JournalDamaged { path: path.to_owned(), entry: entries })?;
    state.torn_end = state.torn_end.max(contents.torn);
    Ok(state)
}
