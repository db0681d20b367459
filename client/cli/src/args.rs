//! The command line. Every setting may also come from the environment or the settings file.

mod account;
mod grants;
mod memory;
pub(crate) mod serve;
mod session;

use std::path::PathBuf;

use clap::{Args, CommandFactory as _, Parser, Subcommand};

use crate::options::ClientOptions;
pub(crate) use account::{AccountCommand, DelegateArguments};
use grants::GRANTS_EXAMPLES;
pub(crate) use grants::{GrantsArguments, GrantsCommand};
pub(crate) use memory::{ContextArguments, DeleteArguments, MemoryCommand, MemoryCommands};
pub(crate) use serve::{KeyOptions, KeysArguments, KeysCommand, ServeArguments, ServeCommand, Term};
pub(crate) use session::{RekeyArguments, SessionCommand, TurnChoice};

const EXAMPLES: &str = "\
Examples:
  baton try                          chat on a private network of this machine
  baton chat \"Hello\"                 one message; the answer is the output
  baton chat -c                      continue the last conversation
  baton session list
  baton doctor                       why does it not work?

`baton COMMAND -h` shows a command's options, and `baton config` all settings.";

const CHAT_EXAMPLES: &str = "\
Examples:
  baton chat --plain                     line by line, as for a screen reader
  baton chat 'Hello'                     one message; the answer is the output
  baton chat -c 'And then?'              goes on in the last conversation
  baton chat -c --branch=3 'No, Rome.'   another way on from its turn 3, in a new conversation
  echo 'Summarise this' | baton chat -   the message from standard input";

const SESSION_EXAMPLES: &str = "\
Examples:
  baton session                                all conversations
  baton session list French                    those with this word
  baton session show last                      its turns with their nodes, and the ends of storage
  baton session backup last --out words.txt    24 words that are the session
  baton session verify last --full --fix       restores the copies that the store lost";

/// What `--help` and the manual page add.
const DETAILS: &str = "\
Settings come from options, then the environment (BATON_*), then the settings file ~/.config/baton/config.toml. `baton
config` lists all of them, and `baton config --init` writes a commented settings file.

Exit codes: 0 done; 1 other failure; 2 wrong usage or message; 3 no node found; 4 the turn failed, or a clock is wrong;
5 something did not verify; 6 the store or head index failed, or lacks something; 7 the session is unknown, busy or
unfinished; 8 the home folder, its key or a damaged journal; 9 the relayer refused or failed; 10 an audit has no result;
130 interrupted.";

/// Chat with open models on other people's machines. Your history stays encrypted and yours.
#[derive(Debug, Parser)]
#[command(
    name = "baton",
    version,
    after_help = EXAMPLES,
    after_long_help = DETAILS,
    next_help_heading = "Settings of every command"
)]
pub(crate) struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub options: ClientOptions,
    /// Settings file [default: ~/.config/baton/config.toml].
    #[arg(long, global = true, env = "BATON_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// File with the passphrase of the device key; a new key is sealed under it.
    #[arg(long, global = true, env = "BATON_PASSPHRASE_FILE", value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Clock error in seconds: positive for ahead, negative for behind. For tests.
    #[arg(long, global = true, value_name = "SECONDS", hide = true, allow_negative_numbers = true)]
    pub clock_offset: Option<i64>,
}

/// The program's command line.
pub(crate) fn command() -> clap::Command {
    Arguments::command().mut_subcommands(|command| command.next_help_heading(None))
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Chat in a full-screen view at a terminal, at a prompt in a pipe, or with one message.
    ///
    /// In the full-screen view, F1 lists the keys, /help lists the commands, and Ctrl-D leaves. A
    /// line-by-line prompt replaces it with --plain, if TERM is dumb, or if BATON_LOG writes to the terminal.
    #[command(after_help = CHAT_EXAMPLES)]
    Chat(ChatArguments),
    /// Chat at once, on a private network of this machine: a store, nodes and a real model.
    ///
    /// The network and its conversations are removed when the chat ends. The programs baton-testnet and
    /// baton-node must be installed beside this one.
    Try(TryArguments),
    /// Serve the chat page, and the APIs of OpenAI, Anthropic and Ollama, over your sealed sessions.
    Serve(Box<ServeArguments>),
    /// List, show, verify, move, back up and delete sessions.
    #[command(after_help = SESSION_EXAMPLES)]
    Session {
        /// The session command [default: list].
        #[command(subcommand)]
        command: Option<SessionCommand>,
    },
    /// Show the account key, which owns memories; make, back up and restore it, and let others act for it.
    #[command(alias = "login")]
    Account {
        /// The account command [default: show the account's address and public key].
        #[command(subcommand)]
        command: Option<AccountCommand>,
    },
    /// Show and change a relayer's memories (needs --relayer URL, and an account key: baton account new).
    Memory(MemoryCommands),
    /// List the nodes found, with their models; or explain why each would be chosen.
    #[command(alias = "models")]
    Nodes(NodesArguments),
    /// List nodes' receipts for your turns and your acknowledgements. Works offline.
    Receipts(ReceiptsArguments),
    /// Have a node check the last answer and sign the result.
    ///
    /// The node sees what the node of the next turn would see, and the session gets no turn. Later nodes check the
    /// answers unasked. To recompute any turn on this machine: baton-node replay.
    Audit(AuditArguments),
    /// Check the nodes, the stores, the clock and your sessions, and show how to fix problems.
    ///
    /// The exit code is 0 without a problem; there may be warnings.
    #[command(alias = "status")]
    Doctor,
    /// Show your key for grants and the quota grant in use; use and narrow a grant from a node operator.
    #[command(after_help = GRANTS_EXAMPLES)]
    Grants(GrantsArguments),
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
    /// Show every setting with its value and origin, or all problems of the settings file.
    Config {
        /// Write a settings file with a comment for each setting.
        #[arg(long)]
        init: bool,
    },
}

/// Arguments of `baton nodes`.
#[derive(Debug, Args)]
pub(crate) struct NodesArguments {
    /// Explain why a turn, or the next turn of this session, would or would not choose each node, with measurements
    /// and probability.
    #[arg(long, value_name = "SESSION", num_args = 0..=1)]
    pub explain: Option<Option<String>>,
    #[command(flatten)]
    pub model: ModelArguments,
    /// List the proofs that checks of answers found, of nodes that contradict others; or check one of this or another
    /// home, offline.
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with = "explain")]
    pub proofs: Option<Option<PathBuf>>,
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

/// The models that may answer.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ModelArguments {
    /// Model to use, by name or id [default: any; a node's own engine is preferred].
    #[arg(long, env = "BATON_MODEL")]
    pub model: Option<String>,
    /// Allow test engines, which only repeat the message.
    #[arg(long, env = "BATON_ALLOW_ECHO")]
    pub allow_echo: bool,
}

/// The models and nodes that may answer, and how.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AnsweringArguments {
    #[command(flatten)]
    pub model: ModelArguments,
    /// Node to use, and no other: its id, or the first digits of it.
    #[arg(long, value_name = "ID")]
    pub only: Option<String>,
    /// Sampling temperature, from 0 (no randomness) to 5 [default: 0.7].
    #[arg(long, value_name = "NUMBER")]
    pub temperature: Option<f32>,
    /// Maximum tokens of an answer [default: 2048; 512 from a model below a billion weights].
    #[arg(long, value_name = "NUMBER", env = "BATON_MAX_TOKENS")]
    pub max_tokens: Option<u32>,
}

/// Arguments of `baton audit`.
#[derive(Debug, Args)]
pub(crate) struct AuditArguments {
    /// Session id, a prefix of it, or `last`.
    pub session: String,
    /// Node to ask: its id, or the first digits of it.
    #[arg(long, value_name = "ID")]
    pub only: String,
}

/// The value of `--branch` for all turns.
pub(crate) const WHOLE: &str = "end";

/// Arguments of `baton chat`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ChatArguments {
    /// Message to send: the answer is printed, and the program exits; `-` reads it from standard input.
    pub text: Option<String>,
    /// Continue the last session.
    #[arg(long = "continue", short = 'c', conflicts_with = "session")]
    pub continue_last: bool,
    /// Continue this session: its id, or the first digits of it [default: a new session].
    #[arg(long, short)]
    pub session: Option<String>,
    /// The message, as an option.
    #[arg(long, short, value_name = "TEXT", hide = true)]
    pub message: Option<String>,
    /// File with a JSON schema for the answer; needs a message, and a node that supports schemas.
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
    #[command(flatten)]
    pub answering: AnsweringArguments,
    /// Pinned system text of a new session, or of an existing one from now on.
    #[arg(long, env = "BATON_SYSTEM", value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub memory: MemoryArguments,
    /// Sampling seed [default: random for each turn].
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Discard an earlier message without an answer, instead of finishing it first.
    #[arg(long)]
    pub drop_pending: bool,
    /// Begin a new session with the turns of the continued one, up to turn NUMBER or all; that one stays as it is.
    ///
    /// NAME is a branch that a fork left, as `baton session show` names it.
    #[arg(long, value_name = "NUMBER|NAME", num_args = 0..=1, require_equals = true, default_missing_value = WHOLE)]
    pub branch: Option<String>,
}

/// The default model of a node.
pub(crate) const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

/// Arguments of `baton try`.
#[derive(Debug, Args)]
pub(crate) struct TryArguments {
    /// Message to send: the answer is printed, and the program exits.
    pub text: Option<String>,
    /// Number of nodes.
    #[arg(long, default_value_t = 2, value_name = "NUMBER", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=16))]
    pub nodes: usize,
    /// Model of the nodes; `baton-node models list` has their names.
    #[arg(long, default_value = DEFAULT_MODEL, value_name = "NAME")]
    pub model: String,
}

/// The relayer of a conversation, and its memory.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct MemoryArguments {
    /// Let the relayer (--relayer URL) recall memories of your account. It gets a search hint, but cannot read
    /// the turn.
    #[arg(long)]
    pub memory: bool,
    /// Search hint for the relayer.
    #[arg(long, value_enum, default_value = "keywords", value_name = "WHAT")]
    pub memory_hint: HintMode,
    /// Send each exchange to the relayer to remember, which can then read it.
    #[arg(long, requires = "memory")]
    pub memory_write: bool,
    /// Project whose memories to use.
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// Persona to talk to.
    #[arg(long, value_name = "NAME")]
    pub persona: Option<String>,
}

/// The search hint for a relayer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HintMode {
    /// The message itself, which the relayer can then read.
    Message,
    /// A few words of the message, chosen on this machine.
    #[default]
    Keywords,
    /// No hint: only general memories of you are recalled.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn the_short_help_of_each_command_fits_on_a_screen() {
        let mut root = command();
        root.build();
        for command in root.get_subcommands_mut() {
            let lines = command.render_help().to_string().lines().count();
            assert!(lines <= 40, "baton {} -h: {lines} lines", command.get_name());
        }
        assert!(root.render_help().to_string().lines().count() <= 50);
    }
}
