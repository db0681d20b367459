//! What a caller asks for in a turn, and what it is told while the turn runs and afterwards.

use std::time::Duration;

use baton_keys::{SecretSigningKey, account::AccountKey, owner::sui_address};
use baton_mesh::Multiaddr;
use baton_proto::{
    ErrorCode, Signed,
    ids::{BlobDigest, LinkHash, NodeId, SessionId, SuiAddress, TurnId},
    limits::{MAX_SCHEMA_BYTES, VERSION},
    memory::{MemoryItem, RecallHint, RecallScope},
    receipt::{EngineKind, Receipt},
    record::{FinishReason, Message, RecordKind, Role},
    turn::{Sampling, TurnAuth},
};

pub use crate::request::InlinePolicy;
use crate::{error::ClientError, reconcile::DeviceEvent, reported::TokenReport};

/// Most tokens of an answer where the caller names no number.
pub const DEFAULT_OUTPUT_TOKENS: u32 = 512;
/// Most tokens of added memory where the caller names no number.
pub const DEFAULT_MEMORY_TOKENS: u32 = 512;

/// A relayer that adds memory to a turn which it cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relayer {
    /// Its identity: signs the memory envelopes, and is its libp2p identity too.
    pub node: NodeId,
    /// Where it is.
    pub addrs: Vec<Multiaddr>,
}

/// What a relayer is asked to recall for a turn that it cannot read. Nothing of the turn itself goes along.
#[derive(Debug, Clone)]
pub struct MemoryHint {
    /// Signs the hint: the owner's key, or a delegate's.
    pub key: AccountKey,
    /// Whose memory.
    pub owner: SuiAddress,
    /// Words to search by, at most [`MAX_HINT_BYTES`](baton_proto::limits::MAX_HINT_BYTES); empty for none.
    pub words: String,
    /// The session's name in memory.
    pub session: Option<String>,
    /// The project that the session is in.
    pub project: Option<String>,
    /// The persona that is spoken to.
    pub persona: Option<String>,
    /// What may be used.
    pub scope: RecallScope,
}

impl MemoryHint {
    /// A hint for the owner's own memory, outside any project.
    #[must_use]
    pub fn new(key: AccountKey, words: impl Into<String>) -> Self {
        Self {
            owner: SuiAddress(sui_address(&key.public_key())),
            key,
            words: words.into(),
            session: None,
            project: None,
            persona: None,
            scope: RecallScope::default(),
        }
    }

    pub(crate) fn sign(&self, auth: &Signed<TurnAuth>) -> Signed<RecallHint> {
        let hint = RecallHint {
            version: VERSION,
            auth_hash: auth.auth_hash(),
            owner: self.owner,
            key: self.key.public_key(),
            hint: self.words.clone(),
            session: self.session.clone(),
            project: self.project.clone(),
            persona: self.persona.clone(),
            scope: self.scope,
        };
        Signed::sign(hint, self.key.signing_key())
    }
}

/// Memory that the caller adds itself, as a relayer does that is the client too.
#[derive(Debug, Clone)]
pub struct OwnMemory {
    /// Signs the envelopes.
    pub signer: SecretSigningKey,
    /// The items, best first.
    pub items: Vec<MemoryItem>,
}

/// A turn as the caller asks for it. `TurnInput::user("text")` is an ordinary one.
#[derive(Debug, Clone)]
pub struct TurnInput {
    /// The new messages, at least one with text.
    pub messages: Vec<Message>,
    /// What the turn is.
    pub kind: RecordKind,
    /// First seq that it replaces, for kinds other than an ordinary turn: back to before it. An edit of an edit
    /// names what that one named.
    pub supersedes_from: Option<u64>,
    /// How tokens are chosen. With `logprobs` the caller is told how likely each was; `json_schema` is set by the next field.
    pub sampling: Sampling,
    /// A JSON schema that the answer must satisfy, at most [`MAX_SCHEMA_BYTES`]. Nodes that cannot do it refuse the turn, and
    /// others are asked.
    pub json_schema: Option<String>,
    /// Most tokens of the answer; a node's own lower limit holds.
    pub max_output_tokens: u32,
    /// Name or hex id of the model, or any.
    pub model: Option<String>,
    /// This node and no other.
    pub node: Option<NodeId>,
    /// Whether test engines that only repeat the message may serve.
    pub allow_echo: bool,
    /// The relayer that the turn goes through.
    pub relayer: Option<Relayer>,
    /// What the relayer is to recall; without it, it recalls nothing.
    pub hint: Option<MemoryHint>,
    /// Memory that goes along without a relayer; unused with one.
    pub memory: Option<OwnMemory>,
    /// Most tokens of memory that the relayer may add.
    pub memory_tokens: u32,
    /// Whether the request says where the history is; if not, the node finds it by the session id.
    pub with_locator: bool,
    /// Which blobs go along.
    pub inline: InlinePolicy,
    /// Most attempts; at least 1.
    pub max_attempts: u32,
    /// Whether other devices' turns may be taken in first, where there are such, and turns of this device that lost their
    /// place said again. Without another device that is known of, nothing is asked and a turn takes no longer.
    pub reconcile: bool,
}

impl TurnInput {
    /// An ordinary turn with these messages.
    #[must_use]
    pub fn new(messages: Vec<Message>) -> Self {
        Self {
            messages,
            kind: RecordKind::Turn,
            supersedes_from: None,
            sampling: Sampling::default(),
            json_schema: None,
            max_output_tokens: DEFAULT_OUTPUT_TOKENS,
            model: None,
            node: None,
            allow_echo: false,
            relayer: None,
            hint: None,
            memory: None,
            memory_tokens: DEFAULT_MEMORY_TOKENS,
            with_locator: true,
            inline: InlinePolicy::default(),
            max_attempts: crate::retry::MAX_ATTEMPTS,
            reconcile: false,
        }
    }

    /// Checks what is said and how it is asked for, as [`Client::turn`](crate::Client::turn) does before anything else.
    ///
    /// # Errors
    /// [`ClientError::EmptyMessage`], [`ClientError::MessageTooLong`], [`ClientError::Protocol`] for settings out of
    /// range.
    pub fn check(&self) -> Result<(), ClientError> {
        if self.messages.iter().all(|message| message.text.trim().is_empty()) {
            return Err(ClientError::EmptyMessage);
        }
        self.sampling.check()?;
        if self.json_schema.as_ref().is_some_and(|schema| schema.len() > MAX_SCHEMA_BYTES) {
            return Err(ErrorCode::FrameTooLarge.into());
        }
        crate::turn::check_texts(&self.messages)
    }

    /// An ordinary turn with one message of the user's.
    #[must_use]
    pub fn user(text: impl Into<String>) -> Self {
        Self::new(vec![Message::new(Role::User, text)])
    }
}

/// How a pending turn is to be finished; the turn itself is in the journal.
#[derive(Debug, Clone)]
pub struct ResumeOptions {
    /// As in [`TurnInput`].
    pub model: Option<String>,
    /// As in [`TurnInput`].
    pub node: Option<NodeId>,
    /// As in [`TurnInput`].
    pub allow_echo: bool,
    /// As in [`TurnInput`].
    pub relayer: Option<Relayer>,
    /// As in [`TurnInput`].
    pub hint: Option<MemoryHint>,
    /// As in [`TurnInput`].
    pub memory: Option<OwnMemory>,
    /// As in [`TurnInput`].
    pub memory_tokens: u32,
    /// As in [`TurnInput`].
    pub with_locator: bool,
    /// As in [`TurnInput`].
    pub inline: InlinePolicy,
    /// As in [`TurnInput`].
    pub max_attempts: u32,
    /// As in [`TurnInput`].
    pub reconcile: bool,
}

impl Default for ResumeOptions {
    fn default() -> Self {
        Self::of(&TurnInput::new(Vec::new()))
    }
}

impl ResumeOptions {
    /// The same as a turn was asked with.
    #[must_use]
    pub fn of(input: &TurnInput) -> Self {
        Self {
            model: input.model.clone(),
            node: input.node,
            allow_echo: input.allow_echo,
            relayer: input.relayer.clone(),
            hint: input.hint.clone(),
            memory: input.memory.clone(),
            memory_tokens: input.memory_tokens,
            with_locator: input.with_locator,
            inline: input.inline,
            max_attempts: input.max_attempts,
            reconcile: input.reconcile,
        }
    }
}

/// What happens while a turn runs.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnEvent {
    /// An attempt is sent.
    Attempt {
        /// Its number, from 0.
        attempt: u32,
        /// The node.
        node: NodeId,
        /// The model's name.
        model: String,
        /// What produces the tokens.
        engine: EngineKind,
        /// Tokens of the answer that were shown already, and that the node continues.
        continues: u32,
    },
    /// The relayer added these items, best first.
    Memory(Vec<MemoryItem>),
    /// The node admitted the turn.
    Admitted,
    /// So many turns are ahead at the node.
    Waiting(u32),
    /// Text of the answer. Display only, until the turn is accepted.
    Text(String),
    /// How likely each token was whose text comes next, where that was asked for. It is the node's word.
    Logprobs(Vec<TokenReport>),
    /// An attempt failed; another follows if there is one to make.
    AttemptFailed {
        /// Its number.
        attempt: u32,
        /// The node.
        node: NodeId,
        /// The code, where there is one.
        code: Option<ErrorCode>,
        /// What happened, without any content.
        reason: String,
        /// How long ago that was noticed: for so long its author was asked what became of the turn.
        noticed_ago: Duration,
    },
    /// Text shown so far is void: the answer starts anew.
    Restarted,
    /// The turn was rebuilt, compared and accepted.
    Accepted,
    /// Something that has to do with other devices of the session. Its text says it to a user.
    Devices(DeviceEvent),
}

/// A turn that the client rebuilt and accepted.
#[derive(Debug, Clone)]
pub struct TurnOutcome {
    /// The session.
    pub session: SessionId,
    /// The turn's position in the chain.
    pub seq: u64,
    /// The turn.
    pub turn_id: TurnId,
    /// The attempt that was accepted.
    pub attempt: u32,
    /// The node that served it.
    pub node: NodeId,
    /// The answer.
    pub text: String,
    /// Why it ended.
    pub finish: FinishReason,
    /// Hash of the signed link.
    pub link_hash: LinkHash,
    /// BLAKE3 of the turn's blob.
    pub blob_digest: BlobDigest,
    /// What the node claims, signed.
    pub receipt: Signed<Receipt>,
    /// What the relayer added, as far as the node used it.
    pub memory: Vec<MemoryItem>,
}
