//! Errors of the mesh, grouped by the caller's possible reaction.

use std::io;

use libp2p::Multiaddr;

use crate::frame::FrameTooLarge;

/// Why a mesh did not start.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// The configuration contradicts itself or a limit.
    #[error("mesh configuration: {0}")]
    Config(String),
    /// A listen address cannot be used.
    #[error("cannot listen on {address}: {reason}; {hint}")]
    Listen {
        /// The address as configured.
        address: Multiaddr,
        /// The error from the operating system.
        reason: String,
        /// A hint for the operator.
        hint: &'static str,
    },
    /// The transports could not be set up.
    #[error("cannot set up the network transports: {0}")]
    Transport(String),
    /// Multicast discovery could not be set up.
    #[error("cannot start mDNS: {0}; switch it off to run without")]
    Mdns(#[source] io::Error),
}

/// Why a turn substream was not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No address of the node answered; try another node, or the same one later.
    #[error("the node is unreachable: {reason}")]
    Unreachable {
        /// The addresses tried and their errors.
        reason: String,
    },
    /// The node, or the host at its address, ended each connection before the handshake. A node does so at its
    /// limits of connections; try another node, or the same one after a pause.
    #[error("the node accepts no connection now: {reason}")]
    Declined {
        /// The addresses tried and their errors.
        reason: String,
    },
    /// Another identity answered at the node's address; the address is stale or false.
    #[error("another identity answered at {address}")]
    WrongIdentity {
        /// The address that answered.
        address: Multiaddr,
    },
    /// The node answered but speaks none of our turn protocol versions.
    #[error("the node does not speak the turn protocol")]
    ProtocolUnsupported,
    /// The deadline passed.
    #[error("the node did not answer in time")]
    Timeout,
    /// A limit of this process is reached; retry later.
    #[error("too many connections or opens in this process")]
    Busy,
    /// The mesh was shut down.
    #[error("the mesh is shut down")]
    Closed,
}

/// Why a frame was not sent or received.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The frame exceeds the limit; nothing was allocated or sent for it.
    #[error(transparent)]
    TooLarge(#[from] FrameTooLarge),
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame")]
    Truncated,
    /// The deadline passed.
    #[error("no progress before the deadline")]
    Timeout,
    /// An earlier send was cancelled or failed midway, so the stream is out of step.
    #[error("an earlier frame was left unfinished")]
    Interrupted,
    /// The connection failed.
    #[error("the stream failed: {0}")]
    Io(#[source] io::Error),
}
