"""Drives the published `mcp` client and the protocol's inspector, unmodified, against a relayer's `/mcp`, with tokens that
the owner made for them.

    python scripts/memwal/test_agent.py target/debug

needs `baton` and `baton-relayer` in that folder, and the inspector in scripts/memwal/node_modules.
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import programs
from programs import Program


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
        command = [programs.path("baton"), *arguments, "--home", str(cls.home), "--json"]
        command += ["--relayer", cls.relayer.ready["http"]]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout.splitlines()[-1])

    @contextlib.asynccontextmanager
    async def connect(self, made):
        headers = {"authorization": f"Bearer {made['token']}"}
        async with create_mcp_http_client(headers=headers) as http:
            async with Client(streamable_http_client(made["url"], http_client=http)) as agent:
                yield agent

    async def test_an_agent_remembers_and_recalls_within_its_token(self):
        made = self.baton("account", "delegate", "--token", "--scopes", "read,write", "--project", "garden")
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

    def inspect(self, made, *arguments):
        inspector = pathlib.Path(__file__).parent / "node_modules/.bin/mcp-inspector"
        command = [inspector, "--cli", made["url"], "--transport", "http", "--header", f"Authorization: Bearer {made['token']}"]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)

    def test_the_inspector_lists_tools_and_calls_one(self):
        made = self.baton("account", "delegate", "--token", "--scopes", "read,write")
        listed = self.inspect(made, "--method", "tools/list")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        tools = {tool["name"]: tool for tool in json.loads(listed.stdout)["tools"]}
        self.assertTrue({"remember", "recall", "list", "forget"} <= set(tools), set(tools))
        for name, tool in tools.items():
            self.assertTrue(tool["description"], name)
            self.assertEqual(tool["inputSchema"]["type"], "object", name)
        fact = ["--tool-name", "remember", "--tool-arg", "text=The gate opens at nine."]
        called = self.inspect(made, "--method", "tools/call", *fact)
        self.assertEqual(called.returncode, 0, called.stderr)
        self.assertFalse(json.loads(called.stdout).get("isError"), called.stdout)
        refused = self.inspect(dict(made, token="btk_wrong"), "--method", "tools/list")
        self.assertNotEqual(refused.returncode, 0, refused.stdout)

    async def test_a_token_to_read_writes_nothing(self):
        async with self.connect(self.baton("account", "delegate", "--token")) as agent:
            refused = await agent.call_tool("remember", {"text": "x is y"})
            self.assertTrue(refused.is_error)
            self.assertIn("scope_missing", str(refused))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        programs.binaries = pathlib.Path(sys.argv.pop(1))
    unittest.main()
