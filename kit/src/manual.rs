//! The commands `completions` and `man` of every program, made from its command line's own description.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::{ArgMatches, Command, FromArgMatches as _, Subcommand};
use clap_complete::Shell;

/// The commands.
#[derive(Subcommand, Clone, Debug)]
enum ManualCommand {
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or write the pages of all commands
    Man {
        /// Write this page and one of each command into this folder, such as ~/.local/share/man/man1
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

/// Adds the commands to a program's, whose help does not list them.
pub(crate) fn with_manual(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let bash =
        format!("Example:\n  {name} completions bash > ~/.local/share/bash-completion/completions/{name}");
    let man = format!("Examples:\n  {name} man | man -l -\n  {name} man --out ~/.local/share/man/man1");
    ManualCommand::augment_subcommands(command)
        .mut_subcommand("completions", |command| command.after_help(bash).hide(true))
        .mut_subcommand("man", |command| command.after_help(man).hide(true))
}

/// Runs one of the commands, if the call names one. A reader that went away is no failure.
///
/// # Errors
/// Errors of the folder and of standard output.
pub(crate) fn run(command: Command, matches: &ArgMatches) -> Option<io::Result<()>> {
    Some(match ManualCommand::from_arg_matches(matches).ok()? {
        ManualCommand::Completions { shell } => print(&completions(command, shell)),
        ManualCommand::Man { out: Some(folder) } => write_pages(command, &folder),
        ManualCommand::Man { out: None } => page(command).and_then(|page| print(&page)),
    })
}

/// The script that completes the command in a shell.
fn completions(mut command: Command, shell: Shell) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// The command's manual page in roff. The text below the options in its help keeps its line breaks.
fn page(command: Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    let text = String::from_utf8(page).map_err(io::Error::other)?;
    let text = text.replacen("\n.SH EXTRA\n", "\n.SH NOTES\n.nf\n", 1);
    Ok(text.replacen("\n.SH VERSION\n", "\n.fi\n.SH VERSION\n", 1).into_bytes())
}

/// Writes the manual pages of a command and all its subcommands into a folder; makes the folder if it is
/// missing.
fn write_pages(command: Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_page_and_below(command, folder)
}

fn write_page_and_below(command: Command, folder: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_page_and_below(below.clone(), folder)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    fs::write(folder.join(format!("{name}.1")), page(command.clone())?)
}

fn print(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    fn command() -> Command {
        Command::new("kite")
            .version("1")
            .subcommand(
                Command::new("fly")
                    .about("Let it fly")
                    .subcommand(Command::new("higher").about("Further up")),
            )
            .subcommand(Command::new("secret").hide(true))
            .arg(Arg::new("colour").long("colour").env("KITE_COLOUR").help("Its colour"))
    }

    #[test]
    fn completions_name_every_command_for_each_shell() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(completions(command(), shell)).unwrap();
            for word in ["kite", "fly", "higher", "colour"] {
                assert!(script.contains(word), "{shell}: {word} is not in {script}");
            }
        }
    }

    #[test]
    fn there_is_a_page_for_each_command_that_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        write_pages(command(), &folder.path().join("man1")).unwrap();
        let mut names: Vec<_> = fs::read_dir(folder.path().join("man1"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["kite-fly-higher.1", "kite-fly.1", "kite.1"]);
        let page = String::from_utf8(page(command().after_help("Examples:\n  kite fly")).unwrap()).unwrap();
        assert!(page.contains("Its colour") && page.contains("Let it fly"), "{page}");
        assert!(page.contains(".SH NOTES\n.nf\nExamples:") && page.contains("\n.fi\n.SH VERSION"), "{page}");
    }
}
