//! Traces of turns for an OpenTelemetry collector (OTLP over HTTP): the duration and the outcome of each step
//! of a turn.
//!
//! The turn service begins a `TurnTrace` for each admitted turn; `export` sends ended spans. A span contains
//! names from fixed lists, counts, times, and the session's log pseudonym. Its interface admits no text, key
//! or ID. Tracing never delays a turn: ended spans go into a bounded queue, and are dropped when it is full.
//! Traces begin and end on this node. Trace contexts are never exchanged with peers, because they would link
//! turns together.

mod export;

use std::{
    sync::{Arc, Mutex},
    time::SystemTime,
};

use baton_keys::secret::random_bytes;
use baton_proto::ErrorCode;
use opentelemetry::{
    InstrumentationScope, KeyValue, SpanId, TraceFlags, TraceId,
    trace::{SpanContext, SpanKind, Status, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use tokio::{sync::mpsc, time::Instant};

pub(crate) use export::About;
pub(crate) use export::Exporter;
pub(crate) use export::start;

use crate::{lock::lock, metrics::Metrics};

/// Outcome of a span without a recorded end: its turn was stopped, or failed before that.
const UNFINISHED: &str = "unfinished";

/// The queue to the exporter, or none.
#[derive(Clone, Default)]
pub struct Telemetry(Option<Arc<Sink>>);

struct Sink {
    queue: mpsc::Sender<SpanData>,
    metrics: Arc<Metrics>,
    scope: InstrumentationScope,
}

impl Sink {
    fn put(&self, span: SpanData) {
        // An ended exporter counts like a slow one.
        if self.queue.try_send(span).is_err() {
            self.metrics.spans_ended("dropped", 1);
        }
    }
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Telemetry").field(&self.0.is_some()).finish()
    }
}

impl Telemetry {
    /// The trace of a turn that arrived at `arrived`. `session` returns the session's log pseudonym.
    pub(crate) fn turn(&self, arrived: Instant, session: impl FnOnce() -> String) -> TurnTrace {
        let live = self.0.as_ref().map(|sink| {
            let named = KeyValue::new("baton.session", session());
            Arc::new(Live {
                sink: sink.clone(),
                trace: TraceId::from_bytes(random_bytes()),
                root: SpanId::from_bytes(random_bytes()),
                arrived,
                wall: SystemTime::now() - arrived.elapsed(),
                turn_facts: Mutex::new(TurnFacts { facts: vec![named], outcome: UNFINISHED }),
            })
        });
        TurnTrace(live)
    }
}

/// State shared by the spans of one turn.
struct Live {
    sink: Arc<Sink>,
    trace: TraceId,
    root: SpanId,
    arrived: Instant,
    wall: SystemTime,
    turn_facts: Mutex<TurnFacts>,
}

struct TurnFacts {
    facts: Vec<KeyValue>,
    outcome: &'static str,
}

/// An ended span.
struct EndedSpan {
    name: &'static str,
    kind: SpanKind,
    id: SpanId,
    parent: SpanId,
    from: Instant,
    to: Instant,
    facts: Vec<KeyValue>,
    outcome: &'static str,
    failed: bool,
}

impl Live {
    fn at(&self, instant: Instant) -> SystemTime {
        self.wall + instant.saturating_duration_since(self.arrived)
    }

    fn put(&self, span: EndedSpan) {
        let EndedSpan { name, kind, id, parent, from, to, mut facts, outcome, failed } = span;
        facts.push(KeyValue::new("baton.outcome", outcome));
        self.sink.put(SpanData {
            span_context: SpanContext::new(self.trace, id, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: parent,
            parent_span_is_remote: false,
            span_kind: kind,
            name: name.into(),
            start_time: self.at(from),
            end_time: self.at(to),
            attributes: facts,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: if failed { Status::error(outcome) } else { Status::Ok },
            instrumentation_scope: self.sink.scope.clone(),
        });
    }
}

/// The trace of one turn. Dropping it ends its root span.
pub(crate) struct TurnTrace(Option<Arc<Live>>);

impl TurnTrace {
    /// Begins a step.
    pub(crate) fn phase(&self, name: &'static str) -> Phase {
        let open = self.0.as_ref().map(|live| Open {
            live: live.clone(),
            name,
            kind: SpanKind::Internal,
            id: SpanId::from_bytes(random_bytes()),
            from: Instant::now(),
            facts: Vec::new(),
        });
        Phase(open)
    }

    /// Records a step that is already over.
    pub(crate) fn past(&self, name: &'static str, from: Instant, to: Instant) {
        if let Some(live) = &self.0 {
            live.past(name, live.root, from, to);
        }
    }

    /// Adds a count to the turn.
    pub(crate) fn count(&self, name: &'static str, count: u64) {
        if let Some(live) = &self.0 {
            lock(&live.turn_facts).facts.push(number(name, count));
        }
    }

    /// Sets the outcome of the turn: `committed`, or the name of an error code.
    pub(crate) fn outcome(&self, outcome: &'static str) {
        if let Some(live) = &self.0 {
            lock(&live.turn_facts).outcome = outcome;
        }
    }
}

impl Live {
    fn past(&self, name: &'static str, parent: SpanId, from: Instant, to: Instant) {
        self.put(EndedSpan {
            name,
            kind: SpanKind::Internal,
            id: SpanId::from_bytes(random_bytes()),
            parent,
            from,
            to,
            facts: Vec::new(),
            outcome: "done",
            failed: false,
        });
    }
}

impl Drop for TurnTrace {
    fn drop(&mut self) {
        let Some(live) = self.0.take() else { return };
        let (facts, outcome) = {
            let mut turn_facts = lock(&live.turn_facts);
            (std::mem::take(&mut turn_facts.facts), turn_facts.outcome)
        };
        live.put(EndedSpan {
            name: "turn",
            kind: SpanKind::Server,
            id: live.root,
            parent: SpanId::INVALID,
            from: live.arrived,
            to: Instant::now(),
            facts,
            outcome,
            failed: outcome != "committed",
        });
    }
}

/// A step in progress. Dropping it ends it as unfinished. It may outlive its turn.
pub(crate) struct Phase(Option<Open>);

struct Open {
    live: Arc<Live>,
    name: &'static str,
    kind: SpanKind,
    id: SpanId,
    from: Instant,
    facts: Vec<KeyValue>,
}

impl Phase {
    /// A step without a trace.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Marks the step as waiting for another party.
    pub(crate) fn asking(mut self) -> Self {
        if let Some(open) = &mut self.0 {
            open.kind = SpanKind::Client;
        }
        self
    }

    /// Adds a count.
    pub(crate) fn count(mut self, name: &'static str, count: u64) -> Self {
        if let Some(open) = &mut self.0 {
            open.facts.push(number(name, count));
        }
        self
    }

    /// Records a finished part of the step.
    pub(crate) fn past(&self, name: &'static str, from: Instant, to: Instant) {
        if let Some(open) = &self.0 {
            open.live.past(name, open.id, from, to);
        }
    }

    /// Runs the step's work, and ends the step with it.
    pub(crate) async fn around<T, E: Clone + Into<ErrorCode>>(
        self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let result = work.await;
        self.end(&result);
        result
    }

    /// Ends the step with its result.
    pub(crate) fn end<T, E: Clone + Into<ErrorCode>>(self, result: &Result<T, E>) {
        match result {
            Ok(_) => self.end_as("done", false),
            Err(error) => self.end_as(error.clone().into().name(), true),
        }
    }

    /// Ends the step with an outcome from a fixed list.
    pub(crate) fn end_as(mut self, outcome: &'static str, failed: bool) {
        if let Some(open) = self.0.take() {
            open.end(outcome, failed);
        }
    }
}

impl Open {
    fn end(self, outcome: &'static str, failed: bool) {
        let Self { live, name, kind, id, from, facts } = self;
        let (parent, to) = (live.root, Instant::now());
        live.put(EndedSpan { name, kind, id, parent, from, to, facts, outcome, failed });
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            open.end(UNFINISHED, true);
        }
    }
}

fn number(name: &'static str, count: u64) -> KeyValue {
    KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn telemetry(room: usize) -> (Telemetry, mpsc::Receiver<SpanData>, Arc<Metrics>) {
        let (queue, spans) = mpsc::channel(room);
        let metrics = Arc::new(Metrics::new(1, 1));
        let scope = InstrumentationScope::builder("test").build();
        (Telemetry(Some(Arc::new(Sink { queue, metrics: metrics.clone(), scope }))), spans, metrics)
    }

    fn all(spans: &mut mpsc::Receiver<SpanData>) -> Vec<SpanData> {
        std::iter::from_fn(|| spans.try_recv().ok()).collect()
    }

    #[tokio::test]
    async fn steps_hang_below_their_turn_and_end_with_its_drop_or_their_result() {
        let (telemetry, mut spans, _) = telemetry(16);
        let trace = telemetry.turn(Instant::now(), || "5e5510".to_owned());
        trace
            .phase("history")
            .count("baton.blobs", 2)
            .around(async { Ok::<(), ErrorCode>(()) })
            .await
            .unwrap();
        let refused: Result<(), _> =
            trace.phase("prompt").around(async { Err(ErrorCode::ContextOverflow) }).await;
        assert_eq!(refused, Err(ErrorCode::ContextOverflow));
        drop(trace.phase("generate"));
        let store = trace.phase("store").asking();
        trace.outcome("ContextOverflow");
        drop(trace);
        store.end_as("stored", false);

        let spans = all(&mut spans);
        let names: Vec<_> = spans.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["history", "prompt", "generate", "turn", "store"]);
        let root = &spans[3];
        assert_eq!(root.parent_span_id, SpanId::INVALID);
        assert_eq!(root.attributes[0], KeyValue::new("baton.session", "5e5510"));
        for span in &spans {
            assert_eq!(span.span_context.trace_id(), root.span_context.trace_id());
            assert!(span.start_time <= span.end_time && span.start_time >= root.start_time);
            if span.name != "turn" {
                assert_eq!(span.parent_span_id, root.span_context.span_id());
            }
        }
        let status = |name: &str| spans.iter().find(|span| span.name == name).unwrap().status.clone();
        assert_eq!(status("history"), Status::Ok);
        assert_eq!(status("prompt"), Status::error("ContextOverflow"));
        assert_eq!(status("generate"), Status::error(UNFINISHED));
        assert_eq!(status("store"), Status::Ok);
    }

    #[tokio::test]
    async fn a_full_queue_drops_spans_and_counts_them() {
        let (telemetry, mut spans, metrics) = telemetry(1);
        let trace = telemetry.turn(Instant::now(), String::new);
        for _ in 0..3 {
            trace.past("admit", Instant::now(), Instant::now());
        }
        assert_eq!(all(&mut spans).len(), 1);
        let text = metrics.render(&crate::metrics::Snapshot::default(), std::time::Duration::ZERO);
        assert!(text.contains("baton_spans_total{result=\"dropped\"} 2"), "{text}");
    }

    #[tokio::test]
    async fn without_a_collector_nothing_is_made() {
        let trace = Telemetry::default().turn(Instant::now(), || unreachable!("nobody asks for the name"));
        trace.phase("history").around(async { Ok::<(), ErrorCode>(()) }).await.unwrap();
        assert!(trace.0.is_none());
    }
}
