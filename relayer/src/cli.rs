//! Command line of `baton-relayer`.

use std::path::PathBuf;

use baton_kit::{
    config::{OptionTable as _, describe_defaults},
    usage,
};
use clap::{Args, CommandFactory as _, Parser, Subcommand};

use crate::config::Options;

/// Memory across conversations, for nodes that keep none
#[derive(Debug, Parser)]
#[command(
    name = "baton-relayer",
    version,
    after_help = "Examples:\n  baton-relayer init\n  baton-relayer models pull potion-base-8m\n  \
                  baton-relayer run --http 127.0.0.1:8000 --publisher http://127.0.0.1:31415 --aggregator http://127.0.0.1:31415\n  \
                  baton-relayer doctor\n\n\
                  Exit codes: 0 done, 1 failed (the message says why and what to do), 2 wrong usage."
)]
pub(crate) struct Cli {
    /// Folder with the relayer's keys, memory and config.toml [default: $XDG_DATA_HOME/baton-relayer or
    /// ~/.local/share/baton-relayer]
    #[arg(long, value_name = "DIR", global = true, env = "BATON_RELAYER_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Log level, or a tracing filter; info and warn show only errors of libp2p
    #[arg(long, value_name = "LEVEL", global = true, env = "BATON_RELAYER_LOG", default_value = "info")]
    pub(crate) log: String,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of `run` about the place of memory and its keys.
const STORAGE_OPTIONS: [&str; 2] = ["postgres_url_file", "keys_dir"];

impl Cli {
    /// The parsed command line. Ends the process for wrong usage and for help.
    pub(crate) fn read() -> Self {
        usage::arguments(Self::whole).0
    }

    /// The command, with the small commands' help narrowed to their options. They still accept every option
    /// of `run`, since its environment variables apply to them too.
    pub(crate) fn whole() -> clap::Command {
        Self::command()
            .mut_subcommand("run", describe_defaults::<Options>)
            .mut_subcommand("doctor", describe_defaults::<Options>)
            .mut_subcommand("backup", |backup| narrowed(backup, &STORAGE_OPTIONS))
            .mut_subcommand("restore", |restore| narrowed(restore, &STORAGE_OPTIONS))
            .mut_subcommand("models", |models| {
                models.mut_subcommand("pull", |pull| narrowed(pull, &["model_dir"]))
            })
            .mut_subcommand("owners", |owners| {
                ["list", "accept-loss", "erase"].into_iter().fold(owners, |owners, name| {
                    owners.mut_subcommand(name, |command| narrowed(command, &STORAGE_OPTIONS))
                })
            })
    }
}

/// Hides the options of `run` that a command does not use.
fn narrowed(command: clap::Command, used: &[&str]) -> clap::Command {
    describe_defaults::<Options>(command).mut_args(|option| {
        let id = option.get_id().as_str();
        let hidden = Options::entry(id).is_some() && !used.contains(&id);
        if hidden { option.hide(true) } else { option }
    })
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create the keys and a commented configuration file
    Init,
    /// Run the relayer
    #[command(after_help = "Example: baton-relayer run --bootstrap /ip4/127.0.0.1/tcp/4001/p2p/12D3Koo...")]
    Run(RunArgs),
    /// Check everything that a relayer needs, and name the fix of each problem
    ///
    /// It asks the running relayer, where there is one, looks at the rest itself, and changes nothing. It takes every
    /// option of `run`, so that it can be asked about a relayer that is not configured by a file. docs/MEMORY.md lists
    /// every code. Exit code 0 when there is no problem (warnings may be), 1 when there is one.
    #[command(after_help = "Example: baton-relayer doctor --json | jq '.checks[].findings[]'")]
    Doctor(RunArgs),
    /// Invite an account to this relayer: print an invitation for its key
    ///
    /// The owner presents the line once, with `baton memory redeem`. It counts with owners = "invited".
    #[command(after_help = "Example: baton-relayer invite <64 hex> --days 90")]
    Invite(InviteArgs),
    /// Manage embedding models
    #[command(subcommand)]
    Models(ModelsCommand),
    /// Write memory and the owners' keys into one file, also while the relayer runs
    ///
    /// The file has all memory and all owners' key files, sealed under master.key, and is readable by its owner alone
    /// (0600). It does not have master.key, without which it cannot be read, relayer.key and config.toml: keep copies of
    /// these elsewhere. Every record is checked before the file gets its name. Data that an owner deletes later stays
    /// readable in it: keep it no longer than your promise of deletion allows.
    #[command(after_help = "Example: baton-relayer backup /backup/memory-$(date +%F)")]
    Backup {
        /// New file; an existing one is never replaced
        path: PathBuf,
        #[command(flatten)]
        options: Options,
    },
    /// Put a backup of memory back, while no relayer runs
    ///
    /// The backup is checked first. The present database stays beside it as memory.sqlite.replaced. Key files that
    /// exist stay, so data that was deleted since the backup stays deleted; an owner with later data is refused until
    /// `owners accept-loss`. With --with-keys, the state of the backup comes back whole, deleted data included. Without
    /// any key file, as on a new machine, the backup's are written; put master.key there first.
    #[command(after_help = "Example: baton-relayer restore /backup/memory-2026-11-26")]
    Restore {
        /// File that `baton-relayer backup` made
        path: PathBuf,
        /// Put back the owners' key files too: data deleted since the backup comes back, and later data is lost
        #[arg(long)]
        with_keys: bool,
        #[command(flatten)]
        options: Options,
    },
    /// Manage owners; with embedded storage, stop the relayer first
    #[command(subcommand)]
    Owners(OwnersCommand),
}

/// Options of `run` and `doctor`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Print one JSON line: of `run`, when it is ready
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InviteArgs {
    /// Public key of the account, 64 hex characters; its baton account has it
    pub(crate) key: String,
    /// Days until the invitation expires
    #[arg(long, value_name = "N", default_value_t = 366, value_parser = clap::value_parser!(u64).range(1..=3660))]
    pub(crate) days: u64,
    /// Print one JSON line with the id, by which the invitation can be revoked
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// Download a model into the model folder and verify it
    Pull {
        /// Name of the model, such as potion-base-8m
        name: String,
        #[command(flatten)]
        options: Options,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum OwnersCommand {
    /// List the account ids of all owners
    List {
        #[command(flatten)]
        options: Options,
    },
    /// Accept the loss of an owner's data in a damaged database, and continue with the rest
    ///
    /// A relayer refuses an owner whose data in the database is incomplete. First restore the latest backup
    /// of the database. Use this command only without a backup. No relayer may run meanwhile.
    AcceptLoss {
        /// Account id, 0x and 64 hex characters [default: all owners with lost data]
        account: Option<String>,
        /// Confirm; without it, list the owners with lost data
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        options: Options,
    },
    /// Delete an owner with all memory and keys, permanently
    Erase {
        /// Account id, 0x and 64 hex characters
        account: String,
        /// Confirm the deletion
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        options: Options,
    },
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;

    fn help(path: &[&str]) -> String {
        let mut command = Cli::whole();
        let mut at = &mut command;
        for name in path {
            at = at.find_subcommand_mut(name).expect("a command of that name");
        }
        at.render_long_help().to_string()
    }

    #[test]
    fn small_commands_show_only_their_own_options_and_accept_the_others() {
        Cli::whole().debug_assert();
        let cases: [(&[&str], &[&str]); 6] = [
            (&["backup"], &["--keys-dir", "Example"]),
            (&["restore"], &["--keys-dir", "--with-keys", "Example"]),
            (&["models", "pull"], &["--model-dir"]),
            (&["owners", "list"], &["--postgres-url-file", "--keys-dir"]),
            (&["owners", "accept-loss"], &["--yes", "--keys-dir"]),
            (&["owners", "erase"], &["--yes", "--keys-dir"]),
        ];
        for (path, shown) in cases {
            let text = help(path);
            for option in shown {
                assert!(text.contains(option), "{path:?} {option}:\n{text}");
            }
            for option in ["--http", "--bootstrap", "--publisher", "--max-owners"] {
                assert!(!text.contains(option), "{path:?} {option}:\n{text}");
            }
        }
        for option in ["--http", "--bootstrap", "--keys-dir", "--embedder-url"] {
            assert!(help(&["run"]).contains(option), "{option}");
            assert!(help(&["doctor"]).contains(option), "{option}");
        }
        let line = ["baton-relayer", "owners", "list", "--shards", "7"];
        Cli::from_arg_matches(&Cli::whole().get_matches_from(line)).expect("hidden is not refused");
    }
}
