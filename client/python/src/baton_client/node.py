"""Requests to a node: docs/PROTOCOL.md, section 9. One substream a request, frames with a `u32le` length."""

from __future__ import annotations

import asyncio
from typing import Any

from .codec import decode_layout, encode, u32le
from .crypto import kdf
from .errors import ProtocolError, RefusedError, TransportError, VerificationError, refusal
from .frames import (
    CLIENT_FRAME,
    NODE_FRAME,
    BlobReply,
    Done,
    FetchBlobFrame,
    NodeFrame,
    NodeRecordFrame,
    NodeRecordReply,
    NoteFrame,
    Refused,
    StatusReply,
    TurnFrame,
    TurnRequest,
    TurnStatus,
)
from .limits import MAX_BLOB_BYTES, MAX_NODE_FRAME_BYTES, MAX_OBJECT_BYTES, REQUEST_TIMEOUT_S
from .objects import NodeRecord, SignedBytes
from .signed import NODE_RECORD
from .transport.connection import Connection
from .transport.yamux import YamuxStream

PROTOCOL = "/baton/turn/2"


async def write_frame(stream: YamuxStream, frame: Any) -> None:
    """Sends one `ClientFrame`."""
    body = encode(frame, CLIENT_FRAME)
    if len(body) > MAX_OBJECT_BYTES:
        raise ProtocolError("FrameTooLarge", f"a request of {len(body)} bytes")
    await stream.write(u32le(len(body)) + body)


async def read_frame(stream: YamuxStream) -> NodeFrame:
    """Reads one `NodeFrame`; a length above the limit is refused before the bytes are read."""
    length = int.from_bytes(await stream.read_exactly(4), "little")
    if length > MAX_NODE_FRAME_BYTES:
        raise ProtocolError("FrameTooLarge", f"a frame of {length} bytes")
    frame: NodeFrame = decode_layout(NODE_FRAME, await stream.read_exactly(length), MAX_NODE_FRAME_BYTES)
    return frame


async def ask(connection: Connection, frame: Any, timeout_s: float = REQUEST_TIMEOUT_S) -> NodeFrame:
    """One request with one answer. Raises RefusedError for a refusal."""
    try:
        async with asyncio.timeout(timeout_s):
            stream = await connection.stream(PROTOCOL)
            try:
                await write_frame(stream, frame)
                answer = await read_frame(stream)
            finally:
                await stream.reset()
    except TimeoutError:
        raise TransportError(f"the node did not answer within {timeout_s:g} s") from None
    if isinstance(answer, Refused):
        raise refusal(answer.code, answer.retry_after_ms)
    return answer


async def node_record(connection: Connection) -> NodeRecord:
    """The node's own record, checked to be of the node that was dialled."""
    answer = await ask(connection, NodeRecordFrame())
    if not isinstance(answer, NodeRecordReply):
        raise ProtocolError("NonCanonical", "no node record came")
    record = NODE_RECORD.open(answer.record)
    if record.node != connection.node:
        raise VerificationError("BadNodeSignature", "the node shows the record of another node")
    return record


async def open_turn(connection: Connection, request: TurnRequest) -> YamuxStream:
    """Sends a turn. The caller reads the frames; this side stays open, since a closed stream ends the turn."""
    stream = await connection.stream(PROTOCOL)
    await write_frame(stream, TurnFrame(request))
    return stream


async def status(connection: Connection, request: SignedBytes, timeout_s: float) -> TurnStatus:
    """The state of an attempt."""
    answer = await ask(connection, NoteFrame(request), timeout_s)
    if not isinstance(answer, StatusReply):
        raise ProtocolError("NonCanonical", "no status came")
    return answer.status


async def acknowledge(connection: Connection, ack: SignedBytes) -> None:
    """Sends an acknowledgement; idempotent."""
    if not isinstance(await ask(connection, NoteFrame(ack)), Done):
        raise ProtocolError("NonCanonical", "the acknowledgement was not confirmed")


async def abort(connection: Connection, request: SignedBytes) -> None:
    """Gives an attempt up."""
    try:
        answer = await ask(connection, NoteFrame(request))
    except RefusedError as error:
        if error.code in ("Aborted", "StatusUnknown"):
            return
        raise
    if not isinstance(answer, Done):
        raise ProtocolError("NonCanonical", "the abort was not confirmed")


async def fetch_blob(connection: Connection, digest: bytes, blob_key: bytes) -> bytes:
    """A blob from its author, for the proof that its key is known."""
    answer = await ask(connection, FetchBlobFrame(digest, kdf("blob-fetch", blob_key, digest)))
    if not isinstance(answer, BlobReply) or len(answer.blob) > MAX_BLOB_BYTES:
        raise ProtocolError("NonCanonical", "no blob came")
    return answer.blob
