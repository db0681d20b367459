//! `baton-node` as a separate process, with its own folders and without this machine's environment.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    thread::JoinHandle,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Far above any start on a busy machine; only a failure takes so long.
const PATIENCE: Duration = Duration::from_secs(120);

/// The program, with its own home.
pub(crate) fn baton_node(home: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton-node"));
    command.args(words).env_clear().env("HOME", home).env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    // Nodes of other networks on this machine are not found.
    command.env("BATON_NODE_MDNS", "false");
    command
}

/// Runs a command to its end.
pub(crate) fn output(home: &Path, words: &[&str]) -> Output {
    baton_node(home, words).output().unwrap()
}

/// Runs a command that prints JSON.
pub(crate) fn json(home: &Path, words: &[&str]) -> Value {
    let output = output(home, words);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a command that must fail, and returns its exit code and its error output.
pub(crate) fn failure(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "it was to fail: {}", text(&output.stdout));
    (output.status.code().unwrap(), text(&output.stderr))
}

/// A running node.
pub(crate) struct Node {
    child: Child,
    events: Receiver<Value>,
    log: Option<JoinHandle<String>>,
    pub ready: Value,
}

/// Arguments of a node without a model, on ports chosen by the system, with an unreachable store.
pub(crate) const ECHO: [&str; 12] = [
    "run",
    "--engine",
    "echo",
    "--listen",
    "/ip4/127.0.0.1/tcp/0",
    "--mdns",
    "false",
    "--admin",
    "127.0.0.1:0",
    "--publisher",
    "http://127.0.0.1:9",
    "--json",
];

impl Node {
    pub(crate) fn start(home: &Path, more: &[&str]) -> Self {
        let words: Vec<&str> = ECHO.iter().chain(more).copied().collect();
        Self::spawn(&mut baton_node(home, &words))
    }

    /// Starts the command and waits until the node serves.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, events) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines() {
                let event = serde_json::from_str(&line.unwrap()).expect("standard output holds events only");
                if sender.send(event).is_err() {
                    break;
                }
            }
        });
        let mut stderr = child.stderr.take().unwrap();
        let log = std::thread::spawn(move || {
            let mut log = String::new();
            stderr.read_to_string(&mut log).unwrap();
            log
        });
        let mut node = Self { child, events, log: Some(log), ready: Value::Null };
        node.ready = match node.events.recv_timeout(PATIENCE) {
            Ok(event) => event,
            Err(_) => panic!("the node did not start: {}", node.kill()),
        };
        assert_eq!(node.ready["event"], "ready");
        node
    }

    /// The next event.
    pub(crate) fn event(&self) -> Value {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    pub(crate) fn admin(&self) -> &str {
        self.ready["admin"].as_str().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end: exit code and log.
    pub(crate) fn wait(&mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        (status.code(), self.log.take().unwrap().join().unwrap())
    }

    /// Stops it as an operator would.
    pub(crate) fn stop(&mut self) -> (Option<i32>, String) {
        self.signal(Signal::TERM);
        assert_eq!(self.event()["event"], "stopped");
        self.wait()
    }

    fn kill(&mut self) -> String {
        let _ = self.child.kill();
        self.wait().1
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
