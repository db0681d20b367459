"""What a turn reports while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import BatonError


@dataclass(frozen=True)
class AttemptStarted:
    """An order leaves for a node."""

    attempt: int
    node: str
    model: str


@dataclass(frozen=True)
class QueuePosition:
    """Turns ahead at the node; 0 when none are left."""

    ahead: int


@dataclass(frozen=True)
class TextPiece:
    """A piece of the answer, to be shown at once."""

    text: str


@dataclass(frozen=True)
class Takeover:
    """A node failed in the middle of an answer. `kept_tokens` of it are handed to the next node.

    With 0 kept tokens the next attempt begins anew: a program that showed text removes it.
    """

    node: str
    cause: BatonError
    kept_tokens: int


@dataclass(frozen=True)
class Finished:
    """The turn `seq` (from 0) is verified and journaled."""

    seq: int


Event = AttemptStarted | QueuePosition | TextPiece | Takeover | Finished
