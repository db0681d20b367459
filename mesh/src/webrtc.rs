//! WebRTC-direct of libp2p: a browser connects to a node that has no domain name, certificate or proxy.
//!
//! A browser opens a WebSocket only to a server whose certificate an authority signed. A WebRTC connection needs none:
//! the address names the hash of the node's own certificate, as in
//! `/ip4/192.0.2.1/udp/4001/webrtc-direct/certhash/uEi...`. Noise then binds the connection to the node's identity.
//!
//! A node's [`WebRtcTransport`] only listens. Each packet passes these layers:
//!
//! 1. The listener's task reads the socket. It asks an unknown source for a proof of its address (`source_proofs`), and
//!    keeps nothing about the source before that.
//! 2. The peer connection (`peer_connection`) has DTLS and SCTP, without I/O of its own. It looks at each packet of SCTP
//!    first (`sctp_inspector`), since SCTP's window counts bytes and its costs are by piece.
//! 3. The connection (`connection`) drives it, and is libp2p's multiplexer: each data channel is a stream.
//!
//! A page's transport only dials, by the browser's own WebRTC (`browser`).
//!
//! Everything that a peer can make this module hold has a limit in `limits`.
//!
//! Source: the WebRTC Direct specification of libp2p; RFC 8445 (ICE), 8489 (STUN), 8831 and 8832 (data channels).

#[cfg(target_family = "wasm")]
mod browser;
#[cfg(not(target_family = "wasm"))]
mod certificate;
#[cfg(not(target_family = "wasm"))]
mod channel_queue;
#[cfg(not(target_family = "wasm"))]
mod connection;
mod data_channel;
#[cfg(not(target_family = "wasm"))]
mod dcep;
mod error;
#[cfg_attr(target_family = "wasm", expect(dead_code, reason = "a page only dials"))]
mod limits;
#[cfg(not(target_family = "wasm"))]
mod listener;
#[cfg(not(target_family = "wasm"))]
mod peer_connection;
#[cfg(not(target_family = "wasm"))]
mod sctp_inspector;
#[cfg(not(target_family = "wasm"))]
mod source_proofs;
#[cfg(not(target_family = "wasm"))]
mod stun;
mod substream;
#[cfg(test)]
#[cfg(not(target_family = "wasm"))]
mod tests;
#[cfg(not(target_family = "wasm"))]
mod transport;

#[cfg(target_family = "wasm")]
pub(crate) use browser::PageTransport;
#[cfg(not(target_family = "wasm"))]
pub use certificate::{Certificate, CertificateError};
#[cfg(not(target_family = "wasm"))]
pub(crate) use transport::WebRtcTransport;
