//! Admission of sealed turns: rates, scores and bans by peer and subnet, memory for large frames, and slots.
//!
//! It is the defence of a node (`baton_mesh::guard`) for the relayer's endpoint. A small frame is read for free. A
//! large frame needs a share of the memory first. A slot comes after the signature was verified.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use baton_mesh::{
    FrameError, FrameShare, FrameShares, FrameTooLarge, MeshHandle, Networks, TurnStream,
    guard::{Caller, Guard, GuardLimits, Offence, StreamRefusal, TooMany},
};
use baton_proto::{ErrorCode, SignedObject, limits::MAX_FRAME_BYTES, turn::TurnAuth};
use tokio::time::Instant;

use super::{RelayError, RelayRequest, relay_request};
use crate::shared_slots::{NoSlot, SharedSlots, SlotCaller, SlotPermit};

/// Requests up to this size need no share of [`SealedLimits::frame_bytes`]: turns of ordinary length.
const SMALL_FRAME_BYTES: usize = 64 * 1024;
/// Retry time of a busy relayer, in milliseconds.
const BUSY_RETRY_MS: u32 = 1_000;

/// Limits of the sealed endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedLimits {
    /// Networks of the operator's own machines, whose peers are not counted by subnet.
    pub own_networks: Networks,
    /// Turns a minute from one peer: half of a node's default limit for one peer, and this relayer is one peer.
    pub turns_per_minute: u32,
    /// Streams a minute from one peer.
    pub frames_per_minute: u32,
    /// Turns a minute of a subnet's unknown peers together. Its peers served before have the same amount again.
    pub subnet_turns_per_minute: u32,
    /// Concurrent relayed turns. A subnet has a quarter of them, a peer a sixteenth.
    pub relayed_turns: usize,
    /// Memory of all large requests until they are forwarded, in bytes. A subnet has a quarter of it.
    pub frame_bytes: usize,
    /// Time limit for a peer's request, with the wait for memory and for a slot.
    pub request_timeout: Duration,
}

impl Default for SealedLimits {
    fn default() -> Self {
        Self {
            own_networks: Networks::default(),
            turns_per_minute: 60,
            frames_per_minute: 600,
            // Ten busy peers.
            subnet_turns_per_minute: 600,
            relayed_turns: 256,
            // Sixteen of the largest requests.
            frame_bytes: 256 * 1024 * 1024,
            request_timeout: Duration::from_secs(15),
        }
    }
}

/// A request to relay whose authorisation was verified. It holds its slot.
pub(super) struct AdmittedTurn {
    pub(super) request: RelayRequest,
    pub(super) auth: SignedObject<TurnAuth>,
    /// The memory of a large request, until it is forwarded.
    pub(super) share: Option<FrameShare>,
    pub(super) slot: SlotPermit,
}

/// The state of the admission.
pub(super) struct Admission {
    limits: SealedLimits,
    guard: Mutex<Guard>,
    shares: FrameShares,
    slots: SharedSlots,
}

impl Admission {
    pub(super) fn new(limits: SealedLimits) -> Self {
        let guard = GuardLimits {
            defence: true,
            own_networks: limits.own_networks.clone(),
            turns_per_minute: limits.turns_per_minute,
            frames_per_minute: limits.frames_per_minute,
            subnet_turns_per_minute: limits.subnet_turns_per_minute,
        };
        Self {
            guard: Mutex::new(Guard::new(&guard)),
            shares: FrameShares::new(limits.frame_bytes),
            slots: SharedSlots::new(limits.relayed_turns),
            limits,
        }
    }

    fn guard(&self) -> MutexGuard<'_, Guard> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer of a stream.
    pub(super) fn caller(&self, stream: &TurnStream) -> Caller {
        self.guard().caller(stream.remote(), stream.origin())
    }

    /// Reads and checks a request, in order of cost. `now_ms` is the clock.
    pub(super) async fn admit(
        &self,
        stream: &mut TurnStream,
        who: &Caller,
        mesh: &MeshHandle,
        now_ms: &(dyn Fn() -> u64 + Send + Sync),
    ) -> Result<AdmittedTurn, RelayError> {
        let arrived = self.guard().arrive(who, now_ms());
        if let Err(StreamRefusal { retry_after_ms, shut_out_ms }) = arrived {
            if let Some(span_ms) = shut_out_ms {
                mesh.shut_out(who.peer, Duration::from_millis(span_ms));
            }
            return Err(RelayError::Refuse(ErrorCode::RateLimited, retry_after_ms));
        }
        let deadline = Instant::now() + self.limits.request_timeout;
        let (frame, share) = self.first_frame(stream, who, deadline, now_ms()).await?;
        let request = relay_request(&frame).map_err(super::refuse)?;
        drop(frame);
        let taken = self.guard().turn(who, false, now_ms());
        if let Err(TooMany { retry_after_ms, early }) = taken {
            if early {
                self.note(who, Offence::Early, now_ms());
            }
            return Err(RelayError::Refuse(ErrorCode::RateLimited, retry_after_ms));
        }
        let auth = SignedObject::<TurnAuth>::verify(request.request.auth.clone()).map_err(super::refuse)?;
        auth.check_time(now_ms()).map_err(super::refuse)?;
        let caller = SlotCaller { subnet: who.subnet, key: who.peer.0 };
        let slot = self.slots.take(caller, deadline).await;
        let slot = slot.map_err(|NoSlot| RelayError::Refuse(ErrorCode::Busy, BUSY_RETRY_MS))?;
        Ok(AdmittedTurn { request, auth, share, slot })
    }

    /// Reads the request's frame; a large one only within a share of the memory.
    async fn first_frame(
        &self,
        stream: &mut TurnStream,
        who: &Caller,
        deadline: Instant,
        now_ms: u64,
    ) -> Result<(Vec<u8>, Option<FrameShare>), RelayError> {
        let mut received = stream.recv_by(SMALL_FRAME_BYTES, deadline).await;
        let mut share = None;
        if let Err(FrameError::TooLarge(FrameTooLarge { len, .. })) = received
            && len <= MAX_FRAME_BYTES
        {
            // Twice the length: the bytes and the decoded value.
            let taken = self.shares.take(2 * len, who.subnet, deadline).await;
            share = Some(taken.map_err(|code| RelayError::Refuse(code, BUSY_RETRY_MS))?);
            received = stream.recv_by(MAX_FRAME_BYTES, deadline).await;
        }
        match received {
            Ok(Some(frame)) => Ok((frame, share)),
            Ok(None) => Err(RelayError::Gone),
            Err(FrameError::TooLarge(_)) => Err(super::refuse(ErrorCode::FrameTooLarge)),
            Err(error) => {
                // The relayer waited, or reserved memory, for bytes that never came.
                if share.is_some() || matches!(error, FrameError::Timeout) {
                    self.note(who, Offence::Stalled, now_ms);
                }
                Err(RelayError::Gone)
            }
        }
    }

    /// Records the misbehaviour behind a refusal, if there is one.
    pub(super) fn note_refusal(&self, who: &Caller, code: ErrorCode, now_ms: u64) {
        // A peer that takes the relayer for a node has the wrong address.
        if let Some(offence) = Offence::of(code).filter(|_| code != ErrorCode::WrongAudience) {
            self.note(who, offence, now_ms);
        }
    }

    /// Records that a turn of this peer was served to its end.
    pub(super) fn served(&self, who: &Caller, now_ms: u64) {
        self.guard().served(who, now_ms);
    }

    fn note(&self, who: &Caller, offence: Offence, now_ms: u64) {
        let mut guard = self.guard();
        let Some(span_ms) = guard.offence(who, offence, now_ms) else { return };
        let logs = guard.logs_ban(now_ms);
        drop(guard);
        if logs {
            tracing::info!(peer = %super::short(&who.peer), ?offence, seconds = span_ms / 1000, "a peer is refused for a while");
        }
    }
}
