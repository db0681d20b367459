//! The `baton` command: flags, settings, output, and one module for each subcommand.
//!
//! The program `baton` runs only [`main`]. This crate obtains its data from the client and the gateway, and
//! never reads a session's files itself.

mod account;
mod args;
mod audit;
mod chat;
mod clock;
mod configuration;
mod doctor;
mod failure;
mod files;
mod grants;
mod home;
mod interrupt;
mod memory;
mod nodes;
mod options;
mod out;
mod passphrase;
mod private_network;
mod receipts;
mod relayer;
mod search;
mod serve;
mod session;
mod settings;
mod tui;
mod turn_display;
mod views;
mod words;

use std::{
    ffi::OsString,
    process::{self, ExitCode},
};

use baton_kit::{
    crash, log,
    output::{self, shell_word},
    usage,
};
use clap::{
    ArgMatches,
    error::{ContextKind, ContextValue},
};

use args::{Arguments, Command, SessionCommand};
use failure::Failure;
use out::Out;
use settings::{Environment, Settings};

/// Runs the program with the arguments of its process; returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    crash::forbid_memory_dumps();
    let (arguments, matches) = parse(std::env::args_os().collect());
    let environment = Environment::read();
    let out = Out::new(arguments.json).with_command(Some(command_of(&arguments)));
    // Only on request: a person at a prompt sees their warnings anyway.
    log::start(log::filter(environment.log.as_deref().unwrap_or("off"), "warn"));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            out.error("Io", &format!("the runtime cannot be started: {error}"), None);
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

/// An error for a command of another program, with the command of this one.
fn hinted(mut error: clap::Error) -> clap::Error {
    let hint = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => match word.as_str() {
            "list" | "ls" => "conversations: baton session list; nodes and models: baton nodes",
            "run" => "baton chat, or on this machine alone: baton try; to serve a model: baton-node run",
            "pull" => "models are fetched where they are served: baton-node models pull",
            "ps" => "what runs on the network: baton nodes; a node of this machine: baton-node status",
            _ => return error,
        },
        _ => return error,
    };
    error.remove(ContextKind::SuggestedSubcommand);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    error
}

/// The arguments of a call. At a terminal, a call without a command opens the chat.
fn parse(given: Vec<OsString>) -> (Arguments, ArgMatches) {
    let read = |given: &[OsString]| usage::parse::<Arguments>(args::command, given).map_err(hinted);
    let parsed = read(&given).and_then(|(arguments, matches)| match arguments.command {
        Some(_) => Ok((arguments, matches)),
        None if views::at_terminal() => read(&[&given[..], &["chat".into()]].concat()),
        None => {
            let message = "Not running at a terminal: give a command.\n\n  tip: baton chat TEXT; all commands: baton --help\n";
            Err(clap::Error::raw(clap::error::ErrorKind::MissingSubcommand, message))
        }
    });
    parsed.unwrap_or_else(|error: clap::Error| {
        if error.use_stderr() && given.iter().any(|word| word == "--json") {
            let (message, hint) = usage::message_and_hint(&error);
            Out::new(true).error("Usage", &message, hint.as_deref());
            process::exit(error.exit_code());
        }
        usage::exit(&error)
    })
}

/// Runs one call of the command.
async fn run(
    arguments: Arguments,
    matches: &ArgMatches,
    environment: &Environment,
    out: &Out,
) -> Result<(), Failure> {
    let settings = || Settings::gather(&arguments, environment);
    let Some(command) = &arguments.command else { return Ok(()) };
    match command {
        Command::Config { init: true } => configuration::init(&arguments, environment, out),
        Command::Config { init: false } => configuration::show(&arguments, matches, environment, out),
        Command::Doctor => Box::pin(doctor::run(settings(), &arguments, environment, out)).await,
        Command::Try(given) => {
            let is_plain = arguments.options.plain == Some(true);
            Box::pin(private_network::run(given, is_plain, environment, out)).await
        }
        Command::Chat(given) => Box::pin(views::run(&settings()?, given.clone(), out)).await,
        Command::Serve(given) => Box::pin(serve::run(&settings()?, given, out)).await,
        Command::Session { command: Some(SessionCommand::Rekey(given)) } => {
            chat::rekey::run(&settings()?, given, out).await
        }
        Command::Session { command } => {
            let list = SessionCommand::List { words: Vec::new() };
            let command = command.as_ref().unwrap_or(&list);
            Box::pin(session::run(&settings()?, command, out)).await
        }
        Command::Account { command } => account::run(&settings()?, command.as_ref(), out).await,
        Command::Memory(commands) => memory::run(&settings()?, commands, out).await,
        Command::Nodes(given) => nodes::run(&settings()?, given, out).await,
        Command::Receipts(given) => receipts::run(&settings()?, given, out).await,
        Command::Audit(given) => audit::run(&settings()?, given, out).await,
        Command::Grants(given) => grants::run(&settings()?, given, out),
        Command::Passphrase { new_file, remove } => {
            passphrase::run(&settings()?, new_file.as_deref(), *remove, out).await
        }
    }
}
