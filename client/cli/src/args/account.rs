//! `baton account`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Permissions that a delegation can give, in their signed order.
pub(crate) const SCOPES: [&str; 5] = ["read", "write", "chat", "admin", "intimate"];

/// The commands for the account key.
#[derive(Debug, Subcommand)]
pub(crate) enum AccountCommand {
    /// Create a key, sealed under the passphrase of --passphrase-file if given.
    New,
    /// Show the account's address and public key.
    Show,
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
    /// Let another key act for this account, by a signed delegation.
    ///
    /// Prints the delegation, unless it is written to a file or registered. The delegate passes the file with
    /// --delegation, or puts it beside its account key as account.delegation. After registration, --owner is
    /// enough.
    #[command(after_help = DELEGATE_EXAMPLES)]
    Delegate(DelegateArguments),
    /// Make a token for an agent that cannot sign requests, as its MCP configuration takes it (needs --relayer).
    ///
    /// Prints the token, once. It is for the relayer's /mcp alone. baton account delegations lists it, and baton
    /// account revoke ends it.
    #[command(after_help = TOKEN_EXAMPLES)]
    Token(TokenArguments),
    /// List the delegations known to the relayer (needs --relayer).
    Delegations,
    /// Revoke a delegation, at once and for good (needs --relayer).
    Revoke {
        /// Id of the delegation, as baton account delegations shows it.
        id: String,
        /// Public key of the delegate; also revokes a delegation that the relayer has never seen.
        #[arg(long, value_name = "HEX")]
        key: Option<String>,
    },
}

const DELEGATE_EXAMPLES: &str = "\
Examples:
  baton account show                               on the delegate's machine: its public key
  baton account delegate KEY --out agent.json      to read, for 30 days
  baton account delegate KEY --scopes read,write --project garden --days 7 --register --relayer https://relayer.example
  baton memory list --delegation agent.json --relayer https://relayer.example
  baton account revoke ID --relayer https://relayer.example";

const TOKEN_EXAMPLES: &str = "\
Examples:
  baton account token --relayer https://relayer.example
  baton account token --scopes read,write --project garden --days 7 --relayer https://relayer.example
  baton account revoke ID --relayer https://relayer.example";

/// Arguments of `baton account token`.
#[derive(Debug, Args)]
pub(crate) struct TokenArguments {
    /// Scopes: read, write (without reading), intimate (adds intimate items to read), admin.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "read",
        value_parser = clap::builder::PossibleValuesParser::new(SCOPES)
    )]
    pub scopes: Vec<String>,
    /// The only project that it covers [default: all of the account's memory].
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// Validity in days.
    #[arg(long, value_name = "NUMBER", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=366))]
    pub days: u32,
}

/// Arguments of `baton account delegate`.
#[derive(Debug, Args)]
pub(crate) struct DelegateArguments {
    /// Public key of the delegate, 64 hex characters.
    pub key: String,
    /// Scopes: read, write (without reading), chat (conversations that use memory), admin (settings, export,
    /// import, projects), intimate (adds intimate items to scopes that show memories).
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "read",
        value_parser = clap::builder::PossibleValuesParser::new(SCOPES)
    )]
    pub scopes: Vec<String>,
    /// The only project that it covers [default: all of the account's memory].
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// Public key of the only relayer at which it counts, 64 hex characters [default: every relayer].
    #[arg(long, value_name = "HEX")]
    pub at_relayer: Option<String>,
    /// Validity in days.
    #[arg(long, value_name = "NUMBER", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=366))]
    pub days: u32,
    /// Output file (created with mode 0600).
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Register the delegation with the relayer (needs --relayer), so that the delegate needs no file.
    #[arg(long)]
    pub register: bool,
}
