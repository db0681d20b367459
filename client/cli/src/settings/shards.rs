//! The number of shards of the store's network: in the settings, or announced by the store.

use std::time::{Duration, Instant};

use baton_kit::stores::SHARDS_WAIT;
use baton_walrus_client::{ShardCount, http_store::RetryPolicy};

use super::Settings;
use crate::failure::Failure;

/// Time for a precautionary look at the head indexes if a store was silent. A turn thus waits one second in all.
pub(super) const LOOK_AFTER_SILENCE: Duration = Duration::from_millis(250);

impl Settings {
    /// Shards of the store's network: the set number, or the one that the store announced.
    pub(crate) fn shards(&self) -> ShardCount {
        self.set_shards().or(self.announced.get().copied()).unwrap_or(ShardCount::MAINNET)
    }

    /// The number in the settings, whose range is that of all networks.
    fn set_shards(&self) -> Option<ShardCount> {
        ShardCount::new(self.options.shards?).ok()
    }

    /// Asks the store for its number of shards. A store that does not answer soon, or announces none, delays nothing.
    ///
    /// # Errors
    /// A usage error if the settings have another number: the store would keep nothing under the session's IDs.
    pub(crate) async fn ask_shards(&self) -> Result<(), Failure> {
        let store = self.store(RetryPolicy { base_timeout: SHARDS_WAIT, ..RetryPolicy::default() })?;
        let asked = Instant::now();
        let announced = store.announced_shards().await;
        if asked.elapsed() >= SHARDS_WAIT {
            self.silence.get_or_init(|| ());
        }
        let Some(theirs) = announced else { return Ok(()) };
        match self.set_shards().filter(|ours| *ours != theirs) {
            Some(ours) => Err(Failure::usage(
                format!("The store has {} shards, and the settings have {}.", theirs.get(), ours.get()),
                format!(
                    "leave shards out, so that the store's number counts; or set it: --shards {}",
                    theirs.get()
                ),
            )),
            None => {
                self.announced.get_or_init(|| theirs);
                Ok(())
            }
        }
    }
}
