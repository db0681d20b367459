//! The command line: commands, output and exit codes.
//!
//! `main` only calls [`main`]. Each failure has an exit code that tells scripts its kind, and a text that
//! tells people how to fix it.

mod ask;
mod bench;
mod config;
mod doctor;
mod earnings;
mod grants;
mod init;
mod keys;
mod models;
mod passphrase;
mod replay;
mod share;
mod speed;
mod status;
mod time;

use std::{
    fmt::Display,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use baton_kit::turn_grant::TurnGrant;
use baton_kit::{
    config::{OptionTable as _, Origin, Origins, describe_defaults},
    crash,
    output::{self, print_line as say},
    terminal::Style,
    usage,
};
use baton_proto::ids::NodeId;
use clap::{ArgMatches, Args, CommandFactory as _, Parser, Subcommand, builder::Resettable};

pub(crate) use crate::failure::{Exit, Failure};
use crate::{
    config::{LogFormat, RunFlags, Settings, parse_store_url},
    daemon, logging,
};

const AFTER_HELP: &str = "\
Examples:
  baton-node init                          make a data directory, a node key and a commented configuration
  baton-node run                           serve the default model; the first start fetches it
  baton-node run --engine echo --listen /ip4/127.0.0.1/tcp/0 --json
                                           a node without a model, for trying things out
  baton-node status                        how the running node is
  baton-node doctor                        look for problems, with the fix of each
  baton-node models list                   models that can be served
  baton-node keys backup --out FILE        a copy of the node key, under a passphrase
  baton-node bench                         how fast this machine computes the model
  baton-node earnings                      what clients acknowledged
  baton-node replay 4 --export FILE        compute a turn again that a client disclosed

Exit codes:
  0  done                                  3  an address cannot be listened on
  1  failed; status: the node is not ready 4  the data directory or a key file cannot be used
     doctor: there is a problem            5  the model cannot be fetched or loaded, or is wrong
  2  wrong usage or configuration          6, 7  replay: another answer; no turn is replayable";

const RUN_AFTER_HELP: &str = "\
Each option is also an environment variable, and a key of the configuration file. Flags go before the environment,
the environment before the file, the file before the defaults. `baton-node init` writes a file with all of them.

Examples:
  baton-node run
  baton-node run --listen /ip4/0.0.0.0/tcp/4001 --bootstrap /ip4/203.0.113.7/tcp/4001/p2p/12D3Koo...
  baton-node run --engine proxied --proxied-url http://127.0.0.1:11434 --proxied-model llama3.2
  BATON_NODE_SLOTS=4 baton-node run --log debug

The first SIGTERM or Ctrl-C lets running turns finish; a second one ends the node at once.";

/// Serve turns of conversations whose history belongs to the client.
#[derive(Debug, Parser)]
#[command(name = "baton-node", bin_name = "baton-node", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
#[command(max_term_width = 110, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a data directory, a node key and a commented configuration file; never overwrites anything of yours
    #[command(after_help = init::AFTER_HELP)]
    Init(InitArgs),
    /// Run the node
    #[command(after_help = RUN_AFTER_HELP)]
    Run(Box<RunFlags>),
    /// Diagnose problems of the node and its environment, and show how to fix them
    #[command(after_help = doctor::AFTER_HELP)]
    Doctor(Box<doctor::DoctorArgs>),
    /// Show the configuration that `run` would use with the same options, environment and file, or its problems
    #[command(after_help = config::AFTER_HELP)]
    Config(Box<RunLike>),
    /// Show, back up, restore and replace the node's keys
    #[command(subcommand_required = true, arg_required_else_help = true)]
    Keys(keys::KeysArgs),
    /// List, fetch and add models
    #[command(
        subcommand_required = true,
        arg_required_else_help = true,
        after_help = "A download that ends early is gone on with by the next `models pull` of the same model.\n\n\
            Examples:\n  baton-node models pull smollm2-135m-instruct\n  baton-node models pull gemma3-270m --accept-licence\n  \
            baton-node models pull hf:OWNER/REPO/FILE.gguf\n  baton-node models add ~/mine.gguf --name mine"
    )]
    Models(models::ModelsArgs),
    /// Measure how fast this machine computes a model
    #[command(after_help = bench::AFTER_HELP)]
    Bench(bench::BenchArgs),
    /// Recompute a turn that a client disclosed, and compare it token by token
    #[command(after_help = replay::AFTER_HELP)]
    Replay(Box<replay::ReplayArgs>),
    /// Show the status of the running node
    #[command(after_help = "Exit code 0 when the node is ready, 1 when it is not or does not answer.\n\n\
        Examples:\n  baton-node status\n  baton-node status --admin 127.0.0.1:9465 --json\n  \
        watch baton-node status")]
    Status(Box<RunLike>),
    /// Print the settings that a client needs for this node: its address, its store and the number of shards
    #[command(after_help = share::AFTER_HELP)]
    Share(Box<RunLike>),
    /// Show acknowledged turns, tokens and price by day and model, each checked
    #[command(
        after_help = "Only what a client signed for counts; other lines are named, and with --verify they make the exit code 1.\n\n\
        Examples:\n  baton-node earnings\n  baton-node earnings --since 2026-11-01 --json"
    )]
    Earnings(EarningsArgs),
    /// Issue quota grants to your own users
    #[command(
        subcommand_required = true,
        arg_required_else_help = true,
        after_help = "Examples:\n  baton-node grants key\n  baton-node grants issue --holder KEY --turns 60 > alice.grant\n  \
        baton-node grants list *.grant"
    )]
    Grants(GrantsArgs),
}

/// Location of a node's data, and the form of the result, for commands other than `run`.
#[derive(Args, Clone, Debug, Default)]
struct Places {
    /// Folder of keys, journal and models [default: $XDG_DATA_HOME/baton-node or ~/.local/share/baton-node]
    #[arg(long, env = "BATON_NODE_DATA_DIR", value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
    /// Configuration file [default: config.toml in the data directory]
    #[arg(long, env = "BATON_NODE_CONFIG", value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long, global = true)]
    json: bool,
}

impl Places {
    fn flags(self) -> RunFlags {
        RunFlags { data_dir: self.data_dir, config: self.config, ..RunFlags::default() }
    }
}

/// The same, and the models.
#[derive(Args, Clone, Debug, Default)]
struct ModelPlaces {
    #[command(flatten)]
    places: Places,
    /// Folder of model files [default: baton/models in the user's cache folder]
    #[arg(long, env = "BATON_NODE_MODEL_DIR", value_name = "DIR", global = true)]
    model_dir: Option<PathBuf>,
}

impl ModelPlaces {
    fn flags(self) -> RunFlags {
        RunFlags { model_dir: self.model_dir, ..self.places.flags() }
    }
}

/// Every option of `run`, for commands about a node; `--json` belongs to the command itself.
#[derive(Args, Clone, Debug)]
struct RunLike {
    #[command(flatten)]
    flags: RunFlags,
}

impl RunLike {
    /// The given options, their origins, and whether the command prints JSON.
    fn given(self, matches: &ArgMatches) -> Result<(RunFlags, Origins, bool), Failure> {
        let (mut flags, mut origins) = (self.flags, Origins::of_matches::<RunFlags>(matches));
        let json = flags.json == Some(true);
        flags.json = match std::env::var("BATON_NODE_JSON").as_deref() {
            Ok("true") => Some(true),
            Ok("false") => Some(false),
            Err(_) => None,
            Ok(_) => return Err(Failure::text(Exit::Usage, "BATON_NODE_JSON: expected true or false")),
        };
        origins.set("json", flags.json.map(|_| Origin::Environment));
        Ok((flags, origins, json))
    }

    /// Accepts all options but shows only those that select the node, or the others that the command is about.
    fn describe(shown: &[&str]) -> impl FnOnce(clap::Command) -> clap::Command {
        move |command| {
            describe_defaults::<RunFlags>(command).mut_args(|arg| {
                let id = arg.get_id().to_string();
                match id.as_str() {
                    "json" => {
                        arg.env(Resettable::Reset).help("Print the result as JSON").help_heading(None::<&str>)
                    }
                    id if shown.contains(&id) => arg.help_heading(None::<&str>),
                    id if RunFlags::entry(id).is_some() => arg.hide(true),
                    _ => arg,
                }
            })
        }
    }
}

#[derive(Args, Clone, Debug)]
struct InitArgs {
    #[command(flatten)]
    places: Places,
    /// Store: walrus-testnet, walrus-mainnet, embedded, none, or a publisher's URL [default: asked at a terminal, else none]
    #[arg(long, value_name = "STORE")]
    store: Option<init::StoreChoice>,
    /// Base URL of a Walrus publisher, for writing blobs; repeat, or separate with commas
    #[arg(long, value_name = "URL", value_delimiter = ',', value_parser = parse_store_url)]
    publisher: Vec<String>,
    /// Base URL of a Walrus aggregator, for reading blobs; repeat, or separate with commas [default: the publishers]
    #[arg(long, value_name = "URL", value_delimiter = ',', value_parser = parse_store_url)]
    aggregator: Vec<String>,
    /// File with the publishers' bearer token
    #[arg(long, value_name = "FILE")]
    publisher_token_file: Option<PathBuf>,
    /// File with the secret shared with the publishers, for signing a single-use token for each PUT
    #[arg(long, value_name = "FILE")]
    publisher_secret_file: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
struct EarningsArgs {
    #[command(flatten)]
    places: Places,
    /// First day to count (UTC), such as 2026-11-01
    #[arg(long, value_name = "DAY")]
    since: Option<String>,
    /// Former id of this node, whose receipts count as well; may be repeated
    #[arg(long, value_name = "ID")]
    node: Vec<NodeId>,
    /// Exit with code 1 if a line does not verify
    #[arg(long)]
    verify: bool,
}

#[derive(Args, Clone, Debug)]
struct GrantsArgs {
    #[command(flatten)]
    places: Places,
    /// File of the issuer's key [default: issuer.key in the data directory]
    #[arg(long, env = "BATON_NODE_ISSUER_KEY", value_name = "FILE", global = true)]
    issuer_key: Option<PathBuf>,
    #[command(subcommand)]
    command: GrantsCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum GrantsCommand {
    /// Show the issuer's public key; create the key if missing
    Key,
    /// Sign a grant and print it: 60 turns and 100000 tokens an hour, 2 at once, for 720 hours, once narrowable
    Issue(TurnGrant),
    /// List the grants in files, and whether each still counts
    List {
        /// Files with issued grants
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

/// The command line, with every default in its help.
#[must_use]
pub(crate) fn command() -> clap::Command {
    let command = Cli::command().mut_subcommand("run", describe_defaults::<RunFlags>);
    let replay = ["data_dir", "config", "model", "model_dir", "threads"];
    let command = command.mut_subcommand("replay", |command| {
        let help = "Name from `models list`, or the path of a GGUF file [default: the configured model]";
        RunLike::describe(&replay)(command).mut_arg("model", |arg| arg.value_name("NAME|FILE").help(help))
    });
    ["doctor", "config", "status", "share"].into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, RunLike::describe(&["data_dir", "config", "admin"]))
    })
}

/// Prints a result: as JSON, or in words.
fn say_result(json: bool, value: serde_json::Value, words: impl Display) {
    if json { say(value) } else { say(words) }
}

/// The matches of the innermost subcommand.
fn innermost(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| innermost(inner))
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let (cli, matches): (Cli, _) = usage::arguments(command);
    let inner = innermost(&matches);
    let result = match cli.command {
        Command::Init(args) => init::run(args),
        Command::Run(flags) => run(*flags),
        Command::Doctor(args) => doctor::run(*args, inner),
        Command::Config(args) => config::run(*args, inner),
        Command::Keys(args) => keys::run(args),
        Command::Models(args) => models::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Replay(args) => ask::block_on(replay::run(*args, inner)),
        Command::Status(args) => status::run(*args, inner),
        Command::Share(args) => share::run(*args, inner),
        Command::Earnings(args) => earnings::run(args),
        Command::Grants(args) => grants::run(args),
    };
    match result.and_then(|()| Ok(output::check()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // If even standard error is closed, the exit code alone reports the failure.
            let _ = writeln!(io::stderr(), "{} {failure}", Style::stderr().error("error:"));
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn run(flags: RunFlags) -> Result<(), Failure> {
    let settings = Settings::load(flags)?;
    logging::start(settings.log(), settings.log_format());
    logging::end_on_panic();
    crash::forbid_memory_dumps();
    let json_log = settings.log_format() == LogFormat::Json;
    match daemon::run(settings) {
        Err(failure) if json_log => {
            // With a JSON log, the failure is JSON as well, not a line of text.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    /// All commands below one, with their paths.
    fn leaves<'a>(command: &'a clap::Command, path: &str, found: &mut Vec<(String, &'a clap::Command)>) {
        let path = format!("{path} {}", command.get_name());
        if command.get_subcommands().next().is_none() {
            found.push((path.clone(), command));
        }
        command.get_subcommands().for_each(|below| leaves(below, &path, found));
    }

    #[test]
    fn every_command_takes_the_data_directory_and_names_values_in_one_form() {
        let mut whole = command();
        whole.build();
        let mut all = Vec::new();
        leaves(&whole, "", &mut all);
        assert!(all.len() > 15);
        for (path, command) in all {
            let has_folder = command.get_arguments().any(|argument| argument.get_long() == Some("data-dir"));
            assert!(has_folder || path.contains(" help"), "{path}");
            let options = command
                .get_arguments()
                .filter(|argument| argument.get_long().is_some() && argument.get_action().takes_values());
            for name in options.flat_map(|option| option.get_value_names().unwrap_or_default()) {
                // A place for a value in capitals, or a word as it is typed.
                let plain = |part: &str| {
                    part.chars().all(|c| c.is_ascii_uppercase() || ",-".contains(c))
                        || part.chars().all(|c| c.is_ascii_lowercase())
                };
                assert!(name.split('|').all(plain), "{path}: {name}");
            }
        }
    }

    #[test]
    fn the_help_names_every_default() {
        let mut command = command();
        let run = command.find_subcommand_mut("run").unwrap();
        let help = run.render_long_help().to_string();
        for part in [
            "[default: 127.0.0.1:9464]",
            "[default: 8]",
            "/ip4/0.0.0.0/udp/4001/quic-v1]",
            "BATON_NODE_SLOTS",
        ] {
            assert!(help.contains(part), "{part} is not in {help}");
        }
        assert!(!help.contains("pause-at"));
    }
}
