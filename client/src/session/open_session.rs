//! One open session: its journal, and all that is known about it, each under one lock.
//!
//! No lock is held across an await. The journal's lock is held for an append, on a blocking thread; the other
//! only for moments. Permits order long work: turns, and three kinds of background work that must not run
//! twice at once but may run beside each other. A PUT that waits for a store delays no turn.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use baton_keys::{files::FileSecret, session::SessionRoot};
use baton_proto::ids::{LinkHash, SessionId};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard, watch};

use crate::{
    error::{ClientError, log_failure},
    session::{
        index_view::IndexView,
        journal::{self, Journal, JournalLog, Journals, file_error},
        lifetime, snapshot,
        state::{Entry, SessionHeader, State, StorageTerms},
    },
};

/// Why a session is only read.
#[derive(Debug)]
pub(crate) enum ReadOnly {
    /// Another process writes it.
    InUse,
    /// Its file cannot be opened for writing.
    Unwritable(PathBuf, std::io::ErrorKind),
}

impl ReadOnly {
    /// The reason in an error of opening a session for writing, if the session can still be read.
    pub(crate) fn of(error: &ClientError) -> Option<Self> {
        use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        match error {
            ClientError::InUse(_) => Some(Self::InUse),
            ClientError::File { path, source, .. }
                if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem) =>
            {
                Some(Self::Unwritable(path.clone(), source.kind()))
            }
            _ => None,
        }
    }
}

/// An open session.
pub(crate) struct Session {
    /// Its id.
    pub(crate) id: SessionId,
    /// Why this process only reads the session, if so.
    read_only: Option<ReadOnly>,
    /// Held for a whole write, by blocking threads alone.
    journal: Mutex<Option<Journal>>,
    /// Held for moments. Readers never wait for a journal, whose holder may need the reactor's threads to
    /// continue.
    facts: Mutex<SessionFacts>,
    /// Sent after every change, for tasks that wait for background work.
    changed: watch::Sender<()>,
    turns: Arc<AsyncMutex<()>>,
    /// One computation of a blob ID at a time: a turn waits for a running one and starts no second.
    pub(crate) ids: AsyncMutex<()>,
    /// One PUT at a time, so that two tasks never buy the same blob.
    pub(crate) puts: AsyncMutex<()>,
    /// One head record published at a time, so that no two tasks publish the same head.
    pub(crate) heads: AsyncMutex<()>,
    /// Ends the pause before the next round of background work.
    pub(crate) wake_rounds: Arc<Notify>,
}

/// The facts about a session: those of its journal, and those of this run alone.
struct SessionFacts {
    state: State,
    indexes: IndexView,
    /// Whether rounds of background work run, or pause.
    has_rounds: bool,
    /// Set before a deletion is published, so that no live head is published after it.
    deleted: bool,
    /// When a renewal was last tried in the background, in milliseconds since the Unix epoch.
    renewal_tried_ms: Option<u64>,
}

impl Session {
    /// Creates a session with these entries after its opening.
    pub(crate) fn create(
        journals: &Journals,
        root: SessionRoot,
        header: SessionHeader,
        entries: Vec<Entry>,
    ) -> Result<Self, ClientError> {
        let mut first = vec![Entry::Opened(header.clone()).encode()];
        first.extend(entries.iter().map(Entry::encode));
        let mut state = State::new(root.clone(), header);
        entries.iter().try_for_each(Entry::verify_signatures)?;
        for entry in entries {
            state.apply(entry)?;
        }
        let journal = Journal::create(journals, &root, &first)?;
        Ok(Self::with(journal, state))
    }

    /// Begins a session without entries. Its file is made with the first entry that needs it.
    pub(crate) fn begin_deferred(
        journals: &Journals,
        root: SessionRoot,
        header: SessionHeader,
    ) -> Result<Self, ClientError> {
        let first = [Entry::Opened(header.clone()).encode()];
        let journal = Journal::create_deferred(journals, &root, &first)?;
        Ok(Self::with(journal, State::new(root, header)))
    }

    /// Opens a session's file for reading. Every write is refused, for this reason.
    pub(crate) fn open_to_read(
        path: &Path,
        secret: &FileSecret,
        reason: ReadOnly,
    ) -> Result<Self, ClientError> {
        Ok(Self { read_only: Some(reason), ..Self::with_journal(None, peek(path, secret)?) })
    }

    /// Opens a session's log; none if the log is empty.
    pub(crate) fn open_log(
        log: &Arc<dyn JournalLog>,
        root: &SessionRoot,
    ) -> Result<Option<Self>, ClientError> {
        let Some((journal, contents)) = Journal::open_log(log, root)? else { return Ok(None) };
        Ok(Some(Self::from_journal(journal, replay(&contents)?)))
    }

    /// Opens a session's file for writing. If `shortly`, turns that its snapshot leaves out are not here before
    /// [`Session::load_all`].
    pub(crate) fn open(path: &Path, secret: &FileSecret, shortly: bool) -> Result<Self, ClientError> {
        let (mut journal, contents) = Journal::open(path, secret, shortly)?;
        let state = match replay(&contents) {
            // An entry after the snapshot may be about a turn that the snapshot leaves out.
            Err(_) if contents.in_snapshot > 0 => {
                let mut all = journal.read_all(contents.root)?.ok_or(ClientError::Closed)?;
                all.torn = contents.torn;
                replay(&all)
            }
            replayed => replayed,
        };
        Ok(Self::from_journal(journal, state?))
    }

    /// Loads the turns that a snapshot left out, if it did.
    pub(crate) async fn load_all(self: &Arc<Self>) -> Result<(), ClientError> {
        if self.read(|state| state.omitted().is_none()) {
            return Ok(());
        }
        let session = self.clone();
        crate::stack_wipe::blocking(move || session.load_all_blocking()).await?
    }

    /// As [`Session::load_all`]. Blocking.
    pub(crate) fn load_all_blocking(&self) -> Result<(), ClientError> {
        let mut journal = self.lock_journal();
        let omitting = self.read(|state| state.omitted().map(|_| state.root.clone()));
        let Some(root) = omitting else { return Ok(()) };
        let contents = journal.as_mut().ok_or(ClientError::Closed)?.read_all(root)?;
        let all = replay(&contents.ok_or(ClientError::Closed)?)?;
        self.replace(all);
        Ok(())
    }

    /// Replaces the state by another that its journal gives.
    fn replace(&self, mut other: State) {
        let state = &mut self.lock().state;
        (other.head_missing, other.torn_end) = (state.head_missing, state.torn_end);
        *state = other;
    }

    /// Builds the session, and records a torn end if the journal can be written.
    fn from_journal(mut journal: Journal, state: State) -> Self {
        if state.torn_end > 0 {
            let entry = [Entry::TornEnd { bytes: state.torn_end }.encode()];
            // The journal can be read without it, and the head index shows the same.
            let noted = journal.append(&entry, true);
            log_failure(noted, "that a journal's end was cut off could not be noted");
        }
        Self::with(journal, state)
    }

    fn with(journal: Journal, state: State) -> Self {
        Self::with_journal(Some(journal), state)
    }

    fn with_journal(journal: Option<Journal>, state: State) -> Self {
        Self {
            id: state.session_id,
            read_only: None,
            journal: Mutex::new(journal),
            facts: Mutex::new(SessionFacts {
                state,
                indexes: IndexView::default(),
                has_rounds: false,
                deleted: false,
                renewal_tried_ms: None,
            }),
            changed: watch::Sender::default(),
            turns: Arc::default(),
            ids: AsyncMutex::default(),
            puts: AsyncMutex::default(),
            heads: AsyncMutex::default(),
            wake_rounds: Arc::default(),
        }
    }

    /// Reads the journal's facts.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.lock().state)
    }

    /// Reads or changes the knowledge of the head indexes.
    pub(crate) fn indexes<T>(&self, look: impl FnOnce(&mut IndexView) -> T) -> T {
        look(&mut self.lock().indexes)
    }

    /// Begins the rounds of background work; false if they run already.
    pub(crate) fn begin_rounds(&self) -> bool {
        !std::mem::replace(&mut self.lock().has_rounds, true)
    }

    /// Ends the rounds of background work.
    pub(crate) fn end_rounds(&self) {
        self.lock().has_rounds = false;
    }

    /// Marks every later change, for a task that waits for one.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Compares with a look at the head indexes; `compare` also says whether they lack this device's head.
    pub(crate) fn compare<T>(
        &self,
        compare: impl FnOnce(&State) -> (Result<T, ClientError>, bool),
    ) -> Result<T, ClientError> {
        let mut facts = self.lock();
        let (result, lacks_head) = compare(&facts.state);
        facts.state.head_missing = lacks_head;
        facts.indexes.note_comparison(&result);
        result
    }

    /// Whether a deletion was begun.
    pub(crate) fn is_deleted(&self) -> bool {
        self.lock().deleted
    }

    /// Begins a deletion.
    pub(crate) fn set_deleted(&self) {
        self.lock().deleted = true;
    }

    /// Begins a renewal in the background, if a blob is due and the last try is `pause_ms` ago.
    pub(crate) fn begin_renewal(&self, terms: StorageTerms, now_ms: u64, pause_ms: u64) -> bool {
        let mut facts = self.lock();
        let lately = facts.renewal_tried_ms.is_some_and(|tried| now_ms.saturating_sub(tried) < pause_ms);
        if lately || !lifetime::any_due(&facts.state, terms, now_ms) {
            return false;
        }
        facts.renewal_tried_ms = Some(now_ms);
        true
    }

    /// Sets the head whose publication failed, and wakes the tasks that wait for it.
    pub(crate) fn set_unpublished(&self, head: Option<LinkHash>) {
        self.lock().indexes.unpublished = head;
        self.changed.send_replace(());
    }

    /// Whether the last turn's head is published, or its publication has failed.
    pub(crate) fn is_publication_over(&self) -> bool {
        let facts = self.lock();
        facts.state.is_published() || facts.indexes.unpublished == Some(facts.state.prev_link())
    }

    /// Refuses changes outside of this device, such as a PUT, while this process only reads the session.
    pub(crate) fn check_writable(&self) -> Result<(), ClientError> {
        match &self.read_only {
            None => Ok(()),
            Some(ReadOnly::InUse) => Err(ClientError::InUse(self.id)),
            Some(ReadOnly::Unwritable(path, kind)) => Err(file_error("write", path, (*kind).into())),
        }
    }

    /// Whether this process only reads the session.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.is_some()
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

    /// The permit to change the chain; one at a time.
    pub(crate) fn begin(&self) -> Result<OwnedMutexGuard<()>, ClientError> {
        self.check_writable()?;
        self.turns.clone().try_lock_owned().map_err(|_| ClientError::Busy)
    }

    fn lock(&self) -> MutexGuard<'_, SessionFacts> {
        // The state changes only after a successful append, in steps that cannot panic midway.
        self.facts.lock()
    }

    fn lock_journal(&self) -> MutexGuard<'_, Option<Journal>> {
        self.journal.lock()
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

    /// As [`Session::note`], for a caller that cannot wait. The entry is lost if the runtime or the session ends
    /// first.
    pub(crate) fn note_later(self: &Arc<Self>, entry: Entry) {
        if tokio::runtime::Handle::try_current().is_ok() {
            let session = self.clone();
            drop(crate::stack_wipe::spawn_blocking(move || {
                if let Err(error) = session.write_blocking(vec![entry], false, None) {
                    tracing::debug!(%error, "an entry was not noted");
                }
            }));
        }
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
        crate::stack_wipe::blocking(move || session.write_blocking(entries, flush, of)).await?
    }

    fn write_blocking(
        &self,
        entries: Vec<Entry>,
        flush: bool,
        of: Option<(u64, LinkHash)>,
    ) -> Result<(), ClientError> {
        // Before they are sealed: a replay trusts the signatures.
        entries.iter().try_for_each(Entry::verify_signatures)?;
        let encoded: Vec<_> = entries.iter().map(Entry::encode).collect();
        let mut journal = self.lock_journal();
        // The chain changes only under the journal's lock.
        if of.is_some_and(|(seq, link)| self.lock().state.link_at(seq) != Some(link)) {
            return Ok(());
        }
        if self.read_only.is_none() {
            let journal = journal.as_mut().ok_or(ClientError::Closed)?;
            // Before the entries, so that none of them is in the journal if the disk is full.
            if entries.iter().any(Entry::needs_file) {
                journal.make_file()?;
            }
            journal.append(&encoded, flush)?;
        } else if !entries.iter().all(Entry::is_observation) {
            return self.check_writable();
        }
        // Still under the journal's lock: the state takes entries in the order of the journal.
        let applied = {
            let state = &mut self.lock().state;
            entries.into_iter().try_for_each(|entry| state.apply(entry))
        };
        self.changed.send_replace(());
        Ok(applied?)
    }

    /// Compacts the journal to the entries that the next turn needs. Returns false if that is not worth it.
    /// Blocking.
    pub(crate) fn compact(&self, journals: &Journals) -> Result<bool, ClientError> {
        let mut journal = self.lock_journal();
        let (entries, root) = {
            let state = &self.lock().state;
            let Some(entries) = state.compacted_entries() else { return Ok(false) };
            (entries, state.root.clone())
        };
        let encoded: Vec<_> = entries.iter().map(Entry::encode).collect();
        // Before anything is written: entries that do not replay are not kept.
        let compacted = State::replay(root.clone(), &encoded)?;
        // After an error the old journal is not written any more.
        *journal = None;
        *journal = Some(Journal::create(journals, &root, &encoded)?);
        self.replace(compacted);
        Ok(true)
    }

    /// Closes the file after a running write; later writes are refused. A file without a turn or a message is
    /// removed, and one with many new entries gets a snapshot. Blocking.
    pub(crate) fn close(&self, terms: StorageTerms, now_ms: u64) {
        let Some(journal) = self.lock_journal().take() else { return };
        let closed = if journal.is_file() && self.read(State::is_unused) {
            journal.remove()
        } else if journal.wants_snapshot()
            && let Some(entries) = self.read(|state| snapshot::entries(state, terms, now_ms))
        {
            let entries: Vec<_> = entries.iter().map(Entry::encode).collect();
            journal.close_with_snapshot(&entries)
        } else {
            Ok(())
        };
        log_failure(closed, "a session has no snapshot, or an unused file");
    }

    /// Removes the session's file; later writes are refused.
    pub(crate) fn remove(&self) -> Result<(), ClientError> {
        let journal = self.lock_journal().take();
        journal.map_or(Ok(()), Journal::remove)
    }
}

/// A session's state from its file, without opening the file for writing.
pub(crate) fn peek(path: &Path, secret: &FileSecret) -> Result<State, ClientError> {
    replay(&journal::read(path, secret, false)?)
}

/// The last use and the id of a session, read from its file without replaying it.
pub(crate) fn last_used(path: &Path, secret: &FileSecret) -> Result<(u64, SessionId), ClientError> {
    let contents = journal::read(path, secret, true)?;
    let entries = contents.entries.iter().rev().map(|entry| Entry::decode(entry));
    let used_ms = entries.filter_map(|entry| entry.ok()?.used_ms()).next();
    let damaged = || ClientError::JournalDamaged { path: path.to_owned(), entry: 1 };
    Ok((used_ms.ok_or_else(damaged)?, contents.root.session_id()))
}

fn replay(contents: &journal::Contents) -> Result<State, ClientError> {
    let entries = contents.entries.len() as u64;
    let mut state = State::replay(contents.root.clone(), &contents.entries)
        .map_err(|_| ClientError::JournalDamaged { path: contents.path.clone(), entry: entries })?;
    state.torn_end = state.torn_end.max(contents.torn.len() as u64);
    Ok(state)
}
