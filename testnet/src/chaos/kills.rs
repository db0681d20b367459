//! `kill -9` at random moments: of client, node and store, of the relayer, and of two devices that write
//! concurrently.

use std::collections::BTreeSet;

use anyhow::Context as _;
use baton_proto::ids::BlobId;

use super::{
    call::Conditions,
    plan::{Kill, Program},
    report::FindingKind,
    world::{ClientHome, TrialWorld},
};

/// Turns of a conversation with kills.
const TURNS: usize = 12;
/// Additions to memory with kills of the relayer.
const ADDITIONS: usize = 10;
/// Rounds in which two devices write concurrently.
const DEVICE_ROUNDS: usize = 4;
/// Latest kill after a turn's start. In this time, a client starts, finds its node, receives its answer and
/// stores it.
const LATEST_MS: u64 = 700;
/// Latest kill after the start of an addition to memory.
const LATEST_RELAYER_MS: u64 = 120;
/// How often two devices synchronise before their heads must be equal.
const STEPS: usize = 4;

/// Messages, most with a kill.
pub(super) async fn kills(world: &mut TrialWorld) -> anyhow::Result<()> {
    let mut device = world.device();
    if world.program == Program::Relayer {
        for _ in 0..ADDITIONS {
            let kill = Kill::draw(&mut world.draws, &[Program::Relayer], LATEST_RELAYER_MS);
            message(world, &mut device, kill).await?;
        }
    } else {
        world.say_turns(&mut device, 1).await?;
        let mut served = BTreeSet::new();
        for _ in 0..TURNS {
            let programs = [Program::Client, Program::Node, Program::Store];
            let kill = Kill::draw(&mut world.draws, &programs, LATEST_MS);
            message(world, &mut device, kill).await?;
            find_deleted(world, &mut served).await?;
        }
        node_alone(world, &mut device, &mut served).await?;
    }
    world.say_surely(&mut device).await?;
    world.check(&device).await
}

/// Counts blobs that the store served before and serves no more. A list alone may name files that are gone.
async fn find_deleted(world: &mut TrialWorld, served: &mut BTreeSet<BlobId>) -> anyhow::Result<()> {
    let mut left = BTreeSet::new();
    for id in world.network.list_blobs().await? {
        if world.network.read_blob(id).await.is_ok() {
            left.insert(id);
        }
    }
    let deleted = served.difference(&left).count();
    if deleted > 0 {
        world.findings.found(FindingKind::Lost, format!("the store serves {deleted} of its blobs no more"));
    }
    *served = left;
    Ok(())
}

/// A turn while the store is down, then a kill of the node. The node alone must store the turn that it signed.
async fn node_alone(
    world: &mut TrialWorld,
    device: &mut ClientHome,
    served: &mut BTreeSet<BlobId>,
) -> anyhow::Result<()> {
    world.stop(Program::Store).await?;
    let (acknowledged, _) = world.say(device, &[], Conditions::default()).await?;
    let newest = if acknowledged { Some(world.newest_blob(device).await?) } else { None };
    let node = world.network.running().next().map(|node| node.node).context("the node runs")?;
    world.network.kill_node(node).await?;
    world.start_again(Program::Store).await?;
    // Now, when neither the node nor the device can put a blob back.
    find_deleted(world, served).await?;
    world.start_again(Program::Node).await?;
    if let Some(newest) = newest
        && !world.await_blob(newest).await?
    {
        let what = "the node did not store a turn that it had signed before it was killed";
        world.findings.found(FindingKind::Lost, what);
    }
    Ok(())
}

/// Sends one message, perhaps with a kill.
async fn message(world: &mut TrialWorld, device: &mut ClientHome, kill: Option<Kill>) -> anyhow::Result<()> {
    let text = world.next_text(device);
    let clients = world.clients.clone();
    let own = kill.filter(|kill| kill.program == Program::Client);
    let saying = clients.say(device, &text, &[], Conditions::killed(own));
    let (outcome, killed) = tokio::join!(saying, world.kill(kill));
    killed?;
    world.took(device, &text, &outcome?);
    Ok(())
}

/// Two devices write concurrently and are killed meanwhile. Then both synchronise, and a third device is
/// restored from the words alone.
pub(super) async fn two_devices(world: &mut TrialWorld) -> anyhow::Result<()> {
    let mut first = world.device();
    world.say_turns(&mut first, 1).await?;
    world.settle(&first).await?;
    let words = world.words(&first).await?;
    let restored = world.restore(&words, &first).await?;
    let mut second = restored.context("a second device has the session")?.in_lane(1);
    for _ in 0..DEVICE_ROUNDS {
        let [one, other] = [(); 2].map(|()| Kill::draw(&mut world.draws, &[Program::Client], LATEST_MS));
        let texts = [world.next_text(&first), world.next_text(&second)];
        let clients = world.clients.clone();
        let (one, other) = tokio::join!(
            clients.say(&first, &texts[0], &[], Conditions::killed(one)),
            clients.say(&second, &texts[1], &[], Conditions::killed(other)),
        );
        world.took(&mut first, &texts[0], &one?);
        world.took(&mut second, &texts[1], &other?);
    }
    // Each device finishes its interrupted turns and merges those of the other device.
    for device in [&mut first, &mut second] {
        world.say_surely(device).await?;
        world.settle(device).await?;
    }
    come_into_step(world, [&first, &second]).await?;
    let (of_second, _) = world.history(&second).await?;
    let mut verdict = world.judge(&of_second);
    world.check(&first).await?;
    // Violations that the first device shows too are already counted.
    let (of_first, _) = world.history(&first).await?;
    let first_lacks = world.judge(&of_first);
    verdict.lost.retain(|text| !first_lacks.lost.contains(text));
    verdict.wrong.retain(|text| !first_lacks.wrong.contains(text));
    world.findings.judge(verdict);
    Ok(())
}

/// Synchronises both devices until their heads are equal.
async fn come_into_step(world: &mut TrialWorld, devices: [&ClientHome; 2]) -> anyhow::Result<()> {
    let mut heads = [String::new(), String::new()];
    for _ in 0..STEPS {
        for (device, head) in devices.into_iter().zip(&mut heads) {
            world.settle(device).await?;
            let listed = world.call(&device.home, &["session", "list"]).await?;
            let sessions = listed.json().with_context(|| format!("no list: {}", listed.brief()))?;
            sessions["sessions"][0]["head"].as_str().unwrap_or("none").clone_into(head);
        }
        if heads[0] == heads[1] {
            return Ok(());
        }
    }
    let what = format!("after {STEPS} times in step, two devices have the heads {heads:?}");
    world.findings.found(FindingKind::Wrong, what);
    Ok(())
}
