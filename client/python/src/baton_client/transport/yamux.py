"""Yamux: many substreams on one connection.

Source: HashiCorp's specification of Yamux, version 0, as libp2p uses it. The window of each stream stays at its first
256 KiB; bytes count against it until the reader takes them, so that a peer can make this side hold no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import Awaitable, Callable

from ..errors import ProtocolError, TransportError
from ..limits import MAX_INBOUND_STREAMS, MAX_YAMUX_FRAME, PROBE_INTERVAL_S, PROBE_TIMEOUT_S, YAMUX_WINDOW
from .noise import NoiseChannel

PROTOCOL = "/yamux/1.0.0"
_HEADER = struct.Struct(">BBHII")
_DATA, _WINDOW_UPDATE, _PING, _GO_AWAY = range(4)
_SYN, _ACK, _FIN, _RST = 1, 2, 4, 8
# Sent in one frame, so that streams take turns.
_PIECE = 16 * 1024


class YamuxStream:
    """One substream. Reading ends with TransportError when the peer ended its side."""

    def __init__(self, muxer: Yamux, number: int) -> None:
        self._muxer = muxer
        self.number = number
        self._buffer = bytearray()
        self._unacknowledged = 0
        self._receive_window = YAMUX_WINDOW
        self._send_window = YAMUX_WINDOW
        self._changed = asyncio.Event()
        self._error: TransportError | None = None
        self._peer_done = False
        self._done = False

    # Called by the muxer's reader.

    def on_data(self, data: bytes) -> None:
        if len(data) > self._receive_window:
            raise ProtocolError("Transport", "the peer sends beyond its window", "")
        self._receive_window -= len(data)
        self._buffer += data
        self._changed.set()

    def on_window(self, more: int) -> None:
        self._send_window = min(self._send_window + more, 2**32)
        self._changed.set()

    def on_end(self, error: TransportError | None) -> None:
        self._peer_done = True
        self._error = self._error or error
        self._changed.set()

    # Called by the stream's owner.

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def read_exactly(self, count: int) -> bytes:
        """The next bytes; TransportError if the stream ends before."""
        out = bytearray()
        while len(out) < count:
            if self._buffer:
                piece = self._buffer[: count - len(out)]
                del self._buffer[: len(piece)]
                out += piece
                self._unacknowledged += len(piece)
                if self._unacknowledged >= YAMUX_WINDOW // 2 and not self._peer_done:
                    more, self._unacknowledged = self._unacknowledged, 0
                    self._receive_window += more
                    await self._muxer.send(_WINDOW_UPDATE, 0, self.number, more)
            elif self._peer_done:
                raise self._error or TransportError("the peer ended the stream")
            else:
                await self._wait()
        return bytes(out)

    async def write(self, data: bytes) -> None:
        """Sends bytes as the peer's window allows."""
        at = 0
        while at < len(data):
            if self._error is not None:
                raise self._error
            if self._done:
                raise TransportError("this side of the stream is closed")
            room = min(self._send_window, _PIECE)
            if room == 0:
                await self._wait()
                continue
            piece = data[at : at + room]
            self._send_window -= len(piece)
            at += len(piece)
            await self._muxer.send(_DATA, 0, self.number, len(piece), piece)

    async def finish(self) -> None:
        """Ends this side."""
        if not self._done:
            self._done = True
            await self._muxer.send(_DATA, _FIN, self.number, 0)

    async def reset(self) -> None:
        """Ends both sides at once and forgets the stream."""
        self.on_end(TransportError("the stream was closed here"))
        self._muxer.forget(self.number)
        with contextlib.suppress(TransportError):
            await self._muxer.send(_DATA, _RST, self.number, 0)


class Yamux:
    """The dialer's side of a multiplexed connection: its own streams have odd numbers."""

    def __init__(self, channel: NoiseChannel, on_stream: Callable[[YamuxStream], Awaitable[None]]) -> None:
        self._channel = channel
        self._on_stream = on_stream
        self._streams: dict[int, YamuxStream] = {}
        self._inbound: set[asyncio.Task[None]] = set()
        self._next = 1
        self.closed: TransportError | None = None
        self._heard = time.monotonic()

    async def send(self, kind: int, flags: int, number: int, length: int, data: bytes = b"") -> None:
        """Sends one frame."""
        if self.closed is not None:
            raise self.closed
        await self._channel.write(_HEADER.pack(0, kind, flags, number, length) + data)

    async def open(self) -> YamuxStream:
        """Opens a substream."""
        number, self._next = self._next, self._next + 2
        stream = YamuxStream(self, number)
        self._streams[number] = stream
        await self.send(_WINDOW_UPDATE, _SYN, number, 0)
        return stream

    def forget(self, number: int) -> None:
        """Drops a stream; later frames of it are ignored."""
        self._streams.pop(number, None)

    async def probe(self) -> None:
        """Pings the peer until the connection ends, and ends it when nothing was heard for PROBE_TIMEOUT_S."""
        number = 0
        while self.closed is None:
            await asyncio.sleep(PROBE_INTERVAL_S)
            if time.monotonic() - self._heard > PROBE_TIMEOUT_S:
                self.end(TransportError(f"nothing was heard from the node for {PROBE_TIMEOUT_S:g} s"))
                return
            try:
                await self.send(_PING, _SYN, 0, number)
            except TransportError as error:
                self.end(error)
                return
            number = (number + 1) % 2**32

    async def run(self) -> None:
        """Reads frames until the connection ends; every stream then ends with its error."""
        try:
            while True:
                await self._frame()
        except asyncio.CancelledError:
            self.end(TransportError("the connection was closed here", ""))
            raise
        except TransportError as error:
            self.end(error)
        except ProtocolError as error:
            self.end(TransportError(f"the peer breaks the protocol: {error.cause}", ""))

    def end(self, error: TransportError) -> None:
        """Ends every stream with `error`."""
        self.closed = self.closed or error
        for stream in list(self._streams.values()):
            stream.on_end(error)
        self._streams.clear()
        for task in self._inbound:
            task.cancel()
        self._channel.close()

    async def _frame(self) -> None:
        version, kind, flags, number, length = _HEADER.unpack(await self._channel.read_exactly(_HEADER.size))
        if version != 0 or kind > _GO_AWAY:
            raise ProtocolError("Transport", "an unknown Yamux frame", "")
        self._heard = time.monotonic()
        if kind == _PING:
            if flags & _SYN:
                await self.send(_PING, _ACK, 0, length)
            return
        if kind == _GO_AWAY:
            raise TransportError("the peer closes the connection", "try again")
        if kind == _DATA and length > MAX_YAMUX_FRAME:
            raise ProtocolError("Transport", f"a Yamux frame of {length} bytes", "")
        data = await self._channel.read_exactly(length) if kind == _DATA else b""
        if flags & _SYN and not self._begin(number):
            await self.send(_WINDOW_UPDATE, _RST, number, 0)
            return
        stream = self._streams.get(number)
        if flags & _SYN:
            await self.send(_WINDOW_UPDATE, _ACK, number, 0)
        if stream is None:
            return
        if kind == _DATA and data:
            stream.on_data(data)
        elif kind == _WINDOW_UPDATE:
            stream.on_window(length)
        if flags & _RST:
            stream.on_end(TransportError("the peer reset the stream"))
            self.forget(number)
        elif flags & _FIN:
            stream.on_end(None)

    def _begin(self, number: int) -> bool:
        """Takes a stream of the peer's, if there is room for it."""
        if number == 0 or number % 2 == 1 or number in self._streams or len(self._inbound) >= MAX_INBOUND_STREAMS:
            return False
        stream = YamuxStream(self, number)
        self._streams[number] = stream
        task = asyncio.ensure_future(self._serve(stream))
        self._inbound.add(task)
        task.add_done_callback(self._inbound.discard)
        return True

    async def _serve(self, stream: YamuxStream) -> None:
        try:
            await self._on_stream(stream)
        except (TransportError, ProtocolError):
            pass
        finally:
            await stream.reset()
