//! The servers' time, from the date of their HTTP answers.

use std::time::UNIX_EPOCH;

use baton_proto::{
    ids::BlobId,
    store::{StoreError, StoreTime},
};
use futures::future::join_all;
use reqwest::{Method, Url, header};
use tokio::time::Instant;

use super::{HttpStore, join};

/// A date has a resolution of one second.
const DATE_MARGIN_MS: u64 = 1000;

impl HttpStore {
    /// Asks each server once. Any answer has a date, even a 404 for the requested blob.
    pub(super) async fn ask_times(&self) -> Result<Vec<StoreTime>, StoreError> {
        let inner = &self.inner;
        let mut bases: Vec<&Url> = inner.aggregators.urls().chain(&inner.heads).collect();
        bases.dedup_by(|later, first| later.origin() == first.origin());
        let times = join_all(bases.into_iter().map(|base| self.ask_time(base))).await;
        Ok(times.into_iter().flatten().collect())
    }

    async fn ask_time(&self, base: &Url) -> Option<StoreTime> {
        let url = join(base, &format!("v1/blobs/{}", BlobId([0; 32]))).ok()?;
        let begun = Instant::now();
        let answer =
            self.inner.client(&url).request(Method::HEAD, url).timeout(self.inner.policy.base_timeout);
        let answer = answer.send().await.ok()?;
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let seconds = http_date(answer.headers().get(header::DATE)?.to_str().ok()?)?;
        Some(StoreTime {
            name: base.origin().ascii_serialization(),
            unix_ms: seconds.saturating_mul(1000).saturating_add(DATE_MARGIN_MS / 2),
            margin_ms: took_ms.saturating_add(DATE_MARGIN_MS / 2),
        })
    }
}

/// Seconds since 1970 of an HTTP date, in any of its three forms: `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110,
/// section 5.6.7).
#[must_use]
pub fn http_date(text: &str) -> Option<u64> {
    let time = httpdate::parse_http_date(text).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_dates_are_read_and_nothing_else_is() {
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(http_date("Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
        for text in ["", "Sun, 06 Nov 1994 08:49 GMT", "x, 1 Jan 18446744073709551615 1:1:1 GMT"] {
            assert_eq!(http_date(text), None, "{text}");
        }
    }
}
