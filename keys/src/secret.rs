//! Secret byte strings: zeroized on drop, redacted in `Debug`, never serialised by derive.

use crate::contexts::Context;

/// Defines a 32-byte secret key type.
macro_rules! secret_key {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, zeroize::Zeroize, zeroize::ZeroizeOnDrop)]
        pub struct $name(pub(crate) [u8; 32]);

        impl $name {
            /// Takes the key from bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// The key's bytes. The name makes every use visible in a review.
            #[must_use]
            pub const fn expose(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(redacted)"))
            }
        }

        impl PartialEq for $name {
            /// Compares in constant time.
            fn eq(&self, other: &Self) -> bool {
                subtle::ConstantTimeEq::ct_eq(&self.0[..], &other.0[..]).into()
            }
        }

        impl Eq for $name {}
    };
}
pub(crate) use secret_key;

/// `KDF(context, parts)`: BLAKE3 `derive_key` over the concatenation of `parts`.
///
/// Callers pass parts of fixed length, or a single part, so that the concatenation is unambiguous.
/// Source: BLAKE3 specification, section 2.3 (key derivation mode).
#[must_use]
pub fn kdf(context: Context, parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(context.as_str());
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// Fills a buffer from the operating system's generator.
///
/// # Panics
/// When the operating system has no entropy: nothing secure is possible then.
pub fn fill_random(buffer: &mut [u8]) {
    use rand::TryRng as _;
    rand::rngs::SysRng.try_fill_bytes(buffer).expect("the operating system provides randomness");
}

/// An array of random bytes from the operating system.
///
/// # Panics
/// As [`fill_random`].
#[must_use]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0u8; N];
    fill_random(&mut bytes);
    bytes
}
