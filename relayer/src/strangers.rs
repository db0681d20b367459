//! A language model on nodes of strangers, for owners who allow them to read exchanges.
//!
//! Each question is one turn of a session that exists for it alone: its root is made here, is in memory until the answer is
//! there, and is nowhere else, so the record that the node seals and stores opens for nobody afterwards. The node reads the
//! question, as with every turn, and learns neither whose it is nor which conversation it comes from. The relayer writes
//! nothing: no journal, no head record, no blob.
//!
//! Who calls it: the jobs of memory, through [`ModelWriter`](baton_memory::writing::ModelWriter). What it must never do:
//! add memory to a question, keep one, or log a word.

use std::{io, sync::Arc, time::Duration};

use baton_client::{Client, ClientConfig, ClientError, JournalLog, NewSession, TurnInput};
use baton_memory::{
    model::Text,
    writing::{Complete, ModelError, PromptMessage, PromptRole},
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

/// Time for one answer, waiting for a place and for a node included: the lease of a job is longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(100);
/// Time for the node to be told that it may forget the turn.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);
/// Questions at once.
const CONCURRENCY: usize = 4;
/// Nodes that are asked before the question counts as failed; the job asks again later.
const ATTEMPTS: u32 = 2;
/// Bytes of an answer that are read: many times what is asked for in tokens.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// What a node's blob is stored for: nobody will read it.
const EPOCHS: u32 = 1;

/// A model on nodes of strangers. Clones share connections and places.
#[derive(Clone)]
pub struct NodeModel {
    client: Client,
    model: String,
    allow_echo: bool,
    places: Arc<Semaphore>,
    timeout: Duration,
}

impl NodeModel {
    /// A model by its name or id, on nodes that this mesh finds. `shards` are the store's that nodes write to;
    /// `allow_echo` lets test engines answer.
    ///
    /// # Errors
    /// What the client says.
    pub async fn open(
        mesh: MeshHandle,
        shards: ShardCount,
        model: String,
        allow_echo: bool,
    ) -> Result<Self, ClientError> {
        let nothing = Arc::new(Nothing);
        let mut config = ClientConfig::new(None, nothing.clone(), nothing, shards);
        config.mesh = Some(mesh);
        config.renew = false;
        config.storage = StoragePolicy { open_epochs: EPOCHS, closed_epochs: EPOCHS, send_object_to: None };
        let client = Client::open(config).await?;
        let places = Arc::new(Semaphore::new(CONCURRENCY));
        Ok(Self { client, model, allow_echo, places, timeout: ANSWER_TIMEOUT })
    }

    /// With another time for one answer.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    async fn ask(
        &self,
        guest: &Client,
        messages: &[PromptMessage],
        max_tokens: u32,
    ) -> Result<Text, ModelError> {
        let of = |wanted: PromptRole, role: Role| -> Vec<Message> {
            let those = messages.iter().filter(|message| message.role == wanted);
            those.map(|message| Message::new(role, message.text.0.clone())).collect()
        };
        let system = of(PromptRole::System, Role::System);
        let session = guest.new_session(NewSession { system, ..NewSession::default() }).await;
        let session = session.map_err(|error| failure(&error))?;
        let input = TurnInput {
            model: Some(self.model.clone()),
            allow_echo: self.allow_echo,
            max_output_tokens: max_tokens,
            max_attempts: ATTEMPTS,
            memory_tokens: 0,
            // The likeliest answer, and the same one whenever it is asked for.
            sampling: Sampling { temperature: 0.0, seed: 0, ..Sampling::default() },
            ..TurnInput::new(of(PromptRole::User, Role::User))
        };
        let outcome = Box::pin(guest.turn(session, input, |_| {})).await;
        let outcome = outcome.map_err(|error| failure(&error))?;
        if outcome.text.len() > MAX_ANSWER_BYTES {
            return Err(ModelError::TooLong);
        }
        // Told now, it forgets what it sealed.
        let _ = guest.wait_told(session, FAREWELL_TIMEOUT).await;
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
            let guest = self.client.guest(Arc::new(Nothing));
            let asked = async {
                let closed = |_| ModelError::Unavailable("it is closed".to_owned());
                let _place = self.places.acquire().await.map_err(closed)?;
                Box::pin(self.ask(&guest, messages, max_tokens)).await
            };
            let answer = tokio::time::timeout(self.timeout, asked).await.map_err(|_| ModelError::TimedOut);
            // Ends what runs in the background, and wipes the session's keys.
            guest.shutdown(Duration::ZERO).await;
            answer?
        })
    }
}

/// The kind of failure, without a word of what was asked.
fn failure(error: &ClientError) -> ModelError {
    match error {
        ClientError::TurnFailed { code: Some(ErrorCode::Busy | ErrorCode::RateLimited), .. } => {
            ModelError::Busy { retry_after: None }
        }
        ClientError::NoNode(_) => ModelError::Unavailable("no node offers it now".to_owned()),
        error => ModelError::Unavailable(format!("a node failed ({})", error.name())),
    }
}

/// A journal, store and head index that keep nothing and know nothing.
struct Nothing;

impl JournalLog for Nothing {
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

impl BlobStore for Nothing {
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

impl HeadIndex for Nothing {
    fn publish<'a>(&'a self, _: Vec<u8>) -> StoreFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn resolve<'a>(&'a self, _: HeadIndexKey) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async { Ok(None) })
    }
}
