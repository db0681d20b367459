"""Signed objects: rules, signatures and hashes of docs/PROTOCOL.md, sections 3, 5 and 6.

A signed object is checked in the order of section 3: version, size and form, rule, signature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from . import limits
from .codec import decode, encode, u32le, u64le
from .crypto import ed25519_sign, ed25519_verify, kdf, labelled
from .errors import VerificationError
from .objects import (
    BranchPoint,
    Engine,
    ExportStatement,
    Link,
    NodeRecord,
    ProgressNote,
    Receipt,
    SignedBytes,
    TurnAuth,
    TurnNote,
)

T = TypeVar("T")


def genesis_hash(session_key: bytes, n_shards: int, branch: BranchPoint | None) -> bytes:
    """The hash that the first link continues."""
    start = kdf("session-id", session_key) + session_key + n_shards.to_bytes(2, "little")
    if branch is not None:
        start += branch.session_id + branch.link_hash
    return kdf("genesis", start)


def _own_session(value: Any) -> None:
    if kdf("session-id", value.session_key) != value.session_id:
        raise VerificationError("SessionIdMismatch", "the session id is not of this key")


def _link_rule(link: Link) -> None:
    if link.index >= limits.SEGMENT_TURNS or link.index > link.seq or link.segment > link.seq:
        raise VerificationError("BadSequence", f"link {link.seq} has no such place")
    if (link.prev_blob is None) != (link.seq == 0):
        raise VerificationError("BadGenesis", "only the first link has no blob before it")


def _auth_rule(auth: TurnAuth) -> None:
    if auth.suite != limits.SUITE:
        raise VerificationError("UnsupportedVersion", f"cipher suite {auth.suite}")
    _own_session(auth)
    if auth.seq == 0:
        start = genesis_hash(auth.session_key, auth.n_shards, auth.branch)
        if auth.prev_blob is not None or auth.prev_link != start:
            raise VerificationError("BadGenesis", "authorisation of the first turn")
    if auth.max_output_tokens > limits.MAX_OUTPUT_TOKENS:
        raise VerificationError("QuotaExceeded", "output tokens of an authorisation")


def _receipt_rule(receipt: Receipt) -> None:
    if receipt.engine is Engine.EMBEDDING:
        raise VerificationError("NonCanonical", "a receipt of an engine that serves no turns")


def _node_rule(record: NodeRecord) -> None:
    lists = (record.addresses, record.models, record.versions)
    texts = [*record.addresses, *(offer.name for offer in record.models), record.software]
    counts = len(record.keys) <= limits.MAX_RECORD_KEYS and all(len(items) <= limits.MAX_RECORD_LIST for items in lists)
    if not counts or any(len(text.encode()) > limits.MAX_RECORD_TEXT_BYTES for text in texts):
        raise VerificationError("FrameTooLarge", "a node record exceeds its limits")
    windows = all(0 <= key.until_ms - key.from_ms <= limits.MAX_EXCHANGE_KEY_LIFETIME_MS for key in record.keys)
    if not windows or record.issued_ms >= record.expires_ms:
        raise VerificationError("KxExpired", "times of a node record")


def _no_rule(_: Any) -> None:
    return None


@dataclass(frozen=True)
class SignedKind(Generic[T]):
    """How objects of one type are signed: label, field of the signer, code of a bad signature, size, rule and version."""

    kind: type[T]
    label: str
    signer: str
    code: str
    rule: Callable[[T], None] = _no_rule
    limit: int = limits.MAX_SIGNED_BYTES
    version: int = limits.VERSION

    def open(self, signed: SignedBytes) -> T:
        """The object, after the checks of section 3."""
        name = self.kind.__name__
        if not signed.body:
            raise VerificationError("NonCanonical", f"{name} without a body")
        if signed.body[0] != self.version:
            raise VerificationError("UnsupportedVersion", f"{name} of version {signed.body[0]}")
        value = decode(self.kind, signed.body, self.limit)
        self.rule(value)
        if not ed25519_verify(getattr(value, self.signer), labelled(self.label, signed.body), signed.signature):
            raise VerificationError(self.code, f"signature of a {name}")
        return value

    def open_encoded(self, data: bytes) -> tuple[T, SignedBytes]:
        """The object of an encoded SignedBytes."""
        signed = decode(SignedBytes, data, self.limit + limits.SIGNED_OVERHEAD)
        return self.open(signed), signed

    def sign(self, seed: bytes, value: T) -> SignedBytes:
        """The object, signed with an Ed25519 seed."""
        body = encode(value)
        return SignedBytes(body, ed25519_sign(seed, labelled(self.label, body)))


LINK = SignedKind(Link, "link", "author", "BadNodeSignature", _link_rule)
TURN_AUTH = SignedKind(TurnAuth, "turn-auth", "session_key", "BadSignature", _auth_rule, version=limits.TURN_AUTH_VERSION)
RECEIPT = SignedKind(Receipt, "receipt", "node", "BadNodeSignature", _receipt_rule, version=limits.RECEIPT_VERSION)
PROGRESS_NOTE = SignedKind(ProgressNote, "progress", "node", "BadNodeSignature")
TURN_NOTE = SignedKind(TurnNote, "turn-note", "session_key", "BadSignature", _own_session)
EXPORT_STATEMENT = SignedKind(ExportStatement, "export-head", "session_key", "BadSignature", _own_session)
NODE_RECORD = SignedKind(
    NodeRecord, "node-record", "node", "BadNodeSignature", _node_rule, version=limits.NODE_RECORD_VERSION
)


def signed_hash(name: str, signed: SignedBytes) -> bytes:
    """The hash of a signed object over body and signature: `link-hash`, `auth-hash`, `receipt-hash`."""
    return kdf(name, signed.body, signed.signature)


def identity(session_id: bytes, segment: int, seq: int, turn_id: bytes, attempt: int, author: bytes) -> bytes:
    """The 100 bytes that name one attempt at a record (section 5)."""
    return session_id + u64le(segment) + u64le(seq) + turn_id + u32le(attempt) + author


def identity_of(link: Link) -> bytes:
    """The identity of a link's record."""
    return identity(link.session_id, link.segment, link.seq, link.turn_id, link.attempt, link.author)
