//! Decodes the blocks of a GGUF file's quantised tensors into integers, scales and factors.
//!
//! The layouts are ggml's (`ggml-common.h`, `ggml-quants.c`).

use crate::gguf::DType;

/// One block of the file: 32 numbers, or 256 in the K formats.
pub struct QuantBlock {
    /// The integers, in the order of the inputs; 8-bit integers have 128 added. Only the block's own are set.
    pub values: [u8; 256],
    halves: [u16; 2],
    half_count: usize,
    factors: [u8; 16],
    factor_count: usize,
}

impl QuantBlock {
    /// Decodes one block, whose length is [`DType::block`]'s. Reads nothing for a floating-point type.
    #[must_use]
    pub fn read(dtype: DType, bytes: &[u8]) -> Self {
        let mut block =
            Self { values: [0; 256], halves: [0; 2], half_count: 0, factors: [0; 16], factor_count: 0 };
        match dtype {
            DType::Q4_0 => block.nibbles(bytes, 1, false),
            DType::Q4_1 => block.nibbles(bytes, 2, false),
            DType::Q5_0 => block.nibbles(bytes, 1, true),
            DType::Q5_1 => block.nibbles(bytes, 2, true),
            DType::Q8_0 => {
                block.scales(bytes, 1);
                for (value, byte) in block.values.iter_mut().zip(&bytes[2..]) {
                    *value = byte ^ 0x80;
                }
            }
            DType::Q4K => block.k_nibbles(bytes, false),
            DType::Q5K => block.k_nibbles(bytes, true),
            DType::Q6K => block.k_six(bytes),
            DType::F32 | DType::F16 | DType::Bf16 => {}
        }
        block
    }

    /// Half-precision numbers: the scale; then the minimum or the negated scale of the minima.
    #[must_use]
    pub fn halves(&self) -> &[u16] {
        &self.halves[..self.half_count]
    }

    /// Factors of the scales: for Q4_K and Q5_K, scale and minimum alternately for each 32 inputs; for Q6_K,
    /// signed, for each 16.
    #[must_use]
    pub fn factors(&self) -> &[u8] {
        &self.factors[..self.factor_count]
    }

    fn scales(&mut self, bytes: &[u8], count: usize) {
        self.half_count = count;
        for (half, bytes) in self.halves.iter_mut().zip(bytes.as_chunks::<2>().0).take(count) {
            *half = u16::from_le_bytes(*bytes);
        }
    }

    /// Scales, fifth bits if there are any, then 16 bytes: low nibbles are inputs 0 to 15, high nibbles the
    /// rest.
    fn nibbles(&mut self, bytes: &[u8], scales: usize, fifth: bool) {
        self.scales(bytes, scales);
        let rest = &bytes[2 * scales..];
        let (high, nibbles) = rest.split_at(if fifth { 4 } else { 0 });
        for (at, byte) in nibbles.iter().enumerate() {
            self.values[at] = byte & 15;
            self.values[at + 16] = byte >> 4;
        }
        for (at, byte) in high.iter().enumerate() {
            for bit in 0..8 {
                self.values[8 * at + bit] |= (byte >> bit & 1) << 4;
            }
        }
    }

    /// Two scales, 12 bytes of 6-bit factors, optional fifth bits, then nibbles. Each 32 bytes hold 32 inputs
    /// in the low nibbles and the next 32 in the high nibbles.
    fn k_nibbles(&mut self, bytes: &[u8], fifth: bool) {
        self.scales(bytes, 2);
        self.halves[1] ^= 0x8000;
        self.factor_count = 16;
        let packed = &bytes[4..16];
        for at in 0..8 {
            let (scale, minimum) = if at < 4 {
                (packed[at] & 63, packed[at + 4] & 63)
            } else {
                let low = packed[at + 4];
                (low & 15 | packed[at - 4] >> 6 << 4, low >> 4 | packed[at] >> 6 << 4)
            };
            self.factors[2 * at] = scale;
            self.factors[2 * at + 1] = minimum;
        }
        let (high, nibbles) = bytes[16..].split_at(if fifth { 32 } else { 0 });
        for (at, byte) in nibbles.iter().enumerate() {
            let low = at / 32 * 64 + at % 32;
            self.values[low] = byte & 15;
            self.values[low + 32] = byte >> 4;
        }
        for (at, byte) in high.iter().enumerate() {
            for bit in 0..8 {
                self.values[32 * bit + at] |= (byte >> bit & 1) << 4;
            }
        }
    }

    /// 128 bytes of lower nibbles, 64 of upper bits, 16 signed factors, a scale. Each half of the block is
    /// four runs of 32 inputs.
    fn k_six(&mut self, bytes: &[u8]) {
        self.half_count = 1;
        self.halves[0] = u16::from_le_bytes([bytes[208], bytes[209]]);
        self.factor_count = 16;
        self.factors.copy_from_slice(&bytes[192..208]);
        for half in 0..2 {
            let (low, high) = (&bytes[64 * half..], &bytes[128 + 32 * half..]);
            let values = &mut self.values[128 * half..];
            for at in 0..32 {
                let upper = |run: usize| (high[at] >> (2 * run) & 3) << 4;
                values[at] = low[at] & 15 | upper(0);
                values[at + 32] = low[at + 32] & 15 | upper(1);
                values[at + 64] = low[at] >> 4 | upper(2);
                values[at + 96] = low[at + 32] >> 4 | upper(3);
            }
        }
    }
}
