//! Runs of programs that end by themselves, with a time limit. The plan may kill them; their output is
//! recorded.

use std::{
    io::Write as _,
    path::Path,
    process::ExitStatus,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    time::timeout,
};

use super::plan::Kill;
use crate::process::{self, DiskSpace};

/// A longer call counts as a hang.
pub(super) const HANG: Duration = Duration::from_secs(30);
/// A hanging call is killed after this time.
const GIVE_UP: Duration = Duration::from_secs(90);
/// Exit code of a Rust program whose main thread panicked.
const PANIC_CODE: i32 = 101;
/// Environment variables that calls inherit. Others are cleared, since the user's settings would change the
/// results.
const PASSED_ON: [&str; 5] = ["PATH", "TMPDIR", "LD_LIBRARY_PATH", "RUST_BACKTRACE", "LLVM_PROFILE_FILE"];

/// Conditions of a call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Conditions {
    pub(super) disk: DiskSpace,
    /// `kill -9` after this time, if it still runs.
    pub(super) kill_after: Option<Duration>,
}

impl Conditions {
    pub(super) fn killed(kill: Option<Kill>) -> Self {
        Self { kill_after: kill.map(|kill| Duration::from_millis(kill.after_ms)), ..Self::default() }
    }

    pub(super) fn full_disk() -> Self {
        Self { disk: DiskSpace::Full, ..Self::default() }
    }
}

/// The result of a call.
#[derive(Clone, Debug)]
pub(super) struct CallOutcome {
    /// The call, for messages.
    what: String,
    status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) took: Duration,
}

impl CallOutcome {
    /// Whether it ended with code 0.
    pub(super) fn is_ok(&self) -> bool {
        self.status.success()
    }

    /// A value if it ended with code 0, else the outcome.
    pub(super) fn or_failed<T>(self, value: T) -> Result<T, Self> {
        if self.is_ok() { Ok(value) } else { Err(self) }
    }

    pub(super) fn has_panicked(&self) -> bool {
        self.status.code() == Some(PANIC_CODE) || self.stderr.contains("panicked at")
    }

    /// The last line of standard output that is JSON.
    pub(super) fn json(&self) -> Option<Value> {
        self.stdout.lines().rev().find_map(|line| serde_json::from_str(line).ok())
    }

    /// A one-line description, for a finding.
    pub(super) fn brief(&self) -> String {
        let lines: Vec<&str> = self.stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = lines.get(lines.len().saturating_sub(3)..).unwrap_or_default().join(" | ");
        format!("{} ended with {} after {:.1} s: {last}", self.what, self.status, self.took.as_secs_f64())
    }
}

/// Runs a program to its end, and records its output in a folder.
///
/// # Errors
/// When it cannot be started.
pub(super) async fn call(
    folder: &Path,
    program: &str,
    args: &[&str],
    conditions: Conditions,
) -> anyhow::Result<CallOutcome> {
    let mut command = process::command(program, args, conditions.disk)?;
    command.env_clear().env("HOME", folder);
    command.envs(PASSED_ON.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    let began = Instant::now();
    let (mut child, _watcher) = process::spawn(command)?;
    let stdout = tokio::spawn(read_all(child.stdout.take().context("the output is piped")?));
    let stderr = tokio::spawn(read_all(child.stderr.take().context("the errors are piped")?));
    let limit = conditions.kill_after.unwrap_or(GIVE_UP);
    let status = match timeout(limit, child.wait()).await {
        Ok(status) => status?,
        Err(_) => {
            child.start_kill()?;
            child.wait().await?
        }
    };
    let (stdout, stderr, took) = (stdout.await?, stderr.await?, began.elapsed());
    let path = folder.join("calls.log");
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path)?;
    let seconds = took.as_secs_f64();
    writeln!(file, "== {program} {}: {status}, {seconds:.1} s\n{stdout}{stderr}", args.join(" "))
        .with_context(|| format!("cannot write {}", path.display()))?;
    // The words of the command; all are in the log.
    let what = [&[program][..], args.get(..2).unwrap_or(args)].concat().join(" ");
    Ok(CallOutcome { what, status, stdout, stderr, took })
}

async fn read_all(mut pipe: impl AsyncRead + Unpin) -> String {
    let mut bytes = Vec::new();
    // An error ends the output; the bytes before it count.
    let _ = pipe.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}
