//! Wipes thread stacks after a session's key was used on them.
//!
//! A key that is moved, hashed or derived from leaves copies in frames that have ended. The program's
//! allocator wipes heap memory as it is freed, but nothing wipes a stack. So each thread of the runtime wipes
//! its own stack as it goes idle or ends, while keys are in use and shortly after. At that point the earlier
//! frames are gone, and the bytes below are free.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Bytes that are wiped below the frame of an idle thread: more than a request uses, even without
/// optimisation.
const WIPED_BYTES: usize = 768 * 1024;
/// How long threads still wipe after the last use of a key: each goes idle within this time, or does other
/// work.
const WIPE_PERIOD: Duration = Duration::from_secs(3);

static USES: AtomicUsize = AtomicUsize::new(0);
/// When the last use ended, in milliseconds since [`start`].
static LAST_USE_MS: AtomicU64 = AtomicU64::new(0);

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

fn now_ms() -> u64 {
    // Never zero, which means no use at all.
    u64::try_from(start().elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

/// Marks a session's key as in use, until dropped.
#[derive(Debug)]
pub(crate) struct SecretUse(());

impl SecretUse {
    /// Begins a use.
    #[must_use]
    pub(crate) fn begin() -> Self {
        USES.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for SecretUse {
    fn drop(&mut self) {
        LAST_USE_MS.store(now_ms(), Ordering::SeqCst);
        USES.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Wipes the free part of the calling thread's stack, if a key was in use recently. For a thread that goes
/// idle or ends.
pub(crate) fn wipe_if_used() {
    let last = LAST_USE_MS.load(Ordering::SeqCst);
    let used_recently = last != 0 && u128::from(now_ms().saturating_sub(last)) <= WIPE_PERIOD.as_millis();
    if used_recently || USES.load(Ordering::SeqCst) > 0 {
        baton_keys::stack::wipe(WIPED_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_wiped_while_a_key_is_in_use_and_shortly_after() {
        let wipes = || USES.load(Ordering::SeqCst) > 0 || LAST_USE_MS.load(Ordering::SeqCst) != 0;
        let using = SecretUse::begin();
        assert!(wipes());
        wipe_if_used();
        drop(using);
        assert!(wipes());
        wipe_if_used();
    }
}
