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
    plan::{FileDamage, Program},
    report::FindingKind,
    world::{ClientHome, TrialWorld},
};

/// Messages before the damage of client or node.
const MESSAGES: u64 = 3;
/// Messages before the damage of store or relayer; each leaves a blob or a fact there.
const STORED_MESSAGES: u64 = 5;

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

/// Damages a file under a folder, and returns it with words for a finding.
fn damage_file(folder: &Path, program: Program, damage: &FileDamage) -> anyhow::Result<(PathBuf, String)> {
    let file = files::damage(folder, damage)?;
    let name = file.strip_prefix(folder).unwrap_or(&file).display();
    let program = format!("{program:?}").to_lowercase();
    let what = format!("{name} of the {program}, {:?}", damage.change);
    Ok((file, what))
}

/// Damages a file of a program that is down, and then sends a message.
pub(super) async fn damage(
    world: &mut TrialWorld,
    program: Program,
    damage: &FileDamage,
) -> anyhow::Result<()> {
    let mut device = world.device();
    let messages = match program {
        Program::Client | Program::Node => MESSAGES,
        Program::Store | Program::Relayer => STORED_MESSAGES,
    };
    world.say_turns(&mut device, messages).await?;
    world.settle(&device).await?;
    match program {
        Program::Client => of_client(world, &device, damage).await,
        Program::Node => of_node(world, &mut device, damage).await,
        Program::Store => of_store(world, &mut device, damage).await,
        Program::Relayer => of_relayer(world, &device, damage).await,
    }
}

async fn of_client(world: &mut TrialWorld, device: &ClientHome, damage: &FileDamage) -> anyhow::Result<()> {
    let words = world.words(device).await?;
    let (_, what) = damage_file(&device.home, Program::Client, damage)?;
    let mut device = device.in_lane(1);
    let (acknowledged, _) = world.say(&mut device, &[], Conditions::default()).await?;
    let verified = world.session(&device, "verify", &["--full"]).await?;
    let (own, shown) = world.history(&device).await?;
    let missing = world.judge(&own);
    if verified.is_ok() && shown.is_ok() && !missing.is_good() {
        world.findings.found(FindingKind::Undetected, &format!("{what}: {missing:?}"));
    }
    if acknowledged && shown.is_ok() {
        world.check(&device).await
    } else {
        // The client refuses the damaged home; the words still recover the session.
        world.check_by_words(&words, &device).await
    }
}

async fn of_node(world: &mut TrialWorld, device: &mut ClientHome, damage: &FileDamage) -> anyhow::Result<()> {
    world.stop(Program::Node).await?;
    let folder = world.data(Program::Node);
    let (_, what) = damage_file(&folder, Program::Node, damage)?;
    let mark = LogMark::now(world.log(Program::Node));
    if world.start_again(Program::Node).await.is_err() {
        // The node refuses to start; its operator creates a new one.
        fs::remove_dir_all(&folder)?;
        world.start_again(Program::Node).await?;
    } else if !mark.warns() {
        world.findings.found(FindingKind::Unmentioned, &what);
    }
    world.say_surely(device).await?;
    world.check(device).await
}

async fn of_store(
    world: &mut TrialWorld,
    device: &mut ClientHome,
    damage: &FileDamage,
) -> anyhow::Result<()> {
    let words = world.words(device).await?;
    let listed: BTreeSet<_> = world.network.list_blobs().await?.into_iter().collect();
    world.stop(Program::Store).await?;
    let folder = world.data(Program::Store);
    let blobs = folder.join("files");
    let mut intact = files::contents(&blobs)?;
    let (file, what) = damage_file(&folder, Program::Store, damage)?;
    if file.starts_with(&blobs) {
        intact = intact.intersection(&files::contents(&blobs)?).cloned().collect();
    }
    let mark = LogMark::now(world.log(Program::Store));
    if world.start_again(Program::Store).await.is_ok() {
        let kept = files::contents(&folder)?;
        let deleted = intact.difference(&kept).count() as u64;
        let loss = format!("{deleted} intact blobs of {} deleted after damage of {what}", intact.len());
        world.findings.found_all(FindingKind::Lost, deleted, &loss);
        let left: BTreeSet<_> = world.network.list_blobs().await?.into_iter().collect();
        let forgotten = listed.difference(&left).count();
        let is_short = match world.restore_once(&words, device).await? {
            Ok(fresh) => {
                let (history, _) = world.history(&fresh).await?;
                !world.judge(&history).is_good()
            }
            Err(_) => false,
        };
        if (forgotten > 0 || is_short) && !mark.warns() {
            let what = format!("{what}: {forgotten} blobs forgotten, no warning");
            world.findings.found(FindingKind::Undetected, &what);
        }
    } else {
        // The store refuses to start. Its operator creates a new one, and clients store their copies again.
        fs::rename(&folder, world.folder.join("store-damaged")).context("cannot move the store aside")?;
        world.start_again(Program::Store).await?;
    }
    world.session(device, "verify", &["--full", "--fix"]).await?;
    world.say_surely(device).await?;
    world.check(device).await
}

/// The memory must be complete, or refused.
async fn of_relayer(world: &mut TrialWorld, device: &ClientHome, damage: &FileDamage) -> anyhow::Result<()> {
    world.stop(Program::Relayer).await?;
    let (_, what) = damage_file(&world.data(Program::Relayer), Program::Relayer, damage)?;
    let mark = LogMark::now(world.log(Program::Relayer));
    if world.start_again(Program::Relayer).await.is_err() {
        return Ok(());
    }
    let (listed, outcome) = world.history(device).await?;
    if outcome.is_ok() {
        let verdict = world.judge(&listed);
        world.findings.judge(&verdict);
        let kind = if verdict.is_good() { FindingKind::Unmentioned } else { FindingKind::Undetected };
        world.findings.found_all(kind, u64::from(!mark.warns()), &what);
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
