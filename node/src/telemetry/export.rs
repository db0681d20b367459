//! Sends spans to the collector: in batches, by one task, which ends within a bounded time.

use std::{sync::Arc, time::Duration};

use baton_walrus_client::http_client;
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanExporter as _},
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{Sink, Telemetry};
use crate::metrics::Metrics;

/// Maximum waiting spans: a few hundred turns, under two megabytes. Further ones are dropped and counted.
const QUEUE_SPANS: usize = 4096;
/// Maximum spans of one request: some hundred KiB.
const BATCH_SPANS: usize = 512;
/// How long a batch may fill.
const BATCH_WAIT: Duration = Duration::from_secs(2);
/// Timeout of a request with its retries: a collector is near, and the next batch is waiting.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the end of the process waits for the last spans: less than an operator's patience.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// Path for traces below a collector's base URL.
const TRACES_PATH: &str = "/v1/traces";

/// Why traces cannot be sent at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TelemetryError {
    /// The client for the collector cannot be created.
    #[error("the exporter of traces cannot be started: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// The collector's HTTP client cannot be created.
    #[error("the exporter of traces has no HTTP client: {0}")]
    Client(#[from] reqwest::Error),
}

/// Attributes of the process in every span.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// The node's Ed25519 public key, hex.
    pub(crate) node: String,
    /// Name of the model served.
    pub(crate) model: String,
    /// `native`, `proxied` or `echo`.
    pub(crate) engine: &'static str,
}

impl About {
    fn resource(self) -> Resource {
        Resource::builder_empty()
            .with_service_name("baton-node")
            .with_attributes([
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
                KeyValue::new("service.instance.id", self.node),
                KeyValue::new("baton.model", self.model),
                KeyValue::new("baton.engine", self.engine),
            ])
            .build()
    }
}

/// The task that sends spans.
pub(crate) struct Exporter {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Starts sending to the collector at this base URL, or at its path for traces.
///
/// # Errors
/// [`TelemetryError`]; a collector that does not answer causes none.
pub(crate) fn start(
    endpoint: &str,
    about: About,
    metrics: Arc<Metrics>,
) -> Result<(Telemetry, Exporter), TelemetryError> {
    let client = http_client::builder_for(endpoint)
        .timeout(REQUEST_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .build()?;
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(traces_url(endpoint))
        .with_timeout(REQUEST_TIMEOUT)
        .build()?;
    exporter.set_resource(&about.resource());
    let (queue, spans) = mpsc::channel(QUEUE_SPANS);
    let stop = CancellationToken::new();
    let sender = Sender { exporter, metrics: metrics.clone(), delivers: true };
    let task = tokio::spawn(sender.run(spans, stop.clone()));
    let scope = InstrumentationScope::builder("baton-node").with_version(env!("CARGO_PKG_VERSION")).build();
    let telemetry = Telemetry(Some(Arc::new(Sink { queue, metrics, scope })));
    Ok((telemetry, Exporter { stop, task }))
}

fn traces_url(endpoint: &str) -> String {
    let base = endpoint.trim_end_matches('/');
    if base.ends_with(TRACES_PATH) { base.to_owned() } else { format!("{base}{TRACES_PATH}") }
}

impl Exporter {
    /// Sends the waiting spans, for a few seconds at most, and ends.
    pub(crate) async fn close(mut self) {
        self.stop.cancel();
        if timeout(FLUSH_TIMEOUT, &mut self.task).await.is_err() {
            tracing::warn!("the last traces were not delivered: their collector does not take them in time");
            self.task.abort();
            // The result only says that it was aborted.
            let _ = self.task.await;
        }
    }
}

struct Sender {
    exporter: SpanExporter,
    metrics: Arc<Metrics>,
    /// Whether the collector accepted the last batch; assumed at the start, so that only failures are logged.
    delivers: bool,
}

impl Sender {
    async fn run(mut self, mut spans: mpsc::Receiver<SpanData>, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH_SPANS);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                taken = spans.recv_many(&mut batch, BATCH_SPANS) => if taken == 0 { break },
            }
            let full = tokio::time::Instant::now() + BATCH_WAIT;
            while batch.len() < BATCH_SPANS {
                let room = BATCH_SPANS - batch.len();
                // Both are cancel safe: received spans are in the batch.
                let more = stop.run_until_cancelled(timeout_at(full, spans.recv_many(&mut batch, room)));
                if !matches!(more.await, Some(Ok(taken)) if taken > 0) {
                    break;
                }
            }
            self.send(std::mem::take(&mut batch)).await;
        }
        spans.close();
        while spans.recv_many(&mut batch, BATCH_SPANS).await > 0 {
            self.send(std::mem::take(&mut batch)).await;
        }
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let count = batch.len();
        let sent = timeout(REQUEST_TIMEOUT, self.exporter.export(batch)).await;
        let failure = match sent {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("it does not answer in time".to_owned()),
        };
        self.metrics.spans_ended(if failure.is_none() { "sent" } else { "failed" }, count);
        let delivered = failure.is_none();
        match failure {
            Some(reason) if self.delivers => tracing::warn!(
                reason,
                "the collector does not take traces; turns are served as ever, and these traces are lost"
            ),
            None if !self.delivers => tracing::info!("the collector takes traces again"),
            _ => {}
        }
        self.delivers = delivered;
    }
}
