"""One turn: attempts at nodes until one is accepted. docs/PROTOCOL.md, section 9."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import limits
from . import node as requests
from .chain import make_blob, open_blob, open_record, record_hash, seal_record
from .codec import encode
from .crypto import Secret, digest, kdf
from .errors import BatonError, ProtocolError, RefusedError, TransportError, TurnFailedError, VerificationError, refusal
from .events import AttemptStarted, Event, Finished, QueuePosition, Takeover, TextPiece
from .frames import (
    Accepted,
    Chunk,
    Committed,
    CommittedEvent,
    Failed,
    Progress,
    Refused,
    StatusSealed,
    Stored,
    StoreEvent,
    StoreState,
    Tokens,
    TurnRequest,
    TurnStatus,
    Waiting,
)
from .journal import AcceptedTurn, Ordered, Queued
from .keys import RecordKeys
from .network import NodeChoice, now_ms
from .objects import (
    Abort,
    Ack,
    BlobRef,
    Entry,
    Grant,
    Message,
    Payload,
    ReadBlob,
    ReadRecord,
    Record,
    RecordKind,
    ResumePrefix,
    Role,
    SignedBytes,
    StatusRequest,
    StoragePolicy,
    TurnAuth,
    TurnNote,
)
from .receipts import Facts, Terms, TokenHash, check_link, check_note, check_receipt, resume_hash, sampling_digest
from .sealing import ReplyOpener, agree, binding, key_id, payload_hash, seal_payload
from .signed import LINK, RECEIPT, TURN_AUTH, TURN_NOTE, identity, signed_hash
from .transport.yamux import YamuxStream

if TYPE_CHECKING:
    from .session import Session

# Bytes of history granted for each token of the model's context: English has about four.
WINDOW_BYTES_PER_TOKEN = 6
# A node reads at least this many bytes of prompt a second before its first token, on the slowest machines.
_PROMPT_BYTES_PER_S = 200
_UNKNOWN_ID = bytes(32)


def _pause_s(errors: list[BatonError]) -> float:
    """The pause before a node is asked again: as it wishes, or longer with each failure, 5 s at most."""
    last = errors[-1] if errors else None
    wished_s = last.retry_after_ms / 1000 if isinstance(last, RefusedError) else 0.0
    return min(max(wished_s, 0.2 * 2.0 ** len(errors)), 5.0)


@dataclass
class Answer:
    """The answer as it arrived, over all attempts so far."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    # The attempt that made the last of it.
    author: bytes = b""
    attempt: int = 0
    # Whether every piece of text came with its token ids.
    whole: bool = True

    def resumable(self) -> bool:
        """Whether another node can continue it."""
        return bool(self.ids) and self.whole and len(self.ids) <= limits.MAX_RESUME_TOKENS


@dataclass
class Attempt:
    """One order at one node, with all that its reply is checked against."""

    choice: NodeChoice
    auth: TurnAuth
    signed: SignedBytes
    auth_hash: bytes
    keys: RecordKeys
    place: tuple[int, int]
    secret: Secret
    request: TurnRequest
    order: Ordered
    # Bytes of the window and message, for the time of the first token.
    prompt_bytes: int


class TurnDriver:
    """Drives the session's waiting turn. `run` yields its events; then `acknowledge` and `store_result` end it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stream: YamuxStream | None = None
        self._opener: ReplyOpener | None = None
        self._state: StoreState | None = None
        self._others: list[Ordered] = []
        self._seq = len(session.turns)

    # --- The loop ---------------------------------------------------------------------------------------------------

    async def run(self, preferred: bytes | None) -> AsyncGenerator[Event, None]:
        """Attempts until a turn is accepted, or TurnFailedError."""
        session = self._session
        queued = session.pending
        if queued is None:
            raise ProtocolError("Internal", "no turn waits")
        errors: list[BatonError] = []
        answer = Answer()
        # Orders of an earlier run of this program: one of them may have been sealed.
        for order in reversed(session.orders):
            async for event in self._earlier(queued, order, answer, restart=True):
                yield event
                if isinstance(event, Finished):
                    return
        tried: set[bytes] = set()
        model: str | bytes | None = queued.model
        for _ in range(limits.MAX_ATTEMPTS):
            choice, reasons = await session.network.choose(model, preferred, tried)
            if choice is None:
                raise TurnFailedError([*errors, *reasons])
            model = choice.offer.model
            try:
                attempt = self._order(queued, choice, answer)
            except VerificationError as error:
                # Nothing can be sealed to the node's exchange key.
                errors.append(error)
                tried.add(choice.record.node)
                session.network.failed(choice.record.node)
                continue
            session.note(attempt.order)
            yield AttemptStarted(attempt.auth.attempt, choice.peer_id, choice.offer.name)
            if choice.record.node in tried:
                await asyncio.sleep(_pause_s(errors))
            try:
                async for event in self._attempt(queued, attempt, answer):
                    yield event
                    if isinstance(event, Finished):
                        return
            except BatonError as error:
                errors.append(error)
                tried.add(choice.record.node)
                session.network.failed(choice.record.node)
                refused_prefix = attempt.auth.resume is not None and error.code == "PayloadRejected"
                if isinstance(error, RefusedError) and not error.elsewhere and not refused_prefix:
                    raise TurnFailedError(errors) from None
                # Only after a broken stream may the author have sealed the turn. A reply that does not hold stays refused.
                if isinstance(error, TransportError):
                    async for event in self._earlier(queued, attempt.order, answer):
                        yield event
                        if isinstance(event, Finished):
                            return
                # Text of a node that lied is not handed on.
                if refused_prefix or isinstance(error, VerificationError) or not answer.resumable():
                    answer.text, answer.ids, answer.whole = "", [], True
                yield Takeover(choice.peer_id, error, len(answer.ids))
            finally:
                attempt.secret.wipe()
        raise TurnFailedError(errors)

    # --- The order --------------------------------------------------------------------------------------------------

    def _window(self, choice: NodeChoice) -> tuple[list[ReadBlob], list[ReadRecord], int]:
        """Blobs and records that the node may read: the newest turns whose text fits its context."""
        session = self._session
        budget, used = choice.offer.context_tokens * WINDOW_BYTES_PER_TOKEN, 0
        blobs: dict[int, ReadBlob] = {}
        records: list[ReadRecord] = []
        for turn in reversed(session.turns):
            link = turn.link
            keys = session.keys.keys_of(link)
            if link.segment not in blobs:
                if len(blobs) == limits.MAX_READ_BLOBS or (blobs and used >= budget):
                    break
                blobs[link.segment] = ReadBlob(link.segment, turn.blob, link.author, keys.blob_key)
            used += sum(len(message.text.encode()) for message in session.record_of(link.seq).messages)
            if used > budget or len(records) == limits.MAX_READ_RECORDS:
                break
            records.append(ReadRecord(link.seq, keys.record_key))
        return list(blobs.values()), records[::-1], used

    def _inline(self, blobs: list[ReadBlob]) -> list[bytes]:
        """The newest granted blobs that the store may lack, as far as this client knows."""
        session = self._session
        granted = {read.blob.digest for read in blobs if read.blob is not None}
        unsure = [t.link.seq for t in reversed(session.turns) if t.blob.digest in granted and not t.confirmed]
        return [session.blob_bytes(seq) for seq in unsure[: limits.MAX_INLINE_BLOBS]]

    def _order(self, queued: Queued, choice: NodeChoice, answer: Answer) -> Attempt:
        """Makes, seals and signs the order of the next attempt."""
        session, keys = self._session, self._session.keys
        seq, number = len(session.turns), len(session.orders)
        segment, index = session.next_place()
        node = choice.record.node
        own = keys.record_keys(segment, identity(keys.session_id, segment, seq, queued.turn_id, number, node))
        blobs, records, window_bytes = self._window(choice)
        prefix = list(answer.ids) if answer.resumable() else []
        terms = choice.record.storage
        epochs = StoragePolicy(
            min(session.open_epochs, terms.unknown_max_epochs), min(session.closed_epochs, terms.unknown_max_epochs), None
        )
        payload = Payload(
            version=limits.PAYLOAD_VERSION,
            # Every granted blob has its location, so the node needs no head record.
            grant=Grant(segment, index, own.record_key, own.blob_key, blobs, records, None),
            kind=RecordKind.TURN,
            supersedes_from=None,
            system=queued.system,
            messages=queued.messages,
            sampling=queued.sampling,
            json_schema=None,
            storage=epochs,
            resume_tokens=prefix,
            checks=[],
        )
        opening, secret = agree(
            choice.key.key, binding(keys.session_id, seq, queued.turn_id, number, keys.session_key, node)
        )
        sealed = seal_payload(secret, opening, payload)
        most = min(queued.max_output_tokens, choice.record.limits.max_output_tokens)
        # Whether the turn closes its segment is known only with its text: the longer time bounds the price.
        units = limits.MIN_BILLED_MIB * max(epochs.open_epochs, epochs.closed_epochs, 1)
        price = Terms(choice.offer, terms.price, units).most(choice.offer.context_tokens, most, 0)
        now = now_ms()
        auth = TurnAuth(
            version=limits.TURN_AUTH_VERSION,
            suite=limits.SUITE,
            session_id=keys.session_id,
            session_key=keys.session_key,
            device_id=session.device_id,
            seq=seq,
            turn_id=queued.turn_id,
            attempt=number,
            prev_link=session.head[1],
            prev_blob=session.turns[-1].blob if session.turns else None,
            n_shards=session.n_shards,
            branch=None,
            audience=node,
            audience_key=key_id(choice.key.key),
            payload_hash=payload_hash(sealed),
            model=choice.offer.model,
            sampling=sampling_digest(own.commitment_key, queued.sampling),
            max_output_tokens=most,
            max_price=min(price, limits.DEFAULT_MAX_PRICE if queued.max_price is None else queued.max_price),
            memory_from=None,
            memory_tokens=0,
            grant_hash=kdf("grant-hash", encode(payload.grant)),
            resume=ResumePrefix(answer.author, answer.attempt, len(prefix), resume_hash(own.commitment_key, prefix))
            if prefix
            else None,
            checks=[],
            issued_ms=now,
            expires_ms=now + limits.MAX_AUTH_LIFETIME_MS,
        )
        signed = keys.sign(TURN_AUTH, auth)
        return Attempt(
            choice=choice,
            auth=auth,
            signed=signed,
            auth_hash=signed_hash("auth-hash", signed),
            keys=own,
            place=(segment, index),
            secret=secret,
            request=TurnRequest(signed, sealed, self._inline(blobs), None),
            order=Ordered(signed, choice.offer, terms.price, units),
            prompt_bytes=window_bytes + sum(len(message.text) for message in queued.messages),
        )

    # --- The reply --------------------------------------------------------------------------------------------------

    async def _attempt(self, queued: Queued, attempt: Attempt, answer: Answer) -> AsyncGenerator[Event, None]:
        """One attempt. What arrives is added to `answer`, also where the attempt then fails."""
        connection = await self._session.connections.connect(attempt.choice.address)
        async with asyncio.timeout(limits.REQUEST_TIMEOUT_S):
            stream = await requests.open_turn(connection, attempt.request)
        try:
            opener = await self._accepted(stream, attempt)
            tokens = TokenHash(attempt.keys.commitment_key, attempt.auth_hash, answer.ids if attempt.auth.resume else [])
            facts = self._facts(queued, attempt.order, attempt.keys, tokens)
            if attempt.auth.resume is None:
                answer.text, answer.ids, answer.whole = "", [], True
            first_s = min(limits.FIRST_TOKEN_TIMEOUT_S, 10.0 + attempt.prompt_bytes / _PROMPT_BYTES_PER_S)
            wait_s = first_s
            for _ in range(limits.MAX_REPLY_EVENTS):
                event = await self._event(stream, opener, wait_s)
                if isinstance(event, Waiting):
                    wait_s = limits.QUEUE_TIMEOUT_S if event.ahead else first_s
                    yield QueuePosition(event.ahead)
                elif isinstance(event, Tokens):
                    wait_s = limits.TOKEN_TIMEOUT_S
                    self._take(event, attempt, answer, tokens)
                    yield TextPiece(event.text)
                elif isinstance(event, Progress):
                    check_note(event.note, attempt.auth, attempt.auth_hash, tokens)
                elif isinstance(event, CommittedEvent):
                    facts.answer = answer.text
                    self._accept(queued, attempt.order, attempt.keys, event.committed, facts)
                    self._stream, self._opener = stream, opener
                    yield Finished(attempt.auth.seq)
                    return
                elif isinstance(event, Failed):
                    raise refusal(event.code, 0)
                elif isinstance(event, StoreEvent):
                    raise ProtocolError("NonCanonical", "an event out of place")
            raise ProtocolError("FrameTooLarge", "the reply has too many events")
        finally:
            if self._stream is not stream:
                await stream.reset()

    async def _accepted(self, stream: YamuxStream, attempt: Attempt) -> ReplyOpener:
        try:
            async with asyncio.timeout(limits.REQUEST_TIMEOUT_S):
                frame = await requests.read_frame(stream)
        except TimeoutError:
            raise TransportError("the node does not accept the turn in time", "name more nodes") from None
        if isinstance(frame, Refused):
            raise refusal(frame.code, frame.retry_after_ms)
        if not isinstance(frame, Accepted):
            raise ProtocolError("NonCanonical", "a reply that does not begin with Accepted")
        return ReplyOpener(attempt.secret, frame.nonce, attempt.auth_hash)

    async def _event(self, stream: YamuxStream, opener: ReplyOpener, wait_s: float) -> object:
        """The next event of a reply. After `Accepted`, a plain refusal is no better than a broken stream."""
        try:
            async with asyncio.timeout(wait_s):
                frame = await requests.read_frame(stream)
        except TimeoutError:
            raise TransportError(f"the node was silent for {wait_s:g} s", "name more nodes") from None
        if not isinstance(frame, Chunk):
            raise TransportError("the reply broke off")
        return opener.open(frame.sealed)

    @staticmethod
    def _take(event: Tokens, attempt: Attempt, answer: Answer, tokens: TokenHash) -> None:
        """Adds a piece of the answer."""
        if event.ids and event.index != tokens.count:
            raise ProtocolError("NonCanonical", f"token {event.index} where {tokens.count} belongs")
        if tokens.count + len(event.ids) > attempt.auth.max_output_tokens:
            raise VerificationError("ReceiptMismatch", "more tokens than ordered")
        if len(answer.text) + len(event.text) > limits.MAX_ANSWER_BYTES:
            raise ProtocolError("FrameTooLarge", "the answer is longer than a message may be")
        for token in event.ids:
            tokens.push(token)
        answer.ids += event.ids
        answer.text += event.text
        answer.whole = answer.whole and (bool(event.ids) or not event.text)
        answer.author, answer.attempt = attempt.auth.audience, attempt.auth.attempt

    def _facts(self, queued: Queued, order: Ordered, keys: RecordKeys, tokens: TokenHash) -> Facts:
        auth = TURN_AUTH.open(order.auth)
        return Facts(
            auth=auth,
            auth_hash=signed_hash("auth-hash", order.auth),
            system=queued.system,
            messages=queued.messages,
            commitment_key=keys.commitment_key,
            seed=queued.sampling.seed,
            terms=Terms(order.offer, order.storage_price, order.units),
            tokens=tokens,
        )

    def _accept(self, queued: Queued, order: Ordered, keys: RecordKeys, committed: Committed, facts: Facts) -> None:
        """Checks link and receipt, rebuilds record, segment and blob, and journals the turn. Raises where a byte differs."""
        session, auth = self._session, facts.auth
        receipt = RECEIPT.open(committed.receipt)
        check_receipt(receipt, facts, committed.finish)
        link = LINK.open(committed.link)
        place = session.next_place()
        check_link(link, auth, facts.auth_hash, signed_hash("receipt-hash", committed.receipt), place, now_ms())
        messages = [*queued.messages, Message(Role.ASSISTANT, None, None, facts.answer)]
        record = Record(limits.VERSION, RecordKind.TURN, None, messages, committed.finish)
        own_identity = identity(auth.session_id, place[0], auth.seq, auth.turn_id, auth.attempt, auth.audience)
        sealed = seal_record(keys.record_key, own_identity, record)
        if link.record_hash != record_hash(sealed) or link.record_length != len(sealed):
            raise VerificationError("BlobMismatch", "the rebuilt record differs from the one that the node signed")
        entry = Entry(committed.link, sealed)
        entries = [*session.entries_of(place[0]), entry]
        blob = make_blob(auth.session_id, place[0], entries, keys.blob_key, keys.salt)
        if committed.blob_digest != digest(blob) or committed.blob_length != len(blob):
            raise VerificationError("BlobMismatch", "the rebuilt blob differs from the one that the node made")
        link_hash = signed_hash("link-hash", committed.link)
        ack = self._note(auth, Ack(link_hash, committed.blob_digest, link.receipt_hash))
        self._others = [other for other in session.orders if other.auth != order.auth]
        session.note(
            AcceptedTurn(
                entry=entry,
                blob=BlobRef(_UNKNOWN_ID, committed.blob_digest, len(blob)),
                blob_id_known=False,
                auth=order.auth,
                receipt=committed.receipt,
                ack=ack,
                system=queued.system,
                sampling=queued.sampling,
            )
        )

    # --- An order whose reply was lost ------------------------------------------------------------------------------

    async def _status(self, signed: SignedBytes, timeout_s: float) -> TurnStatus:
        """The state of an order at its author."""
        session, auth = self._session, TURN_AUTH.open(signed)
        address = session.network.address_of(auth.audience)
        if address is None:
            raise TransportError("the node that served the turn is not named", "name it again")
        question = self._note(auth, StatusRequest())
        try:
            async with asyncio.timeout(timeout_s):
                return await requests.status(await session.connections.connect(address), question, timeout_s)
        except TimeoutError:
            raise TransportError(f"the node did not answer within {timeout_s:g} s") from None

    async def claimed_id(self, accepted: AcceptedTurn) -> bytes | None:
        """The blob ID that the author of an accepted turn says the store has; None without such an answer."""
        if accepted.auth is None:
            return None
        try:
            state = await self._status(accepted.auth, limits.REQUEST_TIMEOUT_S)
        except BatonError:
            return None
        return state.store.blob_id if isinstance(state, StatusSealed) and isinstance(state.store, Stored) else None

    async def _earlier(
        self, queued: Queued, order: Ordered, answer: Answer, restart: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Asks an order's author for its outcome, and accepts the turn if it was sealed.

        Not asked where its connection is closed while others are open, except after a restart of this program. No answer
        leaves the turn as it was.
        """
        session, network, connections = self._session, self._session.network, self._session.connections
        auth = TURN_AUTH.open(order.auth)
        address = network.address_of(auth.audience)
        others = connections.any_other_open(auth.audience) or network.finding.any_other_open(auth.audience)
        unlikely = not connections.is_connected(auth.audience) and others
        if address is None or (unlikely and not restart):
            return
        try:
            state = await self._status(order.auth, limits.REQUEST_TIMEOUT_S if restart else limits.STATUS_TIMEOUT_S)
            connection = await connections.connect(address)
            if not isinstance(state, StatusSealed):
                return
            place = session.next_place()
            keys = session.keys.record_keys(
                place[0], identity(auth.session_id, place[0], auth.seq, auth.turn_id, auth.attempt, auth.audience)
            )
            blob = await requests.fetch_blob(connection, state.committed.blob_digest, keys.blob_key)
            text = self._sealed_answer(queued, auth, keys, blob)
            if not text.startswith(answer.text):
                raise VerificationError("BlobMismatch", "the sealed answer does not begin with the part that was sent")
            tokens = TokenHash(keys.commitment_key, signed_hash("auth-hash", order.auth), answer.ids)
            facts = self._facts(queued, order, keys, tokens)
            facts.answer, facts.unseen = text, len(text.encode()) - len(answer.text.encode())
            shown = len(answer.text)
            self._accept(queued, order, keys, state.committed, facts)
        except BatonError:
            return
        self._state = state.store
        if text[shown:]:
            yield TextPiece(text[shown:])
        yield Finished(auth.seq)

    def _sealed_answer(self, queued: Queued, auth: TurnAuth, keys: RecordKeys, blob: bytes) -> str:
        """The answer in the last record of a blob; the blob is rebuilt and compared afterwards."""
        segment, _ = self._session.next_place()
        entry = open_blob(blob, self._session.keys, segment).entries[-1]
        own_identity = identity(auth.session_id, segment, auth.seq, auth.turn_id, auth.attempt, auth.audience)
        record = open_record(keys.record_key, own_identity, entry.record, auth.seq)
        if not record.messages or record.messages[:-1] != queued.messages:
            raise VerificationError("BlobMismatch", "the sealed record has other messages")
        return record.messages[-1].text

    # --- After acceptance -------------------------------------------------------------------------------------------

    async def acknowledge(self) -> None:
        """Sends the acknowledgement to the author, and aborts the other attempts. Both are tried, not required."""
        session = self._session
        turn = session.turns[self._seq]
        address = session.network.address_of(turn.link.author)
        if address is not None and turn.accepted.ack is not None:
            for pause_s in (0.0, 0.5, 2.0):
                await asyncio.sleep(pause_s)
                try:
                    await requests.acknowledge(await session.connections.connect(address), turn.accepted.ack)
                    break
                except BatonError:
                    continue
        await self.abort(self._others)

    def _note(self, auth: TurnAuth, kind: Ack | Abort | StatusRequest) -> SignedBytes:
        """A signed note about the attempt of an order."""
        note = TurnNote(
            limits.VERSION, auth.session_id, auth.session_key, auth.seq, auth.turn_id, auth.attempt, auth.audience,
            now_ms(), kind,
        )  # fmt: skip
        return self._session.keys.sign(TURN_NOTE, note)

    async def abort(self, orders: list[Ordered]) -> None:
        """Gives attempts up at their nodes, where these answer."""
        session = self._session
        for order in orders:
            auth = TURN_AUTH.open(order.auth)
            address = session.network.address_of(auth.audience)
            if address is None:
                continue
            request = self._note(auth, Abort())
            try:
                await requests.abort(await session.connections.connect(address), request)
            except BatonError:
                continue

    async def store_result(self) -> bytes | None:
        """The blob ID that the author says the store has, waiting up to a minute; None if it says or sends no such thing."""
        if self._stream is not None and self._opener is not None:
            try:
                async with asyncio.timeout(limits.AUTHOR_STORES_ALONE_S):
                    for _ in range(limits.MAX_REPLY_EVENTS):
                        event = await self._event(self._stream, self._opener, limits.AUTHOR_STORES_ALONE_S)
                        if isinstance(event, StoreEvent):
                            self._state = event.state
                            break
                        # A second `Committed` changes nothing.
                        if not isinstance(event, (Progress, CommittedEvent)):
                            return None
            except (BatonError, TimeoutError):
                return None
        return self._state.blob_id if isinstance(self._state, Stored) else None

    async def close(self) -> None:
        """Forgets the reply's key and ends its stream."""
        if self._opener is not None:
            self._opener.wipe()
        if self._stream is not None:
            await self._stream.reset()
