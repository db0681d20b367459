//! The sessions of a home: listed, found, backed up and deleted, including damaged ones.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::UNIX_EPOCH,
};

use baton_keys::session::SessionRoot;
use baton_proto::ids::SessionId;

use crate::{
    core::Core,
    error::ClientError,
    session::{
        info::{SessionInfo, info, state_info},
        journal::{self, file_error, quarantine},
        open_session::{self, Session},
        state::State,
    },
    storage,
    sync::head::{self, PublishReason},
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
    /// Its session, if the journal's beginning is whole. Then [`SessionHandle::backup`](crate::SessionHandle::backup) returns its root, and
    /// [`Client::recover`](crate::Client::recover), [`Client::import`](crate::Client::import) and [`SessionHandle::delete`](crate::SessionHandle::delete) move it out of the way.
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

/// The sessions of a home and its unreadable journals. Blocking.
pub(crate) fn list(core: &Core) -> Result<Listing, ClientError> {
    let open: Vec<Arc<Session>> = core.lock().values().cloned().collect();
    let sessions = open.iter().map(|session| info(session, core.terms())).collect();
    let mut listing = Listing { sessions, unreadable: Vec::new() };
    let is_open = |id: &SessionId| open.iter().any(|session| session.id == *id);
    for path in core.journal_files()? {
        let id = core.session_of(&path).ok();
        if id.as_ref().is_some_and(is_open) {
            continue;
        }
        match open_session::peek(&path, &core.journals.secret) {
            Ok(state) => listing.sessions.push(state_info(&state, core.terms(), None)),
            Err(error) if is_missing(&error) => {}
            Err(error) => listing.unreadable.push(UnreadableSession { id, error }),
        }
    }
    let used = |info: &SessionInfo| (info.last_ms.unwrap_or(info.created_ms), info.id);
    listing.sessions.sort_by_key(|info| std::cmp::Reverse(used(info)));
    Ok(listing)
}

/// The ids of the sessions of a home, including damaged ones. Blocking.
pub(crate) fn session_ids(core: &Core) -> Result<Vec<SessionId>, ClientError> {
    let mut ids: Vec<SessionId> = core.lock().keys().copied().collect();
    for path in core.journal_files()? {
        ids.extend(core.session_of(&path));
    }
    ids.sort();
    ids.dedup();
    Ok(ids)
}

/// The last used session. Reads only the journals that may be it. Blocking.
pub(crate) fn find_last(core: &Core) -> Result<Option<SessionId>, ClientError> {
    let open: Vec<Arc<Session>> = core.lock().values().cloned().collect();
    let mut last = open.iter().map(|session| (session.read(|state| state.last_used_ms()), session.id)).max();
    for (changed, path) in journals_by_use(core)? {
        // No entry in a file is younger than the file's last change.
        if last.is_some_and(|(used, _)| used > changed.saturating_add(FILE_TIME_SLACK_MS)) {
            break;
        }
        let found = match open_session::last_used(&path, &core.journals.secret) {
            // Its opening names the damage.
            Err(ClientError::JournalDamaged { .. }) => core.session_of(&path).map(|id| (changed, id)),
            found => found,
        };
        match found {
            Ok(found) => last = last.max(Some(found)),
            Err(error) => tracing::warn!(%error, "a journal cannot be read"),
        }
    }
    Ok(last.map(|(_, id)| id))
}

/// The journals with their last change in milliseconds since the Unix epoch, newest first. Blocking.
pub(crate) fn journals_by_use(core: &Core) -> Result<Vec<(u64, PathBuf)>, ClientError> {
    let mut files: Vec<(u64, PathBuf)> =
        core.journal_files()?.into_iter().map(|path| (changed_ms(&path), path)).collect();
    files.sort_by_key(|(changed, _)| std::cmp::Reverse(*changed));
    Ok(files)
}

/// As [`SessionHandle::backup`](crate::SessionHandle::backup).
pub(crate) async fn backup(core: &Arc<Core>, id: SessionId) -> Result<SessionRoot, ClientError> {
    if let Some(session) = core.lock().get(&id) {
        return Ok(session.read(|state| state.root.clone()));
    }
    core.blocking(move |core| {
        let path = core.find(&id)?.ok_or_else(|| ClientError::UnknownSession(id.to_string()))?;
        journal::read_root(&path, &core.journals.secret)
    })
    .await
}

/// Reads a session's whole state: of the open session, or of its journal, which needs no lock.
pub(crate) async fn with_state<T: Send + 'static>(
    core: &Arc<Core>,
    id: SessionId,
    look: impl FnOnce(&State) -> T + Send + 'static,
) -> Result<T, ClientError> {
    let open = core.lock().get(&id).cloned();
    core.blocking(move |core| {
        if let Some(session) = open {
            session.load_all_blocking()?;
            return Ok(session.read(look));
        }
        let path = core.find(&id)?.ok_or_else(|| ClientError::UnknownSession(id.to_string()))?;
        Ok(look(&open_session::peek(&path, &core.journals.secret)?))
    })
    .await
}

/// As [`SessionHandle::delete`](crate::SessionHandle::delete).
pub(crate) async fn delete(core: &Arc<Core>, session: &Arc<Session>) -> Result<Deletion, ClientError> {
    let id = session.id;
    let _permit = session.begin()?;
    storage::ensure_head_id(session).await?;
    session.set_deleted();
    let unpublished = head::publish_head(core, session, PublishReason::Tombstone).await.err();
    let removed = session.clone();
    core.blocking(move |core| {
        removed.remove()?;
        remove_quarantined(core, id)
    })
    .await?;
    core.lock().remove(&id);
    Ok(Deletion { unpublished })
}

/// As [`delete`], for a session whose journal is damaged.
pub(crate) async fn delete_damaged(
    core: &Arc<Core>,
    id: SessionId,
    path: PathBuf,
) -> Result<Deletion, ClientError> {
    let root = backup(core, id).await?;
    let unpublished = head::publish_tombstone(core, &root).await.err();
    core.blocking(move |core| {
        let _file = journal::lock(&path, &id)?;
        quarantine::remove(&path).map_err(|source| file_error("remove", &path, source))?;
        remove_quarantined(core, id)
    })
    .await?;
    Ok(Deletion { unpublished })
}

/// Removes the quarantined journals of a session.
fn remove_quarantined(core: &Core, id: SessionId) -> Result<(), ClientError> {
    let Some(folder) = core.journals.folder() else { return Ok(()) };
    for path in quarantine::damaged_files(folder).map_err(|source| file_error("list", folder, source))? {
        if journal::read_root(&path, &core.journals.secret).is_ok_and(|root| root.session_id() == id) {
            quarantine::remove(&path).map_err(|source| file_error("remove", &path, source))?;
        }
    }
    Ok(())
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
