//! The reading of a call, and the end of one that clap refuses or that asks for help.

use std::{ffi::OsString, io, process};

use clap::{
    ArgMatches, Command, Error, FromArgMatches,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{empty_values::refuse_empty, manual, nearest::nearest, variables::name_variable};

/// The arguments of this process, by [`parse`]. Ends it for wrong usage and for help.
pub fn arguments<A: FromArgMatches>(command: impl Fn() -> Command) -> (A, ArgMatches) {
    let given: Vec<_> = std::env::args_os().collect();
    parse(command, &given).unwrap_or_else(|error| exit(&error))
}

/// The arguments of a call, with the commands `completions` and `man`: one of these is run here, and then the process ends.
///
/// # Errors
/// A wrong call, or an option with an empty value. The error names the variable of a refused value, and the one command
/// that a mistyped word may mean.
pub fn parse<A: FromArgMatches>(
    command: impl Fn() -> Command,
    given: &[OsString],
) -> Result<(A, ArgMatches), Error> {
    let whole = || manual::with_manual(command());
    let matches = whole().try_get_matches_from(given).map_err(|error| completed(&whole(), given, error))?;
    refuse_empty(&whole(), &matches)?;
    match manual::run(whole(), &matches) {
        Some(Ok(())) => process::exit(0),
        Some(Err(failure)) => fail(&failure.to_string()),
        None => Ok((A::from_arg_matches(&matches)?, matches)),
    }
}

/// Completes an error of clap: names the variable of a refused value, and the one command that a mistyped word may mean.
fn completed(command: &Command, given: &[OsString], error: Error) -> Error {
    let mut error = name_variable(command, given, error);
    if error.get(ContextKind::Usage).is_some() {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage_of(command.clone(), given)));
    }
    let word = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::InvalidSubcommand => word.clone(),
        _ => return error,
    };
    // The command whose subcommand is wrong.
    let above = innermost(command, given);
    let names = above.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name);
    if let Some(near) = nearest(&word, names) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(near.to_owned()));
    }
    error
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
#[must_use]
pub fn message_and_hint(error: &Error) -> (String, Option<String>) {
    let text = error.render().to_string();
    let mut parts = text.split("\n\n").map(str::trim);
    let message = parts.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let tips = parts.flat_map(str::lines).filter_map(|line| line.trim().strip_prefix("tip: "));
    let tips: Vec<&str> = tips.collect();
    (message, (!tips.is_empty()).then(|| tips.join("; ")))
}

/// Prints an error or a help text, and ends the process. A help text that standard output does not take is a failure.
pub fn exit(error: &Error) -> ! {
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

    fn refused(given: &[&str]) -> Error {
        let command = Command::new("kite")
            .subcommand(Command::new("session"))
            .subcommand(Command::new("version").hide(true));
        let error = command.clone().try_get_matches_from(given).unwrap_err();
        let given: Vec<OsString> = given.iter().map(OsString::from).collect();
        completed(&command, &given, error)
    }

    // A test cannot set a variable of its own process: an option of the call stands for it, which clap shows as well.
    #[test]
    fn the_usage_shows_no_option_that_is_given_elsewhere() {
        let command = Command::new("kite")
            .arg(Arg::new("config").long("config").global(true))
            .subcommand(Command::new("fly").arg(Arg::new("wind").required(true)));
        let given = ["kite", "--config", "f", "fly"].map(OsString::from);
        let error = command.clone().try_get_matches_from(&given).unwrap_err();
        let text = completed(&command, &given, error).render().to_string();
        assert!(text.contains("Usage: kite fly [OPTIONS] <wind>"), "{text}");
    }

    #[test]
    fn a_mistyped_command_has_one_suggestion() {
        let (message, hint) = message_and_hint(&refused(&["kite", "sesion"]));
        assert_eq!(message, "unrecognized subcommand 'sesion'");
        assert_eq!(hint.as_deref(), Some("a similar subcommand exists: 'session'"));
        assert_eq!(
            message_and_hint(&refused(&["kite", "--nosuch"])).0,
            "unexpected argument '--nosuch' found"
        );
    }
}
