//! A browser's data channel as a stream of bytes.

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use futures::{AsyncRead, AsyncWrite};
use js_sys::{JsString, Uint8Array};
use send_wrapper::SendWrapper;
use wasm_bindgen::{JsCast as _, closure::Closure};
use web_sys::{Event, MessageEvent, RtcDataChannel, RtcDataChannelState as State, RtcDataChannelType};

use super::unread::{UnreadBytes, UnreadTotal};
use crate::webrtc::limits::{CHANNEL_SEND_BYTES, CHANNEL_SEND_LOW_BYTES, MAX_MESSAGE_BYTES};

/// A channel; a browser's objects stay in their thread.
#[derive(Clone)]
pub(crate) struct DataChannel(SendWrapper<Rc<OpenChannel>>);

struct OpenChannel {
    channel: RtcDataChannel,
    state: Rc<RefCell<ChannelState>>,
    _on_message: Closure<dyn FnMut(MessageEvent)>,
    _on_change: Closure<dyn FnMut(Event)>,
}

/// The received bytes, and the tasks that wait.
struct ChannelState {
    unread: UnreadBytes,
    /// The node sent more than a page holds.
    overflowed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl DataChannel {
    /// A channel of a connection that holds this many unread bytes.
    pub(crate) fn new(channel: RtcDataChannel, unread: UnreadTotal) -> Self {
        channel.set_binary_type(RtcDataChannelType::Arraybuffer);
        channel.set_buffered_amount_low_threshold(u32::try_from(CHANNEL_SEND_LOW_BYTES).unwrap_or(u32::MAX));
        let unread = UnreadBytes::new(unread);
        let state = ChannelState { unread, overflowed: false, reader: None, writer: None };
        let state = Rc::new(RefCell::new(state));
        let received = state.clone();
        let on_message = Closure::new(move |event: MessageEvent| receive(&mut received.borrow_mut(), &event));
        let changed = state.clone();
        let on_change = Closure::new(move |_: Event| {
            let mut state = changed.borrow_mut();
            [state.reader.take(), state.writer.take()].into_iter().flatten().for_each(Waker::wake);
        });
        channel.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        let change = Some(on_change.as_ref().unchecked_ref());
        channel.set_onopen(change);
        channel.set_onclose(change);
        channel.set_onbufferedamountlow(change);
        Self(SendWrapper::new(Rc::new(OpenChannel {
            channel,
            state,
            _on_message: on_message,
            _on_change: on_change,
        })))
    }

    fn state(&self) -> State {
        self.0.channel.ready_state()
    }
}

fn receive(state: &mut ChannelState, event: &MessageEvent) {
    let data = event.data();
    // libp2p sends no text.
    if data.is_instance_of::<JsString>() {
        return;
    }
    let message = Uint8Array::new(&data).to_vec();
    state.overflowed |= !state.unread.push(&message);
    if let Some(reader) = state.reader.take() {
        reader.wake();
    }
}

impl Drop for OpenChannel {
    fn drop(&mut self) {
        self.channel.set_onmessage(None);
        self.channel.set_onopen(None);
        self.channel.set_onclose(None);
        self.channel.set_onbufferedamountlow(None);
        // The browser first sends the bytes that are on their way.
        self.channel.close();
    }
}

impl AsyncRead for DataChannel {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.state.borrow_mut();
        if state.overflowed {
            return Poll::Ready(Err(io::Error::other("the node sent more than this page holds")));
        }
        if !state.unread.is_empty() {
            return Poll::Ready(Ok(state.unread.read(into)));
        }
        if matches!(self.state(), State::Closing | State::Closed) {
            return Poll::Ready(Ok(0));
        }
        state.reader = Some(context.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for DataChannel {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let channel = &self.0.channel;
        let is_full = usize::try_from(channel.buffered_amount()).unwrap_or(usize::MAX) >= CHANNEL_SEND_BYTES;
        match self.state() {
            State::Open if !is_full => {}
            State::Open | State::Connecting => {
                self.0.state.borrow_mut().writer = Some(context.waker().clone());
                return Poll::Pending;
            }
            _ => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
        let most = usize::try_from(MAX_MESSAGE_BYTES).unwrap_or(usize::MAX);
        let (message, _) = bytes.split_at(bytes.len().min(most));
        match channel.send_with_u8_array(message) {
            Ok(()) => Poll::Ready(Ok(message.len())),
            Err(_) => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// The browser sends on its own.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
