//! Looks at the peer's SCTP packets before SCTP does. Pure.
//!
//! SCTP's own window counts bytes of data alone. Its costs are by piece: it keeps each chunk of data as a value that holds
//! its packet, walks a channel's chunks for each further one, and takes each number of an acknowledged range by itself.
//! So this module counts pieces. A packet beyond a limit is lost, as on a full link, and the peer sends it again. A
//! packet that no browser sends for libp2p's ordered and reliable channels ends the connection.
//!
//! Source: RFC 9260 (SCTP), 8260 (I-DATA), 3758 (FORWARD-TSN), 6525 (RE-CONFIG).

use std::collections::{HashMap, HashSet};

use crate::webrtc::limits::{
    MAX_CHANNEL_PIECES, MAX_CONTROL_CHUNKS, MAX_PACKET_CHUNKS, MAX_PIECES, MAX_PIECES_AHEAD, MAX_SACK_RANGE,
};

const HEADER_BYTES: usize = 12;
const CHUNK_HEADER_BYTES: usize = 4;

const DATA: u8 = 0;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const SACK: u8 = 3;
const I_DATA: u8 = 64;
const FORWARD_TSN: u8 = 192;
const I_FORWARD_TSN: u8 = 194;

/// Flag of DATA: the message has no place in an order.
const UNORDERED: u8 = 0b100;

/// Numbers of an acknowledged range that cost as much as a chunk.
const RANGE_PER_CHUNK: usize = 64;

/// A packet that no browser sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SctpViolation {
    #[error("a packet has no whole chunks")]
    Form,
    #[error("a packet has too many chunks")]
    Chunks,
    #[error("a chunk of data is empty")]
    EmptyData,
    #[error("data is unordered or partly reliable")]
    Unreliable,
    #[error("the ranges of an acknowledgement are not in order")]
    Ranges,
}

/// The result for a packet that breaks no rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketVerdict {
    Admitted,
    /// It would go beyond a limit.
    Lost,
}

/// A chunk of data: its number in the association, and its channel.
type Piece = (u32, u16);

/// Counts the pieces that SCTP keeps for a peer. It never counts fewer than SCTP keeps: a number counts once, and leaves
/// with its message or its channel.
#[derive(Debug, Default)]
pub(crate) struct SctpInspector {
    /// The last number up to which none is missing; `None` before the association begins.
    last: Option<u32>,
    first: Option<u32>,
    /// Numbers after `last` that have come.
    ahead: HashSet<u32>,
    /// The distance of the highest of them.
    highest: u32,
    of_channel: HashMap<u16, usize>,
    pieces: usize,
    work: usize,
}

impl SctpInspector {
    /// Judges a packet, and counts its pieces if it is admitted.
    pub(crate) fn inspect(&mut self, packet: &[u8]) -> Result<PacketVerdict, SctpViolation> {
        let (mut new, mut chunks, mut control, mut is_within) = (Vec::new(), 0, 0, true);
        let mut rest = packet.get(HEADER_BYTES..).ok_or(SctpViolation::Form)?;
        while !rest.is_empty() {
            let (kind, flags, value, next) = split_chunk(rest)?;
            rest = next;
            chunks += 1;
            control += usize::from(kind != DATA);
            if chunks > MAX_PACKET_CHUNKS || control > MAX_CONTROL_CHUNKS {
                return Err(SctpViolation::Chunks);
            }
            match kind {
                DATA if value.len() == 12 => return Err(SctpViolation::EmptyData),
                DATA if flags & UNORDERED != 0 => return Err(SctpViolation::Unreliable),
                DATA => new.push(piece(value).ok_or(SctpViolation::Form)?),
                I_DATA | FORWARD_TSN | I_FORWARD_TSN => return Err(SctpViolation::Unreliable),
                // A second association is refused anyway.
                INIT | INIT_ACK => is_within &= self.begin(number(value, 12).ok_or(SctpViolation::Form)?),
                SACK => {
                    let end = last_of_ranges(value)?;
                    is_within &= end <= MAX_SACK_RANGE;
                    self.work += end.min(MAX_SACK_RANGE) / RANGE_PER_CHUNK;
                }
                _ => {}
            }
        }
        self.work += chunks;
        if !is_within || !self.has_room(&new) {
            return Ok(PacketVerdict::Lost);
        }
        new.into_iter().for_each(|piece| self.count(piece));
        Ok(PacketVerdict::Admitted)
    }

    /// The chunks that were looked at since the last call.
    pub(crate) fn take_work(&mut self) -> usize {
        std::mem::take(&mut self.work)
    }

    /// The pieces of a channel.
    #[cfg(test)]
    pub(crate) fn pieces(&self, channel: u16) -> usize {
        self.of_channel.get(&channel).copied().unwrap_or_default()
    }

    /// A message of this many pieces was read from a channel.
    pub(crate) fn read(&mut self, channel: u16, pieces: usize) {
        if let Some(held) = self.of_channel.get_mut(&channel) {
            let read = pieces.min(*held);
            *held -= read;
            self.pieces -= read;
        }
    }

    /// SCTP has forgotten a channel, and all that it kept for it.
    pub(crate) fn forget(&mut self, channel: u16) {
        self.pieces -= self.of_channel.remove(&channel).unwrap_or_default();
    }

    /// Notes that the numbers begin with this one; `false` if they began with another.
    fn begin(&mut self, first: u32) -> bool {
        self.last.get_or_insert(first.wrapping_sub(1));
        *self.first.get_or_insert(first) == first
    }

    /// How far a number is after those of which none is missing; `None` for one that has come.
    fn distance(&self, number: u32) -> Option<u32> {
        let distance = number.wrapping_sub(self.last?);
        let is_new = distance != 0 && distance <= u32::MAX / 2 && !self.ahead.contains(&number);
        is_new.then_some(distance)
    }

    /// Whether new pieces are within all limits. One that fills a gap always is: others may wait for it.
    fn has_room(&self, new: &[Piece]) -> bool {
        // Data before the association begins is none that SCTP keeps.
        let mut held = self.pieces;
        new.iter().all(|(number, channel)| {
            let Some(distance) = self.distance(*number) else { return true };
            held += 1;
            let of_channel = self.of_channel.get(channel).copied().unwrap_or_default();
            let has_room = held <= MAX_PIECES && of_channel + held - self.pieces <= MAX_CHANNEL_PIECES;
            distance < self.highest || (distance <= MAX_PIECES_AHEAD && has_room)
        })
    }

    fn count(&mut self, (number, channel): Piece) {
        let (Some(distance), Some(mut last)) = (self.distance(number), self.last) else { return };
        self.ahead.insert(number);
        self.highest = self.highest.max(distance);
        while self.ahead.remove(&last.wrapping_add(1)) {
            last = last.wrapping_add(1);
            self.highest = self.highest.saturating_sub(1);
        }
        self.last = Some(last);
        *self.of_channel.entry(channel).or_default() += 1;
        self.pieces += 1;
    }
}

/// Type, flags and value of a chunk, and the chunks after it.
type SplitChunk<'a> = (u8, u8, &'a [u8], &'a [u8]);

/// Splits off the first chunk.
fn split_chunk(bytes: &[u8]) -> Result<SplitChunk<'_>, SctpViolation> {
    let (header, after) = bytes.split_first_chunk::<CHUNK_HEADER_BYTES>().ok_or(SctpViolation::Form)?;
    let [kind, flags, high, low] = *header;
    let length = usize::from(u16::from_be_bytes([high, low])).checked_sub(CHUNK_HEADER_BYTES);
    let (value, padded) =
        length.and_then(|length| after.split_at_checked(length)).ok_or(SctpViolation::Form)?;
    let padding = value.len().next_multiple_of(4) - value.len();
    // The last chunk may lack its padding.
    Ok((kind, flags, value, padded.get(padding..).unwrap_or_default()))
}

fn number(value: &[u8], at: usize) -> Option<u32> {
    value.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

fn piece(data: &[u8]) -> Option<Piece> {
    // After them come the message's number in its channel, and its protocol.
    let channel = data.get(4..12)?.first_chunk().copied().map(u16::from_be_bytes)?;
    Some((number(data, 0)?, channel))
}

/// The end of the last range of an acknowledgement.
fn last_of_ranges(sack: &[u8]) -> Result<usize, SctpViolation> {
    let count = sack.get(8..).and_then(<[u8]>::first_chunk).copied().map(u16::from_be_bytes);
    let count = usize::from(count.ok_or(SctpViolation::Form)?);
    let ranges = sack.get(12..12 + 4 * count).ok_or(SctpViolation::Form)?;
    let mut last = 0;
    for range in ranges.chunks_exact(4) {
        let &[a, b, c, d] = range else { return Err(SctpViolation::Form) };
        let (begin, end) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        if begin <= last || end < begin {
            return Err(SctpViolation::Ranges);
        }
        last = end;
    }
    Ok(last.into())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A chunk with its padding.
    pub(crate) fn chunk(kind: u8, flags: u8, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(CHUNK_HEADER_BYTES + value.len()).unwrap().to_be_bytes();
        let mut chunk = [&[kind, flags], &length[..], value].concat();
        chunk.resize(chunk.len().next_multiple_of(4), 0);
        chunk
    }

    /// DATA with a number in the association, a channel, a number in the channel, flags and bytes.
    pub(crate) fn data((tsn, channel, ssn): (u32, u16, u16), flags: u8, bytes: &[u8]) -> Vec<u8> {
        let head = [&tsn.to_be_bytes()[..], &channel.to_be_bytes(), &ssn.to_be_bytes(), &53u32.to_be_bytes()];
        chunk(DATA, flags, &[&head.concat(), bytes].concat())
    }

    pub(crate) fn sack(last: u32, ranges: &[[u16; 2]]) -> Vec<u8> {
        let count = u16::try_from(ranges.len()).unwrap().to_be_bytes();
        let fixed = [&last.to_be_bytes()[..], &u32::MAX.to_be_bytes(), &count, &[0; 2]].concat();
        let ranges = ranges.iter().flatten().flat_map(|bound| bound.to_be_bytes());
        chunk(SACK, 0, &fixed.into_iter().chain(ranges).collect::<Vec<_>>())
    }

    fn packet(chunks: &[Vec<u8>]) -> Vec<u8> {
        [vec![0; HEADER_BYTES], chunks.concat()].concat()
    }

    /// After the beginning of an association whose numbers begin with 1.
    fn begun() -> SctpInspector {
        let mut inspector = SctpInspector::default();
        let init = chunk(INIT, 0, &[&[0; 12][..], &1u32.to_be_bytes()].concat());
        assert_eq!(inspector.inspect(&packet(&[init])), Ok(PacketVerdict::Admitted));
        inspector
    }

    fn whole(tsn: u32) -> Vec<u8> {
        data((tsn, 2, u16::try_from(tsn % 65536).unwrap()), 3, b"x")
    }

    #[test]
    fn packets_that_no_browser_sends_end_the_connection() {
        let empty = data((1, 2, 0), 3, b"");
        for (chunks, violation) in [
            (vec![empty.clone()], SctpViolation::EmptyData),
            (vec![whole(1), empty], SctpViolation::EmptyData),
            (vec![data((1, 2, 0), 7, b"x")], SctpViolation::Unreliable),
            (vec![data((1, 2, 0), 6, b"x")], SctpViolation::Unreliable),
            (vec![chunk(I_DATA, 3, &[1; 20])], SctpViolation::Unreliable),
            (vec![chunk(FORWARD_TSN, 0, &[0; 4])], SctpViolation::Unreliable),
            (vec![chunk(I_FORWARD_TSN, 0, &[0; 4])], SctpViolation::Unreliable),
            (vec![chunk(DATA, 3, &[0; 11])], SctpViolation::Form),
            (vec![vec![0, 3, 0, 3]], SctpViolation::Form),
            (vec![vec![0, 3, 0, 99, 1]], SctpViolation::Form),
            (vec![chunk(4, 0, &[0; 8]); MAX_CONTROL_CHUNKS + 1], SctpViolation::Chunks),
            (vec![chunk(130, 0, &[0; 16]); MAX_CONTROL_CHUNKS + 1], SctpViolation::Chunks),
            ((1..).map(whole).take(MAX_PACKET_CHUNKS + 1).collect(), SctpViolation::Chunks),
            (vec![sack(0, &[[2, 3], [3, 4]])], SctpViolation::Ranges),
            (vec![sack(0, &[[1, 65535], [1, 65535]])], SctpViolation::Ranges),
            (vec![sack(0, &[[3, 2]])], SctpViolation::Ranges),
        ] {
            assert_eq!(begun().inspect(&packet(&chunks)), Err(violation), "{chunks:?}");
        }
        assert_eq!(begun().inspect(&[0; 11]), Err(SctpViolation::Form));
        let other = chunk(INIT, 0, &[&[0; 12][..], &9u32.to_be_bytes()].concat());
        assert_eq!(begun().inspect(&packet(&[other])), Ok(PacketVerdict::Lost));
    }

    #[test]
    fn a_packet_full_of_the_shortest_messages_is_admitted_beside_control_chunks() {
        let mut chunks: Vec<_> = (1..58).map(whole).collect();
        chunks.extend([sack(0, &[[2, 3], [5, 5]]), chunk(4, 0, &[0; 8]), chunk(130, 0, &[0; 16])]);
        let mut inspector = begun();
        assert_eq!(inspector.inspect(&packet(&chunks)), Ok(PacketVerdict::Admitted));
        assert_eq!((inspector.pieces, inspector.last), (57, Some(57)));
        assert_eq!(inspector.inspect(&packet(&chunks)), Ok(PacketVerdict::Admitted), "sent again");
        assert_eq!((inspector.pieces, inspector.ahead.len()), (57, 0));
    }

    /// Whether a chunk alone is admitted.
    fn admits(inspector: &mut SctpInspector, chunk: Vec<u8>) -> bool {
        inspector.inspect(&packet(&[chunk])).unwrap() == PacketVerdict::Admitted
    }

    #[test]
    fn pieces_beyond_a_limit_are_lost_until_messages_are_read() {
        let mut inspector = begun();
        // Fragments of a message that never ends, and then whole messages.
        for flags in [0, 3] {
            let piece = |tsn| data((tsn, 2, 0), flags, b"x");
            let first = inspector.last.unwrap() + 1;
            let admitted = (first..).take_while(|tsn| admits(&mut inspector, piece(*tsn))).count();
            assert_eq!(admitted, MAX_CHANNEL_PIECES);
            inspector.read(2, 10);
            let first = inspector.last.unwrap() + 1;
            assert_eq!((first..).take_while(|tsn| admits(&mut inspector, piece(*tsn))).count(), 10);
            inspector.forget(2);
            assert_eq!(inspector.pieces, 0);
        }
        let on_many = |tsn| data((tsn, u16::try_from(tsn % 300).unwrap(), 0), 0, b"x");
        let first = inspector.last.unwrap() + 1;
        assert_eq!((first..).take_while(|tsn| admits(&mut inspector, on_many(*tsn))).count(), MAX_PIECES);
    }

    #[test]
    fn a_gap_is_bounded_and_its_filling_is_admitted_whatever_waits() {
        let mut inspector = begun();
        let channel = |tsn: u32| data((tsn, u16::try_from(tsn % 8).unwrap(), 0), 3, b"x");
        let ahead = (2..).take_while(|tsn| admits(&mut inspector, channel(*tsn))).count();
        assert_eq!(ahead, MAX_PIECES_AHEAD as usize - 1);
        assert!(!admits(&mut inspector, channel(u32::MAX / 4)));
        assert!(admits(&mut inspector, channel(1)));
        assert_eq!((inspector.ahead.len(), inspector.highest), (0, 0));
        assert_eq!(inspector.last, Some(MAX_PIECES_AHEAD));
    }

    #[test]
    fn long_ranges_of_acknowledgements_are_lost_and_count_as_work() {
        let mut inspector = begun();
        let most = u16::try_from(MAX_SACK_RANGE).unwrap();
        inspector.take_work();
        assert!(admits(&mut inspector, sack(0, &[[1, most]])));
        assert_eq!(inspector.take_work(), 1 + MAX_SACK_RANGE / RANGE_PER_CHUNK);
        assert!(!admits(&mut inspector, sack(0, &[[1, most + 1]])));
    }
}
