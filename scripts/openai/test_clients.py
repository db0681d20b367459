"""Libraries that other programs are built on, unmodified, against `baton serve` and two nodes with the real model.

    python scripts/openai/test_clients.py target/debug

The model is small: what an answer says does not matter here, only that each library reads it, and that forms and calls hold.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import agents
import instructor
import anthropic
import litellm
import openai
import pydantic
from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

from test_openai import Network, programs

# Longest time of an agent: it reads its instructions first, and the machine may be slow.
SECONDS = 300
ASKED = "Name a city. Answer with its name, and whether it is big."


class City(pydantic.BaseModel):
    """A city. It has no other fields: a small model would add some until its limit."""

    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=12)
    big: bool


TOOLS = [{"type": "function", "function": {"name": "city", "description": "A city.", "parameters": City.model_json_schema()}}]


class Clients(Network):
    @classmethod
    def setUpClass(cls):
        cls.open(nodes=2, engine="native")
        cls.url = cls.gateway.ready["url"]
        cls.host = cls.url.removesuffix("/v1")
        cls.key = pathlib.Path(cls.gateway.ready["key_file"]).read_text().strip()
        os.environ.update(OPENAI_BASE_URL=cls.url, OPENAI_API_KEY=cls.key, ANTHROPIC_BASE_URL=cls.host, ANTHROPIC_API_KEY=cls.key)
        agents.set_tracing_disabled(True)

    def test_litellm_over_three_apis(self):
        messages = [{"role": "user", "content": ASKED}]
        for provider, base in [("openai", self.url), ("anthropic", self.host), ("ollama_chat", self.host)]:
            with self.subTest(provider):
                answer = litellm.completion(
                    model=f"{provider}/{self.model}", messages=messages, api_base=base, api_key=self.key, max_tokens=60)
                self.assertTrue(answer.choices[0].message.content)
        forced = litellm.completion(model=f"openai/{self.model}", messages=messages, tools=TOOLS, tool_choice="required",
                                    api_base=self.url, api_key=self.key, max_tokens=60)
        City.model_validate_json(forced.choices[0].message.tool_calls[0].function.arguments)
        response = litellm.responses(
            model=f"openai/{self.model}", input=ASKED, api_base=self.url, api_key=self.key, max_output_tokens=60)
        self.assertEqual(response.output[0].type, "message")

    def test_langchain_over_three_apis(self):
        chat = ChatOpenAI(model=self.model, base_url=self.url, api_key=self.key, max_tokens=60, temperature=0)
        for method in ("json_schema", "function_calling"):
            self.assertIsInstance(chat.with_structured_output(City, method=method).invoke(ASKED), City)
        self.assertTrue(chat.bind_tools([City], strict=True).invoke(ASKED).content)
        [call] = chat.bind_tools([City], tool_choice="any").invoke(ASKED).tool_calls
        City.model_validate(call["args"])
        messages = ChatAnthropic(model=self.model, base_url=self.host, api_key=self.key, max_tokens=60)
        self.assertTrue("".join(part.text for part in messages.stream(ASKED)))
        [call] = messages.bind_tools([City], tool_choice="any").invoke(ASKED).tool_calls
        City.model_validate(call["args"])
        headers = {"headers": {"Authorization": f"Bearer {self.key}"}}
        ollama = ChatOllama(model=self.model, base_url=self.host, client_kwargs=headers, num_predict=60)
        self.assertTrue("".join(part.text for part in ollama.stream(ASKED)))
        self.assertIsInstance(ollama.with_structured_output(City).invoke(ASKED), City)

    def test_instructor_in_its_modes(self):
        asked = {"model": self.model, "messages": [{"role": "user", "content": ASKED}], "response_model": City, "max_retries": 1}
        for mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"):
            with self.subTest(mode):
                client = instructor.from_openai(openai.OpenAI(), mode=getattr(instructor.Mode, mode))
                self.assertIsInstance(client.chat.completions.create(**asked, max_tokens=80), City)
        client = instructor.from_openai(openai.OpenAI(), mode=instructor.Mode.RESPONSES_TOOLS)
        self.assertIsInstance(client.chat.completions.create(**asked, max_output_tokens=80), City)
        client = instructor.from_anthropic(anthropic.Anthropic(), mode=instructor.Mode.ANTHROPIC_TOOLS)
        self.assertIsInstance(client.messages.create(**asked, max_tokens=80), City)

    def test_pydantic_ai(self):
        settings = {"max_tokens": 80, "temperature": 0}
        for form in (City, NativeOutput(City)):
            agent = Agent(OpenAIChatModel(self.model), output_type=form, model_settings=settings)
            self.assertIsInstance(agent.run_sync(ASKED).output, City)
        agent = Agent(OpenAIChatModel(self.model), model_settings=settings)
        agent.tool_plain(weather)
        self.assertTrue(agent.run_sync(ASKED).output)
        self.assertTrue(Agent(OpenAIResponsesModel(self.model), model_settings=settings).run_sync(ASKED).output)

    def test_openai_agents(self):
        # Of a response that a limit cuts, agents raises an error: a small model may need many words.
        settings = agents.ModelSettings(max_tokens=400, temperature=0)
        brief = {"instructions": "Be brief.", "model": self.model, "model_settings": settings}
        with_tool = agents.Agent(name="a", tools=[agents.function_tool(weather)], **brief)
        self.assertTrue(agents.Runner.run_sync(with_tool, ASKED).final_output)
        with_form = agents.Agent(name="b", output_type=City, **brief)
        self.assertIsInstance(agents.Runner.run_sync(with_form, ASKED).final_output, City)
        handing_on = agents.Agent(name="c", handoffs=[agents.Agent(name="d", **brief)], **brief)
        self.assertTrue(agents.Runner.run_sync(handing_on, ASKED).final_output)


    def test_the_ai_sdk_in_its_providers(self):
        sdk = pathlib.Path(__file__).parents[1] / "ai-sdk" / "test.mjs"
        subprocess.run(["node", sdk, self.model], check=True)


class CallingModel(Network):
    """The model of the catalogue that calls tools by itself."""

    @classmethod
    def setUpClass(cls):
        os.environ["BATON_NODE_MODEL"] = "qwen2.5-coder-1.5b-instruct"
        cls.open(nodes=1, engine="native")
        key = pathlib.Path(cls.gateway.ready["key_file"]).read_text().strip()
        os.environ.update(OPENAI_BASE_URL=cls.gateway.ready["url"], OPENAI_API_KEY=key)
        agents.set_tracing_disabled(True)

    @classmethod
    def tearDownClass(cls):
        del os.environ["BATON_NODE_MODEL"]
        super().tearDownClass()

    def test_an_agent_calls_a_tool_and_uses_its_result(self):
        asked = "Look up the weather in Oslo with the tool, then tell me in one sentence whether I need an umbrella."
        settings = agents.ModelSettings(max_tokens=80, temperature=0, parallel_tool_calls=False)
        agent = agents.Agent(name="w", tools=[agents.function_tool(weather)], model=self.model, model_settings=settings)
        result = agents.Runner.run_sync(agent, asked)
        self.assertIn("tool_call_output_item", [item.type for item in result.new_items])
        self.assertIn("umbrella", result.final_output)

    def test_aider_mends_a_function(self):
        if "AIDER" not in os.environ:
            self.skipTest("AIDER names no program")
        options = "--edit-format whole --map-tokens 0 --yes-always --no-check-update --no-analytics --no-show-model-warnings"
        asked = "add() must return the sum of a and b. Fix it."
        for stream in ("--stream", "--no-stream"):
            with self.subTest(stream), tempfile.TemporaryDirectory() as folder:
                code = pathlib.Path(folder, "calc.py")
                code.write_text("def add(a, b):\n    return a - b\n")
                subprocess.run(
                    [os.environ["AIDER"], "--model", "openai/auto", *options.split(), "--no-git", stream, "--message", asked, code],
                    check=True, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=SECONDS,
                    env=os.environ | {"OPENAI_API_BASE": os.environ["OPENAI_BASE_URL"], "HOME": folder})
                self.assertEqual(code.read_text().split(), "def add(a, b): return a + b".split())


def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        programs.binaries = pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
