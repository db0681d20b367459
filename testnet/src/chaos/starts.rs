//! First starts that a full disk or a kill interrupts; the second start must work.

use std::path::Path;

use super::{
    call::{Conditions, ProgramRunner},
    plan::{FirstCommand, Interruption},
    report::{FindingKind, TrialFindings},
    world::{TrialWorld, relayer_args},
};
use crate::process::Process;

impl Interruption {
    fn conditions(self) -> Conditions {
        match self {
            Self::FullDisk => Conditions::full_disk(),
            Self::Kill { after_ms } => Conditions::killed_after(Some(after_ms)),
        }
    }
}

/// Interrupts a home's first turn; the second turn must succeed.
pub(super) async fn first_chat(world: &mut TrialWorld, how: Interruption) -> anyhow::Result<()> {
    let mut device = world.device();
    world.say(&mut device, &[], how.conditions()).await?;
    if world.say_surely(&mut device).await? {
        world.check(&device).await?;
    }
    Ok(())
}

/// Interrupts the command that creates a program's folder. After a second run, the program must work.
pub(super) async fn first_start(
    folder: &Path,
    command: FirstCommand,
    how: Interruption,
) -> anyhow::Result<TrialFindings> {
    let mut findings = TrialFindings::default();
    let runner = ProgramRunner::new(folder);
    let data = folder.join("data");
    let text = data.to_string_lossy();
    let (program, make) = match command {
        // `first_chat` covers the home with a session.
        FirstCommand::Chat | FirstCommand::Account => ("baton", vec!["account", "new", "--home", &text]),
        FirstCommand::Node => ("baton-node", vec!["init", "--data-dir", &text]),
        FirstCommand::Relayer => ("baton-relayer", vec!["init", "--data-dir", &text]),
    };
    findings.inspect(&runner.call(program, &make, how.conditions()).await?);
    let second = runner.call(program, &make, Conditions::default()).await?;
    findings.inspect(&second);
    let works = match command {
        FirstCommand::Chat | FirstCommand::Account => {
            let show = ["account", "--home", &text];
            let shown = runner.call(program, &show, Conditions::default()).await?;
            findings.inspect(&shown);
            if shown.is_ok() { Ok(()) } else { Err(shown.brief()) }
        }
        FirstCommand::Node => {
            let run = ["run", "--json", "--data-dir", &text, "--engine", "echo", "--mdns", "false"];
            let run = [&run[..], &["--listen", "/ip4/127.0.0.1/tcp/0", "--admin", "none"]].concat();
            starts(folder, program, &run).await
        }
        FirstCommand::Relayer => {
            let args = relayer_args(&data, 0);
            starts(folder, program, &args.iter().map(String::as_str).collect::<Vec<_>>()).await
        }
    };
    if let Err(refused) = works {
        let what = format!("after {how:?} of the first start: {refused}; {}", second.brief());
        findings.found(FindingKind::Unserved, &what);
    }
    findings.search_logs(folder);
    Ok(findings)
}

/// Starts a program and waits until it is ready.
async fn starts(folder: &Path, program: &str, args: &[&str]) -> Result<(), String> {
    let run = async { Process::start("first", program, args, folder).await?.kill().await };
    run.await.map_err(|error| format!("{error:#}"))
}
