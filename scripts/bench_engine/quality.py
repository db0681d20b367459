"""Perplexity of the node's engine and of llama.cpp on the same text, model file and windows, and how often both find the
same token the likeliest."""

import argparse
import json
import math
import pathlib

import llama_cpp
import numpy

from compare import GEMMA, SMOLLM, fetch, run

# The most that our perplexity may be above llama.cpp's.
MOST_WORSE = 0.005


def llamas(path, told):
    """Scores and likeliest tokens of the same windows, computed by llama.cpp."""
    window, begin, tokens = told["window"], told["begin"], told["tokens"]
    model = llama_cpp.Llama(str(path), n_ctx=window, n_batch=window, n_threads=2, logits_all=True, verbose=False)
    scores, likeliest = [], []
    for start in range(0, len(tokens) - window + 1, window):
        piece = tokens[start : start + window]
        if begin is not None:
            piece[0] = begin
        model.reset()
        model.eval(piece)
        for place in range(window // 2, window - 1):
            logits = model.scores[place].astype(numpy.float64)
            largest = logits.max()
            scores.append(float(logits[piece[place + 1]] - largest - math.log(numpy.exp(logits - largest).sum())))
            likeliest.append(int(logits.argmax()))
    return scores, likeliest


def compare(binary, path, text):
    (told,) = run([binary, path, "--text", text])
    scores, likeliest = llamas(path, told)
    assert len(scores) == len(told["scores"])
    count = len(scores)
    theirs = math.exp(-sum(scores) / count)
    return {
        "model": path.name,
        "tokens": count,
        "perplexity": round(told["perplexity"], 4),
        "llama_cpp": round(theirs, 4),
        "ratio": round(told["perplexity"] / theirs, 5),
        "same_likeliest": round(sum(map(int.__eq__, likeliest, told["likeliest"])) / count, 4),
        "mean_difference": round(sum(abs(a - b) for a, b in zip(scores, told["scores"])) / count, 5),
    }


def main():
    parser = argparse.ArgumentParser()
    for option in ("--ours", "--models", "--text"):
        parser.add_argument(option, type=pathlib.Path, required=True)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    lines = [compare(args.ours, fetch(name, args.models), args.text) for name in (SMOLLM, GEMMA)]
    for line in lines:
        print(
            f"{line['model']}: perplexity {line['perplexity']}, llama.cpp {line['llama_cpp']}, ratio {line['ratio']}; "
            f"the same likeliest token in {line['same_likeliest']:.1%} of {line['tokens']}"
        )
    if args.json:
        print(json.dumps({"quality": lines}))
    if any(line["ratio"] > 1 + MOST_WORSE for line in lines):
        raise SystemExit(f"error: a perplexity is more than {MOST_WORSE:.1%} above llama.cpp's")


if __name__ == "__main__":
    main()
