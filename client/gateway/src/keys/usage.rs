//! Counts the requests and tokens of each key, and holds them to its quotas. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::NamedKey;
use crate::clock::rfc3339;

const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 24 * HOUR_S;
/// Days whose usage is kept.
const DAYS_KEPT: usize = 31;

/// The usage of a day, or of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageCounts {
    /// Requests for turns and vectors that came.
    pub requests: u64,
    /// Tokens of the input.
    pub input_tokens: u64,
    /// Tokens of the answers. Before an answer: the most that it may have.
    pub output_tokens: u64,
}

impl UsageCounts {
    /// A request that came.
    pub(crate) const REQUEST: Self = Self { requests: 1, input_tokens: 0, output_tokens: 0 };

    /// The tokens of a request that is counted already.
    pub(crate) fn of_tokens(input_tokens: u64, output_tokens: u64) -> Self {
        Self { requests: 0, input_tokens, output_tokens }
    }

    fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Applies `change` to each count and that of `other`.
    fn change(&mut self, other: Self, change: impl Fn(u64, u64) -> u64) {
        self.requests = change(self.requests, other.requests);
        self.input_tokens = change(self.input_tokens, other.input_tokens);
        self.output_tokens = change(self.output_tokens, other.output_tokens);
    }
}

/// The usage of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyUsage {
    /// The hour that `hour_requests` counts, in hours since the Unix epoch.
    hour: u64,
    hour_requests: u64,
    /// Usage by day, in days since the Unix epoch.
    days: BTreeMap<u64, UsageCounts>,
}

/// The rest of a key's quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QuotaRest {
    pub(crate) requests: Option<u64>,
    pub(crate) tokens: Option<u64>,
    /// Seconds until the next hour and the next day.
    pub(crate) next_hour_s: u64,
    pub(crate) next_day_s: u64,
}

/// The quota that refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpentQuota {
    pub(crate) limit: u64,
    /// The rest of this day's tokens; none where the requests of this hour are spent.
    pub(crate) rest_tokens: Option<u64>,
    /// Seconds until the quota begins anew.
    pub(crate) wait_s: u64,
}

/// The usage of all keys, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UsageTable(BTreeMap<String, KeyUsage>);

impl KeyUsage {
    /// The usage of the day at a time, in seconds since the Unix epoch.
    #[must_use]
    pub fn day(&self, now_s: u64) -> UsageCounts {
        self.days.get(&(now_s / DAY_S)).copied().unwrap_or_default()
    }

    /// The requests in the hour at a time, in seconds since the Unix epoch.
    #[must_use]
    pub fn requests_in_hour(&self, now_s: u64) -> u64 {
        if self.hour == now_s / HOUR_S { self.hour_requests } else { 0 }
    }

    /// The days with usage, oldest first: their beginning in seconds since the Unix epoch, and their usage.
    pub fn days(&self) -> impl Iterator<Item = (u64, UsageCounts)> {
        self.days.iter().map(|(day, usage)| (day.saturating_mul(DAY_S), *usage))
    }

    /// Counts the usage of a request.
    fn add(&mut self, counts: UsageCounts, now_s: u64) {
        if self.hour != now_s / HOUR_S {
            (self.hour, self.hour_requests) = (now_s / HOUR_S, 0);
        }
        self.hour_requests = self.hour_requests.saturating_add(counts.requests);
        self.day_mut(now_s).change(counts, u64::saturating_add);
    }

    /// Takes back the usage of a request that was counted at this time.
    fn subtract(&mut self, counts: UsageCounts, counted_s: u64) {
        if self.hour == counted_s / HOUR_S {
            self.hour_requests = self.hour_requests.saturating_sub(counts.requests);
        }
        self.day_mut(counted_s).change(counts, u64::saturating_sub);
    }

    fn day_mut(&mut self, now_s: u64) -> &mut UsageCounts {
        let today = now_s / DAY_S;
        while self.days.len() >= DAYS_KEPT && !self.days.contains_key(&today) {
            self.days.pop_first();
        }
        self.days.entry(today).or_default()
    }
}

impl UsageTable {
    /// The usage of a key; none before its first request.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<&KeyUsage> {
        self.0.get(name)
    }

    /// A key with its usage, for programs.
    #[must_use]
    pub fn describe(&self, key: &NamedKey, now_s: u64) -> Value {
        let rest = self.rest(key, now_s);
        let days = self.of(&key.name).into_iter().flat_map(KeyUsage::days);
        json!({
            "name": key.name,
            "project": key.project,
            "memory": key.memory,
            "created": rfc3339(key.created_s),
            "expires": key.expires_s.map(rfc3339),
            "requests_per_hour": key.quotas.requests_per_hour,
            "requests_left": rest.requests,
            "tokens_per_day": key.quotas.tokens_per_day,
            "tokens_left": rest.tokens,
            "days": days
                .map(|(day_s, UsageCounts { requests, input_tokens, output_tokens })| json!({
                    "day": rfc3339(day_s).split('T').next(),
                    "requests": requests,
                    "input_tokens": input_tokens,
                    "output_tokens": output_tokens,
                }))
                .collect::<Vec<_>>(),
        })
    }

    /// The rest of a key's quotas.
    pub(crate) fn rest(&self, key: &NamedKey, now_s: u64) -> QuotaRest {
        let (none, quotas) = (KeyUsage::default(), key.quotas);
        let usage = self.0.get(&key.name).unwrap_or(&none);
        // An input may be larger than its estimate. The next day pays for it.
        let yesterday = usage.day(now_s.saturating_sub(DAY_S)).tokens();
        let excess = quotas.tokens_per_day.map_or(0, |limit| yesterday.saturating_sub(limit));
        let (requests, tokens) =
            (usage.requests_in_hour(now_s), usage.day(now_s).tokens().saturating_add(excess));
        QuotaRest {
            requests: quotas.requests_per_hour.map(|limit| limit.saturating_sub(requests)),
            tokens: quotas.tokens_per_day.map(|limit| limit.saturating_sub(tokens)),
            next_hour_s: HOUR_S - now_s % HOUR_S,
            next_day_s: DAY_S - now_s % DAY_S,
        }
    }

    /// Counts a request, or the tokens that it may use, until [`UsageTable::settle`]. Returns the counts: the answer may
    /// be shorter than wanted.
    pub(crate) fn hold(
        &mut self,
        key: &NamedKey,
        wanted: UsageCounts,
        now_s: u64,
    ) -> Result<UsageCounts, SpentQuota> {
        let rest = self.rest(key, now_s);
        if let (1.., Some(0), Some(limit)) = (wanted.requests, rest.requests, key.quotas.requests_per_hour) {
            return Err(SpentQuota { limit, rest_tokens: None, wait_s: rest.next_hour_s });
        }
        let mut held = wanted;
        if let (Some(rest_tokens), Some(limit)) = (rest.tokens, key.quotas.tokens_per_day) {
            // An answer needs a token; a request for vectors has none.
            let least = wanted.input_tokens.saturating_add(wanted.output_tokens.min(1));
            if rest_tokens < least {
                return Err(SpentQuota { limit, rest_tokens: rest.tokens, wait_s: rest.next_day_s });
            }
            held.output_tokens = wanted.output_tokens.min(rest_tokens - wanted.input_tokens);
        }
        self.0.entry(key.name.clone()).or_default().add(held, now_s);
        Ok(held)
    }

    /// Replaces the usage of a request that was held at `held_s` by its real one.
    pub(crate) fn settle(
        &mut self,
        name: &str,
        held: UsageCounts,
        held_s: u64,
        used: UsageCounts,
        now_s: u64,
    ) {
        // A key that was removed meanwhile has no usage any more.
        let Some(usage) = self.0.get_mut(name) else { return };
        usage.subtract(held, held_s);
        usage.add(used, now_s);
    }

    /// Forgets the usage of all keys but these.
    pub(crate) fn keep(&mut self, keys: &[NamedKey]) {
        self.0.retain(|name, _| keys.iter().any(|key| key.name == *name));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::keys::KeyQuotas;

    const NOW_S: u64 = 20_000 * DAY_S + 100;

    fn key(requests_per_hour: Option<u64>, tokens_per_day: Option<u64>) -> NamedKey {
        NamedKey {
            name: "anna".to_owned(),
            hash: String::new(),
            project: "anna".to_owned(),
            memory: false,
            quotas: KeyQuotas { requests_per_hour, tokens_per_day },
            created_s: 0,
            expires_s: None,
        }
    }

    #[test]
    fn requests_of_an_hour_are_a_limit_and_the_next_hour_begins_anew() {
        let (key, mut usage) = (key(Some(2), None), UsageTable::default());
        let count = |usage: &mut UsageTable, now_s| usage.hold(&key, UsageCounts::REQUEST, now_s);
        count(&mut usage, NOW_S).unwrap();
        count(&mut usage, NOW_S).unwrap();
        let spent = Err(SpentQuota { limit: 2, rest_tokens: None, wait_s: HOUR_S - 100 });
        assert_eq!(count(&mut usage, NOW_S), spent);
        usage.settle("anna", UsageCounts::REQUEST, NOW_S, UsageCounts::default(), NOW_S);
        count(&mut usage, NOW_S).unwrap();
        assert_eq!(count(&mut usage, NOW_S), spent);
        assert!(count(&mut usage, NOW_S + HOUR_S - 100).is_ok());
        assert_eq!(usage.of("anna").unwrap().day(NOW_S).requests, 3);
    }

    #[test]
    fn an_answer_is_cut_at_the_rest_of_the_day() {
        let (key, mut usage) = (key(None, Some(100)), UsageTable::default());
        let first = usage.hold(&key, UsageCounts::of_tokens(30, 50), NOW_S).unwrap();
        assert_eq!(first, UsageCounts::of_tokens(30, 50));
        let second = usage.hold(&key, UsageCounts::of_tokens(15, 50), NOW_S).unwrap();
        assert_eq!(second, UsageCounts::of_tokens(15, 5), "the first turn holds its tokens while it runs");
        let spent = SpentQuota { limit: 100, rest_tokens: Some(0), wait_s: DAY_S - 100 };
        assert_eq!(usage.hold(&key, UsageCounts::of_tokens(0, 1), NOW_S), Err(spent));
        usage.settle("anna", first, NOW_S, UsageCounts::of_tokens(20, 10), NOW_S);
        usage.settle("anna", second, NOW_S, UsageCounts::of_tokens(0, 0), NOW_S);
        assert_eq!(usage.rest(&key, NOW_S).tokens, Some(70));
        assert!(
            usage.hold(&key, UsageCounts::of_tokens(90, 1), NOW_S).is_err(),
            "the input alone is more than the rest"
        );
        assert_eq!(
            usage.hold(&key, UsageCounts::of_tokens(90, 9), NOW_S + DAY_S).unwrap(),
            UsageCounts::of_tokens(90, 9)
        );
    }

    #[test]
    fn an_input_beyond_its_estimate_is_paid_the_next_day() {
        let (key, mut usage) = (key(None, Some(100)), UsageTable::default());
        let held = usage.hold(&key, UsageCounts::of_tokens(10, 10), NOW_S).unwrap();
        usage.settle("anna", held, NOW_S, UsageCounts::of_tokens(120, 10), NOW_S);
        assert_eq!(usage.rest(&key, NOW_S).tokens, Some(0));
        assert_eq!(usage.rest(&key, NOW_S + DAY_S).tokens, Some(70));
        assert_eq!(usage.rest(&key, NOW_S + 2 * DAY_S).tokens, Some(100));
    }

    #[test]
    fn usage_of_a_month_is_kept_and_removed_keys_are_forgotten() {
        let (key, mut usage) = (key(None, None), UsageTable::default());
        for day in 0..40 {
            let time_s = NOW_S + day * DAY_S;
            usage.hold(&key, UsageCounts::REQUEST, time_s).unwrap();
            let held = usage.hold(&key, UsageCounts::of_tokens(1, 1), time_s).unwrap();
            usage.settle("anna", held, time_s, UsageCounts::of_tokens(3, 4), time_s);
        }
        let days: Vec<_> = usage.of("anna").unwrap().days().collect();
        assert_eq!(days.len(), DAYS_KEPT);
        assert_eq!(
            days[0],
            (NOW_S - 100 + 9 * DAY_S, UsageCounts { requests: 1, input_tokens: 3, output_tokens: 4 })
        );
        let text = serde_json::to_string(&usage).unwrap();
        assert_eq!(serde_json::from_str::<UsageTable>(&text).unwrap(), usage);
        usage.keep(&[]);
        assert!(usage.of("anna").is_none());
    }

    proptest! {
        /// As long as no input is larger than its estimate, the tokens of a day stay below the quota.
        #[test]
        fn the_tokens_of_a_day_never_exceed_the_quota(
            limit in 1_u64..2_000,
            requests in prop::collection::vec((0_u64..400, 1_u64..400, 0_u64..=100, any::<bool>()), 1..60),
        ) {
            let (key, mut usage) = (key(None, Some(limit)), UsageTable::default());
            let mut running = Vec::new();
            for (input, output, percent, ends) in requests {
                if let Ok(held) = usage.hold(&key, UsageCounts::of_tokens(input, output), NOW_S) {
                    prop_assert!(held.output_tokens >= 1 && held.output_tokens <= output);
                    running.push((held, percent));
                }
                if ends && let Some((held, percent)) = running.pop() {
                    let used = UsageCounts::of_tokens(held.input_tokens * percent / 100, held.output_tokens * percent / 100);
                    usage.settle("anna", held, NOW_S, used, NOW_S);
                }
            }
            for (held, _) in running {
                usage.settle("anna", held, NOW_S, held, NOW_S);
            }
            let used = usage.of("anna").map(|usage| usage.day(NOW_S).tokens()).unwrap_or_default();
            prop_assert!(used <= limit, "{used} of {limit}");
        }
    }
}
