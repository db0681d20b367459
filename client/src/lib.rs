//! The Baton client: sessions that belong to their user, driven turn by turn over nodes that keep nothing.
//!
//! [`Client`] owns a home folder with a device key and one sealed journal per session, a network handle, and
//! its knowledge of nodes. [`SessionHandle::turn`] picks a node and hands it exactly the keys of the window and the
//! new turn. It accepts the answer only after it has rebuilt record, link and blob byte for byte from its own
//! text. The command `baton`, the relayer, the gateway and the testnet are its callers.
//!
//! One turn of a new session, whose journal is in the folder `home`:
//!
//! ```no_run
//! use std::{path::Path, sync::Arc, time::Duration};
//!
//! use baton_client::{Client, ClientConfig, NewSession, TurnEvent, TurnInput};
//! use baton_walrus_client::{HttpStore, ShardCount};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "http://127.0.0.1:31415";
//! let store = Arc::new(HttpStore::builder(url, url, ShardCount::TESTBED).build()?);
//! let mut config = ClientConfig::new(Some(Path::new("home")), store.clone(), store, ShardCount::TESTBED);
//! config.bootstrap.push("/ip4/127.0.0.1/tcp/4001".parse()?);
//! let client = Client::open(config).await?;
//! let id = client.new_session(NewSession::with_system("Answer in one sentence.")).await?;
//! let session = client.session(id);
//! let turn = session.turn(TurnInput::user("What is a baton?"), |event| {
//!     if let TurnEvent::Text(text) = event {
//!         print!("{text}");
//!     }
//! });
//! let outcome = turn.await?;
//! println!("\n{} served turn {}", outcome.node, outcome.seq);
//! client.shutdown(Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```
//!
//! It must never:
//! - let a root, or a derivative of a root other than a grant, leave the process;
//! - show a turn as done that it did not rebuild;
//! - forget a journaled message.

mod attempt;
mod background;

mod client;
mod clock;
mod clocks;
mod config;
mod core;
mod error;
mod event;
pub mod evidence;
mod home;
mod identities;
mod index_status;
mod logprobs;
mod network;
mod proofs;
mod restore;
mod session;
mod session_handle;
mod stack_wipe;
mod storage;
mod sync;
#[cfg(feature = "testkit")]
pub mod testkit;
mod timeouts;
mod turn;
mod wait;

pub use attempt::embed::{EmbeddedText, Embeddings};
pub use background::renewal::RenewReport;
pub use baton_keys::{account::AccountKey, session::SessionRoot, words::WordsError};
pub use baton_mesh::Multiaddr;
pub use baton_proto::node_record::MAX_EPOCHS;
pub use client::{Client, NewSession};
pub use clock::{Clock, system_clock};
pub use clocks::{ClockDifference, WrongClock};
pub use config::{ClientConfig, DEFAULT_CLOSED_EPOCHS, DEFAULT_EPOCH, DEFAULT_OPEN_EPOCHS};
pub use error::ClientError;
pub use event::{
    DEFAULT_MEMORY_TOKENS, DEFAULT_OUTPUT_TOKENS, DeviceEvent, Fork, InlinePolicy, MODEL_OUTPUT_TOKENS,
    MODEL_PENALTY, MemoryHint, Omissions, OtherNodes, OwnMemory, Relayer, RouteOptions, TurnEvent, TurnInput,
    TurnOutcome, TurnSettings,
};
pub use home::{change_passphrase, home_needs_passphrase};
pub use index_status::{IndexAnswer, IndexStatus};
pub use logprobs::{LikelyToken, TokenReport};
pub use network::choose::{self, DEFAULT_MAX_PRICE};
pub use network::heads::{FirstIndex, HeadIndexes, MAX_HEAD_INDEXES, NamedIndex};
pub use network::nodes::{NodeExplanation, NodeInfo};
pub use network::quota::{GRANT_CHAIN_FILE, GRANT_KEY_FILE, QuotaHolder, holder_key, keep_chain, read_chain};
pub use proofs::{MAX_PROOF_BYTES, read_proof};
pub use restore::RecoveryReport;
pub use session::info::{SessionInfo, TurnView};
pub use session::journal::JournalLog;
pub use session::lifetime::BlobLifetime;
pub use session::title::{MAX_TITLE_CHARS, beginning as title_of};
pub use session_handle::SessionHandle;
pub use sync::conversation::{Conversation, ConversationTurn};
pub use sync::head::HeadStatus;
pub use sync::receipts::{CountersignatureStatus, TurnReceipt};
pub use sync::reconcile::{BranchedTurn, ReconcileReport, SessionBranch};
pub use sync::search::{MAX_MATCHES, SearchMatch};
pub use sync::sessions::{Deletion, Listing, UnreadableSession};
pub use sync::transfer;
pub use sync::verify::{Problem, STORING_GRACE, VerifyReport};
pub use timeouts::Timeouts;
pub use turn::audit::AuditOutcome;
