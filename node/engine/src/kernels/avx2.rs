//! 16 lanes in two registers of AVX2.

#![expect(unsafe_code, reason = "intrinsics")]
#![expect(clippy::inline_always, reason = "a kernel's parts must end up in its one function")]
// SAFETY, of every block below without a further reason: the intrinsics need a processor with support. A
// value of `Avx2` exists only if `detect` found all of them.

use std::arch::x86_64::*;

use super::{Kernel, LANES, Simd};

/// Proof that this processor has AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// The proof, if the processor has them.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

/// The function into which a whole kernel is inlined.
#[target_feature(enable = "avx2,fma,f16c")]
fn enter<K: Kernel>(token: Avx2, kernel: K) -> K::Output {
    kernel.run(token)
}

impl Simd for Avx2 {
    const MANY_REGISTERS: bool = false;

    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: as above.
        unsafe { enter(self, kernel) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_set1_ps(value); 2] }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: as above; the reference is to as many bytes as are read.
        unsafe {
            let from = from.as_ptr();
            [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))]
        }
    }

    #[inline(always)]
    fn store(self, value: Self::F, to: &mut [f32; LANES]) {
        // SAFETY: as above; the reference is to as many bytes as are written.
        unsafe {
            let to = to.as_mut_ptr();
            _mm256_storeu_ps(to, value[0]);
            _mm256_storeu_ps(to.add(8), value[1]);
        }
    }

    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Self::F {
        // SAFETY: as above; the reference is to as many bytes as are read.
        unsafe {
            let from = from.as_ptr();
            [
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
            ]
        }
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8; 64]) -> Self::F {
        // SAFETY: as above; the reference is to as many bytes as are read, and x86 is little-endian.
        unsafe {
            let from: *const f32 = from.as_ptr().cast();
            [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))]
        }
    }

    #[inline(always)]
    fn load_f16_bytes(self, from: &[u8; 32]) -> Self::F {
        // SAFETY: as above; the reference is to as many bytes as are read, and x86 is little-endian.
        unsafe {
            let from = from.as_ptr();
            [
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(16).cast())),
            ]
        }
    }

    #[inline(always)]
    fn load_bf16_bytes(self, from: &[u8; 32]) -> Self::F {
        // SAFETY: as above; the reference is to as many bytes as are read.
        unsafe {
            let from = from.as_ptr();
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(16).cast()));
            let (low, high) = (_mm256_slli_epi32::<16>(low), _mm256_slli_epi32::<16>(high));
            [_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)]
        }
    }

    #[inline(always)]
    fn store_f16(self, value: Self::F, to: &mut [u16; LANES]) {
        // SAFETY: as above; the reference is to as many bytes as are written.
        unsafe {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
            let value = self.max(self.min(value, self.splat(65_504.0)), self.splat(-65_504.0));
            let to = to.as_mut_ptr();
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<NEAREST>(value[0]));
            _mm_storeu_si128(to.add(8).cast(), _mm256_cvtps_ph::<NEAREST>(value[1]));
        }
    }

    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> Self::F {
        // SAFETY: as above; the reference is to as many bytes as are read.
        unsafe {
            let from = _mm_loadu_si128(from.as_ptr().cast());
            let (low, high) = (_mm256_cvtepu8_epi32(from), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(from)));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }

    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Self::F {
        // SAFETY: as above; the reference is to as many bytes as are read.
        unsafe {
            let from = _mm_loadu_si128(from.as_ptr().cast());
            let (low, high) = (_mm256_cvtepi8_epi32(from), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(from)));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            [_mm256_andnot_ps(sign, a[0]), _mm256_andnot_ps(sign, a[1])]
        }
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn keep(self, value: Self::F, from: usize, to: usize, other: f32) -> Self::F {
        let mut lanes = [other; LANES];
        let mut values = [0.0; LANES];
        self.store(value, &mut values);
        let (from, to) = (from.min(LANES), to.min(LANES));
        if from < to {
            lanes[from..to].copy_from_slice(&values[from..to]);
        }
        self.load(&lanes)
    }

    #[inline(always)]
    fn where_at_least(self, value: Self::F, test: Self::F, least: f32) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let least = _mm256_set1_ps(least);
            [
                _mm256_and_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(test[0], least), value[0]),
                _mm256_and_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(test[1], least), value[1]),
            ]
        }
    }

    #[inline(always)]
    fn round(self, value: Self::F) -> Self::I {
        // SAFETY: as above.
        unsafe { [_mm256_cvtps_epi32(value[0]), _mm256_cvtps_epi32(value[1])] }
    }

    #[inline(always)]
    fn to_float(self, value: Self::I) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_cvtepi32_ps(value[0]), _mm256_cvtepi32_ps(value[1])] }
    }

    #[inline(always)]
    fn pow2(self, value: Self::I) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let bias = _mm256_set1_epi32(127);
            let low = _mm256_slli_epi32::<23>(_mm256_add_epi32(value[0], bias));
            let high = _mm256_slli_epi32::<23>(_mm256_add_epi32(value[1], bias));
            [_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)]
        }
    }

    #[inline(always)]
    fn splat_i(self, value: i32) -> Self::I {
        // SAFETY: as above.
        unsafe { [_mm256_set1_epi32(value); 2] }
    }

    #[inline(always)]
    fn shift(self, value: Self::I, by: i32) -> Self::I {
        // SAFETY: as above.
        unsafe {
            let by = _mm_cvtsi32_si128(by);
            [_mm256_sll_epi32(value[0], by), _mm256_sll_epi32(value[1], by)]
        }
    }

    #[inline(always)]
    fn sum_i(self, value: Self::I) -> i32 {
        // SAFETY: as above; the reference is to as many bytes as are written.
        unsafe {
            let mut lanes = [0; 8];
            _mm256_storeu_si256(lanes.as_mut_ptr().cast(), _mm256_add_epi32(value[0], value[1]));
            lanes.iter().sum()
        }
    }

    #[inline(always)]
    fn pack(self, low: Self::I, high: Self::I) -> [i32; 8] {
        // SAFETY: as above; the reference is to as many bytes as are written.
        unsafe {
            let mut words = [0; 8];
            // Packing works within halves of a register: the last step puts the words in order.
            let low = _mm256_packs_epi32(low[0], low[1]);
            let high = _mm256_packs_epi32(high[0], high[1]);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
            _mm256_storeu_si256(words.as_mut_ptr().cast(), bytes);
            words
        }
    }

    #[inline(always)]
    fn prefetch<T>(self, from: &[T], ahead: usize) {
        // SAFETY: as above; a prefetch has no visible effect, and an invalid address is ignored.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.as_ptr().wrapping_byte_add(ahead).cast()) }
    }

    #[inline(always)]
    fn load_b(self, from: &[u8; 64]) -> Self::B {
        // SAFETY: as above; the reference is to as many bytes as are read.
        unsafe {
            let from = from.as_ptr();
            [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())]
        }
    }

    #[inline(always)]
    fn store_b(self, value: Self::B, to: &mut [u8; 64]) {
        // SAFETY: as above; the reference is to as many bytes as are written.
        unsafe {
            let to = to.as_mut_ptr();
            _mm256_storeu_si256(to.cast(), value[0]);
            _mm256_storeu_si256(to.add(32).cast(), value[1]);
        }
    }

    #[inline(always)]
    fn and(self, value: Self::B, mask: u8) -> Self::B {
        // SAFETY: as above.
        unsafe {
            let mask = _mm256_set1_epi8(mask.cast_signed());
            [_mm256_and_si256(value[0], mask), _mm256_and_si256(value[1], mask)]
        }
    }

    #[inline(always)]
    fn or(self, a: Self::B, b: Self::B) -> Self::B {
        // SAFETY: as above.
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn shr(self, value: Self::B, by: i32) -> Self::B {
        // SAFETY: as above.
        unsafe {
            let by = _mm_cvtsi32_si128(by);
            [_mm256_srl_epi16(value[0], by), _mm256_srl_epi16(value[1], by)]
        }
    }

    #[inline(always)]
    fn shl(self, value: Self::B, by: i32) -> Self::B {
        // SAFETY: as above.
        unsafe {
            let by = _mm_cvtsi32_si128(by);
            [_mm256_sll_epi16(value[0], by), _mm256_sll_epi16(value[1], by)]
        }
    }

    /// The sum of two products is at most 2 x 63 x 128 = 16,128: no saturation.
    #[inline(always)]
    fn dot(self, sum: Self::I, w: Self::B, x: i32) -> Self::I {
        // SAFETY: as above.
        unsafe {
            let (x, ones) = (_mm256_set1_epi32(x), _mm256_set1_epi16(1));
            let low = _mm256_madd_epi16(_mm256_maddubs_epi16(w[0], x), ones);
            let high = _mm256_madd_epi16(_mm256_maddubs_epi16(w[1], x), ones);
            [_mm256_add_epi32(sum[0], low), _mm256_add_epi32(sum[1], high)]
        }
    }

    #[inline(always)]
    fn wide_start(self, _: i32) -> Self::I {
        // SAFETY: as above.
        unsafe { [_mm256_setzero_si256(); 2] }
    }

    /// The weight's sign moves to `x`, so that the weight's magnitude, at most 128, is unsigned. The sum of
    /// two products is at most 2 x 128 x 127 = 32,512: no saturation.
    #[inline(always)]
    fn dot_wide(self, sum: Self::I, w: Self::B, x: i32) -> Self::I {
        // SAFETY: as above.
        unsafe {
            let (x, ones, offset) = (_mm256_set1_epi32(x), _mm256_set1_epi16(1), _mm256_set1_epi8(-128));
            let (low, high) = (_mm256_xor_si256(w[0], offset), _mm256_xor_si256(w[1], offset));
            let low = _mm256_maddubs_epi16(_mm256_abs_epi8(low), _mm256_sign_epi8(x, low));
            let high = _mm256_maddubs_epi16(_mm256_abs_epi8(high), _mm256_sign_epi8(x, high));
            let (low, high) = (_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones));
            [_mm256_add_epi32(sum[0], low), _mm256_add_epi32(sum[1], high)]
        }
    }
}
