"""The seal of a turn's payload and reply: docs/PROTOCOL.md, section 4, "Exchange" and "STREAM".

The exchange is hybrid: X25519 and ML-KEM-768 by X-Wing. It is in `agree` alone.
"""

from __future__ import annotations

import os
import struct

from . import mlkem
from .codec import decode_layout, encode, pad_block, u32le, u64le, unpad_block
from .crypto import Secret, chacha_open, chacha_seal, kdf, x25519, x25519_public
from .errors import ProtocolError, VerificationError
from .frames import REPLY_EVENT, ReplyEvent
from .limits import MAX_NODE_FRAME_BYTES, MAX_PAYLOAD_BYTES, PAYLOAD_BLOCK, REPLY_BLOCK, SUITE
from .objects import Payload

# The opening of a sealed payload: the encapsulation.
EXCHANGE_BYTES = mlkem.HYBRID_CIPHERTEXT_BYTES
_ZERO_NONCE = bytes(12)


def binding(session_id: bytes, seq: int, turn_id: bytes, attempt: int, session_key: bytes, node: bytes) -> bytes:
    """The 125 bytes that bind a secret to one attempt at one node."""
    return bytes([SUITE]) + session_id + u64le(seq) + turn_id + u32le(attempt) + session_key + node


def key_id(exchange_key: bytes) -> bytes:
    """The id of an exchange key, which the TurnAuth names."""
    return kdf("exchange-key-id", exchange_key)


def turn_secret(share: bytes, opening: bytes, exchange_key: bytes, bound: bytes) -> bytes:
    """The secret of a turn, bound to the whole exchange."""
    return kdf("turn-exchange", share, opening, key_id(exchange_key), bound)


def agree(exchange_key: bytes, bound: bytes, randomness: bytes | None = None) -> tuple[bytes, Secret]:
    """Agrees on a turn's secret with a node's exchange key. Returns the opening and the secret."""
    with Secret(randomness or os.urandom(64)) as secret:
        try:
            opening, share = mlkem.hybrid_encapsulate(exchange_key, secret.expose(), x25519, x25519_public)
        except mlkem.MalformedKeyError as error:
            raise VerificationError("PayloadRejected", str(error)) from None
    return opening, Secret(turn_secret(share, opening, exchange_key, bound))


def seal_payload(secret: Secret, opening: bytes, payload: Payload) -> bytes:
    """The sealed payload of a request."""
    padded = pad_block(encode(payload), PAYLOAD_BLOCK)
    sealed = opening + chacha_seal(kdf("turn-payload", secret.expose()), _ZERO_NONCE, padded)
    if len(sealed) > MAX_PAYLOAD_BYTES:
        raise ProtocolError("FrameTooLarge", f"a payload of {len(sealed)} bytes", "send less text at once")
    return sealed


def payload_hash(sealed: bytes) -> bytes:
    """The hash of a sealed payload, which the TurnAuth names."""
    return kdf("payload-hash", sealed)


class ReplyOpener:
    """Opens the chunks of a reply in their order (STREAM)."""

    def __init__(self, secret: Secret, node_nonce: bytes, auth_hash: bytes) -> None:
        self._key = Secret(kdf("turn-reply", secret.expose(), node_nonce, auth_hash))
        self._counter = 0
        self.ended = False

    def open_bytes(self, sealed: bytes) -> bytes:
        """The text of the next chunk. Refuses a chunk after the last."""
        if self.ended:
            raise VerificationError("StreamTruncated", "a chunk after the last one")
        nonce = bytes(3) + struct.pack(">Q", self._counter)
        try:
            text = chacha_open(self._key.expose(), nonce + b"\x00", sealed, "a chunk")
        except VerificationError:
            text = chacha_open(self._key.expose(), nonce + b"\x01", sealed, "a chunk of the reply")
            self.ended = True
        self._counter += 1
        return text

    def open(self, sealed: bytes) -> ReplyEvent:
        """The event in the next chunk."""
        padded = self.open_bytes(sealed)
        event: ReplyEvent = decode_layout(REPLY_EVENT, unpad_block(padded, REPLY_BLOCK), MAX_NODE_FRAME_BYTES)
        return event

    def wipe(self) -> None:
        """Overwrites the reply key."""
        self._key.wipe()
