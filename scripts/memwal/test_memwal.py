"""Drives the published `memwal` client, unmodified, against a relayer on a temporary folder (F10).

    python scripts/memwal/test_memwal.py target/debug

needs `baton-relayer` and `baton-testnet` in that folder: contents go to the embedded Walrus-compatible store.
"""

import asyncio
import importlib.metadata
import os
import pathlib
import sys
import tempfile
import unittest
from datetime import datetime, timezone

from memwal import MemWal, RecallParams
from memwal.client import MemWalError, MemWalRememberJobNotFound
from memwal.types import RecallManualOptions, RememberBulkItem, ScoringWeights
from memwal.utils import delegate_key_to_sui_address

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import programs
from programs import Model, Program

SECONDS = 30


class MemwalClient(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        cls.model = Model("Biscuit.")
        cls.store = Program(
            "baton-testnet", "store", "--listen", "127.0.0.1:0", "--data-dir", folder / "store", "--json"
        )
        cls.relayer = cls.start(folder / "relayer", cls.store.ready["url"])

    @classmethod
    def start(cls, data, store):
        return Program(
            "baton-relayer", "--data-dir", data, "run", "--json", "--http", "127.0.0.1:0",
            "--listen", "/ip4/127.0.0.1/tcp/0", "--mdns", "false", "--embedder", "hashing", "--own-network", "127.0.0.0/8",
            "--publisher", store, "--aggregator", store, "--epochs", "5",
            "--shards", str(cls.store.ready.get("shards", 1000)),
            "--model-url", f"http://127.0.0.1:{cls.model.server_address[1]}/v1", "--model", "test",
        )

    @classmethod
    def tearDownClass(cls):
        cls.relayer.stop()
        cls.store.stop()
        cls.model.shutdown()
        cls.model.server_close()
        cls.folder.cleanup()

    def setUp(self):
        self.key = os.urandom(32).hex()
        self.account = delegate_key_to_sui_address(self.key)
        self.client = self.client_of(self.key)

    def client_of(self, key, account=None, namespace="default"):
        account = account or self.account
        return MemWal.create(key=key, account_id=account, server_url=self.relayer.ready["http"], namespace=namespace)

    async def asyncSetUp(self):
        # unittest turns asyncio's debugging on, which reports key generation and TLS set-up as slow.
        asyncio.get_running_loop().slow_callback_duration = SECONDS

    async def asyncTearDown(self):
        await self.client.close()

    async def test_the_client_is_the_published_one_and_finds_the_relayer_compatible(self):
        self.assertEqual(importlib.metadata.version("memwal"), "0.2.1")
        health = await self.client.health()
        self.assertEqual((health.status, health.write_ready), ("ok", True))
        metadata = await self.client.compatibility()
        self.assertTrue(metadata["apiVersion"].startswith("1."))

    async def test_what_is_remembered_is_recalled(self):
        done = await self.client.remember_and_wait("My dog is called Biscuit.", poll_interval_ms=100)
        self.assertEqual((done.owner, done.namespace), (self.account, "default"))
        self.assertTrue(done.blob_id, "its content is on Walrus")
        found = await self.client.recall("What is my dog called?", limit=3)
        self.assertEqual(found.results[0].text, "My dog is called Biscuit.")
        self.assertEqual(found.results[0].blob_id, done.blob_id)
        self.assertLess(found.results[0].distance, 1.0)
        self.assertTrue(found.results[0].created_at.endswith("Z"))
        status = await self.client.get_remember_status(done.id)
        self.assertEqual((status.status, status.blob_id), ("done", done.blob_id))

    async def test_a_memory_is_recalled_as_soon_as_it_is_accepted_and_kept_once(self):
        first = await self.client.remember("I am allergic to peanuts.")
        again = await self.client.remember("I am allergic to peanuts.")
        self.assertEqual(first.job_id, again.job_id)
        found = await self.client.recall(RecallParams(query="allergic to peanuts", limit=5))
        self.assertEqual([memory.text for memory in found.results], ["I am allergic to peanuts."])

    async def test_bulk(self):
        texts = ["I live in Lisbon.", "I play the cello.", "My sister is called Ana."]
        items = [RememberBulkItem(text=text, namespace="life") for text in texts]
        result = await self.client.remember_bulk_and_wait(items)
        self.assertEqual((result.total, result.succeeded, result.failed), (3, 3, 0))
        found = await self.client.recall("Which instrument do I play, the cello?", namespace="life")
        self.assertEqual(found.results[0].text, "I play the cello.")

    async def test_namespaces_are_isolated_and_listed(self):
        await self.client.remember("The shed needs paint.", namespace="garden")
        await self.client.remember("The invoice is due.", namespace="work")
        await self.client.remember("I like tea.")
        elsewhere = await self.client.recall("shed paint", namespace="work")
        self.assertNotIn("The shed needs paint.", [memory.text for memory in elsewhere.results])
        page = await self.client.list_namespaces(limit=2)
        self.assertTrue(page.has_more)
        rest = await self.client.list_namespaces(cursor=page.next_cursor)
        names = [namespace.name for namespace in page.namespaces + rest.namespaces]
        self.assertEqual(sorted(names), ["default", "garden", "work"])
        self.assertFalse(rest.has_more)
        self.assertTrue(all(namespace.memory_count >= 1 for namespace in page.namespaces))

    async def test_weights_thresholds_and_order(self):
        await self.client.remember("I had soup for lunch.")
        await self.client.remember("I had soup for dinner.")
        weights = ScoringWeights(semantic=1.0, recency=0.5, recency_half_life_days=7, importance=0.2)
        params = RecallParams(query="soup", scoring_weights=weights, sort="recent")
        found = await self.client.recall(params)
        self.assertEqual(len(found.results), 2)
        created = [memory.created_at for memory in found.results]
        self.assertEqual(created, sorted(created, reverse=True))
        none = await self.client.recall(RecallParams(query="soup", max_distance=0.0001))
        self.assertEqual(none.results, [])

    async def test_analyze_finds_facts(self):
        text = "Hello! My name is Tom and I live in Porto. What is the weather like?"
        result = await self.client.analyze_and_wait(text, occurred_at=datetime.now(timezone.utc))
        self.assertGreaterEqual(len(result.facts), 1)
        self.assertEqual((result.succeeded, result.owner), (len(result.facts), self.account))
        found = await self.client.recall("Where do I live? In Porto?")
        self.assertTrue(any("Porto" in memory.text for memory in found.results))

    async def test_ask_answers_from_memories(self):
        await self.client.remember("My dog is called Biscuit.")
        answer = await self.client.ask("What is my dog called?")
        self.assertIn("Biscuit", answer.answer)
        self.assertEqual(answer.memories_used, len(answer.memories))
        self.assertGreaterEqual(answer.memories_used, 1)

    async def test_embed(self):
        vector = (await self.client.embed("hello world")).vector
        self.assertAlmostEqual(sum(value * value for value in vector), 1.0, places=3)

    async def test_restore_checks_what_is_on_walrus(self):
        await self.client.remember_and_wait("The key is under the mat.", namespace="house", poll_interval_ms=100)
        result = await self.client.restore("house")
        self.assertEqual((result.namespace, result.owner), ("house", self.account))
        self.assertEqual((result.restored, result.failed, result.truncated), (0, 0, False))
        self.assertGreaterEqual(result.total, 1)

    async def test_manual_mode_is_refused_with_a_reason(self):
        with self.assertRaises(MemWalError) as raised:
            await self.client.recall_manual(RecallManualOptions(vector=[0.5, 0.5]))
        self.assertIn("manual mode", str(raised.exception))

    async def test_a_wrong_key_is_refused(self):
        stranger = self.client_of(os.urandom(32).hex())
        with self.assertRaises(MemWalError) as raised:
            await stranger.recall("dog")
        self.assertIn("401", str(raised.exception))
        await stranger.close()

    async def test_owners_do_not_see_each_other(self):
        accepted = await self.client.remember("The code of the safe is in the blue book.")
        key = os.urandom(32).hex()
        other = self.client_of(key, delegate_key_to_sui_address(key))
        found = await other.recall("code of the safe in the blue book")
        self.assertEqual(found.results, [])
        with self.assertRaises(MemWalRememberJobNotFound):
            await other.wait_for_remember_job(accepted.job_id, timeout_ms=1000)
        await other.close()

    async def test_nothing_of_a_request_is_in_the_log(self):
        await self.client.remember("The password hint is marzipan-quokka.")
        await self.client.recall("marzipan-quokka")
        self.assertNotIn("marzipan", self.relayer.output())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        programs.binaries = pathlib.Path(sys.argv.pop(1))
    unittest.main()
