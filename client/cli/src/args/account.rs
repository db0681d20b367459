//! `baton account`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Permissions that a delegation can give, in their signed order.
pub const SCOPES: [&str; 5] = ["read", "write", "chat", "admin", "intimate"];

/// What to do with the account key.
#[derive(Debug, Subcommand)]
pub enum AccountCommand {
    /// Make a key, under the passphrase of --passphrase-file if one is given.
    New,
    /// Show the account's address and public key.
    Show,
    /// Show the 24 words that are the key, or write them to a file.
    Backup {
        /// The file (made with mode 0600).
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Bring the key back from its 24 words.
    Restore {
        /// File with the words.
        #[arg(long, value_name = "FILE")]
        words_file: Option<PathBuf>,
    },
    /// Let another key act for this account, by a delegation that this key signs.
    ///
    /// It is printed, unless it is written to a file or registered. The delegate uses the file with --delegation, or puts
    /// it beside its account key as account.delegation; once registered, --owner is enough.
    #[command(after_help = DELEGATE_EXAMPLES)]
    Delegate(DelegateArguments),
    /// List the delegations that the relayer knows of (needs --relayer-url).
    Delegations,
    /// Take a delegation back, at once and for good (needs --relayer-url).
    Revoke {
        /// Its id, as baton account delegations shows it.
        id: String,
        /// The delegate's public key: then also a delegation that the relayer has never seen is taken back.
        #[arg(long, value_name = "HEX")]
        key: Option<String>,
    },
}

const DELEGATE_EXAMPLES: &str = "\
Examples:
  baton account show                               on the delegate's machine: its public key
  baton account delegate KEY --out agent.json      to read, for 30 days
  baton account delegate KEY --scopes read,write --project garden --days 7 --register --relayer-url https://relayer.example
  baton memory list --delegation agent.json --relayer-url https://relayer.example
  baton account revoke ID --relayer-url https://relayer.example";

/// Whom to let do what.
#[derive(Debug, Args)]
pub struct DelegateArguments {
    /// The delegate's public key, 64 hex characters.
    pub key: String,
    /// What it may do: read, write (which reads nothing), chat (conversations that use memory), admin (settings, export, import,
    /// projects), intimate (intimate items too, where another scope shows memories).
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "read",
        value_parser = clap::builder::PossibleValuesParser::new(SCOPES)
    )]
    pub scopes: Vec<String>,
    /// The one project that it may do it in [default: all of the account's memory].
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// Days until it ends.
    #[arg(long, value_name = "NUMBER", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=366))]
    pub days: u32,
    /// Write it to this file (made with mode 0600).
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Make it known to the relayer (needs --relayer-url), so that the key needs to show nothing.
    #[arg(long)]
    pub register: bool,
}
