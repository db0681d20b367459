//! The memory that an endpoint uses: its owner's relayer, behind a trait. The endpoint's state holds it.

use std::{future::Future, pin::Pin};

use baton_client::{MemoryHint, TurnOutcome};
use baton_proto::{ids::SessionId, record::Message};

/// The parts of a conversation that memory gives to relayers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemorySharing {
    /// The words of each message, for the relayer of the turns.
    pub hint: HintExtent,
    /// The host of the relayer that gets every exchange, to remember it; `None` remembers nothing.
    pub remembered_at: Option<String>,
}

/// The words of a message that a relayer gets, to search memory with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HintExtent {
    /// None.
    Nothing,
    /// A few of them.
    Keywords,
    /// The whole message.
    Message,
}

/// Memory for the turns of an endpoint.
pub trait GatewayMemory: std::fmt::Debug + Send + Sync {
    /// The hint from which the relayer recalls memory for a turn with these new messages. The project is that
    /// of the caller's key.
    fn hint(&self, project: Option<&str>, session: SessionId, messages: &[Message]) -> MemoryHint;

    /// The parts of a conversation that [`GatewayMemory::hint`] and [`GatewayMemory::remember`] give away.
    fn sharing(&self) -> MemorySharing;

    /// Remembers an accepted exchange if that is wanted. The implementation handles its own failures.
    fn remember<'a>(
        &'a self,
        project: Option<&'a str>,
        messages: &'a [Message],
        outcome: &'a TurnOutcome,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

    /// Answers an agent's message of the Model Context Protocol, of this version, for the owner; `None` if the
    /// message takes no answer.
    ///
    /// # Errors
    /// A sentence for the agent's user.
    fn answer_agent<'a>(
        &'a self,
        message: &'a str,
        version: Option<&'a str>,
    ) -> Pin<Box<dyn Future<Output = Result<Option<String>, String>> + Send + 'a>>;

    /// The memories that a filter leaves, newest first, at most some hundred.
    ///
    /// # Errors
    /// [`MemoryFailure::Refused`].
    fn list<'a>(&'a self, filter: &'a MemoryFilter) -> MemoryFuture<'a, Vec<MemoryEntry>>;

    /// Replaces the text of a memory, which is of a project if one is given; returns the new memory.
    ///
    /// # Errors
    /// [`MemoryFailure`].
    fn edit<'a>(
        &'a self,
        project: Option<&'a str>,
        id: &'a str,
        text: &'a str,
    ) -> MemoryFuture<'a, MemoryEntry>;

    /// Deletes a memory for good, which is of a project if one is given.
    ///
    /// # Errors
    /// [`MemoryFailure`].
    fn delete<'a>(&'a self, project: Option<&'a str>, id: &'a str) -> MemoryFuture<'a, ()>;

    /// Deletes all memories that a filter leaves for good; returns their number. The filter has no query.
    ///
    /// # Errors
    /// [`MemoryFailure::Refused`].
    fn delete_all<'a>(&'a self, filter: &'a MemoryFilter) -> MemoryFuture<'a, u64>;
}

/// The future of an operation on memories.
pub type MemoryFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, MemoryFailure>> + Send + 'a>>;

/// Selects memories. A part that is `None` selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryFilter {
    /// The project.
    pub project: Option<String>,
    /// Words that a memory has.
    pub query: Option<String>,
    /// `episode`, `fact`, `entity` or `summary`.
    pub kind: Option<String>,
}

/// A memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct MemoryEntry {
    /// Its id: 32 hex characters.
    pub id: String,
    /// Its text.
    pub text: String,
    /// Its kind.
    pub kind: String,
    /// When it was said, RFC 3339.
    pub created: String,
    /// Its project; none for the shared pool.
    pub project: Option<String>,
}

/// Why an operation on memories failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryFailure {
    /// There is no such memory, or it is of another project.
    Unknown,
    /// The relayer refused or failed: a sentence for the caller.
    Refused(String),
}
