//! Server-sent events (the HTML standard's `text/event-stream`), as a body that also a page without a server has:
//! axum's own need the runtime of a system.

use std::{convert::Infallible, fmt::Display, time::Duration};

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use futures::{Stream, StreamExt as _, future::ready, stream};
use tokio::time::timeout;

use crate::http::exact::restored;

/// Pause in a stream of events after which a sign shows that the connection is alive.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Tells a proxy in front, such as nginx, to hand on a stream as it comes.
const UNBUFFERED: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));

/// The form of a stream: its type, and a sign of life in it, which may be empty.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamForm {
    pub(crate) content_type: &'static str,
    pub(crate) alive: &'static str,
}

/// Events, with a comment as a sign of life.
pub(crate) const EVENTS: StreamForm = StreamForm { content_type: "text/event-stream", alive: ":\n\n" };

/// An event without a name.
///
/// # Parameters
/// `data` is one line: JSON is.
pub(crate) fn event(data: impl Display) -> String {
    restored(format!("data: {data}\n\n"))
}

/// An event with a name.
pub(crate) fn named_event(name: &str, data: impl Display) -> String {
    restored(format!("event: {name}\ndata: {data}\n\n"))
}

/// A response of parts in a form. After each `silence` without one, it sends the sign of life, so that nothing between
/// takes the connection for dead.
pub(crate) fn respond(
    parts: impl Stream<Item = String> + Send + 'static,
    silence: Duration,
    form: StreamForm,
) -> Response {
    let parts = parts.filter(|part| ready(!part.is_empty()));
    let parts = stream::unfold(Box::pin(parts), move |mut parts| async move {
        let part = match timeout(silence, parts.next()).await {
            Ok(next) => next?,
            Err(_) => form.alive.to_owned(),
        };
        Some((Ok::<_, Infallible>(part), parts))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(form.content_type)),
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
        let response = respond(events, Duration::from_millis(20), EVENTS);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        let parts = response.into_body().into_data_stream().map(|part| part.unwrap());
        // A comment comes at any time.
        let mut events = Box::pin(parts.filter(|part| ready(part.as_ref() != b":\n\n")));
        sender.unbounded_send(event(r#"{"a":1}"#)).unwrap();
        assert_eq!(events.next().await.unwrap(), "data: {\"a\":1}\n\n");
        sender.unbounded_send(named_event("end", "[DONE]")).unwrap();
        assert_eq!(events.next().await.unwrap(), "event: end\ndata: [DONE]\n\n");
        drop(sender);
        assert_eq!(events.next().await, None);

        let silent =
            respond(stream::pending(), Duration::from_millis(20), StreamForm { alive: "ping", ..EVENTS });
        let mut parts = silent.into_body().into_data_stream();
        for _ in 0..2 {
            assert_eq!(parts.next().await.unwrap().unwrap(), "ping");
        }
    }
}
