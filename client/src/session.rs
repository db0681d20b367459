//! One open session: its journal and its state, each under a lock, and the permits that keep turns in order.
//!
//! No lock is held across an await. The journal's is held for an append, on a blocking thread; the state's for moments.

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
    heads::IndexStanding,
    journal::{self, Journal, JournalLog, Keeper},
    lifetime::Terms,
    state::{Entry, Opened, State},
};

/// So long what a look at the head index found stands for what it has, on a device that knows of no other.
const LOOK_EVERY_MS: u64 = 60 * 60 * 1000;
/// Pause after a look that no index answered: a turn does not wait for it each time.
const LOOK_RETRY_MS: u64 = 30 * 1000;

/// An open session.
pub(crate) struct Session {
    /// Its id.
    pub(crate) id: SessionId,
    /// Held for a whole write, by blocking threads alone.
    journal: Mutex<Option<Journal>>,
    /// Held for moments. Readers never wait for a journal, whose keeper may need the reactor's threads to go on.
    state: Mutex<State>,
    turns: Arc<Semaphore>,
    /// One computation of a blob ID at a time, so that a turn waits for the one under way instead of a second.
    pub(crate) ids: Semaphore,
    /// One head record published at a time, so that no two tasks publish the same head.
    pub(crate) heads: Semaphore,
    /// One round of background duties at a time.
    pub(crate) duties: Semaphore,
    trouble: Mutex<Option<ErrorCode>>,
    /// What each head index showed at the last look.
    standings: Mutex<Vec<IndexStanding>>,
    /// When the session was last compared with the head index, and when that was last tried, in milliseconds since the Unix
    /// epoch; 0 for never.
    compared_ms: AtomicU64,
    look_tried_ms: AtomicU64,
    /// Whether the head index was seen with turns that are not here, so that it is compared before anything follows.
    diverged: AtomicBool,
    /// The head that could not be published when it was last tried.
    untold: Mutex<Option<LinkHash>>,
    /// Set before a deletion is published, so that nothing publishes a living head after it.
    pub(crate) deleted: AtomicBool,
}

impl Session {
    /// Starts a session with these first entries after its opening.
    pub(crate) fn create(
        (keeper, secret): (&Keeper, &FileSecret),
        root: SessionRoot,
        opened: Opened,
        entries: Vec<Entry>,
    ) -> Result<Self, ClientError> {
        let mut first = vec![Entry::Opened(opened.clone()).encode()];
        first.extend(entries.iter().map(Entry::encode));
        let mut state = State::new(root.clone(), opened);
        for entry in entries {
            state.apply(entry)?;
        }
        let journal = Journal::create(keeper, secret, &root, &first)?;
        Ok(Self::with(journal, state))
    }

    /// Opens a session's log; none where nothing is kept.
    pub(crate) fn open_log(
        log: &Arc<dyn JournalLog>,
        root: &SessionRoot,
    ) -> Result<Option<Self>, ClientError> {
        let Some((journal, contents)) = Journal::open_log(log, root)? else { return Ok(None) };
        Ok(Some(Self::opened(journal, replay(Path::new("log"), contents)?)))
    }

    /// Opens a session's file for writing.
    pub(crate) fn open(path: &Path, secret: &FileSecret) -> Result<Self, ClientError> {
        let (journal, contents) = Journal::open(path, secret)?;
        Ok(Self::opened(journal, replay(path, contents)?))
    }

    /// With what was found out by opening, where that can be written.
    fn opened(mut journal: Journal, state: State) -> Self {
        if state.torn_end > 0 {
            let told = [Entry::TornEnd { bytes: state.torn_end }.encode()];
            // The journal can be read without it, and the head index tells the same.
            if let Err(error) = journal.append(&told, true) {
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
            duties: Semaphore::new(1),
            trouble: Mutex::new(None),
            standings: Mutex::new(Vec::new()),
            compared_ms: AtomicU64::new(0),
            look_tried_ms: AtomicU64::new(0),
            diverged: AtomicBool::new(false),
            untold: Mutex::new(None),
            deleted: AtomicBool::new(false),
        }
    }

    /// What was last found wrong with the head index.
    pub(crate) fn trouble(&self) -> Option<ErrorCode> {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers what a look at the head index found.
    pub(crate) fn set_trouble(&self, found: Option<ErrorCode>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// Remembers what came of a comparison with the head index.
    pub(crate) fn compared<T>(&self, result: &Result<T, ClientError>) {
        let found = match result {
            Err(ClientError::Protocol(code)) => Some(*code),
            _ => None,
        };
        self.set_trouble(found);
        let diverged = result.as_ref().is_err_and(ClientError::is_divergence);
        self.diverged.store(diverged, Ordering::Relaxed);
    }

    /// Notes that the head index was looked at; with an answer, that what it has is known here.
    pub(crate) fn looked(&self, now_ms: u64, answered: bool) {
        self.look_tried_ms.store(now_ms, Ordering::Relaxed);
        if answered {
            self.compared_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Whether it is time to compare with the head index before a turn: the first time since the session was opened, an
    /// hour later, and not again at once where no index answered.
    pub(crate) fn is_look_due(&self, now_ms: u64) -> bool {
        let since = |then: &AtomicU64| match then.load(Ordering::Relaxed) {
            0 => u64::MAX,
            then => now_ms.saturating_sub(then),
        };
        since(&self.compared_ms) > LOOK_EVERY_MS && since(&self.look_tried_ms) > LOOK_RETRY_MS
    }

    /// Whether the head index has turns that are not here, as far as was seen.
    pub(crate) fn is_diverged(&self) -> bool {
        self.diverged.load(Ordering::Relaxed)
    }

    /// Remembers the head that could not be published, and tells those who wait for it.
    pub(crate) fn set_untold(&self, head: Option<LinkHash>) {
        *self.untold.lock().unwrap_or_else(PoisonError::into_inner) = head;
        self.read(|state| state.signals.changed.send_replace(()));
    }

    /// Whether the last turn's head is published, or was found not to be publishable now.
    pub(crate) fn is_told(&self) -> bool {
        let untold = *self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        self.read(|state| state.is_published() || untold == Some(state.prev_link()))
    }

    /// What each head index showed at the last look.
    pub(crate) fn standings(&self) -> Vec<IndexStanding> {
        self.standings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Remembers what each head index shows.
    pub(crate) fn set_standings(&self, standings: Vec<IndexStanding>) {
        *self.standings.lock().unwrap_or_else(PoisonError::into_inner) = standings;
    }

    /// Leave to change the chain; one at a time.
    pub(crate) fn begin(&self) -> Result<OwnedSemaphorePermit, ClientError> {
        self.turns.clone().try_acquire_owned().map_err(|_| ClientError::Busy)
    }

    /// Looks at the state.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.lock())
    }

    /// Whether a blob of the session is to be renewed.
    pub(crate) fn any_due(&self, terms: Terms, now_ms: u64) -> bool {
        self.lock().any_due(terms, now_ms)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // State changes only after a successful append, in steps that cannot panic midway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_journal(&self) -> MutexGuard<'_, Option<Journal>> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes entries, flushed, and applies them. When it returns an error none of them counts.
    ///
    /// Not undone by cancellation: once begun, the entries are written and applied.
    pub(crate) async fn record(self: &Arc<Self>, entries: Vec<Entry>) -> Result<(), ClientError> {
        self.write(entries, true, None).await
    }

    /// As [`Session::record`] but not flushed, for what a crash may take.
    pub(crate) async fn note(self: &Arc<Self>, entry: Entry) -> Result<(), ClientError> {
        self.write(vec![entry], false, None).await
    }

    /// As [`Session::record`], for what was learned of the turn with this link: nothing is written where another turn
    /// has its place by now.
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
        crate::wiped::spawn_blocking(move || session.write_blocking(entries, flush, of))
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
        let mut kept = self.lock_journal();
        // The chain changes under the journal's lock alone.
        if of.is_some_and(|(seq, link)| self.lock().link_at(seq) != Some(link)) {
            return Ok(());
        }
        kept.as_mut().ok_or(ClientError::Closed)?.append(&encoded, flush)?;
        // Still under the journal's lock: the state takes entries in the order in which they were written.
        let mut state = self.lock();
        for entry in entries {
            state.apply(entry)?;
        }
        Ok(())
    }

    /// Writes the journal anew with what a next turn needs; whether that is worth it. Blocking.
    pub(crate) fn shorten(&self, keeper: &Keeper, secret: &FileSecret) -> Result<bool, ClientError> {
        let mut kept = self.lock_journal();
        let (entries, root, signals) = {
            let state = self.lock();
            let Some(entries) = state.shorter() else { return Ok(false) };
            (entries, state.root.clone(), state.signals.clone())
        };
        let encoded: Vec<_> = entries.iter().map(Entry::encode).collect();
        // Before anything is written: what does not replay is not kept.
        let mut shorter = State::replay(root.clone(), &encoded)?;
        shorter.signals = signals;
        // After an error nothing is written to it any more.
        *kept = None;
        *kept = Some(Journal::create(keeper, secret, &root, &encoded)?);
        *self.lock() = shorter;
        Ok(true)
    }

    /// Lets go of the file, after a write under way; later ones are refused. Blocking.
    pub(crate) fn close(&self) {
        drop(self.lock_journal().take());
    }

    /// Removes the session's file; nothing can be written any more.
    pub(crate) fn remove(&self) -> Result<(), ClientError> {
        let journal = self.lock_journal().take();
        journal.map_or(Ok(()), Journal::remove)
    }
}

/// A session's state from its file, without opening it for writing.
pub(crate) fn peek(path: &Path, secret: &FileSecret) -> Result<State, ClientError> {
    replay(path, journal::read(path, secret)?)
}

/// When a session was last used, and its id: from its file, without replaying it.
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
