//! Server-sent events (the HTML standard's `text/event-stream`), as a body that also a page without a server has:
//! axum's own need the runtime of a system.

use std::{convert::Infallible, fmt::Display, time::Duration};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use futures::{Stream, StreamExt as _, stream};
use tokio::time::timeout;

/// Pause in a stream of events after which a sign shows that the connection is alive.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Tells a proxy in front, such as nginx, to hand on a stream as it comes.
pub(crate) const UNBUFFERED: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));

/// An event in its form on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerEvent(String);

impl ServerEvent {
    /// An event without a name.
    ///
    /// # Parameters
    /// `data` is one line: JSON is.
    pub(crate) fn new(data: impl Display) -> Self {
        Self(format!("data: {data}\n\n"))
    }

    /// An event with a name.
    pub(crate) fn named(name: &str, data: impl Display) -> Self {
        Self(format!("event: {name}\ndata: {data}\n\n"))
    }

    /// A comment, which readers skip.
    pub(crate) fn comment() -> Self {
        Self(":\n\n".to_owned())
    }
}

/// A response of events. After each `silence` without one, it sends `alive`, so that nothing between takes the
/// connection for dead.
pub(crate) fn respond(
    events: impl Stream<Item = ServerEvent> + Send + 'static,
    silence: Duration,
    alive: ServerEvent,
) -> Response {
    let parts = stream::unfold((Box::pin(events), alive), move |(mut events, alive)| async move {
        let event = match timeout(silence, events.next()).await {
            Ok(next) => next?,
            Err(_) => alive.clone(),
        };
        Some((Ok::<_, Infallible>(event.0), (events, alive)))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        UNBUFFERED,
    ];
    (headers, Body::from_stream(parts)).into_response()
}

#[cfg(test)]
mod tests {
    use futures::channel::mpsc;

    use super::*;

    #[tokio::test]
    async fn events_have_the_standards_form_and_silence_is_filled() {
        let (sender, events) = mpsc::unbounded();
        let response = respond(events, Duration::from_millis(20), ServerEvent::comment());
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        let parts = response.into_body().into_data_stream().map(|part| part.unwrap());
        // A comment comes at any time.
        let mut events = Box::pin(parts.filter(|part| futures::future::ready(part.as_ref() != b":\n\n")));
        sender.unbounded_send(ServerEvent::new(r#"{"a":1}"#)).unwrap();
        assert_eq!(events.next().await.unwrap(), "data: {\"a\":1}\n\n");
        sender.unbounded_send(ServerEvent::named("end", "[DONE]")).unwrap();
        assert_eq!(events.next().await.unwrap(), "event: end\ndata: [DONE]\n\n");
        drop(sender);
        assert_eq!(events.next().await, None);

        let silent = respond(stream::pending(), Duration::from_millis(20), ServerEvent::named("ping", "{}"));
        let mut parts = silent.into_body().into_data_stream();
        for _ in 0..2 {
            assert_eq!(parts.next().await.unwrap().unwrap(), "event: ping\ndata: {}\n\n");
        }
    }
}
