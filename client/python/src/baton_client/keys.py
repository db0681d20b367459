"""The key schedule of docs/PROTOCOL.md, section 5. Everything derives from one root of 32 bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass

from mnemonic import Mnemonic

from .codec import u64le
from .crypto import Secret, ed25519_public, kdf, keyed
from .errors import SessionError
from .objects import Link, SignedBytes
from .signed import SignedKind, T, identity_of

ROOT_BYTES = 32
_WORDS = 24


def words_of_root(root: Secret) -> str:
    """The 24 BIP-39 words of a root. They open the session on any device."""
    words: str = Mnemonic("english").to_mnemonic(root.expose())
    return words


def root_of_words(words: str) -> Secret:
    """The root of 24 BIP-39 words, in any case and spacing."""
    text = " ".join(words.lower().split())
    try:
        entropy = bytes(Mnemonic("english").to_entropy(text))
    except (ValueError, LookupError):
        entropy = b""
    if len(text.split()) != _WORDS or len(entropy) != ROOT_BYTES:
        raise SessionError("Words", f"these are not {_WORDS} recovery words", "check spelling and order; one word is wrong")
    return Secret(entropy)


@dataclass(frozen=True)
class RecordKeys:
    """The keys of one attempt at a turn."""

    record_key: bytes
    salt: bytes
    blob_key: bytes

    @property
    def commitment_key(self) -> bytes:
        """The key of the receipt's commitments."""
        return kdf("commitment", self.record_key)


class HeadKeys:
    """The keys of a session's head records in one period, and their place in the indexes. `wipe` forgets them."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._seed = Secret(kdf("head-sign", secret.expose()))
        self.head_key = ed25519_public(self._seed.expose())
        self.index_key = kdf("head-index", self.head_key)

    @property
    def locate_key(self) -> bytes:
        """The key of the outer part."""
        return kdf("head-locate", self._secret.expose())

    def sign(self, kind: SignedKind[T], value: T) -> SignedBytes:
        """Signs a head record of the period."""
        return kind.sign(self._seed.expose(), value)

    def wipe(self) -> None:
        """Overwrites secret and seed."""
        for secret in (self._secret, self._seed):
            secret.wipe()


class SessionKeys:
    """The keys of a session. They hold the root; `wipe` forgets it."""

    def __init__(self, root: Secret) -> None:
        self.root = root
        self._session_seed = Secret(kdf("session-sign", root.expose()))
        self.session_key = ed25519_public(self._session_seed.expose())
        self.session_id = kdf("session-id", self.session_key)

    def sign(self, kind: SignedKind[T], value: T) -> SignedBytes:
        """Signs an object with the session key."""
        return kind.sign(self._session_seed.expose(), value)

    def head_keys(self, period: int) -> HeadKeys:
        """The keys of head records in a period (section 12): nobody without the root can derive them."""
        return HeadKeys(Secret(kdf("head-period", self.root.expose(), u64le(period))))

    @property
    def head_inner_key(self) -> bytes:
        """The key of the inner part of head records."""
        return kdf("head-inner", self.root.expose())

    @property
    def journal_key(self) -> bytes:
        """The key that seals this client's journal at rest."""
        return kdf("client-journal", self.root.expose())

    def record_keys(self, segment: int, identity: bytes) -> RecordKeys:
        """The keys of the attempt with this identity, in this segment."""
        secret = kdf("segment", self.root.expose(), u64le(segment))
        record_key = kdf("record", secret, identity)
        salt = kdf("blob-salt", record_key)[:16]
        return RecordKeys(record_key, salt, kdf("blob", secret, salt))

    def blob_key(self, segment: int, salt: bytes) -> bytes:
        """The key of a blob, from the salt that it begins with."""
        return kdf("blob", kdf("segment", self.root.expose(), u64le(segment)), salt)

    def keys_of(self, link: Link) -> RecordKeys:
        """The keys of a link's record and of the blob that it completes."""
        return self.record_keys(link.segment, identity_of(link))

    def draw_turn_id(self, device_id: bytes) -> bytes:
        """A fresh turn id that carries this device's mark (section 8)."""
        nonce = os.urandom(8)
        return nonce + keyed(kdf("turn-tag", self.root.expose(), device_id), nonce)[:8]

    def wipe(self) -> None:
        """Overwrites root and seed."""
        for secret in (self.root, self._session_seed):
            secret.wipe()
