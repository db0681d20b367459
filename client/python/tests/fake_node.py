"""A node, a store and a network in this process, which misbehave on purpose. No sockets: streams are byte queues."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from baton_client import frames, limits, mlkem, objects, walrus
from baton_client.chain import make_blob, open_record, record_hash, seal_record
from baton_client.codec import decode, decode_layout, encode, pad_block, u32le, unpad_block
from baton_client.crypto import chacha_open, chacha_seal, digest, ed25519_public, kdf, x25519, x25519_public
from baton_client.errors import StoreError, TransportError
from baton_client.network import Connections, Network, now_ms
from baton_client.objects import (
    Abort,
    Ack,
    Commitments,
    Engine,
    Entry,
    Finish,
    KeyWindow,
    Link,
    Message,
    ModelOffer,
    NodeLimits,
    NodeRecord,
    Payload,
    ProgressNote,
    Receipt,
    Record,
    RecordKind,
    Role,
    Segment,
    StorageOffer,
    Timings,
    TokenCounts,
)
from baton_client.peerid import NodeAddress
from baton_client.receipts import TokenHash, commit_input, commit_output
from baton_client.sealing import EXCHANGE_BYTES, binding, key_id, turn_secret
from baton_client.signed import LINK, PROGRESS_NOTE, RECEIPT, TURN_AUTH, TURN_NOTE, identity, signed_hash

MODEL = bytes([7]) * 32


class FakeStream:
    """One end of a substream in memory. `feed` is the other end's way to write."""

    def __init__(self, on_bytes: Callable[[bytes], None]) -> None:
        self._on_bytes = on_bytes
        self._buffer = bytearray()
        self._changed = asyncio.Event()
        self._ended = False

    def feed(self, data: bytes) -> None:
        self._buffer += data
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def read_exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            if self._ended:
                raise TransportError("the peer ended the stream")
            self._changed.clear()
            await self._changed.wait()
        piece = bytes(self._buffer[:count])
        del self._buffer[:count]
        return piece

    async def write(self, data: bytes) -> None:
        self._on_bytes(data)

    async def reset(self) -> None:
        self.end()


@dataclass
class Behaviour:
    """How the node answers. Hooks change an object before it is signed or sent."""

    answer: str = "a b c d e f"
    # After so many tokens the node dies: its stream ends, and it answers nothing more.
    dies_after: int | None = None
    # After the turn was sealed, its reply breaks before `Committed`.
    loses_reply: bool = False
    refuses: int | None = None
    fails: int | None = None
    link: Callable[[Link], Link] = lambda link: link
    receipt: Callable[[Receipt], Receipt] = lambda receipt: receipt
    committed: Callable[[frames.Committed], frames.Committed] = lambda committed: committed
    note: Callable[[ProgressNote], ProgressNote] = lambda note: note
    # The record that is sealed may have another answer than the one that was sent.
    sealed_answer: str | None = None
    raw_reply: bytes | None = None
    store_state: Any = None
    # The record offers this exchange key in place of the node's own.
    exchange_key: bytes | None = None
    storage_price: int = 0


class FakeNode:
    """A node with an engine that says `answer`, one word a token."""

    def __init__(self, store: FakeStore, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        self.store = store
        self.seed = os.urandom(32)
        self.key = ed25519_public(self.seed)
        self.exchange = os.urandom(32)
        self.dead = False
        self.turns: list[tuple[Any, Payload]] = []
        self.acks: list[bytes] = []
        self.aborts = 0
        self.sealed: dict[tuple[bytes, int], tuple[frames.Committed, bytes]] = {}

    @property
    def record(self) -> NodeRecord:
        now = now_ms()
        return NodeRecord(
            version=limits.NODE_RECORD_VERSION,
            node=self.key,
            sequence=1,
            addresses=[],
            keys=[
                KeyWindow(
                    self.behaviour.exchange_key or mlkem.hybrid_public(self.exchange, x25519_public), now - 1000, now + 10**6
                )
            ],
            models=[ModelOffer(MODEL, "words", Engine.NATIVE, 4096, 1000, 2000)],
            limits=NodeLimits(1, 1, 100, 1000),
            storage=StorageOffer(self.behaviour.storage_price, 5, 5),
            versions=[1],
            software="fake",
            issued_ms=now,
            expires_ms=now + 10**6,
        )

    async def stream(self, _protocol: str) -> FakeStream:
        if self.dead:
            raise TransportError("the node is dead")
        received = bytearray()

        def on_bytes(data: bytes) -> None:
            received.extend(data)
            if len(received) >= 4 and len(received) >= 4 + int.from_bytes(received[:4], "little"):
                self.serve(decode_layout(frames.CLIENT_FRAME, bytes(received[4:])), stream)

        stream = FakeStream(on_bytes)
        return stream

    def send(self, stream: FakeStream, frame: Any) -> None:
        body = encode(frame, frames.NODE_FRAME)
        stream.feed(u32le(len(body)) + body)

    def serve(self, frame: Any, stream: FakeStream) -> None:
        if isinstance(frame, frames.TurnFrame):
            self.turn(frame.request, stream)
        elif isinstance(frame, frames.NoteFrame):
            self.note(frame.note, stream)
        elif isinstance(frame, frames.FetchBlobFrame):
            self.send(
                stream, frames.BlobReply(next(blob for _, blob in self.sealed.values() if digest(blob) == frame.digest))
            )

    def note(self, note: objects.SignedBytes, stream: FakeStream) -> None:
        kind = TURN_NOTE.open(note).kind
        if isinstance(kind, Ack):
            self.acks.append(note.body)
            self.send(stream, frames.Done())
        elif isinstance(kind, Abort):
            self.aborts += 1
            self.send(stream, frames.Done())
        elif self.sealed:
            state = frames.Stored(bytes(32), None)
            self.send(stream, frames.StatusReply(frames.StatusSealed(list(self.sealed.values())[-1][0], state)))
        else:
            self.send(stream, frames.Refused(40, 0))

    def turn(self, request: frames.TurnRequest, stream: FakeStream) -> None:
        how = self.behaviour
        if how.refuses is not None:
            self.send(stream, frames.Refused(how.refuses, 0))
            return
        auth = TURN_AUTH.open(request.auth)
        auth_hash = signed_hash("auth-hash", request.auth)
        bound = binding(auth.session_id, auth.seq, auth.turn_id, auth.attempt, auth.session_key, self.key)
        opening, sealed = request.payload[:EXCHANGE_BYTES], request.payload[EXCHANGE_BYTES:]
        key = mlkem.hybrid_public(self.exchange, x25519_public)
        assert auth.audience_key == key_id(key)
        share = mlkem.hybrid_decapsulate(self.exchange, opening, x25519, x25519_public)
        secret = turn_secret(share, opening, key, bound)
        opened = chacha_open(kdf("turn-payload", secret), bytes(12), sealed, "payload")
        payload = decode(Payload, unpad_block(opened, limits.PAYLOAD_BLOCK))
        assert (auth.version, payload.version) == (4, 5)
        assert payload.grant.head is None and all(read.blob is not None for read in payload.grant.blobs)
        assert kdf("grant-hash", encode(payload.grant)) == auth.grant_hash
        self.turns.append((auth, payload))
        nonce = os.urandom(32)
        key = kdf("turn-reply", secret, nonce, auth_hash)
        self.send(stream, frames.Accepted(nonce))
        counter = 0

        def event(value: Any, last: bool = False) -> None:
            nonlocal counter
            text = pad_block(encode(value, frames.REPLY_EVENT), limits.REPLY_BLOCK)
            sealed = chacha_seal(key, bytes(3) + counter.to_bytes(8, "big") + bytes([last]), text)
            counter += 1
            self.send(stream, frames.Chunk(sealed))

        if how.raw_reply is not None:
            stream.feed(how.raw_reply)
            stream.end()
            return
        if how.fails is not None:
            event(frames.Failed(how.fails, 0, ""), last=True)
            return
        commitment = kdf("commitment", payload.grant.record_key)
        words = [f" {word}" if index else word for index, word in enumerate(how.answer.split(" "))]
        begin = len(payload.resume_tokens)
        tokens = TokenHash(commitment, auth_hash, payload.resume_tokens)
        for index in range(begin, len(words)):
            if how.dies_after is not None and index >= how.dies_after:
                self.dead = True
                stream.end()
                return
            event(frames.Tokens(index, [index], words[index], []))
            tokens.push(index)
            if tokens.count % limits.PROGRESS_TOKENS == 0:
                note = how.note(ProgressNote(1, self.key, auth_hash, tokens.count, tokens.value, now_ms()))
                event(frames.Progress(PROGRESS_NOTE.sign(self.seed, note)))
        committed, blob = self.seal(request, auth, auth_hash, payload, tokens)
        self.sealed[(auth.turn_id, auth.attempt)] = (committed, blob)
        if how.loses_reply:
            stream.end()
            return
        event(frames.CommittedEvent(how.committed(committed)))
        state = how.store_state or (frames.Pending() if self.store.broken else frames.Stored(self.store.put(blob), None))
        event(frames.StoreEvent(state), last=True)
        stream.end()

    def seal(
        self, request: Any, auth: Any, auth_hash: bytes, payload: Payload, tokens: TokenHash
    ) -> tuple[frames.Committed, bytes]:
        how, grant = self.behaviour, payload.grant
        answer = how.answer
        commitment = kdf("commitment", grant.record_key)
        window_from = grant.records[0].seq if grant.records else auth.seq
        receipt = how.receipt(
            Receipt(
                version=limits.RECEIPT_VERSION,
                session_id=auth.session_id,
                seq=auth.seq,
                turn_id=auth.turn_id,
                attempt=auth.attempt,
                auth_hash=auth_hash,
                node=self.key,
                model=auth.model,
                engine=Engine.NATIVE,
                sampling=auth.sampling,
                seed=payload.sampling.seed,
                window_from=window_from,
                tokens=TokenCounts(100, tokens.count, 0, len(payload.resume_tokens)),
                memory_items=0,
                commitments=Commitments(
                    commit_input(commitment, payload.system, window_from, payload.messages),
                    commit_output(commitment, answer, Finish.STOP),
                    None,
                ),
                running_hash=tokens.value,
                checks=[],
                timings=Timings(0, 0, 0, 0),
                price=0,
                time_ms=now_ms(),
            )
        )
        signed_receipt = RECEIPT.sign(self.seed, receipt)
        said = Message(Role.ASSISTANT, None, None, how.sealed_answer or answer)
        record = Record(1, RecordKind.TURN, None, [*payload.messages, said], Finish.STOP)
        own = identity(auth.session_id, grant.segment, auth.seq, auth.turn_id, auth.attempt, self.key)
        sealed = seal_record(grant.record_key, own, record)
        entries: list[Entry] = []
        if grant.index:
            before = self.open_before(auth, payload, request)
            entries = before.entries
        link = how.link(
            Link(
                1,
                auth.session_id,
                auth.seq,
                grant.segment,
                grant.index,
                auth.turn_id,
                auth.attempt,
                auth.prev_link,
                auth.prev_blob,
                record_hash(sealed),
                len(sealed),
                auth_hash,
                signed_hash("receipt-hash", signed_receipt),
                self.key,
                now_ms(),
            )
        )
        signed_link = LINK.sign(self.seed, link)
        salt = kdf("blob-salt", grant.record_key)[:16]
        blob = make_blob(auth.session_id, grant.segment, [*entries, Entry(signed_link, sealed)], grant.blob_key, salt)
        return frames.Committed(signed_link, signed_receipt, digest(blob), len(blob), Finish.STOP), blob

    def open_before(self, auth: Any, payload: Payload, request: Any) -> Segment:
        """The segment so far, from the granted blob; its records must open with the granted keys."""
        from baton_client.codec import u64le, unpad
        from baton_client.crypto import unseal

        read = payload.grant.blobs[0]
        assert read.blob == auth.prev_blob
        # A node has the blobs of before in its cache, also while the store is down.
        inline = {digest(blob): blob for blob in request.inline}
        blob = inline.get(read.blob.digest) or self.store.get(read.blob.blob_id)
        assert blob is not None, "the store lacks the blob, and the request does not carry it"
        assert digest(blob) == read.blob.digest
        ad = blob[:16] + auth.session_id + u64le(read.segment)
        segment = decode(Segment, unpad(unseal(read.key, ad, blob[16:], "blob"), limits.MIN_SEGMENT_BUCKET))
        keys = {granted.seq: granted.key for granted in payload.grant.records}
        for entry in segment.entries:
            link = LINK.open(entry.link)
            own = identity(link.session_id, link.segment, link.seq, link.turn_id, link.attempt, link.author)
            open_record(keys[link.seq], own, entry.record, link.seq)
        return segment


@dataclass
class FakeStore:
    """A store in memory. `broken` answers nothing, and `mute` nothing about these places."""

    blobs: dict[bytes, bytes] = field(default_factory=dict)
    heads: dict[bytes, bytes] = field(default_factory=dict)
    puts: int = 0
    broken: bool = False
    mute: set[bytes] = field(default_factory=set)
    asked: list[bytes] = field(default_factory=list)

    def check(self) -> None:
        if self.broken:
            raise StoreError("the store is down")

    def put(self, blob: bytes) -> bytes:
        name = walrus.blob_id(blob, 10)
        self.blobs[name] = blob
        return name

    def get(self, name: bytes) -> bytes | None:
        return self.blobs.get(name)

    async def get_blob(self, name: bytes) -> bytes | None:
        self.check()
        return self.blobs.get(name)

    async def put_blob(self, blob: bytes, _epochs: int) -> bytes:
        self.check()
        self.puts += 1
        return self.put(blob)

    async def get_head(self, key: bytes) -> bytes | None:
        self.check()
        self.asked.append(key)
        if key in self.mute:
            raise StoreError("the index does not answer")
        return self.heads.get(key)

    async def put_head(self, record: bytes) -> None:
        self.check()
        from baton_client import heads

        opened, _ = heads.HEAD_RECORD.open_encoded(record)
        self.heads[kdf("head-index", opened.head_key)] = record


class FakeConnections(Connections):
    """Connections to fake nodes. `reached` has each node that was connected with."""

    def __init__(self, nodes: dict[bytes, FakeNode]) -> None:
        super().__init__()
        self.nodes = nodes
        self.reached: set[bytes] = set()

    async def connect(self, address: NodeAddress) -> Any:
        node = self.nodes[address.node]
        if node.dead:
            raise TransportError("the node is dead")
        self.reached.add(address.node)
        return node

    def is_connected(self, node: bytes) -> bool:
        return not self.nodes[node].dead

    def any_other_open(self, node: bytes) -> bool:
        return any(not other.dead for key, other in self.nodes.items() if key != node)


class FakeNetwork(Network):
    """A network of fake nodes: the first that is not tried yet comes first."""

    def __init__(self, nodes: list[FakeNode]) -> None:
        super().__init__([])
        self.nodes = {node.key: node for node in nodes}
        self.addresses = [NodeAddress("localhost", 1, node.key) for node in nodes]
        self.finding: FakeConnections = FakeConnections(self.nodes)

    def new_connections(self) -> FakeConnections:
        return FakeConnections(self.nodes)

    async def record(self, address: NodeAddress, fresh: bool = False) -> NodeRecord:
        node = self.nodes[address.node]
        if node.dead:
            raise TransportError("the node is dead")
        return node.record
