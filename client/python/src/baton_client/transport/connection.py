"""A connection to one node: dial, prove both keys, and open substreams.

The node closes a connection whose peer answers no pings, so pings are answered; it also asks who this is (identify).
"""

from __future__ import annotations

import asyncio

from ..crypto import Secret, ed25519_public
from ..errors import TransportError
from ..limits import CONNECT_TIMEOUT_S
from ..peerid import NodeAddress, peer_id_of_node, public_key_protobuf
from . import noise, yamux
from .wire import accept, field, select, varint

_PING = "/ipfs/ping/1.0.0"
_IDENTIFY = "/ipfs/id/1.0.0"
_PING_BYTES = 32
_AGENT = b"baton-client-python/0.1.0"


class Connection:
    """An open connection. `node` is the key that the peer proved."""

    def __init__(self, address: NodeAddress, identity: Secret) -> None:
        self.address = address
        self.node = address.node
        self._identity = identity
        self._muxer: yamux.Yamux | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def dial(cls, address: NodeAddress, identity: Secret, timeout_s: float = CONNECT_TIMEOUT_S) -> Connection:
        """Connects to `address`, and refuses a peer that is not the node that the address names."""
        connection = cls(address, identity)
        try:
            async with asyncio.timeout(timeout_s):
                await connection._open()
        except TimeoutError:
            raise TransportError(f"no connection to {address.host}:{address.port} within {timeout_s:g} s") from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise TransportError(f"no connection to {address.host}:{address.port}: {error}") from None
        return connection

    async def _open(self) -> None:
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
        channel = noise.NoiseChannel(reader, writer)
        try:

            async def write(data: bytes) -> None:
                writer.write(data)
                await writer.drain()

            await select(reader.readexactly, write, noise.PROTOCOL)
            node = await channel.handshake(self._identity.expose())
            if node != self.address.node:
                raise TransportError(
                    f"the peer is {peer_id_of_node(node)}, not {peer_id_of_node(self.address.node)}",
                    "another node is at this address now: name it anew",
                )
            await select(channel.read_exactly, channel.write, yamux.PROTOCOL)
        except BaseException:
            channel.close()
            raise
        self._muxer = yamux.Yamux(channel, self._serve)
        reading, probing = asyncio.ensure_future(self._muxer.run()), asyncio.ensure_future(self._muxer.probe())
        reading.add_done_callback(lambda _: probing.cancel())
        self._tasks = [reading, probing]

    @property
    def is_open(self) -> bool:
        """Whether the connection is still usable, as far as is known here."""
        return self._muxer is not None and self._muxer.closed is None

    async def stream(self, protocol: str) -> yamux.YamuxStream:
        """Opens a substream with `protocol`."""
        if self._muxer is None:
            raise TransportError("the connection is not open")
        stream = await self._muxer.open()
        try:
            await select(stream.read_exactly, stream.write, protocol)
        except BaseException:
            await stream.reset()
            raise
        return stream

    async def _serve(self, stream: yamux.YamuxStream) -> None:
        """Answers a substream of the node's: ping and identify; every other protocol is declined."""
        protocol = await accept(stream.read_exactly, stream.write, frozenset((_PING, _IDENTIFY)))
        if protocol == _IDENTIFY:
            message = self._identify()
            await stream.write(varint(len(message)) + message)
            await stream.finish()
            return
        while True:
            await stream.write(await stream.read_exactly(_PING_BYTES))

    def _identify(self) -> bytes:
        """libp2p's Identify message: key (1), protocols (3), protocol version (5), agent (6)."""
        key = public_key_protobuf(ed25519_public(self._identity.expose()))
        protocols = b"".join(field(3, name.encode()) for name in (_PING, _IDENTIFY))
        return field(1, key) + protocols + field(5, b"/baton/1") + field(6, _AGENT)

    async def close(self) -> None:
        """Closes the connection; its streams end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
