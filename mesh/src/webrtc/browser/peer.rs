//! A browser's peer connection, set up without a server for the exchange of descriptions.

use std::{cell::RefCell, net::SocketAddr, rc::Rc, task::Waker};

use js_sys::{Array, Object, Reflect};
use libp2p_webrtc_utils::{Fingerprint, sdp};
use wasm_bindgen::{JsCast as _, JsValue, closure::Closure};
use wasm_bindgen_futures::JsFuture;
use web_sys::{
    Event, RtcConfiguration, RtcDataChannelEvent, RtcDataChannelInit, RtcPeerConnection,
    RtcPeerConnectionState as State, RtcSdpType, RtcSessionDescriptionInit,
};

use crate::webrtc::{
    data_channel::{DataChannel, UnreadTotal},
    error::ConnectionError,
    limits::MAX_WAITING_CHANNELS,
};

/// The connection. Its drop closes it.
pub(super) struct Peer {
    connection: RtcPeerConnection,
    news: Rc<RefCell<News>>,
    unread: UnreadTotal,
    _on_channel: Closure<dyn FnMut(RtcDataChannelEvent)>,
    _on_change: Closure<dyn FnMut(Event)>,
}

/// The news of the callbacks for the connection's task.
#[derive(Default)]
pub(super) struct News {
    pub(super) incoming: Vec<DataChannel>,
    pub(super) task: Option<Waker>,
}

impl Peer {
    /// A connection with a certificate of its own, whose hash Noise binds to the identity.
    pub(super) async fn new() -> Result<Self, ConnectionError> {
        let algorithm = Object::new();
        for (name, value) in [("name", "ECDSA"), ("namedCurve", "P-256"), ("hash", "SHA-256")] {
            Reflect::set(&algorithm, &name.into(), &value.into())?;
        }
        let certificate =
            JsFuture::from(RtcPeerConnection::generate_certificate_with_object(&algorithm)?).await?;
        let config = RtcConfiguration::new();
        config.set_certificates(&Array::of1(&certificate));
        let connection = RtcPeerConnection::new_with_configuration(&config)?;
        let news = Rc::new(RefCell::new(News::default()));
        let unread = UnreadTotal::default();
        let (opened, held) = (news.clone(), unread.clone());
        let on_channel = Closure::new(move |event: RtcDataChannelEvent| {
            let mut news = opened.borrow_mut();
            // A channel that is not taken is closed by its drop.
            if news.incoming.len() < MAX_WAITING_CHANNELS {
                news.incoming.push(DataChannel::new(event.channel(), held.clone()));
            } else {
                event.channel().close();
            }
            news.task.take().into_iter().for_each(Waker::wake);
        });
        let changed = news.clone();
        let on_change = Closure::new(move |_: Event| {
            changed.borrow_mut().task.take().into_iter().for_each(Waker::wake);
        });
        connection.set_ondatachannel(Some(on_channel.as_ref().unchecked_ref()));
        connection.set_onconnectionstatechange(Some(on_change.as_ref().unchecked_ref()));
        Ok(Self { connection, news, unread, _on_channel: on_channel, _on_change: on_change })
    }

    /// The channel that both sides know without a message.
    pub(super) fn first_channel(&self) -> DataChannel {
        let options = RtcDataChannelInit::new();
        options.set_negotiated(true);
        options.set_id(0);
        let channel = self.connection.create_data_channel_with_data_channel_dict("", &options);
        DataChannel::new(channel, self.unread.clone())
    }

    pub(super) fn open_channel(&self) -> DataChannel {
        DataChannel::new(self.connection.create_data_channel(""), self.unread.clone())
    }

    pub(super) fn news(&self) -> std::cell::RefMut<'_, News> {
        self.news.borrow_mut()
    }

    /// Whether the connection is over. A browser calls it disconnected after some seconds without an answer.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.connection.connection_state(), State::Disconnected | State::Failed | State::Closed)
    }

    /// Begins the connection with both descriptions; returns the hash of this side's certificate.
    ///
    /// The description of the node is written here, from its address. User name and password are the same for both sides.
    pub(super) async fn begin(
        &self,
        node: SocketAddr,
        certificate: Fingerprint,
    ) -> Result<Fingerprint, ConnectionError> {
        let credentials = sdp::random_ufrag();
        let offer = JsFuture::from(self.connection.create_offer()).await?;
        let offer = Reflect::get(&offer, &"sdp".into())?.as_string().unwrap_or_default();
        let fingerprint = fingerprint_of(&offer).ok_or_else(no_fingerprint)?;
        let local = description(RtcSdpType::Offer, &with_credentials(&offer, &credentials));
        JsFuture::from(self.connection.set_local_description(&local)).await?;
        let remote = description(RtcSdpType::Answer, &sdp::answer(node, certificate, &credentials));
        JsFuture::from(self.connection.set_remote_description(&remote)).await?;
        Ok(fingerprint)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.connection.set_ondatachannel(None);
        self.connection.set_onconnectionstatechange(None);
        self.connection.close();
    }
}

fn no_fingerprint() -> ConnectionError {
    JsValue::from_str("its description names no certificate").into()
}

fn description(kind: RtcSdpType, text: &str) -> RtcSessionDescriptionInit {
    let description = RtcSessionDescriptionInit::new(kind);
    description.set_sdp(text);
    description
}

/// A description with other ICE credentials.
fn with_credentials(offer: &str, credentials: &str) -> String {
    let replaced = offer.lines().map(|line| match line.split_once(':') {
        Some((name @ ("a=ice-ufrag" | "a=ice-pwd"), _)) => format!("{name}:{credentials}\r\n"),
        _ => format!("{line}\r\n"),
    });
    replaced.collect()
}

/// The SHA-256 of the certificate that a description names (RFC 8122).
fn fingerprint_of(offer: &str) -> Option<Fingerprint> {
    let digits = offer.lines().find_map(|line| line.strip_prefix("a=fingerprint:sha-256 "))?;
    let bytes: Option<Vec<u8>> =
        digits.trim().split(':').map(|pair| u8::from_str_radix(pair, 16).ok()).collect();
    Some(Fingerprint::raw(bytes?.try_into().ok()?))
}
