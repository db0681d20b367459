//! One child process of the test network: started with `--json`, watched by its event lines, stopped or killed.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    sync::mpsc,
    time::timeout,
};

/// Event lines not yet looked at. A process of ours prints a handful; the reader drops none below this.
const EVENT_QUEUE: usize = 64;
/// How long a process may take to say it is ready: a node loads its model first.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// A running child that prints one JSON event a line.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    events: mpsc::Receiver<Value>,
    log: PathBuf,
    /// What it said when it was ready.
    pub ready: Value,
}

impl Process {
    /// Starts a program of this project, found beside this one, and waits until it says that it is ready.
    ///
    /// # Errors
    /// What went wrong, with the process's last log lines where it has any.
    pub async fn start(name: &str, program: &str, args: &[String], folder: &Path) -> anyhow::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let stderr = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let path = sibling(program)?;
        let mut child = Command::new(&path)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", path.display()))?;
        let stdout = child.stdout.take().context("the child's output is piped")?;
        let (sender, events) = mpsc::channel(EVENT_QUEUE);
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let Ok(event) = serde_json::from_str(&line) else { continue };
                if sender.send(event).await.is_err() {
                    break;
                }
            }
        });
        let mut process = Self { name: name.to_owned(), child, events, log, ready: Value::Null };
        process.ready = process.wait_event("ready", READY_TIMEOUT).await?;
        Ok(process)
    }

    /// The next event of a kind; others before it are skipped.
    ///
    /// # Errors
    /// What went wrong, with the process's last log lines where it has any.
    pub async fn wait_event(&mut self, kind: &str, within: Duration) -> anyhow::Result<Value> {
        let wanted = async {
            loop {
                match self.events.recv().await {
                    Some(event) if event["event"] == kind => return Some(event),
                    Some(_) => {}
                    None => return None,
                }
            }
        };
        match timeout(within, wanted).await {
            Ok(Some(event)) => Ok(event),
            Ok(None) => bail!("{} ended before it was {kind}: {}", self.name, self.last_log_lines()),
            Err(_) => bail!("{} was not {kind} within {within:?}: {}", self.name, self.last_log_lines()),
        }
    }

    /// `kill -9`, and waits until the process is gone.
    ///
    /// # Errors
    /// What went wrong, with the process's last log lines where it has any.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.with_context(|| format!("cannot kill {}", self.name))
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// What went wrong, with the process's last log lines where it has any.
    pub async fn terminate(&mut self) -> anyhow::Result<()> {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) else { return Ok(()) };
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .with_context(|| format!("cannot stop {}", self.name))?;
        match timeout(Duration::from_secs(40), self.child.wait()).await {
            Ok(status) => {
                let status = status?;
                if status.success() { Ok(()) } else { bail!("{} ended with {status}", self.name) }
            }
            Err(_) => bail!("{} did not stop within 40 s of SIGTERM", self.name),
        }
    }

    /// The process id, while it runs.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    fn last_log_lines(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        if lines.is_empty() {
            return "it logged nothing".to_owned();
        }
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

/// A program of this project, in the folder of the running one (or its parent, for test binaries).
///
/// # Errors
/// That it is not there, and how to build it.
pub fn sibling(program: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own path")?;
    let folders = own.ancestors().skip(1).take(2);
    for folder in folders {
        let candidate = folder.join(program);
        if candidate.is_file() {
            return Ok(candidate);
        }
    }
    bail!("{program} is not beside {}: build it with `cargo build --bins`", own.display())
}
