//! The warden: a process that kills a network's children after the network's own process was killed.
//!
//! After a catchable signal, a command ends in order and kills its dropped children. `kill -9` gives the
//! dying process no such chance. The warden, `baton-testnet warden`, therefore reads the list of children
//! from a pipe, and kills the remaining ones when the pipe ends. It has its own process group, and ends with
//! the process that started it.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    process::{ChildStdin, Command, ExitCode, Stdio},
};

use anyhow::Context as _;
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;

/// The pipe to this process's warden, once it was started.
static PIPE: Mutex<Option<ChildStdin>> = Mutex::new(None);

/// A child registered with the warden until this value is dropped.
#[derive(Debug)]
pub(crate) struct Ward {
    pid: u32,
}

impl Ward {
    /// Registers a running child with the warden, and starts the warden if necessary.
    ///
    /// # Errors
    /// When the warden cannot be started.
    pub(crate) fn of(child: &Child) -> anyhow::Result<Self> {
        let pid = child.id().context("the child has ended already")?;
        let mut pipe = pipe();
        let pipe = match &mut *pipe {
            Some(pipe) => pipe,
            none => none.insert(start()?),
        };
        writeln!(pipe, "+{pid}").context("the warden of the processes is gone")?;
        Ok(Self { pid })
    }
}

impl Drop for Ward {
    fn drop(&mut self) {
        if let Some(pipe) = &mut *pipe() {
            // Without a warden, no process needs the message.
            let _ = writeln!(pipe, "-{}", self.pid);
        }
    }
}

fn pipe() -> MutexGuard<'static, Option<ChildStdin>> {
    PIPE.lock()
}

fn start() -> anyhow::Result<ChildStdin> {
    let mut command = Command::new(super::sibling("baton-testnet")?);
    command.arg("warden").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let warden = command.process_group(0).spawn().context("cannot start the warden of the processes")?;
    warden.stdin.context("the warden's input is piped")
}

/// The warden process: it reads until the pipe ends, then kills the remaining children.
pub(crate) fn run() -> ExitCode {
    let lines = BufReader::new(std::io::stdin()).lines().map_while(Result::ok);
    for pid in left(lines) {
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    ExitCode::SUCCESS
}

/// The processes announced with `+` and not withdrawn with `-`. Other lines are ignored.
fn left(lines: impl Iterator<Item = String>) -> BTreeSet<i32> {
    let mut pids = BTreeSet::new();
    for line in lines {
        let number = line.get(1..).and_then(|digits| digits.parse::<u32>().ok());
        let Some(pid) = number.and_then(|number| i32::try_from(number).ok()) else { continue };
        match line.chars().next() {
            Some('+') => drop(pids.insert(pid)),
            Some('-') => drop(pids.remove(&pid)),
            _ => {}
        }
    }
    pids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_processes_stay_until_they_are_withdrawn() {
        let lines = ["+10", "+11", "-10", "+12", "x", "+", "+-3", "+99999999999", "*13", "-14", "+11"];
        assert_eq!(left(lines.into_iter().map(str::to_owned)), BTreeSet::from([11, 12]));
    }
}
