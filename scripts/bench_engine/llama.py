"""Measures llama.cpp in one case, and prints a line of JSON. Called by compare.py, once for each run.

What is measured is what baton_engine::bench measures: reading a prompt of given tokens in chunks of 512, and then
generating with several sequences at once, by llama_decode alone.
"""

import argparse
import ctypes
import json
import resource
import statistics
import sys
import time

import llama_cpp as llama
import numpy

CHUNK = 512


def prompt(number, length, vocabulary):
    """The same tokens as baton_engine::bench::prompt."""
    tokens = [((at * 2_654_435_761 & 0xFFFF_FFFF) >> 8) % vocabulary for at in range(length)]
    tokens[0] = number % vocabulary
    return tokens


class Engine:
    def __init__(self, path, threads, sequences, positions, flash):
        quiet = llama.llama_log_callback(lambda *_: None)
        llama.llama_log_set(quiet, ctypes.c_void_p(0))
        self.quiet = quiet
        llama.llama_backend_init()
        settings = llama.llama_model_default_params()
        settings.n_gpu_layers = 0
        self.model = llama.llama_model_load_from_file(path.encode(), settings)
        if not self.model:
            raise SystemExit(f"llama.cpp does not load {path}")
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        settings = llama.llama_context_default_params()
        settings.n_ctx = sequences * (-(-positions // 256) * 256)
        settings.n_batch = settings.n_ubatch = CHUNK
        settings.n_seq_max = sequences
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = (
            llama.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        settings.no_perf = True
        self.context = llama.llama_init_from_model(self.model, settings)
        if not self.context:
            raise SystemExit("llama.cpp makes no context")
        self.batch = llama.llama_batch_init(CHUNK, 0, 1)

    def step(self, rows):
        """`rows` are token, position, sequence and whether logits are wanted. Returns wall and own time."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for at, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[at], batch.pos[at], batch.logits[at] = token, position, wanted
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
        wall, own = time.perf_counter(), time.thread_time()
        if llama.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama.cpp does not compute the step")
        llama.llama_synchronize(self.context)
        return time.perf_counter() - wall, time.thread_time() - own

    def likeliest(self, row):
        logits = llama.llama_get_logits_ith(self.context, row)
        return int(numpy.argmax(numpy.ctypeslib.as_array(logits, (self.vocabulary,))))

    def read(self, tokens, sequence):
        wall = own = 0
        for start in range(0, len(tokens), CHUNK):
            part = tokens[start : start + CHUNK]
            rows = [(token, start + at, sequence, at + 1 == len(part)) for at, token in enumerate(part)]
            times = self.step(rows)
            wall, own = wall + times[0], own + times[1]
        return wall, own

    def forget(self):
        llama.llama_memory_clear(llama.llama_get_memory(self.context), False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--gen", type=int, required=True)
    parser.add_argument("--flash", action="store_true")
    parser.add_argument("--settings", action="store_true", help="print what llama.cpp was built for, on standard error")
    args = parser.parse_args()
    if args.settings:
        print(f"llama.cpp: {llama.llama_print_system_info().decode().strip()}", file=sys.stderr, flush=True)
    engine = Engine(args.model, args.threads, args.batch, args.prompt + args.gen, args.flash)
    tokens = [prompt(number, args.prompt, engine.vocabulary) for number in range(args.batch)]
    # Once unmeasured, as ours: buffers are made.
    engine.read(tokens[0][:CHUNK], 0)
    engine.forget()
    prefill = engine.read(tokens[0], 0)
    following = [engine.likeliest(-1)]
    for number in range(1, args.batch):
        engine.read(tokens[number], number)
        following.append(engine.likeliest(-1))
    wall, own = [], 0
    for position in range(args.prompt, args.prompt + args.gen):
        rows = [(token, position, number, True) for number, token in enumerate(following)]
        times = engine.step(rows)
        wall.append(times[0])
        own += times[1]
        following = [engine.likeliest(row) for row in range(args.batch)]
    print(
        json.dumps(
            {
                "prefill": {"tokens_per_s": args.prompt / prefill[0], "main_thread": args.prompt / prefill[1]},
                "decode": {
                    "tokens_per_s": args.batch / statistics.median(wall),
                    "main_thread": args.batch * args.gen / own,
                },
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
