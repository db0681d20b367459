//! The arithmetic kernels: one implementation per instruction set, all with the same bits.
//!
//! All code above this module uses [`Simd`], a machine of 16 lanes. Its three implementations (`scalar`,
//! `avx2`, `avx512`) do the same operations on the same lanes, each rounded once as IEEE 754 requires. So all
//! of them keep the order of operations that an algorithm states, and no algorithm needs its own proof of
//! equality. A lane's meaning never depends on the instruction set: AVX2 holds 16 lanes in two registers, the
//! scalar twin in an array.
//!
//! Only the implementations contain unsafe code. Intrinsics need a processor that has them, which the token
//! proves. Loads and stores use references of the exact size.

pub mod attention;
pub mod dot;
pub mod math;
pub mod rows;
mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::fmt;

pub use crate::lanes::LANES;
pub use scalar::Scalar;

/// A machine of 16 lanes. A value of an implementing type proves that this processor supports it.
///
/// All floating-point operations round to nearest, ties to even, and keep subnormals.
pub trait Simd: Copy + Send + Sync + 'static {
    /// 16 floats.
    type F: Copy;
    /// 16 integers of 32 bits.
    type I: Copy;
    /// 64 bytes.
    type B: Copy;

    /// Whether the registers suffice for six rows times two tiles.
    const MANY_REGISTERS: bool;

    /// Runs a kernel with this machine's instructions enabled in the compiler.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;

    /// The same number in all lanes.
    fn splat(self, value: f32) -> Self::F;
    /// 16 numbers from memory.
    fn load(self, from: &[f32; LANES]) -> Self::F;
    /// 16 numbers to memory.
    fn store(self, value: Self::F, to: &mut [f32; LANES]);
    /// 16 numbers from bytes, the lowest first.
    fn load_bytes(self, from: &[u8; 64]) -> Self::F;
    /// 16 half-precision numbers from memory: exact.
    fn load_f16(self, from: &[u16; LANES]) -> Self::F;
    /// 16 half-precision numbers from bytes, the lowest first.
    fn load_f16_bytes(self, from: &[u8; 32]) -> Self::F;
    /// 16 bfloat16 numbers from bytes, the lowest first: exact.
    fn load_bf16_bytes(self, from: &[u8; 32]) -> Self::F;
    /// 16 numbers to memory in half precision, to nearest even, clamped to ±65,504.
    fn store_f16(self, value: Self::F, to: &mut [u16; LANES]);
    /// 16 unsigned bytes as numbers.
    fn load_u8(self, from: &[u8; LANES]) -> Self::F;
    /// 16 signed bytes as numbers.
    fn load_i8(self, from: &[u8; LANES]) -> Self::F;
    /// `a + b`
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a > b ? a : b`
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// The value without its sign.
    fn abs(self, a: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Lanes `from..to` of `value`, `other` in the rest.
    fn keep(self, value: Self::F, from: usize, to: usize, other: f32) -> Self::F;
    /// `value` where `test >= least`, 0 in the rest.
    fn where_at_least(self, value: Self::F, test: Self::F, least: f32) -> Self::F;

    /// To the nearest integer, ties to even; `i32::MIN` if out of range.
    fn round(self, value: Self::F) -> Self::I;
    /// The nearest float.
    fn to_float(self, value: Self::I) -> Self::F;
    /// `2^value`, for -126 to 127.
    fn pow2(self, value: Self::I) -> Self::F;
    /// The same integer in all lanes.
    fn splat_i(self, value: i32) -> Self::I;
    /// Shifted left: times `2^by`.
    fn shift(self, value: Self::I, by: i32) -> Self::I;
    /// The sum of all lanes.
    fn sum_i(self, value: Self::I) -> i32;
    /// 32 integers of -128 to 127 as bytes, four to a word, the first the lowest.
    fn pack(self, low: Self::I, high: Self::I) -> [i32; 8];

    /// Prefetches the cache line that is `ahead` bytes after the start of `from`; it may lie beyond the
    /// slice. Goes to the second-level cache, because the first level has room for few pending lines. This is
    /// a hint.
    fn prefetch<T>(self, from: &[T], ahead: usize);

    /// 64 bytes from memory.
    fn load_b(self, from: &[u8; 64]) -> Self::B;
    /// 64 bytes to memory.
    fn store_b(self, value: Self::B, to: &mut [u8; 64]);
    /// The bits of each byte that are in `mask`.
    fn and(self, value: Self::B, mask: u8) -> Self::B;
    /// The bitwise or.
    fn or(self, a: Self::B, b: Self::B) -> Self::B;
    /// 16-bit words shifted right; the caller masks bits that cross a byte.
    fn shr(self, value: Self::B, by: i32) -> Self::B;
    /// 16-bit words shifted left; the caller masks bits that cross a byte.
    fn shl(self, value: Self::B, by: i32) -> Self::B;
    /// Adds to lane `l` the sum of `w[4 l + i] * x[i]`, i = 0..4. `w` is unsigned, at most 63; `x` holds the
    /// signed bytes of the word. Exact.
    fn dot(self, sum: Self::I, w: Self::B, x: i32) -> Self::I;
    /// The initial value of a sum by [`Self::dot_wide`]; `minus_sum` is the negated sum of all its `x`.
    fn wide_start(self, minus_sum: i32) -> Self::I;
    /// As [`Self::dot`] for weights of `w - 128`, `w` any byte, and `x` of -127 to 127. Exact once all of `x`
    /// is added.
    fn dot_wide(self, sum: Self::I, w: Self::B, x: i32) -> Self::I;
}

/// A computation for any machine. `run` and all functions that it calls must be `#[inline(always)]`.
pub trait Kernel {
    /// The result.
    type Output;
    /// Computes the result.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// An instruction set of this processor.
#[derive(Clone, Copy)]
pub struct Isa(Machine);

#[derive(Clone, Copy)]
enum Machine {
    Scalar(Scalar),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
}

impl Isa {
    /// The portable twin.
    pub const SCALAR: Self = Self(Machine::Scalar(Scalar));

    /// All instruction sets of this processor, the fastest first. AVX2 counts only with FMA and F16C: all
    /// AVX2 processors since 2013 have them. AVX-512 counts only with BW, DQ, VL and VNNI: all AVX-512
    /// processors since 2019 or 2022 have them.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(avx512::Avx512::detect().map(|token| Self(Machine::Avx512(token))));
            all.extend(avx2::Avx2::detect().map(|token| Self(Machine::Avx2(token))));
        }
        all.push(Self::SCALAR);
        all
    }

    /// The fastest instruction set of this processor.
    #[must_use]
    pub fn best() -> Self {
        Self::all().first().copied().unwrap_or(Self::SCALAR)
    }

    /// The instruction set of this name (`avx512`, `avx2`, `scalar`), if this processor has it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|isa| isa.name() == name)
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Machine::Scalar(_) => "scalar",
            #[cfg(target_arch = "x86_64")]
            Machine::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(_) => "avx512",
        }
    }

    /// Computes a kernel.
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Machine::Scalar(token) => token.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx2(token) => token.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(token) => token.run(kernel),
        }
    }
}

impl fmt::Debug for Isa {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
