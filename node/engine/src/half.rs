//! Half-precision numbers, by integer arithmetic.

/// Converts a half-precision pattern to a number, exactly.
#[must_use]
#[inline(always)]
pub fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff);
    let bits = if magnitude >= 0x7c00 {
        // Infinity and NaN; a signalling NaN becomes quiet, as in hardware.
        let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
        0x7f80_0000 | (magnitude & 0x3ff) << 13 | quiet
    } else if magnitude >= 0x0400 {
        (magnitude << 13) + 0x3800_0000
    } else {
        // Subnormal: its bits times 2^-24.
        (magnitude as f32 * f32::from_bits(0x3380_0000)).to_bits()
    };
    f32::from_bits(sign | bits)
}

/// The nearest half-precision pattern, ties to even. Larger magnitudes and NaN become ±65,504.
#[must_use]
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the patterns have 16 bits")]
pub fn f32_to_f16(value: f32) -> u16 {
    const LARGEST: f32 = 65_504.0;
    let value = if value < LARGEST { value } else { LARGEST };
    let value = if value > -LARGEST { value } else { -LARGEST };
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let half = if magnitude >= 0x3880_0000 {
        // Normal: round at bit 13, ties to even. A carry into the exponent is correct.
        (magnitude - 0x3800_0000 + 0xfff + (magnitude >> 13 & 1)) >> 13
    } else {
        // Subnormal: adding 0.5 puts a unit of 2^-24 into the last bit of the mantissa, and rounds.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5_f32.to_bits()
    };
    sign | half as u16
}

/// Converts a bfloat16 pattern to a number, exactly.
#[must_use]
#[inline(always)]
pub fn bf16_to_f32(pattern: u16) -> f32 {
    f32::from_bits(u32::from(pattern) << 16)
}
