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

use std::{ffi::OsString, process::ExitCode};

use baton_kit::{
    crash, log,
    output::{self, shell_word},
    usage,
};
use clap::ArgMatches;

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

/// Words of other programs, with the commands of ours that do the same.
const TIPS: &usage::Tips = &[
    (
        &["list", "ls", "history"],
        &[("conversations", "baton session list"), ("nodes and models", "baton nodes")],
    ),
    (
        &["run", "ask", "start"],
        &[
            ("to chat", "baton chat"),
            ("on this machine alone", "baton try"),
            ("to serve a model", "baton-node run"),
        ],
    ),
    (
        &["serve-model", "host", "node"],
        &[("to serve a model", "baton-node init"), ("and then", "baton-node run")],
    ),
    (&["pull", "download"], &[("models are fetched where they are served", "baton-node models pull")]),
    (&["create"], &[("models are taken in where they are served", "baton-node models add")]),
    (
        &["ps", "top", "stats"],
        &[("what runs on the network", "baton nodes"), ("a node of this machine", "baton-node status")],
    ),
    (
        &["up", "demo"],
        &[("a private network with a chat", "baton try"), ("for programs", "baton-testnet up")],
    ),
    (&["key", "keys"], &[("of memories", "baton account"), ("for programs", "baton serve keys")]),
    (
        &["set", "settings", "init"],
        &[("all settings", "baton config"), ("a file with them", "baton config --init")],
    ),
    (&["version"], &[("the version", "baton --version")]),
];

/// The arguments of a call. At a terminal, a call without a command opens the chat.
fn parse(given: Vec<OsString>) -> (Arguments, ArgMatches) {
    let read = |given: &[OsString]| usage::parse::<Arguments>(args::command, TIPS, given);
    let parsed = read(&given).and_then(|(arguments, matches)| match arguments.command {
        Some(_) => Ok((arguments, matches)),
        None if views::at_terminal() => read(&[&given[..], &["chat".into()]].concat()),
        None => {
            let message = "Not running at a terminal: give a command.\n\n  tip: baton chat TEXT; all commands: baton --help\n";
            Err(clap::Error::raw(clap::error::ErrorKind::MissingSubcommand, message))
        }
    });
    parsed.unwrap_or_else(|error| usage::exit(&error, &given))
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn tips_name_commands_that_exist_for_words_that_are_none() {
        let own = args::command();
        // A run of this package's tests alone may have built no other program.
        let folder = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
        for (words, commands) in TIPS {
            assert!(words.iter().all(|word| own.find_subcommand(word).is_none()), "{words:?}");
            for (_, named) in *commands {
                let mut parts = named.split(' ');
                let program = parts.next().unwrap();
                let arguments: Vec<&str> = parts.chain(["--help"]).collect();
                if program == "baton" {
                    let help = args::command().try_get_matches_from([&["baton"], &arguments[..]].concat());
                    assert!(!help.unwrap_err().use_stderr(), "{named}");
                } else if folder.join(program).exists() {
                    let help = Command::new(folder.join(program)).args(&arguments).output().unwrap();
                    assert!(help.status.success(), "{named}");
                }
            }
        }
    }
}
