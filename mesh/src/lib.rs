//! The libp2p swarm shared by every Baton role: node, relayer, client and testnet.
//!
//! It owns connections, discovery and the turn substream. It moves bounded byte frames between authenticated
//! nodes and never looks into a frame. `baton-proto` defines the meaning of frames; the node decides which
//! peers it serves.
//!
//! [`Mesh::spawn`] starts one task that owns the swarm. All other code holds a cloneable [`MeshHandle`] with
//! a bounded command queue. Turns that peers open arrive on [`Incoming`].
//!
//! A node and a client on one machine:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use baton_mesh::{Mesh, MeshConfig, Multiaddr};
//! use tokio::time::Instant;
//! use zeroize::Zeroizing;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let address: Multiaddr = "/ip4/127.0.0.1/tcp/0".parse()?;
//! let config = MeshConfig::server("example (node)", vec![address]);
//! let (node, mut incoming) = Mesh::spawn(Zeroizing::new([1; 32]), config).await?;
//! let config = MeshConfig { bootstrap: node.bootstrap_addrs(), ..MeshConfig::dialer("example (client)") };
//! let (client, _) = Mesh::spawn(Zeroizing::new([2; 32]), config).await?;
//!
//! let deadline = Instant::now() + Duration::from_secs(10);
//! let mut sending = client.open(node.node_id(), &node.listen_addrs(), deadline).await?;
//! sending.send(b"a request").await?;
//!
//! let (peer, mut receiving) = incoming.next().await.ok_or("the node's mesh stopped")?;
//! assert_eq!(peer, client.node_id());
//! assert_eq!(receiving.recv(1024).await?.as_deref(), Some(b"a request".as_slice()));
//! # Ok(())
//! # }
//! ```

// Bytes of others come here: a read out of bounds must not panic.
#![warn(clippy::indexing_slicing)]

mod actor;
mod address_scope;
mod behaviour;
mod bootstrap;
mod config;
mod defence;
mod dht;
mod dht_heads;
mod dial_error;
mod error;
mod frame;
mod frame_shares;
mod gate;
mod gossip;
mod handle;
mod ids;
mod incoming;
mod limits;
mod origin;
mod peers;
mod pending_dials;
mod probes;
mod record_store;
mod records;
mod relays;
mod stats;
mod status;
mod transport;
#[cfg(not(target_family = "wasm"))]
mod trial_dial;
mod turn_protocol;
mod turn_stream;
mod webrtc;

pub use address_scope::{Reach, reach_of_address};
pub use baton_limits::{IpNetwork, Networks, NotANetwork, Subnet};
pub use config::{MeshClock, MeshConfig, RelayLimits};
pub use defence::{BUSY_RETRY_MS, Caller, DefenceLimits, SharedFrame, StreamDefence, StreamDenial};
pub use dht::DhtError;
pub use dht_heads::DhtHeads;
pub use error::{FrameError, MeshError, OpenError};
pub use frame::{
    FRAME_CEILING_BYTES, FrameDecoder, FrameTooLarge, GROWTH_BYTES, HEADER_BYTES, encode_header,
};
pub use frame_shares::FrameShare;
pub use handle::{Mesh, MeshExit, MeshHandle};
pub use ids::{node_id_of, peer_id_of};
pub use incoming::Incoming;
pub use libp2p::{Multiaddr, PeerId, StreamProtocol};
pub use limits::MeshLimits;
pub use origin::Origin;
pub use peers::{PeerEvent, PeerInfo};
pub use relays::{CircuitLimits, RelayInfo};
pub use stats::{DhtStats, DialStats, GossipStats, InboundStats, MeshStats, RelayStats, TransportStats};
pub use status::{BootstrapStatus, NetworkStatus, Reachability};
#[cfg(not(target_family = "wasm"))]
pub use trial_dial::DialOutcome;
pub use turn_protocol::{EMBED_PROTOCOL, TURN_PROTOCOL};
pub use turn_stream::{TurnReceiver, TurnSender, TurnStream};
#[cfg(not(target_family = "wasm"))]
pub use webrtc::{Certificate as WebRtcCertificate, CertificateError as WebRtcCertificateError};
