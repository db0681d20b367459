//! One child process of the test network: started with `--json`, watched by its event lines, stopped or
//! killed.
//!
//! No child outlives this process: dropping a [`Process`] kills it. A watcher beside each child, a shell, kills the
//! child after `kill -9` of this process. A limit on file sizes can simulate a full disk for each child.

use std::{
    ffi::OsStr,
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, BufReader},
    process::{Child, ChildStdout, Command},
    sync::mpsc,
    time::timeout,
};

/// Event lines waiting to be read. Our processes print a handful, so the reader drops none.
const EVENT_QUEUE: usize = 64;
/// Linux counts processor time in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;
/// Time for a process to become ready: a node loads its model first.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a program in place of the shell. Its watcher waits for a line, or kills the program if the pipe ends without one.
/// A write beyond the file size limit becomes an error, as on a full disk, instead of a fatal signal.
const LAUNCH: &str = "exec 3<&0; { read -r _ <&3 || kill -9 $$; } >/dev/null 2>&1 &\n\
                      trap '' XFSZ; $1; shift; exec \"$@\" </dev/null 3<&-";
/// The command in [`LAUNCH`] that fills the disk before the first write. The hard limit stays, so that space can be freed.
const FILL_DISK: &str = "ulimit -S -f 0";

/// The simulated state of a program's disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskSpace {
    /// It has space.
    #[default]
    Roomy,
    /// It has no space: every write to a file fails with EFBIG. Empty files can be created, as on a full
    /// disk.
    Full,
}

/// A running child that prints one JSON event a line.
#[derive(Debug)]
pub struct Process {
    name: String,
    // Fields drop in order: the child is killed before its watcher ends.
    child: Child,
    _watcher: Watcher,
    events: mpsc::Receiver<Value>,
    log: PathBuf,
    /// The event that it printed when ready.
    pub ready: Value,
}

impl Process {
    /// Starts a program of this project, from this program's folder, and waits until it is ready.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn start(
        name: &str,
        program: &str,
        args: &[impl AsRef<OsStr>],
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log);
        let file = file.with_context(|| format!("cannot write {}", log.display()))?;
        let (mut child, watcher) = spawn(command(program, args, DiskSpace::Roomy)?)?;
        let stdout = child.stdout.take().context("the child's output is piped")?;
        let stderr = child.stderr.take().context("the child's log is piped")?;
        tokio::spawn(keep_log(stderr, tokio::fs::File::from_std(file)));
        let events = read_events(stdout);
        let mut process =
            Self { name: name.to_owned(), child, _watcher: watcher, events, log, ready: Value::Null };
        process.ready = process.wait_event("ready", READY_TIMEOUT).await?;
        Ok(process)
    }

    /// The next event of a kind; earlier events of other kinds are skipped.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
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

    /// Kills the process with `kill -9`, and waits until it is gone.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.with_context(|| format!("cannot kill {}", self.name))
    }

    /// Sends SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// The failure, with the process's last log lines if it has any.
    pub async fn terminate(&mut self) -> anyhow::Result<()> {
        let Some(pid) = self.pid() else { return Ok(()) };
        kill_process(pid, Signal::TERM).with_context(|| format!("cannot stop {}", self.name))?;
        match timeout(Duration::from_secs(40), self.child.wait()).await {
            Ok(status) => {
                let status = status?;
                if status.success() { Ok(()) } else { bail!("{} ended with {status}", self.name) }
            }
            Err(_) => bail!("{} did not stop within 40 s of SIGTERM", self.name),
        }
    }

    /// Fills or frees the process's simulated disk.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn set_disk(&self, disk: DiskSpace) -> anyhow::Result<()> {
        let pid = self.pid().with_context(|| format!("{} has ended", self.name))?;
        let roomy = getrlimit(Resource::Fsize);
        let limit = match disk {
            DiskSpace::Roomy => roomy,
            DiskSpace::Full => Rlimit { current: Some(0), ..roomy },
        };
        prlimit(Some(pid), Resource::Fsize, limit)
            .with_context(|| format!("cannot change the space of {}", self.name))?;
        Ok(())
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()?).ok()?)
    }

    /// Whether it ended by itself.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// The process ID, while it runs.
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

/// A command for a program of this project. Its outputs are pipes, since a write to a log on the child's full
/// disk would fail.
///
/// # Errors
/// When the program does not exist.
pub(crate) fn command(program: &str, args: &[impl AsRef<OsStr>], disk: DiskSpace) -> anyhow::Result<Command> {
    let before = if disk == DiskSpace::Full { FILL_DISK } else { "true" };
    let mut command = Command::new("sh");
    command.args(["-c", LAUNCH, "sh", before]).arg(sibling(program)?).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A separate process group: a signal from the terminal reaches this process alone, which then stops the
    // child in order.
    command.process_group(0).kill_on_drop(true);
    Ok(command)
}

/// The pipe to a child's watcher. Dropping it tells the watcher that the child needs it no more.
#[derive(Debug)]
pub(crate) struct Watcher(File);

impl Drop for Watcher {
    fn drop(&mut self) {
        // A watcher that is gone needs no message.
        let _ = self.0.write_all(b"\n");
    }
}

/// Starts a command.
///
/// # Errors
/// When the child cannot be started.
pub(crate) fn spawn(mut command: Command) -> anyhow::Result<(Child, Watcher)> {
    let mut child = command.spawn().context("cannot start a program by `sh`")?;
    let pipe = child.stdin.take().context("the child's input is piped")?.into_owned_fd()?;
    Ok((child, Watcher(pipe.into())))
}

/// Writes a child's log output to its file, until it ends.
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

/// The path of a program of this project, in the folder of the running one (or its parent, for test
/// binaries).
///
/// # Errors
/// When the program does not exist; the error says how to build it.
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

/// Processor time of a process so far (fields 14 and 15 of `/proc/PID/stat`, counted after its name).
pub(crate) fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').context("a process has a name")?;
    let ticks = rest.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Ok(ticks.sum::<f64>() / TICKS_PER_SECOND)
}
