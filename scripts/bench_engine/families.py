"""Prints what llama.cpp says of the small models in a folder, as node/engine/tests/data/llama_cpp.json has it.

The models come from `BATON_MODELS_OUT=FOLDER cargo test -p baton-engine --features candle --test it candle -- --ignored`.
"""

import ctypes
import json
import pathlib
import sys

import llama_cpp as llama

LENGTHS = (2, 50, 150)


def prompt(length):
    """The same tokens as small::prompt."""
    return [(at * 29 + 7) % 64 + 3 for at in range(length)]


def logits(path, tokens):
    settings = llama.llama_model_default_params()
    settings.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(str(path).encode(), settings)
    if not model:
        raise SystemExit(f"llama.cpp does not load {path}")
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    settings = llama.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = 512
    settings.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama.llama_init_from_model(model, settings)
    batch = llama.llama_batch_init(512, 0, 1)
    batch.n_tokens = len(tokens)
    for at, token in enumerate(tokens):
        batch.token[at], batch.pos[at], batch.logits[at] = token, at, at == len(tokens) - 1
        batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
    if llama.llama_decode(context, batch) != 0:
        raise SystemExit(f"llama.cpp does not compute {path}")
    row = llama.llama_get_logits_ith(context, len(tokens) - 1)
    found = [round(row[at], 6) for at in range(vocabulary)]
    llama.llama_batch_free(batch)
    llama.llama_free(context)
    llama.llama_model_free(model)
    return found


def main():
    quiet = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    files = sorted(pathlib.Path(sys.argv[1]).glob("*.gguf"))
    print(json.dumps({path.stem: {str(length): logits(path, prompt(length)) for length in LENGTHS} for path in files}))


if __name__ == "__main__":
    main()
