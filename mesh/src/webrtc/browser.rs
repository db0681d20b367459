//! A page dials nodes by WebRTC-direct.
//!
//! libp2p has such a transport (`libp2p-webrtc-websys`). This one also notices the end of a connection, closes the channels of
//! ended streams, holds bytes that the page is slow to read, and leaves no callback behind.

mod connection;
mod peer;
mod transport;

pub(crate) use transport::PageTransport;

use wasm_bindgen::{JsCast as _, JsValue};

use crate::webrtc::error::ConnectionError;

impl From<JsValue> for ConnectionError {
    fn from(value: JsValue) -> Self {
        let error = value.dyn_ref::<js_sys::Error>();
        Self::Browser(error.map_or_else(|| format!("{value:?}"), |error| String::from(error.message())))
    }
}
