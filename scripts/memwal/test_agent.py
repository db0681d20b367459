"""Drives the published `mcp` client, unmodified, against a relayer's `/mcp`, with the token that the owner made for it.

    python scripts/memwal/test_agent.py target/debug

needs `baton` and `baton-relayer` in that folder.
"""

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

import test_memwal
from test_memwal import Program


class Agent(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.home = pathlib.Path(cls.folder.name) / "home"
        cls.relayer = Program(
            "baton-relayer", "--data-dir", pathlib.Path(cls.folder.name) / "relayer", "run", "--json",
            "--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0", "--mdns", "false", "--embedder", "hashing",
        )
        cls.baton("account", "new")

    @classmethod
    def tearDownClass(cls):
        cls.relayer.stop()
        cls.folder.cleanup()

    @classmethod
    def baton(cls, *arguments):
        command = [str(test_memwal.binaries / "baton"), *arguments, "--home", str(cls.home), "--json"]
        command += ["--relayer", cls.relayer.ready["http"]]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout.splitlines()[-1])

    @contextlib.asynccontextmanager
    async def connect(self, made):
        headers = {"authorization": f"Bearer {made['token']}"}
        async with create_mcp_http_client(headers=headers) as http:
            async with Client(streamable_http_client(made["url"], http_client=http)) as agent:
                yield agent

    async def test_an_agent_remembers_and_recalls_within_its_token(self):
        made = self.baton("account", "token", "--scopes", "read,write", "--project", "garden")
        async with self.connect(made) as agent:
            tools = [tool.name for tool in (await agent.list_tools()).tools]
            self.assertTrue({"remember", "recall", "list", "forget"} <= set(tools), tools)
            fact = {"text": "The roses want water on Tuesdays.", "project": "garden"}
            self.assertFalse((await agent.call_tool("remember", fact)).is_error)
            found = await agent.call_tool("recall", {"query": "When do the roses want water?", "project": "garden"})
            self.assertIn("Tuesdays", str(found))
            elsewhere = await agent.call_tool("remember", {"text": "The key is here.", "project": "house"})
            self.assertTrue(elsewhere.is_error)
            self.assertIn("project_only", str(elsewhere))
        self.baton("account", "revoke", made["id"])
        # The client wraps the server's refusal in a group of errors.
        with self.assertRaises(ExceptionGroup):
            async with self.connect(made) as agent:
                await agent.list_tools()

    async def test_a_token_to_read_writes_nothing(self):
        async with self.connect(self.baton("account", "token")) as agent:
            refused = await agent.call_tool("remember", {"text": "x is y"})
            self.assertTrue(refused.is_error)
            self.assertIn("scope_missing", str(refused))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        test_memwal.binaries = pathlib.Path(sys.argv.pop(1))
    unittest.main()
