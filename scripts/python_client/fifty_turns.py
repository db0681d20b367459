"""Drives the Python client against a store and three nodes of its own, kills a node in the middle of an answer, and has the
result verified by both verifiers and continued by the Rust client.

    python scripts/python_client/fifty_turns.py target/debug [--full] [--model-dir FOLDER]

needs `baton`, `baton-node` and `baton-testnet` in that folder, and `baton_client` in this Python. The nodes run the test engine,
which repeats the message. With the folder of a model, two more nodes run it, for a few turns of the same session.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from baton_client import BatonError, Client, Finished, Takeover, TextPiece

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import programs
from programs import SECONDS, Program

SHARDS = 10
# Milliseconds for each token of the test engine: an answer takes long enough to kill its node meanwhile.
ECHO_DELAY_MS = 3
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


class MortalProgram(Program):
    """A program that is killed, and started again at its address."""

    def kill(self):
        """Ends it at once, as a loss of power would."""
        self.process.kill()
        self.process.wait(SECONDS)
        self.process.stdout.close()

    def start_again(self):
        """Starts it again after `kill`, at the address that it had."""
        if "url" in self.ready:
            address = self.ready["url"].removeprefix("http://")
        else:
            address = self.ready["listen"][0].rsplit("/p2p/", 1)[0]
        self.command[self.command.index("--listen") + 1] = address
        self.start()


class Network:
    """A store and nodes, each a process."""

    def __init__(self, folder, model_dir):
        self.folder, self.programs = folder, []
        store = self.run("baton-testnet", "store", "--listen", "127.0.0.1:0", "--shards", SHARDS, "--data-dir", folder / "s")
        self.store_program, self.store = store, store.ready["url"]
        self.echo = [self.node(f"echo{i}", "--engine", "echo", "--echo-delay-ms", ECHO_DELAY_MS) for i in range(3)]
        self.native = []
        if model_dir is not None:
            self.native = [self.node(f"native{i}", "--engine", "native", "--model-dir", model_dir) for i in range(2)]

    def run(self, *command):
        program = MortalProgram(*command, "--json")
        self.programs.append(program)
        return program

    def node(self, name, *options):
        data = self.folder / name
        data.mkdir(mode=0o700)
        common = ["--data-dir", data, "--listen", "/ip4/127.0.0.1/tcp/0", "--mdns", "false", "--admin", "none", "--shards", SHARDS]
        return self.run("baton-node", "run", *common, "--publisher", self.store, "--aggregator", self.store, *options)

    @property
    def addresses(self):
        return [node.ready["listen"][0] for node in self.echo + self.native]

    def stop(self):
        for program in reversed(self.programs):
            program.stop()


def check(condition, what):
    if not condition:
        sys.exit(f"error: {what}")


def run(*command):
    """Runs a program to its end. Returns what it printed for programs; messages for people stand after it."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=SECONDS * 3)
    check(done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def turn_with_kill(session, victim, message, expected, **options):
    """A turn whose node is killed when some of the answer was shown. Returns what the table shows of it."""
    text, takeover, finished, begin = "", None, None, time.monotonic()
    for event in session.events(message, node=victim.ready["peer_id"], **options):
        if isinstance(event, TextPiece):
            text += event.text
            if takeover is None and victim.process.poll() is None and text.count(" ") > 5:
                victim.kill()
        elif isinstance(event, Takeover):
            takeover = event
            check(event.kept_tokens > 0, f"the answer began anew: {event.cause}")
            shown = text
        elif isinstance(event, Finished):
            finished = event
    check(takeover is not None and finished is not None, f"the node was killed too late to see a takeover: {text!r}")
    turn = session.history[finished.seq]
    check(turn.text == text and text.startswith(shown), "text was lost or shown twice at the takeover")
    check(expected is None or text == expected, f"the answer is not the expected one: {text!r}")
    check(turn.receipt.tokens.resumed == takeover.kept_tokens, "the receipt counts another prefix")
    check(turn.node != takeover.node, "the dead node cannot have finished")
    return f"turn {turn.number}: after {takeover.kept_tokens} tokens, {turn.receipt.tokens.output} in the end, {time.monotonic() - begin:.1f} s"


def converse(session, network, turns, table):
    """A few turns over the model, and all others over the test engine; a node dies in the middle of an answer of each.

    The model comes first: with a history of echoes it would echo too.
    """
    if network.native:
        model = network.native[0].ready["models"][0]["name"]
        story = "Tell a long story about a fox."
        options = {"model": model, "system": "You are a storyteller.", "max_output_tokens": 100}
        table["killed, SmolLM2"] = turn_with_kill(session, network.native[0], story, None, **options)
        network.native[0].start_again()
        for number, question in enumerate(("What is a relay race?", "Who runs first?", "Name three colours.")):
            node = network.native[number % 2].ready["peer_id"]
            turn = session.turn(question, model=model, node=node, max_output_tokens=30)
            check(turn.text and turn.receipt.engine.name == "NATIVE", "the model did not answer")
    kill_at = (len(session.history) + turns) // 2
    for number in range(len(session.history), turns):
        node = network.echo[number % 3]
        message = f"message number {number}: what does a relay race need?"
        if number == kill_at:
            words = "one two three four five six seven eight nine ten " * 20
            row = turn_with_kill(session, node, words, f"echo: {words.strip()}", model="echo")
            table["killed, test engine"] = row
            node.start_again()
            network.store_program.kill()
            continue
        if number == kill_at + 4:
            network.store_program.start_again()
            table["killed, store"] = f"turns {kill_at + 2} to {number} went on without it"
        system = "Be brief." if number % 5 == 0 else None
        turn = session.turn(message, node=node.ready["peer_id"], model="echo", system=system)
        check(turn.text == f"echo: {message}", f"turn {number}: {turn.text!r}")


def rebuild(session, table):
    """Every blob from the store's bytes alone, and from this machine's copy."""
    # The nodes store what they kept; so does the client, with its next turn.
    session.settled()
    session.fix()
    report = session.verify()
    check(report.turns == len(session.history) == report.blobs_rebuilt == report.receipts, f"not everything was verified: {report}")
    table["read from the store"] = f"{report.blobs_fetched} blobs of {report.segments} segments"
    check(report.blob_ids == report.segments, f"not every Walrus ID was computed: {report}")
    table["rebuilt byte for byte"] = f"{report.blobs_rebuilt} blobs, {report.receipts} receipts, {report.blob_ids} Walrus IDs"


def verify_elsewhere(session, folder, config, table):
    """The export by both verifiers; then the session by the Rust client, from an import and from the words."""
    plain, rooted = folder / "session.json", folder / "rooted.json"
    session.export(plain)
    session.export(rooted, with_root=True)
    check(plain.stat().st_mode & 0o077 == 0, "others can read the export")
    report = json.loads(run(sys.executable, ROOT / "scripts/verify_export.py", plain, "--json"))["report"]
    check(report["turns"] == len(session.history), f"verify_export.py: {report}")
    table["verify_export.py"] = "{turns} turns, {receipts_checked} receipts, {acks_checked} acks, {blobs_rebuilt} blobs".format(**report)
    run(sys.executable, ROOT / "scripts/verify_export.py", rooted)
    baton = [programs.path("baton"), "--config", config]
    line = run(*baton, "--home", folder / "h1", "session", "verify", "--full", "--file", plain).strip()
    table["baton session verify --file"] = line.removeprefix("✓ ")
    run(*baton, "--home", folder / "h1", "session", "import", rooted)
    line = run(*baton, "--home", folder / "h1", "session", "verify", "last", "--full").strip()
    table["baton session verify, imported"] = line.splitlines()[-1].strip().removeprefix("✓ ")


def share_with_rust(session, network, folder, config, table):
    """The Rust client restores the session from its words and goes on; the Python client takes its turn."""
    words = folder / "words.txt"
    words.touch(0o600)
    words.write_text(session.words)
    baton = [programs.path("baton"), "--config", config, "--home", folder / "h2"]
    run(*baton, "session", "restore", "--words-file", words)
    run(*baton, "chat", "--allow-echo", "--model", "echo", "-c", "hello from Rust")
    check(session.refresh() == 1, "the turn of the Rust client was not found")
    check(session.history[-1].text == "echo: hello from Rust", f"another turn: {session.history[-1].text!r}")
    check(session.turn("and from Python", model="echo").text == "echo: and from Python", "the session does not go on")
    session.settled()
    with Client(network.addresses, store=network.store, shards=SHARDS) as other:
        restored = other.restore(session.words)
        check([turn.text for turn in restored.history] == [turn.text for turn in session.history], "restored otherwise")
        report = restored.verify()
    table["restored from 24 words"] = f"by the Rust client, which added a turn; by this client: {report.turns} turns"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path)
    parser.add_argument("--full", action="store_true", help="all 50 turns; else 20")
    parser.add_argument("--model-dir", type=pathlib.Path, default=os.environ.get("BATON_MODELS"))
    options = parser.parse_args()
    model_dir = pathlib.Path(options.model_dir or pathlib.Path.home() / ".cache/baton/models")
    if not (model_dir / MODEL_FILE).is_file():
        print(f"the model is not in {model_dir}: its turns go to the test engine (baton-node models pull smollm2-135m-instruct)")
        model_dir = None
    programs.binaries = options.binaries.resolve()
    table, begin = {}, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="baton-python-") as name:
        folder = pathlib.Path(name)
        network = Network(folder, model_dir)
        try:
            config = folder / "baton.toml"
            config.write_text(f"publisher = {json.dumps(network.store)}\nshards = {SHARDS}\nnode = {json.dumps(network.addresses)}\n")
            with Client(network.addresses, store=network.store, shards=SHARDS, home=folder / "home") as client:
                session = client.new_session()
                converse(session, network, 50 if options.full else 20, table)
                nodes = {turn.node for turn in session.history}
                check(len(nodes) == 3 + len(network.native), f"{len(nodes)} nodes served")
                models = f" and {len(network.native)} of SmolLM2" if network.native else ""
                table = {"turns": f"{len(session.history)} in one session, over 3 nodes of the test engine{models}", **table}
                rebuild(session, table)
                verify_elsewhere(session, folder, config, table)
                share_with_rust(session, network, folder, config, table)
        except BatonError as error:
            sys.exit(f"error: {error}")
        finally:
            network.stop()
    table["time"] = f"{time.monotonic() - begin:.1f} s"
    width = max(map(len, table))
    for what, result in table.items():
        print(f"{what:<{width}}  {result}")


if __name__ == "__main__":
    main()
