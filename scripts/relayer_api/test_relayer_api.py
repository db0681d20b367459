"""Holds a relayer to its OpenAPI document: by a tester that makes requests from it, and by a client generated from it.

    python scripts/relayer_api/test_relayer_api.py target/debug [SEED]

needs `baton-relayer` and `baton-testnet` in that folder. A seed repeats the requests of a run.
"""

import importlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

import httpx
from nacl.signing import SigningKey

import signing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import programs
from programs import Model, Program

SECONDS = 30
# A limit for a hung run: it takes one to two minutes.
RUN_SECONDS = 900
# Requests of each operation that the fuzzing phase makes; with BATON_FULL, more.
EXAMPLES = 200 if os.environ.get("BATON_FULL") else 10
tools = pathlib.Path(sys.executable).parent
here = pathlib.Path(__file__).parent.resolve()
seed = random.SystemRandom().randrange(2**32)


class RelayerApi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        cls.model = Model("[]")
        store = ["store", "--listen", "127.0.0.1:0", "--data-dir", folder / "store", "--json"]
        cls.store = Program("baton-testnet", *store)
        url = cls.store.ready["url"]
        cls.relayer = Program(
            "baton-relayer", "--data-dir", folder / "relayer", "run", "--json", "--http", "127.0.0.1:0",
            "--listen", "/ip4/127.0.0.1/tcp/0", "--mdns", "false", "--embedder", "hashing", "--publisher", url,
            "--aggregator", url, "--epochs", "5", "--shards", str(cls.store.ready.get("shards", 1000)),
            "--requests-per-minute", "2000000",
            "--own-network", "127.0.0.0/8", "--model-calls-per-hour", "0",
            "--blobs-per-hour", "0", "--model-url", f"http://127.0.0.1:{cls.model.server_address[1]}/v1", "--model", "test",
        )
        cls.url = cls.relayer.ready["http"]
        cls.document = folder / "openapi.json"
        cls.document.write_bytes(httpx.get(f"{cls.url}/openapi.json").raise_for_status().content)

    @classmethod
    def tearDownClass(cls):
        cls.relayer.stop()
        cls.store.stop()
        cls.model.shutdown()
        cls.model.server_close()
        cls.folder.cleanup()

    def test_answers_to_all_requests_are_as_the_document_says(self):
        command = [
            tools / "schemathesis", "--config-file", here / "schemathesis.toml", "run", self.document, "--url", self.url, "--seed", str(seed),
            "--max-examples", str(EXAMPLES), "--continue-on-failure", "--warnings", "off", "--no-color",
            "--request-timeout", str(SECONDS),
            # Every request is signed, so other credentials than the right ones are never sent.
            "--exclude-checks", "ignored_auth",
            # The routes of no manual mode answer 501, and the stand-in for Sui takes any JSON.
            "--exclude-path-regex", "^(/api/(remember|recall)/manual|/sui)$",
        ]
        environment = dict(os.environ, BATON_TEST_SEED=os.urandom(32).hex(), SCHEMATHESIS_HOOKS="signing", PYTHONPATH=str(here))
        ended = subprocess.run(
            command, env=environment, cwd=self.folder.name, capture_output=True, text=True, timeout=RUN_SECONDS, check=False,
        )
        self.assertEqual(ended.returncode, 0, f"seed {seed}\n{ended.stdout}\n{ended.stderr}")
        print(ended.stdout.splitlines()[-1])

    def test_a_generated_client_remembers_recalls_and_deletes(self):
        folder = pathlib.Path(self.folder.name)
        command = [
            tools / "openapi-python-client", "generate", "--path", self.document, "--output-path", folder / "generated",
            "--meta", "none",
        ]
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        output = made.stdout + made.stderr
        self.assertEqual(made.returncode, 0, output)
        # The generator knows neither JSON lines nor an answer that has all fields of one of two others.
        unknown = {"GET /api/export", "PATCH /api/items/{id}", "POST /api/import"}
        self.assertLessEqual(set(re.findall(r"WARNING parsing (.+) within", output)), unknown, output)
        sys.path.insert(0, str(folder))
        generated, models = importlib.import_module("generated"), importlib.import_module("generated.models")
        key = SigningKey.generate()

        def sign(request):
            path = request.url.raw_path.decode()
            request.headers.update(signing.headers(key, request.method, path, request.read()))

        client = generated.Client(
            base_url=self.url, raise_on_unexpected_status=True, httpx_args={"event_hooks": {"request": [sign]}},
        )

        def call(name, **arguments):
            return importlib.import_module(f"generated.api.{name}").sync(client=client, **arguments)

        fact = models.FactInput(text="The roses want water on Tuesdays.", project="garden")
        remembered = call("remember.post_api_remember", body=fact)
        question = models.RecallInput(query="When do the roses want water?", project="garden")
        [found] = call("recall.post_api_recall", body=question).results
        self.assertEqual((found.id, found.text), (remembered.id, fact.text))
        call("memory.post_api_delete", body=models.IdsInput(ids=[found.id]))
        self.assertEqual(call("recall.post_api_recall", body=question).results, [])
        missing = call("memory.get_api_items_id", id=found.id)
        self.assertIsInstance(missing, models.FaultJson)
        self.assertEqual(missing.code, "not_found")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        programs.binaries = pathlib.Path(sys.argv.pop(1))
    if len(sys.argv) > 1:
        seed = int(sys.argv.pop(1))
    unittest.main(verbosity=2)
