//! The account key of a memory owner, and its address in Sui's form.

use crate::ids::PublicKey;

/// `BLAKE2b-256(0x00 ‖ Ed25519 public key)`: Sui's address of an Ed25519 key (flag byte 0x00). So a verifier
/// computes ownership and looks nothing up. Source: Sui documentation, "Keys and addresses".
#[must_use]
pub fn sui_address(key: &PublicKey) -> [u8; 32] {
    let hash = blake2b_simd::Params::new().hash_length(32).to_state().update(&[0]).update(&key.0).finalize();
    *hash.as_bytes().first_chunk().expect("the hash was asked for with 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answer from Python's `hashlib.blake2b(bytes(33), digest_size=32)`.
    #[test]
    fn address_of_the_zero_key() {
        assert_eq!(
            hex::encode(sui_address(&PublicKey([0; 32]))),
            "d8908c165dee785924e7421a0fd0418a19d5daeec395fd505a92a0fd3117e428"
        );
    }
}
