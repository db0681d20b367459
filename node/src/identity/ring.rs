//! The node's hybrid exchange keys over time: the current key, the next key, and the erasure of old ones.
//! Pure except for the randomness of new keys. [`Identity`](super::Identity) stores it and provides the time.

use std::fmt::Write as _;

use baton_keys::{exchange::ExchangeSecret, ids::ExchangeKeyId};
use baton_proto::{
    limits::{EXCHANGE_KEY_GRACE_MS, MAX_EXCHANGE_KEY_LIFETIME_MS, MAX_RECORD_KEYS},
    node_record::KeyWindow,
};
use zeroize::Zeroizing;

/// Time from one key's start to the next key's. It is half of a key's life. So a client with a record from
/// just before the change still has a key for the other half.
pub(crate) const ROTATE_AFTER_MS: u64 = MAX_EXCHANGE_KEY_LIFETIME_MS / 2;
/// Maximum number of keys: two current, one ahead, one in its grace, and room for a clock that was set back.
const MAX_KEYS: usize = 8;
const HEADER: &str = "baton-exchange-keys-v2";

#[derive(Clone, Debug)]
struct RingKey {
    secret: ExchangeSecret,
    /// The id of the window's key.
    id: ExchangeKeyId,
    window: KeyWindow,
}

impl RingKey {
    fn generate(from_ms: u64) -> Self {
        Self::new(ExchangeSecret::generate(), from_ms, from_ms.saturating_add(MAX_EXCHANGE_KEY_LIFETIME_MS))
    }

    fn new(secret: ExchangeSecret, from_ms: u64, until_ms: u64) -> Self {
        let key = secret.public_key();
        Self { secret, id: key.id(), window: KeyWindow { key, from_ms, until_ms } }
    }

    fn holds(&self, now_ms: u64) -> bool {
        self.window.from_ms <= now_ms && now_ms <= self.window.until_ms
    }
}

/// The exchange keys of a node, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyRing(Vec<RingKey>);

impl KeyRing {
    /// Erases expired keys, creates a new current key if no key is young enough, and creates the next key
    /// ahead of time. Returns whether anything changed.
    pub(crate) fn advance(&mut self, now_ms: u64) -> bool {
        let before: Vec<_> = self.0.iter().map(|key| key.id).collect();
        // A key from beyond the next rotations dates from before the clock was set back.
        let latest = now_ms.saturating_add(MAX_EXCHANGE_KEY_LIFETIME_MS);
        self.0.retain(|key| {
            let erased_ms = key.window.until_ms.saturating_add(EXCHANGE_KEY_GRACE_MS);
            now_ms <= erased_ms && key.window.from_ms <= latest
        });
        let young = |key: &RingKey| key.holds(now_ms) && now_ms - key.window.from_ms < ROTATE_AFTER_MS;
        let current_from = match self.0.iter().rfind(|key| young(key)) {
            Some(key) => key.window.from_ms,
            None => {
                self.0.push(RingKey::generate(now_ms));
                now_ms
            }
        };
        if !self.0.iter().any(|key| key.window.from_ms > now_ms) {
            self.0.push(RingKey::generate(current_from.saturating_add(ROTATE_AFTER_MS)));
        }
        self.0.sort_by_key(|key| key.window.from_ms);
        if self.0.len() > MAX_KEYS {
            self.0.drain(..self.0.len() - MAX_KEYS);
        }
        before != self.0.iter().map(|key| key.id).collect::<Vec<_>>()
    }

    /// Erases every key, even those behind turns in transit, and creates a current and a next one.
    pub(crate) fn replace(&mut self, now_ms: u64) {
        self.0.clear();
        self.advance(now_ms);
    }

    /// Every key, oldest first, with its window.
    #[must_use]
    pub(crate) fn windows(&self) -> Vec<KeyWindow> {
        self.0.iter().map(|key| key.window.clone()).collect()
    }

    /// The keys for the node record: the current key first, then the keys ahead. Older valid keys still work,
    /// but are not advertised. At most [`MAX_RECORD_KEYS`].
    #[must_use]
    pub(crate) fn published(&self, now_ms: u64) -> Vec<KeyWindow> {
        let current = self.0.iter().rfind(|key| key.holds(now_ms));
        let ahead = self.0.iter().filter(|key| key.window.from_ms > now_ms);
        current.into_iter().chain(ahead).take(MAX_RECORD_KEYS).map(|key| key.window.clone()).collect()
    }

    /// The secret of a published key, until an hour after its expiry, for turns in transit.
    #[must_use]
    pub(crate) fn secret(&self, key: &ExchangeKeyId, now_ms: u64) -> Option<&ExchangeSecret> {
        self.0
            .iter()
            .find(|entry| entry.id == *key)
            .filter(|entry| now_ms <= entry.window.until_ms.saturating_add(EXCHANGE_KEY_GRACE_MS))
            .map(|entry| &entry.secret)
    }

    /// The contents of the ring's file: a header, then a line `from until secret` for each key (milliseconds,
    /// hex).
    #[must_use]
    pub(crate) fn render(&self) -> Zeroizing<String> {
        // Reserves room for every line: a growing string would leave copies of secrets behind.
        let mut text = Zeroizing::new(String::with_capacity(64 + self.0.len() * 128));
        let _ = writeln!(text, "{HEADER}");
        for RingKey { secret, window, .. } in &self.0 {
            let secret = Zeroizing::new(hex::encode(secret.expose().as_slice()));
            let _ = writeln!(text, "{} {} {}", window.from_ms, window.until_ms, *secret);
        }
        text
    }

    /// Parses [`KeyRing::render`]'s text; `None` for any other text.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != HEADER {
            return None;
        }
        let keys = lines.map(parse_line).collect::<Option<Vec<_>>>()?;
        (keys.len() <= MAX_KEYS && keys.is_sorted_by_key(|key| key.window.from_ms)).then_some(Self(keys))
    }
}

fn parse_line(line: &str) -> Option<RingKey> {
    let mut words = line.split(' ');
    let (from_ms, until_ms) = (words.next()?.parse::<u64>().ok()?, words.next()?.parse::<u64>().ok()?);
    let mut bytes = Zeroizing::new([0u8; 32]);
    hex::decode_to_slice(words.next()?, &mut bytes[..]).ok()?;
    let lifetime = until_ms.checked_sub(from_ms)?;
    if words.next().is_some() || lifetime > MAX_EXCHANGE_KEY_LIFETIME_MS {
        return None;
    }
    Some(RingKey::new(ExchangeSecret::from_bytes(&bytes), from_ms, until_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600 * 1000;
    const START: u64 = 1_000_000 * HOUR;

    fn ring_at(now_ms: u64) -> KeyRing {
        let mut ring = KeyRing::default();
        assert!(ring.advance(now_ms));
        ring
    }

    #[test]
    fn the_next_key_is_published_ahead_and_the_old_one_still_opens_after_it_takes_over() {
        let mut ring = ring_at(START);
        let first = ring.published(START);
        let windows: Vec<_> = first.iter().map(|key| (key.from_ms, key.until_ms)).collect();
        assert_eq!(windows, [(START, START + 24 * HOUR), (START + 12 * HOUR, START + 36 * HOUR)]);
        assert_ne!(first[0].key, first[1].key);
        for hours in 0..12 {
            assert!(!ring.advance(START + hours * HOUR), "{hours}");
        }
        let later = START + 12 * HOUR;
        assert!(ring.advance(later));
        let second = ring.published(later);
        assert_eq!((second[0].clone(), second[1].from_ms), (first[1].clone(), START + 24 * HOUR));
        assert!(ring.secret(&first[0].key.id(), later).is_some());
    }

    #[test]
    fn a_record_from_any_moment_names_a_usable_key_for_twelve_hours() {
        let mut ring = ring_at(START);
        for quarter in 0..400 {
            let now = START + quarter * HOUR / 4;
            ring.advance(now);
            let published = ring.published(now);
            assert!(published[0].from_ms <= now, "{quarter}");
            assert!(published[0].until_ms > now + 12 * HOUR, "{quarter}");
            assert!(published.iter().all(|key| ring.secret(&key.key.id(), now).is_some()));
        }
    }

    #[test]
    fn secrets_are_erased_an_hour_after_expiry_and_not_before() {
        let mut ring = ring_at(START);
        let old = ring.published(START)[0].key.id();
        let last = START + 25 * HOUR;
        ring.advance(last);
        assert!(ring.secret(&old, last).is_some());
        assert!(ring.secret(&old, last + 1).is_none(), "refused even before it is erased");
        assert!(ring.advance(last + 1));
        assert!(!ring.0.iter().any(|key| key.id == old));
    }

    #[test]
    fn after_a_long_sleep_everything_is_new() {
        let mut ring = ring_at(START);
        let old = ring.published(START);
        let later = START + 1000 * HOUR;
        assert!(ring.advance(later));
        let new = ring.published(later);
        assert_eq!((new[0].from_ms, new[1].from_ms), (later, later + 12 * HOUR));
        assert!(old.iter().all(|key| ring.secret(&key.key.id(), later).is_none()));
        assert_eq!(ring.0.len(), 2);
    }

    #[test]
    fn a_clock_that_is_set_back_and_forth_leaves_a_bounded_usable_ring() {
        let mut ring = ring_at(START);
        for round in 0..50u64 {
            let now = if round % 2 == 0 { START - round * HOUR } else { START + round * HOUR };
            ring.advance(now);
            assert!(ring.0.len() <= MAX_KEYS && ring.published(now).len() <= MAX_RECORD_KEYS);
            assert!(ring.published(now).first().is_some_and(|key| key.from_ms <= now && now < key.until_ms));
        }
    }

    #[test]
    fn a_rendered_ring_is_read_back_and_nothing_else_is() {
        let ring = ring_at(START);
        let text = ring.render();
        let read = KeyRing::parse(&text).unwrap();
        assert_eq!(read.published(START), ring.published(START));
        let shown = format!("{ring:?}");
        assert!(!ring.0.iter().any(|key| shown.contains(&hex::encode(key.secret.expose().as_slice()))));
        let key = ring.published(START)[0].key.id();
        assert_eq!(*read.secret(&key, START).unwrap().expose(), *ring.secret(&key, START).unwrap().expose());
        let long_lived = format!("{HEADER}\n0 86400001 {}\n", "11".repeat(32));
        let backwards = format!("{HEADER}\n5 4 {}\n", "11".repeat(32));
        for text in
            ["", "x", HEADER, &text.replace(' ', "  "), &long_lived, &backwards, &text[..text.len() - 2]]
        {
            assert!(KeyRing::parse(text).is_none_or(|ring| ring.0.is_empty()), "{text}");
        }
    }
}
