//! A client and a server without a network.

use super::*;
use crate::webrtc::{
    channel_queue::ChannelQueue,
    limits::{MAX_CHANNEL_PIECES, MAX_SACK_RANGE},
    sctp_inspector::tests::{chunk, data, sack},
};

/// A client and a server, and the way between them.
struct Pair {
    client: PeerConnection,
    server: PeerConnection,
    now: Instant,
}

impl Pair {
    fn new() -> Self {
        let now = Instant::now();
        let side = |role| PeerConnection::new(role, &Certificate::generate().unwrap(), now).unwrap();
        let mut pair = Self { client: side(Role::Client), server: side(Role::Server), now };
        pair.settle().unwrap();
        pair
    }

    /// Exchanges packets and passes time until both are quiet; the error is the server's.
    fn settle(&mut self) -> Result<(), ConnectionError> {
        for _ in 0..40 {
            let mut moved = true;
            while moved {
                moved = false;
                while let Some(packet) = self.client.next_packet() {
                    moved = true;
                    self.server.receive(&packet, self.now)?;
                }
                while let Some(packet) = self.server.next_packet() {
                    moved = true;
                    self.client.receive(&packet, self.now).unwrap();
                }
            }
            self.now += Duration::from_millis(50);
            self.client.expire(self.now).unwrap();
            self.server.expire(self.now)?;
        }
        Ok(())
    }

    fn association(&mut self) -> &mut Association {
        &mut self.client.association.as_mut().unwrap().1
    }

    fn events(connection: &mut PeerConnection) -> Vec<Event> {
        std::iter::from_fn(|| connection.next_event()).collect()
    }

    /// Opens a channel of the client, and shows it to the server.
    fn open(&mut self) -> (ChannelId, ChannelId) {
        let near = self.client.open(self.now).unwrap().unwrap();
        self.settle().unwrap();
        (near, self.incoming())
    }

    /// The channel that the server hears of.
    fn incoming(&mut self) -> ChannelId {
        let mut events = Self::events(&mut self.server).into_iter();
        events.find_map(|event| if let Event::Incoming(id) = event { Some(id) } else { None }).unwrap()
    }

    /// Writes the first message of a channel of any number, as a client of another kind may.
    fn begin(&mut self, stream: u16, message: &[u8], protocol: Protocol) {
        let mut opened = self.association().open_stream(stream, Protocol::Binary).unwrap();
        opened.write_with_ppi(message, protocol).unwrap();
    }

    /// Sends the bytes of the association.
    fn send(&mut self) -> Result<(), ConnectionError> {
        self.client.progress(self.now).unwrap();
        self.settle()
    }
}

#[test]
fn both_sides_see_the_certificate_of_the_other() {
    let mut pair = Pair::new();
    assert!(pair.client.remote_certificate().is_some() && pair.server.remote_certificate().is_some());
    assert_ne!(pair.client.remote_certificate(), pair.server.remote_certificate());
    assert_eq!(Pair::events(&mut pair.client), [Event::Established]);
    assert_eq!(Pair::events(&mut pair.server), [Event::Established]);
}

#[test]
fn a_closed_channel_ends_for_both_and_its_number_is_used_again() {
    let mut pair = Pair::new();
    let (first, far) = pair.open();
    assert_eq!(pair.client.write(first, b"words", pair.now).unwrap(), WriteResult::Bytes(5));
    pair.settle().unwrap();
    assert_eq!(pair.server.read(far, pair.now).unwrap(), ReadResult::Message(b"words".to_vec()));
    assert_eq!(pair.server.read(far, pair.now).unwrap(), ReadResult::Nothing);
    pair.client.close(first, pair.now).unwrap();
    pair.settle().unwrap();
    assert!(Pair::events(&mut pair.server).contains(&Event::Ended(far)));
    assert_eq!(pair.server.read(far, pair.now).unwrap(), ReadResult::End);
    assert_eq!(pair.server.write(far, b"late", pair.now).unwrap(), WriteResult::Closed);
    pair.server.close(far, pair.now).unwrap();
    pair.settle().unwrap();
    assert!(pair.client.channels.is_empty() && pair.server.channels.is_empty());
    let again = pair.client.open(pair.now).unwrap().unwrap();
    assert!(again.stream == first.stream && again != first);
    assert_eq!(pair.client.read(first, pair.now).unwrap(), ReadResult::End, "the old name stays closed");
}

#[test]
fn unread_bytes_of_a_released_channel_do_not_keep_its_number() {
    let mut pair = Pair::new();
    for late in [false, true] {
        let (near, far) = pair.open();
        if late {
            pair.server.release(far, pair.now).unwrap();
        }
        assert_eq!(pair.client.write(near, b"unread", pair.now).unwrap(), WriteResult::Bytes(6));
        pair.settle().unwrap();
        assert!(pair.client.close(near, pair.now).unwrap());
        pair.settle().unwrap();
        if !late {
            pair.server.release(far, pair.now).unwrap();
            pair.settle().unwrap();
        }
        assert!(pair.server.channels.is_empty() && pair.client.channels.is_empty(), "released late: {late}");
    }
    assert_eq!(pair.open().0.stream, FIRST + 2);
}

#[test]
fn a_channel_that_is_closed_as_it_opens_costs_nothing_else() {
    let mut pair = Pair::new();
    for _ in 0..5 {
        pair.begin(2, &dcep::OPEN, Protocol::Dcep);
        pair.association().stream(2).unwrap().close().unwrap();
        pair.send().unwrap();
        for event in Pair::events(&mut pair.server) {
            if let Event::Incoming(id) = event {
                pair.server.release(id, pair.now).unwrap();
            }
        }
        pair.settle().unwrap();
        assert!(pair.server.channels.is_empty());
    }
    pair.open();
}

#[test]
fn the_first_number_is_used_again_as_any_other() {
    let mut pair = Pair::new();
    let (near, far) = (pair.client.open_first().unwrap(), pair.server.open_first().unwrap());
    pair.settle().unwrap();
    pair.server.release(far, pair.now).unwrap();
    assert!(pair.client.close(near, pair.now).unwrap());
    pair.settle().unwrap();
    pair.begin(FIRST, &dcep::OPEN, Protocol::Dcep);
    pair.send().unwrap();
    assert_eq!(pair.incoming().stream, FIRST);
}

#[test]
fn a_peer_with_too_many_channels_loses_the_connection() {
    let mut pair = Pair::new();
    for number in 0..MAX_CHANNELS {
        pair.begin(u16::try_from(2 * number + 2).unwrap(), &dcep::OPEN, Protocol::Dcep);
        if number % 16 == 0 {
            pair.send().unwrap();
        }
    }
    pair.send().unwrap();
    assert_eq!(pair.server.channels.len(), MAX_CHANNELS);
    // Not even a message that opens the channel is needed.
    pair.begin(u16::try_from(2 * MAX_CHANNELS + 2).unwrap(), b"words", Protocol::Binary);
    assert!(matches!(pair.send(), Err(ConnectionError::Channels)));
}

#[test]
fn a_channel_that_begins_with_other_words_ends_the_connection() {
    let mut pair = Pair::new();
    pair.begin(2, b"words", Protocol::Binary);
    assert!(matches!(pair.send(), Err(ConnectionError::Opening)));
}

#[test]
fn a_second_association_of_a_peer_is_refused() {
    let mut pair = Pair::new();
    for _ in 0..20 {
        let mut endpoint = Endpoint::new(Arc::default(), None);
        let (_, mut association) = endpoint.connect(ClientConfig::default(), PEER).unwrap();
        let transmit = association.poll_transmit(pair.now).unwrap();
        let Payload::RawEncode(messages) = transmit.payload else { panic!("it sends bytes") };
        for message in messages {
            pair.client.dtls.send_application_data(&message).unwrap();
        }
        pair.send().unwrap();
    }
    let (opened, _) = pair.open();
    let written = pair.client.write(opened, b"words", pair.now).unwrap();
    assert_eq!(written, WriteResult::Bytes(5), "the first one goes on");
}

#[test]
fn unread_bytes_hold_the_sender_back_and_reading_lets_it_go_on() {
    let mut pair = Pair::new();
    let (near, far) = pair.open();
    let block = vec![7; SENT_MESSAGE_BYTES];
    let (mut sent, mut stood_still) = (0, false);
    loop {
        match pair.client.write(near, &block, pair.now).unwrap() {
            WriteResult::Bytes(count) => (sent, stood_still) = (sent + count, false),
            WriteResult::Full if stood_still => break,
            WriteResult::Full => {
                pair.settle().unwrap();
                stood_still = true;
            }
            WriteResult::Closed => panic!("the channel is open"),
        }
    }
    let most = usize::try_from(RECEIVE_BYTES).unwrap() + CHANNEL_SEND_BYTES + 2 * SENT_MESSAGE_BYTES;
    assert!(sent <= most && sent >= most / 2, "{sent}");
    let (mut read, began) = (0, pair.now);
    while read < sent {
        match pair.server.read(far, pair.now).unwrap() {
            ReadResult::Message(message) => read += message.len(),
            ReadResult::Nothing => {
                assert!(pair.now - began < Duration::from_secs(10), "{read} of {sent}");
                pair.settle().unwrap();
            }
            ReadResult::End => panic!("the channel is open"),
        }
    }
}

#[test]
fn a_goodbye_reaches_the_peer() {
    let mut pair = Pair::new();
    pair.client.end(pair.now);
    assert!(matches!(pair.settle(), Err(ConnectionError::Closed | ConnectionError::Sctp(_))));
}

#[test]
fn a_peer_that_opens_one_channel_again_and_again_fills_no_queue() {
    let mut pair = Pair::new();
    let mut queue = ChannelQueue::new();
    let waiting = pair.client.open(pair.now).unwrap().unwrap();
    for number in 0..2 * MAX_CHANNELS {
        let opened = pair.client.open(pair.now).unwrap().unwrap();
        pair.settle().unwrap();
        assert!(pair.client.close(opened, pair.now).unwrap());
        pair.settle().unwrap();
        for event in Pair::events(&mut pair.server) {
            match event {
                Event::Incoming(id) => queue.push(id, number, &pair.server),
                Event::Ended(id) => pair.server.release(id, pair.now).unwrap(),
                _ => {}
            }
        }
    }
    let (first, _) = *queue.first().unwrap();
    assert_eq!(first.stream, waiting.stream, "a channel that is open keeps its place");
    let held = std::iter::from_fn(|| queue.pop()).count();
    assert!(held <= MAX_CHANNELS, "{held} entries for one open channel");
}

/// Writes chunks of the test into the client's association.
struct ChunkWriter {
    pair: Pair,
    /// Ports and verification tag.
    header: Vec<u8>,
    /// The number of the next chunk of data.
    tsn: u32,
    far: ChannelId,
}

impl ChunkWriter {
    /// On a channel that is open on both sides.
    fn new() -> Self {
        let mut pair = Pair::new();
        let (near, far) = pair.open();
        let now = pair.now;
        pair.association().stream(near.stream).unwrap().write_with_ppi(b"unsent", Protocol::Binary).unwrap();
        let Payload::RawEncode(parts) = pair.association().poll_transmit(now).unwrap().payload else {
            panic!("it sends bytes")
        };
        let tsn = u32::from_be_bytes(parts[0][16..20].try_into().unwrap());
        Self { pair, header: parts[0][..8].to_vec(), tsn, far }
    }

    /// Sends one packet, and drops what the server answers.
    fn send(&mut self, chunks: &[Vec<u8>]) -> Result<usize, ConnectionError> {
        let chunks = chunks.concat();
        let checksum = crc32c(&[&self.header[..], &[0; 4], &chunks].concat());
        let packet = [&self.header[..], &checksum.to_le_bytes(), &chunks].concat();
        let Pair { client, server, now } = &mut self.pair;
        client.dtls.send_application_data(&packet).unwrap();
        client.take_dtls_output(*now).unwrap();
        let mut work = 0;
        while let Some(packet) = client.next_packet() {
            work += server.receive(&packet, *now)?;
        }
        while server.next_packet().is_some() {}
        Ok(work)
    }

    /// Chunks of one byte each with these flags; they have consecutive numbers.
    fn pieces(&mut self, count: usize, flags: u8, first_ssn: Option<u16>) -> Vec<Vec<u8>> {
        let piece = |index: u16| {
            let ssn = first_ssn.map_or(0, |first| first.wrapping_add(index));
            data((self.tsn.wrapping_add(index.into()), self.far.stream, ssn), flags, b"x")
        };
        let pieces = (0..u16::try_from(count).unwrap()).map(piece).collect();
        self.tsn = self.tsn.wrapping_add(u32::try_from(count).unwrap());
        pieces
    }

    /// The pieces that the server keeps for the channel.
    fn held(&self) -> usize {
        self.pair.server.inspector.pieces(self.far.stream)
    }

    fn unread(&mut self) -> usize {
        let (far, now) = (self.far, self.pair.now);
        let server = &mut self.pair.server;
        std::iter::from_fn(|| matches!(server.read(far, now).unwrap(), ReadResult::Message(_)).then_some(()))
            .count()
    }
}

/// The checksum of SCTP (RFC 9260, appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0x82F6_3B78 & (sum & 1).wrapping_neg()))
    })
}

#[test]
fn the_first_chunk_without_bytes_and_the_first_unordered_one_end_the_connection() {
    for (flags, bytes) in [(7, &b""[..]), (6, b""), (3, b""), (0, b""), (7, b"x"), (6, b"x")] {
        let mut writer = ChunkWriter::new();
        let empty = data((writer.tsn, writer.far.stream, 1), flags, bytes);
        assert!(matches!(writer.send(&[empty]), Err(ConnectionError::Sctp(_))), "{flags} {bytes:?}");
    }
}

#[test]
fn short_messages_that_nobody_reads_are_kept_up_to_a_limit_and_go_on_once_they_are_read() {
    let mut writer = ChunkWriter::new();
    let mut ssn = 1;
    for round in 0..3 {
        for _ in 0..100 {
            let (tsn, held) = (writer.tsn, writer.held());
            let pieces = writer.pieces(50, 3, Some(ssn));
            writer.send(&pieces).unwrap();
            match writer.held() - held {
                0 => writer.tsn = tsn,
                _ => ssn += 50,
            }
        }
        let unread = writer.unread();
        assert!((MAX_CHANNEL_PIECES - 50..=MAX_CHANNEL_PIECES).contains(&unread), "round {round}: {unread}");
        assert_eq!(writer.held(), 0);
    }
}

#[test]
fn fragments_that_never_end_are_kept_up_to_a_limit() {
    let mut writer = ChunkWriter::new();
    let first = data((writer.tsn, writer.far.stream, 1), 2, b"x");
    writer.tsn += 1;
    writer.send(&[first]).unwrap();
    for _ in 0..400 {
        let pieces = writer.pieces(50, 0, None);
        // The same message for all.
        let pieces: Vec<_> = pieces
            .into_iter()
            .map(|mut piece| {
                piece[10..12].copy_from_slice(&1u16.to_be_bytes());
                piece
            })
            .collect();
        let work = writer.send(&pieces).unwrap();
        assert_eq!(work, 50);
    }
    assert!(writer.held() <= MAX_CHANNEL_PIECES, "{}", writer.held());
    assert_eq!(writer.unread(), 0);
}

#[test]
fn storms_of_control_chunks_cost_their_number_and_no_more() {
    let mut writer = ChunkWriter::new();
    let most = u16::try_from(MAX_SACK_RANGE).unwrap();
    let probe = chunk(4, 0, &[&[0, 1, 0, 8][..], &[7; 4]].concat());
    let close = chunk(130, 0, &[&[0, 13, 0, 18][..], &[0; 12], &[0, 2]].concat());
    for _ in 0..200 {
        assert_eq!(writer.send(&[sack(0, &[[1, most + 1]])]).unwrap(), 1 + MAX_SACK_RANGE / 64);
        assert_eq!(writer.send(&[probe.clone(), close.clone()]).unwrap(), 2);
    }
    assert!(writer.send(&std::array::from_fn::<_, 5, _>(|_| probe.clone())).is_err());
    let mut writer = ChunkWriter::new();
    assert!(writer.send(&[sack(0, &[[1, u16::MAX], [1, u16::MAX]])]).is_err());
}
