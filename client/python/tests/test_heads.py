"""Head records over the weeks: which places a client looks in, what it takes from them, and what links nothing."""

from __future__ import annotations

import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from unittest import mock

from baton_client import heads
from baton_client.client import Client
from baton_client.codec import encode
from baton_client.crypto import Secret
from baton_client.errors import SessionError, StoreError, VerificationError
from baton_client.keys import SessionKeys
from baton_client.limits import HEAD_PERIOD_MS, MAX_HEAD_LIFETIME_MS, MAX_HEAD_PERIODS
from baton_client.network import now_ms
from baton_client.objects import BlobRef
from baton_client.session import Session

from .fake_node import Behaviour, FakeNetwork, FakeNode, FakeStore

WEEK = HEAD_PERIOD_MS
NOW = 2_950 * WEEK + WEEK // 2
OUTER = heads.HeadOuter(10, None, 0, bytes(32), [heads.SegmentBlob(0, BlobRef(bytes(32), bytes(32), 1))])
INNER = heads.HeadInner(bytes(16), 0, bytes(32), [], [], False)


class Periods(unittest.TestCase):
    def test_periods_run_from_the_present_one_back_to_the_first_one_asked_for(self) -> None:
        end = 2_951 * WEEK - 1
        for since, now, expected in (
            (NOW, NOW, [2_950]),
            (NOW - 2 * WEEK, NOW, [2_950, 2_949, 2_948]),
            # A device whose clock is ahead may have begun the next period.
            (end, end, [2_951, 2_950]),
            (NOW + 9 * WEEK, NOW, [2_950]),
            (0, 0, [0]),
        ):
            self.assertEqual(heads.periods(since, now), expected)

    def test_no_lookup_asks_for_more_periods_than_a_record_lives(self) -> None:
        for now in (NOW, 2_951 * WEEK - 1, 2_951 * WEEK):
            found = heads.periods(0, now)
            self.assertIn(len(found), range(58, MAX_HEAD_PERIODS + 1))
            self.assertLessEqual(found[-1] * WEEK, now - MAX_HEAD_LIFETIME_MS)

    def test_the_next_sequence_is_the_time_or_above_the_last_one(self) -> None:
        self.assertEqual(heads.next_sequence([], NOW), NOW)
        self.assertEqual(heads.next_sequence([5, NOW - 1], NOW), NOW)
        self.assertEqual(heads.next_sequence([NOW + 7], NOW), NOW + 8)
        self.assertEqual(heads.next_sequence([NOW + WEEK], NOW), NOW, "nobody looks in a week to come")

    def test_the_keys_of_two_weeks_or_sessions_have_nothing_in_common(self) -> None:
        one, two = SessionKeys(Secret(b"\x07" * 32)), SessionKeys(Secret(b"\x08" * 32))
        found = [one.head_keys(1), one.head_keys(2), two.head_keys(1)]
        for name in ("head_key", "index_key", "locate_key"):
            self.assertEqual(len({getattr(keys, name) for keys in found}), 3, name)


class Lookups(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.keys = SessionKeys(Secret(b"\x07" * 32))
        self.store = FakeStore()

    def place(self, period: int) -> bytes:
        return self.keys.head_keys(period).index_key

    async def put(self, *times: int) -> None:
        for time in times:
            await self.store.put_head(heads.make(self.keys, time, time, 1000, OUTER, INNER))

    async def find(self, since: int = 0) -> tuple[int | None, int]:
        """The sequence that is found, and the number of places that were looked in."""
        self.store.asked.clear()
        found = await heads.find(self.store.get_head, self.keys, since, NOW)
        self.assertEqual(len(set(self.store.asked)), len(self.store.asked), "a place was asked for twice")
        return (found.sequence if found else None), len(self.store.asked)

    async def test_a_session_in_use_costs_few_lookups_and_a_lost_one_at_most_60(self) -> None:
        none, asked = await self.find()
        self.assertIsNone(none)
        self.assertIn(asked, range(58, MAX_HEAD_PERIODS + 1))
        for weeks, expected in ((57, asked), (9, 10), (1, 2), (0, 2)):
            await self.put(NOW - weeks * WEEK)
            self.assertEqual(await self.find(), (NOW - weeks * WEEK, expected))
        self.assertEqual(await self.find(since=NOW), (NOW, 1))

    async def test_an_index_that_does_not_answer_counts_unless_a_newer_place_has_a_record(self) -> None:
        await self.put(NOW - WEEK)
        self.store.mute = {self.place(2_950)}
        with self.assertRaises(StoreError):
            await self.find()
        self.assertEqual(len(self.store.asked), 2)
        self.store.mute = {self.place(2_948)}
        self.assertEqual(await self.find(), (NOW - WEEK, 2))
        self.store.mute = {self.place(2_949)}
        await self.put(NOW)
        self.assertEqual(await self.find(), (NOW, 2))

    async def test_a_record_of_another_week_or_session_does_not_count(self) -> None:
        early = heads.make(self.keys, NOW - WEEK, NOW, 1000, OUTER, INNER)
        other = heads.make(SessionKeys(Secret(b"\x08" * 32)), NOW, NOW, 1000, OUTER, INNER)
        record, _ = heads.HEAD_RECORD.open_encoded(heads.make(self.keys, NOW, NOW, 1000, OUTER, INNER))
        beyond = self.keys.head_keys(2_950).sign(heads.HEAD_RECORD, replace(record, sequence=NOW + WEEK))
        for shown, code in ((early, "BadSignature"), (other, "BadSignature"), (encode(beyond), "BadSequence")):
            self.store.heads[self.place(2_950)] = shown
            with self.assertRaises(VerificationError) as caught:
                await self.find()
            self.assertEqual(caught.exception.code, code)


class Sessions(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.store = FakeStore()
        self.network = FakeNetwork([FakeNode(self.store, Behaviour(answer="x"))])
        # The middle of a week, so that the tests do not depend on the day.
        self.now = now_ms() // WEEK * WEEK + WEEK // 2
        for module in ("session", "client"):
            clock = mock.patch(f"baton_client.{module}.now_ms", side_effect=lambda: self.now)
            clock.start()
            self.addCleanup(clock.stop)

    def open(self, name: str) -> Client:
        client = Client([], shards=10, home=self.folder / name)
        client.network, client.store = self.network, self.store  # type: ignore[assignment]
        return client

    async def turn(self, session: Session) -> int:
        """Sends a turn. Returns the number of places that were looked in."""
        self.store.asked.clear()
        await session.turn("hello")
        await session.settled()
        self.assertEqual(session.background_errors, [])
        return len(set(self.store.asked))

    async def test_each_week_has_a_place_of_its_own_and_the_words_find_the_newest(self) -> None:
        session = self.open("one").new_session()
        self.assertEqual(await self.turn(session), 1, "a new session was published in no earlier week")
        self.now += 3 * WEEK
        self.assertEqual(await self.turn(session), 4)
        self.assertEqual(await self.turn(session), 1)
        weeks = [heads.period_of(self.now) - 3, heads.period_of(self.now)]
        self.assertEqual(set(self.store.heads), {session.keys.head_keys(week).index_key for week in weeks})
        self.now += WEEK
        copy = await self.open("two").restore(session.words)
        self.assertEqual(len(copy.turns), 3)
        self.assertEqual(await self.turn(copy), 1, "the restored session knows the week of its head")
        self.assertEqual(await session.refresh(), 1)
        await copy.close()
        await session.close()

    async def test_a_reopened_session_without_turns_looks_back_to_its_beginning(self) -> None:
        client = self.open("one")
        session = client.new_session()
        await session.close()
        self.now += WEEK
        again = client.session(session.id)
        self.assertEqual(await self.turn(again), 2)
        await again.close()

    async def test_a_clock_that_was_ahead_does_not_hide_later_heads(self) -> None:
        client = self.open("one")
        session = client.new_session()
        self.now += 5 * WEEK
        await self.turn(session)
        self.now -= 5 * WEEK
        await self.turn(session)
        self.assertEqual((await session.index_head()).sequence, self.now)
        await session.close()

    async def test_words_of_no_published_session_find_nothing(self) -> None:
        session = self.open("one").new_session()
        with self.assertRaises(SessionError) as caught:
            await self.open("two").restore(session.words)
        self.assertEqual(caught.exception.code, "NoHead")
        await session.close()

    async def test_turns_use_the_session_s_connections_and_no_others(self) -> None:
        client = self.open("one")
        first, second = client.new_session(), client.new_session()
        await self.turn(first)
        self.assertEqual((first.connections.reached, second.connections.reached), (set(self.network.nodes), set()))
        await self.turn(second)
        self.assertEqual(second.connections.reached, set(self.network.nodes))
        self.assertEqual(self.network.finding.reached, set())
        await client.close()


if __name__ == "__main__":
    unittest.main()
