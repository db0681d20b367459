"""The encoding of docs/PROTOCOL.md, section 3: one encoding of each value, little-endian, of fixed width.

A type's layout follows from the annotations of its dataclass. `decode` refuses a value over its size limit before it
reads, and then any byte that is not the one encoding.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import struct
import types
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import ProtocolError
from .limits import MAX_OBJECT_BYTES

T = TypeVar("T")


class Reader:
    """The unread rest of an encoding."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        """Unread bytes."""
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        """The next bytes; NonCanonical if there are fewer."""
        if count > self.left:
            raise ProtocolError("NonCanonical", "bytes are missing")
        piece = self.data[self.at : self.at + count]
        self.at += count
        return piece


@dataclasses.dataclass(frozen=True)
class Layout(Generic[T]):
    """How one type is read and written."""

    read: Callable[[Reader], T]
    write: Callable[[bytearray, T], None]


def _integer(form: str) -> Layout[int]:
    packer = struct.Struct("<" + form)

    def read(reader: Reader) -> int:
        value: int = packer.unpack(reader.take(packer.size))[0]
        return value

    def write(out: bytearray, value: int) -> None:
        out += packer.pack(value)

    return Layout(read, write)


def _float() -> Layout[float]:
    def read(reader: Reader) -> float:
        value: float = struct.unpack("<f", reader.take(4))[0]
        return value

    def write(out: bytearray, value: float) -> None:
        out += struct.pack("<f", value)

    return Layout(read, write)


def _tag(reader: Reader) -> bool:
    byte = reader.take(1)[0]
    if byte > 1:
        raise ProtocolError("NonCanonical", "a bool or option is neither 0 nor 1")
    return byte == 1


def _bool() -> Layout[bool]:
    def write(out: bytearray, value: bool) -> None:
        out.append(1 if value else 0)

    return Layout(_tag, write)


def fixed(size: int) -> Layout[bytes]:
    """Bytes of a fixed number, without a length."""

    def write(out: bytearray, value: bytes) -> None:
        if len(value) != size:
            raise ValueError(f"{len(value)} bytes where {size} belong")
        out += value

    return Layout(lambda reader: reader.take(size), write)


_U64 = struct.Struct("<Q")


def _count(reader: Reader) -> int:
    """A length that the rest of the encoding can hold: each element has at least one byte."""
    count: int = _U64.unpack(reader.take(8))[0]
    if count > reader.left:
        raise ProtocolError("NonCanonical", "a length exceeds the bytes that follow")
    return count


def _bytes() -> Layout[bytes]:
    def write(out: bytearray, value: bytes) -> None:
        out += _U64.pack(len(value))
        out += value

    return Layout(lambda reader: reader.take(_count(reader)), write)


def _text() -> Layout[str]:
    def read(reader: Reader) -> str:
        try:
            return reader.take(_count(reader)).decode("utf-8")
        except UnicodeDecodeError:
            raise ProtocolError("NonCanonical", "text is not UTF-8") from None

    def write(out: bytearray, value: str) -> None:
        data = value.encode("utf-8")
        out += _U64.pack(len(data))
        out += data

    return Layout(read, write)


U8 = Annotated[int, _integer("B")]
U16 = Annotated[int, _integer("H")]
U32 = Annotated[int, _integer("I")]
U64 = Annotated[int, _integer("Q")]
I32 = Annotated[int, _integer("i")]
F32 = Annotated[float, _float()]
Bool = Annotated[bool, _bool()]
Id32 = Annotated[bytes, fixed(32)]
Id16 = Annotated[bytes, fixed(16)]
ExchangeKey = Annotated[bytes, fixed(1216)]
Signature = Annotated[bytes, fixed(64)]
Bytes = Annotated[bytes, _bytes()]
Text = Annotated[str, _text()]


def _option(inner: Layout[Any]) -> Layout[Any]:
    def write(out: bytearray, value: Any) -> None:
        out.append(0 if value is None else 1)
        if value is not None:
            inner.write(out, value)

    return Layout(lambda reader: inner.read(reader) if _tag(reader) else None, write)


def _list(inner: Layout[Any]) -> Layout[list[Any]]:
    def write(out: bytearray, value: list[Any]) -> None:
        out += _U64.pack(len(value))
        for item in value:
            inner.write(out, item)

    return Layout(lambda reader: [inner.read(reader) for _ in range(_count(reader))], write)


_INDEX = struct.Struct("<I")


def _enum(kind: type[enum.IntEnum]) -> Layout[Any]:
    def read(reader: Reader) -> enum.IntEnum:
        index = _INDEX.unpack(reader.take(4))[0]
        try:
            return kind(index)
        except ValueError:
            raise ProtocolError("NonCanonical", f"unknown {kind.__name__} {index}") from None

    def write(out: bytearray, value: enum.IntEnum) -> None:
        out += _INDEX.pack(value)

    return Layout(read, write)


def variants(*kinds: type[Any]) -> Layout[Any]:
    """An enum whose variants carry fields: `kinds` in the order of their indexes."""

    def read(reader: Reader) -> Any:
        index = _INDEX.unpack(reader.take(4))[0]
        if index >= len(kinds):
            raise ProtocolError("NonCanonical", f"unknown variant {index}")
        return layout_of(kinds[index]).read(reader)

    def write(out: bytearray, value: Any) -> None:
        out += _INDEX.pack(kinds.index(type(value)))
        layout_of(type(value)).write(out, value)

    return Layout(read, write)


@functools.cache
def _struct(kind: type[Any]) -> Layout[Any]:
    hints = get_type_hints(kind, include_extras=True)
    fields = [(field.name, layout_of(hints[field.name])) for field in dataclasses.fields(kind)]

    def read(reader: Reader) -> Any:
        return kind(**{name: inner.read(reader) for name, inner in fields})

    def write(out: bytearray, value: Any) -> None:
        for name, inner in fields:
            inner.write(out, getattr(value, name))

    return Layout(read, write)


def layout_of(hint: Any) -> Layout[Any]:
    """The layout of an annotation: a marked type, an option, a list, an enum or a dataclass."""
    origin = get_origin(hint)
    if origin is Annotated:
        marks: list[Layout[Any]] = [mark for mark in get_args(hint)[1:] if isinstance(mark, Layout)]
        return marks[0]
    if origin in (Union, types.UnionType):
        inner = [part for part in get_args(hint) if part is not type(None)]
        if len(inner) != 1:
            raise TypeError(f"{hint} has no layout")
        return _option(layout_of(inner[0]))
    if origin is list:
        return _list(layout_of(get_args(hint)[0]))
    if isinstance(hint, type) and issubclass(hint, enum.IntEnum):
        return _enum(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _struct(hint)
    raise TypeError(f"{hint} has no layout")


def decode_layout(layout: Layout[T], data: bytes, limit: int = MAX_OBJECT_BYTES) -> T:
    """The value that `data` encodes. FrameTooLarge over `limit`, NonCanonical for any other form."""
    if len(data) > limit:
        raise ProtocolError("FrameTooLarge", f"{len(data)} bytes, at most {limit}")
    reader = Reader(data)
    value = layout.read(reader)
    if reader.left:
        raise ProtocolError("NonCanonical", f"{reader.left} trailing bytes")
    return value


def decode(kind: type[T], data: bytes, limit: int = MAX_OBJECT_BYTES) -> T:
    """As `decode_layout`, for a dataclass or enum."""
    layout: Layout[T] = layout_of(kind)
    return decode_layout(layout, data, limit)


def encode(value: Any, layout: Layout[Any] | None = None) -> bytes:
    """The one encoding of `value`, by its own type or by `layout`."""
    out = bytearray()
    (layout or layout_of(type(value))).write(out, value)
    return bytes(out)


def u64le(number: int) -> bytes:
    """8 bytes, little-endian."""
    return _U64.pack(number)


def u32le(number: int) -> bytes:
    """4 bytes, little-endian."""
    return _INDEX.pack(number)


# --- Padding --------------------------------------------------------------------------------------------------------


def bucket(length: int, smallest: int) -> int:
    """Bytes of the padded form of `length` bytes: a power of two, and at least `smallest`."""
    size = smallest
    while size < length + 4:
        size *= 2
    return size


def pad(data: bytes, smallest: int, largest: int, code: str = "FrameTooLarge") -> bytes:
    """`pad` of section 3; an error with `code` above `largest`."""
    size = bucket(len(data), smallest)
    if size > largest:
        raise ProtocolError(code, f"padded form of {len(data)} bytes exceeds {largest}")
    return u32le(len(data)) + data + bytes(size - len(data) - 4)


def _padded_length(padded: bytes) -> int:
    if len(padded) < 4:
        raise ProtocolError("NonCanonical", "padding without a length")
    length: int = _INDEX.unpack(padded[:4])[0]
    if length + 4 > len(padded):
        raise ProtocolError("NonCanonical", "padding shorter than its length")
    return length


def unpad(padded: bytes, smallest: int) -> bytes:
    """Reverses `pad`, and refuses any other form."""
    length = _padded_length(padded)
    if len(padded) != bucket(length, smallest) or any(padded[4 + length :]):
        raise ProtocolError("NonCanonical", "padding in another form")
    return padded[4 : 4 + length]


def pad_block(data: bytes, block: int) -> bytes:
    """`pad_block` of section 3."""
    return u32le(len(data)) + data + bytes(-(len(data) + 4) % block)


def unpad_block(padded: bytes, block: int) -> bytes:
    """Reverses `pad_block`, and refuses any other form."""
    length = _padded_length(padded)
    if len(padded) != length + 4 + (-(length + 4) % block) or any(padded[4 + length :]):
        raise ProtocolError("NonCanonical", "padding in another form")
    return padded[4 : 4 + length]
