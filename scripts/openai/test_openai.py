"""Drives OpenAI's Python client, unmodified, against `baton serve` and a network of three nodes.

    python scripts/openai/test_openai.py target/debug

needs `baton`, `baton-node` and `baton-testnet` in that folder. The nodes run the test engine, which repeats the message. Where
BATON_MODELS names a folder with all-minilm-l6-v2, they embed with it; else with a test embedder that knows words by their spelling.
"""

import collections
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import openai
import pydantic

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import programs
from programs import SECONDS, Program

MODELS = os.environ.get("BATON_MODELS")
EMBEDDER = "all-minilm-l6-v2" if MODELS else "hashing-384-v1"


def turns_over(count, nodes, at_least):
    """Numbers of turns, until `nodes` counts as many nodes as `count`.

    A client draws the node of each turn: one of 40 conversations of 20 turns misses one of three nodes. A node that is
    as fast as the others has at least a seventh of the draw, so 120 turns are enough.
    """
    for turn in range(120):
        if turn >= at_least and len(nodes) == count:
            return
        yield turn
    raise AssertionError(f"{len(nodes)} of {count} nodes were in 120 turns: {nodes}")


class Network(unittest.TestCase):
    """A network with an endpoint, and OpenAI's client of it."""

    @classmethod
    def open(cls, *options, nodes, engine):
        cls.folder = tempfile.TemporaryDirectory()
        cls.network = Program("baton-testnet", "up", "--nodes", nodes, "--engine", engine, "--json")
        home = pathlib.Path(cls.folder.name) / "home"
        cls.settings = ["--home", home, "--config", cls.network.ready["config"], "--json"]
        cls.gateway = Program("baton", "serve", "--listen", "127.0.0.1:0", *options, *cls.settings)
        key = pathlib.Path(cls.gateway.ready["key_file"]).read_text().strip()
        cls.client = openai.OpenAI(base_url=cls.gateway.ready["url"], api_key=key, max_retries=0)
        # Models to talk to come first. An endpoint hears of its nodes one after the other.
        end = time.monotonic() + SECONDS
        while (model := cls.client.models.list().data[0]).model_extra["baton"]["nodes"] < nodes:
            if time.monotonic() > end:
                raise RuntimeError(f"not all of {nodes} nodes were found: {model}")
            time.sleep(0.1)
        cls.model = model.id

    @classmethod
    def tearDownClass(cls):
        codes = cls.gateway.stop(), cls.network.stop()
        cls.client.close()
        cls.folder.cleanup()
        if codes != (0, 0):
            raise RuntimeError(f"the programs ended with {codes}")


class OpenAiClient(Network):
    @classmethod
    def setUpClass(cls):
        # The nodes' own variables: the network hands its environment on.
        os.environ["BATON_NODE_EMBEDDING_MODEL"] = EMBEDDER
        if MODELS:
            os.environ["BATON_NODE_MODEL_DIR"] = MODELS
        cls.open("--allow-echo", nodes=3, engine="echo")

    def ask(self, messages, **more):
        return self.client.chat.completions.create(model=self.model, messages=messages, **more)

    def test_models_are_listed_and_found(self):
        models = list(self.client.models.list())
        self.assertTrue(models)
        self.assertEqual(self.client.models.retrieve(models[0].id).id, models[0].id)
        with self.assertRaises(openai.NotFoundError) as missing:
            self.client.models.retrieve("gpt-4")
        self.assertEqual(missing.exception.code, "model_not_found")

    def test_a_conversation_moves_over_three_nodes_in_one_session(self):
        messages = [{"role": "system", "content": "Be brief."}]
        nodes, sessions = collections.Counter(), set()
        for turn in turns_over(3, nodes, at_least=20):
            messages.append({"role": "user", "content": f"message number {turn}"})
            answer = self.ask(messages)
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            self.assertIn(f"number {turn}", answer.choices[0].message.content)
            about = answer.model_extra["baton"]
            self.assertTrue(about["verified"])
            self.assertEqual(about["turn"], turn + 1)
            nodes[about["node"]] += 1
            sessions.add(about["session"])
            messages.append(answer.choices[0].message.model_dump())
        self.assertEqual(len(sessions), 1)
        session = sessions.pop()
        baton = lambda *words: subprocess.run(
            [programs.path("baton"), "session", *words, *map(str, self.settings)], capture_output=True, text=True
        ).stdout
        # The session's file is the gateway's until it was at rest for a while: others read it, and change nothing.
        self.assertIn('"verified":true', baton("verify", session, "--full"))
        self.assertIn("InUse", baton("rename", session, "mine"))

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

    def test_what_a_test_engine_cannot_do_is_refused(self):
        for refused in [{"logprobs": True}, {"response_format": {"type": "json_object"}}]:
            with self.assertRaises(openai.BadRequestError, msg=str(refused)) as error:
                self.ask([{"role": "user", "content": f"hi {refused}"}], **refused)
            self.assertEqual(error.exception.code, "unsupported_parameter")

    def test_errors_are_the_exceptions_that_programs_catch(self):
        hi = [{"role": "user", "content": "hi"}]
        stranger = self.client.with_options(api_key="sk-wrong")
        with self.assertRaises(openai.AuthenticationError):
            stranger.models.list()
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="gpt-4", messages=hi)
        for refused in [
            {"n": 5}, {"extra_body": {"best_of": 2}}, {"response_format": {"type": "grammar"}},
            {"tools": [{"type": "function", "function": {"name": "f"}}]}, {"tool_choice": "sometimes"},
            {"extra_body": {"unheard": 1}},
        ]:
            with self.assertRaises(openai.BadRequestError, msg=str(refused)) as error:
                self.ask(hi, **refused)
            self.assertIn(error.exception.code, ("unsupported_parameter", "unknown_parameter"))
        with self.assertRaises(openai.BadRequestError) as error:
            self.ask([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}])
        self.assertEqual(error.exception.param, "messages[0].content[0].type")
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model=self.model, input="hi")

    def test_tools_are_refused_where_no_node_has_a_model_that_takes_them(self):
        with self.assertRaises(openai.BadRequestError) as error:
            self.ask([{"role": "user", "content": "hi"}], tools=[{"type": "function", "function": {"name": "f"}}])
        self.assertEqual((error.exception.code, error.exception.param), ("unsupported_parameter", "tools"))

    def test_embeddings_of_like_texts_are_near_each_other(self):
        texts = ["The cat sleeps on the sofa.", "A cat is sleeping on a sofa.", "Interest rates rose in March."]
        # The client asks for base64 where it is not told, and gives floats either way.
        embedded = {name: self.client.embeddings.create(model=EMBEDDER, input=texts, **asked) for name, asked in
                    {"default": {}, "float": {"encoding_format": "float"}, "base64": {"encoding_format": "base64"}}.items()}
        plain = [item.embedding for item in embedded["float"].data]
        self.assertEqual([item.index for item in embedded["float"].data], [0, 1, 2])
        for found, expected in zip(embedded["default"].data, plain):
            self.assertEqual(len(found.embedding), 384)
            self.assertTrue(all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(found.embedding, expected)))
        self.assertIsInstance(embedded["base64"].data[0].embedding, str)
        same, alike, other = plain
        self.assertAlmostEqual(sum(x * x for x in same), 1, places=4)
        cosine = lambda a, b: sum(x * y for x, y in zip(a, b))
        self.assertGreater(cosine(same, alike), cosine(same, other) + 0.2)
        about = embedded["float"]
        self.assertEqual((about.model, about.usage.prompt_tokens), (EMBEDDER, about.usage.total_tokens))
        self.assertGreater(about.usage.total_tokens, 10)
        self.assertTrue(about.model_extra["baton"]["verified"])
        one = self.client.embeddings.create(model=EMBEDDER, input=texts[0], dimensions=384, user="somebody")
        self.assertTrue(all(math.isclose(a, b, abs_tol=1e-4) for a, b in zip(one.data[0].embedding, same)))
        many = self.client.embeddings.create(model=EMBEDDER, input=[f"text number {n}" for n in range(100)])
        self.assertEqual([item.index for item in many.data], list(range(100)))

    def test_what_embeddings_cannot_be_is_refused(self):
        self.assertIn(EMBEDDER, [model.id for model in self.client.models.list()])
        for refused in [{"input": [1, 2, 3]}, {"input": "a", "dimensions": 8}, {"input": "a", "extra_body": {"unheard": 1}},
                        {"input": ""}, {"input": "x" * 9000}]:
            with self.assertRaises(openai.BadRequestError, msg=str(refused)):
                self.client.embeddings.create(model=EMBEDDER, **refused)
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model="text-embedding-3-small", input="hi")

    def test_answers_and_errors_have_a_name(self):
        answer = self.ask([{"role": "user", "content": "hi there"}])
        self.assertTrue(answer._request_id.startswith("req_"))
        self.assertTrue(answer.system_fingerprint.startswith("fp_"))
        with self.assertRaises(openai.BadRequestError) as error:
            self.ask([{"role": "system", "content": "Be brief."}])
        self.assertTrue(error.exception.request_id.startswith("req_"))
        self.assertIn("only system text", error.exception.message)

    def respond(self, text, **more):
        return self.client.responses.create(model=self.model, input=text, **more)

    def test_responses_follow_each_other_in_one_session(self):
        sessions, previous = set(), None
        for turn in range(9):
            answer = self.respond(f"response number {turn}", **({"previous_response_id": previous} if previous else {}))
            self.assertEqual((answer.status, answer.previous_response_id), ("completed", previous))
            self.assertIn(f"number {turn}", answer.output_text)
            self.assertEqual(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)
            sessions.add(answer.model_extra["baton"]["session"])
            previous = answer.id
        self.assertEqual(len(sessions), 1)
        kept = self.client.responses.retrieve(previous)
        self.assertEqual((kept.id, kept.output_text, kept.usage), (previous, answer.output_text, answer.usage))
        items = list(self.client.responses.input_items.list(previous))
        self.assertEqual([item.content[0].text for item in items], ["response number 8"])
        with self.assertRaises(openai.ConflictError):
            self.client.responses.delete(previous)

    def test_a_streamed_response_is_put_together_by_the_client(self):
        with self.client.responses.stream(model=self.model, input="one two three four five six") as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        self.assertIn("one two three four five six", final.output_text)
        self.assertGreater(kinds.count("response.output_text.delta"), 1, "in parts")
        self.assertEqual((kinds[0], kinds[-1]), ("response.created", "response.completed"))
        self.assertEqual(self.client.responses.retrieve(final.id).output_text, final.output_text)

    def test_responses_that_are_not_kept_and_those_that_are_deleted_are_gone(self):
        fleeting = self.respond("do not keep this", store=False)
        self.assertIn("do not keep this", fleeting.output_text)
        lone = self.respond("delete this")
        self.client.responses.delete(lone.id)
        for gone in [fleeting.id, lone.id]:
            with self.assertRaises(openai.NotFoundError):
                self.client.responses.retrieve(gone)
            with self.assertRaises(openai.BadRequestError) as error:
                self.respond("go on", previous_response_id=gone)
            self.assertEqual(error.exception.code, "previous_response_not_found")

    def test_parameters_of_responses_that_are_not_served_are_refused_by_name(self):
        for refused, param in [
            ({"background": True}, "background"), ({"truncation": "auto"}, "truncation"),
            ({"reasoning": {"effort": "high"}}, "reasoning.effort"), ({"max_output_tokens": 3}, "max_output_tokens"),
            ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"extra_body": {"unheard": 1}}, "unheard"),
        ]:
            with self.assertRaises(openai.BadRequestError, msg=str(refused)) as error:
                self.respond("hi", **refused)
            self.assertEqual(error.exception.param, param)

    def test_a_session_is_named_by_header_or_field(self):
        first = self.ask([{"role": "user", "content": "first"}]).model_extra["baton"]
        named = {"x-baton-session": first["session"]}
        second = self.ask([{"role": "user", "content": "second"}], extra_headers=named).model_extra["baton"]
        self.assertEqual((second["session"], second["turn"]), (first["session"], 2))
        third = self.ask([{"role": "user", "content": "third"}], extra_body={"session": first["session"]})
        self.assertEqual(third.model_extra["baton"]["turn"], 3)


class Colour(pydantic.BaseModel):
    """An answer's form. Short, so that a small model ends it."""

    name: str = pydantic.Field(max_length=10)
    warm: bool
    hex_digits: list[int] = pydantic.Field(max_length=3)


@unittest.skipUnless(pathlib.Path.home().joinpath(".cache/baton/models").exists(), "the model is not installed")
class OpenAiClientWithTheModel(Network):
    """JSON and probabilities need a model that chooses tokens."""

    @classmethod
    def setUpClass(cls):
        cls.open(nodes=1, engine="native")

    def ask(self, content, **more):
        messages = [{"role": "user", "content": content}]
        return self.client.chat.completions.create(model=self.model, messages=messages, **more)

    def test_an_answer_is_parsed_into_the_class_that_was_asked_for(self):
        messages = [{"role": "user", "content": "Describe the colour red as JSON."}]
        answer = self.client.chat.completions.parse(
            model=self.model, messages=messages, response_format=Colour, temperature=0, max_tokens=100,
        )
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertIsInstance(answer.choices[0].message.parsed, Colour)

    def test_a_schema_holds_whole_and_in_a_stream(self):
        schema = {"type": "object", "properties": {"z": {"enum": ["x", "y"]}, "a": {"type": "boolean"}},
                  "required": ["z", "a"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "short", "schema": schema, "strict": True}}
        for seed in range(3):
            answer = self.ask("Answer.", response_format=form, seed=seed, temperature=1.5)
            value = json.loads(answer.choices[0].message.content)
            self.assertEqual(list(value), ["z", "a"])
            parts = self.ask("Answer.", response_format=form, seed=seed, temperature=1.5, stream=True)
            text = "".join(part.choices[0].delta.content or "" for part in parts)
            self.assertEqual(json.loads(text), value, "the same seed")

    def test_a_forced_call_satisfies_the_schema_of_its_tool(self):
        place = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "day": {"enum": ["today", "tomorrow"]}},
                 "required": ["city", "day"], "additionalProperties": False}
        tools = [{"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": place, "strict": True}},
                 {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}]
        messages = [{"role": "user", "content": "What is the weather in Paris today?"}]
        asked = {"model": self.model, "tools": tools, "parallel_tool_calls": False, "temperature": 0, "max_tokens": 80}
        named = {"type": "function", "function": {"name": "get_weather"}}
        answer = self.client.chat.completions.create(messages=messages, tool_choice=named, **asked)
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        [call] = answer.choices[0].message.tool_calls
        self.assertEqual(call.function.name, "get_weather")
        arguments = json.loads(call.function.arguments)
        self.assertEqual(list(arguments), ["city", "day"])
        self.assertIn(arguments["day"], ("today", "tomorrow"))
        [either] = self.client.chat.completions.create(messages=messages, tool_choice="required", **asked).choices[0].message.tool_calls
        self.assertIn(either.function.name, ("get_weather", "now"))
        # The result is answered in the same session, with the tools in the prompt.
        messages += [answer.choices[0].message.model_dump(exclude_none=True),
                     {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees."}]
        asked["parallel_tool_calls"] = True
        tools[0]["function"].pop("strict")
        told = self.client.chat.completions.create(messages=messages, **asked)
        self.assertIn(told.choices[0].finish_reason, ("stop", "length", "tool_calls"))
        self.assertEqual(told.model_extra["baton"]["session"], answer.model_extra["baton"]["session"])
        self.assertEqual(told.model_extra["baton"]["turn"], 2)
        stream = self.client.responses.create(
            model=self.model, input="What is the weather in Rome tomorrow?", stream=True, temperature=0, max_output_tokens=80,
            tools=[{"type": "function", "name": "get_weather", "parameters": place, "strict": True}], tool_choice="required",
        )
        [done] = [event for event in stream if event.type == "response.function_call_arguments.done"]
        self.assertEqual(set(json.loads(done.arguments)), {"city", "day"})

    def test_json_object_begins_an_object(self):
        answer = self.ask("Say hello in JSON.", response_format={"type": "json_object"}, temperature=0, max_tokens=200)
        text = answer.choices[0].message.content
        self.assertTrue(text.startswith("{"), text)
        if answer.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(text), dict)

    def test_penalties_and_biases_change_the_answer(self):
        question = "Write the word yes many times."
        settings = [{}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}]
        answers = [self.ask(question, temperature=0, max_tokens=60, **more) for more in settings]
        texts = [answer.choices[0].message.content for answer in answers]
        self.assertNotIn(texts[0], texts[1:], texts)
        ask = {"temperature": 0, "max_tokens": 1, "logit_bias": {"253": 100}}
        forced = [self.ask(asked, **ask).choices[0].message.content for asked in ("One?", "Two?")]
        self.assertEqual(forced[0], forced[1], "one token, whatever was asked")

    def test_log_probabilities_of_a_chat_and_of_a_text(self):
        question = "What is the capital of France?"
        # The penalty that small models have by default makes another token the likeliest.
        raw = {"logprobs": True, "top_logprobs": 3, "extra_body": {"repetition_penalty": 1}}
        whole = self.ask(question, temperature=0, max_tokens=8, **raw).choices[0]
        content = whole.logprobs.content
        self.assertEqual("".join(one.token for one in content), whole.message.content)
        for one in content:
            self.assertEqual(len(one.top_logprobs), 3)
            self.assertEqual(one.logprob, one.top_logprobs[0].logprob, "greedy")
            self.assertEqual(bytes(one.bytes).decode(), one.token)
            self.assertLessEqual(sum(math.exp(other.logprob) for other in one.top_logprobs), 1.001)
        parts = self.ask(question, temperature=0, max_tokens=8, stream=True, **raw)
        told = [one for part in parts if part.choices[0].logprobs for one in part.choices[0].logprobs.content]
        self.assertEqual([one.model_dump() for one in told], [one.model_dump() for one in content])
        text = self.client.completions.create(
            model=self.model, prompt=question, logprobs=2, temperature=0, max_tokens=8, extra_body=raw["extra_body"],
        ).choices[0]
        self.assertEqual("".join(text.logprobs.tokens), text.text)
        self.assertEqual(text.logprobs.token_logprobs, [one.logprob for one in content])
        self.assertEqual(text.logprobs.text_offset[1], len(text.logprobs.tokens[0]))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        programs.binaries = pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
