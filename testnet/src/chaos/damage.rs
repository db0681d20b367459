//! Damaged files of client, node, store and relayer: each is refused by name or does no harm, and is never
//! served as intact.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use super::{
    call::Conditions,
    files,
    plan::Program,
    report::FindingKind,
    world::{ClientHome, TrialWorld},
};

/// Messages before the damage.
const MESSAGES: u64 = 5;

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

/// A device after some messages, each of which leaves a blob or a fact.
async fn with_messages(world: &mut TrialWorld) -> anyhow::Result<ClientHome> {
    let mut device = world.device();
    world.say_turns(&mut device, MESSAGES).await?;
    world.settle(&device).await?;
    Ok(device)
}

/// Damages a file under a folder of the trial's program, and returns it with words for a finding.
fn damage(world: &mut TrialWorld, folder: &Path) -> anyhow::Result<(PathBuf, String)> {
    let (file, change) = files::damage(folder, &mut world.draws)?;
    let name = file.strip_prefix(folder).unwrap_or(&file).display();
    let program = format!("{:?}", world.program).to_lowercase();
    let what = format!("{name} of the {program}, {change:?}");
    Ok((file, what))
}

pub(super) async fn of_client(world: &mut TrialWorld) -> anyhow::Result<()> {
    let device = with_messages(world).await?;
    let words = world.words(&device).await?;
    let (_, what) = damage(world, &device.home)?;
    let mut device = device.in_lane(1);
    let (acknowledged, _) = world.say(&mut device, &[], Conditions::default()).await?;
    let verified = world.session(&device, "verify", &["--full"]).await?;
    let (own, shown) = world.history(&device).await?;
    let missing = world.judge(&own);
    if verified.is_ok() && shown.is_ok() && !missing.is_good() {
        world.findings.found(FindingKind::Undetected, format!("{what}: {missing:?}"));
    }
    if acknowledged && shown.is_ok() {
        world.check(&device).await
    } else {
        // The client refuses the damaged home; the words still recover the session.
        world.check_by_words(&words, &device).await
    }
}

pub(super) async fn of_node(world: &mut TrialWorld) -> anyhow::Result<()> {
    let mut device = with_messages(world).await?;
    world.stop(Program::Node).await?;
    let folder = world.data(Program::Node);
    damage(world, &folder)?;
    if world.start_again(Program::Node).await.is_err() {
        // The node refuses to start; its operator creates a new one.
        fs::remove_dir_all(&folder)?;
        world.start_again(Program::Node).await?;
    }
    world.say_surely(&mut device).await?;
    world.check(&device).await
}

pub(super) async fn of_store(world: &mut TrialWorld) -> anyhow::Result<()> {
    let mut device = with_messages(world).await?;
    let words = world.words(&device).await?;
    let listed: BTreeSet<_> = world.network.list_blobs().await?.into_iter().collect();
    world.stop(Program::Store).await?;
    let folder = world.data(Program::Store);
    let blobs = folder.join("files");
    let mut intact = files::contents(&blobs)?;
    let (file, what) = damage(world, &folder)?;
    if file.starts_with(&blobs) {
        intact = intact.intersection(&files::contents(&blobs)?).cloned().collect();
    }
    let mark = LogMark::now(world.log(Program::Store));
    if world.start_again(Program::Store).await.is_ok() {
        let kept = files::contents(&folder)?;
        let deleted = intact.difference(&kept).count();
        if deleted > 0 {
            let loss = format!("{deleted} intact blobs of {} deleted after damage of {what}", intact.len());
            world.findings.found(FindingKind::Lost, loss);
        }
        let left: BTreeSet<_> = world.network.list_blobs().await?.into_iter().collect();
        let forgotten = listed.difference(&left).count();
        let is_short = match world.restore_once(&words, &device).await? {
            Ok(fresh) => {
                let (history, _) = world.history(&fresh).await?;
                !world.judge(&history).is_good()
            }
            Err(_) => false,
        };
        if (forgotten > 0 || is_short) && !mark.warns() {
            let what = format!("{what}: {forgotten} blobs forgotten, no warning");
            world.findings.found(FindingKind::Undetected, what);
        }
    } else {
        // The store refuses to start. Its operator creates a new one, and clients store their copies again.
        fs::rename(&folder, world.folder.join("store-damaged")).context("cannot move the store aside")?;
        world.start_again(Program::Store).await?;
    }
    world.session(&device, "verify", &["--full", "--fix"]).await?;
    world.say_surely(&mut device).await?;
    world.check(&device).await
}

/// The memory must be complete, or refused.
pub(super) async fn of_relayer(world: &mut TrialWorld) -> anyhow::Result<()> {
    let device = with_messages(world).await?;
    world.stop(Program::Relayer).await?;
    let folder = world.data(Program::Relayer);
    let (_, what) = damage(world, &folder)?;
    let mark = LogMark::now(world.log(Program::Relayer));
    if world.start_again(Program::Relayer).await.is_err() {
        return Ok(());
    }
    let (listed, outcome) = world.history(&device).await?;
    if outcome.is_ok() {
        let verdict = world.judge(&listed);
        if !verdict.is_good() && !mark.warns() {
            world.findings.found(FindingKind::Undetected, what);
        }
        world.findings.judge(verdict);
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
