//! `baton-node completions` and `baton-node man`: made from the command line's own description.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

use clap::Command;
use clap_complete::Shell;

use super::{Exit, Failure};

/// Prints the script that completes the command in a shell.
pub(super) fn completions(mut command: Command, shell: Shell) -> Result<(), Failure> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    print(&script)
}

/// Prints the manual page, or writes this one and those of all commands into a folder.
pub(super) fn man(command: Command, folder: Option<&Path>) -> Result<(), Failure> {
    let Some(folder) = folder else {
        return print(&page(command).map_err(|error| Failure::new(Exit::Failure, error))?);
    };
    let mut command = command;
    command.build();
    let written = fs::create_dir_all(folder).and_then(|()| write_page_and_below(&command, folder));
    written.map_err(|error| {
        Failure::text(
            Exit::Failure,
            format!("cannot write the manual pages into {}: {error}", folder.display()),
        )
    })
}

fn write_page_and_below(command: &Command, folder: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_page_and_below(below, folder)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    fs::write(folder.join(format!("{name}.1")), page(command.clone())?)
}

/// A page in roff. What stands below the options in the help keeps its lines.
fn page(command: Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    let text = String::from_utf8(page).map_err(io::Error::other)?;
    let text = text.replacen("\n.SH EXTRA\n", "\n.SH NOTES\n.nf\n", 1);
    Ok(text.replacen("\n.SH VERSION\n", "\n.fi\n.SH VERSION\n", 1).into_bytes())
}

/// Writes to standard output; a reader that has gone away is no failure.
fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(Exit::Failure, error)),
        _ => Ok(()),
    }
}
