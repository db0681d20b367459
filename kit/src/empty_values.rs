//! Refuses options and variables with an empty value, which a script with an unset variable gives: an empty
//! value would count as given, and its effect would be far from its cause.

use clap::{Arg, ArgMatches, Command, Error, error::ErrorKind, parser::ValueSource};

/// Checks the options that a call or the environment gave, at every level of the command.
///
/// # Errors
/// The first option or variable whose value is empty.
pub(crate) fn refuse_empty(command: &Command, matches: &ArgMatches) -> Result<(), Error> {
    check(command, matches, &[])
}

fn check(command: &Command, matches: &ArgMatches, inherited: &[&Arg]) -> Result<(), Error> {
    let known: Vec<&Arg> = inherited.iter().copied().chain(command.get_arguments()).collect();
    // A position without a name may be empty: its own command judges it.
    for arg in known.iter().filter(|arg| arg.get_long().is_some()) {
        if let Some(message) = problem(arg, matches) {
            return Err(Error::raw(ErrorKind::InvalidValue, message).with_cmd(command));
        }
    }
    let Some((name, inner)) = matches.subcommand() else { return Ok(()) };
    let global: Vec<&Arg> = known.into_iter().filter(|arg| arg.is_global_set()).collect();
    command.find_subcommand(name).map_or(Ok(()), |command| check(command, inner, &global))
}

fn problem(arg: &Arg, matches: &ArgMatches) -> Option<String> {
    let id = arg.get_id().as_str();
    let is_empty = |value: &std::ffi::OsStr| value.to_string_lossy().trim().is_empty();
    let mut raw = matches.try_get_raw(id).ok()??;
    if !raw.any(is_empty) {
        return None;
    }
    match (matches.value_source(id)?, arg.get_env()) {
        (ValueSource::EnvVariable, Some(name)) => {
            Some(format!("{} is empty: unset it, or give it a value", name.to_string_lossy()))
        }
        (ValueSource::CommandLine, _) => {
            Some(format!("--{} is empty: leave it away, or give it a value", arg.get_long()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::ArgAction;

    use super::*;

    fn command() -> Command {
        let node = Arg::new("node").long("node").action(ArgAction::Append).global(true);
        let only = Arg::new("only").long("only");
        Command::new("baton").arg(node).subcommand(
            Command::new("chat")
                .arg(only)
                .arg(Arg::new("text"))
                .arg(Arg::new("plain").long("plain").action(ArgAction::SetTrue)),
        )
    }

    #[test]
    fn an_empty_value_is_refused_by_the_name_of_its_option() {
        for (given, wrong) in [
            (&["baton", "--node", "", "chat"][..], "--node"),
            (&["baton", "chat", "--node", "a", "--node", " "], "--node"),
            (&["baton", "chat", "--only="], "--only"),
            (&["baton", "chat", "", "--plain"], ""),
            (&["baton", "chat", "--only", "a"], ""),
        ] {
            let matches = command().try_get_matches_from(given).unwrap();
            let refused = refuse_empty(&command(), &matches).err().map(|error| error.to_string());
            match refused {
                None => assert!(wrong.is_empty(), "{given:?}"),
                Some(text) => {
                    assert!(!wrong.is_empty() && text.contains(&format!("{wrong} is empty")), "{text}")
                }
            }
        }
    }
}
