//! A data channel as a stream of bytes: that of a node's peer connection, or that of a browser.

#[cfg(target_family = "wasm")]
mod browser;
#[cfg(not(target_family = "wasm"))]
mod native;
#[cfg(any(test, target_family = "wasm"))]
mod unread;

#[cfg(target_family = "wasm")]
pub(crate) use browser::DataChannel;
#[cfg(not(target_family = "wasm"))]
pub(crate) use native::{DataChannel, PeerState, SharedPeer};
#[cfg(target_family = "wasm")]
pub(crate) use unread::UnreadTotal;
