"""The primitives of docs/PROTOCOL.md, section 4, over libsodium (PyNaCl) and BLAKE3.

Ed25519 is libsodium's verification, which section 4 names as strict enough.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from blake3 import blake3
from nacl import bindings as nacl
from nacl.exceptions import CryptoError

from .codec import u64le
from .errors import VerificationError

SIV_BYTES = 32
SEAL_OVERHEAD = 48
T = TypeVar("T")


class Secret:
    """Secret bytes that are overwritten with zeros by `wipe`, on leaving a `with` block, and at deletion.

    Python may have copied them before: libsodium's binding takes immutable bytes. So this shortens the time in which a
    secret is in memory; it does not promise that no copy is left.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = bytearray(data)

    @classmethod
    def random(cls, size: int = 32) -> Secret:
        """Fresh bytes of the operating system's generator."""
        return cls(os.urandom(size))

    def expose(self) -> bytes:
        """A copy of the bytes, for one call."""
        if not self._data:
            raise ValueError("the secret was wiped")
        return bytes(self._data)

    def wipe(self) -> None:
        """Overwrites the bytes."""
        for at in range(len(self._data)):
            self._data[at] = 0
        self._data = bytearray()

    def __enter__(self) -> Secret:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def __del__(self) -> None:
        self.wipe()

    def __repr__(self) -> str:
        return "Secret(...)"

    __str__ = __repr__


def kdf(name: str, *parts: bytes) -> bytes:
    """`KDF(name, a ‖ b …)`: BLAKE3 in `derive_key` mode."""
    return blake3(b"".join(parts), derive_key_context=f"baton 2026-11-21 {name} v1").digest()


def keyed(key: bytes, data: bytes) -> bytes:
    """Keyed BLAKE3."""
    return blake3(data, key=key).digest()


def digest(data: bytes) -> bytes:
    """Plain BLAKE3, of a blob."""
    return blake3(data).digest()


def _opened(action: Callable[[], T], subject: str) -> T:
    try:
        return action()
    except CryptoError:
        raise VerificationError("PayloadRejected", f"{subject} does not open") from None


def _siv(key: bytes, ad: bytes, text: bytes) -> bytes:
    return keyed(kdf("siv-mac", key), u64le(len(ad)) + ad + text)


def seal(key: bytes, ad: bytes, text: bytes) -> bytes:
    """Deterministic sealing of `text`, bound to `ad`: 48 bytes longer."""
    siv = _siv(key, ad, text)
    encrypt: bytes = nacl.crypto_aead_xchacha20poly1305_ietf_encrypt(text, siv + ad, siv[:24], kdf("siv-encrypt", key))
    return siv + encrypt


def unseal(key: bytes, ad: bytes, sealed: bytes, subject: str) -> bytes:
    """Reverses `seal`; PayloadRejected for another key, `ad` or byte."""
    if len(sealed) < SEAL_OVERHEAD:
        raise VerificationError("PayloadRejected", f"{subject} is too short to be sealed")
    siv, body = sealed[:SIV_BYTES], sealed[SIV_BYTES:]
    text: bytes = _opened(
        lambda: nacl.crypto_aead_xchacha20poly1305_ietf_decrypt(body, siv + ad, siv[:24], kdf("siv-encrypt", key)), subject
    )
    if _siv(key, ad, text) != siv:
        raise VerificationError("PayloadRejected", f"{subject} does not commit to its key")
    return text


def seal_random(key: bytes, text: bytes) -> bytes:
    """`nonce(24, random) ‖ XChaCha20-Poly1305`: files at rest."""
    nonce = os.urandom(24)
    return nonce + bytes(nacl.crypto_aead_xchacha20poly1305_ietf_encrypt(text, b"", nonce, key))


def open_random(key: bytes, sealed: bytes, subject: str) -> bytes:
    """Reverses `seal_random`."""
    if len(sealed) < 40:
        raise VerificationError("PayloadRejected", f"{subject} is too short to be sealed")
    return _opened(lambda: nacl.crypto_aead_xchacha20poly1305_ietf_decrypt(sealed[24:], b"", sealed[:24], key), subject)


def chacha_seal(key: bytes, nonce: bytes, text: bytes, ad: bytes = b"") -> bytes:
    """ChaCha20-Poly1305 of RFC 8439."""
    sealed: bytes = nacl.crypto_aead_chacha20poly1305_ietf_encrypt(text, ad, nonce, key)
    return sealed


def chacha_open(key: bytes, nonce: bytes, sealed: bytes, subject: str, ad: bytes = b"") -> bytes:
    """Reverses `chacha_seal`; PayloadRejected if it does not open."""
    return _opened(lambda: nacl.crypto_aead_chacha20poly1305_ietf_decrypt(sealed, ad, nonce, key), subject)


def x25519_public(secret: bytes) -> bytes:
    """The public key of an X25519 secret."""
    public: bytes = nacl.crypto_scalarmult_base(secret)
    return public


def x25519(secret: bytes, public: bytes) -> bytes:
    """The share of RFC 7748; an all-zero share is refused."""
    try:
        share: bytes = nacl.crypto_scalarmult(secret, public)
    except (CryptoError, RuntimeError):
        raise VerificationError("PayloadRejected", "a weak exchange key") from None
    if share == bytes(32):
        raise VerificationError("PayloadRejected", "a weak exchange key")
    return share


def ed25519_public(seed: bytes) -> bytes:
    """The public key of an Ed25519 seed."""
    public: bytes = nacl.crypto_sign_seed_keypair(seed)[0]
    return public


def ed25519_sign(seed: bytes, message: bytes) -> bytes:
    """The 64-byte signature of `message`."""
    _, secret = nacl.crypto_sign_seed_keypair(seed)
    signed: bytes = nacl.crypto_sign(message, secret)
    return signed[:64]


def ed25519_verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the signature holds, checked strictly."""
    if len(public) != 32 or len(signature) != 64:
        return False
    try:
        nacl.crypto_sign_open(signature + message, public)
    except (CryptoError, ValueError):
        return False
    return True


def labelled(label: str, body: bytes) -> bytes:
    """The signed message of an object: `len(label) ‖ label ‖ body`."""
    name = f"baton/v1/{label}".encode()
    return bytes([len(name)]) + name + body
