//! The only encoder and decoder of objects.
//!
//! Layout (bincode 2.0.1, fixed-width integers, little-endian):
//!
//! - integers and byte arrays as they are
//! - `bool`: one byte, 0 or 1
//! - `Option`: one byte, 0 or 1, then the value
//! - enums: a `u32` index, then the fields
//! - strings and sequences: a `u64` count, then the elements
//! - structures: their fields in order
//!
//! Each value has exactly one encoding: decoding consumes every byte, and refuses other values of `bool`,
//! `Option` and enum tags.

use bincode::{
    config::{Configuration, Fixint, Limit, LittleEndian},
    enc::write::SizeWriter,
};
use serde::{Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

use crate::{error::ErrorCode, limits::MAX_OBJECT_BYTES};

type WireConfig = Configuration<LittleEndian, Fixint, Limit<MAX_OBJECT_BYTES>>;

const fn config() -> WireConfig {
    bincode::config::standard()
        .with_fixed_int_encoding()
        .with_little_endian()
        .with_limit::<MAX_OBJECT_BYTES>()
}

/// Encodes a value in its canonical form.
///
/// # Panics
/// Never for the types of this crate: they have no unsized or self-describing parts, and their constructors
/// keep them below [`MAX_OBJECT_BYTES`].
#[must_use]
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    bincode::serde::encode_to_vec(value, bincode::config::standard().with_fixed_int_encoding())
        .expect("wire types always encode")
}

/// As [`encode`], for values with secrets or conversation text: wiped when dropped.
///
/// A buffer that grows leaves copies which are never wiped. So this function first counts the length and then
/// encodes in place.
#[must_use]
pub fn encode_secret<T: Serialize>(value: &T) -> Zeroizing<Vec<u8>> {
    let wire = bincode::config::standard().with_fixed_int_encoding();
    let mut size = SizeWriter::default();
    bincode::serde::encode_into_writer(value, &mut size, wire).expect("wire types always encode");
    let mut bytes = Zeroizing::new(vec![0; size.bytes_written]);
    let written = bincode::serde::encode_into_slice(value, &mut bytes, wire)
        .expect("a value encodes the same way twice");
    debug_assert_eq!(written, bytes.len());
    bytes
}

/// Decodes a value from exactly these bytes.
///
/// # Errors
/// [`ErrorCode::NonCanonical`] for bytes that are not the encoding of a value, also for trailing bytes.
/// [`ErrorCode::FrameTooLarge`] for more than `limit` bytes, before any work.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, ErrorCode> {
    if bytes.len() > limit {
        return Err(ErrorCode::FrameTooLarge);
    }
    match bincode::serde::decode_from_slice(bytes, config()) {
        Ok((value, consumed)) if consumed == bytes.len() => Ok(value),
        Ok(_) | Err(_) => Err(ErrorCode::NonCanonical),
    }
}

/// Pads `u32le(len) ‖ bytes` with zeros to the next power of two of at least `smallest`, so that the sealed
/// length reveals only a bucket.
///
/// # Errors
/// [`ErrorCode::FrameTooLarge`] when the padded form exceeds `largest`.
pub fn pad(bytes: &[u8], smallest: usize, largest: usize) -> Result<Zeroizing<Vec<u8>>, ErrorCode> {
    let bucket = bucket_of(bytes.len(), smallest);
    if bucket > largest { Err(ErrorCode::FrameTooLarge) } else { Ok(pad_to(bytes, bucket)) }
}

/// Undoes [`pad`], and refuses any other padding of the same bytes.
///
/// # Errors
/// [`ErrorCode::NonCanonical`].
pub fn unpad(padded: &[u8], smallest: usize) -> Result<&[u8], ErrorCode> {
    unpad_from(padded, |length| bucket_of(length, smallest))
}

fn bucket_of(length: usize, smallest: usize) -> usize {
    (length + 4).next_power_of_two().max(smallest)
}

/// Pads `u32le(len) ‖ bytes` with zeros to the next multiple of `block`, so that the sealed length reveals
/// only the number of blocks.
#[must_use]
pub fn pad_block(bytes: &[u8], block: usize) -> Zeroizing<Vec<u8>> {
    pad_to(bytes, (bytes.len() + 4).next_multiple_of(block))
}

/// Undoes [`pad_block`], and refuses any other padding of the same bytes.
///
/// # Errors
/// [`ErrorCode::NonCanonical`].
pub fn unpad_block(padded: &[u8], block: usize) -> Result<&[u8], ErrorCode> {
    unpad_from(padded, |length| (length + 4).next_multiple_of(block))
}

/// # Panics
/// Never for objects of this crate, which are far below 4 GiB.
fn pad_to(bytes: &[u8], whole: usize) -> Zeroizing<Vec<u8>> {
    let length = u32::try_from(bytes.len()).expect("objects are below 4 GiB");
    let mut padded = Zeroizing::new(Vec::with_capacity(whole));
    padded.extend_from_slice(&length.to_le_bytes());
    padded.extend_from_slice(bytes);
    padded.resize(whole, 0);
    padded
}

fn unpad_from(padded: &[u8], whole: impl Fn(usize) -> usize) -> Result<&[u8], ErrorCode> {
    let (length, rest) = padded.split_first_chunk::<4>().ok_or(ErrorCode::NonCanonical)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (bytes, zeros) = rest.split_at_checked(length).ok_or(ErrorCode::NonCanonical)?;
    if padded.len() != whole(length) || zeros.iter().any(|byte| *byte != 0) {
        return Err(ErrorCode::NonCanonical);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refuses_trailing_bytes_and_loose_tags() {
        assert_eq!(decode::<u32>(&[1, 0, 0, 0], 8), Ok(1));
        assert_eq!(decode::<u32>(&[1, 0, 0, 0, 0], 8), Err(ErrorCode::NonCanonical));
        assert_eq!(decode::<u32>(&[1, 0, 0], 8), Err(ErrorCode::NonCanonical));
        assert_eq!(decode::<bool>(&[2], 8), Err(ErrorCode::NonCanonical));
        assert_eq!(decode::<Option<u8>>(&[2, 0], 8), Err(ErrorCode::NonCanonical));
        assert_eq!(decode::<String>(&[1, 0, 0, 0, 0, 0, 0, 0, 0xff], 16), Err(ErrorCode::NonCanonical));
        assert_eq!(decode::<u64>(&[0; 8], 7), Err(ErrorCode::FrameTooLarge));
    }

    #[test]
    fn pad_refuses_what_does_not_fit() {
        assert!(pad(&[0; 252], 256, 256).is_ok());
        assert_eq!(pad(&[0; 253], 256, 256), Err(ErrorCode::FrameTooLarge));
    }

    proptest! {
        #[test]
        fn a_secret_encodes_as_anything_else_in_a_buffer_of_its_size(
            texts in proptest::collection::vec((any::<String>(), any::<Option<[u8; 32]>>(), any::<u64>()), 0..20),
        ) {
            let secret = encode_secret(&texts);
            prop_assert_eq!(&secret[..], &encode(&texts)[..]);
            prop_assert_eq!(secret.capacity(), secret.len());
        }

        #[test]
        fn block_padding_round_trips_in_one_form(bytes in proptest::collection::vec(any::<u8>(), 0..700), block in 1usize..300) {
            let padded = pad_block(&bytes, block);
            prop_assert!(padded.len().is_multiple_of(block) && padded.len() < bytes.len() + 4 + block);
            prop_assert_eq!(unpad_block(&padded, block).unwrap(), &bytes[..]);
            let longer = [&padded[..], &vec![0; block]].concat();
            prop_assert!(unpad_block(&longer, block).is_err());
            prop_assert!(unpad_block(&padded[..padded.len() - 1], block).is_err());
            if padded.len() > bytes.len() + 4 {
                let mut dirty = padded.to_vec();
                *dirty.last_mut().unwrap() = 1;
                prop_assert!(unpad_block(&dirty, block).is_err());
            }
        }

        #[test]
        fn padding_round_trips_in_one_form(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            let padded = pad(&bytes, 256, 8192).unwrap();
            prop_assert!(padded.len().is_power_of_two() && padded.len() >= 256);
            prop_assert_eq!(unpad(&padded, 256).unwrap(), &bytes[..]);
            let mut longer = padded.to_vec();
            longer.resize(padded.len() * 2, 0);
            prop_assert_eq!(unpad(&longer, 256), Err(ErrorCode::NonCanonical));
            let mut dirty = padded.to_vec();
            if bytes.len() + 4 < dirty.len() {
                *dirty.last_mut().unwrap() = 1;
                prop_assert_eq!(unpad(&dirty, 256), Err(ErrorCode::NonCanonical));
            }
        }
    }
}
