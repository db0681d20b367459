//! A sink whose events another thread reads.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use super::request::{Finish, Sink, Stats};

/// Events that a reader gets: [`Self::Started`], any number of [`Self::Token`], [`Self::Finished`].
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The request was admitted.
    Started {
        /// Tokens of the prompt.
        prompt: usize,
        /// Prompt tokens that had been computed before.
        cached: usize,
    },
    /// A token of the answer.
    Token(u32),
    /// The request is over.
    Finished {
        /// How it ended.
        finish: Finish,
        /// Counts and times.
        stats: Stats,
    },
}

/// Events in order, and the state of both ends.
#[derive(Default)]
struct EventBuffer {
    events: VecDeque<Event>,
    /// Whether there is a reader.
    is_read: bool,
    /// Whether no more events will come.
    is_over: bool,
}

/// The queue between both ends.
struct EventQueue {
    buffer: Mutex<EventBuffer>,
    changed: Condvar,
    capacity: usize,
}

impl EventQueue {
    fn lock(&self) -> MutexGuard<'_, EventBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        self.lock().events.push_back(event);
        self.changed.notify_one();
    }
}

/// A sink that buffers at most `capacity` tokens for a slower reader, and the reader.
#[must_use]
pub fn channel(capacity: usize) -> (ChannelSink, Events) {
    let buffer = Mutex::new(EventBuffer { is_read: true, ..EventBuffer::default() });
    let queue = Arc::new(EventQueue { buffer, changed: Condvar::new(), capacity: capacity.max(1) });
    (ChannelSink(Arc::clone(&queue)), Events(queue))
}

/// The writing end of [`channel`].
pub struct ChannelSink(Arc<EventQueue>);

impl Sink for ChannelSink {
    fn room(&mut self) -> Option<usize> {
        let buffer = self.0.lock();
        let tokens = buffer.events.iter().filter(|event| matches!(event, Event::Token(_))).count();
        buffer.is_read.then(|| self.0.capacity.saturating_sub(tokens))
    }

    fn started(&mut self, prompt: usize, cached: usize) {
        self.0.push(Event::Started { prompt, cached });
    }

    fn token(&mut self, token: u32, _logits: &[f32]) {
        self.0.push(Event::Token(token));
    }

    fn finished(self: Box<Self>, finish: Finish, stats: Stats) {
        self.0.push(Event::Finished { finish, stats });
    }
}

impl Drop for ChannelSink {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.changed.notify_one();
    }
}

/// The reading end of [`channel`]. Dropping it ends the request within a token.
pub struct Events(Arc<EventQueue>);

impl Events {
    /// Waits for the next event; `None` after the last, or at once if the request was refused.
    #[must_use]
    pub fn wait(&self) -> Option<Event> {
        let mut buffer = self.0.lock();
        loop {
            if let Some(event) = buffer.events.pop_front() {
                return Some(event);
            }
            if buffer.is_over {
                return None;
            }
            buffer = self.0.changed.wait(buffer).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next event, if there is one already.
    #[must_use]
    pub fn poll(&self) -> Option<Event> {
        self.0.lock().events.pop_front()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let mut buffer = self.0.lock();
        buffer.is_read = false;
        buffer.events.clear();
    }
}
