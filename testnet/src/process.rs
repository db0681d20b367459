//! One child process of the test network: started with `--json`, watched by its event lines, stopped or killed.
//!
//! No child outlives this process: a dropped [`Process`] is killed, and [`warden`] kills what a death of this process
//! itself leaves behind. Each child can be shown a full disk, by a limit on the sizes of its files.

pub mod warden;

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail};
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, BufReader},
    process::{Child, ChildStdout, Command},
    sync::mpsc,
    time::timeout,
};
use warden::Ward;

/// Event lines not yet looked at. A process of ours prints a handful; the reader drops none below this.
const EVENT_QUEUE: usize = 64;
/// How long a process may take to say it is ready: a node loads its model first.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// A write beyond the limit on file sizes is an error then, as on a full disk, and not the end of the process.
const IGNORE_SIGXFSZ: &str = "trap '' XFSZ; exec \"$@\"";
/// The same, with the disk full from the first write on. The hard limit stays, so that space can be freed.
const START_ON_FULL_DISK: &str = "trap '' XFSZ; ulimit -S -f 0; exec \"$@\"";

/// What a program finds on its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disk {
    /// Space.
    #[default]
    Roomy,
    /// No space: every write to a file fails with EFBIG. Empty files can be made, as on a disk that is full.
    Full,
}

/// A running child that prints one JSON event a line.
#[derive(Debug)]
pub struct Process {
    name: String,
    // Fields are dropped in order: the child is killed before the warden forgets it.
    child: Child,
    _ward: Ward,
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
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log);
        let file = file.with_context(|| format!("cannot write {}", log.display()))?;
        let (mut child, ward) = spawn(command(program, args, Disk::Roomy)?)?;
        let stdout = child.stdout.take().context("the child's output is piped")?;
        let stderr = child.stderr.take().context("the child's log is piped")?;
        tokio::spawn(keep_log(stderr, tokio::fs::File::from_std(file)));
        let events = read_events(stdout);
        let mut process = Self { name: name.to_owned(), child, _ward: ward, events, log, ready: Value::Null };
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

    /// Takes the space of the process's disk away, or gives it back.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn set_disk(&self, disk: Disk) -> anyhow::Result<()> {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(rustix::process::Pid::from_raw);
        let pid = pid.with_context(|| format!("{} has ended", self.name))?;
        let roomy = getrlimit(Resource::Fsize);
        let limit = match disk {
            Disk::Roomy => roomy,
            Disk::Full => Rlimit { current: Some(0), ..roomy },
        };
        prlimit(Some(pid), Resource::Fsize, limit)
            .with_context(|| format!("cannot change the space of {}", self.name))?;
        Ok(())
    }

    /// Whether it ended by itself.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
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

/// A call of a program of this project, with its outputs in pipes: a log on the child's full disk would be its end.
///
/// # Errors
/// That the program is not there.
pub(crate) fn command(program: &str, args: &[String], disk: Disk) -> anyhow::Result<Command> {
    let script = match disk {
        Disk::Roomy => IGNORE_SIGXFSZ,
        Disk::Full => START_ON_FULL_DISK,
    };
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(sibling(program)?).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Of its own group: what a terminal sends ends this process, which then ends the child in good order.
    command.process_group(0).kill_on_drop(true);
    Ok(command)
}

/// Starts it, and puts it under the warden.
///
/// # Errors
/// When it or the warden cannot be started.
pub(crate) fn spawn(mut command: Command) -> anyhow::Result<(Child, Ward)> {
    let child = command.spawn().context("cannot start a program by `sh`")?;
    let ward = Ward::of(&child)?;
    Ok((child, ward))
}

/// Writes what a child logs to its file, until it ends.
async fn keep_log(mut stderr: impl AsyncRead + Unpin, mut file: tokio::fs::File) {
    if let Err(error) = tokio::io::copy(&mut stderr, &mut file).await {
        tracing::warn!(%error, "a child's log cannot be written");
    }
}

fn read_events(stdout: ChildStdout) -> mpsc::Receiver<Value> {
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
    events
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
