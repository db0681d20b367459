"""Peer ids and multiaddresses: how libp2p names a node and its TCP address.

Sources: libp2p's specification of peer ids (an Ed25519 key is inside the id, by the identity hash), base58btc, and
multiaddr. docs/PROTOCOL.md, section 5: a node's Ed25519 key is the key of its peer id. A change of that is a change of
`node_of_peer_id` and `peer_id_of_node`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import ProtocolError

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
# Longest peer id in base58: an Ed25519 id has 52 characters.
_MAX_TEXT = 128
# Protobuf of a public key: field 1 (type) is 1 for Ed25519, field 2 (data) has 32 bytes.
_KEY_PREFIX = bytes([0x08, 0x01, 0x12, 0x20])
# Multihash "identity" of 36 bytes.
_ID_PREFIX = bytes([0x00, 0x24])
_ADDRESS = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([^/]+)/tcp/([0-9]{1,5})(?:/p2p/([^/]+))?")


def _base58_decode(text: str) -> bytes:
    number = 0
    for character in text:
        digit = _ALPHABET.find(character)
        if digit < 0:
            raise ProtocolError("Address", f"{character!r} is not base58", "copy the node's address again")
        number = number * 58 + digit
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def _base58_encode(data: bytes) -> str:
    number, text = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = _ALPHABET[digit] + text
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + text


def public_key_protobuf(node: bytes) -> bytes:
    """The protobuf of an Ed25519 public key, as in peer ids, Noise and identify."""
    return _KEY_PREFIX + node


def node_of_protobuf(encoded: bytes) -> bytes:
    """The Ed25519 key in such a protobuf; other keys are refused."""
    if len(encoded) != 36 or not encoded.startswith(_KEY_PREFIX):
        raise ProtocolError("Address", "the peer's key is not an Ed25519 key", "Baton's nodes have Ed25519 keys")
    return encoded[4:]


def peer_id_of_node(node: bytes) -> str:
    """The peer id (`12D3KooW…`) of a node's 32-byte key."""
    return _base58_encode(_ID_PREFIX + public_key_protobuf(node))


def node_of_peer_id(text: str) -> bytes:
    """The node's 32-byte key in a peer id."""
    data = _base58_decode(text) if len(text) <= _MAX_TEXT else b""
    if not data.startswith(_ID_PREFIX):
        raise ProtocolError("Address", f"{text[:64]!r} is not the peer id of a node", "it begins with 12D3KooW")
    return node_of_protobuf(data[2:])


@dataclass(frozen=True)
class NodeAddress:
    """Where a node listens on TCP, and the key that it must prove."""

    host: str
    port: int
    node: bytes

    @classmethod
    def parse(cls, text: str) -> NodeAddress:
        """Reads `/ip4/HOST/tcp/PORT/p2p/ID`. This client speaks TCP alone."""
        found = _ADDRESS.fullmatch(text.strip())
        if found is None or found[4] is None or not 0 < int(found[3]) < 65536:
            raise ProtocolError("Address", f"{text[:200]!r} is no TCP address of a node", "write /ip4/HOST/tcp/PORT/p2p/ID")
        return cls(found[2], int(found[3]), node_of_peer_id(found[4]))

    def __str__(self) -> str:
        kind = "ip6" if ":" in self.host else "ip4" if self.host.replace(".", "").isdigit() else "dns"
        return f"/{kind}/{self.host}/tcp/{self.port}/p2p/{peer_id_of_node(self.node)}"
