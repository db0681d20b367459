"""Records, segments, blobs and the verification of a chain: docs/PROTOCOL.md, sections 6 to 8. No I/O but `read_chain`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from . import limits
from .codec import decode, encode, pad, u64le, unpad
from .crypto import digest, kdf, seal, unseal
from .errors import VerificationError
from .keys import SessionKeys
from .objects import BlobRef, Entry, Link, Record, RecordKind, Role, Segment
from .signed import LINK, identity_of, signed_hash

SEGMENT_OVERHEAD = 49
# Body length, signature and record length of an entry.
ENTRY_OVERHEAD = 8 + 64 + 8


@dataclass(frozen=True)
class ChainTurn:
    """A turn of a verified chain, with the reference of the blob that it completed.

    `blob.blob_id` is signed by the next link; the last turn's is the head's.
    """

    link: Link
    link_hash: bytes
    entry: Entry
    record: Record
    blob: BlobRef

    @property
    def answer(self) -> str:
        """The text of the answer; empty where the record has none."""
        last = self.record.messages[-1] if self.record.messages else None
        return last.text if last is not None and last.role is Role.ASSISTANT else ""


def seal_record(record_key: bytes, identity: bytes, record: Record) -> bytes:
    """A sealed record."""
    padded = pad(encode(record), limits.MIN_RECORD_BUCKET, limits.MAX_RECORD_BUCKET)
    return seal(record_key, identity, padded)


def open_record(record_key: bytes, identity: bytes, sealed: bytes, seq: int) -> Record:
    """Opens a record and checks its version, limits and `supersedes_from`."""
    text = unpad(unseal(record_key, identity, sealed, f"record {seq}"), limits.MIN_RECORD_BUCKET)
    if text[:1] != bytes([limits.VERSION]):
        raise VerificationError("UnsupportedVersion", f"record {seq}")
    record = decode(Record, text, limits.MAX_RECORD_BUCKET)
    if len(record.messages) > limits.MAX_MESSAGES:
        raise VerificationError("FrameTooLarge", f"messages of record {seq}")
    begin = record.supersedes_from
    plain = record.kind is RecordKind.TURN and begin is None
    replaces = record.kind is not RecordKind.TURN and begin is not None and begin < seq
    if not plain and not replaces:
        raise VerificationError("BadSequence", f"supersedes_from of record {seq}")
    return record


def record_hash(sealed: bytes) -> bytes:
    """The hash that a link names."""
    return kdf("record-hash", sealed)


def is_closed(entries: list[Entry]) -> bool:
    """Whether a segment of these entries takes no further turn."""
    length = SEGMENT_OVERHEAD + sum(ENTRY_OVERHEAD + len(e.link.body) + len(e.record) for e in entries)
    return len(entries) >= limits.SEGMENT_TURNS or length >= limits.SEGMENT_BYTES


def _blob_ad(salt: bytes, session_id: bytes, segment: int) -> bytes:
    return salt + session_id + u64le(segment)


def make_blob(session_id: bytes, segment: int, entries: list[Entry], blob_key: bytes, salt: bytes) -> bytes:
    """The blob of a segment."""
    text = encode(Segment(limits.VERSION, session_id, segment, entries))
    padded = pad(text, limits.MIN_SEGMENT_BUCKET, limits.MAX_SEGMENT_BUCKET, "BlobTooLarge")
    return salt + seal(blob_key, _blob_ad(salt, session_id, segment), padded)


def open_blob(blob: bytes, keys: SessionKeys, segment: int) -> Segment:
    """Opens a blob with the session's root. The blob names its own salt."""
    if len(blob) > limits.MAX_BLOB_BYTES:
        raise VerificationError("BlobTooLarge", f"blob of segment {segment}")
    salt = blob[:16]
    key = keys.blob_key(segment, salt)
    padded = unseal(key, _blob_ad(salt, keys.session_id, segment), blob[16:], f"blob of segment {segment}")
    text = unpad(padded, limits.MIN_SEGMENT_BUCKET)
    if text[:1] != bytes([limits.VERSION]):
        raise VerificationError("UnsupportedVersion", f"segment {segment}")
    opened = decode(Segment, text, limits.MAX_SEGMENT_BUCKET)
    if opened.session_id != keys.session_id or opened.segment != segment:
        raise VerificationError("BadSequence", f"a blob of another segment than {segment}")
    if not 1 <= len(opened.entries) <= limits.SEGMENT_TURNS:
        raise VerificationError("BadSequence", f"{len(opened.entries)} entries in segment {segment}")
    return opened


def check_reference(blob: bytes, reference: BlobRef) -> None:
    """Section 8, step 1: length and digest."""
    if len(blob) != reference.length or digest(blob) != reference.digest:
        raise VerificationError("BlobHashMismatch", "a blob's bytes are not those that were signed for")


def verify_links(segment: Segment, genesis: bytes, end_seq: int, end_hash: bytes, at_head: bool) -> list[tuple[Link, bytes]]:
    """Section 8, steps 2 to 6, for one segment. Returns each link with its hash."""
    number, entries = segment.segment, segment.entries
    if not at_head and not is_closed(entries):
        raise VerificationError("BadSequence", f"segment {number} is not closed")
    links: list[tuple[Link, bytes]] = []
    for index, entry in enumerate(entries):
        if index and is_closed(entries[:index]):
            raise VerificationError("BadSequence", "an entry after its segment closed")
        link = LINK.open(entry.link)
        if (link.session_id, link.segment, link.index) != (segment.session_id, number, index):
            raise VerificationError("BadSequence", f"link {link.seq} is not where it says")
        if links:
            if link.seq != links[-1][0].seq + 1:
                raise VerificationError("BadSequence", f"link {link.seq} does not follow")
            if link.prev_link != links[-1][1]:
                raise VerificationError("ChainBroken", f"link {link.seq} does not continue")
        elif (link.seq == 0) != (number == 0):
            raise VerificationError("BadGenesis", f"segment {number} starts at {link.seq}")
        elif link.seq == 0 and link.prev_link != genesis:
            raise VerificationError("BadGenesis", "the first link does not continue the genesis")
        if link.record_hash != record_hash(entry.record) or link.record_length != len(entry.record):
            raise VerificationError("RecordHashMismatch", f"record {link.seq} is not the one its link names")
        links.append((link, signed_hash("link-hash", entry.link)))
    if links[-1][0].seq != end_seq or links[-1][1] != end_hash:
        raise VerificationError("HeadMismatch" if at_head else "ChainBroken", f"segment {number} ends elsewhere")
    return links


def rebuild(keys: SessionKeys, segment: Segment, links: list[Link], count: int) -> bytes:
    """The blob after the first `count` entries of a segment, byte for byte (section 8, step 9)."""
    own = keys.keys_of(links[count - 1])
    return make_blob(segment.session_id, segment.segment, segment.entries[:count], own.blob_key, own.salt)


def verify_segment(
    keys: SessionKeys, blob: bytes, reference: BlobRef, segment: int, genesis: bytes, end: tuple[int, bytes], at_head: bool
) -> list[ChainTurn]:
    """Section 8 for one segment: its links, records, and every blob rebuilt and compared. Oldest first."""
    check_reference(blob, reference)
    opened = open_blob(blob, keys, segment)
    checked = verify_links(opened, genesis, end[0], end[1], at_head)
    links = [link for link, _ in checked]
    turns: list[ChainTurn] = []
    for index, (link, link_hash) in enumerate(checked):
        following = links[index + 1].prev_blob if index + 1 < len(links) else reference
        if following is None:
            raise VerificationError("BadGenesis", f"link {link.seq + 1} names no blob before it")
        check_reference(rebuild(keys, opened, links, index + 1), following)
        record = open_record(keys.keys_of(link).record_key, identity_of(link), opened.entries[index].record, link.seq)
        turns.append(ChainTurn(link, link_hash, opened.entries[index], record, following))
    return turns


async def read_chain(
    keys: SessionKeys,
    genesis: bytes,
    head: tuple[int, bytes],
    segment: int,
    reference: BlobRef,
    fetch: Callable[[BlobRef], Awaitable[bytes]],
) -> list[ChainTurn]:
    """Reads a whole chain back from its head (section 8), and rebuilds every blob byte for byte.

    `fetch` returns the bytes of a blob; they are checked here. Returns the turns, oldest first.
    """
    if segment >= limits.MAX_SESSION_SEGMENTS:
        raise VerificationError("FrameTooLarge", f"a session of {segment + 1} segments")
    parts: list[list[ChainTurn]] = []
    end, at_head = head, True
    while True:
        turns = verify_segment(keys, await fetch(reference), reference, segment, genesis, end, at_head)
        parts.append(turns)
        first = turns[0].link
        if first.seq == 0:
            break
        if first.prev_blob is None:
            raise VerificationError("BadGenesis", f"link {first.seq} names no blob before it")
        end, reference, segment, at_head = (first.seq - 1, first.prev_link), first.prev_blob, segment - 1, False
    return [turn for part in reversed(parts) for turn in part]
