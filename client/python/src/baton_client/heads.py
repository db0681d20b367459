"""Head records: where a session's chain ends. docs/PROTOCOL.md, sections 6 (HeadRecord) and 12.

Each period (a week) has keys and a place of its own. The sequence of a record decides its period.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from . import limits
from .codec import U8, U16, U32, U64, Bool, Bytes, Id16, Id32, decode, encode, pad_block, unpad_block
from .crypto import seal, unseal
from .errors import VerificationError
from .keys import SessionKeys
from .objects import BlobRef, BranchPoint
from .signed import SignedKind


@dataclass(frozen=True)
class HeadRecord:
    """The signed announcement of a head, with two sealed parts."""

    version: U8
    head_key: Id32
    sequence: U64
    issued_ms: U64
    expires_ms: U64
    outer: Bytes
    inner: Bytes


@dataclass(frozen=True)
class SegmentBlob:
    """The last blob of a segment."""

    segment: U64
    blob: BlobRef


@dataclass(frozen=True)
class HeadOuter:
    """What the locate key of the period opens: enough to fetch the chain."""

    n_shards: U16
    branch: BranchPoint | None
    seq: U64
    link_hash: Id32
    blobs: list[SegmentBlob]


@dataclass(frozen=True)
class Lease:
    """Until when a device may write."""

    device_id: Id16
    expires_ms: U64


@dataclass(frozen=True)
class BranchHead:
    """The end of a branch: turns that a fork left beside the session's chain."""

    seq: U64
    link_hash: Id32
    turn_id: Id16
    attempt: U32
    author: Id32
    end: SegmentBlob


@dataclass(frozen=True)
class HeadInner:
    """What the root opens."""

    turn_id: Id16
    attempt: U32
    author: Id32
    devices: list[Lease]
    branches: list[BranchHead]
    tombstone: Bool


def _rule(record: HeadRecord) -> None:
    if not 0 <= record.expires_ms - record.issued_ms <= limits.MAX_HEAD_LIFETIME_MS:
        raise VerificationError("Expired", "lifetime of a head record")


HEAD_RECORD = SignedKind(
    HeadRecord, "head", "head_key", "BadSignature", _rule, limits.MAX_HEAD_BYTES, limits.HEAD_RECORD_VERSION
)


@dataclass(frozen=True)
class Head:
    """An opened head record."""

    sequence: int
    expires_ms: int
    outer: HeadOuter
    inner: HeadInner


def period_of(unix_ms: int) -> int:
    """The period of a time, or of a record's sequence: whole weeks since the Unix epoch."""
    return unix_ms // limits.HEAD_PERIOD_MS


def latest_period(now_ms: int) -> int:
    """The newest period in which a record may lie: another device's clock may be ahead."""
    return period_of(now_ms + limits.MAX_CLOCK_SKEW_MS)


def next_sequence(earlier: list[int], now_ms: int) -> int:
    """The sequence after `earlier` ones: the time, or one more than the last.

    A sequence of a period to come is of a clock that was wrong, and does not count: nobody looks there.
    """
    latest = latest_period(now_ms)
    return max([now_ms, *(sequence + 1 for sequence in earlier if period_of(sequence) <= latest)])


def periods(since_ms: int, now_ms: int) -> list[int]:
    """The periods in which a record may lie now, newest first: back to that of `since_ms`, or of the longest life."""
    latest = latest_period(now_ms)
    first = min(period_of(max(since_ms, now_ms - limits.MAX_HEAD_LIFETIME_MS, 0)), latest)
    return list(range(latest, first - 1, -1))[: limits.MAX_HEAD_PERIODS]


async def find(
    ask: Callable[[bytes], Awaitable[bytes | None]], keys: SessionKeys, since_ms: int, now_ms: int
) -> Head | None:
    """The newest record that an index shows, checked and opened; None if it shows none.

    `ask` asks the index for a place. It is asked for two places at once, then for eight at a time, each place once.
    An error of the index counts unless a newer place has a record: the record in the newest place is the newest.
    """
    places = periods(since_ms, now_ms)
    starts = range(limits.FIRST_PLACES, len(places), limits.LATER_PLACES)
    for some in (places[: limits.FIRST_PLACES], *(places[at : at + limits.LATER_PLACES] for at in starts)):
        answers = await asyncio.gather(*(_ask(ask, keys, period) for period in some), return_exceptions=True)
        for period, answer in zip(some, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                return open_record(keys, answer, period)
    return None


async def _ask(ask: Callable[[bytes], Awaitable[bytes | None]], keys: SessionKeys, period: int) -> bytes | None:
    own = keys.head_keys(period)
    own.wipe()
    return await ask(own.index_key)


def make(keys: SessionKeys, sequence: int, now_ms: int, lifetime_ms: int, outer: HeadOuter, inner: HeadInner) -> bytes:
    """An encoded, signed head record."""
    if lifetime_ms > limits.MAX_HEAD_LIFETIME_MS or len(outer.blobs) > limits.MAX_READ_BLOBS:
        raise ValueError("a head record beyond its limits")
    own = keys.head_keys(period_of(sequence))
    record = HeadRecord(
        version=limits.HEAD_RECORD_VERSION,
        head_key=own.head_key,
        sequence=sequence,
        issued_ms=now_ms,
        expires_ms=now_ms + lifetime_ms,
        outer=seal(own.locate_key, own.head_key, pad_block(encode(outer), limits.HEAD_OUTER_BLOCK)),
        inner=seal(keys.head_inner_key, own.head_key, pad_block(encode(inner), limits.HEAD_INNER_BLOCK)),
    )
    signed = own.sign(HEAD_RECORD, record)
    own.wipe()
    return encode(signed)


def open_record(keys: SessionKeys, encoded: bytes, period: int) -> Head:
    """Checks and opens a head record that an index showed in this session's place of a period."""
    record, _ = HEAD_RECORD.open_encoded(encoded)
    own = keys.head_keys(period)
    locate_key = own.locate_key
    own.wipe()
    if record.head_key != own.head_key:
        raise VerificationError("BadSignature", "the head record is of another session or period")
    if period_of(record.sequence) != period:
        raise VerificationError("BadSequence", "the head record's sequence is of another period")
    outer_text = unseal(locate_key, own.head_key, record.outer, "a head record's outer part")
    outer = decode(HeadOuter, unpad_block(outer_text, limits.HEAD_OUTER_BLOCK))
    inner_text = unseal(keys.head_inner_key, own.head_key, record.inner, "a head record's inner part")
    inner = decode(HeadInner, unpad_block(inner_text, limits.HEAD_INNER_BLOCK))
    segments = [entry.segment for entry in outer.blobs]
    if not 1 <= len(segments) <= limits.MAX_READ_BLOBS or any(a <= b for a, b in itertools.pairwise(segments)):
        raise VerificationError("BadSequence", "blobs of a head record")
    if not limits.MIN_SHARDS <= outer.n_shards <= limits.MAX_SHARDS:
        raise VerificationError("BadGenesis", "shard count of a head record")
    if len(inner.devices) > limits.MAX_DEVICES:
        raise VerificationError("FrameTooLarge", "devices of a head record")
    if len(inner.branches) > limits.MAX_BRANCHES:
        raise VerificationError("FrameTooLarge", "branches of a head record")
    return Head(record.sequence, record.expires_ms, outer, inner)
