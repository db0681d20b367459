//! The command line. Every setting may also come from the environment or the settings file.

mod account;
pub(crate) mod blob;
mod memory;

use std::{net::SocketAddr, path::PathBuf};

use baton_command::manual::{CompletionsArguments, ManArguments};
use baton_proto::ids::{ModelId, NodeId, PublicKey};
use clap::{Args, Parser, Subcommand};

pub(crate) use account::{AccountCommand, DelegateArguments, SCOPES};
use blob::BlobCommand;
pub(crate) use memory::{ContextArguments, MemoryCommand, OtherHolders, Switch};

const EXAMPLES: &str = "\
Examples:
  baton chat --node /ip4/127.0.0.1/tcp/4001/p2p/12D3KooW...
  baton chat last                                  go on with the last session
  baton chat --plain                               line by line, as for a screen reader
  baton chat --message 'Hello' --json              one turn; the last line is JSON
  echo 'Summarise this' | baton chat --message -   the message from standard input
  baton serve                                      an OpenAI-compatible endpoint for other programs
  baton session list
  baton session backup last --out words.txt        24 words that are the session
  baton session restore --words-file words.txt     bring it back on another machine
  baton session verify last --full --repair        put back what the store lost
  baton session renew                              store again what runs out soon, of all sessions
  baton session sync last                          take in what another of your devices wrote
  baton nodes
  baton nodes --explain                            why each node would be chosen, or not
  baton receipts last --verify                     who served what, as both sides signed
  baton audit last                                 another node computes the last answer again
  baton blob id --shards 1000 photo.jpg            the blob ID alone, without any network
  baton blob put photo.jpg --epochs 10 --publisher https://publisher.example
  baton blob get BLOB_ID -o photo.jpg --aggregator https://a.example --aggregator https://b.example
  baton blob quilt put notes/*.txt                 many small files as one blob
  baton account new --passphrase-file p.txt        the key that owns memories
  baton account delegate KEY --out agent.json      let another key read them
  baton chat --memory --relayer /ip4/192.0.2.1/tcp/4101/p2p/ID
  baton memory list --all --relayer-url https://relayer.example
  baton memory add 'I am allergic to peanuts'      and search, edit, forget, export, consent, settings

Settings file: ~/.config/baton/config.toml, with the keys home, node (a list), publisher, aggregator and heads (a URL or
a list), publisher_token_file, publisher_secret_file, shards, mdns, dht, open_epochs, closed_epochs, epoch_hours,
renew, max_price, model, system, plain, relayer, relayer_url, account. Flags go before the environment (BATON_*), and
that before the file.

Exit codes: 0 done; 1 other failure; 2 wrong usage or message; 3 no node found; 4 the turn failed, or a clock is wrong; 5 something did
not verify; 6 the store or head index failed, or lacks something; 7 the session is unknown, busy or unfinished; 8 the
home folder, its key or a damaged journal; 9 the relayer refused or failed; 10 an audit could
say nothing; 130 interrupted.";

/// Chat with language models on nodes that keep nothing: your conversations are yours, sealed and verifiable.
#[derive(Debug, Parser)]
#[command(name = "baton", version, after_help = EXAMPLES, next_help_heading = "Settings of every command")]
pub(crate) struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// Folder of the device key and the sessions [default: ~/.local/share/baton].
    #[arg(long, global = true, env = "BATON_HOME", value_name = "FOLDER")]
    pub home: Option<PathBuf>,
    /// Settings file [default: ~/.config/baton/config.toml].
    #[arg(long, global = true, env = "BATON_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Multiaddress of a bootstrap node, such as /ip4/192.0.2.1/tcp/4001/p2p/ID; may be repeated.
    #[arg(long, global = true, env = "BATON_NODE", value_name = "MULTIADDR", value_delimiter = ',')]
    pub node: Vec<String>,
    /// Base URL of a publisher, for writing blobs; may be repeated, preferred first [default:
    /// http://127.0.0.1:31415].
    #[arg(long, global = true, env = "BATON_PUBLISHER", value_name = "URL", value_delimiter = ',')]
    pub publisher: Vec<String>,
    /// Base URL of an aggregator, for reading blobs; may be repeated, preferred first [default: the
    /// publishers'].
    #[arg(long, global = true, env = "BATON_AGGREGATOR", value_name = "URL", value_delimiter = ',')]
    pub aggregator: Vec<String>,
    /// File with the publishers' bearer token.
    #[arg(long, global = true, env = "BATON_PUBLISHER_TOKEN_FILE", value_name = "FILE")]
    pub publisher_token_file: Option<PathBuf>,
    /// File with the secret shared with the publishers, for signing a single-use token (JWT) for each PUT.
    #[arg(
        long,
        global = true,
        env = "BATON_PUBLISHER_SECRET_FILE",
        value_name = "FILE",
        conflicts_with = "publisher_token_file"
    )]
    pub publisher_secret_file: Option<PathBuf>,
    /// Base URL of a head index; may be repeated, up to 8, all written and read [default: the first
    /// publisher's].
    #[arg(long, global = true, env = "BATON_HEADS", value_name = "URL", value_delimiter = ',')]
    pub heads: Vec<String>,
    /// Shard count for blob IDs of new sessions, as in the store's network [default: 1000].
    #[arg(long, global = true, env = "BATON_SHARDS", value_name = "NUMBER")]
    pub shards: Option<u16>,
    /// Epochs, 1 to 53, to store a session's newest blob, so how long a session may stay idle [default: 5].
    #[arg(long, global = true, env = "BATON_OPEN_EPOCHS", value_name = "NUMBER")]
    pub open_epochs: Option<u32>,
    /// Epochs, 1 to 53, to store the blob of a full segment [default: 53].
    #[arg(long, global = true, env = "BATON_CLOSED_EPOCHS", value_name = "NUMBER")]
    pub closed_epochs: Option<u32>,
    /// Hours in an epoch of the store: 336 on Walrus's mainnet, 24 on its testnet [default: 336].
    #[arg(long, global = true, env = "BATON_EPOCH_HOURS", value_name = "NUMBER")]
    pub epoch_hours: Option<u32>,
    /// Do not renew blobs before they expire.
    #[arg(long, global = true, env = "BATON_NO_RENEW")]
    pub no_renew: bool,
    /// Do not keep session heads in the nodes' DHT, in addition to the head indexes.
    #[arg(long, global = true, env = "BATON_NO_DHT")]
    pub no_dht: bool,
    /// Maximum price of a turn, in millionths of the nodes' price unit [default: 10000000].
    #[arg(long, global = true, env = "BATON_MAX_PRICE", value_name = "NUMBER")]
    pub max_price: Option<u64>,
    /// Find nodes on the local network by multicast, even if nodes are given (always on without any).
    #[arg(long, global = true, env = "BATON_MDNS")]
    pub mdns: bool,
    /// File with the passphrase of the device key; a new key is sealed under it (existing key: baton
    /// passphrase).
    #[arg(long, global = true, env = "BATON_PASSPHRASE_FILE", value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
    /// Base URL of the relayer for memories.
    #[arg(long, global = true, env = "BATON_RELAYER_URL", value_name = "URL")]
    pub relayer_url: Option<String>,
    /// File of the account key, which owns memories [default: account.key in the home folder].
    #[arg(long, global = true, env = "BATON_ACCOUNT", value_name = "FILE")]
    pub account: Option<PathBuf>,
    /// File with a delegation to this key [default: account.delegation beside the account key, if present].
    #[arg(long, global = true, env = "BATON_DELEGATION", value_name = "FILE")]
    pub delegation: Option<PathBuf>,
    /// Account to act for, as its delegate [default: the key's own account].
    #[arg(long, global = true, env = "BATON_OWNER", value_name = "ADDRESS")]
    pub owner: Option<String>,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Clock error in seconds: positive for ahead, negative for behind. For tests.
    #[arg(long, global = true, value_name = "SECONDS", hide = true, allow_negative_numbers = true)]
    pub clock_offset: Option<i64>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Chat in a full-screen view at a terminal, at a prompt in a pipe, or with one --message.
    ///
    /// In the full-screen view, F1 lists the keys, /help lists the commands, and Ctrl-D leaves. A
    /// line-by-line prompt replaces it with --plain, if TERM is dumb, or if BATON_LOG writes to the terminal.
    Chat(ChatArguments),
    /// Serve a local OpenAI-compatible endpoint over your sealed sessions.
    Serve(ServeArguments),
    /// List, show, verify, move, back up and delete sessions.
    Session {
        /// The session command.
        #[command(subcommand)]
        command: SessionCommand,
    },
    /// Manage the account key, which owns memories, and let other keys act for the account.
    Account {
        /// The account command.
        #[command(subcommand)]
        command: AccountCommand,
    },
    /// Show and change a relayer's memories (needs --relayer-url and an account key).
    Memory {
        /// The memory command.
        #[command(subcommand)]
        command: MemoryCommand,
    },
    /// List the nodes found, with their models; or explain why each would be chosen.
    Nodes(NodesArguments),
    /// List nodes' receipts for your turns and your acknowledgements, with totals. Works offline.
    Receipts(ReceiptsArguments),
    /// Have another node recompute a turn and sign the result.
    ///
    /// The node sees the whole session and the memory that the turn was answered with. Only nodes whose
    /// operators offer audits accept them; each audit counts as a turn there. To recompute a turn on this
    /// machine: baton-node replay.
    Audit(AuditArguments),
    /// Use, show and narrow a quota grant from a node operator.
    Grants {
        /// The grant command.
        #[command(subcommand)]
        command: GrantsCommand,
    },
    /// Store and fetch files on any Walrus network, and verify every byte on this machine.
    Blob {
        /// The blob command.
        #[command(subcommand)]
        command: BlobCommand,
    },
    /// Set, change or remove the passphrase of the device key.
    ///
    /// The new passphrase is read from a prompt or a file. Give the present one as for every command.
    Passphrase {
        /// File with the new passphrase, instead of the prompt.
        #[arg(long, value_name = "FILE")]
        new_file: Option<PathBuf>,
        /// Remove the passphrase; anyone who can read the home folder can then read the sessions.
        #[arg(long, conflicts_with = "new_file")]
        remove: bool,
    },
    /// Print a completion script for a shell.
    Completions(CompletionsArguments),
    /// Print the manual page, or write the pages of all commands.
    Man(ManArguments),
}

/// Arguments of `baton nodes`.
#[derive(Debug, Args)]
pub(crate) struct NodesArguments {
    /// Explain why a turn would or would not choose each node, with measurements and probability.
    #[arg(long)]
    pub explain: bool,
    /// Name or id of the model to ask for [default: any, preferably on a node's own engine].
    #[arg(long, requires = "explain", env = "BATON_MODEL")]
    pub model: Option<String>,
    /// Explain for the next turn of this session: its id, a prefix of it, or `last`.
    #[arg(long, requires = "explain", value_name = "SESSION")]
    pub session: Option<String>,
    /// Allow test engines.
    #[arg(long, requires = "explain", env = "BATON_ALLOW_ECHO")]
    pub allow_echo: bool,
}

/// Arguments of `baton receipts`.
#[derive(Debug, Args)]
pub(crate) struct ReceiptsArguments {
    /// Session id, a prefix of it, or `last` [default: all sessions of this home].
    pub session: Option<String>,
    /// Check every signature again: link, receipt, order and acknowledgement.
    #[arg(long)]
    pub verify: bool,
    /// New file (JSON) for evidence of nodes that signed two different links for one turn; anyone can check
    /// it.
    #[arg(long, value_name = "FILE")]
    pub evidence: Option<PathBuf>,
}

/// Arguments of `baton audit`.
#[derive(Debug, Args)]
pub(crate) struct AuditArguments {
    /// Session id, a prefix of it, or `last`.
    pub session: String,
    /// Turn number, from 0 [default: the last turn].
    #[arg(long, value_name = "NUMBER")]
    pub turn: Option<u64>,
    /// Node to ask (its id in hex, as `baton nodes` shows it) [default: any other node that serves the turn's
    /// model].
    #[arg(long, value_name = "ID")]
    pub only: Option<String>,
    /// File with the JSON schema that the answer had to satisfy, exactly as sent.
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
    /// New file for the signed statement (JSON).
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Arguments of `baton chat`.
#[derive(Debug, Args)]
pub(crate) struct ChatArguments {
    /// Session id, a prefix of it, or `last` [default: a new session].
    pub session: Option<String>,
    /// Send this message, print the answer and exit; `-` reads the message from standard input.
    #[arg(long, short, value_name = "TEXT")]
    pub message: Option<String>,
    /// File with a JSON schema for the answer to --message; not every node supports schemas.
    #[arg(long, value_name = "FILE", requires = "message")]
    pub schema: Option<PathBuf>,
    /// Model name or id [default: any, preferably on a node's own engine].
    #[arg(long, env = "BATON_MODEL")]
    pub model: Option<String>,
    /// Pinned system text of a new session, or of an existing one from now on.
    #[arg(long, env = "BATON_SYSTEM", value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub memory: MemoryArguments,
    /// Node to use, and no other (its id in hex, as `baton nodes` shows it).
    #[arg(long, value_name = "ID")]
    pub only: Option<String>,
    /// Allow test engines, which only repeat the message.
    #[arg(long, env = "BATON_ALLOW_ECHO")]
    pub allow_echo: bool,
    /// Sampling temperature, from 0 (no randomness) to 5 [default: 0.7].
    #[arg(long, value_name = "NUMBER")]
    pub temperature: Option<f32>,
    /// Sampling seed [default: random for each turn].
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Maximum tokens of an answer.
    #[arg(long, value_name = "NUMBER")]
    pub max_tokens: Option<u32>,
    /// Drop an earlier message without an answer, instead of finishing it first.
    #[arg(long)]
    pub drop_pending: bool,
    /// Use a line-by-line prompt instead of the full-screen view, even at a terminal.
    #[arg(long, env = "BATON_PLAIN")]
    pub plain: bool,
}

/// Arguments of `baton serve`.
///
/// The endpoint recognises a program's conversation by its messages. The header x-baton-session, or the field
/// session, selects a session instead: an id, a prefix of one, `last`, or `new`.
#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", env = "BATON_SERVE_LISTEN", default_value = "127.0.0.1:8788")]
    pub listen: SocketAddr,
    /// File with the bearer key that programs must send; created if missing [default: serve.key in the home
    /// folder].
    #[arg(long, value_name = "FILE", env = "BATON_SERVE_KEY_FILE")]
    pub key_file: Option<PathBuf>,
    /// Serve all programs on this machine, without a key.
    #[arg(long, conflicts_with = "key_file")]
    pub no_key: bool,
    /// Allow web pages of this origin, such as `https://chat.example`; may be repeated.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', env = "BATON_SERVE_ALLOW_ORIGIN")]
    pub allow_origin: Vec<String>,
    /// Accept this host name in requests, in addition to localhost; may be repeated.
    #[arg(long, value_name = "NAME", value_delimiter = ',', env = "BATON_SERVE_ALLOW_HOST")]
    pub allow_host: Vec<String>,
    /// Model name or id for requests without one [default: any, preferably on a node's own engine].
    #[arg(long, env = "BATON_MODEL")]
    pub model: Option<String>,
    /// Node to use, and no other (its id in hex, as `baton nodes` shows it).
    #[arg(long, value_name = "ID")]
    pub only: Option<String>,
    /// Allow test engines, which only repeat the message.
    #[arg(long, env = "BATON_ALLOW_ECHO")]
    pub allow_echo: bool,
    /// Sampling temperature for requests without one, from 0 (no randomness) to 5 [default: 0.7].
    #[arg(long, value_name = "NUMBER")]
    pub temperature: Option<f32>,
    /// Maximum tokens of an answer, for requests without a limit.
    #[arg(long, value_name = "NUMBER")]
    pub max_tokens: Option<u32>,
    #[command(flatten)]
    pub memory: MemoryArguments,
}

/// The relayer of a conversation, and its memory.
#[derive(Debug, Args)]
pub(crate) struct MemoryArguments {
    /// Relayer for turns, such as /ip4/192.0.2.1/tcp/4101/p2p/ID; it adds memory with --memory.
    #[arg(long, env = "BATON_RELAYER", value_name = "MULTIADDR")]
    pub relayer: Option<String>,
    /// Let the relayer recall memories of your account. It gets a search hint, but cannot read the turn.
    #[arg(long, env = "BATON_MEMORY")]
    pub memory: bool,
    /// Search hint for the relayer.
    #[arg(long, value_enum, default_value = "keywords", value_name = "WHAT", env = "BATON_MEMORY_HINT")]
    pub memory_hint: HintMode,
    /// Send each exchange to the relayer to remember (needs --relayer-url), which can then read it.
    #[arg(long, requires = "memory", env = "BATON_MEMORY_WRITE")]
    pub memory_write: bool,
    /// Project whose memories to use.
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// Persona to talk to.
    #[arg(long, value_name = "NAME")]
    pub persona: Option<String>,
}

/// The search hint for a relayer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HintMode {
    /// The message itself, which the relayer can then read.
    Message,
    /// A few words of the message, chosen on this machine.
    Keywords,
    /// No hint: only general memories of you are recalled.
    None,
}

/// The commands for sessions. SESSION is an id, a prefix of one, or `last`.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// List the sessions of this home.
    List,
    /// Show a conversation.
    Show {
        /// Session id, a prefix of it, or `last`.
        session: String,
    },
    /// Verify every link, signature, record and blob, and their presence in the store.
    Verify {
        /// Session id, a prefix of it, or `last`; omit it with --file.
        #[arg(required_unless_present = "file")]
        session: Option<String>,
        /// Check the Walrus ID of every blob, not only of closed segments.
        #[arg(long)]
        full: bool,
        /// Restore missing or wrong blobs in the store from this machine's copy, and verify again.
        #[arg(long, conflicts_with = "file")]
        repair: bool,
        /// Exported file to verify instead, offline.
        #[arg(long, value_name = "FILE", conflicts_with = "session")]
        file: Option<PathBuf>,
    },
    /// Export a session to a file that anyone can verify. The file is as secret as the conversation.
    Export {
        /// Session id, a prefix of it, or `last`.
        session: String,
        /// Output file (created with mode 0600); `-` is standard output.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// Include the root, to allow importing and continuing the session.
        #[arg(long)]
        with_root: bool,
    },
    /// Write the memory that a relayer added to turns, for `baton-node replay`; exports do not contain it.
    Memory {
        /// Session id, a prefix of it, or `last`.
        session: String,
        /// Write only the memory of this turn.
        #[arg(long, value_name = "NUMBER")]
        turn: Option<u64>,
        /// Output file (created with mode 0600); `-` is standard output.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Import a session from an export with its root.
    Import {
        /// Exported file.
        file: PathBuf,
    },
    /// Show how long the store keeps a session.
    Storage {
        /// Session id, a prefix of it, or `last`.
        session: String,
    },
    /// Renew blobs that expire soon; nothing else renews an idle session.
    ///
    /// Sessions in use renew themselves. Each renewal is a new PUT, which the publisher may charge for.
    /// Without a session, the command checks all sessions, as for a daily job.
    Renew {
        /// Session id, a prefix of it, or `last` [default: all sessions].
        session: Option<String>,
        /// Also renew blobs that may expire within this many days [default: less than one epoch].
        #[arg(long, value_name = "NUMBER")]
        within_days: Option<u32>,
    },
    /// Compare a session with the head indexes, and list its devices.
    ///
    /// Merges nothing. Publishes a head of this device again if the indexes lost it or never received it.
    Check {
        /// Session id, a prefix of it, or `last`.
        session: String,
    },
    /// Merge turns that are not here, replay displaced turns on top, and publish the head.
    ///
    /// The turns are another device's, or this device's own if its home is an older copy or its journal lost
    /// its end.
    Sync {
        /// Session id, a prefix of it, or `last`.
        session: String,
        /// Model name or id for replayed turns [default: any, preferably on a node's own engine].
        #[arg(long, env = "BATON_MODEL")]
        model: Option<String>,
        /// Allow test engines, which only repeat the message.
        #[arg(long, env = "BATON_ALLOW_ECHO")]
        allow_echo: bool,
        /// Publish this device's head even if the other's turns cannot be read, as when their blobs are lost
        /// for good.
        #[arg(long)]
        over: bool,
    },
    /// Delete a session on this device, and mark it as deleted in the head index.
    Delete {
        /// Session id, a prefix of it, or `last`.
        session: String,
        /// Do not ask for confirmation.
        #[arg(long)]
        yes: bool,
    },
    /// Show a session's 24 recovery words, or write them to a file.
    Backup {
        /// Session id, a prefix of it, or `last`.
        session: String,
        /// Output file (created with mode 0600).
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Restore a session from the store, with its 24 recovery words.
    ///
    /// Without a file, a prompt asks for the words.
    Restore {
        /// Session of this home that is damaged, or that another device continued; needs no words.
        #[arg(conflicts_with = "words_file")]
        session: Option<String>,
        /// File with the recovery words.
        #[arg(long, value_name = "FILE")]
        words_file: Option<PathBuf>,
    },
}

/// The commands for quota grants.
#[derive(Debug, Subcommand)]
pub(crate) enum GrantsCommand {
    /// Show your public key for grants; create the key if missing.
    Key,
    /// Show a grant and check its signatures.
    Show {
        /// File with the grant [default: the grant in use].
        file: Option<PathBuf>,
    },
    /// Use a grant from now on.
    Use {
        /// File with the grant.
        file: PathBuf,
    },
    /// Narrow the grant in use for another user's key.
    Attenuate(NarrowArguments),
}

/// Arguments of `baton grants attenuate`. Omitted limits stay unchanged.
#[derive(Debug, Args)]
pub(crate) struct NarrowArguments {
    /// Public key of the new holder, as their `baton grants key` shows it.
    #[arg(long, value_name = "KEY")]
    pub holder: PublicKey,
    /// Turns an hour.
    #[arg(long, value_name = "NUMBER")]
    pub turns: Option<u32>,
    /// Answer tokens an hour.
    #[arg(long, value_name = "NUMBER")]
    pub tokens: Option<u64>,
    /// Concurrent turns.
    #[arg(long, value_name = "NUMBER")]
    pub concurrent: Option<u16>,
    /// Validity in hours from now.
    #[arg(long, value_name = "NUMBER")]
    pub hours: Option<u64>,
    /// Node where the grant counts; may be repeated.
    #[arg(long, value_name = "ID")]
    pub node_id: Vec<NodeId>,
    /// Model that the grant covers; may be repeated.
    #[arg(long, value_name = "ID")]
    pub model_id: Vec<ModelId>,
    /// How many times the grant may be narrowed further.
    #[arg(long, value_name = "NUMBER")]
    pub depth: Option<u8>,
    /// Output file (created with mode 0600) [default: standard output].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
