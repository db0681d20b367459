//! Full disks: for a while under a running program, and at a first start.
//!
//! A program need not work while its disk is full. Afterwards it works again by itself, or it reports itself
//! unhealthy and a restart fixes it.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use baton_walrus_client::http_client;
use tokio::time::Instant;

use super::{
    call::{Caller, Conditions},
    memories::{self, TrialMemory},
    plan::{FirstCommand, Interruption, Program},
    report::Findings,
    world::{Device, RECOVERY, World, find_panic, find_panics, inspect},
};
use crate::process::{Disk, Process};

/// Timeout of a health request.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(500);

/// The disk of client, node or store is full for one turn.
pub(super) async fn in_a_conversation(world: &mut World, program: Program) -> anyhow::Result<()> {
    let mut device = world.device();
    world.say_turns(&mut device, 2).await?;
    let conditions = if program == Program::Client { Conditions::full_disk() } else { Conditions::default() };
    set_disk(world, program, Disk::Full)?;
    world.say(&mut device, &[], conditions).await?;
    set_disk(world, program, Disk::Roomy)?;
    recover(world, &mut device, program).await?;
    world.say_surely(&mut device).await?;
    world.check(&device).await
}

fn set_disk(world: &World, program: Program, disk: Disk) -> anyhow::Result<()> {
    match program {
        Program::Node => {
            let node = world.network.running().next().context("the node runs")?;
            set_unless_ended(&node.process, disk)
        }
        Program::Store => {
            set_unless_ended(&world.network.store.as_ref().context("the store runs")?.process, disk)
        }
        Program::Client | Program::Relayer => Ok(()),
    }
}

/// A program may exit when its disk is full; then its disk needs no change.
fn set_unless_ended(process: &Process, disk: Disk) -> anyhow::Result<()> {
    match process.set_disk(disk) {
        Err(_) if disk == Disk::Roomy => Ok(()),
        set => set,
    }
}

/// Waits until the program works again, and restarts it if it reports itself unhealthy.
async fn recover(world: &mut World, device: &mut Device, program: Program) -> anyhow::Result<()> {
    let until = Instant::now() + RECOVERY;
    let refused = loop {
        let (works, answer) = match program {
            // A node serves turns without the store, so only verification shows if the store works.
            Program::Store => {
                let answer = world.clients().session(device, "verify", &["--full", "--fix"]).await?;
                // The time of a refusal does not count: a broken store is a finding below.
                find_panic(&mut world.findings, &answer);
                (answer.is_ok(), answer)
            }
            _ => world.say(device, &[], Conditions::default()).await?,
        };
        if works {
            return Ok(());
        }
        if Instant::now() >= until {
            break answer.brief();
        }
        tokio::time::sleep(PAUSE).await;
    };
    let is_named = match program {
        Program::Node => restart_node(world).await?,
        Program::Store => restart_store(world).await?,
        Program::Client | Program::Relayer => false,
    };
    if !is_named {
        let what = format!(
            "{program:?} did not work after its disk was freed, and its health said it did: {refused}"
        );
        world.findings.unserved(&what);
    }
    Ok(())
}

/// Restarts the node. Returns whether it had reported itself unhealthy.
async fn restart_node(world: &mut World) -> anyhow::Result<bool> {
    let Some(node) = world.network.nodes.first_mut().and_then(Option::as_mut) else { return Ok(true) };
    let admin = node.admin.clone().context("the node has an admin port")?;
    let is_named = node.process.has_ended() || !is_well(&format!("http://{admin}/readyz")).await;
    let id = node.node;
    world.network.kill_node(id).await?;
    world.start_node(&[]).await?;
    Ok(is_named)
}

/// Restarts the store. Returns whether it had reported itself unhealthy.
async fn restart_store(world: &mut World) -> anyhow::Result<bool> {
    let url = format!("{}/status", world.network.store_url());
    let Some(store) = &mut world.network.store else { return Ok(true) };
    let is_named = store.process.has_ended() || !is_well(&url).await;
    world.network.kill_store().await?;
    world.network.restart_store().await?;
    Ok(is_named)
}

/// Whether a program reports itself healthy: status 200, and any JSON `status` is `ok`.
async fn is_well(url: &str) -> bool {
    let Ok(client) = http_client::builder_for(url).timeout(HEALTH_TIMEOUT).build() else { return false };
    let Ok(answer) = client.get(url).send().await else { return false };
    if !answer.status().is_success() {
        return false;
    }
    let body: serde_json::Value = answer.json().await.unwrap_or_default();
    body["status"].as_str().is_none_or(|status| status == "ok")
}

/// Whether a relayer reports itself healthy; a missing endpoint counts as healthy.
async fn relayer_is_well(url: &str) -> bool {
    let Ok(client) = http_client::builder_for(url).timeout(HEALTH_TIMEOUT).build() else {
        return false;
    };
    let ready = client.get(format!("{url}/readyz")).send().await;
    let is_unready = ready.is_ok_and(|answer| answer.status().is_server_error());
    !is_unready && is_well(&format!("{url}/health")).await
}

/// The relayer's disk is full for two additions.
pub(super) async fn of_a_relayer(memories: &mut TrialMemory) -> anyhow::Result<()> {
    for _ in 0..2 {
        memories.add(None).await?;
    }
    memories.process.as_ref().context("the relayer runs")?.set_disk(Disk::Full)?;
    for _ in 0..2 {
        memories.add(None).await?;
    }
    set_unless_ended(memories.process.as_ref().context("the relayer runs")?, Disk::Roomy)?;
    if let Err(answer) = memories.add_surely().await? {
        let process = memories.process.as_mut().context("the relayer runs")?;
        let is_named = process.has_ended() || !relayer_is_well(&memories.url()).await;
        if !is_named {
            let refused = answer.brief();
            memories.findings.unserved(&format!(
                "the relayer did not work after its disk was freed, and its health said it did: {refused}"
            ));
        }
        let mut process = memories.process.take().context("the relayer runs")?;
        process.kill().await?;
        memories.run().await?;
        if let Err(answer) = memories.add_surely().await? {
            memories.findings.unserved(&answer.brief());
        }
    }
    memories.check().await
}

impl Interruption {
    fn conditions(self) -> Conditions {
        match self {
            Self::FullDisk => Conditions::full_disk(),
            Self::Kill { after_ms } => Conditions::killed_after(Some(after_ms)),
        }
    }
}

/// Interrupts a home's first turn; the second turn must succeed.
pub(super) async fn first_chat(world: &mut World, how: Interruption) -> anyhow::Result<()> {
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
) -> anyhow::Result<Findings> {
    let mut findings = Findings::default();
    let caller = Caller::new(folder);
    let data = folder.join("data");
    let text = data.to_string_lossy();
    let (program, make): (&str, Vec<&str>) = match command {
        // `first_chat` covers the home with a session.
        FirstCommand::Chat | FirstCommand::Account => ("baton", vec!["account", "new", "--home", &text]),
        FirstCommand::Node => ("baton-node", vec!["init", "--data-dir", &text]),
        FirstCommand::Relayer => ("baton-relayer", vec!["init", "--data-dir", &text]),
    };
    let make: Vec<String> = make.into_iter().map(str::to_owned).collect();
    let first = caller.call(program, &make, how.conditions()).await?;
    let second = caller.call(program, &make, Conditions::default()).await?;
    inspect(&mut findings, &first);
    inspect(&mut findings, &second);
    let works = match command {
        FirstCommand::Chat | FirstCommand::Account => {
            let show = ["account", "show", "--home", &text].map(str::to_owned);
            let shown = caller.call("baton", &show, Conditions::default()).await?;
            inspect(&mut findings, &shown);
            if shown.is_ok() { Ok(()) } else { Err(shown.brief()) }
        }
        FirstCommand::Node => starts(folder, "baton-node", &node_args(&data)).await,
        FirstCommand::Relayer => starts(folder, "baton-relayer", &memories::run_args(&data, 0)).await,
    };
    if let Err(refused) = works {
        findings.unserved(&format!("after {how:?} of the first start: {refused}; {}", second.brief()));
    }
    find_panics(folder, &mut findings);
    Ok(findings)
}

fn node_args(data: &Path) -> Vec<String> {
    let data = data.to_string_lossy();
    let args = [
        "run",
        "--json",
        "--data-dir",
        &data,
        "--engine",
        "echo",
        "--listen",
        "/ip4/127.0.0.1/tcp/0",
        "--mdns",
        "false",
        "--admin",
        "none",
    ];
    args.map(str::to_owned).to_vec()
}

/// Starts a program and waits until it is ready.
async fn starts(folder: &Path, program: &str, args: &[String]) -> Result<(), String> {
    let run = async { Process::start("first", program, args, folder).await?.kill().await };
    run.await.map_err(|error| format!("{error:#}"))
}
