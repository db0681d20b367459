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

#[derive(Default)]
struct Line {
    events: VecDeque<Event>,
    /// Whether there is a reader.
    is_read: bool,
    /// Whether no more events will come.
    is_over: bool,
}

struct Shared {
    line: Mutex<Line>,
    news: Condvar,
    capacity: usize,
}

impl Shared {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        self.line().events.push_back(event);
        self.news.notify_one();
    }
}

/// A sink that buffers at most `capacity` tokens for a slower reader, and the reader.
#[must_use]
pub fn channel(capacity: usize) -> (ChannelSink, Events) {
    let line = Mutex::new(Line { is_read: true, ..Line::default() });
    let shared = Arc::new(Shared { line, news: Condvar::new(), capacity: capacity.max(1) });
    (ChannelSink(Arc::clone(&shared)), Events(shared))
}

/// The writing end of [`channel`].
pub struct ChannelSink(Arc<Shared>);

impl Sink for ChannelSink {
    fn room(&mut self) -> Option<usize> {
        let line = self.0.line();
        let tokens = line.events.iter().filter(|event| matches!(event, Event::Token(_))).count();
        line.is_read.then(|| self.0.capacity.saturating_sub(tokens))
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
        self.0.line().is_over = true;
        self.0.news.notify_one();
    }
}

/// The reading end of [`channel`]. Dropping it ends the request within a token.
pub struct Events(Arc<Shared>);

impl Events {
    /// Waits for the next event; `None` after the last, or at once if the request was refused.
    #[must_use]
    pub fn wait(&self) -> Option<Event> {
        let mut line = self.0.line();
        loop {
            if let Some(event) = line.events.pop_front() {
                return Some(event);
            }
            if line.is_over {
                return None;
            }
            line = self.0.news.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next event, if there is one already.
    #[must_use]
    pub fn poll(&self) -> Option<Event> {
        self.0.line().events.pop_front()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let mut line = self.0.line();
        line.is_read = false;
        line.events.clear();
    }
}
