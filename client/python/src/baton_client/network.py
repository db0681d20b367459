"""The nodes that a client knows: records, connections, and the choice of a node for an attempt.

The client finds nodes under one libp2p identity; each session connects under another (docs/PROTOCOL.md, section 9).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from . import limits
from .crypto import Secret
from .errors import BatonError, SessionError
from .node import node_record
from .objects import Engine, KeyWindow, ModelOffer, NodeRecord
from .peerid import NodeAddress, node_of_peer_id, peer_id_of_node
from .transport.connection import Connection

# A record is asked for again after this time: nodes sign a new one every 10 s, and its keys hold for hours.
_RECORD_AGE_S = 60.0
# A node that failed comes after the others for this time.
_PENALTY_S = 20.0


def now_ms() -> int:
    """Milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class NodeChoice:
    """A node for one attempt, with the offer and the exchange key that the order names."""

    address: NodeAddress
    record: NodeRecord
    offer: ModelOffer
    key: KeyWindow

    @property
    def peer_id(self) -> str:
        """The node's libp2p name."""
        return peer_id_of_node(self.record.node)


@dataclass(frozen=True)
class NodeStatus:
    """A named node as this client sees it: its record, or why there is none."""

    address: NodeAddress
    record: NodeRecord | None
    error: BatonError | None

    @property
    def peer_id(self) -> str:
        """The node's libp2p name."""
        return peer_id_of_node(self.address.node)

    @property
    def models(self) -> list[str]:
        """Names of the models that it serves turns with."""
        return [offer.name for offer in self.record.models if offer.engine is not Engine.EMBEDDING] if self.record else []


def exchange_key(record: NodeRecord, now: int) -> KeyWindow | None:
    """The key to seal to (section 6, NodeRecord): the first whose window holds `now`, else the first within 30 s of it."""
    for slack in (0, limits.MAX_CLOCK_SKEW_MS):
        for key in record.keys:
            if key.from_ms - slack <= now < key.until_ms + slack:
                return key
    return None


def offer_of(record: NodeRecord, model: str | bytes | None) -> ModelOffer | None:
    """The offer of a model by name, hex id or id; without a model, the first one that serves turns."""
    for offer in record.models:
        if offer.engine is Engine.EMBEDDING:
            continue
        if model is None or model in (offer.model, offer.name, offer.model.hex()):
            return offer
    return None


def choice_of(status: NodeStatus, model: str | bytes | None) -> NodeChoice | BatonError:
    """A node with the offer and key for an attempt, or why it cannot serve it."""
    if status.record is None:
        return status.error or SessionError("Transport", "no record")
    offer, key = offer_of(status.record, model), exchange_key(status.record, now_ms())
    name = status.peer_id[-8:]
    if offer is None:
        return SessionError("ModelUnavailable", f"node …{name} serves {', '.join(status.models) or 'no model'}")
    if key is None:
        return SessionError("KxExpired", f"node …{name} has no key for the time of this machine's clock")
    return NodeChoice(status.address, status.record, offer, key)


class Connections:
    """Connections under one libp2p identity. Each node has at most one."""

    def __init__(self) -> None:
        # Random and in memory alone: no request needs an earlier identity, and a kept one would link connections.
        self._identity = Secret.random()
        self._open: dict[bytes, Connection] = {}
        self._locks: dict[bytes, asyncio.Lock] = {}

    def is_connected(self, node: bytes) -> bool:
        """Whether a connection to the node is open."""
        connection = self._open.get(node)
        return connection is not None and connection.is_open

    def any_other_open(self, node: bytes) -> bool:
        """Whether a connection to another node is open."""
        return any(connection.is_open for key, connection in self._open.items() if key != node)

    async def connect(self, address: NodeAddress) -> Connection:
        """The open connection to a node, dialled where there is none."""
        async with self._locks.setdefault(address.node, asyncio.Lock()):
            connection = self._open.get(address.node)
            if connection is None or not connection.is_open:
                connection = await Connection.dial(address, self._identity)
                self._open[address.node] = connection
            return connection

    async def close(self) -> None:
        """Closes the connections and forgets the identity."""
        await asyncio.gather(*(connection.close() for connection in self._open.values()))
        self._open.clear()
        self._identity.wipe()


class Network:
    """The named nodes. `finding` has the connections that ask for node records, and for nothing else."""

    def __init__(self, addresses: list[str]) -> None:
        if len(addresses) > limits.MAX_NODES:
            raise SessionError("FrameTooLarge", f"{len(addresses)} nodes, at most {limits.MAX_NODES}")
        self.addresses = [NodeAddress.parse(text) for text in addresses]
        self.finding = Connections()
        self._records: dict[bytes, tuple[float, NodeRecord]] = {}
        self._failed: dict[bytes, float] = {}

    def address_of(self, node: bytes) -> NodeAddress | None:
        """The named address of a node."""
        return next((address for address in self.addresses if address.node == node), None)

    def new_connections(self) -> Connections:
        """Connections for one session, under an identity of its own."""
        return Connections()

    async def record(self, address: NodeAddress, fresh: bool = False) -> NodeRecord:
        """The node's record, at most a minute old."""
        known = self._records.get(address.node)
        if known and not fresh and time.monotonic() - known[0] < _RECORD_AGE_S and self.finding.is_connected(address.node):
            return known[1]
        record = await node_record(await self.finding.connect(address))
        if record.expires_ms + limits.MAX_CLOCK_SKEW_MS < now_ms():
            raise SessionError("Expired", "the node's record has expired", "compare this machine's clock with the node's")
        self._records[address.node] = (time.monotonic(), record)
        return record

    async def status(self, address: NodeAddress) -> NodeStatus:
        """A named node's record, or why there is none. A node that cannot be reached comes last for a while."""
        try:
            return NodeStatus(address, await self.record(address), None)
        except BatonError as error:
            self.failed(address.node)
            return NodeStatus(address, None, error)

    async def statuses(self) -> list[NodeStatus]:
        """Every named node, asked at once."""
        return list(await asyncio.gather(*map(self.status, self.addresses)))

    def failed(self, node: bytes) -> None:
        """Notes that a node failed: the others come first for a while, and its record is asked for again."""
        self._failed[node] = time.monotonic() + _PENALTY_S
        self._records.pop(node, None)

    def _recently_failed(self, node: bytes) -> bool:
        return self._failed.get(node, 0.0) > time.monotonic()

    async def choose(
        self, model: str | bytes | None, preferred: bytes | None, tried: set[bytes]
    ) -> tuple[NodeChoice | None, list[BatonError]]:
        """A node for the next attempt: the preferred one, else one that was neither tried nor failed lately, else any.

        Nodes of a later group are asked only where none of the earlier ones can serve, so that no turn waits for a node
        that is down. Also returns why nodes were not chosen.
        """
        errors: list[BatonError] = []
        groups: list[list[NodeAddress]] = [[], [], []]
        for address in self.addresses:
            if address.node == preferred and address.node not in tried:
                groups[0].append(address)
            else:
                groups[2 if address.node in tried or self._recently_failed(address.node) else 1].append(address)
        for group in groups:
            choices: list[NodeChoice] = []
            for status in await asyncio.gather(*map(self.status, group)):
                found = choice_of(status, model)
                if isinstance(found, NodeChoice):
                    choices.append(found)
                else:
                    errors.append(found)
            if choices:
                return min(choices, key=lambda choice: self._failed.get(choice.record.node, 0.0)), errors
        return None, errors

    async def close(self) -> None:
        """Closes the connections that find nodes."""
        await self.finding.close()


def parse_node(node: str | bytes | None) -> bytes | None:
    """A node given by peer id or key."""
    return node_of_peer_id(node) if isinstance(node, str) else node
