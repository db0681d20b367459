"""Noise_XX_25519_ChaChaPoly_SHA256 as libp2p uses it.

Sources: the Noise Protocol Framework, revision 34, and libp2p's specification `noise`: messages have a 2-byte
big-endian length, and a payload in which the long-term Ed25519 key signs the static X25519 key.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import struct

from ..crypto import Secret, chacha_open, chacha_seal, ed25519_public, ed25519_sign, ed25519_verify, x25519, x25519_public
from ..errors import BatonError, TransportError
from ..limits import MAX_HANDSHAKE_PAYLOAD, MAX_NOISE_MESSAGE
from ..peerid import node_of_protobuf, public_key_protobuf
from .wire import field, fields

_NAME = b"Noise_XX_25519_ChaChaPoly_SHA256"
_SIGNED = b"noise-libp2p-static-key:"
_TAG = 16
PROTOCOL = "/noise"


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def _hkdf(chaining_key: bytes, material: bytes) -> tuple[bytes, bytes]:
    """Noise's HKDF with two outputs."""
    temporary = _hmac(chaining_key, material)
    first = _hmac(temporary, b"\x01")
    return first, _hmac(temporary, first + b"\x02")


class CipherState:
    """A key and its counter. A counter is never used twice."""

    def __init__(self, key: bytes) -> None:
        self._key = Secret(key)
        self._counter = 0

    def _nonce(self) -> bytes:
        if self._counter >= 2**64 - 1:
            raise TransportError("a Noise key is used up", "connect again")
        nonce = bytes(4) + struct.pack("<Q", self._counter)
        self._counter += 1
        return nonce

    def encrypt(self, text: bytes, ad: bytes = b"") -> bytes:
        """Seals the next message."""
        return chacha_seal(self._key.expose(), self._nonce(), text, ad)

    def decrypt(self, sealed: bytes, ad: bytes = b"") -> bytes:
        """Opens the next message."""
        return chacha_open(self._key.expose(), self._nonce(), sealed, "a Noise message", ad)


class _Symmetric:
    """Noise's symmetric state."""

    def __init__(self) -> None:
        self.hash = _NAME
        self.chaining_key = _NAME
        self.cipher: CipherState | None = None
        self.mix_hash(b"")

    def mix_hash(self, data: bytes) -> None:
        self.hash = hashlib.sha256(self.hash + data).digest()

    def mix_key(self, material: bytes) -> None:
        self.chaining_key, key = _hkdf(self.chaining_key, material)
        self.cipher = CipherState(key)

    def encrypt(self, text: bytes) -> bytes:
        sealed = self.cipher.encrypt(text, self.hash) if self.cipher else text
        self.mix_hash(sealed)
        return sealed

    def decrypt(self, sealed: bytes) -> bytes:
        text = self.cipher.decrypt(sealed, self.hash) if self.cipher else sealed
        self.mix_hash(sealed)
        return text

    def split(self) -> tuple[CipherState, CipherState]:
        first, second = _hkdf(self.chaining_key, b"")
        return CipherState(first), CipherState(second)


class Initiator:
    """The dialer's side of the handshake, without I/O: `hello`, then `answer`, then `split`."""

    def __init__(self, identity_seed: bytes, static: bytes | None = None, ephemeral: bytes | None = None) -> None:
        self._identity_seed = identity_seed
        self._static = Secret(static or os.urandom(32))
        self._ephemeral = Secret(ephemeral or os.urandom(32))
        self._state = _Symmetric()

    def hello(self) -> bytes:
        """Message 1: `-> e`."""
        public = x25519_public(self._ephemeral.expose())
        self._state.mix_hash(public)
        return public + self._state.encrypt(b"")

    def answer(self, message: bytes) -> tuple[bytes, bytes]:
        """Reads message 2 (`<- e, ee, s, es`). Returns the peer's Ed25519 key and message 3 (`-> s, se`)."""
        state = self._state
        if not 32 + 32 + _TAG + _TAG <= len(message) <= MAX_HANDSHAKE_PAYLOAD:
            raise TransportError(f"a handshake of {len(message)} bytes")
        theirs = message[:32]
        state.mix_hash(theirs)
        state.mix_key(x25519(self._ephemeral.expose(), theirs))
        their_static = state.decrypt(message[32 : 64 + _TAG])
        state.mix_key(x25519(self._ephemeral.expose(), their_static))
        payload = fields(state.decrypt(message[64 + _TAG :]))
        node = node_of_protobuf(payload.get(1, b""))
        if not ed25519_verify(node, _SIGNED + their_static, payload.get(2, b"")):
            raise TransportError("the peer does not prove its key")
        public = x25519_public(self._static.expose())
        reply = state.encrypt(public)
        state.mix_key(x25519(self._static.expose(), theirs))
        key = public_key_protobuf(ed25519_public(self._identity_seed))
        signature = ed25519_sign(self._identity_seed, _SIGNED + public)
        return node, reply + state.encrypt(field(1, key) + field(2, signature))

    def split(self) -> tuple[CipherState, CipherState]:
        """The ciphers of the connection: to send with, and to receive with."""
        self._static.wipe()
        self._ephemeral.wipe()
        return self._state.split()


class NoiseChannel:
    """An encrypted connection. One task reads; writes are serialised."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._buffer = bytearray()
        self._lock = asyncio.Lock()
        self._send: CipherState | None = None
        self._receive: CipherState | None = None

    async def _read_message(self) -> bytes:
        length = int.from_bytes(await self._reader.readexactly(2), "big")
        return await self._reader.readexactly(length)

    async def _write_message(self, message: bytes) -> None:
        self._writer.write(len(message).to_bytes(2, "big") + message)
        await self._writer.drain()

    async def handshake(self, identity_seed: bytes) -> bytes:
        """Shakes hands as the dialer. Returns the Ed25519 key that the peer proved."""
        initiator = Initiator(identity_seed)
        await self._write_message(initiator.hello())
        node, reply = initiator.answer(await self._read_message())
        await self._write_message(reply)
        self._send, self._receive = initiator.split()
        return node

    async def read_exactly(self, count: int) -> bytes:
        """The next bytes of the peer."""
        if self._receive is None:
            raise TransportError("the handshake is not over")
        while len(self._buffer) < count:
            try:
                self._buffer += self._receive.decrypt(await self._read_message())
            except (asyncio.IncompleteReadError, OSError) as error:
                raise TransportError(f"the connection ended: {error}") from None
            except BatonError as error:
                raise TransportError(f"the connection is damaged: {error.cause}") from None
        piece = bytes(self._buffer[:count])
        del self._buffer[:count]
        return piece

    async def write(self, data: bytes) -> None:
        """Sends bytes, in messages of at most 65,535."""
        if self._send is None:
            raise TransportError("the handshake is not over")
        step = MAX_NOISE_MESSAGE - _TAG
        async with self._lock:
            try:
                for at in range(0, len(data), step):
                    await self._write_message(self._send.encrypt(data[at : at + step]))
            except OSError as error:
                raise TransportError(f"the connection ended: {error}") from None

    def close(self) -> None:
        """Closes the socket."""
        self._writer.close()
