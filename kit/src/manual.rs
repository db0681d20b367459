//! Shell completions and manual pages, made from a command line's own description. Three commands offer them
//! alike.
//!
//! ```
//! use baton_kit::manual;
//! use clap::Command;
//! use clap_complete::Shell;
//!
//! # fn main() -> std::io::Result<()> {
//! let command = Command::new("kite").version("1").about("Lets a kite fly");
//! let script = manual::completions(command.clone(), Shell::Bash);
//! assert!(String::from_utf8_lossy(&script).contains("kite"));
//! let page = manual::page(command)?;
//! assert!(String::from_utf8_lossy(&page).contains("Lets a kite fly"));
//! # Ok(())
//! # }
//! ```

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::{Args, Command};
use clap_complete::Shell;

/// Print completions for a shell.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArguments {
    /// The shell.
    pub shell: Shell,
}

/// Print the manual page, or write all of them.
#[derive(Args, Clone, Debug)]
pub struct ManArguments {
    /// Write this page and one of each command into this folder, such as ~/.local/share/man/man1.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// The script that completes the command in a shell.
#[must_use]
pub fn completions(mut command: Command, shell: Shell) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// The command's manual page in roff. The text below the options in its help keeps its line breaks.
///
/// # Errors
/// Errors of writing to memory.
pub fn page(command: Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    let text = String::from_utf8(page).map_err(io::Error::other)?;
    let text = text.replacen("\n.SH EXTRA\n", "\n.SH NOTES\n.nf\n", 1);
    Ok(text.replacen("\n.SH VERSION\n", "\n.fi\n.SH VERSION\n", 1).into_bytes())
}

/// Writes the manual pages of a command and all its subcommands into a folder; makes the folder if it is
/// missing.
///
/// # Errors
/// Errors of the file system.
pub fn write_pages(command: Command, folder: &Path) -> io::Result<()> {
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

/// Prints completions; a reader that went away is no failure.
///
/// # Errors
/// Errors of standard output.
pub fn print_completions(command: Command, arguments: &CompletionsArguments) -> io::Result<()> {
    print(&completions(command, arguments.shell))
}

/// Prints the page, or writes all pages into a folder.
///
/// # Errors
/// Errors of the folder and of standard output.
pub fn print_or_write_pages(command: Command, arguments: &ManArguments) -> io::Result<()> {
    match &arguments.out {
        Some(folder) => write_pages(command, folder),
        None => print(&page(command)?),
    }
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
