//! The defence of a server of streams: it decides which streams and turns of a peer are served, and reads their frames
//! within shares of memory. Node and relayer serve through it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use baton_limits::{Guard, Networks, Offence, StreamRefusal, Subnet, TurnRefusal};
use baton_proto::{ErrorCode, ids::NodeId};
use tokio::time::Instant;

use crate::{
    error::FrameError,
    frame::FrameTooLarge,
    frame_shares::{FrameShare, FrameShares},
    handle::MeshHandle,
    turn_stream::TurnStream,
};

/// Frames up to this size need no share of the memory: status requests, and turns of ordinary length.
const SMALL_FRAME_BYTES: usize = 64 * 1024;
/// Retry time of a busy server, in milliseconds: about one short answer.
pub const BUSY_RETRY_MS: u32 = 1000;

/// A peer with its subnet.
pub type Caller = baton_limits::Caller<NodeId>;

/// Limits of a [`StreamDefence`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefenceLimits {
    /// Networks whose peers are not counted: the operator's own.
    pub own_networks: Networks,
    /// Turns a minute without a grant from one subnet.
    pub turns_per_minute: u32,
    /// Memory of all large requests being read and blobs being sent, in bytes. A subnet has a quarter of it.
    pub frame_bytes: usize,
    /// Time limit of a peer's request, with its wait for memory.
    pub request_timeout: Duration,
}

/// A refusal, as the peer gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamDenial {
    /// The error code.
    pub code: ErrorCode,
    /// The retry time in milliseconds.
    pub retry_after_ms: u32,
}

/// A frame, with its share of the memory if it is large.
pub type SharedFrame = (Vec<u8>, Option<FrameShare>);

/// See the module.
pub struct StreamDefence {
    limits: DefenceLimits,
    guard: Mutex<Guard<NodeId>>,
    shares: FrameShares,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    on_ban: Box<dyn Fn() + Send + Sync>,
}

impl StreamDefence {
    /// A defence without history, with a clock in milliseconds. It calls `on_ban` at each ban.
    pub fn new(
        limits: DefenceLimits,
        now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
        on_ban: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let guard = Mutex::new(Guard::new(limits.turns_per_minute));
        let shares = FrameShares::new(limits.frame_bytes);
        Self { limits, guard, shares, now_ms, on_ban: Box::new(on_ban) }
    }

    fn guard(&self) -> MutexGuard<'_, Guard<NodeId>> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller of a stream; it has no subnet if its connection comes directly from one of the operator's own networks.
    #[must_use]
    pub fn caller(&self, stream: &TurnStream) -> Caller {
        Caller { peer: stream.remote(), subnet: stream.origin().counted(&self.limits.own_networks) }
    }

    /// Admits a new stream before any read. Closes the connections of a banned peer that keeps coming.
    ///
    /// # Errors
    /// The refusal of a banned peer, or of a subnet with too many streams.
    pub fn arrive(&self, who: &Caller, mesh: Option<&MeshHandle>) -> Result<(), StreamDenial> {
        let arrived = self.guard().arrive(who, (self.now_ms)());
        arrived.map_err(|StreamRefusal { retry_after_ms, shut_out_ms }| {
            if let (Some(span_ms), Some(mesh)) = (shut_out_ms, mesh) {
                mesh.shut_out(who.peer, Duration::from_millis(span_ms));
            }
            StreamDenial { code: ErrorCode::RateLimited, retry_after_ms }
        })
    }

    /// Takes one turn from the rate of the caller's subnet, unless it is under a grant.
    ///
    /// # Errors
    /// RateLimited.
    pub fn turn(&self, who: &Caller, granted: bool) -> Result<(), StreamDenial> {
        let taken = self.guard().turn(who, granted, (self.now_ms)());
        taken.map_err(|TurnRefusal { retry_after_ms, early }| {
            if early {
                self.offence(who, Offence::Early);
            }
            StreamDenial { code: ErrorCode::RateLimited, retry_after_ms }
        })
    }

    /// Reads a frame of at most `limit` bytes; a large one only within a share of the memory.
    ///
    /// # Errors
    /// The stream's; inside, the refusal of a frame that is too large, or for want of memory.
    pub async fn receive(
        &self,
        stream: &mut TurnStream,
        who: &Caller,
        limit: usize,
    ) -> Result<Result<SharedFrame, StreamDenial>, FrameError> {
        let deadline = Instant::now() + self.limits.request_timeout;
        let mut received = stream.recv_by(SMALL_FRAME_BYTES, deadline).await;
        let mut share = None;
        if let Err(FrameError::TooLarge(FrameTooLarge { len, .. })) = received
            && len <= limit
        {
            // Twice the length: the bytes and the decoded value.
            share = match self.share(2 * len, who.subnet, deadline).await {
                Ok(share) => Some(share),
                Err(denial) => return Ok(Err(denial)),
            };
            received = stream.recv_by(limit, deadline).await;
        }
        match received {
            Ok(Some(frame)) => Ok(Ok((frame, share))),
            Ok(None) => Err(FrameError::Truncated),
            Err(FrameError::TooLarge(_)) => {
                Ok(Err(StreamDenial { code: ErrorCode::FrameTooLarge, retry_after_ms: 0 }))
            }
            Err(error) => {
                // The server waited, or reserved memory, for bytes that never came.
                if share.is_some() || matches!(error, FrameError::Timeout) {
                    self.offence(who, Offence::Stalled);
                }
                Err(error)
            }
        }
    }

    /// Takes a share of the memory, for a blob that is sent.
    ///
    /// # Errors
    /// Busy.
    pub async fn blob_share(&self, who: &Caller, bytes: usize) -> Result<FrameShare, StreamDenial> {
        self.share(bytes, who.subnet, Instant::now() + self.limits.request_timeout).await
    }

    async fn share(
        &self,
        bytes: usize,
        subnet: Option<Subnet>,
        deadline: Instant,
    ) -> Result<FrameShare, StreamDenial> {
        let taken = self.shares.take(bytes, subnet, deadline).await;
        taken.map_err(|code| StreamDenial { code, retry_after_ms: BUSY_RETRY_MS })
    }

    /// Records the offence behind a refusal, if there is one.
    pub fn refused(&self, who: &Caller, code: ErrorCode) {
        if let Some(offence) = offence_of(code) {
            self.offence(who, offence);
        }
    }

    /// Records that a turn of a caller was served to its end.
    pub fn served(&self, who: &Caller) {
        self.guard().served(who, (self.now_ms)());
    }

    /// Records an offence of a caller, and may ban it.
    pub fn offence(&self, who: &Caller, offence: Offence) {
        let now_ms = (self.now_ms)();
        let mut guard = self.guard();
        let Some(span_ms) = guard.offence(who, offence, now_ms) else { return };
        let logs = guard.logs_ban(now_ms);
        drop(guard);
        (self.on_ban)();
        if logs {
            tracing::info!(peer = %who.peer, ?offence, seconds = span_ms / 1000, "a peer is refused for a while");
        }
    }
}

/// The offence behind a refusal, if there is one.
fn offence_of(code: ErrorCode) -> Option<Offence> {
    use ErrorCode as E;
    Some(match code {
        E::BadSignature | E::SessionIdMismatch => Offence::Forged,
        E::FrameTooLarge | E::NonCanonical | E::BlobTooLarge => Offence::Garbage,
        E::IdempotencyConflict | E::Replayed => Offence::Replayed,
        E::PayloadRejected | E::BadGenesis | E::BadSequence | E::MemUnauthorized => Offence::Rejected,
        E::WrongAudience | E::Expired | E::NotYetValid | E::UnsupportedVersion | E::KxExpired => {
            Offence::Unfit
        }
        E::RateLimited => Offence::Hasty,
        _ => return None,
    })
}
