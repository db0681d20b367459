//! The command line. Every setting may also come from the environment or the settings file.

mod account;
pub mod blob;
mod memory;

use std::{net::SocketAddr, path::PathBuf};

use baton_command::manual::{CompletionsArguments, ManArguments};
use baton_proto::ids::{ModelId, NodeId, PublicKey};
use clap::{Args, Parser, Subcommand};

pub use account::{AccountCommand, DelegateArguments, SCOPES};
use blob::BlobCommand;
pub use memory::{MemoryCommand, Others, PlaceArguments, Switch};

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

/// Talk to language models over nodes that keep nothing: the conversation is yours, sealed and verifiable.
#[derive(Debug, Parser)]
#[command(name = "baton", version, after_help = EXAMPLES, next_help_heading = "Settings of every command")]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Folder of the device key and the sessions [default: ~/.local/share/baton].
    #[arg(long, global = true, env = "BATON_HOME", value_name = "FOLDER")]
    pub home: Option<PathBuf>,
    /// Settings file [default: ~/.config/baton/config.toml].
    #[arg(long, global = true, env = "BATON_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A node to begin with, such as /ip4/192.0.2.1/tcp/4001/p2p/ID; may be repeated.
    #[arg(long, global = true, env = "BATON_NODE", value_name = "MULTIADDR", value_delimiter = ',')]
    pub node: Vec<String>,
    /// Base URL of a publisher, where blobs are written; may be repeated, best first [default: http://127.0.0.1:31415].
    #[arg(long, global = true, env = "BATON_PUBLISHER", value_name = "URL", value_delimiter = ',')]
    pub publisher: Vec<String>,
    /// Base URL of an aggregator, where blobs are read; may be repeated, best first [default: the publishers'].
    #[arg(long, global = true, env = "BATON_AGGREGATOR", value_name = "URL", value_delimiter = ',')]
    pub aggregator: Vec<String>,
    /// File with the bearer token that the publishers want.
    #[arg(long, global = true, env = "BATON_PUBLISHER_TOKEN_FILE", value_name = "FILE")]
    pub publisher_token_file: Option<PathBuf>,
    /// File with the secret shared with the publishers, from which each PUT's single-use token (JWT) is made.
    #[arg(
        long,
        global = true,
        env = "BATON_PUBLISHER_SECRET_FILE",
        value_name = "FILE",
        conflicts_with = "publisher_token_file"
    )]
    pub publisher_secret_file: Option<PathBuf>,
    /// Base URL of a head index; may be repeated, for up to 8 that are all written and asked [default: the first publisher's].
    #[arg(long, global = true, env = "BATON_HEADS", value_name = "URL", value_delimiter = ',')]
    pub heads: Vec<String>,
    /// Shard count of new sessions' blob IDs: that of the store's network [default: 1000].
    #[arg(long, global = true, env = "BATON_SHARDS", value_name = "NUMBER")]
    pub shards: Option<u16>,
    /// Epochs, 1 to 53, for which the newest blob of a session is stored: how long it may rest [default: 5].
    #[arg(long, global = true, env = "BATON_OPEN_EPOCHS", value_name = "NUMBER")]
    pub open_epochs: Option<u32>,
    /// Epochs, 1 to 53, for which a full segment's blob is stored [default: 53].
    #[arg(long, global = true, env = "BATON_CLOSED_EPOCHS", value_name = "NUMBER")]
    pub closed_epochs: Option<u32>,
    /// Hours that one epoch of the store lasts: 336 on Walrus's mainnet, 24 on its testnet [default: 336].
    #[arg(long, global = true, env = "BATON_EPOCH_HOURS", value_name = "NUMBER")]
    pub epoch_hours: Option<u32>,
    /// Do not store blobs again before they run out.
    #[arg(long, global = true, env = "BATON_NO_RENEW")]
    pub no_renew: bool,
    /// Keep no session heads in the nodes' DHT, beside the head indexes.
    #[arg(long, global = true, env = "BATON_NO_DHT")]
    pub no_dht: bool,
    /// Most that one turn may cost, in millionths of the unit that nodes name prices in [default: 10000000].
    #[arg(long, global = true, env = "BATON_MAX_PRICE", value_name = "NUMBER")]
    pub max_price: Option<u64>,
    /// Look for nodes on the local network by multicast, also where some are given (without any it does so anyway).
    #[arg(long, global = true, env = "BATON_MDNS")]
    pub mdns: bool,
    /// File with the passphrase of the device key; a new key is sealed under it (an existing one: baton passphrase).
    #[arg(long, global = true, env = "BATON_PASSPHRASE_FILE", value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
    /// Base URL of the relayer that keeps memories.
    #[arg(long, global = true, env = "BATON_RELAYER_URL", value_name = "URL")]
    pub relayer_url: Option<String>,
    /// File of the account key, which owns memories [default: account.key in the home folder].
    #[arg(long, global = true, env = "BATON_ACCOUNT", value_name = "FILE")]
    pub account: Option<PathBuf>,
    /// File with a delegation to this key [default: account.delegation beside the account key, if it is there].
    #[arg(long, global = true, env = "BATON_DELEGATION", value_name = "FILE")]
    pub delegation: Option<PathBuf>,
    /// Act for this account, whose owner made this key its delegate [default: the key's own account].
    #[arg(long, global = true, env = "BATON_OWNER", value_name = "ADDRESS")]
    pub owner: Option<String>,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Seconds by which the clock is wrong: ahead, or behind where negative. For tests.
    #[arg(long, global = true, value_name = "SECONDS", hide = true, allow_negative_numbers = true)]
    pub clock_offset: Option<i64>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Talk: a full-screen view at a terminal, a prompt in a pipe, or one message with --message.
    ///
    /// The full-screen view takes the terminal: F1 lists its keys, /help the commands, Ctrl-D leaves. With --plain, where
    /// TERM is dumb, and where BATON_LOG writes to the terminal, there is a prompt line by line instead.
    Chat(ChatArguments),
    /// Serve a local endpoint that speaks OpenAI's API, over your sealed sessions.
    Serve(ServeArguments),
    /// List, show, verify, move, back up and delete sessions.
    Session {
        /// What to do with sessions.
        #[command(subcommand)]
        command: SessionCommand,
    },
    /// Make, show, back up and bring back the account key, which owns memories, and let other keys act for it.
    Account {
        /// What to do with it.
        #[command(subcommand)]
        command: AccountCommand,
    },
    /// See and change what a relayer remembers (needs --relayer-url and an account key).
    Memory {
        /// What to do with memories.
        #[command(subcommand)]
        command: MemoryCommand,
    },
    /// List the nodes that are found, with their models; or why each would be chosen.
    Nodes(NodesArguments),
    /// List what nodes signed of your turns, and what you signed back; with totals. Works offline.
    Receipts(ReceiptsArguments),
    /// Have another node compute a turn again, and sign what came of it.
    ///
    /// The node sees the whole session and the memory that the turn was answered with. Only nodes whose operators offer audits
    /// make them; each counts as a turn there. To compute a turn on this machine instead: baton-node replay.
    Audit(AuditArguments),
    /// Take, show and narrow the quota that an operator of nodes granted you.
    Grants {
        /// What to do with grants.
        #[command(subcommand)]
        command: GrantsCommand,
    },
    /// Store and fetch files at any Walrus, every byte verified here.
    Blob {
        /// What to do with blobs.
        #[command(subcommand)]
        command: BlobCommand,
    },
    /// Put the device key under a passphrase, under another one, or under none.
    ///
    /// The new one is asked for at a prompt, or read from a file; the present one is given as for every command.
    Passphrase {
        /// File with the new passphrase, instead of the prompt.
        #[arg(long, value_name = "FILE")]
        new_file: Option<PathBuf>,
        /// Take the passphrase away: whoever can read the home folder can then read the sessions.
        #[arg(long, conflicts_with = "new_file")]
        remove: bool,
    },
    /// Print what completes this command in a shell.
    Completions(CompletionsArguments),
    /// Print the manual page, or write the pages of all commands.
    Man(ManArguments),
}

/// What to say of nodes.
#[derive(Debug, Args)]
pub struct NodesArguments {
    /// Say why each node would be chosen for a turn, or not: what was measured, and its probability.
    #[arg(long)]
    pub explain: bool,
    /// Name or id of the model that the turn would ask for [default: any, rather a node's own engine].
    #[arg(long, requires = "explain", env = "BATON_MODEL")]
    pub model: Option<String>,
    /// As the next turn of this session would see it: its id, the beginning of it, or `last`.
    #[arg(long, requires = "explain", value_name = "SESSION")]
    pub session: Option<String>,
    /// As if test engines might serve.
    #[arg(long, requires = "explain", env = "BATON_ALLOW_ECHO")]
    pub allow_echo: bool,
}

/// Which receipts to list.
#[derive(Debug, Args)]
pub struct ReceiptsArguments {
    /// The session: its id, the beginning of it, or `last` [default: all of this home].
    pub session: Option<String>,
    /// Check every signature again: link, receipt, authorisation and acknowledgement.
    #[arg(long)]
    pub verify: bool,
    /// Write what shows that nodes signed two different links for one turn into a new file (JSON), for anybody to check.
    #[arg(long, value_name = "FILE")]
    pub evidence: Option<PathBuf>,
}

/// Which turn, and who computes it again.
#[derive(Debug, Args)]
pub struct AuditArguments {
    /// The session: its id, the beginning of it, or `last`.
    pub session: String,
    /// The turn, from 0 [default: the last one].
    #[arg(long, value_name = "NUMBER")]
    pub turn: Option<u64>,
    /// Ask this node (its id in hex, as `baton nodes` shows it) [default: any but the turn's own that serves its model].
    #[arg(long, value_name = "ID")]
    pub only: Option<String>,
    /// File with the JSON schema that the answer had to satisfy, as it was sent.
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
    /// Write the signed statement into a new file (JSON).
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// How to talk.
#[derive(Debug, Args)]
pub struct ChatArguments {
    /// The session: its id, the beginning of it, or `last`; a new one if none.
    pub session: Option<String>,
    /// Say this, print the answer and end; `-` reads it from standard input.
    #[arg(long, short, value_name = "TEXT")]
    pub message: Option<String>,
    /// File with a JSON schema that the answer to --message must satisfy; not every node can do it.
    #[arg(long, value_name = "FILE", requires = "message")]
    pub schema: Option<PathBuf>,
    /// Name or id of the model [default: any, rather a node's own engine].
    #[arg(long, env = "BATON_MODEL")]
    pub model: Option<String>,
    /// Pinned system text: of a new session, or from now on.
    #[arg(long, env = "BATON_SYSTEM", value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub memory: MemoryWish,
    /// Ask this node and no other (its id in hex, as `baton nodes` shows it).
    #[arg(long, value_name = "ID")]
    pub only: Option<String>,
    /// Let test engines serve, which only repeat the message.
    #[arg(long, env = "BATON_ALLOW_ECHO")]
    pub allow_echo: bool,
    /// Randomness of the answer, from 0 (none) to 5 [default: 0.7].
    #[arg(long, value_name = "NUMBER")]
    pub temperature: Option<f32>,
    /// Seed of the randomness [default: a random one for each turn].
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Most tokens of an answer.
    #[arg(long, value_name = "NUMBER")]
    pub max_tokens: Option<u32>,
    /// Give up a message that was not answered earlier, instead of finishing it first.
    #[arg(long)]
    pub drop_pending: bool,
    /// A prompt line by line, also where standard input and output are a terminal: no full-screen view.
    #[arg(long, env = "BATON_PLAIN")]
    pub plain: bool,
}

/// How to serve.
///
/// A program's conversation is found by what was said in it; the header x-baton-session (or the field session) names
/// one instead: an id, the beginning of it, `last`, or `new`.
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS", env = "BATON_SERVE_LISTEN", default_value = "127.0.0.1:8788")]
    pub listen: SocketAddr,
    /// File with the bearer key that programs must send; made where there is none [default: serve.key in the home folder].
    #[arg(long, value_name = "FILE", env = "BATON_SERVE_KEY_FILE")]
    pub key_file: Option<PathBuf>,
    /// Serve every program of this machine, without a key.
    #[arg(long, conflicts_with = "key_file")]
    pub no_key: bool,
    /// Let pages of this origin ask, such as `https://chat.example`; may be repeated.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', env = "BATON_SERVE_ALLOW_ORIGIN")]
    pub allow_origin: Vec<String>,
    /// Serve requests that call the endpoint by this name, beside localhost; may be repeated.
    #[arg(long, value_name = "NAME", value_delimiter = ',', env = "BATON_SERVE_ALLOW_HOST")]
    pub allow_host: Vec<String>,
    /// Name or id of the model where a request names none [default: any, rather a node's own engine].
    #[arg(long, env = "BATON_MODEL")]
    pub model: Option<String>,
    /// Ask this node and no other (its id in hex, as `baton nodes` shows it).
    #[arg(long, value_name = "ID")]
    pub only: Option<String>,
    /// Let test engines serve, which only repeat the message.
    #[arg(long, env = "BATON_ALLOW_ECHO")]
    pub allow_echo: bool,
    /// Randomness where a request says nothing, from 0 (none) to 5 [default: 0.7].
    #[arg(long, value_name = "NUMBER")]
    pub temperature: Option<f32>,
    /// Most tokens of an answer where a request says nothing.
    #[arg(long, value_name = "NUMBER")]
    pub max_tokens: Option<u32>,
    #[command(flatten)]
    pub memory: MemoryWish,
}

/// The relayer of a conversation, and its memory.
#[derive(Debug, Args)]
pub struct MemoryWish {
    /// A relayer that turns go through, and that adds memory with --memory, such as /ip4/192.0.2.1/tcp/4101/p2p/ID.
    #[arg(long, env = "BATON_RELAYER", value_name = "MULTIADDR")]
    pub relayer: Option<String>,
    /// Have the relayer recall memories of your account. It cannot read the turn: it is told a hint to search by.
    #[arg(long, env = "BATON_MEMORY")]
    pub memory: bool,
    /// What the relayer is told to search by.
    #[arg(long, value_enum, default_value = "keywords", value_name = "WHAT", env = "BATON_MEMORY_HINT")]
    pub memory_hint: HintMode,
    /// Send each exchange to the relayer afterwards, to be remembered (needs --relayer-url). It then reads it.
    #[arg(long, requires = "memory", env = "BATON_MEMORY_WRITE")]
    pub memory_write: bool,
    /// The project whose memories count.
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// The persona that is spoken to.
    #[arg(long, value_name = "NAME")]
    pub persona: Option<String>,
}

/// What a relayer is told to search by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum HintMode {
    /// The message itself: the relayer reads it.
    Message,
    /// A few words of it, chosen here.
    Keywords,
    /// Nothing: only what it knows of you in general is recalled.
    None,
}

/// What to do with sessions. SESSION is an id, the beginning of one, or `last`.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// List the sessions of this home.
    List,
    /// Show the conversation.
    Show {
        /// The session.
        session: String,
    },
    /// Check every link, signature, record and blob, and that the store has them.
    Verify {
        /// The session; none with --file.
        #[arg(required_unless_present = "file")]
        session: Option<String>,
        /// Check the Walrus ID of every blob, not only of closed segments.
        #[arg(long)]
        full: bool,
        /// Put what the store does not have, or has wrong, back from this machine's own copy, and check again.
        #[arg(long, conflicts_with = "file")]
        repair: bool,
        /// Check an exported file instead, offline.
        #[arg(long, value_name = "FILE", conflicts_with = "session")]
        file: Option<PathBuf>,
    },
    /// Write the session to a file that anyone can verify. It is as secret as the conversation.
    Export {
        /// The session.
        session: String,
        /// The file (made with mode 0600); `-` is standard output.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// Include the root, so that the session can be imported and continued.
        #[arg(long)]
        with_root: bool,
    },
    /// Write the memory that a relayer added to turns, which no export holds, for `baton-node replay`.
    Memory {
        /// The session.
        session: String,
        /// Only that of this turn.
        #[arg(long, value_name = "NUMBER")]
        turn: Option<u64>,
        /// The file (made with mode 0600); `-` is standard output.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Take a session from an export with its root.
    Import {
        /// The file.
        file: PathBuf,
    },
    /// Show until when the store keeps a session.
    Storage {
        /// The session.
        session: String,
    },
    /// Store again what runs out soon: a session that rests is kept by nobody else.
    ///
    /// Sessions in use are renewed by themselves. Each renewal is a new PUT, which the publisher may have to be paid
    /// for. Without a session all of them are looked at, as for a daily job.
    Renew {
        /// The session.
        session: Option<String>,
        /// Renew also what may run out within so many days [default: what has less than an epoch left].
        #[arg(long, value_name = "NUMBER")]
        within_days: Option<u32>,
    },
    /// Compare a session with the head indexes: what each shows, and which devices there are.
    ///
    /// Takes in nothing. A head of this device that the indexes lost, or never got, is published again.
    Check {
        /// The session.
        session: String,
    },
    /// Take in turns that are not here, say again here what lost its place to them, and publish the head.
    ///
    /// The turns are another device's, or this one's own where its home is an older copy or a journal lost its end.
    Sync {
        /// The session.
        session: String,
        /// Name or id of the model that turns are said again to [default: any, rather a node's own engine].
        #[arg(long, env = "BATON_MODEL")]
        model: Option<String>,
        /// Let test engines serve, which only repeat the message.
        #[arg(long, env = "BATON_ALLOW_ECHO")]
        allow_echo: bool,
        /// Publish this device's head even where the other's turns cannot be read, as when their blobs are gone for good.
        #[arg(long)]
        over: bool,
    },
    /// Delete a session here, and mark it deleted in the head index.
    Delete {
        /// The session.
        session: String,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
    /// Show the 24 words that are the session, or write them to a file.
    Backup {
        /// The session.
        session: String,
        /// The file (made with mode 0600).
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Bring a session back from the store, with its 24 words.
    ///
    /// They are asked for at a prompt where no file is given.
    Restore {
        /// A session of this home that is damaged, or that another device continued; its words are here already.
        #[arg(conflicts_with = "words_file")]
        session: Option<String>,
        /// File with the words.
        #[arg(long, value_name = "FILE")]
        words_file: Option<PathBuf>,
    },
}

/// What to do with quota grants.
#[derive(Debug, Subcommand)]
pub enum GrantsCommand {
    /// Show the public key that a grant is made out to; made where there is none.
    Key,
    /// Show a grant, and check its signatures.
    Show {
        /// The file [default: the one in use].
        file: Option<PathBuf>,
    },
    /// Use a grant from now on.
    Use {
        /// The file with it.
        file: PathBuf,
    },
    /// Make a narrower grant out of the one in use, for somebody else's key.
    Attenuate(NarrowArguments),
}

/// How a grant is narrowed. What is not given stays.
#[derive(Debug, Args)]
pub struct NarrowArguments {
    /// Public key of whoever is to have it, as their `baton grants key` shows it.
    #[arg(long, value_name = "KEY")]
    pub holder: PublicKey,
    /// Turns an hour.
    #[arg(long, value_name = "NUMBER")]
    pub turns: Option<u32>,
    /// Tokens of answers an hour.
    #[arg(long, value_name = "NUMBER")]
    pub tokens: Option<u64>,
    /// Turns at once.
    #[arg(long, value_name = "NUMBER")]
    pub concurrent: Option<u16>,
    /// Hours from now.
    #[arg(long, value_name = "NUMBER")]
    pub hours: Option<u64>,
    /// Node where it counts; may be repeated.
    #[arg(long, value_name = "ID")]
    pub node_id: Vec<NodeId>,
    /// Model that it is for; may be repeated.
    #[arg(long, value_name = "ID")]
    pub model_id: Vec<ModelId>,
    /// How often it may be narrowed further.
    #[arg(long, value_name = "NUMBER")]
    pub depth: Option<u8>,
    /// The file (made with mode 0600) [default: standard output].
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
