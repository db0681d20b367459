//! Completion at a shell's prompt: commands and options from the command line's own description, sessions from
//! the home folder.
//!
//! The shell's script calls this program with the words so far, in place of a run. It must never ask for a
//! passphrase, use the network, or print an error.

use std::{
    ffi::OsStr,
    io::{self, Write as _},
};

use baton_client::{Client, Conversation};
use baton_kit::manual::CompletionsArguments;
use clap::{Command, CommandFactory as _, FromArgMatches as _};
use clap_complete::{
    engine::{ArgValueCompleter, CompletionCandidate},
    env::{CompleteEnv, Shells},
};

use crate::{
    args::{self, Arguments},
    out::short_session,
    settings::{Environment, Settings},
};

/// Names the shell when its script calls this program.
const VARIABLE: &str = "BATON_COMPLETE";
/// Most sessions that are offered, last used first.
const MAX_SESSIONS: usize = 30;
/// Arguments whose value is a session.
const SESSION_ARGUMENTS: [&str; 2] = ["session", "sessions"];

/// Answers the shell and ends the process, if the shell's script called it.
pub(crate) fn answer_shell() {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Prints the script by which a shell calls this program.
pub(crate) fn print_script(arguments: &CompletionsArguments) -> io::Result<()> {
    let shell = arguments.shell.to_string();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell).ok_or(io::ErrorKind::Unsupported)?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "baton", "baton", "baton", &mut script)?;
    match io::stdout().lock().write_all(&script) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// The command line, with sessions as values.
fn command() -> Command {
    with_sessions(args::command())
}

fn with_sessions(command: Command) -> Command {
    let command = command.mut_subcommands(with_sessions);
    command.mut_args(|argument| {
        if SESSION_ARGUMENTS.contains(&argument.get_id().as_str()) {
            argument.add(ArgValueCompleter::new(sessions))
        } else {
            argument
        }
    })
}

/// Sessions whose id begins so, with their titles, and `last`. None of a home under a passphrase.
fn sessions(begun: &OsStr) -> Vec<CompletionCandidate> {
    let Some(begun) = begun.to_str() else { return Vec::new() };
    let mut candidates = recent_sessions().unwrap_or_default();
    candidates.insert(0, ("last".to_owned(), "the session that was used last".to_owned()));
    let fitting = candidates.into_iter().filter(|(id, _)| id.starts_with(begun)).enumerate();
    let candidate = |(place, (id, title)): (usize, (String, String))| {
        CompletionCandidate::new(id).help(Some(title.into())).display_order(Some(place))
    };
    fitting.map(candidate).collect()
}

/// Short ids and titles.
fn recent_sessions() -> Option<Vec<(String, String)>> {
    let matches = Arguments::command().try_get_matches_from(["baton"]).ok()?;
    let arguments = Arguments::from_arg_matches(&matches).ok()?;
    let environment = Environment { interactive: false, ..Environment::read() };
    let settings = Settings::gather(&arguments, &environment).ok()?;
    if !settings.home().exists() {
        return None;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async {
        let client = Client::open(settings.client(false).ok()?).await.ok()?;
        let (found, sessions) = std::sync::mpsc::channel();
        let look = move |conversation: Conversation| {
            // The receiver lives until the look is over.
            let _ = found.send((short_session(&conversation.session), conversation.title));
        };
        client.each_conversation(0, MAX_SESSIONS, look).await.ok()?;
        Some(sessions.into_iter().collect())
    })
}
