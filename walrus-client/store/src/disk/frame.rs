//! The format of the index's log: a header, then frames. Pure, except for reading a file.
//!
//! A frame is `mark (8) ‖ payload length (u32) ‖ serial (u64) ‖ payload ‖ checksum (32)`. Numbers are
//! little-endian. Mark and checksum are keyed by a random salt in the header, which never leaves the disk:
//! stored bytes cannot pass for a frame. After damage, reading continues at the next mark with a whole frame.

use std::{fs::File, io};

use super::file_io;

/// The folder layout that this version reads and writes. Version 2 kept records in sled.
pub(super) const LAYOUT: u32 = 3;
const MAGIC: &[u8; 8] = b"batonidx";
const SALT_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 32;
/// Magic, layout, shards, generation, salt, checksum.
pub(super) const HEADER_BYTES: usize = 8 + 4 + 2 + 8 + SALT_BYTES + CHECKSUM_BYTES;
const MARK_BYTES: usize = 8;
const FRAME_HEAD: usize = MARK_BYTES + 4 + 8;
/// Longest payload: the record of a blob with the most objects is 25 KB, a head record 8 KiB.
pub(super) const MAX_PAYLOAD: usize = 64 * 1024;
const MAX_FRAME: usize = FRAME_HEAD + MAX_PAYLOAD + CHECKSUM_BYTES;
/// Bytes read at a time.
const WINDOW_BYTES: usize = 1024 * 1024;

/// The first bytes of a copy of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) shards: u16,
    /// Increases with each rewrite of the log.
    pub(super) generation: u64,
    pub(super) salt: [u8; SALT_BYTES],
}

/// The reason why a header cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderError {
    Damaged,
    /// It is whole but of another version.
    Layout(u32),
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        self.encode_as(LAYOUT)
    }

    fn encode_as(&self, layout: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&layout.to_le_bytes());
        bytes.extend_from_slice(&self.shards.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.salt);
        let checksum = blake3::hash(&bytes);
        bytes.extend_from_slice(checksum.as_bytes());
        bytes
    }

    /// Reads a header. Magic, layout and checksum have the same place in every version from the third on.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let (content, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(HeaderError::Damaged)?;
        if blake3::hash(content) != *checksum {
            return Err(HeaderError::Damaged);
        }
        let mut rest = content;
        let magic = take::<8>(&mut rest);
        let layout = take::<4>(&mut rest).map(|bytes| u32::from_le_bytes(*bytes));
        let shards = take::<2>(&mut rest).map(|bytes| u16::from_le_bytes(*bytes));
        let generation = take_number(&mut rest);
        let salt = take::<SALT_BYTES>(&mut rest).copied();
        match (magic, layout, shards, generation, salt) {
            (Some(MAGIC), Some(LAYOUT), Some(shards), Some(generation), Some(salt)) if rest.is_empty() => {
                Ok(Self { shards, generation, salt })
            }
            (Some(MAGIC), Some(layout), ..) if layout != LAYOUT => Err(HeaderError::Layout(layout)),
            _ => Err(HeaderError::Damaged),
        }
    }
}

pub(super) fn take<'a, const N: usize>(content: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, rest) = content.split_first_chunk()?;
    *content = rest;
    Some(taken)
}

pub(super) fn take_number(content: &mut &[u8]) -> Option<u64> {
    take(content).map(|bytes| u64::from_le_bytes(*bytes))
}

/// Makes and verifies the frames of one store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Framing {
    key: [u8; 32],
    mark: [u8; MARK_BYTES],
}

impl Framing {
    pub(super) fn new(salt: &[u8; SALT_BYTES]) -> Self {
        let key = blake3::derive_key("baton store index frame", salt);
        let mut mark = [0; MARK_BYTES];
        blake3::Hasher::new_derive_key("baton store index mark").update(salt).finalize_xof().fill(&mut mark);
        Self { key, mark }
    }

    pub(super) fn encode(&self, serial: u64, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(FRAME_HEAD + payload.len() + CHECKSUM_BYTES);
        frame.extend_from_slice(&self.mark);
        let length = u32::try_from(payload.len()).expect("payloads are bounded far below");
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(&serial.to_le_bytes());
        frame.extend_from_slice(payload);
        let checksum = blake3::keyed_hash(&self.key, &frame);
        frame.extend_from_slice(checksum.as_bytes());
        frame
    }

    /// The serial and payload of the frame at the start of the bytes, and the frame's length.
    pub(super) fn decode<'a>(&self, bytes: &'a [u8]) -> Option<(u64, &'a [u8], usize)> {
        let mut rest = bytes.strip_prefix(&self.mark)?;
        let length = usize::try_from(u32::from_le_bytes(*take(&mut rest)?)).ok()?;
        let serial = take_number(&mut rest)?;
        let (payload, rest) = rest.split_at_checked(length).filter(|_| length <= MAX_PAYLOAD)?;
        let checksum = rest.first_chunk::<CHECKSUM_BYTES>()?;
        let covered = FRAME_HEAD + length;
        let right = blake3::keyed_hash(&self.key, bytes.get(..covered)?) == *checksum;
        right.then_some((serial, payload, covered + CHECKSUM_BYTES))
    }
}

/// A stretch of a log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stretch {
    Frame {
        serial: u64,
        payload: Vec<u8>,
        offset: u64,
        length: u32,
    },
    /// Bytes without a whole frame.
    Damaged {
        from: u64,
        to: u64,
    },
}

/// Reads a copy of the log after its header, with memory for one window.
#[derive(Debug)]
pub(super) struct Scanner<'a> {
    file: &'a File,
    framing: Framing,
    offset: u64,
    end: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(file: &'a File, framing: Framing) -> io::Result<Self> {
        let end = file.metadata()?.len();
        Ok(Self { file, framing, offset: HEADER_BYTES as u64, end, window: Vec::new(), window_at: 0 })
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// The offset of the next stretch.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes from the offset on: enough for the longest frame, unless the file ends first.
    fn bytes(&mut self) -> io::Result<&[u8]> {
        let left = self.end - self.offset;
        let wanted = left.min(MAX_FRAME as u64);
        let held = (self.window_at + self.window.len() as u64).saturating_sub(self.offset);
        if self.offset < self.window_at || held < wanted {
            let length = usize::try_from(left.min(WINDOW_BYTES as u64)).expect("a window at most");
            self.window.resize(length, 0);
            self.window_at = self.offset;
            file_io::read(self.file, &mut self.window, self.offset)?;
        }
        let start = usize::try_from(self.offset - self.window_at).expect("within the window");
        Ok(self.window.get(start..).unwrap_or_default())
    }

    /// The next stretch.
    pub(super) fn next(&mut self) -> io::Result<Option<Stretch>> {
        if self.offset >= self.end {
            return Ok(None);
        }
        let framing = self.framing;
        let from = self.offset;
        loop {
            let bytes = self.bytes()?;
            let decoded =
                framing.decode(bytes).map(|(serial, payload, length)| (serial, payload.to_vec(), length));
            if let Some((serial, payload, length)) = decoded {
                if self.offset > from {
                    return Ok(Some(Stretch::Damaged { from, to: self.offset }));
                }
                let offset = self.offset;
                self.offset += length as u64;
                let length = u32::try_from(length).expect("a frame at most");
                return Ok(Some(Stretch::Frame { serial, payload, offset, length }));
            }
            let bytes = self.bytes()?;
            // Goes to the next mark, or past all bytes that cannot begin one.
            let next = bytes.windows(MARK_BYTES).skip(1).position(|bytes| bytes == framing.mark);
            let step = next.map_or(bytes.len().saturating_sub(MARK_BYTES - 1), |next| next + 1).max(1);
            self.offset += step as u64;
            if self.end.saturating_sub(self.offset) < FRAME_HEAD as u64 {
                self.offset = self.end;
                return Ok(Some(Stretch::Damaged { from, to: self.end }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const SALT: [u8; 32] = [7; 32];

    fn header() -> Header {
        Header { shards: 10, generation: 3, salt: SALT }
    }

    #[test]
    fn headers_are_read_as_written_and_name_other_layouts() {
        let bytes = header().encode();
        assert_eq!(bytes.len(), HEADER_BYTES);
        assert_eq!(Header::decode(&bytes), Ok(header()));
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&changed), Err(HeaderError::Damaged), "{bit}");
        }
        assert_eq!(Header::decode(&bytes[..40]), Err(HeaderError::Damaged));
        assert_eq!(Header::decode(&header().encode_as(4)), Err(HeaderError::Layout(4)));
    }

    fn scan(bytes: &[u8]) -> Vec<Stretch> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&header().encode()).unwrap();
        file.write_all(bytes).unwrap();
        let mut scanner = Scanner::new(&file, Framing::new(&SALT)).unwrap();
        std::iter::from_fn(|| scanner.next().unwrap()).collect()
    }

    #[test]
    fn a_damaged_frame_costs_no_other() {
        let framing = Framing::new(&SALT);
        let payloads: Vec<Vec<u8>> = [0, 1, 300, MAX_PAYLOAD].map(|length| vec![9; length]).into();
        let frames: Vec<_> =
            payloads.iter().zip(1..).map(|(payload, serial)| framing.encode(serial, payload)).collect();
        let serials = |found: &[Stretch]| -> Vec<u64> {
            let frames = found.iter().filter_map(|stretch| match stretch {
                Stretch::Frame { serial, .. } => Some(*serial),
                Stretch::Damaged { .. } => None,
            });
            frames.collect()
        };
        let whole = frames.concat();
        assert_eq!(serials(&scan(&whole)), [1, 2, 3, 4]);
        for (place, lost) in [(0, 1), (9, 1), (20, 1), (frames[0].len() + 5, 2), (whole.len() - 1, 4)] {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            let found = scan(&changed);
            let rest: Vec<u64> = (1..=4).filter(|serial| *serial != lost).collect();
            assert_eq!(serials(&found), rest, "{place}");
            assert_eq!(found.len(), 4, "one damaged stretch: {place}");
        }
        let cut = scan(&whole[..whole.len() - 10]);
        assert_eq!(serials(&cut), [1, 2, 3]);
        assert!(matches!(cut.last(), Some(Stretch::Damaged { .. })));
    }

    #[test]
    fn stored_bytes_cannot_pass_for_a_frame() {
        let framing = Framing::new(&SALT);
        let forged = Framing::new(&[8; 32]).encode(9, b"forged");
        let mut outer = framing.encode(1, &forged);
        outer[0] ^= 1;
        assert_eq!(
            scan(&outer),
            [Stretch::Damaged { from: HEADER_BYTES as u64, to: (HEADER_BYTES + outer.len()) as u64 }]
        );
    }
}
