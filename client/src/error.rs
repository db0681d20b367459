//! Errors of a client, grouped by the user's remedy. Each error has a stable name, a hint that names the next
//! step, and an exit code of the command. None contains conversation text.

use std::{io, path::PathBuf};

use baton_keys::{files::KeyFileError, words::WordsError};
use baton_mesh::MeshError;
use baton_proto::{
    ErrorCode, Retry,
    ids::{NodeId, SessionId},
    store::StoreError,
};

use crate::clocks::ClockDifference;

/// An error of the client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// An error of the device key file.
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    /// A file of the client's home.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// The failed action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The log of a session outside a folder.
    #[error("the session's log cannot be {action}: {source}")]
    Log {
        /// The failed action.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A passphrase was given, but the device key has none.
    #[error("a passphrase was given, but the device key {0} is not under one")]
    PassphraseUnused(PathBuf),
    /// A journal that differs from its written bytes.
    #[error("the journal {path} is damaged at entry {entry}")]
    JournalDamaged {
        /// The file.
        path: PathBuf,
        /// The first entry that does not open, from 1; 0 for the beginning of the file.
        entry: u64,
    },
    /// An entry of a journal does not fit the session's state.
    #[error("the session's journal has an entry that does not fit: {0}")]
    State(#[source] StateError),
    /// Another process has the session open.
    #[error("session {} is open in another process", short(&.0))]
    InUse(SessionId),
    /// This home has no such session.
    #[error("no session of this home is called {0}")]
    UnknownSession(String),
    /// The session is already here.
    #[error("session {} is in this home already", short(&.0))]
    SessionExists(SessionId),
    /// A turn of the session is under way.
    #[error("a turn of this session is under way")]
    Busy,
    /// An earlier turn is not finished.
    #[error("an earlier turn of this session is not finished")]
    PendingTurn,
    /// The session's file was closed before a write.
    #[error("the session was closed")]
    Closed,
    /// Another device deleted the session.
    #[error("the session was deleted on another device")]
    Deleted,
    /// The message is empty.
    #[error("the message is empty")]
    EmptyMessage,
    /// The message is too long for one turn.
    #[error("the message has {bytes} bytes; at most {limit} fit one turn")]
    MessageTooLong {
        /// Bytes offered.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// No node can serve the turn.
    #[error(transparent)]
    NoNode(#[from] NoChoice),
    /// Every attempt failed.
    #[error("the turn failed after {}, the last at node {}: {reason}", tries(*attempts), short(&node))]
    TurnFailed {
        /// Attempts made.
        attempts: u32,
        /// Node of the last attempt.
        node: NodeId,
        /// Its code, if the node or the client's checks named one.
        code: Option<ErrorCode>,
        /// The failure in words.
        reason: String,
        /// Whether a relayer reported the failure.
        relayed: bool,
        /// The pause in milliseconds that the node asked for; 0 for none.
        retry_after_ms: u32,
    },
    /// Every attempt at embedding failed.
    #[error("nothing was embedded in {attempts} attempts, the last at node {}: {reason}", short(&node))]
    EmbedFailed {
        /// Attempts made.
        attempts: u32,
        /// Node of the last attempt.
        node: NodeId,
        /// Its code, if the node or the client's checks named one.
        code: Option<ErrorCode>,
        /// The failure in words.
        reason: String,
    },
    /// The last answer cannot be checked.
    #[error(
        "the last answer cannot be checked: another engine or memory made it, or this client lacks its tokens"
    )]
    NotAuditable,
    /// A check of the protocol failed.
    #[error("{0}")]
    Protocol(ErrorCode),
    /// An error of the blob store or the head index.
    #[error("{}", store_failure(.0))]
    Store(#[from] StoreError),
    /// The store has another number of shards than the session's blob IDs are for.
    #[error(
        "the session is for a store of {ours} shards, and this store has {theirs}: it cannot keep the session"
    )]
    OtherShards {
        /// The session's number.
        ours: u16,
        /// The store's number.
        theirs: u16,
    },
    /// The head index has no record of this session.
    #[error("the head index has no record of this session")]
    HeadMissing,
    /// The head index has turns that are missing here.
    #[error("{}", behind(*ours, *theirs, *own))]
    Behind {
        /// Last turn here.
        ours: u64,
        /// Last turn in the index.
        theirs: u64,
        /// Whether this device wrote that turn and lost it; otherwise another device continued the session.
        own: bool,
    },
    /// The session has no branch with this name.
    #[error("the session has no branch {0}")]
    UnknownBranch(String),
    /// The network could not be started.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// A setting that cannot be used.
    #[error("{0}")]
    Config(String),
    /// An error in the recovery words.
    #[error(transparent)]
    Words(#[from] WordsError),
    /// A file that is no valid export.
    #[error("the export cannot be used: {0}")]
    Export(String),
    /// An export that would be too large to read again.
    #[error("the export has {bytes} bytes; at most {limit} can be verified or imported again")]
    ExportTooLarge {
        /// Bytes of the text.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// More messages than a turn may have.
    #[error("a turn has {count} messages; at most {limit} are allowed")]
    TooManyMessages {
        /// Messages.
        count: usize,
        /// Messages allowed.
        limit: usize,
    },
    /// A JSON schema that is too long.
    #[error("the JSON schema has {bytes} bytes; at most {limit} are allowed")]
    SchemaTooLong {
        /// Its length.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The title is too long.
    #[error("the title has {chars} characters; at most {limit} are allowed")]
    TitleTooLong {
        /// Its characters.
        chars: usize,
        /// The limit.
        limit: usize,
    },
    /// A background computation panicked, or the runtime is ending.
    #[error("a background task ended early")]
    TaskEnded,
}

/// Why an entry of a journal does not fit the state that the entries before it give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The journal does not begin with the session's header.
    #[error("there is no header")]
    NoHeader,
    /// An entry that only a journal's beginning may have.
    #[error("an entry of the beginning follows later")]
    OutOfPlace,
    /// An attempt without a pending turn.
    #[error("no turn is pending")]
    NothingPending,
    /// A turn that is not here.
    #[error("turn {0} is not there")]
    UnknownTurn(u64),
    /// A waiting message that is not here.
    #[error("the waiting message {0} is not there")]
    UnknownMessage(u64),
    /// A turn that does not continue the last one.
    #[error("a turn does not continue the chain")]
    ChainBroken,
    /// An object in the entry that does not decode, open or verify.
    #[error("{0}")]
    Object(#[from] ErrorCode),
}

impl From<StateError> for ClientError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Object(code) => Self::Protocol(code),
            error => Self::State(error),
        }
    }
}

impl From<ErrorCode> for ClientError {
    fn from(code: ErrorCode) -> Self {
        Self::Protocol(code)
    }
}

/// The beginning of the reason when no head index answered.
pub(crate) const NO_INDEX_ANSWERS: &str = "no head index answers";

/// The failure in words. A reason that names its server, or the indexes, is a sentence of its own.
fn store_failure(error: &StoreError) -> String {
    match error {
        StoreError::Unavailable { reason, .. }
            if reason.starts_with(NO_INDEX_ANSWERS) || reason.contains("://") =>
        {
            reason.clone()
        }
        error => error.to_string(),
    }
}

fn tries(attempts: u32) -> String {
    format!("{attempts} attempt{}", if attempts == 1 { "" } else { "s" })
}

/// Enough of an id to tell nodes and sessions apart.
pub(crate) fn short(id: &impl ToString) -> String {
    id.to_string().chars().take(8).collect()
}

fn behind(ours: u64, theirs: u64, own: bool) -> String {
    if own {
        format!(
            "this device wrote this session up to turn {}, but it ends at turn {} here: this home is an older copy, or its \
             journal lost its end",
            theirs + 1,
            ours + 1
        )
    } else {
        format!(
            "another device continued this session up to turn {}; here it ends at turn {}",
            theirs + 1,
            ours + 1
        )
    }
}

impl ClientError {
    /// The protocol's error code, if there is one.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Protocol(code) => Some(*code),
            Self::TurnFailed { code, .. } | Self::EmbedFailed { code, .. } => *code,
            _ => None,
        }
    }

    /// Whether nodes refused the turn as it is: the same message fails again.
    #[must_use]
    pub fn is_refusal_of_request(&self) -> bool {
        matches!(self, Self::TurnFailed { code: Some(code), .. } if code.retry() == Retry::Never)
    }

    /// Whether a turn failed before its message was written: another message waits, or this one cannot be sent.
    pub(crate) fn is_before_message(&self) -> bool {
        matches!(
            self,
            Self::PendingTurn
                | Self::Busy
                | Self::EmptyMessage
                | Self::MessageTooLong { .. }
                | Self::TooManyMessages { .. }
                | Self::SchemaTooLong { .. }
        )
    }

    /// The pause in whole seconds that the last node asked for, if it asked for one.
    #[must_use]
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::TurnFailed { retry_after_ms: pause @ 1.., .. } => Some(u64::from(*pause).div_ceil(1000)),
            _ => None,
        }
    }

    /// Whether the head index has turns that are missing here: another device continued the session, or
    /// forked it.
    #[must_use]
    pub fn is_divergence(&self) -> bool {
        matches!(self, Self::Behind { .. } | Self::Protocol(ErrorCode::ForkDetected))
    }

    /// A stable name for machines.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::KeyFile(_) => "KeyFile",
            Self::File { .. } => "File",
            Self::Log { .. } => "Log",
            Self::PassphraseUnused(_) => "PassphraseUnused",
            Self::JournalDamaged { .. } | Self::State(_) => "JournalDamaged",
            Self::InUse(_) => "InUse",
            Self::UnknownSession(_) => "UnknownSession",
            Self::SessionExists(_) => "SessionExists",
            Self::Busy => "Busy",
            Self::PendingTurn => "PendingTurn",
            Self::Closed => "Closed",
            Self::Deleted => "Deleted",
            Self::EmptyMessage => "EmptyMessage",
            Self::MessageTooLong { .. } => "MessageTooLong",
            Self::TooManyMessages { .. } => "TooManyMessages",
            Self::SchemaTooLong { .. } => "SchemaTooLong",
            Self::NoNode(NoChoice::ClocksDiffer(_)) => "ClocksDiffer",
            Self::NoNode(_) => "NoNode",
            Self::TurnFailed { code, .. } | Self::EmbedFailed { code, .. } => {
                code.map_or("Unreachable", ErrorCode::name)
            }
            Self::NotAuditable => "NotAuditable",
            Self::Protocol(code) => code.name(),
            Self::Store(_) => "Store",
            Self::OtherShards { .. } => "OtherShards",
            Self::HeadMissing => "HeadMissing",
            Self::Behind { .. } => "Behind",
            Self::UnknownBranch(_) => "UnknownBranch",
            Self::Mesh(_) => "Mesh",
            Self::Config(_) => "Config",
            Self::Words(_) => "Words",
            Self::Export(_) => "Export",
            Self::ExportTooLarge { .. } => "ExportTooLarge",
            Self::TitleTooLong { .. } => "TitleTooLong",
            Self::TaskEnded => "TaskEnded",
        }
    }

    /// The next step for the user.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        if let Self::TurnFailed { code: Some(ErrorCode::Busy), relayed: true, .. } = self {
            return Some(
                "check that the relayer reaches the nodes: its operator names one with --bootstrap; or wait a little",
            );
        }
        if let Some(code) = self.code() {
            return code_hint(code);
        }
        Some(match self {
            Self::KeyFile(KeyFileError::PassphraseNeeded { .. } | KeyFileError::WrongPassphrase { .. }) => {
                "give the passphrase with --passphrase-file or at the prompt"
            }
            Self::Log { .. } => "try again; the message is kept where the log is",
            Self::KeyFile(KeyFileError::Empty { .. }) => "remove the empty file, then start again",
            Self::File { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists => {
                "no file is replaced: name a new one"
            }
            Self::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound => "check the path",
            Self::KeyFile(_) | Self::File { .. } => "check the home folder, or choose another with --home",
            Self::PassphraseUnused(_) => {
                "put the key under it with baton passphrase, or leave --passphrase-file away"
            }
            Self::JournalDamaged { entry: 0, .. } => {
                "if the device key is the right one, bring the session back from its words: baton session restore"
            }
            Self::JournalDamaged { .. } | Self::State(_) => {
                "bring it back from the store with baton session restore SESSION, or from an export with baton session \
                 import FILE; the damaged file is kept"
            }
            Self::InUse(_) => "close the other baton, or choose another session",
            Self::UnknownSession(_) => "list the sessions: baton session list",
            Self::SessionExists(_) => {
                "continue it: baton chat -s SESSION (deleting it would also mark it deleted in the head index)"
            }
            Self::Busy => "wait for the turn to end",
            Self::PendingTurn => {
                "finish it (/retry, or SessionHandle::resume) or discard it (/drop, or SessionHandle::abandon)"
            }
            Self::Closed => "open it again",
            Self::Deleted => "remove it here: baton session delete SESSION; begin another: baton chat",
            Self::EmptyMessage => "write a message",
            Self::MessageTooLong { .. } => "send it in parts",
            Self::TooManyMessages { .. } => "send them over several turns, or join them",
            Self::SchemaTooLong { .. } => "leave out descriptions, or ask for less at once",
            Self::NoNode(why) => why.hint(),
            Self::TurnFailed { .. } => {
                "the message is kept; check that the node runs and is reachable, then try again"
            }
            Self::EmbedFailed { .. } => "check that the node runs and is reachable, then try again",
            Self::NotAuditable => {
                "baton session export and baton-node replay compute it here, if the client that began the turn exports it"
            }
            Self::Store(error) => store_hint(error),
            Self::OtherShards { .. } => {
                "go on in a new conversation, which begins with all of it: baton chat -s SESSION --branch TEXT; or name the \
                 session's own store: --publisher"
            }
            Self::HeadMissing => "check --heads; a session that never had a turn has no head",
            Self::Behind { .. } => "merge these turns: baton session sync SESSION",
            Self::UnknownBranch(_) => "baton session show SESSION names the branches",
            Self::Mesh(_) => "check the listen addresses and the --node addresses",
            Self::Config(_) => "baton --help shows the settings",
            Self::TitleTooLong { .. } => "choose a shorter title",
            Self::Words(_) => "compare with the paper: 24 words, in order",
            Self::ExportTooLarge { .. } => "move it by its words: baton session backup",
            Self::Export(_) => "check that it is the whole file that baton session export wrote",
            Self::TaskEnded | Self::Protocol(_) => return None,
        })
    }

    /// The command's exit code:
    /// - 1: everything without a code of its own;
    /// - 2: wrong usage;
    /// - 3: no node;
    /// - 4: a failed turn;
    /// - 5: a failed verification;
    /// - 6: the store;
    /// - 7: the session;
    /// - 8: the home folder or its key.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if let Some(code) = self.code()
            && is_integrity(code)
        {
            return 5;
        }
        match self {
            Self::EmptyMessage
            | Self::MessageTooLong { .. }
            | Self::TooManyMessages { .. }
            | Self::TitleTooLong { .. }
            | Self::SchemaTooLong { .. }
            | Self::Config(_)
            | Self::Words(_) => 2,
            Self::NoNode(NoChoice::ClocksDiffer(_)) => 4,
            Self::NoNode(_) => 3,
            Self::TurnFailed { .. } | Self::EmbedFailed { .. } => 4,
            Self::Protocol(_) | Self::Export(_) => 5,
            Self::Store(StoreError::WrongContent) => 5,
            Self::Store(_) | Self::OtherShards { .. } | Self::HeadMissing => 6,
            Self::ExportTooLarge { .. }
            | Self::NotAuditable
            | Self::UnknownSession(_)
            | Self::UnknownBranch(_)
            | Self::SessionExists(_)
            | Self::Busy
            | Self::PendingTurn
            | Self::InUse(_)
            | Self::Behind { .. }
            | Self::Closed
            | Self::Deleted => 7,
            Self::KeyFile(_)
            | Self::File { .. }
            | Self::Log { .. }
            | Self::PassphraseUnused(_)
            | Self::JournalDamaged { .. }
            | Self::State(_) => 8,
            Self::Mesh(_) | Self::TaskEnded => 1,
        }
    }
}

/// Whether a code means that a peer's bytes differ from the signed ones.
fn is_integrity(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::ReceiptMismatch
            | ErrorCode::BlobMismatch
            | ErrorCode::RollbackDetected
            | ErrorCode::ForkDetected
            | ErrorCode::ChainBroken
            | ErrorCode::RecordHashMismatch
            | ErrorCode::BlobHashMismatch
            | ErrorCode::BlobIdMismatch
            | ErrorCode::BadNodeSignature
    )
}

fn store_hint(error: &StoreError) -> &'static str {
    match error {
        StoreError::NotFound => "check --aggregator; what was stored is gone when its epochs are over",
        StoreError::WrongContent => "check --shards, or name further stores with --aggregator",
        StoreError::TooLarge { .. } => "a blob's largest size depends on --shards and the publisher",
        StoreError::OutcomeUnknown { .. } => {
            "it may be stored, and paid for: baton session renew waits before it pays again"
        }
        StoreError::Refused { .. } => {
            "change what the reason names, or try another --publisher or --aggregator"
        }
        StoreError::Unavailable { .. } | StoreError::HeadSuperseded => {
            "check --publisher and --aggregator, and that the store runs"
        }
    }
}

fn code_hint(code: ErrorCode) -> Option<&'static str> {
    Some(match code {
        ErrorCode::Busy | ErrorCode::RateLimited => "wait a little, or give another node with --node",
        ErrorCode::ModelUnavailable => "see what is served: baton nodes",
        ErrorCode::ContextOverflow => {
            "shorten the message or the system text, or choose a --model with a larger context: baton nodes"
        }
        ErrorCode::BackendDenied => "tell the node's operator, or use another node with --node",
        ErrorCode::ContentRefused => "change the message, or use another node with --node",
        ErrorCode::PayloadRejected => "change what the reason names, or use another node with --node",
        ErrorCode::Expired | ErrorCode::NotYetValid => "check this machine's clock",
        ErrorCode::QuotaExceeded => {
            "lower --max-tokens, wait, try another node, or ask its operator for a grant: baton grants"
        }
        ErrorCode::GrantRequired => {
            "use another node, or send its operator your key (baton grants), and take the grant that comes back: \
             baton grants use FILE"
        }
        ErrorCode::BlobUnavailable => "check that the store runs: baton session verify",
        ErrorCode::RollbackDetected => {
            "the head index lost or hid turns; this device's copy is newer and stays"
        }
        ErrorCode::ForkDetected => {
            "another device wrote the same turn: baton session sync SESSION keeps both"
        }
        ErrorCode::UnsupportedVersion => "update baton, or the node",
        ErrorCode::ReceiptMismatch | ErrorCode::BlobMismatch | ErrorCode::StreamTruncated => {
            "the answer was not accepted; the message is kept, try another node"
        }
        _ => return None,
    })
}

/// Why no node can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoChoice {
    /// No node is known.
    #[error("no node was found")]
    NoNodes,
    /// Nodes were found, but only at addresses that lead to one machine, or into a nearer network than the client's.
    #[error("{}", not_dialable(*nodes))]
    NotDialable {
        /// The number of nodes.
        nodes: usize,
    },
    /// The requested node is not known.
    #[error("node {} was not found", short(&.0))]
    NodeUnknown(NodeId),
    /// Nodes are known, but none has a current record of a supported version.
    #[error("no known node has a current record")]
    NoneCurrent,
    /// No node's time fits this machine's clock.
    #[error("{0}")]
    ClocksDiffer(ClockDifference),
    /// No node serves the model.
    #[error("no node serves the model {wanted}; served are: {served}")]
    ModelUnavailable {
        /// The requested model.
        wanted: String,
        /// Names of the served models.
        served: String,
    },
    /// No node serves the model of the session's earlier turns.
    #[error("no node serves this conversation's model {model}; served are: {served}")]
    ModelOfSession {
        /// Its name, or its id.
        model: String,
        /// Names of the served models.
        served: String,
    },
    /// There are only test engines.
    #[error("only echo engines were found, and they are not asked unless allowed")]
    OnlyEcho,
    /// Every node asks for more than the client pays.
    #[error(
        "the cheapest turn may cost {cheapest} millionths of the node's unit; at most {max_price} are allowed"
    )]
    TooExpensive {
        /// The lowest price of a turn with a full context.
        cheapest: u64,
        /// The client's limit.
        max_price: u64,
    },
}

fn not_dialable(nodes: usize) -> String {
    let (were, them) = if nodes == 1 {
        ("node of this machine's test network was", "it")
    } else {
        ("nodes of this machine's test network were", "them")
    };
    format!("{nodes} {were} found, but this client does not dial {them}")
}

impl NoChoice {
    /// The next step for the user.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoNodes => {
                "see why with baton doctor; name a node that runs with --node, or try a private network: baton try"
            }
            Self::NotDialable { .. } => {
                "use the settings file that baton-testnet up printed: baton --config FILE; or name the node with --node"
            }
            Self::NodeUnknown(_) => "give its address with --node, or see who is there: baton nodes",
            Self::NoneCurrent => "check this machine's clock, and that the nodes run",
            Self::ClocksDiffer(difference) => difference.hint(),
            Self::ModelUnavailable { .. } => "see what is served: baton nodes",
            Self::ModelOfSession { .. } => {
                "wait for a node with it, or continue with another one: --model NAME"
            }
            Self::OnlyEcho => "for a test, allow them with --allow-echo",
            Self::TooExpensive { .. } => {
                "ask for fewer tokens with --max-tokens, or allow more with --max-price"
            }
        }
    }
}
