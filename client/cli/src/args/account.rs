//! `baton account`.

use std::path::PathBuf;

use baton_keys::ids::PublicKey;
use baton_proto::{ids::RightId, right::Permission};
use clap::{ArgGroup, Args, Subcommand, builder::PossibleValuesParser};

/// The commands for the account key.
#[derive(Debug, Subcommand)]
pub(crate) enum AccountCommand {
    /// Create a key, sealed under the passphrase of --passphrase-file if given.
    New,
    /// Show the key's 24 recovery words, or write them to a file.
    Backup {
        /// Output file (created with mode 0600).
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Restore the key from its 24 recovery words.
    Restore {
        /// File with the recovery words.
        #[arg(long, value_name = "FILE")]
        words_file: Option<PathBuf>,
    },
    /// Let another key or an agent act for this account, or list who may.
    ///
    /// For a key it prints a delegation. Its holder passes it with --delegation, or puts it beside its account key as
    /// account.delegation. After --register, --owner is enough. For an agent that cannot sign requests, --token prints
    /// a token of the relayer's /mcp, once. Without both, it lists the delegations that the relayer knows.
    #[command(after_help = DELEGATE_EXAMPLES)]
    Delegate(DelegateArguments),
    /// Revoke a delegation or a token, at once and for good (needs --relayer).
    Revoke {
        /// Id of the delegation, as baton account delegate lists it; also of one that the relayer has never seen.
        id: RightId,
    },
}

const DELEGATE_EXAMPLES: &str = "\
Examples:
  baton account                                    on the delegate's machine: its public key
  baton account delegate KEY > agent.txt           to read, for 30 days
  baton account delegate KEY --scopes read,write --project garden --days 7 --register --relayer https://relayer.example
  baton memory list --delegation agent.txt --relayer https://relayer.example
  baton account delegate --token --relayer https://relayer.example
  baton account delegate --relayer https://relayer.example
  baton account revoke ID --relayer https://relayer.example";

/// Arguments of `baton account delegate`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("delegate").args(["key", "token"]))]
pub(crate) struct DelegateArguments {
    /// Public key of the delegate, 64 hex characters.
    pub key: Option<PublicKey>,
    /// Make a token for an agent that cannot sign requests, as its MCP configuration takes it (needs --relayer).
    #[arg(long)]
    pub token: bool,
    /// Scopes: read, write (without reading), chat (conversations that use memory), admin (settings, export,
    /// import, projects), intimate (adds intimate items to scopes that show memories).
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "read",
        value_parser = PossibleValuesParser::new(Permission::ALL.map(Permission::name)),
        requires = "delegate"
    )]
    pub scopes: Vec<String>,
    /// The only project that it covers [default: all of the account's memory].
    #[arg(long, value_name = "NAME", requires = "delegate")]
    pub project: Option<String>,
    /// Public key of the only relayer at which it counts, 64 hex characters [default: every relayer].
    #[arg(long, value_name = "HEX", requires = "key")]
    pub at_relayer: Option<PublicKey>,
    /// Validity in days.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 30,
        value_parser = clap::value_parser!(u32).range(1..=366),
        requires = "delegate"
    )]
    pub days: u32,
    /// Register the delegation with the relayer (needs --relayer), so that the delegate needs no file.
    #[arg(long, requires = "key")]
    pub register: bool,
}
