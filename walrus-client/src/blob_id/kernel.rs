//! BLAKE2b with a 32-byte output, eight hashes in step.
//!
//! Owns the compression function (RFC 7693) and nothing else. Word i of all eight hashes lies side by side
//! ([`HashWords`]). So the compiler turns the loop over the lanes, whose body has no branches, into vector
//! instructions. The same code is compiled for AVX-512, for AVX2 and for any machine; tests compare the first
//! two with the last. Nothing here is secret or needs to be constant-time.

use std::sync::OnceLock;

/// Hashes computed in step.
pub(super) const LANES: usize = 8;
/// Bytes of a message block.
pub(super) const BLOCK_BYTES: usize = 128;

/// One 64-bit word of each of eight hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(64))]
pub(super) struct HashWords(pub(super) [u64; LANES]);

/// Eight finished hashes, word by word.
pub(super) type Nodes = [HashWords; 4];
/// The chaining values of eight hashes.
pub(super) type HashState = [HashWords; 8];
/// A message block of each of eight hashes, in little-endian words.
pub(super) type HashBlock = [HashWords; 16];

/// Zeros in every lane.
pub(super) const ZERO: HashWords = HashWords([0; LANES]);
/// Eight nodes of 32 zero bytes.
pub(super) const ZERO_NODES: Nodes = [ZERO; 4];

/// Most words of a block for the shorter kernel: inner nodes, and leaves of up to 71 bytes.
const SHORT_WORDS: usize = 9;
const ALL_WORDS: usize = 16;
/// First byte of the hashed input of an inner node.
const INNER_PREFIX: u64 = 1;
/// Bytes that an inner node hashes: the prefix and two nodes.
const INNER_BYTES: u64 = 65;

const IV: [u64; 8] = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];
/// The first chaining word; its parameter block means a 32-byte output, no key, sequential mode.
const FIRST: u64 = IV[0] ^ 0x0101_0020;
/// The chaining values before the first block.
pub(super) const START: HashState = [
    HashWords([FIRST; LANES]),
    HashWords([IV[1]; LANES]),
    HashWords([IV[2]; LANES]),
    HashWords([IV[3]; LANES]),
    HashWords([IV[4]; LANES]),
    HashWords([IV[5]; LANES]),
    HashWords([IV[6]; LANES]),
    HashWords([IV[7]; LANES]),
];

/// The position of a block in its message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    /// Bytes of the message up to and including this block.
    pub(super) counter: u64,
    /// Whether it is the last block.
    pub(super) last: bool,
    /// Number of leading words that may differ from zero.
    pub(super) words: usize,
}

/// The mixing function on one lane.
macro_rules! mix {
    ($v:ident, $a:literal, $b:literal, $c:literal, $d:literal, $x:expr, $y:expr) => {
        $v[$a] = $v[$a].wrapping_add($v[$b]).wrapping_add($x);
        $v[$d] = ($v[$d] ^ $v[$a]).rotate_right(32);
        $v[$c] = $v[$c].wrapping_add($v[$d]);
        $v[$b] = ($v[$b] ^ $v[$c]).rotate_right(24);
        $v[$a] = $v[$a].wrapping_add($v[$b]).wrapping_add($y);
        $v[$d] = ($v[$d] ^ $v[$a]).rotate_right(16);
        $v[$c] = $v[$c].wrapping_add($v[$d]);
        $v[$b] = ($v[$b] ^ $v[$c]).rotate_right(63);
    };
}

/// One round on one lane, with the message words in this order.
macro_rules! round {
    ($v:ident, $m:ident, $($s:literal)+) => {
        round!(@ $v, [$($m[$s]),+])
    };
    (@ $v:ident, [$a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr, $g:expr, $h:expr,
        $i:expr, $j:expr, $k:expr, $l:expr, $m:expr, $n:expr, $o:expr, $p:expr]) => {
        mix!($v, 0, 4, 8, 12, $a, $b);
        mix!($v, 1, 5, 9, 13, $c, $d);
        mix!($v, 2, 6, 10, 14, $e, $f);
        mix!($v, 3, 7, 11, 15, $g, $h);
        mix!($v, 0, 5, 10, 15, $i, $j);
        mix!($v, 1, 6, 11, 12, $k, $l);
        mix!($v, 2, 7, 8, 13, $m, $n);
        mix!($v, 3, 4, 9, 14, $o, $p);
    };
}

/// The twelve rounds on one lane. They are unrolled, so that the loop over the lanes contains no loop.
#[inline(always)]
fn rounds(h: [u64; 8], m: [u64; 16], counter: u64, last: u64) -> [u64; 16] {
    let mut v = [
        h[0],
        h[1],
        h[2],
        h[3],
        h[4],
        h[5],
        h[6],
        h[7],
        IV[0],
        IV[1],
        IV[2],
        IV[3],
        IV[4] ^ counter,
        IV[5],
        IV[6] ^ last,
        IV[7],
    ];
    round!(v, m, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    round!(v, m, 14 10 4 8 9 15 13 6 1 12 0 2 11 7 5 3);
    round!(v, m, 11 8 12 0 5 2 15 13 10 14 3 6 7 1 9 4);
    round!(v, m, 7 9 3 1 13 12 11 14 2 6 5 10 4 0 15 8);
    round!(v, m, 9 0 5 7 2 4 10 15 14 1 11 12 6 8 3 13);
    round!(v, m, 2 12 6 10 0 11 8 3 4 13 7 5 15 14 1 9);
    round!(v, m, 12 5 1 15 14 13 4 10 0 7 6 3 9 2 8 11);
    round!(v, m, 13 11 7 14 12 1 3 9 5 0 15 4 8 6 2 10);
    round!(v, m, 6 15 14 9 11 3 0 8 12 2 13 7 1 4 10 5);
    round!(v, m, 10 2 8 4 7 6 1 5 15 11 9 14 3 12 13 0);
    round!(v, m, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    round!(v, m, 14 10 4 8 9 15 13 6 1 12 0 2 11 7 5 3);
    v
}

/// Compresses one block of each lane; words from `WORDS` on are zero.
#[expect(clippy::indexing_slicing, reason = "loops over arrays of these lengths, which a kernel unrolls")]
#[inline(always)]
fn compress_lanes<const WORDS: usize>(state: &mut HashState, block: &HashBlock, position: Position) {
    let last = if position.last { u64::MAX } else { 0 };
    for lane in 0..LANES {
        let h: [u64; 8] = std::array::from_fn(|word| state[word].0[lane]);
        let m: [u64; 16] = std::array::from_fn(|word| if word < WORDS { block[word].0[lane] } else { 0 });
        let v = rounds(h, m, position.counter, last);
        for word in 0..8 {
            state[word].0[lane] = h[word] ^ v[word] ^ v[word + 8];
        }
    }
}

/// The parents of eight pairs of nodes.
#[expect(clippy::indexing_slicing, reason = "loops over arrays of these lengths, which a kernel unrolls")]
#[inline(always)]
fn inner_lanes(left: &Nodes, right: &Nodes, out: &mut Nodes) {
    for lane in 0..LANES {
        let [a, b, c, d] = std::array::from_fn(|word| left[word].0[lane]);
        let [e, f, g, h] = std::array::from_fn(|word| right[word].0[lane]);
        // The prefix shifts both nodes by a byte.
        let m = [
            INNER_PREFIX | a << 8,
            a >> 56 | b << 8,
            b >> 56 | c << 8,
            c >> 56 | d << 8,
            d >> 56 | e << 8,
            e >> 56 | f << 8,
            f >> 56 | g << 8,
            g >> 56 | h << 8,
            h >> 56,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        ];
        let start = [FIRST, IV[1], IV[2], IV[3], IV[4], IV[5], IV[6], IV[7]];
        let v = rounds(start, m, INNER_BYTES, u64::MAX);
        for word in 0..4 {
            out[word].0[lane] = start[word] ^ v[word] ^ v[word + 8];
        }
    }
}

/// Compiles the kernels for one instruction set.
macro_rules! kernels {
    ($name:ident $(, $feature:literal)?) => {
        mod $name {
            use super::*;

            $(#[target_feature(enable = $feature)])?
            pub(super) fn short(state: &mut HashState, block: &HashBlock, position: Position) {
                compress_lanes::<SHORT_WORDS>(state, block, position);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn full(state: &mut HashState, block: &HashBlock, position: Position) {
                compress_lanes::<ALL_WORDS>(state, block, position);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn inner(left: &Nodes, right: &Nodes, out: &mut Nodes) {
                inner_lanes(left, right, out);
            }
        }
    };
}

kernels!(any);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, "avx2");
#[cfg(target_arch = "x86_64")]
kernels!(avx512, "avx512f,avx512vl");

/// The instruction set that the kernels use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HashKernel {
    /// The target of the build, used to check the others.
    Any,
    #[cfg(target_arch = "x86_64")]
    Avx2(HasAvx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(HasAvx512),
}

/// Proof that this machine has AVX2: only [`HashKernel::all`] makes it.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HasAvx2(());

/// Proof that this machine has AVX-512F and VL: only [`HashKernel::all`] makes it.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HasAvx512(());

/// Calls a kernel in the instruction set of `$kernel`.
macro_rules! dispatch {
    ($kernel:expr, $function:ident($($argument:expr),+)) => {
        match $kernel {
            HashKernel::Any => any::$function($($argument),+),
            // SAFETY: the function needs AVX2 and nothing else; the variant holds the proof that the machine
            // has it.
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "a call into code for an instruction set found at run time")]
            HashKernel::Avx2(HasAvx2(())) => unsafe { avx2::$function($($argument),+) },
            // SAFETY: as above, for AVX-512F and VL.
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "a call into code for an instruction set found at run time")]
            HashKernel::Avx512(HasAvx512(())) => unsafe { avx512::$function($($argument),+) },
        }
    };
}

impl HashKernel {
    /// All kernels that this machine can run, the fastest last.
    pub(super) fn all() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "there is one kernel"))]
        let mut all = vec![Self::Any];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                all.push(Self::Avx2(HasAvx2(())));
            }
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
                all.push(Self::Avx512(HasAvx512(())));
            }
        }
        all
    }

    /// The fastest kernel that this machine can run.
    pub(super) fn fastest() -> Self {
        static FASTEST: OnceLock<HashKernel> = OnceLock::new();
        *FASTEST.get_or_init(|| Self::all().pop().unwrap_or(Self::Any))
    }

    /// Compresses one block of each lane into the chaining values.
    pub(super) fn compress(self, state: &mut HashState, block: &HashBlock, position: Position) {
        if position.words <= SHORT_WORDS {
            dispatch!(self, short(state, block, position));
        } else {
            dispatch!(self, full(state, block, position));
        }
    }

    /// The parents of eight pairs of nodes: H(0x01 ‖ left ‖ right).
    pub(super) fn inner(self, left: &Nodes, right: &Nodes) -> Nodes {
        let mut out = ZERO_NODES;
        dispatch!(self, inner(left, right, &mut out));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that differ by lane.
    fn message(lane: usize, length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        blake3::Hasher::new().update(&[u8::try_from(lane).unwrap()]).finalize_xof().fill(&mut out);
        out
    }

    fn expected(bytes: &[u8]) -> [u8; 32] {
        let hash = blake2b_simd::Params::new().hash_length(32).hash(bytes);
        hash.as_bytes().try_into().unwrap()
    }

    fn lane(nodes: &[HashWords], lane: usize) -> [u8; 32] {
        let mut out = [0; 32];
        for (word, bytes) in nodes.iter().zip(out.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.0[lane].to_le_bytes());
        }
        out
    }

    fn hash(kernel: HashKernel, messages: &[Vec<u8>]) -> HashState {
        let length = messages[0].len();
        let mut state = START;
        for at in (0..length.max(1)).step_by(BLOCK_BYTES) {
            let end = length.min(at + BLOCK_BYTES);
            let mut block = [ZERO; 16];
            for (lane, message) in messages.iter().enumerate() {
                let mut bytes = [0; BLOCK_BYTES];
                bytes[..end - at].copy_from_slice(&message[at..end]);
                for (word, bytes) in block.iter_mut().zip(bytes.chunks_exact(8)) {
                    word.0[lane] = u64::from_le_bytes(bytes.try_into().unwrap());
                }
            }
            let position =
                Position { counter: end as u64, last: end == length, words: (end - at).div_ceil(8) };
            kernel.compress(&mut state, &block, position);
        }
        state
    }

    #[test]
    fn every_kernel_hashes_as_blake2b_at_every_length() {
        for kernel in HashKernel::all() {
            for length in 0..=300 {
                let messages: Vec<_> = (0..LANES).map(|lane| message(lane, length)).collect();
                let state = hash(kernel, &messages);
                for (number, message) in messages.iter().enumerate() {
                    assert_eq!(lane(&state[..4], number), expected(message), "{kernel:?}, {length} bytes");
                }
            }
        }
    }

    #[test]
    fn every_kernel_joins_nodes_as_blake2b() {
        let nodes = |salt: usize| -> Nodes {
            std::array::from_fn(|word| {
                HashWords(std::array::from_fn(|lane| {
                    let bytes = message(salt + lane, 32);
                    u64::from_le_bytes(bytes[word * 8..][..8].try_into().unwrap())
                }))
            })
        };
        let (left, right) = (nodes(0), nodes(100));
        for kernel in HashKernel::all() {
            let out = kernel.inner(&left, &right);
            for number in 0..LANES {
                let joined = [&[1][..], &message(number, 32), &message(100 + number, 32)].concat();
                assert_eq!(lane(&out, number), expected(&joined), "{kernel:?}");
            }
        }
    }
}
