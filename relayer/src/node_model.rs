//! A language model on third-party nodes, for owners who allow them to read exchanges.
//!
//! Each question is one turn of a session of its own. The session's root is created here and exists only in
//! memory until the answer arrives. So no one can open the record that the node seals and stores afterwards.
//! The node reads the question, as with every turn, and learns neither the owner nor the conversation. The
//! relayer writes nothing: no journal, no head record, no blob.
//!
//! The jobs of memory call it through [`ModelWriter`](baton_memory::extraction::ModelWriter). It must never
//! add memory to a question, keep a question, or log a word.

use std::{io, sync::Arc, time::Duration};

use baton_client::{Client, ClientConfig, ClientError, JournalLog, NewSession, RouteOptions, TurnInput};
use baton_memory::{
    extraction::{Complete, ModelError, PromptMessage, PromptRole},
    model::Text,
};
use baton_mesh::MeshHandle;
use baton_proto::{
    ErrorCode,
    ids::{BlobId, HeadIndexKey},
    record::{Message, Role},
    store::{BlobStore, HeadIndex, PutOptions, PutOutcome, StoreError, StoreFuture},
    turn::{Sampling, StoragePolicy},
};
use baton_walrus_client::ShardCount;
use futures::future::BoxFuture;
use tokio::sync::Semaphore;

/// Time limit for one answer, including the wait for a slot and a node: the lease of a job is longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(100);
/// Time limit to tell the node that it may forget the turn.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(2);
/// Concurrent questions.
const CONCURRENCY: usize = 4;
/// Nodes to try before the question fails; the job retries later.
const ATTEMPTS: u32 = 2;
/// Most bytes of an answer that are read: many times the requested tokens.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// Storage time of a node's blob: no one will read it.
const EPOCHS: u32 = 1;

/// A model on third-party nodes. Clones share connections and slots.
#[derive(Clone)]
pub struct NodeModel {
    client: Client,
    model: String,
    allow_echo: bool,
    slots: Arc<Semaphore>,
    timeout: Duration,
}

impl NodeModel {
    /// A model by its name or id, on nodes that this mesh finds. `shards` belong to the store that nodes
    /// write to; `allow_echo` admits test engines.
    ///
    /// # Errors
    /// The client's.
    pub async fn open(
        mesh: MeshHandle,
        shards: ShardCount,
        model: String,
        allow_echo: bool,
    ) -> Result<Self, ClientError> {
        let null = Arc::new(NullStore);
        let mut config = ClientConfig::new(None, null.clone(), null, shards);
        config.mesh = Some(mesh);
        config.renew = false;
        config.storage = StoragePolicy { open_epochs: EPOCHS, closed_epochs: EPOCHS, send_object_to: None };
        let client = Client::open(config).await?;
        let slots = Arc::new(Semaphore::new(CONCURRENCY));
        Ok(Self { client, model, allow_echo, slots, timeout: ANSWER_TIMEOUT })
    }

    /// Sets another time limit for one answer.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    async fn ask(
        &self,
        session_client: &Client,
        messages: &[PromptMessage],
        max_tokens: u32,
    ) -> Result<Text, ModelError> {
        let of = |wanted: PromptRole, role: Role| -> Vec<Message> {
            let those = messages.iter().filter(|message| message.role == wanted);
            those.map(|message| Message::new(role, message.text.0.clone())).collect()
        };
        let system = of(PromptRole::System, Role::System);
        let session = session_client.new_session(NewSession { system, ..NewSession::default() }).await;
        let session = session.map_err(|error| failure(&error))?;
        let input = TurnInput {
            max_output_tokens: max_tokens, // The likeliest answer, and the same one each time.
            sampling: Sampling { temperature: 0.0, seed: 0, ..Sampling::default() },
            route: RouteOptions {
                model: Some(self.model.clone()),
                allow_echo: self.allow_echo,
                max_attempts: ATTEMPTS,
                memory_tokens: 0,
                ..RouteOptions::default()
            },
            ..TurnInput::new(of(PromptRole::User, Role::User))
        };
        let outcome = Box::pin(session_client.session(session).turn(input, |_| {})).await;
        let outcome = outcome.map_err(|error| failure(&error))?;
        if outcome.text.len() > MAX_ANSWER_BYTES {
            return Err(ModelError::TooLong);
        }
        // With this acknowledgement, the node forgets its sealed data.
        let _ = session_client.session(session).wait_delivered(ACKNOWLEDGE_TIMEOUT).await;
        Ok(Text(outcome.text))
    }
}

impl Complete for NodeModel {
    fn complete<'a>(
        &'a self,
        messages: &'a [PromptMessage],
        max_tokens: u32,
    ) -> BoxFuture<'a, Result<Text, ModelError>> {
        Box::pin(async move {
            let session_client = self.client.log_client(Arc::new(NullStore));
            let answering = async {
                let closed = |_| ModelError::Unavailable("it is closed".to_owned());
                let _slot = self.slots.acquire().await.map_err(closed)?;
                Box::pin(self.ask(&session_client, messages, max_tokens)).await
            };
            let answer =
                tokio::time::timeout(self.timeout, answering).await.map_err(|_| ModelError::TimedOut);
            // Ends background work, and wipes the session's keys.
            session_client.shutdown(Duration::ZERO).await;
            answer?
        })
    }
}

/// The kind of failure, without a word of the question.
fn failure(error: &ClientError) -> ModelError {
    match error {
        ClientError::TurnFailed { code: Some(ErrorCode::Busy | ErrorCode::RateLimited), .. } => {
            ModelError::Busy { retry_after: None }
        }
        ClientError::NoNode(_) => ModelError::Unavailable("no node offers it now".to_owned()),
        error => ModelError::Unavailable(format!("a node failed ({})", error.name())),
    }
}

/// A journal, store and head index that store nothing and are always empty.
struct NullStore;

impl JournalLog for NullStore {
    fn read(&self) -> io::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

fn none() -> StoreError {
    StoreError::Unavailable { reason: "nothing is stored for such a turn".to_owned(), retry_after: None }
}

impl BlobStore for NullStore {
    fn put<'a>(&'a self, _: Vec<u8>, _: PutOptions) -> StoreFuture<'a, PutOutcome> {
        Box::pin(async { Err(none()) })
    }

    fn get<'a>(&'a self, _: BlobId, _: usize) -> StoreFuture<'a, Vec<u8>> {
        Box::pin(async { Err(none()) })
    }

    fn exists<'a>(&'a self, _: BlobId) -> StoreFuture<'a, bool> {
        Box::pin(async { Err(none()) })
    }
}

impl HeadIndex for NullStore {
    fn publish<'a>(&'a self, _: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn resolve<'a>(&'a self, _: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async { Ok(None) })
    }
}
