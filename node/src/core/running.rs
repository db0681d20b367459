//! The running turns, by idempotency key. A session runs one turn at a time. Only this module knows sessions,
//! and only while their turns run.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use baton_proto::ids::{AuthHash, SessionId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::reply::Reply;
use crate::journal::TurnKey;

/// A running turn.
#[derive(Debug)]
pub(crate) struct Job {
    /// Its idempotency key.
    pub(crate) key: TurnKey,
    /// Its authorisation.
    pub(crate) auth_hash: AuthHash,
    /// Its reply.
    pub(crate) reply: Arc<Reply>,
    /// Stops it, unless it is sealed already.
    pub(crate) stop: CancellationToken,
    aborted: AtomicBool,
}

impl Job {
    /// Stops it because its client aborted it.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.stop.cancel();
    }

    /// Whether its client aborted it.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }
}

/// Outcome of the registration of a request.
pub(crate) enum Begin {
    /// A new turn.
    New(JobGuard),
    /// The same request as this running turn's.
    Same(Arc<Job>),
    /// A running turn has the same key with another authorisation.
    Conflict,
    /// Another turn of the session runs.
    SessionBusy(Arc<Job>),
}

/// All running turns, bounded by the slots, the queue and the engine's pace. A turn without a place in the
/// queue is here in two phases only: while it requests one, and between answer and journal.
#[derive(Debug)]
pub(crate) struct RunningTurns {
    sessions: Mutex<HashMap<SessionId, Arc<Job>>>,
    ended: watch::Sender<()>,
}

impl Default for RunningTurns {
    fn default() -> Self {
        Self { sessions: Mutex::default(), ended: watch::Sender::new(()) }
    }
}

impl RunningTurns {
    /// The running turn with this key.
    pub(crate) fn find(&self, key: &TurnKey) -> Option<Arc<Job>> {
        self.sessions.lock().get(&key.session_id).filter(|job| job.key == *key).cloned()
    }

    /// Registers a turn, if its session has none.
    pub(crate) fn begin(self: &Arc<Self>, key: TurnKey, auth_hash: AuthHash) -> Begin {
        match self.sessions.lock().entry(key.session_id) {
            Entry::Occupied(found) => {
                let job = found.get().clone();
                if job.key != key {
                    Begin::SessionBusy(job)
                } else if job.auth_hash == auth_hash {
                    Begin::Same(job)
                } else {
                    Begin::Conflict
                }
            }
            Entry::Vacant(vacant) => {
                let job = Arc::new(Job {
                    key,
                    auth_hash,
                    reply: Reply::new(),
                    stop: CancellationToken::new(),
                    aborted: AtomicBool::new(false),
                });
                vacant.insert(job.clone());
                Begin::New(JobGuard { running: self.clone(), job })
            }
        }
    }

    /// Waits until a turn has ended. Cancel safe.
    pub(crate) async fn ended(&self, job: &Arc<Job>) {
        let mut ended = self.ended.subscribe();
        let runs = || {
            let found = self.sessions.lock().get(&job.key.session_id).cloned();
            found.is_some_and(|found| Arc::ptr_eq(&found, job))
        };
        while runs() {
            // The sender lives in `self`, so this cannot fail.
            let _ = ended.changed().await;
        }
    }
}

/// Keeps a turn registered, and ends its reply on drop.
#[derive(Debug)]
pub(crate) struct JobGuard {
    running: Arc<RunningTurns>,
    /// The turn.
    pub(crate) job: Arc<Job>,
}

impl JobGuard {
    /// Frees the session for its next turn while the reply stays open. From now on the journal answers for
    /// this turn.
    pub(crate) fn release(&self) {
        {
            let mut sessions = self.running.sessions.lock();
            // A successor may be registered already.
            if sessions.get(&self.job.key.session_id).is_some_and(|job| Arc::ptr_eq(job, &self.job)) {
                sessions.remove(&self.job.key.session_id);
            }
        }
        self.running.ended.send_replace(());
    }
}

impl Drop for JobGuard {
    fn drop(&mut self) {
        // The order matters: a reader of the reply's end must find the session free.
        self.release();
        self.job.reply.finish();
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::ids::TurnId;

    use super::*;

    fn key(attempt: u32) -> TurnKey {
        TurnKey { session_id: SessionId([1; 32]), turn_id: TurnId([2; 16]), attempt }
    }

    #[tokio::test]
    async fn a_session_has_one_turn_and_the_same_request_finds_it() {
        let running = Arc::new(RunningTurns::default());
        let Begin::New(guard) = running.begin(key(0), AuthHash([1; 32])) else { panic!("not new") };
        assert!(matches!(running.begin(key(0), AuthHash([1; 32])), Begin::Same(_)));
        assert!(matches!(running.begin(key(0), AuthHash([2; 32])), Begin::Conflict));
        assert!(matches!(running.begin(key(1), AuthHash([3; 32])), Begin::SessionBusy(_)));
        assert!(running.find(&key(0)).is_some() && running.find(&key(1)).is_none());
        let job = guard.job.clone();
        tokio::join!(running.ended(&job), async { drop(guard) });
        assert!(matches!(running.begin(key(1), AuthHash([3; 32])), Begin::New(_)));
    }

    #[test]
    fn a_released_turn_does_not_remove_its_successor() {
        let running = Arc::new(RunningTurns::default());
        let Begin::New(first) = running.begin(key(0), AuthHash([1; 32])) else { panic!("not new") };
        first.release();
        let Begin::New(second) = running.begin(key(1), AuthHash([2; 32])) else { panic!("not new") };
        drop(first);
        assert!(matches!(running.begin(key(2), AuthHash([3; 32])), Begin::SessionBusy(_)));
        drop(second);
        assert!(running.find(&key(1)).is_none());
    }
}
