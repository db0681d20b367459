"""A session's journal: an append-only file of sealed entries, flushed before anything depends on them.

Each entry is `u32le(length) ‖ nonce(24) ‖ XChaCha20-Poly1305` under `KDF("client-journal", R)` (docs/PROTOCOL.md,
section 4, "At rest"). A cut last entry, as after a crash, is dropped at the next opening; any other damage is an error.
The form of the entries is this package's own: journals never travel.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from . import limits
from .codec import U8, U16, U32, U64, Bool, Id16, Text, decode_layout, encode, u32le, variants
from .crypto import open_random, seal_random
from .errors import SessionError
from .objects import BlobRef, Entry, Message, ModelOffer, Sampling, SignedBytes

try:
    import fcntl
except ImportError:  # Windows has no flock.
    fcntl = None  # type: ignore[assignment]

JOURNAL_VERSION = 2


@dataclass(frozen=True)
class Opened:
    """The first entry: the form of the journal, the session's shard count and device, and the time."""

    version: U8
    n_shards: U16
    device_id: Id16
    created_ms: U64


@dataclass(frozen=True)
class Queued:
    """A turn that the user sent, before any attempt."""

    turn_id: Id16
    system: list[Message]
    messages: list[Message]
    sampling: Sampling
    model: Text | None
    max_output_tokens: U32
    max_price: U64 | None


@dataclass(frozen=True)
class Ordered:
    """An attempt at a turn: written before the order leaves."""

    auth: SignedBytes
    offer: ModelOffer
    storage_price: U64
    units: U64


@dataclass(frozen=True)
class AcceptedTurn:
    """A turn of the chain. The signed objects are absent for turns that were read back from the store."""

    entry: Entry
    blob: BlobRef
    # Whether `blob.blob_id` is known: by the publisher's answer, or signed by the next link.
    blob_id_known: Bool
    auth: SignedBytes | None
    receipt: SignedBytes | None
    ack: SignedBytes | None
    system: list[Message] | None
    sampling: Sampling | None


@dataclass(frozen=True)
class Confirmed:
    """The store has the blob of the turn: this client read it back."""

    seq: U64
    blob: BlobRef


@dataclass(frozen=True)
class Identified:
    """The Walrus ID of a turn's blob, computed here; the store may lack the blob."""

    seq: U64
    blob: BlobRef


@dataclass(frozen=True)
class Abandoned:
    """The waiting turn was dropped."""

    turn_id: Id16


@dataclass(frozen=True)
class Published:
    """A head record was taken by the index."""

    sequence: U64
    seq: U64


ENTRIES = variants(Opened, Queued, Ordered, AcceptedTurn, Confirmed, Abandoned, Published, Identified)


def private_file(path: Path, data: bytes) -> None:
    """Writes a new file that only its owner can read, flushed, and never over an existing file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def private_folder(path: Path) -> None:
    """Makes a folder that only its owner can enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


class Journal:
    """The open journal of one session; another process that opens it is refused."""

    def __init__(self, path: Path, key: bytes) -> None:
        self._path = path
        self._key = key
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._file: BinaryIO = os.fdopen(descriptor, "r+b")
        try:
            if fcntl is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise SessionError("InUse", "another process has this session open", "close the other process first") from None

    def read(self) -> list[Any]:
        """All entries. A cut last entry is removed from the file."""
        size = os.fstat(self._file.fileno()).st_size
        if size > limits.MAX_JOURNAL_BYTES:
            raise SessionError("FrameTooLarge", f"the journal {self._path} has {size} bytes")
        self._file.seek(0)
        entries: list[Any] = []
        at = 0
        while at < size:
            head = self._file.read(4)
            length = int.from_bytes(head, "little")
            if len(head) < 4 or at + 4 + length > size:
                break
            if length > limits.MAX_ENTRY_BYTES:
                raise SessionError("Damaged", f"the journal {self._path} is damaged at byte {at}", "restore from the words")
            text = open_random(self._key, self._file.read(length), "an entry of the journal")
            entries.append(decode_layout(ENTRIES, text, limits.MAX_ENTRY_BYTES))
            at += 4 + length
        self._file.seek(at)
        self._file.truncate()
        return entries

    def append(self, *entries: Any) -> None:
        """Writes entries after the last one and flushes them to the disk."""
        for entry in entries:
            sealed = seal_random(self._key, encode(entry, ENTRIES))
            if len(sealed) > limits.MAX_ENTRY_BYTES:
                raise SessionError("FrameTooLarge", f"an entry of {len(sealed)} bytes in the journal")
            self._file.write(u32le(len(sealed)) + sealed)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file, which releases its lock."""
        self._file.close()
