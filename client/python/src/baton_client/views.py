"""What a session keeps and shows of its turns."""

from __future__ import annotations

from dataclasses import dataclass

from .journal import AcceptedTurn
from .objects import BlobRef, Finish, Link, Message, Receipt


@dataclass
class SessionTurn:
    """A turn of the chain with what the client knows of its blob."""

    link: Link
    link_hash: bytes
    accepted: AcceptedTurn
    confirmed: bool = False

    @property
    def blob(self) -> BlobRef:
        """The blob that this turn completed. Its ID may not be known yet."""
        return self.accepted.blob


@dataclass(frozen=True)
class Turn:
    """A turn as a user sees it. `number` counts from 1."""

    number: int
    node: str
    messages: list[Message]
    text: str
    finish: Finish
    receipt: Receipt | None
    link_hash: bytes
    blob_id: str | None
    time_ms: int

    @property
    def question(self) -> str:
        """The text of the user's last message."""
        return self.messages[-1].text if self.messages else ""


@dataclass(frozen=True)
class VerifyReport:
    """What a verification covered. It raises where something does not hold, so every number is of things that hold."""

    turns: int
    segments: int
    receipts: int
    blobs_rebuilt: int
    blobs_fetched: int
    # Walrus IDs of segments, computed anew; fewer than the segments where `walrus.can_compute` is false.
    blob_ids: int
    head: str
