"""The client without `async`, as scripts and notebooks use it."""

from __future__ import annotations

import asyncio
import tempfile
import unittest
from pathlib import Path

from baton_client import Client, Finished, Message, SessionError, TextPiece, TurnFailedError

from .fake_node import Behaviour, FakeNetwork, FakeNode, FakeStore


class Sync(unittest.TestCase):
    def open(self, *behaviours: Behaviour) -> Client:
        store = FakeStore()
        client = Client([], shards=10)
        client._inner.network = FakeNetwork([FakeNode(store, behaviour) for behaviour in behaviours])
        client._inner.store = store  # type: ignore[assignment]
        return client

    def test_turns_streams_and_exports(self) -> None:
        with self.open(Behaviour(answer="one two")) as client, tempfile.TemporaryDirectory() as folder:
            session = client.new_session()
            pieces: list[str] = []
            self.assertEqual(session.turn("hello", on_text=pieces.append).text, "one two")
            self.assertEqual(pieces, ["one", " two"])
            self.assertEqual(list(session.stream([Message.user("a"), Message.user("b")])), ["one", " two"])
            events = list(session.events("again", system="Be brief."))
            self.assertEqual([event.text for event in events if isinstance(event, TextPiece)], ["one", " two"])
            self.assertIsInstance(events[-1], Finished)
            self.assertEqual(session.verify().turns, 3)
            session.export(Path(folder) / "session.json")
            self.assertEqual(len(session.words.split()), 24)
            self.assertEqual([turn.number for turn in session.history], [1, 2, 3])
            self.assertEqual(client.sessions(), [session.id])

    def test_a_stream_that_is_dropped_leaves_the_turn_waiting(self) -> None:
        with self.open(Behaviour(answer="one two three")) as client:
            session = client.new_session()
            for _ in session.stream("hello"):
                break
            with self.assertRaises(SessionError):
                session.turn("another")
            self.assertEqual(session.resume().text, "one two three")

    def test_it_runs_where_a_loop_runs_already(self) -> None:
        async def notebook() -> str:
            with self.open(Behaviour(answer="yes")) as client:
                return client.new_session().turn("hello").text

        self.assertEqual(asyncio.run(notebook()), "yes")

    def test_errors_have_a_code_a_cause_and_a_hint(self) -> None:
        with self.open() as client, self.assertRaises(TurnFailedError) as caught:
            client.new_session().turn("hello")
        self.assertEqual(caught.exception.code, "NoNode")
        self.assertIn("Client(nodes=", caught.exception.hint)

    def test_a_price_above_the_cap_is_refused(self) -> None:
        from dataclasses import replace

        with self.open(Behaviour(receipt=lambda receipt: replace(receipt, price=2))) as client:
            self.assertEqual(client.new_session().turn("hello").receipt.price, 2)
        with self.open(Behaviour(receipt=lambda receipt: replace(receipt, price=2))) as client:
            session = client.new_session()
            events = session.events("hello", max_price=1)
            refused = next(event for event in events if type(event).__name__ == "Takeover")
            self.assertEqual(refused.cause.code, "ReceiptMismatch")
            events.close()
            session.abandon()

    def test_a_turn_costs_at_most_ten_units_unless_the_caller_allows_more(self) -> None:
        from dataclasses import replace

        def dear() -> Behaviour:
            return Behaviour(storage_price=10**7, receipt=lambda receipt: replace(receipt, price=10_000_001))

        with self.open(dear()) as client:
            session = client.new_session()
            events = session.events("hello")
            refused = next(event for event in events if type(event).__name__ in ("Takeover", "Finished"))
            self.assertEqual(getattr(refused, "cause", None) and refused.cause.code, "ReceiptMismatch")
            events.close()
            session.abandon()
        with self.open(dear()) as client:
            self.assertEqual(client.new_session().turn("hello", max_price=10**9).receipt.price, 10_000_001)


if __name__ == "__main__":
    unittest.main()
