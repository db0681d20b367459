//! The reply of one turn: a log of encoded frames. The turn appends frames, and any number of streams follow.
//!
//! The log makes attaching simple: a second connection reads it from the start, under the same nonce. The
//! fastest reader sets the pace of the turn, so a dead stream cannot delay a live one. Without any reader the
//! turn waits, and ends after a grace period.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use baton_mesh::{FrameError, TurnStream};
use baton_proto::{codec, wire::NodeFrame};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::limits::{MAX_FRAMES_AHEAD, MAX_REPLY_BYTES, MAX_STRAY_FRAME_BYTES};

/// The log would exceed [`MAX_REPLY_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplyFull;

/// The log.
#[derive(Debug)]
pub(crate) struct Reply {
    state: Mutex<ReplyState>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct ReplyState {
    frames: Vec<Arc<[u8]>>,
    bytes: usize,
    finished: bool,
    next_reader: u64,
    /// Frames delivered, by reader.
    readers: BTreeMap<u64, usize>,
    /// Start of the time without readers. `None` with a reader, or before the first reader.
    unread_since: Option<Instant>,
}

impl ReplyState {
    fn furthest(&self) -> Option<usize> {
        self.readers.values().copied().max()
    }
}

impl Reply {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: watch::Sender::new(()) })
    }

    /// Appends a frame.
    pub(crate) fn push(&self, frame: &NodeFrame) -> Result<(), ReplyFull> {
        let encoded: Arc<[u8]> = codec::encode(frame).into();
        {
            let mut state = self.state.lock();
            if state.bytes + encoded.len() > MAX_REPLY_BYTES {
                return Err(ReplyFull);
            }
            state.bytes += encoded.len();
            state.frames.push(encoded);
        }
        self.changed.send_replace(());
        Ok(())
    }

    /// Ends the log.
    pub(crate) fn finish(&self) {
        self.state.lock().finished = true;
        self.changed.send_replace(());
    }

    async fn until(&self, condition: impl Fn(&ReplyState) -> bool) {
        let mut changed = self.changed.subscribe();
        while !condition(&self.state.lock()) {
            // The sender lives in `self`, so this cannot fail.
            let _ = changed.changed().await;
        }
    }

    /// Waits until some reader is close enough for another frame. Cancel safe.
    pub(crate) async fn paced(&self) {
        self.until(|state| {
            state.furthest().is_some_and(|furthest| state.frames.len() < furthest + MAX_FRAMES_AHEAD)
        })
        .await;
    }

    /// Waits until some reader has all frames so far. Cancel safe.
    pub(crate) async fn delivered(&self) {
        self.until(|state| state.furthest().is_some_and(|furthest| furthest >= state.frames.len())).await;
    }

    /// Whether there is no reader.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.state.lock().readers.is_empty()
    }

    /// Returns after `grace` without any reader. Cancel safe.
    pub(crate) async fn abandoned(&self, grace: Duration) {
        loop {
            self.until(|state| state.readers.is_empty()).await;
            let attached = self.until(|state| !state.readers.is_empty());
            if tokio::time::timeout(grace, attached).await.is_err() {
                return;
            }
        }
    }

    /// How long there has been no reader. `None` with a reader, or before the first reader.
    pub(crate) fn unread_for(&self) -> Option<Duration> {
        self.state.lock().unread_since.map(|since| since.elapsed())
    }

    /// Adds a reader from the first frame on.
    pub(crate) fn attach(self: &Arc<Self>) -> Reader {
        let mut state = self.state.lock();
        state.unread_since = None;
        let id = state.next_reader;
        state.next_reader += 1;
        state.readers.insert(id, 0);
        drop(state);
        self.changed.send_replace(());
        Reader { reply: self.clone(), id, next: 0 }
    }
}

/// One stream's position in the log. Dropping it detaches the stream.
#[derive(Debug)]
pub(crate) struct Reader {
    reply: Arc<Reply>,
    id: u64,
    next: usize,
}

impl Reader {
    /// The next frame, once there is one; `None` after the last. Cancel safe. Returns the same frame until
    /// [`Reader::sent`].
    async fn next(&self) -> Option<Arc<[u8]>> {
        self.reply.until(|state| state.finished || state.frames.len() > self.next).await;
        self.reply.state.lock().frames.get(self.next).cloned()
    }

    fn sent(&mut self) {
        self.next += 1;
        self.reply.state.lock().readers.insert(self.id, self.next);
        self.reply.changed.send_replace(());
    }

    /// Sends the log over a stream to its end, until the peer leaves, or until the peer accepts nothing for
    /// `stall`.
    pub(crate) async fn follow(mut self, stream: TurnStream, stall: Duration) -> Result<(), FrameError> {
        let (mut sender, mut receiver) = stream.split();
        let sending = async {
            while let Some(frame) = self.next().await {
                sender.send_by(&frame, Instant::now() + stall).await?;
                self.sent();
            }
            sender.close().await
        };
        let leaving = async {
            match receiver.recv(MAX_STRAY_FRAME_BYTES).await {
                // The peer only closed its sending side, as it may.
                Ok(None) => std::future::pending().await,
                Ok(Some(_)) => FrameError::Interrupted,
                Err(error) => error,
            }
        };
        tokio::select! {
            biased;
            result = sending => result,
            error = leaving => Err(error),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.reply.state.lock();
        state.readers.remove(&self.id);
        if state.readers.is_empty() {
            state.unread_since = Some(Instant::now());
        }
        drop(state);
        self.reply.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn is_paced_by_the_fastest_reader_and_waits_without_one() {
        let reply = Reply::new();
        assert!(reply.paced().now_or_never().is_none(), "nobody reads");
        let mut fast = reply.attach();
        let _dead = reply.attach();
        for _ in 0..MAX_FRAMES_AHEAD {
            reply.paced().now_or_never().expect("room ahead of the reader");
            reply.push(&NodeFrame::Done).unwrap();
        }
        assert!(reply.paced().now_or_never().is_none(), "the reader is behind");
        assert!(fast.next().await.is_some());
        fast.sent();
        reply.paced().now_or_never().expect("the fast reader made room");
    }

    #[tokio::test]
    async fn is_abandoned_only_after_the_grace() {
        let reply = Reply::new();
        let grace = Duration::from_millis(50);
        let reader = reply.attach();
        assert!(tokio::time::timeout(grace * 2, reply.abandoned(grace)).await.is_err());
        drop(reader);
        let begin = Instant::now();
        reply.abandoned(grace).await;
        assert!(begin.elapsed() >= grace);
    }

    #[tokio::test]
    async fn a_reader_that_comes_back_begins_a_new_grace() {
        let reply = Reply::new();
        assert_eq!(reply.unread_for(), None);
        drop(reply.attach());
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(reply.unread_for().is_some_and(|unread| unread >= Duration::from_millis(20)));
        let (first, second) = (reply.attach(), reply.attach());
        assert_eq!(reply.unread_for(), None);
        drop(first);
        assert_eq!(reply.unread_for(), None);
        drop(second);
        assert!(reply.unread_for().is_some_and(|unread| unread < Duration::from_millis(20)));
    }

    #[test]
    fn refuses_to_grow_without_bound() {
        let reply = Reply::new();
        let frame = NodeFrame::Chunk(vec![0; 1024 * 1024]);
        let taken = std::iter::repeat_with(|| reply.push(&frame)).take_while(Result::is_ok).count();
        assert_eq!(taken, MAX_REPLY_BYTES / (1024 * 1024) - 1);
    }
}
