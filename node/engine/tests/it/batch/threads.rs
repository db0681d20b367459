//! The batcher's thread: its queue, its end, and many callers.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use baton_engine::batch::{BatchError, BatchOptions, Batcher, Choice, Chooser, Finish, Request};

use super::{
    bench::{Record, model, plain, request, tiny},
    channel::{Event, Events, ask, channel},
};

fn batcher(options: BatchOptions) -> Batcher {
    Batcher::spawn("test", model(&tiny(), 64), options).unwrap()
}

#[test]
fn many_callers_are_answered() {
    let batcher = batcher(BatchOptions { queue: 100, ..BatchOptions::default() });
    let wanted = ask(&batcher, &[5; 30], 20, 64).unwrap().read();
    std::thread::scope(|scope| {
        let ask = || ask(&batcher, &[5; 30], 20, 2).unwrap().read();
        let threads: Vec<_> = (0..40).map(|_| scope.spawn(ask)).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), wanted);
        }
    });
    let wanted = (wanted.0.len(), wanted.1);
    assert_eq!(wanted, (20, Finish::Length));
}

#[test]
fn a_full_queue_refuses_and_a_dropped_reader_makes_room() {
    let batcher = batcher(BatchOptions { slots: 1, queue: 1, ..plain() });
    let first = ask(&batcher, &[1; 5], 400, 1).unwrap();
    // The request runs, and waits for its reader.
    assert_eq!(first.wait(), Some(Event::Started { prompt: 5, cached: 0 }));
    let second = ask(&batcher, &[1; 5], 3, 9).unwrap();
    assert_eq!(ask(&batcher, &[1; 5], 3, 9).err(), Some(BatchError::Busy { limit: 1 }));
    assert_eq!(
        ask(&batcher, &[1; 500], 100, 9).err().map(|error| error.to_string().contains("context")),
        Some(true)
    );
    drop(first);
    assert_eq!(second.read().1, Finish::Length);
    // The answer's end arrives before the load changes.
    let begun = Instant::now();
    while batcher.load().kv_bytes > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", batcher.load());
        std::thread::yield_now();
    }
}

#[test]
fn shutdown_answers_everyone_and_refuses_the_next() {
    let batcher = batcher(BatchOptions { slots: 2, queue: 8, ..plain() });
    // The readers read nothing: two requests run and wait for them, the others wait for a slot.
    let requests: Vec<Events> = (0..8).map(|_| ask(&batcher, &[1; 5], 300, 1).unwrap()).collect();
    assert!(matches!(requests[0].wait(), Some(Event::Started { .. })));
    batcher.shutdown();
    for events in &requests {
        assert_eq!(events.read().1, Finish::Failed(BatchError::ShutDown));
    }
    assert_eq!(ask(&batcher, &[1; 5], 3, 9).err(), Some(BatchError::ShutDown));
    batcher.shutdown();
}

/// Reports its first call, and waits for permission to go on.
struct PausedChooser(mpsc::Sender<()>, mpsc::Receiver<()>);

impl Chooser for PausedChooser {
    fn choose(&mut self, _: &[u32], _: &[f32]) -> Choice {
        self.0.send(()).unwrap();
        self.1.recv().unwrap();
        Choice::End
    }
}

#[test]
fn requests_during_a_step_are_counted_and_answered_at_shutdown() {
    let batcher = batcher(BatchOptions { slots: 1, queue: 3, ..plain() });
    let (report, reported) = mpsc::channel();
    let (go, wait) = mpsc::channel();
    let (sink, held) = channel(4);
    let chooser = Box::new(PausedChooser(report, wait));
    batcher.submit(Request { sink: Box::new(sink), chooser, ..request(&[1; 5], 3, &Record::new()) }).unwrap();
    reported.recv().unwrap();
    let requests: Vec<Events> = (0..3).map(|_| ask(&batcher, &[1; 5], 3, 9).unwrap()).collect();
    assert_eq!(ask(&batcher, &[1; 5], 3, 9).err(), Some(BatchError::Busy { limit: 3 }));
    assert_eq!((batcher.load().running, batcher.load().waiting), (0, 4));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| batcher.shutdown());
        while ask(&batcher, &[1; 5], 3, 9).err() != Some(BatchError::ShutDown) {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        thread.join().unwrap();
    });
    assert_eq!(held.read().1, Finish::End);
    for events in &requests {
        assert_eq!(events.read(), (Vec::new(), Finish::Failed(BatchError::ShutDown)));
    }
}
