//! The relay of one turn: check what can be checked without reading it, add memory if the client allows it from
//! this relayer, pass the request on to the node that it names, and the node's frames back, untouched.

use std::{sync::Arc, time::Duration};

use baton_keys::{SecretSigningKey, exchange::ExchangeSecret};
use baton_mesh::{Incoming, MeshHandle, TurnReceiver, TurnSender, TurnStream};
use baton_proto::{
    ErrorCode, Signed, codec,
    ids::NodeId,
    limits::{MAX_FRAME_BYTES, MAX_NODE_FRAME_BYTES},
    memory::{MemEnvelope, MemoryItem},
    turn::TurnAuth,
    wire::{ClientFrame, NodeFrame, TurnRequest},
};
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::facts::Facts;

/// Turns relayed at once; each holds at most two frames. Further ones are refused with `Busy`.
pub const MAX_RELAYED_TURNS: usize = 256;
/// Time for a client to send its request, and for opening the substream to the node.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest silence between two frames of a node: a slow model on a long prompt.
const FRAME_TIMEOUT: Duration = Duration::from_secs(300);

/// A relayer: its key, its facts and its place in the network.
pub struct Relayer {
    key: SecretSigningKey,
    facts: Facts,
    mesh: MeshHandle,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
}

/// Why a turn was not relayed to its end.
enum Broken {
    /// The client is told this code.
    Refuse(ErrorCode),
    /// The client is gone, or one side's stream failed; there is nobody to tell.
    Gone,
}

impl Relayer {
    /// A relayer that adds these facts; `now_ms` is the wall clock in milliseconds since the Unix epoch.
    #[must_use]
    pub fn new(
        key: SecretSigningKey,
        facts: Facts,
        mesh: MeshHandle,
        now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    ) -> Self {
        Self { key, facts, mesh, now_ms }
    }

    /// Serves until shutdown, then lets running turns end within `grace`.
    pub async fn run(self, mut incoming: Incoming, shutdown: CancellationToken, grace: Duration) {
        let relayer = Arc::new(self);
        let slots = Arc::new(Semaphore::new(MAX_RELAYED_TURNS));
        let mut turns = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(ended) = turns.join_next(), if !turns.is_empty() => propagate_panic(ended),
                next = incoming.next() => {
                    let Some((from, stream)) = next else { break };
                    let permit = slots.clone().try_acquire_owned();
                    let relayer = relayer.clone();
                    turns.spawn(async move {
                        let busy = permit.is_err();
                        relayer.serve(from, stream, busy).await;
                    });
                }
            }
        }
        let drained = async {
            while let Some(ended) = turns.join_next().await {
                propagate_panic(ended);
            }
        };
        if tokio::time::timeout(grace, drained).await.is_err() {
            tracing::warn!("turns still running at the end of the grace period are cut off");
        }
    }

    async fn serve(&self, from: NodeId, mut stream: TurnStream, busy: bool) {
        let request = match read_request(&mut stream).await {
            Ok(_) if busy => Err(Broken::Refuse(ErrorCode::Busy)),
            other => other,
        };
        let (mut sender, receiver) = stream.split();
        let result = match request {
            Ok(request) => self.relay(request, &mut sender, receiver).await,
            Err(broken) => Err(broken),
        };
        match result {
            Ok(frames) => tracing::info!(client = %short(&from), frames, "turn relayed"),
            Err(Broken::Refuse(code)) => {
                tracing::info!(client = %short(&from), code = code.name(), "turn refused");
                let refused = NodeFrame::Refused { code, retry_after_ms: 0 };
                // The client may be gone already; then nobody is left to tell.
                let _ = sender.send(&codec::encode(&refused)).await;
            }
            Err(Broken::Gone) => tracing::debug!(client = %short(&from), "turn dropped"),
        }
        let _ = sender.close().await;
    }

    /// Passes one turn through; returns the number of frames passed back.
    async fn relay(
        &self,
        mut request: TurnRequest,
        client: &mut TurnSender,
        watch: TurnReceiver,
    ) -> Result<u64, Broken> {
        let auth = Signed::<TurnAuth>::verify(request.auth.clone()).map_err(Broken::Refuse)?;
        auth.check_time((self.now_ms)()).map_err(Broken::Refuse)?;
        let items = self.add_memory(&mut request, &auth).map_err(Broken::Refuse)?;
        let deadline = Instant::now() + OPEN_TIMEOUT;
        let mut node = self.mesh.open(auth.audience, &[], deadline).await.map_err(|error| {
            tracing::warn!(node = %short(&auth.audience), %error, "cannot reach the node of a turn");
            Broken::Refuse(ErrorCode::Busy)
        })?;
        send(&mut node, &ClientFrame::Turn(request), deadline).await?;
        client.send(&codec::encode(&NodeFrame::Memory(items))).await.map_err(|_| Broken::Gone)?;
        pass_back(&mut node, client, watch).await
    }

    /// Adds an envelope where the client allows memory from this relayer; otherwise the turn passes unchanged.
    fn add_memory(
        &self,
        request: &mut TurnRequest,
        auth: &Signed<TurnAuth>,
    ) -> Result<Vec<MemoryItem>, ErrorCode> {
        if request.memory.is_some() {
            return Err(ErrorCode::MemUnauthorized);
        }
        if auth.memory_from != Some(self.key.public_key()) {
            return Ok(Vec::new());
        }
        let items = self.facts.within(auth.memory_tokens);
        if items.is_empty() {
            return Ok(items);
        }
        let ephemeral = ExchangeSecret::generate();
        let envelope = MemEnvelope::seal(&items, auth, &self.key, &ephemeral, (self.now_ms)())?;
        request.memory = Some(envelope.bytes().clone());
        Ok(items)
    }
}

async fn read_request(stream: &mut TurnStream) -> Result<TurnRequest, Broken> {
    let deadline = Instant::now() + OPEN_TIMEOUT;
    let frame = match stream.recv_by(MAX_FRAME_BYTES, deadline).await {
        Ok(Some(frame)) => frame,
        Err(baton_mesh::FrameError::TooLarge(_)) => return Err(Broken::Refuse(ErrorCode::FrameTooLarge)),
        Ok(None) | Err(_) => return Err(Broken::Gone),
    };
    match codec::decode(&frame, MAX_FRAME_BYTES).map_err(Broken::Refuse)? {
        ClientFrame::Relay(request) => Ok(request),
        // A relayer serves no turns itself; a client that asks so has the wrong address.
        _ => Err(Broken::Refuse(ErrorCode::WrongAudience)),
    }
}

async fn send(node: &mut TurnStream, frame: &ClientFrame, deadline: Instant) -> Result<(), Broken> {
    let encoded = codec::encode(frame);
    if encoded.len() > MAX_FRAME_BYTES {
        return Err(Broken::Refuse(ErrorCode::FrameTooLarge));
    }
    node.send_by(&encoded, deadline).await.map_err(|_| Broken::Refuse(ErrorCode::Busy))
}

/// Copies the node's frames to the client until the node ends. A client that goes away ends the node's stream
/// too, so that it stops generating.
async fn pass_back(
    node: &mut TurnStream,
    client: &mut TurnSender,
    mut watch: TurnReceiver,
) -> Result<u64, Broken> {
    let mut frames = 0;
    let mut half_closed = false;
    loop {
        let frame = tokio::select! {
            biased;
            // A client sends one request and nothing more: a clean end only says so, a failure means it is gone.
            ended = watch.recv(0), if !half_closed => match ended {
                Ok(None) => { half_closed = true; continue }
                Ok(Some(_)) | Err(_) => return Err(Broken::Gone),
            },
            frame = node.recv_by(MAX_NODE_FRAME_BYTES, Instant::now() + FRAME_TIMEOUT) => frame,
        };
        match frame {
            Ok(Some(frame)) => client.send(&frame).await.map_err(|_| Broken::Gone)?,
            Ok(None) => return Ok(frames),
            Err(_) => return Err(Broken::Gone),
        }
        frames += 1;
    }
}

fn propagate_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// Eight hex characters of a transport identity, for the operator's log.
fn short(node: &NodeId) -> String {
    node.to_string().chars().take(8).collect()
}
