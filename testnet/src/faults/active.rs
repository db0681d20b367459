//! The plan in force, the request counts, and the times of first PUTs.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::http::Method;
use baton_proto::ids::BlobId;
use baton_walrus_client::QuiltPatchId;
use parking_lot::{Mutex, RwLock};

use super::{Fault, FaultPlan, FaultRoute, draw};

/// Most blobs whose first PUT is remembered: a few megabytes. When full, those with expired windows are
/// removed; if none has expired, new blobs get no window.
const MAX_REMEMBERED_PUTS: usize = 65_536;

/// The faults of one store; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    plan: Arc<RwLock<Option<Arc<ActivePlan>>>>,
}

/// A plan in force; each new plan gets its own, so that counting restarts.
#[derive(Debug, Default)]
pub(super) struct ActivePlan {
    plan: FaultPlan,
    /// Requests seen, by kind.
    requests: [AtomicU64; 4],
    first_puts: Mutex<HashMap<BlobId, Instant>>,
}

/// The facts about a request before it is served.
pub(super) struct FaultyRequest {
    pub(super) route: FaultRoute,
    pub(super) reads: bool,
    /// The blob or quilt of a read, if its path names it.
    pub(super) blob: Option<BlobId>,
}

impl Faults {
    /// The faults of a plan.
    #[must_use]
    pub fn new(plan: FaultPlan) -> Self {
        let faults = Self::default();
        faults.set(plan);
        faults
    }

    /// Installs another plan and restarts the counts.
    pub fn set(&self, plan: FaultPlan) {
        let running = (!plan.rules.is_empty()).then(|| Arc::new(ActivePlan::new(plan)));
        *self.plan.write() = running;
    }

    /// Notes that a blob was stored other than by a request.
    pub fn stored(&self, id: BlobId) {
        self.running().iter().for_each(|running| running.stored(id, Instant::now()));
    }

    pub(super) fn running(&self) -> Option<Arc<ActivePlan>> {
        self.plan.read().clone()
    }
}

impl ActivePlan {
    fn new(plan: FaultPlan) -> Self {
        Self { plan, ..Self::default() }
    }

    /// The longest time in which reads find nothing after a PUT.
    pub(super) fn window(&self) -> Option<Duration> {
        let windows = self.plan.rules.iter().filter_map(|rule| match rule.fault {
            Fault::NotFoundAfterPut(window) => Some(window),
            _ => None,
        });
        windows.max()
    }

    /// Notes that a blob was stored.
    pub(super) fn stored(&self, id: BlobId, now: Instant) {
        let Some(window) = self.window() else { return };
        let mut first_puts = self.first_puts.lock();
        if first_puts.len() >= MAX_REMEMBERED_PUTS {
            first_puts.retain(|_, first| now.duration_since(*first) < window);
        }
        if first_puts.len() < MAX_REMEMBERED_PUTS {
            first_puts.entry(id).or_insert(now);
        }
    }

    /// The fault that the next request of this kind meets.
    pub(super) fn decide(&self, subject: &FaultyRequest, now: Instant) -> Option<Fault> {
        // `Any` is last and is never the kind of a request.
        let counter = self.requests.get(subject.route as usize)?;
        let number = counter.fetch_add(1, Ordering::Relaxed);
        let first_put = subject.blob.and_then(|id| self.first_puts.lock().get(&id).copied());
        let rules = self.plan.rules.iter().zip(0..);
        let fitting = rules.filter(|(rule, _)| {
            let is_covered = [FaultRoute::Any, subject.route].contains(&rule.route);
            is_covered && rule.fault.fits(subject.route, subject.reads)
        });
        let mut drawn = fitting.filter(|(rule, index)| match (rule.fault, subject.blob) {
            (Fault::NotFoundAfterPut(window), Some(blob)) => {
                let [first, ..] = blob.0.as_chunks::<8>().0 else { return false };
                // By blob alone: GET and HEAD see the same cache.
                let drawn = draw(self.plan.seed, 0, FaultRoute::Any, u64::from_le_bytes(*first));
                drawn < rule.share && first_put.is_some_and(|first| now.duration_since(first) < window)
            }
            (Fault::NotFoundAfterPut(_), None) => false,
            _ => draw(self.plan.seed, *index, subject.route, number) < rule.share,
        });
        drawn.next().map(|(rule, _)| rule.fault)
    }
}

impl FaultyRequest {
    /// The facts about a request, or `None` if no fault applies to it.
    pub(super) fn of(method: &Method, path: &str) -> Option<Self> {
        let mut parts = path.strip_prefix('/')?.split('/');
        let (version, kind) = (parts.next()?, parts.next()?);
        let (first, second) = (parts.next(), parts.next());
        let (quilt, blob) = match (version, kind) {
            ("v1alpha", "blobs") => (false, None),
            ("v1", "quilts") => (true, first.and_then(|id| id.parse().ok())),
            ("v1", "blobs") => match (first, second) {
                (Some("by-quilt-id"), Some(id)) => (true, id.parse().ok()),
                (Some("by-quilt-patch-id"), Some(id)) => {
                    (true, id.parse::<QuiltPatchId>().ok().map(|patch| patch.quilt))
                }
                (first, _) => (false, first.and_then(|id| id.parse().ok())),
            },
            _ => return None,
        };
        let (route, reads) = match *method {
            Method::PUT => (FaultRoute::Put, false),
            Method::HEAD => (FaultRoute::Head, true),
            Method::GET | Method::POST => (FaultRoute::Get, true),
            _ => return None,
        };
        let route = match (quilt, route) {
            (true, FaultRoute::Put | FaultRoute::Get) => FaultRoute::Quilt,
            (_, route) => route,
        };
        Some(Self { route, reads, blob })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(route: FaultRoute, blob: Option<BlobId>) -> FaultyRequest {
        FaultyRequest { route, reads: route != FaultRoute::Put, blob }
    }

    fn plan(text: &str) -> ActivePlan {
        ActivePlan::new(text.parse().unwrap())
    }

    #[test]
    fn the_same_plan_decides_the_same() {
        let decisions = || {
            let running = plan("put:500=0.3,get:503=0.3,any:429=0.2;seed=3");
            let routes = [FaultRoute::Put, FaultRoute::Get, FaultRoute::Head];
            let each =
                (0..300).map(|number| running.decide(&subject(routes[number % 3], None), Instant::now()));
            each.collect::<Vec<_>>()
        };
        let first = decisions();
        assert_eq!(first, decisions());
        for fault in [None, Some(Fault::Internal), Some(Fault::Unavailable), Some(Fault::TooMany)] {
            assert!(first.contains(&fault), "{fault:?}");
        }
    }

    #[test]
    fn shares_of_a_window_are_of_blobs() {
        let (running, start) = (plan("get:404-after-put=60m@0.5"), Instant::now());
        let mut absent = 0;
        for id in (0..=255).map(|byte| BlobId([byte; 32])) {
            running.stored(id, start);
            let first = running.decide(&subject(FaultRoute::Get, Some(id)), start);
            assert_eq!(first, running.decide(&subject(FaultRoute::Get, Some(id)), start));
            absent += u32::from(first.is_some());
        }
        assert!((90..166).contains(&absent), "{absent}");
    }

    #[test]
    fn requests_are_told_apart_by_path() {
        let id = BlobId([0xa7; 32]);
        let patch = QuiltPatchId { quilt: id, start: 2, end: 3 };
        for (method, path, expected) in [
            (Method::PUT, "/v1/blobs".to_owned(), Some((FaultRoute::Put, false, None))),
            (Method::GET, format!("/v1/blobs/{id}"), Some((FaultRoute::Get, true, Some(id)))),
            (Method::HEAD, format!("/v1/blobs/{id}"), Some((FaultRoute::Head, true, Some(id)))),
            (Method::GET, format!("/v1/blobs/{id}/byte-range"), Some((FaultRoute::Get, true, Some(id)))),
            (Method::GET, "/v1/blobs/by-object-id/0x12".to_owned(), Some((FaultRoute::Get, true, None))),
            (Method::PUT, "/v1/quilts".to_owned(), Some((FaultRoute::Quilt, false, None))),
            (Method::GET, format!("/v1/quilts/{id}/patches"), Some((FaultRoute::Quilt, true, Some(id)))),
            (Method::GET, format!("/v1/blobs/by-quilt-id/{id}/a"), Some((FaultRoute::Quilt, true, Some(id)))),
            (
                Method::GET,
                format!("/v1/blobs/by-quilt-patch-id/{patch}"),
                Some((FaultRoute::Quilt, true, Some(id))),
            ),
            (Method::POST, "/v1alpha/blobs/concat".to_owned(), Some((FaultRoute::Get, true, None))),
            (Method::DELETE, format!("/v1/blobs/{id}"), None),
            (Method::GET, "/status".to_owned(), None),
            (Method::PUT, "/v1/baton/heads".to_owned(), None),
        ] {
            let found = FaultyRequest::of(&method, &path).map(|found| (found.route, found.reads, found.blob));
            assert_eq!(found, expected, "{method} {path}");
        }
    }
}
