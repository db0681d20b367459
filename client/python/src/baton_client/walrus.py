"""Walrus blob IDs (RedStuff, encoding RS2), for networks of few shards.

With n shards and f = ⌊(n-1)/3⌋, a matrix of n-2f rows and n-f columns holds the blob, row by row and zero padded, in
symbols of an even number of bytes. A Reed-Solomon code over GF(2^16) extends rows and columns to n. Each row and column
gets a Merkle root, and the ID is a hash over the tree of these roots.

Sources: Walrus's specification of its encoding, and for the code Lin, Chung and Han ("Novel Polynomial Basis and Its
Application to Reed-Solomon Erasure Codes", 2014) as the library reed-solomon-simd applies it. Over the affine subspaces
that they use, Lagrange's coefficients are those of a Cauchy matrix: K / (x ⊕ y), with one K for each pair of subspaces.

Plain Python computes some hundred thousand products a second, so `blob_id` declines work beyond MAX_PRODUCTS.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable

from .errors import ProtocolError
from .limits import MAX_SHARDS, MIN_SHARDS

# Products in GF(2^16) for one ID: half a second. A blob of 64 KiB at 10 shards needs 0.4 million.
MAX_PRODUCTS = 1_500_000
_MAX_SYMBOL = 65_534
_RS2 = 1
_FIELD = 65536
_POLYNOMIAL = 0x1002D
# The Cantor basis in which elements are written: the number i is the element that is the sum of the basis at i's bits.
_BASIS = (
    0x0001, 0xACCA, 0x3C0E, 0x163E, 0xC582, 0xED2E, 0x914C, 0x4012,
    0x6C98, 0x10D8, 0x6A72, 0xB900, 0xFDB8, 0xFB34, 0xFF38, 0x991E,
)  # fmt: skip
# Bytes of a chunk in which elements are split into low and high halves.
_CHUNK = 64

Symbol = list[int]


@functools.cache
def _tables() -> tuple[list[int], list[int]]:
    """Logarithms of all numbers but 0, and exponentials over two periods, in the Cantor basis."""
    standard = [0] * _FIELD
    for bit, element in enumerate(_BASIS):
        width = 1 << bit
        for low in range(width):
            standard[width + low] = standard[low] ^ element
    number_of = [0] * _FIELD
    for number, element in enumerate(standard):
        number_of[element] = number
    logarithm, exponential = [0] * _FIELD, [0] * (2 * _FIELD)
    element = 1
    for power in range(_FIELD - 1):
        number = number_of[element]
        logarithm[number] = power
        exponential[power] = exponential[power + _FIELD - 1] = number
        element <<= 1
        if element >= _FIELD:
            element ^= _POLYNOMIAL
    return logarithm, exponential


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _is_high_rate(originals: int, repairs: int) -> bool:
    """Whether the code places repairs before the originals."""
    before, after = _power_of_two(originals), _power_of_two(repairs)
    return before > after or (before == after and originals <= repairs)


@functools.cache
def _coefficients(originals: int, repairs: int) -> list[list[int]]:
    """Logarithms of the coefficients by which each repair sums the originals."""
    logarithm, _ = _tables()
    high = _is_high_rate(originals, repairs)
    size = _power_of_two(repairs if high else originals)
    constant = sum(logarithm[v] for v in range(1, size))

    def scale(coset: int) -> int:
        return sum(logarithm[coset ^ v] for v in range(size)) - constant

    rows: list[list[int]] = []
    for repair in range(repairs):
        row: list[int] = []
        for original in range(originals):
            # High rate: repairs stand at 0.., originals from `size` on. Low rate: the other way round.
            x, y = (repair, size + original) if high else (size + repair, original)
            coset = (x ^ y) & ~(size - 1)
            row.append((scale(coset) - logarithm[x ^ y]) % (_FIELD - 1))
        rows.append(row)
    return rows


def _extend(symbols: list[Symbol], total: int) -> list[Symbol]:
    """The symbols and their repairs, `total` in all."""
    logarithm, exponential = _tables()
    width = len(symbols[0])
    logs = [[logarithm[element] if element else -1 for element in symbol] for symbol in symbols]
    out = list(symbols)
    for row in _coefficients(len(symbols), total - len(symbols)):
        repair = [0] * width
        for factor, symbol in zip(row, logs, strict=True):
            for at, value in enumerate(symbol):
                if value >= 0:
                    repair[at] ^= exponential[value + factor]
        out.append(repair)
    return out


def _elements(symbol: bytes) -> Symbol:
    """The elements of a symbol: in each 64 bytes the low halves come first."""
    out: Symbol = []
    for at in range(0, len(symbol), _CHUNK):
        chunk = symbol[at : at + _CHUNK]
        half = len(chunk) // 2
        out += [low | high << 8 for low, high in zip(chunk[:half], chunk[half:], strict=True)]
    return out


def _symbol_bytes(symbol: Symbol) -> bytes:
    out = bytearray()
    for at in range(0, len(symbol), _CHUNK // 2):
        part = symbol[at : at + _CHUNK // 2]
        out += bytes(element & 0xFF for element in part) + bytes(element >> 8 for element in part)
    return bytes(out)


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def _root(leaves: list[bytes]) -> bytes:
    """The root of a Merkle tree over hashed leaves; an odd last node is paired with zeros."""
    level = leaves
    while len(level) > 1:
        if len(level) % 2:
            level = [*level, bytes(32)]
        level = [_hash(b"\x01" + level[at] + level[at + 1]) for at in range(0, len(level), 2)]
    return level[0]


def can_compute(length: int, n_shards: int) -> bool:
    """Whether `blob_id` computes the ID of a blob of this length."""
    rows, columns, symbol = shape(length, n_shards)
    products = (rows * columns * (n_shards - columns) + n_shards * rows * (n_shards - rows)) * symbol // 2
    return symbol <= _MAX_SYMBOL and products <= MAX_PRODUCTS


def shape(length: int, n_shards: int) -> tuple[int, int, int]:
    """Rows and columns of the source matrix, and bytes of a symbol."""
    if not MIN_SHARDS <= n_shards <= MAX_SHARDS:
        raise ProtocolError("BadGenesis", f"{n_shards} shards")
    faulty = (n_shards - 1) // 3
    rows, columns = n_shards - 2 * faulty, n_shards - faulty
    symbol = max(-(-length // (rows * columns)), 1)
    return rows, columns, symbol + symbol % 2


def blob_id(blob: bytes, n_shards: int) -> bytes:
    """The Walrus ID of a blob. BlobTooLarge where `can_compute` is false."""
    if not can_compute(len(blob), n_shards):
        raise ProtocolError("BlobTooLarge", f"the ID of {len(blob)} bytes at {n_shards} shards is not computed here")
    rows, columns, size = shape(len(blob), n_shards)
    padded = blob.ljust(rows * columns * size, b"\0")
    source = [
        [_elements(padded[(row * columns + column) * size :][:size]) for column in range(columns)] for row in range(rows)
    ]
    wide = [_extend(row, n_shards) for row in source]
    whole = [_extend([row[column] for row in wide], n_shards) for column in range(n_shards)]
    # Leaves by column and row; a row is a primary sliver, a column a secondary one.
    leaf: Callable[[Symbol], bytes] = lambda symbol: _hash(b"\x00" + _symbol_bytes(symbol))  # noqa: E731
    leaves = [[leaf(symbol) for symbol in column] for column in whole]
    primary = [_root([column[row] for column in leaves]) for row in range(n_shards)]
    secondary = [_root(column) for column in leaves]
    pairs = [_hash(b"\x00" + primary[at] + secondary[n_shards - 1 - at]) for at in range(n_shards)]
    return _hash(bytes([_RS2]) + len(blob).to_bytes(8, "little") + _root(pairs))
