//! Every limit of this crate.

use std::time::Duration;

/// Bytes of the largest packet that is read; a larger one is cut, and fails its checks.
pub(crate) const MAX_PACKET_BYTES: usize = 2048;

/// Packets of a connection that wait for its task. Further ones are lost, as on a full link.
pub(crate) const PACKET_QUEUE: usize = 256;

/// Packets and chunks of SCTP that a connection handles before other tasks get their turn.
pub(crate) const WORK_AT_ONCE: usize = 256;

/// Connections that wait for the transport to take them. Further ones are not begun; their browsers ask again.
pub(crate) const CONNECTION_QUEUE: usize = 64;

/// Sources that have proved their address and have no connection yet. The oldest goes first.
pub(crate) const MAX_PROVED_SOURCES: usize = 1024;

/// Time within which a source must go on after its proof.
pub(crate) const PROOF_TIME: Duration = Duration::from_secs(5);

/// Characters of ICE credentials (RFC 8839, section 5.4).
pub(crate) const MAX_CREDENTIAL_CHARS: usize = 256;

/// Data channels of a connection: open ones, and closed ones whose close the peer has not confirmed.
/// A peer that opens more loses the connection.
pub(crate) const MAX_CHANNELS: usize = 512;

/// Time after which a finished data channel is closed. libp2p in a browser never closes one.
/// The peer must have read the last message by then, since a closed channel may lose it.
pub(crate) const CHANNEL_LINGER: Duration =
    if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(10) };

/// Bytes of a message on a data channel, from the specification.
pub(crate) const MAX_MESSAGE_BYTES: u32 = 16 * 1024;

/// Bytes of a data channel that are not acknowledged, above which writes wait.
pub(crate) const CHANNEL_SEND_BYTES: usize = 64 * 1024;

/// Bytes of a data channel below which waiting writes go on.
pub(crate) const CHANNEL_SEND_LOW_BYTES: usize = 32 * 1024;

/// Received bytes of a page's data channel that are not read. A browser has no means to hold the node back.
#[cfg(any(test, target_family = "wasm"))]
pub(crate) const MAX_UNREAD_CHANNEL_BYTES: usize = 4 << 20;

/// Such bytes of all data channels of a connection.
#[cfg(any(test, target_family = "wasm"))]
pub(crate) const MAX_UNREAD_BYTES: usize = 4 * MAX_UNREAD_CHANNEL_BYTES;

/// Data channels that a node opened and the page has not taken. Further ones are closed.
#[cfg(target_family = "wasm")]
pub(crate) const MAX_WAITING_CHANNELS: usize = 64;

/// Received bytes of a connection that are not read. SCTP tells the peer how many are left. Chunks have a limit of their own.
pub(crate) const RECEIVE_BYTES: u32 = 512 * 1024;

/// Chunks of one packet: one of a browser has place for 59 of the shortest messages.
pub(crate) const MAX_PACKET_CHUNKS: usize = 64;

/// Chunks of one packet beside data: an acknowledgement, a probe, a channel's close, and one more. Each may have an answer.
pub(crate) const MAX_CONTROL_CHUNKS: usize = 4;

/// Chunks of data that a connection keeps, each with a packet of at most [`MAX_PACKET_BYTES`].
pub(crate) const MAX_PIECES: usize = 2048;

/// Such chunks of one channel: the whole window in the packets of a browser, and as many short messages. SCTP walks them
/// for each further one.
pub(crate) const MAX_CHANNEL_PIECES: usize = 768;

/// Distance of a chunk from the first missing one: more than a window after a lost packet.
pub(crate) const MAX_PIECES_AHEAD: u32 = 1024;

/// Distance of an acknowledged range: more chunks than a browser's window has. SCTP takes each number by itself.
pub(crate) const MAX_SACK_RANGE: usize = 8192;

/// Time without a packet after which a connection is lost. A browser sends a STUN request every few seconds.
pub(crate) const SILENCE: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 20 });

/// Bytes of a packet with its DTLS record, which fits into all common links.
pub(crate) const MTU: usize = 1200;

/// Bytes of DTLS and SCTP headers in a packet.
pub(crate) const OVERHEAD_BYTES: usize = 80;
