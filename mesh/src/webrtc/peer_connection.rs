//! A peer connection: DTLS, SCTP and data channels, without I/O.
//!
//! The owner passes in packets and the time, and takes out packets, events and the time of the next timeout.
//! After each call it must take the packets.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use dimpl::{Dtls, Output};
use libp2p_webrtc_utils::Fingerprint;
use sctp_proto::{
    Association, AssociationHandle, Chunks, ClientConfig, DatagramEvent, Endpoint, EndpointConfig,
    Event as SctpEvent, Payload, PayloadProtocolIdentifier as Protocol, ServerConfig, StreamEvent,
    TransportConfig,
};

use crate::webrtc::{
    certificate::Certificate,
    dcep,
    error::ConnectionError,
    limits::{
        CHANNEL_SEND_BYTES, CHANNEL_SEND_LOW_BYTES, MAX_CHANNELS, MAX_MESSAGE_BYTES, MAX_PACKET_BYTES, MTU,
        OVERHEAD_BYTES, RECEIVE_BYTES,
    },
    sctp_inspector::{PacketVerdict, SctpInspector},
};

/// SCTP sees one peer, whatever its address.
const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 5000);

/// Number of the channel that both sides know without a message.
const FIRST: u16 = 0;

/// Bytes of the messages that this side sends. A browser buffers four of them.
pub(crate) const SENT_MESSAGE_BYTES: usize = MAX_MESSAGE_BYTES as usize / 4;

/// Times of SCTP's retransmission (RFC 9260, section 16), shorter than its defaults, which date from slower links.
const FIRST_TIMEOUT: Duration = Duration::from_millis(500);
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(250);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Times that SCTP sends a packet again; then the connection is lost.
const MAX_RETRANSMISSIONS: usize = 10;

/// Which side this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The side that listens.
    Server,
    /// The side that dials; in this crate, only tests do.
    Client,
}

/// A data channel. SCTP uses a stream's number again after a close, hence the generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ChannelId {
    stream: u16,
    generation: u64,
}

/// News for the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Data channels can be opened.
    Established,
    /// The peer opened a data channel.
    Incoming(ChannelId),
    /// There may be data to read.
    Readable(ChannelId),
    /// There may be room to write.
    Writable(ChannelId),
    /// The peer closed a data channel.
    Ended(ChannelId),
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadResult {
    Message(Vec<u8>),
    Nothing,
    End,
}

/// The result of a write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WriteResult {
    /// This many bytes are on their way.
    Bytes(usize),
    Full,
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The peer's first message, which opens the channel, has not arrived.
    Unopened,
    Open,
    /// The peer closed it; this side still has its number.
    Ended,
    /// This side closes it.
    Closing,
}

#[derive(Debug)]
struct Channel {
    generation: u64,
    phase: Phase,
    /// Nobody reads or writes it any more.
    released: bool,
}

/// The connection.
pub(crate) struct PeerConnection {
    role: Role,
    dtls: Dtls,
    dtls_timeout: Option<Instant>,
    output: Vec<u8>,
    remote_certificate: Option<Fingerprint>,
    endpoint: Endpoint,
    association: Option<(AssociationHandle, Association)>,
    established: bool,
    channels: HashMap<u16, Channel>,
    generation: u64,
    /// Whether the first channel was opened. After its close its number is one as any other.
    first_opened: bool,
    packets: VecDeque<Vec<u8>>,
    inspector: SctpInspector,
    /// Decrypted messages for SCTP.
    received: Vec<Bytes>,
    events: VecDeque<Event>,
}

impl PeerConnection {
    pub(crate) fn new(role: Role, certificate: &Certificate, now: Instant) -> Result<Self, ConnectionError> {
        let config = dimpl::Config::builder()
            .mtu(MTU)
            .require_client_certificate(true)
            // The source has proved its address already.
            .use_server_cookie(false)
            .build()
            .map_err(dtls_error)?;
        let mut dtls = Dtls::new_12(Arc::new(config), certificate.to_dtls(), now);
        dtls.set_active(role == Role::Client);
        let mut endpoint_config = EndpointConfig::default();
        endpoint_config.max_payload_size(u32::try_from(MTU - OVERHEAD_BYTES).unwrap_or(u32::MAX));
        let mut server_config = ServerConfig::default();
        server_config.transport = Arc::new(transport_config());
        let endpoint = Endpoint::new(Arc::new(endpoint_config), Some(Arc::new(server_config)));
        let mut connection = Self {
            role,
            dtls,
            dtls_timeout: None,
            output: vec![0; MAX_PACKET_BYTES],
            remote_certificate: None,
            endpoint,
            association: None,
            established: false,
            channels: HashMap::new(),
            generation: 0,
            first_opened: false,
            packets: VecDeque::new(),
            inspector: SctpInspector::default(),
            received: Vec::new(),
            events: VecDeque::new(),
        };
        connection.dtls.handle_timeout(now).map_err(dtls_error)?;
        connection.progress(now)?;
        Ok(connection)
    }

    /// Takes a packet of the peer. Returns the number of its chunks.
    pub(crate) fn receive(&mut self, packet: &[u8], now: Instant) -> Result<usize, ConnectionError> {
        self.dtls.handle_packet(packet).map_err(dtls_error)?;
        self.progress(now)?;
        Ok(self.inspector.take_work())
    }

    /// Handles the timeouts that are due.
    pub(crate) fn expire(&mut self, now: Instant) -> Result<(), ConnectionError> {
        if self.dtls_timeout.is_some_and(|due| due <= now) {
            self.dtls.handle_timeout(now).map_err(dtls_error)?;
        }
        if let Some((_, association)) = &mut self.association {
            association.handle_timeout(now);
        }
        self.progress(now)
    }

    /// The time of the next timeout.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let sctp = self.association.as_ref().and_then(|(_, association)| association.poll_timeout());
        self.dtls_timeout.into_iter().chain(sctp).min()
    }

    /// The next packet for the peer.
    pub(crate) fn next_packet(&mut self) -> Option<Vec<u8>> {
        self.packets.pop_front()
    }

    pub(crate) fn has_packets(&self) -> bool {
        !self.packets.is_empty()
    }

    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The hash of the peer's certificate, once DTLS has checked that the peer holds its key.
    pub(crate) fn remote_certificate(&self) -> Option<Fingerprint> {
        self.remote_certificate
    }

    /// The channel that both sides know without a message, for Noise.
    pub(crate) fn open_first(&mut self) -> Result<ChannelId, ConnectionError> {
        // The peer may have written to it already.
        if let Some(channel) = self.channels.get(&FIRST) {
            return Ok(ChannelId { stream: FIRST, generation: channel.generation });
        }
        self.first_opened = true;
        let (_, association) = self.association.as_mut().ok_or(ConnectionError::Closed)?;
        association.open_stream(FIRST, Protocol::Binary).map_err(sctp_error)?;
        self.added(FIRST, Phase::Open)
    }

    /// Opens a channel; `None` while there are too many.
    pub(crate) fn open(&mut self, now: Instant) -> Result<Option<ChannelId>, ConnectionError> {
        if !self.established || self.channels.len() >= MAX_CHANNELS {
            return Ok(None);
        }
        let (_, association) = self.association.as_mut().ok_or(ConnectionError::Closed)?;
        // Even numbers are of the DTLS client, odd ones of the server (RFC 8832, section 6).
        let first = if self.role == Role::Server { 1 } else { FIRST + 2 };
        let own = (first..=u16::MAX - 1).step_by(2);
        for stream in own {
            if self.channels.contains_key(&stream) {
                continue;
            }
            // A number whose former close is not confirmed is refused.
            let Ok(mut opened) = association.open_stream(stream, Protocol::Binary) else { continue };
            opened.write_with_ppi(&dcep::OPEN, Protocol::Dcep).map_err(sctp_error)?;
            let id = self.added(stream, Phase::Open)?;
            self.progress(now)?;
            return Ok(Some(id));
        }
        Ok(None)
    }

    fn added(&mut self, stream: u16, phase: Phase) -> Result<ChannelId, ConnectionError> {
        self.generation += 1;
        let generation = self.generation;
        self.channels.insert(stream, Channel { generation, phase, released: false });
        if self.channels.len() > MAX_CHANNELS {
            return Err(ConnectionError::Channels);
        }
        if let Some((_, association)) = &mut self.association
            && let Ok(mut stream) = association.stream(stream)
        {
            stream.set_buffered_amount_low_threshold(CHANNEL_SEND_LOW_BYTES).map_err(sctp_error)?;
        }
        Ok(ChannelId { stream, generation })
    }

    /// The next message of a channel. Unread bytes count against the window that the peer sees, so it slows down.
    pub(crate) fn read(&mut self, id: ChannelId, now: Instant) -> Result<ReadResult, ConnectionError> {
        if !self.is_current(id) {
            return Ok(ReadResult::End);
        }
        loop {
            let Ok(message) = self.next_message(id.stream) else { return Ok(ReadResult::End) };
            let Some(chunks) = message else { break };
            let mut message = vec![0; chunks.len()];
            chunks.read(&mut message).map_err(sctp_error)?;
            let data = matches!(chunks.ppi, Protocol::Binary | Protocol::String) && !message.is_empty();
            // Room was made, of which the peer must hear.
            self.progress(now)?;
            if data {
                return Ok(ReadResult::Message(message));
            }
            // An acknowledgement of the opening, or an empty message.
        }
        Ok(if self.phase(id) == Some(Phase::Open) { ReadResult::Nothing } else { ReadResult::End })
    }

    /// Sends a part of the bytes as one message.
    pub(crate) fn write(
        &mut self,
        id: ChannelId,
        bytes: &[u8],
        now: Instant,
    ) -> Result<WriteResult, ConnectionError> {
        if self.phase(id) != Some(Phase::Open) {
            return Ok(WriteResult::Closed);
        }
        let (_, association) = self.association.as_mut().ok_or(ConnectionError::Closed)?;
        let Ok(mut stream) = association.stream(id.stream) else { return Ok(WriteResult::Closed) };
        if stream.buffered_amount().map_err(sctp_error)? >= CHANNEL_SEND_BYTES {
            return Ok(WriteResult::Full);
        }
        let (message, _) = bytes.split_at(bytes.len().min(SENT_MESSAGE_BYTES));
        if stream.write_with_ppi(message, Protocol::Binary).is_err() {
            return Ok(WriteResult::Closed);
        }
        self.progress(now)?;
        Ok(WriteResult::Bytes(message.len()))
    }

    /// Notes that nobody reads or writes a channel any more. Further bytes of the peer are read and forgotten: unread ones
    /// would take room from other channels, and keep the number from its next use.
    pub(crate) fn release(&mut self, id: ChannelId, now: Instant) -> Result<(), ConnectionError> {
        let Some(phase) = self.phase(id) else { return Ok(()) };
        if phase == Phase::Ended {
            self.channels.remove(&id.stream);
            return Ok(());
        }
        if let Some(channel) = self.channels.get_mut(&id.stream) {
            channel.released = true;
        }
        self.discard(id.stream);
        self.progress(now)
    }

    fn discard(&mut self, stream: u16) {
        while self.next_message(stream).is_ok_and(|message| message.is_some()) {}
    }

    /// Takes a whole message out of SCTP.
    fn next_message(&mut self, stream: u16) -> Result<Option<Chunks>, ConnectionError> {
        let (_, association) = self.association.as_mut().ok_or(ConnectionError::Closed)?;
        let message = association.stream(stream).and_then(|mut stream| stream.read()).map_err(sctp_error)?;
        if let Some(message) = &message {
            self.inspector.read(stream, message.chunks.len());
        }
        Ok(message)
    }

    /// Closes a channel that was released; `false` while the peer has not confirmed all bytes.
    pub(crate) fn close(&mut self, id: ChannelId, now: Instant) -> Result<bool, ConnectionError> {
        match self.phase(id) {
            Some(Phase::Ended) => {
                self.channels.remove(&id.stream);
            }
            Some(Phase::Open) => {
                let (_, association) = self.association.as_mut().ok_or(ConnectionError::Closed)?;
                let unconfirmed = association.stream(id.stream).and_then(|stream| stream.buffered_amount());
                if unconfirmed.is_ok_and(|bytes| bytes > 0) {
                    return Ok(false);
                }
                let closing = association.stream(id.stream).and_then(|mut stream| stream.close());
                match (closing, self.channels.get_mut(&id.stream)) {
                    (Ok(()), Some(channel)) => channel.phase = Phase::Closing,
                    _ => drop(self.channels.remove(&id.stream)),
                }
                self.progress(now)?;
            }
            _ => {}
        }
        Ok(true)
    }

    /// Says goodbye to the peer.
    pub(crate) fn end(&mut self, now: Instant) {
        // Whether the goodbye is sent or not, the connection is over.
        if let Err(error) = self.dtls.close().map_err(dtls_error).and_then(|()| self.progress(now)) {
            tracing::trace!(%error, "the connection is closed already");
        }
    }

    fn phase(&self, id: ChannelId) -> Option<Phase> {
        let channel = self.channels.get(&id.stream)?;
        (channel.generation == id.generation).then_some(channel.phase)
    }

    /// Whether neither side has closed a channel.
    pub(crate) fn is_open(&self, id: ChannelId) -> bool {
        self.phase(id) == Some(Phase::Open)
    }

    /// Whether a channel still has its number.
    pub(crate) fn has(&self, id: ChannelId) -> bool {
        self.phase(id).is_some()
    }

    fn is_current(&self, id: ChannelId) -> bool {
        self.phase(id).is_some_and(|phase| phase != Phase::Closing)
    }

    /// Moves data between the layers until none moves.
    fn progress(&mut self, now: Instant) -> Result<(), ConnectionError> {
        loop {
            self.take_dtls_output(now)?;
            for message in std::mem::take(&mut self.received) {
                let verdict = self.inspector.inspect(&message).map_err(sctp_error)?;
                if verdict == PacketVerdict::Admitted {
                    self.receive_sctp(message, now);
                    // Before the next message, which may use the number of a closed channel again.
                    self.take_sctp_events()?;
                }
            }
            self.take_sctp_events()?;
            if !self.send_sctp(now)? {
                return Ok(());
            }
        }
    }

    /// Takes packets, the timeout and decrypted messages out of DTLS.
    fn take_dtls_output(&mut self, now: Instant) -> Result<(), ConnectionError> {
        let mut connected = false;
        loop {
            match self.dtls.poll_output(&mut self.output) {
                Output::Packet(packet) => self.packets.push_back(packet.to_vec()),
                Output::BufferTooSmall { needed } => self.output.resize(needed, 0),
                Output::Timeout(due) => {
                    self.dtls_timeout = Some(due);
                    break;
                }
                Output::Connected => connected = true,
                Output::PeerCert(der) => self.remote_certificate = Some(Fingerprint::from_certificate(der)),
                Output::ApplicationData(message) => self.received.push(Bytes::copy_from_slice(message)),
                Output::CloseNotify => return Err(ConnectionError::Closed),
                _ => {}
            }
        }
        if connected && self.role == Role::Client {
            let mut config = ClientConfig::default();
            config.transport = Arc::new(transport_config());
            let associated = self.endpoint.connect(config, PEER);
            self.association = Some(associated.map_err(|error| ConnectionError::Sctp(error.to_string()))?);
            if let Some((_, association)) = &mut self.association {
                association.handle_timeout(now);
            }
        }
        Ok(())
    }

    fn receive_sctp(&mut self, message: Bytes, now: Instant) {
        match self.endpoint.handle(now, PEER, None, None, message) {
            Some((handle, DatagramEvent::NewAssociation(association))) => {
                // One peer has one association; the endpoint would keep each further one.
                self.endpoint.reject_new_associations();
                self.association = Some((handle, association));
            }
            Some((handle, DatagramEvent::AssociationEvent(event))) => {
                if let Some((own, association)) = &mut self.association
                    && *own == handle
                {
                    association.handle_event(event);
                }
            }
            None => {}
        }
    }

    fn take_sctp_events(&mut self) -> Result<(), ConnectionError> {
        while let Some((handle, association)) = &mut self.association {
            while let Some(event) = association.poll_endpoint_event() {
                if let Some(event) = self.endpoint.handle_event(*handle, event) {
                    association.handle_event(event);
                }
            }
            match association.poll() {
                None => break,
                Some(SctpEvent::Connected) => {
                    self.established = true;
                    self.events.push_back(Event::Established);
                }
                Some(SctpEvent::HandshakeFailed { reason } | SctpEvent::AssociationLost { reason }) => {
                    return Err(ConnectionError::Sctp(reason.to_string()));
                }
                Some(SctpEvent::Stream(event)) => self.on_stream_event(event)?,
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn on_stream_event(&mut self, event: StreamEvent) -> Result<(), ConnectionError> {
        match event {
            StreamEvent::Opened { id } => {
                let is_first = id == FIRST && !self.first_opened;
                self.first_opened |= is_first;
                self.added(id, if is_first { Phase::Open } else { Phase::Unopened })?;
            }
            StreamEvent::Readable { id } => {
                let Entry::Occupied(mut channel) = self.channels.entry(id) else { return Ok(()) };
                let channel = channel.get_mut();
                let channel_id = ChannelId { stream: id, generation: channel.generation };
                if channel.released {
                    self.discard(id);
                    return Ok(());
                }
                if channel.phase == Phase::Unopened {
                    channel.phase = Phase::Open;
                    self.accept(id)?;
                    self.events.push_back(Event::Incoming(channel_id));
                }
                self.events.push_back(Event::Readable(channel_id));
            }
            StreamEvent::Writable { id } | StreamEvent::BufferedAmountLow { id } => {
                if let Some(channel) = self.channels.get(&id) {
                    self.events
                        .push_back(Event::Writable(ChannelId { stream: id, generation: channel.generation }));
                }
            }
            StreamEvent::Finished { id } => {
                self.inspector.forget(id);
                if let Some(channel) = self.channels.get_mut(&id)
                    && channel.phase != Phase::Closing
                {
                    // A channel that never opened has no owner.
                    if channel.phase == Phase::Unopened || channel.released {
                        self.channels.remove(&id);
                        return Ok(());
                    }
                    channel.phase = Phase::Ended;
                    let generation = channel.generation;
                    self.events.push_back(Event::Ended(ChannelId { stream: id, generation }));
                }
            }
            StreamEvent::ResetComplete { id } | StreamEvent::ResetFailed { id, .. } => {
                if let Entry::Occupied(channel) = self.channels.entry(id)
                    && channel.get().phase == Phase::Closing
                {
                    channel.remove();
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads the message that opens a channel, and acknowledges it.
    fn accept(&mut self, id: u16) -> Result<(), ConnectionError> {
        // The peer may have closed it already.
        let Ok(message) = self.next_message(id) else { return Ok(()) };
        let chunks = message.ok_or(ConnectionError::Opening)?;
        let mut message = vec![0; chunks.len()];
        chunks.read(&mut message).map_err(sctp_error)?;
        if chunks.ppi != Protocol::Dcep || !dcep::opens(&message) {
            return Err(ConnectionError::Opening);
        }
        let (_, association) = self.association.as_mut().ok_or(ConnectionError::Closed)?;
        let answered =
            association.stream(id).and_then(|mut stream| stream.write_with_ppi(&dcep::ACK, Protocol::Dcep));
        if let Err(error) = answered {
            tracing::trace!(%error, "a channel was closed as it was opened");
        }
        Ok(())
    }

    /// Encrypts the packets that SCTP sends; whether there were any.
    fn send_sctp(&mut self, now: Instant) -> Result<bool, ConnectionError> {
        let Some((_, association)) = &mut self.association else { return Ok(false) };
        let mut messages = Vec::new();
        while let Some(transmit) = association.poll_transmit(now) {
            if let Payload::RawEncode(parts) = transmit.payload {
                messages.extend(parts);
            }
        }
        for message in &messages {
            self.dtls.send_application_data(message).map_err(dtls_error)?;
            // DTLS has a short queue.
            self.take_dtls_output(now)?;
        }
        Ok(!messages.is_empty())
    }
}

fn transport_config() -> TransportConfig {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    TransportConfig::default()
        .with_max_receive_buffer_size(RECEIVE_BYTES)
        .with_max_receive_message_size(MAX_MESSAGE_BYTES)
        .with_max_send_message_size(MAX_MESSAGE_BYTES)
        .with_max_data_retransmits(Some(MAX_RETRANSMISSIONS))
        .with_rto_initial_ms(millis(FIRST_TIMEOUT))
        .with_rto_min_ms(millis(SHORTEST_TIMEOUT))
        .with_rto_max_ms(millis(LONGEST_TIMEOUT))
}

fn dtls_error(error: impl ToString) -> ConnectionError {
    ConnectionError::Dtls(error.to_string())
}

fn sctp_error(error: impl ToString) -> ConnectionError {
    ConnectionError::Sctp(error.to_string())
}
