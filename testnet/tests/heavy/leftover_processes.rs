//! Commands that start processes leave none behind: neither after SIGTERM or SIGINT, nor after `kill -9`.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use baton_testnet::process::sibling;
use rustix::process::{Pid, Signal, kill_process};

/// Time for the first processes to start.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for the command, and then all its processes, to end.
const END_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

/// Every command that starts processes, with arguments for a short run.
const COMMANDS: [&[&str]; 7] = [
    &["up", "--nodes", "1", "--engine", "echo"],
    &["demo", "--engine", "echo"],
    &["churn", "--nodes", "4", "--hostile", "1", "--clients", "2", "--seconds", "60"],
    &["flood", "--seconds", "60", "--rate", "50", "--subnets", "0", "--parts", "signed"],
    &["bench", "turn", "--model-turns", "0", "--turns", "100000", "--at", "10"],
    &["chaos", "--seeds", "1..50", "--only", "kills,kill-relayer", "--lanes", "2"],
    &["chaos", "--seeds", "1..50", "--only", "full-disk,older-home,damage-store", "--lanes", "3"],
];

/// Processes, by ID and command line, whose arguments or environment name the folder.
fn processes(folder: &Path) -> Vec<(i32, String)> {
    let wanted = folder.to_string_lossy().into_owned();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok());
    let text = |pid: i32, file: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    };
    pids.map(|pid| (pid, text(pid, "cmdline"), text(pid, "environ")))
        .filter(|(_, line, environment)| line.contains(&wanted) || environment.contains(&wanted))
        .map(|(pid, line, _)| (pid, line))
        .collect()
}

/// Runs a command with its own temporary folder, which identifies its processes.
fn start(words: &[&str], folder: &Path) -> Child {
    let mut command = Command::new(sibling("baton-testnet").unwrap());
    command.args(words).env("TMPDIR", folder).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(fs::File::create(folder.join("stderr.log")).unwrap()).spawn().unwrap()
}

fn wait_until(what: &str, timeout: Duration, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + timeout;
    while !holds() {
        assert!(Instant::now() < until, "not within {timeout:?}: {what}");
        std::thread::sleep(LOOK);
    }
}

/// Starts a command, waits for one of its programs, sends a signal, and searches for remaining processes.
fn check(words: &[&str], program: &str, signal: Signal) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = start(words, folder.path());
    let own = i32::try_from(command.id()).unwrap();
    let log = || fs::read_to_string(folder.path().join("stderr.log")).unwrap_or_default();
    wait_until(&format!("{words:?} starts {program}"), START_TIMEOUT, || {
        assert!(command.try_wait().unwrap().is_none(), "{words:?} ended by itself: {}", log());
        let mut others = processes(folder.path()).into_iter().filter(|(pid, _)| *pid != own);
        others.any(|(_, line)| line.contains(program))
    });
    kill_process(Pid::from_raw(own).unwrap(), signal).unwrap();
    wait_until(&format!("{words:?} ends"), END_TIMEOUT, || command.try_wait().unwrap().is_some());
    wait_until(&format!("nothing is left of {words:?}"), END_TIMEOUT, || {
        let left = processes(folder.path());
        if !left.is_empty() {
            eprintln!("{words:?}, {signal:?}: still there: {left:?}");
        }
        left.is_empty()
    });
}

#[test]
fn sigterm_leaves_no_process_behind() {
    let _guard = crate::blocking_whole_machine();
    std::thread::scope(|scope| {
        for words in COMMANDS {
            scope.spawn(|| check(words, "baton-node", Signal::TERM));
        }
    });
}

#[test]
fn sigterm_in_an_attack_leaves_no_attacker_behind() {
    let _guard = crate::blocking_whole_machine();
    let flood = ["flood", "--seconds", "2", "--rate", "50", "--subnets", "0", "--parts", "signed"];
    check(&flood, "flood-attack", Signal::TERM);
}

#[test]
fn ctrl_c_leaves_no_process_behind() {
    let _guard = crate::blocking_whole_machine();
    for words in [COMMANDS[0], COMMANDS[3]] {
        check(words, "baton-node", Signal::INT);
    }
}

#[test]
fn kill_9_leaves_no_process_behind() {
    let _guard = crate::blocking_whole_machine();
    for words in [COMMANDS[0], COMMANDS[3], COMMANDS[5]] {
        check(words, "baton-node", Signal::KILL);
    }
}
