"""Varints, length-prefixed lines and protobuf fields: the small change of libp2p's protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..errors import ProtocolError, TransportError
from ..limits import MAX_NEGOTIATION_LINE, MAX_NEGOTIATION_LINES

ReadExactly = Callable[[int], Awaitable[bytes]]
Write = Callable[[bytes], Awaitable[None]]

MULTISTREAM = "/multistream/1.0.0"
_MAX_VARINT_BYTES = 5


def varint(number: int) -> bytes:
    """An unsigned varint (multiformats)."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


async def read_varint(read: ReadExactly) -> int:
    """Reads a varint of at most 35 bits."""
    number = 0
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        byte = (await read(1))[0]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
    raise ProtocolError("Transport", "a varint is too long", "")


def line(text: str) -> bytes:
    """A message of multistream-select."""
    data = text.encode() + b"\n"
    return varint(len(data)) + data


async def read_line(read: ReadExactly) -> str:
    """Reads a message of multistream-select."""
    length = await read_varint(read)
    if not 0 < length <= MAX_NEGOTIATION_LINE:
        raise ProtocolError("Transport", f"a protocol's name of {length} bytes", "")
    data = await read(length)
    if not data.endswith(b"\n"):
        raise ProtocolError("Transport", "a protocol's name does not end its line", "")
    return data[:-1].decode("utf-8", "replace")


async def select(read: ReadExactly, write: Write, protocol: str) -> None:
    """Agrees on `protocol` as the dialer (multistream-select 1.0.0)."""
    await write(line(MULTISTREAM) + line(protocol))
    if await read_line(read) != MULTISTREAM:
        raise TransportError("the peer does not speak multistream-select", "is this address a Baton node's TCP address?")
    answer = await read_line(read)
    if answer != protocol:
        raise TransportError(f"the peer does not speak {protocol}", "name a node that serves turns")


async def accept(read: ReadExactly, write: Write, known: frozenset[str]) -> str:
    """Agrees on a protocol as the listener; returns it. Declines unknown names, as often as allowed."""
    if await read_line(read) != MULTISTREAM:
        raise TransportError("the peer does not speak multistream-select", "")
    await write(line(MULTISTREAM))
    for _ in range(MAX_NEGOTIATION_LINES):
        asked = await read_line(read)
        if asked in known:
            await write(line(asked))
            return asked
        await write(line("na"))
    raise TransportError("the peer proposes too many protocols", "")


def field(number: int, data: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def fields(data: bytes) -> dict[int, bytes]:
    """The length-delimited fields of a protobuf message, the last of each number; varints are skipped."""
    found: dict[int, bytes] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise ProtocolError("Transport", "a damaged protobuf message", "")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(data):
        key = number()
        if key & 7 == 0:
            number()
        elif key & 7 == 2:
            length = number()
            if length > len(data) - at:
                raise ProtocolError("Transport", "a damaged protobuf message", "")
            found[key >> 3] = data[at : at + length]
            at += length
        else:
            raise ProtocolError("Transport", "a protobuf message of another form", "")
    return found
