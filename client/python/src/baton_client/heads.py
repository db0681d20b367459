"""Head records: where a session's chain ends. docs/PROTOCOL.md, sections 6 (HeadRecord) and 12.

A change of how a record is found is a change of `index_key`; of how it is sealed, of `make` and `open_record`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from . import limits
from .codec import U8, U16, U32, U64, Bool, Bytes, Id16, Id32, decode, encode, pad_block, unpad_block
from .crypto import kdf, seal, unseal
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
    """What the session id opens: enough to fetch the chain."""

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
class HeadInner:
    """What the root opens."""

    turn_id: Id16
    attempt: U32
    author: Id32
    devices: list[Lease]
    tombstone: Bool


def _rule(record: HeadRecord) -> None:
    if not 0 <= record.expires_ms - record.issued_ms <= limits.MAX_HEAD_LIFETIME_MS:
        raise VerificationError("Expired", "lifetime of a head record")


HEAD_RECORD = SignedKind(HeadRecord, "head", "head_key", "BadSignature", _rule, limit=limits.MAX_HEAD_BYTES)


@dataclass(frozen=True)
class Head:
    """An opened head record."""

    sequence: int
    expires_ms: int
    outer: HeadOuter
    inner: HeadInner


def index_key(head_key: bytes) -> bytes:
    """The key under which an index holds the record of this head key."""
    return kdf("head-index", head_key)


def make(keys: SessionKeys, sequence: int, now_ms: int, lifetime_ms: int, outer: HeadOuter, inner: HeadInner) -> bytes:
    """An encoded, signed head record."""
    if lifetime_ms > limits.MAX_HEAD_LIFETIME_MS or len(outer.blobs) > limits.MAX_READ_BLOBS:
        raise ValueError("a head record beyond its limits")
    record = HeadRecord(
        version=limits.VERSION,
        head_key=keys.head_key,
        sequence=sequence,
        issued_ms=now_ms,
        expires_ms=now_ms + lifetime_ms,
        outer=seal(kdf("head-locate", keys.session_id), keys.head_key, pad_block(encode(outer), limits.HEAD_OUTER_BLOCK)),
        inner=seal(keys.head_inner_key, keys.head_key, pad_block(encode(inner), limits.HEAD_INNER_BLOCK)),
    )
    return encode(keys.sign_head(HEAD_RECORD, record))


def open_record(keys: SessionKeys, encoded: bytes) -> Head:
    """Checks and opens a head record of this session."""
    record, _ = HEAD_RECORD.open_encoded(encoded)
    if record.head_key != keys.head_key:
        raise VerificationError("BadSignature", "the head record is of another session")
    outer_text = unseal(kdf("head-locate", keys.session_id), keys.head_key, record.outer, "a head record's outer part")
    outer = decode(HeadOuter, unpad_block(outer_text, limits.HEAD_OUTER_BLOCK))
    inner_text = unseal(keys.head_inner_key, keys.head_key, record.inner, "a head record's inner part")
    inner = decode(HeadInner, unpad_block(inner_text, limits.HEAD_INNER_BLOCK))
    segments = [entry.segment for entry in outer.blobs]
    if not 1 <= len(segments) <= limits.MAX_READ_BLOBS or any(a <= b for a, b in itertools.pairwise(segments)):
        raise VerificationError("BadSequence", "blobs of a head record")
    if not limits.MIN_SHARDS <= outer.n_shards <= limits.MAX_SHARDS:
        raise VerificationError("BadGenesis", "shard count of a head record")
    if len(inner.devices) > limits.MAX_DEVICES:
        raise VerificationError("FrameTooLarge", "devices of a head record")
    return Head(record.sequence, record.expires_ms, outer, inner)
