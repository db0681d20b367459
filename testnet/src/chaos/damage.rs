//! Damaged files of client, node, store and relayer: each is refused by name or does no harm, and is never
//! served as intact.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use super::{call::Conditions, files, memories::TrialMemory, plan::Damage, world::World};

/// Turns before the damage.
const TURNS: u64 = 3;
/// Turns before the store's damage; each leaves a blob there.
const STORE_TURNS: u64 = 5;
/// Additions to memory before the damage.
const ADDITIONS: usize = 5;

/// Warnings of a healthy test node, which has no peers and a test engine.
const USUAL: [&str; 2] = ["the echo engine repeats", "Failed to trigger bootstrap"];

/// A log from a position on: the output after a restart.
struct LogMark {
    file: PathBuf,
    from: usize,
}

impl LogMark {
    fn now(file: PathBuf) -> Self {
        let from = fs::read_to_string(&file).map_or(0, |text| text.len());
        Self { file, from }
    }

    /// Whether the log has a new warning or error, other than those of a normal start.
    fn warns(&self) -> bool {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        text.get(self.from..).unwrap_or_default().lines().any(is_warning)
    }
}

fn is_warning(line: &str) -> bool {
    (line.contains("WARN") || line.contains("ERROR")) && !USUAL.iter().any(|usual| line.contains(usual))
}

fn name<'a>(file: &'a Path, folder: &Path) -> std::path::Display<'a> {
    file.strip_prefix(folder).unwrap_or(file).display()
}

/// Damages a file of the client's home, then runs a turn.
pub(super) async fn of_client(world: &mut World, damage: &Damage) -> anyhow::Result<()> {
    let mut device = world.device();
    world.say_turns(&mut device, TURNS).await?;
    world.settle(&device).await?;
    let words = world.words(&device).await?;
    let file = files::damage(&device.home, damage)?;
    let mut device = device.in_lane(1);
    let (acknowledged, _) = world.say(&mut device, &[], Conditions::default()).await?;
    let verified = world.clients().session(&device, "verify", &["--full"]).await?;
    world.inspect(&verified);
    let (own, shown) = world.history(&device).await?;
    let missing = world.ledger.judge(&own);
    if verified.is_ok() && shown.is_ok() && !missing.is_good() {
        let file = name(&file, &device.home);
        world.findings.undetected(&format!("{file} of the client, {:?}: {missing:?}", damage.change));
    }
    if acknowledged && shown.is_ok() {
        world.check(&device).await
    } else {
        // The client refuses the damaged home; the words still recover the session.
        world.check_by_words(&words, &device).await
    }
}

/// Damages a file of the node's folder while the node is down.
pub(super) async fn of_node(world: &mut World, damage: &Damage) -> anyhow::Result<()> {
    let mut device = world.device();
    world.say_turns(&mut device, TURNS).await?;
    world.settle(&device).await?;
    world.stop_node().await?;
    let folder = world.folder.join("node-0");
    let file = files::damage(&folder, damage)?;
    let mark = LogMark::now(world.folder.join("node-0.log"));
    if world.start_node(&[]).await.is_ok() {
        if !mark.warns() {
            world.findings.unmentioned(&format!("{} of the node, {:?}", name(&file, &folder), damage.change));
        }
    } else {
        // The node refuses to start; its operator creates a new one.
        fs::remove_dir_all(&folder)?;
        world.start_node(&[]).await?;
    }
    world.say_surely(&mut device).await?;
    world.check(&device).await
}

/// Damages a file of the store's folder while the store is down.
pub(super) async fn of_store(world: &mut World, damage: &Damage) -> anyhow::Result<()> {
    let mut device = world.device();
    world.say_turns(&mut device, STORE_TURNS).await?;
    world.settle(&device).await?;
    let words = world.words(&device).await?;
    let listed: BTreeSet<_> = world.network.list_blobs().await?.into_iter().collect();
    world.network.stop_store().await?;
    let folder = world.folder.join("store");
    let mut intact = files::contents(&folder.join("files"))?;
    let file = files::damage(&folder, damage)?;
    if file.starts_with(folder.join("files")) {
        intact = intact.intersection(&files::contents(&folder.join("files"))?).cloned().collect();
    }
    let mark = LogMark::now(world.folder.join("store.log"));
    if world.network.restart_store().await.is_ok() {
        let kept = files::contents(&folder)?;
        let deleted = intact.difference(&kept).count() as u64;
        let file = name(&file, &folder).to_string();
        let what = format!("{deleted} intact blobs of {} deleted after damage of {file}", intact.len());
        world.findings.lost(deleted, &what);
        let left: BTreeSet<_> = world.network.list_blobs().await?.into_iter().collect();
        let forgotten = listed.difference(&left).count();
        let fresh = world.restore_once(&words, &device).await?;
        let is_short = match fresh {
            Some(fresh) => {
                let (history, _) = world.history(&fresh).await?;
                !world.ledger.judge(&history).is_good()
            }
            None => false,
        };
        if (forgotten > 0 || is_short) && !mark.warns() {
            let change = damage.change;
            let what = format!("{file} of the store, {change:?}: {forgotten} blobs forgotten, no warning");
            world.findings.undetected(&what);
        }
    } else {
        // The store refuses to start. Its operator creates a new one, and clients store their copies again.
        fs::rename(&folder, world.folder.join("store-damaged")).context("cannot move the store aside")?;
        world.network.restart_store().await?;
    }
    let fixed = world.clients().session(&device, "verify", &["--full", "--fix"]).await?;
    world.inspect(&fixed);
    world.say_surely(&mut device).await?;
    world.check(&device).await
}

/// Damages a file of the relayer's folder while the relayer is down. The memory must be complete, or refused.
pub(super) async fn of_relayer(memories: &mut TrialMemory, damage: &Damage) -> anyhow::Result<()> {
    for _ in 0..ADDITIONS {
        if let Err(answer) = memories.add_surely().await? {
            anyhow::bail!("a sound relayer keeps nothing: {}", answer.brief());
        }
    }
    memories.stop().await?;
    let file = files::damage(&memories.data(), damage)?;
    let mark = LogMark::now(memories.log());
    if memories.run().await.is_err() {
        return Ok(());
    }
    let (Some(listed), _) = memories.list().await? else { return Ok(()) };
    let verdict = memories.ledger.count(listed.iter().map(String::as_str));
    memories.findings.judge(&verdict);
    if !verdict.is_good() && !mark.warns() {
        let file = name(&file, &memories.data()).to_string();
        memories.findings.undetected(&format!("{file} of the relayer, {:?}", damage.change));
    } else if verdict.is_good() && !mark.warns() {
        let file = name(&file, &memories.data()).to_string();
        memories.findings.unmentioned(&format!("{file} of the relayer, {:?}", damage.change));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_a_sound_start_say_nothing_of_damage() {
        assert!(is_warning("2026-01-01T00:00:00Z  WARN a blob is not what it was"));
        assert!(is_warning("ERROR the journal is damaged"));
        assert!(!is_warning("2026-01-01T00:00:00Z  INFO files were removed"));
        assert!(!is_warning(
            "  WARN the echo engine repeats what it is told: it is for tests, not for service"
        ));
    }
}
