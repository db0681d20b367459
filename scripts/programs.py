"""This project's programs for tests in Python, and a stand-in for a model behind one of them."""

import json
import pathlib
import select
import subprocess
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Longest wait for a program to be ready, and to end.
SECONDS = 60
# The folder with the programs; each test sets it from its first argument.
binaries = pathlib.Path("target/debug")


def path(name):
    return str(binaries / name)


class Program:
    """A program that prints one JSON line when it is ready."""

    def __init__(self, name, *arguments):
        self.log = tempfile.TemporaryFile()
        self.command = [path(name), *map(str, arguments)]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log)
        readable, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        line = self.process.stdout.readline() if readable else b""
        if not line:
            self.process.kill()
            raise RuntimeError(f"{self.command[0]} was not ready within {SECONDS} s:\n{self.output()}")
        self.ready = json.loads(line)

    def output(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def stop(self):
        self.process.terminate()
        code = self.process.wait(SECONDS)
        self.process.stdout.close()
        return code


class Model(ThreadingHTTPServer):
    """An OpenAI-compatible model on a port of its own, which gives one answer to everything."""

    def __init__(self, answer):
        body = json.dumps({"choices": [{"message": {"role": "assistant", "content": answer}}]}).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
