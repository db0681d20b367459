//! The request for a turn, its events while it runs, and its outcome.

use std::time::Duration;

use baton_keys::{SecretSigningKey, account::AccountKey, owner::sui_address};
use baton_mesh::Multiaddr;
use baton_proto::{
    ErrorCode, SignedObject,
    ids::{BlobDigest, LinkHash, NodeId, SessionId, SuiAddress, TurnId},
    limits::{MAX_MESSAGE_BYTES, MAX_MESSAGES, MAX_RECORD_BUCKET, MAX_SCHEMA_BYTES, VERSION},
    memory::{MemoryItem, RecallHint, RecallScope},
    receipt::{EngineKind, Receipt},
    record::{FinishReason, Message, RecordKind, Role},
    turn::{Sampling, TurnAuth, json_schema_hash},
};

use crate::{error::ClientError, logprobs::TokenReport};

/// Most tokens of an answer by default.
pub const DEFAULT_OUTPUT_TOKENS: u32 = 2048;

/// In [`TurnInput::max_output_tokens`]: as many as suit the model that serves the turn.
pub const MODEL_OUTPUT_TOKENS: u32 = 0;

/// In [`TurnInput::sampling`]: the repetition penalty that suits the model that serves the turn.
pub const MODEL_PENALTY: f32 = 0.0;
/// Most tokens of a small model's answer, where the model decides.
pub(crate) const SMALL_OUTPUT_TOKENS: u32 = 512;
/// The repetition penalty of a small model, where the model decides.
pub(crate) const SMALL_PENALTY: f32 = 1.1;
/// Most tokens of added memory by default.
pub const DEFAULT_MEMORY_TOKENS: u32 = 512;

/// Default limit of attempts at one turn: enough for a few nodes that just left and a moment of load.
pub(crate) const MAX_ATTEMPTS: u32 = 6;
/// Most bytes of new messages in a turn: half of the largest record, so that the other half is left for the
/// answer.
const MAX_INPUT_BYTES: usize = MAX_RECORD_BUCKET / 2;

/// Which blobs a request contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InlinePolicy {
    /// Blobs that are not confirmed in the store.
    #[default]
    Unstored,
    /// None: the node has to fetch them.
    Never,
    /// The latest two, stored or not.
    Always,
}

/// A relayer that adds memory to a turn without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relayer {
    /// Its identity, for memory envelopes and for libp2p alike.
    pub node: NodeId,
    /// Its addresses.
    pub addrs: Vec<Multiaddr>,
}

/// A recall hint for a relayer that cannot read the turn. It contains nothing of the turn itself.
#[derive(Debug, Clone)]
pub struct MemoryHint {
    /// Signs the hint: the owner's key, or a delegate's.
    pub key: AccountKey,
    /// The owner of the memory.
    pub owner: SuiAddress,
    /// Search words, at most [`MAX_HINT_BYTES`](baton_proto::limits::MAX_HINT_BYTES); empty for none.
    pub words: String,
    /// The session's name in memory.
    pub session: Option<String>,
    /// The session's project.
    pub project: Option<String>,
    /// The persona that the user talks to.
    pub persona: Option<String>,
    /// The memory that may be used.
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

    pub(crate) fn sign(&self, auth: &SignedObject<TurnAuth>) -> SignedObject<RecallHint> {
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
        SignedObject::sign(hint, self.key.signing_key())
    }
}

/// Memory that the caller adds itself, such as a relayer that is also the client.
#[derive(Debug, Clone)]
pub struct OwnMemory {
    /// Signs the envelopes.
    pub signer: SecretSigningKey,
    /// The items, best first.
    pub items: Vec<MemoryItem>,
}

/// A turn as the caller requests it. `TurnInput::user("text")` is an ordinary one.
#[derive(Debug, Clone)]
pub struct TurnInput {
    /// The new messages: at least one has text, or is the result of a tool.
    pub messages: Vec<Message>,
    /// The kind of turn.
    pub kind: RecordKind,
    /// First seq that it replaces, for kinds other than an ordinary turn: back to before it. An edit of an
    /// edit names the same seq as that edit.
    pub supersedes_from: Option<u64>,
    /// Sampling parameters. With `logprobs` the caller gets token probabilities; the next field sets
    /// `json_schema`.
    pub sampling: Sampling,
    /// A JSON schema that the answer must satisfy, at most [`MAX_SCHEMA_BYTES`]. Nodes without schema support
    /// refuse the turn, and others are tried.
    pub json_schema: Option<String>,
    /// Most tokens of the answer, or [`MODEL_OUTPUT_TOKENS`]; a node's own lower limit takes precedence.
    pub max_output_tokens: u32,
    /// How the turn is served. A resumed turn may take another route.
    pub route: RouteOptions,
}

/// The way from the client to an answer: the model, the node or relayer, and how the history gets there. A pending turn
/// keeps none of it but the model.
#[derive(Debug, Clone)]
pub struct RouteOptions {
    /// Name or hex id of the model; any if none.
    pub model: Option<String>,
    /// The only node to use.
    pub node: Option<NodeId>,
    /// Whether test engines that only repeat the message may serve.
    pub allow_echo: bool,
    /// The relayer that the turn goes through.
    pub relayer: Option<Relayer>,
    /// The recall hint for the relayer; without it, the relayer recalls nothing.
    pub hint: Option<MemoryHint>,
    /// Memory for the request without a relayer; unused with one.
    pub memory: Option<OwnMemory>,
    /// Most tokens of memory that the relayer may add.
    pub memory_tokens: u32,
    /// Whether the request contains the location of the history; otherwise the node finds it by the session
    /// id.
    pub with_locator: bool,
    /// Which blobs the request contains.
    pub inline: InlinePolicy,
    /// Most attempts; at least 1.
    pub max_attempts: u32,
    /// Whether to merge other devices' turns first. If no other device is known, no index is asked and a turn takes no
    /// longer.
    pub reconcile: bool,
}

impl Default for RouteOptions {
    fn default() -> Self {
        Self {
            model: None,
            node: None,
            allow_echo: false,
            relayer: None,
            hint: None,
            memory: None,
            memory_tokens: DEFAULT_MEMORY_TOKENS,
            with_locator: true,
            inline: InlinePolicy::default(),
            max_attempts: MAX_ATTEMPTS,
            reconcile: false,
        }
    }
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
            route: RouteOptions::default(),
        }
    }

    /// Checks messages and settings, as [`SessionHandle::turn`](crate::SessionHandle::turn) does first.
    ///
    /// # Errors
    /// [`ClientError::EmptyMessage`], [`ClientError::MessageTooLong`], [`ClientError::Protocol`] for settings
    /// out of range.
    pub fn check(&self) -> Result<(), ClientError> {
        Self::check_messages(&self.messages)?;
        let mut sampling = self.sampling.clone();
        if sampling.repetition_penalty == MODEL_PENALTY {
            sampling.repetition_penalty = 1.0;
        }
        sampling.check()?;
        let bytes = self.json_schema.as_ref().map_or(0, String::len);
        if bytes > MAX_SCHEMA_BYTES {
            return Err(ClientError::SchemaTooLong { bytes, limit: MAX_SCHEMA_BYTES });
        }
        Ok(())
    }

    /// Checks the messages of a turn.
    ///
    /// # Errors
    /// As [`TurnInput::check`].
    pub fn check_messages(messages: &[Message]) -> Result<(), ClientError> {
        // A tool may have nothing to say; a person who says nothing asks for nothing.
        let says_nothing = |message: &Message| message.role != Role::Tool && message.text.trim().is_empty();
        if messages.iter().all(says_nothing) {
            return Err(ClientError::EmptyMessage);
        }
        check_texts(messages)
    }

    /// The settings that a turn keeps.
    #[must_use]
    pub fn settings(&self) -> TurnSettings {
        let json_schema = self.json_schema.as_deref().map(json_schema_hash);
        TurnSettings {
            supersedes_from: self.supersedes_from,
            sampling: Sampling { json_schema, ..self.sampling.clone() },
            max_output_tokens: self.max_output_tokens,
            model: self.route.model.clone(),
        }
    }

    /// The same, with the length and the repetition penalty that suit the model.
    #[must_use]
    pub fn by_model(mut self) -> Self {
        self.max_output_tokens = MODEL_OUTPUT_TOKENS;
        self.sampling.repetition_penalty = MODEL_PENALTY;
        self
    }

    /// The same with another route.
    #[must_use]
    pub fn with_route(mut self, change: impl FnOnce(&mut RouteOptions)) -> Self {
        change(&mut self.route);
        self
    }

    /// An ordinary turn with one message of the user.
    #[must_use]
    pub fn user(text: impl Into<String>) -> Self {
        Self::new(vec![Message::new(Role::User, text)])
    }
}

/// The settings with which a turn is begun. A pending turn keeps them.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnSettings {
    /// As in [`TurnInput`].
    pub supersedes_from: Option<u64>,
    /// As in [`TurnInput`], with the hash of its schema.
    pub sampling: Sampling,
    /// As in [`TurnInput`].
    pub max_output_tokens: u32,
    /// As in [`RouteOptions`].
    pub model: Option<String>,
}

impl TurnSettings {
    /// Whether a turn with these settings answers a request for `wanted`. A request that sets no seed takes any: its
    /// own was drawn.
    #[must_use]
    pub fn serve(&self, mut wanted: Self, sets_seed: bool) -> bool {
        if !sets_seed {
            wanted.sampling.seed = self.sampling.seed;
        }
        // The turn may have the settings of its model already.
        let (tokens, penalty) = (&mut wanted.max_output_tokens, &mut wanted.sampling.repetition_penalty);
        if *tokens == MODEL_OUTPUT_TOKENS
            && [SMALL_OUTPUT_TOKENS, DEFAULT_OUTPUT_TOKENS].contains(&self.max_output_tokens)
        {
            *tokens = self.max_output_tokens;
        }
        if *penalty == MODEL_PENALTY && [SMALL_PENALTY, 1.0].contains(&self.sampling.repetition_penalty) {
            *penalty = self.sampling.repetition_penalty;
        }
        *self == wanted
    }
}

/// An event of a running turn.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum TurnEvent {
    /// An attempt is sent.
    Attempt {
        /// Its number, from 0.
        attempt: u32,
        /// The node.
        node: NodeId,
        /// The model's name.
        model: String,
        /// The engine that produces the tokens.
        engine: EngineKind,
        /// Tokens of the answer that were already shown, which the node continues.
        continues: u32,
    },
    /// The node of the attempt has not answered so far.
    NoAnswerYet {
        /// The node.
        node: NodeId,
        /// The other known nodes, which are asked meanwhile.
        others: OtherNodes,
    },
    /// The relayer added these items, best first.
    Memory(Vec<MemoryItem>),
    /// The node admitted the turn.
    Admitted,
    /// Number of turns ahead in the node's queue.
    Waiting(u32),
    /// The node is later than expected, and says that it still works on the turn. The client goes on waiting.
    StillRunning {
        /// The node.
        node: NodeId,
        /// Time since the turn was admitted, or sent.
        waited: Duration,
    },
    /// Text of the answer. Display only, until the turn is accepted.
    Text(String),
    /// Probabilities of the tokens whose text comes next, if requested. The node's claim.
    Logprobs(Vec<TokenReport>),
    /// An attempt failed; another follows if possible.
    AttemptFailed {
        /// Its number.
        attempt: u32,
        /// The node.
        node: NodeId,
        /// The code, if there is one.
        code: Option<ErrorCode>,
        /// The failure in words, without any content.
        reason: String,
        /// How long ago the failure was noticed; since then its author was asked about the turn.
        noticed_ago: Duration,
    },
    /// Text shown so far is void: the answer starts over.
    Restarted,
    /// The client rebuilt, compared and accepted the turn.
    Accepted,
    /// An event about other devices of the session. Its text is for users.
    Devices(DeviceEvent),
}

/// The known nodes beside the node of an attempt, while that node does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OtherNodes {
    /// This many are asked for any answer.
    Asked(usize),
    /// All of this many were asked, and none answered.
    Silent(usize),
}

/// A rebuilt and accepted turn.
#[derive(Debug, Clone)]
pub struct TurnOutcome {
    /// The session.
    pub session: SessionId,
    /// The turn's position in the chain.
    pub seq: u64,
    /// The turn's id.
    pub turn_id: TurnId,
    /// The accepted attempt.
    pub attempt: u32,
    /// The node that served it.
    pub node: NodeId,
    /// The answer.
    pub text: String,
    /// Why the answer ended.
    pub finish: FinishReason,
    /// Hash of the signed link.
    pub link_hash: LinkHash,
    /// BLAKE3 of the turn's blob.
    pub blob_digest: BlobDigest,
    /// The node's signed claims.
    pub receipt: SignedObject<Receipt>,
    /// Items from the relayer that the node used.
    pub memory: Vec<MemoryItem>,
    /// The parts of the conversation and its memory that the prompt did not have, by the receipt.
    pub omitted: Omissions,
}

/// The parts that a prompt left out, because they exceed the model's context or the limits of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Omissions {
    /// Earlier turns that still count.
    pub turns: usize,
    /// Memory items that were recalled.
    pub memories: usize,
}

impl Omissions {
    /// Whether the prompt had everything.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl std::fmt::Display for Omissions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let many =
            |count: usize, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
        let turns = many(self.turns, "earlier turn", "earlier turns");
        let memories = many(self.memories, "memory", "memories");
        let (parts, all) = match (self.turns, self.memories) {
            (count, 0) => (turns, count),
            (0, count) => (memories, count),
            (one, other) => (format!("{turns} and {memories}"), one + other),
        };
        let verb = if all == 1 { "was" } else { "were" };
        write!(f, "{parts} {verb} left out: the conversation is longer than the model's context")
    }
}

/// An event about other devices of the session. Its text is for users.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The head index had more turns; they are here now.
    CaughtUp {
        /// Number of turns.
        turns: u64,
        /// Turns that this device itself wrote and had lost. The others are another device's.
        own: u64,
    },
    /// Another device wrote turns at the same positions.
    Forked(Fork),
    /// The head index showed less than it took; this device's head is published again.
    ShownLess,
    /// The head index could not be compared, or the result not applied; the turn continues without it.
    NotCompared {
        /// The reason.
        reason: String,
    },
}

impl std::fmt::Display for DeviceEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let many = |turns: u64| if turns == 1 { "1 turn".to_owned() } else { format!("{turns} turns") };
        match self {
            Self::CaughtUp { turns, own: 0 } => {
                write!(f, "Another device continued this session; merged {} of it.", many(*turns))
            }
            Self::CaughtUp { turns, own } if turns == own => write!(
                f,
                "This home is an older copy, or its journal lost its end. Restored {} of this device from the store.",
                many(*turns)
            ),
            Self::CaughtUp { turns, own } => write!(
                f,
                "This home is an older copy, or its journal lost its end. Restored {} from the store, {own} of them of \
                 this device.",
                many(*turns)
            ),
            Self::Forked(fork) => fork.fmt(f),
            Self::ShownLess => {
                f.write_str("The head index lost the newest head; this device publishes it again.")
            }
            Self::NotCompared { reason } => {
                write!(f, "Not compared with other devices: {reason}.")
            }
        }
    }
}

/// Two devices that wrote at the same position. Its text is for users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fork {
    /// The first turn that differs.
    pub at: u64,
    /// Whether this device's turns stay in the conversation.
    pub won: bool,
    /// Number of turns that are in the branch.
    pub turns: u64,
    /// The name of the branch.
    pub branch: String,
}

impl std::fmt::Display for Fork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { at, won, turns, branch } = self;
        let many = if *turns == 1 { "turn is" } else { "turns are" };
        let (stays, other) = if *won {
            ("This device's stays", "the other device's")
        } else {
            ("The other one's stays", "your")
        };
        write!(f, "Two devices wrote turn {}. {stays} in the conversation; {other} {turns} {many} ", at + 1)?;
        write!(f, "in branch {branch}: baton session show has it. Nothing is sent again.")
    }
}

/// Checks messages against the limits of a turn, so that only messages that a node can take are journaled.
pub(crate) fn check_texts(messages: &[Message]) -> Result<(), ClientError> {
    let name = |name: &Option<String>| name.as_ref().map_or(0, String::len);
    let all = |message: &Message| message.text.len() + name(&message.name) + name(&message.call_id);
    let bytes: usize = messages.iter().map(all).sum();
    let longest = messages.iter().map(|message| message.text.len()).max().unwrap_or(0);
    if longest > MAX_MESSAGE_BYTES {
        return Err(ClientError::MessageTooLong { bytes: longest, limit: MAX_MESSAGE_BYTES });
    }
    if bytes > MAX_INPUT_BYTES {
        return Err(ClientError::MessageTooLong { bytes, limit: MAX_INPUT_BYTES });
    }
    // One message is reserved for the answer.
    if messages.len() >= MAX_MESSAGES {
        return Err(ClientError::TooManyMessages { count: messages.len(), limit: MAX_MESSAGES - 1 });
    }
    Ok(messages.iter().try_for_each(Message::check)?)
}
