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

/// Logs a failure that delays nobody.
pub(crate) fn log_failure<T>(result: Result<T, impl std::fmt::Display>, what: &'static str) {
    if let Err(error) = result {
        tracing::warn!(%error, "{what}");
    }
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
        match self.code() {
            Some(code) => code.name(),
            None => self.row().0,
        }
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
        if self.code().is_some_and(is_integrity) { 5 } else { self.row().1 }
    }

    /// The next step for the user.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match (self, self.code()) {
            (Self::TurnFailed { relayed: true, .. }, Some(ErrorCode::Busy)) => Some(
                "check that the relayer reaches the nodes: its operator names one with --bootstrap; or wait a little",
            ),
            (_, Some(code)) => code_hint(code),
            _ => Some(self.row().2).filter(|hint| !hint.is_empty()),
        }
    }

    /// The name, the exit code and the next step; an error with a code of the protocol has those of the code.
    fn row(&self) -> (&'static str, u8, &'static str) {
        match self {
            Self::EmptyMessage => ("EmptyMessage", 2, "write a message"),
            Self::MessageTooLong { .. } => ("MessageTooLong", 2, "send it in parts"),
            Self::TooManyMessages { .. } => {
                ("TooManyMessages", 2, "send them over several turns, or join them")
            }
            Self::TitleTooLong { .. } => ("TitleTooLong", 2, "choose a shorter title"),
            Self::SchemaTooLong { .. } => {
                ("SchemaTooLong", 2, "leave out descriptions, or ask for less at once")
            }
            Self::Config(_) => ("Config", 2, "baton --help shows the settings"),
            Self::Words(_) => ("Words", 2, "compare with the paper: 24 words, in order"),
            Self::NoNode(why @ NoChoice::ClocksDiffer(_)) => ("ClocksDiffer", 4, why.hint()),
            Self::NoNode(why) => ("NoNode", 3, why.hint()),
            Self::TurnFailed { .. } => ("Unreachable", 4, TURN_FAILED),
            Self::EmbedFailed { .. } => ("Unreachable", 4, EMBED_FAILED),
            Self::Protocol(code) => (code.name(), 5, ""),
            Self::Export(_) => {
                ("Export", 5, "check that it is the whole file that baton session export wrote")
            }
            Self::Store(error @ StoreError::WrongContent) => ("Store", 5, store_hint(error)),
            Self::Store(error) => ("Store", 6, store_hint(error)),
            Self::OtherShards { .. } => ("OtherShards", 6, OTHER_SHARDS),
            Self::HeadMissing => {
                ("HeadMissing", 6, "check --heads; a session that never had a turn has no head")
            }
            Self::ExportTooLarge { .. } => {
                ("ExportTooLarge", 7, "move it by its words: baton session backup")
            }
            Self::NotAuditable => ("NotAuditable", 7, NOT_AUDITABLE),
            Self::UnknownSession(_) => ("UnknownSession", 7, "list the sessions: baton session list"),
            Self::UnknownBranch(_) => ("UnknownBranch", 7, "baton session show SESSION names the branches"),
            Self::SessionExists(_) => ("SessionExists", 7, SESSION_EXISTS),
            Self::Busy => ("Busy", 7, "wait for the turn to end"),
            Self::PendingTurn => ("PendingTurn", 7, PENDING_TURN),
            Self::InUse(_) => ("InUse", 7, "close the other baton, or choose another session"),
            Self::Behind { .. } => ("Behind", 7, "merge these turns: baton session sync SESSION"),
            Self::Closed => ("Closed", 7, "open it again"),
            Self::Deleted => ("Deleted", 7, DELETED),
            Self::KeyFile(error) => ("KeyFile", 8, key_hint(error)),
            Self::File { source, .. } => ("File", 8, file_hint(source)),
            Self::Log { .. } => ("Log", 8, "try again; the message is kept where the log is"),
            Self::PassphraseUnused(_) => ("PassphraseUnused", 8, PASSPHRASE_UNUSED),
            Self::JournalDamaged { entry: 0, .. } => ("JournalDamaged", 8, JOURNAL_UNREADABLE),
            Self::JournalDamaged { .. } => ("JournalDamaged", 8, JOURNAL_DAMAGED),
            Self::Mesh(_) => ("Mesh", 1, "check the listen addresses and the --node addresses"),
            Self::TaskEnded => ("TaskEnded", 1, ""),
        }
    }
}

const TURN_FAILED: &str = "the message is kept; check that the node runs and is reachable, then try again";
const EMBED_FAILED: &str = "check that the node runs and is reachable, then try again";
const OTHER_SHARDS: &str = "go on in a new conversation, which begins with all of it: baton chat -s SESSION --branch TEXT; or \
                            name the session's own store: --publisher";
const NOT_AUDITABLE: &str = "baton session export and baton-node replay compute it here, if the client that began the turn exports it";
const SESSION_EXISTS: &str =
    "continue it: baton chat -s SESSION (deleting it would also mark it deleted in the head index)";
const PENDING_TURN: &str =
    "finish it (/retry, or SessionHandle::resume) or discard it (/drop, or SessionHandle::abandon)";
const DELETED: &str = "remove it here: baton session delete SESSION; begin another: baton chat";
const PASSPHRASE_UNUSED: &str = "put the key under it with baton passphrase, or leave --passphrase-file away";
const JOURNAL_UNREADABLE: &str =
    "if the device key is the right one, bring the session back from its words: baton session restore";
const JOURNAL_DAMAGED: &str = "bring it back from the store with baton session restore SESSION, or from an export with baton \
                               session import FILE; the damaged file is kept";
/// The step after an error of a home's file without a step of its own.
const CHECK_HOME: &str = "check the home folder, or choose another with --home";

fn key_hint(error: &KeyFileError) -> &'static str {
    match error {
        KeyFileError::PassphraseNeeded { .. } | KeyFileError::WrongPassphrase { .. } => {
            "give the passphrase with --passphrase-file or at the prompt"
        }
        KeyFileError::Empty { .. } => "remove the empty file, then start again",
        _ => CHECK_HOME,
    }
}

fn file_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AlreadyExists => "no file is replaced: name a new one",
        io::ErrorKind::NotFound => "check the path",
        _ => CHECK_HOME,
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
