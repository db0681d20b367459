//! Seeded bytes, and the size of a long matrix's sample.

use std::collections::BTreeSet;

/// Whether to run whole matrices (`BATON_FULL=1`) instead of their seeded samples.
pub(crate) fn full() -> bool {
    std::env::var_os("BATON_FULL").is_some_and(|value| value == "1")
}

/// Positions to try below `total`: all in a full run, else `at_most`, drawn by the seed. They always include
/// the first and the last.
pub(crate) fn sampled(total: usize, at_most: usize, seed: u64) -> Vec<usize> {
    if full() || total <= at_most {
        return (0..total).collect();
    }
    let mut source = Source::new(seed);
    let mut chosen = BTreeSet::from([0, total - 1]);
    while chosen.len() < at_most.max(2) {
        chosen.insert(source.below(total));
    }
    chosen.into_iter().collect()
}

/// A deterministic stream of bytes: BLAKE3 in extended output mode over a seed.
pub(crate) struct Source(blake3::OutputReader);

impl Source {
    /// The stream of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof())
    }

    /// The next bytes.
    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.fill(&mut bytes);
        bytes
    }

    /// The next `length` bytes.
    pub(crate) fn vec(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.fill(&mut bytes);
        bytes
    }

    /// The next number.
    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// A number below `end`, which is not zero.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.u64() % end as u64).expect("a remainder of a usize fits")
    }

    /// Letters and a few characters of two and three bytes; about `length` bytes, never more.
    pub(crate) fn text(&mut self, length: usize) -> String {
        let mut text = String::new();
        while text.len() < length {
            let byte = self.bytes::<1>()[0];
            text.push(match byte {
                0 => 'é',
                1 => '漢',
                2 => '\0',
                _ => char::from(b'a' + byte % 26),
            });
        }
        while text.len() > length {
            text.pop();
        }
        text
    }
}
