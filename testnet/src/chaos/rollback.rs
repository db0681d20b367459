//! A home that goes back in time: an older copy restored, or a truncated journal.

use anyhow::Context as _;

use super::{call::Conditions, files, world::World};

/// Tries of the turn after the truncation: a node may refuse the first try, and the next one has another
/// attempt number.
const TRIES: usize = 3;

/// Restores an older copy of the home, then runs a turn.
pub(super) async fn older_home(world: &mut World, before: u64, after: u64) -> anyhow::Result<()> {
    let mut device = world.device();
    world.say_turns(&mut device, before).await?;
    let copy = world.folder.join("older-home");
    files::copy(&device.home, &copy)?;
    world.say_turns(&mut device, after).await?;
    files::put_back(&copy, &device.home)?;
    let mut device = device.in_lane(1);
    world.say_surely(&mut device).await?;
    world.check(&device).await
}

/// Truncates the journal, then runs a turn.
pub(super) async fn cut_journal(world: &mut World, turns: u64, kept: u64) -> anyhow::Result<()> {
    let mut device = world.device();
    world.say_turns(&mut device, turns).await?;
    world.settle(&device).await?;
    let words = world.words(&device).await?;
    let journals = files::list(&device.home)?;
    let journal = journals.iter().find(|file| file.extension().is_some_and(|end| end == "journal"));
    files::cut(journal.context("the home has a journal")?, kept)?;
    let mut device = device.in_lane(1);
    for _ in 0..TRIES {
        let (acknowledged, _) = world.say(&mut device, &[], Conditions::default()).await?;
        if acknowledged {
            return world.check(&device).await;
        }
    }
    // The client refuses the damaged journal; the words still recover the session.
    world.check_by_words(&words, &device).await
}
