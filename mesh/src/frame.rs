//! The frame codec, without I/O: a little-endian `u32` length, then that many bytes.
//!
//! [`crate::TurnStream`] calls it. Whatever length a header announces, it allocates at most one growth step
//! beyond the bytes that have arrived.

/// Bytes of a frame's length header.
pub const HEADER_BYTES: usize = 4;

/// The largest frame that either side handles, whatever limit a caller gives. It exceeds every protocol
/// message and is far below a size that would harm a process.
pub const FRAME_CEILING_BYTES: usize = 64 << 20;

/// How far a frame's buffer grows ahead of the arrived bytes. The buffer at most doubles where that is more.
pub const GROWTH_BYTES: usize = 64 << 10;

/// A frame longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {len} bytes exceeds the limit of {limit}")]
pub struct FrameTooLarge {
    /// Bytes announced by a peer or passed by the caller.
    pub len: usize,
    /// Bytes allowed.
    pub limit: usize,
}

/// The header of a frame of `len` bytes.
///
/// # Errors
/// [`FrameTooLarge`] above [`FRAME_CEILING_BYTES`].
pub fn encode_header(len: usize) -> Result<[u8; HEADER_BYTES], FrameTooLarge> {
    match u32::try_from(len) {
        Ok(header) if len <= FRAME_CEILING_BYTES => Ok(header.to_le_bytes()),
        _ => Err(FrameTooLarge { len, limit: FRAME_CEILING_BYTES }),
    }
}

/// Reassembles frames from bytes that arrive in arbitrary pieces.
///
/// Call [`space`](Self::space), fill part of it from the wire, then call [`filled`](Self::filled). At the end
/// of the stream, check [`is_at_boundary`](Self::is_at_boundary). The decoder holds all progress, so a reader
/// may stop between any two calls and continue later.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    header: [u8; HEADER_BYTES],
    header_filled: usize,
    /// Body of the frame in progress: `body_filled` bytes have arrived, the rest is free space.
    body: Vec<u8>,
    body_filled: usize,
}

impl FrameDecoder {
    /// The length from the header, once it is complete.
    fn announced(&self) -> Option<usize> {
        (self.header_filled == HEADER_BYTES)
            .then(|| usize::try_from(u32::from_le_bytes(self.header)).unwrap_or(usize::MAX))
    }

    /// Where the next bytes go; never empty, and never past the end of the current frame.
    ///
    /// # Errors
    /// [`FrameTooLarge`] when the header announces more than `limit` or [`FRAME_CEILING_BYTES`]. The state is
    /// unchanged: a retry with a higher limit may read the same frame.
    pub fn space(&mut self, limit: usize) -> Result<&mut [u8], FrameTooLarge> {
        let Some(len) = self.announced() else {
            return Ok(self.header.get_mut(self.header_filled..).unwrap_or_default());
        };
        let limit = limit.min(FRAME_CEILING_BYTES);
        if len > limit {
            return Err(FrameTooLarge { len, limit });
        }
        if self.body_filled == self.body.len() {
            let step = (len - self.body_filled).min(self.body_filled.max(GROWTH_BYTES));
            self.body.reserve_exact(step);
            self.body.resize(self.body_filled + step, 0);
        }
        Ok(self.body.get_mut(self.body_filled..).unwrap_or_default())
    }

    /// Records that `count` bytes were written to the start of the last [`space`](Self::space). Returns the
    /// frame if that completes it.
    pub fn filled(&mut self, count: usize) -> Option<Vec<u8>> {
        if self.announced().is_none() {
            self.header_filled = (self.header_filled + count).min(HEADER_BYTES);
        } else {
            self.body_filled = (self.body_filled + count).min(self.body.len());
        }
        if self.announced()? != self.body_filled {
            return None;
        }
        self.header_filled = 0;
        self.body_filled = 0;
        Some(std::mem::take(&mut self.body))
    }

    /// Whether no frame is in progress, so that the stream may end here without truncation.
    #[must_use]
    pub fn is_at_boundary(&self) -> bool {
        self.header_filled == 0
    }

    /// Bytes of memory held for the frame in progress.
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.body.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(frames: &[Vec<u8>]) -> Vec<u8> {
        frames.iter().flat_map(|f| [&encode_header(f.len()).unwrap()[..], f].concat()).collect()
    }

    /// Feeds `wire` in pieces of the given sizes (the last one repeats), and checks the memory bound.
    fn decode(
        wire: &[u8],
        pieces: &[usize],
        limit: usize,
    ) -> (Vec<Vec<u8>>, FrameDecoder, Result<(), FrameTooLarge>) {
        let (mut decoder, mut frames, mut rest) = (FrameDecoder::default(), Vec::new(), wire);
        let mut pieces = pieces.iter().copied().chain(std::iter::repeat(pieces.last().copied().unwrap_or(1)));
        while !rest.is_empty() {
            let space = match decoder.space(limit) {
                Ok(space) => space,
                Err(error) => return (frames, decoder, Err(error)),
            };
            assert!(!space.is_empty());
            let count = pieces.next().unwrap().clamp(1, space.len()).min(rest.len());
            space[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            frames.extend(decoder.filled(count));
            assert!(decoder.allocated() <= 2 * decoder.body_filled.max(GROWTH_BYTES));
        }
        (frames, decoder, Ok(()))
    }

    #[test]
    fn header_is_little_endian() {
        assert_eq!(encode_header(0x0102).unwrap(), [2, 1, 0, 0]);
    }

    #[test]
    fn refuses_to_encode_above_the_ceiling() {
        assert!(encode_header(FRAME_CEILING_BYTES).is_ok());
        let error = encode_header(FRAME_CEILING_BYTES + 1).unwrap_err();
        assert_eq!(error, FrameTooLarge { len: FRAME_CEILING_BYTES + 1, limit: FRAME_CEILING_BYTES });
    }

    #[test]
    fn oversize_is_refused_at_the_header_without_allocation() {
        let (frames, decoder, result) = decode(&[0xff; 8], &[8], 1000);
        assert!(frames.is_empty());
        assert_eq!(result, Err(FrameTooLarge { len: u32::MAX as usize, limit: 1000 }));
        assert_eq!(decoder.allocated(), 0);
    }

    #[test]
    fn a_large_limit_does_not_lift_the_ceiling() {
        let (_, _, result) = decode(&[0xff; 8], &[8], usize::MAX);
        assert_eq!(result.unwrap_err().limit, FRAME_CEILING_BYTES);
    }

    #[test]
    fn an_announced_but_unsent_body_costs_one_growth_step() {
        let mut wire = encode_header(FRAME_CEILING_BYTES).unwrap().to_vec();
        wire.push(0);
        let (_, decoder, result) = decode(&wire, &[5], FRAME_CEILING_BYTES);
        result.unwrap();
        assert_eq!(decoder.allocated(), GROWTH_BYTES);
    }

    #[test]
    fn a_refused_frame_may_be_read_on_with_a_higher_limit() {
        let mut decoder = FrameDecoder::default();
        decoder.space(0).unwrap().copy_from_slice(&[3, 0, 0, 0]);
        assert_eq!(decoder.filled(4), None);
        assert_eq!(decoder.space(2).unwrap_err(), FrameTooLarge { len: 3, limit: 2 });
        decoder.space(3).unwrap().copy_from_slice(b"abc");
        assert_eq!(decoder.filled(3), Some(b"abc".to_vec()));
    }

    proptest! {
        #[test]
        fn any_chopping_gives_the_same_frames(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
            pieces in prop::collection::vec(1usize..400, 1..20),
        ) {
            let (decoded, decoder, result) = decode(&encode(&frames), &pieces, 300);
            prop_assert_eq!(result, Ok(()));
            prop_assert_eq!(decoded, frames);
            prop_assert!(decoder.is_at_boundary());
        }

        #[test]
        fn large_frames_survive_chopping(
            len in 0usize..(5 * GROWTH_BYTES),
            piece in 1000usize..100_000,
        ) {
            let frame: Vec<u8> = (0..=250).cycle().take(len).collect();
            let (decoded, _, result) = decode(&encode(std::slice::from_ref(&frame)), &[piece], len);
            prop_assert_eq!(result, Ok(()));
            prop_assert_eq!(decoded, vec![frame]);
        }

        #[test]
        fn a_cut_stream_is_never_at_a_boundary_inside_a_frame(
            frame in prop::collection::vec(any::<u8>(), 1..200),
            cut in any::<prop::sample::Index>(),
        ) {
            let wire = encode(std::slice::from_ref(&frame));
            let cut = 1 + cut.index(wire.len() - 1);
            let (decoded, decoder, result) = decode(&wire[..cut], &[7], 200);
            prop_assert_eq!(result, Ok(()));
            prop_assert!(decoded.is_empty());
            prop_assert!(!decoder.is_at_boundary());
        }

        #[test]
        fn arbitrary_bytes_never_panic_or_exceed_the_limit(
            wire in prop::collection::vec(any::<u8>(), 0..2000),
            pieces in prop::collection::vec(1usize..64, 1..10),
            limit in 0usize..100_000,
        ) {
            let (decoded, _, _) = decode(&wire, &pieces, limit);
            prop_assert!(decoded.iter().all(|f| f.len() <= limit));
        }
    }
}
