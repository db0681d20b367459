//! First starts that a full disk or a kill interrupts; the second start must work.

use std::{path::Path, time::Duration};

use super::{
    call::{Conditions, call},
    plan::Program,
    report::{FindingKind, TrialFindings},
    world::TrialWorld,
};
use crate::{draws::Draws, network::RelayerProcess, process::Process};

/// Latest kill after a program's first start.
const LATEST_KILL_MS: u64 = 80;

/// A full disk or a kill.
fn interruption(draws: &mut Draws) -> Conditions {
    let after_ms = draws.below(LATEST_KILL_MS);
    if draws.below(2) == 0 {
        return Conditions::full_disk();
    }
    Conditions { kill_after: Some(Duration::from_millis(after_ms)), ..Conditions::default() }
}

/// Interrupts a home's first turn; the second turn must succeed.
pub(super) async fn first_chat(world: &mut TrialWorld) -> anyhow::Result<()> {
    let mut device = world.device();
    let conditions = interruption(&mut world.draws);
    world.say(&mut device, &[], conditions).await?;
    if world.say_surely(&mut device).await? {
        world.check(&device).await?;
    }
    Ok(())
}

/// Interrupts the command that creates a program's folder, of a client its account. After a second run, the program must work.
pub(super) async fn first_start(
    folder: &Path,
    program: Program,
    draws: &mut Draws,
    findings: &mut TrialFindings,
) -> anyhow::Result<()> {
    let data = folder.join("relayer");
    let text = data.to_string_lossy();
    let (command, make) = match program {
        Program::Node => ("baton-node", vec!["init", "--data-dir", &text]),
        Program::Relayer => ("baton-relayer", vec!["init", "--data-dir", &text]),
        Program::Client | Program::Store => ("baton", vec!["account", "new", "--home", &text]),
    };
    let how = interruption(draws);
    findings.inspect(&call(folder, command, &make, how).await?);
    let second = call(folder, command, &make, Conditions::default()).await?;
    findings.inspect(&second);
    let works = match program {
        Program::Node => {
            let run = ["run", "--json", "--data-dir", &text, "--engine", "echo", "--mdns", "false"];
            let run = [&run[..], &["--listen", "/ip4/127.0.0.1/tcp/0", "--admin", "none"]].concat();
            Process::start("first", command, &run, folder).await.map(drop)
        }
        Program::Relayer => {
            let extra = ["--http", "127.0.0.1:0", "--embedder", "hashing"];
            RelayerProcess::start(folder, &[], &extra).await.map(drop)
        }
        Program::Client | Program::Store => {
            let shown = call(folder, command, &["account", "--home", &text], Conditions::default()).await?;
            findings.inspect(&shown);
            if shown.is_ok() { Ok(()) } else { Err(anyhow::Error::msg(shown.brief())) }
        }
    };
    if let Err(refused) = works {
        let what = format!("after {how:?} of the first start: {refused:#}; {}", second.brief());
        findings.found(FindingKind::Unserved, what);
    }
    Ok(())
}
