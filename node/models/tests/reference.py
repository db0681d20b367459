"""Reference vectors for tests/reference.rs, by numpy alone: python reference.py MODELS_DIR

Needs numpy, safetensors and tokenizers. Prints the first six components and the last one of each vector.
"""

import math
import sys

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

TEXTS = [
    "The cat sleeps on the sofa.",
    "Caroline, 7 May 2023: I went to a support group yesterday.",
    "When did Melanie paint a sunrise?",
]
folder = sys.argv[1]


def show(name, vector):
    print(name, [round(float(x), 5) for x in vector[:6]], round(float(vector[-1]), 5))


table = load_file(f"{folder}/potion-base-8m.safetensors")["embeddings"]
pieces = Tokenizer.from_file(f"{folder}/potion-base-8m.tokenizer.json")
unknown = pieces.token_to_id("[UNK]")
for text in TEXTS:
    ids = [i for i in pieces.encode(text, add_special_tokens=False).ids if i != unknown]
    mean = table[ids].mean(0)
    show("potion", mean / np.linalg.norm(mean))

weights = load_file(f"{folder}/all-minilm-l6-v2.safetensors")
pieces = Tokenizer.from_file(f"{folder}/all-minilm-l6-v2.tokenizer.json")
pieces.no_padding()
erf = np.vectorize(math.erf)


def norm(x, name):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-12) * weights[name + ".weight"] + weights[name + ".bias"]


def dense(x, name):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def minilm(ids):
    at = "embeddings."
    x = weights[at + "word_embeddings.weight"][ids] + weights[at + "position_embeddings.weight"][: len(ids)]
    x = norm(x + weights[at + "token_type_embeddings.weight"][0], at + "LayerNorm")
    for layer in range(6):
        at = f"encoder.layer.{layer}."
        q, k, v = [
            dense(x, at + "attention.self." + name).reshape(-1, 12, 32).transpose(1, 0, 2)
            for name in ("query", "key", "value")
        ]
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(32)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed = (scores @ v).transpose(1, 0, 2).reshape(-1, 384)
        x = norm(dense(mixed, at + "attention.output.dense") + x, at + "attention.output.LayerNorm")
        grown = dense(x, at + "intermediate.dense")
        grown = grown * 0.5 * (1 + erf(grown / math.sqrt(2)))
        x = norm(dense(grown, at + "output.dense") + x, at + "output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


for text in TEXTS:
    show("minilm", minilm(pieces.encode(text).ids))
