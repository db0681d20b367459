#!/usr/bin/env python3
"""Runs the commands of README.md and docs/*.md, so that each one works as written.

  scripts/docs_commands.py --bin FOLDER [--keep-going] [DOCUMENT ...]

A block that is fenced as ```sh runs with `bash -euo pipefail`. An HTML comment on the line above the fence changes this:

  <!-- not run: REASON -->              the block needs something that is not here; its commands must still exist
  <!-- background, ready when: TEXT --> the block runs until the document ends; the next one waits for TEXT in its output

A ```text block right below a block states its output: each line must occur in it, and `...` stands for anything.

Each document has an empty home, an empty folder to work in, and a private network: a store and three nodes with the real
model, and a relayer if the document has commands for memory. Variables such as BATON_NODE name their addresses, so a
document needs none. Exported variables and the folder pass from block to block, as in a reader's terminal.

In a block that is not run, every line that begins with a program of ours is compared with that program's --help:
subcommands and long options must be there.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import List, Optional

from free_ports import free_ports

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("baton", "baton-node", "baton-relayer", "baton-testnet")
BLOCK_SECONDS = 180
READY_SECONDS = 60
# Documents name the programs' default ports. Here each is another one, so that nothing else on the machine is met.
DEFAULT_PORTS = {"serve": 8788, "relayer": 8000, "admin": 9464, "store": 31415}


@dataclass
class Block:
    """A fenced block of commands."""

    line: int
    commands: str
    not_run: Optional[str] = None
    ready_when: Optional[str] = None
    expected: List[str] = field(default_factory=list)


class Failed(Exception):
    """A block that does not do as its document says."""


def blocks_of(text):
    """The ```sh blocks of a document, in order."""
    blocks, lines, number = [], text.splitlines(), 0
    # The block that a ```text block would belong to: only blank lines are between them.
    above = None
    while number < len(lines):
        fence = re.match(r"(\s*)```(\w*)\s*$", lines[number])
        if not fence:
            if lines[number].strip():
                above = None
            number += 1
            continue
        end = next(
            (end for end in range(number + 1, len(lines)) if lines[end].strip() == "```"), len(lines)
        )
        content = [line[len(fence[1]) :] for line in lines[number + 1 : end]]
        if fence[2] == "sh":
            above = Block(number + 1, "\n".join(content) + "\n")
            comment = lines[number - 1].strip() if number else ""
            not_run = re.fullmatch(r"<!-- not run: (.+) -->", comment)
            background = re.fullmatch(r"<!-- background, ready when: (.+) -->", comment)
            above.not_run = not_run and not_run[1]
            above.ready_when = background and background[1]
            blocks.append(above)
        else:
            if fence[2] == "text" and above:
                above.expected = [line for line in content if line.strip()]
            elif any(line.split(" ")[0] in PROGRAMS for line in content):
                raise Failed(f"line {number + 1}: a block of commands is fenced as ```sh")
            above = None
        number = end + 1
    return blocks


def missing_lines(expected, output):
    """The expected lines that do not occur in an output."""
    lines = output.splitlines()

    def occurs(line):
        pattern = re.compile(".*".join(re.escape(part) for part in line.strip().split("...")))
        return any(pattern.search(other) for other in lines)

    return [line for line in expected if not occurs(line)]


# ---- Blocks that are not run -----------------------------------------------------------------------------------


def calls_of(commands):
    """The calls of our programs in a block, each as a list of words."""
    for line in commands.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.commenters, lexer.whitespace_split = "#", True
        words = []
        for word in [*lexer, ";"]:
            if not word or set(word) - set("();<>|&"):
                words.append(word)
                continue
            while words and (words[0] == "sudo" or re.match(r"\w+=", words[0])):
                words.pop(0)
            if words and Path(words[0]).name in PROGRAMS:
                yield [Path(words[0]).name, *words[1:]]
            words = []


@lru_cache(maxsize=None)
def help_of(bin_folder, path):
    """The help of a command, or None if there is no such command."""
    run = subprocess.run(
        [str(Path(bin_folder) / path[0]), *path[1:], "--help"], capture_output=True, text=True, timeout=30
    )
    return run.stdout if run.returncode == 0 else None


@lru_cache(maxsize=None)
def settings(bin_folder):
    """The options of every command of `baton`, which its help leaves to `baton config`."""
    run = subprocess.run(
        [str(Path(bin_folder) / "baton"), "config", "--config", "/dev/null", "--json"],
        capture_output=True, text=True, timeout=30, check=True,
    )
    keys = json.loads(run.stdout)["settings"]
    return " ".join(f"--{key.replace('_', '-')}" for key in keys) + " --dht=false --renew=false"


def check_call(bin_folder, call):
    """Compares a call with the help of its program; raises Failed."""
    path, words = tuple(call[:1]), call[1:]
    text = help_of(bin_folder, path)
    while words and not words[0].startswith("-"):
        longer = (*path, words[0])
        text_of_longer = help_of(bin_folder, longer)
        if text_of_longer is None:
            raise Failed(f"{' '.join(path)} has no command {words[0]}")
        # After an argument, --help is the same command's.
        if not re.search(rf"^Usage: {re.escape(' '.join(longer))}\b", text_of_longer, re.MULTILINE):
            break
        path, words, text = longer, words[1:], text_of_longer
    for word in words:
        option = re.match(r"--[a-z][a-z-]*", word)
        # `doctor` takes every option of `run`.
        known = text + (help_of(bin_folder, ("baton-node", "run")) if path == ("baton-node", "doctor") else "")
        known += settings(bin_folder) if path[0] == "baton" else ""
        if option and not re.search(re.escape(option[0]) + r"(?![a-z-])", known):
            raise Failed(f"{' '.join(path)} has no option {option[0]}")


# ---- Blocks that run -------------------------------------------------------------------------------------------


class Machine:
    """The home, the folder and the network of one document."""

    def __init__(self, bin_folder, needs_network, needs_relayer):
        self.folder = Path(tempfile.mkdtemp(prefix="baton-docs-"))
        self.processes = []
        self.ports = {}
        home, work = self.folder / "home", self.folder / "work"
        home.mkdir(mode=0o700)
        work.mkdir()
        (work / "scripts").symlink_to(ROOT / "scripts")
        if (ROOT / ".venv").exists():
            (work / ".venv").symlink_to(ROOT / ".venv")
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("BATON_", "XDG_"))}
        self.environment = {
            **keep,
            "HOME": str(home),
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "BATON_NODE_MODEL_DIR": os.environ["BATON_NODE_MODEL_DIR"],
            # As in scripts/setup.sh: nodes of other networks on this machine are not found.
            **{f"{program}_MDNS": "false" for program in ("BATON", "BATON_NODE", "BATON_RELAYER")},
            # Drawn answers may be long, and `baton session rekey` carries a whole conversation on in one message.
            "BATON_MAX_TOKENS": "200",
        }
        self.state = self.folder / "state"
        self.state.write_text(f"cd {shlex.quote(str(work))}\n")
        if needs_network:
            self.start_network()
        if needs_relayer:
            self.start_relayer()

    def start_network(self):
        up = self.start(["baton-testnet", "up", "--json", "--data-dir", str(self.folder / "network")], "network")
        ready = json.loads(self.wait_for(up, '"ready"'))
        store, nodes = ready["store"], ",".join(ready["nodes"])
        self.ports = dict(zip(DEFAULT_PORTS, free_ports(len(DEFAULT_PORTS))))
        self.ports["store"] = int(store.rsplit(":", 1)[1])
        for program in ("BATON", "BATON_NODE", "BATON_RELAYER"):
            self.environment[f"{program}_SHARDS"] = str(ready["shards"])
            for one in ("PUBLISHER", "AGGREGATOR", "HEADS"):
                plural = "S" if program == "BATON_RELAYER" and one != "HEADS" else ""
                self.environment[f"{program}_{one}{plural}"] = store
        self.environment.update(
            {
                "BATON_NODE": nodes,
                "BATON_SERVE_LISTEN": f"127.0.0.1:{self.ports['serve']}",
                "BATON_NODE_BOOTSTRAP": nodes,
                "BATON_NODE_LISTEN": "/ip4/127.0.0.1/tcp/0",
                "BATON_NODE_ADMIN": f"127.0.0.1:{self.ports['admin']}",
                "BATON_RELAYER_BOOTSTRAP": nodes,
                "BATON_RELAYER_LISTEN": "/ip4/127.0.0.1/tcp/0",
                "BATON_RELAYER_HTTP": f"127.0.0.1:{self.ports['relayer']}",
            }
        )

    def start_relayer(self):
        data = {"BATON_RELAYER_DATA_DIR": str(self.folder / "relayer")}
        subprocess.run(
            ["baton-relayer", "init"], env={**self.environment, **data}, check=True, capture_output=True
        )
        relayer = self.start(["baton-relayer", "run", "--json"], "relayer", data)
        ready = json.loads(self.wait_for(relayer, '"ready"'))
        self.environment["BATON_RELAYER_URL"] = f"http://127.0.0.1:{self.ports['relayer']}"
        address = next((address for address in ready.get("listen", []) if "/p2p/" in address), None)
        if address:
            self.environment["BATON_RELAYER"] = address

    def start(self, command, name, more=None):
        """Starts a process that runs until the document ends, with its output in a file."""
        output = self.folder / f"{name}-{len(self.processes)}.out"
        with output.open("w") as file:
            process = subprocess.Popen(
                command,
                env={**self.environment, **(more or {})},
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.processes.append(process)
        return process, output

    def wait_for(self, started, text):
        """Waits until a process has written a text; returns the line that has it."""
        process, output = started
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            written = output.read_text(errors="replace")
            for line in written.splitlines():
                if text in line:
                    return line
            if process.poll() is not None:
                raise Failed(f"the process ended before it wrote {text!r}:\n{written}")
            time.sleep(0.05)
        raise Failed(f"the process did not write {text!r} within {READY_SECONDS} s:\n{output.read_text()}")

    def run(self, block):
        """Runs a block; raises Failed."""
        commands = block.commands
        for name, port in self.ports.items():
            commands = commands.replace(f"127.0.0.1:{DEFAULT_PORTS[name]}", f"127.0.0.1:{port}")
        state = shlex.quote(str(self.state))
        script = f"source {state}\n{commands}"
        if block.ready_when:
            self.wait_for(self.start(["bash", "-euo", "pipefail", "-c", script], "background"), block.ready_when)
            return
        script += f'{{ export -p; printf "cd %q\\n" "$PWD"; }} >{state}\n'
        # A file, since a pipe would stay open as long as a process in the background.
        process, output = self.start(["bash", "-euo", "pipefail", "-c", script], "block")
        try:
            code = process.wait(BLOCK_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        written = output.read_text(errors="replace")
        if code is None:
            raise Failed(f"the block takes more than {BLOCK_SECONDS} s:\n{written}")
        if code != 0:
            raise Failed(f"exit code {code}:\n{written}")
        missing = missing_lines(block.expected, written)
        if missing:
            raise Failed("missing in the output:\n" + "\n".join(missing) + f"\n-- the output:\n{written}")

    def close(self):
        for wait, signal_number in ((10, signal.SIGTERM), (5, signal.SIGKILL)):
            for process in self.processes:
                try:
                    # The group: a block may have left processes behind.
                    os.killpg(process.pid, signal_number)
                except ProcessLookupError:
                    continue
            until = time.monotonic() + wait
            for process in self.processes:
                try:
                    process.wait(max(0.1, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue
        shutil.rmtree(self.folder, ignore_errors=True)


# ---- All documents ---------------------------------------------------------------------------------------------


def run_document(path, bin_folder, keep_going):
    """Runs a document's blocks and prints a line about it; returns the counts of its blocks."""
    began = time.monotonic()
    failures = []
    try:
        blocks = blocks_of((ROOT / path).read_text())
    except Failed as failure:
        blocks = []
        failures.append(f"{path}: {failure}")
    run = [block for block in blocks if not block.not_run]
    text = "".join(block.commands for block in run)

    def attempt(block, action):
        try:
            action()
            return True
        except Failed as failure:
            failures.append(f"{path}:{block.line}: {failure}")
            return keep_going

    def check(block):
        for call in calls_of(block.commands):
            check_call(bin_folder, call)

    machine = None
    try:
        if run:
            needs_relayer = bool(re.search(r"baton memory|--memory|baton account deleg", text))
            needs_network = needs_relayer or any(f"{program} " in text for program in PROGRAMS)
            machine = Machine(bin_folder, needs_network, needs_relayer)
        for block in blocks:
            action = (lambda: check(block)) if block.not_run else (lambda: machine.run(block))
            if not attempt(block, action):
                break
    except Failed as failure:
        failures.append(f"{path}: {failure}")
    finally:
        if machine:
            machine.close()
    seconds = time.monotonic() - began
    print(f"{path:28} {len(run):4} run {len(blocks) - len(run):4} checked {len(failures):4} failed {seconds:7.1f} s", flush=True)
    for failure in failures:
        print("  " + failure.replace("\n", "\n    "), flush=True)
    return len(run), len(blocks) - len(run), len(failures)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, help="folder of the programs")
    parser.add_argument("--keep-going", action="store_true", help="run the blocks after a failed one too")
    parser.add_argument("documents", nargs="*", help="documents, from the repository's root [default: all]")
    arguments = parser.parse_args()
    bin_folder = str(Path(arguments.bin).resolve())
    os.environ["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
    documents = arguments.documents or ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    counts = [run_document(path, bin_folder, arguments.keep_going) for path in documents]
    run, checked, failed = map(sum, zip(*counts))
    print(f"{len(documents)} documents: {run} blocks run, {checked} checked against --help, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
