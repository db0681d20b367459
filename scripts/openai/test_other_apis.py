"""Drives Anthropic's and Ollama's Python clients, unmodified, against `baton serve` and a network of three nodes.

    python scripts/openai/test_other_apis.py target/debug

The nodes run the test engine, which repeats the message. One conversation moves over the three APIs and the three nodes.
"""

import collections
import os
import pathlib
import sys
import unittest

import anthropic
import ollama

import test_openai
from test_openai import Network, programs, turns_over


class OtherApis(Network):
    @classmethod
    def setUpClass(cls):
        os.environ["BATON_NODE_EMBEDDING_MODEL"] = test_openai.EMBEDDER
        cls.open("--allow-echo", nodes=3, engine="echo")
        url = cls.gateway.ready["url"].removesuffix("/v1")
        key = pathlib.Path(cls.gateway.ready["key_file"]).read_text().strip()
        cls.anthropic = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
        cls.ollama = ollama.Client(host=url, headers={"Authorization": f"Bearer {key}"})

    @classmethod
    def tearDownClass(cls):
        cls.anthropic.close()
        super().tearDownClass()

    def message(self, messages, **more):
        return self.anthropic.messages.create(model=self.model, max_tokens=200, messages=messages, **more)

    def test_a_conversation_moves_over_three_apis_and_three_nodes_in_one_session(self):
        messages, nodes, sessions = [], collections.Counter(), set()
        for turn in turns_over(3, nodes, at_least=12):
            messages.append({"role": "user", "content": f"message number {turn}"})
            if turn % 3 == 0:
                answer = self.message(messages, system="Be brief.")
                self.assertEqual(answer.stop_reason, "end_turn")
                text, about = answer.content[0].text, answer.model_extra["baton"]
            elif turn % 3 == 1:
                given = [{"role": "system", "content": "Be brief."}, *messages]
                answer = self.ollama.chat(model=self.model, messages=given)
                self.assertTrue(answer.done)
                text = answer.message.content
                # Ollama's client drops fields that it does not know.
                about = None
            else:
                given = [{"role": "system", "content": "Be brief."}, *messages]
                answer = self.client.chat.completions.create(model=self.model, messages=given)
                text, about = answer.choices[0].message.content, answer.model_extra["baton"]
            self.assertIn(f"number {turn}", text)
            if about:
                self.assertEqual(about["turn"], turn + 1)
                nodes[about["node"]] += 1
                sessions.add(about["session"])
            messages.append({"role": "assistant", "content": text})
        self.assertEqual(len(sessions), 1)

    def test_a_message_streams_and_its_counts_come_at_the_end(self):
        with self.anthropic.messages.stream(
            model=self.model, max_tokens=200, messages=[{"role": "user", "content": "one two three four five six"}]
        ) as stream:
            parts = list(stream.text_stream)
            final = stream.get_final_message()
        self.assertGreater(len(parts), 1)
        self.assertEqual("".join(parts), final.content[0].text)
        self.assertGreater(final.usage.input_tokens, 0)
        self.assertGreater(final.usage.output_tokens, 0)

    def test_errors_are_those_of_the_client(self):
        with self.assertRaises(anthropic.BadRequestError) as refused:
            self.message([{"role": "user", "content": "hi"}], thinking={"type": "enabled", "budget_tokens": 1024})
        self.assertIn("thinking", refused.exception.body["error"]["message"])
        self.assertTrue(refused.exception.request_id.startswith("req_"))
        with self.assertRaises(anthropic.NotFoundError):
            self.anthropic.messages.create(model="gpt-4", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
        wrong = anthropic.Anthropic(base_url=str(self.anthropic.base_url), api_key="sk-wrong", max_retries=0)
        with self.assertRaises(anthropic.AuthenticationError):
            wrong.models.list()
        wrong.close()
        with self.assertRaises(ollama.ResponseError) as missing:
            self.ollama.chat(model="llama3", messages=[{"role": "user", "content": "hi"}])
        self.assertEqual(missing.exception.status_code, 404)
        with self.assertRaises(ollama.ResponseError) as pulled:
            self.ollama.pull("llama3")
        self.assertIn("operators", pulled.exception.error)

    def test_models_are_listed_and_tokens_estimated(self):
        models = list(self.anthropic.models.list())
        self.assertEqual(models[0].id, self.model)
        self.assertEqual(self.anthropic.models.retrieve(self.model).type, "model")
        counted = self.anthropic.messages.count_tokens(model=self.model, messages=[{"role": "user", "content": "a" * 300}])
        self.assertEqual(counted.input_tokens, 106)
        self.assertIn(self.model, [model.model for model in self.ollama.list().models])
        self.assertIn(self.model, [model.model for model in self.ollama.ps().models])
        self.assertIn("completion", self.ollama.show(self.model).capabilities)
        self.assertEqual(self.ollama.pull(self.model).status, "success")

    def test_ollama_streams_generates_and_embeds(self):
        parts = list(self.ollama.chat(model=self.model, messages=[{"role": "user", "content": "one two three four"}], stream=True))
        text = "".join(part.message.content for part in parts)
        self.assertIn("one two three four", text)
        self.assertTrue(parts[-1].done and parts[-1].eval_count > 0 and parts[-1].total_duration > 0)
        made = self.ollama.generate(model=self.model, prompt="five six")
        self.assertIn("five six", made.response)
        vectors = self.ollama.embed(model=test_openai.EMBEDDER, input=["a cat", "a dog"]).embeddings
        self.assertEqual(len(vectors), 2)
        self.assertEqual(len(vectors[0]), 384)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        programs.binaries = pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
