//! Names the environment variable whose value clap's parser refuses. Clap itself names the option alone, which
//! the call does not have.

use std::ffi::{OsStr, OsString};

use clap::{
    Arg, Command, Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// Adds the environment variable to an error about its value; leaves every other error as it is. `given` are
/// the words of the call.
#[must_use]
pub(crate) fn name_variable(command: &Command, given: &[OsString], mut error: Error) -> Error {
    if let Some(name) = refused_variable(command, given, &error, |name| std::env::var_os(name)) {
        let tip = format!("the value is that of the environment variable {name}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// The variable that gave the refused value. The option must be absent from the call, because a call's own
/// value precedes the variable's.
fn refused_variable(
    command: &Command,
    given: &[OsString],
    error: &Error,
    variable: impl Fn(&OsStr) -> Option<OsString>,
) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    // Of two options that exclude each other, either may be the variable's.
    let is_conflict = error.kind() == ErrorKind::ArgumentConflict;
    let value = text(ContextKind::InvalidValue).or(is_conflict.then_some(""))?;
    let shown = [text(ContextKind::InvalidArg), text(ContextKind::PriorArg)];
    let is_shown = |arg: &Arg| shown.iter().flatten().any(|shown| is_shown(arg, shown));
    let named = |arg: &&Arg| is_shown(arg) && !given.iter().any(|word| names(word, arg));
    let found = options(command).into_iter().filter(named).find_map(|arg| {
        let name = arg.get_env()?;
        // A list is refused by one of its values.
        variable(name)?.to_string_lossy().contains(value).then_some(name)
    });
    found.map(|name| name.to_string_lossy().into_owned())
}

/// Whether an error shows this option, such as `--node <MULTIADDR>`. Clap cannot show an option of a command
/// that has not parsed yet.
fn is_shown(arg: &Arg, shown: &str) -> bool {
    let rest = |long: &str| shown.strip_prefix("--").and_then(|shown| shown.strip_prefix(long));
    let is_name = |c: char| c.is_alphanumeric() || c == '-';
    arg.get_long().and_then(rest).is_some_and(|rest| !rest.starts_with(is_name))
}

/// Whether a word of the call is this option.
fn names(word: &OsStr, arg: &Arg) -> bool {
    let word = word.to_string_lossy();
    let is_long = |long: &str| {
        word.strip_prefix("--")
            .and_then(|word| word.strip_prefix(long))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let is_short = |short: char| !word.starts_with("--") && word.starts_with(&format!("-{short}"));
    arg.get_long().is_some_and(is_long) || arg.get_short().is_some_and(is_short)
}

/// The options of a command and all its subcommands.
fn options(command: &Command) -> Vec<&Arg> {
    command.get_arguments().chain(command.get_subcommands().flat_map(options)).collect()
}

#[cfg(test)]
mod tests {
    use clap::{builder::PossibleValuesParser, value_parser};

    use super::*;

    fn command() -> Command {
        let port = Arg::new("port").long("port").short('p').env("KITE_PORT").value_parser(value_parser!(u16));
        let wind = Arg::new("wind").long("wind").env("KITE_WIND").conflicts_with("port");
        let wind = wind.value_parser(PossibleValuesParser::new(["east", "west"])).value_delimiter(',');
        Command::new("kite").arg(port.global(true)).subcommand(Command::new("fly").arg(wind))
    }

    /// The variable that is named for the error of a call, if the call is another and the variable is set.
    fn refused(failed: &[&str], given: &[&str], variable: (&str, &str)) -> Option<String> {
        let error = command().try_get_matches_from(failed).unwrap_err();
        let given: Vec<OsString> = given.iter().map(OsString::from).collect();
        let set = |name: &OsStr| (name == variable.0).then(|| OsString::from(variable.1));
        refused_variable(&command(), &given, &error, set)
    }

    // A test cannot set a variable of its own process. The parser refuses a word of the call as it refuses a
    // variable's value, so the option gets another name here.
    #[test]
    fn finds_the_variable_of_a_refused_value() {
        let of = |given: &[&str], value| refused(&["kite", "--port", "high"], given, ("KITE_PORT", value));
        assert_eq!(of(&["kite", "fly"], "high").as_deref(), Some("KITE_PORT"));
        assert_eq!(of(&["kite", "--portable"], "high").as_deref(), Some("KITE_PORT"));
        for given in [&["kite", "--port", "high"][..], &["kite", "--port=high"], &["kite", "-phigh"]] {
            assert_eq!(of(given, "high"), None, "{given:?}");
        }
        assert_eq!(of(&["kite"], "9"), None, "another value");
        let found = refused(&["kite", "fly", "--wind", "east,up"], &["kite"], ("KITE_WIND", "east,up"));
        assert_eq!(found.as_deref(), Some("KITE_WIND"), "of a subcommand, in a list");
        let both = ["kite", "fly", "--wind", "east", "--port", "1"];
        let found = refused(&both, &both[..4], ("KITE_PORT", "1"));
        assert_eq!(found.as_deref(), Some("KITE_PORT"), "of an option that excludes it");
        for word in ["--nosuch", "nosuch"] {
            assert_eq!(refused(&["kite", word], &["kite", word], ("KITE_PORT", "high")), None, "no value");
        }
    }
}
