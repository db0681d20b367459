"""The objects of docs/PROTOCOL.md, sections 6 and 7.

Fields stand in the order of the page: a dataclass is its own layout (`codec`). `signed` has their rules and signatures.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from dataclasses import dataclass
from typing import Annotated

from . import limits
from .codec import F32, U8, U16, U32, U64, Bytes, ExchangeKey, Id16, Id32, Signature, Text, variants
from .errors import ProtocolError


@dataclass(frozen=True)
class SignedBytes:
    """A signed body as it travels. The body itself is signed and hashed, never a new encoding of it."""

    body: Bytes
    signature: Signature


@dataclass(frozen=True)
class BlobRef:
    """A blob by its Walrus ID, BLAKE3 and length."""

    blob_id: Id32
    digest: Id32
    length: U32


@dataclass(frozen=True)
class BranchPoint:
    """The last link that a branch shares with its parent session."""

    session_id: Id32
    link_hash: Id32


@dataclass(frozen=True)
class Link:
    """The signed entry of a turn in the chain."""

    version: U8
    session_id: Id32
    seq: U64
    segment: U64
    index: U8
    turn_id: Id16
    attempt: U32
    prev_link: Id32
    prev_blob: BlobRef | None
    record_hash: Id32
    record_length: U32
    auth_hash: Id32
    receipt_hash: Id32
    author: Id32
    time_ms: U64


class Role(enum.IntEnum):
    """Speaker of a message."""

    SYSTEM = 0
    USER = 1
    ASSISTANT = 2
    TOOL = 3


class RecordKind(enum.IntEnum):
    """Kind of a record."""

    TURN = 0
    EDIT = 1
    SUMMARY = 2
    TOMBSTONE = 3


class Finish(enum.IntEnum):
    """Why an answer ended."""

    STOP = 0
    STOP_STRING = 1
    LENGTH = 2
    TOOL_CALL = 3
    NONE = 4


@dataclass(frozen=True)
class Message:
    """A message of a record or a payload."""

    role: Role
    name: Text | None
    call_id: Text | None
    text: Text

    @classmethod
    def user(cls, text: str) -> Message:
        """A user's message."""
        return cls(Role.USER, None, None, text)

    @classmethod
    def system(cls, text: str) -> Message:
        """A pinned system message."""
        return cls(Role.SYSTEM, None, None, text)

    def __post_init__(self) -> None:
        names = (self.name or "", self.call_id or "")
        if len(self.text.encode()) > limits.MAX_MESSAGE_BYTES or any(len(n.encode()) > limits.MAX_NAME_BYTES for n in names):
            raise ProtocolError("FrameTooLarge", "a message exceeds its limit")


@dataclass(frozen=True)
class Record:
    """The text of a turn."""

    version: U8
    kind: RecordKind
    supersedes_from: U64 | None
    messages: list[Message]
    finish: Finish


@dataclass(frozen=True)
class ResumePrefix:
    """The beginning of an answer, made by another node or attempt."""

    author: Id32
    attempt: U32
    token_count: U32
    tokens_hash: Id32


@dataclass(frozen=True)
class CheckOrder:
    """An earlier answer that a node checks."""

    receipt: Id32
    probe: U32


@dataclass(frozen=True)
class TurnAuth:
    """The client's order for one attempt, to one node."""

    version: U8
    suite: U8
    session_id: Id32
    session_key: Id32
    device_id: Id16
    seq: U64
    turn_id: Id16
    attempt: U32
    prev_link: Id32
    prev_blob: BlobRef | None
    n_shards: U16
    branch: BranchPoint | None
    audience: Id32
    audience_key: Id32
    payload_hash: Id32
    model: Id32
    sampling: Id32
    max_output_tokens: U32
    max_price: U64
    memory_from: Id32 | None
    memory_tokens: U32
    grant_hash: Id32
    resume: ResumePrefix | None
    checks: list[CheckOrder]
    issued_ms: U64
    expires_ms: U64


@dataclass(frozen=True)
class ReadBlob:
    """A blob that a node may read."""

    segment: U64
    blob: BlobRef | None
    author: Id32 | None
    key: Id32


@dataclass(frozen=True)
class ReadRecord:
    """A record that a node may read."""

    seq: U64
    key: Id32


@dataclass(frozen=True)
class HeadGrant:
    """The place of a head record in one period, with its locate key, for a node that is to find the blobs."""

    index_key: Id32
    key: Id32


@dataclass(frozen=True)
class Grant:
    """Keys for one window and one turn. `head` is there exactly if a blob has no location."""

    segment: U64
    index: U8
    record_key: Id32
    blob_key: Id32
    blobs: list[ReadBlob]
    records: list[ReadRecord]
    head: HeadGrant | None


@dataclass(frozen=True)
class TokenBias:
    """A change to the likelihood of a token of the model's vocabulary: added to its logit."""

    token: U32
    bias: F32


@dataclass(frozen=True)
class Sampling:
    """Sampling settings. The defaults are greedy: the same prompt and model give the same answer."""

    temperature: F32 = 0.0
    top_p: F32 = 1.0
    top_k: U32 = 0
    min_p: F32 = 0.0
    repetition_penalty: F32 = 1.0
    seed: U64 = 0
    stop: list[Text] = dataclasses.field(default_factory=list)
    json_schema: Id32 | None = None
    logprobs: U8 = 0
    presence_penalty: F32 = 0.0
    frequency_penalty: F32 = 0.0
    token_biases: list[TokenBias] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        numbers = 0 <= self.temperature <= 5 and 0 < self.top_p <= 1 and 0 < self.repetition_penalty <= 10
        numbers = numbers and 0 <= self.min_p <= 1 and abs(self.presence_penalty) <= 2 and abs(self.frequency_penalty) <= 2
        tokens = [bias.token for bias in self.token_biases]
        numbers = numbers and len(tokens) <= limits.MAX_TOKEN_BIASES and tokens == sorted(set(tokens))
        numbers = numbers and all(abs(bias.bias) <= 100 for bias in self.token_biases)
        stops = len(self.stop) <= limits.MAX_STOP_STRINGS and all(
            0 < len(stop.encode()) <= limits.MAX_STOP_BYTES for stop in self.stop
        )
        # A minus zero would be a second encoding of zero.
        zeros = [self.temperature, self.min_p, self.presence_penalty, self.frequency_penalty]
        zeros += [bias.bias for bias in self.token_biases]
        numbers = numbers and not any(value == 0 and math.copysign(1, value) < 0 for value in zeros)
        if not numbers or not stops or self.logprobs > limits.MAX_LOGPROBS:
            raise ProtocolError("PayloadRejected", "sampling settings out of range")


@dataclass(frozen=True)
class StoragePolicy:
    """How long the store keeps a turn's blob, in epochs."""

    open_epochs: U32
    closed_epochs: U32
    send_object_to: Id32 | None


@dataclass(frozen=True)
class CheckInput:
    """The data of an answer that a node checks."""

    receipt: SignedBytes
    sampling: Sampling
    json_schema: Text | None
    tokens: list[U32]


@dataclass(frozen=True)
class Payload:
    """The sealed part of a turn's request."""

    version: U8
    grant: Grant
    kind: RecordKind
    supersedes_from: U64 | None
    system: list[Message]
    messages: list[Message]
    sampling: Sampling
    json_schema: Text | None
    storage: StoragePolicy
    resume_tokens: list[U32]
    checks: list[CheckInput]


class Engine(enum.IntEnum):
    """How a node makes answers."""

    NATIVE = 0
    PROXIED = 1
    ECHO = 2
    EMBEDDING = 3
    LIBRARY = 4


@dataclass(frozen=True)
class TokenCounts:
    """Tokens of a turn."""

    input: U32
    output: U32
    memory: U32
    resumed: U32


@dataclass(frozen=True)
class Commitments:
    """Keyed hashes of a turn's texts."""

    input: Id32
    output: Id32
    memory: Id32 | None


@dataclass(frozen=True)
class Timings:
    """Times of a turn at its node."""

    queue_ms: U32
    prefill_ms: U32
    first_token_ms: U32
    decode_ms: U32


@dataclass(frozen=True)
class Same:
    """The model gives this answer."""

    logits: Id32


@dataclass(frozen=True)
class Different:
    """The model gives another answer, from this token on."""

    token: U32
    logits: Id32


class CheckGap(enum.IntEnum):
    """Why an answer cannot be compared."""

    WINDOW = 0
    MEMORY = 1
    MODEL = 2
    REFUSED = 3


@dataclass(frozen=True)
class NotComparable:
    """The answer cannot be compared."""

    gap: CheckGap


@dataclass(frozen=True)
class AnswerCheck:
    """A node's statement on an earlier answer."""

    order: CheckOrder
    verdict: Annotated[Same | Different | NotComparable, variants(Same, Different, NotComparable)]


@dataclass(frozen=True)
class Receipt:
    """A node's claims about a turn."""

    version: U8
    session_id: Id32
    seq: U64
    turn_id: Id16
    attempt: U32
    auth_hash: Id32
    node: Id32
    model: Id32
    engine: Engine
    sampling: Id32
    seed: U64
    window_from: U64
    tokens: TokenCounts
    memory_items: U16
    commitments: Commitments
    running_hash: Id32
    checks: list[AnswerCheck]
    timings: Timings
    price: U64
    time_ms: U64


@dataclass(frozen=True)
class ProgressNote:
    """A node's signed note every 32 tokens."""

    version: U8
    node: Id32
    auth_hash: Id32
    token_count: U32
    running_hash: Id32
    time_ms: U64


@dataclass(frozen=True)
class Ack:
    """Accepts a turn."""

    link_hash: Id32
    blob_digest: Id32
    receipt_hash: Id32


@dataclass(frozen=True)
class Abort:
    """Gives up the attempt."""


@dataclass(frozen=True)
class StatusRequest:
    """Asks for the outcome of the attempt."""


@dataclass(frozen=True)
class TurnNote:
    """The client's note about one attempt, to its node."""

    version: U8
    session_id: Id32
    session_key: Id32
    seq: U64
    turn_id: Id16
    attempt: U32
    node: Id32
    time_ms: U64
    kind: Annotated[Ack | Abort | StatusRequest, variants(Ack, Abort, StatusRequest)]


@dataclass(frozen=True)
class ExportStatement:
    """The client's statement of an export's end (section 13)."""

    version: U8
    session_id: Id32
    session_key: Id32
    seq: U64
    link_hash: Id32


@dataclass(frozen=True)
class KeyWindow:
    """A hybrid exchange key with its times."""

    key: ExchangeKey
    from_ms: U64
    until_ms: U64


@dataclass(frozen=True)
class ModelOffer:
    """A model that a node serves. Prices are for a thousand tokens."""

    model: Id32
    name: Text
    engine: Engine
    context_tokens: U32
    input_price: U64
    output_price: U64


@dataclass(frozen=True)
class NodeLimits:
    """Limits of a node."""

    slots: U32
    queue: U32
    turns_per_minute: U32
    max_output_tokens: U32


@dataclass(frozen=True)
class StorageOffer:
    """A node's terms of storage."""

    price: U64
    max_epochs: U32
    unknown_max_epochs: U32


@dataclass(frozen=True)
class NodeRecord:
    """A node's description of itself."""

    version: U8
    node: Id32
    sequence: U64
    addresses: list[Text]
    keys: list[KeyWindow]
    models: list[ModelOffer]
    limits: NodeLimits
    storage: StorageOffer
    versions: list[U8]
    software: Text
    issued_ms: U64
    expires_ms: U64


@dataclass(frozen=True)
class Entry:
    """A turn in a segment: its link and sealed record, verbatim."""

    link: SignedBytes
    record: Bytes


@dataclass(frozen=True)
class Segment:
    """Up to 16 turns that share a blob."""

    version: U8
    session_id: Id32
    segment: U64
    entries: list[Entry]


@dataclass(frozen=True)
class MemoryItem:
    """A fact that a relayer adds."""

    text: Text
    source: Text
    time_ms: U64
