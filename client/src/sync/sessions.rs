//! The sessions of a home: listed, found, backed up and deleted, including damaged ones.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::UNIX_EPOCH,
};

use baton_keys::session::SessionRoot;
use baton_proto::ids::SessionId;

use crate::{
    client::{Client, SessionInfo, info, state_info},
    error::ClientError,
    session::{
        journal::{self, file_error, quarantine},
        open_session::{self, Session},
    },
    sync::head::PublishReason,
};

/// How much coarser file times may be than the clock.
const FILE_TIME_SLACK_MS: u64 = 2000;

/// The contents of a home.
#[derive(Debug, Default)]
pub struct Listing {
    /// The sessions, last used first.
    pub sessions: Vec<SessionInfo>,
    /// Journals that cannot be read.
    pub unreadable: Vec<UnreadableSession>,
}

/// A journal that cannot be read.
#[derive(Debug)]
pub struct UnreadableSession {
    /// Its session, if the journal's beginning is whole. Then [`Client::backup`] returns its root, and
    /// [`Client::recover`], [`Client::import`] and [`Client::delete`] move it out of the way.
    pub id: Option<SessionId>,
    /// The error, mostly [`ClientError::JournalDamaged`].
    pub error: ClientError,
}

/// The outcome of a deletion.
#[derive(Debug)]
pub struct Deletion {
    /// Why the head index was not informed. The session is gone here, but anyone with its recovery words can
    /// recover the blobs that the store still has.
    pub unpublished: Option<ClientError>,
}

/// A damaged journal that was moved out of the way.
pub(crate) struct QuarantinedJournal {
    journal: PathBuf,
    quarantined: PathBuf,
}

impl QuarantinedJournal {
    /// Moves it back, since no journal replaced it.
    pub(crate) fn put_back(&self) {
        if let Err(error) = quarantine::restore(&self.quarantined, &self.journal) {
            tracing::warn!(%error, "a damaged journal was not put back");
        }
    }
}

impl Client {
    /// The sessions of this home, last used first.
    ///
    /// # Errors
    /// [`ClientError::File`]. Unreadable journals are left out; [`Client::listing`] has them.
    pub async fn sessions(&self) -> Result<Vec<SessionInfo>, ClientError> {
        Ok(self.listing().await?.sessions)
    }

    /// The sessions of this home and its unreadable journals. Reads every journal whole; to find a session
    /// use [`Client::session_ids`] or [`Client::last_session`].
    ///
    /// # Errors
    /// [`ClientError::File`] when the home folder cannot be listed.
    pub async fn listing(&self) -> Result<Listing, ClientError> {
        self.blocking(Self::list).await
    }

    fn list(&self) -> Result<Listing, ClientError> {
        let open: Vec<Arc<Session>> = self.lock().values().cloned().collect();
        let sessions = open.iter().map(|session| info(session, self.terms())).collect();
        let mut listing = Listing { sessions, unreadable: Vec::new() };
        let is_open = |id: &SessionId| open.iter().any(|session| session.id == *id);
        for path in self.journals()? {
            let id = journal::read_root(&path, &self.inner.secret).map(|root| root.session_id()).ok();
            if id.as_ref().is_some_and(is_open) {
                continue;
            }
            match open_session::peek(&path, &self.inner.secret) {
                Ok(state) => listing.sessions.push(state_info(&state, self.terms(), None)),
                Err(error) if is_missing(&error) => {}
                Err(error) => listing.unreadable.push(UnreadableSession { id, error }),
            }
        }
        let used = |info: &SessionInfo| (info.last_ms.unwrap_or(info.created_ms), info.id);
        listing.sessions.sort_by_key(|info| std::cmp::Reverse(used(info)));
        Ok(listing)
    }

    /// The ids of the sessions of this home, including damaged ones, in no order. Reads only the beginning of
    /// each journal.
    ///
    /// # Errors
    /// [`ClientError::File`] when the home folder cannot be listed.
    pub async fn session_ids(&self) -> Result<Vec<SessionId>, ClientError> {
        self.blocking(|client| {
            let mut ids: Vec<SessionId> = client.lock().keys().copied().collect();
            for path in client.journals()? {
                if let Ok(root) = journal::read_root(&path, &client.inner.secret) {
                    ids.push(root.session_id());
                }
            }
            ids.sort();
            ids.dedup();
            Ok(ids)
        })
        .await
    }

    /// The last used session: the first of [`Client::sessions`], but reads only the journals that may be it.
    ///
    /// # Errors
    /// [`ClientError::File`] when the home folder cannot be listed.
    pub async fn last_session(&self) -> Result<Option<SessionId>, ClientError> {
        self.blocking(Self::find_last).await
    }

    fn find_last(&self) -> Result<Option<SessionId>, ClientError> {
        let open: Vec<Arc<Session>> = self.lock().values().cloned().collect();
        let mut last =
            open.iter().map(|session| (session.read(|state| state.last_used_ms()), session.id)).max();
        for (changed, path) in self.journals_by_use()? {
            // No entry in a file is younger than the file's last change.
            if last.is_some_and(|(used, _)| used > changed.saturating_add(FILE_TIME_SLACK_MS)) {
                break;
            }
            match open_session::last_used(&path, &self.inner.secret) {
                Ok(found) => last = last.max(Some(found)),
                Err(error) => tracing::warn!(%error, "a journal cannot be read"),
            }
        }
        Ok(last.map(|(_, id)| id))
    }

    /// The journals with their last change in milliseconds since the Unix epoch, newest first. Blocking.
    pub(crate) fn journals_by_use(&self) -> Result<Vec<(u64, PathBuf)>, ClientError> {
        let mut files: Vec<(u64, PathBuf)> =
            self.journals()?.into_iter().map(|path| (changed_ms(&path), path)).collect();
        files.sort_by_key(|(changed, _)| std::cmp::Reverse(*changed));
        Ok(files)
    }

    /// A session's root, which gives full access to the session. Also works for a damaged journal whose
    /// beginning is whole.
    ///
    /// # Errors
    /// [`ClientError::UnknownSession`], [`ClientError::File`].
    pub async fn backup(&self, id: SessionId) -> Result<SessionRoot, ClientError> {
        if let Some(session) = self.lock().get(&id) {
            return Ok(session.read(|state| state.root.clone()));
        }
        self.blocking(move |client| {
            let path = client.find(&id)?.ok_or_else(|| ClientError::UnknownSession(id.to_string()))?;
            journal::read_root(&path, &client.inner.secret)
        })
        .await
    }

    /// Deletes a session. Informs the head index if it can be reached, then removes the journal and the files
    /// kept beside it, including damaged ones. Blobs in the store expire by themselves.
    ///
    /// # Errors
    /// [`ClientError::Busy`] while a turn is under way, and as [`Client::session`].
    pub async fn delete(&self, id: SessionId) -> Result<Deletion, ClientError> {
        let session = match self.open_session(id).await {
            Ok(session) => session,
            Err(ClientError::JournalDamaged { path, .. }) => return self.delete_damaged(id, path).await,
            Err(error) => return Err(error),
        };
        let _permit = session.begin()?;
        self.ensure_head_id(&session).await?;
        session.deleted.store(true, Ordering::SeqCst);
        let unpublished = self.publish_head(&session, PublishReason::Tombstone).await.err();
        let removed = session.clone();
        self.blocking(move |client| {
            removed.remove()?;
            client.remove_quarantined(id)
        })
        .await?;
        self.lock().remove(&id);
        Ok(Deletion { unpublished })
    }

    async fn delete_damaged(&self, id: SessionId, path: PathBuf) -> Result<Deletion, ClientError> {
        let root = self.backup(id).await?;
        let unpublished = self.publish_tombstone(&root).await.err();
        self.blocking(move |client| {
            let _file = journal::lock(&path, &id)?;
            quarantine::remove(&path).map_err(|source| file_error("remove", &path, source))?;
            client.remove_quarantined(id)
        })
        .await?;
        Ok(Deletion { unpublished })
    }

    /// Removes the quarantined journals of a session.
    fn remove_quarantined(&self, id: SessionId) -> Result<(), ClientError> {
        let Some(folder) = self.inner.journals.folder() else { return Ok(()) };
        for path in quarantine::damaged_files(folder).map_err(|source| file_error("list", folder, source))? {
            if journal::read_root(&path, &self.inner.secret).is_ok_and(|root| root.session_id() == id) {
                quarantine::remove(&path).map_err(|source| file_error("remove", &path, source))?;
            }
        }
        Ok(())
    }

    /// Quarantines a session's damaged journal. If the journal is whole, the session exists.
    pub(crate) fn quarantine_damaged(
        &self,
        id: SessionId,
        journal: PathBuf,
    ) -> Result<QuarantinedJournal, ClientError> {
        if self.lock().contains_key(&id) {
            return Err(ClientError::SessionExists(id));
        }
        let _file = journal::lock(&journal, &id)?;
        match open_session::peek(&journal, &self.inner.secret) {
            Err(ClientError::JournalDamaged { .. }) => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(ClientError::SessionExists(id)),
        }
        let quarantined =
            quarantine::isolate(&journal).map_err(|source| file_error("move", &journal, source))?;
        Ok(QuarantinedJournal { journal, quarantined })
    }

    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, ClientError> + Send + 'static,
    ) -> Result<T, ClientError> {
        let client = self.clone();
        crate::stack_wipe::spawn_blocking(move || work(&client)).await.map_err(|_| ClientError::TaskEnded)?
    }
}

/// Whether a file vanished after the listing.
fn is_missing(error: &ClientError) -> bool {
    matches!(error, ClientError::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}

/// When a file was changed, in milliseconds since the Unix epoch; the far future if the file system does not
/// say.
fn changed_ms(path: &Path) -> u64 {
    let changed = std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let since = changed.and_then(|changed| changed.duration_since(UNIX_EPOCH).ok());
    since.and_then(|since| u64::try_from(since.as_millis()).ok()).unwrap_or(u64::MAX)
}
