//! A session and its turns as callers see them.

use baton_proto::{
    ErrorCode, SignedObject,
    chain::HistoryTurn,
    head::DeviceLease,
    ids::{DeviceId, LinkHash, NodeId, SessionId},
    memory::MemoryItem,
    receipt::{ProgressNote, Receipt},
    turn::ResumePrefix,
};

use crate::{
    index_status::IndexStatus,
    session::{
        lifetime,
        open_session::Session,
        state::{State, StorageTerms, TurnMeta},
        title,
    },
};

/// A session as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// The session.
    pub id: SessionId,
    /// The title that the user gave, or else the beginning of the first message; empty before it.
    pub title: String,
    /// The project that it belongs to in this home; none for the home's owner.
    pub project: Option<String>,
    /// Accepted turns, including those that an edit replaced.
    pub turns: u64,
    /// Turns of the conversation as it stands: without those that an edit replaced.
    pub effective_turns: u64,
    /// Hash of the last link; the genesis' before the first turn.
    pub head: LinkHash,
    /// When it was created here, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When the last turn was accepted, in milliseconds since the Unix epoch.
    pub last_ms: Option<u64>,
    /// The node of the last turn.
    pub last_node: Option<NodeId>,
    /// Whether a turn is unfinished; never in a session that another device deleted.
    pub pending: bool,
    /// Whether another device deleted the session, as the head index showed.
    pub deleted_elsewhere: bool,
    /// The part of the pending turn's answer that arrived; display only.
    pub pending_text: String,
    /// The number of shards of the store that its blob IDs are for.
    pub shards: u16,
    /// Turns whose blob is not confirmed in the store, without the turns that a later blob also holds.
    pub unstored: u64,
    /// Whether a head index took its head.
    pub is_published: bool,
    /// Names of the head indexes that have not taken its head.
    pub lacking_indexes: Vec<String>,
    /// Earliest end of storage among its blobs, in milliseconds since the Unix epoch; none before anything is
    /// stored.
    pub kept_until_ms: Option<u64>,
    /// The last trouble with the head index: a rollback or a fork.
    pub trouble: Option<ErrorCode>,
    /// Whether the head index had turns that are missing here: [`SessionHandle::reconcile`](crate::SessionHandle::reconcile) merges them.
    pub diverged: bool,
    /// Incomplete bytes at the journal's end, until the session is next compared with the head index: turns
    /// may be missing here.
    pub torn_end_bytes: u64,
    /// Branches that forks left beside the conversation ([`SessionHandle::branches`](crate::SessionHandle::branches)).
    pub branches: u64,
    /// This device's id in the session.
    pub device: DeviceId,
    /// Other devices that may be writing the session, as the head index reported.
    pub others: Vec<DeviceLease>,
    /// State of each head index at the last look; empty before the first.
    pub indexes: Vec<IndexStatus>,
}

/// An accepted turn with its status.
#[derive(Debug, Clone)]
pub struct TurnView {
    /// Link and text.
    pub turn: HistoryTurn,
    /// The node's signed statement; absent in a session recovered from its root.
    pub receipt: Option<SignedObject<Receipt>>,
    /// The beginning of the answer, if another node made it and did not finish.
    pub resumed: Option<ResumePrefix>,
    /// The signed progress of those nodes, oldest first.
    pub notes: Vec<SignedObject<ProgressNote>>,
    /// Items of a relayer's memory that the node used; only this client keeps them.
    pub memory: Vec<MemoryItem>,
    /// Whether the blob is confirmed in the store.
    pub stored: bool,
    /// Whether the author has the acknowledgement.
    pub acked: bool,
}

pub(crate) fn view((turn, meta): (&HistoryTurn, &TurnMeta)) -> TurnView {
    TurnView {
        turn: turn.clone(),
        receipt: meta.receipt.clone(),
        resumed: meta.auth.as_ref().and_then(|auth| auth.resume),
        notes: meta.notes.clone(),
        memory: meta.memory.clone(),
        stored: meta.stored,
        acked: meta.acked,
    }
}

pub(crate) fn info(session: &Session, terms: StorageTerms) -> SessionInfo {
    let (trouble, diverged, indexes) =
        session.indexes(|view| (view.trouble, view.diverged, view.statuses.clone()));
    let mut info = session.read(|state| state_info(state, terms, trouble));
    (info.diverged, info.indexes) = (diverged, indexes);
    info
}

pub(crate) fn state_info(state: &State, terms: StorageTerms, trouble: Option<ErrorCode>) -> SessionInfo {
    let unstored = state.unstored.len() as u64;
    let pending = state.pending.as_ref();
    SessionInfo {
        id: state.session_id,
        title: title::title(state),
        project: state.header.project.clone(),
        turns: state.next_seq(),
        effective_turns: state.effective_turns,
        head: state.prev_link(),
        created_ms: state.header.created_ms,
        last_ms: state.meta.last().map(|meta| meta.accepted_ms),
        last_node: state.history.last().map(|turn| turn.link.author),
        pending: state.pending.is_some() && !state.deleted_elsewhere,
        deleted_elsewhere: state.deleted_elsewhere,
        pending_text: pending
            .and_then(|pending| pending.attempts.last())
            .map(|attempt| attempt.received.clone())
            .unwrap_or_default(),
        shards: state.header.n_shards,
        unstored,
        is_published: state.is_published(),
        lacking_indexes: state.head_unconfirmed.as_ref().map(|(_, names)| names.clone()).unwrap_or_default(),
        kept_until_ms: lifetime::kept_until_ms(state, terms),
        trouble,
        diverged: false,
        torn_end_bytes: state.torn_end,
        branches: state.branches.len() as u64,
        device: state.header.device_id,
        others: state.leases.clone(),
        indexes: Vec::new(),
    }
}
