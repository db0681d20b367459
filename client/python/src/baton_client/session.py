"""One session: its chain, its waiting turn, and everything that a user does with it. The state is in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import export as exports
from . import heads, limits, walrus
from .chain import ChainTurn, check_reference, is_closed, make_blob, open_record, read_chain
from .crypto import digest
from .errors import BatonError, SessionError, StoreError, VerificationError
from .events import Event, Finished, TextPiece
from .journal import Abandoned, AcceptedTurn, Confirmed, Identified, Journal, Opened, Ordered, Published, Queued
from .keys import SessionKeys, words_of_root
from .network import Network, now_ms, parse_node
from .objects import BlobRef, Entry, Message, Record, Sampling
from .peerid import peer_id_of_node
from .signed import LINK, RECEIPT, genesis_hash, identity_of, signed_hash
from .store import Store, blob_id_text
from .turn import TurnDriver
from .views import SessionTurn, Turn, VerifyReport

HEAD_LIFETIME_MS = 90 * 24 * 3600 * 1000


class Session:
    """A conversation. Open it with `Client.new_session`, `Client.session` or `Client.restore`."""

    def __init__(self, folder: Path, keys: SessionKeys, journal: Journal, network: Network, store: Store | None) -> None:
        self.keys = keys
        self.network = network
        self.connections = network.new_connections()
        self.store = store
        self.turns: list[SessionTurn] = []
        self.pending: Queued | None = None
        self.orders: list[Ordered] = []
        self.open_epochs = 1
        self.closed_epochs = 5
        self._folder = folder
        self.journal = journal
        self._head_sequence = 0
        # Whether the index must be looked at before the next turn: after an opening, and while other devices may write.
        self._must_look = True
        self._lock = asyncio.Lock()
        self._identifying = asyncio.Lock()
        self._publishing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.background_errors: list[BatonError] = []
        self.closed = False
        self._load(journal.read())

    # --- State ------------------------------------------------------------------------------------------------------

    def _load(self, entries: list[object]) -> None:
        first = entries[0] if entries else None
        if not isinstance(first, Opened):
            raise SessionError("Damaged", "the journal has no beginning", "restore the session from its words")
        self.n_shards, self.device_id, self._created_ms = first.n_shards, first.device_id, first.created_ms
        for entry in entries[1:]:
            self._apply(entry)

    def _apply(self, entry: object) -> None:
        """Takes one journaled entry into the state."""
        if isinstance(entry, Queued):
            self.pending, self.orders = entry, []
        elif isinstance(entry, Ordered):
            self.orders.append(entry)
        elif isinstance(entry, AcceptedTurn):
            link = LINK.open(entry.entry.link)
            self.turns.append(SessionTurn(link, signed_hash("link-hash", entry.entry.link), entry))
            if self.pending is not None and self.pending.turn_id == link.turn_id:
                self.pending, self.orders = None, []
        elif isinstance(entry, Confirmed):
            turn = self.turns[entry.seq]
            turn.accepted = replace(turn.accepted, blob=entry.blob, blob_id_known=True)
            turn.confirmed = True
        elif isinstance(entry, Identified):
            turn = self.turns[entry.seq]
            turn.accepted = replace(turn.accepted, blob=entry.blob, blob_id_known=True)
        elif isinstance(entry, Abandoned):
            self.pending, self.orders = None, []
        elif isinstance(entry, Published):
            self._head_sequence = entry.sequence

    def note(self, *entries: object) -> None:
        """Journals entries, flushed, and then takes them into the state."""
        self.journal.append(*entries)
        for entry in entries:
            self._apply(entry)

    @property
    def id(self) -> str:
        """The session id in hex."""
        return self.keys.session_id.hex()

    @property
    def words(self) -> str:
        """The 24 recovery words. Their holder has the session: keep them secret."""
        return words_of_root(self.keys.root)

    @property
    def genesis(self) -> bytes:
        """The hash that the first link continues."""
        return genesis_hash(self.keys.session_key, self.n_shards, None)

    @property
    def head(self) -> tuple[int, bytes]:
        """Seq and link hash of the last turn; -1 and the genesis before the first."""
        return (self.turns[-1].link.seq, self.turns[-1].link_hash) if self.turns else (-1, self.genesis)

    def entries_of(self, segment: int, through: int | None = None) -> list[Entry]:
        """The entries of a segment, up to the turn `through`."""
        return [
            turn.accepted.entry
            for turn in self.turns
            if turn.link.segment == segment and (through is None or turn.link.seq <= through)
        ]

    def next_place(self) -> tuple[int, int]:
        """Segment and index of the next turn (section 7, "Closing")."""
        if not self.turns:
            return 0, 0
        segment = self.turns[-1].link.segment
        entries = self.entries_of(segment)
        return (segment + 1, 0) if is_closed(entries) else (segment, len(entries))

    def blob_bytes(self, seq: int) -> bytes:
        """The blob that turn `seq` (from 0) completed, rebuilt from this machine's copy."""
        link = self.turns[seq].link
        own = self.keys.keys_of(link)
        return make_blob(self.keys.session_id, link.segment, self.entries_of(link.segment, seq), own.blob_key, own.salt)

    def record_of(self, seq: int) -> Record:
        """The text of turn `seq` (from 0)."""
        turn = self.turns[seq]
        key = self.keys.keys_of(turn.link).record_key
        return open_record(key, identity_of(turn.link), turn.accepted.entry.record, seq)

    def turn_view(self, seq: int) -> Turn:
        """Turn `seq` (from 0) as a user sees it."""
        turn, record = self.turns[seq], self.record_of(seq)
        answer = record.messages[-1].text if record.messages else ""
        receipt = RECEIPT.open(turn.accepted.receipt) if turn.accepted.receipt is not None else None
        return Turn(
            number=seq + 1,
            node=peer_id_of_node(turn.link.author),
            messages=record.messages[:-1],
            text=answer,
            finish=record.finish,
            receipt=receipt,
            link_hash=turn.link_hash,
            blob_id=blob_id_text(turn.blob.blob_id) if turn.accepted.blob_id_known else None,
            time_ms=turn.link.time_ms,
        )

    @property
    def history(self) -> list[Turn]:
        """All turns, oldest first."""
        return [self.turn_view(seq) for seq in range(len(self.turns))]

    # --- Turns ------------------------------------------------------------------------------------------------------

    async def stream(
        self,
        message: str | Message | Iterable[Message],
        *,
        model: str | None = None,
        node: str | bytes | None = None,
        system: str | None = None,
        sampling: Sampling | None = None,
        max_output_tokens: int = 2048,
        max_price: int | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Sends a turn and yields its events; the last one is `Finished`, after the turn was verified and journaled.

        `node` (a peer id) is asked first. `max_price` bounds the price, in millionths of the node's unit: by
        default ten units. A caller that stops reading leaves the turn waiting: `resume` goes on.
        """
        if isinstance(message, str):
            message = Message.user(message)
        messages = [message] if isinstance(message, Message) else list(message)
        if not 1 <= len(messages) < limits.MAX_MESSAGES:
            raise SessionError("FrameTooLarge", f"{len(messages)} messages in a turn, 1 to {limits.MAX_MESSAGES - 1}")
        if not 0 < max_output_tokens <= limits.MAX_OUTPUT_TOKENS:
            raise SessionError("QuotaExceeded", f"{max_output_tokens} output tokens, 1 to {limits.MAX_OUTPUT_TOKENS}")
        if sampling is not None and (sampling.json_schema is not None or sampling.logprobs):
            raise SessionError(
                "Unsupported", "JSON schemas and log probabilities are not part of this package", "use baton serve"
            )
        async with self._lock:
            await self._look()
            if self.pending is not None:
                raise SessionError("Waiting", "an earlier message has no answer yet", "call resume or abandon first")
            pinned = [Message.system(system)] if system else []
            turn_id = self.keys.draw_turn_id(self.device_id)
            settings = sampling or Sampling()
            queued = Queued(turn_id, pinned, messages, settings, model, max_output_tokens, max_price)
            self.note(queued)
            async for event in self._drive(parse_node(node)):
                yield event

    async def turn(
        self,
        message: str | Message | Iterable[Message],
        *,
        on_text: Callable[[str], None] | None = None,
        model: str | None = None,
        node: str | bytes | None = None,
        system: str | None = None,
        sampling: Sampling | None = None,
        max_output_tokens: int = 2048,
        max_price: int | None = None,
    ) -> Turn:
        """Sends a turn and returns it once it is verified. `on_text` gets the answer as it arrives."""
        events = self.stream(
            message,
            model=model,
            node=node,
            system=system,
            sampling=sampling,
            max_output_tokens=max_output_tokens,
            max_price=max_price,
        )
        return await self._last(events, on_text)

    async def resume(self, *, on_text: Callable[[str], None] | None = None, node: str | bytes | None = None) -> Turn:
        """Goes on with the waiting turn: asks its nodes for the outcome, then tries again."""
        return await self._last(self._resume(parse_node(node)), on_text)

    async def _resume(self, preferred: bytes | None) -> AsyncGenerator[Event, None]:
        async with self._lock:
            if self.pending is None:
                raise SessionError("NothingWaits", "no message of this session waits for an answer", "")
            async for event in self._drive(preferred):
                yield event

    async def abandon(self) -> None:
        """Drops the waiting turn; its attempts are aborted where their nodes answer."""
        async with self._lock:
            if self.pending is None:
                return
            orders = list(self.orders)
            self.note(Abandoned(self.pending.turn_id))
            await TurnDriver(self).abort(orders)

    async def _last(self, events: AsyncGenerator[Event, None], on_text: Callable[[str], None] | None) -> Turn:
        finished: Finished | None = None
        async for event in events:
            if isinstance(event, TextPiece) and on_text is not None:
                on_text(event.text)
            elif isinstance(event, Finished):
                finished = event
        if finished is None:
            raise SessionError("Internal", "a turn ended without its end", "report this")
        return self.turn_view(finished.seq)

    async def _drive(self, preferred: bytes | None) -> AsyncGenerator[Event, None]:
        """Attempts until the turn is accepted. The chain's last blob must have an ID first: the next link names it.

        An ID that is not computed here comes from the store, which the turn then waits for.
        """
        if self.turns and await self._identify(self.turns[-1].link.seq) is None:
            await self.settled()
        if self.turns and not self.turns[-1].accepted.blob_id_known:
            await self._settle(self.turns[-1].link.seq, await TurnDriver(self).claimed_id(self.turns[-1].accepted))
            if not self.turns[-1].accepted.blob_id_known:
                error = self.background_errors[-1] if self.background_errors else None
                raise error or StoreError("the last turn's blob is not stored")
        if preferred is None and self.turns:
            preferred = self.turns[-1].link.author
        driver = TurnDriver(self)
        async for event in driver.run(preferred):
            yield event
        self._spawn(self._finish(len(self.turns) - 1, driver))

    # --- After a turn -----------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Waits until the last turn is acknowledged, its blob is stored, and the head is published, as far as possible."""
        while self._tasks:
            await asyncio.gather(*list(self._tasks))

    async def _finish(self, seq: int, driver: TurnDriver) -> None:
        """Acknowledges, waits for the store, and publishes. Errors are noted: the turn itself is safe."""
        try:
            await driver.acknowledge()
            await self._settle(seq, await driver.store_result())
            if self.turns[seq].confirmed:
                for older in self._last_of_segments()[-limits.MAX_READ_BLOBS :]:
                    if older < seq and not self.turns[older].confirmed:
                        await self._settle(older, None)
            await self.publish()
        except BatonError as error:
            self._note_error(error)
        finally:
            await driver.close()

    def _note_error(self, error: BatonError) -> None:
        self.background_errors = [*self.background_errors[-15:], error]

    def _last_of_segments(self) -> list[int]:
        """The last turn of each segment, oldest first."""
        return sorted({turn.link.segment: turn.link.seq for turn in self.turns}.values())

    async def _identify(self, seq: int) -> bytes | None:
        """The Walrus ID of a turn's blob, computed here where it is not known yet; None where that is too much work."""
        async with self._identifying:
            turn = self.turns[seq]
            if not turn.accepted.blob_id_known and walrus.can_compute(turn.blob.length, self.n_shards):
                blob_id = await asyncio.to_thread(walrus.blob_id, self.blob_bytes(seq), self.n_shards)
                self.note(Identified(seq, replace(turn.blob, blob_id=blob_id)))
        return turn.blob.blob_id if turn.accepted.blob_id_known else None

    async def _settle(self, seq: int, claimed: bytes | None) -> None:
        """Confirms that the store has the blob of turn `seq`: reads it back under its ID, else stores this machine's copy.

        Where the ID is not computed here, it is the one that the node claimed or the publisher answered.
        """
        turn = self.turns[seq]
        if self.store is None:
            raise StoreError("no store is named", "open the client with store=URL")
        try:
            own = await self._identify(seq)
            # The node says with its claim that the blob is stored; without one, or with a wrong one, it may not be.
            blob_id = claimed if own is None else own
            if blob_id is None or claimed != blob_id or not await self._has(blob_id, turn.blob):
                closes = is_closed(self.entries_of(turn.link.segment, seq))
                blob_id = await self.store.put_blob(self.blob_bytes(seq), self.closed_epochs if closes else self.open_epochs)
                if own is not None and blob_id != own:
                    raise StoreError("the publisher names another blob ID", "compare its shard count with `shards`")
                if not await self._has(blob_id, turn.blob):
                    raise StoreError("the aggregator does not have a blob that the publisher just stored")
            self.note(Confirmed(seq, replace(turn.blob, blob_id=blob_id)))
        except BatonError as error:
            self._note_error(error)

    async def _has(self, blob_id: bytes, reference: BlobRef) -> bool:
        """Whether the aggregator has these bytes under the ID. `Stored` is a claim, so the client looks itself."""
        if self.store is None:
            return False
        for pause_s in (0.0, 0.5):
            await asyncio.sleep(pause_s)
            found = await self.store.get_blob(blob_id)
            if found is not None and len(found) == reference.length and digest(found) == reference.digest:
                return True
        return False

    # --- The head index ---------------------------------------------------------------------------------------------

    async def index_head(self) -> heads.Head | None:
        """The newest head record of the index, checked and opened; None if there is none."""
        if self.store is None:
            return None
        now = now_ms()
        return await heads.find(self.store.get_head, self.keys, self._head_since_ms(now), now)

    def _head_since_ms(self, now: int) -> int:
        """A time before which no head record can be newer than what is known here (section 12)."""
        # A sequence of a week to come is of a clock that was wrong.
        if self._head_sequence and heads.period_of(self._head_sequence) <= heads.latest_period(now):
            return self._head_sequence
        first = self.turns[0].link.time_ms if self.turns else self._created_ms
        return max(0, min(self._created_ms, first) - limits.MAX_LINK_LEAD_MS)

    def _check_own(self, head: heads.Head) -> None:
        """Refuses a head that is not of this machine's chain (section 12)."""
        if head.inner.tombstone:
            raise SessionError("Deleted", "the session was deleted by another device", "")
        seq, link_hash = head.outer.seq, head.outer.link_hash
        if seq >= len(self.turns):
            raise SessionError("RollbackDetected", f"the index has {seq + 1} turns, this machine {len(self.turns)}")
        if self.turns[seq].link_hash != link_hash:
            raise SessionError("ForkDetected", f"another device wrote another turn {seq + 1}")

    async def _look(self) -> None:
        """Refuses a turn on a chain that another device continued or replaced. An index that does not answer is noted."""
        if not self._must_look or self.store is None:
            return
        await self.settled()
        try:
            head = await self.index_head()
        except StoreError as error:
            self._note_error(error)
            return
        if head is not None:
            self._check_own(head)
        self._note_leases(head)

    def _note_leases(self, head: heads.Head | None) -> None:
        leases = head.inner.devices if head is not None else []
        now = now_ms()
        self._must_look = any(lease.device_id != self.device_id and lease.expires_ms > now for lease in leases)

    def _segment_blobs(self) -> list[heads.SegmentBlob]:
        """The last blob of each segment, newest first, at most nine."""
        last = {turn.link.segment: turn.blob for turn in self.turns}
        newest = sorted(last, reverse=True)[: limits.MAX_READ_BLOBS]
        return [heads.SegmentBlob(segment, last[segment]) for segment in newest]

    async def publish(self) -> None:
        """Publishes the head, unless the index shows a head that is not of this chain."""
        async with self._publishing:
            if self.store is None or not self.turns or not self.turns[-1].accepted.blob_id_known:
                return
            if not self.turns[-1].confirmed and self.turns[-1].accepted.auth is not None:
                # A reader of the head could not fetch it. The end of that turn publishes.
                return
            found = await self.index_head()
            if found is not None:
                self._check_own(found)
            self._note_leases(found)
            now = now_ms()
            kept = [lease for lease in found.inner.devices if lease.device_id != self.device_id] if found else []
            leases = [heads.Lease(self.device_id, now + limits.DEVICE_LEASE_MS)]
            leases += [lease for lease in kept if lease.expires_ms > now]
            leases = sorted(leases, key=lambda lease: -lease.expires_ms)[: limits.MAX_DEVICES]
            last = self.turns[-1]
            known = [self._head_sequence] if self._head_sequence else []
            sequence = heads.next_sequence([*known, found.sequence] if found else known, now)
            outer = heads.HeadOuter(self.n_shards, None, last.link.seq, last.link_hash, self._segment_blobs())
            branches = found.inner.branches if found else []
            inner = heads.HeadInner(last.link.turn_id, last.link.attempt, last.link.author, leases, branches, False)
            await self.store.put_head(heads.make(self.keys, sequence, now, HEAD_LIFETIME_MS, outer, inner))
            self.note(Published(sequence, last.link.seq))

    async def refresh(self) -> int:
        """Takes turns that another device added to this chain. Returns how many. ForkDetected where it is another chain."""
        async with self._lock:
            await self.settled()
            head = await self.index_head()
            if head is None or (head.outer.seq < len(self.turns) and self._fits(head)):
                return 0
            if head.outer.seq < len(self.turns):
                self._check_own(head)
            chain = await self.read_chain(head)
            for known, read in zip(self.turns, chain, strict=False):
                if known.link_hash != read.link_hash:
                    raise SessionError("ForkDetected", f"another device wrote another turn {read.link.seq + 1}")
            added = chain[len(self.turns) :]
            if added and self.pending is not None:
                self.note(Abandoned(self.pending.turn_id))
            self.note(*accepted_of(added))
            await self.publish()
            return len(added)

    def _fits(self, head: heads.Head) -> bool:
        return self.turns[head.outer.seq].link_hash == head.outer.link_hash

    # --- Reading back, verifying ------------------------------------------------------------------------------------

    async def fetch(self, reference: BlobRef) -> bytes:
        """A blob from the store, checked against its digest."""
        if self.store is None:
            raise StoreError("no store is named", "open the client with store=URL")
        found = await self.store.get_blob(reference.blob_id)
        if found is None:
            raise StoreError(
                f"the store has no blob {blob_id_text(reference.blob_id)}", "call Session.fix, or it expired"
            )
        check_reference(found, reference)
        return found

    async def read_chain(self, head: heads.Head) -> list[ChainTurn]:
        """The whole chain of a head record, read from the store and verified."""
        newest = head.outer.blobs[0]
        return await read_chain(
            self.keys, self.genesis, (head.outer.seq, head.outer.link_hash), newest.segment, newest.blob, self.fetch
        )

    async def verify(self, *, store: bool = True) -> VerifyReport:
        """Verifies every link, signature, receipt and record, and rebuilds every blob byte for byte.

        With `store`, the chain is read back from the store alone and compared with this machine's copy; without, this
        machine's copy is verified. Raises VerificationError or StoreError at the first thing that does not hold.
        """
        await self.settled()
        if not self.turns:
            return VerifyReport(0, 0, 0, 0, 0, 0, self.genesis.hex())
        last = self.turns[-1]
        fetched = 0

        async def local(reference: BlobRef) -> bytes:
            turn = next((turn for turn in self.turns if turn.blob.digest == reference.digest), None)
            if turn is None:
                raise VerificationError("BlobHashMismatch", "a link names a blob that its turns do not give")
            return self.blob_bytes(turn.link.seq)

        async def remote(reference: BlobRef) -> bytes:
            nonlocal fetched
            fetched += 1
            return await self.fetch(reference)

        chain = await read_chain(
            self.keys, self.genesis, self.head, last.link.segment, last.blob, remote if store else local
        )
        if [turn.link_hash for turn in chain] != [turn.link_hash for turn in self.turns]:
            raise VerificationError("HeadMismatch", "the chain in the store is another one")
        receipts = 0
        for read, own in zip(chain, self.turns, strict=True):
            check_reference(self.blob_bytes(own.link.seq), read.blob)
            receipts += exports.check_signed_objects(self.keys, read, own.accepted)
        ids = 0
        for seq in self._last_of_segments():
            reference = chain[seq].blob
            if walrus.can_compute(reference.length, self.n_shards):
                if await asyncio.to_thread(walrus.blob_id, self.blob_bytes(seq), self.n_shards) != reference.blob_id:
                    raise VerificationError("BlobIdMismatch", f"the blob of turn {seq + 1} has another Walrus ID")
                ids += 1
        segments = last.link.segment + 1
        return VerifyReport(len(chain), segments, receipts, len(chain), fetched, ids, last.link_hash.hex())

    async def fix(self) -> int:
        """Stores again each segment's last blob that the store lacks. Returns how many."""
        await self.settled()
        if self.store is None:
            raise StoreError("no store is named", "open the client with store=URL")
        fixed = 0
        for seq in self._last_of_segments():
            turn = self.turns[seq]
            if turn.accepted.blob_id_known and await self._has(turn.blob.blob_id, turn.blob):
                continue
            turn.confirmed = False
            await self._settle(seq, None)
            fixed += turn.confirmed
        return fixed

    def export(self, path: str | Path | None = None, *, with_root: bool = False) -> str:
        """The session as JSON that anyone can verify (section 13). It is as secret as the conversation.

        Written to `path`, if given, as a new file that only its owner can read. `with_root` adds the root.
        """
        text = exports.make(self, with_root)
        if path is not None:
            exports.write(Path(path), text)
        return text

    async def close(self) -> None:
        """Waits for the last turn's rest, and closes the journal."""
        if self.closed:
            return
        self.closed = True
        try:
            async with asyncio.timeout(limits.AUTHOR_STORES_ALONE_S):
                await self.settled()
        except TimeoutError:
            self._note_error(StoreError("the last turn is not settled; the next opening goes on"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*list(self._tasks), return_exceptions=True)
        await self.connections.close()
        self.journal.close()
        self.keys.wipe()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def accepted_of(chain: list[ChainTurn]) -> list[AcceptedTurn]:
    """Journal entries of turns that were read back from the store."""
    return [AcceptedTurn(turn.entry, turn.blob, True, None, None, None, None, None) for turn in chain]
