//! 16 lanes in one register of AVX-512, integer products by VNNI.

#![expect(unsafe_code, reason = "intrinsics")]
#![expect(clippy::inline_always, reason = "a kernel's parts must end up in its one function")]
// SAFETY, of every block below without a further reason: the intrinsics need a processor with support. A
// value of `Avx512` exists only if `detect` found all of them.

use std::arch::x86_64::*;

use super::{Kernel, LANES, Simd};

/// Proof that this processor has AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// The proof, if the processor has them.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        has.then_some(Self(()))
    }
}

/// The function into which a whole kernel is inlined.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn enter<K: Kernel>(token: Avx512, kernel: K) -> K::Output {
    kernel.run(token)
}

impl Simd for Avx512 {
    const MANY_REGISTERS: bool = true;

    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: as above.
        unsafe { enter(self, kernel) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: as above; the reference is to as many bytes as are read.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, value: Self::F, to: &mut [f32; LANES]) {
        // SAFETY: as above; the reference is to as many bytes as are written.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), value) }
    }

    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Self::F {
        // SAFETY: as above; the reference is to as many bytes as are read.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8; 64]) -> Self::F {
        // SAFETY: as above; the reference is to as many bytes as are read, and x86 is little-endian.
        unsafe { _mm512_loadu_ps(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_f16_bytes(self, from: &[u8; 32]) -> Self::F {
        // SAFETY: as above; the reference is to as many bytes as are read, and x86 is little-endian.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16_bytes(self, from: &[u8; 32]) -> Self::F {
        // SAFETY: as above; the reference is to as many bytes as are read, and x86 is little-endian.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn store_f16(self, value: Self::F, to: &mut [u16; LANES]) {
        // SAFETY: as above; the reference is to as many bytes as are written.
        unsafe {
            let value = _mm512_min_ps(value, _mm512_set1_ps(65_504.0));
            let value = _mm512_max_ps(value, _mm512_set1_ps(-65_504.0));
            let half = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(value);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), half);
        }
    }

    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> Self::F {
        // SAFETY: as above; the reference is to as many bytes as are read.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Self::F {
        // SAFETY: as above; the reference is to as many bytes as are read.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_abs_ps(a) }
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn keep(self, value: Self::F, from: usize, to: usize, other: f32) -> Self::F {
        let below = |end: usize| u16::try_from((1_u32 << end.min(LANES)) - 1).unwrap_or(u16::MAX);
        // SAFETY: as above.
        unsafe { _mm512_mask_blend_ps(below(to) & !below(from), _mm512_set1_ps(other), value) }
    }

    #[inline(always)]
    fn where_at_least(self, value: Self::F, test: Self::F, least: f32) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let mask = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(test, _mm512_set1_ps(least));
            _mm512_maskz_mov_ps(mask, value)
        }
    }

    #[inline(always)]
    fn round(self, value: Self::F) -> Self::I {
        // SAFETY: as above.
        unsafe { _mm512_cvtps_epi32(value) }
    }

    #[inline(always)]
    fn to_float(self, value: Self::I) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(value) }
    }

    #[inline(always)]
    fn pow2(self, value: Self::I) -> Self::F {
        // SAFETY: as above.
        unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(value, _mm512_set1_epi32(127))))
        }
    }

    #[inline(always)]
    fn splat_i(self, value: i32) -> Self::I {
        // SAFETY: as above.
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    fn shift(self, value: Self::I, by: i32) -> Self::I {
        // SAFETY: as above.
        unsafe { _mm512_sll_epi32(value, _mm_cvtsi32_si128(by)) }
    }

    #[inline(always)]
    fn sum_i(self, value: Self::I) -> i32 {
        // SAFETY: as above.
        unsafe { _mm512_reduce_add_epi32(value) }
    }

    #[inline(always)]
    fn pack(self, low: Self::I, high: Self::I) -> [i32; 8] {
        // SAFETY: as above; the reference is to as many bytes as are written.
        unsafe {
            let mut words = [0; 8];
            let (low, high) = (_mm512_cvtsepi32_epi8(low), _mm512_cvtsepi32_epi8(high));
            _mm256_storeu_si256(words.as_mut_ptr().cast(), _mm256_set_m128i(high, low));
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
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_b(self, value: Self::B, to: &mut [u8; 64]) {
        // SAFETY: as above; the reference is to as many bytes as are written.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), value) }
    }

    #[inline(always)]
    fn and(self, value: Self::B, mask: u8) -> Self::B {
        // SAFETY: as above.
        unsafe { _mm512_and_si512(value, _mm512_set1_epi8(mask.cast_signed())) }
    }

    #[inline(always)]
    fn or(self, a: Self::B, b: Self::B) -> Self::B {
        // SAFETY: as above.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn shr(self, value: Self::B, by: i32) -> Self::B {
        // SAFETY: as above.
        unsafe { _mm512_srl_epi16(value, _mm_cvtsi32_si128(by)) }
    }

    #[inline(always)]
    fn shl(self, value: Self::B, by: i32) -> Self::B {
        // SAFETY: as above.
        unsafe { _mm512_sll_epi16(value, _mm_cvtsi32_si128(by)) }
    }

    #[inline(always)]
    fn dot(self, sum: Self::I, w: Self::B, x: i32) -> Self::I {
        // SAFETY: as above.
        unsafe { _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(x)) }
    }

    /// With unsigned weights, each product is too large by 128 x.
    #[inline(always)]
    fn wide_start(self, minus_sum: i32) -> Self::I {
        self.shift(self.splat_i(minus_sum), 7)
    }

    #[inline(always)]
    fn dot_wide(self, sum: Self::I, w: Self::B, x: i32) -> Self::I {
        // SAFETY: as above.
        unsafe { _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(x)) }
    }
}
