//! Admission of sealed turns: the defence of a node's streams, and slots. A slot comes after the signature was verified.

use std::{sync::Arc, time::Duration};

use baton_limits::{Full, Key, Slots, Ticket};
use baton_mesh::{
    BUSY_RETRY_MS, Caller, DefenceLimits, FrameShare, MeshHandle, Networks, StreamDefence, StreamDenial,
    TurnStream,
};
use baton_proto::{ErrorCode, SignedObject, limits::MAX_FRAME_BYTES, turn::TurnAuth};
use tokio::time::Instant;

use super::{RelayError, RelayRequest, relay_request};
use crate::slots::{slots, take_slot};

/// Limits of the sealed endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedLimits {
    /// Those of its streams.
    pub streams: DefenceLimits,
    /// Concurrent relayed turns. A subnet has a quarter of them.
    pub relayed_turns: usize,
}

impl SealedLimits {
    /// The usual limits; peers of the operator's own networks are not counted.
    #[must_use]
    pub fn new(own_networks: Networks) -> Self {
        let streams = DefenceLimits {
            own_networks,
            // As many as a node takes from the subnet of this relayer.
            turns_per_minute: 600,
            // Sixteen of the largest requests.
            frame_bytes: 256 * 1024 * 1024,
            request_timeout: Duration::from_secs(15),
        };
        Self { streams, relayed_turns: 256 }
    }
}

/// A request to relay whose authorisation was verified. It holds its slot.
pub(super) struct AdmittedTurn {
    pub(super) request: RelayRequest,
    pub(super) auth: SignedObject<TurnAuth>,
    /// The memory of a large request, until it is forwarded.
    pub(super) share: Option<FrameShare>,
    pub(super) slot: Ticket,
}

/// The state of the admission.
pub(super) struct Admission {
    pub(super) defence: StreamDefence,
    slots: Slots,
    request_timeout: Duration,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl From<StreamDenial> for RelayError {
    fn from(StreamDenial { code, retry_after_ms }: StreamDenial) -> Self {
        Self::Refuse(code, retry_after_ms)
    }
}

impl Admission {
    pub(super) fn new(limits: SealedLimits, now_ms: Arc<dyn Fn() -> u64 + Send + Sync>) -> Self {
        let (slots, request_timeout) = (slots(limits.relayed_turns), limits.streams.request_timeout);
        let defence = StreamDefence::new(limits.streams, now_ms.clone(), || ());
        Self { defence, slots, request_timeout, now_ms }
    }

    /// Reads and checks a request, in order of cost.
    pub(super) async fn admit(
        &self,
        stream: &mut TurnStream,
        who: &Caller,
        mesh: &MeshHandle,
    ) -> Result<AdmittedTurn, RelayError> {
        self.defence.arrive(who, Some(mesh))?;
        let deadline = Instant::now() + self.request_timeout;
        let received = self.defence.receive(stream, who, MAX_FRAME_BYTES).await;
        let (frame, share) = received.map_err(|_| RelayError::Gone)??;
        let request = relay_request(&frame).map_err(super::refuse)?;
        drop(frame);
        self.defence.turn(who, false)?;
        let auth = SignedObject::<TurnAuth>::verify(request.request.auth.clone()).map_err(super::refuse)?;
        auth.check_time((self.now_ms)()).map_err(super::refuse)?;
        let slot = take_slot(&self.slots, Key::of(who.subnet), deadline).await;
        let slot = slot.map_err(|Full| RelayError::Refuse(ErrorCode::Busy, BUSY_RETRY_MS))?;
        Ok(AdmittedTurn { request, auth, share, slot })
    }
}
