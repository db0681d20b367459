"""Frames of a turn's substream: docs/PROTOCOL.md, section 9."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .codec import I32, U16, U32, U64, Bytes, ExchangeKey, Id32, Text, variants
from .objects import Finish, MemoryItem, SignedBytes


@dataclass(frozen=True)
class Committed:
    """The end of a turn: what the node signed."""

    link: SignedBytes
    receipt: SignedBytes
    blob_digest: Id32
    blob_length: U32
    finish: Finish


@dataclass(frozen=True)
class Stored:
    """The node says that the store has the blob."""

    blob_id: Id32
    end_epoch: U64 | None


@dataclass(frozen=True)
class Pending:
    """The node still tries to store the blob."""


@dataclass(frozen=True)
class GivenUp:
    """The node could not store the blob."""


StoreState = Stored | Pending | GivenUp
STORE_STATE = variants(Stored, Pending, GivenUp)


@dataclass(frozen=True)
class TurnRequest:
    """A turn's request: order, sealed payload, and blobs that the store may lack."""

    auth: SignedBytes
    payload: Bytes
    inline: list[Bytes]
    memory: SignedBytes | None


@dataclass(frozen=True)
class TurnFrame:
    """Orders a turn."""

    request: TurnRequest


@dataclass(frozen=True)
class RelayRecall:
    """The recall of memory for a turn: a signed hint, and the node's exchange key."""

    hint: SignedBytes
    node_key: ExchangeKey


@dataclass(frozen=True)
class RelayFrame:
    """Orders a turn through a relayer (not used by this client)."""

    request: TurnRequest
    recall: RelayRecall | None


@dataclass(frozen=True)
class NoteFrame:
    """Accepts a turn, gives an attempt up, or asks for its state."""

    note: SignedBytes


@dataclass(frozen=True)
class FetchBlobFrame:
    """Asks the author of a blob for its bytes."""

    digest: Id32
    proof: Id32


@dataclass(frozen=True)
class NodeRecordFrame:
    """Asks a node for its record."""


CLIENT_FRAME = variants(TurnFrame, RelayFrame, NoteFrame, FetchBlobFrame, NodeRecordFrame)


@dataclass(frozen=True)
class Accepted:
    """The turn begins; the nonce makes the reply key."""

    nonce: Id32


@dataclass(frozen=True)
class Chunk:
    """One sealed reply event."""

    sealed: Bytes


@dataclass(frozen=True)
class Refused:
    """The request is refused."""

    code: U16
    retry_after_ms: U32


@dataclass(frozen=True)
class StatusAccepted:
    """The turn runs."""


@dataclass(frozen=True)
class StatusSealed:
    """The turn is sealed."""

    committed: Committed
    store: Annotated[StoreState, STORE_STATE]


@dataclass(frozen=True)
class StatusAborted:
    """The attempt was aborted."""


TurnStatus = StatusAccepted | StatusSealed | StatusAborted


@dataclass(frozen=True)
class StatusReply:
    """Answers a status request."""

    status: Annotated[TurnStatus, variants(StatusAccepted, StatusSealed, StatusAborted)]


@dataclass(frozen=True)
class Done:
    """An ack or abort was taken."""


@dataclass(frozen=True)
class BlobReply:
    """The bytes of a blob."""

    blob: Bytes


@dataclass(frozen=True)
class NodeRecordReply:
    """A node's record."""

    record: SignedBytes


@dataclass(frozen=True)
class MemoryReply:
    """Items that a relayer added (not used by this client)."""

    items: list[MemoryItem]


NodeFrame = Accepted | Chunk | Refused | StatusReply | Done | BlobReply | NodeRecordReply | MemoryReply
NODE_FRAME = variants(Accepted, Chunk, Refused, StatusReply, Done, BlobReply, NodeRecordReply, MemoryReply)


@dataclass(frozen=True)
class Waiting:
    """Turns ahead in the node's queue."""

    ahead: U32


@dataclass(frozen=True)
class Logprob:
    """A token with the logarithm of its probability, in thousandths, and its bytes."""

    token: U32
    millinats: I32
    bytes: Bytes


@dataclass(frozen=True)
class Tokens:
    """A piece of the answer. `index` is the position of its first token."""

    index: U32
    ids: list[U32]
    text: Text
    logprobs: list[Logprob]


@dataclass(frozen=True)
class Progress:
    """A progress note."""

    note: SignedBytes


@dataclass(frozen=True)
class StoreEvent:
    """The result of storing; the last event of a committed turn."""

    state: Annotated[StoreState, STORE_STATE]


@dataclass(frozen=True)
class Failed:
    """The turn failed, and nothing was signed. `reason` is the node's own text."""

    code: U16
    retry_after_ms: U32
    reason: Text


@dataclass(frozen=True)
class CommittedEvent:
    """The turn is signed."""

    committed: Committed


@dataclass(frozen=True)
class Checked:
    """The receipt of a request for checks alone, which this client never makes."""

    receipt: SignedBytes


ReplyEvent = Waiting | Tokens | Progress | CommittedEvent | StoreEvent | Failed | Checked
REPLY_EVENT = variants(Waiting, Tokens, Progress, CommittedEvent, StoreEvent, Failed, Checked)
