//! Byte ranges in the forms that Walrus's daemon accepts. Pure.

/// A part of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// Its first byte.
    pub first: u64,
    /// Its length in bytes, at least 1.
    pub length: u64,
}

impl ByteRange {
    /// Its last byte.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.first + (self.length - 1)
    }

    /// A range from a `start` and a `length`, if the length is not 0 and the end does not overflow.
    #[must_use]
    pub fn new(start: u64, length: u64) -> Option<Self> {
        start.checked_add(length)?;
        (length > 0).then_some(Self { first: start, length })
    }

    /// Whether it lies fully in a blob of `length` bytes.
    #[must_use]
    pub fn is_within(&self, length: u64) -> bool {
        self.last() < length
    }
}

/// The value of a Range header: `bytes=a-b` with a ≤ b, and white space around it. Anything else is refused:
/// an open end, a suffix, a second range, a sign.
#[must_use]
pub fn parse_range(header: &[u8]) -> Option<ByteRange> {
    let (first, last) = std::str::from_utf8(header).ok()?.trim().strip_prefix("bytes=")?.split_once('-')?;
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if plain { digits.parse::<u64>().ok() } else { None }
    };
    let (first, last) = (number(first)?, number(last)?);
    ByteRange::new(first, last.checked_sub(first)?.checked_add(1)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_one_closed_range_is_understood() {
        let range = |first, length| Some(ByteRange { first, length });
        assert_eq!(parse_range(b"bytes=0-0"), range(0, 1));
        assert_eq!(parse_range(b"bytes=3-10"), range(3, 8));
        assert_eq!(parse_range(b" bytes=10-20 "), range(10, 11));
        assert_eq!(parse_range(b"bytes=0-18446744073709551613"), range(0, u64::MAX - 1));
        for text in [
            "bytes=3-",
            "bytes=-3",
            "bytes=3-2",
            "bytes=0-1,3-4",
            "bytes=+1-2",
            "bytes=1 -2",
            "Bytes=1-2",
            "0-1",
            "bytes=a-b",
            "bytes=",
            "",
            "bytes=0-99999999999999999999",
            "bytes=0-18446744073709551615",
            "bytes=1-18446744073709551615",
        ] {
            assert_eq!(parse_range(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_range(b"bytes=0-\xff"), None);
    }

    proptest! {
        #[test]
        fn every_closed_range_is_read(first in 0..u64::MAX / 2, more in 0..u64::MAX / 2) {
            let text = format!("bytes={first}-{}", first + more);
            prop_assert_eq!(parse_range(text.as_bytes()), Some(ByteRange { first, length: more + 1 }));
        }
    }
}
