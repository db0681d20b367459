//! `kill -9` at random moments: of client, node and store, of the relayer, and of two devices that write
//! concurrently.

use std::{collections::BTreeSet, time::Duration};

use anyhow::Context as _;
use baton_proto::ids::BlobId;

use super::{
    call::Conditions,
    memories::TrialMemory,
    plan::{Kill, Program},
    world::{Device, World},
};
use crate::network::Network;

/// How often two devices synchronise before their heads must be equal.
const STEPS: usize = 4;

/// A conversation with a kill in most turns.
pub(super) async fn kills(world: &mut World, turns: &[Option<Kill>]) -> anyhow::Result<()> {
    let mut device = world.device();
    world.say_turns(&mut device, 1).await?;
    let mut served = BTreeSet::new();
    for kill in turns {
        turn(world, &mut device, *kill).await?;
        find_deleted(world, &mut served).await?;
    }
    node_alone(world, &mut device, &mut served).await?;
    world.say_surely(&mut device).await?;
    world.check(&device).await
}

/// Counts blobs that the store served before and serves no more. A list alone may name files that are gone.
async fn find_deleted(world: &mut World, served: &mut BTreeSet<BlobId>) -> anyhow::Result<()> {
    let mut left = BTreeSet::new();
    for id in world.network.list_blobs().await? {
        if world.network.read_blob(id).await.is_ok() {
            left.insert(id);
        }
    }
    let deleted = served.difference(&left).count() as u64;
    world.findings.lost(deleted, &format!("the store serves {deleted} of its blobs no more"));
    *served = left;
    Ok(())
}

/// A turn while the store is down, then a kill of the node. The node alone must store the turn that it signed.
async fn node_alone(
    world: &mut World,
    device: &mut Device,
    served: &mut BTreeSet<BlobId>,
) -> anyhow::Result<()> {
    world.network.stop_store().await?;
    let (acknowledged, _) = world.say(device, &[], Conditions::default()).await?;
    let newest = if acknowledged { Some(world.newest_blob(device).await?) } else { None };
    let node = world.network.running().next().map(|node| node.node).context("the node runs")?;
    world.network.kill_node(node).await?;
    world.network.restart_store().await?;
    // Now, when neither the node nor the device can put a blob back.
    find_deleted(world, served).await?;
    world.start_node(&[]).await?;
    if let Some(newest) = newest
        && !world.await_blob(newest).await?
    {
        world.findings.lost(1, "the node did not store a turn that it had signed before it was killed");
    }
    Ok(())
}

/// Runs one turn, perhaps with a kill.
async fn turn(world: &mut World, device: &mut Device, kill: Option<Kill>) -> anyhow::Result<()> {
    let text = world.next_text(device);
    let clients = world.clients();
    let own = kill.filter(|kill| kill.program == Program::Client).map(|kill| kill.after_ms);
    let chatting = clients.chat(device, &text, &[], Conditions::killed_after(own));
    let (answer, killed) = tokio::join!(chatting, kill_and_start(&mut world.network, kill));
    killed?;
    world.take(device, &text, &answer?);
    Ok(())
}

/// Kills the node or the store after a while, and restarts it.
async fn kill_and_start(network: &mut Network, kill: Option<Kill>) -> anyhow::Result<()> {
    let Some(Kill { program, after_ms }) = kill else { return Ok(()) };
    tokio::time::sleep(Duration::from_millis(after_ms)).await;
    match program {
        Program::Node => {
            let node = network.running().next().map(|node| node.node).context("the node runs")?;
            network.kill_node(node).await?;
            network.start_node(0, &[]).await?;
        }
        Program::Store => {
            network.kill_store().await?;
            network.restart_store().await?;
        }
        Program::Client | Program::Relayer => {}
    }
    Ok(())
}

/// Additions to memory, most with a kill of the relayer.
pub(super) async fn kill_relayer(
    memories: &mut TrialMemory,
    additions: &[Option<u64>],
) -> anyhow::Result<()> {
    for kill_after_ms in additions {
        memories.add(*kill_after_ms).await?;
    }
    if let Err(answer) = memories.add_surely().await? {
        memories.findings.unserved(&answer.brief());
    }
    memories.check().await
}

/// Two devices write concurrently and are killed meanwhile. Then both synchronise, and a third device is
/// restored from the words alone.
pub(super) async fn two_devices(world: &mut World, rounds: &[[Option<u64>; 2]]) -> anyhow::Result<()> {
    let mut first = world.device();
    world.say_turns(&mut first, 1).await?;
    world.settle(&first).await?;
    let words = world.words(&first).await?;
    let restored = world.restore(&words, &first).await?;
    let mut second = restored.context("a second device has the session")?.in_lane(1);
    for [first_ms, second_ms] in rounds {
        let texts = [world.next_text(&first), world.next_text(&second)];
        let clients = world.clients();
        let (one, other) = tokio::join!(
            clients.chat(&first, &texts[0], &[], Conditions::killed_after(*first_ms)),
            clients.chat(&second, &texts[1], &[], Conditions::killed_after(*second_ms)),
        );
        world.take(&mut first, &texts[0], &one?);
        world.take(&mut second, &texts[1], &other?);
    }
    // Each device finishes its interrupted turns and merges those of the other device.
    for device in [&mut first, &mut second] {
        world.say_surely(device).await?;
        world.settle(device).await?;
    }
    come_into_step(world, [&first, &second]).await?;
    let (of_second, _) = world.history(&second).await?;
    let mut verdict = world.ledger.judge(&of_second);
    world.check(&first).await?;
    // Violations that the first device shows too are already counted.
    let (of_first, _) = world.history(&first).await?;
    let first_lacks = world.ledger.judge(&of_first);
    verdict.lost.retain(|text| !first_lacks.lost.contains(text));
    verdict.wrong.retain(|text| !first_lacks.wrong.contains(text));
    world.findings.judge(&verdict);
    Ok(())
}

/// Synchronises both devices until their heads are equal.
async fn come_into_step(world: &mut World, devices: [&Device; 2]) -> anyhow::Result<()> {
    let mut heads = [String::new(), String::new()];
    for _ in 0..STEPS {
        for (device, head) in devices.into_iter().zip(&mut heads) {
            world.settle(device).await?;
            *head = head_of(world, device).await?;
        }
        if heads[0] == heads[1] {
            return Ok(());
        }
    }
    world.findings.wrong(&format!("after {STEPS} times in step, two devices have the heads {heads:?}"));
    Ok(())
}

/// A device's head of its only session.
async fn head_of(world: &mut World, device: &Device) -> anyhow::Result<String> {
    let listed = world.clients().call(&device.home, &["session", "list"], Conditions::default()).await?;
    world.inspect(&listed);
    let sessions = listed.json().with_context(|| format!("no list: {}", listed.brief()))?;
    Ok(sessions["sessions"][0]["head"].as_str().unwrap_or("none").to_owned())
}
