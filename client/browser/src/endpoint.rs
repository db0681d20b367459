//! Requests and responses of a page, answered by routes in the page: no server, and nothing sent.

use axum::{
    Router,
    body::Body,
    http::{self, HeaderName, HeaderValue, header},
};
use futures::{
    FutureExt as _, StreamExt as _,
    future::{self, Either},
};
use js_sys::{Array, Uint8Array};
use tokio::sync::oneshot;
use tower::ServiceExt as _;
use wasm_bindgen::{JsCast as _, JsValue, prelude::Closure};
use wasm_bindgen_futures::JsFuture;
use wasm_streams::ReadableStream;
use web_sys::{AbortSignal, Headers, Request, Response, ResponseInit, Url};

/// The host that every request names: the routes serve this machine.
const HOST: HeaderValue = HeaderValue::from_static("localhost");

/// Answers a request. An abort ends it at once, also while the answer comes.
pub(crate) async fn answer(routes: Router, request: Request) -> Result<Response, JsValue> {
    let aborted = Abort::of(&request.signal());
    let routed = routes.oneshot(read(&request).await?);
    let response = match future::select(routed, aborted).await {
        Either::Left((response, aborted)) => write(response.unwrap_or_else(|never| match never {}), aborted),
        Either::Right(_) => Err(js_sys::Error::new("the request was aborted").into()),
    };
    response
}

/// The request as the routes read it.
async fn read(request: &Request) -> Result<http::Request<Body>, JsValue> {
    let url = Url::new(&request.url())?;
    let mut builder = http::Request::builder()
        .method(request.method().as_str())
        .uri(format!("{}{}", url.pathname(), url.search()))
        .header(header::HOST, HOST);
    for pair in js_sys::try_iter(&request.headers())?.into_iter().flatten() {
        let pair: Array = pair?.unchecked_into();
        let (name, value) = (pair.get(0).as_string(), pair.get(1).as_string());
        // The headers of a browser's own request are well-formed.
        if let (Some(name), Some(value)) = (name, value)
            && let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value))
        {
            builder = builder.header(name, value);
        }
    }
    let body = JsFuture::from(request.array_buffer()?).await?;
    let body = Body::from(Uint8Array::new(&body).to_vec());
    builder.body(body).map_err(|error| js_sys::Error::new(&error.to_string()).into())
}

/// The response as the page reads it. Its body ends when the request is aborted.
fn write(response: http::Response<Body>, aborted: Abort) -> Result<Response, JsValue> {
    let (head, body) = response.into_parts();
    let headers = Headers::new()?;
    for (name, value) in &head.headers {
        headers.append(name.as_str(), value.to_str().unwrap_or_default())?;
    }
    let init = ResponseInit::new();
    init.set_status(head.status.as_u16());
    init.set_headers(&headers);
    let parts = body.into_data_stream().take_until(aborted).map(|part| match part {
        Ok(bytes) => Ok(Uint8Array::from(bytes.as_ref()).into()),
        Err(error) => Err(js_sys::Error::new(&error.to_string()).into()),
    });
    let stream = ReadableStream::from_stream(parts).into_raw();
    // These have no body, and refuse one.
    let body = (!matches!(head.status.as_u16(), 204 | 304)).then_some(stream);
    Response::new_with_opt_readable_stream_and_init(body.as_ref(), &init)
}

/// Resolves when a request is aborted; never if it is not.
struct Abort {
    signal: AbortSignal,
    receiver: future::Fuse<oneshot::Receiver<()>>,
    _called: Closure<dyn FnMut()>,
}

impl Abort {
    fn of(signal: &AbortSignal) -> Self {
        let (sender, receiver) = oneshot::channel();
        let mut sender = Some(sender);
        let mut call = move || {
            if let Some(sender) = sender.take() {
                let _ = sender.send(());
            }
        };
        if signal.aborted() {
            call();
        }
        let called = Closure::new(call);
        signal.set_onabort(Some(called.as_ref().unchecked_ref()));
        Self { signal: signal.clone(), receiver: receiver.fuse(), _called: called }
    }
}

impl Future for Abort {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        self.receiver.poll_unpin(context).map(drop)
    }
}

impl Drop for Abort {
    fn drop(&mut self) {
        self.signal.set_onabort(None);
    }
}
