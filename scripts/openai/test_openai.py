"""Drives OpenAI's Python client, unmodified, against `baton serve` and a network of three nodes.

    python scripts/openai/test_openai.py target/debug

needs `baton` and `baton-testnet` in that folder. The nodes run the test engine, which repeats the message.
"""

import collections
import json
import pathlib
import select
import subprocess
import sys
import tempfile
import unittest

import openai

SECONDS = 60
binaries = pathlib.Path("target/debug")


class Program:
    """A program that prints one JSON line when it is ready."""

    def __init__(self, name, *arguments):
        self.log = tempfile.TemporaryFile()
        command = [str(binaries / name), *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log)
        readable, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        line = self.process.stdout.readline() if readable else b""
        if not line:
            self.process.kill()
            self.log.seek(0)
            raise RuntimeError(f"{name} was not ready within {SECONDS} s:\n{self.log.read().decode(errors='replace')}")
        self.ready = json.loads(line)

    def stop(self):
        self.process.terminate()
        code = self.process.wait(SECONDS)
        self.process.stdout.close()
        return code


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        cls.network = Program("baton-testnet", "up", "--nodes", "3", "--engine", "echo", "--json")
        cls.settings = ["--home", folder / "home", "--config", cls.network.ready["config"], "--json"]
        cls.gateway = Program("baton", "serve", "--listen", "127.0.0.1:0", "--allow-echo", *cls.settings)
        key = pathlib.Path(cls.gateway.ready["key_file"]).read_text().strip()
        cls.client = openai.OpenAI(base_url=cls.gateway.ready["url"], api_key=key, max_retries=0)
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        codes = cls.gateway.stop(), cls.network.stop()
        cls.client.close()
        cls.folder.cleanup()
        if codes != (0, 0):
            raise RuntimeError(f"the programs ended with {codes}")

    def ask(self, messages, **more):
        return self.client.chat.completions.create(model=self.model, messages=messages, **more)

    def test_models_are_listed_and_found(self):
        models = list(self.client.models.list())
        self.assertTrue(models)
        self.assertEqual(self.client.models.retrieve(models[0].id).id, models[0].id)
        with self.assertRaises(openai.NotFoundError) as missing:
            self.client.models.retrieve("gpt-4")
        self.assertEqual(missing.exception.code, "model_not_found")

    def test_a_conversation_of_20_turns_moves_over_three_nodes_in_one_session(self):
        messages = [{"role": "system", "content": "Be brief."}]
        nodes, sessions = collections.Counter(), set()
        for turn in range(20):
            messages.append({"role": "user", "content": f"message number {turn}"})
            answer = self.ask(messages)
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            self.assertIn(f"number {turn}", answer.choices[0].message.content)
            about = answer.model_extra["baton"]
            self.assertTrue(about["verified"])
            self.assertEqual(about["turn"], turn)
            nodes[about["node"]] += 1
            sessions.add(about["session"])
            messages.append(answer.choices[0].message.model_dump())
        self.assertEqual(len(sessions), 1)
        self.assertEqual(len(nodes), 3, nodes)
        command = [str(binaries / "baton"), "session", "verify", sessions.pop(), "--full", *map(str, self.settings)]
        # The session's file is the gateway's until it was at rest for a while.
        self.assertIn("InUse", subprocess.run(command, capture_output=True, text=True).stdout)

    def test_streams_come_in_parts_and_end_with_usage(self):
        messages = [{"role": "user", "content": "one two three four five six"}]
        options = {"include_usage": True}
        chunks = list(self.ask(messages, stream=True, stream_options=options))
        parts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
        text = "".join(part for part in parts if part)
        self.assertIn("one two three four five six", text)
        self.assertGreater(sum(bool(part) for part in parts), 1, "in parts")
        self.assertEqual([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1], "stop")
        usage = chunks[-1].usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        with self.client.chat.completions.stream(model=self.model, messages=messages) as stream:
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.content, text)

    def test_sampling_and_limits_are_taken(self):
        answer = self.ask(
            [{"role": "user", "content": "one two three four"}],
            temperature=0, seed=7, top_p=0.9, max_completion_tokens=2, stop=["zzz"], n=1, user="somebody",
        )
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual((answer.usage.completion_tokens, answer.model_extra["baton"]["seed"]), (2, 7))

    def test_a_completion_of_a_text(self):
        answer = self.client.completions.create(model=self.model, prompt="just this")
        self.assertIn("just this", answer.choices[0].text)
        parts = self.client.completions.create(model=self.model, prompt="just this", stream=True)
        self.assertIn("just this", "".join(part.choices[0].text for part in parts))

    def test_errors_are_the_exceptions_that_programs_catch(self):
        hi = [{"role": "user", "content": "hi"}]
        stranger = self.client.with_options(api_key="sk-wrong")
        with self.assertRaises(openai.AuthenticationError):
            stranger.models.list()
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="gpt-4", messages=hi)
        for refused in [
            {"n": 2}, {"logprobs": True}, {"presence_penalty": 1.0}, {"response_format": {"type": "json_object"}},
            {"tools": [{"type": "function", "function": {"name": "f"}}]}, {"extra_body": {"unheard": 1}},
        ]:
            with self.assertRaises(openai.BadRequestError, msg=str(refused)) as error:
                self.ask(hi, **refused)
            self.assertIn(error.exception.code, ("unsupported_parameter", "unknown_parameter"))
        with self.assertRaises(openai.BadRequestError) as error:
            self.ask([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}])
        self.assertEqual(error.exception.param, "messages[0].content")
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model=self.model, input="hi")

    def test_a_session_is_named_by_header_or_field(self):
        first = self.ask([{"role": "user", "content": "first"}]).model_extra["baton"]
        named = {"x-baton-session": first["session"]}
        second = self.ask([{"role": "user", "content": "second"}], extra_headers=named).model_extra["baton"]
        self.assertEqual((second["session"], second["turn"]), (first["session"], 1))
        third = self.ask([{"role": "user", "content": "third"}], extra_body={"session": first["session"]})
        self.assertEqual(third.model_extra["baton"]["turn"], 2)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        binaries = pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
