"""Turns with nodes that die, stall and lie: what is refused, what goes on elsewhere, and what is never lost."""

from __future__ import annotations

import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from baton_client import frames, mlkem
from baton_client.client import Client
from baton_client.codec import u32le
from baton_client.crypto import x25519_public
from baton_client.errors import BatonError, SessionError, TurnFailedError
from baton_client.events import Finished, Takeover, TextPiece
from baton_client.limits import MAX_NODE_FRAME_BYTES
from baton_client.objects import Engine
from baton_client.session import Session

from .fake_node import Behaviour, FakeNetwork, FakeNode, FakeStore

LONG = " ".join(str(number) for number in range(70))


class Turns(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = Path(folder.name)
        # A lone node is asked again after a pause.
        pause = mock.patch("baton_client.turn._pause_s", return_value=0.0)
        pause.start()
        self.addCleanup(pause.stop)
        self.store = FakeStore()

    def open(self, *behaviours: Behaviour) -> Session:
        self.home = Path(tempfile.mkdtemp(dir=self.home))
        self.nodes = [FakeNode(self.store, behaviour) for behaviour in behaviours]
        self.client = Client([], shards=10, home=self.home / "home")
        self.client.network = FakeNetwork(self.nodes)
        self.client.store = self.store  # type: ignore[assignment]
        return self.client.new_session()

    async def events(self, session: Session, message: str = "hello") -> list[Any]:
        return [event async for event in session.stream(message)]

    async def refused(self, behaviour: Behaviour, code: str) -> None:
        """A lone node that misbehaves gets nothing accepted, and every attempt says why."""
        session = self.open(behaviour)
        with self.assertRaises(TurnFailedError) as caught:
            await session.turn("hello")
        self.assertEqual({error.code for error in caught.exception.attempts}, {code})
        self.assertEqual(session.turns, [])
        self.assertIsNotNone(session.pending)
        await session.close()

    async def test_turns_chain_over_two_nodes_and_a_closed_segment(self) -> None:
        session = self.open(Behaviour(answer="yes"), Behaviour(answer="no"))
        for number in range(18):
            await session.turn(f"question {number}", node=self.nodes[number % 2].key)
        await session.settled()
        self.assertEqual(session.background_errors, [])
        self.assertEqual([turn.text for turn in session.history], ["yes", "no"] * 9)
        self.assertEqual([turn.link.segment for turn in session.turns], [0] * 16 + [1] * 2)
        report = await session.verify()
        self.assertEqual((report.turns, report.segments, report.blobs_rebuilt, report.blobs_fetched), (18, 2, 18, 2))
        self.assertEqual(report.blob_ids, 2)
        self.assertEqual(sum(len(node.acks) for node in self.nodes), 18)
        self.assertEqual(self.store.puts, 0, "the author stored every blob")
        await session.close()

    async def test_another_node_continues_the_answer_of_a_dead_one(self) -> None:
        session = self.open(Behaviour(answer=LONG, dies_after=40), Behaviour(answer=LONG))
        events = await self.events(session)
        text = "".join(event.text for event in events if isinstance(event, TextPiece))
        takeovers = [event for event in events if isinstance(event, Takeover)]
        self.assertEqual((text, [takeover.kept_tokens for takeover in takeovers]), (LONG, [40]))
        self.assertIsInstance(events[-1], Finished)
        auth, payload = self.nodes[1].turns[0]
        self.assertEqual((auth.attempt, auth.resume.author, auth.resume.attempt), (1, self.nodes[0].key, 0))
        self.assertEqual(payload.resume_tokens, list(range(40)))
        self.assertEqual(session.history[0].receipt.tokens.resumed, 40)
        await session.close()

    async def test_a_prefix_that_a_node_refuses_is_dropped(self) -> None:
        session = self.open(Behaviour(answer=LONG, dies_after=9), Behaviour(refuses=12), Behaviour(answer="anew"))
        events = await self.events(session)
        self.assertEqual([event.kept_tokens for event in events if isinstance(event, Takeover)], [9, 0])
        self.assertEqual(session.history[0].text, "anew")
        await session.close()

    async def test_a_sealed_turn_with_a_lost_reply_is_accepted_and_not_made_again(self) -> None:
        session = self.open(Behaviour(answer=LONG, loses_reply=True), Behaviour(answer="another"))
        self.assertEqual((await session.turn("hello")).text, LONG)
        self.assertEqual(len(self.nodes[1].turns), 0)
        await session.close()

    async def test_a_lost_reply_hides_no_untrue_count_or_hash(self) -> None:
        def counted(receipt: Any) -> Any:
            return replace(receipt, tokens=replace(receipt.tokens, output=900))

        def hashed(receipt: Any) -> Any:
            return replace(receipt, running_hash=bytes(32))

        for change in (counted, hashed):
            with self.subTest(change.__name__):
                session = self.open(Behaviour(loses_reply=True, receipt=change), Behaviour())
                await session.turn("hello")
                self.assertEqual(len(self.nodes[1].turns), 1, "the other node made it again")
                await session.close()

    async def test_a_restarted_client_asks_for_its_turn(self) -> None:
        session = self.open(Behaviour(answer=LONG, loses_reply=True))
        node = self.nodes[0]
        serve = node.serve

        def silent(frame: Any, stream: Any) -> None:
            if isinstance(frame, frames.TurnFrame):
                serve(frame, stream)
            else:
                stream.end()

        node.serve = silent  # type: ignore[method-assign]
        stream = session.stream("hello")
        async for event in stream:
            if isinstance(event, Takeover):
                break
        await stream.aclose()
        session_id = session.id
        await session.close()
        node.serve = serve  # type: ignore[method-assign]
        again = self.client.session(session_id[:8])
        self.assertEqual((await again.resume()).text, LONG)
        self.assertEqual(len(node.turns), 1, "the turn was not made a second time")
        await again.close()

    async def test_an_untrue_link_is_refused(self) -> None:
        for change in (
            {"prev_link": bytes(32)}, {"record_hash": bytes(32)}, {"receipt_hash": bytes(32)}, {"turn_id": bytes(16)},
            {"time_ms": 5}, {"time_ms": 2**60}, {"attempt": 9}, {"auth_hash": bytes(32)},
        ):  # fmt: skip
            with self.subTest(change):
                code = "BlobMismatch" if "record_hash" in change else "ReceiptMismatch"
                await self.refused(Behaviour(link=lambda link, c=change: replace(link, **c)), code)

    async def test_an_untrue_receipt_is_refused(self) -> None:
        def tokens(**change: int) -> Any:
            return lambda receipt: replace(receipt, tokens=replace(receipt.tokens, **change))

        def simply(**change: Any) -> Any:
            return lambda receipt: replace(receipt, **change)

        def commitments(**change: Any) -> Any:
            return lambda receipt: replace(receipt, commitments=replace(receipt.commitments, **change))

        changes = (
            simply(engine=Engine.ECHO), simply(engine=Engine.LIBRARY), simply(engine=Engine.PROXIED),
            tokens(output=7), tokens(output=2000), tokens(resumed=1), tokens(memory=1), tokens(input=5000), simply(seq=1),
            simply(price=10**6), simply(seed=1), simply(model=bytes(32)), simply(sampling=bytes(32)), simply(window_from=1),
            simply(running_hash=bytes(32)), simply(memory_items=1), commitments(output=bytes(32)),
            commitments(input=bytes(32)), commitments(memory=bytes(32)),
        )  # fmt: skip
        for index, change in enumerate(changes):
            with self.subTest(index):
                await self.refused(Behaviour(receipt=change), "ReceiptMismatch")

    async def test_a_record_or_blob_with_another_answer_is_refused(self) -> None:
        await self.refused(Behaviour(sealed_answer="another"), "BlobMismatch")
        await self.refused(Behaviour(committed=lambda c: replace(c, blob_digest=bytes(32))), "BlobMismatch")
        await self.refused(Behaviour(committed=lambda c: replace(c, blob_length=1)), "BlobMismatch")

    async def test_a_progress_note_over_other_tokens_is_refused(self) -> None:
        await self.refused(
            Behaviour(answer=LONG, note=lambda note: replace(note, running_hash=bytes(32))), "ReceiptMismatch"
        )

    async def test_a_forged_signature_is_refused(self) -> None:
        def forged(committed: frames.Committed) -> frames.Committed:
            return replace(committed, link=replace(committed.link, signature=bytes(64)))

        await self.refused(Behaviour(committed=forged), "BadNodeSignature")

    async def test_a_frame_beyond_its_limit_is_refused_unread(self) -> None:
        await self.refused(Behaviour(raw_reply=u32le(MAX_NODE_FRAME_BYTES + 1)), "FrameTooLarge")

    async def test_a_sealed_failure_and_a_refusal_go_to_another_node(self) -> None:
        session = self.open(Behaviour(fails=47), Behaviour(refuses=46), Behaviour(answer="at last"))
        self.assertEqual((await session.turn("hello")).text, "at last")
        await session.settled()
        self.assertEqual(self.nodes[0].aborts, 1)
        await session.close()

    async def test_a_node_with_a_weak_exchange_key_is_passed_over(self) -> None:
        good = mlkem.hybrid_public(bytes(32), x25519_public)
        # A key of small order, and coefficients beyond the modulus.
        for bad in (good[:-32] + bytes(32), b"\xff" * 3 + good[3:]):
            weak = Behaviour(exchange_key=bad)
            session = self.open(weak, Behaviour(answer="sealed"))
            self.assertEqual((await session.turn("hello")).text, "sealed")
            self.assertEqual(self.nodes[0].turns, [])
            await session.close()
            await self.refused(weak, "PayloadRejected")

    async def test_a_refusal_for_good_is_not_tried_elsewhere(self) -> None:
        session = self.open(Behaviour(refuses=42), Behaviour(answer="x"))
        with self.assertRaises(TurnFailedError) as caught:
            await session.turn("hello")
        self.assertEqual(caught.exception.code, "ContextOverflow")
        self.assertTrue(caught.exception.hint)
        self.assertEqual(len(self.nodes[1].turns), 0)
        with self.assertRaises(SessionError):
            await session.turn("another")
        await session.abandon()
        await session.close()

    async def test_the_client_stores_its_copy_where_the_node_does_not(self) -> None:
        for state in (frames.GivenUp(), frames.Pending(), frames.Stored(bytes(32), None)):
            with self.subTest(state):
                self.store.puts = 0
                session = self.open(Behaviour(answer="x", store_state=state))
                await session.turn("one")
                await session.turn("two")
                await session.settled()
                self.assertEqual(self.store.puts, 2)
                self.assertEqual((await session.verify()).turns, 2)
                await session.close()

    async def test_turns_go_on_while_the_store_is_down(self) -> None:
        session = self.open(Behaviour(answer="x"), Behaviour(answer="y"))
        await session.turn("one")
        await session.settled()
        self.store.broken = True
        for number in range(17):
            await session.turn(f"question {number}", node=self.nodes[number % 2].key)
        self.assertEqual([turn.confirmed for turn in session.turns], [True] + [False] * 17)
        self.assertEqual({error.code for error in session.background_errors}, {"Store"})
        self.store.broken = False
        await session.turn("last")
        await session.settled()
        report = await session.verify()
        self.assertEqual((report.turns, report.blobs_fetched, report.blob_ids), (19, 2, 2))
        self.assertEqual((await session.index_head()).outer.seq, 18)
        await session.close()

    async def test_fix_stores_what_the_store_lost(self) -> None:
        session = self.open(Behaviour(answer="x"))
        for number in range(17):
            await session.turn(f"question {number}")
        await session.settled()
        self.store.blobs.clear()
        with self.assertRaises(BatonError):
            await session.verify()
        self.assertEqual(await session.fix(), 2)
        self.assertEqual((await session.verify()).turns, 17)
        await session.close()

    async def test_words_restore_the_session_and_a_second_device_is_seen(self) -> None:
        session = self.open(Behaviour(answer="x"))
        await session.turn("one")
        await session.settled()
        with tempfile.TemporaryDirectory() as folder:
            other = Client([], shards=10, home=folder)
            other.network, other.store = self.client.network, self.store  # type: ignore[assignment]
            copy = await other.restore(session.words)
            self.assertEqual([turn.text for turn in copy.history], ["x"])
            await copy.turn("two")
            await copy.settled()
            self.assertEqual(await session.refresh(), 1)
            await copy.turn("three")
            await copy.settled()
            with self.assertRaises(SessionError) as caught:
                await session.turn("four")
            self.assertEqual(caught.exception.code, "RollbackDetected")
            self.assertEqual(await session.refresh(), 1)
            await session.turn("four")
            await copy.close()
        await session.close()

    async def test_files_are_of_their_owner_alone_and_hold_no_text(self) -> None:
        session = self.open(Behaviour(answer="a secret answer"))
        await session.turn("a secret question")
        await session.settled()
        session.export(self.home / "export.json")
        with self.assertRaises(SessionError):
            session.export(self.home / "export.json")
        with self.assertRaises(SessionError) as caught:
            self.client.session(session.id)
        self.assertEqual(caught.exception.code, "InUse")
        await session.close()
        for path in self.home.rglob("*"):
            self.assertEqual(path.stat().st_mode & 0o077, 0, path)
            if path.name == "journal":
                self.assertNotIn(b"secret", path.read_bytes())

    async def test_a_cut_journal_loses_only_its_last_entry(self) -> None:
        session = self.open(Behaviour(answer="x"))
        await session.turn("one")
        await session.settled()
        session_id, journal = session.id, self.home / "home" / session.id / "journal"
        await session.close()
        whole = journal.read_bytes()
        journal.write_bytes(whole[:-3])
        again = self.client.session(session_id)
        self.assertEqual(len(again.turns), 1)
        await again.close()
        journal.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
        with self.assertRaises(BatonError):
            self.client.session(session_id)


if __name__ == "__main__":
    unittest.main()
