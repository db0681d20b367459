//! The parts of BCS (Binary Canonical Serialization) in quilts: lengths, strings and maps of strings.

use std::collections::BTreeMap;

/// Bytes of a length: a ULEB128 number of at most 32 bits.
const MAX_LENGTH_BYTES: usize = 5;

/// Appends a length.
pub(super) fn put_length(out: &mut Vec<u8>, length: usize) {
    let mut rest = length;
    loop {
        let low = u8::try_from(rest & 0x7f).expect("seven bits");
        rest >>= 7;
        if rest == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

/// Appends a string.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_length(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

/// Appends a map. Entries are in the order of their keys' serialized bytes, which differs from the keys'
/// order.
pub(super) fn put_map(out: &mut Vec<u8>, map: &BTreeMap<String, String>) {
    put_length(out, map.len());
    let mut entries: Vec<(Vec<u8>, &String)> = map
        .iter()
        .map(|(key, value)| {
            let mut bytes = Vec::with_capacity(MAX_LENGTH_BYTES + key.len());
            put_text(&mut bytes, key);
            (bytes, value)
        })
        .collect();
    entries.sort();
    for (key, value) in entries {
        out.extend_from_slice(&key);
        put_text(out, value);
    }
}

/// Reads from the front of a slice. Every error describes the expected content.
pub(super) struct BcsReader<'a> {
    rest: &'a [u8],
}

impl<'a> BcsReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Checks that nothing is left.
    pub(super) fn finish(self) -> Result<(), &'static str> {
        if self.rest.is_empty() { Ok(()) } else { Err("bytes are left over") }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or("it ends too early")?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, &'static str> {
        let (byte, rest) = self.rest.split_first().ok_or("it ends too early")?;
        self.rest = rest;
        Ok(*byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, &'static str> {
        Ok(u16::from_le_bytes([self.byte()?, self.byte()?]))
    }

    pub(super) fn u32(&mut self) -> Result<u32, &'static str> {
        Ok(u32::from_le_bytes([self.byte()?, self.byte()?, self.byte()?, self.byte()?]))
    }

    /// A length in its shortest form.
    pub(super) fn length(&mut self) -> Result<u32, &'static str> {
        let mut value = 0_u64;
        for position in 0..MAX_LENGTH_BYTES {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << (7 * position);
            if byte & 0x80 == 0 {
                if byte == 0 && position > 0 {
                    return Err("a length is not in its shortest form");
                }
                return u32::try_from(value).map_err(|_| "a length exceeds 32 bits");
            }
        }
        Err("a length exceeds 32 bits")
    }

    /// A string, and its bytes including their length.
    fn text_and_bytes(&mut self) -> Result<(&'a str, &'a [u8]), &'static str> {
        let before = self.rest;
        let length = usize::try_from(self.length()?).map_err(|_| "it ends too early")?;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| "a string is not UTF-8")?;
        let (whole, _) = before.split_at(before.len() - self.rest.len());
        Ok((text, whole))
    }

    pub(super) fn text(&mut self) -> Result<&'a str, &'static str> {
        Ok(self.text_and_bytes()?.0)
    }

    /// Reads a map of strings whose keys must be in canonical order.
    pub(super) fn map(&mut self) -> Result<BTreeMap<String, String>, &'static str> {
        let count = self.length()?;
        let mut map = BTreeMap::new();
        let mut previous: &[u8] = &[];
        for _ in 0..count {
            let (key, bytes) = self.text_and_bytes()?;
            // Serialized, even the empty string has a byte, so every first key is greater.
            if bytes <= previous {
                return Err("tags are not in canonical order, or one is there twice");
            }
            previous = bytes;
            map.insert(key.to_owned(), self.text()?.to_owned());
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(length: usize) -> Vec<u8> {
        let mut out = Vec::new();
        put_length(&mut out, length);
        out
    }

    #[test]
    fn lengths_are_uleb128_in_their_shortest_form() {
        for (length, bytes) in [(0, vec![0]), (127, vec![127]), (128, vec![0x80, 1]), (300, vec![0xac, 2])] {
            assert_eq!(encoded(length), bytes);
            assert_eq!(BcsReader::new(&bytes).length(), Ok(u32::try_from(length).unwrap()));
        }
        assert_eq!(BcsReader::new(&[0xff, 0xff, 0xff, 0xff, 0x0f]).length(), Ok(u32::MAX));
        for bytes in [&[0x80, 0][..], &[0xff, 0xff, 0xff, 0xff, 0x1f], &[0x80; 6], &[0x80], &[]] {
            assert!(BcsReader::new(bytes).length().is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn maps_are_ordered_by_serialized_keys() {
        let map: BTreeMap<String, String> =
            [("bb", "1"), ("c", "2"), ("", "3")].map(|(key, value)| (key.into(), value.into())).into();
        let mut bytes = Vec::new();
        put_map(&mut bytes, &map);
        assert_eq!(bytes, b"\x03\x00\x013\x01c\x012\x02bb\x011");
        assert_eq!(BcsReader::new(&bytes).map(), Ok(map));
        assert!(BcsReader::new(b"\x02\x02bb\x011\x01c\x012").map().is_err(), "longer key first");
        assert!(BcsReader::new(b"\x02\x01c\x012\x01c\x012").map().is_err(), "one key twice");
        assert!(BcsReader::new(b"\xff\xff\xff\xff\x0f").map().is_err(), "a count without entries");
    }
}
