//! The reading of a call, and the end of one that clap refuses or that asks for help.

use std::{ffi::OsString, io, process};

use clap::{
    ArgMatches, Command, Error, FromArgMatches,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
};
use serde_json::json;

use crate::{
    empty_values::refuse_empty, manual, nearest::nearest, output::print_line, variables::name_variable,
};

/// The commands that do what words of other programs mean, each with its purpose.
pub type Tips = [(&'static [&'static str], &'static [(&'static str, &'static str)])];

/// The arguments of this process, by [`parse`]. Ends it for wrong usage and for help.
pub fn arguments<A: FromArgMatches>(command: impl Fn() -> Command) -> (A, ArgMatches) {
    let given: Vec<_> = std::env::args_os().collect();
    parse(command, &[], &given).unwrap_or_else(|error| exit(&error, &given))
}

/// The arguments of a call, with the commands `completions` and `man`: one of these is run here, and then the process ends.
///
/// # Errors
/// A wrong call, or an option with an empty value. The error names the variable of a refused value, and the commands that
/// an unknown word may mean.
pub fn parse<A: FromArgMatches>(
    command: impl Fn() -> Command,
    tips: &Tips,
    given: &[OsString],
) -> Result<(A, ArgMatches), Error> {
    let whole = || manual::with_manual(command());
    let matches =
        whole().try_get_matches_from(given).map_err(|error| completed(&whole(), tips, given, error))?;
    refuse_empty(&whole(), &matches)?;
    match manual::run(whole(), &matches) {
        Some(Ok(())) => process::exit(0),
        Some(Err(failure)) => fail(&failure.to_string()),
        None => Ok((A::from_arg_matches(&matches)?, matches)),
    }
}

/// Completes an error of clap: names the variable of a refused value, and the commands that an unknown word may mean.
fn completed(command: &Command, tips: &Tips, given: &[OsString], error: Error) -> Error {
    let mut error = name_variable(command, given, error);
    if error.get(ContextKind::Usage).is_some() {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage_of(command.clone(), given)));
    }
    let word =
        match (error.kind(), error.get(ContextKind::InvalidSubcommand), error.get(ContextKind::InvalidArg)) {
            (ErrorKind::InvalidSubcommand, Some(ContextValue::String(word)), _)
            | (ErrorKind::UnknownArgument, _, Some(ContextValue::String(word))) => word.clone(),
            _ => return error,
        };
    // The command to which the word is unknown.
    let above = innermost(command, given);
    let names = above.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name);
    if let Some(tip) = tip(command, above, tips, &word) {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    } else if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(near) = nearest(&word, names)
    {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(near.to_owned()));
    }
    error
}

/// The commands that a word means where `above` does not know it: those of the table, or, at the beginning of a call, those
/// with this name further down.
fn tip(command: &Command, above: &Command, tips: &Tips, word: &str) -> Option<String> {
    let is_first = above.get_name() == command.get_name();
    if above.has_subcommands() && !is_first {
        return None;
    }
    if let Some((_, commands)) = tips.iter().find(|(words, _)| words.contains(&word)) {
        let commands = commands.iter().map(|(purpose, command)| format!("{purpose}: {command}"));
        return Some(commands.collect::<Vec<_>>().join("; "));
    }
    let groups = command.get_subcommands().filter(|group| is_first && group.find_subcommand(word).is_some());
    let found = groups.map(|group| format!("{} {} {word}", command.get_name(), group.get_name()));
    let found = found.collect::<Vec<_>>().join(", or ");
    (!found.is_empty()).then_some(found)
}

/// The usage of the innermost command of a call. Clap's own shows the options that the environment gave, too.
fn usage_of(mut command: Command, given: &[OsString]) -> StyledStr {
    command.build();
    innermost(&command, given).clone().render_usage()
}

/// The innermost command that the words of a call name.
fn innermost<'a>(command: &'a Command, given: &[OsString]) -> &'a Command {
    given.iter().fold(command, |above, word| above.find_subcommand(word).unwrap_or(above))
}

/// The message of an error of clap, without its usage, and its tips.
fn message_and_hint(error: &Error) -> (String, Option<String>) {
    let text = error.render().to_string();
    let mut parts = text.split("\n\n").map(str::trim);
    let message = parts.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let tips = parts.flat_map(str::lines).filter_map(|line| line.trim().strip_prefix("tip: "));
    let tips: Vec<&str> = tips.collect();
    (message, (!tips.is_empty()).then(|| tips.join("; ")))
}

/// Prints an error or a help text, and ends the process. With `--json` in the call, an error is an object on standard
/// output, too. A help text that standard output does not take is a failure.
pub fn exit(error: &Error, given: &[OsString]) -> ! {
    if error.use_stderr() && given.iter().any(|word| word == "--json") {
        let (message, hint) = message_and_hint(error);
        print_line(json!({ "error": { "name": "Usage", "message": message, "hint": hint } }));
    }
    match error.print() {
        Err(failure) if !error.use_stderr() && failure.kind() != io::ErrorKind::BrokenPipe => {
            fail(&format!("standard output: {failure}"))
        }
        _ => process::exit(error.exit_code()),
    }
}

/// Ends the process after a failure to print.
fn fail(failure: &str) -> ! {
    // The exit code says the same.
    let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("error: {failure}\n"));
    process::exit(1)
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    const TIPS: &Tips = &[(&["soar"], &[("to fly", "kite fly"), ("to learn it", "school fly")])];

    fn refused(given: &[&str]) -> (String, Option<String>) {
        let command = Command::new("kite")
            .subcommand(Command::new("session").subcommand(Command::new("list").alias("ls")))
            .subcommand(Command::new("fly"))
            .subcommand(Command::new("version").hide(true));
        let error = command.clone().try_get_matches_from(given).unwrap_err();
        let given: Vec<OsString> = given.iter().map(OsString::from).collect();
        message_and_hint(&completed(&command, TIPS, &given, error))
    }

    // A test cannot set a variable of its own process: an option of the call stands for it, which clap shows as well.
    #[test]
    fn the_usage_shows_no_option_that_is_given_elsewhere() {
        let command = Command::new("kite")
            .arg(Arg::new("config").long("config").global(true))
            .subcommand(Command::new("fly").arg(Arg::new("wind").required(true)));
        let given = ["kite", "--config", "f", "fly"].map(OsString::from);
        let error = command.clone().try_get_matches_from(&given).unwrap_err();
        let text = completed(&command, &[], &given, error).render().to_string();
        assert!(text.contains("Usage: kite fly [OPTIONS] <wind>"), "{text}");
    }

    #[test]
    fn an_unknown_word_is_answered_with_the_commands_that_it_may_mean() {
        let soar = "to fly: kite fly; to learn it: school fly";
        for (given, message, hint) in [
            (
                &["kite", "sesion"][..],
                "unrecognized subcommand 'sesion'",
                Some("a similar subcommand exists: 'session'"),
            ),
            (&["kite", "soar"], "unrecognized subcommand 'soar'", Some(soar)),
            (&["kite", "fly", "soar"], "unexpected argument 'soar' found", Some(soar)),
            (&["kite", "list"], "unrecognized subcommand 'list'", Some("kite session list")),
            (&["kite", "ls"], "unrecognized subcommand 'ls'", Some("kite session ls")),
            // A group has its own words.
            (&["kite", "session", "soar"], "unrecognized subcommand 'soar'", None),
            (&["kite", "fly", "list"], "unexpected argument 'list' found", None),
            (&["kite", "--nosuch"], "unexpected argument '--nosuch' found", None),
        ] {
            assert_eq!(refused(given), (message.to_owned(), hint.map(str::to_owned)), "{given:?}");
        }
    }
}
