"""The transport against a listener of this file: who it believes, what it refuses, and that it stays within its limits."""

from __future__ import annotations

import asyncio
import os
import struct
import unittest
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

from baton_client.crypto import Secret, ed25519_public, ed25519_sign, x25519, x25519_public
from baton_client.errors import ProtocolError, TransportError
from baton_client.limits import YAMUX_WINDOW
from baton_client.network import Network
from baton_client.peerid import NodeAddress, node_of_peer_id, peer_id_of_node, public_key_protobuf
from baton_client.transport import noise, wire, yamux
from baton_client.transport.connection import Connection

HEADER = struct.Struct(">BBHII")
DATA, WINDOW, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8


class Listener:
    """The listener's side of a connection: Noise by hand, then raw Yamux frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seed: bytes) -> None:
        self.reader, self.writer, self.seed = reader, writer, seed
        self.buffer = b""
        self.client = b""

    async def message(self) -> bytes:
        return await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(2), "big"))

    def send(self, message: bytes) -> None:
        self.writer.write(len(message).to_bytes(2, "big") + message)

    async def plain(self, data: bytes) -> None:
        self.writer.write(data)

    async def handshake(self, signer: bytes | None = None) -> None:
        await wire.accept(self.reader.readexactly, self.plain, frozenset((noise.PROTOCOL,)))
        state, static, ephemeral = noise._Symmetric(), os.urandom(32), os.urandom(32)
        theirs = await self.message()
        state.mix_hash(theirs)
        state.decrypt(b"")
        public = x25519_public(ephemeral)
        state.mix_hash(public)
        state.mix_key(x25519(ephemeral, theirs))
        own = state.encrypt(x25519_public(static))
        state.mix_key(x25519(static, theirs))
        signature = ed25519_sign(signer or self.seed, b"noise-libp2p-static-key:" + x25519_public(static))
        payload = wire.field(1, public_key_protobuf(ed25519_public(self.seed))) + wire.field(2, signature)
        self.send(public + own + state.encrypt(payload))
        last = await self.message()
        their_static = state.decrypt(last[:48])
        state.mix_key(x25519(ephemeral, their_static))
        self.client = wire.fields(state.decrypt(last[48:]))[1]
        self.receive, self.transmit = state.split()

    async def read(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self.buffer += self.receive.decrypt(await self.message())
        piece, self.buffer = self.buffer[:count], self.buffer[count:]
        return piece

    async def write(self, data: bytes) -> None:
        self.send(self.transmit.encrypt(data))

    async def multiplex(self) -> None:
        await self.handshake()
        await wire.accept(self.read, self.write, frozenset((yamux.PROTOCOL,)))

    async def frame(self) -> tuple[int, int, int, int, bytes]:
        _, kind, flags, number, length = HEADER.unpack(await self.read(12))
        return kind, flags, number, length, await self.read(length) if kind == DATA else b""

    async def put(self, kind: int, flags: int, number: int, length: int, data: bytes = b"") -> None:
        await self.write(HEADER.pack(0, kind, flags, number, length) + data)


class Transport(unittest.IsolatedAsyncioTestCase):
    async def serve(self, behave: Callable[[Listener], Awaitable[Any]], node: bytes | None = None) -> NodeAddress:
        seed = os.urandom(32)

        async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await behave(Listener(reader, writer, seed))
            except (asyncio.IncompleteReadError, OSError, TransportError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
        self.addAsyncCleanup(server.wait_closed)
        self.addCleanup(server.close)
        port = server.sockets[0].getsockname()[1]
        return NodeAddress("127.0.0.1", port, node or ed25519_public(seed))

    async def dial(self, address: NodeAddress, timeout_s: float = 5.0) -> Connection:
        connection = await Connection.dial(address, Secret.random(), timeout_s)
        self.addAsyncCleanup(connection.close)
        return connection

    async def refused(self, address: NodeAddress, text: str, timeout_s: float = 5.0) -> None:
        with self.assertRaises(TransportError) as caught:
            await self.dial(address, timeout_s)
        self.assertIn(text, caught.exception.cause)

    async def test_both_sides_prove_their_keys(self) -> None:
        seen: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def behave(listener: Listener) -> None:
            await listener.multiplex()
            seen.set_result(listener.client)
            await listener.read(1)

        connection = await self.dial(await self.serve(behave))
        self.assertTrue(connection.is_open)
        self.assertTrue((await seen).startswith(bytes([8, 1, 0x12, 0x20])))

    async def test_each_session_has_an_identity_of_its_own_and_keeps_it(self) -> None:
        seen: list[bytes] = []

        async def behave(listener: Listener) -> None:
            await listener.multiplex()
            seen.append(listener.client)

        address = await self.serve(behave)
        network = Network([str(address)])
        first, second = network.new_connections(), network.new_connections()
        for connections in (first, second, first):
            connection = await connections.connect(address)
            # The listener closes the connection, so that the next use dials again.
            await asyncio.wait(connection._tasks, timeout=5)
            self.assertFalse(connection.is_open)
        self.assertIsNotNone((await network.status(address)).error, "the listener answers no request")
        self.assertEqual(seen[2], seen[0])
        self.assertEqual(len(set(seen)), 3, "two sessions and the search for nodes")
        for connections in (first, second, network):
            await connections.close()

    async def test_another_node_at_the_address_is_refused(self) -> None:
        await self.refused(
            await self.serve(lambda listener: listener.multiplex(), node=bytes(range(32))), "the peer is 12D3KooW"
        )

    async def test_a_forged_proof_is_refused(self) -> None:
        await self.refused(
            await self.serve(lambda listener: listener.handshake(signer=os.urandom(32))), "does not prove its key"
        )

    async def test_a_silent_or_foreign_peer_is_given_up(self) -> None:
        async def silent(listener: Listener) -> None:
            await listener.reader.read()

        async def http(listener: Listener) -> None:
            listener.writer.write(b"\x10HTTP/1.1 400 No\n" * 3)
            await listener.reader.read(10)

        async def endless(listener: Listener) -> None:
            listener.writer.write(b"\xff" * 100)
            await listener.reader.read(10)

        await self.refused(await self.serve(silent), "within 0.3 s", timeout_s=0.3)
        await self.refused(await self.serve(http), "does not speak multistream-select")
        with self.assertRaises(ProtocolError):
            await self.dial(await self.serve(endless))
        await self.refused(NodeAddress("127.0.0.1", 1, bytes(32)), "no connection to")

    async def test_pings_and_identify_are_answered(self) -> None:
        answers: list[bytes] = []
        done = asyncio.Event()

        async def ask(listener: Listener, number: int, protocol: str, data: bytes) -> bytes:
            text = wire.line(wire.MULTISTREAM) + wire.line(protocol) + data
            await listener.put(DATA, SYN, number, len(text), text)
            out = b""
            while True:
                kind, flags, at, _, piece = await listener.frame()
                if at == number and kind == DATA:
                    out += piece
                if flags & (FIN | RST) or (data and out.endswith(data)):
                    return out

        async def behave(listener: Listener) -> None:
            await listener.multiplex()
            await listener.put(PING, SYN, 0, 77)
            kind, flags, _, value, _ = await listener.frame()
            answers.append(bytes([kind, flags, value]))
            answers.append(await ask(listener, 2, "/ipfs/ping/1.0.0", bytes(range(32))))
            answers.append(await ask(listener, 4, "/ipfs/id/1.0.0", b""))
            done.set()
            await listener.read(1)

        await self.dial(await self.serve(behave))
        await asyncio.wait_for(done.wait(), 5)
        self.assertEqual(answers[0], bytes([PING, ACK, 77]))
        self.assertTrue(answers[1].endswith(bytes(range(32))))
        self.assertIn(b"baton-client-python", answers[2])

    async def broken_by(self, *pieces: tuple[int, int, int, int, bytes], unread_s: float = 0.0) -> str:
        """Opens a stream to a listener that answers it with these frames. Returns why the stream ended."""

        async def behave(listener: Listener) -> None:
            await listener.multiplex()
            _, _, number, _, _ = await listener.frame()
            text = wire.line(wire.MULTISTREAM) + wire.line("/x")
            await listener.put(DATA, ACK, number, len(text), text)
            for kind, flags, at, length, data in pieces:
                await listener.put(kind, flags, at or number, length, data)
            await listener.read(10**6)

        connection = await self.dial(await self.serve(behave))
        stream = await connection.stream("/x")
        await asyncio.sleep(unread_s)
        with self.assertRaises(TransportError) as caught:
            await asyncio.wait_for(stream.read_exactly(10**7), 5)
        return caught.exception.cause

    async def test_a_peer_that_breaks_yamux_loses_its_connection(self) -> None:
        flood = [(DATA, 0, 0, 60000, bytes(60000))] * 5
        self.assertIn("beyond its window", await self.broken_by(*flood, unread_s=0.2))
        self.assertIn("a Yamux frame of", await self.broken_by((DATA, 0, 0, 2**31, b"")))
        self.assertIn("unknown Yamux frame", await self.broken_by((9, 0, 0, 0, b"")))
        self.assertIn("closes the connection", await self.broken_by((GO_AWAY, 0, 0, 0, b"")))
        self.assertIn("reset the stream", await self.broken_by((WINDOW, RST, 0, 0, b"")))
        self.assertIn("ended the stream", await self.broken_by((DATA, FIN, 0, 0, b"")))

    async def test_a_connection_that_falls_silent_is_given_up(self) -> None:
        async def silent(listener: Listener) -> None:
            await listener.multiplex()
            await listener.reader.read()

        with mock.patch.multiple(yamux, PROBE_INTERVAL_S=0.05, PROBE_TIMEOUT_S=0.15):
            connection = await self.dial(await self.serve(silent))
            with self.assertRaises(TransportError) as caught:
                await asyncio.wait_for(connection.stream("/x"), 3)
        self.assertIn("nothing was heard", caught.exception.cause)
        self.assertFalse(connection.is_open)

    async def test_a_stream_carries_more_than_a_window_each_way(self) -> None:
        size = 3 * YAMUX_WINDOW

        async def behave(listener: Listener) -> None:
            await listener.multiplex()
            received, sent, window, greeted = 0, 0, YAMUX_WINDOW, False
            while received < size + len(wire.line(wire.MULTISTREAM) + wire.line("/x")) or sent < size:
                kind, _, number, length, data = await listener.frame()
                if kind == DATA:
                    received += len(data)
                    await listener.put(WINDOW, 0, number, len(data))
                    if not greeted:
                        greeted, text = True, wire.line(wire.MULTISTREAM) + wire.line("/x")
                        await listener.put(DATA, 0, number, len(text), text)
                        window -= len(text)
                elif kind == WINDOW:
                    window += length
                while greeted and sent < size and window:
                    piece = min(window, size - sent, 16000)
                    await listener.put(DATA, 0, number, piece, bytes(piece))
                    sent, window = sent + piece, window - piece
            await listener.read(1)

        connection = await self.dial(await self.serve(behave))
        stream = await connection.stream("/x")
        got, _ = await asyncio.wait_for(asyncio.gather(stream.read_exactly(size), stream.write(bytes(size))), 10)
        self.assertEqual(len(got), size)


class Names(unittest.TestCase):
    def test_peer_ids_and_addresses(self) -> None:
        # The peer id of libp2p's own test vector for an Ed25519 key has this form; a round trip shows the rest.
        node = ed25519_public(bytes(32))
        name = peer_id_of_node(node)
        self.assertTrue(name.startswith("12D3KooW"))
        self.assertEqual(node_of_peer_id(name), node)
        text = f"/ip4/127.0.0.1/tcp/4001/p2p/{name}"
        self.assertEqual(str(NodeAddress.parse(text)), text)
        for wrong in (
            "",
            "/ip4/127.0.0.1/udp/1/quic-v1",
            text[:-1],
            text + "0",
            text.replace("4001", "70000"),
            "/p2p/" + name,
        ):
            with self.assertRaises(ProtocolError, msg=wrong):
                NodeAddress.parse(wrong)


if __name__ == "__main__":
    unittest.main()
