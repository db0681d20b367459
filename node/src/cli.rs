//! The command line: what a person or a script types, and what the process says and returns.
//!
//! `main` calls [`main`] and nothing else. Every failure carries the exit code that tells a script what kind it was,
//! and a text that tells a person what to do next.

mod earnings;
mod grants;
mod init;
mod models;
pub(crate) mod progress;
mod status;
mod style;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use baton_proto::ids::{ModelId, NodeId, PublicKey};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::{
    config::{ConfigError, LogFormat, RunFlags, Settings, describe_defaults},
    daemon, logging,
};
use style::Style;

/// Why the process ends, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Anything that has no code of its own; for `status`: the node is not ready.
    Failure = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// An address cannot be listened on.
    Address = 3,
    /// The data directory cannot be used.
    Storage = 4,
    /// The model cannot be fetched or loaded.
    Model = 5,
}

/// A failure of a command.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What happened and what to do.
    pub error: anyhow::Error,
}

impl Failure {
    /// A failure with its cause.
    pub fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self { exit, error: error.into() }
    }

    /// A failure in words.
    #[must_use]
    pub fn text(exit: Exit, text: impl std::fmt::Display) -> Self {
        Self { exit, error: anyhow::anyhow!("{text}") }
    }
}

impl std::fmt::Display for Failure {
    /// The failure and its causes in one line; causes that a text already tells are not told again.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut said = String::new();
        for cause in self.error.chain().map(ToString::to_string) {
            if !said.contains(&cause) {
                said.push_str(if said.is_empty() { "" } else { ": " });
                said.push_str(&cause);
            }
        }
        f.write_str(&said)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(Exit::Usage, error)
    }
}

const AFTER_HELP: &str = "\
Examples:
  baton-node init                          make a data directory, a node key and a commented configuration
  baton-node run                           serve the default model; the first start fetches it
  baton-node run --engine echo --listen /ip4/127.0.0.1/tcp/0 --json
                                           a node without a model, for trying things out
  baton-node status                        ask the running node how it is
  baton-node models list                   models that can be served
  baton-node earnings                      what clients acknowledged

Exit codes:
  0  done                                  3  an address cannot be listened on
  1  failed; status: the node is not ready 4  the data directory cannot be used
  2  wrong usage or configuration          5  the model cannot be fetched or loaded";

const RUN_AFTER_HELP: &str = "\
Each option is also an environment variable, and a key of the configuration file. Flags go before the environment,
the environment before the file, the file before the defaults. `baton-node init` writes a file with all of them.

Examples:
  baton-node run
  baton-node run --listen /ip4/0.0.0.0/tcp/4001 --bootstrap /ip4/203.0.113.7/tcp/4001/p2p/12D3Koo...
  baton-node run --engine proxied --proxied-url http://127.0.0.1:11434 --proxied-model llama3.2
  BATON_NODE_SLOTS=4 baton-node run --log debug

The first SIGTERM or Ctrl-C lets running turns finish; a second one ends the node at once.";

/// Serves turns of conversations whose history belongs to the client.
#[derive(Debug, Parser)]
#[command(name = "baton-node", bin_name = "baton-node", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
#[command(max_term_width = 110, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a data directory, a node key and a commented configuration file; never overwrites anything
    #[command(after_help = "Example:\n  baton-node init --data-dir /var/lib/baton-node")]
    Init(InitArgs),
    /// Run the node
    #[command(after_help = RUN_AFTER_HELP)]
    Run(Box<RunFlags>),
    /// List and fetch models
    #[command(
        subcommand_required = true,
        arg_required_else_help = true,
        after_help = "Example:\n  baton-node models pull smollm2-135m-instruct"
    )]
    Models(ModelsArgs),
    /// Ask the running node how it is
    #[command(after_help = "Exit code 0 when the node is ready, 1 when it is not or does not answer.\n\n\
        Examples:\n  baton-node status\n  baton-node status --admin 127.0.0.1:9465 --json")]
    Status(StatusArgs),
    /// Show what clients acknowledged: turns, tokens and price by day and model, each checked
    #[command(
        after_help = "Only what a client signed for counts; other lines are named, and with --verify they make the exit code 1.\n\n\
        Examples:\n  baton-node earnings\n  baton-node earnings --since 2026-11-01 --json"
    )]
    Earnings(EarningsArgs),
    /// Give quotas to users of your own
    #[command(
        subcommand_required = true,
        arg_required_else_help = true,
        after_help = "Examples:\n  baton-node grants key\n  baton-node grants issue --holder KEY --turns 60 > alice.grant"
    )]
    Grants(GrantsArgs),
}

/// Where a node keeps its things, for commands beside `run`.
#[derive(Args, Clone, Debug, Default)]
struct Places {
    /// Folder of keys, journal and models [default: $XDG_DATA_HOME/baton-node or ~/.local/share/baton-node]
    #[arg(long, env = "BATON_NODE_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Configuration file [default: config.toml in the data directory]
    #[arg(long, env = "BATON_NODE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Places {
    fn flags(self) -> RunFlags {
        RunFlags { data_dir: self.data_dir, config: self.config, ..RunFlags::default() }
    }
}

#[derive(Args, Clone, Debug)]
struct InitArgs {
    #[command(flatten)]
    places: Places,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Debug)]
struct ModelsArgs {
    #[command(flatten)]
    places: Places,
    /// Folder of model files [default: baton/models in the user's cache folder]
    #[arg(long, env = "BATON_NODE_MODEL_DIR", value_name = "DIR", global = true)]
    model_dir: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: ModelsCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum ModelsCommand {
    /// Fetch a model and check it; does nothing but check when it is there
    Pull {
        /// Name from `models list`
        name: String,
    },
    /// Show the models that can be fetched, and which are here
    List,
}

#[derive(Args, Clone, Debug)]
struct StatusArgs {
    #[command(flatten)]
    places: Places,
    /// Admin address of the node [default: as configured, or 127.0.0.1:9464]
    #[arg(long, env = "BATON_NODE_ADMIN", value_name = "ADDR")]
    admin: Option<String>,
    /// Print the status as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Debug)]
struct EarningsArgs {
    #[command(flatten)]
    places: Places,
    /// Count from this day on (UTC), such as 2026-11-01
    #[arg(long, value_name = "DAY")]
    since: Option<String>,
    /// A former id of this node, whose receipts count as well; may be repeated
    #[arg(long, value_name = "ID")]
    node: Vec<NodeId>,
    /// End with code 1 when a line does not prove itself
    #[arg(long)]
    verify: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Debug)]
struct GrantsArgs {
    #[command(flatten)]
    places: Places,
    /// File of the issuer's key [default: issuer.key in the data directory]
    #[arg(long, env = "BATON_NODE_ISSUER_KEY", value_name = "FILE", global = true)]
    issuer_key: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: GrantsCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum GrantsCommand {
    /// Show the issuer's public key, which is made where there is none
    Key,
    /// Sign a grant, and print it
    Issue(IssueArgs),
}

#[derive(Args, Clone, Debug)]
struct IssueArgs {
    /// Public key of the user, as `baton grants key` shows it
    #[arg(long, value_name = "KEY")]
    holder: PublicKey,
    /// Turns an hour at each node
    #[arg(long, value_name = "N", default_value_t = 60)]
    turns: u32,
    /// Tokens of answers an hour at each node
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    tokens: u64,
    /// Turns at once at each node
    #[arg(long, value_name = "N", default_value_t = 2)]
    concurrent: u16,
    /// Hours that it holds
    #[arg(long, value_name = "N", default_value_t = 720)]
    hours: u64,
    /// How often it may be narrowed for others, 0 to 3
    #[arg(long, value_name = "N", default_value_t = 1)]
    depth: u8,
    /// Node where it counts; may be repeated, and is all that trust the issuer where none is named
    #[arg(long, value_name = "ID")]
    node: Vec<NodeId>,
    /// Model that it is for; may be repeated, and is all where none is named
    #[arg(long, value_name = "ID")]
    model: Vec<ModelId>,
}

fn command() -> clap::Command {
    Cli::command().mut_subcommand("run", describe_defaults)
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::from_arg_matches(&command().get_matches()).unwrap_or_else(|error| error.exit());
    let result = match cli.command {
        Command::Init(args) => init::run(args),
        Command::Run(flags) => run(*flags),
        Command::Models(args) => models::run(args),
        Command::Status(args) => status::run(args),
        Command::Earnings(args) => earnings::run(args),
        Command::Grants(args) => grants::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Nothing can be told where even standard error is closed; the exit code still says it.
            let _ = writeln!(io::stderr(), "{} {failure}", Style::stderr().error("error:"));
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn run(flags: RunFlags) -> Result<(), Failure> {
    let settings = Settings::load(flags)?;
    logging::start(settings.log, settings.log_format);
    logging::end_on_panic();
    logging::forbid_memory_dumps();
    let json_log = settings.log_format == LogFormat::Json;
    match daemon::run(settings) {
        Err(failure) if json_log => {
            // Whoever reads the log as JSON gets the failure as JSON, instead of as a line of text.
            tracing::error!(
                exit_code = failure.exit as u8,
                error = format!("{:#}", failure.error),
                "stopped"
            );
            std::process::exit(failure.exit as i32)
        }
        result => result,
    }
}

/// Writes to standard output; a reader that has gone away is no failure.
fn say(text: impl std::fmt::Display) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn the_help_names_every_default() {
        let mut command = command();
        let run = command.find_subcommand_mut("run").unwrap();
        let help = run.render_long_help().to_string();
        for part in [
            "[default: 127.0.0.1:9464]",
            "[default: 2]",
            "/ip4/0.0.0.0/udp/4001/quic-v1]",
            "BATON_NODE_SLOTS",
        ] {
            assert!(help.contains(part), "{part} is not in {help}");
        }
        assert!(!help.contains("pause-at"));
    }
}
