#!/usr/bin/env python3
"""Builds the test programs of the workspace and runs them, most of them two at a time.

    scripts/run_tests.py [ARGUMENTS OF CARGO TEST]

`cargo test` runs one program after the other. Most tests wait for timers and sockets, so a second program uses the time in
which the first one waits. Beside a program that must run alone, programs that only compute use what it leaves of the
processor, at the lowest priority. The output of a program is shown whole when it ends. The exit status is 1 if a program
failed.
"""

import concurrent.futures
import json
import os
import queue
import subprocess
import sys
import threading
import time

# Programs at a time: each runs as many tests at once as there are cores, and one more.
LANES = 2
# A program that runs longer is stopped: the longest one takes some four minutes, and with BATON_FULL hours.
TIME_LIMIT_S = 6 * 3600 if os.environ.get("BATON_FULL") else 1200
# Floods and churn of whole networks: beside them, other tests miss their times and find no free ports.
ALONE = ("heavy",)
# Packages whose tests wait for nothing, and depend on no time.
COMPUTING = ("keys", "node/engine", "proto")
# These start first, so that no lane ends with them alone.
LONGEST = ("it", "driver", "command")


def programs(arguments):
    """The test programs as pairs of their file and their package's folder: those that run alone, those that only compute,
    and the others."""
    command = ["cargo", "test", "--no-run", "--message-format=json-render-diagnostics", *arguments]
    build = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if build.returncode != 0:
        sys.exit(build.returncode)
    messages = (json.loads(line) for line in build.stdout.splitlines() if line.startswith("{"))
    found = [
        (message["executable"], os.path.dirname(message["manifest_path"]), message["target"]["name"])
        for message in messages
        if message.get("executable") and message["profile"]["test"]
    ]
    if not found:
        sys.exit("error: cargo named no test program: its messages may have another form")
    rank = {name: place for place, name in enumerate(LONGEST)}
    found.sort(key=lambda program: rank.get(program[2], len(rank)))
    alone = [(file, folder) for file, folder, name in found if name in ALONE]
    rest = [(file, folder) for file, folder, name in found if name not in ALONE]
    computing = [program for program in rest if os.path.relpath(program[1]) in COMPUTING]
    return alone, computing, [program for program in rest if program not in computing]


def run(program, priority=()):
    """Runs a program as `cargo test` does: in its package's folder. Returns its exit status, seconds and output."""
    file, folder = program
    threads = os.environ.get("RUST_TEST_THREADS", str((os.cpu_count() or 1) + 1))
    environment = dict(os.environ, CARGO_MANIFEST_DIR=folder, RUST_TEST_THREADS=threads)
    start = time.monotonic()
    try:
        ended = subprocess.run(
            [*priority, file], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIME_LIMIT_S,
            check=False,
        )
        status, output = ended.returncode, ended.stdout
    except subprocess.TimeoutExpired as late:
        status, output = "none: the time limit passed", late.stdout or b""
    return status, time.monotonic() - start, output.decode(errors="replace")


def report(program, status, seconds, output):
    """Prints the output of a program that ended. Returns its name if it failed."""
    file, folder = program
    name = f"{os.path.relpath(folder)}: {os.path.basename(file).rsplit('-', 1)[0]}"
    print(f"\n     Running {name} ({seconds:.1f} s)\n{output}", flush=True)
    return [] if status == 0 else [f"{name} (exit status {status})"]


def main():
    failed = []
    lock = threading.Lock()

    def run_and_report(program, priority=()):
        ended = run(program, priority)
        with lock:
            failed.extend(report(program, *ended))

    alone, computing, others = programs(sys.argv[1:])
    waiting = queue.SimpleQueue()
    for program in computing:
        waiting.put(program)
    is_alone = threading.Event()
    is_alone.set()

    def compute():
        while is_alone.is_set():
            try:
                program = waiting.get_nowait()
            except queue.Empty:
                return
            run_and_report(program, ("nice", "-n", "19"))

    beside = threading.Thread(target=compute)
    beside.start()
    for program in alone:
        run_and_report(program)
    is_alone.clear()
    rest = []
    while not waiting.empty():
        rest.append(waiting.get())
    with concurrent.futures.ThreadPoolExecutor(LANES) as lanes:
        # Each result is taken, so that an error of this script ends it.
        list(lanes.map(run_and_report, rest + others))
    beside.join()
    for name in failed:
        print(f"error: test program failed: {name}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
