"""A loop of tool calls with OpenAI's Python client, unmodified, against `baton serve` and two nodes.

    python scripts/openai/test_tools.py target/debug

Each node hands its turns to a server here that speaks the same API, keeps what it was asked, and answers by a script.
"""

import collections
import http.server
import json
import pathlib
import sys
import tempfile
import threading
import unittest

import openai
from openai.types.chat import ChatCompletionMessage

from test_openai import programs
from programs import Program

TOOLS = [{"type": "function", "function": {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}}]


class Backend(http.server.ThreadingHTTPServer):
    """Calls a tool for each city that the person names, and says what the tools said; or is too busy for either."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []
        self.busy = False
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.busy:
            return self.send_error(429)
        self.server.asked.append(body)
        last = body["messages"][-1]
        if last["role"] == "user" and body.get("tools"):
            name = body["tools"][0]["function"]["name"]
            deltas, finish = [{"content": "I ask."}], "tool_calls"
            for index, city in enumerate(last["content"].split()):
                begun = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
                deltas.append({"tool_calls": [begun]})
                # In parts, as servers send it.
                for part in ('{"ci', 'ty": "', city, '"}'):
                    deltas.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
        else:
            results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
            deltas, finish = [{"content": word + " "} for word in ("It", "says", *results)], "stop"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for delta in deltas:
            self.event({"choices": [{"index": 0, "delta": delta}]})
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        self.event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(deltas)}})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value):
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())

    def log_message(self, *_):
        pass


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        cls.backends = {}
        store = ["--data-dir", folder / "store", "--shards", "10", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        cls.programs = [Program("baton-testnet", "store", *store, "--json")]
        url = cls.programs[0].ready["url"]
        shared = ["--publisher", url, "--aggregator", url, "--shards", "10"]
        nodes = []
        for index in range(2):
            server = Backend()
            backend = ["--engine", "proxied", "--proxied-url", f"http://127.0.0.1:{server.server_port}", "--proxied-model", "m"]
            place = ["--data-dir", folder / f"node-{index}", "--listen", "/ip4/127.0.0.1/tcp/0", "--mdns", "false"]
            node = Program("baton-node", "run", "--json", *place, "--admin", "127.0.0.1:0", *shared, *backend)
            cls.programs.append(node)
            cls.backends[node.ready["node"]] = server
            nodes += ["--node", node.ready["listen"][0]]
        home = ["--home", folder / "home", "--config", "/dev/null", "--publisher", url, "--shards", "10", *nodes]
        cls.gateway = Program("baton", "serve", "--listen", "127.0.0.1:0", *home, "--json")
        key = pathlib.Path(cls.gateway.ready["key_file"]).read_text().strip()
        cls.client = openai.OpenAI(base_url=cls.gateway.ready["url"], api_key=key, max_retries=0)
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        codes = [cls.gateway.stop(), *(program.stop() for program in reversed(cls.programs))]
        cls.client.close()
        for server in cls.backends.values():
            server.shutdown()
            server.server_close()
        cls.folder.cleanup()
        if any(codes):
            raise RuntimeError(f"the programs ended with {codes}")

    def whole(self, messages):
        answer = self.client.chat.completions.create(model=self.model, messages=messages, tools=TOOLS)
        choice = answer.choices[0]
        return choice.message, choice.finish_reason, answer.model_extra["baton"]

    def streamed(self, messages):
        stream = self.client.chat.completions.create(model=self.model, messages=messages, tools=TOOLS, stream=True)
        content, calls, finish, about = "", [], None, None
        for chunk in stream:
            choice = chunk.choices[0]
            content += choice.delta.content or ""
            for part in choice.delta.tool_calls or []:
                if part.index == len(calls):
                    calls.append({"id": part.id, "type": "function", "function": {"name": part.function.name, "arguments": ""}})
                calls[part.index]["function"]["arguments"] += part.function.arguments
            finish = choice.finish_reason or finish
            about = (chunk.model_extra or {}).get("baton", about)
        message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
        return ChatCompletionMessage.model_validate(message), finish, about

    def loop(self, ask):
        messages, nodes, sessions = [{"role": "system", "content": "Be brief."}], collections.Counter(), set()
        for turn in range(4):
            messages.append({"role": "user", "content": f"Paris Rome-{turn}"})
            message, finish, about = ask(messages)
            self.assertEqual(finish, "tool_calls")
            self.assertEqual(message.content, "I ask.")
            arguments = [json.loads(call.function.arguments) for call in message.tool_calls]
            self.assertEqual(arguments, [{"city": "Paris"}, {"city": f"Rome-{turn}"}])
            messages.append(message.model_dump(exclude_none=True))
            # The second result first: what they answer is told by their ids.
            for call in reversed(message.tool_calls):
                city = json.loads(call.function.arguments)["city"]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": f"rain-in-{city}"})
            nodes[about["node"]] += 1
            sessions.add(about["session"])
            # The results go to the other node.
            caller = self.backends[about["node"]]
            caller.busy = True
            message, finish, about = ask(messages)
            caller.busy = False
            self.assertEqual(finish, "stop")
            self.assertFalse(message.tool_calls)
            self.assertIn(f"rain-in-Rome-{turn}", message.content)
            self.assertEqual(about["turn"], 2 * turn + 2)
            nodes[about["node"]] += 1
            sessions.add(about["session"])
            messages.append({"role": "assistant", "content": message.content})
        self.assertEqual(len(sessions), 1)
        self.assertEqual(len(nodes), 2, nodes)
        self.assertIsNot(caller, self.backends[about["node"]])
        asked = self.backends[about["node"]].asked[-1]
        self.assertEqual(asked["tools"], TOOLS)
        called, second, first = asked["messages"][-3:]
        ids = [call["id"] for call in called["tool_calls"]]
        self.assertEqual([first["tool_call_id"], second["tool_call_id"]], ids)
        self.assertEqual((called["content"], first["content"]), ("I ask.", "rain-in-Paris"))

    def test_a_loop_over_two_nodes_in_one_session(self):
        self.loop(self.whole)

    def test_a_loop_of_streams(self):
        self.loop(self.streamed)

    def test_a_loop_of_responses(self):
        function = TOOLS[0]["function"]
        tools = [{"type": "function", **function, "strict": False}]
        ask = lambda given, **more: self.client.responses.create(model=self.model, input=given, tools=tools, **more)
        answer, sessions = None, set()
        for turn in range(3):
            following = {"previous_response_id": answer.id} if answer else {}
            answer = ask(f"Paris Oslo-{turn}", **following)
            calls = [item for item in answer.output if item.type == "function_call"]
            self.assertEqual([json.loads(call.arguments)["city"] for call in calls], ["Paris", f"Oslo-{turn}"])
            self.assertEqual(answer.output_text, "I ask.")
            outputs = [{"type": "function_call_output", "call_id": call.call_id,
                        "output": f"rain-in-{json.loads(call.arguments)['city']}"} for call in calls]
            with self.client.responses.stream(
                model=self.model, input=outputs, tools=tools, previous_response_id=answer.id
            ) as stream:
                stream.until_done()
                answer = stream.get_final_response()
            self.assertIn(f"rain-in-Oslo-{turn}", answer.output_text)
            sessions.add(answer.model_extra["baton"]["session"])
        self.assertEqual(len(sessions), 1)
        events = list(ask("Rome Bern", stream=True))
        done = [event for event in events if event.type == "response.function_call_arguments.done"]
        self.assertEqual([json.loads(event.arguments)["city"] for event in done], ["Rome", "Bern"])

    def test_a_program_that_wants_one_call_gets_one(self):
        asked = [{"role": "user", "content": "Paris Rome"}]
        answer = self.client.chat.completions.create(
            model=self.model, messages=asked, tools=TOOLS, parallel_tool_calls=False)
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        [call] = answer.choices[0].message.tool_calls
        self.assertEqual(json.loads(call.function.arguments), {"city": "Paris"})

    def test_what_cannot_be_promised_is_refused(self):
        hi = [{"role": "user", "content": "hi"}]
        for refused in [
            {"tool_choice": "sometimes"},
            {"functions": [{"name": "f"}]},
        ]:
            with self.assertRaises(openai.BadRequestError, msg=str(refused)) as error:
                self.client.chat.completions.create(model=self.model, messages=hi, tools=TOOLS, **refused)
            self.assertEqual((error.exception.code, error.exception.param), ("unsupported_parameter", next(iter(refused))))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        programs.binaries = pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
