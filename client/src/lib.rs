//! The Baton client: sessions that belong to their user, driven turn by turn over nodes that keep nothing.
//!
//! [`Client`] owns a home folder with a device key and one sealed journal per session, a network handle, and
//! its knowledge of nodes. [`Client::turn`] picks a node and hands it exactly the keys of the window and the
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
//! let session = client.new_session(NewSession::with_system("Answer in one sentence.")).await?;
//! let turn = client.turn(session, TurnInput::user("What is a baton?"), |event| {
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
mod audit;
mod background;

pub mod choose;
mod client;
mod clocks;
mod config;
mod conversation;
mod embed;
mod ephemeral;
mod equivocations;
mod error;
mod event;
pub mod evidence;
mod exchange;
mod explain;
mod fork;
mod head;
mod heads;
mod journal;
mod lifetime;
mod logprobs;
mod nodes;
mod quota;
mod receipts;
mod reconcile;
mod recover;
mod reputation;
mod request;
mod retry;
mod session;
mod sessions;
mod stack_wipe;
mod state;
pub mod transfer;
mod turn;
mod verify;
mod wait;

pub use audit::{AuditOutcome, AuditWish};
pub use background::renewal::RenewReport;
pub use baton_keys::{account::AccountKey, session::SessionRoot, words::WordsError};
pub use baton_mesh::Multiaddr;
pub use client::{
    Client, NewSession, ReplayOrigin, SessionInfo, TurnView,
    home::{change_passphrase, home_needs_passphrase},
};
pub use clocks::{ClockDifference, WrongClock};
pub use config::{
    ClientConfig, Clock, DEFAULT_CLOSED_EPOCHS, DEFAULT_EPOCH, DEFAULT_MAX_PRICE, DEFAULT_OPEN_EPOCHS,
    MAX_EPOCHS, Timeouts, system_clock,
};
pub use conversation::{Conversation, ConversationTurn};
pub use embed::{EmbeddedText, Embeddings};
pub use error::ClientError;
pub use event::{
    DEFAULT_MEMORY_TOKENS, DEFAULT_OUTPUT_TOKENS, DeviceEvent, InlinePolicy, MemoryHint, OwnMemory, Relayer,
    ReplayedTurn, ResumeOptions, TurnEvent, TurnInput, TurnOutcome,
};
pub use head::HeadStatus;
pub use heads::{HeadIndexes, IndexAnswer, IndexStatus, MAX_HEAD_INDEXES, NamedIndex};
pub use journal::JournalLog;
pub use lifetime::BlobLifetime;
pub use logprobs::{LikelyToken, TokenReport};
pub use nodes::{NodeExplanation, NodeInfo};
pub use quota::{GRANT_CHAIN_FILE, GRANT_KEY_FILE, QuotaHolder, holder_key, keep_chain, read_chain};
pub use receipts::{CountersignatureStatus, TurnReceipt};
pub use reconcile::{DisplacedTurn, ReconcileReport, TurnFate};
pub use recover::RecoveryReport;
pub use sessions::{Deletion, Listing, UnreadableSession};
pub use verify::{Problem, STORING_GRACE, VerifyReport};
