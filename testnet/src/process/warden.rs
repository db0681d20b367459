//! The warden: a process that kills the children of a network whose own process was killed.
//!
//! A signal that can be caught ends a command in good order, and dropped children are killed. Of `kill -9` nothing in the
//! dying process learns; so the warden, `baton-testnet warden`, reads from a pipe which children there are, and kills
//! those that are left when the pipe ends. It has a process group of its own, and ends with the process that started it.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    process::{ChildStdin, Command, ExitCode, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;

/// The pipe to the warden of this process, once it was started.
static PIPE: Mutex<Option<ChildStdin>> = Mutex::new(None);

/// A child that the warden knows of, until it is dropped.
#[derive(Debug)]
pub(crate) struct Ward {
    pid: u32,
}

impl Ward {
    /// Puts a running child under the warden, which is started if there is none.
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
            // Without a warden there is nobody who must be told.
            let _ = writeln!(pipe, "-{}", self.pid);
        }
    }
}

fn pipe() -> MutexGuard<'static, Option<ChildStdin>> {
    PIPE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start() -> anyhow::Result<ChildStdin> {
    let mut command = Command::new(super::sibling("baton-testnet")?);
    command.arg("warden").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let warden = command.process_group(0).spawn().context("cannot start the warden of the processes")?;
    warden.stdin.context("the warden's input is piped")
}

/// The warden itself: reads until the pipe ends, then kills who is left.
pub(crate) fn run() -> ExitCode {
    let lines = BufReader::new(std::io::stdin()).lines().map_while(Result::ok);
    for pid in left(lines) {
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    ExitCode::SUCCESS
}

/// Who was announced with `+` and not taken back with `-`. Other lines say nothing.
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
    fn those_are_left_who_came_and_did_not_go() {
        let lines = ["+10", "+11", "-10", "+12", "x", "+", "+-3", "+99999999999", "*13", "-14", "+11"];
        assert_eq!(left(lines.into_iter().map(str::to_owned)), BTreeSet::from([11, 12]));
    }
}
