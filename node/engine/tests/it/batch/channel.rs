//! A sink whose events another thread reads.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicUsize, Ordering},
    mpsc::{self, Receiver, Sender},
};

use baton_engine::batch::{BatchError, Batcher, Finish, Request, Sink, Stats};

use super::bench::{Record, request};

/// Events that a reader gets: [`Self::Started`], any number of [`Self::Token`], [`Self::Finished`].
#[derive(Debug, PartialEq)]
pub(super) enum Event {
    Started { prompt: usize, cached: usize },
    Token(u32),
    Finished(Finish),
}

/// The writing end. It takes at most `capacity` tokens that nobody has read yet.
pub(super) struct ChannelSink {
    events: Sender<Event>,
    unread: Weak<AtomicUsize>,
    capacity: usize,
}

/// The reading end.
pub(super) struct Events {
    events: Receiver<Event>,
    unread: Arc<AtomicUsize>,
}

pub(super) fn channel(capacity: usize) -> (ChannelSink, Events) {
    let ((sender, events), unread) = (mpsc::channel(), Arc::default());
    (ChannelSink { events: sender, unread: Arc::downgrade(&unread), capacity }, Events { events, unread })
}

impl Sink for ChannelSink {
    fn room(&mut self) -> Option<usize> {
        Some(self.capacity.saturating_sub(self.unread.upgrade()?.load(Ordering::SeqCst)))
    }

    fn started(&mut self, prompt: usize, cached: usize) {
        let _ = self.events.send(Event::Started { prompt, cached });
    }

    fn token(&mut self, token: u32, _logits: &[f32]) {
        if let Some(unread) = self.unread.upgrade() {
            unread.fetch_add(1, Ordering::SeqCst);
        }
        let _ = self.events.send(Event::Token(token));
    }

    fn finished(self: Box<Self>, finish: Finish, _stats: Stats) {
        let _ = self.events.send(Event::Finished(finish));
    }
}

impl Events {
    /// Waits for the next event; `None` after the last.
    pub(super) fn wait(&self) -> Option<Event> {
        let event = self.events.recv().ok()?;
        if matches!(event, Event::Token(_)) {
            self.unread.fetch_sub(1, Ordering::SeqCst);
        }
        Some(event)
    }

    /// The tokens and the end of a request.
    pub(super) fn read(&self) -> (Vec<u32>, Finish) {
        let (mut tokens, mut end) = (Vec::new(), None);
        while let Some(event) = self.wait() {
            assert_eq!(end, None, "nothing comes after the end");
            match event {
                Event::Started { .. } => assert!(tokens.is_empty()),
                Event::Token(token) => tokens.push(token),
                Event::Finished(finish) => end = Some(finish),
            }
        }
        (tokens, end.unwrap())
    }
}

/// Submits a greedy request of session 0.
pub(super) fn ask(
    batcher: &Batcher,
    prompt: &[u32],
    max_tokens: usize,
    capacity: usize,
) -> Result<Events, BatchError> {
    let (sink, events) = channel(capacity);
    let request = Request { sink: Box::new(sink), ..request(prompt, max_tokens, &Record::new()) };
    batcher.submit(request).map(|()| events)
}
