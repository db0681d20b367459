//! The `baton` command: flags, settings, output, and one module for each subcommand.
//!
//! The program `baton` runs only [`main`]. This crate obtains its data from the client and the gateway, and
//! never reads a session's files itself.

mod account;
mod account_key;
mod agent_pipe;
mod args;
mod audit;
mod authority;
mod backup;
mod chat;
mod clock;
mod complete;
mod configuration;
mod delegation;
mod devices;
mod dialogue;
mod doctor;
mod grants;
mod graph;
mod interrupt;
mod memory;
mod memory_items;
mod nodes;
mod opening;
mod options;
mod out;
mod passphrase;
mod printable;
mod private_network;
mod proofs;
mod receipts;
mod rekey;
mod relayer_client;
mod relayer_memory;
mod repl;
mod serve;
mod serve_keys;
mod serve_link;
mod session;
mod settings;
mod storage;
mod talk;
mod tui;
mod wrap;

use std::{
    ffi::OsString,
    process::{self, ExitCode},
    time::Duration,
};

use baton_client::{Client, ClientError, SessionInfo, choose::NoChoice};
use baton_kit::{
    crash,
    empty_values::refuse_empty,
    log, manual,
    nearest::nearest,
    output::{self, shell_word},
    usage,
};
use baton_proto::{ids::SessionId, text::searchable};
use clap::{ArgMatches, FromArgMatches as _};

use args::{Arguments, Command, SessionCommand};
use out::Out;
use settings::{Environment, Settings};

/// Time after a single message's answer, or at the program's end, for acknowledgements, the head and the node's report
/// on storing. The journal holds the unfinished rest.
const GRACE: Duration = Duration::from_secs(3);

/// Shortest part of a title that is looked for when no session has the given name.
const MIN_TITLE_BYTES: usize = 3;

/// The reason for an early end.
#[derive(Debug)]
pub enum Failure {
    /// The client's own error.
    Client(ClientError),
    /// The client's own error, with a next step of this call in place of the general one.
    Hinted {
        /// The error.
        error: ClientError,
        /// The next step.
        hint: String,
    },
    /// An error in the call itself, whose text says what to do.
    Usage(String),
    /// An error in the call itself.
    Advice {
        /// The error.
        message: String,
        /// The next step.
        hint: String,
    },
    /// A verification found problems; they are shown already.
    Unverified,
    /// A verification found no errors, but blobs that the store lacks; they are shown already.
    NotStored,
    /// An audit without a result; its reason is shown already.
    NotCompared,
    /// A relayer refused, failed, or was unreachable.
    Relayer {
        /// A stable name.
        name: String,
        /// The error.
        message: String,
        /// The next step.
        hint: Option<String>,
    },
    /// A diagnosis found this many problems; they are shown already.
    Found(u64),
    /// Interrupted by the user.
    Interrupted,
    /// Input or output.
    Io(std::io::Error),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl Failure {
    /// An error in the call itself, with the next step.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Advice { message: message.into(), hint: hint.into() }
    }

    /// Whether it is an error in the call itself.
    #[cfg(test)]
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::Usage(_) | Self::Advice { .. })
    }

    /// Shows the failure; returns the exit code.
    pub fn report(&self, out: &Out) -> u8 {
        match self {
            Self::Client(error) => {
                let near = likely_model(error);
                out.error(error.name(), &error.to_string(), near.as_deref().or(error.hint()));
                error.exit_code()
            }
            Self::Hinted { error, hint } => {
                out.error(error.name(), &error.to_string(), Some(hint));
                error.exit_code()
            }
            Self::Usage(text) => {
                out.error("Usage", text, None);
                2
            }
            Self::Advice { message, hint } => {
                out.error("Usage", message, Some(hint));
                2
            }
            Self::Relayer { name, message, hint } => {
                out.error(name, message, hint.as_deref());
                9
            }
            Self::Unverified => 5,
            Self::NotStored => 6,
            Self::NotCompared => 10,
            Self::Found(_) => 1,
            Self::Interrupted => 130,
            // The reader of the output has closed it.
            Self::Io(error) if error.kind() == std::io::ErrorKind::BrokenPipe => 0,
            Self::Io(error) => {
                out.error("Io", &error.to_string(), None);
                1
            }
        }
    }
}

/// The served model that an unknown one may mean, as a next step.
fn likely_model(error: &ClientError) -> Option<String> {
    let ClientError::NoNode(NoChoice::ModelUnavailable { wanted, served }) = error else { return None };
    let near = nearest(wanted, served.split(", "))?;
    Some(format!("did you mean {near}? see what is served: baton nodes"))
}

/// Runs the program with the arguments of its process; returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    complete::answer_shell();
    crash::forbid_memory_dumps();
    let (arguments, matches) = parse(std::env::args_os().collect());
    let environment = Environment::read();
    let out = Out::new(arguments.json, environment.no_color).with_command(Some(command_of(&arguments)));
    // Only on request: a person at a prompt sees their warnings anyway.
    log::start(log::filter(environment.log.as_deref().unwrap_or("off"), "warn"));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            out.problem(&format!("the runtime cannot be started: {error}"), None);
            return ExitCode::FAILURE;
        }
    };
    let code = match runtime.block_on(Box::pin(run(arguments, &matches, &environment, &out))) {
        Ok(()) => output::check().map_or_else(|error| Failure::Io(error).report(&out), |()| 0),
        Err(failure) => failure.report(&out),
    };
    // A prompt that still waits for a line must not delay the end.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// The beginning of a later command for the same home and settings.
fn command_of(arguments: &Arguments) -> String {
    let named = [("--config", arguments.config.as_ref()), ("--home", arguments.options.home.as_ref())];
    let mut command = "baton".to_owned();
    for (option, path) in named {
        let Some(path) = path else { continue };
        command.push_str(&format!(" {option} {}", shell_word(path)));
    }
    command
}

/// The arguments of a call. At a terminal, a call without a command opens the chat.
fn parse(given: Vec<OsString>) -> (Arguments, ArgMatches) {
    let read = |given: &[OsString]| {
        let matches = args::command().try_get_matches_from(given);
        let matches =
            matches.map_err(|error| usage::completed(&args::command(), given, error, command_elsewhere))?;
        refuse_empty(&args::command(), &matches)?;
        Ok((Arguments::from_arg_matches(&matches)?, matches))
    };
    let parsed = read(&given).and_then(|(arguments, matches)| match arguments.command {
        Some(_) => Ok((arguments, matches)),
        None if chat::at_terminal() => read(&[&given[..], &["chat".into()]].concat()),
        None => {
            let message = "Not running at a terminal: give a command.\n\n  tip: baton chat TEXT; all commands: baton --help\n";
            Err(clap::Error::raw(clap::error::ErrorKind::MissingSubcommand, message))
        }
    });
    parsed.unwrap_or_else(|error: clap::Error| {
        if error.use_stderr() && given.iter().any(|word| word == "--json") {
            let (message, hint) = usage::message_and_hint(&error);
            Out::new(true, true).error("Usage", &message, hint.as_deref());
            process::exit(error.exit_code());
        }
        usage::exit(&error)
    })
}

/// The commands for words that people know from other programs.
fn command_elsewhere(word: &str) -> Option<&'static str> {
    Some(match word {
        "list" | "ls" => "conversations: baton session list; nodes and models: baton nodes",
        "run" => "baton chat, or on this machine alone: baton try; to serve a model: baton-node run",
        "pull" => "models are fetched where they are served: baton-node models pull",
        "ps" => "what runs on the network: baton nodes; a node of this machine: baton-node status",
        "version" => "baton --version",
        "init" => "a settings file: baton config --init; an account key: baton account new",
        "show" | "rm" | "delete" | "search" | "verify" | "export" => {
            "conversations have their own commands: baton session --help"
        }
        _ => return None,
    })
}

/// Runs one call of the command.
async fn run(
    arguments: Arguments,
    matches: &ArgMatches,
    environment: &Environment,
    out: &Out,
) -> Result<(), Failure> {
    match &arguments.command {
        Some(Command::Completions(shell)) => {
            return Ok(complete::print_script(shell)?);
        }
        Some(Command::Man(pages)) => return Ok(manual::print_or_write_pages(args::command(), pages)?),
        Some(Command::Config { init: true }) => return configuration::init(&arguments, environment, out),
        Some(Command::Config { init: false }) => {
            return configuration::show(&arguments, matches, environment, out);
        }
        _ => {}
    }
    let settings = Settings::gather(&arguments, environment);
    if let Some(Command::Doctor) = arguments.command {
        let named = arguments.config.as_deref();
        return Box::pin(doctor::run(settings, (named, environment), out)).await;
    }
    if let Some(Command::Try(arguments)) = &arguments.command {
        return Box::pin(private_network::run(arguments, environment, out)).await;
    }
    let settings = settings?;
    let Some(command) = arguments.command else { return Ok(()) };
    match command {
        Command::Chat(chat) => Box::pin(chat::run(&settings, chat, out)).await,
        Command::Serve(arguments) => Box::pin(serve::run(&settings, &arguments, out)).await,
        Command::Session { command: SessionCommand::Rekey(arguments) } => {
            rekey::run(&settings, &arguments, out).await
        }
        Command::Session { command } => Box::pin(session::run(&settings, command, out)).await,
        Command::Account { command } => account::run(&settings, command.as_ref(), out).await,
        Command::Memory(commands) => memory::run(&settings, &commands, out).await,
        Command::Nodes(arguments) => nodes::run(&settings, &arguments, out).await,
        Command::Receipts(arguments) => receipts::run(&settings, &arguments, out).await,
        Command::Audit(arguments) => audit::run(&settings, &arguments, out).await,
        Command::Grants(arguments) => grants::run(&settings, &arguments, out),
        Command::Passphrase { new_file, remove } => {
            passphrase::run(&settings, new_file.as_deref(), remove, out).await
        }
        // They ran above.
        Command::Completions(_)
        | Command::Man(_)
        | Command::Config { .. }
        | Command::Doctor
        | Command::Try(_) => Ok(()),
    }
}

/// Runs work with an open client, and closes the client properly after success or failure.
async fn with_client<T>(
    settings: &Settings,
    network: bool,
    work: impl AsyncFnOnce(&Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if network {
        settings.ask_shards().await?;
    }
    let client = Client::open(settings.client(network)?).await?;
    let result = work(&client).await;
    let grace = if network { GRACE } else { Duration::ZERO };
    client.shutdown(grace).await;
    result
}

/// The named session: its id, a prefix of the id, or `last`.
async fn find_session(client: &Client, text: &str) -> Result<SessionId, Failure> {
    if text == "last" {
        let last = client.last_session().await?;
        return last.ok_or_else(|| ClientError::UnknownSession(text.to_owned()).into());
    }
    let wanted = text.to_lowercase();
    let ids = client.session_ids().await?;
    let mut found = ids.iter().filter(|id| id.to_string().starts_with(&wanted));
    match (found.next(), found.next()) {
        (Some(id), None) => Ok(*id),
        (Some(_), Some(_)) => {
            Err(Failure::usage(format!("Several sessions begin with {text}."), "give more digits of the id"))
        }
        (None, _) => {
            let error = ClientError::UnknownSession(text.to_owned());
            Err(match likely_session(client, &wanted).await {
                Some(hint) => Failure::Hinted { error, hint },
                None => error.into(),
            })
        }
    }
}

/// The session that an unknown name may mean, as a next step: by its id, or by its title.
async fn likely_session(client: &Client, wanted: &str) -> Option<String> {
    let sessions = client.sessions().await.ok()?;
    let short = |session: &SessionInfo| out::short_session(&session.id);
    let ids: Vec<String> = sessions.iter().map(short).collect();
    let near = nearest(wanted.get(..8).unwrap_or(wanted), ids.iter().map(String::as_str));
    let titled = |session: &&SessionInfo| searchable(&session.title).contains(&searchable(wanted));
    let found = match near {
        Some(near) => sessions.iter().find(|session| short(session) == near),
        None => sessions.iter().find(|session| wanted.len() >= MIN_TITLE_BYTES && titled(session)),
    }?;
    Some(format!("did you mean {} \"{}\"? all: baton session list", short(found), found.title))
}

/// A random seed for a session's sampling, if the user named none.
fn random_seed() -> u64 {
    u64::from_le_bytes(baton_keys::secret::random_bytes())
}

/// Writes a file that only its owner may read; refuses to overwrite one.
fn write_private(path: &std::path::Path, bytes: &[u8]) -> Result<(), Failure> {
    baton_keys::files::write_private(path, bytes).map_err(|source| {
        let exists = source.kind() == std::io::ErrorKind::AlreadyExists;
        let source = if exists { std::io::Error::new(source.kind(), "it exists already") } else { source };
        ClientError::File { action: "create", path: path.to_owned(), source }.into()
    })
}

/// Ends the process at a second Ctrl-C, while the first is being handled.
fn leave_at_second_interrupt() {
    tokio::spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            process::exit(130);
        }
    });
}
