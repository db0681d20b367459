//! Origins whose new connections are reset for a moment: the server would refuse their requests anyway, and a reset costs
//! it a hundredth of an answer.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::shares;

/// Shortest time for which an origin is reset after one refusal: with less, a flood gets an answer for each request that
/// its rate is short of.
const SHORTEST: Duration = Duration::from_millis(250);
/// Longest time: an impatient client learns soon that it may ask again.
const LONGEST: Duration = Duration::from_secs(1);
/// Most origins that are reset at a time. Requests of further ones are refused one by one.
const MAX_ORIGINS: usize = 4096;

/// The origins, each with the end of its resets.
#[derive(Debug, Default)]
pub(super) struct ResetOrigins(Mutex<HashMap<shares::Origin, Instant>>);

impl ResetOrigins {
    fn lock(&self) -> MutexGuard<'_, HashMap<shares::Origin, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets new connections of an origin for about `span`; returns for how long.
    pub(super) fn insert(&self, origin: shares::Origin, span: Duration, now: Instant) -> Duration {
        let span = span.clamp(SHORTEST, LONGEST);
        let mut origins = self.lock();
        if origins.len() >= MAX_ORIGINS {
            origins.retain(|_, until| *until > now);
        }
        if origins.len() < MAX_ORIGINS || origins.contains_key(&origin) {
            origins.insert(origin, now + span);
        }
        span
    }

    /// Whether a new connection of an origin is reset now.
    pub(super) fn has(&self, origin: shares::Origin, now: Instant) -> bool {
        let mut origins = self.lock();
        match origins.get(&origin) {
            Some(until) if *until > now => true,
            Some(_) => {
                origins.remove(&origin);
                false
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_origin_is_reset_for_a_quarter_to_a_whole_second_and_few_are_remembered() {
        let (origins, now) = (ResetOrigins::default(), Instant::now());
        let origin = |number: u32| shares::Origin::V4(Ipv4Addr::from(number));
        origins.insert(origin(1), Duration::from_millis(300), now);
        origins.insert(origin(2), Duration::from_secs(3600), now);
        assert_eq!(origins.insert(origin(4), Duration::from_millis(20), now), SHORTEST);
        let at = |ms| now + Duration::from_millis(ms);
        assert!(origins.has(origin(1), at(299)) && !origins.has(origin(1), at(300)));
        assert!(origins.has(origin(2), at(999)) && !origins.has(origin(2), at(1000)));
        assert!(origins.has(origin(4), at(249)) && !origins.has(origin(4), at(250)));
        assert!(!origins.has(origin(3), now));
        for number in 0..10_000 {
            origins.insert(origin(number), LONGEST, now);
        }
        assert_eq!(origins.lock().len(), MAX_ORIGINS);
        origins.insert(origin(20_000), LONGEST, at(1001));
        assert!(origins.has(origin(20_000), at(1002)), "expired ones make place");
    }
}
